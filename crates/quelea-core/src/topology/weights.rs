//! Ways to give weights to a graph: three that are doubly stochastic, one for pushing.

use std::collections::BTreeSet;

use super::Round;

/// An undirected graph: the neighbours of each worker, without itself.
pub(super) type Graph = Vec<BTreeSet<usize>>;

/// The graph with these edges; an edge from a worker to itself is left out.
pub(super) fn graph(workers: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> Graph {
    let mut graph = vec![BTreeSet::new(); workers];
    for (i, j) in edges.into_iter().filter(|(i, j)| i != j) {
        graph[i].insert(j);
        graph[j].insert(i);
    }
    graph
}

/// Metropolis–Hastings: `W_ij = 1/(1 + max(deg_i, deg_j))` on edges, the rest for oneself.
pub(super) fn metropolis(graph: &[BTreeSet<usize>]) -> Round {
    let row = |i: usize| {
        let weight = |j: &usize| 1.0 / (1 + graph[i].len().max(graph[*j].len())) as f64;
        let others: Vec<(usize, f64)> = graph[i].iter().map(|j| (*j, weight(j))).collect();
        with_self(i, others)
    };
    Round::new((0..graph.len()).map(row).collect())
}

/// The workers of a group take their mean; who is in no group keeps its own vector.
pub(super) fn groups(workers: usize, groups: &[Vec<usize>]) -> Round {
    let mut rows: Vec<Vec<(usize, f64)>> = (0..workers).map(|i| vec![(i, 1.0)]).collect();
    for group in groups {
        let mut row: Vec<(usize, f64)> =
            group.iter().map(|j| (*j, 1.0 / group.len() as f64)).collect();
        row.sort_unstable_by_key(|(j, _)| *j);
        for i in group {
            rows[*i].clone_from(&row);
        }
    }
    Round::new(rows)
}

/// Everyone sends to the workers `hops` further on, all with the same weight as its own.
pub(super) fn hops(workers: usize, hops: &[usize]) -> Round {
    let weight = 1.0 / (hops.len() + 1) as f64;
    let row = |i: usize| {
        let mut row = vec![(i, weight)];
        row.extend(hops.iter().map(|hop| ((i + workers - hop) % workers, weight)));
        row.sort_unstable_by_key(|(j, _)| *j);
        row
    };
    Round::new((0..workers).map(row).collect())
}

/// Every sender divides evenly among its receivers and itself: columns sum to one, rows need not.
pub(super) fn shares(workers: usize, edges: impl IntoIterator<Item = (usize, usize)>) -> Round {
    let edges: Vec<(usize, usize)> = edges.into_iter().collect();
    let mut receivers = vec![0usize; workers];
    edges.iter().for_each(|(from, _)| receivers[*from] += 1);
    let share = |from: usize| (from, 1.0 / (receivers[from] + 1) as f64);
    let mut rows: Vec<Vec<(usize, f64)>> = (0..workers).map(|i| vec![share(i)]).collect();
    edges.iter().for_each(|(from, to)| rows[*to].push(share(*from)));
    rows.iter_mut().for_each(|row| row.sort_unstable_by_key(|(j, _)| *j));
    Round::new(rows)
}

/// The row of worker `i` with these weights on others; its own is what is left of one.
pub(super) fn with_self(i: usize, mut row: Vec<(usize, f64)>) -> Vec<(usize, f64)> {
    let own = 1.0 - row.iter().map(|(_, weight)| weight).sum::<f64>();
    if own.abs() > 1e-15 {
        row.push((i, own));
    }
    row.sort_unstable_by_key(|(j, _)| *j);
    row
}
