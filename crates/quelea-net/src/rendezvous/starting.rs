//! What workers are told when the run begins.

use std::time::Duration;

use quelea_control::VectorLengths;
use quelea_core::run_spec::RunSpec;
use quelea_record::ResumePoint;

use super::addresses::Streams;
use crate::options::NetOptions;
use crate::protocol::{self, SetupMessage};
use crate::trust::ControlStream;

/// How long the vectors are that workers send.
pub(super) fn vector_lengths(setup: &RunSpec, options: &NetOptions) -> VectorLengths {
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
