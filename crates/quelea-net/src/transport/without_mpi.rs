//! In place of MPI, in programs that are built without the feature `mpi`: says so.

use std::net::IpAddr;

use super::{MeshPlan, Transport};
use crate::error::NetError;
use crate::options::NetOptions;
use crate::protocol::Wait;

fn missing<T>() -> Result<T, NetError> {
    let how = "cargo build --release -p quelea-cli --features mpi";
    Err(NetError::Setup(format!("transport = \"mpi\": this program is built without MPI ({how})")))
}

pub(crate) fn own_addresses(_options: &NetOptions) -> Result<Vec<IpAddr>, NetError> {
    missing()
}

pub(crate) fn tell_meeting(_places: &[String]) -> Result<(), NetError> {
    missing()
}

pub(crate) fn hear_meeting(_wait: Wait) -> Result<Vec<String>, NetError> {
    missing()
}

/// There is nothing to end.
pub(crate) fn finish(_wait: Wait) -> Result<(), NetError> {
    Ok(())
}

pub(crate) fn open(_plan: MeshPlan) -> Result<Box<dyn Transport>, NetError> {
    missing()
}
