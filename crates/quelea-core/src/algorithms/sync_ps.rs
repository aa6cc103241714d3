//! Synchronous parameter server (BSP): the servers take the step for all workers.
//!
//! ```text
//! worker, upon bucket b of g_i:        send g_i[b] to the servers that hold it
//! worker, upon the model of this step: x ← it; next gradient
//! server, upon g_i of step t from all: g ← Σ_i g_i / n in the order of ranks;  x̃ ← x̃ − η·Opt(g)
//!                                      send x̃ to all workers
//!     with b backup workers:           from the first n − b instead of all; later ones are dropped
//! worker, upon models of later steps:  it was too late: x ← the newest; enter there
//!     when the run comes to rest:      the same, without a gradient that would be too late
//! upon a lost worker:                  divide by the number of gradients received
//! with a robust rule A:                g ← A(g_1, …, g_n) over all buckets of the server at once
//! with a codec C (DoubleSqueeze, Tang et al. 2019):
//!     worker sends C(g_i + e_i) and keeps e_i, the server sends d = C(η·Opt(g) + E) and keeps E;
//!     server and workers:              x ← x − d
//! ```
//! With a codec the replicas hold the same bits as the servers after every step.

use std::collections::BTreeMap;

use super::{Codecs, Entry, Service, Traffic};
use crate::codec::{CodecShape, Coder, ErrorFeedback};
use crate::collectives::fold::Fold;
use crate::contract::{Algorithm, Awaited, Context, Effect, Mode};
use crate::kit::servers::{self, local_bucket};
use crate::message::{Message, Rank};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec};
use crate::payload::Payload;
use crate::properties::{
    Budget, DeployedFrom, OptimizerRequirement, OptimizerSite, OptimizerState, Properties,
    TopologyRequirement,
};
use crate::robust::{self, Aggregation, GradientLedger};
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "sync-ps",
        summary: "synchronous parameter server; every step waits for all gradients, or for all but a few",
        paper: "Li et al. 2014 (parameter server), with a barrier every step; backup workers: Chen et \
            al. 2016, arXiv:1604.00981; robust rules: arXiv:1703.02757 (Krum), 1803.01498 (median, \
            trimmed mean), 1912.13445 (geometric median), 2012.10333 (centered clipping), 2006.09365 \
            (bucketing), 2302.01772 (NNM)",
        section: "Algorithm 1 of Li et al. with a barrier; backup workers: the section of that name; \
            robust rules: `robust.rs` names the paper of each",
        file: file!(),
        options: &[
            OptionSpec {
                name: "backup",
                kind: OptionKind::Whole { default: 0, min: 0, max: 1 << 20 },
                help: "a step waits for all but this many gradients, and for one at least; late ones are dropped",
            },
            robust::AGGREGATE,
            robust::PRE_AGGREGATE,
            robust::BYZANTINE,
            robust::CLIP_RADIUS,
            robust::ITERATIONS,
        ],
    },
    sends: "the gradient to the servers, the model back, per step",
    lost_peer: "the servers divide by the number of gradients received",
    resized: "workers begin with the servers' model, servers with their new part of it and \
              of the optimizer",
    check: |options| match (options.whole("backup"), Aggregation::of(options).is_mean()) {
        (0, _) | (_, true) => Ok(()),
        _ => Err("`backup` drops late gradients, and robust rules need those of all workers: use \
                  `backup` = 0, or `aggregate` = \"mean\" without `pre_aggregate`"),
    },
    codecs: |options| match options.whole("backup") {
        0 => Codecs::Feedback,
        _ => Codecs::Exact("a worker that is late takes the newest model, and codecs send changes"),
    },
    properties: |options| Properties {
        synchronous: options.whole("backup") == 0,
        snapshot: false,
        servers: true,
        deploy: DeployedFrom::Servers,
        budget: Budget::Rounds,
        topology: TopologyRequirement::Nothing,
        optimizer: OptimizerSite::Servers,
        reads_gradient: true,
        clips_itself: false,
        keeps_mean: true,
        optimizer_rule: OptimizerRequirement::Any,
        waits_for_peers: true,
        own_start: false,
        reloadable: false,
        needs_loss: false,
        optimizer_state: OptimizerState::Kept,
    },
    traffic: |_| Traffic::Servers(Service::Together { period: 1 }),
    worker: |_| Box::<Worker>::default(),
    server: Some(|options| {
        Box::new(Server {
            backup: options.whole("backup") as usize,
            aggregation: Aggregation::of(options),
            ..Server::default()
        })
    }),
};

