//! From a configuration to everything that a driver needs. Every command goes through here.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use quelea_core::algorithms::{self, ALGORITHMS, Codecs};
use quelea_core::codec::Shape;
use quelea_core::layout::Layout;
use quelea_core::node::{CodecChoice, MakeTopology, RunSpec};
use quelea_core::options::{Options, Value};
use quelea_core::problems::Problem;
use quelea_core::properties::{OptimizerSite, Properties, TopologyRequirement};
use quelea_core::topology::{self, Schedule, TopologyError};
use quelea_core::view::View;
use quelea_record::ResumePoint;
use quelea_sim::Cluster;

use crate::checkpoint::read::Checkpoint;
use crate::checkpoint::{Best, fit};
use crate::config::row::Row;
use crate::config::rows::WITHIN_HOST;
use crate::config::source::read_text;
use crate::config::{Config, Length, cluster, faults};
use crate::error::RequestError;
use crate::memory::{self, Vectors};
use crate::tasks;

/// A run, ready to be driven.
pub struct Plan {
    /// The configuration, its length in steps.
    pub config: Config,
    /// The epochs that were asked for, if they were.
    pub epochs: Option<f64>,
    /// What the nodes have in common.
    pub setup: RunSpec,
    /// What is trained.
    pub problem: Arc<dyn Problem>,
    /// Where it is simulated.
    pub cluster: Cluster,
    /// What it goes on from; empty for a run that begins.
    pub start: Arc<ResumePoint>,
    /// The checkpoint that this is from.
    pub resumed: Option<Resumed>,
}

/// The checkpoint that a run goes on from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resumed {
    /// The folder of the run.
    pub run: PathBuf,
    /// Steps of every worker.
    pub step: u64,
    /// The best model until then.
    pub best: Option<Best>,
}

impl Plan {
    /// Checks what can only be checked together, loads the data, builds the topology.
    pub fn new(config: Config) -> Result<Plan, RequestError> {
        Plan::with(config, |config| {
            let request = tasks::Request {
                values: &config.task.values,
                workers: config.workers,
                seed: config.seed,
            };
            config.task.entry.build(&request)
        })
    }

    /// A plan for a problem that is not in the table of tasks, such as a training script's.
    pub fn of_problem(config: Config, problem: Arc<dyn Problem>) -> Result<Plan, RequestError> {
        Plan::with(config, |_| Ok(tasks::Built { problem, steps_per_epoch: None }))
    }

    fn with(
        mut config: Config,
        build: impl FnOnce(&Config) -> Result<tasks::Built, RequestError>,
    ) -> Result<Plan, RequestError> {
        let properties = config.properties();
        let servers = config.servers();
        check_servers(&config, &properties)?;
        check_clipping(&config, &properties, servers)?;
        check_plain_sgd(&config, &properties)?;
        check_within_host(&config, &properties)?;
        let cluster = cluster::build(&config.cluster)?;
        faults::check_ranks(&config.cluster, config.workers + servers)?;
        let hosts = cluster::placement(&config.cluster, config.workers, servers)?;
        let make = make_topology(&config, &properties)?;
        let schedule =
            make.as_ref().map(|make| make.build(&hosts[..config.workers])).transpose()?;
        check_topology(&config, &properties, schedule.as_deref())?;
        let built = build(&config)?;
        let dimensions = built.problem.dimensions();
        check_shards(servers, dimensions)?;
        let neighbours = schedule.as_deref().map_or(0, most_neighbours);
        let kept = kept(&config, neighbours, dimensions);
        // The others may live on other machines; `check_memory` is for those who do not.
        let one =
            Vectors { dimensions, workers: 1, snapshot: properties.snapshot, kept, servers: 0 };
        one.check(memory::available())?;
        let epochs = fix_steps(&mut config, built.steps_per_epoch)?;
        let view = match schedule {
            Some(schedule) if averages_within_hosts(&config.topology) => {
                View::of_hosts(config.workers, hosts.into(), schedule)
            }
            schedule => View::first(config.workers, servers, hosts.into(), schedule),
        };
        let setup = setup(&config, &*built.problem, view, make);
        check_codec(&config, &setup.layout)?;
        cluster.check_for(&setup).map_err(cluster::refused)?;
        let (start, resumed) = (Arc::default(), None);
        Ok(Plan { config, epochs, setup, problem: built.problem, cluster, start, resumed })
    }

