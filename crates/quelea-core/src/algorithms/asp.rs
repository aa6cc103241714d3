//! ASP: asynchronous parameter server (Dean et al. 2012, Downpour with n_push = n_fetch = 1).
//!
//! ```text
//! worker, upon bucket b of g_i:          push g_i[b] with the version it was computed at
//! worker, upon the model in answer:      x ← it; next gradient
//! server, upon g from worker i:          τ = version − its version
//!                                        x̃ ← x̃ − s(τ)·η·Opt(g);  version += 1;  send x̃ to i
//! ```
//! With a codec C a push is C(g_i + e_i), and e_i what C left out.
//! s = 1/n by default, so that n pushes move the model like one synchronous step.

use std::collections::BTreeMap;

use super::sync_ps::{self, local};
use super::{Codecs, Entry, Service, Traffic};
use crate::codec::ErrorFeedback;
use crate::contract::{Algorithm, Awaited, Context, Fact, Mode};
use crate::message::{Message, Rank};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::properties::{
    Budget, DeployedFrom, OptimizerSite, OptimizerState, Properties, TopologyRequirement,
};
use crate::state::Visitor;
use crate::vector;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "asp",
        summary: "asynchronous parameter server; nobody waits for other workers",
        paper: "Dean et al. 2012 (Downpour SGD)",
        section: "Section 4.1 (Downpour SGD), fetching and pushing at every step",
        file: file!(),
        options: &[OptionSpec {
            name: "scale",
            kind: OptionKind::Choice(&["workers", "staleness", "none"]),
            help: "s(τ): 1/n, 1/(n·max(1,τ)) (Zhang et al. 2016), or 1",
        }],
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
        plain_sgd: false,
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
        sync_ps::state(&mut self.lanes, visitor);
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
    /// Updates applied, per piece.
    versions: Vec<u64>,
    /// The step of the next gradient that each worker owes each piece; older ones were applied.
    next: BTreeMap<(Rank, usize), u64>,
    /// Whose gradient is being applied: worker, its step, s(τ).
    serving: Option<(Rank, u64, f32)>,
}

impl Server {
    fn new(options: &Options) -> Server {
        let scale = match options.text("scale") {
            "workers" => Scale::Workers,
            "staleness" => Scale::Staleness,
            _ => Scale::None,
        };
        Server { scale, versions: Vec::new(), next: BTreeMap::new(), serving: None }
    }

    fn scale(&self, workers: usize, staleness: u64) -> f32 {
        match self.scale {
            Scale::Workers => 1.0 / workers as f32,
            Scale::Staleness => 1.0 / (workers as f32 * staleness.max(1) as f32),
            Scale::None => 1.0,
        }
    }
}

impl Algorithm for Server {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.versions.resize(cx.layout.buckets.len(), 0);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let Some(b) = local(cx, message.bucket) else { return };
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
        self.serving = Some((from, step, scale));
        cx.grad[cx.layout.range(b)].copy_from_slice(&message.into_values());
        cx.optimize_at(b, Mode::Displace, step);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        let (worker, step, scale) = self.serving.take().expect("it was asked for");
        let range = cx.range(b);
        vector::axpy(-scale, &cx.grad[range.clone()], &mut cx.params[range.clone()]);
        cx.outbox.work(range.len() * 4);
        self.versions[b] += 1;
        let mut message =
            Message::new(MODEL, step, cx.layout.buckets[b].id).with(cx.params_payload(b));
        message.seq = self.versions[b];
        let message = cx.outbox.rounded(message);
        cx.outbox.send(worker, message);
    }

    fn is_ready(&self) -> bool {
        false
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.numbers("versions", &mut self.versions);
        visitor.by_bucket("next", &mut self.next);
    }

    fn keeps_older_views(&self) -> bool {
        true
    }
}
