//! The records of one run, its state now and at any earlier moment.

mod history;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quelea_core::time::Time;
use quelea_record::Record;
use quelea_run::files::records::write_line;
use serde_json::{Value, json};

use crate::advice::{Adviser, PlanForecast, advice_json, predicted_rate};
use crate::curves::RunCurves;
use crate::description::RunDescription;
use crate::state::{MomentState, Surroundings};

pub use history::HistorySubject;

/// Records of a live run that are kept for clients that come late.
const LIVE_RECORDS: usize = 200_000;
/// Records between two snapshots, at first.
const SNAPSHOT_RECORDS: usize = 1000;
/// Snapshots of a run at most; then every other one goes.
const SNAPSHOTS: usize = 256;

/// The time between two surveys while somebody looks.
pub const SURVEY_WATCHED: Time = Time(500_000_000);
/// And while nobody does: enough for those who come later, or open the run when it has ended.
const SURVEY_UNWATCHED: Time = Time(5_000_000_000);
/// How long after a request somebody is taken to look; scrapes of Prometheus come every 15 s, or every minute.
const LOOKS: Duration = Duration::from_secs(20);

/// Where a run stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum LogPhase {
    /// Records may still come.
    #[default]
    Open,
    /// It has ended well.
    Ended,
    /// It was broken off, for this reason.
    Failed(String),
}

/// What the times of a run are measured by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogClock {
    /// The clock on the wall: time passes between two records.
    Real,
    /// That of the virtual cluster, or of a run that has ended.
    #[default]
    Recorded,
}

/// What a page may do to its run.
pub trait RunControls: Send + Sync {
    /// The names of the actions that this run allows.
    fn actions(&self) -> Vec<&'static str>;

    /// Does one of them, about a rank where it needs one; what was done, or why not.
    fn act(&self, action: &str, rank: Option<u32>) -> Result<String, String>;
}

/// The records of one run.
pub struct RunLog {
    description: RunDescription,
    clock: LogClock,
    controls: Option<Box<dyn RunControls>>,
    adviser: Option<Adviser>,
    begun: Instant,
    /// Milliseconds after `begun` at which somebody last asked; 0: nobody did.
    visited: AtomicU64,
    inner: Mutex<LogInner>,
}

struct LogInner {
    state: MomentState,
    curves: RunCurves,
    records: VecDeque<Record>,
    /// Records that are not kept any more.
    dropped: u64,
    limit: usize,
    snapshots: Vec<LogSnapshot>,
    snapshot_every: usize,
    arrived: Instant,
    phase: LogPhase,
    summary: Option<Value>,
    forecast: Option<CachedForecast>,
}

/// The state after some of the records.
struct LogSnapshot {
    records: usize,
    state: MomentState,
}

/// A forecast, and the steps after which it was made.
struct CachedForecast {
    steps: u64,
    forecast: Option<PlanForecast>,
}

impl RunLog {
    /// Of a run that is about to begin.
    pub fn live(description: RunDescription, clock: LogClock) -> RunLog {
        RunLog::with(description, clock, 1, LIVE_RECORDS)
    }

    /// Of a run on the disk, of whose steps every `stride`-th was written. All of it is kept.
    pub fn recorded(description: RunDescription, stride: u64) -> RunLog {
        RunLog::with(description, LogClock::Recorded, stride, usize::MAX)
    }

    fn with(description: RunDescription, clock: LogClock, stride: u64, limit: usize) -> RunLog {
        let inner = LogInner {
            state: MomentState::new(&description, stride),
            curves: RunCurves::new(description.workers),
            records: VecDeque::new(),
            dropped: 0,
            limit,
            snapshots: Vec::new(),
            snapshot_every: SNAPSHOT_RECORDS,
            arrived: Instant::now(),
            phase: LogPhase::Open,
            summary: None,
            forecast: None,
        };
        RunLog {
            description,
            clock,
            controls: None,
            adviser: None,
            begun: Instant::now(),
            visited: AtomicU64::new(0),
            inner: Mutex::new(inner),
        }
    }

    /// With buttons.
    pub fn with_controls(self, controls: Box<dyn RunControls>) -> RunLog {
        RunLog { controls: Some(controls), ..self }
    }

    /// With advice.
    pub fn with_adviser(self, adviser: Adviser) -> RunLog {
        RunLog { adviser: Some(adviser), ..self }
    }

    fn lock(&self) -> MutexGuard<'_, LogInner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Somebody asks for something.
    pub(crate) fn visit(&self) {
        let now = self.begun.elapsed().as_millis() as u64;
        self.visited.store(now.max(1), Ordering::Relaxed);
    }

    /// How often ranks shall be asked whom they wait for, and for samples: seldom while nobody looks.
    pub fn survey_interval(&self) -> Time {
        match self.visited.load(Ordering::Relaxed) {
            0 => SURVEY_UNWATCHED,
            at if self.begun.elapsed() > Duration::from_millis(at) + LOOKS => SURVEY_UNWATCHED,
            _ => SURVEY_WATCHED,
        }
    }

