//! Rounds in which workers average in groups, and how the members of a group exchange vectors.

use super::Round;
use crate::options::{OptionKind, OptionSpec};

/// An option of every topology.
pub const GROUPS: OptionSpec = OptionSpec {
    name: "groups",
    kind: OptionKind::Choice(&["all-reduce", "ring", "halving-doubling", "hierarchical", "send"]),
    help: "how three or more workers that all take the mean of their group exchange models: by \
           all-reduce (hierarchical where several members share a host and the group spans \
           hosts, else a ring), by a collective by name, or by sending to each other one by one",
};

/// How the members of a group of three or more exchange vectors.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupExchange {
    /// By the collective that fits the group's hosts.
    #[default]
    AllReduce,
    /// By the collective of this name.
    Collective(&'static str),
    /// Every member sends to every other.
    Send,
}

impl GroupExchange {
    /// As the option [`GROUPS`] names it.
    pub fn named(name: &str) -> GroupExchange {
        let OptionKind::Choice(words) = GROUPS.kind else { unreachable!("it is a choice") };
        match words.iter().find(|word| **word == name) {
            Some(&"send") => GroupExchange::Send,
            Some(&"all-reduce") | None => GroupExchange::AllReduce,
            Some(collective) => GroupExchange::Collective(collective),
        }
    }
}

/// Smaller groups gain nothing from a collective.
pub const MEMBERS_MIN: usize = 3;

impl Round {
    /// The groups that all take the mean of the group, by their first member: their members have
    /// the same neighbours, themselves included, and weigh all alike. A worker without
    /// neighbours is a group of one; a worker may belong to none.
    pub fn groups(&self) -> Vec<Vec<usize>> {
        let leads = |(first, row): &(usize, &Vec<(usize, f64)>)| {
            row.first().is_some_and(|(lowest, _)| lowest == first) && self.is_group(row)
        };
        let groups = self.rows().iter().enumerate().filter(leads);
        groups.map(|(_, row)| row.iter().map(|(member, _)| *member).collect()).collect()
    }

    /// For each worker, whether it belongs to a group of three or more.
    pub fn averages_in_group(&self) -> Vec<bool> {
        let mut averages = vec![false; self.workers()];
        for group in self.groups().iter().filter(|group| group.len() >= MEMBERS_MIN) {
            group.iter().for_each(|member| averages[*member] = true);
        }
        averages
    }

    fn is_group(&self, row: &[(usize, f64)]) -> bool {
        let weight = 1.0 / row.len() as f64;
        let same = |other: &[(usize, f64)]| {
            other.len() == row.len()
                && other
                    .iter()
                    .zip(row)
                    .all(|((a, own), (b, _))| a == b && (own - weight).abs() < WEIGHT_TOLERANCE)
        };
        row.iter().all(|(member, _)| same(&self.rows()[*member]))
    }
}

/// Weights that differ by rounding only are alike.
const WEIGHT_TOLERANCE: f64 = 1e-12;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::tests::build;

    #[test]
    fn everyone_of_a_complete_graph_averages_in_one_group_and_nobody_of_a_pair_does() {
        assert_eq!(build("complete", 5).round(0).averages_in_group(), [true; 5]);
        assert_eq!(build("complete", 2).round(0).averages_in_group(), [false; 2]);
        for step in 0..2 {
            let pairs = build("one-peer-ring", 6).round(step);
            assert_eq!(pairs.averages_in_group(), [false; 6]);
        }
    }

    #[test]
    fn neighbours_that_have_other_neighbours_are_no_group() {
        for name in ["ring", "star", "torus", "exponential", "hypercube"] {
            assert_eq!(build(name, 8).round(0).averages_in_group(), [false; 8], "{name}");
        }
        // Three workers on a ring are everyone's neighbours, a third each.
        assert_eq!(build("ring", 3).round(0).averages_in_group(), [true; 3]);
    }

    #[test]
    fn unequal_weights_and_one_way_edges_are_no_group() {
        let row = |i: usize| (0..3).map(|j| (j, if i == j { 0.4 } else { 0.3 })).collect();
        let round = Round::new((0..3).map(row).collect());
        assert_eq!(round.averages_in_group(), [false; 3]);
        // All listen to 0, 1 and 2; nobody listens to 3.
        let third = || (0..3).map(|j| (j, 1.0 / 3.0)).collect();
        let round = Round::new((0..4).map(|_| third()).collect());
        assert_eq!(round.averages_in_group(), [true, true, true, false]);
    }

    #[test]
    fn the_option_names_every_exchange() {
        assert_eq!(GroupExchange::named("all-reduce"), GroupExchange::default());
        assert_eq!(GroupExchange::named("send"), GroupExchange::Send);
        assert_eq!(GroupExchange::named("ring"), GroupExchange::Collective("ring"));
    }
}
