//! SGP: stochastic gradient push (Assran et al. 2019), with overlap τ.
//!
//! ```text
//! x_i: numerator, w_i: push-sum weight, z_i = x_i/w_i: where gradients are taken
//! upon g[b] at z_i, in round k:         x_i[b] ← x_i[b] − η·Opt(g[b])
//!                                       send p·(x_i[b], w_i) to each of the d receivers of round k
//!                                       keep the rest;  p = 1/(d+1)
//! upon all shares of round k − τ:       (x_i[b], w_i) ← (x_i[b], w_i) + Σ shares;  z_i[b] ← x_i[b]/w_i
//! upon drain:                           take in the shares of the last τ rounds
//! upon a lost peer:                     shares for it are not made any more; at the agreed step
//!                                       x_i ← z_i, w_i ← 1: everyone takes back what is on its way
//! ```
//! Exactly the shares of round k − τ are taken in, and waited for, so a run does not depend on
//! timing: τ = 0 is SGP, τ ≥ 1 hides the exchange behind τ computations. A share is counted once
//! per (round, bucket, sender), so that a second copy changes nothing; those of the last τ rounds
//! are kept and sent again after a resume, so that what a broken connection lost is only late.
//! Numerator and weight travel in one message: whatever is lost, z stays a weighted average.
//! With `free_running` no worker waits for another: see [`free`].

mod free;

use std::ops::Range;

use free::Free;

use super::exchange::{self, Exchange};
use super::push_sum::PushSum;
use super::{Codecs, Entry, When};
use crate::contract::{Algorithm, Awaited, Context, Mode};
use crate::message::{Message, Rank};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::payload::Payload;
use crate::properties::{Budget, Properties, TopologyRequirement};
use crate::state::Visitor;
use crate::view::View;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "sgp",
        summary: "every step pushes shares of the model along directed edges; weights undo the bias",
        paper: "Assran et al. 2019, arXiv:1811.10792 (Algorithm 1; overlap: Algorithm 2)",
        section: "Algorithm 1; overlap: Algorithm 2",
        file: file!(),
        options: &[
            OptionSpec {
                name: "overlap",
                kind: OptionKind::Whole { default: 0, min: 0, max: 64 },
                help: "τ: take in the shares of τ rounds ago; 1 hides the exchange behind the \
                   next gradient",
            },
            OptionSpec {
                name: "free_running",
                kind: OptionKind::Flag(false),
                help: "take in what has arrived and never wait; a lost message is then only late, \
                   and a run depends on timing",
            },
            OptionSpec {
                name: "fold",
                kind: OptionKind::Flag(true),
                help: "free_running: shares are acknowledged, and folded into one until then; off: \
                   every share is a message by itself, as published, and a lost one is lost mass",
            },
            OptionSpec {
                name: "biased",
                kind: OptionKind::Flag(false),
                help: "ignore the push-sum weights; only to show what they are for",
            },
        ],
    },
    sends: "a share of the model and of its weight to every out-neighbour per step",
    lost_peer: "it gets no shares any more; at an agreed step the survivors set their weights \
                back to one, so that they sum to the number of survivors again",
    resized: "every worker begins with the mean of the models, each divided by its weight, \
              and of the optimizers; weights are reset to one, and no share is on its way",
    check: |options| match (options.flag("free_running"), options.whole("overlap")) {
        (true, 1..) => Err("`overlap` counts rounds to wait for, and `free_running` never waits"),
        (true, _) if options.flag("biased") => {
            Err("`biased` shows what weights are for, in rounds")
        }
        _ => Ok(()),
    },
    codecs: |options| {
        if options.flag("free_running") {
            Codecs::Exact("sums of all shares so far travel, and rounding would grow with them")
        } else {
            Codecs::OF_MODELS
        }
    },
    properties,
    traffic: |options| match (options.flag("free_running"), options.whole("overlap")) {
        (true, _) => exchange::traffic(1, When::Never),
        (false, 0) => exchange::traffic(1, When::AfterGradient),
        _ => exchange::traffic(1, When::DuringGradient),
    },
    worker: |options| {
        if options.flag("free_running") {
            Box::new(Free::new(options.flag("fold")))
        } else {
            Box::new(Sgp::new(options))
        }
    },
    server: None,
};

fn properties(options: &Options) -> Properties {
    let waits = !options.flag("free_running");
    Properties {
        synchronous: waits,
        waits_for_peers: waits,
        budget: if waits { Budget::Rounds } else { Budget::TotalGradients },
        topology: TopologyRequirement::Edges,
        // Push-sum keeps the mass; the mean only if degrees are equal and nothing is on its way.
        keeps_mean: false,
        plain_sgd: false,
        ..exchange::PROPERTIES
    }
}

const SHARE: u8 = 1;

