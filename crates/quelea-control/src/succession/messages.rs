//! What ranks tell each other about who controls the run, and what follows for each.

use quelea_core::time::Time;

use crate::member::{Inheritance, MemberState, ViewEntry};
use crate::quorum::{MissingQuorum, QuorumRule};

/// What ranks tell each other about who controls the run.
#[derive(Clone, Debug, PartialEq)]
pub enum PeerMessage {
    /// The sender wants to control the run in this term.
    Claim {
        /// The term.
        term: u32,
    },
    /// The receiver may control the run in this term.
    Vote {
        /// The term.
        term: u32,
        /// The voter's share of the controller's state.
        state: Box<MemberState>,
    },
    /// What the receiver said is of a term that is over: this one is the sender's.
    Outdated {
        /// The sender's term.
        term: u32,
    },
}

/// What follows for a rank.
#[derive(Clone, Debug, PartialEq)]
pub enum SuccessionStep {
    /// Nothing.
    Wait,
    /// Its process controls the run from now on.
    TakeOver(Box<Inheritance>),
    /// It ends, because it reaches no quorum.
    End(MissingQuorum),
    /// It ends, because the others continue without it.
    Deposed,
}

/// With what a rank begins.
#[derive(Clone, Debug)]
pub struct SuccessionConfig {
    /// Which rank.
    pub rank: u32,
    /// The rank in whose process the controller lives.
    pub controller: u32,
    /// The term.
    pub term: u32,
    /// The views until now, after the first.
    pub log: Vec<ViewEntry>,
    /// Who may continue.
    pub quorum: QuorumRule,
    /// For how long votes of others are waited for, and then for a quorum.
    pub patience: Time,
}
