//! EXTRA (Shi et al. 2015): D-PSGD in consensus form with a correction that sums up disagreement.
//!
//! ```text
//! state: p_i, at first 0
//! upon start:                            send x_i[b] for step 0, every bucket b
//! upon g[b] and x_j[b] of this step:     δ ← Σ_j W_ij (x_j − x_i)[b]
//!                                        x_i[b] ← x_i[b] + δ − (η·Opt(g[b]) + p_i[b]);  p_i[b] ← p_i[b] − δ/2
//!                                        send x_i[b] for the next step
//! upon a lost peer:                      its weight goes to myself at once; at the agreed step p_i ← 0
//! ```
//! The published form, x″ = (I+W)x′ − ½(I+W)x − η(g′ − g), is this with p eliminated. With p the
//! exchange overlaps the computation, one vector is kept instead of three, and since Σ p_i = 0 the
//! mean takes the step −η·ḡ whatever the learning rate was before.

use super::{Codecs, Entry, Gathers, When};
use crate::contract::{Context, Mode};
use crate::kit::exchange::{self, Exchange, Gathered, GossipMethod, SyncGossip};
use crate::message::Message;
use crate::meta::Meta;
use crate::properties::{Properties, TopologyRequirement};
use crate::state::Visitor;
use crate::vector;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "extra",
        summary: "d-psgd with a correction of its bias: the exact optimum on unequal data",
        paper: "Shi, Ling, Wu and Yin 2015, arXiv:1404.6264",
        section: "Algorithm 1",
        file: file!(),
        options: &[],
    },
    sends: "the model to every neighbour per step",
    lost_peer: "its weight goes to the receivers at once; at an agreed step the survivors set \
                their corrections back to zero, over the rebuilt topology",
    resized: "every worker begins with the mean of the models and of the optimizers; \
              corrections are reset to zero",
    check: |_| Ok(()),
    codecs: |_| Codecs::Exact("it carries sums over all steps, in which every rounding would stay"),
    properties: |_| Properties {
        topology: TopologyRequirement::StaticSymmetric,
        ..exchange::PROPERTIES
    },
    traffic: |_| exchange::traffic(1, When::DuringGradient, Gathers::Vectors),
    worker: |_| SyncGossip::boxed(Extra::default()),
    server: None,
};

/// One worker.
#[derive(Default)]
struct Extra {
    /// Half the disagreement with the neighbours, summed over all steps.
    correction: Vec<f32>,
}

impl Extra {
    fn post(&self, cx: &mut Context<'_>, b: usize, step: u64) {
        let message = Message::new(exchange::KIND, step, b).with(cx.params_payload(b));
        exchange::post(&mut cx.outbox, &message);
    }
}

impl GossipMethod for Extra {
    const GATHERS: Gathers = Gathers::Vectors;
    const AWAITED: &'static str = "its model";

    fn on_start(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
        self.correction.resize(cx.params.len(), 0.0);
        exchange.enter(cx, cx.step);
        if cx.step < cx.steps {
            (0..cx.layout.buckets.len()).for_each(|b| self.post(cx, b, cx.step));
        }
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

    fn on_optimized(&mut self, _cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
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
        let (params, displacement) = (&mut cx.params[range.clone()], &mut cx.grad[range.clone()]);
        let correction = &mut self.correction[range];
        let mut scratch = cx.outbox.pool.take(params.len());
        let pull = scratch.try_mut().expect("just taken, so held by nobody else");
        gathered.pull(&mut cx.outbox, 0, params, 1.0, pull);
        vector::add(correction, displacement);
        vector::add_difference(1.0, pull, displacement, params);
        vector::axpy(-0.5, pull, correction);
        if !cx.is_last_step() {
            self.post(cx, b, cx.step + 1);
        }
        exchange.finish();
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.vector("correction", &mut self.correction);
    }
}
