//! The exchange of synchronous gossip: at every step each worker exchanges its vectors with the
//! neighbours of the topology and waits for theirs of the same step, bucket by bucket.
//!
//! ```text
//! begin(t):                      the exchange of step t is under way
//! post(t, b):                    my vectors of bucket b: to the neighbours one by one, or, where they
//!                                and I are a group and means suffice, into an all-reduce of the group
//! wait(b):                       bucket b lacks nothing but the neighbours' vectors
//! upon a message of (t', b):     keep it; t' may be ahead of t
//! gather(b):                     all that came for (t, b), or the mean of the group, once it is here
//! finish():                      one bucket more is done with this step
//! upon a lost member of a group: send what I had put into its sums one by one instead, and tell the
//!                                others up to which step I have gathered each bucket: my vectors of
//!                                earlier steps do not come any more, and their weight goes to the
//!                                receivers, as that of the lost member does
//! ```

mod gathered;
mod groups;
mod received;
mod sync_gossip;

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::algorithms::{Gathers, Traffic, When};
use crate::codec::CodecShape;
use crate::contract::{Awaited, Context, Outbox};
use crate::message::{Message, Rank};
use crate::properties::{
    Budget, DeployedFrom, OptimizerRequirement, OptimizerSite, OptimizerState, Properties,
    TopologyRequirement,
};
use crate::view::{MixingRow, RowGroup};
pub use gathered::Gathered;
use groups::GroupSums;
use received::Received;
pub use sync_gossip::{GossipMethod, KIND, SyncGossip};

/// Sends `message` to everyone who mixes my vectors at its step, rounded where the codec rounds.
pub fn post(outbox: &mut Outbox<'_>, message: &Message) {
    post_of_every(1, outbox, message);
}

/// As [`post`], where workers mix once per `every` steps.
pub fn post_of_every(every: u64, outbox: &mut Outbox<'_>, message: &Message) {
    let row = outbox.view.row_of_every(every, message.step, outbox.rank);
    let message = outbox.rounded(message.clone());
    outbox.send_to_all(&row.outgoing, message);
}

/// The traffic of algorithms that do nothing but gossip.
pub const fn traffic(vectors: u64, when: When, gathers: Gathers) -> Traffic {
    Traffic::Gossip { vectors, when, every: 1, average: None, gathers }
}

/// Set in the kind of a message that says up to which step its sender has gathered a bucket.
pub const PASSED: u8 = 0x40;

/// What is true of every synchronous gossip method, unless its row says otherwise.
pub const PROPERTIES: Properties = Properties {
    synchronous: true,
    snapshot: false,
    servers: false,
    deploy: DeployedFrom::Workers,
    budget: Budget::Rounds,
    topology: TopologyRequirement::Mixing,
    optimizer: OptimizerSite::Workers,
    reads_gradient: false,
    clips_itself: false,
    keeps_mean: true,
    optimizer_rule: OptimizerRequirement::Any,
    waits_for_peers: true,
    own_start: true,
    reloadable: false,
    needs_loss: false,
    optimizer_state: OptimizerState::Kept,
};

/// One exchange after another.
#[derive(Debug)]
pub struct Exchange {
    me: Rank,
    gathers: Gathers,
    /// The kind of its messages.
    kind: u8,
    /// Workers mix once per this many steps.
    every: u64,
    /// The step whose exchange is under way.
    step: u64,
    /// Who mixes with me at that step.
    row: Arc<MixingRow>,
    /// Buckets that only wait for their neighbours.
    waiting: Vec<bool>,
    /// Per bucket, the first step that is not gathered.
    gathered_to: Vec<u64>,
    /// Buckets that are not done with this step.
    remaining: usize,
    /// What came.
    received: Received,
    /// The means of groups.
    groups: GroupSums,
    /// After a loss: up to which step others have gathered a bucket.
    passed: BTreeMap<(Rank, usize), u64>,
}

