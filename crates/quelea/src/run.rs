//! The run builder, and the drivers that a run is given to.

use std::sync::Arc;

use quelea_core::problems::Problem;
use quelea_core::registry::Registry;
use quelea_core::{algorithms, codec, optim, topology};

use crate::choice::Choice;
use crate::model::{BatchId, GradientFn, Model};

/// A run: what is trained, by whom, and how. Every setting but the model has a default.
///
/// Settings are checked when the run is started. A run is cheap to clone and can be started as often
/// as one likes, in any driver.
#[derive(Clone)]
pub struct Run {
    pub(crate) registry: Registry,
    pub(crate) model: Model,
    pub(crate) gradient: Option<Arc<GradientFn>>,
    pub(crate) workers: usize,
    pub(crate) hosts: Option<usize>,
    pub(crate) servers: usize,
    pub(crate) steps: u64,
    pub(crate) seed: u64,
    pub(crate) evaluations: u64,
    pub(crate) bucket_bytes: usize,
    pub(crate) algorithm: Choice<algorithms::Entry>,
    pub(crate) topology: Choice<topology::Entry>,
    pub(crate) codec: Choice<codec::Entry>,
    pub(crate) optimizer: Choice<optim::Entry>,
    pub(crate) learning_rate: Option<f64>,
    pub(crate) schedule: Choice<optim::ScheduleEntry>,
    #[cfg(feature = "net")]
    pub(crate) security: quelea_net::Security,
}

impl Run {
    /// Trains a plain vector from these initial parameters. [`gradient`](Run::gradient) says how.
    pub fn new(initial: impl Into<Vec<f32>>) -> Run {
        Run::with_model(Model::Plain(initial.into()))
    }

    /// Trains a [`Problem`]: a model with its data, such as
    /// [`Logistic`](quelea_core::problems::logistic::Logistic).
    pub fn of(problem: impl Problem + 'static) -> Run {
        Run::with_model(Model::Problem(Arc::new(problem)))
    }

    fn with_model(model: Model) -> Run {
        Run {
            registry: Registry::builtin(),
            model,
            gradient: None,
            workers: 4,
            hosts: None,
            servers: 1,
            steps: 1000,
            seed: 1,
            evaluations: 0,
            bucket_bytes: 25_000_000,
            algorithm: "allreduce".into(), // names: default
            topology: "ring".into(),
            codec: "f32".into(),
            optimizer: "sgd".into(),
            learning_rate: None,
            schedule: "constant".into(),
            #[cfg(feature = "net")]
            security: quelea_net::Security::default(),
        }
    }

    /// Computes the gradients of a plain vector: of which mini-batch, the parameters, where the gradient
    /// goes. Returns the loss. It must be a function of its arguments alone, or runs cannot be repeated.
    /// Workers call it at the same time.
    #[must_use]
    pub fn gradient(
        mut self,
        gradient: impl Fn(BatchId, &[f32], &mut [f32]) -> f32 + Send + Sync + 'static,
    ) -> Run {
        self.gradient = Some(Arc::new(gradient));
        self
    }

    /// The entries that names are looked up in; the built-in ones by default.
    #[must_use]
    pub fn registry(mut self, registry: Registry) -> Run {
        self.registry = registry;
        self
    }

    /// How many compute gradients; 4 by default.
    #[must_use]
    pub fn workers(mut self, workers: usize) -> Run {
        self.workers = workers;
        self
    }

    /// How many hosts the workers are spread over, in blocks; one each by default.
    #[must_use]
    pub fn hosts(mut self, hosts: usize) -> Run {
        self.hosts = Some(hosts);
        self
    }

    /// How many servers hold the model, for algorithms that have servers; 1 by default.
    #[must_use]
    pub fn servers(mut self, servers: usize) -> Run {
        self.servers = servers;
        self
    }

    /// Steps of each worker; 1000 by default.
    #[must_use]
    pub fn steps(mut self, steps: u64) -> Run {
        self.steps = steps;
        self
    }

    /// The seed that all random choices follow from; 1 by default.
    #[must_use]
    pub fn seed(mut self, seed: u64) -> Run {
        self.seed = seed;
        self
    }

    /// How often the model is evaluated on the way, evenly; then
    /// [`records`](crate::RunOutcome::records) has
    /// [`Evaluation`](quelea_record::RecordKind::Evaluation)s. Never by default.
    #[must_use]
    pub fn evaluations(mut self, evaluations: u64) -> Run {
        self.evaluations = evaluations;
        self
    }

    /// The largest bucket in bytes: what is exchanged while the rest of a gradient is computed. 0 is one
    /// bucket; 25 MB by default.
    #[must_use]
    pub fn bucket_bytes(mut self, bytes: usize) -> Run {
        self.bucket_bytes = bytes;
        self
    }

    /// The algorithm: a name, an entry, a [`Choice`] with options, or a [struct](crate::typed); all-reduce
    /// by default.
    #[must_use]
    pub fn algorithm(mut self, algorithm: impl Into<Choice<algorithms::Entry>>) -> Run {
        self.algorithm = algorithm.into();
        self
    }

    /// The topology, for algorithms that gossip; a ring by default.
    #[must_use]
    pub fn topology(mut self, topology: impl Into<Choice<topology::Entry>>) -> Run {
        self.topology = topology.into();
        self
    }

    /// What vectors travel as; `f32` by default.
    #[must_use]
    pub fn codec(mut self, codec: impl Into<Choice<codec::Entry>>) -> Run {
        self.codec = codec.into();
        self
    }

    /// The optimizer; plain SGD by default.
    #[must_use]
    pub fn optimizer(mut self, optimizer: impl Into<Choice<optim::Entry>>) -> Run {
        self.optimizer = optimizer.into();
        self
    }

    /// The learning rate before the schedule; the optimizer's default otherwise.
    #[must_use]
    pub fn learning_rate(mut self, rate: f64) -> Run {
        self.learning_rate = Some(rate);
        self
    }

    /// How the learning rate changes over the run; constant by default.
    #[must_use]
    pub fn schedule(mut self, schedule: impl Into<Choice<optim::ScheduleEntry>>) -> Run {
        self.schedule = schedule.into();
        self
    }
}

impl std::fmt::Debug for Run {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Run")
            .field("workers", &self.workers)
            .field("steps", &self.steps)
            .field("algorithm", &self.algorithm)
            .field("registry", &self.registry)
            .finish_non_exhaustive()
    }
}
