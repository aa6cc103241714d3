//! Random pairs, drawn in every round.

use super::schedule::Drawn;
use super::weights::groups;
use super::{Round, Schedule, TopologyError, TopologyRequest};
use crate::random::Rng;

/// A uniformly random matching a round, weights one half; if n is odd, one random worker rests.
///
/// Two given workers meet with probability `p`, 1/(n−1) for even n and 1/n for odd, so
/// `E[WᵀW] = E[W] = I − (pn/2)(I − J)`, and the mean-square contraction is `1 − pn/2`.
pub(super) fn random_matching(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let workers = request.hosts.len();
    let mean_square = match workers {
        1 => 0.0,
        n if n % 2 == 1 => 0.5,
        n => (n - 2) as f64 / (2 * (n - 1)) as f64,
    };
    Ok(Schedule::drawn(Drawn { workers, seed: request.seed, draw, mean_square }))
}

fn draw(workers: usize, seed: u64, step: u64) -> Round {
    let mut order: Vec<usize> = (0..workers).collect();
    Rng::new(seed, "random-matching", step).shuffle(&mut order);
    let pairs: Vec<Vec<usize>> = order.chunks_exact(2).map(<[usize]>::to_vec).collect();
    groups(workers, &pairs)
}