    /// What was known before it began.
    pub fn description(&self) -> &RunDescription {
        &self.description
    }

    /// What the page may do.
    pub fn controls(&self) -> Option<&dyn RunControls> {
        self.controls.as_deref()
    }

    /// Takes a record.
    pub fn take(&self, record: &Record) {
        self.lock().take(record.clone());
    }

    /// Takes many at once.
    pub fn take_all(&self, records: impl IntoIterator<Item = Record>) {
        let mut inner = self.lock();
        records.into_iter().for_each(|record| inner.take(record));
    }

    /// The run has ended well, with this summary.
    pub fn finish(&self, summary: Value) {
        let mut inner = self.lock();
        (inner.phase, inner.summary) = (LogPhase::Ended, Some(summary));
    }

    /// The run has ended, and leaves no summary: a script's.
    pub fn close(&self) {
        self.lock().phase = LogPhase::Ended;
    }

    /// The run was broken off.
    pub fn fail(&self, reason: String) {
        self.lock().phase = LogPhase::Failed(reason);
    }

    /// Where it stands.
    pub fn phase(&self) -> LogPhase {
        self.lock().phase.clone()
    }

    /// Calls `read` with the state as it is now.
    pub fn read<T>(&self, read: impl FnOnce(&MomentState, f64) -> T) -> T {
        let inner = self.lock();
        let now = self.now(&inner);
        read(&inner.state, now)
    }

    /// The curves of the whole run, as the API shows them.
    pub fn curves_json(&self) -> Value {
        let inner = self.lock();
        let mut curves = inner.curves.json();
        let bytes =
            inner.summary.as_ref().and_then(|summary| summary["total"]["bytes_sent"].as_f64());
        let samples = inner.state.samples as f64;
        // Records do not count bytes; where all is known at the end, each sample has its share.
        let share = bytes.filter(|_| samples > 0.0).map(|bytes| bytes / samples);
        curves["bytes_per_sample"] = json!(share);
        curves
    }

    /// Calls `read` with the curves.
    pub fn read_curves<T>(&self, read: impl FnOnce(&RunCurves) -> T) -> T {
        read(&self.lock().curves)
    }

    /// The summary, if the run has ended well.
    pub fn summary(&self) -> Option<Value> {
        self.lock().summary.clone()
    }

    /// The state at `t`, or now, as the API shows it.
    pub fn state_json(&self, t: Option<f64>) -> Value {
        let mut inner = self.lock();
        let end = inner.state.t;
        let is_past = |t: &f64| *t < end;
        let past = t.filter(is_past).and_then(|t| Some((t, inner.at(t)?)));
        let has_ended = inner.phase != LogPhase::Open;
        let mut shown = match &past {
            Some((t, state)) => {
                let around = Surroundings { now: *t, ..Surroundings::default() };
                state.json(&self.description, &around)
            }
            None => {
                let now = self.now(&inner);
                let around = Surroundings { now, has_ended, summary: inner.summary.clone() };
                inner.state.json(&self.description, &around)
            }
        };
        let forecast = self.forecast(&mut inner);
        let state = past.as_ref().map_or(&inner.state, |(_, state)| state);
        shown["advice"] = advice_json(state, &self.description, forecast.as_ref());
        shown["run"] = json!(self.description.name);
        shown["end"] = json!(end);
        shown["is_past"] = json!(past.is_some());
        shown["can_seek"] = json!(inner.dropped == 0);
        shown["phase"] = json!(match &inner.phase {
            LogPhase::Open if inner.state.records == 0 => "waiting",
            LogPhase::Open => "running",
            LogPhase::Ended => "ended",
            LogPhase::Failed(_) => "failed",
        });
        shown["failure"] = match &inner.phase {
            LogPhase::Failed(reason) => json!(reason),
            _ => Value::Null,
        };
        shown["actions"] = match &self.controls {
            Some(controls) if !has_ended => json!(controls.actions()),
            _ => json!([]),
        };
        shown["clock"] = json!(match self.clock {
            LogClock::Real => "real",
            LogClock::Recorded => "recorded",
        });
        shown
    }

    /// The clock of a real run goes on between two records.
    fn now(&self, inner: &LogInner) -> f64 {
        let is_live = self.clock == LogClock::Real && inner.phase == LogPhase::Open;
        let passed = if is_live && inner.state.records > 0 {
            inner.arrived.elapsed().as_secs_f64()
        } else {
            0.0
        };
        inner.state.t + passed
    }

    /// What the advisor says; asked again when twice as many steps are known.
    fn forecast(&self, inner: &mut LogInner) -> Option<PlanForecast> {
        let adviser = self.adviser.as_ref()?;
        let steps = inner.state.steps;
        let is_old = inner.forecast.as_ref().is_none_or(|cached| steps >= 2 * cached.steps.max(1));
        if steps > 0 && is_old {
            let compute: f64 = inner.state.ranks.iter().map(|rank| rank.total.compute).sum();
            let forecast = adviser(compute / steps as f64);
            inner.forecast = Some(CachedForecast { steps, forecast });
        }
        inner.forecast.as_ref().and_then(|cached| cached.forecast.clone())
    }

