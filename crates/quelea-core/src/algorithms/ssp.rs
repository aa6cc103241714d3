//! SSP: stale synchronous parallel (Ho et al. 2013). A fast worker may be `s` steps ahead.
//!
//! ```text
//! worker, upon bucket b of g_i at clock c:   push g_i[b];  clock c + 1
//! worker, upon the model in answer:          x ← it; next gradient
//! server, upon g of clock c from worker i:   x̃ ← x̃ − η·Opt(g)/n;  clock_i = c + 1
//!                                            answer i with x̃ as soon as min_j clock_j ≥ c + 1 − s
//! upon a lost worker:                        it no longer counts for the minimum
//! ```
//! So clocks never differ by more than s + 1, and an answer holds all updates of all workers up
//! to clock c − s and all of the receiver's own. The worker's side is that of ASP, which this is
//! when s is large. With s = 0 it is the synchronous parameter server and is run as such: a
//! server takes the gradients of one clock together.

use std::collections::BTreeMap;

use super::{Codecs, Entry, Service, Traffic, asp, sync_ps};
use crate::contract::{Algorithm, Awaited, Context, Fact, Mode};
use crate::kit::servers::local_bucket;
use crate::message::{Message, Rank};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::properties::{Budget, Properties};
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "ssp",
        summary: "parameter server whose fast workers may be `staleness` steps ahead of the slowest",
        paper: "Ho et al. 2013 (NIPS)",
        section: "Section 2 (the bounded-staleness model); reads as in its read-my-writes rule",
        file: file!(),
        options: &[OptionSpec {
            name: "staleness",
            kind: OptionKind::Whole { default: 3, min: 0, max: u64::MAX },
            help: "how many steps a worker may be ahead of the slowest one when it starts a gradient",
        }],
    },
    sends: "the gradient to the servers, the model back, per gradient",
    lost_peer: "it no longer holds the others back; what it pushed stays",
    resized: "workers begin with the servers' model, servers with their new part of it and \
              of the optimizer; clocks are reset",
    check: |_| Ok(()),
    codecs: |_| Codecs::Feedback,
    properties: |options| {
        if is_synchronous(options) {
            return (sync_ps::ENTRY.properties)(&sync_params());
        }
        // Every worker does its rounds: none runs alone for more than s + 1 of them, and a worker
        // that is held back must not keep gradients from those it waits for.
        let budget = Budget::Rounds;
        Properties { budget, waits_for_peers: true, ..(asp::ENTRY.properties)(options) }
    },
    traffic: |options| match options.whole("staleness") {
        0 => (sync_ps::ENTRY.traffic)(&sync_params()),
        ahead => Traffic::Servers(Service::Alone { ahead }),
    },
    worker: |options| {
        if is_synchronous(options) {
            (sync_ps::ENTRY.worker)(&sync_params())
        } else {
            (asp::ENTRY.worker)(options)
        }
    },
    server: Some(|options| {
        if is_synchronous(options) {
            sync_ps::ENTRY.server.expect("it has servers")(&sync_params())
        } else {
            Box::new(Server::new(options))
        }
    }),
};

fn is_synchronous(options: &Options) -> bool {
    options.whole("staleness") == 0
}

fn sync_params() -> Options {
    Options::defaults(sync_ps::ENTRY.meta.options)
}

struct Server {
    staleness: u64,
    pieces: Vec<PieceState>,
    /// Whose gradient is being applied: worker, its step.
    serving: Option<(Rank, u64)>,
}

/// What a server keeps for one piece of the model.
#[derive(Debug, Default)]
struct PieceState {
    /// Updates applied.
    version: u64,
    /// Gradients of each living worker that were applied.
    clocks: BTreeMap<Rank, u64>,
    /// Answers that are held back, with the clock that all must have reached first.
    held: BTreeMap<Rank, u64>,
}

impl PieceState {
    fn slowest(&self) -> u64 {
        self.clocks.values().copied().min().unwrap_or(0)
    }
}

impl Server {
    fn new(options: &Options) -> Server {
        Server { staleness: options.whole("staleness"), pieces: Vec::new(), serving: None }
    }

