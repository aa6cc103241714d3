//! How the controller tells ranks of an asynchronous run how far all of them are together: their
//! learning rates follow it.
//!
//! Every grant carries the number; a worker that computes for longer than others hears it besides.

use quelea_core::time::Time;

use crate::controller::{Controller, RunPhase};
use crate::directive::Recipient;
use crate::messages::Command;

/// The least time between two words about progress, so that those which a process does not read
/// while it is stopped fit into the memory of its connection.
const PROGRESS_INTERVAL: Time = Time(10_000_000);

/// What all ranks were told last.
#[derive(Debug)]
pub(crate) struct ToldProgress {
    /// Steps of the workers on average.
    step: u64,
    /// When the next word may follow.
    next: Time,
    /// Steps of all workers when it was last looked.
    seen: u64,
}

impl ToldProgress {
    pub(crate) fn new(now: Time) -> ToldProgress {
        ToldProgress { step: 0, next: now, seen: 0 }
    }
}

impl Controller {
    /// Tells all ranks, if the workers have taken another step on average and it is time.
    pub(crate) fn tell_progress(&mut self) {
        let is_counted = self.budget.is_shared() && self.phase == RunPhase::Running;
        let is_early = self.watches && self.now < self.told.next;
        // Asked after every event: while nobody has completed a step, nothing is worked out.
        if !is_counted || self.done == self.told.seen || is_early {
            return;
        }
        self.told.seen = self.done;
        let step = self.mean_step();
        if step == self.told.step {
            return;
        }
        let next = self.now + PROGRESS_INTERVAL;
        self.told = ToldProgress { step, next, seen: self.done };
        self.order(Recipient::All, Command::Progress { done: self.done });
    }
}
