//! MPI as this process has it: one thread makes all calls, others ask it.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use quelea_core::message::{Message, Rank};
use quelea_wire::HEADER_BYTES;
use quelea_wire::decoder::Decoder;
use tokio::sync::mpsc::UnboundedSender;

use super::LinkError;
use super::calls::World;
use super::progress::MpiProgress;
use crate::error::NetError;
use crate::protocol::Wait;

/// Which process of the job, counted by MPI.
pub(super) type Process = i32;

/// Frames of one direction between two ranks: the other process, and a tag.
pub(super) type Lane = (Process, i32);

/// What the thread is asked for.
pub(super) enum MpiRequest {
    /// A word to all other processes.
    Tell(SetupWord),
    /// A rank takes frames from now on.
    Attach(Vec<(Lane, Reception)>),
    /// A frame to another process.
    Send(Lane, OutgoingFrame),
    /// Everything has been sent and taken: end MPI.
    Finish,
}

/// What processes say to each other beside frames.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SetupWord {
    /// Where the coordinator listens, one place per line.
    Meeting(String),
    /// Which ranks of which run live here.
    Here { run: u64, ranks: Vec<Rank> },
    /// This process sends nothing more.
    Bye,
}

/// Who takes the frames of a lane.
pub(super) struct Reception {
    pub(super) from: Rank,
    pub(super) decoder: Decoder,
    pub(super) inbox: UnboundedSender<Delivery>,
}

/// What the thread hands to a rank.
#[derive(Debug)]
pub(super) enum Delivery {
    Frame {
        from: Rank,
        sent_micros: u32,
        message: Message,
    },
    /// A frame of this step was written, where that is of interest.
    Written {
        step: u64,
    },
    Ended {
        peer: Rank,
        error: LinkError,
    },
}

/// A frame on its way to the thread.
pub(super) struct OutgoingFrame {
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) message: Message,
    pub(super) receipt: Receipt,
}

/// Who hears that a frame was written.
pub(super) struct Receipt {
    pub(super) peer: Rank,
    pub(super) step: u64,
    pub(super) bytes: u64,
    /// Bytes that wait for the peer.
    pub(super) waiting: Arc<AtomicU64>,
    pub(super) inbox: UnboundedSender<Delivery>,
    /// Whether the sender waits for it.
    pub(super) is_wanted: bool,
}

impl Receipt {
    /// The frame was written, or cannot be.
    pub(super) fn give(&self, result: io::Result<()>) {
        self.waiting.fetch_sub(self.bytes, Ordering::Relaxed);
        // A rank that has ended waits for nothing.
        let _ = match result {
            Err(error) => {
                let error = LinkError::Broken(error);
                self.inbox.send(Delivery::Ended { peer: self.peer, error })
            }
            Ok(()) if self.is_wanted => self.inbox.send(Delivery::Written { step: self.step }),
            Ok(()) => Ok(()),
        };
    }
}

/// What has been heard of other processes.
#[derive(Debug, Default)]
pub(super) struct Heard {
    pub(super) meeting: Option<String>,
    pub(super) here: BTreeMap<Process, (u64, Vec<Rank>)>,
    pub(super) byes: BTreeSet<Process>,
    /// The thread has ended: well, or for this reason.
    pub(super) end: Option<Result<(), String>>,
}

/// [`Heard`], for those who wait.
#[derive(Debug, Default)]
pub(super) struct Board {
    heard: Mutex<Heard>,
    changed: Condvar,
}

impl Board {
    pub(super) fn update(&self, change: impl FnOnce(&mut Heard)) {
        change(&mut self.lock());
        self.changed.notify_all();
    }

    /// How many other processes send nothing more.
    pub(super) fn byes(&self) -> usize {
        self.lock().byes.len()
    }

