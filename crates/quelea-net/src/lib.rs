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
//! | [`assembly`] | what processes do together outside a run |
//! | [`measure`] | the links and the steps, timed by those who joined |
//! | [`launcher`] | what `mpirun`, `srun`, `torchrun` and Kubernetes say in the environment |
//! | [`outer`] | a rank whose gradients and optimizer are an outer loop's |
//! | `rank`, `link`, `compute`, `host` | a rank on its thread, its connections, its gradients |
//! | `conductor` | tickets, drain, termination, time limits: what one place must decide |
//! | `lobby`, `mesh`, `door`, `protocol` | who is who, and connecting everyone with everyone |

pub mod assembly;
mod clock;
mod compute;
mod conductor;
mod coordinator;
mod door;
mod error;
mod host;
mod join;
pub mod launcher;
mod link;
mod lobby;
pub mod measure;
mod mesh;
mod options;
pub mod outer;
mod protocol;
mod rank;

pub use coordinator::{Coordinator, Hosted, resume, threads};
pub use error::NetError;
pub use join::{BuildRun, join};
pub use options::NetOptions;
pub use quelea_record::Observer;
