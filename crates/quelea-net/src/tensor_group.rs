//! Collective calls on tensors: what `torch.distributed` expects of a backend.
//!
//! A [`TensorGroup`] is one process's end of a full mesh of TCP connections, with a thread that
//! moves the bytes. Calls return at once with a [`Pending`]. Collectives run in the order in which
//! they were submitted, which must be the same at all ranks; sends and receives run beside them.
//!
//! Bytes move only when the receiver has announced the memory that they go to: nothing is
//! buffered, and ranks that disagree about a call or a size learn it from the announcement instead
//! of hanging. A rank that fails says why to all others, so every error names the first rank that
//! was lost.
//!
//! | file | what |
//! |---|---|
//! | `connect` | how the processes find each other |
//! | `frame`, `link` | what travels over one connection, and its queues |
//! | `engine` | the thread: waiting for all connections, time limits, failures |
//! | `schedules` | ring, halving-doubling, trees and direct exchanges on tensors |
//! | `windows` | tensors that other ranks write to while their owner computes |
//! | `untrusted` | the frames of a connection, for fuzzing |
//! | `reduction` | element types and the operations on them |

mod connect;
mod engine;
mod frame;
mod link;
mod reduction;
mod schedules;
mod submitted;
mod untrusted;
mod windows;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Sender};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

pub use connect::{GroupToken, Listener, Peers, Reach};
use engine::{Engine, GroupCommand};
pub use frame::TensorCall;
pub use reduction::{ElementType, Reducer, Reduction};
pub use submitted::{CallOutcome, Pending};
pub(crate) use untrusted::{example_frames, take_frames};
pub use windows::{WindowRequest, WindowTable};

/// Memory of a tensor, lent to a group until the operation that uses it is complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorMemory {
    address: usize,
    bytes: usize,
}

impl TensorMemory {
    /// Lends memory.
    ///
    /// # Safety
    ///
    /// It must stay where it is until the operation that it is passed to is complete, and nobody
    /// may write to it before, or read what the operation writes.
    pub unsafe fn new(address: usize, bytes: usize) -> TensorMemory {
        TensorMemory { address, bytes }
    }

    /// Its length.
    pub fn bytes(self) -> usize {
        self.bytes
    }

    /// A part of it.
    fn part(self, range: std::ops::Range<usize>) -> TensorMemory {
        assert!(range.start <= range.end && range.end <= self.bytes, "inside the tensor");
        TensorMemory { address: self.address + range.start, bytes: range.len() }
    }

    /// What is in it.
    ///
    /// # Safety
    ///
    /// Nobody may write to it while the slice is used.
    unsafe fn as_slice<'a>(self) -> &'a [u8] {
        if self.bytes == 0 {
            return &[];
        }
        // SAFETY: lent by `new`, not empty; the caller promises the rest.
        unsafe { std::slice::from_raw_parts(self.address as *const u8, self.bytes) }
    }

    /// The memory itself.
    ///
    /// # Safety
    ///
    /// Nobody else may use it while the slice is used.
    unsafe fn as_mut_slice<'a>(self) -> &'a mut [u8] {
        if self.bytes == 0 {
            return &mut [];
        }
        // SAFETY: lent by `new`, not empty; the caller promises the rest.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut u8, self.bytes) }
    }
}

/// A tensor that goes to a rank or comes from it.
#[derive(Clone, Copy, Debug)]
pub struct PeerTensor {
    /// The other rank.
    pub peer: usize,
    /// The tensor.
    pub memory: TensorMemory,
}

/// What ranks do together.
#[derive(Clone, Debug)]
pub enum Operation {
    /// Every rank's tensor becomes the reduction over all.
    AllReduce {
        /// The tensor.
        memory: TensorMemory,
        /// How.
        reducer: Reducer,
    },
    /// Tensors go to other ranks, which reduce what comes to them with their own.
    ReduceTo {
        /// Which call this is.
        call: TensorCall,
        /// What goes to others.
        sends: Vec<PeerTensor>,
        /// My own tensor and the result, if I reduce one.
        result: Option<OwnResult>,
        /// How.
        reducer: Reducer,
    },
    /// The tensor of `root` goes to all.
    Broadcast {
        /// The tensor.
        memory: TensorMemory,
        /// Whose it is.
        root: usize,
    },
    /// Tensors go to other ranks and come from them, at most one per direction and pair.
    Exchange {
        /// Which call this is.
        call: TensorCall,
        /// What goes to others.
        sends: Vec<PeerTensor>,
        /// What comes.
        receives: Vec<PeerTensor>,
        /// What stays here: copied from the first to the second.
        copies: Vec<(TensorMemory, TensorMemory)>,
    },
    /// All wait for all.
    Barrier,
    /// One tensor to one rank.
    Send {
        /// The tensor and its receiver.
        part: PeerTensor,
        /// Receives with the same tag get it.
        tag: u32,
    },
    /// Receives one tensor from one rank, or from the first rank that sends.
    Receive {
        /// The rank.
        from: Option<usize>,
        /// Where it goes.
        memory: TensorMemory,
        /// Sends with the same tag go here.
        tag: u32,
    },
    /// A request to the window of another rank.
    Window {
        /// The rank.
        peer: usize,
        /// The number of the window.
        window: u64,
        /// What.
        request: WindowRequest,
    },
}