    fn lock(&self) -> MutexGuard<'_, Heard> {
        self.heard.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `look` finds what it looks for; `missing` says what that is.
    fn wait<T>(
        &self,
        wait: Wait,
        mut look: impl FnMut(&Heard) -> Option<T>,
        missing: impl FnOnce(&Heard) -> String,
    ) -> Result<T, NetError> {
        let mut heard = self.lock();
        loop {
            if let Some(found) = look(&heard) {
                return Ok(found);
            }
            if let Some(Err(reason)) = &heard.end {
                return Err(NetError::Setup(reason.clone()));
            }
            let left = wait.left();
            if left.is_zero() {
                return Err(NetError::Stalled(missing(&heard)));
            }
            let waited = self.changed.wait_timeout(heard, left);
            heard = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

/// The way to the thread.
#[derive(Debug)]
pub(super) struct MpiProcess {
    requests: Mutex<Sender<MpiRequest>>,
    board: Arc<Board>,
    own: Process,
    processes: Process,
    is_one_machine: bool,
}

/// MPI begins at most once in the life of a process.
static PROCESS: OnceLock<Result<MpiProcess, String>> = OnceLock::new();

impl MpiProcess {
    /// Of this process, which becomes part of the job if it is not yet.
    pub(super) fn begin() -> Result<&'static MpiProcess, NetError> {
        let begun = PROCESS.get_or_init(|| MpiProcess::start().map_err(|error| error.to_string()));
        let failed = |error: &String| NetError::Setup(format!("cannot use MPI: {error}"));
        begun.as_ref().map_err(failed)
    }

    /// Of this process, if it has begun.
    pub(super) fn begun() -> Option<&'static MpiProcess> {
        PROCESS.get()?.as_ref().ok()
    }

    fn start() -> io::Result<MpiProcess> {
        let (requests, asked) = channel();
        let (ready, is_ready) = channel();
        let board = Arc::<Board>::default();
        let told = Arc::clone(&board);
        let live = move || run(&asked, &ready, &told);
        std::thread::Builder::new().name("mpi".into()).spawn(live)?;
        let place = is_ready.recv().map_err(|_| io::Error::other("its thread ended"))??;
        let Place { own, processes, is_one_machine } = place;
        Ok(MpiProcess { requests: Mutex::new(requests), board, own, processes, is_one_machine })
    }

    /// Whether all processes of the job are on one machine.
    pub(super) fn is_one_machine(&self) -> bool {
        self.is_one_machine
    }

    /// The way to the thread, for one rank.
    pub(super) fn requests(&self) -> Sender<MpiRequest> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Says something to all other processes.
    pub(super) fn tell(&self, word: SetupWord) {
        // A thread that has ended has said why.
        let _ = self.requests().send(MpiRequest::Tell(word));
    }

    /// Where the coordinator listens.
    pub(super) fn meeting(&self, wait: Wait) -> Result<String, NetError> {
        let missing =
            |_: &Heard| "waited in vain for MPI's process 0 to say where it listens".into();
        self.board.wait(wait, |heard| heard.meeting.clone(), missing)
    }

    /// Says which ranks live here; gives which live elsewhere, by process.
    pub(super) fn introduce(
        &self,
        run: u64,
        ranks: Vec<Rank>,
        wait: Wait,
    ) -> Result<BTreeMap<Process, (u64, Vec<Rank>)>, NetError> {
        self.tell(SetupWord::Here { run, ranks });
        let others = self.others();
        let all = |heard: &Heard| (heard.here.len() == others).then(|| heard.here.clone());
        self.board.wait(wait, all, |heard| {
            let silent = self.missing(|process| heard.here.contains_key(&process));
            format!("waited in vain for MPI's {silent} to say which ranks live there")
        })
    }

    /// Ends MPI, together with all other processes.
    pub(super) fn finish(&self, wait: Wait) -> Result<(), NetError> {
        let _ = self.requests().send(MpiRequest::Finish);
        self.board.wait(
            wait,
            |heard| heard.end.clone().and_then(Result::ok),
            |heard| {
                let silent = self.missing(|process| heard.byes.contains(&process));
                format!("waited in vain for MPI's {silent} to end")
            },
        )
    }

    fn others(&self) -> usize {
        usize::try_from(self.processes - 1).unwrap_or(0)
    }

    fn missing(&self, is_there: impl Fn(Process) -> bool) -> String {
        let missing = (0..self.processes).filter(|process| *process != self.own);
        let names =
            missing.filter(|process| !is_there(*process)).map(|process| process.to_string());
        format!("processes {}", names.collect::<Vec<_>>().join(", "))
    }
}

/// Where this process is in the job.
struct Place {
    own: Process,
    processes: Process,
    is_one_machine: bool,
}

/// The life of the thread.
fn run(asked: &Receiver<MpiRequest>, ready: &Sender<io::Result<Place>>, board: &Board) {
    let world = match World::begin() {
        Ok(world) => world,
        Err(error) => return drop(ready.send(Err(error))),
    };
    let is_one_machine = world.is_one_machine();
    let place = Place { own: world.own(), processes: world.processes(), is_one_machine };
    if ready.send(Ok(place)).is_err() {
        return;
    }
    let mut progress = MpiProgress::new(&world, board);
    let ended = progress.run(asked);
    if ended.is_ok() {
        drop(progress);
        // Waits for all others, who have said goodbye.
        drop(world);
    } else {
        // A network card may still use the memory of what is on its way; the launcher ends the job.
        std::mem::forget(progress);
        std::mem::forget(world);
    }
    board.update(|heard| heard.end = Some(ended.map_err(|error| error.to_string())));
}

/// The first byte of a word.
const MEETING: u8 = 1;
const HERE: u8 = 2;
const BYE: u8 = 3;

impl SetupWord {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            SetupWord::Meeting(places) => [&[MEETING], places.as_bytes()].concat(),
            SetupWord::Here { run, ranks } => {
                let ranks = ranks.iter().flat_map(|rank| rank.0.to_le_bytes());
                let head = std::iter::once(HERE).chain(run.to_le_bytes());
                head.chain(ranks).collect()
            }
            SetupWord::Bye => vec![BYE],
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Option<SetupWord> {
        match bytes.split_first()? {
            (&MEETING, places) => Some(SetupWord::Meeting(String::from_utf8(places.into()).ok()?)),
            (&HERE, rest) => {
                let (run, ranks) = rest.split_first_chunk::<8>()?;
                let (ranks, cut) = ranks.as_chunks::<4>();
                let ranks = ranks.iter().map(|rank| Rank(u32::from_le_bytes(*rank))).collect();
                let here = SetupWord::Here { run: u64::from_le_bytes(*run), ranks };
                cut.is_empty().then_some(here)
            }
            (&BYE, []) => Some(SetupWord::Bye),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_were_written_and_nothing_else_is() {
        let here = SetupWord::Here { run: 7 << 40, ranks: vec![Rank(0), Rank(70_000)] };
        for word in [SetupWord::Meeting("a:1\n[::1]:2".into()), here, SetupWord::Bye] {
            assert_eq!(SetupWord::decode(&word.encode()), Some(word));
        }
        let cut = SetupWord::Here { run: 1, ranks: vec![Rank(3)] }.encode();
        for wrong in [&[][..], &[9], &[BYE, 0], &[MEETING, 0xff], &[HERE, 1, 2], &cut[..12]] {
            assert_eq!(SetupWord::decode(wrong), None, "{wrong:?}");
        }
    }
}
