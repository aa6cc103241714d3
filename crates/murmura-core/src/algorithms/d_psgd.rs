//! D-PSGD: decentralized parallel SGD (Lian et al. 2017, Algorithm 1) in three forms.
//!
//! ```text
//! consensus           x_i⁺ = Σ_j W_ij x_j − η·u(x_i)       gradient at the unmixed x_i
//!   upon start:                          send x_i[b] for step 0, every bucket b
//!   upon g[b] and x_j[b] of this step:   x_i[b] ← Σ_j W_ij x_j[b];  x_i[b] ← x_i[b] − η·Opt(g[b])
//!                                        send x_i[b] for the next step
//! adapt-then-combine  x_i⁺ = Σ_j W_ij (x_j − η·u_j)
//!   upon g[b]:                           x_i[b] ← x_i[b] − η·Opt(g[b]);  send x_i[b]
//!   upon x_j[b] of this step:            x_i[b] ← Σ_j W_ij x_j[b]
//! combine-then-adapt  y_i = Σ_j W_ij x_j;  x_i⁺ = y_i − η·u(y_i)
//!   upon start:                          send x_i[b] for step 0
//!   upon x_j[b] of the step to come:     x_i[b] ← Σ_j W_ij x_j[b]
//!   upon g[b]:                           x_i[b] ← x_i[b] − η·Opt(g[b]);  send x_i[b] for the next step
//! upon a lost peer:                      its weight goes to myself at once
//! ```
//! In consensus form the exchange overlaps the whole computation of a step. Weight decay sees
//! the mixed parameters, as in Decent-DP.

use std::collections::BTreeMap;

use super::Entry;
use crate::contract::{Algorithm, Awaited, Budget, Cx, Deploy, Facts, Mode, Need, Place};
use crate::message::{Message, Rank};
use crate::params::{Key, Kind, Params};
use crate::payload::Payload;
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

/// The row of the table.
pub const ENTRY: Entry = Entry {
    name: "d-psgd",
    summary: "every step averages the model with the neighbours of the topology",
    paper: "Lian et al. 2017, arXiv:1705.09056",
    sends: "the model to every neighbour per step",
    lost_peer: "its weight goes to the receivers at once; the topology is rebuilt over the \
                survivors from an agreed step on; the mean may shift once by a bounded amount",
    keys: &[Key {
        name: "form",
        kind: Kind::Choice(&["consensus", "adapt-then-combine", "combine-then-adapt"]),
        help: "when neighbours are averaged relative to the gradient step",
    }],
    check: |_| Ok(()),
    facts: |_| Facts {
        synchronous: true,
        snapshot: false,
        servers: false,
        deploy: Deploy::Workers,
        budget: Budget::Rounds,
        topology: Need::Mixing,
        optimizer: Place::Workers,
        clips_itself: false,
        keeps_mean: true,
        waits_for_peers: true,
    },
    worker: |params| Box::new(DPsgd::new(params)),
    server: None,
};

const MODEL: u8 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Consensus,
    AdaptThenCombine,
    CombineThenAdapt,
}

/// One worker.
struct DPsgd {
    form: Form,
    /// The step whose exchange is under way.
    slot: u64,
    /// Buckets that only wait for their neighbours.
    waiting: Vec<bool>,
    /// Buckets that are not done with this step.
    left: usize,
    /// Neighbours' models by (step, bucket); a fast neighbour may be steps ahead.
    received: BTreeMap<(u64, usize), Vec<(Rank, Payload)>>,
    /// Whom the waiting buckets lack, as of the last look.
    missing: Vec<Rank>,
}

impl DPsgd {
    fn new(params: &Params) -> DPsgd {
        let form = match params.text("form") {
            "consensus" => Form::Consensus,
            "adapt-then-combine" => Form::AdaptThenCombine,
            _ => Form::CombineThenAdapt,
        };
        DPsgd {
            form,
            slot: 0,
            waiting: Vec::new(),
            left: 0,
            received: BTreeMap::new(),
            missing: Vec::new(),
        }
    }

    fn post(&self, cx: &mut Cx<'_>, b: usize, slot: u64) {
        let row = cx.io.view.row(slot, cx.io.rank);
        if row.outgoing.is_empty() {
            return;
        }
        let message = Message::new(MODEL, slot, b).with(cx.params_payload(b));
        for to in &row.outgoing {
            cx.io.send(*to, message.clone());
        }
    }

