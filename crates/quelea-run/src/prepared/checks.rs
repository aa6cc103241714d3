//! What can only be checked across sections of a configuration: an algorithm with its servers,
//! optimizer, topology and codec.

use quelea_core::algorithms;
use quelea_core::codec::CodecShape;
use quelea_core::layout::Layout;
use quelea_core::options::{Options, Value};
use quelea_core::properties::{Budget, OptimizerSite, Properties, TopologyRequirement};
use quelea_core::run_spec::DataAssignment;
use quelea_core::topology::{self, Schedule};

use crate::config::Config;
use crate::config::chosen::Chosen;
use crate::config::listed::WITHIN_HOST;
use crate::error::RequestError;

pub(super) fn check_servers(config: &Config, properties: &Properties) -> Result<(), RequestError> {
    if !properties.servers || config.servers() > 0 {
        return Ok(());
    }
    let problem = format!("`{}` needs at least 1 server", config.algorithm.entry.meta.name);
    Err(RequestError::field("cluster.servers", 0, problem))
}

/// A server sees only its shard, so it cannot know the norm of the whole gradient.
pub(super) fn check_clipping(
    config: &Config,
    properties: &Properties,
    servers: usize,
) -> Result<(), RequestError> {
    let clip = config.optimizer.options().real("clip_norm");
    if clip > 0.0
        && servers > 1
        && properties.optimizer == OptimizerSite::Servers
        && !properties.clips_itself
    {
        let problem = format!(
            "`{}` clips at its servers, and each of {servers} sees only its shard; \
             use one server (`cluster.servers` = 1) or no clipping (0)",
            config.algorithm.entry.meta.name
        );
        return Err(RequestError::field("optimizer.clip_norm", clip, problem));
    }
    Ok(())
}

/// Data are shared where a controller hands out gradients, and only undivided data can be.
pub(super) fn check_shared_data(
    config: &Config,
    properties: &Properties,
) -> Result<(), RequestError> {
    if config.data == DataAssignment::Own {
        return Ok(());
    }
    let refuse = |problem: String| Err(RequestError::field("data", "\"shared\"", problem));
    if properties.budget != Budget::TotalGradients {
        let name = config.algorithm.entry.meta.name;
        return refuse(format!(
            "`{name}` with these options gives every worker as many steps; must be \"own\""
        ));
    }
    let options = &config.task.values.options;
    let has = |key: &str| options.iter().any(|(name, _)| name == key);
    if has("partition") && options.text("partition") != "iid" {
        return refuse("`task.partition` divides the data; must be \"own\"".to_string());
    }
    if has("batches") && !options.reals("batches").is_empty() {
        return refuse("`task.batches` gives workers batches of different size".to_string());
    }
    Ok(())
}

/// Every server holds something.
pub(super) fn check_shards(servers: usize, dimensions: usize) -> Result<(), RequestError> {
    if servers <= dimensions {
        return Ok(());
    }
    let problem = format!(
        "the model has {dimensions} parameters, so that some servers would hold nothing; use at \
         most {dimensions}"
    );
    Err(RequestError::field("cluster.servers", servers, problem))
}

/// Some methods take only some optimizers.
pub(super) fn check_optimizer(
    config: &Config,
    properties: &Properties,
) -> Result<(), RequestError> {
    let (optimizer, requirement) = (&config.optimizer, properties.optimizer_rule);
    let Some(key) = requirement.refusal(optimizer.entry, optimizer.options()) else {
        return Ok(());
    };
    let given = match key {
        "name" => toml::Value::from(optimizer.entry.meta.name),
        key => toml::Value::from(optimizer.options().real(key)),
    };
    let problem = format!("`{}`: {}", config.algorithm.entry.meta.name, requirement.reason());
    Err(RequestError::field(format!("optimizer.{key}"), given, problem))
}

pub(super) fn averages_within_hosts(topology: &Chosen<topology::Entry>) -> bool {
    topology.options().text(WITHIN_HOST.name) == "average"
}

/// Only who gossips can gossip between hosts.
pub(super) fn check_within_host(
    config: &Config,
    properties: &Properties,
) -> Result<(), RequestError> {
    if properties.topology != TopologyRequirement::Nothing
        || !averages_within_hosts(&config.topology)
    {
        return Ok(());
    }
    let gossips = |entry: &&algorithms::Entry| {
        (entry.properties)(&Options::defaults(entry.meta.options)).topology
            != TopologyRequirement::Nothing
    };
    let all = config.registry.entries::<algorithms::Entry>();
    let all: Vec<&str> = all.filter(gossips).map(|entry| entry.meta.name).collect();
    let problem = format!(
        "`{}` does not gossip, so that there is nothing to do between hosts; use one of {}",
        config.algorithm.entry.meta.name,
        all.join(", ")
    );
    let given = toml::Value::from("average");
    Err(RequestError::field("topology.within_host", given, problem))
}

/// Some methods take only some topologies.
pub(super) fn check_topology(
    config: &Config,
    properties: &Properties,
    schedule: Option<&Schedule>,
) -> Result<(), RequestError> {
    let Some(reason) = schedule.and_then(|schedule| properties.topology.refusal(schedule)) else {
        return Ok(());
    };
    let given = toml::Value::from(config.topology.entry.meta.name);
    let problem = format!("`{}` {reason}", config.algorithm.entry.meta.name);
    Err(RequestError::field("topology.name", given, problem))
}

/// Every method takes only the codecs that leave it what it needs.
pub(super) fn check_codec(config: &Config, layout: &Layout) -> Result<(), RequestError> {
    let (codec, algorithm) = (&config.codec, &config.algorithm);
    let longest = layout.buckets.iter().map(|bucket| bucket.range.len()).max().unwrap_or(0);
    let codecs = (algorithm.entry.codecs)(algorithm.options());
    let collective = algorithm.options().iter().find(|(key, _)| *key == "collective");
    let ring = collective.is_none_or(|(_, value)| *value == Value::Text("ring".to_string()));
    let no_matrix = !layout.tensors.iter().any(|tensor| tensor.shape.len() > 1);
    let name = algorithm.entry.meta.name;
    let problem = match codec.entry.shape {
        CodecShape::Rounding if !codec.entry.per_element && !ring => Some(
            "has one scale per message, so that replicas have the same bits only with \
             `algorithm.collective` = \"ring\""
                .to_string(),
        ),
        CodecShape::LowRank if no_matrix => Some(format!(
            "compresses matrices, and the model of task `{}` has none",
            config.task.entry.meta.name
        )),
        _ => {
            let refusal = codecs.refusal(codec.entry, codec.options(), longest);
            refusal.map(|reason| format!("`{name}` {reason}"))
        }
    };
    match problem {
        Some(problem) => {
            let given = toml::Value::from(codec.entry.meta.name);
            Err(RequestError::field("codec.name", given, problem))
        }
        None => Ok(()),
    }
}
