//! The exchange of synchronous gossip: at every step each worker sends its vectors to the
//! neighbours of the topology and waits for theirs of the same step, bucket by bucket.
//!
//! ```text
//! begin(t):                      the exchange of step t is under way
//! wait(b):                       bucket b lacks nothing but the neighbours' vectors
//! upon a message of (t', b):     keep it; t' may be ahead of t
//! gather(b):                     all that came for (t, b), once everyone's is here
//! finish():                      one bucket more is done with this step
//! ```

mod sync_gossip;

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Traffic, When};
use crate::codec::CodecShape;
use crate::contract::{Awaited, Context, Outbox};
use crate::message::{Message, Part, Rank};
use crate::properties::{
    Budget, DeployedFrom, OptimizerSite, OptimizerState, Properties, TopologyRequirement,
};
use crate::vector;
use crate::view::MixingRow;
pub use sync_gossip::{GossipMethod, SyncGossip};

/// Sends `message` to everyone who mixes my vectors at its step, rounded where the codec rounds.
pub fn post(outbox: &mut Outbox<'_>, message: &Message) {
    let row = outbox.view.row(message.step, outbox.rank);
    let message = outbox.rounded(message.clone());
    for to in &row.outgoing {
        outbox.send(*to, message.clone());
    }
}

/// The traffic of algorithms that only gossip.
pub const fn traffic(vectors: u64, when: When) -> Traffic {
    Traffic::Gossip { vectors, when, average: None }
}

/// What is true of every synchronous gossip method, unless its entry says otherwise.
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
    plain_sgd: false,
    waits_for_peers: true,
    own_start: true,
    reloadable: false,
    needs_loss: false,
    optimizer_state: OptimizerState::Kept,
};

/// One exchange after another.
#[derive(Debug, Default)]
pub struct Exchange {
    me: Rank,
    /// The step whose exchange is under way.
    step: u64,
    /// Who mixes with me at that step.
    row: Arc<MixingRow>,
    /// Buckets that only wait for their neighbours.
    waiting: Vec<bool>,
    /// Buckets that are not done with this step.
    remaining: usize,
    /// What came, by (step, bucket), in the order of ranks; a fast neighbour may be steps ahead.
    received: BTreeMap<(u64, usize), Vec<(Rank, Message)>>,
}

impl Exchange {
    /// The exchange of `step` is the next; what came for earlier ones is forgotten.
    pub fn enter(&mut self, cx: &Context<'_>, step: u64) {
        (self.me, self.step) = (cx.outbox.rank, step);
        self.waiting.clear();
        self.waiting.resize(cx.layout.buckets.len(), false);
        self.received = self.received.split_off(&(step, 0));
        self.on_view(cx);
    }

    /// As [`enter`](Exchange::enter), and no bucket is done with it yet.
    pub fn begin(&mut self, cx: &Context<'_>, step: u64) {
        self.enter(cx, step);
        self.remaining = cx.layout.buckets.len();
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
    pub fn on_message(&mut self, from: Rank, message: Message) -> Option<usize> {
        let (step, b) = (message.step, message.bucket as usize);
        if step < self.step {
            return None;
        }
        let received = self.received.entry((step, b)).or_default();
        if let Err(place) = received.binary_search_by_key(&from, |(rank, _)| *rank) {
            received.insert(place, (from, message));
        }
        (step == self.step).then_some(b)
    }

    /// Membership has changed: the lost are not waited for.
    pub fn on_view(&mut self, cx: &Context<'_>) {
        self.row = cx.outbox.view.row(self.step, cx.outbox.rank);
    }

    /// What the neighbours sent for bucket `b`, if it waits for nothing else.
    pub fn gather(&mut self, b: usize) -> Option<Gathered> {
        let waits = self.waiting.get(b).is_some_and(|waits| *waits);
        if !waits || self.missing(b).next().is_some() {
            return None;
        }
        self.waiting[b] = false;
        let messages = self.received.remove(&(self.step, b)).unwrap_or_default();
        Some(Gathered { me: self.me, row: Arc::clone(&self.row), messages })
    }

    /// Whom the waiting buckets lack.
    pub fn awaiting(&self, what: &'static str, out: &mut Vec<Awaited>) {
        let waiting = (0..self.waiting.len()).filter(|b| self.waiting[*b]);
        let mut missing: Vec<Rank> = waiting.flat_map(|b| self.missing(b)).collect();
        missing.sort_unstable();
        missing.dedup();
        out.extend(missing.into_iter().map(|from| Awaited { from, what }));
    }

    fn missing(&self, b: usize) -> impl Iterator<Item = Rank> {
        let received = self.received.get(&(self.step, b)).map_or(&[][..], Vec::as_slice);
        let others = self.row.incoming.iter().map(|(rank, _)| *rank);
        others.filter(move |rank| *rank != self.me && find(received, *rank).is_none())
    }
}

fn find(received: &[(Rank, Message)], rank: Rank) -> Option<&Message> {
    let place = received.binary_search_by_key(&rank, |(rank, _)| *rank).ok()?;
    Some(&received[place].1)
}

/// Everything that came in for one bucket of one step.
#[derive(Debug)]
pub struct Gathered {
    me: Rank,
    row: Arc<MixingRow>,
    messages: Vec<(Rank, Message)>,
}

impl Gathered {
    /// `own ← Σ_j W_ij v_j`, in the order of ranks, where v is vector number `part`.
    ///
    /// Where the neighbours' vectors are rounded: `own ← own + Σ_j W_ij (v_j − v_i)` with v_i
    /// rounded as they see it. What one gains another loses, so that the mean is kept, and
    /// nothing that is too small for the rounding is lost.
    pub fn mix(&self, outbox: &mut Outbox<'_>, part: usize, own: &mut [f32]) {
        if outbox.coder.shape() != CodecShape::Rounding {
            return self.sum(part, own, |weight| weight);
        }
        let mut seen = outbox.pool.copy(own);
        outbox.round(seen.try_mut().expect("just taken, so held by nobody else"));
        for (rank, weight) in self.row.incoming.iter().filter(|(rank, _)| *rank != self.me) {
            vector::add_difference(*weight, values(&self.message(*rank).parts[part]), &seen, own);
        }
    }

