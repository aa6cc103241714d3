//! EASGD: workers held to a common centre by a spring (Zhang, Choromanska and LeCun 2015).
//!
//! ```text
//! worker, upon bucket b of g at step t:    Δ = η·Opt(g[b])
//!     if t mod τ = 0, upon the centre x̃:   e = α·(x_i − x̃);  send e;  x_i ← x_i − Δ − e
//!     else:                                x_i ← x_i − Δ
//! asynchronous:   worker, before a step t mod τ = 0:   ask for x̃
//!                 server, upon e:                      x̃ ← x̃ + e
//! synchronous:    server, upon e_i of a round from all:  x̃ ← x̃ + Σ_i e_i;  send x̃ to all
//! with momentum:  v ← δ·v − η·Opt(grad(x_i + δ·v));  x_i ← x_i + v instead of x_i − Δ    (EAMSGD)
//! upon a lost worker:                      what it sent stays; a round does not wait for it
//! ```
//! An exchange leaves x_i + x̃ as it was, however old x̃ is: the same e is added and subtracted,
//! once each. α = β/n with β = 0.9 by default. With momentum a worker holds x_i + δ·v, where the
//! gradient is taken.

use std::collections::BTreeMap;

use super::Entry;
use super::fold::Fold;
use super::sync_ps::local;
use crate::contract::{Algorithm, Awaited, Budget, Cx, Deploy, Facts, Mode, Need, Piece, Place};
use crate::message::{Message, Rank};
use crate::params::{Key, Kind, Params};
use crate::payload::Payload;
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

/// The row of the table.
pub const ENTRY: Entry = Entry {
    name: "easgd",
    summary: "independent workers, tied to a centre at the servers by an elastic force",
    paper: "Zhang, Choromanska, LeCun 2015, arXiv:1412.6651",
    sends: SENDS,
    lost_peer: LOST_PEER,
    keys: &[MOVING_RATE, PERIOD, FORM],
    check: |_| Ok(()),
    facts,
    worker: |params| Box::new(Worker::new(params, 0.0)),
    server: Some(|params| Box::new(Server::new(params))),
};

pub(super) const SENDS: &str = "the elastic difference to the servers, the centre back, once per \
    `period` steps";
pub(super) const LOST_PEER: &str = "what it sent stays in the centre; nobody waits for it";

pub(super) const MOVING_RATE: Key = Key {
    name: "moving_rate",
    kind: Kind::Real { default: 0.0, min: 0.0, max: 1.0 },
    help: "how far a worker moves to the centre per exchange (α); 0 means 0.9/n",
};
pub(super) const PERIOD: Key = Key {
    name: "period",
    kind: Kind::Whole { default: 10, min: 1, max: 1 << 53 },
    help: "steps of a worker from one exchange to the next (τ)",
};
pub(super) const FORM: Key = Key {
    name: "form",
    kind: Kind::Choice(&["asynchronous", "synchronous"]),
    help: "every worker on its own, or all exchange together",
};

pub(super) fn facts(params: &Params) -> Facts {
    let synchronous = is_synchronous(params);
    Facts {
        synchronous,
        snapshot: false,
        servers: true,
        deploy: Deploy::Servers,
        budget: if synchronous { Budget::Rounds } else { Budget::TotalGradients },
        topology: Need::Nothing,
        optimizer: Place::Workers,
        clips_itself: false,
        keeps_mean: false,
        waits_for_peers: synchronous,
    }
}

fn is_synchronous(params: &Params) -> bool {
    params.text("form") == "synchronous"
}

const FETCH: u8 = 1;
const CENTRE: u8 = 2;
const ELASTIC: u8 = 3;

/// One worker.
pub(super) struct Worker {
    moving_rate: f64,
    period: u64,
    synchronous: bool,
    /// δ
    momentum: f32,
    /// v; empty without momentum.
    velocity: Vec<f32>,
    /// Per piece.
    lanes: Vec<Lane>,
    /// Whether this step exchanges.
    due: bool,
    /// Pieces that are not done with this step.
    left: usize,
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
    pub(super) fn new(params: &Params, momentum: f64) -> Worker {
        Worker {
            moving_rate: params.real("moving_rate"),
            period: params.whole("period"),
            synchronous: is_synchronous(params),
            momentum: momentum as f32,
            velocity: Vec::new(),
            lanes: Vec::new(),
            due: false,
            left: 0,
        }
    }

    fn fetch(&self, cx: &mut Cx<'_>, b: usize, piece: &Piece) {
        if !self.synchronous {
            let mut message = Message::new(FETCH, cx.step, b);
            message.seq = self.lanes[piece.index].seq;
            cx.io.send(piece.server, message);
        }
    }

