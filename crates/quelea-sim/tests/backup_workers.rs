//! Checkpoints of a parameter server that does not wait for its slowest workers (`backup`).

#[allow(dead_code, reason = "each test file uses its own part")]
mod common;

use std::collections::BTreeMap;

use common::{Case, Shape};
use quelea_core::message::Rank;
use quelea_core::options::Value;
use quelea_core::time::Time;
use quelea_record::{
    CheckpointSchedule, Observer, Outcome, RankCheckpoint, Record, ResumePoint, Silent,
};

const SHAPE: Shape = Shape { workers: 4, servers: 2, len: 12, buckets: 3, steps: 24 };

/// Keeps the checkpoints of a run, by their step.
struct Checkpoints {
    save_every: u64,
    saved: BTreeMap<u64, ResumePoint>,
}

impl Observer for Checkpoints {
    fn record(&mut self, _record: Record) {}

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        CheckpointSchedule { save_every: self.save_every, evaluations: 0, steps: SHAPE.steps }
    }

    fn checkpoint(&mut self, now: Time, step: u64, rank: Rank, part: RankCheckpoint) {
        let point = self.saved.entry(step).or_default();
        point.parts.resize(SHAPE.workers + SHAPE.servers, RankCheckpoint::default());
        point.parts[rank.index()] = part;
        point.now = now;
    }
}

/// A run of `sync-ps` that does not wait for the last `backup` gradients of a step.
fn run_with(backup: u64) -> Case {
    Case::new("sync-ps", SHAPE).with("backup", Value::Number(backup as f64))
}

fn saved(case: &Case, save_every: u64) -> (Outcome, BTreeMap<u64, ResumePoint>) {
    let mut checkpoints = Checkpoints { save_every, saved: BTreeMap::new() };
    let outcome = quelea_sim::simulate(&case.setup, &case.problem, &case.cluster, &mut checkpoints)
        .expect("the run ends well");
    (outcome, checkpoints.saved)
}

/// The model that the servers hold together, each its shard of every bucket.
fn model(outcome: &Outcome) -> Vec<f32> {
    let servers = outcome.ranks.iter().filter(|rank| rank.is_server);
    servers.flat_map(|rank| rank.params.clone()).collect()
}

/// A worker that was late has the newest model when a run has come to rest, so it stands where the
/// servers do: one that stood before them would never be answered again, and one beyond them would
/// wait for gradients of a step that it has passed itself.
#[test]
fn in_a_checkpoint_every_worker_stands_at_the_step_of_the_servers() {
    for (backup, save_every) in [(1, 1), (1, 5), (2, 1), (2, 5), (3, 2)] {
        let case = run_with(backup).on(|cluster| cluster.compute_cv = 0.6);
        let (_, checkpoints) = saved(&case, save_every);
        assert!(checkpoints.len() > 1, "backup {backup} every {save_every}");
        for (step, point) in &checkpoints {
            let (workers, servers) = point.parts.split_at(SHAPE.workers);
            let reached = servers[0].state.numbers["steps.0"];
            for server in servers {
                let steps = &server.state.numbers;
                let pieces =
                    (0..steps["steps.count"]).map(|piece| steps[&format!("steps.{piece}")]);
                assert!(pieces.into_iter().all(|at| at == reached), "{steps:?}");
            }
            let at: Vec<u64> = workers.iter().map(RankCheckpoint::step).collect();
            assert_eq!(at, [reached; 4], "backup {backup}, checkpoint {step}");
        }
    }
}

/// Only the two fast workers are ever in time, whether or not the run rests meanwhile: the model is
/// that of gradient descent on their mean, `x ← x − η·(x − ½)`.
#[test]
fn two_late_workers_of_four_are_saved_and_resumed_without_a_deadlock() {
    let case = run_with(2).on(|cluster| cluster.slow = [(2, 2.5), (3, 3.5)].into());
    let mut expected = case.setup.initial.to_vec();
    for x in expected.iter_mut() {
        *x = (0..SHAPE.steps).fold(f64::from(*x), |x, _| x - 0.1 * (x - 0.5)) as f32;
    }
    let is_expected = |outcome: &Outcome| {
        let model = model(outcome);
        let off = model.iter().zip(&expected).map(|(x, wanted)| (x - wanted).abs());
        model.len() == expected.len() && off.fold(0.0, f32::max) < 1e-5
    };
    assert!(is_expected(&case.run()), "without checkpoints");
    for save_every in [1, 2, 5] {
        let (outcome, checkpoints) = saved(&case, save_every);
        assert!(is_expected(&outcome), "every {save_every}: {:?}", model(&outcome));
        for (step, point) in &checkpoints {
            let after =
                quelea_sim::resume(&case.setup, &case.problem, &case.cluster, point, &mut Silent)
                    .expect("the run ends well");
            assert!(is_expected(&after), "every {save_every}, from {step}: {:?}", model(&after));
        }
    }
}
