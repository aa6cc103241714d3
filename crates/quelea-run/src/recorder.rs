//! The observer of an executed run: records it, evaluates its models and writes its checkpoints.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::time::Instant;

use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_core::view::ViewChange;
use quelea_record::{
    CheckpointSchedule, Models, Observer, RankCheckpoint, Record, RecordKind, Request,
    SalvagedModel,
};

use crate::checkpoint::write::{Keep, Saver, Written};
use crate::checkpoint::{self, BestModel, Manifest};
use crate::evaluate::{BackgroundEvaluator, Evaluated, Evaluator, Snapshot};
use crate::execute::{begin, is_asked_to_stop, take_checkpoint_request, take_rank_to_drop};
use crate::files::aborted::{ABORTED, Salvaged};
use crate::files::delivery::is_full;
use crate::files::directory::{Directory, Draft};
use crate::files::records::{RecordWriter, Recorded};
use crate::files::tensors::{Export, ModelSlices};
use crate::prepared::PreparedRun;

/// The file of the best model.
pub const BEST: &str = "best.safetensors";

/// How often ranks shall say whom they wait for, asked again and again.
pub type SurveyPace = Box<dyn Fn() -> Time + Send>;

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
    /// Absent once all checkpoints of the run are written.
    saver: Option<Saver>,
    /// Ranks that take part.
    living: usize,
    /// Parts that have come, of cuts that are not whole.
    parts: BTreeMap<u64, usize>,
    saved_at: Instant,
    /// The last checkpoint could not be written.
    failure: Option<String>,
    /// Checkpoints until this step are written, or cannot be.
    durable_step: u64,
    /// There is one that this run can resume from.
    has_saved: bool,
    /// What was kept of a run that was broken off, in words.
    kept: Option<String>,
    /// How often ranks say whom they wait for, where somebody may look at the run.
    survey_pace: Option<SurveyPace>,
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
            saver: Some(Saver::new(directory.path(), manifest, keep)),
            prepared,
            directory,
            records,
            evaluator,
            best,
            best_draft: None,
            best_failure: None,
            living: prepared.setup.ranks() - prepared.start.absent(&prepared.setup).len(),
            parts: BTreeMap::new(),
            saved_at: Instant::now(),
            failure: None,
            has_saved: goes_on,
            kept: None,
            survey_pace: None,
            durable_step: prepared.resumed.as_ref().map_or(0, |resumed| resumed.step),
        }
    }

    /// Where the run is written.
    pub(crate) fn folder(&self) -> &Path {
        self.directory.path()
    }

    /// The same, to write more there.
    pub(crate) fn directory(&self) -> &'a Directory {
        self.directory
    }

    /// The clock of the run is virtual: models are evaluated where they are shown.
    pub fn on_virtual_clock(&mut self) {
        self.background = None;
    }

    /// Has ranks say as often as `pace` wants whom they wait for, what they exchange, and how far their models
    /// are apart.
    pub fn survey(&mut self, pace: SurveyPace) {
        self.survey_pace = Some(pace);
    }

    /// Records and keeps what was evaluated and written meanwhile.
    fn catch_up(&mut self) {
        let evaluated = self.background.as_mut().map(BackgroundEvaluator::news).unwrap_or_default();
        evaluated.iter().for_each(|evaluated| self.take(evaluated));
        let written = self.saver.as_ref().map(Saver::news).unwrap_or_default();
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
            self.saver.iter().for_each(|saver| saver.set_best(this));
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
    pub(crate) fn end(mut self, now: Time, step: u64, models: &ModelSlices<'_>) -> EndedRun {
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
        self.end_saving();
        let mut warnings = Vec::new();
        warnings.extend(
            self.failure.take().map(|why| format!("checkpoints could not be written: {why}")),
        );
        let best_failure = self.best_failure.take();
        warnings.extend(best_failure.map(|why| format!("best.safetensors: {why}")));
        if left_out > 0 {
            warnings.push(format!(
                "{left_out} evaluations were left out: one takes longer than the steps between them"
            ));
        }
        let (recorded, best) = (self.records.finish(), self.best);
        EndedRun { recorded, last, best, best_draft: self.best_draft, warnings }
    }

    /// Waits until every checkpoint is written, or cannot be.
    fn end_saving(&mut self) {
        let written = self.saver.take().map(Saver::finish).unwrap_or_default();
        let failures = written.iter().filter_map(|written| written.failure.clone());
        let failure = self.failure.take().into_iter().chain(failures).next_back();
        written.into_iter().for_each(|written| self.note(written));
        self.failure = failure;
    }

    /// Gives up what matters least of what this run has on the disk, to make room for its model;
    /// what that was, or nothing if there is no more. The newest checkpoint stays: it is a model
    /// too.
    pub(crate) fn make_room(&mut self) -> Option<String> {
        self.end_saving();
        if self.best_draft.take().is_some() {
            return Some(BEST.to_string());
        }
        if self.records.give_up() {
            return Some("records.jsonl".to_string());
        }
        checkpoint::remove_oldest_of_several(self.directory.path())
    }

    /// The run was broken off: what can be resumed, and what was computed and measured, stays.
    pub(crate) fn break_off(mut self) -> Remains {
        self.catch_up();
        let before = self.failure.take();
        let last = self.saver.take().map(Saver::finish).unwrap_or_default();
        self.has_saved |= last.iter().any(|written| written.failure.is_none());
        let failure = match last.last() {
            Some(written) => written.failure.clone(),
            None => before,
        };
        // What was computed and measured stays, whatever has ended the run.
        // The records of an earlier run that it was to replace stay, unless it can be resumed.
        let is_free = !self.directory.path().join("records.jsonl").exists();
        if self.has_saved || (self.records.has_steps() && is_free) {
            // A resumed run takes these over; without them it only has less to show.
            let _ = self.best_draft.take().map(Draft::commit);
            let recorded = self.records.finish().draft.and_then(Draft::replace).is_ok();
            let place = self.directory.path().display();
            let records = format!("what was recorded is in {place}");
            let kept = self.kept.or(recorded.then_some(records));
            return Remains { unsaved: failure, kept };
        }
        Remains { unsaved: failure, kept: self.kept }
    }
}

