//! CHOCO-SGD: gossip with any compression (Koloskova, Stich and Jaggi 2019; Koloskova et al. 2020).
//!
//! ```text
//! x̂_i: the public copy of x_i, which i and its neighbours keep alike; x̂ = x at the start
//! after-step (2019, Algorithm 2; A):
//!   upon g[b]:                        x_i ← x_i − η·Opt(g);  q = C(x_i − x̂_i);  x̂_i ← x̂_i + q;  send q
//!   upon q_j of this step:            x̂_j ← x̂_j + q_j;   x_i ← x_i + γ·Σ_j W_ij (x̂_j − x̂_i)
//! overlap (2020, Algorithm 1; B):
//!   upon g[b] and q_j of this step:   x̂_j ← x̂_j + q_j
//!                                     x_i ← x_i − η·Opt(g) + γ·Σ_j W_ij (x̂_j − x̂_i)
//!                                     q = C(x_i − x̂_i);  x̂_i ← x̂_i + q;  send q for the next step
//! upon a lost peer:                   its weight goes to myself at once; where the rebuilt topology
//!                                     begins, all copies begin again from 0
//! ```
//! What one worker gains in the γ term another loses, whatever C does, so that the mean is kept.
//! With γ = 1 and nothing left out, A is D-PSGD in adapt-then-combine and B in consensus form.

use std::collections::BTreeMap;

use super::{Codecs, Entry, Gathers, When};
use crate::codec::{CodecShape, Coder};
use crate::contract::{Context, Mode};
use crate::kit::exchange::{self, Exchange, Gathered, GossipMethod, SyncGossip};
use crate::message::{Message, Part, Rank};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::payload::Payload;
use crate::properties::{Properties, TopologyRequirement};
use crate::state::Visitor;
use crate::vector;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "choco",
        summary: "gossip of compressed differences to public copies of the models",
        paper: "Koloskova, Stich, Jaggi 2019, arXiv:1902.00340; Koloskova et al. 2020, arXiv:1907.09356",
        section: "after-step: Algorithm 2 of 2019; overlap: Algorithm 1 of 2020",
        file: file!(),
        options: &[
            OptionSpec {
                name: "form",
                kind: OptionKind::Choice(&["overlap", "after-step"]),
                help: "mix with the copies of the last step while the next ones travel, or wait for them",
            },
            OptionSpec {
                name: "consensus",
                kind: OptionKind::Real { default: 0.0, min: 0.0, max: 1.0 },
                help: "γ: how far to move to the neighbours' copies; 0 stands for δ/(2 − δ), where the \
                   codec keeps about δ of a vector",
            },
        ],
    },
    sends: "the encoded change of the model to every neighbour per step",
    lost_peer: "its weight goes to the receivers at once; where the topology that was rebuilt over \
                the survivors begins, the public copies begin again from zero",
    resized: "every worker begins with the mean of the models and of the optimizers; the public copies \
              are reset from that model",
    check: |_| Ok(()),
    codecs: |_| Codecs::Contraction,
    properties: |_| Properties {
        topology: TopologyRequirement::StaticSymmetric,
        own_start: false,
        reloadable: true,
        ..exchange::PROPERTIES
    },
    traffic: |options| match options.text("form") {
        "overlap" => exchange::traffic(1, When::DuringGradient, Gathers::Vectors),
        _ => exchange::traffic(1, When::AfterGradient, Gathers::Vectors),
    },
    worker: |options| SyncGossip::boxed(Choco::new(options)),
    server: None,
};

/// One worker.
struct Choco {
    overlap: bool,
    consensus: f32,
    /// My public copy.
    own: Vec<f32>,
    /// Those of my neighbours.
    copies: BTreeMap<Rank, Vec<f32>>,
    /// With overlap: what was sent last, per bucket; a neighbour may not have it after a resume.
    sent: Vec<Option<Payload>>,
    /// One more than the step that it was for.
    sent_for: u64,
}

impl Choco {
    fn new(options: &Options) -> Choco {
        Choco {
            overlap: options.text("form") == "overlap",
            consensus: options.real("consensus") as f32,
            own: Vec::new(),
            copies: BTreeMap::new(),
            sent: Vec::new(),
            sent_for: 0,
        }
    }

