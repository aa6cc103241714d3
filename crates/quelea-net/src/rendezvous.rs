//! How the processes of a run find each other: the coordinator's listener, who is admitted as which
//! rank, and the exchange of addresses before the run.

mod addresses;
pub(crate) mod admission;
pub(crate) mod joiners;
pub(crate) mod listener;
mod part_gate;
mod server;
pub(crate) mod stand_by;
mod starting;
pub(crate) mod worker_reader;

pub(crate) use server::check;
pub use server::{Coordinator, Hosted, resume, threads};
pub(crate) use starting::vector_lengths;
pub(crate) use worker_reader::HeldBytes;
