//! The control protocol beside the frames of the run: packets and their fields.

mod codec;
pub(crate) use codec::SAVED;
mod fields;
mod succession;
pub(crate) use succession::{LineMessage, WorkerMessage};
mod surveys;

use std::borrow::Cow;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use quelea_control::QuorumRule;
use quelea_core::time::Time;
use quelea_core::view::ViewChange;
use quelea_record::{CheckpointSchedule, RankCheckpoint};
use quelea_wire::control::{self, ControlError, HEAD_BYTES, Head, Reader};

use crate::measure::Probe;
use crate::running_time;
use crate::transport::SharedOffer;
use crate::trust::RankSeat;

/// The longest packet before a run is agreed on, the job apart.
pub(crate) const SMALL_BYTES: u64 = 64 << 10;
/// Vectors of the model's length that a rank's state has at most: the widest row keeps the shares
/// of its last 64 rounds.
const STATE_VECTORS: u64 = 96;

/// The longest state of a rank of a model with so many elements.
pub(crate) fn state_bytes(len: usize) -> u64 {
    SMALL_BYTES + (8 << 20) + 4 * STATE_VECTORS * len as u64
}

/// The longest job.
pub(crate) const JOB_BYTES: u64 = 64 << 20;

/// A message while a run is set up.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum SetupMessage {
    /// A worker wants to take part, as this rank or any.
    Join { rank: Option<u32>, key: String },
    /// It may, as this rank. `open` tells whether other machines may take part, `late` whether the run has
    /// begun, so that the worker connects to all others, `shares` whether ranks of one machine may share
    /// memory.
    Welcome {
        run: u64,
        rank: u32,
        open: bool,
        timeline: bool,
        late: bool,
        shares: bool,
        reconnect: Time,
        job: Vec<u8>,
    },
    /// It may not. `elsewhere`: this is another run than the one it looks for.
    Refused { reason: String, elsewhere: bool },
    /// The worker cannot run the job.
    Unable { reason: String },
    /// The worker has loaded its data and listens for its peers.
    Listening { port: u16 },
    /// What time is it?
    Ping,
    /// It is this, on the coordinator's clock.
    Pong { now: Time },
    /// Where the ranks listen (nothing for one that takes no part), and which time the seat of each was
    /// given.
    Peers { addresses: Vec<String>, seats: Vec<u32> },
    /// The worker is connected with all its peers.
    Meshed,
    /// The worker resumes from this, in the view that follows from these changes; sent before the start.
    /// `resized`: all but the common part of the state is reset; `joins`: the state is another's.
    Resume { part: Box<RankCheckpoint>, resized: bool, joins: bool, changes: Vec<ViewChange> },
    /// The run begins; its zero on the coordinator's clock, when checkpoints are taken, and how it survives
    /// the coordinator, if it does.
    Start { zero: Time, schedule: CheckpointSchedule, survival: Option<Survival> },
    /// The first message on a connection between two ranks.
    Hello { run: u64, from: u32, to: u32 },
    /// The answer to it.
    Accepted,
    /// A hello of a rank on the same machine, with what it can share.
    HelloNear { run: u64, from: u32, to: u32, offer: SharedOffer },
    /// The answer to it, if that could be opened.
    AcceptedNear { offer: SharedOffer },
    /// The answer to it, if not: frames go over the connection.
    Separate { problem: String },
    /// Whether what was offered in the answer could be opened; if there is no problem, it was.
    Shared { problem: String },
    /// Instead of a hello: the connection broke, after this many frames from `to` to `from`.
    Reconnect { run: u64, from: u32, to: u32, received: u64 },
    /// The answer to it: this many frames have come from `from`.
    Reconnected { received: u64 },
    /// Instead of a start: the worker is to measure this.
    Measure(Probe),
    /// What it came to.
    Found { values: Vec<f64> },
    /// Everything is measured; there will be no run.
    Measured,
    /// The worker asks for a certificate of its rank, for this public key.
    Certify { key: Vec<u8> },
    /// The certificate, and the one that signed it.
    Certified { certificate: Vec<u8>, root: Vec<u8> },
    /// The worker is still loading its data.
    Alive,
    /// During the run: a worker that joins was given this seat, and its earlier holders count no more.
    Seat(RankSeat),
    /// As [`Listening`](SetupMessage::Listening), at another address than that of the connection.
    ListeningAt { address: SocketAddr },
    /// A spare waits, with the connection open, until it can take the place of a worker that is lost.
    StandBy { key: String },
    /// During the run: a worker that joins listens there.
    Moved { rank: u32, address: String },
    /// The last word of a run that has ended well: nobody has to take over.
    Ended,
    /// The answer to a request to join at a process that does not control the run: this is where the one
    /// listens that does.
    Redirect { address: String },
    /// Instead of a hello: the controller is gone, and `from` has something to say about who is next.
    Control { run: u64, from: u32, to: u32 },
}

