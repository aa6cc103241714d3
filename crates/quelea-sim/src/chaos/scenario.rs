//! A small random run of any algorithm with random faults, and what must hold in it.

use std::collections::BTreeSet;
use std::sync::Arc;

use quelea_core::algorithms::{ALGORITHMS, Entry};
use quelea_core::layout::Layout;
use quelea_core::optim;
use quelea_core::options::{Options, Value};
use quelea_core::problems::Problem;
use quelea_core::problems::quadratic::{Quadratic, QuadraticOptions};
use quelea_core::properties::Budget;
use quelea_core::random::Rng;
use quelea_core::run_spec::{DataAssignment, RunSpec};
use quelea_core::time::Time;
use quelea_core::topology::{Round, Schedule};
use quelea_core::view::View;
use quelea_record::{
    CheckpointSchedule, Observer, Outcome, RankReport, Record, RecordKind, Request,
};

use super::{ChaosOptions, ChaosTarget};
use crate::cluster::{Cluster, ControlPath};
use crate::faults::Faults;
use crate::{SimError, simulate_checked};

/// Elements of the model.
const ELEMENTS: usize = 12;
/// A run of a few dozen steps takes some ten thousand events.
const EVENT_LIMIT: u64 = 5_000_000;
/// A step takes some milliseconds, on the slowest links some hundred. After the last fault the rest of
/// a run may take this long.
const PATIENCE_SECONDS: f64 = 60.0;

/// Gradients that a worker may have been granted and not completed: one that it computes, and the next.
const GRANTED_AHEAD: u64 = 2;

/// A run that follows from a seed.
pub struct ChaosScenario {
    /// The seed.
    pub seed: u64,
    setup: RunSpec,
    problem: Quadratic,
    cluster: Cluster,
    schedule: CheckpointSchedule,
    /// What the observer requests, and the how-many-th time it is asked.
    request: Option<(u64, Request)>,
}

/// What did not hold in a run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{problem}\n  {scenario}")]
pub struct ChaosFailure {
    /// What.
    pub problem: String,
    /// The run, in words.
    pub scenario: String,
}

/// Draws one of a few values at a time.
struct Picker(Rng);

impl Picker {
    fn pick(&mut self, choices: &[f64]) -> f64 {
        choices[self.0.below(choices.len() as u64) as usize]
    }
}

impl ChaosScenario {
    /// The run of this seed; seeds in a row are of all algorithms in turn.
    pub fn new(seed: u64) -> ChaosScenario {
        ChaosScenario::of(&ALGORITHMS[seed as usize % ALGORITHMS.len()], seed)
    }

    /// The run of this seed and algorithm.
    pub fn of(entry: &'static Entry, seed: u64) -> ChaosScenario {
        let mut picker = Picker(Rng::new(seed, "chaos scenario", 0));
        let workers = picker.pick(&[2.0, 3.0, 4.0, 5.0, 8.0]) as usize;
        let servers = if entry.server.is_some() { picker.pick(&[1.0, 2.0]) as usize } else { 0 };
        let spare = picker.pick(&[0.0, 0.0, 1.0, 2.0]) as usize;
        let (buckets, steps) =
            (picker.pick(&[1.0, 2.0, 3.0]) as usize, picker.pick(&[5.0, 20.0, 40.0]) as u64);
        let problem = quadratic(workers);
        let setup = RunSpec {
            layout: Arc::new(Layout::plain(ELEMENTS, ELEMENTS / buckets * 4)),
            initial: problem.initial().into(),
            steps,
            seed,
            data: assignment(entry, seed),
            ..run_spec(entry, workers, spare, servers)
        };
        let mut cluster = costs(&mut picker);
        let target = ChaosTarget {
            workers: workers as u32,
            spare: spare as u32,
            servers: servers as u32,
            detect_ms: cluster.detect_ms,
        };
        let options = ChaosOptions {
            incidents: picker.pick(&[1.0, 2.0, 4.0]) as u32,
            mean_ms: picker.pick(&[2.0, 8.0]),
            crashes: true,
            leaves: true,
            joins: picker.pick(&[0.0, 1.0, 1.0]) > 0.0,
            pauses: true,
            links: true,
            control: cluster.control != ControlPath::Free,
            splits: cluster.control == ControlPath::Worker && picker.pick(&[0.0, 0.0, 1.0]) > 0.0,
            survivors: 1,
        };
        cluster.faults = options.draw(seed, target);
        let schedule = CheckpointSchedule {
            save_every: picker.pick(&[0.0, 3.0, 5.0]) as u64,
            evaluations: picker.pick(&[0.0, 1.0, 4.0]) as u64,
            steps,
        };
        let asked = picker.pick(&[20.0, 100.0, 500.0]) as u64;
        let request = match picker.pick(&[0.0, 1.0, 1.0, 2.0]) as u64 {
            0 => None,
            1 => Some((asked, Request::Checkpoint)),
            _ => Some((10 * asked, Request::Stop)),
        };
        ChaosScenario { seed, setup, problem, cluster, schedule, request }
    }

