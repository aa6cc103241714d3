//! Small runs on quadratics, for the tests of this crate.
#![allow(dead_code, reason = "each user takes its own part")]

pub mod capture;
pub mod detour;

use std::sync::Arc;

use quelea_core::algorithms;
use quelea_core::layout::Layout;
use quelea_core::optim;
use quelea_core::options::{Options, Value};
use quelea_core::problems::Problem;
use quelea_core::problems::quadratic::{Quadratic, QuadraticOptions};
use quelea_core::properties::TopologyRequirement;
use quelea_core::run_spec::{MakeTopology, RunSpec};
use quelea_core::topology::{self, TopologyRequest};
use quelea_core::view::View;
use quelea_net::{Coordinator, Gradients, Hosted, NetError, NetOptions, Observer, join};
use quelea_record::{Outcome, Record};

/// A run as the tests describe it; as text it is the job that joiners get.
#[derive(Clone, Debug)]
pub struct Run {
    pub algorithm: &'static algorithms::Entry,
    pub workers: usize,
    pub servers: usize,
    pub steps: u64,
    pub dimensions: usize,
    pub bucket_bytes: usize,
    /// Places for workers that join.
    pub spare: usize,
}

impl Run {
    pub fn of(algorithm: &str, workers: usize) -> Run {
        let algorithm = algorithms::find(algorithm).expect("in the table");
        let properties = (algorithm.properties)(&Options::defaults(algorithm.meta.options));
        let servers = if properties.servers { 2 } else { 0 };
        Run { algorithm, workers, servers, steps: 20, dimensions: 37, bucket_bytes: 64, spare: 0 }
    }

    pub fn steps(self, steps: u64) -> Run {
        Run { steps, ..self }
    }

    pub fn job(&self) -> Vec<u8> {
        let name = self.algorithm.meta.name;
        let Run { workers, steps, dimensions, spare, .. } = self;
        format!("{name} {workers} {steps} {dimensions} {spare}").into_bytes()
    }

    pub fn parse(job: &[u8]) -> Run {
        let text = String::from_utf8_lossy(job).into_owned();
        let mut words = text.split(' ');
        let name = words.next().expect("a name");
        let mut number = || words.next().and_then(|word| word.parse().ok()).expect("a number");
        let run = Run::of(name, number() as usize).steps(number());
        Run { dimensions: number() as usize, spare: number() as usize, ..run }
    }

    pub fn setup(&self) -> RunSpec {
        let params = Options::defaults(self.algorithm.meta.options);
        let hosts: Vec<u32> = (0..(self.workers + self.spare + self.servers) as u32).collect();
        let ring = |hosts: &[u32]| {
            let ring = topology::find("ring").expect("in the table");
            let params = Options::defaults(ring.meta.options);
            let request = TopologyRequest { hosts, seed: 1, options: &params, text: None };
            Arc::new(ring.build(&request).expect("any number of workers"))
        };
        let needs_topology =
            (self.algorithm.properties)(&params).topology != TopologyRequirement::Nothing;
        let view = View::with_spare_seats(
            self.workers,
            self.spare,
            self.servers,
            hosts.clone().into(),
            needs_topology.then(|| ring(&hosts[..self.workers])),
        );
        // Others keep the topology that they have.
        let rebuilds = needs_topology && self.spare > 0;
        let make: MakeTopology = Arc::new(move |hosts: &[u32]| Some(ring(hosts)));
        let sgd = optim::find("sgd").expect("in the table");
        let lr = ("lr".to_string(), Value::Number(0.1));
        let sgd_params = sgd.params([lr]).expect("good");
        RunSpec {
            entry: self.algorithm,
            options: params,
            codec: Default::default(),
            layout: Arc::new(Layout::plain(self.dimensions, self.bucket_bytes)),
            initial: self.problem().initial().into(),
            optimizer: Arc::new(move |len| (sgd.build)(&sgd_params, len)),
            learning_rate: Arc::new(|_| 0.1),
            schedule_clock: Default::default(),
            clip: None,
            samples: Arc::from([]),
            steps: self.steps,
            seed: 1,
            view: Arc::new(view),
            topology: rebuilds.then_some(make),
            poison: Default::default(),
            data: Default::default(),
        }
    }

    pub fn problem(&self) -> Quadratic {
        let rows = |scale: f64| (0..self.workers).map(|i| vec![scale * (i + 1) as f64]).collect();
        let options = QuadraticOptions {
            workers: self.workers,
            dimensions: Some(self.dimensions),
            curvature: rows(0.25),
            target: rows(1.0),
            noise_std: 0.1,
            ..QuadraticOptions::default()
        };
        Quadratic::new(&options).expect("a good problem")
    }

    pub fn gradients(&self) -> Gradients {
        Gradients::of(Arc::new(self.problem()))
    }

    pub fn threads(&self) -> Result<Outcome, NetError> {
        quelea_net::threads(
            &self.setup(),
            &self.gradients(),
            &NetOptions::default(),
            &mut Watch::new(),
        )
    }

    /// Coordinator and workers in one process, over sockets; worker 0 with the coordinator if
    /// `with_worker`.
    pub fn sockets(&self, with_worker: bool) -> Result<Outcome, NetError> {
        let coordinator = coordinator(NetOptions::default());
        let address = coordinator.address().to_string();
        let hosted = Hosted { workers: if with_worker { vec![0] } else { Vec::new() } };
        std::thread::scope(|scope| {
            for rank in hosted.workers.len()..self.workers {
                let address = &address;
                scope.spawn(move || worker(address, Some(rank as u32)).expect("it takes part"));
            }
            let (setup, gradients) = (self.setup(), self.gradients());
            coordinator.run(self.job(), &setup, &gradients, &hosted, &mut Watch::new())
        })
    }
}

pub fn coordinator(options: NetOptions) -> Coordinator {
    Coordinator::bind("127.0.0.1:0", options).expect("a free port")
}

pub fn worker(address: &str, rank: Option<u32>) -> Result<(), NetError> {
    worker_with(address, rank, &NetOptions::default())
}

pub fn worker_with(address: &str, rank: Option<u32>, options: &NetOptions) -> Result<(), NetError> {
    join(address, rank, options, &mut |job| {
        let run = Run::parse(job);
        Ok((run.setup(), run.gradients()))
    })
}

/// Counts, and calls back on progress.
pub struct Watch {
    pub records: Vec<Record>,
    pub on_progress: Box<dyn FnMut(u64) + Send>,
}

impl Watch {
    pub fn new() -> Watch {
        Watch { records: Vec::new(), on_progress: Box::new(|_| {}) }
    }

    pub fn calling(on_progress: impl FnMut(u64) + Send + 'static) -> Watch {
        Watch { records: Vec::new(), on_progress: Box::new(on_progress) }
    }
}

impl Observer for Watch {
    fn record(&mut self, record: Record) {
        self.records.push(record);
    }

    fn wants_timeline(&self) -> bool {
        true
    }

    fn progress(&mut self, done: u64, _total: u64, _now: quelea_core::time::Time) {
        (self.on_progress)(done);
    }
}

/// The parameters of every rank, as bits.
pub fn bits(outcome: &Outcome) -> Vec<Vec<u32>> {
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect();
    outcome.ranks.iter().map(|rank| bits(&rank.params)).collect()
}
