//! Workers that join beside all those who were there at the start.

#[allow(dead_code, reason = "each test file uses its own part")]
mod common;

use std::sync::Arc;

use common::{Case, Shape};
use quelea_core::algorithms::ALGORITHMS;
use quelea_core::message::Rank;
use quelea_core::properties::Budget;
use quelea_core::view::{View, ViewChange};
use quelea_record::{Observer, Outcome, Record, RecordKind};
use quelea_sim::{ControlPath, Crash, Join, SimError};

const SHAPE: Shape = Shape { workers: 4, servers: 2, len: 12, buckets: 3, steps: 40 };
/// Places for workers that join.
const SPARE: usize = 2;

/// The same run, with places for two workers more.
fn with_spare_seats(mut case: Case) -> Case {
    let view = &case.setup.view;
    let (workers, servers) = (view.workers.len(), view.servers.len());
    let hosts: Arc<[u32]> = (0..(workers + SPARE + servers) as u32).collect();
    let make = case.setup.topology.as_ref().expect("cases rebuild their ring");
    let topology = make(&hosts[..workers]);
    let view = View::with_spare_seats(workers, SPARE, servers, hosts, topology);
    case.setup.view = Arc::new(view);
    case
}

fn cases() -> impl Iterator<Item = Case> {
    ALGORITHMS.iter().map(|entry| {
        let servers = if entry.server.is_some() { SHAPE.servers } else { 0 };
        let case = Case::of(entry, Shape { servers, ..SHAPE }).on(|cluster| {
            cluster.compute_cv = 0.6;
            cluster.detect_ms = 1.0;
        });
        with_spare_seats(case)
    })
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

fn steps_of(keeper: &Keeper, rank: u32) -> usize {
    let is_step = |record: &&Record| matches!(record.event, RecordKind::Step { .. });
    keeper.records.iter().filter(|record| record.rank == rank).filter(is_step).count()
}

#[test]
fn every_algorithm_takes_more_workers_than_at_the_start() {
    for control in [ControlPath::Free, ControlPath::Network, ControlPath::Worker] {
        for mut case in cases() {
            let name = case.setup.entry.meta.name;
            let ms = case.run().clock_seconds * 1e3;
            case.cluster.control = control;
            let join = |rank, share: f64| Join { rank, at_ms: ms * share };
            case.cluster.faults.joins = vec![join(4, 0.2), join(5, 0.3)];
            let mut keeper = Keeper::default();
            let outcome = watched(&case, &mut keeper).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(outcome.ranks.iter().all(|rank| !rank.lost), "{name}: {:?}", outcome.warnings);
            let joined: Vec<Rank> =
                keeper.changes.iter().flat_map(|change| change.joined.clone()).collect();
            assert_eq!(joined, [Rank(4), Rank(5)], "{name}");
            let steps: Vec<usize> = (0..6).map(|rank| steps_of(&keeper, rank)).collect();
            assert!(steps.iter().all(|steps| *steps > 5), "{name}: {steps:?}");
            let total: usize = steps.iter().sum();
            let budget = (SHAPE.workers as u64 * SHAPE.steps) as usize;
            match case.setup.properties().budget {
                // The same gradients, divided among more.
                Budget::TotalGradients => assert_eq!(total, budget, "{name}: {steps:?}"),
                // The same rounds, with more gradients in those to come.
                Budget::Rounds => {
                    assert!(total > budget, "{name}: {steps:?}");
                    let old = &steps[..4];
                    assert!(old.iter().all(|s| *s == SHAPE.steps as usize), "{name}: {steps:?}");
                }
            }
            let finite =
                |rank: &quelea_record::RankReport| rank.params.iter().all(|x| x.is_finite());
            assert!(outcome.ranks.iter().all(finite), "{name}");
        }
    }
}

#[test]
fn places_that_nobody_takes_change_nothing() {
    for entry in ALGORITHMS {
        let servers = if entry.server.is_some() { SHAPE.servers } else { 0 };
        let case = || Case::of(entry, Shape { servers, ..SHAPE });
        let (plain, spare) = (case().run(), with_spare_seats(case()).run());
        assert_eq!(plain.clock_seconds, spare.clock_seconds, "{}", entry.meta.name);
        for (rank, report) in plain.ranks.iter().take(SHAPE.workers).enumerate() {
            assert_eq!(report.params, spare.ranks[rank].params, "{}", entry.meta.name);
        }
    }
}

#[test]
fn replicas_of_all_reduce_are_equal_with_workers_in_new_places() {
    let mut case = with_spare_seats(Case::new("allreduce", Shape { servers: 0, ..SHAPE }));
    let ms = case.run().clock_seconds * 1e3;
    case.cluster.faults.joins = vec![Join { rank: 5, at_ms: ms * 0.3 }];
    let outcome = watched(&case, &mut Keeper::default()).expect("the run ends well");
    let bits = |rank: usize| -> Vec<u32> {
        outcome.ranks[rank].params.iter().map(|x| x.to_bits()).collect()
    };
    assert!([1, 2, 3, 5].into_iter().all(|rank| bits(rank) == bits(0)));
    assert!(outcome.ranks[4].lost, "nobody has come as rank 4");
}

#[test]
fn a_worker_in_a_new_place_may_be_lost_and_replaced() {
    for mut case in cases() {
        let name = case.setup.entry.meta.name;
        let ms = case.run().clock_seconds * 1e3;
        let at = |share: f64| ms * share;
        case.cluster.faults.joins =
            vec![Join { rank: 4, at_ms: at(0.2) }, Join { rank: 4, at_ms: at(0.5) }];
        case.cluster.faults.crashes = vec![Crash { rank: 4, at_ms: at(0.4) }];
        let mut keeper = Keeper::default();
        let outcome = watched(&case, &mut keeper).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert!(!outcome.ranks[4].lost, "{name}: {:?}", outcome.warnings);
        let joined = keeper.records.iter().filter(|record| record.event == RecordKind::Joined);
        assert_eq!(joined.count(), 2, "{name}");
    }
}

#[test]
fn a_topology_that_cannot_grow_refuses_the_worker_with_the_reason() {
    let mut case = with_spare_seats(Case::new("d-psgd", Shape { servers: 0, ..SHAPE }));
    case.setup.topology = Some(Arc::new(|_| None));
    case.cluster.faults.joins = vec![Join { rank: 4, at_ms: 1.0 }];
    let outcome = watched(&case, &mut Keeper::default()).expect("the run ends well");
    let expected = "a worker could not join as rank 4: the run cannot have more workers: its topology \
                    cannot be built over 5 workers";
    assert!(outcome.warnings.iter().any(|warning| warning == expected), "{:?}", outcome.warnings);
    assert!(outcome.ranks[4].lost && outcome.ranks[..4].iter().all(|rank| !rank.lost));
}