    /// The same plan, going on from a checkpoint.
    pub fn going_on_from(mut self, checkpoint: &Checkpoint) -> Result<Plan, RequestError> {
        self.start = Arc::new(fit::start(checkpoint, &self)?);
        let manifest = &checkpoint.manifest;
        let run = checkpoint.run.clone();
        self.resumed = Some(Resumed { run, step: manifest.step, best: manifest.best });
        self.config.notes.extend(checkpoint.notes.iter().cloned());
        Ok(self)
    }

    /// Refuses a plan whose ranks do not all fit into this machine together.
    pub fn check_memory(&self) -> Result<(), RequestError> {
        let (config, dimensions) = (&self.config, self.setup.layout.len());
        let neighbours =
            self.setup.view.topology(0).map_or(0, |(_, schedule)| most_neighbours(schedule));
        let vectors = Vectors {
            dimensions,
            workers: config.workers,
            snapshot: self.setup.properties().snapshot,
            kept: kept(config, neighbours, dimensions),
            servers: if config.servers() > 0 { 3 } else { 0 },
        };
        vectors.check(memory::available())
    }

    /// Steps of all workers together.
    pub fn total_steps(&self) -> u64 {
        self.setup.steps * self.config.workers as u64
    }

    /// What another process needs to make the same plan.
    pub fn job(&self) -> Vec<u8> {
        self.config.understood().to_string().into_bytes()
    }

    /// The plan that another process made.
    pub fn from_job(job: &[u8]) -> Result<Plan, RequestError> {
        let table: toml::Table = serde_json::from_slice(job)
            .map_err(|error| RequestError::Conflict(format!("the job is not readable: {error}")))?;
        Plan::new(Config::read(table, &[], None)?)
    }
}

fn setup(config: &Config, problem: &dyn Problem, view: View, make: Option<Maker>) -> RunSpec {
    let bytes = (config.buckets.real("size_mb") * 1e6) as usize;
    let tensors = problem.tensors();
    let layout = if tensors.is_empty() {
        Layout::plain(problem.dimensions(), bytes)
    } else {
        Layout::of_tensors(tensors, bytes)
    };
    let optimizer = config.optimizer.clone();
    let (lr, clip) = (optimizer.options().real("lr"), optimizer.options().real("clip_norm") as f32);
    let steps = config.steps();
    RunSpec {
        entry: config.algorithm.entry,
        options: config.algorithm.options().clone(),
        codec: CodecChoice { entry: config.codec.entry, options: config.codec.options().clone() },
        layout: Arc::new(layout),
        initial: problem.initial().into(),
        optimizer: Arc::new(move |len| (optimizer.entry.build)(optimizer.options(), len)),
        learning_rate: config.schedule.entry.build(config.schedule.options(), lr, steps),
        clip: (clip > 0.0).then_some(clip),
        samples: problem.samples().into(),
        steps,
        seed: config.seed,
        view: Arc::new(view),
        topology: make.map(Maker::into_function),
    }
}

/// Turns epochs into steps; returns the epochs.
fn fix_steps(config: &mut Config, per_epoch: Option<u64>) -> Result<Option<f64>, RequestError> {
    let Length::Epochs(epochs) = config.length else {
        return Ok(None);
    };
    let Some(per_epoch) = per_epoch else {
        let problem = format!(
            "the task `{}` has no data to go through; give `steps` instead",
            config.task.entry.name
        );
        return Err(RequestError::field("epochs", epochs, problem));
    };
    config.length = Length::Steps((epochs * per_epoch as f64).ceil().max(1.0) as u64);
    Ok(Some(epochs))
}

fn check_servers(config: &Config, properties: &Properties) -> Result<(), RequestError> {
    if !properties.servers || config.servers() > 0 {
        return Ok(());
    }
    let problem = format!("`{}` needs at least 1 server", config.algorithm.entry.name);
    Err(RequestError::field("cluster.servers", 0, problem))
}

/// A server sees only its shard, so it cannot know the norm of the whole gradient.
fn check_clipping(
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
            config.algorithm.entry.name
        );
        return Err(RequestError::field("optimizer.clip_norm", clip, problem));
    }
    Ok(())
}