    /// The same run with data that all workers share, if its algorithm allows that.
    pub fn sharing_data(mut self) -> Option<ChaosScenario> {
        self.setup.data = DataAssignment::Shared;
        (self.setup.properties().budget == Budget::TotalGradients).then_some(self)
    }

    /// Runs it and checks what must hold.
    pub fn run(&self) -> Result<(), ChaosFailure> {
        let failure = |problem: String| ChaosFailure { problem, scenario: self.described() };
        let mut observer =
            ChaosObserver { schedule: self.schedule, request: self.request, asked: 0, steps: 0 };
        let ended =
            simulate_checked(&self.setup, &self.problem, &self.cluster, EVENT_LIMIT, &mut observer);
        match ended {
            Ok(outcome) => self.check(&outcome, &observer).map_err(failure),
            Err(error) if self.is_stop(&error) || self.may_end(&error) => Ok(()),
            Err(error) => Err(failure(error.to_string())),
        }
    }

    /// Whether the run ends because that was requested.
    fn is_stop(&self, error: &SimError) -> bool {
        let is_wanted = self.request.is_some_and(|(_, request)| request == Request::Stop);
        is_wanted && matches!(error, SimError::Stopped { .. })
    }

    /// Whether so much goes wrong that the run may end: too few of the workers are spared for a quorum.
    fn may_end(&self, error: &SimError) -> bool {
        if self.cluster.control != ControlPath::Worker {
            return false;
        }
        // Nobody has a server that is on the other side.
        let has_splits = !self.cluster.faults.splits.is_empty();
        let text = error.to_string();
        if has_splits && (text.contains("it is a server") || text.contains("was being aborted")) {
            return true;
        }
        let is_end = matches!(error, SimError::NoQuorum { .. } | SimError::AllWorkersLost { .. });
        if has_splits && is_end && !self.setup.view.servers.is_empty() {
            return true;
        }
        let joins = self.cluster.faults.joins.iter().map(|join| join.rank);
        let first: BTreeSet<u32> = (0..self.setup.workers() as u32).collect();
        let members: BTreeSet<u32> = first.iter().copied().chain(joins).collect();
        // Whoever joins may come too late to be of any help, or be lost with others.
        let is_beaten = |ranks: &BTreeSet<u32>| {
            2 * ranks.iter().filter(|rank| !self.is_hit(**rank)).count() <= ranks.len()
        };
        // One that is taken for lost may be all that is left when the others leave.
        let is_notice =
            matches!(error, SimError::Stopped { reason, .. } if reason.contains("notice"));
        (is_end || is_notice) && (is_beaten(&first) || is_beaten(&members))
    }

    /// Whether this worker is lost, or may be taken for lost.
    fn is_hit(&self, rank: u32) -> bool {
        let Faults { crashes, leaves, partitions, pauses, splits, .. } = &self.cluster.faults;
        let detect_ms = self.cluster.detect_ms;
        crashes.iter().any(|crash| crash.rank == rank)
            || leaves.iter().any(|leave| leave.rank == rank)
            || partitions.iter().any(|cut| cut.rank == rank)
            || pauses.iter().any(|p| p.rank == rank && p.until_ms - p.from_ms > detect_ms)
            || splits.iter().any(|split| {
                let workers = self.setup.workers();
                let inside = split.ranks.iter().filter(|r| (**r as usize) < workers).count();
                let is_inside = split.ranks.contains(&rank);
                2 * if is_inside { inside } else { workers - inside } <= workers
            })
    }

