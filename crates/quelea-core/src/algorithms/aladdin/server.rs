//! The server's side of ALADDIN; the pseudocode is in the parent module.

use std::collections::BTreeMap;

use super::normaliser::Normaliser;
use super::{ACKNOWLEDGE, ANCHOR, MODEL};
use crate::contract::{Algorithm, Awaited, Context, Fact};
use crate::kit::servers::local_bucket;
use crate::message::{Message, Rank};
use crate::options::Options;
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

/// One server.
pub(super) struct Server {
    period: u64,
    normaliser: Normaliser,
    track_mean: bool,
    drop_trigger: bool,
    /// Workers that count: n.
    workers: usize,
    /// Per piece, the sum D of displacements that x̃ has not taken yet, over the whole shard.
    pending: Vec<f32>,
    pieces: Vec<PieceLedger>,
}

/// What a server keeps for one piece.
#[derive(Debug, Default)]
struct PieceLedger {
    /// Gradients in D.
    count: u64,
    /// Updates of x̃.
    version: u64,
    /// Where the piece lies in the shard.
    range: std::ops::Range<usize>,
    /// Per worker: gradients since its last model.
    counts: BTreeMap<Rank, u64>,
    /// Per worker: the last push that was taken.
    seqs: BTreeMap<Rank, u64>,
    /// All gradients so far, and how many they were when each worker last got a model: for
    /// measuring staleness only.
    taken: u64,
    taken_at_model: BTreeMap<Rank, u64>,
    /// Whose anchors are still missing after a loss, and the sum of those that came.
    anchoring: Option<(Vec<Rank>, Vec<f64>)>,
}

impl Server {
    pub(super) fn new(options: &Options) -> Server {
        Server {
            period: options.whole("period"),
            normaliser: Normaliser::new(options),
            track_mean: options.flag("track_mean"),
            drop_trigger: options.flag("drop_trigger"),
            workers: 0,
            pending: Vec::new(),
            pieces: Vec::new(),
        }
    }

    /// N.
    fn divisor(&self, piece: &PieceLedger) -> f32 {
        self.normaliser.divisor(self.workers, piece.count)
    }

    /// `x̃ ← x̃ − D/N`; `D ← 0`.
    fn update(&mut self, cx: &mut Context<'_>, b: usize) {
        let divisor = self.divisor(&self.pieces[b]);
        let piece = &mut self.pieces[b];
        let pending = &mut self.pending[piece.range.clone()];
        vector::axpy(-1.0 / divisor, pending, &mut cx.params[piece.range.clone()]);
        cx.outbox.work(pending.len() * 4);
        pending.fill(0.0);
        piece.count = 0;
        piece.version += 1;
    }

    fn send_model(&self, cx: &mut Context<'_>, b: usize, to: Rank) {
        let id = cx.layout.buckets[b].id;
        let mut message = Message::new(MODEL, 0, id).with(cx.params_payload(b));
        message.seq = self.pieces[b].version;
        let message = cx.outbox.rounded(message);
        cx.outbox.send(to, message);
    }

    fn acknowledge(cx: &mut Context<'_>, from: Rank, message: &Message) {
        let mut answer = Message::new(ACKNOWLEDGE, message.step, message.bucket as usize);
        answer.seq = message.seq;
        cx.outbox.send(from, answer);
    }

    fn on_push(&mut self, cx: &mut Context<'_>, b: usize, from: Rank, message: Message) {
        let seq = self.pieces[b].seqs.entry(from).or_insert(0);
        let fresh = message.seq == *seq + 1;
        if fresh {
            *seq = message.seq;
        }
        // A push that comes again was taken before: only its acknowledgement was late.
        Server::acknowledge(cx, from, &message);
        if !fresh {
            return;
        }
        let gradients = u64::from(message.count);
        let piece = &mut self.pieces[b];
        if b == 0 {
            let seen = piece.taken_at_model.get(&from).copied().unwrap_or(0);
            cx.outbox.measure(Fact::Staleness(piece.taken - seen));
        }
        piece.taken += gradients;
        piece.count += gradients;
        let counted = piece.counts.entry(from).or_insert(0);
        *counted += gradients;
        let triggers = *counted >= self.period;
        // What a worker pushed before its anchor is contained in the anchor.
        let anchored = piece.anchoring.as_ref().is_none_or(|(missing, _)| !missing.contains(&from));
        if message.kind == ANCHOR {
            // One of an older view is followed by one of this view, which contains it.
            if message.view == cx.outbox.view.number {
                self.on_anchor(cx, b, from, &message.into_values());
            }
        } else if anchored && !(triggers && self.drop_trigger) {
            let rate = message.scalar as f32;
            let range = piece.range.clone();
            cx.outbox.work(range.len() * 4);
            vector::axpy(rate, &message.into_values(), &mut self.pending[range]);
        }
        // While anchors are missing, x̃ is about to be replaced: nothing may move into it.
        if triggers && self.pieces[b].anchoring.is_none() {
            self.update(cx, b);
            let piece = &mut self.pieces[b];
            piece.counts.insert(from, 0);
            piece.taken_at_model.insert(from, piece.taken);
            self.send_model(cx, b, from);
        }
    }

