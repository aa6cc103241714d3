//! What a joined worker says during the run, read and checked where it arrives.

use std::net::TcpStream;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use crate::controller::Incoming;
use crate::protocol::{self};
use quelea_control::{RankEvent, VectorLengths};

/// The controller hears at most this often that something has arrived.
const ALIVE_INTERVAL: Duration = Duration::from_millis(50);

/// Tells the controller that something has arrived, so that a process whose packet takes long does not
/// seem to be silent.
struct SignsOfLife {
    rank: u32,
    controller: Sender<Incoming>,
    last: Option<Instant>,
}

impl SignsOfLife {
    fn note(&mut self) {
        let at = Instant::now();
        if self.last.is_none_or(|last| at.saturating_duration_since(last) >= ALIVE_INTERVAL) {
            self.last = Some(at);
            let _ = self.controller.send(Incoming::Alive { rank: self.rank, at });
        }
    }
}

/// Reads the events of a joined worker on a thread of its own, until it is gone.
pub(super) fn attend_worker(
    rank: u32,
    stream: &TcpStream,
    ranks: usize,
    lengths: VectorLengths,
    controller: Sender<Incoming>,
) -> std::io::Result<()> {
    let stream = stream.try_clone()?;
    let most = protocol::state_bytes(lengths.model);
    let _ = stream.set_read_timeout(None);
    std::thread::spawn(move || {
        let mut signs = SignsOfLife { rank, controller: controller.clone(), last: None };
        loop {
            let word = protocol::read_watched::<RankEvent>(&stream, most, &mut || signs.note())
                .map_err(|error| error.to_string());
            let word = word.and_then(|event| event.check(rank, ranks, lengths).map(|()| event));
            let word = match word {
                // Its arrival was noted; it says nothing else.
                Ok(RankEvent::Alive { computing: false, .. }) => continue,
                Ok(event) => Incoming::Event(event),
                Err(reason) => Incoming::Gone { rank, reason },
            };
            let last = matches!(word, Incoming::Gone { .. });
            if controller.send(word).is_err() || last {
                return;
            }
        }
    });
    Ok(())
}
