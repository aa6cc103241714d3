//! How frames travel between two ranks: the interface that ranks know, whatever carries the bytes.
//!
//! ```text
//! TransportKind ──open──► Transport ──connect──► RankLinks ──attach──► Link, LinkTask
//! chosen by name          one per process        one per rank          one per peer, on the rank's thread
//! ```
//!
//! A rank pushes messages into a [`Link`] per peer and flushes it; [`LinkTask`]s on the rank's thread
//! write what a flush could not, and hand what arrives to the rank's [`FrameSink`]. A task may serve one
//! peer (TCP) or all of them (ranks of one process; a transport with a progress loop of its own).
//!
//! | module | what is in it |
//! |---|---|
//! | `stream` | frames over any non-blocking stream of bytes, without copying vectors |
//! | `tcp` | TCP: sockets, and connecting every rank with every other |
//! | `tls` | the same sockets, encrypted and with both ends authenticated |
//! | `shared_memory` | processes of one machine: frames in shared pages, vectors read in place |
//! | `mpi` | processes of one MPI job: frames as its messages (feature `mpi`) |
//! | `in_process` | ranks of one process, which share message memory and send no bytes |
//! | `doors` | how workers that join a run that has begun reach its ranks |
//! | `order` | the order of frames over all links of a rank |

mod doors;
pub(crate) mod in_process;
#[cfg(feature = "mpi")]
pub(crate) mod mpi;
#[cfg(not(feature = "mpi"))]
#[path = "transport/without_mpi.rs"]
pub(crate) mod mpi;
mod order;
pub(crate) mod shared_memory;
mod stream;
pub(crate) mod tcp;
pub(crate) mod tls;

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::net::{IpAddr, TcpStream};
use std::pin::Pin;
use std::rc::Rc;
use std::str::FromStr;
use std::sync::mpsc::Sender;

use quelea_control::RankEvent;
use quelea_core::message::{Message, Rank};
use quelea_core::payload::Pool;
use quelea_wire::frame::{FrameError, Limits, Route};

use crate::controller::Incoming;
use crate::error::NetError;
use crate::options::NetOptions;
use crate::protocol::Wait;
use crate::trust::LinkIdentity;

pub(crate) use doors::{Doors, JoinPlace};
pub(crate) use order::WriteOrder;
pub(crate) use shared_memory::{SharedMemory, SharedOffer};

/// The sending end of the way to one peer. One virtual call per frame; everything below it is compiled
/// for the transport.
pub(crate) trait Link: fmt::Debug {
    /// Takes a message, handed over at `sent_micros`; [`flush`](Link::flush) sends it. Its vectors are
    /// not copied.
    fn push(&self, sent_micros: u32, message: Message);

    /// Sends what can be sent without waiting. The link's task sends the rest, and reports why if it
    /// cannot.
    fn flush(&self) -> Result<(), LinkError>;

    /// How the system finds the connection under the link; nothing where there is none.
    fn quality(&self) -> LinkQuality {
        LinkQuality::default()
    }
}

/// What the system measures on a connection while it is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LinkQuality {
    /// Microseconds of a round trip, smoothed; 0 where it does not say.
    pub(crate) round_trip_micros: u64,
    /// Segments that it has sent again.
    pub(crate) resent: u64,
}

/// What a transport tells the rank whose frames it brings.
pub(crate) trait FrameSink {
    /// A message from `from` has arrived, handed over at `sent_micros`. An error says why the rank
    /// cannot take it; the transport ends that link with [`LinkError::Refused`].
    fn frame(&self, from: Rank, sent_micros: u32, message: Message) -> Result<(), String>;

    /// The connection under the link with `peer` broke and was restored; no frame was lost or doubled.
    fn restored(&self, peer: Rank, reason: &LinkError);

    /// The link with `peer` has ended for good; a transport that can restore it has tried.
    fn ended(&self, peer: Rank, error: LinkError);
}

/// Work of a link, on its rank's thread.
pub(crate) type LinkFuture = Pin<Box<dyn Future<Output = ()>>>;

/// Moves the frames of one or several links until they have ended.
pub(crate) type LinkTask = Box<dyn FnOnce(Rc<dyn FrameSink>) -> LinkFuture>;