    fn check(&self, outcome: &Outcome, observer: &ChaosObserver) -> Result<(), String> {
        let mut warnings = outcome.warnings.iter().filter(|warning| {
            // A run may end before a partition is noticed.
            let is_cut =
                warning.contains("is not drained") && !self.cluster.faults.partitions.is_empty();
            let is_expected = [
                "left with notice",
                "took over",
                "a worker joined as rank",
                "could not join as rank",
            ];
            !is_cut && !is_expected.iter().any(|text| warning.contains(text))
        });
        if let Some(warning) = warnings.next() {
            return Err(format!("it ends with a warning: {warning}"));
        }
        let living = || outcome.ranks.iter().filter(|rank| !rank.lost);
        if let Some(rank) = living().find(|rank| rank.params.iter().any(|x| !x.is_finite())) {
            return Err(format!("rank {} ends with parameters that are no numbers", rank.rank));
        }
        self.check_steps(outcome, observer)?;
        let last = self.last_fault().seconds();
        if outcome.clock_seconds > last + PATIENCE_SECONDS {
            let clock = outcome.clock_seconds;
            return Err(format!("it took {clock} s, although nothing happened after {last} s"));
        }
        Ok(())
    }

    /// Whether as many gradients were computed as there are.
    fn check_steps(&self, outcome: &Outcome, observer: &ChaosObserver) -> Result<(), String> {
        let total = self.setup.workers() as u64 * self.setup.steps;
        if self.setup.data == DataAssignment::Shared {
            let is_whole = outcome.data.is_some_and(|books| books.confirmed == total);
            return if is_whole { Ok(()) } else { Err(format!("not {total}: {:?}", outcome.data)) };
        }
        // What a lost worker was granted and has not done stays undone if the others have ended.
        let lost = outcome.ranks.iter().filter(|rank| rank.lost).count() as u64;
        let least = total.saturating_sub(GRANTED_AHEAD * lost);
        if self.setup.properties().budget != Budget::TotalGradients {
            return Ok(());
        }
        let steps = |is_counted: fn(&RankReport) -> bool| {
            let counted = outcome.ranks.iter().filter(|rank| is_counted(rank));
            counted.map(|rank| rank.steps).sum::<u64>()
        };
        // A controller that is lost knows of steps that nobody else does; others take them again.
        let (most, all) = if self.cluster.control == ControlPath::Worker {
            (steps(|rank| !rank.lost), steps(|_| true))
        } else {
            (observer.steps, observer.steps)
        };
        if most > total || all < least {
            return Err(format!("{all} steps were taken, {most} of them count, not {total}"));
        }
        Ok(())
    }

    /// When the last fault is over and noticed.
    fn last_fault(&self) -> Time {
        let faults = &self.cluster.faults;
        let ends = [
            faults.crashes.iter().map(|crash| crash.at_ms).collect::<Vec<_>>(),
            faults.leaves.iter().map(|leave| leave.at_ms).collect(),
            faults.joins.iter().map(|join| join.at_ms).collect(),
            faults.pauses.iter().map(|pause| pause.until_ms).collect(),
            faults.partitions.iter().map(|partition| partition.until_ms).collect(),
            faults.pair_partitions.iter().map(|pair| pair.until_ms).collect(),
            faults.splits.iter().map(|split| split.until_ms).collect(),
            faults.control_delays.iter().map(|late| late.until_ms + late.delay_ms).collect(),
        ];
        let last = ends.into_iter().flatten().fold(0.0, f64::max);
        Time::from_ms(last + self.cluster.detect_ms)
    }

    /// The run in words.
    pub fn described(&self) -> String {
        let ChaosScenario { seed, setup, cluster, schedule, request, .. } = self;
        let (name, workers, steps) = (setup.entry.meta.name, setup.workers(), setup.steps);
        let (servers, data) = (setup.view.servers.len(), setup.data);
        format!(
            "seed {seed}: {name}, {workers} workers, {servers} servers, {steps} steps, \
             data {data:?}, {schedule:?}, request {request:?}, {cluster:?}"
        )
    }
}

