//! Exact Diffusion (Yuan et al. 2019) and D² (Tang et al. 2018): gossip without heterogeneity bias.
//!
//! ```text
//! state: c_i, at first 0
//! upon g[b] at x_i:                φ_i ← x_i[b] − η·Opt(g[b]) + c_i[b];  send φ_i
//! upon φ_j from all neighbours:    δ ← Σ_j W̄_ij (φ_j − φ_i)         W̄ = (I + W)/2 or, in D², W̄ = W
//!                                  x_i[b] ← φ_i + δ;   c_i[b] ← c_i[b] + δ
//! upon a lost peer:                its weight goes to myself at once; at the agreed step c_i ← 0
//! ```
//! The papers keep ψ = x − η·u instead: c_i = x_i − ψ_i of the step before. Since Σ c_i = 0, the
//! mean takes the step −η·ḡ whatever the learning rate was before; the form with one rate times
//! the difference of gradients drifts away after a change. And δ, unlike x_i − ψ_i, rounds to
//! zero in sum: in `f32` the papers' form is 1.5e-3 off the optimum after 6 000 steps, and going.

use super::{Codecs, Entry, Gathers, When};
use crate::contract::{Context, Mode};
use crate::kit::exchange::{self, Exchange, Gathered, GossipMethod, SyncGossip};
use crate::message::Message;
use crate::meta::Meta;
use crate::properties::{Properties, TopologyRequirement};
use crate::state::Visitor;
use crate::vector;

const SENDS: &str = "the corrected model to every neighbour per step";
const LOST_PEER: &str = "its weight goes to the receivers at once; at an agreed step the \
                         survivors set their corrections back to zero, over the rebuilt topology";

/// The entry of Exact Diffusion.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "exact-diffusion",
        summary: "adapt, correct, combine with half the weights: the exact optimum on unequal data",
        paper: "Yuan, Ying, Zhao and Sayed 2019, arXiv:1702.05122",
        section: "Algorithm 1 of part I, with (I + W)/2",
        file: file!(),
        options: &[],
    },
    sends: SENDS,
    lost_peer: LOST_PEER,
    resized: "every worker begins with the mean of the models and of the optimizers; \
              corrections are reset to zero",
    check: |_| Ok(()),
    codecs: |_| Codecs::Exact("it carries sums over all steps, in which every rounding would stay"),
    properties: |_| Properties {
        topology: TopologyRequirement::StaticSymmetric,
        reloadable: true,
        ..exchange::PROPERTIES
    },
    traffic: |_| exchange::traffic(1, When::AfterGradient, Gathers::Vectors),
    worker: |_| SyncGossip::boxed(Diffusion::new(0.5)),
    server: None,
};

/// The entry of D².
pub const D2: Entry = Entry {
    meta: Meta {
        name: "d2",
        summary: "exact diffusion with the full weights: faster mixing, on fewer topologies",
        paper: "Tang et al. 2018, arXiv:1803.07068",
        section: "Algorithm 1, with the step inside the correction, so that the rate may change",
        file: file!(),
        options: &[],
    },
    sends: SENDS,
    lost_peer: LOST_PEER,
    resized: "every worker begins with the mean of the models and of the optimizers; \
              corrections are reset to zero",
    check: |_| Ok(()),
    codecs: |_| Codecs::Exact("it carries sums over all steps, in which every rounding would stay"),
    properties: |_| Properties {
        topology: TopologyRequirement::MildlyNegative,
        reloadable: true,
        ..exchange::PROPERTIES
    },
    traffic: |_| exchange::traffic(1, When::AfterGradient, Gathers::Vectors),
    worker: |_| SyncGossip::boxed(Diffusion::new(1.0)),
    server: None,
};

/// One worker.
struct Diffusion {
    /// How much of the weights W is used: ½ for (I + W)/2.
    share: f32,
    /// c.
    correction: Vec<f32>,
}

impl Diffusion {
    fn new(share: f32) -> Diffusion {
        Diffusion { share, correction: Vec::new() }
    }
}

impl GossipMethod for Diffusion {
    const GATHERS: Gathers = Gathers::Vectors;
    const AWAITED: &'static str = "its corrected model";

    fn on_start(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
        self.correction.resize(cx.params.len(), 0.0);
        exchange.enter(cx, cx.step);
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        if b == 0 {
            exchange.begin(cx, cx.step);
        }
        if cx.outbox.view.changes_at(cx.step) {
            self.correction[cx.range(b)].fill(0.0);
        }
        cx.optimize(b, Mode::Displace);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        let range = cx.range(b);
        let params = &mut cx.params[range.clone()];
        vector::add_difference(1.0, &self.correction[range.clone()], &cx.grad[range], params);
        let message = Message::new(exchange::KIND, cx.step, b).with(cx.params_payload(b));
        exchange::post(&mut cx.outbox, &message);
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
        let (params, pull) = (&mut cx.params[range.clone()], &mut cx.grad[range.clone()]);
        gathered.pull(&mut cx.outbox, 0, params, self.share, pull);
        vector::add(pull, params);
        vector::add(pull, &mut self.correction[range]);
        exchange.finish();
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.vector("correction", &mut self.correction);
    }
}
