//! Kills and stops processes at the moments that a seed gives.

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quelea_core::random::Rng;

use super::ProcessChaos;
use super::ledger::{Heard, Ledger};
use crate::drive::{ProcessSignal, signal_worker, workers_with_processes};

/// How soon it is tried again where nobody can be disturbed yet.
const RETRY: Duration = Duration::from_millis(10);
/// Stopped processes stand still for this long on average, so that some are noticed and some are not.
const PAUSE_SECONDS: f64 = 1.5;
/// Nobody is stopped for longer.
const LONGEST_PAUSE_SECONDS: f64 = 6.0;

/// A process that is stopped, until then.
struct StoppedProcess {
    rank: u32,
    until: Instant,
}

/// What disturbs a run.
pub(super) struct Disturber {
    kills: u32,
    pauses: u32,
    plan: ProcessChaos,
    ledger: Arc<Mutex<Ledger>>,
    /// Closed when the run has ended.
    ended: Receiver<()>,
    rng: Rng,
    stopped: Vec<StoppedProcess>,
}

impl Disturber {
    pub(super) fn new(
        plan: ProcessChaos,
        ledger: Arc<Mutex<Ledger>>,
        ended: Receiver<()>,
    ) -> Disturber {
        let ProcessChaos { kills, pauses, seed, .. } = plan;
        let rng = Rng::new(seed, "chaos of processes", 0);
        Disturber { kills, pauses, plan, ledger, ended, rng, stopped: Vec::new() }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does everything that is planned, or as much as there is time for.
    pub(super) fn run(mut self) {
        let mut due: Option<Instant> = None;
        loop {
            let now = Instant::now();
            self.resume_stopped(now);
            let has_more = self.kills + self.pauses > 0;
            if !has_more && self.stopped.is_empty() {
                return;
            }
            if has_more && due.is_none() && self.ledger().has_begun() {
                due = Some(now + self.interval());
            }
            if due.is_some_and(|due| due <= now) && has_more && self.disturb(now) {
                due = None;
            }
            let wake = self.stopped.iter().map(|stopped| stopped.until).chain(due).min();
            let wait = wake.map_or(RETRY, |wake| wake.saturating_duration_since(now)).max(RETRY);
            if self.ended.recv_timeout(wait) != Err(RecvTimeoutError::Timeout) {
                break;
            }
        }
        // A stopped process could not end with the run.
        self.stopped.iter_mut().for_each(|stopped| stopped.until = Instant::now());
        self.resume_stopped(Instant::now());
    }

    fn interval(&mut self) -> Duration {
        Duration::from_secs_f64(self.exponential(self.plan.mean_seconds))
    }

    fn exponential(&mut self, mean: f64) -> f64 {
        -mean * (1.0 - self.rng.uniform()).ln()
    }

    fn resume_stopped(&mut self, now: Instant) {
        let is_due = |stopped: &mut StoppedProcess| stopped.until <= now;
        for stopped in self.stopped.extract_if(.., is_due) {
            // One that has ended meanwhile was ended by somebody else.
            let _ = signal_worker(stopped.rank, ProcessSignal::Continue);
        }
    }

    /// Does one thing to somebody; `false` where nobody is there to whom it could be done.
    fn disturb(&mut self, now: Instant) -> bool {
        let left = u64::from(self.kills) + u64::from(self.pauses);
        let kills = self.rng.below(left) < u64::from(self.kills);
        let Some(rank) = self.victim() else { return false };
        let shared = Arc::clone(&self.ledger);
        // What follows is not heard before this is written down.
        let mut ledger = shared.lock().unwrap_or_else(PoisonError::into_inner);
        if kills {
            if signal_worker(rank, ProcessSignal::Kill).is_err() {
                return false;
            }
            self.kills -= 1;
            ledger.note(rank, None, Heard(now));
            return true;
        }
        let seconds = self.exponential(PAUSE_SECONDS).min(LONGEST_PAUSE_SECONDS);
        if signal_worker(rank, ProcessSignal::Stop).is_err() {
            return false;
        }
        self.pauses -= 1;
        let paused = Duration::from_secs_f64(seconds);
        self.stopped.push(StoppedProcess { rank, until: now + paused });
        ledger.note(rank, Some(paused), Heard(now));
        true
    }

    /// A process at random: of a worker that takes part, if enough of them would be left, or of one that is
    /// about to join.
    fn victim(&mut self) -> Option<u32> {
        let is_stopped = |rank: &u32| self.stopped.iter().any(|stopped| stopped.rank == *rank);
        let running = workers_with_processes().into_iter().filter(|rank| !is_stopped(rank));
        let candidates: Vec<u32> = {
            let ledger = self.ledger();
            let stopped = self.stopped.iter().filter(|s| ledger.members().contains(&s.rank));
            let left = ledger.members().len() - stopped.count();
            let may_lose = left > self.plan.survivors.max(1);
            running.filter(|rank| may_lose || !ledger.members().contains(rank)).collect()
        };
        let count = candidates.len() as u64;
        (count > 0).then(|| candidates[self.rng.below(count) as usize])
    }
}
