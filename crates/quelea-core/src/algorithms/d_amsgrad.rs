//! D-AMSGrad: decentralized AMSGrad that tracks the mean second moment (Chen et al. 2021).
//!
//! ```text
//! state: m_i = v_i = 0, v̂_i = ũ_i = ε
//! upon start:                              send (x_i, ũ_i)[b] for step 0, every bucket b
//! upon g[b]:                               m_i ← β₁m_i + (1−β₁)g;  v_i ← β₂v_i + (1−β₂)g²
//!                                          Δ ← max(v̂_i, v_i) − v̂_i;  v̂_i ← v̂_i + Δ
//! upon (x_j, ũ_j)[b] of this step, too:    x_i ← Σ_j W_ij x_j;  ũ½ ← Σ_j W_ij ũ_j
//!                                          x_i ← x_i − η·Opt(m_i/√max(ũ½, ε));  ũ_i ← ũ½ + Δ
//!                                          send (x_i, ũ_i)[b] for the next step
//! upon a lost peer:                        its weight goes to myself at once; at the agreed step ũ_i ← v̂_i
//! ```
//! Σ ũ_i = Σ v̂_i at every step: all workers come to divide by the same mean, where plain
//! decentralized Adam divides each by its own and may stop at a point that is no optimum. The
//! optimizer must be `sgd`, best without momentum; its weight decay is decoupled, as in AdamW.

use super::{Codecs, Entry, Gathers, When};
use crate::contract::{Context, Mode};
use crate::kit::exchange::{self, Exchange, Gathered, GossipMethod, SyncGossip};
use crate::message::Message;
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::properties::{OptimizerRequirement, Properties};
use crate::state::Visitor;
use crate::vector;
use crate::vector::dispatch::{Level, PART_MIN, in_parts, kernel};

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "d-amsgrad",
        summary: "decentralized AMSGrad with a tracked second moment; with the optimizer sgd",
        paper: "Chen, Karimi, Zhao and Li 2021, arXiv:2109.03194",
        section: "the algorithm named decentralized AMSGrad",
        file: file!(),
        options: &[
            OptionSpec {
                name: "beta1",
                kind: OptionKind::Real { default: 0.9, min: 0.0, max: 1.0 },
                help: "share of the first moment that is kept at each step",
            },
            OptionSpec {
                name: "beta2",
                kind: OptionKind::Real { default: 0.999, min: 0.0, max: 1.0 },
                help: "share of the second moment that is kept at each step",
            },
            OptionSpec {
                name: "epsilon",
                kind: OptionKind::Real { default: 1e-6, min: f64::MIN_POSITIVE, max: 1e6 },
                help: "smallest second moment, and the first",
            },
        ],
    },
    sends: "the model and the tracked second moment to every neighbour per step, in one message",
    lost_peer: "its weight goes to the receivers at once; at an agreed step the survivors' \
                tracked moments are reset from their own, over the rebuilt topology",
    resized: "every worker begins with the mean of the models; its moments, and what it \
              tracks of others, are reset",
    check: |_| Ok(()),
    codecs: |_| Codecs::Exact("it carries sums over all steps, in which every rounding would stay"),
    properties: |_| Properties {
        reads_gradient: true,
        clips_itself: true,
        optimizer_rule: OptimizerRequirement::Sgd(
            "it keeps both moments itself (`algorithm.beta1`, `algorithm.beta2`), and an adaptive \
             optimizer would normalise a second time; use `optimizer.name` = \"sgd\", or `d-psgd`",
        ),
        ..exchange::PROPERTIES
    },
    traffic: |_| exchange::traffic(2, When::DuringGradient, Gathers::Means),
    worker: |options| SyncGossip::boxed(DAmsgrad::new(options)),
    server: None,
};

/// One worker.
struct DAmsgrad {
    rule: AmsgradRule,
    /// m.
    first: Vec<f32>,
    /// v.
    second: Vec<f32>,
    /// v̂, which never shrinks.
    largest: Vec<f32>,
    /// ũ.
    tracked: Vec<f32>,
}

#[derive(Clone, Copy)]
struct AmsgradRule {
    beta1: f32,
    beta2: f32,
    epsilon: f32,
}

impl DAmsgrad {
    fn new(options: &Options) -> DAmsgrad {
        let real = |name| options.real(name) as f32;
        DAmsgrad {
            rule: AmsgradRule {
                beta1: real("beta1"),
                beta2: real("beta2"),
                // What is above zero must not become zero, or 0/0 would follow.
                epsilon: real("epsilon").max(f32::MIN_POSITIVE),
            },
            first: Vec::new(),
            second: Vec::new(),
            largest: Vec::new(),
            tracked: Vec::new(),
        }
    }

