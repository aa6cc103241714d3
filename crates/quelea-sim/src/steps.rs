//! What the driver does with gradients: starting them, handing them over, completing steps.

use quelea_core::message::Rank;
use quelea_core::properties::Budget;
use quelea_core::time::Time;
use quelea_record::RecordKind;

use crate::Models;
use crate::driver::Driver;
use crate::queue::SimEvent;
use crate::rank_state::{Running, StepPhase, Unready};

impl Driver<'_> {
    /// Completes the step that a worker has in hand, and starts its next gradient, if it may.
    pub(crate) fn advance_worker(&mut self, rank: usize) {
        let state = &self.ranks[rank];
        if state.node.is_server || !state.is_alive() || state.phase.running().is_some() {
            return;
        }
        if state.free > self.now {
            let at = state.free;
            return self.wake_at(rank, at);
        }
        if !state.outbox.is_empty() {
            return;
        }
        if let Some(unready) = state.phase.unready() {
            if state.node.step() == unready.step {
                return;
            }
            self.complete_step(rank);
            self.cut_if_due(rank);
        }
        self.start_gradient(rank);
    }

    fn start_gradient(&mut self, rank: usize) {
        let state = &self.ranks[rank];
        if state.phase.is_finished() {
            return;
        }
        if self.properties.budget == Budget::Rounds && state.node.has_finished_rounds() {
            return self.finish(rank);
        }
        if self.gradients_left == 0 {
            return self.finish(rank);
        }
        if self.cutting.holds(state.node.step()) {
            return;
        }
        if self.is_frozen(rank) {
            self.ranks[rank].frozen = true;
            return;
        }
        if !state.node.wants_gradient() {
            return;
        }
        self.compute(rank);
        if self.properties.budget == Budget::TotalGradients {
            self.gradients_left -= 1;
            if self.gradients_left == 0 {
                // Nobody who is idle now will get another one.
                (0..self.setup.workers()).for_each(|worker| self.advance_worker(worker));
            }
        }
    }

    fn compute(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        // What held up this gradient is part of its step.
        let held_up = self.now.since(state.ready_at);
        let (waiting, exposed) = if std::mem::take(&mut state.frozen) {
            (held_up, Time::ZERO)
        } else {
            (Time::ZERO, held_up)
        };
        // Virtual time decides when a bucket is ready.
        let loan = state.node.lend().whole();
        let pass = self.compute.pass(self.now, rank as u32, loan.step());
        let at = pass.ready(state.node.layout(), 0);
        let running = Running { pass, next: 0, behind: Time::ZERO, exposed, waiting };
        state.phase = StepPhase::Computing(running);
        self.gradients.begin(rank, loan);
        self.queue.schedule(at, SimEvent::Bucket(rank as u32));
    }

    /// The next bucket of a gradient is ready, unless the pass was held up.
    pub(crate) fn bucket_ready(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        if !state.is_alive() {
            return;
        }
        let Some(running) = state.phase.running_mut() else { return };
        let behind = std::mem::take(&mut running.behind);
        if behind > Time::ZERO {
            running.pass.start = running.pass.start + behind;
            return self.queue.schedule(self.now + behind, SimEvent::Bucket(rank as u32));
        }
        let b = running.next;
        running.next += 1;
        if b == 0 {
            let (loan, computed) = self.gradients.finish(rank);
            self.computed[rank] = computed;
            drop(loan);
        }
        let step = state.node.step();
        state.node.bucket(self.now, b);
        let opened = self.gates.hand_over(step, b, self.living_workers);
        self.open_later(opened);
        self.carry_out(rank);
        self.after_bucket(rank, b);
        self.settle(rank);
    }

    fn after_bucket(&mut self, rank: usize, b: usize) {
        let state = &mut self.ranks[rank];
        let Some(running) = state.phase.running() else { return };
        if b + 1 < state.node.layout().buckets.len() {
            let at = running.pass.ready(state.node.layout(), b + 1);
            return self.queue.schedule(at.max(self.now), SimEvent::Bucket(rank as u32));
        }
        // What the last bucket still costs lies after the pass.
        let exposed = running.exposed.since(running.behind);
        let (pass, waiting) = (running.pass, running.waiting);
        let computed = self.computed[rank];
        state.phase = StepPhase::Completing(Unready {
            step: state.node.step(),
            since: self.now,
            compute: pass.total,
            exposed,
            waiting,
            computed,
        });
        state.report.samples += u64::from(computed.samples);
        state.report.last_loss = computed.loss;
        state.node.gradient(self.now, computed);
        if self.timeline {
            let seconds = pass.total.seconds();
            let step = state.node.step();
            self.note(pass.start, Rank::from(rank), step, RecordKind::Compute { seconds });
        }
        self.carry_out(rank);
    }

    /// The worker may start its next gradient now: what lies behind it is one step.
    fn complete_step(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        let Some(unready) = state.phase.take_unready() else { return };
        let idle = self.now.since(unready.since);
        let late = state.node.origin().since(unready.since);
        let late = if self.properties.waits_for_peers { late.min(idle) } else { Time::ZERO };
        let Unready { step, computed, .. } = unready;
        let (loss, samples) = (computed.loss, computed.samples);
        let compute = unready.compute.seconds();
        let exposed = (unready.exposed + idle - late).seconds();
        let waiting = (unready.waiting + late).seconds();
        state.ready_at = self.now;
        let report = &mut state.report;
        report.steps += 1;
        report.compute_seconds += compute;
        report.exposed_seconds += exposed;
        report.waiting_seconds += waiting;
        self.clock = self.now;
        self.steps_done += 1;
        let event = RecordKind::Step { loss, samples, compute, exposed, waiting };
        self.note(self.now, Rank::from(rank), step, event);
        self.report_progress();
    }

    fn finish(&mut self, rank: usize) {
        self.ranks[rank].phase = StepPhase::Finished;
        self.unfinished -= 1;
    }

    fn report_progress(&mut self) {
        let workers = self.setup.workers() as u64;
        let total = workers * self.setup.steps;
        // A thousand reports are enough for any bar.
        if self.steps_done.is_multiple_of((total / 1000).max(1)) || self.steps_done == total {
            self.observer.progress(self.steps_done, total, self.now);
        }
        if self.steps_done.is_multiple_of(workers) {
            // Between two multiples the step of all workers on average does not change.
            self.ranks.iter_mut().for_each(|state| state.node.progress(self.steps_done));
            self.cut_on_average(self.steps_done / workers);
        }
    }

    pub(crate) fn models(&mut self) -> Models {
        let mut models = Models::default();
        for rank in 0..self.ranks.len() {
            let state = &self.ranks[rank];
            if !state.is_alive() {
                continue;
            }
            let lent = state.phase.running().is_some_and(|running| running.next == 0);
            let model = if lent && state.node.params().is_empty() {
                self.gradients.params(rank).unwrap_or_default().to_vec()
            } else {
                state.node.model()
            };
            let list = if self.ranks[rank].node.is_server {
                &mut models.servers
            } else {
                &mut models.workers
            };
            list.push((Rank::from(rank), model));
        }
        models
    }
}
