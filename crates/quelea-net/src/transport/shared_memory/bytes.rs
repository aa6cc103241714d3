//! A stream of bytes through shared pages, for tensors whose memory is another library's and cannot be lent: one
//! copy into the pages of the sender, one out of them.
//!
//! | words | what |
//! |---|---|
//! | 0..3 | what this is, and the number of its process |
//! | 8 | bytes that were written |
//! | 16 | bytes of the other direction that were taken |
//! | 24 | whether the writer sleeps, and whether it waits for room |
//! | 512.. | the ring of bytes |

use std::fs::File;
use std::io::{self, IoSlice, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::sync::atomic::{Ordering, fence};

use super::memory::{OwnPages, PeerPages, WORD};
use super::offer::{ProcessNumber, SharedOffer, boot, why};

const MAGIC: u64 = u64::from_le_bytes(*b"quelea\x01b");
const HEAD: usize = 8;
const TAKEN: usize = 16;
const FLAGS: usize = 24;
const FIRST_BYTE: usize = 512 * WORD;
/// Bytes of the ring: what is in it is in the cache of a core when the peer reads it.
const RING: usize = 1 << 20;

const SLEEPS: u64 = 1;
const WAITS_FOR_ROOM: u64 = 2;

/// Pages that a peer may open.
#[derive(Debug)]
pub(crate) struct ByteOffer {
    boot: String,
    number: ProcessNumber,
    pages: OwnPages,
    woken: PipeReader,
    bell: PipeWriter,
}

impl ByteOffer {
    /// Pages for one peer.
    pub(crate) fn create() -> io::Result<ByteOffer> {
        let number = ProcessNumber::drawn();
        let pages = OwnPages::create(c"quelea-bytes", FIRST_BYTE + RING)?;
        for (at, word) in [MAGIC, number.0[0], number.0[1]].into_iter().enumerate() {
            pages.word(at).store(word, Ordering::Release);
        }
        let (woken, bell) = io::pipe()?;
        Ok(ByteOffer { boot: boot()?, number, pages, woken, bell })
    }

    /// What the peer is told.
    pub(crate) fn told(&self) -> SharedOffer {
        let files = [None, self.pages.descriptor(), Some(self.bell.as_raw_fd())];
        SharedOffer::new(&self.boot, self.number, files)
    }

    /// Opens what the peer offers; an error says why that cannot be.
    pub(crate) fn open(&self, theirs: &SharedOffer) -> Result<PeerBytes, String> {
        theirs.check_boot(&self.boot)?;
        PeerBytes::open(theirs).map_err(|error| why(&error))
    }

    /// Both sides have opened what the other offers.
    pub(crate) fn joined(self, peer: PeerBytes) -> SharedBytes {
        let ByteOffer { mut pages, woken, .. } = self;
        pages.close_file();
        SharedBytes { pages, woken, peer, head: 0, taken: 0 }
    }
}

/// What a peer has offered, opened.
#[derive(Debug)]
pub(crate) struct PeerBytes {
    pages: PeerPages,
    bell: File,
}

impl PeerBytes {
    fn open(theirs: &SharedOffer) -> io::Result<PeerBytes> {
        let pages = PeerPages::open(&theirs.path(theirs.segment))?;
        if pages.bytes() != FIRST_BYTE + RING {
            return Err(io::Error::other("its pages have another length"));
        }
        let expected = [MAGIC, theirs.number.0[0], theirs.number.0[1]];
        if (0..expected.len()).any(|at| pages.load(at, Ordering::Acquire) != expected[at]) {
            return Err(io::Error::other("its pages are those of another"));
        }
        Ok(PeerBytes { pages, bell: theirs.open_bell()? })
    }

    fn has_flag(&self, flag: u64) -> bool {
        fence(Ordering::SeqCst);
        self.pages.load(FLAGS, Ordering::SeqCst) & flag != 0
    }

    /// Wakes the peer. A full pipe wakes as well, and one that is closed wakes nobody.
    fn ring(&self) {
        let _ = (&self.bell).write(&[1]);
    }
}

/// Both directions of a stream.
#[derive(Debug)]
pub(crate) struct SharedBytes {
    pages: OwnPages,
    woken: PipeReader,
    peer: PeerBytes,
    /// Bytes that were written, and taken of the peer's.
    head: u64,
    taken: u64,
}

impl SharedBytes {
    /// What becomes readable when the peer wakes this side.
    pub(crate) fn woken_fd(&self) -> RawFd {
        self.woken.as_raw_fd()
    }

    /// Bytes that may be read.
    fn readable(&self) -> io::Result<usize> {
        let head = self.peer.pages.load(HEAD, Ordering::Acquire);
        within_ring(head.wrapping_sub(self.taken), "has written")
    }

    /// Bytes that may be written.
    fn room(&self) -> io::Result<usize> {
        let taken = self.peer.pages.load(TAKEN, Ordering::Acquire);
        Ok(RING - within_ring(self.head.wrapping_sub(taken), "has not taken")?)
    }

    /// Reads what is there, or `WouldBlock`.
    pub(crate) fn read(&mut self, target: &mut [u8]) -> io::Result<usize> {
        let count = self.readable()?.min(target.len());
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let at = self.taken as usize % RING;
        let first = count.min(RING - at);
        self.peer.pages.read(FIRST_BYTE + at, &mut target[..first]);
        self.peer.pages.read(FIRST_BYTE, &mut target[first..count]);
        self.taken += count as u64;
        self.pages.word(TAKEN).store(self.taken, Ordering::Release);
        if self.peer.has_flag(WAITS_FOR_ROOM) {
            self.peer.ring();
        }
        Ok(count)
    }

    /// Writes as much as there is room for, or `WouldBlock`.
    pub(crate) fn write_vectored(&mut self, parts: &[IoSlice<'_>]) -> io::Result<usize> {
        let room = self.room()?;
        let mut written = 0;
        for part in parts {
            let count = part.len().min(room - written);
            self.put(&part[..count], written);
            written += count;
        }
        if written == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        self.head += written as u64;
        self.pages.word(HEAD).store(self.head, Ordering::Release);
        if self.peer.has_flag(SLEEPS) {
            self.peer.ring();
        }
        Ok(written)
    }

    /// Writes bytes that all fit, after others that are not shown yet.
    fn put(&mut self, bytes: &[u8], after: usize) {
        let at = (self.head as usize + after) % RING;
        let (first, second) = bytes.split_at(bytes.len().min(RING - at));
        self.pages.write(FIRST_BYTE + at, first);
        self.pages.write(FIRST_BYTE, second);
    }

    /// Says what this side is going to wait for. Whether there is something to do already.
    pub(crate) fn before_sleep(&self, for_room: bool) -> bool {
        self.set_flags(if for_room { SLEEPS | WAITS_FOR_ROOM } else { SLEEPS });
        let is_there = |bytes: io::Result<usize>| bytes.map_or(true, |bytes| bytes > 0);
        is_there(self.readable()) || for_room && is_there(self.room())
    }

    /// Says that it waits no more, and takes what has woken it, if that is there.
    pub(crate) fn after_sleep(&mut self, was_woken: bool) {
        self.set_flags(0);
        if was_woken {
            // It is there: this does not wait.
            let _ = self.woken.read(&mut [0; 64]);
        }
    }

    fn set_flags(&self, flags: u64) {
        self.pages.word(FLAGS).store(flags, Ordering::SeqCst);
        fence(Ordering::SeqCst);
    }
}

/// A number of bytes that a peer says are in a ring.
fn within_ring(bytes: u64, verb: &str) -> io::Result<usize> {
    usize::try_from(bytes).ok().filter(|bytes| *bytes <= RING).ok_or_else(|| {
        io::Error::other(format!("it broke the rules of shared memory: it {verb} {bytes} bytes"))
    })
}

#[cfg(test)]
mod tests {
    use quelea_core::random::Rng;

    use super::*;

    fn pair() -> [SharedBytes; 2] {
        let [first, second] = [0, 1].map(|_| ByteOffer::create().expect("memory and a pipe"));
        let (of_second, of_first) = (first.open(&second.told()), second.open(&first.told()));
        let of_second = of_second.expect("the same process");
        let of_first = of_first.expect("the same process");
        [first.joined(of_second), second.joined(of_first)]
    }

    #[test]
    fn bytes_come_out_as_they_went_in_whatever_the_pieces() {
        let ([mut sender, mut receiver], mut rng) = (pair(), Rng::new(1, "bytes", 0));
        let bytes: Vec<u8> = (0..5 * RING + 77).map(|i| ((i * i) >> 7) as u8).collect();
        let (mut written, mut found) = (0, Vec::new());
        while found.len() < bytes.len() {
            let mut piece = |most: usize| rng.below(most as u64) as usize;
            let first = (bytes.len() - written).min(piece(RING));
            let second = (bytes.len() - written - first).min(piece(1000));
            let parts = [&bytes[written..][..first], &bytes[written + first..][..second]];
            match sender.write_vectored(&parts.map(IoSlice::new)) {
                Ok(count) => written += count,
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
            let mut target = vec![0; 1 + piece(RING / 2)];
            match receiver.read(&mut target) {
                Ok(count) => found.extend_from_slice(&target[..count]),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert!(found == bytes);
    }

    #[test]
    fn whoever_sleeps_is_woken_by_bytes_and_by_room() {
        let [mut first, mut second] = pair();
        assert!(!first.before_sleep(false));
        second.write_vectored(&[IoSlice::new(&[7; RING])]).expect("there is room");
        first.after_sleep(true);
        let full = second.write_vectored(&[IoSlice::new(&[7])]).expect_err("it is full");
        assert_eq!(full.kind(), io::ErrorKind::WouldBlock);
        assert!(!second.before_sleep(true), "nothing to read, no room");
        assert_eq!(first.read(&mut [0; 100]).expect("it is there"), 100);
        second.after_sleep(true);
        assert!(second.before_sleep(true), "there is room");
        assert!(first.before_sleep(false), "there is more to read");
    }

    #[test]
    fn counts_that_cannot_be_are_errors() {
        for (word, count) in [(HEAD, RING as u64 + 1), (HEAD, u64::MAX), (TAKEN, 1)] {
            let [mut honest, liar] = pair();
            liar.pages.word(word).store(count, Ordering::Release);
            let read = honest.read(&mut [0; 8]).expect_err("nothing is there");
            let wrote = honest.write_vectored(&[IoSlice::new(&[1])]);
            let told = if word == HEAD { read } else { wrote.expect_err("it lies") };
            assert!(told.to_string().starts_with("it broke the rules"), "{told}");
        }
    }
}
