//! Progress of all workers together, which learning rates of asynchronous algorithms follow.

use super::Node;
use crate::optim::ScheduleClock;
use crate::properties::Budget;
use crate::run_spec::RunSpec;

/// How far all workers are, as far as a node knows.
#[derive(Debug)]
pub(super) struct GlobalProgress {
    /// Gradients are counted in all; elsewhere a worker's own step is everybody's.
    is_counted: bool,
    clock: ScheduleClock,
    /// Workers that the budget was made for.
    workers: u64,
    /// Gradients that all workers together have done.
    done: u64,
    /// The global step of the gradient that is handed over, or was last: all its buckets take
    /// their step with one learning rate.
    fixed: u64,
    /// The learning rate that was asked for last, and of which step it is: it is asked for at every event.
    rate: Option<(u64, f32)>,
}

impl GlobalProgress {
    pub(super) fn new(spec: &RunSpec, budget: Budget) -> GlobalProgress {
        GlobalProgress {
            is_counted: budget == Budget::TotalGradients,
            clock: spec.schedule_clock,
            workers: spec.workers().max(1) as u64,
            done: 0,
            fixed: 0,
            rate: None,
        }
    }
}

impl Node {
    /// All workers together have done this many gradients since the first step of the run, in
    /// earlier parts of it too. Drivers say it whenever they know better; a number that has been
    /// overtaken changes nothing.
    pub fn progress(&mut self, done: u64) {
        self.progress.done = self.progress.done.max(done);
    }

    /// The highest number that [`progress`](Node::progress) was given.
    pub fn gradients_done(&self) -> u64 {
        self.progress.done
    }

    /// The step at which all workers are on average, as far as this node knows. Where every worker
    /// does the same number of rounds, its own.
    pub fn global_step(&self) -> u64 {
        if self.progress.is_counted {
            // What this worker has done itself need not have been counted yet.
            self.progress.done.max(self.step) / self.progress.workers
        } else {
            self.step
        }
    }

    /// From now on learning rates are those of the present global step.
    pub(super) fn fix_rate(&mut self) {
        self.progress.fixed = self.global_step();
    }

    /// The learning rate at the worker's own step `own`, or at that of all workers.
    pub(super) fn rate_of(&mut self, own: u64) -> f32 {
        let follows_all = self.progress.is_counted && self.progress.clock == ScheduleClock::Global;
        let step = if !follows_all {
            own
        } else if self.is_server {
            // A server has no gradients of its own: each is applied with the newest rate.
            self.global_step()
        } else {
            self.progress.fixed
        };
        match self.progress.rate {
            Some((of, rate)) if of == step => rate,
            _ => {
                let rate = (self.learning_rate)(step);
                self.progress.rate = Some((step, rate));
                rate
            }
        }
    }
}
