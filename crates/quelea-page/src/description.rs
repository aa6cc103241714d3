//! What is known of a run before it begins: its ranks, where they are, who mixes with whom.

use quelea_run::config::Config;
use quelea_run::prepared::{PreparedRun, RunShape, TopologyEdges};
use serde::Serialize;
use serde_json::Value;

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
    /// Steps of every worker; 0 where a script decides.
    pub steps: u64,
    /// Whether workers take their steps together.
    pub synchronous: bool,
    /// Who mixes with whom, for algorithms that have a topology.
    pub topology: Option<TopologyEdges>,
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
        RunDescription {
            bandwidth_bytes_per_second: Some(prepared.cluster.bandwidth_gbps * 1e9 / 8.0),
            ..RunDescription::from_parts(name, prepared.config.resolved(), Some(&shape))
        }
    }

    /// From the resolved configuration of a run that has ended. What cannot be derived from it stays
    /// unknown.
    pub fn of_config(config: Value, name: &str) -> RunDescription {
        let table = serde_json::from_value(config.clone()).ok();
        let read = table.and_then(|table| Config::read(table, &[], None).ok());
        let shape = read.and_then(|config| RunShape::of(config).ok());
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
            servers: shape.map_or(0, |shape| shape.hosts.len() - shape.workers),
            hosts: shape.map_or_else(|| (0..workers as u32).collect(), |shape| shape.hosts.clone()),
            steps: config["steps"].as_u64().unwrap_or(0),
            synchronous: shape.is_some_and(|shape| shape.synchronous),
            topology: shape.and_then(|shape| shape.topology.clone()),
            bandwidth_bytes_per_second: gbps.map(|gbps| gbps * 1e9 / 8.0),
            config,
        }
    }

    /// Workers and servers.
    pub fn ranks(&self) -> usize {
        self.workers + self.servers
    }

    /// Who sends to whom in the round of this step.
    pub fn edges(&self, step: u64) -> &[(u32, u32)] {
        let Some(topology) = &self.topology else { return &[] };
        let round = (step % topology.rounds.len().max(1) as u64) as usize;
        topology.rounds.get(round).map_or(&[], Vec::as_slice)
    }
}
