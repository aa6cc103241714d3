//! From a configuration to everything that a driver needs. Every command goes through here.

mod checks;
mod kept_vectors;
mod shape;
mod topology_maker;

use std::path::PathBuf;
use std::sync::Arc;

use quelea_core::layout::Layout;
use quelea_core::poison::PoisonPolicy;
use quelea_core::problems::{ModelSpec, Problem};
use quelea_core::properties::Properties;
use quelea_core::registry::Registry;
use quelea_core::run_spec::{CodecChoice, DataAssignment, RunSpec};
use quelea_core::topology::Schedule;
use quelea_core::view::View;
use quelea_net::{LossPolicy, SilenceLimits};
use quelea_record::ResumePoint;
use quelea_sim::Cluster;
use quelea_sim::chaos::ChaosTarget;

use crate::checkpoint::read::Checkpoint;
use crate::checkpoint::{BestModel, fit};
use crate::config::{Config, Length, chaos, cluster, faults};
use crate::error::RequestError;
use crate::memory::{self, MemoryDemand};
use crate::tasks;
use checks::{
    averages_within_hosts, check_clipping, check_codec, check_optimizer, check_servers,
    check_shards, check_shared_data, check_topology, check_within_host,
};
use kept_vectors::{kept, most_neighbours};
pub use shape::{RunShape, TopologyEdges, TopologyRebuild};
pub use topology_maker::TopologyMaker;
use topology_maker::make_topology;

/// A run, ready to be driven.
pub struct PreparedRun {
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
    /// The state to resume from; empty for a new run.
    pub start: Arc<ResumePoint>,
    /// The checkpoint that this is from.
    pub resumed: Option<Resumed>,
}

/// The checkpoint that a run resumes from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Resumed {
    /// The folder of the run.
    pub run: PathBuf,
    /// Steps of every worker.
    pub step: u64,
    /// The best model until then.
    pub best: Option<BestModel>,
}

impl PreparedRun {
    /// Checks what can only be checked together, loads the data, builds the topology.
    pub fn new(config: Config) -> Result<PreparedRun, RequestError> {
        PreparedRun::with(config, |config| {
            let request = tasks::TaskRequest {
                values: &config.task.values,
                workers: config.workers,
                seed: config.seed,
                shared_data: config.data == DataAssignment::Shared,
            };
            config.task.entry.build(&request)
        })
    }

    /// A prepared run for a problem that is not in the table of tasks.
    pub fn of_problem(
        config: Config,
        problem: Arc<dyn Problem>,
    ) -> Result<PreparedRun, RequestError> {
        PreparedRun::with(config, |_| Ok(tasks::Built { problem, steps_per_epoch: None }))
    }

    fn with(
        config: Config,
        build: impl FnOnce(&Config) -> Result<tasks::Built, RequestError>,
    ) -> Result<PreparedRun, RequestError> {
        let checked = CheckedConfig::new(config)?;
        let built = build(&checked.config)?;
        if checked.config.data == DataAssignment::Shared && !built.problem.shares_data() {
            let problem = "what it trains has no data that every epoch goes through once";
            return Err(RequestError::field("data", "\"shared\"", problem.to_string()));
        }
        let CompleteConfig { config, epochs, setup, cluster } =
            checked.complete(ModelSpec::of(&*built.problem), built.steps_per_epoch)?;
        let (start, resumed) = (Arc::default(), None);
        Ok(PreparedRun { config, epochs, setup, problem: built.problem, cluster, start, resumed })
    }

    /// What happens when a worker is lost in a real run.
    pub fn loss_policy(&self) -> LossPolicy {
        self.config.loss_policy()
    }

    /// Why a real run over several processes ends with the one that controls it, if it does.
    pub fn survival_refusal(&self) -> Option<String> {
        quelea_net::survival_refusal(&self.setup, &self.config.net_options())
    }

    /// Workers whose loss ends a real run: they mix for their hosts, and nobody can take their place.
    /// None where the first loss ends it anyway.
    pub fn irreplaceable(&self) -> Vec<u32> {
        if self.loss_policy() == LossPolicy::Stop {
            return Vec::new();
        }
        let view = &self.setup.view;
        let workers = view.workers.iter();
        workers.filter(|rank| self.setup.cannot_lose(view, **rank)).map(|rank| rank.0).collect()
    }

    /// How long a process may be silent in a real run.
    pub fn silence_limits(&self) -> SilenceLimits {
        self.config.silence_limits()
    }

