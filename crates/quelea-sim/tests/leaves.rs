//! Workers that leave with notice: at a cut, without a gap.

#[allow(dead_code, reason = "each test file uses its own part")]
mod common;

use std::collections::BTreeMap;
use std::sync::Arc;

use common::{Case, Shape};
use quelea_core::algorithms::ALGORITHMS;
use quelea_core::message::Rank;
use quelea_core::options::Value;
use quelea_core::time::Time;
use quelea_core::view::ViewChange;
use quelea_record::{
    CheckpointSchedule, Observer, Outcome, RankCheckpoint, Record, RecordKind, ResumePoint,
};
use quelea_sim::{Leave, SimError};

const SHAPE: Shape = Shape { workers: 4, servers: 2, len: 12, buckets: 3, steps: 24 };

fn cases() -> impl Iterator<Item = Case> {
    ALGORITHMS.iter().map(|entry| {
        let servers = if entry.server.is_some() { SHAPE.servers } else { 0 };
        Case::of(entry, Shape { servers, ..SHAPE }).on(|cluster| cluster.compute_cv = 0.6)
    })
}

/// The same run, whose worker 1 is given notice when this share of the time of the run has passed.
fn leaving(mut case: Case, share: f64) -> Case {
    let at_ms = case.run().clock_seconds * 1e3 * share;
    case.cluster.faults.leaves = vec![Leave { rank: 1, at_ms }];
    case
}

/// Keeps records and what is saved, by step, and who has left.
#[derive(Default)]
struct Keeper {
    save_every: u64,
    records: Vec<Record>,
    changes: Vec<ViewChange>,
    saved: BTreeMap<(usize, u64), BTreeMap<Rank, RankCheckpoint>>,
    now: Time,
}

impl Observer for Keeper {
    fn record(&mut self, record: Record) {
        self.records.push(record);
    }

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        CheckpointSchedule { save_every: self.save_every, evaluations: 0, steps: SHAPE.steps }
    }

    fn view_changed(&mut self, change: &ViewChange) {
        self.changes.push(change.clone());
    }

    fn checkpoint(&mut self, now: Time, step: u64, rank: Rank, part: RankCheckpoint) {
        self.now = now;
        self.saved.entry((self.changes.len(), step)).or_default().insert(rank, part);
    }
}

fn watched(case: &Case, keeper: &mut Keeper) -> Result<Outcome, SimError> {
    quelea_sim::simulate(&case.setup, &case.problem, &case.cluster, keeper)
}

#[test]
fn every_algorithm_lets_a_worker_go_and_nobody_repeats_a_step() {
    for share in [0.2, 0.45, 0.7] {
        for case in cases().map(|case| leaving(case, share)) {
            let name = case.setup.entry.meta.name;
            let mut keeper = Keeper::default();
            let outcome = watched(&case, &mut keeper).unwrap_or_else(|e| panic!("{name}: {e}"));
            assert!(outcome.ranks[1].left && outcome.ranks[1].lost, "{name}");
            assert!(outcome.ranks.iter().filter(|rank| rank.left).count() == 1, "{name}");
            let left = "rank 1 left with notice; the others continued";
            assert_eq!(outcome.warnings, [left], "{name}");
            let of = |kind: fn(&RecordKind) -> bool| {
                keeper.records.iter().filter(move |record| kind(&record.event))
            };
            let left: Vec<u32> =
                of(|event| matches!(event, RecordKind::Left)).map(|record| record.rank).collect();
            assert_eq!(left, [1], "{name}");
            let mut steps: Vec<(u32, u64)> = of(|event| matches!(event, RecordKind::Step { .. }))
                .map(|record| (record.rank, record.step))
                .collect();
            let all = steps.len();
            steps.sort_unstable();
            steps.dedup();
            assert_eq!(steps.len(), all, "{name}: a step was repeated");
            if case.setup.properties().synchronous {
                let survivors = outcome.ranks[..4].iter().filter(|rank| !rank.left);
                survivors.for_each(|rank| assert_eq!(rank.steps, SHAPE.steps, "{name}"));
            } else if case.setup.properties().budget
                == quelea_core::properties::Budget::TotalGradients
            {
                assert_eq!(all as u64, SHAPE.workers as u64 * SHAPE.steps, "{name}");
            }
        }
    }
}

