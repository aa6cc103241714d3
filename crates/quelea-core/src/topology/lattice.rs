//! Rows and columns, without wrap-around (`grid`) and with it (`torus`).
//!
//! Metropolis weights for both: on a torus with sides of at least 3 they are the published fifths,
//! and with a side of 2, where the two edges between a pair are one, they stay doubly stochastic.

use super::weights::{graph, metropolis};
use super::{Schedule, TopologyError, TopologyRequest, TopologyShape};

pub(super) fn grid(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    Ok(lattice(request.hosts.len(), false))
}

pub(super) fn torus(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    Ok(lattice(request.hosts.len(), true))
}

fn lattice(n: usize, wraps: bool) -> Schedule {
    let (rows, columns) = sides(n);
    let edges = (0..n).flat_map(|i| {
        let (row, column) = (i / columns, i % columns);
        let right = row * columns + (column + 1) % columns;
        let below = (row + 1) % rows * columns + column;
        [(i, right), (i, below)]
    });
    let edges = edges.filter(|(i, j)| wraps || i < j);
    Schedule::fixed(metropolis(&graph(n, edges))).shaped(TopologyShape::Lattice { columns })
}

/// The closest pair of factors, the smaller one first; `(1, n)` for a prime.
fn sides(n: usize) -> (usize, usize) {
    let rows = (1..=n.isqrt()).rev().find(|rows| n.is_multiple_of(*rows));
    let rows = rows.expect("one divides every number of workers");
    (rows, n / rows)
}