    /// After a loss, with mean tracking, x̃ restarts from the survivors' mean: otherwise the
    /// offset that the lost worker leaves would stay for ever.
    fn on_anchor(&mut self, cx: &mut Context<'_>, b: usize, from: Rank, model: &[f32]) {
        let piece = &mut self.pieces[b];
        let Some((missing, sum)) = &mut piece.anchoring else { return };
        let Some(place) = missing.iter().position(|rank| *rank == from) else { return };
        missing.remove(place);
        sum.iter_mut().zip(model).for_each(|(sum, x)| *sum += f64::from(*x));
        if !missing.is_empty() {
            return;
        }
        let (_, sum) = piece.anchoring.take().expect("just seen");
        let n = self.workers as f64;
        let params = &mut cx.params[piece.range.clone()];
        params.iter_mut().zip(sum).for_each(|(x, sum)| *x = (sum / n) as f32);
    }
}

impl Algorithm for Server {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.workers = cx.outbox.view.workers.len();
        self.pending.resize(cx.params.len(), 0.0);
        self.pieces.resize_with(cx.layout.buckets.len(), PieceLedger::default);
        for (piece, bucket) in self.pieces.iter_mut().zip(&cx.layout.buckets) {
            piece.range = bucket.range.clone();
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let Some(b) = local_bucket(cx, message.bucket) else { return };
        self.on_push(cx, b, from, message);
    }

    fn on_view(&mut self, cx: &mut Context<'_>, old: &View) {
        for b in 0..self.pieces.len() {
            if self.pieces[b].anchoring.is_none() {
                self.update(cx, b);
            }
        }
        self.workers = cx.outbox.view.workers.len();
        for b in 0..self.pieces.len() {
            let piece = &mut self.pieces[b];
            for lost in old.workers.iter().filter(|rank| !cx.outbox.view.is_alive(**rank)) {
                piece.counts.remove(lost);
                piece.seqs.remove(lost);
            }
            if self.track_mean {
                let sum = vec![0.0; piece.range.len()];
                piece.anchoring = Some((cx.outbox.view.workers.clone(), sum));
                self.pending[piece.range.clone()].fill(0.0);
            }
        }
    }

    fn is_ready(&self) -> bool {
        false
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        for piece in &self.pieces {
            let anchors = piece.anchoring.iter().flat_map(|(missing, _)| missing);
            out.extend(anchors.map(|from| Awaited { from: *from, what: "its model after a loss" }));
        }
    }

    fn is_drained(&self) -> bool {
        self.pieces.iter().all(|piece| piece.anchoring.is_none())
    }

    /// `x̃ − D/N`: nothing that was received is left out.
    fn model(&self, params: &[f32], out: &mut [f32]) {
        out.copy_from_slice(params);
        for piece in &self.pieces {
            let range = piece.range.clone();
            let pending = &self.pending[range.clone()];
            vector::axpy(-1.0 / self.divisor(piece), pending, &mut out[range]);
        }
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.vector("pending", &mut self.pending);
        let mut pieces = self.pieces.len() as u64;
        visitor.number("pieces", &mut pieces);
        self.pieces.resize_with(pieces as usize, PieceLedger::default);
        for (index, piece) in self.pieces.iter_mut().enumerate() {
            visitor.number(&format!("piece.{index}.count"), &mut piece.count);
            visitor.number(&format!("piece.{index}.version"), &mut piece.version);
            visitor.by_rank(&format!("piece.{index}.counts"), &mut piece.counts);
            visitor.by_rank(&format!("piece.{index}.seqs"), &mut piece.seqs);
        }
    }

    fn keeps_older_views(&self) -> bool {
        true
    }
}
