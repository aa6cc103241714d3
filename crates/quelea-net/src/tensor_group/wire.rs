//! What carries the bytes of one connection: its socket, or shared memory beside it.

use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Instant;

use crate::protocol::{self, PacketError, SMALL_BYTES, SetupMessage, Wait};
use crate::transport::TransportKind;
use crate::transport::shared_memory::{ByteOffer, PeerBytes, SharedBytes};
use crate::transport::tcp::is_near;

/// A connection.
#[derive(Debug)]
pub(super) enum Wire {
    /// Over TCP.
    Socket(TcpStream),
    /// Through shared memory; the socket says by its end that the peer is gone.
    Shared {
        /// What is said.
        bytes: SharedBytes,
        /// What ends.
        socket: TcpStream,
        /// Whether it has.
        has_ended: bool,
    },
}

impl From<TcpStream> for Wire {
    fn from(socket: TcpStream) -> Wire {
        Wire::Socket(socket)
    }
}

impl Wire {
    pub(super) fn socket(&self) -> &TcpStream {
        match self {
            Wire::Socket(socket) | Wire::Shared { socket, .. } => socket,
        }
    }

    /// Reads what is there, or `WouldBlock`; 0 at the end.
    pub(super) fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        match self {
            Wire::Socket(socket) => socket.read(target),
            Wire::Shared { bytes, has_ended, .. } => match bytes.read(target) {
                // What was said before the end counts.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && *has_ended => Ok(0),
                read => read,
            },
        }
    }

    /// Writes what there is room for, or `WouldBlock`.
    pub(super) fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        match self {
            Wire::Socket(socket) => socket.write_vectored(parts),
            Wire::Shared { has_ended: true, .. } => Err(io::ErrorKind::BrokenPipe.into()),
            Wire::Shared { bytes, .. } => bytes.write_vectored(parts),
        }
    }

    /// What to wait for: bytes, and room where there is something `to_write`.
    pub(super) fn polled(&self, to_write: bool) -> libc::pollfd {
        let polled = |fd, events| libc::pollfd { fd, events, revents: 0 };
        match self {
            Wire::Socket(socket) => {
                let write = if to_write { libc::POLLOUT } else { 0 };
                polled(socket.as_raw_fd(), libc::POLLIN | write)
            }
            Wire::Shared { bytes, .. } => polled(bytes.woken_fd(), libc::POLLIN),
        }
    }

    /// The socket beside shared memory, until it has ended.
    pub(super) fn beside(&self) -> Option<RawFd> {
        match self {
            Wire::Shared { socket, has_ended: false, .. } => Some(socket.as_raw_fd()),
            _ => None,
        }
    }

    /// Before the thread sleeps: whether there is something to do already.
    pub(super) fn before_sleep(&self, to_write: bool) -> bool {
        match self {
            Wire::Socket(_) => false,
            Wire::Shared { bytes, .. } => bytes.before_sleep(to_write),
        }
    }

    /// After it has slept: whether this connection has woken it, and whether its socket has. Whether there
    /// may be something to read.
    pub(super) fn after_sleep(&mut self, was_woken: bool, was_socket: bool) -> bool {
        let Wire::Shared { bytes, socket, has_ended } = self else { return was_woken };
        bytes.after_sleep(was_woken);
        if was_socket {
            let is_open = |error: &io::Error| {
                matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
            };
            // Nothing is said there: whatever comes is the end.
            *has_ended = !socket.read(&mut [0; 16]).as_ref().is_err_and(is_open);
        }
        true
    }
}

/// One connection on its way to shared memory.
struct Negotiation {
    socket: TcpStream,
    /// If both ends are on this machine.
    is_near: bool,
    offer: Option<ByteOffer>,
    opened: Option<PeerBytes>,
}

impl Negotiation {
    fn new(socket: TcpStream) -> Negotiation {
        let is_near = is_near(socket.peer_addr(), socket.local_addr()).unwrap_or(false);
        Negotiation { socket, is_near, offer: None, opened: None }
    }

    /// Says what this side offers.
    fn offer(&mut self, kind: TransportKind) -> Result<(), PacketError> {
        self.offer = ByteOffer::create().ok().filter(|_| kind == TransportKind::Auto);
        let word = match &self.offer {
            Some(offer) => SetupMessage::AcceptedNear { offer: offer.told() },
            None => SetupMessage::Separate { problem: String::new() },
        };
        protocol::write(&self.socket, &word)
    }

    /// Opens what the other offers, and says whether that could be.
    fn open(&mut self, wait: Wait) -> Result<(), PacketError> {
        let word = protocol::read(&self.socket, SMALL_BYTES, Some(wait))?;
        let opened = match (&self.offer, word) {
            (Some(offer), SetupMessage::AcceptedNear { offer: theirs }) => offer.open(&theirs),
            _ => Err("one of the two keeps to TCP".into()),
        };
        let problem = opened.as_ref().err().cloned().unwrap_or_default();
        self.opened = opened.ok();
        protocol::write(&self.socket, &SetupMessage::Shared { problem })
    }

    /// Hears whether the other could open what is offered here. If not, there is nothing to share.
    fn hear(&mut self, wait: Wait) -> Result<(), PacketError> {
        let word: SetupMessage = protocol::read(&self.socket, SMALL_BYTES, Some(wait))?;
        if word != (SetupMessage::Shared { problem: String::new() }) {
            self.offer = None;
        }
        Ok(())
    }

    fn wire(self) -> Wire {
        match (self.offer, self.opened) {
            (Some(offer), Some(peer)) => {
                let (bytes, socket) = (offer.joined(peer), self.socket);
                Wire::Shared { bytes, socket, has_ended: false }
            }
            _ => Wire::Socket(self.socket),
        }
    }
}

/// What is done on every connection before the next thing is done on any.
type NegotiationStep<'a> = dyn Fn(&mut Negotiation) -> Result<(), PacketError> + 'a;

/// Uses shared memory between ranks whose connections stay within this machine, where both can. All say
/// first what they offer and then hear the others, so that nobody waits for one that waits for it.
pub(super) fn share(
    streams: Vec<Option<TcpStream>>,
    kind: TransportKind,
    until: Instant,
    names: &[u32],
) -> Result<Vec<Option<Wire>>, String> {
    let left = until.saturating_duration_since(Instant::now());
    let wait = Wait::new(left.as_secs_f64(), "word of shared memory");
    let mut all: Vec<Option<Negotiation>> =
        streams.into_iter().map(|stream| stream.map(Negotiation::new)).collect();
    let steps: [&NegotiationStep<'_>; 3] =
        [&|one| one.offer(kind), &|one| one.open(wait), &|one| one.hear(wait)];
    for step in steps {
        for (one, name) in all.iter_mut().zip(names) {
            let Some(one) = one.as_mut().filter(|one| one.is_near) else { continue };
            step(one).map_err(|error| format!("rank {name} did not connect: {error}"))?;
        }
    }
    Ok(all.into_iter().map(|one| one.map(Negotiation::wire)).collect())
}
