//! The observer of an executed run: records it, evaluates its models and writes its checkpoints.

use std::collections::BTreeMap;
use std::io;
use std::time::Instant;

use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_record::{
    CheckpointSchedule, Models, Observer, RankCheckpoint, Record, RecordKind, Request,
};

use crate::checkpoint::write::{Keep, Saver, Written};
use crate::checkpoint::{BestModel, Manifest};
use crate::evaluate::{BackgroundEvaluator, Evaluated, Evaluator, Snapshot};
use crate::execute::is_asked_to_stop;
use crate::files::directory::{Directory, Draft};
use crate::files::records::{RecordWriter, Recorded};
use crate::files::tensors::{Export, ModelSlices};
use crate::prepared::PreparedRun;

/// The file of the best model.
pub const BEST: &str = "best.safetensors";

/// Records a run: writes its records, evaluates its models, writes its checkpoints.
pub struct RunRecorder<'a> {
    prepared: &'a PreparedRun,
    directory: &'a Directory,
    records: RecordWriter<'a>,
    evaluator: Evaluator,
    /// Absent where the clock is virtual: then nobody waits for an evaluation.
    background: Option<BackgroundEvaluator>,
    best: Option<BestModel>,
    /// The best model, where it is not in its place yet: that happens when the run can be
    /// resumed, or has ended.
    best_draft: Option<Draft>,
    /// The first failure to write it.
    best_failure: Option<String>,
    saver: Saver,
    /// Parts that have come, of cuts that are not whole.
    parts: BTreeMap<u64, usize>,
    saved_at: Instant,
    /// The last checkpoint could not be written.
    failure: Option<String>,
    /// Checkpoints until this step are written, or cannot be.
    durable_step: u64,
    /// There is one that this run can resume from.
    has_saved: bool,
}

/// What is left when a run has ended well.
pub(crate) struct EndedRun {
    pub(crate) recorded: Recorded,
    /// The models at the end.
    pub(crate) last: Evaluated,
    pub(crate) best: Option<BestModel>,
    pub(crate) best_draft: Option<Draft>,
    pub(crate) warnings: Vec<String>,
}

impl<'a> RunRecorder<'a> {
    pub(crate) fn new(
        prepared: &'a PreparedRun,
        directory: &'a Directory,
        records: RecordWriter<'a>,
    ) -> RunRecorder<'a> {
        let problem = std::sync::Arc::clone(&prepared.problem);
        let evaluator = Evaluator { problem, deploy: prepared.setup.properties().deploy };
        let best = prepared.resumed.as_ref().and_then(|resumed| resumed.best);
        let manifest = Manifest::of(prepared, best);
        let goes_on = prepared.resumed.as_ref().is_some_and(|from| from.run == directory.path());
        let keep =
            Keep { newest: prepared.config.checkpoint.whole("keep") as usize, older: goes_on };
        RunRecorder {
            background: Some(BackgroundEvaluator::start(
                evaluator.clone(),
                prepared.config.evaluate_workers,
            )),
            saver: Saver::new(directory.path(), manifest, keep),
            prepared,
            directory,
            records,
            evaluator,
            best,
            best_draft: None,
            best_failure: None,
            parts: BTreeMap::new(),
            saved_at: Instant::now(),
            failure: None,
            has_saved: goes_on,
            durable_step: prepared.resumed.as_ref().map_or(0, |resumed| resumed.step),
        }
    }

    /// The clock of the run is virtual: models are evaluated where they are shown.
    pub fn on_virtual_clock(&mut self) {
        self.background = None;
    }

    /// Records and keeps what was evaluated and written meanwhile.
    fn catch_up(&mut self) {
        let evaluated = self.background.as_mut().map(BackgroundEvaluator::news).unwrap_or_default();
        evaluated.iter().for_each(|evaluated| self.take(evaluated));
        let written = self.saver.news();
        written.into_iter().for_each(|written| self.note(written));
    }

    fn note(&mut self, written: Written) {
        self.failure.clone_from(&written.failure);
        self.durable_step = self.durable_step.max(written.step);
        self.has_saved |= written.failure.is_none();
        let event = RecordKind::Checkpoint { failure: written.failure };
        let t = written.now.seconds();
        self.records.record(Record { t, rank: 0, step: written.step, event });
    }

    /// Records an evaluation, and keeps the model if it is the best until now.
    fn take(&mut self, evaluated: &Evaluated) {
        let Evaluated { now, step, evaluation, consensus, .. } = evaluated;
        let mut record = |event| {
            self.records.record(Record { t: now.seconds(), rank: 0, step: *step, event });
        };
        let (loss, accuracy) = (evaluation.loss, evaluation.accuracy());
        record(RecordKind::Evaluation { loss, accuracy, consensus: *consensus });
        if let Some(spread) = evaluated.workers {
            record(RecordKind::Workers { loss: spread.loss, accuracy: spread.accuracy });
        }
        let this = BestModel { step: *step, loss, accuracy };
        // With one evaluation the best model is the last one.
        let wanted = self.prepared.config.evaluations > 1 && loss.is_finite();
        if wanted && self.best.is_none_or(|best| this.beats(&best)) {
            // The older one first: both have the same name until they are in their place.
            self.best_draft = None;
            match self.write_best(&evaluated.model) {
                Ok(draft) => self.best_draft = Some(draft),
                Err(error) => self.best_failure = Some(error.to_string()),
            }
            self.best = Some(this);
            self.saver.set_best(this);
        }
    }

    fn write_best(&self, model: &[f32]) -> io::Result<Draft> {
        let buffers = self.prepared.problem.buffers(model);
        let layers = &self.prepared.setup.layout.tensors;
        let mut draft = self.directory.redraft(BEST)?;
        Export { model, layers, buffers: &buffers }.write(&mut draft)?;
        Ok(draft)
    }

    /// Puts the best model in its place.
    fn keep_best(&mut self) {
        if let Some(Err(error)) = self.best_draft.take().map(Draft::commit) {
            self.best_failure = Some(error.to_string());
        }
    }

    /// Evaluates what the run has come to, and ends the recording.
    pub(crate) fn end(
        mut self,
        now: Time,
        step: u64,
        models: &ModelSlices<'_>,
    ) -> io::Result<EndedRun> {
        let left_out = match self.background.take() {
            Some(evaluator) => {
                let (rest, left_out) = evaluator.finish();
                rest.iter().for_each(|evaluated| self.take(evaluated));
                left_out
            }
            None => 0,
        };
        let last = self.evaluator.evaluate_models(now, step, models, true);
        self.take(&last);
        let written = self.saver.finish();
        let failures = written.iter().filter_map(|written| written.failure.clone());
        let failure = self.failure.take().into_iter().chain(failures).next_back();
        for Written { now, step, failure } in written {
            let event = RecordKind::Checkpoint { failure };
            self.records.record(Record { t: now.seconds(), rank: 0, step, event });
        }
        let mut warnings = Vec::new();
        warnings.extend(failure.map(|why| format!("checkpoints could not be written: {why}")));
        let best_failure = self.best_failure.take();
        warnings.extend(best_failure.map(|why| format!("best.safetensors: {why}")));
        if left_out > 0 {
            warnings.push(format!(
                "{left_out} evaluations were left out: one takes longer than the steps between them"
            ));
        }
        let (recorded, best) = (self.records.finish()?, self.best);
        Ok(EndedRun { recorded, last, best, best_draft: self.best_draft, warnings })
    }

    /// The run was broken off: what can be resumed stays. Why the last checkpoint could not
    /// be written, if it could not.
    pub(crate) fn break_off(mut self) -> Option<String> {
        self.catch_up();
        let last = self.saver.finish();
        self.has_saved |= last.iter().any(|written| written.failure.is_none());
        let failure = match last.last() {
            Some(written) => written.failure.clone(),
            None => self.failure.take(),
        };
        if self.has_saved {
            // A resumed run takes these over; without them it only has less to show.
            let _ = self.best_draft.take().map(Draft::commit);
            let recorded = self.records.finish();
            let _ = recorded.and_then(|recorded| recorded.draft.replace());
        }
        failure
    }
}