    /// Answers the workers that are no longer too far ahead.
    fn answer(&mut self, cx: &mut Context<'_>, b: usize) {
        let piece = &mut self.pieces[b];
        let slowest = piece.slowest();
        let near = |needed: &u64| *needed <= slowest;
        let free = piece.held.iter().filter(|(_, needed)| near(needed));
        let free: Vec<Rank> = free.map(|(rank, _)| *rank).collect();
        piece.held.retain(|_, needed| !near(needed));
        if free.is_empty() {
            return;
        }
        let values = cx.params_payload(b);
        for worker in free {
            let step = piece.clocks[&worker] - 1;
            let id = cx.layout.buckets[b].id;
            let mut message = Message::new(asp::MODEL, step, id).with(values.clone());
            message.seq = piece.version;
            let message = cx.outbox.rounded(message);
            cx.outbox.send(worker, message);
        }
    }
}

impl Algorithm for Server {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.pieces.resize_with(cx.layout.buckets.len(), PieceState::default);
        for piece in &mut self.pieces {
            for worker in &cx.outbox.view.workers {
                piece.clocks.entry(*worker).or_insert(0);
            }
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let Some(b) = local_bucket(cx, message.bucket) else { return };
        let piece = &mut self.pieces[b];
        let clock = piece.clocks.get(&from).copied().unwrap_or(u64::MAX);
        if message.step < clock {
            // Every push is applied exactly once; one that comes again wants its answer again.
            if message.step + 1 == clock {
                piece.held.insert(from, clock.saturating_sub(self.staleness));
                self.answer(cx, b);
            }
            return;
        }
        if b == 0 {
            let staleness = piece.version.saturating_sub(message.seq);
            cx.outbox.measure(Fact::Staleness(staleness));
        }
        let step = message.step;
        self.serving = Some((from, step));
        cx.grad[cx.layout.range(b)].copy_from_slice(&message.into_values());
        cx.optimize_at(b, Mode::Displace, step);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        let (worker, step) = self.serving.take().expect("it was asked for");
        let (range, share) = (cx.range(b), 1.0 / cx.outbox.view.workers.len() as f32);
        vector::axpy(-share, &cx.grad[range.clone()], &mut cx.params[range.clone()]);
        cx.outbox.work(range.len() * 4);
        let piece = &mut self.pieces[b];
        piece.version += 1;
        piece.clocks.insert(worker, step + 1);
        piece.held.insert(worker, (step + 1).saturating_sub(self.staleness));
        self.answer(cx, b);
    }

    /// A worker that joins enters at the slowest clock.
    fn on_view(&mut self, cx: &mut Context<'_>, _old: &View) {
        for b in 0..self.pieces.len() {
            let piece = &mut self.pieces[b];
            piece.clocks.retain(|rank, _| cx.outbox.view.is_alive(*rank));
            piece.held.retain(|rank, _| cx.outbox.view.is_alive(*rank));
            let slowest = piece.slowest();
            for worker in &cx.outbox.view.workers {
                piece.clocks.entry(*worker).or_insert(slowest);
            }
            self.answer(cx, b);
        }
    }

    fn is_ready(&self) -> bool {
        false
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        for piece in self.pieces.iter().filter(|piece| !piece.held.is_empty()) {
            let slowest = piece.slowest();
            let slow = piece.clocks.iter().filter(|(_, clock)| **clock == slowest);
            out.extend(slow.map(|(from, _)| Awaited { from: *from, what: "its gradient" }));
        }
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        let mut count = self.pieces.len() as u64;
        visitor.number("pieces", &mut count);
        self.pieces.resize_with(count as usize, PieceState::default);
        for (index, piece) in self.pieces.iter_mut().enumerate() {
            visitor.number(&format!("piece.{index}.version"), &mut piece.version);
            visitor.by_rank(&format!("piece.{index}.clocks"), &mut piece.clocks);
            visitor.by_rank(&format!("piece.{index}.held"), &mut piece.held);
        }
    }

    fn keeps_older_views(&self) -> bool {
        true
    }
}
