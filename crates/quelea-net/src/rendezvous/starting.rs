//! What workers are told when the run begins, who of them lives here, and how they receive commands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::Sender;
use std::time::Duration;

use quelea_control::VectorLengths;
use quelea_core::message::Rank;
use quelea_core::run_spec::RunSpec;
use quelea_record::ResumePoint;

use super::addresses::{Streams, lost};
use super::server::Hosted;
use super::worker_reader::{EventLimits, WorkerReader, attend_worker};
use crate::controller::{ControlLink, Incoming};
use crate::error::NetError;
use crate::local_ranks::LocalRanks;
use crate::options::NetOptions;
use crate::protocol::{self, SetupMessage};
use crate::trust::ControlStream;

/// How long the vectors are that workers send.
pub(crate) fn vector_lengths(setup: &RunSpec, options: &NetOptions) -> VectorLengths {
    let model = setup.layout.len();
    VectorLengths { model, report: if options.report_models { model } else { 0 } }
}

/// Sends every worker the state that it resumes from, if there is one. A worker that is gone is noticed by
/// whoever reads what it says.
pub(super) fn send_states(streams: &Streams, start: &ResumePoint) {
    for (rank, stream) in streams {
        if let Some(part) = start.parts.get(*rank as usize) {
            let (part, changes) = (Box::new(part.clone()), start.changes.clone());
            let (resized, joins) = (start.resized, false);
            let _ =
                protocol::write(stream, &SetupMessage::Resume { part, resized, joins, changes });
        }
    }
}

/// Tells a worker that the run begins. While one rank takes nothing, the others hear nothing; from now on
/// that must be short for them.
pub(super) fn begin_worker(stream: &ControlStream, start: &SetupMessage, options: &NetOptions) {
    let _ = protocol::write(stream, start);
    let patience = Duration::from_secs_f64(options.peer_seconds / 4.0);
    let _ = stream.set_write_timeout(Some(patience));
}

/// Reads what every worker says from now on.
pub(super) fn attend_workers(
    streams: &Streams,
    limits: &EventLimits,
    controller: &Sender<Incoming>,
) -> Result<BTreeMap<u32, WorkerReader>, NetError> {
    let attend = |(rank, stream): (&u32, &ControlStream)| {
        let reader = attend_worker(*rank, stream, limits.clone(), controller.clone());
        Ok((*rank, reader.map_err(|error| lost(*rank, error.into()))?))
    };
    streams.iter().map(attend).collect()
}

/// How every rank receives commands.
pub(super) fn control_links(
    ranks: usize,
    local: &LocalRanks,
    joined: &BTreeMap<u32, ControlStream>,
) -> Vec<ControlLink> {
    let port = |rank: usize| match local.inbox(rank.into()) {
        Some(inbox) => ControlLink::Local(inbox.clone()),
        None => match joined.get(&(rank as u32)) {
            Some(stream) => ControlLink::Remote(stream.clone()),
            // It was lost before the run was resumed.
            None => ControlLink::Broken,
        },
    };
    (0..ranks).map(port).collect()
}

/// The ranks of the coordinator's process.
pub(super) fn residents(setup: &RunSpec, hosted: &Hosted) -> Result<BTreeSet<Rank>, NetError> {
    let workers = setup.seats();
    if let Some(rank) = hosted.workers.iter().find(|rank| **rank as usize >= workers) {
        return Err(NetError::Setup(format!("rank {rank} is not one of the {workers} workers")));
    }
    let servers = (workers..setup.ranks()).map(Rank::from);
    Ok(hosted.workers.iter().map(|rank| Rank(*rank)).chain(servers).collect())
}

/// A number that two runs will hardly share, without asking for secrets.
pub(super) fn run_number() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new().hash_one(std::process::id())
}
