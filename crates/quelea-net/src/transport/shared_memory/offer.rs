//! How two processes find that they can share memory: each offers its pages, and each tries to open what
//! the other offers. Whether they are on one machine is not guessed from names.
//!
//! ```text
//! dials  ── HelloNear { …, offer } ──►  listens     opens what is offered
//!        ◄── AcceptedNear { offer } ──              or: ◄── Separate { problem } ──, and TCP is used
//! opens  ── Shared { problem } ──►                  an empty problem: from now on through shared memory
//! ```
//!
//! A page is offered as the number of a process and of a file of it, and opened as `/proc/PROCESS/fd/FILE`:
//! that needs the same boot of the same kernel, the same process namespace and the same user (or a
//! privileged one). A number in the pages says that they are the right ones.

use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use quelea_core::message::Rank;
use quelea_core::payload::Pool;
use quelea_wire::control::{ControlError, Reader, Writer};

use super::memory::{Arena, ArenaSource, PeerPages, machine_bytes};
use super::segment::{OwnSegment, PeerSegment};

/// A number that no two processes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ProcessNumber(pub(super) [u64; 2]);

impl ProcessNumber {
    pub(super) fn drawn() -> ProcessNumber {
        ProcessNumber([0, 1].map(|part: u8| RandomState::new().hash_one(part)))
    }
}

/// What one process offers another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SharedOffer {
    /// Which start of which kernel.
    pub(super) boot: String,
    /// The process, by the kernel's number.
    pub(super) process: u32,
    pub(super) number: ProcessNumber,
    /// Its vectors, if there are any.
    pub(super) arena: u32,
    /// What it says to the rank that this is offered to.
    pub(super) segment: u32,
    /// What wakes it.
    pub(super) bell: u32,
}

impl SharedOffer {
    /// Writes it into a packet.
    pub(crate) fn write(&self, w: Writer) -> Writer {
        let SharedOffer { boot, process, number, arena, segment, bell } = self;
        let w = w.text(boot).number(*process).number(number.0[0]).number(number.0[1]);
        w.number(*arena).number(*segment).number(*bell)
    }

    /// Reads it from a packet.
    pub(crate) fn read(r: &mut Reader<'_>) -> Result<SharedOffer, ControlError> {
        Ok(SharedOffer {
            boot: r.text()?,
            process: r.small()?,
            number: ProcessNumber([r.number()?, r.number()?]),
            arena: r.small()?,
            segment: r.small()?,
            bell: r.small()?,
        })
    }

    /// An offer of this process; `files` are its vectors, its pages and what wakes it.
    pub(super) fn new(boot: &str, number: ProcessNumber, files: [Option<RawFd>; 3]) -> SharedOffer {
        let file = |file: Option<RawFd>| {
            file.and_then(|number| u32::try_from(number).ok()).unwrap_or(u32::MAX)
        };
        let [arena, segment, bell] = files.map(file);
        let process = std::process::id();
        SharedOffer { boot: boot.to_string(), process, number, arena, segment, bell }
    }

    /// Refuses one of another machine.
    pub(super) fn check_boot(&self, boot: &str) -> Result<(), String> {
        if self.boot == boot {
            return Ok(());
        }
        Err("it is on another machine, or in another virtual one".into())
    }

    pub(super) fn path(&self, file: u32) -> PathBuf {
        PathBuf::from(format!("/proc/{}/fd/{file}", self.process))
    }

    /// Opens what wakes the peer. What is no pipe is not opened.
    pub(super) fn open_bell(&self) -> io::Result<File> {
        let path = self.path(self.bell);
        if !std::fs::metadata(&path)?.file_type().is_fifo() {
            return Err(io::Error::other("what is to wake it is no pipe"));
        }
        File::options().write(true).custom_flags(libc::O_NONBLOCK).open(path)
    }
}

#[cfg(test)]
impl SharedOffer {
    /// An offer for tests of packets.
    pub(crate) fn example() -> SharedOffer {
        let number = ProcessNumber([u64::MAX, 1]);
        SharedOffer { boot: "boot".into(), process: 7, number, arena: 3, segment: 4, bell: 5 }
    }

    /// The same, of another machine.
    pub(super) fn with_boot(self, boot: &str) -> SharedOffer {
        SharedOffer { boot: boot.into(), ..self }
    }

    /// The same, of another process.
    pub(super) fn with_process(self, process: u32) -> SharedOffer {
        SharedOffer { process, ..self }
    }

