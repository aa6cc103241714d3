//! What an observer sees while a run goes on.

#[allow(dead_code, reason = "each test file uses its own part")]
mod common;

use common::{Case, Shape};
use quelea_core::time::Time;
use quelea_record::{CheckpointSchedule, Record, RecordKind};
use quelea_sim::{Models, Observer};

#[derive(Default)]
struct Watcher {
    records: Vec<Record>,
    progress: Vec<u64>,
    snapshots: Vec<(Time, u64, Models)>,
}

impl Observer for Watcher {
    fn record(&mut self, record: Record) {
        self.records.push(record);
    }

    fn progress(&mut self, done: u64, total: u64, _now: Time) {
        assert!(done <= total);
        self.progress.push(done);
    }

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        CheckpointSchedule { save_every: 0, evaluations: 4, steps: 20 }
    }

    fn evaluate(&mut self, now: Time, step: u64, models: Models) {
        self.snapshots.push((now, step, models));
    }
}

fn watch(case: &Case) -> Watcher {
    let mut watcher = Watcher::default();
    quelea_sim::simulate(&case.setup, &case.problem, &case.cluster, &mut watcher)
        .expect("the run ends well");
    watcher
}

#[test]
fn snapshots_hold_every_living_model_even_while_gradients_are_computed() {
    let shape = Shape { workers: 3, servers: 2, len: 8, buckets: 2, steps: 20 };
    // Unequal speeds, so that somebody is always computing.
    let case = Case::new("aladdin", shape).on(|cluster| cluster.compute_cv = 0.5);
    let watcher = watch(&case);
    let steps: Vec<u64> = watcher.snapshots.iter().map(|(_, step, _)| *step).collect();
    assert_eq!(steps, [5, 10, 15]);
    for (_, _, models) in &watcher.snapshots {
        assert!(models.workers.iter().map(|(rank, model)| (rank.0, model.len())).eq([
            (0, 8),
            (1, 8),
            (2, 8)
        ]));
        assert!(
            models.servers.iter().map(|(rank, model)| (rank.0, model.len())).eq([(3, 4), (4, 4)])
        );
    }
    let first = |index: usize| watcher.snapshots[index].2.workers[2].1[0];
    assert!(first(0) > 0.0 && first(2) != first(0), "models move");
}

#[test]
fn progress_counts_to_the_end_and_the_timeline_comes_only_if_wanted() {
    let shape = Shape { workers: 3, servers: 0, len: 8, buckets: 2, steps: 4 };
    let watcher = watch(&Case::new("d-psgd", shape));
    assert_eq!(watcher.progress, (1..=12).collect::<Vec<u64>>());
    let detailed = |record: &&Record| {
        matches!(record.event, RecordKind::Compute { .. } | RecordKind::Transfer { .. })
    };
    assert_eq!(watcher.records.iter().filter(detailed).count(), 0);
    assert_eq!(watcher.records.len(), 12, "one record per step");
}
