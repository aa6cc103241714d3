//! Everyone with everyone: `W = J`, the exact mean in one round.

use super::weights::groups;
use super::{Schedule, TopologyError, TopologyRequest};

pub(super) fn complete(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let n = request.hosts.len();
    if n > WORKERS_MAX {
        return Err(TopologyError::Workers {
            topology: "complete",
            needs: "at most 8192 workers, because its weights are n × n",
            workers: n,
            works: WORKERS_MAX.to_string(),
        });
    }
    Ok(Schedule::fixed(groups(n, &[(0..n).collect()])))
}

/// One gibibyte of weights.
const WORKERS_MAX: usize = 8192;
