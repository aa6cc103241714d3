//! One exchange with the neighbours after the optimizer: `x_i ← Σ_j W_ij x_j` of this step.
//!
//! ```text
//! upon x_i[b] after its step:      send x_i[b] to the neighbours
//! upon x_j[b] from all of them:    x_i[b] ← Σ_j W_ij x_j[b], in the order of ranks
//! upon a lost peer:                its weight goes to myself at once
//! ```

use std::collections::BTreeMap;

use crate::contract::{Awaited, Cx};
use crate::message::{Message, Rank};
use crate::payload::Payload;
use crate::vector;

/// The kind of its messages; owners number theirs apart.
pub(super) const MODEL: u8 = 2;

/// The exchanges of one worker.
#[derive(Debug, Default)]
pub(super) struct Gossip {
    step: u64,
    /// Buckets that only wait for their neighbours.
    waiting: Vec<bool>,
    /// Neighbours' models by (step, bucket); a fast neighbour may be ahead.
    received: BTreeMap<(u64, usize), BTreeMap<Rank, Payload>>,
    /// Whom the waiting buckets lack, as of the last look.
    missing: Vec<Rank>,
}

impl Gossip {
    /// This step begins.
    pub(super) fn enter(&mut self, cx: &Cx<'_>) {
        self.step = cx.step;
        self.waiting = vec![false; cx.layout.buckets.len()];
        self.received = self.received.split_off(&(cx.step, 0));
        self.missing.clear();
    }

    /// Bucket `b` has taken its step; returns how many buckets are mixed now.
    pub(super) fn exchange(&mut self, cx: &mut Cx<'_>, b: usize) -> usize {
        let row = cx.io.view.row(self.step, cx.io.rank);
        if !row.outgoing.is_empty() {
            let message = Message::new(MODEL, self.step, b).with(cx.params_payload(b));
            row.outgoing.iter().for_each(|to| cx.io.send(*to, message.clone()));
        }
        self.waiting[b] = true;
        self.mix(cx, b)
    }

    /// A neighbour's model has come.
    pub(super) fn on_message(&mut self, cx: &mut Cx<'_>, from: Rank, message: Message) -> usize {
        let (step, b) = (message.step, message.bucket as usize);
        if step < self.step {
            return 0;
        }
        self.received.entry((step, b)).or_default().insert(from, message.into_values());
        if step > self.step || self.waiting.is_empty() {
            return 0;
        }
        self.missing.retain(|rank| *rank != from);
        self.mix(cx, b)
    }

    /// Membership has changed.
    pub(super) fn on_view(&mut self, cx: &mut Cx<'_>) -> usize {
        self.missing.clear();
        (0..self.waiting.len()).map(|b| self.mix(cx, b)).sum()
    }

    /// Whom it is waiting for.
    pub(super) fn awaiting(&self, out: &mut Vec<Awaited>) {
        let mut missing = self.missing.clone();
        missing.sort();
        missing.dedup();
        out.extend(missing.into_iter().map(|from| Awaited { from, what: "its model" }));
    }

    fn mix(&mut self, cx: &mut Cx<'_>, b: usize) -> usize {
        if !self.waiting[b] {
            return 0;
        }
        let row = cx.io.view.row(self.step, cx.io.rank);
        let received = self.received.entry((self.step, b)).or_default();
        let others = || row.incoming.iter().filter(|(rank, _)| *rank != cx.io.rank);
        if let Some((rank, _)) = others().find(|(rank, _)| !received.contains_key(rank)) {
            self.missing.push(*rank);
            return 0;
        }
        let terms: Vec<_> = others().map(|(rank, weight)| (*weight, &*received[rank])).collect();
        let own = row.incoming.iter().position(|(rank, _)| *rank == cx.io.rank);
        let own = own.expect("every row has the worker itself");
        vector::mix(row.incoming[own].1, own, &mut cx.params[cx.layout.range(b)], &terms);
        self.received.remove(&(self.step, b));
        self.waiting[b] = false;
        1
    }
}
