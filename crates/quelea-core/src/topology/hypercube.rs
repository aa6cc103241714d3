//! Workers whose numbers differ in one bit: all bits at once, or one bit a round.
//!
//! For n that is no power of two this is the incomplete hypercube (Katseff 1988): the corners
//! `0..n`. It stays connected, because clearing a bit of a number leads to a smaller number.

use super::weights::{graph, groups, metropolis};
use super::{Schedule, TopologyError, TopologyRequest};

/// Metropolis weights; `1/(m+1)` throughout if `n = 2^m`.
pub(super) fn all_bits(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let n = request.hosts.len();
    let edges = (0..bits(n)).flat_map(|bit| pairs(n, bit));
    Ok(Schedule::fixed(metropolis(&graph(n, edges))))
}

/// Round `t` averages the pairs that differ in bit `t mod m`.
pub(super) fn one_bit(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let n = request.hosts.len();
    let round = |bit: u32| {
        let pairs: Vec<Vec<usize>> = pairs(n, bit).map(|(i, j)| vec![i, j]).collect();
        groups(n, &pairs)
    };
    Ok(Schedule::periodic((0..bits(n).max(1)).map(round).collect()))
}

/// `⌈log₂ n⌉`.
fn bits(n: usize) -> u32 {
    n.next_power_of_two().ilog2()
}

fn pairs(n: usize, bit: u32) -> impl Iterator<Item = (usize, usize)> {
    (0..n).map(move |i| (i, i ^ (1 << bit))).filter(move |(i, j)| i < j && *j < n)
}