/// One worker.
struct Sgp {
    overlap: u64,
    biased: bool,
    mass: PushSum,
    /// The round of the last start: earlier shares count no more.
    since: u64,
    /// The shares of the last τ rounds, at (round mod τ) · buckets + bucket.
    kept: Vec<Kept>,
    exchange: Exchange,
    /// The rounds that are still to be taken in; known once the run drains.
    rest: Range<u64>,
}

/// A share that receivers may not have taken in yet.
#[derive(Clone, Debug, Default)]
struct Kept {
    round: u64,
    weight: f64,
    values: Option<Payload>,
}

impl Sgp {
    fn new(options: &Options) -> Sgp {
        Sgp {
            overlap: options.whole("overlap"),
            biased: options.flag("biased"),
            mass: PushSum::default(),
            since: 0,
            kept: Vec::new(),
            exchange: Exchange::default(),
            rest: 0..0,
        }
    }

    /// Sends a share of bucket `b`.
    fn push(&mut self, cx: &mut Context<'_>, b: usize) {
        let receivers = cx.outbox.view.row(cx.step, cx.outbox.rank).outgoing.len();
        let (values, weight) = self.mass.divide(cx, b, receivers);
        let share = Kept { round: cx.step, weight, values: Some(values) };
        share.post(cx, b);
        if self.overlap > 0 {
            let slot = (cx.step % self.overlap) as usize;
            self.kept[slot * cx.layout.buckets.len() + b] = share;
        }
    }

    fn advance(&mut self, cx: &mut Context<'_>, b: usize) {
        let Some(gathered) = self.exchange.gather(b) else { return };
        self.mass.absorb(cx, b, &gathered);
        self.end_bucket(cx, b);
    }

    fn end_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        if self.biased {
            self.mass.show_biased(cx, b);
        } else {
            self.mass.show(cx, b);
        }
        self.exchange.finish();
    }

    /// Once no more gradients come, takes in round after round as they become complete.
    fn absorb_rest(&mut self, cx: &mut Context<'_>) {
        while self.exchange.is_over() {
            let Some(round) = self.rest.next() else { return };
            self.exchange.begin(cx, round);
            for b in 0..cx.layout.buckets.len() {
                self.exchange.wait(b);
                self.advance(cx, b);
            }
        }
    }
}

impl Kept {
    fn post(&self, cx: &mut Context<'_>, b: usize) {
        let Some(values) = &self.values else { return };
        let mut message = Message::new(SHARE, self.round, b).with(values.clone());
        message.scalar = self.weight;
        exchange::post(&mut cx.outbox, &message);
    }
}

impl Algorithm for Sgp {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        let buckets = cx.layout.buckets.len();
        if self.mass.is_fresh() {
            self.since = cx.step;
        }
        self.mass.start(cx);
        self.kept.resize(self.overlap as usize * buckets, Kept::default());
        self.exchange.enter(cx, cx.step.saturating_sub(self.overlap));
        for (slot, share) in self.kept.iter().enumerate() {
            share.post(cx, slot % buckets);
        }
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        if b == 0 {
            self.exchange.begin(cx, cx.step.saturating_sub(self.overlap));
        }
        if cx.outbox.view.changes_at(cx.step) {
            self.since = cx.step;
            self.mass.restart(cx, b);
        }
        cx.optimize(b, Mode::Displace);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        self.mass.displace(cx, b);
        self.push(cx, b);
        if cx.step < self.since + self.overlap {
            return self.end_bucket(cx, b);
        }
        self.exchange.wait(b);
        self.advance(cx, b);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        if let Some(b) = self.exchange.on_message(from, message) {
            self.advance(cx, b);
            self.absorb_rest(cx);
        }
    }

    fn on_view(&mut self, cx: &mut Context<'_>, _old: &View) {
        self.exchange.on_view(cx);
        (0..cx.layout.buckets.len()).for_each(|b| self.advance(cx, b));
        self.absorb_rest(cx);
    }

    fn on_drain(&mut self, cx: &mut Context<'_>) {
        self.rest = cx.step.saturating_sub(self.overlap).max(self.since)..cx.step;
        self.absorb_rest(cx);
    }

    fn is_ready(&self) -> bool {
        self.exchange.is_over()
    }

    fn is_drained(&self) -> bool {
        self.exchange.is_over() && self.rest.is_empty()
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        self.exchange.awaiting("its share", out);
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        self.mass.state(visitor);
        visitor.number("since", &mut self.since);
        let mut shares = self.kept.len() as u64;
        visitor.number("shares", &mut shares);
        self.kept.resize(shares as usize, Kept::default());
        for (slot, share) in self.kept.iter_mut().enumerate() {
            visitor.number(&format!("share.{slot}.round"), &mut share.round);
            visitor.real(&format!("share.{slot}.weight"), &mut share.weight);
            visitor.payload(&format!("share.{slot}"), &mut share.values);
        }
    }

    /// Shares of an older view are mass like any other.
    fn keeps_older_views(&self) -> bool {
        true
    }
}