const GRADIENT: u8 = 1;
const MODEL: u8 = 2;

#[derive(Default)]
struct Worker {
    /// The server of each piece.
    servers: Vec<Rank>,
    /// Models that have arrived, by step and piece; several at a late worker.
    models: BTreeMap<u64, BTreeMap<usize, Payload>>,
    /// The gradient of this step is not complete yet.
    handing: bool,
    /// The step is not over.
    waiting: bool,
    /// The run comes to rest: models that have arrived are not kept for the next step.
    resting: bool,
    /// Servers send what changes, not the model.
    coded: bool,
    /// What the codec has left out, per piece.
    lanes: Vec<ErrorFeedback>,
}

impl Worker {
    /// Takes the newest model that is there whole.
    fn adopt(&mut self, cx: &mut Context<'_>) {
        let whole = self.models.iter().rev().find(|(_, pieces)| pieces.len() == self.servers.len());
        let takes_models = (self.waiting || self.resting) && !self.handing;
        let Some((&step, pieces)) = whole.filter(|_| takes_models) else { return };
        for (piece, values) in cx.pieces.iter().flatten().zip(pieces.values()) {
            let params = &mut cx.params[piece.range.clone()];
            if self.coded {
                vector::axpy(-1.0, values, params)
            } else {
                params.copy_from_slice(values)
            }
        }
        self.models = self.models.split_off(&(step + 1));
        let is_own_step = std::mem::take(&mut self.waiting) && step == cx.step;
        if !is_own_step {
            cx.outbox.out.push(Effect::JumpToStep(step + 1));
        }
    }

    fn has(&self, step: u64, piece: usize) -> bool {
        self.models.range(step..).any(|(_, pieces)| pieces.contains_key(&piece))
    }
}

impl Algorithm for Worker {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.servers = cx.pieces.iter().flatten().map(|piece| piece.server).collect();
        self.lanes.resize_with(self.servers.len(), ErrorFeedback::default);
        self.coded = cx.outbox.coder.shape() != CodecShape::Plain;
        self.resting = false;
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        (self.handing, self.waiting) = (true, true);
        for piece in &cx.pieces[b] {
            if self.has(cx.step, piece.index) {
                continue;
            }
            let lane = &mut self.lanes[piece.index];
            lane.at_rate(cx.learning_rate);
            let (message, grad) =
                (Message::new(GRADIENT, cx.step, b), &cx.grad[piece.range.clone()]);
            let message = lane.load(&mut cx.outbox, message, grad);
            cx.outbox.send(piece.server, message);
        }
    }

    fn on_gradient(&mut self, cx: &mut Context<'_>) {
        self.handing = false;
        self.adopt(cx);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let pieces = &cx.pieces[message.bucket as usize];
        let Some(piece) = pieces.iter().find(|piece| piece.server == from) else { return };
        if message.step >= cx.step {
            let models = self.models.entry(message.step).or_default();
            models.insert(piece.index, message.into_values());
            self.adopt(cx);
        }
    }

    /// The servers sent their models once, and a state that is saved holds none of them: a worker
    /// that was late takes the newest now, or it would wait for one that nobody sends again.
    fn on_drain(&mut self, cx: &mut Context<'_>) {
        self.resting = true;
        self.adopt(cx);
    }

    fn is_ready(&self) -> bool {
        !self.waiting
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        let missing = (0..self.servers.len()).filter(|piece| self.waiting && !self.has(0, *piece));
        out.extend(missing.map(|p| Awaited { from: self.servers[p], what: "the new model" }));
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        servers::feedback_state(&mut self.lanes, visitor);
    }

    fn keeps_older_views(&self) -> bool {
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
    /// How many gradients a step does not wait for.
    backup: usize,
    /// How gradients become one.
    aggregation: Aggregation,
    /// Gradients by step, where they are not summed as they come.
    ledgers: BTreeMap<u64, GradientLedger>,
    /// The last aggregate, where the next one depends on it.
    center: Vec<f32>,
    /// Send what changes, not the model.
    coded: bool,
    /// What the codec has left out, per piece.
    lanes: Vec<ErrorFeedback>,
}

