//! Two ranks whose connection stays within one machine: whether they can share memory.

use super::is_near as same_machine;
use crate::protocol::{self, PacketError, PacketStream, SMALL_BYTES, SetupMessage, Wait};
use crate::transport::shared_memory::{OpenOffer, SharedPair};
use crate::transport::tls::LinkSocket;
use crate::transport::{SharedMemory, SharedOffer};
use quelea_core::message::Rank;

/// Whether both ends of a connection are on one machine, as the network sees it: ranks in two network
/// namespaces count as two machines.
pub(super) fn is_near(stream: &LinkSocket) -> bool {
    let socket = stream.socket();
    same_machine(socket.peer_addr(), socket.local_addr()).unwrap_or(false)
}

/// A connection that was dialled.
#[derive(Debug)]
pub(super) struct Dialled {
    pub(super) stream: LinkSocket,
    /// If the two share memory.
    pub(super) shared: Option<SharedPair>,
    /// Why they do not, where both would.
    pub(super) problem: Option<String>,
}

impl Dialled {
    pub(super) fn over_tcp(stream: LinkSocket, problem: Option<String>) -> Dialled {
        Dialled { stream, shared: None, problem }
    }
}

/// The side that dialled opens what the other offers, and says whether it could.
pub(super) fn confirm(
    stream: LinkSocket,
    offer: OpenOffer,
    theirs: &SharedOffer,
) -> Result<Dialled, PacketError> {
    let opened = offer.open(theirs);
    let problem = opened.as_ref().err().cloned();
    let word = SetupMessage::Shared { problem: problem.clone().unwrap_or_default() };
    protocol::write(&stream, &word)?;
    let shared = opened.ok().map(|memory| offer.joined(memory));
    Ok(Dialled { stream, shared, problem })
}

/// The side that was dialled opens what is offered, offers its own, and hears whether that was opened. The
/// pair is (peer, own).
pub(super) fn answer(
    memory: &SharedMemory,
    (peer, own): (Rank, Rank),
    stream: &LinkSocket,
    theirs: &SharedOffer,
    wait: Wait,
) -> Result<Option<SharedPair>, PacketError> {
    let offer = memory.offer(own, peer).map_err(|error| error.to_string());
    let opened = offer.and_then(|offer| offer.open(theirs).map(|memory| (offer, memory)));
    let (offer, opened) = match opened {
        Ok(both) => both,
        Err(problem) => {
            protocol::write(stream, &SetupMessage::Separate { problem })?;
            return Ok(None);
        }
    };
    protocol::write(stream, &SetupMessage::AcceptedNear { offer: offer.told() })?;
    match protocol::read(stream, SMALL_BYTES, Some(wait))? {
        SetupMessage::Shared { problem } if problem.is_empty() => Ok(Some(offer.joined(opened))),
        // The other side says why.
        _ => Ok(None),
    }
}
