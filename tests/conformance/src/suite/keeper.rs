//! An observer that keeps every checkpoint of a run.

use std::collections::BTreeMap;

use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_record::{CheckpointSchedule, Observer, RankCheckpoint, Record, ResumePoint};

/// Keeps what is saved.
pub(super) struct Keeper {
    schedule: CheckpointSchedule,
    saved: BTreeMap<u64, (Time, BTreeMap<Rank, RankCheckpoint>)>,
}

impl Keeper {
    /// Of a run of this many `steps`, saved every so often.
    pub(super) fn every(save_every: u64, steps: u64) -> Keeper {
        let schedule = CheckpointSchedule { save_every, evaluations: 0, steps };
        Keeper { schedule, saved: BTreeMap::new() }
    }

    /// The checkpoints by step, each of which must have the part of every rank.
    pub(super) fn starts(&self, ranks: usize) -> Vec<(u64, ResumePoint)> {
        assert!(!self.saved.is_empty(), "there are checkpoints");
        let start = |(step, (now, parts)): (&u64, &(Time, BTreeMap<Rank, RankCheckpoint>))| {
            assert_eq!(parts.len(), ranks, "every rank is in the checkpoint of step {step}");
            let parts = parts.values().cloned().collect();
            (*step, ResumePoint { parts, now: *now, ..ResumePoint::default() })
        };
        self.saved.iter().map(start).collect()
    }
}

impl Observer for Keeper {
    fn record(&mut self, _record: Record) {}

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        self.schedule
    }

    fn checkpoint(&mut self, now: Time, step: u64, rank: Rank, part: RankCheckpoint) {
        let cut = self.saved.entry(step).or_default();
        cut.0 = cut.0.max(now);
        assert_eq!(cut.1.insert(rank, part), None, "{rank} is saved once at step {step}");
    }
}
