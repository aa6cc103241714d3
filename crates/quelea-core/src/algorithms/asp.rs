//! ASP: asynchronous parameter server (Dean et al. 2012, Downpour with n_push = n_fetch = 1).
//!
//! ```text
//! worker, upon bucket b of g_i:          push g_i[b] with the version it was computed at
//! worker, upon the model in answer:      x ← it; next gradient
//! server, upon g from worker i:          τ = version − its version
//!                                        x̃ ← x̃ − s(τ)·η·Opt(g);  version += 1;  send x̃ to i
//! with `collect` = c > 1:                keep s(τ)·g;  upon the c-th: S = Σ s(τ)
//!                                        x̃ ← x̃ − S/c·η·Opt(Σ s(τ)·g / S);  version += 1
//! ```
//! With a codec C a push is C(g_i + e_i), and e_i what C left out.
//! s = c/n by default, so that n pushes move the model like one synchronous step. The staleness of
//! equally fast workers is n/c on average, and s(τ) = 1/τ takes the place of c/n (Zhang et al.
//! 2016). Collecting c = ⌊workers/n⌋ gradients per update is their n-softsync; a worker that has
//! pushed gets the model as it is and does not wait for the update.

use std::collections::BTreeMap;

use super::{Codecs, Entry, Service, Traffic};
use crate::codec::ErrorFeedback;
use crate::contract::{Algorithm, Awaited, Context, Fact, Mode};
use crate::kit::servers::{feedback_state, local_bucket};
use crate::message::{Message, Rank};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::properties::{
    Budget, DeployedFrom, OptimizerRequirement, OptimizerSite, OptimizerState, Properties,
    TopologyRequirement,
};
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "asp",
        summary: "asynchronous parameter server; nobody waits for other workers",
        paper: "Dean et al. 2012 (Downpour SGD)",
        section: "Section 4.1 (Downpour SGD), fetching and pushing at every step",
        file: file!(),
        options: &[
            OptionSpec {
                name: "scale",
                kind: OptionKind::Choice(&["workers", "staleness", "none"]),
                help: "s(τ), what a gradient of staleness τ is multiplied by: 1/n, 1/max(1,τ) \
                       (Zhang et al. 2016), or 1",
            },
            OptionSpec {
                name: "collect",
                kind: OptionKind::Whole { default: 1, min: 1, max: 1 << 16 },
                help: "gradients that a server averages per update; workers/n is n-softsync",
            },
        ],
    },
    sends: "the gradient to the servers, the model back, per gradient",
    lost_peer: "it simply stops pushing",
    resized: "workers begin with the servers' model, servers with their new part of it and \
              of the optimizer; versions are reset",
    check: |_| Ok(()),
    codecs: |_| Codecs::Feedback,
    properties: |_| Properties {
        synchronous: false,
        snapshot: false,
        servers: true,
        deploy: DeployedFrom::Servers,
        budget: Budget::TotalGradients,
        topology: TopologyRequirement::Nothing,
        optimizer: OptimizerSite::Servers,
        reads_gradient: true,
        clips_itself: true,
        keeps_mean: true,
        optimizer_rule: OptimizerRequirement::Any,
        waits_for_peers: false,
        own_start: false,
        reloadable: false,
        needs_loss: false,
        optimizer_state: OptimizerState::Kept,
    },
    traffic: |_| Traffic::Servers(Service::Alone { ahead: u64::MAX }),
    worker: |_| Box::<Worker>::default(),
    server: Some(|options| Box::new(Server::new(options))),
};

const GRADIENT: u8 = 1;
pub(super) const MODEL: u8 = 2;

#[derive(Default)]
struct Worker {
    /// The version of each piece that I hold.
    versions: Vec<u64>,
    /// Pieces whose model has not come yet.
    awaited: Vec<(Rank, usize)>,
    handing: bool,
    /// What the codec has left out, per piece.
    lanes: Vec<ErrorFeedback>,
}

impl Worker {
    fn push(&mut self, cx: &mut Context<'_>, b: usize) {
        for piece in &cx.pieces[b] {
            let mut message = Message::new(GRADIENT, cx.step, b);
            message.seq = self.versions[piece.index];
            message.count = 1;
            let lane = &mut self.lanes[piece.index];
            lane.at_rate(cx.learning_rate);
            let message = lane.load(&mut cx.outbox, message, &cx.grad[piece.range.clone()]);
            cx.outbox.send(piece.server, message);
            self.awaited.push((piece.server, b));
        }
    }
}

