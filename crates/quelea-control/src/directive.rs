//! What the controller wants to be delivered, and why a run does not end well.

use crate::messages::Command;
use crate::quorum::MissingQuorum;

/// Whom an order is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recipient {
    /// One rank.
    Rank(u32),
    /// Every rank.
    All,
}

/// A command that the driver is to deliver.
#[derive(Clone, Debug, PartialEq)]
pub struct Directive {
    /// To whom.
    pub to: Recipient,
    /// What.
    pub command: Command,
}

/// Why a run does not end well, in sentences that name rank, peer, what was awaited and for how long.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RunFailure {
    /// A rank was lost.
    #[error("lost rank {rank}: {reason}")]
    Lost {
        /// Which one.
        rank: u32,
        /// How that was seen.
        reason: String,
    },
    /// Something was awaited for too long.
    #[error("{0}")]
    Stalled(String),
    /// A rank cannot continue.
    #[error("rank {rank} failed: {reason}")]
    Failed {
        /// Which one.
        rank: u32,
        /// Why.
        reason: String,
    },
    /// Too few workers of the last view are within reach.
    #[error("{0}")]
    NoQuorum(MissingQuorum),
    /// A rank has received values that no honest rank sends, and the run is to end then.
    #[error("rank {rank} failed: {reason}")]
    Poisoned {
        /// Who has received them.
        rank: u32,
        /// Who has sent what.
        reason: String,
    },
    /// The run was asked to stop, and every rank has saved its state.
    #[error("stopped after {step} steps of each worker, {reason}")]
    Stopped {
        /// Steps of each worker, on average.
        step: u64,
        /// Why: "as asked", or who wanted to leave and could not.
        reason: String,
    },
}
