//! What changes from one view to the next.

use crate::message::Rank;

/// What changes from one view to the next. Every rank derives the view itself from the one before
/// ([`RunSpec::view_after`](crate::run_spec::RunSpec::view_after)).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ViewChange {
    /// The number of the new view.
    pub number: u32,
    /// Ranks that take part no more.
    pub departed: Vec<DepartedRank>,
    /// The step from which the rebuilt topology holds.
    pub from_step: u64,
}

/// A rank that takes part no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DepartedRank {
    /// Which one.
    pub rank: Rank,
    /// Steps that it had completed, as far as is known.
    pub steps: u64,
    /// Whether it left with notice; else it was lost.
    pub left: bool,
}

impl ViewChange {
    /// The ranks that take part no more.
    pub fn ranks(&self) -> Vec<Rank> {
        self.departed.iter().map(|departed| departed.rank).collect()
    }
}
