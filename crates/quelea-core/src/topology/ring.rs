//! The ring with both neighbours at once, with one of them, and in pairs.

use super::weights::{graph, groups, hops, metropolis};
use super::{Schedule, TopologyError, TopologyRequest};

/// A third each to oneself, left and right; halves if there are only two workers.
pub(super) fn ring(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let n = request.hosts.len();
    Ok(Schedule::fixed(metropolis(&graph(n, (0..n).map(|i| (i, (i + 1) % n))))))
}

/// `i` sends to `i + 1 mod n`, weights one half.
pub(super) fn directed(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let n = request.hosts.len();
    let next: &[usize] = if n > 1 { &[1] } else { &[] };
    Ok(Schedule::fixed(hops(n, next)))
}

/// Round `t` pairs `(t, t+1), (t+2, t+3), …` around the ring.
///
/// For even n that is Decent-DP's ring, of period 2. For odd n worker `t − 1` is left out of
/// round `t`; after n rounds everyone was left out once.
pub(super) fn one_peer(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let n = request.hosts.len();
    if n > ODD_MAX && !n.is_multiple_of(2) {
        return Err(TopologyError::Workers {
            topology: "one-peer-ring",
            needs: "an even number of workers above 2048, because an odd n has n rounds",
            workers: n,
            works: format!("{} and {}", n - 1, n + 1),
        });
    }
    let period = match n {
        1 | 2 => 1,
        n if n % 2 == 0 => 2,
        n => n,
    };
    let round = |t: usize| {
        let pair = |k: usize| vec![(t + 2 * k) % n, (t + 2 * k + 1) % n];
        groups(n, &(0..n / 2).map(pair).collect::<Vec<_>>())
    };
    Ok(Schedule::periodic((0..period).map(round).collect()))
}

/// Some hundred megabytes of rounds.
const ODD_MAX: usize = 2048;