/// A tensor that is reduced here.
#[derive(Clone, Copy, Debug)]
pub struct OwnResult {
    /// My own part.
    pub own: TensorMemory,
    /// Where the result goes; may be the same.
    pub result: TensorMemory,
}

/// One process's end of a group.
#[derive(Debug)]
pub struct TensorGroup {
    rank: usize,
    size: usize,
    commands: Mutex<Sender<GroupCommand>>,
    wake: UnixStream,
    windows: Arc<WindowTable>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl TensorGroup {
    /// Connects to all peers and starts the thread. `names` are the ranks that errors name, by
    /// rank in this group.
    pub fn connect(
        listener: Listener,
        peers: &Peers,
        names: Vec<u32>,
        limit: Duration,
    ) -> Result<TensorGroup, String> {
        let (rank, size) = (peers.rank, peers.addresses.len());
        let streams = connect::mesh(listener, peers, Instant::now() + limit, &names)?;
        let failed = |error: std::io::Error| format!("cannot start the group's thread: {error}");
        let (wake, woken) = UnixStream::pair().map_err(failed)?;
        wake.set_nonblocking(true).map_err(failed)?;
        let (commands, receiver) = mpsc::channel();
        let windows = Arc::new(WindowTable::default());
        let shared = Arc::clone(&windows);
        let engine = Engine::new(rank, names, streams, woken, receiver, shared).map_err(failed)?;
        let name = "quelea-tensors".to_owned();
        let thread = std::thread::Builder::new().name(name).spawn(move || engine.run());
        let thread = Mutex::new(Some(thread.map_err(failed)?));
        Ok(TensorGroup { rank, size, commands: Mutex::new(commands), wake, windows, thread })
    }

    /// My rank in the group.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks the group has.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The windows of this rank.
    pub fn windows(&self) -> &WindowTable {
        &self.windows
    }

    /// Starts an operation. It fails when it has made no progress to completion within `limit`.
    /// `lender` is dropped when the operation is complete, and not before.
    pub fn submit(
        &self,
        operation: Operation,
        limit: Duration,
        lender: Box<dyn Send + Sync>,
    ) -> Arc<Pending> {
        let pending = Arc::new(Pending::new(lender));
        self.tell(GroupCommand::Start { operation, limit, pending: Arc::clone(&pending) });
        pending
    }

    /// Fails everything that is pending and everything to come, here and at all peers.
    pub fn abort(&self, reason: &str) {
        self.tell(GroupCommand::Abort(reason.into()));
    }

    /// Fails everything that is pending and everything to come, here only: peers that are still
    /// in a collective whose part of this rank they have complete it.
    pub fn abandon(&self, reason: &str) {
        self.tell(GroupCommand::Abandon(reason.into()));
    }

    /// Takes leave of the group after everything that is pending, within `limit`.
    pub fn leave(&self, limit: Duration) {
        let done = Arc::new(Pending::new(Box::new(())));
        self.tell(GroupCommand::Leave(Arc::clone(&done)));
        // What could not be written by then is lost with the process.
        let _ = done.wait(Some(limit), &mut || true);
    }

    fn tell(&self, command: GroupCommand) {
        let sent = self.commands.lock().unwrap_or_else(PoisonError::into_inner).send(command);
        if let Err(mpsc::SendError(command)) = sent {
            command.refuse("the group has been left");
            return;
        }
        // A full pipe wakes as well.
        let _ = (&self.wake).write(&[0]);
    }
}

impl Drop for TensorGroup {
    fn drop(&mut self) {
        self.tell(GroupCommand::Forget);
        // The thread ends by itself once its peers have left, or with the process.
        drop(self.thread.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}