/// Leaving at step k is what a run does that is resumed from its checkpoint of step k without the leaver.
#[test]
fn a_synchronous_run_continues_as_if_resumed_without_the_leaver() {
    for case in cases().filter(|case| case.setup.properties().synchronous) {
        let name = case.setup.entry.meta.name;
        let mut keeper = Keeper { save_every: 1, ..Keeper::default() };
        watched(&case, &mut keeper).expect("the run ends well");
        let case = leaving(case, 0.45);
        let mut left = Keeper::default();
        let outcome = watched(&case, &mut left).expect("the run ends well");
        let change = &left.changes[0];
        let step = change.departed[0].steps;
        assert_eq!(change.from_step, step + 2, "{name}: all stand at the step");
        let parts = keeper.saved[&(0, step)].values().cloned().collect();
        let (now, changes) = (keeper.now, left.changes.clone());
        let start = ResumePoint { parts, now, changes, ..ResumePoint::default() };
        let mut case = case;
        case.cluster.faults.leaves.clear();
        let silent = &mut quelea_record::Silent;
        let after = quelea_sim::resume(&case.setup, &case.problem, &case.cluster, &start, silent);
        let after = after.expect("the run ends well");
        for (rank, resumed) in outcome.ranks.iter().zip(&after.ranks).filter(|(r, _)| !r.lost) {
            let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&rank.params), bits(&resumed.params), "{name} rank {}", rank.rank);
        }
    }
}

/// Numerators and weights of all workers in one checkpoint.
fn mass(parts: &BTreeMap<Rank, RankCheckpoint>) -> (f64, f64) {
    let numbers = |part: &RankCheckpoint| -> f64 {
        let weights = part.state.numbers.iter().filter(|(name, _)| name.starts_with("weight."));
        weights.map(|(_, bits)| f64::from_bits(*bits)).sum()
    };
    let values = |part: &RankCheckpoint| -> f64 {
        part.state.vectors["numerator"].iter().map(|x| f64::from(*x)).sum()
    };
    (parts.values().map(values).sum(), parts.values().map(numbers).sum())
}

/// With a learning rate of 0 all mass is what the workers began with, whoever holds it.
#[test]
fn a_worker_of_free_running_push_sum_hands_over_its_mass() {
    for fold in [true, false] {
        let case = Case::new("sgp", Shape { servers: 0, ..SHAPE })
            .with("free_running", Value::Flag(true))
            .with("fold", Value::Flag(fold))
            .on(|cluster| cluster.compute_cv = 0.6);
        let mut case = leaving(case, 0.4);
        case.setup.learning_rate = Arc::new(|_| 0.0);
        case.setup.initial = (0..SHAPE.len).map(|k| k as f32 + 1.0).collect();
        let mut keeper = Keeper { save_every: 4, ..Keeper::default() };
        watched(&case, &mut keeper).expect("the run ends well");
        let whole = keeper.saved.iter().filter(|((changes, _), parts)| parts.len() + changes == 4);
        let masses: Vec<_> = whole.map(|((changes, _), parts)| (*changes, mass(parts))).collect();
        assert!(masses.iter().filter(|(changes, _)| *changes == 1).count() > 1, "{masses:?}");
        let workers = SHAPE.workers as f64;
        let sum: f64 = case.setup.initial.iter().map(|x| f64::from(*x) * workers).sum();
        for (changes, (values, weights)) in masses {
            let expected = workers * SHAPE.buckets as f64;
            assert!((weights - expected).abs() < 1e-9, "{changes}: {weights} of {expected}");
            assert!((values - sum).abs() < 1e-3 * sum, "{changes}: {values} of {sum}");
        }
    }
}

#[test]
fn a_run_that_cannot_do_without_a_worker_is_saved_and_says_why() {
    for name in ["d-psgd", "ad-psgd", "allreduce"] {
        let mut case = Case::new(name, Shape { workers: 2, servers: 0, ..SHAPE });
        let half = case.run().clock_seconds * 500.0;
        case.cluster.faults.leaves =
            [0, 1].map(|rank| Leave { rank, at_ms: half * (1.0 + f64::from(rank) / 4.0) }).into();
        let mut keeper = Keeper::default();
        let ended = watched(&case, &mut keeper);
        let Err(SimError::Stopped { step, reason }) = ended else { panic!("{name}: {ended:?}") };
        assert_eq!(reason, "because rank 1 was given notice: it was the last worker", "{name}");
        assert_eq!(keeper.saved[&(1, step)].len(), 1, "{name}: the last one has saved");
    }
}
