//! What a joined worker says during the run, read and checked where it arrives.

use std::net::TcpStream;
use std::sync::mpsc::Sender;

use crate::controller::Incoming;
use crate::protocol::{self};
use quelea_control::{RankEvent, VectorLengths};

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
        loop {
            let word =
                protocol::read::<RankEvent>(&stream, most, None).map_err(|error| error.to_string());
            let word = word.and_then(|event| event.check(rank, ranks, lengths).map(|()| event));
            let word = match word {
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
