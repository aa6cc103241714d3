//! The control protocol beside the frames of the run: packets and their fields.

mod codec;
mod fields;
mod surveys;

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use quelea_core::time::Time;
use quelea_core::view::ViewChange;
use quelea_record::{CheckpointSchedule, RankCheckpoint};
use quelea_wire::control::{self, ControlError, HEAD_BYTES, Reader};

use crate::measure::Probe;
use crate::running_time;

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
    /// begun, so that the worker connects to all others.
    Welcome { run: u64, rank: u32, open: bool, timeline: bool, late: bool, job: Vec<u8> },
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
    /// Where the ranks listen; nothing for one that was lost before the run was resumed.
    Peers { addresses: Vec<String> },
    /// The worker is connected with all its peers.
    Meshed,
    /// The worker resumes from this, in the view that follows from these changes; sent before the start.
    /// `resized`: all but the common part of the state is reset; `joins`: the state is another's.
    Resume { part: Box<RankCheckpoint>, resized: bool, joins: bool, changes: Vec<ViewChange> },
    /// The run begins; its zero on the coordinator's clock, and when checkpoints are taken.
    Start { zero: Time, schedule: CheckpointSchedule },
    /// The first message on a connection between two ranks.
    Hello { run: u64, from: u32, to: u32 },
    /// The answer to it.
    Accepted,
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
}

/// Anything that is written as one packet.
pub(crate) trait Packet: Sized {
    fn encode(&self) -> Vec<u8>;
    fn decode(reader: &mut Reader<'_>, kind: u16) -> Result<Self, ControlError>;
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

/// Writes one packet.
pub(crate) fn write(mut stream: &TcpStream, packet: &impl Packet) -> Result<(), PacketError> {
    stream.write_all(&packet.encode()).map_err(|error| match error.into() {
        PacketError::ReadTimeout => {
            let limit = stream.write_timeout().ok().flatten().unwrap_or_default();
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
struct DeadlineRead<'a> {
    stream: &'a TcpStream,
    wait: Option<Wait>,
}

/// A stream that calls back whenever bytes have arrived.
struct WatchedRead<'a> {
    stream: &'a TcpStream,
    arrived: &'a mut dyn FnMut(),
}

impl Read for WatchedRead<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.stream.read(buffer)?;
        (self.arrived)();
        Ok(read)
    }
}

impl Read for DeadlineRead<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let Some(wait) = &self.wait else { return self.stream.read(buffer) };
        loop {
            let left = wait.left();
            if left.is_zero() {
                return Err(io::ErrorKind::TimedOut.into());
            }
            // The kernel's clock does not stop with this process; the wait's does.
            self.stream.set_read_timeout(Some(left.min(READ_SLICE)))?;
            match self.stream.read(buffer) {
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
                    ) => {}
                read => return read,
            }
        }
    }
}

/// Reads one packet with a body of at most `most` bytes; without a `wait`, for as long as it takes.
pub(crate) fn read<P: Packet>(
    stream: &TcpStream,
    most: u64,
    wait: Option<Wait>,
) -> Result<P, PacketError> {
    read_body(DeadlineRead { stream, wait }, most).map_err(|error| match (error, wait) {
        (PacketError::ReadTimeout, Some(wait)) => wait.over(),
        (error, _) => error,
    })
}

/// Reads one packet for as long as it takes, and calls `arrived` whenever a part of it has arrived.
pub(crate) fn read_watched<P: Packet>(
    stream: &TcpStream,
    most: u64,
    arrived: &mut dyn FnMut(),
) -> Result<P, PacketError> {
    read_body(WatchedRead { stream, arrived }, most)
}

fn read_body<P: Packet>(mut stream: impl Read, most: u64) -> Result<P, PacketError> {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head)?;
    let head = control::decode_head(&head, most)?;
    let mut body = Vec::new();
    // Memory follows what really arrives, whatever length was announced.
    stream.take(head.length as u64).read_to_end(&mut body)?;
    if body.len() < head.length {
        return Err(PacketError::Closed);
    }
    head.check(&body)?;
    let mut reader = Reader::new(head.kind, &body);
    let packet = P::decode(&mut reader, head.kind)?;
    reader.end()?;
    Ok(packet)
}