    /// The same, of a process that has another number.
    pub(super) fn with_number(self, number: u64) -> SharedOffer {
        SharedOffer { number: ProcessNumber([number; 2]), ..self }
    }
}

/// Which start of which kernel this process runs on.
pub(super) fn boot() -> io::Result<String> {
    Ok(std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim().to_string())
}

/// Why something that was offered cannot be opened.
pub(super) fn why(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "it is in another process namespace".into(),
        io::ErrorKind::PermissionDenied => "it belongs to another user".into(),
        _ => error.to_string(),
    }
}

/// What this process can share with others.
#[derive(Clone, Debug)]
pub(crate) struct SharedMemory {
    boot: String,
    number: ProcessNumber,
    /// The vectors of this process.
    pub(super) arena: Arc<Arena>,
    /// For what is sent and lies elsewhere.
    pub(super) staging: Pool,
    /// Links through shared memory that this process has or had.
    pub(super) links: Arc<AtomicUsize>,
}

/// The words of the first page of an arena that tell whose it is.
const NUMBER_WORDS: [usize; 2] = [0, 1];

impl SharedMemory {
    /// Takes address space for as many vectors as this machine has memory for.
    pub(crate) fn create() -> io::Result<SharedMemory> {
        let boot = boot()?;
        let (number, arena) = (ProcessNumber::drawn(), Arc::new(Arena::create(machine_bytes())?));
        for (at, word) in NUMBER_WORDS.into_iter().zip(number.0) {
            arena.pages().word(at).store(word, Ordering::Release);
        }
        let staging = Pool::new();
        staging.take_from(Arc::new(ArenaSource(Arc::clone(&arena))));
        Ok(SharedMemory { boot, number, arena, staging, links: Arc::default() })
    }

    /// What `own` offers to `peer`.
    pub(crate) fn offer(&self, own: Rank, peer: Rank) -> io::Result<OpenOffer> {
        let segment = OwnSegment::create(self.number, own, peer)?;
        let (woken, bell) = io::pipe()?;
        Ok(OpenOffer { memory: self.clone(), own, peer, segment, woken, bell })
    }
}

/// An offer, as long as it is open.
#[derive(Debug)]
pub(crate) struct OpenOffer {
    memory: SharedMemory,
    own: Rank,
    peer: Rank,
    segment: OwnSegment,
    woken: PipeReader,
    /// The other end, for the peer to open.
    bell: PipeWriter,
}

impl OpenOffer {
    /// What the peer is told.
    pub(crate) fn told(&self) -> SharedOffer {
        let arena = self.memory.arena.pages().descriptor();
        let segment = self.segment.pages().descriptor();
        let files = [arena, segment, Some(self.bell.as_raw_fd())];
        SharedOffer::new(&self.memory.boot, self.memory.number, files)
    }

    /// Opens what the peer offers; an error says why that cannot be.
    pub(crate) fn open(&self, theirs: &SharedOffer) -> Result<PeerMemory, String> {
        theirs.check_boot(&self.memory.boot)?;
        self.try_open(theirs).map_err(|error| why(&error))
    }

    fn try_open(&self, theirs: &SharedOffer) -> io::Result<PeerMemory> {
        let vectors = PeerPages::open(&theirs.path(theirs.arena))?;
        let is_number = |(at, word): (usize, u64)| vectors.load(at, Ordering::Acquire) == word;
        if !NUMBER_WORDS.into_iter().zip(theirs.number.0).all(is_number) {
            return Err(io::Error::other("its vectors are those of another"));
        }
        let path = theirs.path(theirs.segment);
        let segment = PeerSegment::open(&path, theirs.number, self.peer, self.own)?;
        Ok(PeerMemory { vectors, segment, bell: theirs.open_bell()? })
    }

    /// Both sides have opened what the other offers.
    pub(crate) fn joined(self, peer: PeerMemory) -> SharedPair {
        let OpenOffer { memory, mut segment, woken, .. } = self;
        segment.close_file();
        SharedPair { memory, segment, woken, peer }
    }
}

/// What a peer has offered, opened.
#[derive(Debug)]
pub(crate) struct PeerMemory {
    pub(super) vectors: PeerPages,
    pub(super) segment: PeerSegment,
    /// Wakes it.
    pub(super) bell: File,
}

/// Two processes that share memory, as one of them sees it.
#[derive(Debug)]
pub(crate) struct SharedPair {
    pub(super) memory: SharedMemory,
    pub(super) segment: OwnSegment,
    /// The peer wakes this side through it.
    pub(super) woken: PipeReader,
    pub(super) peer: PeerMemory,
}