impl Server {
    fn step_if_complete(&mut self, cx: &mut Context<'_>, b: usize) {
        let round = (self.steps[b], b);
        let Some(fold) = self.rounds.get_mut(&round) else { return };
        fold.advance(&mut cx.outbox);
        let enough = cx.outbox.view.workers.len().saturating_sub(self.backup).max(1);
        if !fold.is_complete(&cx.outbox) && fold.len() < enough {
            return;
        }
        fold.close(&mut cx.outbox);
        let (sum, count) = self.rounds.remove(&round).expect("just seen").into_sum();
        vector::scaled(1.0 / count as f32, &sum, &mut cx.grad[cx.layout.range(b)]);
        cx.outbox.work(sum.len() * 4);
        let mode = if self.coded { Mode::Displace } else { Mode::Apply };
        cx.optimize_at(b, mode, self.steps[b]);
        self.steps[b] += 1;
    }
}

impl Server {
    /// As [`step_if_complete`](Server::step_if_complete), for all buckets at once.
    fn step_robustly_if_complete(&mut self, cx: &mut Context<'_>) {
        let step = self.steps[0];
        let Some(ledger) = self.ledgers.get(&step) else { return };
        let vectors = ledger.vectors();
        if vectors.is_empty() || !ledger.missing(&cx.outbox.view.workers).is_empty() {
            return;
        }
        if self.aggregation.has_center() {
            self.center.resize(cx.grad.len(), 0.0);
        }
        self.aggregation.combine(&vectors, &self.center, cx.outbox.rng, cx.grad);
        if self.aggregation.has_center() {
            self.center.copy_from_slice(cx.grad);
        }
        let passes = self.aggregation.passes(vectors.len());
        cx.outbox.work(passes * vectors.len() * cx.grad.len() * 4);
        self.ledgers.remove(&step);
        let mode = if self.coded { Mode::Displace } else { Mode::Apply };
        for b in 0..self.steps.len() {
            cx.optimize_at(b, mode, step);
            self.steps[b] += 1;
        }
    }

    /// Moves the model by what receivers will decode of the displacement, and puts that into
    /// `message`.
    fn squeeze(&mut self, cx: &mut Context<'_>, b: usize, mut message: Message) -> Message {
        let (range, at) = (cx.range(b), Coder::place(cx.outbox.rank, &message, 0));
        let displacement = &mut cx.grad[range.clone()];
        let lane = &mut self.lanes[b];
        message.parts[0] = lane.pack(cx.outbox.coder, at, displacement, cx.outbox.pool);
        vector::axpy(-1.0, displacement, &mut cx.params[range]);
        message
    }
}

impl Algorithm for Server {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.workers.clone_from(&cx.outbox.view.workers);
        self.steps.resize(cx.layout.buckets.len(), cx.step);
        self.lanes.resize_with(cx.layout.buckets.len(), ErrorFeedback::default);
        self.coded = cx.outbox.coder.shape() != CodecShape::Plain;
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let Some(b) = local_bucket(cx, message.bucket) else { return };
        if message.step < self.steps[b] {
            return;
        }
        message.expect_length(cx.layout.range(b).len());
        if self.aggregation.is_mean() {
            let fold = self.rounds.entry((message.step, b)).or_default();
            fold.take(&mut cx.outbox, from, message.into_values());
            self.step_if_complete(cx, b);
        } else {
            let ledger = self.ledgers.entry(message.step).or_default();
            ledger.take(cx.layout, cx.outbox.pool, from, b, &message.into_values());
            self.step_robustly_if_complete(cx);
        }
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        let id = cx.layout.buckets[b].id;
        let message = Message::new(MODEL, self.steps[b] - 1, id);
        let message = if self.coded {
            self.squeeze(cx, b, message)
        } else {
            message.with(cx.params_payload(b))
        };
        for worker in &cx.outbox.view.workers {
            cx.outbox.send(*worker, message.clone());
        }
    }

    fn on_view(&mut self, cx: &mut Context<'_>, _old: &View) {
        self.workers.clone_from(&cx.outbox.view.workers);
        (0..self.steps.len()).for_each(|b| self.step_if_complete(cx, b));
        self.step_robustly_if_complete(cx);
    }

    fn is_ready(&self) -> bool {
        false
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        let folds = self.rounds.values().map(|fold| fold.missing(&self.workers));
        let ledgers = self.ledgers.values().map(|ledger| ledger.missing(&self.workers));
        for missing in folds.chain(ledgers) {
            out.extend(missing.into_iter().map(|from| Awaited { from, what: "its gradient" }));
        }
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.numbers("steps", &mut self.steps);
        servers::feedback_state(&mut self.lanes, visitor);
        if self.aggregation.has_center() {
            visitor.vector("center", &mut self.center);
        }
    }

    fn is_at_cut(&self, step: u64) -> bool {
        self.steps.iter().all(|done| *done == step)
    }

    fn keeps_older_views(&self) -> bool {
        true
    }
}
