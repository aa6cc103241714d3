//! Synchronous parameter server (BSP): the servers take the step for everybody.
//!
//! ```text
//! worker, upon bucket b of g_i:        send g_i[b] to the servers that hold it
//! worker, upon the model of this step: x ← it; next gradient
//! server, upon g_i of step t from all: g ← Σ_i g_i / n in the order of ranks;  x̃ ← x̃ − η·Opt(g)
//!                                      send x̃ to all workers
//! upon a lost worker:                  divide by the number of gradients received
//! ```

use std::collections::BTreeMap;

use super::Entry;
use super::fold::Fold;
use crate::contract::{Algorithm, Awaited, Budget, Cx, Deploy, Facts, Mode, Need, Place};
use crate::message::{Message, Rank};
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

/// The row of the table.
pub const ENTRY: Entry = Entry {
    name: "sync-ps",
    summary: "synchronous parameter server; every step waits for all gradients",
    paper: "Li et al. 2014 (parameter server), with a barrier every step",
    sends: "the gradient to the servers, the model back, per step",
    lost_peer: "the servers divide by the number of gradients received",
    keys: &[],
    check: |_| Ok(()),
    facts: |_| Facts {
        synchronous: true,
        snapshot: false,
        servers: true,
        deploy: Deploy::Servers,
        budget: Budget::Rounds,
        topology: Need::Nothing,
        optimizer: Place::Servers,
        clips_itself: false,
        keeps_mean: true,
        waits_for_peers: true,
    },
    worker: |_| Box::<Worker>::default(),
    server: Some(|_| Box::<Server>::default()),
};

const GRADIENT: u8 = 1;
const MODEL: u8 = 2;

#[derive(Default)]
struct Worker {
    /// Servers whose piece of the new model has not come yet, one entry per piece.
    awaited: Vec<(Rank, usize)>,
    /// The gradient of this step is not complete yet.
    handing: bool,
}

impl Algorithm for Worker {
    fn on_bucket(&mut self, cx: &mut Cx<'_>, b: usize) {
        self.handing = true;
        for piece in &cx.pieces[b] {
            let values = cx.io.pool.copy(&cx.grad[piece.range.clone()]);
            cx.io.send(piece.server, Message::new(GRADIENT, cx.step, b).with(values));
            self.awaited.push((piece.server, b));
        }
    }

    fn on_gradient(&mut self, _cx: &mut Cx<'_>) {
        self.handing = false;
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, from: Rank, message: Message) {
        let b = message.bucket as usize;
        let awaited = self.awaited.iter().position(|piece| *piece == (from, b));
        let (Some(place), true) = (awaited, message.step == cx.step) else { return };
        self.awaited.swap_remove(place);
        let piece = cx.pieces[b].iter().find(|piece| piece.server == from);
        let range = piece.expect("awaited, so it is a piece").range.clone();
        cx.params[range].copy_from_slice(&message.into_values());
    }

    fn is_ready(&self) -> bool {
        self.awaited.is_empty() && !self.handing
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        let servers = self.awaited.iter();
        out.extend(servers.map(|(from, _)| Awaited { from: *from, what: "the new model" }));
    }

    fn state(&mut self, _visitor: &mut dyn Visitor) {}

    fn spans_views(&self) -> bool {
        true
    }
}

#[derive(Default)]
struct Server {
    /// Gradients of each (step, piece); a fast worker may be a step ahead.
    rounds: BTreeMap<(u64, usize), Fold>,
    /// Per piece, the step whose gradients are collected.
    steps: Vec<u64>,
    workers: Vec<Rank>,
}

impl Server {
    fn step_if_complete(&mut self, cx: &mut Cx<'_>, b: usize) {
        let round = (self.steps[b], b);
        let Some(fold) = self.rounds.get_mut(&round) else { return };
        fold.advance(&mut cx.io);
        if !fold.is_complete(&cx.io) {
            return;
        }
        let (sum, count) = self.rounds.remove(&round).expect("just seen").into_sum();
        vector::scaled(1.0 / count as f32, &sum, &mut cx.grad[cx.layout.range(b)]);
        cx.io.work(sum.len() * 4);
        cx.optimize_at(b, Mode::Apply, self.steps[b]);
        self.steps[b] += 1;
    }
}

impl Algorithm for Server {
    fn on_start(&mut self, cx: &mut Cx<'_>) {
        self.workers.clone_from(&cx.io.view.workers);
        self.steps.resize(cx.layout.buckets.len(), cx.step);
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, from: Rank, message: Message) {
        let Some(b) = local(cx, message.bucket) else { return };
        if message.step >= self.steps[b] {
            let fold = self.rounds.entry((message.step, b)).or_default();
            fold.take(&mut cx.io, from, message.into_values());
            self.step_if_complete(cx, b);
        }
    }

    fn on_optimized(&mut self, cx: &mut Cx<'_>, b: usize) {
        let id = cx.layout.buckets[b].id;
        let message = Message::new(MODEL, self.steps[b] - 1, id).with(cx.params_payload(b));
        for worker in &cx.io.view.workers {
            cx.io.send(*worker, message.clone());
        }
    }

    fn on_view(&mut self, cx: &mut Cx<'_>, _old: &View) {
        self.workers.clone_from(&cx.io.view.workers);
        (0..self.steps.len()).for_each(|b| self.step_if_complete(cx, b));
    }

    fn is_ready(&self) -> bool {
        false
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        for fold in self.rounds.values() {
            let missing = fold.missing(&self.workers);
            out.extend(missing.into_iter().map(|from| Awaited { from, what: "its gradient" }));
        }
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        for (piece, step) in self.steps.iter_mut().enumerate() {
            visitor.number(&format!("step.{piece}"), step);
        }
    }

    fn spans_views(&self) -> bool {
        true
    }
}

/// The server's own number for a bucket that a message names.
pub(super) fn local(cx: &Cx<'_>, id: u32) -> Option<usize> {
    cx.layout.buckets.binary_search_by_key(&(id as usize), |bucket| bucket.id).ok()
}
