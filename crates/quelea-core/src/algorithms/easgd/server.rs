//! The server's side of EASGD; the pseudocode is in the parent module.

use std::collections::BTreeMap;

use super::{CENTRE, FETCH, is_synchronous};
use crate::collectives::fold::Fold;
use crate::contract::{Algorithm, Context};
use crate::kit::servers::local_bucket;
use crate::message::{Message, Rank};
use crate::options::Options;
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

/// One server.
pub struct ElasticServer {
    synchronous: bool,
    period: u64,
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

impl ElasticServer {
    pub fn new(options: &Options) -> ElasticServer {
        let (synchronous, period) = (is_synchronous(options), options.whole("period"));
        ElasticServer { synchronous, period, pieces: Vec::new() }
    }

    fn send_centre(cx: &mut Context<'_>, b: usize, seq: u64, to: &[Rank]) {
        let id = cx.layout.buckets[b].id;
        let mut message = Message::new(CENTRE, 0, id).with(cx.params_payload(b));
        message.seq = seq;
        let message = cx.outbox.rounded(message);
        to.iter().for_each(|worker| cx.outbox.send(*worker, message.clone()));
    }

    fn add(cx: &mut Context<'_>, b: usize, elastic: &[f32]) {
        cx.outbox.work(elastic.len() * 4);
        vector::add(elastic, &mut cx.params[cx.layout.range(b)]);
    }

    /// Answers a worker that has asked, once all its own differences are in the centre.
    fn answer(&mut self, cx: &mut Context<'_>, b: usize, from: Rank) {
        let piece = &mut self.pieces[b];
        let done = piece.seqs.get(&from).copied().unwrap_or(0);
        if piece.asked.get(&from).is_some_and(|asked| *asked <= done) {
            let seq = piece.asked.remove(&from).expect("just seen");
            ElasticServer::send_centre(cx, b, seq, &[from]);
        }
    }

    fn complete_rounds(&mut self, cx: &mut Context<'_>, b: usize) {
        let piece = &mut self.pieces[b];
        let Some(fold) = piece.rounds.get_mut(&piece.round) else { return };
        fold.advance(&mut cx.outbox);
        if fold.is_complete(&cx.outbox) {
            let (sum, _) = piece.rounds.remove(&piece.round).expect("just seen").into_sum();
            piece.round += 1;
            ElasticServer::add(cx, b, &sum);
            ElasticServer::send_centre(cx, b, self.pieces[b].round, &cx.outbox.view.workers);
        }
    }
}

impl Algorithm for ElasticServer {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        let round = if self.synchronous { cx.step.div_ceil(self.period) } else { 0 };
        self.pieces.resize_with(cx.layout.buckets.len(), || State { round, ..State::default() });
        for b in (0..self.pieces.len()).filter(|_| self.synchronous) {
            ElasticServer::send_centre(cx, b, self.pieces[b].round, &cx.outbox.view.workers);
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let Some(b) = local_bucket(cx, message.bucket) else { return };
        let (piece, seq) = (&mut self.pieces[b], message.seq);
        if message.kind == FETCH {
            piece.asked.insert(from, seq);
            return self.answer(cx, b, from);
        }
        message.expect_length(cx.layout.range(b).len());
        if self.synchronous {
            if seq > piece.round {
                let fold = piece.rounds.entry(seq - 1).or_default();
                fold.take(&mut cx.outbox, from, message.into_values());
                self.complete_rounds(cx, b);
            }
            return;
        }
        let done = piece.seqs.entry(from).or_insert(0);
        // A difference that comes again is in the centre already.
        if seq == *done + 1 {
            *done = seq;
            ElasticServer::add(cx, b, &message.into_values());
            self.answer(cx, b, from);
        }
    }

    fn on_view(&mut self, cx: &mut Context<'_>, _old: &View) {
        for b in 0..self.pieces.len() {
            self.pieces[b].asked.retain(|rank, _| cx.outbox.view.is_alive(*rank));
            // One that joins in the place of a lost worker numbers its requests from 1.
            self.pieces[b].seqs.retain(|rank, _| cx.outbox.view.is_alive(*rank));
            self.complete_rounds(cx, b);
        }
    }

    fn is_ready(&self) -> bool {
        false
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        let mut count = self.pieces.len() as u64;
        visitor.number("pieces", &mut count);
        self.pieces.resize_with(count as usize, State::default);
        for (index, piece) in self.pieces.iter_mut().enumerate() {
            visitor.number(&format!("piece.{index}.round"), &mut piece.round);
            visitor.by_rank(&format!("piece.{index}.seqs"), &mut piece.seqs);
        }
    }

    /// In synchronous form a round begins with every `period`-th step.
    fn is_at_cut(&self, step: u64) -> bool {
        let rounds = step.div_ceil(self.period);
        self.synchronous && self.pieces.iter().all(|piece| piece.round == rounds)
    }

    fn keeps_older_views(&self) -> bool {
        true
    }
}
