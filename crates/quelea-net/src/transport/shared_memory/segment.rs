//! The pages between two ranks, one file per direction: what one of them has to say to the other.
//!
//! | words | what |
//! |---|---|
//! | 0..4 | what this is, the number of its process (two words), from whom to whom |
//! | 8 | frames that were written |
//! | 16 | frames of the other direction that were taken |
//! | 24 | vectors of the other direction that were given back |
//! | 32 | whether the writer sleeps, and whether it waits for room |
//! | 512.. | a ring of [`SLOTS`] frames of [`SLOT_WORDS`] words |
//! | then | a ring of [`TOKENS`] vectors that were given back |
//!
//! Only its owner writes to it. Everything that is read from another's is believed only after it was
//! checked, and read only once before.

use std::io;
use std::path::Path;
use std::sync::atomic::{Ordering, fence};

use quelea_core::message::Rank;
use quelea_wire::HEADER_BYTES;

use super::memory::{OwnPages, PeerPages, WORD};
use super::offer::ProcessNumber;

/// Frames that may be on their way.
pub(super) const SLOTS: u64 = 1024;
/// Words of a frame: header, where its two vectors lie, and their tokens.
pub(super) const SLOT_WORDS: usize = 16;
/// Vectors that a peer may have here at one time.
pub(super) const TOKENS: u64 = 4096;
/// The token of a vector that takes no memory.
pub(super) const NO_TOKEN: u32 = u32::MAX;

const MAGIC: u64 = u64::from_le_bytes(*b"quelea\x01s");
const HEAD: usize = 8;
const TAKEN: usize = 16;
const RETURNED: usize = 24;
const FLAGS: usize = 32;
const FIRST_SLOT: usize = 512;
const FIRST_RETURN: usize = FIRST_SLOT + SLOTS as usize * SLOT_WORDS;
const WORDS: usize = FIRST_RETURN + TOKENS as usize;
const OFFSETS: usize = HEADER_BYTES / WORD;

const SLEEPS: u64 = 1;
const WAITS_FOR_ROOM: u64 = 2;

const _: () = assert!(HEADER_BYTES.is_multiple_of(WORD) && OFFSETS + 3 <= SLOT_WORDS);

/// A vector of a frame, as its slot tells where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) offset: u64,
    pub(super) token: u32,
}

/// What a slot has: a frame without its vectors.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) places: [Place; 2],
}

impl Slot {
    fn words(&self) -> [u64; SLOT_WORDS] {
        let mut words = [0; SLOT_WORDS];
        for (word, bytes) in words.iter_mut().zip(self.header.as_chunks::<WORD>().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        let [first, second] = self.places;
        words[OFFSETS] = first.offset;
        words[OFFSETS + 1] = second.offset;
        words[OFFSETS + 2] = u64::from(first.token) | u64::from(second.token) << 32;
        words
    }

    fn from_words(words: &[u64; SLOT_WORDS]) -> Slot {
        let mut header = [0; HEADER_BYTES];
        for (bytes, word) in header.as_chunks_mut::<WORD>().0.iter_mut().zip(words) {
            *bytes = word.to_le_bytes();
        }
        let tokens = words[OFFSETS + 2];
        let first = Place { offset: words[OFFSETS], token: tokens as u32 };
        let second = Place { offset: words[OFFSETS + 1], token: (tokens >> 32) as u32 };
        Slot { header, places: [first, second] }
    }
}

fn route(from: Rank, to: Rank) -> u64 {
    u64::from(from.0) << 32 | u64::from(to.0)
}

fn slot_at(number: u64) -> usize {
    FIRST_SLOT + (number % SLOTS) as usize * SLOT_WORDS
}

fn return_at(number: u64) -> usize {
    FIRST_RETURN + (number % TOKENS) as usize
}

/// What this rank says to one other.
#[derive(Debug)]
pub(super) struct OwnSegment {
    pages: OwnPages,
}

impl OwnSegment {
    pub(super) fn create(process: ProcessNumber, from: Rank, to: Rank) -> io::Result<OwnSegment> {
        let pages = OwnPages::create(c"quelea-frames", WORDS * WORD)?;
        let first = [MAGIC, process.0[0], process.0[1], route(from, to)];
        for (at, word) in first.into_iter().enumerate() {
            pages.word(at).store(word, Ordering::Release);
        }
        Ok(OwnSegment { pages })
    }

