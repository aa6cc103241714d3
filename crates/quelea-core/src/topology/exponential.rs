//! Hops of powers of two: all at once, one a round, and the bipartite variant.

use super::weights::{graph, hops, metropolis};
use super::{Schedule, TopologyError, TopologyRequest};

/// `i` sends to `i + 2^k mod n` for every `k < m = ⌈log₂ n⌉`, all weights `1/(m+1)`.
pub(super) fn all_hops(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let n = request.hosts.len();
    Ok(Schedule::fixed(hops(n, &powers(n))))
}

/// Round `t`: `i` sends to `i + 2^(t mod m) mod n`, weights one half.
pub(super) fn one_hop(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let n = request.hosts.len();
    if n == 1 {
        return all_hops(request);
    }
    Ok(Schedule::periodic(powers(n).iter().map(|hop| hops(n, &[*hop])).collect()))
}

/// `i ↔ i ± 1` and `i ↔ i ± (1 + 2^k)` for `0 < k < m`: odd offsets, so for even n every edge
/// joins an even worker and an odd one.
pub(super) fn bipartite(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let n = request.hosts.len();
    if n > 1 && !n.is_multiple_of(2) {
        return Err(TopologyError::Workers {
            topology: "bipartite-exponential",
            needs: "an even number of workers",
            workers: n,
            works: format!("{} and {}", n - 1, n + 1),
        });
    }
    let offsets = || powers(n).into_iter().map(|hop| if hop == 1 { 1 } else { 1 + hop });
    let edges = (0..n).flat_map(|i| offsets().map(move |offset| (i, (i + offset) % n)));
    Ok(Schedule::fixed(metropolis(&graph(n, edges))))
}

/// `1, 2, 4, …` below `n`.
fn powers(n: usize) -> Vec<usize> {
    (0..usize::BITS).map(|k| 1 << k).take_while(|hop| *hop < n).collect()
}
