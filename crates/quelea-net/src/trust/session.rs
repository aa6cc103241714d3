//! One side of an encrypted connection, between bytes of the network and bytes of the program. No I/O except
//! for the handshake.

use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;

use rustls::client::UnbufferedClientConnection;
use rustls::pki_types::CertificateDer;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, UnbufferedStatus};

use crate::protocol::{Wait, read_within};

/// What is read from the network at once.
const INCOMING_BYTES: usize = 256 << 10;
/// What is encrypted before it is written.
const SEALED_BYTES: usize = 128 << 10;
/// What is encrypted in one call: a few records.
const CHUNK_BYTES: usize = 64 << 10;
/// More than a record's header, type, tag and a key update need.
const RECORD_SPARE: usize = 128;
/// What a record holds at most.
const RECORD_BYTES: usize = 16 << 10;
const RECORD_HEAD: usize = 5;

enum Side {
    Client(Box<UnbufferedClientConnection>),
    Server(Box<UnbufferedServerConnection>),
}

/// A TLS connection with what has come and not been taken, and what is to be sent.
pub(crate) struct TlsSession {
    side: Side,
    /// Encrypted bytes that have come: `incoming[begun..filled]`.
    incoming: Vec<u8>,
    begun: usize,
    filled: usize,
    /// Decrypted bytes that nobody has taken: `plain[taken..]`.
    plain: Vec<u8>,
    taken: usize,
    outgoing: Outgoing,
    is_closed: bool,
}

/// Encrypted bytes that are to be sent: `bytes[sent..filled]`.
#[derive(Default)]
struct Outgoing {
    bytes: Vec<u8>,
    sent: usize,
    filled: usize,
}

/// Where one step of the protocol reads from and writes to.
struct Buffers<'a> {
    target: &'a mut [u8],
    /// Bytes of `target` that are filled.
    copied: usize,
    plain: &'a mut Vec<u8>,
    outgoing: &'a mut Outgoing,
    /// What is to be encrypted.
    seal: &'a [u8],
    discard: usize,
}

/// What one step came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    /// Something was done; there may be more.
    Again,
    /// Nothing is left to do, and what was to be encrypted is.
    Idle,
    /// The handshake needs more from the peer.
    Blocked,
    Closed,
}

impl fmt::Debug for TlsSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsSession").field("is_closed", &self.is_closed).finish_non_exhaustive()
    }
}

impl TlsSession {
    /// Dials: the handshake over `socket`, within the time of `wait`.
    pub(crate) fn dial(
        connection: UnbufferedClientConnection,
        socket: &TcpStream,
        wait: Wait,
    ) -> io::Result<TlsSession> {
        TlsSession::shake_hands(Side::Client(Box::new(connection)), socket, wait)
    }

    /// Is dialled: the handshake over `socket`, within the time of `wait`.
    pub(crate) fn listen(
        connection: UnbufferedServerConnection,
        socket: &TcpStream,
        wait: Wait,
    ) -> io::Result<TlsSession> {
        TlsSession::shake_hands(Side::Server(Box::new(connection)), socket, wait)
    }