/// Who controls a run at first that survives that process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Survival {
    /// The rank in whose process the controller lives, or [`NO_RANK`](quelea_control::NO_RANK).
    pub(crate) controller: u32,
    /// All ranks of that process.
    pub(crate) ranks: Vec<u32>,
    /// As long as there are so many workers, the run continues.
    pub(crate) min_workers: u32,
    /// How long workers that join are waited for where there are fewer.
    pub(crate) joiner_wait: Time,
    /// Who may continue without the others.
    pub(crate) quorum: QuorumRule,
    /// The controller's term; it grows with every take-over.
    pub(crate) term: u32,
}

/// Anything that is written as one packet.
pub(crate) trait Packet: Sized {
    fn encode(&self) -> Vec<u8>;
    fn decode(reader: &mut Reader<'_>, kind: u16) -> Result<Self, ControlError>;

    /// The kind and the body in pieces, where the body is so long that it is not to be copied.
    fn pieces(&self) -> Option<(u16, Vec<Cow<'_, [u8]>>)> {
        None
    }

    /// The longest body of a packet of this kind, where the longest of any is `most`.
    fn longest(_kind: u16, most: u64) -> u64 {
        most
    }
}

/// Why a packet could not be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PacketError {
    #[error("the connection was closed")]
    Closed,
    #[error("waited {seconds:.1} s for {what}, which did not arrive, or not completely")]
    Silent { seconds: f64, what: &'static str },
    #[error("timed out reading")]
    ReadTimeout,
    #[error("timed out writing to it after {seconds:.1} s")]
    WriteTimeout { seconds: f64 },
    #[error("{0}")]
    Socket(io::Error),
    #[error("{0}")]
    Wrong(#[from] ControlError),
}

impl From<io::Error> for PacketError {
    fn from(error: io::Error) -> PacketError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe
            | io::ErrorKind::ConnectionAborted => PacketError::Closed,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => PacketError::ReadTimeout,
            _ => PacketError::Socket(error),
        }
    }
}

/// A connection that carries packets, plain or encrypted.
pub(crate) trait PacketStream {
    /// What is below it, for its addresses and time limits.
    fn socket(&self) -> &TcpStream;
    /// Reads what is there; 0 at the end.
    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize>;
    /// Writes all of it.
    fn transmit(&self, bytes: &[u8]) -> io::Result<()>;
}

impl PacketStream for TcpStream {
    fn socket(&self) -> &TcpStream {
        self
    }

    fn receive(&self, buffer: &mut [u8]) -> io::Result<usize> {
        (&mut &*self).read(buffer)
    }

    fn transmit(&self, bytes: &[u8]) -> io::Result<()> {
        (&mut &*self).write_all(bytes)
    }
}

/// Writes one packet.
pub(crate) fn write(stream: &impl PacketStream, packet: &impl Packet) -> Result<(), PacketError> {
    let written = match packet.pieces() {
        Some((kind, pieces)) => {
            let head = control::encode_head(kind, &pieces);
            let mut all = std::iter::once(&head[..]).chain(pieces.iter().map(|piece| &**piece));
            all.try_for_each(|piece| stream.transmit(piece))
        }
        None => stream.transmit(&packet.encode()),
    };
    written.map_err(|error| match error.into() {
        PacketError::ReadTimeout => {
            let limit = stream.socket().write_timeout().ok().flatten().unwrap_or_default();
            PacketError::WriteTimeout { seconds: limit.as_secs_f64() }
        }
        error => error,
    })
}

/// A time limit for reading, and what is read; several reads may share one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    /// On the clock of [`running_time`].
    begun: Duration,
    seconds: f64,
    what: &'static str,
}

impl Wait {
    pub(crate) fn new(seconds: f64, what: &'static str) -> Wait {
        Wait { begun: running_time::now(), seconds, what }
    }

    /// How much of it is left.
    pub(crate) fn left(&self) -> Duration {
        Duration::try_from_secs_f64(self.seconds)
            .unwrap_or(Duration::MAX)
            .saturating_sub(running_time::now().saturating_sub(self.begun))
    }

