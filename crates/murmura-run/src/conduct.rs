//! A run from its plan to its files, whoever drives it.

use std::io::{self, Write};
use std::path::PathBuf;

use murmura_core::problems::Evaluation;
use murmura_core::time::Time;
use murmura_record::{Event, Outcome, RankReport, Record, Sink};

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
    let warnings = warnings(plan, clock, evaluation, &outcome);
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

    /// After how many steps of each worker to ask whether an evaluation is [due](Self::is_due).
    pub fn evaluate_every(&self) -> Option<u64> {
        glance(self.plan.setup.steps, self.plan.config.evaluations)
    }

    /// Whether the model is to be evaluated after this step.
    pub fn is_due(&self, step: u64) -> bool {
        is_due(self.plan.setup.steps, self.plan.config.evaluations, step)
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

/// Steps between two looks at whether an evaluation is due; the last one needs none, it is at the
/// end. Where the evaluations do not divide the steps, they are even to an eighth.
fn glance(steps: u64, evaluations: u64) -> Option<u64> {
    match evaluations {
        0 | 1 => None,
        count if steps.is_multiple_of(count) => Some(steps / count),
        count => Some((steps / count.saturating_mul(8)).max(1)),
    }
}

/// Whether the k-th of the evaluations has become due since the last look.
fn is_due(steps: u64, evaluations: u64, step: u64) -> bool {
    let passed = |step: u64| u128::from(step) * u128::from(evaluations) / u128::from(steps);
    let before = glance(steps, evaluations).map(|every| step.saturating_sub(every));
    step < steps && before.is_some_and(|before| passed(step) > passed(before))
}

/// Below so many seconds a gradient is over before a message has arrived.
const TINY_SECONDS: f64 = 100e-6;

/// Says so where a real run could not gain from its workers, because there was nothing to do.
fn too_small(outcome: &Outcome) -> Option<String> {
    let sum = |of: fn(&RankReport) -> f64| outcome.ranks.iter().map(of).sum::<f64>();
    let compute = sum(|rank| rank.compute_seconds);
    let exposed = sum(|rank| rank.exposed_seconds);
    let spent = compute + exposed + sum(|rank| rank.waiting_seconds);
    let steps: u64 = outcome.ranks.iter().filter(|r| !r.is_server).map(|r| r.steps).sum();
    let tiny = compute < TINY_SECONDS * steps as f64;
    (tiny && exposed > 0.8 * spent).then(|| {
        format!(
            "the problem is so small that messages take longer than gradients ({:.0} µs each), so \
             adding workers cannot pay here; a larger task or `simulate` shows more",
            compute / steps.max(1) as f64 * 1e6
        )
    })
}

fn warnings(plan: &Plan, clock: Clock, evaluation: Evaluation, outcome: &Outcome) -> Vec<String> {
    let mut warnings = plan.config.notes.clone();
    if clock == Clock::Real && !plan.config.cluster.inside("faults").is_empty() {
        warnings.push("`cluster.faults` happen in `murmura simulate` only".to_string());
    }
    if clock == Clock::Real && plan.config.workers > 1 {
        warnings.extend(too_small(outcome));
    }
    if !evaluation.loss.is_finite() {
        let lr = plan.config.optimizer.params().real("lr");
        warnings.push(format!(
            "the run diverged (its loss is not a number); try less than `optimizer.lr` = {lr}"
        ));
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_so_many_evaluations_are_spread_evenly_and_the_last_is_the_end() {
        for (steps, count) in [(2000, 20), (30, 20), (2000, 7), (10, 4), (20, 20), (1001, 1000)] {
            let every = glance(steps, count).expect("several");
            let asked = (1..=steps).filter(|step| step.is_multiple_of(every));
            let mut due: Vec<u64> = asked.filter(|step| is_due(steps, count, *step)).collect();
            due.push(steps);
            assert_eq!(due.len() as u64, count, "{steps} steps");
            for (number, step) in due.iter().enumerate() {
                let even = (number as f64 + 1.0) * steps as f64 / count as f64;
                let gap = (steps as f64 / count as f64 / 8.0).max(1.0);
                assert!((*step as f64 - even).abs() <= gap, "{step} for {even} of {steps}");
            }
        }
        assert_eq!((glance(10, 0), glance(10, 1)), (None, None));
        assert!((1..10).all(|step| is_due(10, 25, step)), "at most one per step");
    }

    #[test]
    fn a_problem_that_is_too_small_to_share_is_said_to_be() {
        let outcome = |compute_seconds, exposed_seconds| Outcome {
            ranks: vec![RankReport {
                steps: 100,
                compute_seconds,
                exposed_seconds,
                ..RankReport::default()
            }],
            ..Outcome::default()
        };
        let note = too_small(&outcome(0.001, 0.01)).expect("tiny");
        assert!(note.contains("(10 µs each)"), "{note}");
        assert_eq!(too_small(&outcome(0.001, 0.001)), None, "it computes half of the time");
        assert_eq!(too_small(&outcome(1.0, 10.0)), None, "the network is slow");
    }
}