/// Whether workers share the data: in half of the runs in which they can.
fn assignment(entry: &Entry, seed: u64) -> DataAssignment {
    let properties = (entry.properties)(&with_short_rounds(entry));
    let can_share = properties.budget == Budget::TotalGradients;
    let is_drawn = Rng::new(seed, "chaos data", 0).below(2) == 0;
    if can_share && is_drawn { DataAssignment::Shared } else { DataAssignment::Own }
}

/// What a run is made of, but for its size.
fn run_spec(entry: &'static Entry, workers: usize, spare: usize, servers: usize) -> RunSpec {
    let sgd = optim::find("sgd").expect("in the table");
    let options = Options::defaults(sgd.meta.options);
    let hosts: Arc<[u32]> = (0..(workers + spare + servers) as u32).collect();
    let topology = Some(Arc::new(ring(workers)));
    RunSpec {
        entry,
        options: with_short_rounds(entry),
        codec: Default::default(),
        layout: Arc::new(Layout::plain(ELEMENTS, 0)),
        initial: vec![0.0; ELEMENTS].into(),
        optimizer: Arc::new(move |len| (sgd.build)(&options, len)),
        learning_rate: Arc::new(|_| 0.1),
        schedule_clock: Default::default(),
        clip: None,
        samples: Arc::from([]),
        steps: 0,
        seed: 0,
        poison: Default::default(),
        data: Default::default(),
        view: Arc::new(View::with_spare_seats(workers, spare, servers, hosts, topology)),
        topology: Some(Arc::new(|hosts| Some(Arc::new(ring(hosts.len()))))),
    }
}

/// The defaults of an entry; long rounds become short, so that a short run has several.
fn with_short_rounds(entry: &Entry) -> Options {
    let options = Options::defaults(entry.meta.options);
    let has_period = entry.meta.options.iter().any(|key| key.name == "period");
    if has_period && options.whole("period") > 4 {
        options.with("period", Value::Number(3.0))
    } else {
        options
    }
}

/// Any costs of computing and of the network.
fn costs(picker: &mut Picker) -> Cluster {
    let mut cluster = Cluster { threads: 1, compute_ms: 1.0, ..Cluster::default() };
    cluster.compute_cv = picker.pick(&[0.0, 0.3, 1.0]);
    cluster.latency_us = picker.pick(&[0.0, 50.0, 3000.0]);
    cluster.bandwidth_gbps = picker.pick(&[0.001, 10.0]);
    cluster.detect_ms = picker.pick(&[0.0, 0.5, 3.0, 20.0]);
    cluster.slow.insert(0, picker.pick(&[1.0, 1.0, 7.0]));
    cluster.link_messages = picker.pick(&[0.0, 0.0, 1.0, 3.0]) as u32;
    cluster.handoff_send_us = picker.pick(&[0.0, 300.0]);
    cluster.handoff_receive_us = picker.pick(&[0.0, 200.0]);
    cluster.reduce_gbs = picker.pick(&[0.0, 0.0001]);
    cluster.collective_fixed_us = picker.pick(&[0.0, 200.0]);
    cluster.start_barrier = picker.pick(&[0.0, 1.0]) > 0.0;
    cluster.control = match picker.pick(&[0.0, 1.0, 2.0, 2.0]) as u64 {
        0 => ControlPath::Free,
        1 => ControlPath::Network,
        _ => ControlPath::Worker,
    };
    cluster
}

/// `f_i(x) = ½‖x − i‖²`.
fn quadratic(workers: usize) -> Quadratic {
    let options = QuadraticOptions {
        workers,
        dimensions: Some(ELEMENTS),
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

/// Counts, and requests what the scenario says.
struct ChaosObserver {
    schedule: CheckpointSchedule,
    request: Option<(u64, Request)>,
    asked: u64,
    steps: u64,
}

impl Observer for ChaosObserver {
    fn record(&mut self, record: Record) {
        self.steps += u64::from(matches!(record.event, RecordKind::Step { .. }));
    }

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        self.schedule
    }

    fn request(&mut self) -> Request {
        self.asked += 1;
        match self.request {
            Some((at, request)) if self.asked == at => request,
            Some((at, Request::Stop)) if self.asked > at => Request::Stop,
            _ => Request::Continue,
        }
    }
}