    /// Sends how bucket `b` differs from its public copy, for `step`.
    fn post(&mut self, cx: &mut Context<'_>, b: usize, step: u64) {
        let range = cx.range(b);
        let own = &mut self.own[range.clone()];
        if cx.outbox.view.changes_at(step) {
            own.fill(0.0);
        }
        let mut change = cx.params_payload(b);
        let values = change.try_mut().expect("just taken, so held by nobody else");
        vector::axpy(-1.0, own, values);
        let mut message = Message::new(exchange::KIND, step, b);
        if cx.outbox.coder.shape() != CodecShape::Plain {
            let at = Coder::place(cx.outbox.rank, &message, 0);
            message.parts[0] = cx.outbox.coder.pack(at, values, cx.outbox.pool);
            cx.outbox.coder.read_back(at, &message.parts[0], values);
        } else {
            message.parts[0] = Part::Values(change.clone());
        }
        vector::add(&change, own);
        exchange::post(&mut cx.outbox, &message);
        if self.overlap {
            self.sent[b] = Some(change);
            self.sent_for = step + 1;
        }
    }

    fn update_copies(&mut self, cx: &mut Context<'_>, b: usize, gathered: &Gathered) {
        let (range, again) = (cx.range(b), cx.outbox.view.changes_at(cx.step));
        for (rank, change) in gathered.vectors(0) {
            let copy = self.copies.entry(rank).or_insert_with(|| vec![0.0; self.own.len()]);
            let copy = &mut copy[range.clone()];
            if again {
                copy.fill(0.0);
            }
            cx.outbox.work(4 * change.len());
            vector::add(change, copy);
        }
    }

    /// `x_i ← x_i + γ·Σ_j W_ij (x̂_j − x̂_i)`, in the order of ranks.
    fn mix(&self, cx: &mut Context<'_>, b: usize) {
        let (row, range, me) =
            (cx.outbox.view.row(cx.step, cx.outbox.rank), cx.range(b), cx.outbox.rank);
        let consensus = match self.consensus {
            0.0 => gamma(cx.outbox.coder.typical(range.len())),
            given => given,
        };
        let (own, params) = (&self.own[range.clone()], &mut cx.params[range.clone()]);
        for (rank, weight) in row.incoming.iter().filter(|(rank, _)| *rank != me) {
            let copy = &self.copies[rank][range.clone()];
            cx.outbox.work(4 * copy.len());
            vector::add_difference(consensus * weight, copy, own, params);
        }
    }
}

/// The published values are near this: 0.45 for signs, 0.02 to 0.04 for 1 %.
fn gamma(kept: f64) -> f32 {
    (kept / (2.0 - kept)) as f32
}

impl GossipMethod for Choco {
    const GATHERS: Gathers = Gathers::Vectors;
    const AWAITED: &'static str = "the change of its model";

    fn on_start(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
        exchange.enter(cx, cx.step);
        if self.own.is_empty() {
            // All begin from the same parameters.
            self.own = cx.params.to_vec();
            let row = cx.outbox.view.row(cx.step, cx.outbox.rank);
            let others = row.incoming.iter().filter(|(rank, _)| *rank != cx.outbox.rank);
            self.copies = others.map(|(rank, _)| (*rank, cx.params.to_vec())).collect();
        }
        self.sent.resize(cx.layout.buckets.len(), None);
        if !self.overlap || cx.step >= cx.steps {
            return;
        }
        let again = self.sent_for == cx.step + 1;
        for b in 0..self.sent.len() {
            match &self.sent[b] {
                Some(sent) if again => {
                    let message = Message::new(exchange::KIND, cx.step, b).with(sent.clone());
                    exchange::post(&mut cx.outbox, &message);
                }
                _ => self.post(cx, b, cx.step),
            }
        }
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        if b == 0 {
            exchange.begin(cx, cx.step);
        }
        if self.overlap {
            exchange.wait(b);
        } else {
            cx.optimize(b, Mode::Apply);
        }
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        if !self.overlap {
            self.post(cx, b, cx.step);
            exchange.wait(b);
            return;
        }
        self.mix(cx, b);
        if !cx.is_last_step() {
            self.post(cx, b, cx.step + 1);
        }
        exchange.finish();
    }

    fn on_gathered(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
        b: usize,
        gathered: Gathered,
    ) {
        self.update_copies(cx, b, &gathered);
        if self.overlap {
            cx.optimize(b, Mode::Apply);
        } else {
            self.mix(cx, b);
            exchange.finish();
        }
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.vector("own", &mut self.own);
        let mut ranks: Vec<u64> = self.copies.keys().map(|rank| rank.0.into()).collect();
        visitor.numbers("neighbours", &mut ranks);
        for rank in ranks {
            let copy = self.copies.entry(Rank(rank as u32)).or_default();
            visitor.vector(&format!("copy.{rank}"), copy);
        }
        let mut buckets = self.sent.len() as u64;
        visitor.number("sent", &mut buckets);
        visitor.number("sent_for", &mut self.sent_for);
        self.sent.resize(buckets as usize, None);
        for (b, sent) in self.sent.iter_mut().enumerate() {
            visitor.payload(&format!("sent.{b}"), sent);
        }
    }
}