    /// The same run, resumed from a checkpoint.
    pub fn resume_from(mut self, checkpoint: &Checkpoint) -> Result<PreparedRun, RequestError> {
        self.start = Arc::new(fit::start(checkpoint, &self)?);
        let manifest = &checkpoint.manifest;
        let run = checkpoint.run.clone();
        self.resumed = Some(Resumed { run, step: manifest.step, best: manifest.best });
        self.config.notes.extend(checkpoint.notes.iter().cloned());
        self.config.notes.extend(self.note_on_departed());
        Ok(self)
    }

    /// Says which workers the run continues without, if there are any.
    fn note_on_departed(&self) -> Option<String> {
        let names: Vec<String> = self.start.departed().map(|rank| rank.0.to_string()).collect();
        let (these, were) = match names.len() {
            0 => return None,
            1 => ("worker", "was"),
            _ => ("workers", "were"),
        };
        Some(format!(
            "the run continues without {these} {}, which {were} lost before the checkpoint; \
             `--set workers={}` replaces what was lost and resets the algorithm's own state",
            names.join(", "),
            self.config.workers
        ))
    }

    /// Refuses a prepared run whose ranks do not all fit into this machine together.
    pub fn check_memory(&self) -> Result<(), RequestError> {
        let (config, dimensions) = (&self.config, self.setup.layout.len());
        let neighbours =
            self.setup.view.topology(0).map_or(0, |(_, schedule)| most_neighbours(schedule));
        let vectors = MemoryDemand {
            dimensions,
            workers: config.seats(),
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

    /// What another process needs to prepare the same run.
    pub fn job(&self) -> Vec<u8> {
        self.config.resolved().to_string().into_bytes()
    }

    /// The run that another process prepared, which must have the same entries registered.
    pub fn from_job(registry: &Registry, job: &[u8]) -> Result<PreparedRun, RequestError> {
        let table: toml::Table = serde_json::from_slice(job)
            .map_err(|error| RequestError::Conflict(format!("the job is not readable: {error}")))?;
        PreparedRun::new(Config::read_with(registry, table, &[], None)?)
    }
}

/// What the nodes of a run have in common, for a model whose gradients come from elsewhere, such as
/// a training script.
pub fn run_spec(config: Config, model: ModelSpec) -> Result<RunSpec, RequestError> {
    if config.data == DataAssignment::Shared {
        let problem =
            "the training script draws its data; `quelea.torch.ElasticSampler` shares them";
        return Err(RequestError::field("data", "\"shared\"", problem.to_string()));
    }
    Ok(CheckedConfig::new(config)?.complete(model, None)?.setup)
}

/// A configuration of which all was checked that needs no model.
struct CheckedConfig {
    config: Config,
    properties: Properties,
    cluster: Cluster,
    hosts: Vec<u32>,
    make: Option<TopologyMaker>,
    schedule: Option<Arc<Schedule>>,
}

/// A configuration with its model.
struct CompleteConfig {
    config: Config,
    epochs: Option<f64>,
    setup: RunSpec,
    cluster: Cluster,
}

impl CheckedConfig {
    fn new(config: Config) -> Result<CheckedConfig, RequestError> {
        let properties = config.properties();
        let servers = config.servers();
        check_servers(&config, &properties)?;
        check_clipping(&config, &properties, servers)?;
        check_optimizer(&config, &properties)?;
        check_within_host(&config, &properties)?;
        check_poison(&config, &properties)?;
        check_shared_data(&config, &properties)?;
        let mut cluster = cluster::build(&config.cluster)?;
        faults::check_ranks(&config.cluster, config.seats(), servers)?;
        let target = ChaosTarget {
            workers: config.workers as u32,
            spare: (config.seats() - config.workers) as u32,
            servers: servers as u32,
            detect_ms: cluster.detect_ms,
        };
        chaos::add(&config.chaos, config.seed, target, &mut cluster.faults);
        let spare = config.seats() - config.workers;
        let hosts = cluster::placement(&config.cluster, config.workers, spare, servers)?;
        let make = make_topology(&config, &properties)?;
        let schedule =
            make.as_ref().map(|make| make.build(&hosts[..config.workers])).transpose()?;
        check_topology(&config, &properties, schedule.as_deref())?;
        Ok(CheckedConfig { config, properties, cluster, hosts, make, schedule })
    }

    fn complete(
        self,
        model: ModelSpec,
        steps_per_epoch: Option<u64>,
    ) -> Result<CompleteConfig, RequestError> {
        let CheckedConfig { mut config, properties, cluster, hosts, make, schedule } = self;
        let (servers, dimensions) = (config.servers(), model.initial.len());
        check_shards(servers, dimensions)?;
        let neighbours = schedule.as_deref().map_or(0, most_neighbours);
        let kept = kept(&config, neighbours, dimensions);
        // The others may live on other machines; `check_memory` is for those who do not.
        let one = MemoryDemand {
            dimensions,
            workers: 1,
            snapshot: properties.snapshot,
            kept,
            servers: 0,
        };
        one.check(memory::available())?;
        let epochs = fix_steps(&mut config, steps_per_epoch)?;
        let view = match schedule {
            Some(schedule) if averages_within_hosts(&config.topology) => {
                View::of_hosts(config.workers, hosts.into(), schedule)
            }
            schedule => {
                let spare = config.seats() - config.workers;
                View::with_spare_seats(config.workers, spare, servers, hosts.into(), schedule)
            }
        };
        let setup = setup(&config, model, view, make);
        check_growth(&config, &setup)?;
        check_codec(&config, &setup.layout)?;
        cluster.check_for(&setup).map_err(cluster::refused)?;
        Ok(CompleteConfig { config, epochs, setup, cluster })
    }
}

fn setup(config: &Config, model: ModelSpec, view: View, make: Option<TopologyMaker>) -> RunSpec {
    let bytes = (config.buckets.real("size_mb") * 1e6) as usize;
    let layout = if model.tensors.is_empty() {
        Layout::plain(model.initial.len(), bytes)
    } else {
        Layout::of_tensors(model.tensors, bytes)
    };
    let optimizer = config.optimizer.clone();
    let (lr, clip) = (optimizer.options().real("lr"), optimizer.options().real("clip_norm") as f32);
    let steps = config.steps();
    let samples = if model.samples.is_empty() { 0 } else { config.seats() };
    RunSpec {
        entry: config.algorithm.entry,
        options: config.algorithm.options().clone(),
        codec: CodecChoice { entry: config.codec.entry, options: config.codec.options().clone() },
        layout: Arc::new(layout),
        initial: model.initial.into(),
        optimizer: Arc::new(move |len| (optimizer.entry.build)(optimizer.options(), len)),
        learning_rate: config.schedule.entry.build(config.schedule.options(), lr, steps),
        schedule_clock: config.schedule.entry.clock(config.schedule.options()),
        clip: (clip > 0.0).then_some(clip),
        // A worker in a new place has the data of one that was there at the start.
        samples: model.samples.iter().copied().cycle().take(samples).collect(),
        steps,
        seed: config.seed,
        view: Arc::new(view),
        topology: make.map(TopologyMaker::into_function),
        poison: match config.trust.text("poison") {
            "refuse" => PoisonPolicy::Refuse,
            "drop" => PoisonPolicy::Drop,
            "ignore" => PoisonPolicy::Ignore,
            _ => PoisonPolicy::Stop,
        },
        data: config.data,
    }
}

/// Refuses places for workers that could never join.
fn check_growth(config: &Config, setup: &RunSpec) -> Result<(), RequestError> {
    let most = config.seats();
    match setup.join_refusal().filter(|_| most > config.workers) {
        Some(why) => {
            let problem = format!("nobody can join this run: {why}");
            Err(RequestError::field("membership.max_workers", most, problem))
        }
        None => Ok(()),
    }
}

/// A message that is left out is awaited for ever by those who wait for every one.
fn check_poison(config: &Config, properties: &Properties) -> Result<(), RequestError> {
    if config.trust.text("poison") != "refuse" || !properties.synchronous {
        return Ok(());
    }
    let name = config.algorithm.entry.meta.name;
    let problem =
        format!("`{name}` waits for every message; must be \"stop\", \"drop\" or \"ignore\"");
    Err(RequestError::field("trust.poison", "\"refuse\"", problem))
}

/// Turns epochs into steps; returns the epochs.
fn fix_steps(config: &mut Config, per_epoch: Option<u64>) -> Result<Option<f64>, RequestError> {
    let Length::Epochs(epochs) = config.length else {
        return Ok(None);
    };
    let Some(per_epoch) = per_epoch else {
        let problem = format!(
            "the task `{}` has no data to go through; give `steps` instead",
            config.task.entry.meta.name
        );
        return Err(RequestError::field("epochs", epochs, problem));
    };
    config.length = Length::Steps((epochs * per_epoch as f64).ceil().max(1.0) as u64);
    Ok(Some(epochs))
}
