//! How the controller tells ranks of an asynchronous run how far all of them are together: their
//! learning rates follow it.
//!
//! Every grant carries the number, and whoever computes for longer than others hears it besides.

use std::time::{Duration, Instant};

use super::{Controller, RunPhase};
use crate::protocol::Command;

/// The least time between two words about progress, so that those which a process does not read
/// while it is stopped fit into the memory of its connection.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(10);

/// What all ranks were told last.
#[derive(Debug)]
pub(super) struct ToldProgress {
    /// Steps of the workers on average.
    step: u64,
    /// When the next word may follow.
    next: Instant,
}

impl ToldProgress {
    pub(super) fn new(now: Instant) -> ToldProgress {
        ToldProgress { step: 0, next: now }
    }
}

impl Controller<'_> {
    /// Tells all ranks, if the workers have taken another step on average and it is time.
    pub(super) fn tell_progress(&mut self, now: Instant) {
        let step = self.done / self.workers as u64;
        let is_counted = self.tickets.budgeted && self.phase == RunPhase::Running;
        if !is_counted || step == self.told.step || now < self.told.next {
            return;
        }
        self.told = ToldProgress { step, next: now + PROGRESS_INTERVAL };
        self.tell_all(&Command::Progress { done: self.done });
    }
}