/// Vectors that a worker keeps for its codec: what was left out, or the public copies of itself and
/// of its neighbours.
fn kept(config: &Config, neighbours: usize, dimensions: usize) -> usize {
    let (codec, algorithm) = (&config.codec, &config.algorithm);
    let leaves_out = !codec.entry.properties(codec.options(), dimensions).lossless;
    match (algorithm.entry.codecs)(algorithm.options()) {
        Codecs::Contraction => 1 + neighbours,
        // Averages pass on what is rounded as it is.
        Codecs::All => usize::from(leaves_out && codec.entry.shape != Shape::Rounding),
        Codecs::Feedback => usize::from(leaves_out),
        Codecs::Rounding(_) | Codecs::Exact(_) => 0,
    }
}

/// Workers that one worker hears from in a round, at most.
fn most_neighbours(schedule: &Schedule) -> usize {
    let others = schedule.round(0).rows().iter().map(|row| row.len().saturating_sub(1)).max();
    others.unwrap_or(0)
}

/// Every server holds something.
fn check_shards(servers: usize, dimensions: usize) -> Result<(), RequestError> {
    if servers <= dimensions {
        return Ok(());
    }
    let problem = format!(
        "the model has {dimensions} parameters, so that some servers would hold nothing; use at \
         most {dimensions}"
    );
    Err(RequestError::field("cluster.servers", servers, problem))
}

/// Where servers take the plain step, the workers must take it too.
fn check_plain_sgd(config: &Config, properties: &Properties) -> Result<(), RequestError> {
    let (optimizer, name) = (&config.optimizer, config.algorithm.entry.name);
    if !properties.plain_sgd {
        return Ok(());
    }
    let problem = format!(
        "with `algorithm.payload` = \"gradient\" the servers of `{name}` take plain SGD steps, \
         and the workers' steps must be the same; use `optimizer.name` = \"sgd\" without \
         momentum and weight decay, or `algorithm.payload` = \"delta\""
    );
    if optimizer.entry.name != "sgd" {
        let given = toml::Value::from(optimizer.entry.name);
        return Err(RequestError::field("optimizer.name", given, problem));
    }
    let more = ["momentum", "weight_decay"].map(|key| (key, optimizer.options().real(key)));
    match more.into_iter().find(|(_, value)| *value > 0.0) {
        Some((key, value)) => Err(RequestError::field(format!("optimizer.{key}"), value, problem)),
        None => Ok(()),
    }
}

fn averages_within_hosts(topology: &Row<topology::Entry>) -> bool {
    topology.options().text(WITHIN_HOST.name) == "average"
}

/// Only who gossips can gossip between hosts.
fn check_within_host(config: &Config, properties: &Properties) -> Result<(), RequestError> {
    if properties.topology != TopologyRequirement::Nothing
        || !averages_within_hosts(&config.topology)
    {
        return Ok(());
    }
    let gossips = |entry: &&algorithms::Entry| {
        (entry.properties)(&Options::defaults(entry.keys)).topology != TopologyRequirement::Nothing
    };
    let all: Vec<&str> = ALGORITHMS.iter().filter(gossips).map(|entry| entry.name).collect();
    let problem = format!(
        "`{}` does not gossip, so that there is nothing to do between hosts; use one of {}",
        config.algorithm.entry.name,
        all.join(", ")
    );
    let given = toml::Value::from("average");
    Err(RequestError::field("topology.within_host", given, problem))
}

/// Some methods take only some topologies.
fn check_topology(
    config: &Config,
    properties: &Properties,
    schedule: Option<&Schedule>,
) -> Result<(), RequestError> {
    let Some(reason) = schedule.and_then(|schedule| properties.topology.refusal(schedule)) else {
        return Ok(());
    };
    let given = toml::Value::from(config.topology.entry.name);
    let problem = format!("`{}` {reason}", config.algorithm.entry.name);
    Err(RequestError::field("topology.name", given, problem))
}

/// Every method takes only the codecs that leave it what it needs.
fn check_codec(config: &Config, layout: &Layout) -> Result<(), RequestError> {
    let (codec, algorithm) = (&config.codec, &config.algorithm);
    let longest = layout.buckets.iter().map(|bucket| bucket.range.len()).max().unwrap_or(0);
    let codecs = (algorithm.entry.codecs)(algorithm.options());
    let collective = algorithm.options().iter().find(|(key, _)| *key == "collective");
    let ring = collective.is_none_or(|(_, value)| *value == Value::Text("ring".to_string()));
    let no_matrix = !layout.tensors.iter().any(|tensor| tensor.shape.len() > 1);
    let name = algorithm.entry.name;
    let problem = match codec.entry.shape {
        Shape::Rounding if !codec.entry.per_element && !ring => Some(
            "has one scale per message, so that replicas have the same bits only with \
             `algorithm.collective` = \"ring\""
                .to_string(),
        ),
        Shape::LowRank if no_matrix => Some(format!(
            "compresses matrices, and the model of task `{}` has none",
            config.task.entry.name
        )),
        _ => {
            let refusal = codecs.refusal(codec.entry, codec.options(), longest);
            refusal.map(|reason| format!("`{name}` {reason}"))
        }
    };
    match problem {
        Some(problem) => {
            let given = toml::Value::from(codec.entry.name);
            Err(RequestError::field("codec.name", given, problem))
        }
        None => Ok(()),
    }
}