impl Default for Exchange {
    fn default() -> Exchange {
        Exchange {
            me: Rank::default(),
            gathers: Gathers::default(),
            kind: 0,
            every: 1,
            step: 0,
            row: Arc::default(),
            waiting: Vec::new(),
            gathered_to: Vec::new(),
            remaining: 0,
            received: Received::default(),
            groups: GroupSums::of_every(1),
            passed: BTreeMap::new(),
        }
    }
}

impl Exchange {
    /// An exchange by messages of this `kind`, for a method that needs no more than means.
    pub fn of_means(kind: u8) -> Exchange {
        Exchange { kind, gathers: Gathers::Means, ..Exchange::default() }
    }

    /// With an exchange once per `every` steps, numbered by the steps that it is begun at.
    pub fn of_every(every: u64) -> Exchange {
        Exchange::default().every(every)
    }

    /// The same exchange, once per `every` steps.
    #[must_use]
    pub fn every(self, every: u64) -> Exchange {
        Exchange { every, groups: GroupSums::of_every(every), ..self }
    }

    /// The exchange of `step` is the next; what came for earlier ones is forgotten.
    pub fn enter(&mut self, cx: &Context<'_>, step: u64) {
        let buckets = cx.layout.buckets.len();
        (self.me, self.step) = (cx.outbox.rank, step);
        self.waiting.clear();
        self.waiting.resize(buckets, false);
        self.gathered_to.resize(buckets, step);
        self.gathered_to.iter_mut().for_each(|to| *to = (*to).max(step));
        self.received.forget_before(step);
        self.groups.forget_before(step);
        self.row = cx.outbox.view.row_of_every(self.every, step, cx.outbox.rank);
    }

    /// As [`enter`](Exchange::enter), and no bucket is done with it yet.
    pub fn begin(&mut self, cx: &Context<'_>, step: u64) {
        self.enter(cx, step);
        self.remaining = cx.layout.buckets.len();
    }

    /// Gives my vectors of a bucket to those who mix them at the message's step.
    pub fn post(&mut self, outbox: &mut Outbox<'_>, message: Message) {
        let row = outbox.view.row_of_every(self.every, message.step, outbox.rank);
        if self.averages(outbox, &row) {
            self.groups.post(outbox, message);
        } else {
            let message = outbox.rounded(message);
            outbox.send_to_all(&row.outgoing, message);
        }
    }

    /// Whether the neighbours of this row and I take the mean of our group by all-reduce. Where a
    /// codec rounds, every hop would round the sum: the mean of the workers would not be kept.
    fn averages(&self, outbox: &Outbox<'_>, row: &MixingRow) -> bool {
        self.gathers == Gathers::Means
            && matches!(row.group, RowGroup::Whole(_))
            && outbox.coder.shape() == CodecShape::Plain
    }

    /// Bucket `b` lacks nothing but the neighbours' vectors.
    pub fn wait(&mut self, b: usize) {
        self.waiting[b] = true;
    }

    /// A bucket is done with this step.
    pub fn finish(&mut self) {
        self.remaining -= 1;
    }

    /// Whether all buckets are done.
    pub fn is_over(&self) -> bool {
        self.remaining == 0
    }

    /// Keeps what came; says which bucket may now be complete. What is late or came before is
    /// ignored.
    pub fn on_message(
        &mut self,
        cx: &mut Context<'_>,
        from: Rank,
        message: Message,
    ) -> Option<usize> {
        let (step, b) = (message.step, message.bucket as usize);
        if message.kind & PASSED != 0 {
            // That of an earlier loss may come last.
            let passed = self.passed.entry((from, b)).or_default();
            *passed = step.max(*passed);
            return Some(b);
        }
        if step < self.step {
            return None;
        }
        if message.collective {
            let len = cx.layout.range(b).len();
            self.groups.on_message(&mut cx.outbox, len, from, message);
        } else {
            message.expect_length(cx.layout.range(b).len());
            self.received.insert(from, message, self.row.incoming.len().saturating_sub(1));
        }
        (step == self.step).then_some(b)
    }

