//! A model and a cluster, as a configuration states them.

use quelea_core::options::Options;
use quelea_core::registry::Registry;
use quelea_run::config::Config;
use quelea_run::error::RequestError;
use quelea_run::prepared::PreparedRun;
use quelea_sim::Cluster;
use serde_json::{Value, json};

/// What is asked about.
#[derive(Clone, Debug, PartialEq)]
pub struct Scenario {
    /// The algorithms, topologies and codecs that are planned with.
    pub registry: Registry,
    /// How many compute gradients.
    pub workers: usize,
    /// How many machines they are spread over.
    pub hosts: usize,
    /// Servers, each on a machine of its own, for algorithms that have them.
    pub servers: usize,
    /// Elements of the model, four bytes each.
    pub parameters: f64,
    /// Bytes on the wire per byte of a vector; 1 without a codec.
    pub wire: f64,
    /// Steps of the run that is planned.
    pub steps: u64,
    /// Seconds of a gradient.
    pub compute: f64,
    /// Coefficient of variation of that.
    pub variation: f64,
    /// The share of it that is backward.
    pub backward: f64,
    /// Workers that take so many times as long, by rank.
    pub slow: Vec<(u32, f64)>,
    /// Bytes per second of a card; where cards differ, of the slowest of the workers.
    pub bandwidth: f64,
    /// Seconds from one machine to another.
    pub latency: f64,
    /// Bytes per second inside a machine.
    pub internal: f64,
    /// Seconds from one worker to another of the same machine.
    pub internal_latency: f64,
    /// The algorithm that the configuration names; others are planned for with their defaults.
    pub algorithm: Option<GivenAlgorithm>,
}

/// An algorithm with the options that a configuration gives it.
#[derive(Clone, Debug, PartialEq)]
pub struct GivenAlgorithm {
    /// Its name.
    pub name: &'static str,
    /// All its options.
    pub options: Options,
}

/// A model whose size is known by its name.
pub struct KnownModel {
    /// As people type it.
    pub name: &'static str,
    /// Trainable parameters.
    pub parameters: f64,
}

/// Models whose size is known, by name.
pub const MODELS: &[KnownModel] = &[
    KnownModel { name: "bert-base", parameters: 110e6 },
    KnownModel { name: "bert-large", parameters: 340e6 },
    KnownModel { name: "gpt2-small", parameters: 124e6 },
    KnownModel { name: "gpt2-xl", parameters: 1558e6 },
    KnownModel { name: "llama-7b", parameters: 6740e6 },
    KnownModel { name: "resnet-18", parameters: 11.7e6 },
    KnownModel { name: "resnet-20", parameters: 0.27e6 },
    KnownModel { name: "resnet-50", parameters: 25.6e6 },
    KnownModel { name: "transformer-base", parameters: 61e6 },
    KnownModel { name: "transformer-big", parameters: 210e6 },
    KnownModel { name: "vgg-16", parameters: 138e6 },
    KnownModel { name: "vit-base", parameters: 86e6 },
];

/// More workers than this are not planned for.
const WORKERS_MAX: usize = 4096;

impl Scenario {
    /// From a configuration; the model is that of its task unless `parameters` are given.
    pub fn new(config: Config, parameters: Option<f64>) -> Result<Scenario, RequestError> {
        if config.workers > WORKERS_MAX {
            let problem = format!("must be at most {WORKERS_MAX} to be planned for");
            return Err(RequestError::field("workers", config.workers, problem));
        }
        if let Some(given) = parameters.filter(|p| !(1.0..=1e13).contains(p)) {
            let problem = "must be a number of parameters from 1 to 10^13, as in 25.5e6";
            return Err(RequestError::field("--parameters", given, problem));
        }
        // A prepared run checks everything else, and knows the model of the task.
        let scenario = Scenario::of(&PreparedRun::new(config)?)?;
        Ok(Scenario { parameters: parameters.unwrap_or(scenario.parameters), ..scenario })
    }

