//! SGP: stochastic gradient push (Assran et al. 2019), with overlap τ.
//!
//! ```text
//! x_i: numerator, w_i: push-sum weight, z_i = x_i/w_i: where gradients are taken
//! upon g[b] at z_i, in step k:          x_i[b] ← x_i[b] − η·Opt(g[b])
//!   if k mod max(1, τ) = 0:             send p·(x_i[b], w_i) to each of the d receivers of this round
//!                                       keep the rest;  p = 1/(d+1)
//!   upon all shares of step k − τ:      (x_i[b], w_i) ← (x_i[b], w_i) + Σ shares
//!                                       z_i[b] ← x_i[b]/w_i
//! with `sends` = "every-step":          the same, at every step k
//! upon drain:                           take in the shares of the last τ steps
//! upon a lost peer:                     shares for it are not made any more; at the agreed step
//!                                       x_i ← z_i, w_i ← 1: everyone takes back what is on its way
//! ```
//! Exactly the shares of step k − τ are taken in, and waited for, so a run does not depend on
//! timing: τ = 0 is SGP, τ ≥ 1 hides the exchange behind τ computations. As published, one exchange
//! is under way at a time, τ steps long, and the topology goes to its next round with each. A share
//! is counted once per (step, bucket, sender), so that a second copy changes nothing; those of the
//! last τ steps are kept and sent again after a resume, so that what a broken connection lost is only late.
//! Numerator and weight travel in one message: whatever is lost, z stays a weighted average.
//! With `free_running` no worker waits for another: see [`free`].

mod free;

use std::ops::Range;

use free::Free;

