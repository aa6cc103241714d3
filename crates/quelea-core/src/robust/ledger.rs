//! The gradients of one step at a server, one vector per worker over all buckets of the server.
//!
//! A rule that measures distances needs whole vectors, so nothing is aggregated before every bucket of
//! every worker is here.

use std::collections::BTreeMap;

use crate::layout::Layout;
use crate::message::Rank;
use crate::payload::{Payload, Pool};

/// What has come for one step.
#[derive(Debug, Default)]
pub(crate) struct GradientLedger {
    gradients: BTreeMap<Rank, LedgerEntry>,
}

#[derive(Debug)]
struct LedgerEntry {
    values: Payload,
    /// Buckets that have come.
    has: Vec<bool>,
}

impl LedgerEntry {
    fn is_complete(&self) -> bool {
        self.has.iter().all(|has| *has)
    }
}

impl GradientLedger {
    /// Takes bucket `b` of `from`; a second one is ignored.
    pub(crate) fn take(
        &mut self,
        layout: &Layout,
        pool: &Pool,
        from: Rank,
        b: usize,
        values: &[f32],
    ) {
        let entry = self.gradients.entry(from).or_insert_with(|| LedgerEntry {
            values: pool.take(layout.len()),
            has: vec![false; layout.buckets.len()],
        });
        if !std::mem::replace(&mut entry.has[b], true) {
            let all = entry.values.try_mut().expect("held by this ledger alone");
            all[layout.range(b)].copy_from_slice(values);
        }
    }

    /// Workers whose gradient is not complete.
    pub(crate) fn missing(&self, workers: &[Rank]) -> Vec<Rank> {
        let is_missing =
            |rank: &&Rank| !self.gradients.get(rank).is_some_and(LedgerEntry::is_complete);
        workers.iter().filter(is_missing).copied().collect()
    }

    /// The complete gradients in the order of ranks: those of lost workers count, if they came whole.
    pub(crate) fn vectors(&self) -> Vec<&[f32]> {
        let complete = self.gradients.values().filter(|entry| entry.is_complete());
        complete.map(|entry| &*entry.values).collect()
    }
}
