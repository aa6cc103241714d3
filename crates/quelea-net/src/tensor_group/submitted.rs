//! An operation that was submitted, and how it has ended.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a call that waits asks whether it should continue.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// What a complete operation has to say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOutcome {
    /// For a receive from any rank: the rank that it came from.
    pub source: Option<usize>,
}

/// An operation that runs or has ended.
pub struct Pending {
    state: Mutex<State>,
    ended: Condvar,
}

struct State {
    outcome: Option<Result<CallOutcome, String>>,
    /// Keeps the memory alive.
    lender: Option<Box<dyn Send + Sync>>,
}

impl std::fmt::Debug for Pending {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pending").field("outcome", &self.outcome()).finish()
    }
}

impl Pending {
    pub(super) fn new(lender: Box<dyn Send + Sync>) -> Pending {
        let state = State { outcome: None, lender: Some(lender) };
        Pending { state: Mutex::new(state), ended: Condvar::new() }
    }

    pub(super) fn end(&self, outcome: Result<CallOutcome, String>) {
        let mut state = self.state();
        if state.outcome.is_none() {
            state.outcome = Some(outcome);
        }
        let lender = state.lender.take();
        drop(state);
        self.ended.notify_all();
        drop(lender);
    }

    /// How it has ended, if it has.
    pub fn outcome(&self) -> Option<Result<CallOutcome, String>> {
        self.state().outcome.clone()
    }

    /// Waits for the end; nothing if `limit` has passed before, or `keep_waiting` has said no.
    pub fn wait(
        &self,
        limit: Option<Duration>,
        keep_waiting: &mut dyn FnMut() -> bool,
    ) -> Option<Result<CallOutcome, String>> {
        let until = limit.map(|limit| Instant::now() + limit);
        let mut state = self.state();
        loop {
            if let Some(outcome) = &state.outcome {
                return Some(outcome.clone());
            }
            let left = until.map_or(POLL_INTERVAL, |until| until - Instant::now().min(until));
            if left.is_zero() {
                return None;
            }
            let waited = self.ended.wait_timeout(state, left.min(POLL_INTERVAL));
            let (guard, timed_out) = waited.unwrap_or_else(PoisonError::into_inner);
            state = guard;
            if timed_out.timed_out() && state.outcome.is_none() {
                // Asked without the lock: whoever ends it must not wait for the answer.
                drop(state);
                if !keep_waiting() {
                    return None;
                }
                state = self.state();
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
