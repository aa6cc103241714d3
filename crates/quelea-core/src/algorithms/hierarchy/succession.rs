//! What the workers of a host do when one of them is lost.
//!
//! ```text
//! upon a loss on my host:         send the others the step whose parameters I have
//! upon that of all others:        t = the furthest
//!     if I have t, lowest such:   send the parameters of t to ranks that lack them
//! member, if the leader is new:   send it again what this step's gradient has so far
//! new leader, once it has t and is not computing:  start the method from the parameters
//! ```
//! Workers of a host stand at most one step apart, because no step ends without the gradients of
//! all. The new leader starts the method as at the beginning of a run, without what the lost one
//! had beside the parameters: momentum and other state of the optimizer, corrections, trackers.
//! The topology knows it from the agreed step on, where corrections and trackers of all hosts
//! are reset; until then it does not mix.

use std::collections::BTreeMap;

use super::{PARAMS, POSITION};
use crate::contract::{Awaited, Context};
use crate::message::{Message, Rank};

/// One succession after another; closed in between.
#[derive(Default)]
pub(super) struct Succession {
    /// The others of my host, and what they have, while it is not known of all.
    known: Option<BTreeMap<Rank, Option<u64>>>,
    /// The view that it began with; what was said before it is void.
    view: u32,
    /// What I have, counted from 1.
    mine: u64,
    /// Whether somebody has parameters that I lack; then what I wait for.
    lack: Option<u64>,
    /// The step whose parameters I owe, and to whom.
    owed: Option<(u64, Vec<Rank>)>,
}

impl Succession {
    /// Somebody of my host was lost; these are left, and I have the parameters of `step`.
    pub(super) fn begin(&mut self, cx: &mut Context<'_>, host: &[Rank], step: Option<u64>) {
        let others: Vec<Rank> =
            host.iter().copied().filter(|rank| *rank != cx.outbox.rank).collect();
        self.mine = step.map_or(0, |step| step + 1);
        (self.lack, self.owed, self.view) = (None, None, cx.outbox.view.number);
        for rank in &others {
            let mut message = Message::new(POSITION, cx.step, 0);
            message.seq = self.mine;
            cx.outbox.send(*rank, message);
        }
        self.known = Some(others.into_iter().map(|rank| (rank, None)).collect());
        self.conclude(cx);
    }

    /// Another worker of my host says what it has.
    pub(super) fn on_position(&mut self, cx: &Context<'_>, from: Rank, message: &Message) {
        if let (Some(known), true) = (&mut self.known, message.view >= self.view) {
            known.insert(from, Some(message.seq));
            self.conclude(cx);
        }
    }

    /// Whether something is missing for going on.
    pub(super) fn is_open(&self) -> bool {
        self.known.is_some() || self.lack.is_some()
    }

    /// Sends what I owe, if it is here; I have the parameters of `step`.
    pub(super) fn serve(&mut self, cx: &mut Context<'_>, step: Option<u64>) {
        if step.is_some_and(|step| self.lack.is_some_and(|lack| step + 1 >= lack)) {
            self.lack = None;
        }
        let is_here = cx.params.len() == cx.grad.len() && !cx.params.is_empty();
        let Some((owed, ranks)) = self.owed.take_if(|_| is_here) else { return };
        if step != Some(owed) {
            return;
        }
        for b in 0..cx.layout.buckets.len() {
            let values = cx.params_payload(b);
            for rank in &ranks {
                cx.outbox.send(*rank, Message::new(PARAMS, owed, b).with(values.clone()));
            }
        }
    }

    pub(super) fn awaiting(&self, me: Rank, out: &mut Vec<Awaited>) {
        let known = self.known.iter().flatten();
        let missing = known.filter(|(rank, position)| **rank != me && position.is_none());
        out.extend(missing.map(|(from, _)| Awaited { from: *from, what: "its step after a loss" }));
    }

    fn conclude(&mut self, cx: &Context<'_>) {
        let Some(known) = &self.known else { return };
        if known.values().any(Option::is_none) {
            return;
        }
        let known = self.known.take().unwrap_or_default();
        let others = || known.iter().filter_map(|(rank, position)| Some((*rank, (*position)?)));
        let furthest = others().map(|(_, position)| position).max().unwrap_or(0);
        if furthest > self.mine {
            self.lack = Some(furthest);
            return;
        }
        let helps =
            !others().any(|(rank, position)| position == self.mine && rank < cx.outbox.rank);
        let behind: Vec<Rank> =
            others().filter(|(_, position)| *position < self.mine).map(|(rank, _)| rank).collect();
        if helps && !behind.is_empty() {
            self.owed = Some((self.mine - 1, behind));
        }
    }
}
