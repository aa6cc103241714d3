//! QG-DmSGD: quasi-global momentum (Lin et al. 2021).
//!
//! ```text
//! upon g[b] at x_i:                d ← η·Opt(g[b]) with the velocity m̂;  x½ ← x_i[b] − d;  send x½
//! upon x½_j from all neighbours:   x⁺ ← Σ_j W_ij x½_j
//!                                  m̂ ← μ·m̂ + (1−μ)·(x_i[b] − x⁺)/η;  x_i[b] ← x⁺
//! upon a lost peer:                its weight goes to myself at once
//! ```
//! The velocity m̂ of the optimizer is replaced after every step by what the model really did,
//! neighbours included; its `momentum` β (and Nesterov) multiplies it as usual, m = β·m̂ + g.
//! Without momentum nothing is left but D-PSGD in adapt-then-combine form.

use super::{Codecs, Entry, Gathers, When};
use crate::contract::{Context, Mode};
use crate::kit::exchange::{self, Exchange, Gathered, GossipMethod, SyncGossip};
use crate::message::Message;
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::properties::{OptimizerRequirement, OptimizerState, Properties};
use crate::state::Visitor;
use crate::vector;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "qg-dmsgd",
        summary: "d-psgd whose momentum follows the mixed model; needs an optimizer with momentum",
        paper: "Lin et al. 2021, arXiv:2102.04761",
        section: "Algorithm 1",
        file: file!(),
        options: &[OptionSpec {
            name: "mu",
            kind: OptionKind::Real { default: 0.9, min: 0.0, max: 1.0 },
            help: "share of the quasi-global momentum that is kept at each step",
        }],
    },
    sends: "the stepped model to every neighbour per step; in groups of the topology by all-reduce",
    lost_peer: "its weight goes to the receivers at once; the topology is rebuilt over the \
                survivors from an agreed step on; momentum is kept",
    resized: "every worker begins with the mean of the models and of the momenta, over the \
              new topology",
    check: |_| Ok(()),
    codecs: |_| {
        Codecs::Exact(
            "it divides what mixing has moved by the learning rate, which would amplify every rounding",
        )
    },
    properties: |_| Properties {
        optimizer_state: OptimizerState::VelocityReplaced,
        optimizer_rule: OptimizerRequirement::Sgd(
            "it replaces the velocity of the optimizer's momentum, and adaptive optimizers have \
             none; use `optimizer.name` = \"sgd\" with momentum, or `d-psgd`",
        ),
        ..exchange::PROPERTIES
    },
    traffic: |_| exchange::traffic(1, When::AfterGradient, Gathers::Means),
    worker: |options| SyncGossip::boxed(Qg::new(options)),
    server: None,
};

/// One worker.
struct Qg {
    mu: f32,
    /// m̂ as it was before this step; between steps the optimizer holds it.
    momentum: Vec<f32>,
}

impl Qg {
    fn new(options: &Options) -> Qg {
        let mu = options.real("mu") as f32;
        Qg { mu, momentum: Vec::new() }
    }
}

impl GossipMethod for Qg {
    const AWAITED: &'static str = "its stepped model";

    fn on_start(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
        self.momentum = vec![0.0; cx.params.len()];
        exchange.enter(cx, cx.step);
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        if b == 0 {
            exchange.begin(cx, cx.step);
        }
        if let Some(velocity) = cx.optimizer.velocity() {
            let range = cx.layout.range(b);
            self.momentum[range.clone()].copy_from_slice(&velocity[range]);
        }
        cx.optimize(b, Mode::Displace);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        let stepped = &mut cx.grad[cx.layout.range(b)];
        vector::scale(-1.0, stepped);
        vector::add(&cx.params[cx.layout.range(b)], stepped);
        let message = Message::new(exchange::KIND, cx.step, b).with(cx.outbox.pool.copy(stepped));
        exchange.post(&mut cx.outbox, message);
        exchange.wait(b);
    }

    fn on_gathered(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
        b: usize,
        gathered: Gathered,
    ) {
        let range = cx.range(b);
        let (params, mixed) = (&mut cx.params[range.clone()], &mut cx.grad[range.clone()]);
        gathered.mix(&mut cx.outbox, 0, mixed);
        if let Some(velocity) = cx.optimizer.velocity() {
            let (velocity, momentum) = (&mut velocity[range.clone()], &self.momentum[range]);
            match cx.learning_rate {
                // A step of rate zero says nothing about the direction.
                0.0 => velocity.copy_from_slice(momentum),
                rate => {
                    vector::scaled(self.mu, momentum, velocity);
                    vector::add_difference((1.0 - self.mu) / rate, params, mixed, velocity);
                }
            }
        }
        params.copy_from_slice(mixed);
        exchange.finish();
    }

    /// Between steps there is nothing but parameters and optimizer.
    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}