    fn shake_hands(side: Side, mut socket: &TcpStream, wait: Wait) -> io::Result<TlsSession> {
        let mut session = TlsSession {
            side,
            incoming: Vec::new(),
            begun: 0,
            filled: 0,
            plain: Vec::new(),
            taken: 0,
            outgoing: Outgoing::default(),
            is_closed: false,
        };
        let mut raw = [0; 8 << 10];
        loop {
            let step = session.step(&mut [], &mut 0, &[])?;
            socket.write_all(session.unsent())?;
            session.sent(session.unsent().len());
            match step {
                Step::Again => continue,
                Step::Idle if !session.is_handshaking() => return Ok(session),
                Step::Idle | Step::Blocked => {}
                Step::Closed => return Err(io::ErrorKind::UnexpectedEof.into()),
            }
            match read_within(socket, &wait, &mut raw)? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                count => session.feed(&raw[..count]),
            }
        }
    }

    fn is_handshaking(&self) -> bool {
        match &self.side {
            Side::Client(connection) => connection.is_handshaking(),
            Side::Server(connection) => connection.is_handshaking(),
        }
    }

    /// What the peer has shown and proved to own.
    pub(crate) fn peer_certificate(&self) -> Option<&CertificateDer<'static>> {
        let all = match &self.side {
            Side::Client(connection) => connection.peer_certificates(),
            Side::Server(connection) => connection.peer_certificates(),
        };
        all.and_then(|all| all.first())
    }

    /// Decrypts what has come into `target`, as far as there are whole records; gives how many bytes.
    pub(crate) fn open(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let mut copied = self.take_plain(target);
        while copied < target.len() && !self.is_closed {
            match self.step(target, &mut copied, &[])? {
                Step::Again => {}
                Step::Idle | Step::Blocked => break,
                Step::Closed => self.is_closed = true,
            }
        }
        Ok(copied)
    }

    /// Whether the peer has said that nothing follows.
    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed && self.taken == self.plain.len()
    }

    /// Whether [`open`](TlsSession::open) gives something without more from the network.
    pub(crate) fn has_more(&self) -> bool {
        let raw = &self.incoming[self.begun..self.filled];
        let is_whole = |head: &[u8]| {
            raw.len() >= RECORD_HEAD + usize::from(u16::from_be_bytes([head[3], head[4]]))
        };
        self.taken < self.plain.len() || raw.get(..RECORD_HEAD).is_some_and(is_whole)
    }

    /// Encrypted bytes that have come and are not opened.
    pub(crate) fn unopened(&self) -> usize {
        self.filled - self.begun
    }

    /// Where encrypted bytes may be read to; then [`received`](TlsSession::received) is called.
    pub(crate) fn room(&mut self) -> &mut [u8] {
        self.incoming.copy_within(self.begun..self.filled, 0);
        (self.begun, self.filled) = (0, self.filled - self.begun);
        if self.incoming.len() < INCOMING_BYTES {
            self.incoming.resize(INCOMING_BYTES, 0);
        }
        &mut self.incoming[self.filled..]
    }

    /// The first `count` bytes of the room were read.
    pub(crate) fn received(&mut self, count: usize) {
        self.filled += count;
    }

    /// Encrypted bytes have come.
    pub(crate) fn feed(&mut self, bytes: &[u8]) {
        self.incoming.drain(..self.begun);
        self.incoming.truncate(self.filled - self.begun);
        self.incoming.extend_from_slice(bytes);
        (self.begun, self.filled) = (0, self.incoming.len());
    }

    /// Encrypts the front of `bytes`, a few records at most; gives how many.
    pub(crate) fn seal(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let bytes = &bytes[..bytes.len().min(CHUNK_BYTES)];
        while !bytes.is_empty() {
            match self.step(&mut [], &mut 0, bytes)? {
                Step::Again => {}
                Step::Idle => break,
                Step::Blocked => return Err(io::Error::other("the handshake is not complete")),
                // The peer reads on even where it has said its last word.
                Step::Closed => self.is_closed = true,
            }
        }
        Ok(bytes.len())
    }

    /// Encrypted bytes that are to be sent.
    pub(crate) fn unsent(&self) -> &[u8] {
        &self.outgoing.bytes[self.outgoing.sent..self.outgoing.filled]
    }

    /// The first `count` of them are sent.
    pub(crate) fn sent(&mut self, count: usize) {
        self.outgoing.sent += count;
        if self.outgoing.sent == self.outgoing.filled {
            (self.outgoing.sent, self.outgoing.filled) = (0, 0);
        }
    }

    fn take_plain(&mut self, target: &mut [u8]) -> usize {
        let count = (&self.plain[self.taken..]).read(target).unwrap_or(0);
        self.taken += count;
        if self.taken == self.plain.len() {
            self.plain.clear();
            self.taken = 0;
        }
        count
    }

    fn step(&mut self, target: &mut [u8], copied: &mut usize, seal: &[u8]) -> io::Result<Step> {
        let raw = &mut self.incoming[self.begun..self.filled];
        let mut buffers = Buffers {
            target,
            copied: *copied,
            plain: &mut self.plain,
            outgoing: &mut self.outgoing,
            seal,
            discard: 0,
        };
        let (discard, step) = match &mut self.side {
            Side::Client(connection) => {
                let UnbufferedStatus { discard, state, .. } = connection.process_tls_records(raw);
                (discard, state.map_err(broken).and_then(|state| buffers.handle(state)))
            }
            Side::Server(connection) => {
                let UnbufferedStatus { discard, state, .. } = connection.process_tls_records(raw);
                (discard, state.map_err(broken).and_then(|state| buffers.handle(state)))
            }
        };
        *copied = buffers.copied;
        self.begun += discard + buffers.discard;
        step
    }
}

