//! Workers that join in the place of one that was lost or has left.

#[allow(dead_code, reason = "each test file uses its own part")]
mod common;

use common::{Case, Shape};
use quelea_core::algorithms::ALGORITHMS;
use quelea_core::properties::Budget;
use quelea_core::view::ViewChange;
use quelea_record::{Observer, Outcome, Record, RecordKind};
use quelea_sim::{Crash, Join, Leave, SimError};

const SHAPE: Shape = Shape { workers: 4, servers: 2, len: 12, buckets: 3, steps: 40 };

fn cases() -> impl Iterator<Item = Case> {
    ALGORITHMS.iter().map(|entry| {
        let servers = if entry.server.is_some() { SHAPE.servers } else { 0 };
        Case::of(entry, Shape { servers, ..SHAPE }).on(|cluster| {
            cluster.compute_cv = 0.6;
            cluster.detect_ms = 1.0;
        })
    })
}

/// The same run, whose worker 1 crashes, or leaves, and another joins in its place.
fn replaced(mut case: Case, crash: f64, join: f64, leaves: bool) -> Case {
    let ms = case.run().clock_seconds * 1e3;
    let faults = &mut case.cluster.faults;
    if leaves {
        faults.leaves = vec![Leave { rank: 1, at_ms: ms * crash }];
    } else {
        faults.crashes = vec![Crash { rank: 1, at_ms: ms * crash }];
    }
    faults.joins = vec![Join { rank: 1, at_ms: ms * join }];
    case
}

/// Keeps records and changes.
#[derive(Default)]
struct Keeper {
    records: Vec<Record>,
    changes: Vec<ViewChange>,
}

impl Observer for Keeper {
    fn record(&mut self, record: Record) {
        self.records.push(record);
    }

    fn view_changed(&mut self, change: &ViewChange) {
        self.changes.push(change.clone());
    }
}

fn watched(case: &Case, keeper: &mut Keeper) -> Result<Outcome, SimError> {
    quelea_sim::simulate(&case.setup, &case.problem, &case.cluster, keeper)
}

#[test]
fn every_algorithm_takes_a_worker_in_the_place_of_one_that_was_lost_or_left() {
    for (crash, join, leaves) in [(0.2, 0.3, false), (0.3, 0.31, false), (0.2, 0.5, true)] {
        for case in cases().map(|case| replaced(case, crash, join, leaves)) {
            let name = case.setup.entry.meta.name;
            let mut keeper = Keeper::default();
            let outcome = watched(&case, &mut keeper).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(outcome.ranks.iter().all(|rank| !rank.lost && !rank.left), "{name}");
            assert_eq!(keeper.changes.len(), 2, "{name}: {:?}", keeper.changes);
            let joined = keeper.records.iter().find(|record| record.event == RecordKind::Joined);
            let joined = joined.unwrap_or_else(|| panic!("{name}: nobody joined"));
            assert_eq!(joined.rank, 1, "{name}");
            let after = |record: &&Record| record.t > joined.t && record.rank == 1;
            let is_step = |record: &&Record| matches!(record.event, RecordKind::Step { .. });
            let steps = keeper.records.iter().filter(after).filter(is_step).count();
            assert!(steps > 5, "{name}: {steps} steps after it joined");
            assert!(outcome.ranks[1].params.iter().all(|x| x.is_finite()), "{name}");
            let total: u64 = outcome.ranks[..4].iter().map(|rank| rank.steps).sum();
            let budget = SHAPE.workers as u64 * SHAPE.steps;
            match case.setup.properties().budget {
                Budget::TotalGradients => assert_eq!(total, budget, "{name}"),
                Budget::Rounds => assert!(total < budget, "{name}: it missed some"),
            }
        }
    }
}

#[test]
fn replicas_of_all_reduce_stay_equal_with_a_worker_that_joined() {
    for moment in 1..8 {
        let crash = 0.1 * f64::from(moment);
        let case = Case::new("allreduce", Shape { servers: 0, ..SHAPE });
        let case = replaced(case, crash, crash + 0.05, false);
        let outcome = watched(&case, &mut Keeper::default()).expect("the run ends well");
        let bits = |rank: usize| -> Vec<u32> {
            outcome.ranks[rank].params.iter().map(|x| x.to_bits()).collect()
        };
        assert!((1..4).all(|rank| bits(rank) == bits(0)), "a crash at {crash}");
    }
}

/// f_i(x) = ½‖x − i‖² for i = 0 … 3: the mean of the targets is 1.5 only with all four.
#[test]
fn the_data_of_the_lost_worker_counts_again() {
    for name in ["allreduce", "sync-ps", "local-sgd"] {
        let servers = if name == "sync-ps" { SHAPE.servers } else { 0 };
        let shape = Shape { servers, steps: 200, ..SHAPE };
        let mut case = Case::new(name, shape);
        case.setup.learning_rate = std::sync::Arc::new(|step| if step < 150 { 0.1 } else { 0.02 });
        let case = replaced(case, 0.2, 0.3, false);
        let outcome = watched(&case, &mut Keeper::default()).expect("the run ends well");
        // Between two averages workers are apart; their mean is what counts.
        let end: f64 = outcome.ranks[..4].iter().map(|rank| f64::from(rank.model[0]) / 4.0).sum();
        assert!((end - 1.5).abs() < 0.05, "{name} ends at {end}");
    }
}

#[test]
fn a_worker_that_joins_and_is_lost_at_once_is_dropped() {
    for case in cases() {
        let name = case.setup.entry.meta.name;
        let mut case = replaced(case, 0.2, 0.3, false);
        let ms = case.cluster.faults.joins[0].at_ms;
        for late in [0.0, 5.0, 20.0, 50.0, 90.0] {
            case.cluster.faults.crashes.truncate(1);
            case.cluster.faults.crashes.push(Crash { rank: 1, at_ms: ms + late });
            let outcome = watched(&case, &mut Keeper::default());
            outcome.unwrap_or_else(|error| panic!("{name}, lost {late} ms later: {error}"));
        }
    }
}