/// Why a link has ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LinkError {
    /// The peer closed it.
    #[error("the connection was closed")]
    Closed,
    /// The peer, its machine or something between ended it without closing.
    #[error("the connection broke: {0}")]
    Reset(io::Error),
    /// The peer's machine no longer acknowledges anything.
    #[error("the connection broke: {0}")]
    TimedOut(io::Error),
    /// Anything else that the system reports.
    #[error("the connection broke: {0}")]
    Broken(io::Error),
    /// The peer opened another connection in its place.
    #[error("the connection was replaced by its peer")]
    Superseded,
    /// It broke, and was not restored.
    #[error("{reason}; it was not restored: {problem}")]
    NotRestored {
        /// Why it broke.
        reason: Box<LinkError>,
        /// Why there is no new connection, or none that continues this one.
        problem: String,
    },
    /// More waits for the peer than it may leave unread.
    #[error("it does not read what is sent to it: {waiting} bytes wait, {most} may")]
    Unread {
        /// Bytes that wait.
        waiting: u64,
        /// Bytes that may.
        most: u64,
    },
    /// What arrived is not a frame of this link.
    #[error("it sent a bad frame: {0}")]
    Frame(#[from] FrameError),
    /// What it wrote to its shared pages cannot be.
    #[error("it broke the rules of shared memory: {0}")]
    Shared(String),
    /// The rank could not take a message.
    #[error("it sent a message that could not be taken: {0}")]
    Refused(String),
}

impl LinkError {
    /// Whether the connection is gone, so that a new one may help; otherwise the peer is at fault.
    pub(crate) fn is_disconnection(&self) -> bool {
        !matches!(
            self,
            LinkError::Frame(_)
                | LinkError::Refused(_)
                | LinkError::Unread { .. }
                | LinkError::Shared(_)
        )
    }
}

impl From<io::Error> for LinkError {
    fn from(error: io::Error) -> LinkError {
        match error.kind() {
            io::ErrorKind::UnexpectedEof => LinkError::Closed,
            io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::BrokenPipe => LinkError::Reset(error),
            io::ErrorKind::TimedOut => LinkError::TimedOut(error),
            _ => LinkError::Broken(error),
        }
    }
}

/// What a rank's links need to know of it.
pub(crate) struct AttachContext<'a> {
    /// The rank.
    pub(crate) rank: Rank,
    /// In which order it writes.
    pub(crate) order: &'a Rc<WriteOrder>,
    /// Where received vectors live.
    pub(crate) pool: &'a Pool,
    /// Elements of the model.
    pub(crate) len: usize,
    /// Whether values are looked at while they arrive.
    pub(crate) inspects: bool,
}

/// The links of one rank over one transport, with the tasks that move their frames.
#[derive(Default)]
pub(crate) struct Attached {
    /// By peer.
    pub(crate) links: Vec<(Rank, Rc<dyn Link>)>,
    /// To be run on the rank's thread.
    pub(crate) tasks: Vec<LinkTask>,
}

/// What a transport has opened for one rank, on its way to that rank's thread.
pub(crate) trait RankEndpoint: fmt::Debug + Send {
    /// Makes links of it, on the rank's thread and inside its runtime.
    fn attach(self: Box<Self>, context: &AttachContext<'_>) -> io::Result<Attached>;

    /// The socket that frames to `peer` will use, to time it before a run; none where a transport has
    /// no sockets.
    fn socket(&self, peer: Rank) -> Option<&TcpStream>;
}

/// A rank that is to live here, with its ways to others.
#[derive(Debug)]
pub(crate) struct RankLinks {
    pub(crate) rank: Rank,
    pub(crate) endpoints: Vec<Box<dyn RankEndpoint>>,
}

/// Who lives where.
#[derive(Clone, Debug)]
pub(crate) struct MeshPlan {
    /// The number that tells this run from others.
    pub(crate) run: u64,
    /// Ranks in all.
    pub(crate) ranks: usize,
    /// Those of this process.
    pub(crate) here: BTreeSet<Rank>,
    /// What this process shows to others, where connections are encrypted.
    pub(crate) identity: Option<LinkIdentity>,
    /// The run has begun: this process connects to all others.
    pub(crate) is_late: bool,
    /// Where those are heard who join later.
    pub(crate) doors: Doors,
}

/// The ways between this process and the others of a run. It stays open during the run.
pub(crate) trait Transport: fmt::Debug + Send {
    /// The port at which others reach it; 0 where a transport finds its peers without one.
    fn port(&self) -> u16;

