//! Quorum: which of the workers of a view may continue without the others.
//!
//! More than half of the last agreed view, or exactly half if the controller that this view names is
//! among them. Any two such sets have a worker in common, so that two sides of a partition never both
//! continue; one of two may die, unless it is the controller's.

use std::collections::BTreeSet;
use std::fmt;

use quelea_core::message::Rank;

/// In the place of a rank: the controller lives in a process without workers.
pub const NO_RANK: u32 = u32::MAX;

/// Who may continue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QuorumRule {
    /// More than half of the last view, or exactly half with its controller.
    #[default]
    Majority,
    /// Whoever is left: for networks that do not partition.
    Any,
}

impl QuorumRule {
    /// Whether `present` may continue in the place of all `workers` of a view that names `controller`.
    pub fn is_met(self, workers: &[Rank], controller: u32, present: &BTreeSet<u32>) -> bool {
        let there = workers.iter().filter(|rank| present.contains(&rank.0)).count();
        match self {
            QuorumRule::Any => there > 0,
            QuorumRule::Majority => {
                let has_controller = present.contains(&controller);
                2 * there > workers.len() || (2 * there == workers.len() && has_controller)
            }
        }
    }
}

/// Too few workers of the last view are within reach: the others may continue without them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingQuorum {
    /// Workers of the last agreed view that are within reach, the speaker included.
    pub reached: Vec<u32>,
    /// Those that are not.
    pub missing: Vec<u32>,
}

impl MissingQuorum {
    /// Of these workers, those in `present` are within reach.
    pub fn new(workers: &[Rank], present: &BTreeSet<u32>) -> MissingQuorum {
        let (reached, missing) =
            workers.iter().map(|rank| rank.0).partition(|rank| present.contains(rank));
        MissingQuorum { reached, missing }
    }
}

/// "rank 3" or "ranks 3, 4".
pub(crate) fn named(ranks: &[u32]) -> String {
    let list = ranks.iter().map(u32::to_string).collect::<Vec<_>>().join(", ");
    if ranks.len() == 1 { format!("rank {list}") } else { format!("ranks {list}") }
}

impl fmt::Display for MissingQuorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (reached, all) = (self.reached.len(), self.reached.len() + self.missing.len());
        write!(
            f,
            "{} cannot be reached: {reached} of {all} workers are no quorum, and the others may \
             continue without them",
            named(&self.missing)
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workers(n: u32) -> Vec<Rank> {
        (0..n).map(Rank).collect()
    }

    #[test]
    fn two_sides_of_a_partition_never_both_have_a_quorum() {
        for n in 1..=8u32 {
            for controller in 0..n {
                for side in 0..1u32 << n {
                    let part = |wanted| -> BTreeSet<u32> {
                        (0..n).filter(|rank| (side >> rank & 1 == 1) == wanted).collect()
                    };
                    let met = |part| QuorumRule::Majority.is_met(&workers(n), controller, &part);
                    assert!(!(met(part(true)) && met(part(false))), "{n} {controller} {side:b}");
                }
            }
        }
    }

    #[test]
    fn five_of_eight_continue_and_of_four_and_four_the_side_of_the_controller() {
        let met = |present: &[u32]| {
            QuorumRule::Majority.is_met(&workers(8), 0, &present.iter().copied().collect())
        };
        assert!(met(&[3, 4, 5, 6, 7]) && !met(&[0, 1, 2]));
        assert!(met(&[0, 1, 2, 3]) && !met(&[4, 5, 6, 7]));
    }

    #[test]
    fn of_two_the_side_of_the_controller_continues() {
        let met = |rule: QuorumRule, rank| rule.is_met(&workers(2), 0, &BTreeSet::from([rank]));
        assert!(met(QuorumRule::Majority, 0) && !met(QuorumRule::Majority, 1));
        assert!(met(QuorumRule::Any, 1), "for those who prefer availability");
    }

    #[test]
    fn those_who_cannot_be_reached_are_named() {
        let missing = MissingQuorum::new(&workers(8), &BTreeSet::from([5, 6, 7]));
        assert_eq!(
            missing.to_string(),
            "ranks 0, 1, 2, 3, 4 cannot be reached: 3 of 8 workers are no quorum, and the others \
             may continue without them"
        );
    }
}
