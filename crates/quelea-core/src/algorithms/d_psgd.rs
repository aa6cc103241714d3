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
//! With `period` = p > 1 these are the steps t that are multiples of p (adapt-then-combine: those before
//! them), and all others are local: x_i ← x_i − η·Opt(g).
//!
//! Where the neighbours of a round are a group with equal weights, their mean comes from an
//! all-reduce of the group; see `exchange.rs`.
//!
//! In consensus form the exchange overlaps the whole computation of a step. Weight decay sees
//! the mixed parameters, as in Decent-DP.

use super::{Codecs, Entry, Gathers, Traffic, When};
use crate::contract::{Context, Mode};
use crate::kit::exchange::{self, Exchange, Gathered, GossipMethod, SyncGossip};
use crate::message::Message;
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::state::Visitor;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "d-psgd",
        summary: "every step averages the model with the neighbours of the topology",
        paper: "Lian et al. 2017, arXiv:1705.09056",
        section: "Algorithm 1 (consensus); adapt-then-combine and combine-then-adapt: Sayed 2014; \
                  local steps: Koloskova et al. 2020, arXiv:2003.10422",
        file: file!(),
        options: &[
            OptionSpec {
                name: "form",
                kind: OptionKind::Choice(&[
                    "consensus",
                    "adapt-then-combine",
                    "combine-then-adapt",
                ]),
                help: "when neighbours are averaged relative to the gradient step",
            },
            OptionSpec {
                name: "period",
                kind: OptionKind::Whole { default: 1, min: 1, max: 1 << 32 },
                help: "steps from one average with the neighbours to the next; the others are local",
            },
        ],
    },
    sends: "the model to every neighbour per `period` steps; in groups of the topology by all-reduce",
    lost_peer: "its weight goes to the receivers at once; the topology is rebuilt over the \
                survivors from an agreed step on; the mean may shift once by a bounded amount",
    resized: "every worker begins with the mean of the models and of the optimizers, over \
              the new topology",
    check: |_| Ok(()),
    codecs: |_| Codecs::OF_MODELS,
    properties: |_| exchange::PROPERTIES,
    traffic: |options| Traffic::Gossip {
        vectors: 1,
        when: match options.text("form") {
            "consensus" => When::DuringGradient,
            _ => When::AfterGradient,
        },
        every: options.whole("period"),
        average: None,
        gathers: Gathers::Means,
    },
    worker: |options| SyncGossip::boxed_of_every(options.whole("period"), DPsgd::new(options)),
    server: None,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Consensus,
    AdaptThenCombine,
    CombineThenAdapt,
}

/// One worker.
struct DPsgd {
    form: Form,
    /// Steps from one exchange to the next.
    period: u64,
    /// In combine-then-adapt form: the neighbours' models of the step to come are mixed in.
    mixed: bool,
}

impl DPsgd {
    fn new(options: &Options) -> DPsgd {
        let form = match options.text("form") {
            "consensus" => Form::Consensus,
            "adapt-then-combine" => Form::AdaptThenCombine,
            _ => Form::CombineThenAdapt,
        };
        DPsgd { form, period: options.whole("period"), mixed: false }
    }

    /// Whether workers mix the models that they have before `step`.
    fn mixes_before(&self, step: u64) -> bool {
        step.is_multiple_of(self.period)
    }

    fn post(&self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize, step: u64) {
        let message = Message::new(exchange::KIND, step, b).with(cx.params_payload(b));
        exchange.post(&mut cx.outbox, message);
    }
}

impl GossipMethod for DPsgd {
    const AWAITED: &'static str = "its model";

    fn on_start(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
        exchange.enter(cx, cx.step);
        let is_posted = self.form == Form::AdaptThenCombine || self.mixed;
        if is_posted || cx.step >= cx.steps || !self.mixes_before(cx.step) {
            return;
        }
        let buckets = 0..cx.layout.buckets.len();
        buckets.clone().for_each(|b| self.post(cx, exchange, b, cx.step));
        if self.form == Form::CombineThenAdapt {
            exchange.begin(cx, cx.step);
            for b in buckets {
                exchange.wait(b);
            }
        }
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        if b == 0 {
            self.mixed = false;
            let ahead = u64::from(self.form == Form::CombineThenAdapt);
            exchange.begin(cx, cx.step + ahead);
        }
        if self.form == Form::Consensus && self.mixes_before(cx.step) {
            exchange.wait(b);
        } else {
            cx.optimize(b, Mode::Apply);
        }
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        let mixes = self.mixes_before(cx.step + 1);
        let is_next_posted = mixes && !cx.is_last_step();
        let waits = match self.form {
            Form::Consensus => false,
            Form::AdaptThenCombine => mixes,
            Form::CombineThenAdapt => is_next_posted,
        };
        match self.form {
            Form::AdaptThenCombine if mixes => self.post(cx, exchange, b, cx.step),
            Form::Consensus | Form::CombineThenAdapt if is_next_posted => {
                self.post(cx, exchange, b, cx.step + 1);
            }
            _ => {}
        }
        if waits {
            exchange.wait(b);
        } else {
            exchange.finish();
        }
    }

    /// Mixes bucket `b` if it waits for nothing but what is here.
    fn on_gathered(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
        b: usize,
        gathered: Gathered,
    ) {
        gathered.mix(&mut cx.outbox, 0, &mut cx.params[cx.layout.range(b)]);
        match self.form {
            Form::Consensus => cx.optimize(b, Mode::Apply),
            _ => exchange.finish(),
        }
        self.mixed = self.form == Form::CombineThenAdapt && exchange.is_over();
    }

    /// Between steps there is little but parameters and optimizer; `on_start` posts them again.
    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.flag("mixed", &mut self.mixed);
    }
}
