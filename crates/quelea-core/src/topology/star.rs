//! One worker in the middle, with Metropolis weights: every edge has `1/n`.

use super::weights::{graph, metropolis};
use super::{Schedule, TopologyError, TopologyRequest, TopologyShape};

pub(super) fn star(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let n = request.hosts.len();
    let round = metropolis(&graph(n, (1..n).map(|leaf| (0, leaf))));
    Ok(Schedule::fixed(round).shaped(TopologyShape::Hub))
}
