//! Executes a prepared run with any driver and writes its files.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use quelea_core::message::Rank;
use quelea_core::problems::Evaluation;
use quelea_core::time::Time;
use quelea_net::NetError;
use quelea_record::{Outcome, RankReport, Record};
use quelea_sim::SimError;

use crate::drive::Driven;
use crate::error::RunError;
use crate::files::delivery::{Delivery, FINAL};
use crate::files::directory::{self, Directory};
use crate::files::records::RecordWriter;
use crate::files::recovery::RecoveryTable;
use crate::files::summary::{About, ClockKind, Summary};
use crate::files::tensors::ModelSlices;
use crate::prepared::PreparedRun;
pub use crate::recorder::{RunRecorder, SurveyPace};

/// Whoever shows progress: sees every record.
pub type RecordWatch<'a> = &'a mut (dyn FnMut(&Record) + Send);

/// A run that has ended well.
#[derive(Debug)]
pub struct Finished {
    /// What it came to.
    pub summary: Summary,
    /// Where its files are.
    pub directory: PathBuf,
}

/// Whether a run is being driven that can be asked to stop, and whether it was.
static DRIVING: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicBool = AtomicBool::new(false);
/// Whether the run of this process has begun, or its part in one.
static BEGUN: AtomicBool = AtomicBool::new(false);
/// What a run that has ended has written so far.
static ENDING: Mutex<EndingRun> = Mutex::new(EndingRun::None);

/// How far a run that has come to its end is with its files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EndingRun {
    /// No run is at its end.
    None,
    /// The model is being written: whoever would end the process waits for it.
    WritesModel,
    /// As before, and the process is to end as soon as it is there.
    LeavesAfterModel,
    /// The model is there; everything else may be given up.
    HasModel(PathBuf),
}

/// Whether the run of this process has begun, or this process has begun to take part in one: all ranks are
/// connected.
pub fn has_begun() -> bool {
    BEGUN.load(Ordering::Relaxed)
}

/// Says that it has.
pub(crate) fn begin() {
    BEGUN.store(true, Ordering::Relaxed);
}

/// Asks the run of this process to save its state and end; `false` if there is none, or it was
/// asked before.
pub fn ask_to_stop() -> bool {
    DRIVING.load(Ordering::SeqCst) && !ASKED.swap(true, Ordering::SeqCst)
}

/// Asks a run that is writing its files to end as soon as its model is there; how far it is.
pub fn ask_to_leave() -> EndingRun {
    let mut ending = ENDING.lock().unwrap_or_else(PoisonError::into_inner);
    if *ending == EndingRun::WritesModel {
        *ending = EndingRun::LeavesAfterModel;
        ASKED.store(true, Ordering::SeqCst);
    }
    ending.clone()
}

/// Says how far the run is; how far it was.
fn set_ending(now: EndingRun) -> EndingRun {
    std::mem::replace(&mut *ENDING.lock().unwrap_or_else(PoisonError::into_inner), now)
}

/// Whether a checkpoint was asked for, and the rank to continue without, if any.
static CHECKPOINT_ASKED: AtomicBool = AtomicBool::new(false);
static RANK_TO_DROP: AtomicU32 = AtomicU32::new(NOBODY);
const NOBODY: u32 = u32::MAX;

/// Asks the run of this process to save its state soon and continue; `false` if there is none.
pub fn ask_for_checkpoint() -> bool {
    let is_driving = DRIVING.load(Ordering::SeqCst);
    CHECKPOINT_ASKED.store(is_driving, Ordering::SeqCst);
    is_driving
}

/// Asks the run of this process to continue without a rank; `false` if there is no run.
pub fn ask_to_drop(rank: u32) -> bool {
    let is_driving = DRIVING.load(Ordering::SeqCst);
    if is_driving {
        RANK_TO_DROP.store(rank, Ordering::SeqCst);
    }
    is_driving
}

/// Whether a checkpoint was asked for since the last call.
pub(crate) fn take_checkpoint_request() -> bool {
    CHECKPOINT_ASKED.swap(false, Ordering::Relaxed)
}

/// The rank to continue without, if one was named since the last call.
pub(crate) fn take_rank_to_drop() -> Option<u32> {
    if RANK_TO_DROP.load(Ordering::Relaxed) == NOBODY {
        return None;
    }
    Some(RANK_TO_DROP.swap(NOBODY, Ordering::Relaxed)).filter(|rank| *rank != NOBODY)
}

/// Whether the run of this process was asked to stop.
pub fn is_asked_to_stop() -> bool {
    ASKED.load(Ordering::Relaxed)
}

