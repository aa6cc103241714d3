//! The control plane of a run, without I/O.
//!
//! Two state machines decide everything that is not an algorithm's business: a [`RankMachine`] for each
//! rank (when it computes, when a step is complete, what it saves, what it reports) and one
//! [`Controller`] for the run (the right to compute gradients, checkpoints, drain, termination,
//! suspicion). They exchange [`Command`]s and [`RankEvent`]s. Neither reads a clock or writes a socket:
//! time is an argument, and what they want to say is taken out by the driver, which carries it over the
//! virtual network (`quelea-sim`) or over channels and TCP (`quelea-net`).
//!
//! ```text
//!                    commands
//!      Controller  ───────────►  RankMachine ◄──► Node (quelea-core)
//!                  ◄───────────
//!                     events
//! ```
//!
//! Every wait has a limit, and every limit is looked at often enough:
//!
//! ```
//! use quelea_control::ControlLimits;
//! use quelea_core::time::Time;
//!
//! let limits = ControlLimits { peer_seconds: 4.0, ..ControlLimits::NONE };
//! assert_eq!(limits.tick_period(), Time::from_seconds(0.5));
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | `messages` | [`Command`], [`RankEvent`], and the checks on what a rank says |
//! | `rank` | one rank around its node: from a gradient to a complete step, checkpoints, heartbeats |
//! | `timing` | how the time of a step splits into computing, exposed communication and waiting |
//! | `life_cycle` | running, resting for a checkpoint, finished, draining |
//! | `controller` | the decisions for a whole run, and their deadlines |
//! | `events` | what the controller does with what ranks say |
//! | `directive`, `limits` | what it wants to be delivered; how long anybody may wait |
//! | `detector` | how suspicious the silence of a process is |
//! | `compute_limit` | how long the next gradient of a rank may take |
//! | `budget` | the right to compute gradients, at the controller and at a rank |
//! | `ledger` | the units of data that all workers share: who holds which, and which are confirmed |
//! | `progress` | how far all workers are together, for learning rates of asynchronous runs |
//! | `cut` | agreement on a consistent cut through the run |
//! | `membership` | who takes part; how survivors of a loss agree on a new view |
//! | `quorum`, `seat` | who may continue without the others; where the controller lives |
//! | `succession`, `member` | who takes over when the controller is gone; every rank's share of its state |
//! | `takeover` | how the new controller continues |
//! | `departure`, `entrance` | leaving with notice and joining, at a cut |
//! | `termination` | when nothing is on its way any more |
//! | `silence` | whose process is silent |
//! | `accusations` | whom ranks accuse, and who is believed |
//! | `claims` | what a rank says that cannot be true of this run |
//! | `suspicion` | who is late, whose thread says nothing, why nobody moves |
//! | `blame` | which link does not deliver |
//! | `salvage` | models of a run that is aborted |
//! | `outcome` | what a run comes to, from the reports of its ranks |

#![warn(clippy::disallowed_methods, clippy::disallowed_types)]

mod accusations;
mod blame;
mod budget;
mod claims;
mod compute_limit;
mod controller;
mod cut;
mod departure;
mod detector;
mod directive;
mod entrance;
mod events;
mod ledger;
mod life_cycle;
mod limits;
mod member;
mod membership;
mod messages;
mod outcome;
mod progress;
mod quorum;
mod rank;
mod salvage;
mod seat;
mod short_handed;
mod silence;
mod succession;
mod survey;
mod suspicion;
mod takeover;
mod termination;
mod text;
mod timing;

pub use controller::{Controller, ControllerConfig};
pub use directive::{Directive, Recipient, RunFailure};
pub use entrance::Entrance;
pub use limits::{ComputeLimits, ControlLimits, SilenceLimits};
pub use member::{Inheritance, MemberState, MemberUnits, RestState, StoredEntry, ViewEntry};
pub use membership::{LossPolicy, LossRefusal};
pub use messages::{Account, AwaitedPeer, Command, RankEvent, VectorLengths};
pub use quorum::{MissingQuorum, NO_RANK, QuorumRule};
pub use rank::{LoopStatus, RankMachine, RankMachineConfig};
pub use seat::ControllerSeat;
pub use succession::{ControllerSuccession, PeerMessage, SuccessionConfig, SuccessionStep};
pub use survey::RankSurvey;
pub use text::{REASON_CHARS, WARNING_CHARS, shown};
pub use timing::GradientTime;
