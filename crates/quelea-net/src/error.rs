//! What ends a run, in sentences that name rank, peer, what was awaited and for how long.

use std::net::SocketAddr;

use quelea_control::MissingQuorum;

/// Why a run could not begin or did not end well.
#[derive(Debug, thiserror::Error)]
pub enum NetError {
    /// The address cannot be listened on.
    #[error("cannot listen on {address}: {source}")]
    Listen {
        /// Which address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// Nobody answers there.
    #[error("no coordinator answered at {address} within {seconds:.1} s: {problem}")]
    Connect {
        /// Where.
        address: String,
        /// How long it was tried.
        seconds: f64,
        /// The last problem.
        problem: String,
    },
    /// Not all workers came.
    #[error("waited {seconds:.1} s at {address} for {missing}")]
    Missing {
        /// Where.
        address: SocketAddr,
        /// How long.
        seconds: f64,
        /// Who, and for what.
        missing: String,
    },
    /// The other side said no.
    #[error("{address} refused: {reason}")]
    Refused {
        /// Who.
        address: String,
        /// Why.
        reason: String,
    },
    /// The other side does not speak as it should.
    #[error("handshake with {address} failed: {problem}")]
    Handshake {
        /// Who.
        address: String,
        /// What was wrong.
        problem: String,
    },
    /// The job that the coordinator handed out cannot be run here.
    #[error("the coordinator's job cannot be run here: {0}")]
    Job(String),
    /// The run as such cannot be driven.
    #[error("{0}")]
    Setup(String),
    /// A rank was lost.
    #[error("lost rank {rank}: {reason}")]
    Lost {
        /// Which one.
        rank: u32,
        /// How that was seen.
        reason: String,
    },
    /// The coordinator was lost.
    #[error("lost the coordinator at {address}: {reason}")]
    LostCoordinator {
        /// Where it was.
        address: String,
        /// How that was seen.
        reason: String,
    },
    /// Too few workers of the last view are within reach: the others may continue without this process.
    #[error("{0}")]
    NoQuorum(MissingQuorum),
    /// Something was awaited for too long.
    #[error("{0}")]
    Stalled(String),
    /// A rank could not go on.
    #[error("rank {rank} failed: {reason}")]
    Failed {
        /// Which one.
        rank: u32,
        /// Why.
        reason: String,
    },
    /// The run was asked to stop, and every rank has saved its state.
    #[error("stopped after {step} steps of each worker, {reason}")]
    Stopped {
        /// Steps of each worker, on average.
        step: u64,
        /// Why: "as asked", or who was given notice and could not leave.
        reason: String,
    },
    /// A spare was not needed: the coordinator has closed its connection.
    #[error("the run at {address} ended without needing this spare")]
    Unneeded {
        /// Where it was coordinated.
        address: String,
    },
    /// The coordinator ended the run.
    #[error("the coordinator ended the run: {0}")]
    Aborted(String),
}
