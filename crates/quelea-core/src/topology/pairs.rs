//! Two halves of the workers, one that asks and one that answers, as AD-PSGD needs them.

use std::collections::VecDeque;

use super::validate::Parts;

/// Who asks, and whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pairs {
    /// Whether a worker asks (active) or answers (passive).
    pub active: Vec<bool>,
    /// The neighbours of each worker on the other side, by index.
    pub partners: Vec<Vec<usize>>,
}

impl Pairs {
    /// Splits the workers of a topology, over all of its rounds, into active and passive ones.
    ///
    /// A bipartite graph has its own two sides, worker 0 passive. In any other the odd workers are
    /// active and edges between workers of the same side are not used; if that would cut the graph
    /// in two, the distance from worker 0 decides instead, odd ones active. The edges that remain
    /// always connect all workers, because they contain a tree of shortest paths.
    pub(super) fn of(neighbours: &[Vec<usize>]) -> Pairs {
        let by_distance = distances(neighbours).iter().map(|far| far % 2 == 1).collect();
        let by_distance = Pairs::new(by_distance, neighbours);
        if by_distance.partners == neighbours {
            return by_distance;
        }
        let by_index = Pairs::new((0..neighbours.len()).map(|i| i % 2 == 1).collect(), neighbours);
        if by_index.is_connected() { by_index } else { by_distance }
    }

    fn new(active: Vec<bool>, neighbours: &[Vec<usize>]) -> Pairs {
        let across = |(i, list): (usize, &Vec<usize>)| {
            list.iter().copied().filter(|j| active[*j] != active[i]).collect()
        };
        let partners = neighbours.iter().enumerate().map(across).collect();
        Pairs { active, partners }
    }

    fn is_connected(&self) -> bool {
        let mut parts = Parts::new(self.partners.len());
        for (i, list) in self.partners.iter().enumerate() {
            list.iter().for_each(|j| parts.join(i, *j));
        }
        parts.is_whole()
    }
}

/// Steps from worker 0.
fn distances(neighbours: &[Vec<usize>]) -> Vec<usize> {
    let mut distances = vec![None; neighbours.len()];
    distances[0] = Some(0);
    let mut queue = VecDeque::from([(0, 0)]);
    while let Some((worker, far)) = queue.pop_front() {
        for &next in &neighbours[worker] {
            if distances[next].is_none() {
                distances[next] = Some(far + 1);
                queue.push_back((next, far + 1));
            }
        }
    }
    distances.into_iter().map(|far| far.expect("a checked topology is connected")).collect()
}

#[cfg(test)]
mod tests {
    use crate::topology::tests::{build, cases};

    #[test]
    fn partners_are_on_the_other_side_and_connect_everyone() {
        for (name, schedule) in cases(1..=20) {
            let pairs = schedule.pairs();
            assert!(pairs.is_connected(), "{name} {}", schedule.workers());
            for (i, partners) in pairs.partners.iter().enumerate() {
                for j in partners {
                    assert_ne!(pairs.active[i], pairs.active[*j]);
                    assert!(pairs.partners[*j].contains(&i));
                }
            }
        }
    }

    #[test]
    fn an_even_ring_uses_all_edges_and_an_odd_one_leaves_out_the_last() {
        assert_eq!(build("ring", 4).pairs().clone().partners, [[1, 3], [0, 2], [1, 3], [0, 2]]);
        let odd = build("ring", 5).pairs().clone();
        assert_eq!(odd.active, [false, true, false, true, false]);
        assert_eq!(odd.partners, [vec![1], vec![0, 2], vec![1, 3], vec![2, 4], vec![3]]);
    }

    #[test]
    fn odd_workers_ask_even_ones_on_a_complete_graph() {
        let pairs = build("complete", 6).pairs().clone();
        assert_eq!(pairs.partners[1], [0, 2, 4]);
        assert_eq!(pairs.partners[4], [1, 3, 5]);
    }

    #[test]
    fn the_two_sides_of_a_star_are_hub_and_leaves() {
        let pairs = build("star", 4).pairs().clone();
        assert_eq!(pairs.active, [false, true, true, true]);
    }

    #[test]
    fn where_parity_would_cut_the_graph_the_distance_decides() {
        // On a torus of 3 × 4 all steps between rows keep the parity of the index.
        let pairs = build("torus", 12).pairs().clone();
        assert!(pairs.partners[0].contains(&4));
    }
}
