//! The synchronous form of ALADDIN (`barrier = true`): all workers mix with the same model.
//!
//! ```text
//! worker, upon bucket b of g:    Δ = η·Opt(g[b]);  x_i ← x_i − Δ;  push Δ
//!                                if the step ends a period: wait for x̃;  x_i ← x_i + α(x̃ − x_i)
//!   with `order` = "mix-then-step":  x_i ← x_i + α(x̃ − x_i) − Δ with the x̃ of the last period;  push Δ
//!                                if the step ends a period: wait for x̃
//! server, upon Δ of all workers of a round:    D ← D + Σ Δ
//!                                if the round ends a period: x̃ ← x̃ − D/n;  D ← 0;  send x̃ to all
//! with a codec C:                a push is C(Δ + e), and e what C left out
//! upon a lost worker, server:    x̃ ← x̃ − D/n with the old n; then n ← n − 1
//! ```

use std::collections::BTreeMap;
use std::ops::Range;

use super::normaliser::Normaliser;
use super::{MODEL, MixOrder, PUSH};
use crate::codec::ErrorFeedback;
use crate::collectives::fold::Fold;
use crate::contract::{Algorithm, Awaited, Context, Fact, Piece};
use crate::kit::servers::local_bucket;
use crate::message::{Message, Rank};
use crate::options::Options;
use crate::payload::Payload;
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

/// One worker.
pub(super) struct BarrierWorker {
    alpha: f32,
    order: MixOrder,
    period: u64,
    /// Per piece.
    lanes: Vec<Lane>,
    /// Buckets that are not done with this step.
    remaining: usize,
}

/// What a worker keeps for one piece.
#[derive(Debug, Default)]
struct Lane {
    server: Rank,
    /// The number of the last push, from 1.
    seq: u64,
    /// What the codec has left out of the pushes.
    left_out: ErrorFeedback,
    /// The version of the model that was used last.
    used: u64,
    /// The model of this round has not come.
    waiting: bool,
    /// The model that the next step mixes with, where mixing comes first.
    inbox: Option<Payload>,
}

impl BarrierWorker {
    pub(super) fn new(options: &Options) -> BarrierWorker {
        BarrierWorker {
            alpha: options.real("alpha") as f32,
            order: MixOrder::new(options),
            period: options.whole("period"),
            lanes: Vec::new(),
            remaining: 0,
        }
    }

    /// `x_i ← x_i + α(x̃ − x_i) − Δ`, without the mixing where no model has come.
    fn mix_then_step(&mut self, cx: &mut Context<'_>, piece: &Piece) {
        let params = &mut cx.params[piece.range.clone()];
        if let Some(model) = self.lanes[piece.index].inbox.take() {
            vector::lerp(self.alpha, &model, params);
        }
        vector::axpy(-1.0, &cx.grad[piece.range.clone()], params);
    }

    /// Pushes the displacement of one piece.
    fn push(&mut self, cx: &mut Context<'_>, b: usize, piece: &Piece) {
        let lane = &mut self.lanes[piece.index];
        lane.seq += 1;
        let mut message = Message::new(PUSH, cx.step, b);
        (message.count, message.scalar, message.seq) = (1, 1.0, lane.seq);
        lane.left_out.at_rate(1.0);
        let displacement = &cx.grad[piece.range.clone()];
        let message = lane.left_out.load(&mut cx.outbox, message, displacement);
        if piece.index == 0 {
            cx.outbox.measure(Fact::Folded(1));
        }
        cx.outbox.send(piece.server, message);
        lane.waiting = (cx.step + 1).is_multiple_of(self.period);
    }
}

impl Algorithm for BarrierWorker {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.lanes.resize_with(cx.pieces.iter().map(Vec::len).sum(), Lane::default);
        for piece in cx.pieces.iter().flatten() {
            self.lanes[piece.index].server = piece.server;
        }
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        if b == 0 {
            self.remaining = cx.layout.buckets.len();
        }
        cx.optimize(b, self.order.mode());
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        if self.order == MixOrder::MixThenStep {
            cx.pieces[b].iter().for_each(|piece| self.mix_then_step(cx, piece));
        }
        cx.pieces[b].iter().for_each(|piece| self.push(cx, b, piece));
        self.remaining -= 1;
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let pieces = cx.pieces.get(message.bucket as usize);
        let piece = pieces.and_then(|p| p.iter().find(|piece| piece.server == from));
        let Some(piece) = piece else { return };
        let lane = &mut self.lanes[piece.index];
        if message.seq > lane.used && lane.waiting {
            (lane.used, lane.waiting) = (message.seq, false);
            let model = message.into_values();
            match self.order {
                MixOrder::StepThenMix => {
                    vector::lerp(self.alpha, &model, &mut cx.params[piece.range.clone()]);
                }
                MixOrder::MixThenStep => lane.inbox = Some(model),
            }
        }
    }

    fn is_ready(&self) -> bool {
        self.remaining == 0 && !self.lanes.iter().any(|lane| lane.waiting)
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        let waiting = self.lanes.iter().filter(|lane| lane.waiting);
        let what = "the model of this round";
        out.extend(waiting.map(|lane| Awaited { from: lane.server, what }));
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        let mut lanes = self.lanes.len() as u64;
        visitor.number("lanes", &mut lanes);
        self.lanes.resize_with(lanes as usize, Lane::default);
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            visitor.number(&format!("lane.{index}.seq"), &mut lane.seq);
            visitor.number(&format!("lane.{index}.used"), &mut lane.used);
            lane.left_out.state(&format!("lane.{index}.left_out"), visitor);
            if self.order == MixOrder::MixThenStep {
                visitor.payload(&format!("lane.{index}.inbox"), &mut lane.inbox);
            }
        }
    }

    /// A round that a lost worker took part in still counts.
    fn keeps_older_views(&self) -> bool {
        true
    }
}

