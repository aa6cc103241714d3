//! BRIDGE: Byzantine-resilient decentralized gradient descent with a trimmed mean (Fang, Yang and Bajwa
//! 2022, BRIDGE-T).
//!
//! ```text
//! upon start:                          send x_i[b] for step 0, every bucket b
//! upon g[b] and x_j[b] of this step, per coordinate:
//!                                      drop the f largest and the f smallest of the neighbours' values;
//!                                      x_i[b] ← mean of the rest and my own;  x_i[b] ← x_i[b] − η·Opt(g[b])
//!                                      send x_i[b] for the next step
//! upon a lost peer:                    one neighbour fewer at once
//! ```
//! The gradient is taken at the unmixed x_i, as in D-PSGD's consensus form. Weights of the topology are not
//! used, only its edges. A worker with no more than 2f neighbours keeps its own values.

use super::robust_gossip::{BYZANTINE, PROPERTIES};
use super::{Codecs, Entry, Gathers, When};
use crate::contract::{Context, Mode};
use crate::kit::exchange::{self, Exchange, Gathered, GossipMethod, SyncGossip};
use crate::message::Message;
use crate::meta::Meta;
use crate::robust::screened_mean;
use crate::state::Visitor;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "bridge",
        summary: "gossip by a trimmed mean of every coordinate over the neighbours",
        paper: "Fang, Yang and Bajwa 2022, arXiv:1908.08098",
        section: "BRIDGE-T: coordinate-wise trimmed-mean screening",
        file: file!(),
        options: &[BYZANTINE],
    },
    sends: "the model to every neighbour per step",
    lost_peer: "it is no longer a neighbour; the topology is rebuilt over the survivors from an agreed \
                step on",
    resized: "every worker begins with the mean of the models and of the optimizers, over \
              the new topology",
    check: |_| Ok(()),
    codecs: |_| Codecs::OF_MODELS,
    properties: |_| PROPERTIES,
    traffic: |_| exchange::traffic(1, When::DuringGradient, Gathers::Vectors),
    worker: |options| {
        SyncGossip::boxed(Bridge { byzantine: options.whole(BYZANTINE.name) as usize })
    },
    server: None,
};

const MODEL: u8 = 1;

/// One worker.
struct Bridge {
    /// Neighbours that may send anything.
    byzantine: usize,
}

impl Bridge {
    fn post(&self, cx: &mut Context<'_>, b: usize, step: u64) {
        let message = Message::new(MODEL, step, b).with(cx.params_payload(b));
        exchange::post(&mut cx.outbox, &message);
    }
}

impl GossipMethod for Bridge {
    const GATHERS: Gathers = Gathers::Vectors;
    const AWAITED: &'static str = "its model";

    fn on_start(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
        exchange.enter(cx, cx.step);
        if cx.step < cx.steps {
            (0..cx.layout.buckets.len()).for_each(|b| self.post(cx, b, cx.step));
        }
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        if b == 0 {
            exchange.begin(cx, cx.step);
        }
        exchange.wait(b);
    }

    fn on_gathered(
        &mut self,
        cx: &mut Context<'_>,
        _exchange: &mut Exchange,
        b: usize,
        gathered: Gathered,
    ) {
        let neighbours: Vec<&[f32]> = gathered.vectors(0).map(|(_, values)| values).collect();
        screened_mean(&neighbours, self.byzantine, &mut cx.params[cx.layout.range(b)]);
        cx.optimize(b, Mode::Apply);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        if !cx.is_last_step() {
            self.post(cx, b, cx.step + 1);
        }
        exchange.finish();
    }

    /// Between steps there is nothing but parameters and optimizer; `on_start` posts them again.
    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}