impl Algorithm for Worker {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.versions.resize(cx.pieces.iter().map(Vec::len).sum(), 0);
        self.lanes.resize_with(self.versions.len(), ErrorFeedback::default);
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        self.handing = true;
        if cx.clip.is_none() {
            self.push(cx, b);
        }
    }

    fn on_gradient(&mut self, cx: &mut Context<'_>) {
        self.handing = false;
        // Each gradient is applied by itself, so its own norm is the one to clip.
        if let Some(limit) = cx.clip {
            vector::clip(f64::from(limit), cx.grad);
            (0..cx.layout.buckets.len()).for_each(|b| self.push(cx, b));
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let b = message.bucket as usize;
        let awaited = self.awaited.iter().position(|piece| *piece == (from, b));
        let (Some(place), true) = (awaited, message.step == cx.step) else { return };
        self.awaited.swap_remove(place);
        let piece = cx.pieces[b].iter().find(|piece| piece.server == from);
        let piece = piece.expect("awaited, so it is a piece");
        self.versions[piece.index] = message.seq;
        cx.params[piece.range.clone()].copy_from_slice(&message.into_values());
    }

    fn is_ready(&self) -> bool {
        self.awaited.is_empty() && !self.handing
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        let servers = self.awaited.iter();
        out.extend(servers.map(|(from, _)| Awaited { from: *from, what: "the new model" }));
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.numbers("versions", &mut self.versions);
        feedback_state(&mut self.lanes, visitor);
    }

    fn keeps_older_views(&self) -> bool {
        true
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scale {
    Workers,
    Staleness,
    None,
}

struct Server {
    scale: Scale,
    /// Gradients per update: c.
    collect: u64,
    /// Nothing more will be collected: every gradient is an update of its own.
    draining: bool,
    /// Updates applied, per piece.
    versions: Vec<u64>,
    /// The step of the next gradient that each worker owes each piece; older ones were applied.
    next: BTreeMap<(Rank, usize), u64>,
    /// What was collected for the next update: Σ s(τ)·g over the whole shard; empty if `collect` is 1.
    sum: Vec<f32>,
    collected: Vec<Collected>,
    /// The update that is being applied, per piece.
    serving: Vec<Option<Serving>>,
}

/// The gradients that one piece has collected since its last update.
#[derive(Clone, Debug, Default)]
struct Collected {
    gradients: u64,
    /// Σ s(τ).
    weight: f64,
    /// The step of the newest, whose learning rate the update has.
    step: u64,
}

/// An update that the optimizer has been asked for.
#[derive(Clone, Copy, Debug)]
struct Serving {
    /// Who gets the model, and for which of its steps; nobody at the end of a run.
    answer: Option<(Rank, u64)>,
    /// What the displacement is multiplied by.
    scale: f32,
}

impl Server {
    fn new(options: &Options) -> Server {
        let scale = match options.text("scale") {
            "workers" => Scale::Workers,
            "staleness" => Scale::Staleness,
            _ => Scale::None,
        };
        Server {
            scale,
            collect: options.whole("collect"),
            draining: false,
            versions: Vec::new(),
            next: BTreeMap::new(),
            sum: Vec::new(),
            collected: Vec::new(),
            serving: Vec::new(),
        }
    }

    /// s(τ), for an update of one gradient.
    fn scale(&self, workers: usize, staleness: u64) -> f32 {
        match self.scale {
            Scale::Workers => 1.0 / workers as f32,
            Scale::Staleness => 1.0 / staleness.max(1) as f32,
            Scale::None => 1.0,
        }
    }

    /// Adds a gradient to what the next update is made of.
    fn keep(&mut self, cx: &mut Context<'_>, b: usize, scale: f32, message: Message) {
        let (range, collected) = (cx.range(b), &mut self.collected[b]);
        collected.gradients += 1;
        collected.weight += f64::from(scale);
        collected.step = message.step;
        cx.outbox.work(range.len() * 4);
        vector::axpy(scale, &message.into_values(), &mut self.sum[range]);
    }

    /// Asks for the step with the weighted mean of what was collected.
    fn update(&mut self, cx: &mut Context<'_>, b: usize, answer: Option<(Rank, u64)>) {
        let range = cx.range(b);
        let collected = std::mem::take(&mut self.collected[b]);
        let sum = &mut self.sum[range.clone()];
        vector::scaled((1.0 / collected.weight) as f32, sum, &mut cx.grad[range]);
        sum.fill(0.0);
        // 1/n is meant for one gradient of n, however many are collected.
        let gradients = match self.scale {
            Scale::Workers => 1.0,
            Scale::Staleness | Scale::None => collected.gradients as f64,
        };
        let scale = (collected.weight / gradients) as f32;
        self.serving[b] = Some(Serving { answer, scale });
        cx.optimize_at(b, Mode::Displace, collected.step);
    }

    fn send_model(&self, cx: &mut Context<'_>, b: usize, worker: Rank, step: u64) {
        let mut message =
            Message::new(MODEL, step, cx.layout.buckets[b].id).with(cx.params_payload(b));
        message.seq = self.versions[b];
        let message = cx.outbox.rounded(message);
        cx.outbox.send(worker, message);
    }
}

impl Algorithm for Server {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.versions.resize(cx.layout.buckets.len(), 0);
        self.collected.resize(cx.layout.buckets.len(), Collected::default());
        self.serving.resize(cx.layout.buckets.len(), None);
        if self.collect > 1 {
            self.sum.resize(cx.params.len(), 0.0);
        }
    }

    /// One that joins in the place of a lost worker begins at another step.
    fn on_view(&mut self, cx: &mut Context<'_>, _old: &View) {
        self.next.retain(|(worker, _), _| cx.outbox.view.is_alive(*worker));
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let Some(b) = local_bucket(cx, message.bucket) else { return };
        message.expect_length(cx.layout.range(b).len());
        let next = self.next.entry((from, b)).or_insert(0);
        if message.step < *next {
            return; // Delivered twice: every push is applied exactly once.
        }
        *next = message.step + 1;
        let staleness = self.versions[b].saturating_sub(message.seq);
        if b == 0 {
            cx.outbox.measure(Fact::Staleness(staleness));
        }
        let scale = self.scale(cx.outbox.view.workers.len(), staleness);
        let step = message.step;
        let answer = Some((from, step));
        if self.collect == 1 {
            self.serving[b] = Some(Serving { answer, scale });
            cx.grad[cx.layout.range(b)].copy_from_slice(&message.into_values());
            return cx.optimize_at(b, Mode::Displace, step);
        }
        self.keep(cx, b, scale, message);
        if self.draining || self.collected[b].gradients >= self.collect {
            self.update(cx, b, answer);
        } else {
            self.send_model(cx, b, from, step);
        }
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        let Serving { answer, scale } = self.serving[b].take().expect("it was asked for");
        let range = cx.range(b);
        vector::axpy(-scale, &cx.grad[range.clone()], &mut cx.params[range.clone()]);
        cx.outbox.work(range.len() * 4);
        self.versions[b] += 1;
        if let Some((worker, step)) = answer {
            self.send_model(cx, b, worker, step);
        }
    }

    /// What was collected is applied, however little it is.
    fn on_drain(&mut self, cx: &mut Context<'_>) {
        self.draining = true;
        for b in 0..self.collected.len() {
            if self.collected[b].gradients > 0 {
                self.update(cx, b, None);
            }
        }
    }

    fn is_ready(&self) -> bool {
        false
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.numbers("versions", &mut self.versions);
        visitor.by_bucket("next", &mut self.next);
        if self.collect == 1 {
            return;
        }
        visitor.vector("sum", &mut self.sum);
        self.collected.resize(self.versions.len(), Collected::default());
        for (b, collected) in self.collected.iter_mut().enumerate() {
            visitor.number(&format!("collected.{b}"), &mut collected.gradients);
            visitor.real(&format!("collected.{b}.weight"), &mut collected.weight);
            visitor.number(&format!("collected.{b}.step"), &mut collected.step);
        }
    }

    fn keeps_older_views(&self) -> bool {
        true
    }
}