/// Lets `drive` execute the run, and writes its files.
pub fn execute(
    prepared: &PreparedRun,
    directory: &Directory,
    watch: RecordWatch<'_>,
    drive: impl FnOnce(&mut RunRecorder<'_>) -> Driven,
) -> Result<Finished, RunError> {
    let finished = attempt(prepared, directory, watch, drive);
    set_ending(EndingRun::None);
    if finished.is_err() {
        directory.abandon();
    }
    finished
}

fn attempt(
    prepared: &PreparedRun,
    directory: &Directory,
    watch: RecordWatch<'_>,
    drive: impl FnOnce(&mut RunRecorder<'_>) -> Driven,
) -> Result<Finished, RunError> {
    let failed = |name: &'static str| write_failure(directory, name);
    let recovery = Mutex::new(recovery_table(prepared));
    let mut followed = |record: &Record| {
        recovery.lock().unwrap_or_else(PoisonError::into_inner).take(record);
        watch(record);
    };
    let records =
        records_of_run(prepared, directory, &mut followed).map_err(failed("records.jsonl"))?;
    let mut recorder = RunRecorder::new(prepared, directory, records);
    DRIVING.store(true, Ordering::SeqCst);
    let driven = drive(&mut recorder);
    if driven.is_ok() {
        set_ending(EndingRun::WritesModel);
    }
    DRIVING.store(false, Ordering::SeqCst);
    let (clock, outcome) = match driven {
        Ok(driven) => driven,
        Err(error) => return Err(broken_off(error, directory, recorder)),
    };
    let mut delivery = Delivery::new(prepared, directory);
    // Whatever fails from here on, the model is there.
    delivery.write_model(&outcome, &mut recorder)?;
    let model = directory.path().join(FINAL);
    if set_ending(EndingRun::HasModel(model.clone())) == EndingRun::LeavesAfterModel {
        recorder.break_off();
        return Err(RunError::Interrupted { model });
    }
    let end = Time::from_seconds(outcome.clock_seconds);
    let ended = recorder.end(end, prepared.setup.steps, &ModelSlices::of(&outcome));
    let evaluation = ended.last.evaluation.clone();
    let mut warnings = warnings(prepared, clock, &evaluation, &outcome);
    warnings.extend(ended.warnings.iter().cloned());
    let about = About {
        clock,
        config: prepared.config.resolved(),
        epochs: prepared.epochs,
        evaluation,
        spread: ended.last.workers,
        best: ended.best,
        resumed_from_step: prepared.resumed.as_ref().map(|resumed| resumed.step),
        recovery: recovery.lock().unwrap_or_else(PoisonError::into_inner).events(),
        records_stride: ended.recorded.stride,
        warnings,
    };
    let summary = delivery.write_rest(&outcome, Summary::new(&outcome, about), ended)?;
    Ok(Finished { summary, directory: directory.path().to_path_buf() })
}

/// Follows who takes part, beginning with those who do at the start.
fn recovery_table(prepared: &PreparedRun) -> RecoveryTable {
    let absent = prepared.start.absent(&prepared.setup);
    let workers = (0..prepared.setup.seats() as u32).filter(|rank| !absent.contains(&Rank(*rank)));
    RecoveryTable::new(workers)
}

fn write_failure(directory: &Directory, name: &str) -> impl FnOnce(io::Error) -> RunError + use<> {
    let path = directory.path().join(name);
    move |source| RunError::Write { path, source }
}

/// Begins the records; those of a resumed run come first.
fn records_of_run<'a>(
    prepared: &PreparedRun,
    directory: &Directory,
    watch: RecordWatch<'a>,
) -> io::Result<RecordWriter<'a>> {
    let draft = directory.draft("records.jsonl")?;
    let mut records =
        RecordWriter::new(draft, prepared.setup.steps, prepared.config.workers, watch);
    if let Some(resumed) = &prepared.resumed {
        if let Some(before) = directory::records_of(&resumed.run) {
            records.resume(BufReader::new(File::open(before)?), &prepared.start)?;
        }
        records.flush();
        if resumed.run == directory.path() {
            directory::sweep(&resumed.run);
        }
    }
    Ok(records)
}

/// A run did not come to its end: what can be resumed stays.
fn broken_off(error: RunError, directory: &Directory, recorder: RunRecorder<'_>) -> RunError {
    let stopped = match &error {
        RunError::Sim(SimError::Stopped { step, reason })
        | RunError::Net(NetError::Stopped { step, reason }) => Some((*step, reason.clone())),
        _ => None,
    };
    let path = directory.path().to_path_buf();
    let remains = recorder.break_off();
    match (stopped, remains.unsaved) {
        (Some(_), Some(reason)) => {
            let path = path.join(crate::checkpoint::FOLDER);
            RunError::Write { path, source: io::Error::other(reason) }
        }
        (Some((step, reason)), None) => {
            let reason = Some(reason).filter(|_| !is_asked_to_stop());
            RunError::Stopped { step, reason, directory: path }
        }
        (None, _) => match remains.kept {
            Some(kept) => RunError::BrokenOff { error: Box::new(error), kept },
            None => error,
        },
    }
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

fn warnings(
    prepared: &PreparedRun,
    clock: ClockKind,
    evaluation: &Evaluation,
    outcome: &Outcome,
) -> Vec<String> {
    let mut warnings = prepared.config.notes.clone();
    if clock == ClockKind::Real && !prepared.config.cluster.inside("faults").is_empty() {
        warnings.push("`cluster.faults` happen in `quelea simulate` only".to_string());
    }
    if clock == ClockKind::Real && prepared.config.workers > 1 {
        warnings.extend(too_small(outcome));
    }
    if !evaluation.loss.is_finite() {
        let lr = prepared.config.optimizer.options().real("lr");
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