/// One server.
pub(super) struct BarrierServer {
    period: u64,
    normaliser: Normaliser,
    /// The workers that count.
    living: Vec<Rank>,
    /// The sum D of displacements that x̃ has not taken yet, over the whole shard.
    pending: Vec<f32>,
    pieces: Vec<PieceRounds>,
}

/// What a server keeps for one piece.
#[derive(Debug, Default)]
struct PieceRounds {
    /// Gradients in D.
    count: u64,
    /// Updates of x̃.
    version: u64,
    /// Where the piece lies in the shard.
    range: Range<usize>,
    /// The round that is being collected.
    round: u64,
    /// The displacements of this round and of later ones.
    rounds: BTreeMap<u64, Fold>,
}

impl BarrierServer {
    pub(super) fn new(options: &Options) -> BarrierServer {
        BarrierServer {
            period: options.whole("period"),
            normaliser: Normaliser::new(options),
            living: Vec::new(),
            pending: Vec::new(),
            pieces: Vec::new(),
        }
    }

    /// `x̃ ← x̃ − D/N`; `D ← 0`.
    fn update(&mut self, cx: &mut Context<'_>, b: usize) {
        let piece = &mut self.pieces[b];
        let divisor = self.normaliser.divisor(self.living.len(), piece.count);
        let pending = &mut self.pending[piece.range.clone()];
        vector::axpy(-1.0 / divisor, pending, &mut cx.params[piece.range.clone()]);
        cx.outbox.work(pending.len() * 4);
        pending.fill(0.0);
        piece.count = 0;
        piece.version += 1;
    }

    fn send_model(&self, cx: &mut Context<'_>, b: usize) {
        let id = cx.layout.buckets[b].id;
        let mut message = Message::new(MODEL, 0, id).with(cx.params_payload(b));
        message.seq = self.pieces[b].version;
        let message = cx.outbox.rounded(message);
        let workers = &cx.outbox.view.workers;
        workers.iter().for_each(|worker| cx.outbox.send(*worker, message.clone()));
    }

    /// Takes the rounds that are complete, in order.
    fn complete_rounds(&mut self, cx: &mut Context<'_>, b: usize) {
        loop {
            let piece = &mut self.pieces[b];
            let Some(fold) = piece.rounds.get_mut(&piece.round) else { return };
            fold.advance(&mut cx.outbox);
            if !fold.is_complete(&cx.outbox) {
                return;
            }
            let (sum, count) = piece.rounds.remove(&piece.round).expect("just seen").into_sum();
            piece.round += 1;
            piece.count += u64::from(count);
            // A round that a lost worker still took part in was a round of that many.
            let share = self.living.len() as f32 / count as f32;
            vector::axpy(share, &sum, &mut self.pending[piece.range.clone()]);
            if piece.round.is_multiple_of(self.period) {
                self.update(cx, b);
                self.send_model(cx, b);
            }
        }
    }
}

impl Algorithm for BarrierServer {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.living.clone_from(&cx.outbox.view.workers);
        self.pending.resize(cx.params.len(), 0.0);
        let round = cx.step;
        let fresh = || PieceRounds { round, ..PieceRounds::default() };
        self.pieces.resize_with(cx.layout.buckets.len(), fresh);
        for (piece, bucket) in self.pieces.iter_mut().zip(&cx.layout.buckets) {
            piece.range = bucket.range.clone();
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let Some(b) = local_bucket(cx, message.bucket) else { return };
        message.expect_length(cx.layout.range(b).len());
        let (round, piece) = (message.step, &mut self.pieces[b]);
        if round >= piece.round {
            let fold = piece.rounds.entry(round).or_default();
            fold.take(&mut cx.outbox, from, message.into_values());
            self.complete_rounds(cx, b);
        }
    }

    fn on_view(&mut self, cx: &mut Context<'_>, _old: &View) {
        (0..self.pieces.len()).for_each(|b| self.update(cx, b));
        self.living.clone_from(&cx.outbox.view.workers);
        (0..self.pieces.len()).for_each(|b| self.complete_rounds(cx, b));
    }

    fn is_ready(&self) -> bool {
        false
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        for piece in &self.pieces {
            let missing = piece.rounds.get(&piece.round).map(|fold| fold.missing(&self.living));
            let missing = missing.unwrap_or_default().into_iter();
            out.extend(missing.map(|from| Awaited { from, what: "its displacement" }));
        }
    }

    fn is_drained(&self) -> bool {
        self.pieces.iter().all(|piece| piece.rounds.is_empty())
    }

    /// `x̃ − D/N`: nothing that was received is left out.
    fn model(&self, params: &[f32], out: &mut [f32]) {
        out.copy_from_slice(params);
        for piece in &self.pieces {
            let divisor = self.normaliser.divisor(self.living.len(), piece.count);
            let range = piece.range.clone();
            vector::axpy(-1.0 / divisor, &self.pending[range.clone()], &mut out[range]);
        }
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.vector("pending", &mut self.pending);
        let mut pieces = self.pieces.len() as u64;
        visitor.number("pieces", &mut pieces);
        self.pieces.resize_with(pieces as usize, PieceRounds::default);
        for (index, piece) in self.pieces.iter_mut().enumerate() {
            visitor.number(&format!("piece.{index}.count"), &mut piece.count);
            visitor.number(&format!("piece.{index}.version"), &mut piece.version);
            visitor.number(&format!("piece.{index}.round"), &mut piece.round);
        }
    }

    /// Every step is a round.
    fn is_at_cut(&self, step: u64) -> bool {
        self.pieces.iter().all(|piece| piece.round == step)
    }

    fn keeps_older_views(&self) -> bool {
        true
    }
}
