//! Says that this worker is alive while it loads its data, so that it keeps its seat.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::protocol::{self, SetupMessage};
use crate::trust::ControlStream;

/// How often it is said.
const PERIOD: Duration = Duration::from_secs(1);

/// Does `work`, and meanwhile says every second that it does.
pub(super) fn alive<T>(stream: &ControlStream, work: impl FnOnce() -> T) -> T {
    let (done, is_done) = channel::<()>();
    std::thread::scope(|scope| {
        let speak = move || {
            while let Err(RecvTimeoutError::Timeout) = is_done.recv_timeout(PERIOD) {
                // A coordinator that is gone is noticed where its next word is awaited.
                let _ = protocol::write(stream, &SetupMessage::Alive);
            }
        };
        // Without a thread the seat may be lost; that is said where it is.
        let _ = std::thread::Builder::new().name("loading".into()).spawn_scoped(scope, speak);
        let worked = work();
        drop(done);
        worked
    })
}
