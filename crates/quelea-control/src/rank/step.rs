//! How a rank completes a step and starts the next gradient.

use quelea_core::node::Loan;
use quelea_core::problems::Computed;
use quelea_core::properties::Budget;
use quelea_core::time::Time;
use quelea_record::RecordKind;

use super::{RankMachine, StepPhase};
use crate::messages::RankEvent;
use crate::timing::GradientTime;

impl RankMachine {
    /// Completes the step if the node is ready, and returns a loan if the next gradient is to be
    /// computed; otherwise asks for the right to one, or finishes, or waits.
    pub fn advance(&mut self, now: Time) -> Option<Loan> {
        if self.is_computing() {
            return None;
        }
        self.complete_step(now);
        self.settle();
        if self.is_held() || self.is_finished() || !matches!(self.phase, StepPhase::Ready) {
            return None;
        }
        if self.node.has_finished_rounds() {
            self.finish();
            return None;
        }
        if !self.node.wants_gradient() {
            return self.finish_if_exhausted();
        }
        // A loop outside decides by itself how many gradients there are.
        if self.is_external || self.properties.budget == Budget::Rounds {
            return Some(self.lend(now));
        }
        if self.budget.take() {
            let unit = self.budget.units.begin();
            let loan = self.lend(now).of_unit(unit);
            if self.asks_ahead {
                self.ask(false);
            }
            return Some(loan);
        }
        if self.budget.is_exhausted() {
            self.finish();
        } else {
            self.ask(true);
        }
        None
    }

    fn finish_if_exhausted(&mut self) -> Option<Loan> {
        if self.budget.is_exhausted() && !self.is_external {
            self.finish();
        }
        None
    }

    fn complete_step(&mut self, now: Time) {
        let StepPhase::Completing(pending) = &self.phase else { return };
        if self.node.step() == pending.step {
            return;
        }
        let pending = *pending;
        self.phase = StepPhase::Ready;
        let origin = self.properties.waits_for_peers.then(|| self.node.origin());
        let GradientTime { compute, exposed, waiting } = pending.split(now, origin);
        let (compute, exposed, waiting) = (compute.seconds(), exposed.seconds(), waiting.seconds());
        let report = &mut self.report;
        report.steps += 1;
        report.compute_seconds += compute;
        report.exposed_seconds += exposed;
        report.waiting_seconds += waiting;
        self.ready_at = now;
        if let Some(unit) = self.budget.units.confirm() {
            self.events.push(RankEvent::Confirmed { rank: self.node.rank.0, unit });
        }
        let Computed { loss, samples } = pending.computed;
        let event = RecordKind::Step { loss, samples, compute, exposed, waiting };
        self.record(now, pending.step, event);
        self.sample_if_due();
    }

    fn lend(&mut self, now: Time) -> Loan {
        // What held up this gradient is part of its step.
        let idle = now.since(self.ready_at);
        let held_up = if std::mem::take(&mut self.was_frozen) {
            GradientTime { waiting: idle, ..GradientTime::default() }
        } else {
            GradientTime { exposed: idle, ..GradientTime::default() }
        };
        self.stood_still = Time::ZERO;
        self.phase = StepPhase::Computing { since: now, held_up };
        self.node.lend()
    }

    /// Asks for the right to a gradient, unless it was asked for as urgently, or there are none.
    fn ask(&mut self, urgent: bool) {
        if let Some(number) = self.budget.ask(urgent) {
            self.events.push(RankEvent::Ticket { rank: self.node.rank.0, number, urgent });
        }
    }

    pub(super) fn finish(&mut self) {
        self.life_cycle.finish();
        self.events.push(RankEvent::Finished { rank: self.node.rank.0, at: self.ready_at });
    }
}
