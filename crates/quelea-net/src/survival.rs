//! Whether a run survives the process that controls it, and how.

use quelea_control::{LossPolicy, NO_RANK, QuorumRule};
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;

use crate::controller::FIRST_TERM;
use crate::options::NetOptions;
use crate::protocol::Survival;
use crate::transport::{RankLinks, TransportKind};

/// Of fewer workers nobody could tell a lost coordinator from a lost network.
const LEAST_FOR_MAJORITY: usize = 3;
/// One of these is left when the other is lost.
const LEAST_FOR_ANY: usize = 2;

/// Why a run over several processes ends with the one that controls it, if it does; said before it starts.
pub fn survival_refusal(setup: &RunSpec, options: &NetOptions) -> Option<String> {
    if options.on_loss == LossPolicy::Stop {
        return Some("`membership.on_loss` = \"stop\" ends it with the first process lost".into());
    }
    if options.transport == TransportKind::Mpi {
        return Some("the processes of an MPI job end together".into());
    }
    if let Some(why) = setup.takeover_refusal() {
        return Some(why.into());
    }
    let workers = setup.workers();
    match options.quorum {
        QuorumRule::Majority if workers < LEAST_FOR_MAJORITY => Some(format!(
            "with {workers} of them, no worker can tell a lost process from a lost network; \
             {LEAST_FOR_MAJORITY} or more can, and `membership.quorum` = \"any\" does not ask"
        )),
        QuorumRule::Any if workers < LEAST_FOR_ANY => Some("it has one worker".into()),
        QuorumRule::Majority | QuorumRule::Any => None,
    }
}

/// How the run survives this process, in which `here` live, if it does.
pub(crate) fn survival(
    setup: &RunSpec,
    options: &NetOptions,
    here: &[RankLinks],
) -> Option<Survival> {
    let LossPolicy::Continue { min_workers } = options.on_loss else { return None };
    if !options.survives || survival_refusal(setup, options).is_some() {
        return None;
    }
    let ranks: Vec<u32> = here.iter().map(|links| links.rank.0).collect();
    let controller = ranks.first().copied().unwrap_or(NO_RANK);
    let min_workers = u32::try_from(min_workers).unwrap_or(u32::MAX);
    let joiner_wait = Time::from_seconds(options.joiner_seconds);
    let (quorum, term) = (options.quorum, FIRST_TERM);
    Some(Survival { controller, ranks, min_workers, joiner_wait, quorum, term })
}
