//! Two groups, each complete in itself, with few edges between them: graphs in which a few bad workers do
//! the most harm.

use super::weights::{Graph, graph, metropolis, with_self};
use super::{Round, Schedule, TopologyError, TopologyRequest};
use crate::options::{OptionKind, OptionSpec};

/// `attached`.
const ATTACHED: OptionSpec = OptionSpec {
    name: "attached",
    kind: OptionKind::Whole { default: 0, min: 0, max: 1 << 20 },
    help: "how many of the last workers are in neither group, but tied to it: for Byzantine ones",
};

/// The options of `dumbbell`.
pub(super) const DUMBBELL_KEYS: &[OptionSpec] = &[ATTACHED];

/// The options of `two-worlds`.
pub(super) const TWO_WORLDS_KEYS: &[OptionSpec] = &[
    OptionSpec {
        name: "cross",
        kind: OptionKind::Whole { default: 1, min: 1, max: 1 << 20 },
        help: "how many workers of the other group each worker is a neighbour of",
    },
    ATTACHED,
];

/// The workers of the two groups: the first half, the second half, and who is attached.
struct TwoGroups {
    first: usize,
    members: usize,
    workers: usize,
}

impl TwoGroups {
    fn new(topology: &'static str, request: &TopologyRequest) -> Result<TwoGroups, TopologyError> {
        let workers = request.hosts.len();
        let attached = request.options.whole(ATTACHED.name) as usize;
        let members = workers.saturating_sub(attached);
        if members == 0 {
            return Err(TopologyError::Workers {
                topology,
                needs: "more workers than are `attached`",
                workers,
                works: format!("{} or more", attached + 1),
            });
        }
        Ok(TwoGroups { first: members / 2, members, workers })
    }

    /// Everyone with everyone of its own group.
    fn edges_within(&self) -> impl Iterator<Item = (usize, usize)> {
        let (first, members) = (self.first, self.members);
        (0..members).flat_map(move |i| {
            let end = if i < first { first } else { members };
            (i + 1..end).map(move |j| (i, j))
        })
    }
}

/// One edge between worker 0 and the last member; half of the attached at either end of it. Metropolis
/// weights.
pub(super) fn dumbbell(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let groups = TwoGroups::new("dumbbell", request)?;
    let last = groups.members - 1;
    let attached = groups.workers - groups.members;
    let ends = (0..attached).map(|k| {
        let end = if k < attached / 2 { 0 } else { last };
        (end, groups.members + k)
    });
    let edges = groups.edges_within().chain([(0, last)]).chain(ends);
    Ok(Schedule::fixed(metropolis(&graph(groups.workers, edges))))
}

/// Worker `i` of the first group with `cross` of the second, from the one that stands opposite on; the
/// attached with everyone. All edges have the weight 1/(1 + largest degree).
pub(super) fn two_worlds(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let groups = TwoGroups::new("two-worlds", request)?;
    let (first, members) = (groups.first, groups.members);
    let cross = (request.options.whole("cross") as usize).min(first);
    let opposite = (0..first).flat_map(|i| (0..cross).map(move |k| (i, first + (i + k) % first)));
    let attached = (members..groups.workers).flat_map(|bad| (0..members).map(move |i| (i, bad)));
    let edges = groups.edges_within().chain(opposite).chain(attached);
    Ok(Schedule::fixed(even(&graph(groups.workers, edges))))
}

/// Every edge has the same weight.
fn even(graph: &Graph) -> Round {
    let largest = graph.iter().map(|neighbours| neighbours.len()).max().unwrap_or(0);
    let weight = 1.0 / (1 + largest) as f64;
    let row = |i: usize| with_self(i, graph[i].iter().map(|j| (*j, weight)).collect());
    Round::new((0..graph.len()).map(row).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::{Options, Value};
    use crate::topology;

    fn neighbours(name: &str, given: &[(&str, f64)], workers: usize) -> Vec<Vec<usize>> {
        let entry = topology::find(name).expect("in the table");
        let given = given.iter().map(|(key, value)| (key.to_string(), Value::Number(*value)));
        let options = Options::check(entry.meta.options, given).expect("good options");
        let hosts: Vec<u32> = (0..workers as u32).collect();
        let request = TopologyRequest { hosts: &hosts, seed: 1, options: &options, text: None };
        let round = entry.build(&request).expect("a good topology").round(0);
        let others = |i: usize| {
            let row = round.rows()[i].iter();
            row.map(|(j, _)| *j).filter(|j| *j != i).collect()
        };
        (0..workers).map(others).collect()
    }

    #[test]
    fn a_dumbbell_has_one_bridge_and_its_attached_hang_at_the_ends() {
        let found = neighbours("dumbbell", &[("attached", 2.0)], 8);
        assert_eq!(found[0], [1, 2, 5, 6]);
        assert_eq!(found[1], [0, 2]);
        assert_eq!(found[5], [0, 3, 4, 7]);
        assert_eq!((&found[6][..], &found[7][..]), (&[0][..], &[5][..]));
    }

    #[test]
    fn in_two_worlds_everyone_has_as_many_neighbours_in_the_other_one() {
        let found = neighbours("two-worlds", &[("cross", 2.0), ("attached", 1.0)], 9);
        for (i, neighbours) in found[..8].iter().enumerate() {
            let other = neighbours.iter().filter(|j| **j < 8 && (**j < 4) != (i < 4)).count();
            assert_eq!((neighbours.len(), other), (6, 2), "worker {i}");
        }
        assert_eq!(found[8], (0..8).collect::<Vec<_>>());
    }
}