impl Observer for RunRecorder<'_> {
    fn record(&mut self, record: Record) {
        self.catch_up();
        self.records.record(record);
    }

    fn wants_timeline(&self) -> bool {
        self.records.wants_timeline()
    }

    fn gathering(&mut self, _there: usize, _expected: usize) -> Result<(), String> {
        if is_asked_to_stop() { Err("interrupted before it began".to_string()) } else { Ok(()) }
    }

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        CheckpointSchedule {
            save_every: self.prepared.config.checkpoint.whole("every"),
            evaluations: self.prepared.config.evaluations,
            steps: self.prepared.setup.steps,
        }
    }

    fn evaluate(&mut self, now: Time, step: u64, models: Models) {
        let snapshot = Snapshot { now, step, models };
        match &mut self.background {
            Some(background) => background.take(snapshot),
            None => {
                let each = self.prepared.config.evaluate_workers;
                let evaluated = self.evaluator.evaluate(&snapshot, each);
                self.take(&evaluated);
            }
        }
    }

    fn checkpoint(&mut self, now: Time, step: u64, rank: Rank, part: RankCheckpoint) {
        let parts = self.parts.entry(step).or_default();
        *parts += 1;
        let is_whole = *parts == self.prepared.setup.ranks();
        if is_whole {
            self.parts.remove(&step);
            self.saved_at = Instant::now();
            // What was recorded before a cut is there whenever the cut is.
            self.records.flush();
            self.keep_best();
        }
        self.saver.take(step, now, rank, part);
        // Virtual workers stand still meanwhile; real ones ask which step is durable.
        while is_whole && self.background.is_none() && self.durable_step < step {
            let Some(written) = self.saver.wait() else { break };
            self.note(written);
        }
    }

    fn durable_step(&mut self) -> u64 {
        self.catch_up();
        self.durable_step
    }

    fn request(&mut self) -> Request {
        if is_asked_to_stop() {
            return Request::Stop;
        }
        let seconds = self.prepared.config.checkpoint.real("every_seconds");
        let real = self.background.is_some();
        if real && seconds > 0.0 && self.saved_at.elapsed().as_secs_f64() >= seconds {
            self.saved_at = Instant::now();
            return Request::Checkpoint;
        }
        Request::Continue
    }
}
