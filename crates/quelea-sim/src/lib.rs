//! The virtual cluster: real mathematics in virtual time.
//!
//! [`simulate`] drives the nodes of a run through an exact model of computing, network and
//! faults, so that a person can check its times by hand; `docs/virtual-cluster.md` defines the
//! model. The result is a function of setup, cluster and seed. No algorithm is known by name
//! here, and no real clock is read.
//!
//! ```
//! use quelea_sim::Cluster;
//!
//! let slow = Cluster { compute_ms: 20.0, slow: [(3, 10.0)].into(), ..Cluster::default() };
//! assert!(slow.check().is_ok());
//! let error = Cluster { bandwidth_gbps: -1.0, ..slow }.check().unwrap_err();
//! assert_eq!(error.field, "bandwidth_gbps");
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | `cluster`, `knob`, `faults` | the knobs, with their limits |
//! | `attacks` | what Byzantine workers send |
//! | `network` | cards, internal links, what is on its way |
//! | `compute`, `gradient_pool`, `gradient_batching` | how long a gradient takes; computing it for real, several together |
//! | `queue` | the order of events |
//! | `driver` | the loop |
//! | `rank_state` | one rank with its processor, inbox and outbox |
//! | `control`, `control_network` | events to the controller of `quelea-control`, commands to its ranks: at no cost, or over the links |
//! | `traffic`, `collective_start`, `steps`, `membership` | what the driver does with messages, collectives, gradients, faults of ranks |
//! | `takeover` | who controls the run when the worker with the controller is lost |
//! | `in_flight` | how much is on its way |
//! | [`chaos`], `invariants` | seeded random faults, and what must hold whatever goes wrong |

mod attacks;
pub mod chaos;
mod cluster;
mod collective_start;
mod compute;
mod control;
mod control_network;
mod driver;
mod faults;
mod gradient_batching;
mod gradient_pool;
mod in_flight;
mod invariants;
mod knob;
mod membership;
mod network;
mod queue;
mod rank_state;
mod steps;
mod takeover;
mod traffic;

use quelea_control::MissingQuorum;
use quelea_core::contract::Awaited;
use quelea_core::message::Rank;
use quelea_core::problems::Problem;
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_record::{Outcome, ResumePoint};

pub use attacks::{ATTACKS, Attack, AttackEntry, AttackKind};
pub use cluster::{Cluster, ClusterError, ControlPath, KNOBS};
pub use control_network::ControlLoad;
pub use faults::{
    ControlDelay, Crash, Faults, Flight, Join, Leave, PairPartition, Pause, PlainRule,
    RankPartition, Rule, SidePartition, Verdict,
};
pub use knob::Knob;
pub use quelea_record::{Models, Observer};

/// Runs `setup` on `problem` in the virtual `cluster`, and tells `observer` what happens.
pub fn simulate(
    setup: &RunSpec,
    problem: &dyn Problem,
    cluster: &Cluster,
    observer: &mut dyn Observer,
) -> Result<Outcome, SimError> {
    resume(setup, problem, cluster, &ResumePoint::default(), observer)
}

/// As [`simulate`], resuming from `start`.
pub fn resume(
    setup: &RunSpec,
    problem: &dyn Problem,
    cluster: &Cluster,
    start: &ResumePoint,
    observer: &mut dyn Observer,
) -> Result<Outcome, SimError> {
    cluster.check_for(setup)?;
    driver::Driver::new(setup, problem, cluster, start, observer)?.run()
}

/// As [`simulate`], with what the controller has exchanged with ranks where it has a host of its own
/// ([`ControlPath::Network`]).
pub fn simulate_counted(
    setup: &RunSpec,
    problem: &dyn Problem,
    cluster: &Cluster,
    observer: &mut dyn Observer,
) -> Result<(Outcome, ControlLoad), SimError> {
    cluster.check_for(setup)?;
    driver::Driver::new(setup, problem, cluster, &ResumePoint::default(), observer)?.run_counted()
}

/// As [`simulate`], checking after every event what must hold whatever goes wrong. A run that takes more
/// than `event_limit` events ends with an error.
pub fn simulate_checked(
    setup: &RunSpec,
    problem: &dyn Problem,
    cluster: &Cluster,
    event_limit: u64,
    observer: &mut dyn Observer,
) -> Result<Outcome, SimError> {
    cluster.check_for(setup)?;
    let start = ResumePoint::default();
    let mut driver = driver::Driver::new(setup, problem, cluster, &start, observer)?;
    driver.check_with(event_limit);
    driver.run()
}

/// Why a run could not be simulated to its end.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SimError {
    /// The cluster makes no sense.
    #[error(transparent)]
    Cluster(#[from] ClusterError),
    /// A state to resume from does not fit this run.
    #[error("{0}")]
    Resume(String),
    /// A rank has ended the run, or was lost where the others cannot continue.
    #[error("{0}")]
    Failed(String),
    /// The run was asked to stop, and its state is saved.
    #[error("stopped after {step} steps of each worker, {reason}")]
    Stopped {
        /// Steps of each worker, on average.
        step: u64,
        /// Why: "as asked", or who was given notice and could not leave.
        reason: String,
    },
    /// Something that must always hold does not; only in runs that are checked.
    #[error("after {} s: {what}", at.seconds())]
    Broken {
        /// When.
        at: Time,
        /// What.
        what: String,
    },
    /// Nothing can happen any more, and some workers have not done their steps.
    #[error("deadlock after {} s: {}", at.seconds(), list(stuck))]
    Deadlock {
        /// When the last thing happened.
        at: Time,
        /// Who is stuck.
        stuck: Vec<Stuck>,
    },
    /// A server was lost.
    #[error("server {rank} was lost after {} s, and with it its part of the model", at.seconds())]
    ServerLost {
        /// Which.
        rank: Rank,
        /// When.
        at: Time,
    },
    /// The worker that mixes for its host was lost, and others of the host were not.
    #[error(
        "{rank} was lost after {} s; it gossips for its host (`topology.within_host` = \
         \"average\"), and with it the state of the algorithm there",
        at.seconds()
    )]
    LeaderLost {
        /// Which.
        rank: Rank,
        /// When.
        at: Time,
    },
    /// No side of the run has a quorum.
    #[error("after {} s: {missing}", at.seconds())]
    NoQuorum {
        /// When the last ended.
        at: Time,
        /// Whom it could not reach.
        missing: MissingQuorum,
    },
    /// No worker is left.
    #[error("the last worker, {rank}, was lost after {} s", at.seconds())]
    AllWorkersLost {
        /// Who was the last.
        rank: Rank,
        /// When.
        at: Time,
    },
}

/// A worker or server that waits for something that will never come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stuck {
    /// Who.
    pub rank: Rank,
    /// At which step.
    pub step: u64,
    /// What it says it waits for.
    pub awaits: Vec<Awaited>,
}

impl std::fmt::Display for Stuck {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} at step {} awaits {}", self.rank, self.step, awaited(&self.awaits))
    }
}

fn awaited(awaits: &[Awaited]) -> String {
    let named: Vec<String> =
        awaits.iter().map(|awaited| format!("{} from {}", awaited.what, awaited.from)).collect();
    if named.is_empty() { "something that it does not name".to_string() } else { named.join(", ") }
}

/// The first few, and how many more there are.
fn list(stuck: &[Stuck]) -> String {
    const SHOWN: usize = 8;
    let mut text: Vec<String> = stuck.iter().take(SHOWN).map(Stuck::to_string).collect();
    if stuck.len() > SHOWN {
        text.push(format!("and {} more", stuck.len() - SHOWN));
    }
    text.join("; ")
}