    /// Samples per second that `plan` predicts, with the gradients' time as measured.
    pub fn predicted_samples_per_second(&self) -> Option<f64> {
        let mut inner = self.lock();
        let forecast = self.forecast(&mut inner)?;
        predicted_rate(&inner.state, &self.description, &forecast)
    }

    /// Lines of `records.jsonl` from the record with this number on, and the number that follows.
    /// Of records that are not kept any more, those that follow.
    pub fn lines_from(&self, number: u64, most: usize) -> (Vec<u8>, u64) {
        let inner = self.lock();
        let first = number.max(inner.dropped);
        let skipped = (first - inner.dropped) as usize;
        let mut lines = Vec::new();
        let mut count = 0;
        for record in inner.records.iter().skip(skipped).take(most) {
            write_line(&mut lines, record).expect("memory takes every byte");
            count += 1;
        }
        (lines, first + count)
    }
}

impl LogInner {
    fn take(&mut self, record: Record) {
        self.state.take(&record);
        self.curves.take(&record, self.state.samples);
        if record.t >= self.state.t {
            self.arrived = Instant::now();
        }
        if self.records.len() == self.limit {
            self.records.pop_front();
            self.dropped += 1;
        }
        self.records.push_back(record);
        let last = self.snapshots.last().map_or(0, |snapshot| snapshot.records);
        if self.taken() >= last + self.snapshot_every {
            self.snapshot();
        }
    }

    /// How many records there were so far.
    fn taken(&self) -> usize {
        self.dropped as usize + self.records.len()
    }

    fn snapshot(&mut self) {
        if self.snapshots.len() == SNAPSHOTS {
            let mut place = 0;
            self.snapshots.retain(|_| {
                place += 1;
                place % 2 == 0
            });
            self.snapshot_every *= 2;
        }
        let (records, state) = (self.taken(), self.state.clone());
        self.snapshots.push(LogSnapshot { records, state });
    }

    /// The state at an earlier time; nothing if its records are not kept.
    fn at(&self, t: f64) -> Option<MomentState> {
        if self.dropped > 0 {
            return None;
        }
        let before = self.snapshots.partition_point(|snapshot| snapshot.state.t <= t);
        let snapshot = before.checked_sub(1).map(|place| &self.snapshots[place]);
        let (skipped, mut state) = match snapshot {
            Some(snapshot) => (snapshot.records, snapshot.state.clone()),
            None => {
                let ranks = vec![Default::default(); self.state.ranks.len()];
                let stride = self.state.stride;
                (0, MomentState { ranks, stride, ..MomentState::default() })
            }
        };
        let most = 2 * self.snapshot_every;
        let records = self.records.range(skipped.min(self.records.len())..).take(most);
        records.filter(|record| record.t <= t).for_each(|record| state.take(record));
        Some(state)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quelea_record::RecordKind;

    fn step(k: u64) -> Record {
        let event =
            RecordKind::Step { loss: 1.0, samples: 2, compute: 0.01, exposed: 0.0, waiting: 0.0 };
        Record { t: 0.01 * (k / 4) as f64, rank: (k % 4) as u32, step: k / 4, event }
    }

    fn description() -> RunDescription {
        RunDescription { workers: 4, hosts: vec![0; 4], steps: 5000, ..Default::default() }
    }

    #[test]
    fn the_state_at_any_moment_is_that_of_the_records_until_then() {
        let log = RunLog::recorded(description(), 1);
        log.take_all((0..20_000).map(step));
        for t in [0.0, 0.004, 1.0, 7.345, 12.5, 49.98, 60.0] {
            let mut direct = MomentState::new(&description(), 1);
            (0..20_000).map(step).filter(|record| record.t <= t).for_each(|r| direct.take(&r));
            let shown = log.state_json(Some(t));
            assert_eq!(shown["progress"]["steps"], direct.steps, "at {t}");
            assert_eq!(shown["progress"]["samples"], direct.samples, "at {t}");
        }
    }

    #[test]
    fn a_live_log_forgets_what_is_old_and_still_counts_it() {
        let log = RunLog::live(description(), LogClock::Recorded);
        let many = LIVE_RECORDS as u64 + 10;
        log.take_all((0..many).map(step));
        assert_eq!(log.state_json(Some(0.0))["progress"]["steps"], many, "it cannot be sought");
        let (lines, next) = log.lines_from(0, 3);
        assert_eq!((lines.iter().filter(|byte| **byte == b'\n').count(), next), (3, 13));
    }

    #[test]
    fn the_sentence_names_a_worker_that_all_wait_for() {
        let about = RunDescription { synchronous: true, ..description() };
        let log = RunLog::recorded(about, 1);
        for k in 0..40 {
            let mut record = step(k);
            if let RecordKind::Step { compute, .. } = &mut record.event {
                *compute = if record.rank == 2 { 0.03 } else { 0.01 };
            }
            log.take(&record);
        }
        let sentence = log.state_json(None)["advice"]["sentence"].to_string();
        assert!(sentence.contains("rank 2 computes 3.0 times as long"), "{sentence}");
    }
}