    /// `out ← scale·Σ_j W_ij (v_j − own)`, in the order of ranks: how far mixing would move me.
    ///
    /// For symmetric W what one worker gains another loses, to the bit, and among equal vectors
    /// nothing moves. A sum that is carried over all steps must be fed from this: the rounding
    /// of [`mix`](Gathered::mix) would add up in it.
    pub fn pull(&self, part: usize, own: &[f32], scale: f32, out: &mut [f32]) {
        out.fill(0.0);
        for (rank, weight) in self.row.incoming.iter().filter(|(rank, _)| *rank != self.me) {
            let theirs = values(&self.message(*rank).parts[part]);
            vector::add_difference(scale * weight, theirs, own, out);
        }
    }

    /// `own ← own + Σ_j v_j` over the neighbours, in the order of ranks.
    pub fn add(&self, part: usize, own: &mut [f32]) {
        self.sum(part, own, |_| 1.0);
    }

    /// Vector number `part` of every neighbour, in the order of ranks.
    pub fn vectors(&self, part: usize) -> impl Iterator<Item = (Rank, &[f32])> {
        let others = self.row.incoming.iter().filter(|(rank, _)| *rank != self.me);
        others.map(move |(rank, _)| (*rank, values(&self.message(*rank).parts[part])))
    }

    /// The weight of every neighbour, in the order of ranks.
    pub fn weights(&self) -> impl Iterator<Item = (Rank, f32)> {
        self.row.incoming.iter().filter(|(rank, _)| *rank != self.me).copied()
    }

    /// `own ← own + Σ_j factor_j (v_j − seen)`, in the order of ranks, with a factor per neighbour; a
    /// neighbour with factor 0 is not looked at.
    pub fn pull_by(&self, part: usize, seen: &[f32], factors: &[f32], own: &mut [f32]) {
        for ((_, theirs), factor) in self.vectors(part).zip(factors).filter(|(_, f)| **f != 0.0) {
            vector::add_difference(*factor, theirs, seen, own);
        }
    }

    /// The sum of the neighbours' scalars.
    pub fn scalars(&self) -> f64 {
        let others = self.row.incoming.iter().filter(|(rank, _)| *rank != self.me);
        others.map(|(rank, _)| self.message(*rank).scalar).sum()
    }

    fn sum(&self, part: usize, own: &mut [f32], weight: impl Fn(f32) -> f32) {
        let incoming = &self.row.incoming;
        let place = incoming.iter().position(|(rank, _)| *rank == self.me);
        let place = place.expect("every row has the worker itself");
        let others = incoming.iter().filter(|(rank, _)| *rank != self.me);
        let term = |(rank, given): &(Rank, f32)| {
            (weight(*given), values(&self.message(*rank).parts[part]))
        };
        let terms: Vec<(f32, &[f32])> = others.map(term).collect();
        vector::mix(weight(incoming[place].1), place, own, &terms);
    }

    fn message(&self, rank: Rank) -> &Message {
        find(&self.messages, rank).expect("gathered when nobody's was missing")
    }
}

fn values(part: &Part) -> &[f32] {
    match part {
        Part::Values(values) => values,
        _ => &[],
    }
}
