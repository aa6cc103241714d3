//! DecentLaM (Yuan et al. 2021): momentum that does not amplify the bias of unequal data.
//!
//! ```text
//! upon g[b] at x_i:                h ← x_i[b] − η·g[b];  send h
//! upon h_j from all neighbours:    y ← Σ_j W_ij h_j;  g̃ ← (x_i[b] − y)/η;  x_i[b] ← x_i[b] − η·Opt(g̃)
//! upon a lost peer:                its weight goes to myself at once
//! ```
//! The optimizer, and so its momentum, works on g̃: the gradient together with the pull of the
//! neighbours; clipping by the norm concerns g alone. Without momentum x_i⁺ = y, which is D-PSGD in adapt-then-combine form.

use super::{Codecs, Entry, Gathers, When};
use crate::contract::{Context, Mode};
use crate::kit::exchange::{self, Exchange, Gathered, GossipMethod, SyncGossip};
use crate::message::Message;
use crate::meta::Meta;
use crate::properties::Properties;
use crate::state::Visitor;
use crate::vector;
use crate::vector::dispatch::{Level, PART_MIN, in_parts, kernel};

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "decentlam",
        summary: "d-psgd whose optimizer sees gradient and neighbours as one; for momentum 0.9 or so",
        paper: "Yuan et al. 2021, arXiv:2104.11981",
        section: "the algorithm named DecentLaM",
        file: file!(),
        options: &[],
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
    properties: |_| Properties { reads_gradient: true, clips_itself: true, ..exchange::PROPERTIES },
    traffic: |_| exchange::traffic(1, When::AfterGradient, Gathers::Means),
    worker: |_| SyncGossip::boxed(DecentLam),
    server: None,
};

/// One worker.
struct DecentLam;

impl DecentLam {
    /// Steps bucket `b` and sends it.
    fn step(cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        let stepped = &mut cx.grad[cx.layout.range(b)];
        vector::scale(-cx.learning_rate, stepped);
        vector::add(&cx.params[cx.layout.range(b)], stepped);
        let message = Message::new(exchange::KIND, cx.step, b).with(cx.outbox.pool.copy(stepped));
        exchange.post(&mut cx.outbox, message);
        exchange.wait(b);
    }
}

impl GossipMethod for DecentLam {
    const AWAITED: &'static str = "its stepped model";

    fn on_start(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
        exchange.enter(cx, cx.step);
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize) {
        if b == 0 {
            exchange.begin(cx, cx.step);
        }
        if cx.clip.is_none() {
            DecentLam::step(cx, exchange, b);
        }
    }

    /// The gradient is clipped, not the pull of the neighbours that is added to it.
    fn on_gradient(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange) {
        if let Some(limit) = cx.clip {
            vector::clip(f64::from(limit), cx.grad);
            (0..cx.layout.buckets.len()).for_each(|b| DecentLam::step(cx, exchange, b));
        }
    }

    fn on_optimized(&mut self, _cx: &mut Context<'_>, exchange: &mut Exchange, _b: usize) {
        exchange.finish();
    }

    fn on_gathered(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
        b: usize,
        gathered: Gathered,
    ) {
        let range = cx.range(b);
        let (params, mixed) = (&mut cx.params[range.clone()], &mut cx.grad[range]);
        gathered.mix(&mut cx.outbox, 0, mixed);
        if cx.learning_rate == 0.0 {
            // The limit of a small rate: g̃ alone moves the parameters, all the way to y.
            params.copy_from_slice(mixed);
            return exchange.finish();
        }
        pull(1.0 / cx.learning_rate, params, mixed);
        cx.optimize(b, Mode::Apply);
    }

    /// Between steps there is nothing but parameters and optimizer.
    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}

/// `y ← a·(x − y)`.
fn pull(a: f32, x: &[f32], y: &mut [f32]) {
    let level = Level::best();
    in_parts([y], PART_MIN, |at, [y]| pull_part(level, a, &x[at..][..y.len()], y));
}

kernel! {
    fn pull_part(a: f32, x: &[f32], y: &mut [f32]) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = a * (x - *y);
        }
    }
}
