//! Hops of powers: all at once, one a round, in both directions, and the bipartite variant.

use super::weights::{graph, hops, metropolis};
use super::{Schedule, TopologyError, TopologyRequest};
use crate::options::{OptionKind, OptionSpec};

/// The options of `symmetric-exponential`.
pub(super) const SYMMETRIC_KEYS: &[OptionSpec] = &[OptionSpec {
    name: "base",
    kind: OptionKind::Whole { default: 4, min: 2, max: 1 << 20 },
    help: "neighbours are 1, base, base^2, … workers away in both directions",
}];

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

/// `i ↔ i ± b^k` for every `b^k ≤ n/2`. Every worker has the same number of neighbours, so that
/// Metropolis weights are all equal.
pub(super) fn symmetric(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let (n, base) = (request.hosts.len(), request.options.whole("base") as usize);
    let offsets = || {
        let powers = std::iter::successors(Some(1usize), |power| power.checked_mul(base));
        powers.take_while(|offset| *offset <= n / 2)
    };
    let edges = (0..n).flat_map(|i| offsets().map(move |offset| (i, (i + offset) % n)));
    Ok(Schedule::fixed(metropolis(&graph(n, edges))))
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
