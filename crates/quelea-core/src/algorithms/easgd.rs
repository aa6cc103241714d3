//! EASGD: workers held to a common centre by a spring (Zhang, Choromanska and LeCun 2015).
//!
//! ```text
//! worker, upon bucket b of g at step t:    Δ = η·Opt(g[b])
//!     if t mod τ = 0, upon the centre x̃:   e = α·(x_i − x̃);  send e;  x_i ← x_i − Δ − e
//!     else:                                x_i ← x_i − Δ
//! asynchronous:   worker, before a step t mod τ = 0 (without `prefetch`: after its gradient):  ask for x̃
//!                 server, upon e:                      x̃ ← x̃ + e
//! synchronous:    server, upon e_i of a round from all:  x̃ ← x̃ + Σ_i e_i;  send x̃ to all
//! with momentum:  v ← δ·v − η·Opt(grad(x_i + δ·v));  x_i ← x_i + v instead of x_i − Δ    (EAMSGD)
//! upon a lost worker:                      what it sent stays; a round does not wait for it
//! ```
//! An exchange leaves x_i + x̃ as it was, however old x̃ is: the same e is added and subtracted,
//! once each. α = β/n with β = 0.9 by default. With momentum a worker holds x_i + δ·v, where the
//! gradient is taken.

mod server;

use super::{Codecs, Entry, Service, Traffic};
use crate::contract::{Algorithm, Awaited, Context, Mode, Piece};
use crate::message::{Message, Rank};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::payload::Payload;
use crate::properties::{
    Budget, DeployedFrom, OptimizerSite, OptimizerState, Properties, TopologyRequirement,
};
use crate::state::Visitor;
use crate::vector;
pub(super) use server::ElasticServer;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "easgd",
        summary: "independent workers, tied to a centre at the servers by an elastic force",
        paper: "Zhang, Choromanska, LeCun 2015, arXiv:1412.6651",
        section: "Algorithm 1 (asynchronous EASGD); synchronous: the update rule of Section 3",
        file: file!(),
        options: &[MOVING_RATE, PERIOD, FORM, PREFETCH],
    },
    sends: SENDS,
    lost_peer: LOST_PEER,
    resized: "workers begin at the centre with the mean of the optimizers; exchanges with \
              the centre are reset",
    check: |_| Ok(()),
    codecs: |_| Codecs::OF_MODELS,
    properties,
    traffic,
    worker: |options| Box::new(Worker::new(options, 0.0)),
    server: Some(|options| Box::new(ElasticServer::new(options))),
};

pub(super) const SENDS: &str = "the elastic difference to the servers, the centre back, once per \
    `period` steps";
pub(super) const LOST_PEER: &str = "what it sent stays in the centre; nobody waits for it";

pub(super) const MOVING_RATE: OptionSpec = OptionSpec {
    name: "moving_rate",
    kind: OptionKind::Real { default: 0.0, min: 0.0, max: 1.0 },
    help: "how far a worker moves to the centre per exchange (α); 0 means 0.9/n",
};
pub(super) const PERIOD: OptionSpec = OptionSpec {
    name: "period",
    kind: OptionKind::Whole { default: 10, min: 1, max: u64::MAX },
    help: "steps of a worker from one exchange to the next (τ)",
};
pub(super) const FORM: OptionSpec = OptionSpec {
    name: "form",
    kind: OptionKind::Choice(&["asynchronous", "synchronous"]),
    help: "every worker on its own, or all exchange together",
};

pub(super) const PREFETCH: OptionSpec = OptionSpec {
    name: "prefetch",
    kind: OptionKind::Flag(true),
    help: "asynchronous: ask for the centre before the gradient is computed, not after",
};

pub(super) fn properties(options: &Options) -> Properties {
    let synchronous = is_synchronous(options);
    Properties {
        synchronous,
        snapshot: false,
        servers: true,
        deploy: DeployedFrom::Servers,
        budget: if synchronous { Budget::Rounds } else { Budget::TotalGradients },
        topology: TopologyRequirement::Nothing,
        optimizer: OptimizerSite::Workers,
        reads_gradient: false,
        clips_itself: false,
        keeps_mean: false,
        plain_sgd: false,
        waits_for_peers: synchronous,
        own_start: false,
        reloadable: false,
        needs_loss: false,
        optimizer_state: OptimizerState::Kept,
    }
}

pub(super) fn traffic(options: &Options) -> Traffic {
    let period = options.whole("period");
    Traffic::Servers(if is_synchronous(options) {
        Service::Together { period }
    } else {
        Service::Elastic { period, prefetch: options.flag("prefetch") }
    })
}

fn is_synchronous(options: &Options) -> bool {
    options.text("form") == "synchronous"
}

const FETCH: u8 = 1;
const CENTRE: u8 = 2;
const ELASTIC: u8 = 3;

/// One worker.
pub(super) struct Worker {
    moving_rate: f64,
    period: u64,
    synchronous: bool,
    /// Whether the centre is asked for while the gradient is computed.
    prefetch: bool,
    /// δ
    momentum: f32,
    /// v; empty without momentum.
    velocity: Vec<f32>,
    /// Per piece.
    lanes: Vec<Lane>,
    /// Whether this step exchanges.
    due: bool,
    /// Pieces that are not done with this step.
    remaining: usize,
}

/// What a worker keeps for one piece.
#[derive(Debug, Default)]
struct Lane {
    server: Rank,
    /// Exchanges so far.
    seq: u64,
    /// The centre for the next one.
    centre: Option<Payload>,
    /// The step of this piece waits for the centre.
    waiting: bool,
}