    /// Mixes bucket `b` if it waits for nothing but what is here.
    fn advance(&mut self, cx: &mut Cx<'_>, b: usize) {
        if !self.waiting[b] || !self.mix(cx, b) {
            return;
        }
        self.waiting[b] = false;
        match self.form {
            Form::Consensus => cx.optimize(b, Mode::Apply),
            _ => self.left -= 1,
        }
    }

    /// `x_i ← Σ_j W_ij x_j`, in the order of ranks; false if somebody's is missing.
    fn mix(&mut self, cx: &mut Cx<'_>, b: usize) -> bool {
        let row = cx.io.view.row(self.slot, cx.io.rank);
        let received = self.received.entry((self.slot, b)).or_default();
        received.sort_by_key(|(rank, _)| *rank);
        let place = row.incoming.iter().position(|(rank, _)| *rank == cx.io.rank);
        let place = place.expect("every row has the worker itself");
        let mut terms: Vec<(f32, &[f32])> = Vec::with_capacity(row.incoming.len() - 1);
        for (rank, weight) in row.incoming.iter().filter(|(rank, _)| *rank != cx.io.rank) {
            match received.binary_search_by_key(rank, |(rank, _)| *rank) {
                Ok(found) => terms.push((*weight, &*received[found].1)),
                Err(_) => {
                    self.missing.push(*rank);
                    return false;
                }
            }
        }
        let own = row.incoming[place].1;
        vector::mix(own, place, &mut cx.params[cx.layout.range(b)], &terms);
        self.received.remove(&(self.slot, b));
        true
    }

    fn advance_all(&mut self, cx: &mut Cx<'_>) {
        self.missing.clear();
        for b in 0..self.waiting.len() {
            self.advance(cx, b);
        }
    }
}

impl Algorithm for DPsgd {
    fn on_start(&mut self, cx: &mut Cx<'_>) {
        let buckets = cx.layout.buckets.len();
        self.waiting = vec![false; buckets];
        self.slot = cx.step;
        if self.form == Form::AdaptThenCombine || cx.step >= cx.steps {
            return;
        }
        for b in 0..buckets {
            self.post(cx, b, cx.step);
        }
        if self.form == Form::CombineThenAdapt {
            self.waiting.fill(true);
            self.left = buckets;
            self.advance_all(cx);
        }
    }

    fn on_bucket(&mut self, cx: &mut Cx<'_>, b: usize) {
        if b == 0 {
            self.left = cx.layout.buckets.len();
            self.slot = cx.step + u64::from(self.form == Form::CombineThenAdapt);
            self.received = self.received.split_off(&(self.slot, 0));
            self.missing.clear();
        }
        if self.form == Form::Consensus {
            self.waiting[b] = true;
            self.advance(cx, b);
        } else {
            cx.optimize(b, Mode::Apply);
        }
    }

    fn on_optimized(&mut self, cx: &mut Cx<'_>, b: usize) {
        let last = cx.is_last_step();
        match self.form {
            Form::AdaptThenCombine => self.post(cx, b, cx.step),
            _ if !last => self.post(cx, b, cx.step + 1),
            _ => {}
        }
        if self.form == Form::Consensus || (self.form == Form::CombineThenAdapt && last) {
            self.left -= 1;
        } else {
            self.waiting[b] = true;
            self.advance(cx, b);
        }
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, from: Rank, message: Message) {
        let (step, b) = (message.step, message.bucket as usize);
        if step < self.slot {
            return;
        }
        self.received.entry((step, b)).or_default().push((from, message.into_values()));
        if step == self.slot {
            self.missing.retain(|rank| *rank != from);
            self.advance(cx, b);
        }
    }

    fn on_view(&mut self, cx: &mut Cx<'_>, _old: &View) {
        self.advance_all(cx);
    }

    fn is_ready(&self) -> bool {
        self.left == 0
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        let mut missing = self.missing.clone();
        missing.sort();
        missing.dedup();
        out.extend(missing.iter().map(|from| Awaited { from: *from, what: "its model" }));
    }

    /// Between steps there is nothing but parameters and optimizer; `on_start` posts them again.
    fn state(&mut self, _visitor: &mut dyn Visitor) {}

    /// A neighbour that has mixed my model no longer has to be sent it again, so what was sent
    /// in an older view must stay good.
    fn spans_views(&self) -> bool {
        true
    }
}