    /// Of a run that is ready to be driven.
    pub fn of(prepared: &PreparedRun) -> Result<Scenario, RequestError> {
        let (config, cluster) = (&prepared.config, &prepared.cluster);
        if cluster.compute_ms == 0.0 {
            let problem = "must be above 0: a step of no time has no speed-up";
            return Err(RequestError::field("cluster.compute_ms", cluster.compute_ms, problem));
        }
        let algorithm = GivenAlgorithm {
            name: config.algorithm.entry.meta.name,
            options: config.algorithm.options().clone(),
        };
        let mut hosts: Vec<u32> = prepared.setup.view.hosts[..config.workers].to_vec();
        hosts.dedup();
        Ok(Scenario {
            registry: config.registry.clone(),
            workers: config.workers,
            hosts: hosts.len(),
            servers: config.cluster.options.whole("servers").max(1) as usize,
            parameters: prepared.setup.layout.len() as f64,
            wire: 1.0,
            steps: prepared.setup.steps,
            compute: cluster.compute_ms * 1e-3,
            variation: cluster.compute_cv,
            backward: cluster.backward_share,
            slow: cluster.slow.iter().map(|(rank, factor)| (*rank, *factor)).collect(),
            bandwidth: slowest_card(cluster, &hosts) * 1e9 / 8.0,
            latency: cluster.latency_us * 1e-6,
            internal: cluster.internal_gbps * 1e9 / 8.0,
            internal_latency: cluster.internal_latency_us * 1e-6,
            algorithm: Some(algorithm),
        })
    }

    /// Bytes of the model.
    pub fn bytes(&self) -> f64 {
        4.0 * self.parameters
    }

    /// Bytes of the model on the wire.
    pub fn sent(&self) -> f64 {
        self.wire * self.bytes()
    }

    /// Most workers on one machine.
    pub fn per_host(&self) -> usize {
        self.workers.div_ceil(self.hosts)
    }

    /// The host of every worker.
    pub fn host_of(&self, worker: usize) -> usize {
        worker * self.hosts / self.workers
    }

    /// Gradients per second with steps of this length, times one ordinary worker's alone.
    pub fn speedup(&self, step_seconds: f64) -> f64 {
        self.workers as f64 * self.compute / step_seconds
    }

    /// The settings of a run file.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![
            ("cluster.hosts", self.hosts.to_string()),
            ("cluster.servers", self.servers.to_string()),
            ("cluster.compute_ms", (self.compute * 1e3).to_string()),
            ("cluster.compute_cv", self.variation.to_string()),
            ("cluster.backward_share", self.backward.to_string()),
            ("cluster.bandwidth_gbps", (self.bandwidth * 8e-9).to_string()),
            ("cluster.latency_us", (self.latency * 1e6).to_string()),
            ("cluster.internal_gbps", (self.internal * 8e-9).to_string()),
            ("cluster.internal_latency_us", (self.internal_latency * 1e6).to_string()),
        ];
        if !self.slow.is_empty() {
            let slow: Vec<String> =
                self.slow.iter().map(|(rank, factor)| format!("\"{rank}\" = {factor:?}")).collect();
            settings.push(("cluster.slow", format!("{{ {} }}", slow.join(", "))));
        }
        settings
    }

    /// What `--json` prints of it.
    pub fn json(&self) -> Value {
        json!({
            "workers": self.workers,
            "hosts": self.hosts,
            "servers": self.servers,
            "parameters": self.parameters,
            "steps": self.steps,
            "compute_seconds": self.compute,
            "compute_cv": self.variation,
            "slow": self.slow,
            "bandwidth_bytes_per_second": self.bandwidth,
            "latency_seconds": self.latency,
            "internal_bytes_per_second": self.internal,
            "internal_latency_seconds": self.internal_latency,
        })
    }
}

/// Gigabits per second of the slowest card of these hosts.
fn slowest_card(cluster: &Cluster, hosts: &[u32]) -> f64 {
    let card = |host: &u32| cluster.host_bandwidth_gbps.get(host).copied();
    let cards = hosts.iter().map(|host| card(host).unwrap_or(cluster.bandwidth_gbps));
    cards.fold(f64::INFINITY, f64::min)
}
