//! What a run came to.

use std::sync::Arc;

use quelea_core::message::Rank;
use quelea_core::problems::Problem;
use quelea_core::properties::DeployedFrom;
use quelea_core::time::Time;
use quelea_record::{
    CheckpointSchedule, ModelSlices, Models, Observer, Outcome, RankReport, Record, RecordKind,
};

/// What a run came to.
pub struct RunOutcome {
    problem: Arc<dyn Problem>,
    model: Vec<f32>,
    outcome: Outcome,
    records: Vec<Record>,
}

impl RunOutcome {
    /// The trained model: the mean of the workers' models, or that of the servers.
    pub fn model(&self) -> &[f32] {
        &self.model
    }

    /// The loss of the model, computed when it is asked for: that of
    /// [`Problem::evaluate`], or for a [closure](crate::Run::gradient) the mean over all workers of
    /// its loss on the mini-batch that follows the last.
    pub fn loss(&self) -> f64 {
        self.problem.evaluate(&self.model).loss
    }

    /// What happened, in order: steps, evaluations, lost workers.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// What each rank did: steps, seconds, bytes, its own parameters. Workers first, then servers.
    pub fn ranks(&self) -> &[RankReport] {
        &self.outcome.ranks
    }

    /// Seconds until the last worker had finished: of the virtual clock, or of the real one.
    pub fn seconds(&self) -> f64 {
        self.outcome.clock_seconds
    }

    /// What went wrong without ending the run, in sentences.
    pub fn warnings(&self) -> &[String] {
        &self.outcome.warnings
    }
}

impl std::fmt::Debug for RunOutcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RunOutcome")
            .field("parameters", &self.model.len())
            .field("ranks", &self.outcome.ranks.len())
            .field("seconds", &self.seconds())
            .finish_non_exhaustive()
    }
}

/// Keeps the records of a run and evaluates its models.
pub(crate) struct RecordKeeper {
    pub(crate) problem: Arc<dyn Problem>,
    pub(crate) deploy: DeployedFrom,
    pub(crate) schedule: CheckpointSchedule,
    pub(crate) records: Vec<Record>,
}

impl RecordKeeper {
    /// With what the run came to.
    pub(crate) fn finish(self, outcome: Outcome) -> RunOutcome {
        let model = ModelSlices::of(&outcome).deployed(self.deploy);
        RunOutcome { problem: self.problem, model, outcome, records: self.records }
    }
}

impl Observer for RecordKeeper {
    fn record(&mut self, record: Record) {
        self.records.push(record);
    }

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        self.schedule
    }

    fn evaluate(&mut self, now: Time, step: u64, models: Models) {
        fn slices(models: &[(Rank, Vec<f32>)]) -> Vec<&[f32]> {
            models.iter().map(|(_, model)| model.as_slice()).collect()
        }
        let models =
            ModelSlices { workers: slices(&models.workers), servers: slices(&models.servers) };
        let found = self.problem.evaluate(&models.deployed(self.deploy));
        let event = RecordKind::Evaluation {
            loss: found.loss,
            accuracy: found.accuracy(),
            consensus: models.consensus_distance(),
        };
        self.records.push(Record { t: now.seconds(), rank: 0, step, event });
    }
}