    pub(super) fn pages(&self) -> &OwnPages {
        &self.pages
    }

    pub(super) fn close_file(&mut self) {
        self.pages.close_file();
    }

    /// Writes frame `number`; [`publish`](OwnSegment::publish) shows it.
    pub(super) fn write(&self, number: u64, slot: &Slot) {
        let start = slot_at(number);
        for (at, word) in slot.words().into_iter().enumerate() {
            self.pages.word(start + at).store(word, Ordering::Relaxed);
        }
    }

    /// So many frames may be read.
    pub(super) fn publish(&self, frames: u64) {
        self.pages.word(HEAD).store(frames, Ordering::Release);
    }

    /// So many frames of the peer were read.
    pub(super) fn set_taken(&self, frames: u64) {
        self.pages.word(TAKEN).store(frames, Ordering::Release);
    }

    /// Gives the vector with this token back, as the `number`th.
    pub(super) fn give_back(&self, number: u64, token: u32) {
        self.pages.word(return_at(number)).store(u64::from(token), Ordering::Relaxed);
        self.pages.word(RETURNED).store(number + 1, Ordering::Release);
    }

    /// Says what this side waits for, before it looks for the last time.
    pub(super) fn set_waiting(&self, sleeps: bool, for_room: bool) {
        let sleeps = if sleeps { SLEEPS } else { 0 };
        let for_room = if for_room { WAITS_FOR_ROOM } else { 0 };
        self.pages.word(FLAGS).store(sleeps | for_room, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// What a peer says to this rank.
#[derive(Debug)]
pub(super) struct PeerSegment {
    pages: PeerPages,
}

impl PeerSegment {
    pub(super) fn open(
        path: &Path,
        process: ProcessNumber,
        from: Rank,
        to: Rank,
    ) -> io::Result<PeerSegment> {
        let pages = PeerPages::open(path)?;
        if pages.bytes() != WORDS * WORD {
            return Err(io::Error::other("its pages have another length"));
        }
        let expected = [MAGIC, process.0[0], process.0[1], route(from, to)];
        if (0..expected.len()).any(|at| pages.load(at, Ordering::Acquire) != expected[at]) {
            return Err(io::Error::other("its pages are those of another"));
        }
        Ok(PeerSegment { pages })
    }

    /// Frames that it has written.
    pub(super) fn head(&self) -> u64 {
        self.pages.load(HEAD, Ordering::Acquire)
    }

    /// Frames of this side that it has taken.
    pub(super) fn taken(&self) -> u64 {
        self.pages.load(TAKEN, Ordering::Acquire)
    }

    /// Vectors of this side that it has given back.
    pub(super) fn returned(&self) -> u64 {
        self.pages.load(RETURNED, Ordering::Acquire)
    }

    /// The token of the vector that it has given back as the `number`th.
    pub(super) fn returned_token(&self, number: u64) -> u64 {
        self.pages.load(return_at(number), Ordering::Relaxed)
    }

    /// Frame `number`, each word of it read once.
    pub(super) fn slot(&self, number: u64) -> Slot {
        let start = slot_at(number);
        Slot::from_words(&std::array::from_fn(|at| self.pages.load(start + at, Ordering::Relaxed)))
    }

    /// Whether it is to be woken when there is a frame; to be asked after it was published.
    pub(super) fn sleeps(&self) -> bool {
        self.has_flag(SLEEPS)
    }

    /// Whether it is to be woken when there is room; to be asked after it was made.
    pub(super) fn waits_for_room(&self) -> bool {
        self.has_flag(WAITS_FOR_ROOM)
    }

    fn has_flag(&self, flag: u64) -> bool {
        fence(Ordering::SeqCst);
        self.pages.load(FLAGS, Ordering::SeqCst) & flag != 0
    }
}
