//! Data that all workers share: every unit is confirmed exactly once, whichever workers are lost or join.

#[allow(dead_code, reason = "each test file uses its own part")]
mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use common::{Case, Shape};
use quelea_core::algorithms::ALGORITHMS;
use quelea_core::message::Rank;
use quelea_core::node::Loan;
use quelea_core::problems::{Computed, Evaluation, GradientSource, Problem};
use quelea_core::properties::Budget;
use quelea_core::run_spec::DataAssignment;
use quelea_core::time::Time;
use quelea_record::{
    CheckpointSchedule, DataBooks, Observer, Outcome, RankCheckpoint, Record, Request, ResumePoint,
};
use quelea_sim::chaos::ChaosScenario;
use quelea_sim::{ControlPath, Crash, Join, SimError};

const SHAPE: Shape = Shape { workers: 4, servers: 2, len: 12, buckets: 3, steps: 40 };
const UNITS: u64 = 160;

/// Which units were computed, in order.
type Drawn = Arc<Mutex<Vec<u64>>>;

/// The problem of a case, whose sources note what they draw.
struct Noting<'a> {
    inner: &'a dyn Problem,
    drawn: Drawn,
}

struct NotingSource {
    inner: Box<dyn GradientSource>,
    drawn: Drawn,
}

impl Problem for Noting<'_> {
    fn dimensions(&self) -> usize {
        self.inner.dimensions()
    }

    fn initial(&self) -> Vec<f32> {
        self.inner.initial()
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        let (inner, drawn) = (self.inner.source(rank), Arc::clone(&self.drawn));
        Box::new(NotingSource { inner, drawn })
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        self.inner.evaluate(params)
    }
}

impl GradientSource for NotingSource {
    fn gradient(&mut self, loan: &mut Loan, ready: &mut dyn FnMut(usize)) -> Computed {
        self.drawn.lock().expect("nobody panics with it").push(loan.batch());
        self.inner.gradient(loan, ready)
    }

    fn operations(&self) -> u64 {
        self.inner.operations()
    }
}

/// Every algorithm that hands out gradients, with workers of unequal speed.
fn cases() -> impl Iterator<Item = Case> {
    let all = ALGORITHMS.iter().map(|entry| {
        let servers = if entry.server.is_some() { SHAPE.servers } else { 0 };
        let mut case = Case::of(entry, Shape { servers, ..SHAPE });
        case.setup.data = DataAssignment::Shared;
        case.on(|cluster| {
            (cluster.compute_cv, cluster.detect_ms) = (0.6, 1.0);
            cluster.slow.insert(2, 3.0);
        })
    });
    all.filter(|case| case.setup.properties().budget == Budget::TotalGradients)
}

/// Runs a case from `start`; what was drawn.
fn drawn(
    case: &Case,
    start: &ResumePoint,
    observer: &mut dyn Observer,
) -> (Result<Outcome, SimError>, Vec<u64>) {
    let noting = Noting { inner: &case.problem, drawn: Drawn::default() };
    let ended = quelea_sim::resume(&case.setup, &noting, &case.cluster, start, observer);
    let drawn = noting.drawn.lock().expect("nobody panicked").clone();
    (ended, drawn)
}

fn books(outcome: &Outcome) -> DataBooks {
    outcome.data.expect("the data are shared")
}

const WHOLE: DataBooks = DataBooks { units: UNITS, confirmed: UNITS, handed_out_again: 0 };

#[test]
fn without_a_fault_every_unit_is_drawn_once_in_order_and_faster_workers_take_more() {
    assert!(cases().count() >= 3);
    for case in cases() {
        let name = case.setup.entry.meta.name;
        let silent = &mut quelea_record::Silent;
        let (ended, drawn) = drawn(&case, &ResumePoint::default(), silent);
        let outcome = ended.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(books(&outcome), WHOLE, "{name}");
        let sorted: BTreeSet<u64> = drawn.iter().copied().collect();
        assert_eq!((drawn.len(), sorted.len()), (160, 160), "{name}");
        // As they are handed out; a slow worker draws what it has asked for a little later.
        let displaced = drawn.iter().zip(0..).map(|(unit, place)| unit.abs_diff(place)).max();
        assert!(displaced < Some(40), "{name}: {displaced:?}");
        let steps = |rank: usize| outcome.ranks[rank].steps;
        assert!(steps(2) < steps(0), "{name}: {} of {}", steps(2), steps(0));
    }
}

#[test]
fn what_a_lost_worker_held_is_drawn_by_others_also_at_the_very_end() {
    for case in cases() {
        let name = case.setup.entry.meta.name;
        let whole_ms = case.run().clock_seconds * 1e3;
        let mut again = 0;
        for moment in 1..=20 {
            let at_ms = whole_ms * (0.05 * f64::from(moment) - 0.01);
            let mut case = Case { cluster: case.cluster.clone(), ..case_again(&case) };
            case.cluster.faults.crashes = vec![Crash { rank: 2, at_ms }];
            if moment % 2 == 0 {
                let at_ms = at_ms + 0.1 * whole_ms;
                case.cluster.faults.joins = vec![Join { rank: 2, at_ms }];
            }
            let (ended, drawn) = drawn(&case, &ResumePoint::default(), &mut quelea_record::Silent);
            let outcome = ended.unwrap_or_else(|error| panic!("{name} at {moment}: {error}"));
            let DataBooks { units, confirmed, handed_out_again } = books(&outcome);
            assert_eq!((units, confirmed), (UNITS, UNITS), "{name} at {moment}");
            let distinct: BTreeSet<u64> = drawn.iter().copied().collect();
            assert_eq!(distinct.len() as u64, UNITS, "{name} at {moment}: every unit was drawn");
            let twice = drawn.len() as u64 - UNITS;
            assert!(twice <= handed_out_again && handed_out_again <= 2, "{name} at {moment}");
            again += handed_out_again;
        }
        assert!(again >= 15, "{name}: a worker that is lost holds a unit: {again}");
    }
}

