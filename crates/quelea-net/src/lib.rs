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
//! | module | what is in it |
//! |---|---|
//! | [`Coordinator`], [`join()`], [`threads`] | the three ways to be part of a run |
//! | [`process_group`] | what processes do together outside a run |
//! | [`measure`] | the links and the steps, timed by those who joined |
//! | [`launcher`] | what `mpirun`, `srun`, `torchrun` and Kubernetes say in the environment |
//! | [`external_loop`] | a rank whose gradients and optimizer belong to a training script |
//! | `rank`, `compute`, `local_ranks` | a rank on its thread, its gradients, all ranks of a process |
//! | `transport` | how frames travel between ranks: the interface, TCP, ranks of one process |
//! | `trust` | who may take part: secrets, tokens, certificates, encrypted connections |
//! | `controller` | tickets, drain, termination, time limits: what one place must decide |
//! | `rendezvous`, `protocol` | who joins as which rank, and what processes say to each other |

mod clock;
mod compute;
mod controller;
mod error;
pub mod external_loop;
mod join;
pub mod launcher;
mod local_ranks;
pub mod measure;
mod open_files;
mod options;
pub mod process_group;
mod protocol;
mod rank;
mod rendezvous;
mod running_time;
mod transport;
mod trust;

pub use compute::{Gradients, MakeLoop, MakeSource};
pub use error::NetError;
pub use join::{BuildRun, JobError, join};
pub use options::NetOptions;
pub use quelea_control::LossPolicy;
pub use quelea_record::Observer;
pub use rendezvous::{Coordinator, Hosted, resume, threads};
pub use transport::TransportKind;
pub use trust::{JoinToken, PublishedToken, RunSecret, Security};
