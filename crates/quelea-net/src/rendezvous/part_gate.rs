//! Lets the parts of a checkpoint in one after the other, so that a coordinator holds one at a time.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often somebody who waits is asked to show that it does.
const GATE_POLL: Duration = Duration::from_millis(50);

/// A gate for one at a time.
#[derive(Debug, Default)]
pub(crate) struct PartGate {
    is_taken: Mutex<bool>,
    freed: Condvar,
}

/// The right to hold a part. Dropping it lets the next one in.
#[derive(Debug)]
pub(crate) struct GateTurn {
    /// Nothing for somebody who was let in because the wait was over.
    gate: Option<Arc<PartGate>>,
}

impl PartGate {
    /// Waits for its turn, at most for `limit`, and calls `waiting` now and then.
    pub(crate) fn enter(
        self: Arc<PartGate>,
        limit: Duration,
        waiting: &mut dyn FnMut(),
    ) -> GateTurn {
        let begun = Instant::now();
        let mut is_taken = self.taken();
        while *is_taken {
            if begun.elapsed() >= limit {
                return GateTurn { gate: None };
            }
            let waited = self.freed.wait_timeout(is_taken, GATE_POLL);
            is_taken = waited.unwrap_or_else(PoisonError::into_inner).0;
            waiting();
        }
        *is_taken = true;
        drop(is_taken);
        GateTurn { gate: Some(self) }
    }

    fn taken(&self) -> MutexGuard<'_, bool> {
        self.is_taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for GateTurn {
    fn drop(&mut self) {
        if let Some(gate) = &self.gate {
            *gate.taken() = false;
            gate.freed.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn one_is_inside_at_a_time() {
        let (gate, inside) = (Arc::new(PartGate::default()), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let turn = Arc::clone(&gate).enter(Duration::MAX, &mut || {});
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(turn);
                    }
                });
            }
        });
    }

    #[test]
    fn whoever_has_waited_long_enough_is_let_in_and_lets_nobody_else_in() {
        let gate = Arc::new(PartGate::default());
        let first = Arc::clone(&gate).enter(Duration::MAX, &mut || {});
        let mut asked = 0;
        let second = Arc::clone(&gate).enter(2 * GATE_POLL, &mut || asked += 1);
        assert!(asked > 0, "it shows that it waits");
        drop(second);
        assert!(*gate.taken(), "the first is still inside");
        drop(first);
        assert!(!*gate.taken());
    }
}