    fn over(&self) -> PacketError {
        PacketError::Silent { seconds: self.seconds, what: self.what }
    }
}

/// How long the kernel may wait before the time limit is looked at again.
const READ_SLICE: Duration = Duration::from_millis(250);

/// A stream whose reading ends with the wait, however slowly bytes drip in.
struct DeadlineRead<'a, S> {
    stream: &'a S,
    wait: Option<Wait>,
}

/// A stream that calls back whenever bytes have arrived.
struct WatchedRead<'a, S> {
    stream: &'a S,
    arrived: &'a mut dyn FnMut(),
}

impl<S: PacketStream> Read for WatchedRead<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.receive(buffer)?;
        (self.arrived)();
        Ok(read)
    }
}

impl<S: PacketStream> Read for DeadlineRead<'_, S> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &self.wait {
            Some(wait) => read_within(self.stream, wait, buffer),
            None => self.stream.receive(buffer),
        }
    }
}

/// Reads what is there, and waits for it until the time is over.
pub(crate) fn read_within(
    stream: &impl PacketStream,
    wait: &Wait,
    buffer: &mut [u8],
) -> io::Result<usize> {
    loop {
        let left = wait.left();
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // The kernel's clock does not stop with this process; the wait's does.
        stream.socket().set_read_timeout(Some(left.min(READ_SLICE)))?;
        match stream.receive(buffer) {
            Err(error)
                if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {}
            read => return read,
        }
    }
}

/// Reads one packet with a body of at most `most` bytes; without a `wait`, for as long as it takes.
pub(crate) fn read<P: Packet>(
    stream: &impl PacketStream,
    most: u64,
    wait: Option<Wait>,
) -> Result<P, PacketError> {
    read_body(DeadlineRead { stream, wait }, most).map_err(|error| match (error, wait) {
        (PacketError::ReadTimeout, Some(wait)) => wait.over(),
        (error, _) => error,
    })
}

/// Who follows a packet that takes long.
pub(crate) trait PacketWatch {
    /// A part of it has arrived.
    fn arrived(&mut self);
    /// Its body of this many bytes is about to be read, which may wait.
    fn announced(&mut self, kind: u16, bytes: u64);
}

/// Reads one packet for as long as it takes.
pub(crate) fn read_watched<P: Packet>(
    stream: &impl PacketStream,
    most: u64,
    watch: &mut impl PacketWatch,
) -> Result<P, PacketError> {
    let mut head = [0; HEAD_BYTES];
    WatchedRead { stream, arrived: &mut || watch.arrived() }.read_exact(&mut head)?;
    let head = check_head::<P>(&head, most)?;
    watch.announced(head.kind, head.length as u64);
    read_fields(WatchedRead { stream, arrived: &mut || watch.arrived() }, &head)
}

/// Reads one packet with a body of at most `most` bytes.
pub(crate) fn read_body<P: Packet>(mut stream: impl Read, most: u64) -> Result<P, PacketError> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head)?;
    read_fields(stream, &check_head::<P>(&head, most)?)
}

fn check_head<P: Packet>(head: &[u8; HEAD_BYTES], most: u64) -> Result<Head, PacketError> {
    let head = control::decode_head(head, most)?;
    let (length, most) = (head.length as u64, P::longest(head.kind, most));
    if length > most {
        return Err(ControlError::Length { length, most }.into());
    }
    Ok(head)
}

fn read_fields<P: Packet>(stream: impl Read, head: &Head) -> Result<P, PacketError> {
    let body = read_growing(stream, head.length)?;
    head.check(&body)?;
    let mut reader = Reader::new(head.kind, &body);
    let packet = P::decode(&mut reader, head.kind)?;
    reader.end()?;
    Ok(packet)
}

/// How much memory is taken on the word of a head.
const BELIEVED_BYTES: usize = 64 << 10;

/// Reads a body. Memory follows what really arrives, whatever length was announced, and is never more than the
/// body needs.
fn read_growing(mut stream: impl Read, length: usize) -> Result<Vec<u8>, PacketError> {
    let mut body = Vec::new();
    while body.len() < length {
        let more = (length - body.len()).min(body.len().max(BELIEVED_BYTES));
        body.reserve_exact(more);
        if stream.by_ref().take(more as u64).read_to_end(&mut body)? < more {
            return Err(PacketError::Closed);
        }
    }
    Ok(body)
}
