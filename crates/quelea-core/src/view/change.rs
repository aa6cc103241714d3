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
    /// Ranks that take part again. A change has departures or joins, not both.
    pub joined: Vec<Rank>,
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
    /// Those who take part no more after all of these changes.
    pub fn absent(changes: &[ViewChange]) -> Vec<DepartedRank> {
        let mut absent: Vec<DepartedRank> = Vec::new();
        for change in changes {
            absent.extend(&change.departed);
            absent.retain(|departed| !change.joined.contains(&departed.rank));
        }
        absent
    }

    /// The ranks that take part no more.
    pub fn ranks(&self) -> Vec<Rank> {
        self.departed.iter().map(|departed| departed.rank).collect()
    }
}