    fn post(&self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize, step: u64) {
        let tracked = cx.outbox.pool.copy(&self.tracked[cx.range(b)]);
        let message = Message::new(exchange::KIND, step, b).with(cx.params_payload(b)).and(tracked);
        exchange.post(&mut cx.outbox, message);
    }

    /// Takes bucket `b` of the gradient, and leaves Δ in its place.
    fn take(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        let range = cx.range(b);
        let (rule, level) = (self.rule, Level::best());
        let vectors = [
            &mut cx.grad[range.clone()],
            &mut self.first[range.clone()],
            &mut self.second[range.clone()],
            &mut self.largest[range],
        ];
        in_parts(vectors, PART_MIN, |_, [grad, first, second, largest]| {
            update_moments(level, rule, grad, MomentParts { first, second, largest });
        });
        exchange.wait(b);
    }
}

impl GossipMethod for DAmsgrad {
    const AWAITED: &'static str = "its model";

    fn on_start(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
        let len = cx.params.len();
        self.first.resize(len, 0.0);
        self.second.resize(len, 0.0);
        self.largest.resize(len, self.rule.epsilon);
        self.tracked.resize(len, self.rule.epsilon);
        exchange.enter(cx, cx.step);
        if cx.step < cx.steps {
            (0..cx.layout.buckets.len()).for_each(|b| self.post(cx, exchange, b, cx.step));
        }
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        if b == 0 {
            exchange.begin(cx, cx.step);
        }
        if cx.clip.is_none() {
            self.take(cx, exchange, b);
        }
    }

    /// The norm to clip to is that of the whole gradient.
    fn on_gradient(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
        if let Some(limit) = cx.clip {
            vector::clip(f64::from(limit), cx.grad);
            (0..cx.layout.buckets.len()).for_each(|b| self.take(cx, exchange, b));
        }
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        let range = cx.range(b);
        if cx.outbox.view.changes_at(cx.step + 1) {
            self.tracked[range.clone()].copy_from_slice(&self.largest[range]);
        }
        if !cx.is_last_step() {
            self.post(cx, exchange, b, cx.step + 1);
        }
        exchange.finish();
    }

    fn on_gathered(
        &mut self,
        cx: &mut Context<'_>,
        _exchange: &mut Exchange,
        b: usize,
        gathered: Gathered,
    ) {
        let range = cx.range(b);
        let tracked = &mut self.tracked[range.clone()];
        gathered.mix(&mut cx.outbox, 0, &mut cx.params[range.clone()]);
        let mut scratch = cx.outbox.pool.take(tracked.len());
        let pull = scratch.try_mut().expect("just taken, so held by nobody else");
        gathered.pull(&mut cx.outbox, 1, tracked, 1.0, pull);
        vector::add(pull, tracked);
        let (level, epsilon, first) =
            (Level::best(), self.rule.epsilon, &self.first[range.clone()]);
        in_parts([&mut cx.grad[range], tracked], PART_MIN, |at, [grad, tracked]| {
            normalise(level, epsilon, &first[at..][..grad.len()], grad, tracked);
        });
        cx.optimize(b, Mode::Apply);
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.vector("first", &mut self.first);
        visitor.vector("second", &mut self.second);
        visitor.vector("largest", &mut self.largest);
        visitor.vector("tracked", &mut self.tracked);
    }
}

/// Parts of the moments m, v and v̂.
struct MomentParts<'a> {
    first: &'a mut [f32],
    second: &'a mut [f32],
    largest: &'a mut [f32],
}

kernel! {
    /// Updates the moments; the gradient becomes the growth of v̂.
    fn update_moments(rule: AmsgradRule, grad: &mut [f32], moments: MomentParts<'_>) {
        let MomentParts { first, second, largest } = moments;
        for (((g, m), v), most) in grad.iter_mut().zip(first).zip(second).zip(largest) {
            *m = rule.beta1 * *m + (1.0 - rule.beta1) * *g;
            *v = rule.beta2 * *v + (1.0 - rule.beta2) * (*g * *g);
            *g = most.max(*v) - *most;
            *most += *g;
        }
    }
}

kernel! {
    /// The growth of v̂ goes to the tracked moment; the direction takes its place.
    fn normalise(epsilon: f32, first: &[f32], growth: &mut [f32], tracked: &mut [f32]) {
        for ((growth, tracked), m) in growth.iter_mut().zip(tracked).zip(first) {
            let direction = m / tracked.max(epsilon).sqrt();
            *tracked += *growth;
            *growth = direction;
        }
    }
}
