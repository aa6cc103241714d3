//! What the driver does with gradients: starting them, handing them over, completing steps.

use quelea_core::contract::Budget;
use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_record::RecordKind;

use crate::Models;
use crate::driver::Driver;
use crate::member::{Running, Unready};
use crate::queue::Event;

impl Driver<'_> {
    /// Completes the step that a worker has in hand, and starts its next gradient, if it may.
    pub(crate) fn advance_worker(&mut self, rank: usize) {
        let member = &self.members[rank];
        if member.node.is_server || !member.is_alive() || member.running.is_some() {
            return;
        }
        if member.free > self.now {
            let at = member.free;
            return self.wake_at(rank, at);
        }
        if !member.outbox.is_empty() {
            return;
        }
        if let Some(unready) = &member.unready {
            if member.node.step() == unready.step {
                return;
            }
            self.complete_step(rank);
            self.cut_if_due(rank);
        }
        self.start_gradient(rank);
    }

    fn start_gradient(&mut self, rank: usize) {
        let member = &self.members[rank];
        if member.finished {
            return;
        }
        if self.properties.budget == Budget::Rounds && member.node.has_finished_rounds() {
            return self.finish(rank);
        }
        if self.gradients_left == 0 {
            return self.finish(rank);
        }
        if self.cutting.holds(member.node.step()) {
            return;
        }
        if self.is_frozen(rank) {
            self.members[rank].frozen = true;
            return;
        }
        if !member.node.wants_gradient() {
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
        let member = &mut self.members[rank];
        // What held up this gradient is part of its step.
        let held_up = self.now.since(member.ready_at);
        let (waiting, exposed) = match std::mem::take(&mut member.frozen) {
            true => (held_up, Time::ZERO),
            false => (Time::ZERO, held_up),
        };
        let lent = member.node.lend();
        let pass = self.compute.pass(self.now, rank as u32, lent.step);
        let at = pass.ready(member.node.layout(), 0);
        member.running = Some(Running { pass, next: 0, behind: Time::ZERO, exposed, waiting });
        self.gradients.begin(rank, lent);
        self.queue.schedule(at, Event::Bucket(rank as u32));
    }

    /// The next bucket of a gradient is ready, unless the pass was held up.
    pub(crate) fn bucket_ready(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        if !member.is_alive() {
            return;
        }
        let Some(running) = &mut member.running else { return };
        let behind = std::mem::take(&mut running.behind);
        if behind > Time::ZERO {
            running.pass.start = running.pass.start + behind;
            return self.queue.schedule(self.now + behind, Event::Bucket(rank as u32));
        }
        let b = running.next;
        running.next += 1;
        if b == 0 {
            let (lent, computed) = self.gradients.finish(rank);
            self.computed[rank] = computed;
            member.node.restore(lent);
        }
        let step = member.node.step();
        member.node.bucket(self.now, b);
        let opened = self.gates.hand_over(step, b, self.living_workers);
        self.open_later(opened);
        self.carry_out(rank);
        self.after_bucket(rank, b);
        self.settle(rank);
    }

    fn after_bucket(&mut self, rank: usize, b: usize) {
        let member = &mut self.members[rank];
        let Some(running) = &member.running else { return };
        if b + 1 < member.node.layout().buckets.len() {
            let at = running.pass.ready(member.node.layout(), b + 1);
            return self.queue.schedule(at.max(self.now), Event::Bucket(rank as u32));
        }
        // What the last bucket still costs lies after the pass.
        let exposed = running.exposed.since(running.behind);
        let (pass, waiting) = (running.pass, running.waiting);
        let computed = self.computed[rank];
        member.running = None;
        member.unready = Some(Unready {
            step: member.node.step(),
            since: self.now,
            compute: pass.total,
            exposed,
            waiting,
            computed,
        });
        member.report.samples += u64::from(computed.samples);
        member.report.last_loss = computed.loss;
        member.node.gradient(self.now, computed);
        if self.timeline {
            let seconds = pass.total.seconds();
            let step = member.node.step();
            self.note(pass.start, Rank::from(rank), step, RecordKind::Compute { seconds });
        }
        self.carry_out(rank);
    }

    /// The worker may start its next gradient now: what lies behind it is one step.
    fn complete_step(&mut self, rank: usize) {
        let member = &mut self.members[rank];
        let Some(unready) = member.unready.take() else { return };
        let idle = self.now.since(unready.since);
        let late = member.node.origin().since(unready.since);
        let late = if self.properties.waits_for_peers { late.min(idle) } else { Time::ZERO };
        let Unready { step, computed, .. } = unready;
        let (loss, samples) = (computed.loss, computed.samples);
        let compute = unready.compute.seconds();
        let exposed = (unready.exposed + idle - late).seconds();
        let waiting = (unready.waiting + late).seconds();
        member.ready_at = self.now;
        let report = &mut member.report;
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
        self.members[rank].finished = true;
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
            self.cut_on_average(self.steps_done / workers);
        }
    }

    pub(crate) fn models(&mut self) -> Models {
        let mut models = Models::default();
        for rank in 0..self.members.len() {
            let member = &self.members[rank];
            if !member.is_alive() {
                continue;
            }
            let lent = member.running.as_ref().is_some_and(|running| running.next == 0);
            let model = match lent && member.node.params().is_empty() {
                true => self.gradients.params(rank).unwrap_or_default().to_vec(),
                false => member.node.model(),
            };
            let list = if self.members[rank].node.is_server {
                &mut models.servers
            } else {
                &mut models.workers
            };
            list.push((Rank::from(rank), model));
        }
        models
    }
}
