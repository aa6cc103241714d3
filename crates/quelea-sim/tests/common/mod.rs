//! Setups for the tests: quadratics of any size, rings, any placement on hosts.

use std::sync::Arc;

use quelea_core::algorithms::{self, Entry};
use quelea_core::layout::Layout;
use quelea_core::optim;
use quelea_core::options::{Options, Value};
use quelea_core::problems::Problem;
use quelea_core::problems::quadratic::{Quadratic, QuadraticOptions};
use quelea_core::run_spec::RunSpec;
use quelea_core::topology::{Round, Schedule};
use quelea_core::view::View;
use quelea_record::Outcome;
use quelea_sim::{Cluster, SimError};

/// A run to be: change what matters, then [`Case::run`] it.
pub struct Case {
    pub setup: RunSpec,
    pub problem: Quadratic,
    pub cluster: Cluster,
}

/// The shape of a run.
#[derive(Clone, Copy)]
pub struct Shape {
    pub workers: usize,
    pub servers: usize,
    /// Elements of the model.
    pub len: usize,
    /// Buckets of equal size.
    pub buckets: usize,
    pub steps: u64,
}

/// Four workers, ten elements, one bucket.
pub const SMALL: Shape = Shape { workers: 4, servers: 0, len: 10, buckets: 1, steps: 20 };

impl Case {
    /// The algorithm `name` of the table, everybody on a host of their own.
    pub fn new(name: &str, shape: Shape) -> Case {
        let entry = algorithms::find(name).expect("a name of the table");
        Case::of(entry, shape)
    }

    pub fn of(entry: &'static Entry, shape: Shape) -> Case {
        let Shape { workers, servers, len, buckets, steps } = shape;
        assert_eq!(len % buckets, 0, "buckets of equal size");
        let problem = quadratic(workers, len);
        let hosts: Arc<[u32]> = (0..(workers + servers) as u32).collect();
        let topology = Some(Arc::new(ring(workers)));
        let sgd = optim::find("sgd").expect("in the table");
        let params = Options::defaults(sgd.meta.options);
        let setup = RunSpec {
            entry,
            options: with_short_rounds(entry),
            codec: Default::default(),
            layout: Arc::new(Layout::plain(len, len / buckets * 4)),
            initial: problem.initial().into(),
            optimizer: Arc::new(move |len| (sgd.build)(&params, len)),
            learning_rate: Arc::new(|_| 0.1),
            schedule_clock: Default::default(),
            clip: None,
            samples: Arc::from([]),
            steps,
            seed: 1,
            view: Arc::new(View::first(workers, servers, hosts, topology)),
            topology: Some(Arc::new(|hosts| Some(Arc::new(ring(hosts.len()))))),
            poison: Default::default(),
            data: Default::default(),
        };
        let cluster = Cluster { threads: 1, ..Cluster::default() };
        Case { setup, problem, cluster }
    }

    pub fn with(mut self, key: &'static str, value: Value) -> Case {
        self.setup.options = self.setup.options.with(key, value);
        self
    }

    pub fn on(mut self, change: impl FnOnce(&mut Cluster)) -> Case {
        change(&mut self.cluster);
        self
    }

    pub fn try_run(&self) -> Result<Outcome, SimError> {
        let observer = &mut quelea_record::Silent;
        quelea_sim::simulate(&self.setup, &self.problem, &self.cluster, observer)
    }

    pub fn run(&self) -> Outcome {
        self.try_run().expect("the run ends well")
    }

    /// The clock of the run, in whole nanoseconds.
    pub fn clock_ns(&self) -> u64 {
        nanoseconds(self.run().clock_seconds)
    }
}

/// The defaults of a row; long rounds become short, so that a short run has several.
fn with_short_rounds(entry: &Entry) -> Options {
    let params = Options::defaults(entry.meta.options);
    let long =
        entry.meta.options.iter().any(|key| key.name == "period") && params.whole("period") > 4;
    if long { params.with("period", Value::Number(3.0)) } else { params }
}

pub fn nanoseconds(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

/// `f_i(x) = ½‖x − i‖²`.
fn quadratic(workers: usize, len: usize) -> Quadratic {
    let options = QuadraticOptions {
        workers,
        dimensions: Some(len),
        curvature: vec![vec![1.0]; workers],
        target: (0..workers).map(|rank| vec![rank as f64]).collect(),
        ..QuadraticOptions::default()
    };
    Quadratic::new(&options).expect("good options")
}

/// Everybody mixes with both neighbours, a third each.
fn ring(n: usize) -> Schedule {
    let row = |i: usize| {
        let mut members = vec![i, (i + 1) % n, (i + n - 1) % n];
        members.sort_unstable();
        members.dedup();
        let weight = 1.0 / members.len() as f64;
        members.into_iter().map(|j| (j, weight)).collect()
    };
    Schedule::periodic(vec![Round::new((0..n).map(row).collect())])
}
