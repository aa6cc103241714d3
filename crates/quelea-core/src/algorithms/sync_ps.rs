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
//! with `majority-vote`:                g ← sgn(Σ_i sgn(g_i)), sgn(0) = 1; with the codec `sign` a bit
//!                                      per element up and down, and no error feedback at workers
//! with a rule for being lazy (`sync_ps/lazy.rs`): a worker sends no gradient where the last one that
//!     it sent is good enough: the server uses that one again, and sends displacements, none where
//!     the last one is to be repeated
//! with a codec C (DoubleSqueeze, Tang et al. 2019):
//!     worker sends C(g_i + e_i) and keeps e_i, the server sends d = C(η·Opt(g) + E) and keeps E;
//!     server and workers:              x ← x − d
//! ```
//! With a codec the replicas hold the same bits as the servers after every step.

mod lazy;
mod server;

use std::collections::BTreeMap;

use super::{Codecs, Entry, Service, Traffic};
use crate::codec::{CodecShape, ErrorFeedback};
use crate::contract::{Algorithm, Awaited, Context, Effect};
use crate::kit::servers;
use crate::message::{Message, Rank};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::payload::Payload;
use crate::properties::{
    Budget, DeployedFrom, OptimizerRequirement, OptimizerSite, OptimizerState, Properties,
    TopologyRequirement,
};
use crate::robust::{self, Aggregation, AggregationRule};
use crate::state::Visitor;
use crate::vector;
use lazy::LazyUploads;
use server::Server;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "sync-ps",
        summary: "synchronous parameter server; every step waits for all gradients, or for all but a few",
        paper: "Li et al. 2014 (parameter server), with a barrier every step; backup workers: Chen et \
            al. 2016, arXiv:1604.00981; robust rules: arXiv:1703.02757 (Krum), 1803.01498 (median, \
            trimmed mean), 1912.13445 (geometric median), 2012.10333 (centered clipping), 2006.09365 \
            (bucketing), 2302.01772 (NNM), 1810.05291 (majority vote); lazy uploads: 1805.09965 (LAG), \
            2002.11360 (LASG)",
        section: "Algorithm 1 of Li et al. with a barrier; backup workers: the section of that name; \
            robust rules: `robust.rs` names the paper of each; lazy uploads: LAG-WK, and the rule of \
            LASG-PS at the workers",
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
            lazy::LAZY,
            lazy::THRESHOLD,
            lazy::WINDOW,
            lazy::SMOOTHNESS,
        ],
    },
    sends: "the gradient to the servers, the model back, per step; with `lazy` at most that",
    lost_peer: "the servers divide by the number of gradients received",
    resized: "workers begin with the servers' model, servers with their new part of it and \
              of the optimizer",
    check,
    codecs,
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
        optimizer_rule: match LazyUploads::of(options) {
            None => OptimizerRequirement::Any,
            Some(_) => OptimizerRequirement::PlainSgd(
                "`lazy` takes the movement of the model over the learning rate for its gradient",
            ),
        },
        waits_for_peers: true,
        own_start: false,
        reloadable: false,
        needs_loss: false,
        optimizer_state: OptimizerState::Kept,
    },
    traffic: |_| Traffic::Servers(Service::Together { period: 1 }),
    worker: |options| {
        let lazy = LazyUploads::of(options);
        Box::new(Worker { votes: votes(options), lazy, ..Worker::default() })
    },
    server: Some(|options| Box::new(Server::new(options))),
};

fn check(options: &Options) -> Result<(), &'static str> {
    let is_mean = Aggregation::of(options).is_mean();
    if options.whole("backup") > 0 && !is_mean {
        return Err(
            "`backup` drops late gradients, and robust rules need those of all workers: use \
                    `backup` = 0, or `aggregate` = \"mean\" without `pre_aggregate`",
        );
    }
    if LazyUploads::of(options).is_some() && (options.whole("backup") > 0 || !is_mean) {
        return Err(
            "`lazy` needs the gradients of all workers and their mean: use `backup` = 0 and \
                    `aggregate` = \"mean\" without `pre_aggregate`",
        );
    }
    Ok(())
}

fn codecs(options: &Options) -> Codecs {
    if options.whole("backup") > 0 {
        return Codecs::Exact(
            "a worker that is late takes the newest model, and codecs send changes",
        );
    }
    if LazyUploads::of(options).is_some() {
        return Codecs::Exact("a gradient that is used again and again must be exact");
    }
    if votes(options) { Codecs::Signs } else { Codecs::Feedback }
}

/// Whether workers have a vote each on the sign of every element.
fn votes(options: &Options) -> bool {
    Aggregation::of(options).rule == AggregationRule::MajorityVote
}

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
    /// Signs are all that counts of my gradient: nothing is left out of them.
    votes: bool,
    /// When not to send a gradient.
    lazy: Option<LazyUploads>,
}

impl Worker {
    /// Sends bucket `b` of the gradient to the servers that hold it.
    fn push(&mut self, cx: &mut Context<'_>, b: usize, is_sent: bool) {
        for piece in &cx.pieces[b] {
            if self.has(cx.step, piece.index) {
                continue;
            }
            let lane = &mut self.lanes[piece.index];
            lane.at_rate(cx.learning_rate);
            let (message, grad) =
                (Message::new(GRADIENT, cx.step, b), &cx.grad[piece.range.clone()]);
            let message = if !is_sent {
                message
            } else if self.votes && self.coded {
                let message = message.with(cx.outbox.pool.copy(grad));
                cx.outbox.encoded(message)
            } else {
                lane.load(&mut cx.outbox, message, grad)
            };
            cx.outbox.send(piece.server, message);
        }
    }

    /// Takes the newest model that is there whole.
    fn adopt(&mut self, cx: &mut Context<'_>) {
        let whole = self.models.iter().rev().find(|(_, pieces)| pieces.len() == self.servers.len());
        let takes_models = (self.waiting || self.resting) && !self.handing;
        let Some((&step, pieces)) = whole.filter(|_| takes_models) else { return };
        let mut moved = 0.0;
        for (piece, values) in cx.pieces.iter().flatten().zip(pieces.values()) {
            let params = &mut cx.params[piece.range.clone()];
            if let Some(lazy) = &mut self.lazy {
                let displacement = lazy.displacement(piece.index, values);
                moved += vector::sum_of_squares(displacement);
                vector::axpy(-1.0, displacement, params);
            } else if self.coded {
                vector::axpy(-1.0, values, params)
            } else {
                params.copy_from_slice(values)
            }
        }
        if let Some(lazy) = &mut self.lazy {
            lazy.has_moved(moved);
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
        if self.lazy.is_none() {
            self.push(cx, b, true);
        }
    }

    fn on_gradient(&mut self, cx: &mut Context<'_>) {
        if let Some(lazy) = &mut self.lazy {
            let is_sent = lazy.needs_upload(cx);
            (0..cx.layout.buckets.len()).for_each(|b| self.push(cx, b, is_sent));
        }
        self.handing = false;
        self.adopt(cx);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let pieces = &cx.pieces[message.bucket as usize];
        let Some(piece) = pieces.iter().find(|piece| piece.server == from) else { return };
        if message.step >= cx.step {
            // A server of lazy workers sends no displacement twice.
            if self.lazy.is_none() {
                message.expect_length(piece.range.len());
            }
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
        if let Some(lazy) = &mut self.lazy {
            lazy.state(visitor);
        }
    }

    fn keeps_older_views(&self) -> bool {
        true
    }
}