    /// Connects every rank of this process with every rank elsewhere. `addresses` are by rank; one that
    /// has none does not take part.
    fn connect(
        &self,
        addresses: &[String],
        options: &NetOptions,
        wait: Wait,
    ) -> Result<Vec<RankLinks>, NetError>;
}

/// Which transport connects the processes of a run. The coordinator's choice holds for all that join; one
/// of them may still keep to TCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransportKind {
    /// Shared memory between processes of one machine that can open each other's, TCP between all others.
    #[default]
    Auto,
    /// One TCP connection between every two ranks of different processes.
    Tcp,
    /// Messages of MPI, between processes that `mpirun` or `srun` has started; control connections stay TCP.
    Mpi,
}

impl TransportKind {
    /// All of them.
    pub const ALL: [TransportKind; 3] =
        [TransportKind::Auto, TransportKind::Tcp, TransportKind::Mpi];

    /// What a configuration calls it.
    pub fn name(self) -> &'static str {
        match self {
            TransportKind::Auto => "auto",
            TransportKind::Tcp => "tcp",
            TransportKind::Mpi => "mpi",
        }
    }

    /// Why nobody can join a run that has begun, if it is for this transport.
    pub(crate) fn join_refusal(self) -> Option<&'static str> {
        let is_closed = self == TransportKind::Mpi;
        is_closed.then_some("its messages travel over MPI, whose processes start together")
    }

    /// Opens this process's end, reached at `ip` where the transport has addresses. What it refuses is
    /// reported to `warnings`.
    pub(crate) fn open(
        self,
        plan: MeshPlan,
        ip: IpAddr,
        options: &NetOptions,
        warnings: Sender<Incoming>,
    ) -> Result<Box<dyn Transport>, NetError> {
        let shared = match self {
            TransportKind::Auto => own_memory(&warnings),
            TransportKind::Tcp => None,
            TransportKind::Mpi => return mpi::open(plan),
        };
        Ok(Box::new(tcp::Mesh::open(plan, ip, shared, options, warnings)?))
    }
}

/// What this process can share; if nothing, it is said why.
fn own_memory(warnings: &Sender<Incoming>) -> Option<SharedMemory> {
    let created = SharedMemory::create();
    if let Err(error) = &created
        && error.kind() != io::ErrorKind::Unsupported
    {
        let text = format!("this process shares no memory with others of its machine: {error}");
        let _ = warnings.send(Incoming::Event(RankEvent::Warning(text)));
    }
    created.ok()
}

impl fmt::Display for TransportKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TransportKind {
    type Err = NetError;

    fn from_str(name: &str) -> Result<TransportKind, NetError> {
        TransportKind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
            let names = TransportKind::ALL.map(TransportKind::name).join(", ");
            NetError::Setup(format!("there is no transport \"{name}\"; there are: {names}"))
        })
    }
}

/// The limits of the link over which `from` sends to `to`, in a run over vectors of `len` elements. A
/// codec may need half as much again as the plain vector, and a little more.
pub(crate) fn limits(from: Rank, to: Rank, len: usize, inspects: bool) -> Limits {
    let held_bytes = budget_bytes(len, HELD_VECTORS);
    Limits { route: Route { from, to }, part_bytes: len as u64 * 7 + 4096, held_bytes, inspects }
}

/// Vectors of the model's length that one peer may have here, received and not used up. Peers that keep to
/// their algorithm are a step or two ahead.
const HELD_VECTORS: u64 = 16;
/// Vectors of the model's length that may wait for one peer. Each is also held by the algorithm or by other
/// links, so that this bounds the time a peer may stay behind rather than memory.
pub(crate) const UNSENT_VECTORS: u64 = 64;
/// What is allowed however small the model is.
const LEAST_BUDGET: u64 = 64 << 20;

/// The budget of one peer, in bytes, in a run over vectors of `len` elements.
pub(crate) fn budget_bytes(len: usize, vectors: u64) -> u64 {
    LEAST_BUDGET.max(vectors * len as u64 * 4)
}

#[cfg(test)]
mod tests;
