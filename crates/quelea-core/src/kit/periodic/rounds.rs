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
    /// The result that a peer sends me, part by part.
    result: BTreeMap<u32, Payload>,
}

impl RoundComparison {
    /// Whether survivors are still comparing.
    pub fn is_running(&self) -> bool {
        self.known.is_some()
    }

    /// Membership has changed, and I have finished `round` rounds.
    pub fn begin(&mut self, cx: &mut Context<'_>, round: u64) {
        *self = RoundComparison { known: Some(BTreeMap::new()), result: BTreeMap::new() };
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

    /// A message of kind [`RESULT`] has arrived. Returns all parts once they are there, which ends
    /// the comparison.
    pub fn on_result(&mut self, message: Message) -> Option<Vec<Payload>> {
        let total = message.count as usize;
        self.result.insert(message.stage, message.into_values());
        if self.result.len() < total {
            return None;
        }
        self.known = None;
        Some(std::mem::take(&mut self.result).into_values().collect())
    }

    /// The ranks that it is waiting for.
    pub fn awaiting(&self, others: &[Rank], out: &mut Vec<Awaited>) {
        let Some(known) = &self.known else { return };
        let missing = others.iter().filter(|rank| !known.contains_key(rank));
        out.extend(missing.map(|from| Awaited { from: *from, what: "its round after a loss" }));
    }
}
