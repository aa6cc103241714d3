//! What is known of a run before it begins: its ranks, where they are, who mixes with whom.

use quelea_run::config::Config;
use quelea_run::prepared::{PreparedRun, RunShape, TopologyEdges, TopologyRebuild};
use serde::Serialize;
use serde_json::{Value, json};

/// What is known of a run before it begins.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunDescription {
    /// The name of its folder.
    pub name: String,
    /// Its algorithm.
    pub algorithm: String,
    /// Its task.
    pub task: String,
    /// Number of workers; they are the first ranks.
    pub workers: usize,
    /// Number of servers; they follow.
    pub servers: usize,
    /// The host of every rank.
    pub hosts: Vec<u32>,
    /// First element and end of what each server keeps of the model, where the model is known.
    pub shards: Vec<[usize; 2]>,
    /// Steps of every worker; 0 where a script decides.
    pub steps: u64,
    /// Whether workers take their steps together.
    pub synchronous: bool,
    /// Who mixes with whom, for algorithms that have a topology.
    pub topology: Option<TopologyEdges>,
    /// What makes it anew when the membership has changed.
    #[serde(skip)]
    pub rebuild: Option<TopologyRebuild>,
    /// Bytes per second that a host's card can send, by the configuration.
    pub bandwidth_bytes_per_second: Option<f64>,
    /// The resolved configuration.
    pub config: Value,
}

/// More workers than a configuration may ask for.
const WORKERS_MAX: u64 = 100_000;

impl RunDescription {
    /// Of a run that is about to begin.
    pub fn of(prepared: &PreparedRun, name: &str) -> RunDescription {
        let shape = prepared.shape();
        let shards = prepared.setup.shards().into_iter();
        RunDescription {
            shards: shards.map(|shard| [shard.start, shard.end]).collect(),
            bandwidth_bytes_per_second: Some(prepared.cluster.bandwidth_gbps * 1e9 / 8.0),
            ..RunDescription::from_parts(name, prepared.config.resolved(), Some(&shape))
        }
    }

    /// From the resolved configuration of a run that has ended. What cannot be derived from it stays
    /// unknown.
    pub fn of_config(config: Value, name: &str) -> RunDescription {
        let shape = readable(&config).and_then(|config| RunShape::of(config).ok());
        RunDescription::from_parts(name, config, shape.as_ref())
    }

    fn from_parts(name: &str, config: Value, shape: Option<&RunShape>) -> RunDescription {
        let text = |table: &str| config[table]["name"].as_str().unwrap_or_default().to_string();
        // A file that names more than a run can have names none.
        let workers = config["workers"].as_u64().filter(|workers| *workers <= WORKERS_MAX);
        let workers = workers.unwrap_or(0) as usize;
        let gbps = config["cluster"]["bandwidth_gbps"].as_f64();
        RunDescription {
            name: name.to_string(),
            algorithm: text("algorithm"),
            task: text("task"),
            workers: shape.map_or(workers, |shape| shape.workers),
            shards: Vec::new(),
            servers: shape.map_or(0, |shape| shape.hosts.len() - shape.workers),
            hosts: shape.map_or_else(|| (0..workers as u32).collect(), |shape| shape.hosts.clone()),
            steps: config["steps"].as_u64().unwrap_or(0),
            synchronous: shape.is_some_and(|shape| shape.synchronous),
            topology: shape.and_then(|shape| shape.topology.clone()),
            rebuild: shape.and_then(|shape| shape.rebuild.clone()),
            bandwidth_bytes_per_second: gbps.map(|gbps| gbps * 1e9 / 8.0),
            config,
        }
    }

    /// Workers and servers.
    pub fn ranks(&self) -> usize {
        self.workers + self.servers
    }

    /// Who sends to whom in the round of this step, as planned at first.
    pub fn edges(&self, step: u64) -> &[(u32, u32)] {
        self.topology.as_ref().map_or(&[], |topology| round_of(topology, step))
    }
}

/// The edges of a topology in the round of this step.
pub(crate) fn round_of(topology: &TopologyEdges, step: u64) -> &[(u32, u32)] {
    let round = (step % topology.rounds.len().max(1) as u64) as usize;
    topology.rounds.get(round).map_or(&[], Vec::as_slice)
}

/// The configuration of a run as far as its shape depends on it: not on its task, which this program may
/// not know, nor on its length, which a script may decide.
pub(crate) fn readable(config: &Value) -> Option<Config> {
    let mut config = config.clone();
    let table = config.as_object_mut()?;
    table.insert("task".into(), json!({ "name": "quadratic" }));
    if table.get("steps").is_some_and(|steps| steps == 0) {
        table.insert("steps".into(), json!(1));
    }
    Config::read(serde_json::from_value(config).ok()?, &[], None).ok()
}