impl Worker {
    pub(super) fn new(options: &Options, momentum: f64) -> Worker {
        Worker {
            moving_rate: options.real("moving_rate"),
            period: options.whole("period"),
            synchronous: is_synchronous(options),
            prefetch: options.flag("prefetch"),
            momentum: momentum as f32,
            velocity: Vec::new(),
            lanes: Vec::new(),
            due: false,
            remaining: 0,
        }
    }

    /// Rounds that began before `step`: where lanes that are not loaded begin, as the server does.
    fn first_round(&self, step: u64) -> u64 {
        if self.synchronous { step.div_ceil(self.period) } else { 0 }
    }

    fn fetch(&self, cx: &mut Context<'_>, b: usize, piece: &Piece) {
        if !self.synchronous {
            let mut message = Message::new(FETCH, cx.step, b);
            message.seq = self.lanes[piece.index].seq;
            cx.outbox.send(piece.server, message);
        }
    }

    /// The local step of a piece, with its exchange where one is due and the centre is here.
    fn step(&mut self, cx: &mut Context<'_>, b: usize, piece: &Piece) {
        let lane = &mut self.lanes[piece.index];
        lane.waiting = self.due && lane.centre.is_none();
        if lane.waiting {
            return;
        }
        let (params, range) = (&mut cx.params[piece.range.clone()], piece.range.clone());
        let momentum = self.momentum;
        if momentum > 0.0 {
            let ahead = &self.velocity[range.clone()];
            vector::axpy(-momentum, ahead, params); // Back from x + δ·v to x.
        }
        let elastic = lane.centre.take_if(|_| self.due).map(|centre| {
            let rate = match self.moving_rate {
                0.0 => 0.9 / cx.outbox.view.workers.len() as f64,
                rate => rate,
            };
            let mut elastic = cx.outbox.pool.take(params.len());
            let out = elastic.try_mut().expect("just taken, so held by nobody else");
            out.fill(0.0);
            vector::add_difference(rate as f32, params, &centre, out);
            cx.outbox.round(out);
            elastic
        });
        let displacement = &cx.grad[range.clone()];
        if momentum > 0.0 {
            advance(momentum, params, &mut self.velocity[range], displacement);
        } else {
            vector::axpy(-1.0, displacement, params);
        }
        if let Some(elastic) = elastic {
            vector::axpy(-1.0, &elastic, params);
            lane.seq += 1;
            let mut message = Message::new(ELASTIC, cx.step, b).with(elastic);
            message.seq = lane.seq;
            let message = cx.outbox.rounded(message);
            cx.outbox.send(piece.server, message);
        }
        self.remaining -= 1;
        if self.prefetch && (cx.step + 1).is_multiple_of(self.period) {
            self.fetch(cx, b, piece);
        }
    }
}

/// `v ← δ·v − Δ`; `x ← x + v`, and ahead to `x + δ·v`.
fn advance(momentum: f32, params: &mut [f32], velocity: &mut [f32], displacement: &[f32]) {
    for ((x, v), d) in params.iter_mut().zip(velocity).zip(displacement) {
        *v = momentum * *v - d;
        *x += *v + momentum * *v;
    }
}

impl Algorithm for Worker {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        let (count, seq) = (cx.pieces.iter().map(Vec::len).sum(), self.first_round(cx.step));
        self.lanes.resize_with(count, || Lane { seq, ..Lane::default() });
        if self.momentum > 0.0 {
            self.velocity.resize(cx.params.len(), 0.0);
        }
        for (b, piece) in
            cx.pieces.iter().enumerate().flat_map(|(b, p)| p.iter().map(move |p| (b, p)))
        {
            self.lanes[piece.index].server = piece.server;
            if self.prefetch && cx.step.is_multiple_of(self.period) {
                self.fetch(cx, b, piece);
            }
        }
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        if b == 0 {
            self.remaining = self.lanes.len();
            self.due = cx.step.is_multiple_of(self.period);
        }
        cx.optimize(b, Mode::Displace);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        for piece in &cx.pieces[b] {
            if self.due && !self.prefetch {
                self.fetch(cx, b, piece);
            }
            self.step(cx, b, piece);
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let b = message.bucket as usize;
        let piece = cx.pieces.get(b).and_then(|p| p.iter().find(|piece| piece.server == from));
        let Some(piece) = piece else { return };
        let lane = &mut self.lanes[piece.index];
        if message.seq == lane.seq && lane.centre.is_none() {
            lane.centre = Some(message.into_values());
            if lane.waiting {
                self.step(cx, b, piece);
            }
        }
    }

    fn is_ready(&self) -> bool {
        self.remaining == 0
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        let waiting = self.lanes.iter().filter(|lane| lane.waiting);
        out.extend(waiting.map(|lane| Awaited { from: lane.server, what: "the centre" }));
    }

    /// x, not the point ahead of it where the next gradient is taken.
    fn model(&self, params: &[f32], out: &mut [f32]) {
        out.copy_from_slice(params);
        if !self.velocity.is_empty() {
            vector::axpy(-self.momentum, &self.velocity, out);
        }
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.vector("velocity", &mut self.velocity);
        let mut count = self.lanes.len() as u64;
        visitor.number("lanes", &mut count);
        self.lanes.resize_with(count as usize, Lane::default);
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            visitor.number(&format!("lane.{index}.seq"), &mut lane.seq);
            visitor.payload(&format!("lane.{index}.centre"), &mut lane.centre);
        }
    }

    /// An elastic difference that is lost would be lost mass.
    fn keeps_older_views(&self) -> bool {
        true
    }
}