use super::{Codecs, Entry, Gathers, Traffic, When};
use crate::contract::{Algorithm, Awaited, Context, Mode};
use crate::kit::exchange::{self, Exchange};
use crate::kit::push_sum::PushSum;
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
                help: "τ: take in the shares of τ steps ago; 1 hides the exchange behind the \
                   next gradient",
            },
            OptionSpec {
                name: "sends",
                kind: OptionKind::Choice(&["every-overlap", "every-step"]),
                help: "shares leave once per τ steps, as published, or at every step: τ times the \
                   traffic, and τ exchanges under way",
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
    sends: "a share of the model and of its weight to every out-neighbour, once per `overlap` \
            steps (per step with `overlap` 0 and 1)",
    lost_peer: "it gets no shares any more; at an agreed step the survivors set their weights \
                back to one, so that they sum to the number of survivors again",
    resized: "every worker begins with the mean of the models, each divided by its weight, \
              and of the optimizers; weights are reset to one, and no share is on its way",
    check: |options| match (options.flag("free_running"), options.whole("overlap")) {
        (true, 1..) => Err("`overlap` counts steps to wait for, and `free_running` never waits"),
        (true, _) if options.text("sends") == "every-step" => {
            Err("`sends` is about `overlap`, and `free_running` has none")
        }
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
        (true, _) => exchange::traffic(1, When::Never, Gathers::Vectors),
        (false, 0) => exchange::traffic(1, When::AfterGradient, Gathers::Vectors),
        _ => Traffic::Gossip {
            vectors: 1,
            when: When::DuringGradient,
            every: every(options),
            average: None,
            gathers: Gathers::Vectors,
        },
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

/// Steps from one exchange to the next.
fn every(options: &Options) -> u64 {
    match options.text("sends") {
        "every-overlap" => options.whole("overlap").max(1),
        _ => 1,
    }
}

fn properties(options: &Options) -> Properties {
    let waits = !options.flag("free_running");
    Properties {
        synchronous: waits,
        waits_for_peers: waits,
        budget: if waits { Budget::Rounds } else { Budget::TotalGradients },
        topology: TopologyRequirement::Edges,
        // Push-sum keeps the mass; the mean only if degrees are equal and nothing is on its way.
        keeps_mean: false,
        ..exchange::PROPERTIES
    }
}

const SHARE: u8 = 1;

/// One worker.
struct Sgp {
    overlap: u64,
    /// Steps from one exchange to the next.
    every: u64,
    biased: bool,
    mass: PushSum,
    /// The step of the last start: earlier shares count no more.
    since: u64,
    /// The shares of the last τ steps, in slots of one exchange each: slot · buckets + bucket.
    kept: Vec<Kept>,
    exchange: Exchange,
    /// The steps whose shares are still to be taken in; known once the run drains.
    rest: Range<u64>,
}

/// A share that receivers may not have taken in yet.
#[derive(Clone, Debug, Default)]
struct Kept {
    step: u64,
    weight: f64,
    values: Option<Payload>,
}

impl Sgp {
    fn new(options: &Options) -> Sgp {
        let every = every(options);
        Sgp {
            overlap: options.whole("overlap"),
            every,
            biased: options.flag("biased"),
            mass: PushSum::default(),
            since: 0,
            kept: Vec::new(),
            exchange: Exchange::of_every(every),
            rest: 0..0,
        }
    }

    /// Whether shares leave, and come in, at this step.
    fn exchanges_at(&self, step: u64) -> bool {
        step.is_multiple_of(self.every)
    }

    /// The step whose shares are the next to be taken in, at `step` or after it.
    fn awaited_at(&self, step: u64) -> u64 {
        step.next_multiple_of(self.every).saturating_sub(self.overlap)
    }

    /// Exchanges that are under way at once.
    fn slots(&self) -> u64 {
        self.overlap / self.every
    }

    /// Sends a share of bucket `b`.
    fn push(&mut self, cx: &mut Context<'_>, b: usize) {
        let row = cx.outbox.view.row_of_every(self.every, cx.step, cx.outbox.rank);
        let (values, weight) = self.mass.divide(cx, b, row.outgoing.len());
        let share = Kept { step: cx.step, weight, values: Some(values) };
        share.post(cx, b, self.every);
        if self.overlap > 0 {
            let slot = (cx.step / self.every % self.slots()) as usize;
            self.kept[slot * cx.layout.buckets.len() + b] = share;
        }
    }

    fn advance(&mut self, cx: &mut Context<'_>, b: usize) {
        let Some(gathered) = self.exchange.gather(&cx.outbox, b) else { return };
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

    /// Once no more gradients come, takes in one exchange after another as they become complete.
    fn absorb_rest(&mut self, cx: &mut Context<'_>) {
        while self.exchange.is_over() {
            let every = self.every;
            let Some(step) = self.rest.find(|step| step.is_multiple_of(every)) else { return };
            self.exchange.begin(cx, step);
            for b in 0..cx.layout.buckets.len() {
                self.exchange.wait(b);
                self.advance(cx, b);
            }
        }
    }
}

impl Kept {
    fn post(&self, cx: &mut Context<'_>, b: usize, every: u64) {
        let Some(values) = &self.values else { return };
        let mut message = Message::new(SHARE, self.step, b).with(values.clone());
        message.scalar = self.weight;
        exchange::post_of_every(every, &mut cx.outbox, &message);
    }
}

impl Algorithm for Sgp {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        let buckets = cx.layout.buckets.len();
        if self.mass.is_fresh() {
            self.since = cx.step;
        }
        self.mass.start(cx);
        self.kept.resize(self.slots() as usize * buckets, Kept::default());
        self.exchange.enter(cx, self.awaited_at(cx.step));
        for (slot, share) in self.kept.iter().enumerate() {
            share.post(cx, slot % buckets, self.every);
        }
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        if b == 0 {
            self.exchange.begin(cx, self.awaited_at(cx.step));
        }
        if cx.outbox.view.changes_at(cx.step) {
            self.since = cx.step;
            self.mass.restart(cx, b);
        }
        cx.optimize(b, Mode::Displace);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        self.mass.displace(cx, b);
        if !self.exchanges_at(cx.step) {
            return self.end_bucket(cx, b);
        }
        self.push(cx, b);
        if cx.step < self.since + self.overlap {
            return self.end_bucket(cx, b);
        }
        self.exchange.wait(b);
        self.advance(cx, b);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        if let Some(b) = self.exchange.on_message(cx, from, message) {
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
            visitor.number(&format!("share.{slot}.round"), &mut share.step);
            visitor.real(&format!("share.{slot}.weight"), &mut share.weight);
            visitor.payload(&format!("share.{slot}"), &mut share.values);
        }
    }

    /// Shares of an older view are mass like any other.
    fn keeps_older_views(&self) -> bool {
        true
    }
}