/// What is left of a run that was broken off.
pub(crate) struct Remains {
    /// Why the last checkpoint could not be written, if it could not.
    pub(crate) unsaved: Option<String>,
    /// What is kept, in words.
    pub(crate) kept: Option<String>,
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

    fn view_changed(&mut self, change: &ViewChange) {
        self.living = self.living + change.joined.len() - change.departed.len();
        self.parts.clear();
        self.saver.iter().for_each(|saver| saver.change_view(change));
    }

    fn checkpoint(&mut self, now: Time, step: u64, rank: Rank, part: RankCheckpoint) {
        let parts = self.parts.entry(step).or_default();
        *parts += 1;
        let is_whole = *parts == self.living;
        if is_whole {
            self.parts.remove(&step);
            self.saved_at = Instant::now();
            // What was recorded before a cut is there whenever the cut is.
            self.records.flush();
            self.keep_best();
        }
        let Some(saver) = &self.saver else { return };
        saver.take(step, now, rank, part);
        // Virtual workers stand still meanwhile; real ones ask which step is durable.
        while is_whole && self.background.is_none() && self.durable_step < step {
            let Some(written) = self.saver.as_ref().and_then(Saver::wait) else { break };
            self.note(written);
        }
    }

    fn salvaged(&mut self, _now: Time, models: Vec<SalvagedModel>) {
        let salvaged = Salvaged { prepared: self.prepared, models };
        let directory = self.directory;
        let mut written = salvaged.write(directory);
        while written.as_ref().is_err_and(is_full) && self.make_room().is_some() {
            written = salvaged.write(directory);
        }
        let mut what = salvaged.describe();
        if written.as_ref().is_err_and(is_full) && !salvaged.models.is_empty() {
            written = salvaged.write_alone(directory);
            what = "the model that one would deploy is, without the ranks' own, for which there is no space,".into();
        }
        let place = directory.path().join(ABORTED);
        self.kept = Some(match written {
            Ok(()) => format!("{what} in {}", place.display()),
            Err(error) => format!("cannot write {}: {error}", place.display()),
        });
    }

    fn durable_step(&mut self) -> u64 {
        self.catch_up();
        self.durable_step
    }

    fn request(&mut self) -> Request {
        begin();
        if is_asked_to_stop() {
            return Request::Stop;
        }
        if take_checkpoint_request() {
            self.saved_at = Instant::now();
            return Request::Checkpoint;
        }
        let seconds = self.prepared.config.checkpoint.real("every_seconds");
        let real = self.background.is_some();
        if real && seconds > 0.0 && self.saved_at.elapsed().as_secs_f64() >= seconds {
            self.saved_at = Instant::now();
            return Request::Checkpoint;
        }
        Request::Continue
    }

    fn rank_to_drop(&mut self) -> Option<u32> {
        take_rank_to_drop()
    }

    fn survey_interval(&self) -> Option<Time> {
        self.survey_pace.as_ref().map(|pace| pace())
    }
}
