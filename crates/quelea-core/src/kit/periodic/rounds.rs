//! What survivors of a loss exchange: how many averages each has finished, and the result of the
//! last one for ranks that have not finished it.

use std::collections::BTreeMap;

use crate::contract::{Awaited, Context};
use crate::message::{Message, Rank};
use crate::payload::Payload;

/// How many rounds the sender has finished.
pub const ROUND: u8 = 0xf0;
/// One part of the result of an average that the receiver could not finish.
pub const RESULT: u8 = 0xf1;

/// One comparison after another; idle in between.
#[derive(Debug, Default)]
pub struct RoundComparison {
    /// Rounds of the others, until the comparison is over.
    known: Option<BTreeMap<Rank, u64>>,
    /// The results that peers send me, part by part. Only that of a rank that is ahead is taken over.
    results: BTreeMap<Rank, BTreeMap<u32, Payload>>,
}

impl RoundComparison {
    /// Whether survivors are still comparing.
    pub fn is_running(&self) -> bool {
        self.known.is_some()
    }

    /// Membership has changed, and I have finished `round` rounds.
    pub fn begin(&mut self, cx: &mut Context<'_>, round: u64) {
        *self = RoundComparison { known: Some(BTreeMap::new()), results: BTreeMap::new() };
        let mut message = Message::new(ROUND, cx.step, 0);
        message.seq = round;
        let me = cx.outbox.rank;
        for rank in cx.outbox.view.workers.iter().filter(|rank| **rank != me) {
            cx.outbox.send(*rank, message.clone());
        }
    }

    /// A message of kind [`ROUND`] has arrived.
    pub fn on_round(&mut self, from: Rank, message: &Message) {
        if let Some(known) = &mut self.known {
            known.insert(from, message.seq);
        }
    }

    /// Ends the comparison if all rounds are known and no rank is ahead of this one. Returns the
    /// ranks that this one has to send the result to.
    pub fn conclude(&mut self, cx: &Context<'_>, round: u64) -> Option<Vec<Rank>> {
        let known = self.known.as_ref()?;
        if known.len() + 1 < cx.outbox.view.workers.len() || known.values().any(|r| *r > round) {
            return None;
        }
        let known = self.known.take()?;
        // Of the ranks that have finished the most rounds, the lowest sends the result.
        if known.iter().any(|(rank, r)| *r == round && *rank < cx.outbox.rank) {
            return Some(Vec::new());
        }
        Some(known.into_iter().filter(|(_, r)| *r < round).map(|(rank, _)| rank).collect())
    }

    /// Sends the `parts` of a result.
    pub fn help(cx: &mut Context<'_>, behind: &[Rank], parts: &[Payload]) {
        for (stage, part) in parts.iter().enumerate() {
            let mut message = Message::new(RESULT, cx.step, 0).with(part.clone());
            (message.stage, message.count) = (stage as u32, parts.len() as u32);
            behind.iter().for_each(|rank| cx.outbox.send(*rank, message.clone()));
        }
    }

    /// A message of kind [`RESULT`] has arrived, at a rank whose results have parts of these lengths, one
    /// or the other. Panics, before anything is changed, if it is not such a part.
    pub fn on_result(&mut self, from: Rank, message: Message, lens: &[[usize; 2]]) {
        let (stage, count, total) = (message.stage as usize, message.count as usize, lens.len());
        let is_part = stage < total && count == total;
        assert!(is_part, "part {stage} of {count} of a result of {total} parts");
        let [usual, other] = lens[stage];
        if !message.has_length(other) {
            message.expect_length(usual);
        }
        if self.is_running() {
            self.results.entry(from).or_default().insert(stage as u32, message.into_values());
        }
    }

    /// All `total` parts of the result of a rank that has finished more than `round` rounds, once they are
    /// here, which ends the comparison.
    pub fn take_result(&mut self, round: u64, total: usize) -> Option<Vec<Payload>> {
        let known = self.known.as_ref()?;
        let is_ahead = |rank: &Rank| known.get(rank).is_some_and(|r| *r > round);
        let mut whole = self.results.iter().filter(|(_, parts)| parts.len() == total);
        let from = whole.find(|(rank, _)| is_ahead(rank)).map(|(rank, _)| *rank)?;
        let parts = self.results.remove(&from)?;
        *self = RoundComparison::default();
        Some(parts.into_values().collect())
    }

    /// The ranks that it is waiting for.
    pub fn awaiting(&self, others: &[Rank], out: &mut Vec<Awaited>) {
        let Some(known) = &self.known else { return };
        let missing = others.iter().filter(|rank| !known.contains_key(rank));
        out.extend(missing.map(|from| Awaited { from: *from, what: "its round after a loss" }));
    }
}
