//! One connection between two ranks: frames out without copying, frames in as they come.
//!
//! A frame is written at once as far as the kernel takes it; the rest is written by a task when
//! there is room again. Reading never waits for writing, so two ranks that write to each other
//! cannot block each other.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;

use murmura_core::message::{Message, Rank};
use murmura_core::payload::Pool;
use murmura_wire::HEADER_BYTES;
use murmura_wire::decoder::Decoder;
use murmura_wire::frame::{self, FrameError, Header, Limits};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::Notify;

/// Frames that are joined into one write at most.
const JOINED: usize = 16;
/// A vector with more than this missing is read into directly.
const DIRECT_BYTES: usize = 16 << 10;
/// What is read at once otherwise.
const BUFFER_BYTES: usize = 64 << 10;

/// The sending side.
#[derive(Debug)]
pub(crate) struct Link {
    stream: OwnedWriteHalf,
    queue: RefCell<Queue>,
    /// Wakes the task that writes what the kernel did not take.
    room_wanted: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    frames: VecDeque<Outgoing>,
    /// Bytes of the first frame that are written.
    written: usize,
    /// The kernel's buffer is full; the task has the word.
    blocked: bool,
}

#[derive(Debug)]
struct Outgoing {
    header: [u8; HEADER_BYTES],
    message: Message,
}

impl Link {
    pub(crate) fn new(stream: OwnedWriteHalf) -> Rc<Link> {
        Rc::new(Link { stream, queue: RefCell::default(), room_wanted: Notify::new() })
    }

    /// Puts a frame into the queue; [`flush`](Link::flush) writes it.
    pub(crate) fn push(&self, header: [u8; HEADER_BYTES], message: Message) {
        self.queue.borrow_mut().frames.push_back(Outgoing { header, message });
    }

    /// Writes what the kernel takes, unless the task is at it.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let mut queue = self.queue.borrow_mut();
        if !queue.blocked && !queue.write(&self.stream)? {
            queue.blocked = true;
            self.room_wanted.notify_one();
        }
        Ok(())
    }

    /// Writes whatever [`flush`](Link::flush) could not; ends only with an error.
    pub(crate) async fn write_rest(&self) -> io::Error {
        loop {
            self.room_wanted.notified().await;
            loop {
                if let Err(error) = self.stream.writable().await {
                    return error;
                }
                let mut queue = self.queue.borrow_mut();
                match queue.write(&self.stream) {
                    Ok(true) => {
                        queue.blocked = false;
                        break;
                    }
                    Ok(false) => {}
                    Err(error) => return error,
                }
            }
        }
    }
}

impl Queue {
    /// Writes until the queue is empty (`true`) or the kernel takes no more (`false`).
    fn write(&mut self, stream: &OwnedWriteHalf) -> io::Result<bool> {
        while !self.frames.is_empty() {
            let mut slices = [IoSlice::new(&[]); 3 * JOINED];
            let count = self.slices(&mut slices);
            match stream.try_write_vectored(&slices[..count]) {
                Ok(written) => self.advance(written),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; 3 * JOINED]) -> usize {
        let mut skip = self.written;
        let mut count = 0;
        for frame in self.frames.iter().take(JOINED) {
            let [first, second] = frame::slices(&frame.message);
            for bytes in [&frame.header[..], first, second] {
                let skipped = skip.min(bytes.len());
                skip -= skipped;
                if skipped < bytes.len() {
                    slices[count] = IoSlice::new(&bytes[skipped..]);
                    count += 1;
                }
            }
        }
        count
    }

    fn advance(&mut self, written: usize) {
        self.written += written;
        while let Some(first) = self.frames.front() {
            let length = frame::frame_bytes(&first.message) as usize;
            if self.written < length {
                return;
            }
            self.written -= length;
            self.frames.pop_front();
        }
    }
}

/// Why no more frames come in.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("the connection was closed")]
    Closed,
    #[error("the connection broke: {0}")]
    Broken(#[from] io::Error),
    #[error("it sent a bad frame: {0}")]
    Frame(#[from] FrameError),
    #[error("it sent a message that could not be taken: {0}")]
    Message(String),
}

/// Reads frames and hands each to `deliver`, which may refuse it; ends only with an error.
pub(crate) async fn read_frames(
    stream: OwnedReadHalf,
    limits: Limits,
    pool: Pool,
    mut deliver: impl FnMut(Header, Message) -> Result<(), String>,
) -> ReadError {
    let mut decoder = Decoder::new(limits, pool);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        match read_some(&stream, &mut decoder, &mut buffer, &mut deliver).await {
            Ok(()) => {}
            Err(error) => return error,
        }
    }
}

/// Reads once: the rest of a long vector directly, anything else through `buffer`.
async fn read_some(
    stream: &OwnedReadHalf,
    decoder: &mut Decoder,
    buffer: &mut [u8],
    deliver: &mut impl FnMut(Header, Message) -> Result<(), String>,
) -> Result<(), ReadError> {
    let spare = decoder.spare();
    let direct = spare.len() >= DIRECT_BYTES;
    let target = if direct { spare } else { &mut *buffer };
    let count = loop {
        stream.readable().await?;
        match stream.try_read(target) {
            Ok(0) => return Err(ReadError::Closed),
            Ok(count) => break count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    };
    let mut bytes = &buffer[..if direct { 0 } else { count }];
    if direct {
        decoder.advance(count);
    }
    while let Some((header, message)) = decoder.take(&mut bytes)? {
        deliver(header, message).map_err(ReadError::Message)?;
    }
    Ok(())
}

/// The limits of the connection over which `from` sends to `to`, in a run over vectors of `len`
/// elements. A codec may need half as much again as the plain vector, and a little more.
pub(crate) fn limits(from: Rank, to: Rank, len: usize) -> Limits {
    Limits { route: frame::Route { from, to }, part_bytes: len as u64 * 7 + 4096 }
}
