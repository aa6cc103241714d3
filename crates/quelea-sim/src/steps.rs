//! What the driver does with gradients: starting them, and handing over their buckets.

use quelea_control::GradientTime;
use quelea_core::node::Loan;
use quelea_core::time::Time;

use crate::driver::Driver;
use crate::queue::SimEvent;
use crate::rank_state::Running;

impl Driver<'_> {
    /// Completes the step that a worker has in hand, and starts its next gradient, if it may.
    pub(crate) fn advance_worker(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        if state.is_server() || !state.is_alive() || state.running.is_some() {
            return;
        }
        if state.free > self.now {
            let at = state.free;
            return self.wake_at(rank, at);
        }
        if !state.outbox.is_empty() {
            return;
        }
        if let Some(loan) = state.machine.advance(self.now) {
            // What was saved is of the time before this gradient.
            self.collect_events(rank);
            self.compute(rank, loan);
        }
    }

    fn compute(&mut self, rank: usize, loan: Loan) {
        // Virtual time decides when a bucket is ready.
        let loan = loan.whole();
        let pass = self.compute.pass(self.now, rank as u32, loan.step());
        let state = &mut self.ranks[rank];
        let at = pass.ready(state.machine.node().layout(), 0);
        let (behind, exposed, waiting) = (Time::ZERO, Time::ZERO, Time::ZERO);
        state.running = Some(Running { pass, next: 0, due: at, behind, exposed, waiting });
        self.gradients.begin(rank, loan);
        self.queue.schedule(at, SimEvent::Bucket(rank as u32));
    }

    /// The next bucket of a gradient is ready, unless the pass was held up.
    pub(crate) fn bucket_ready(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        if !state.is_alive() {
            return;
        }
        let now = self.now;
        let Some(running) = state.running.as_mut().filter(|running| running.due == now) else {
            return;
        };
        let behind = std::mem::take(&mut running.behind);
        if behind > Time::ZERO {
            running.pass.start = running.pass.start + behind;
            running.due = now + behind;
            return self.queue.schedule(self.now + behind, SimEvent::Bucket(rank as u32));
        }
        let b = running.next;
        running.next += 1;
        if b == 0 {
            let (loan, computed) = self.gradients.finish(rank);
            self.computed[rank] = computed;
            drop(loan);
        }
        let step = state.machine.node().step();
        state.machine.bucket(self.now, b);
        let opened = self.gates.hand_over(step, b, self.living_workers);
        self.open_later(opened);
        self.carry_out(rank);
        self.after_bucket(rank, b);
        self.settle(rank);
    }

    fn after_bucket(&mut self, rank: usize, b: usize) {
        let state = &mut self.ranks[rank];
        let Some(running) = &mut state.running else { return };
        let layout = state.machine.node().layout();
        if b + 1 < layout.buckets.len() {
            let at = running.pass.ready(layout, b + 1).max(self.now);
            running.due = at;
            return self.queue.schedule(at, SimEvent::Bucket(rank as u32));
        }
        let spent = GradientTime {
            compute: running.pass.total,
            // What the last bucket still costs lies after the pass.
            exposed: running.exposed.since(running.behind),
            waiting: running.waiting,
        };
        state.running = None;
        state.machine.gradient(self.now, self.computed[rank], spent);
        self.carry_out(rank);
    }
}
