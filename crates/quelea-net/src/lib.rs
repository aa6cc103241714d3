//! The real cluster: threads in one process, processes over TCP, machines that join.
//!
//! ```text
//! receive frame or gradient -> node.* -> write frames -> if ready, start the next gradient
//! ```
//!
//! Every rank has a thread of its own. Frames are decoded, handled and answered on that thread,
//! without a hop to another; gradients are computed on a second one, so that messages are handled
//! meanwhile. Ranks of one process share message memory and send no bytes.
//!
//! What a launcher says in the environment:
//!
//! ```
//! let environment = |name: &str| match name {
//!     "RANK" => Some("1".to_string()),
//!     "WORLD_SIZE" => Some("4".to_string()),
//!     "MASTER_ADDR" => Some("10.0.0.1".to_string()),
//!     "MASTER_PORT" => Some("29500".to_string()),
//!     _ => None,
//! };
//! let launched = quelea_net::launcher::detect(environment).unwrap().expect("torchrun");
//! assert_eq!((launched.rank, launched.world), (1, 4));
//! ```
//!
//! | module | what is in it |
//! |---|---|
//! | [`Coordinator`], [`join()`], [`threads`] | the three ways to be part of a run |
//! | [`process_group`] | what processes do together outside a run |
//! | [`tensor_group`] | collective calls on tensors, for `torch.distributed` |
//! | [`measure`] | the links and the steps, timed by those who joined |
//! | [`launcher`] | what `mpirun`, `srun`, `torchrun` and Kubernetes say in the environment |
//! | [`external_loop`] | a rank whose gradients and optimizer belong to a training script |
//! | `rank`, `compute`, `local_ranks` | a rank on its thread, its gradients, all ranks of a process |
//! | `early_frames` | how many frames of steps to come a peer may have here |
//! | [`Heir`], [`join_as_heir()`] | a worker's process that takes over when the one that controls the run is lost |
//! | [`survival_refusal()`] | whether a run survives the process that controls it |
//! | `heartbeat` | the thread that shows that a process is alive |
//! | `self_survey` | memory and round trips, for those who look at a run |
//! | `transport` | how frames travel between ranks: the interface, TCP, ranks of one process |
//! | `leave` | notice to leave, by a program or by SIGTERM |
//! | `trust` | who may take part: secrets, tokens, certificates, encrypted connections |
//! | `untrusted` | what reads the bytes of others, for fuzzing |
//! | `controller` | tickets, drain, termination, time limits: what one place must decide |
//! | `rendezvous`, `protocol` | who joins as which rank, and what processes say to each other |

#[cfg(test)]
extern crate self as quelea_net;

mod clock;
mod compute;
mod controller;
mod early_frames;
mod error;
pub mod external_loop;
mod heartbeat;
mod heir;
mod join;
pub mod launcher;
mod leave;
pub mod local_address;
mod local_ranks;
pub mod measure;
mod open_files;
mod options;
pub mod process_group;
mod protocol;
mod rank;
mod rendezvous;
mod running_time;
mod self_survey;
mod survival;
pub mod tensor_group;
mod transport;
mod trust;
#[doc(hidden)]
pub mod untrusted;

pub use compute::{Gradients, MakeLoop, MakeSource};
pub use error::NetError;
pub use heir::{DriveOn, Heir, TakeOver};
pub use join::{BuildRun, JobError, join, join_as_heir, stand_by};
pub use leave::LeaveNotice;
pub use local_address::LocalAddress;
pub use options::NetOptions;
pub use quelea_control::{LossPolicy, QuorumRule, SilenceLimits, WARNING_CHARS, shown};
pub use quelea_record::Observer;
pub use rendezvous::{Coordinator, Hosted, resume, threads};
pub use survival::survival_refusal;
pub use transport::TransportKind;
pub use trust::{JoinToken, PublishedToken, RunSecret, Security};
