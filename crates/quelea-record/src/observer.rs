//! The observer of a run: what every driver calls while it runs.

use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_core::view::ViewChange;

use crate::{CheckpointSchedule, RankCheckpoint, Record};

/// Observes a run: receives its records, models and checkpoints, and may request more of them.
pub trait Observer: Send {
    /// Takes a record.
    fn record(&mut self, record: Record);

    /// Whether the detailed records for the timeline ([`RecordKind::Compute`],
    /// [`RecordKind::Transfer`]) are wanted.
    ///
    /// [`RecordKind::Compute`]: crate::RecordKind::Compute
    /// [`RecordKind::Transfer`]: crate::RecordKind::Transfer
    fn wants_timeline(&self) -> bool {
        false
    }

    /// `done` of all `total` steps (of all workers together) are complete.
    fn progress(&mut self, _done: u64, _total: u64, _now: Time) {}

    /// Called repeatedly while workers join: `there` of the `expected` workers have joined. An
    /// error ends the waiting.
    fn gathering(&mut self, _there: usize, _expected: usize) -> Result<(), String> {
        Ok(())
    }

    /// When models are evaluated and states saved; called once.
    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        CheckpointSchedule::default()
    }

    /// The models that all living ranks would deploy after `step` steps each: exactly for
    /// synchronous algorithms, on average for others.
    fn evaluate(&mut self, _now: Time, _step: u64, _models: Models) {}

    /// Membership has changed. Checkpoints that are not complete will never be: what follows are parts
    /// of the ranks that are left, in this view.
    fn view_changed(&mut self, _change: &ViewChange) {}

    /// One rank's part of the checkpoint after `step` steps. The parts of one checkpoint come in
    /// any order; it is complete when every living rank's part is there. That of an earlier attempt
    /// at the same step gives way.
    fn checkpoint(&mut self, _now: Time, _step: u64, _rank: Rank, _part: RankCheckpoint) {}

    /// The run is broken off; these are the models that its ranks still had, in order of rank. Ranks
    /// that are gone or do not answer have none.
    fn salvaged(&mut self, _now: Time, _models: Vec<SalvagedModel>) {}

    /// Called repeatedly: the step of the last checkpoint that is on stable storage. In a real run
    /// no rank passes a checkpoint before it is written, so that a failure never loses more than
    /// the work between two checkpoints.
    fn durable_step(&mut self) -> u64 {
        u64::MAX
    }

    /// Called repeatedly: whether a checkpoint is wanted besides those of
    /// [`checkpoint_schedule`](Observer::checkpoint_schedule).
    fn request(&mut self) -> Request {
        Request::Continue
    }

    /// Called repeatedly: a rank that the run shall continue without, if it can.
    fn rank_to_drop(&mut self) -> Option<u32> {
        None
    }

    /// Called repeatedly: how often ranks of a real run shall say whom they wait for and what they have
    /// exchanged ([`RecordKind::Account`]), and how far their models are apart
    /// ([`RecordKind::Deviation`]); `None`: never.
    ///
    /// [`RecordKind::Account`]: crate::RecordKind::Account
    /// [`RecordKind::Deviation`]: crate::RecordKind::Deviation
    fn survey_interval(&self) -> Option<Time> {
        None
    }
}

/// The model that a rank had when its run was broken off.
#[derive(Clone, Debug, PartialEq)]
pub struct SalvagedModel {
    /// Whose it is.
    pub rank: Rank,
    /// Whether that is a server; then it is a shard.
    pub is_server: bool,
    /// Steps that the rank had completed.
    pub step: u64,
    /// What one would deploy from this rank.
    pub model: Vec<f32>,
}

/// What an observer requests of a driver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Request {
    /// Nothing: continue.
    #[default]
    Continue,
    /// Save the state soon.
    Checkpoint,
    /// Save the state soon, and end the run there.
    Stop,
}

/// The models that all living ranks would deploy at one moment, by rank.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Models {
    /// Whole models.
    pub workers: Vec<(Rank, Vec<f32>)>,
    /// Shards.
    pub servers: Vec<(Rank, Vec<f32>)>,
}

/// An observer that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct Silent;

impl Observer for Silent {
    fn record(&mut self, _record: Record) {}
}

/// Keeps all records, those of the timeline included.
impl Observer for Vec<Record> {
    fn record(&mut self, record: Record) {
        self.push(record);
    }

    fn wants_timeline(&self) -> bool {
        true
    }
}