    /// Membership has changed: the lost are not waited for, and groups without them send.
    pub fn on_view(&mut self, cx: &mut Context<'_>) {
        self.row = cx.outbox.view.row_of_every(self.every, self.step, cx.outbox.rank);
        if self.gathers == Gathers::Vectors || !cx.outbox.view.has_broken_groups() {
            return;
        }
        for message in self.groups.break_off(&mut cx.outbox) {
            post_of_every(self.every, &mut cx.outbox, &message);
        }
        let view = cx.outbox.view;
        for (b, step) in self.gathered_to.iter().enumerate() {
            let message = Message::new(self.kind | PASSED, *step, b);
            for rank in view.workers.iter().filter(|rank| **rank != self.me) {
                cx.outbox.send(*rank, message.clone());
            }
        }
    }

    /// What the neighbours sent for bucket `b`, or the mean of the group, if it waits for nothing
    /// else.
    pub fn gather(&mut self, outbox: &Outbox<'_>, b: usize) -> Option<Gathered> {
        if !self.waiting.get(b).is_some_and(|waits| *waits) {
            return None;
        }
        let gathered = if let Some(means) = self.groups.take(outbox, self.step, b) {
            Gathered::of_means(means)
        } else if self.averages(outbox, &self.row) || self.is_missing_some(b) {
            return None;
        } else {
            let row = self.present(b);
            let messages = self.received.take(self.step, b);
            Gathered::of_vectors(self.me, row, messages)
        };
        self.waiting[b] = false;
        self.gathered_to[b] = self.step + 1;
        Some(gathered)
    }

    /// Whom the waiting buckets lack.
    pub fn awaiting(&self, what: &'static str, out: &mut Vec<Awaited>) {
        let waiting = || (0..self.waiting.len()).filter(|b| self.waiting[*b]);
        if self.gathers == Gathers::Means && matches!(self.row.group, RowGroup::Whole(_)) {
            waiting().for_each(|b| self.groups.awaiting(self.step, b, out));
        }
        if !out.is_empty() {
            return;
        }
        let mut missing: Vec<Rank> = waiting().flat_map(|b| self.missing(b)).collect();
        missing.sort_unstable();
        missing.dedup();
        out.extend(missing.into_iter().map(|from| Awaited { from, what }));
    }

    /// Whether bucket `b` lacks a neighbour's vector.
    fn is_missing_some(&self, b: usize) -> bool {
        // Asked for every message that comes: most often their number is enough.
        let others = self.row.incoming.len() - 1;
        let is_short = self.received(b).len() < others && self.row.group != RowGroup::Broken;
        is_short || self.missing(b).next().is_some()
    }

    fn missing(&self, b: usize) -> impl Iterator<Item = Rank> {
        let received = self.received(b);
        let others = self.row.incoming.iter().map(|(rank, _)| *rank);
        others.filter(move |rank| {
            *rank != self.me && !contains(received, *rank) && !self.has_passed(*rank, b)
        })
    }

    /// Whether `rank` has averaged bucket `b` of this step in a group that is broken now, so that
    /// its vector does not come any more.
    fn has_passed(&self, rank: Rank, b: usize) -> bool {
        self.row.group == RowGroup::Broken
            && self.passed.get(&(rank, b)).is_some_and(|step| *step > self.step)
    }

    /// My row for bucket `b`, without those whose vectors do not come any more.
    fn present(&self, b: usize) -> Arc<MixingRow> {
        let received = self.received(b);
        let is_present = |rank: Rank| rank == self.me || contains(received, rank);
        if self.row.incoming.iter().all(|(rank, _)| is_present(*rank)) {
            return Arc::clone(&self.row);
        }
        Arc::new(self.row.only(self.me, is_present))
    }

    fn received(&self, b: usize) -> &[(Rank, Message)] {
        self.received.messages(self.step, b)
    }
}

fn contains(received: &[(Rank, Message)], rank: Rank) -> bool {
    received.binary_search_by_key(&rank, |(rank, _)| *rank).is_ok()
}
