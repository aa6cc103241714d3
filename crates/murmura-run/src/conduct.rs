//! A run from its plan to its files, whoever drives it.

use std::io::{self, Write};
use std::path::PathBuf;

use murmura_core::problems::Evaluation;
use murmura_core::time::Time;
use murmura_record::{Event, Record, Sink};

use crate::drive::Driven;
use crate::error::RunError;
use crate::files::directory::{Directory, Draft};
use crate::files::records::Recorder;
use crate::files::summary::{About, Clock, Summary};
use crate::files::tensors::{self, Models};
use crate::plan::Plan;

/// Whoever shows progress: sees every record.
pub type Watch<'a> = &'a mut (dyn FnMut(&Record) + Send);

/// A run that has ended well.
#[derive(Debug)]
pub struct Finished {
    /// What it came to.
    pub summary: Summary,
    /// Where its files are.
    pub directory: PathBuf,
}

/// Lets `drive` run the plan, and writes the files.
pub fn conduct(
    plan: &Plan,
    directory: &Directory,
    watch: Watch<'_>,
    drive: impl FnOnce(&mut Listener<'_>) -> Driven,
) -> Result<Finished, RunError> {
    let finished = attempt(plan, directory, watch, drive);
    if finished.is_err() {
        directory.abandon();
    }
    finished
}

fn attempt(
    plan: &Plan,
    directory: &Directory,
    watch: Watch<'_>,
    drive: impl FnOnce(&mut Listener<'_>) -> Driven,
) -> Result<Finished, RunError> {
    let failed = |name: &'static str| {
        let path = directory.path().join(name);
        move |source: io::Error| RunError::Write { path, source }
    };
    let draft = directory.draft("records.jsonl").map_err(failed("records.jsonl"))?;
    let recorder = Recorder::new(draft, plan.total_steps(), watch);
    let mut listener = Listener { plan, recorder };
    let (clock, outcome) = drive(&mut listener)?;
    let end = Time::from_seconds(outcome.clock_seconds);
    let (model, evaluation) = listener.evaluate(end, plan.setup.steps, &Models::of(&outcome));
    let recorded = listener.recorder.finish().map_err(failed("records.jsonl"))?;
    let (config, epochs) = (plan.config.understood(), plan.epochs);
    let warnings = warnings(plan, clock, evaluation);
    let about =
        About { clock, config, epochs, evaluation, records_stride: recorded.stride, warnings };
    let summary = Summary::new(&outcome, about);
    let write = |name: &'static str, fill: &dyn Fn(&mut Draft) -> io::Result<()>| {
        let draft = directory.draft(name).and_then(|mut draft| fill(&mut draft).map(|()| draft));
        draft.map_err(failed(name))
    };
    let trace = write("trace.json", &|out| recorded.timeline.write(out, &outcome))?;
    let tensors = write("final.safetensors", &|out| tensors::write(out, &model, &outcome))?;
    let page = write("summary.json", &|out| {
        serde_json::to_writer_pretty(&mut *out, &summary)?;
        writeln!(out)
    })?;
    // The summary comes last: where it stands, the rest is there too.
    for draft in [recorded.draft, trace, tensors, page] {
        let name = draft.name();
        draft.commit().map_err(failed(name))?;
    }
    Ok(Finished { summary, directory: directory.path().to_path_buf() })
}

/// Hears what a driver says of a run: records what it tells, evaluates what it shows.
pub struct Listener<'a> {
    plan: &'a Plan,
    recorder: Recorder<'a>,
}

impl Listener<'_> {
    /// Takes a record.
    pub fn record(&mut self, record: Record) {
        self.recorder.record(record);
    }

    /// Whether records for the timeline are wanted.
    pub fn wants_timeline(&self) -> bool {
        self.recorder.wants_timeline()
    }

    /// After how many steps of each worker [`Listener::evaluate`] is to be called.
    pub fn evaluate_every(&self) -> Option<u64> {
        match self.plan.config.evaluations {
            0 => None,
            count => Some(self.plan.setup.steps.div_ceil(count)),
        }
    }

    /// Evaluates what would be deployed at this moment; returns it with what it is worth.
    pub fn evaluate(&mut self, now: Time, step: u64, models: &Models) -> (Vec<f32>, Evaluation) {
        let model = models.deployed(self.plan.setup.facts().deploy);
        let evaluation = self.plan.problem.evaluate(&model);
        let event = Event::Evaluation {
            loss: evaluation.loss,
            accuracy: evaluation.accuracy,
            consensus: models.consensus_distance(),
        };
        self.record(Record { t: now.seconds(), rank: 0, step, event });
        (model, evaluation)
    }
}

fn warnings(plan: &Plan, clock: Clock, evaluation: Evaluation) -> Vec<String> {
    let mut warnings = plan.config.notes.clone();
    if clock == Clock::Real && !plan.config.cluster.inside("faults").is_empty() {
        warnings.push("`cluster.faults` happen in `murmura simulate` only".to_string());
    }
    if !evaluation.loss.is_finite() {
        let lr = plan.config.optimizer.params().real("lr");
        warnings.push(format!(
            "the run diverged (its loss is not a number); try less than `optimizer.lr` = {lr}"
        ));
    }
    warnings
}