impl Buffers<'_> {
    fn handle<Data>(&mut self, state: ConnectionState<'_, '_, Data>) -> io::Result<Step> {
        match state {
            ConnectionState::ReadTraffic(mut traffic) => {
                while let Some(record) = traffic.next_record() {
                    let record = record.map_err(broken)?;
                    self.discard += record.discard;
                    let mut payload = record.payload;
                    self.copied += payload.read(&mut self.target[self.copied..])?;
                    self.plain.extend_from_slice(payload);
                }
                Ok(Step::Again)
            }
            ConnectionState::EncodeTlsData(mut data) => {
                self.outgoing.append(RECORD_BYTES, |room| match data.encode(room) {
                    Ok(count) => Ok(count),
                    Err(EncodeError::InsufficientSize(needed)) => Err(Some(needed.required_size)),
                    Err(_) => Err(None),
                })?;
                Ok(Step::Again)
            }
            // What was encoded is in `outgoing`, which the caller sends before anything else.
            ConnectionState::TransmitTlsData(data) => {
                data.done();
                Ok(Step::Again)
            }
            ConnectionState::WriteTraffic(mut traffic) => {
                let seal = self.seal;
                if !seal.is_empty() {
                    let records = seal.len().div_ceil(RECORD_BYTES) + 1;
                    let size = seal.len() + records * RECORD_SPARE;
                    self.outgoing.append(size, |room| match traffic.encrypt(seal, room) {
                        Ok(count) => Ok(count),
                        Err(EncryptError::InsufficientSize(needed)) => {
                            Err(Some(needed.required_size))
                        }
                        Err(_) => Err(None),
                    })?;
                }
                Ok(Step::Idle)
            }
            ConnectionState::BlockedHandshake => Ok(Step::Blocked),
            ConnectionState::PeerClosed | ConnectionState::Closed => Ok(Step::Closed),
            _ => Err(broken("data before the handshake")),
        }
    }
}

impl Outgoing {
    /// Has `write` fill the room after what is there; it is called again if it asks for more.
    fn append(
        &mut self,
        mut size: usize,
        mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<usize>>,
    ) -> io::Result<()> {
        loop {
            if self.bytes.len() < self.filled + size {
                self.bytes.resize(self.filled + size, 0);
            }
            match write(&mut self.bytes[self.filled..]) {
                Ok(count) => {
                    self.filled += count;
                    return Ok(());
                }
                Err(Some(needed)) if needed > size => size = needed,
                Err(_) => return Err(broken("its keys are used up")),
            }
        }
    }
}

/// Encrypts the front of `slices` as far as one write takes; gives how many bytes.
pub(crate) fn seal_slices(session: &mut TlsSession, slices: &[IoSlice<'_>]) -> io::Result<usize> {
    let mut sealed = 0;
    for slice in slices {
        let mut rest = &slice[..];
        while !rest.is_empty() {
            if session.unsent().len() >= SEALED_BYTES {
                return Ok(sealed);
            }
            let count = session.seal(rest)?;
            sealed += count;
            rest = &rest[count..];
        }
    }
    Ok(sealed)
}

/// Why the connection is of no use any more.
fn broken(error: impl fmt::Display) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}"))
}
