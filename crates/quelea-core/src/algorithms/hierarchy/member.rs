//! A worker that computes for its leader.

use std::collections::BTreeMap;

use super::{COMPUTED, GRADIENT};
use crate::contract::Context;
use crate::message::{Message, Rank};
use crate::payload::Payload;

/// What a member knows. A leader keeps it up to date, for what comes after it.
#[derive(Default)]
pub(super) struct Member {
    pub(super) ready: bool,
    /// The step whose parameters I have.
    pub(super) step: Option<u64>,
    /// Buckets of this step's gradient that are final.
    pub(super) handed: usize,
    /// Whether all are.
    pub(super) complete: bool,
    /// Buckets of the parameters of the next step that have arrived.
    next: BTreeMap<usize, Payload>,
    /// The number of the last late change, by bucket.
    late: BTreeMap<usize, u64>,
}

impl Member {
    pub(super) fn send_bucket(cx: &mut Context<'_>, to: Rank, b: usize) {
        let gradient = cx.outbox.pool.copy(&cx.grad[cx.layout.range(b)]);
        cx.outbox.send(to, Message::new(GRADIENT, cx.step, b).with(gradient));
    }

    pub(super) fn send_computed(cx: &mut Context<'_>, to: Rank) {
        let mut message = Message::new(COMPUTED, cx.step, 0);
        (message.scalar, message.count) = (f64::from(cx.loss), cx.samples);
        cx.outbox.send(to, message);
    }

    /// The leader has changed, and what went to the old one is lost.
    pub(super) fn send_again(&self, cx: &mut Context<'_>, to: Rank) {
        (0..self.handed).for_each(|b| Member::send_bucket(cx, to, b));
        if self.complete {
            Member::send_computed(cx, to);
        }
    }

    /// A bucket of the parameters of a step has arrived. Returns whether all have.
    pub(super) fn on_params(&mut self, cx: &mut Context<'_>, message: Message) -> bool {
        let (step, b) = (Some(message.step), message.bucket as usize);
        if step <= self.step {
            return false;
        }
        self.next.insert(b, message.into_values());
        if self.next.len() < cx.layout.buckets.len() {
            return false;
        }
        for (b, values) in std::mem::take(&mut self.next) {
            cx.params[cx.layout.range(b)].copy_from_slice(&values);
        }
        (self.step, self.ready, self.handed, self.complete) = (step, true, 0, false);
        true
    }

    /// The leader has changed: drops parameters that are incomplete, since the new leader may
    /// compute others.
    pub(super) fn forget_leader(&mut self) {
        self.next.clear();
        self.late.clear();
    }

    /// A bucket has changed after the last step.
    pub(super) fn on_late(&mut self, cx: &mut Context<'_>, message: Message) {
        let b = message.bucket as usize;
        let late = self.late.entry(b).or_default();
        if message.seq > *late {
            *late = message.seq;
            cx.params[cx.layout.range(b)].copy_from_slice(&message.into_values());
        }
    }
}