/// What makes the topology, for algorithms that ask for one.
fn make_topology(config: &Config, properties: &Properties) -> Result<Option<Maker>, RequestError> {
    if properties.topology == TopologyRequirement::Nothing {
        return Ok(None);
    }
    let make = Maker::new(config.topology.clone(), config.seed)?;
    Ok(Some(Maker { need: properties.topology, ..make }))
}

/// Makes the topology of a run, now and after a change of membership.
pub struct Maker {
    row: Row<topology::Entry>,
    seed: u64,
    /// The file of a custom topology.
    text: Option<String>,
    /// What the method asks of it.
    need: TopologyRequirement,
}

impl Maker {
    /// For this row; reads the file of a custom topology.
    pub fn new(row: Row<topology::Entry>, seed: u64) -> Result<Maker, RequestError> {
        let named = row.options().iter().find(|(name, _)| *name == "file");
        let text = match named {
            Some((_, Value::Text(path))) if !path.is_empty() => {
                let refuse = |problem| {
                    let given = toml::Value::from(path.as_str());
                    RequestError::field("topology.file", given, problem)
                };
                Some(read_text(Path::new(path)).map_err(refuse)?)
            }
            _ => None,
        };
        Ok(Maker { row, seed, text, need: TopologyRequirement::Mixing })
    }

    /// The topology over workers on these hosts.
    pub fn build(&self, hosts: &[u32]) -> Result<Arc<Schedule>, RequestError> {
        self.request(hosts).map(Arc::new).map_err(|error| self.refused(&error))
    }

    fn refused(&self, error: &TopologyError) -> RequestError {
        let (key, given) = match error {
            TopologyError::NoFile | TopologyError::File { .. } => {
                ("file", self.row.options().text("file"))
            }
            _ => ("name", self.row.entry.name),
        };
        RequestError::field(format!("topology.{key}"), toml::Value::from(given), error.to_string())
    }

    fn request(&self, hosts: &[u32]) -> Result<Schedule, TopologyError> {
        let mut hosts = hosts.to_vec();
        if averages_within_hosts(&self.row) {
            let mut seen = BTreeSet::new();
            hosts.retain(|host| seen.insert(*host));
        }
        let request = topology::Request {
            hosts: &hosts,
            seed: self.seed,
            options: self.row.options(),
            text: self.text.as_deref(),
        };
        match self.need {
            TopologyRequirement::Edges => self.row.entry.build_edges(&request),
            _ => self.row.entry.build(&request),
        }
    }

    fn into_function(self) -> MakeTopology {
        Arc::new(move |hosts| self.request(hosts).ok().map(Arc::new))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::source::parse;

    #[test]
    fn memory_has_what_codecs_keep() {
        for (algorithm, codec, vectors) in [
            ("allreduce", "f32", 0),
            ("allreduce", "bf16", 0),
            ("allreduce", "top-k", 1),
            ("asp", "bf16", 1),
            ("d-psgd", "bf16", 0),
            // Its own public copy, and those of two neighbours.
            ("choco", "f32", 3),
            ("choco", "sign", 3),
        ] {
            let text = format!(
                "workers = 5\n[algorithm]\nname = \"{algorithm}\"\n[codec]\nname = \"{codec}\"\n\
                 [topology]\nname = \"ring\"\n[task]\nname = \"quadratic\""
            );
            let config = Config::read(parse(&text).expect("TOML"), &[], None).expect("good");
            let plan = Plan::new(config).expect("it goes together");
            let neighbours = plan.setup.view.topology(0).map_or(0, |(_, s)| most_neighbours(s));
            assert_eq!(kept(&plan.config, neighbours, 100), vectors, "{algorithm} {codec}");
        }
    }
}