    /// The local step of a piece, with its exchange where one is due and the centre is here.
    fn step(&mut self, cx: &mut Cx<'_>, b: usize, piece: &Piece) {
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
                0.0 => 0.9 / cx.io.view.workers.len() as f64,
                rate => rate,
            };
            let mut elastic = cx.io.pool.take(params.len());
            let out = elastic.try_mut().expect("just taken, so held by nobody else");
            out.fill(0.0);
            vector::add_difference(rate as f32, params, &centre, out);
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
            cx.io.send(piece.server, message);
        }
        self.left -= 1;
        if (cx.step + 1).is_multiple_of(self.period) {
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
    fn on_start(&mut self, cx: &mut Cx<'_>) {
        self.lanes.resize_with(cx.pieces.iter().map(Vec::len).sum(), Lane::default);
        if self.momentum > 0.0 {
            self.velocity.resize(cx.params.len(), 0.0);
        }
        for (b, piece) in
            cx.pieces.iter().enumerate().flat_map(|(b, p)| p.iter().map(move |p| (b, p)))
        {
            self.lanes[piece.index].server = piece.server;
            if cx.step.is_multiple_of(self.period) {
                self.fetch(cx, b, piece);
            }
        }
    }

    fn on_bucket(&mut self, cx: &mut Cx<'_>, b: usize) {
        if b == 0 {
            self.left = self.lanes.len();
            self.due = cx.step.is_multiple_of(self.period);
        }
        cx.optimize(b, Mode::Displace);
    }

    fn on_optimized(&mut self, cx: &mut Cx<'_>, b: usize) {
        for piece in &cx.pieces[b] {
            self.step(cx, b, piece);
        }
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, from: Rank, message: Message) {
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
        self.left == 0
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        let waiting = self.lanes.iter().filter(|lane| lane.waiting);
        out.extend(waiting.map(|lane| Awaited { from: lane.server, what: "the centre" }));
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.vector("velocity", &mut self.velocity);
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            visitor.number(&format!("lane.{index}.seq"), &mut lane.seq);
            visitor.payload(&format!("lane.{index}.centre"), &mut lane.centre);
        }
    }

    /// An elastic difference that is lost would be lost mass.
    fn spans_views(&self) -> bool {
        true
    }
}

/// One server.
pub(super) struct Server {
    synchronous: bool,
    pieces: Vec<State>,
}

/// What a server keeps for one piece.
#[derive(Debug, Default)]
struct State {
    /// Per worker: exchanges that are in the centre.
    seqs: BTreeMap<Rank, u64>,
    /// Who has asked for the centre before its last difference came, and which one that is.
    asked: BTreeMap<Rank, u64>,
    /// Synchronous form: rounds that are in the centre.
    round: u64,
    /// Synchronous form: differences of this round and of later ones.
    rounds: BTreeMap<u64, Fold>,
}

impl Server {
    pub(super) fn new(params: &Params) -> Server {
        Server { synchronous: is_synchronous(params), pieces: Vec::new() }
    }

    fn send_centre(cx: &mut Cx<'_>, b: usize, seq: u64, to: &[Rank]) {
        let id = cx.layout.buckets[b].id;
        let mut message = Message::new(CENTRE, 0, id).with(cx.params_payload(b));
        message.seq = seq;
        to.iter().for_each(|worker| cx.io.send(*worker, message.clone()));
    }

    fn add(cx: &mut Cx<'_>, b: usize, elastic: &[f32]) {
        cx.io.work(elastic.len() * 4);
        vector::add(elastic, &mut cx.params[cx.layout.range(b)]);
    }

    /// Answers a worker that has asked, once all its own differences are in the centre.
    fn answer(&mut self, cx: &mut Cx<'_>, b: usize, from: Rank) {
        let piece = &mut self.pieces[b];
        let done = piece.seqs.get(&from).copied().unwrap_or(0);
        if piece.asked.get(&from).is_some_and(|asked| *asked <= done) {
            let seq = piece.asked.remove(&from).expect("just seen");
            Server::send_centre(cx, b, seq, &[from]);
        }
    }

    fn complete_rounds(&mut self, cx: &mut Cx<'_>, b: usize) {
        let piece = &mut self.pieces[b];
        let Some(fold) = piece.rounds.get_mut(&piece.round) else { return };
        fold.advance(&mut cx.io);
        if fold.is_complete(&cx.io) {
            let (sum, _) = piece.rounds.remove(&piece.round).expect("just seen").into_sum();
            piece.round += 1;
            Server::add(cx, b, &sum);
            Server::send_centre(cx, b, self.pieces[b].round, &cx.io.view.workers);
        }
    }
}

impl Algorithm for Server {
    fn on_start(&mut self, cx: &mut Cx<'_>) {
        self.pieces.resize_with(cx.layout.buckets.len(), State::default);
        for b in (0..self.pieces.len()).filter(|_| self.synchronous) {
            Server::send_centre(cx, b, self.pieces[b].round, &cx.io.view.workers);
        }
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, from: Rank, message: Message) {
        let Some(b) = local(cx, message.bucket) else { return };
        let (piece, seq) = (&mut self.pieces[b], message.seq);
        if message.kind == FETCH {
            piece.asked.insert(from, seq);
            return self.answer(cx, b, from);
        }
        if self.synchronous {
            if seq > piece.round {
                let fold = piece.rounds.entry(seq - 1).or_default();
                fold.take(&mut cx.io, from, message.into_values());
                self.complete_rounds(cx, b);
            }
            return;
        }
        let done = piece.seqs.entry(from).or_insert(0);
        // A difference that comes again is in the centre already.
        if seq == *done + 1 {
            *done = seq;
            Server::add(cx, b, &message.into_values());
            self.answer(cx, b, from);
        }
    }

    fn on_view(&mut self, cx: &mut Cx<'_>, _old: &View) {
        for b in 0..self.pieces.len() {
            self.pieces[b].asked.retain(|rank, _| cx.io.view.is_alive(*rank));
            self.complete_rounds(cx, b);
        }
    }

    fn is_ready(&self) -> bool {
        false
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        for (index, piece) in self.pieces.iter_mut().enumerate() {
            visitor.number(&format!("piece.{index}.round"), &mut piece.round);
            for (rank, seq) in &mut piece.seqs {
                visitor.number(&format!("piece.{index}.seq.{}", rank.0), seq);
            }
        }
    }

    fn spans_views(&self) -> bool {
        true
    }
}
