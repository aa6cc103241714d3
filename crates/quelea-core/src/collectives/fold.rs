//! The sum of one vector of each worker, in the order of ranks.
//!
//! A vector is added as soon as all of lower ranks are there, so that only early ones are held,
//! and the sum has the same bits whatever the order of arrival.

use std::collections::BTreeMap;

use crate::contract::Outbox;
use crate::message::Rank;
use crate::payload::Payload;

/// The vectors of one round, for one piece of the model.
#[derive(Debug, Default)]
pub struct Fold {
    /// The sum of all ranks up to `last`.
    sum: Option<Payload>,
    last: Option<Rank>,
    count: u32,
    /// What came before its turn.
    early: BTreeMap<Rank, Payload>,
}

impl Fold {
    /// Takes the vector of `from`; a second one of the same rank is ignored.
    pub fn take(&mut self, outbox: &mut Outbox<'_>, from: Rank, values: Payload) {
        if self.last.is_none_or(|last| from > last) {
            self.early.entry(from).or_insert(values);
        }
        self.advance(outbox);
    }

    /// Adds what may be added now. A rank that is no longer in the view is not waited for; what
    /// it has delivered counts.
    pub fn advance(&mut self, outbox: &mut Outbox<'_>) {
        while let Some((rank, _)) = self.early.first_key_value() {
            if self.first_missing(outbox).is_some_and(|missing| missing < *rank) {
                return;
            }
            self.add_first(outbox);
        }
    }

    /// Adds all that has arrived, even if some are missing.
    pub fn close(&mut self, outbox: &mut Outbox<'_>) {
        while !self.early.is_empty() {
            self.add_first(outbox);
        }
    }

    fn add_first(&mut self, outbox: &mut Outbox<'_>) {
        let (rank, values) = self.early.pop_first().expect("there is one");
        outbox.work(values.len() * 4);
        self.sum = Some(match self.sum.take() {
            None => values,
            Some(sum) => sum.plus(&values, outbox.pool),
        });
        self.last = Some(rank);
        self.count += 1;
    }

    /// How many vectors have come.
    pub fn len(&self) -> usize {
        self.count as usize + self.early.len()
    }

    /// Whether the vectors of all living workers are in the sum.
    pub fn is_complete(&self, outbox: &Outbox<'_>) -> bool {
        self.count > 0 && self.early.is_empty() && self.first_missing(outbox).is_none()
    }

    /// The sum and how many vectors are in it.
    pub fn into_sum(self) -> (Payload, u32) {
        (self.sum.expect("complete, so at least one is there"), self.count)
    }

    /// Living workers whose vector is neither added nor early.
    pub fn missing(&self, workers: &[Rank]) -> Vec<Rank> {
        let later = workers.iter().filter(|rank| self.last.is_none_or(|last| **rank > last));
        later.filter(|rank| !self.early.contains_key(rank)).copied().collect()
    }

    fn first_missing(&self, outbox: &Outbox<'_>) -> Option<Rank> {
        let workers = &outbox.view.workers;
        let after = workers.partition_point(|rank| self.last.is_some_and(|last| *rank <= last));
        workers[after..].iter().copied().find(|rank| !self.early.contains_key(rank))
    }
}
