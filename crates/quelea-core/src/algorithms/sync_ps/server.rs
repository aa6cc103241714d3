//! The server's side of `sync-ps`.

use std::collections::BTreeMap;

use super::MODEL;
use super::lazy::{KeptGradients, LazyUploads};
use crate::codec::{CodecShape, Coder, ErrorFeedback};
use crate::collectives::fold::Fold;
use crate::contract::{Algorithm, Awaited, Context, Mode};
use crate::kit::servers::{self, local_bucket};
use crate::message::{Message, Rank};
use crate::options::Options;
use crate::robust::{Aggregation, GradientLedger};
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

#[derive(Default)]
pub(super) struct Server {
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
    /// The last gradient of every worker, where workers may leave out the next one.
    kept: Option<KeptGradients>,
}

impl Server {
    pub(super) fn new(options: &Options) -> Server {
        Server {
            backup: options.whole("backup") as usize,
            aggregation: Aggregation::of(options),
            kept: LazyUploads::of(options).map(|_| KeptGradients::default()),
            ..Server::default()
        }
    }

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
        if let Some(kept) = &mut self.kept {
            return kept.answer(cx, b, message);
        }
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
        self.coded = cx.outbox.coder.shape() != CodecShape::Plain || self.kept.is_some();
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let Some(b) = local_bucket(cx, message.bucket) else { return };
        if message.step < self.steps[b] {
            return;
        }
        let message = match &mut self.kept {
            Some(kept) => kept.completed(cx, from, b, message),
            None => message,
        };
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
        if let Some(kept) = &mut self.kept {
            kept.on_view(cx.outbox.view);
        }
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
        if let Some(kept) = &mut self.kept {
            kept.state(visitor);
        }
    }

    fn is_at_cut(&self, step: u64) -> bool {
        self.steps.iter().all(|done| *done == step)
    }

    fn keeps_older_views(&self) -> bool {
        true
    }
}