/// A case with the same run.
fn case_again(case: &Case) -> Case {
    let servers = case.setup.ranks() - case.setup.workers();
    let mut again = Case::of(case.setup.entry, Shape { servers, ..SHAPE });
    again.setup = case.setup.clone();
    again
}

/// Asks for a stop when so many steps are done, and keeps what is saved.
#[derive(Default)]
struct Stopping {
    at: u64,
    done: u64,
    parts: BTreeMap<Rank, RankCheckpoint>,
    now: Time,
}

impl Observer for Stopping {
    fn record(&mut self, _record: Record) {}

    fn progress(&mut self, done: u64, _total: u64, _now: Time) {
        self.done = done;
    }

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        CheckpointSchedule { steps: SHAPE.steps, ..CheckpointSchedule::default() }
    }

    fn checkpoint(&mut self, now: Time, _step: u64, rank: Rank, part: RankCheckpoint) {
        self.now = now;
        self.parts.insert(rank, part);
    }

    fn request(&mut self) -> Request {
        if self.done >= self.at { Request::Stop } else { Request::Continue }
    }
}

#[test]
fn a_run_that_is_stopped_and_resumed_continues_the_epoch() {
    for case in cases() {
        let name = case.setup.entry.meta.name;
        for at in [1, 17, 60, 111, 150] {
            let mut stopping = Stopping { at, ..Stopping::default() };
            let (ended, before) = drawn(&case, &ResumePoint::default(), &mut stopping);
            assert!(matches!(ended, Err(SimError::Stopped { .. })), "{name}: {ended:?}");
            let steps: u64 = stopping
                .parts
                .values()
                .filter(|p| !p.report.is_server)
                .map(RankCheckpoint::step)
                .sum();
            let (parts, now) = (stopping.parts.into_values().collect(), stopping.now);
            let start = ResumePoint { parts, now, ..ResumePoint::default() };
            let (ended, after) = drawn(&case, &start, &mut quelea_record::Silent);
            let outcome = ended.unwrap_or_else(|error| panic!("{name} from {at}: {error}"));
            assert_eq!(books(&outcome), WHOLE, "{name} from {at}");
            // A gradient that was under way in the cut is computed again; all others are of other units.
            let distinct: BTreeSet<u64> = before.iter().chain(&after).copied().collect();
            assert_eq!(distinct.len() as u64, UNITS, "{name} from {at}: every unit was drawn");
            assert_eq!(steps + after.len() as u64, UNITS, "{name} from {at}: none was drawn twice");
        }
    }
}

#[test]
fn a_controller_that_takes_over_collects_the_books_from_the_members() {
    for case in cases().filter(|case| case.setup.view.servers.is_empty()) {
        let name = case.setup.entry.meta.name;
        for moment in 1..=9 {
            let mut case = case_again(&case);
            case.cluster.compute_ms = 1.0;
            (case.cluster.compute_cv, case.cluster.detect_ms) = (0.6, 3.0);
            case.cluster.control = ControlPath::Worker;
            let at_ms = 4.0 * f64::from(moment) + 0.3;
            case.cluster.faults.crashes = vec![Crash { rank: 0, at_ms }];
            let (ended, drawn) = drawn(&case, &ResumePoint::default(), &mut quelea_record::Silent);
            let outcome = ended.unwrap_or_else(|error| panic!("{name} at {moment}: {error}"));
            let DataBooks { units, confirmed, handed_out_again } = books(&outcome);
            assert_eq!((units, confirmed), (UNITS, UNITS), "{name} at {moment}");
            let distinct: BTreeSet<u64> = drawn.iter().copied().collect();
            assert_eq!(distinct.len() as u64, UNITS, "{name} at {moment}: every unit was drawn");
            // Only what the lost worker has done since the last word about what is settled is done again.
            let twice = drawn.len() as u64 - UNITS;
            assert!(twice <= 12, "{name} at {moment}: {twice} twice, {handed_out_again} known");
        }
    }
}

/// The seeds of `cargo xtask chaos`, of which half share their data there.
const SEEDS: u64 = 4000;

#[test]
fn random_faults_leave_every_unit_confirmed_exactly_once() {
    let mut runs = 0;
    for seed in 0..SEEDS {
        let Some(scenario) = ChaosScenario::new(seed).sharing_data() else { continue };
        runs += 1;
        if let Err(failure) = scenario.run() {
            panic!("with shared data: {failure}");
        }
    }
    assert!(runs >= 400, "{runs}");
}
