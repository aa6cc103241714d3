//! The receiving side: frames out of slots, with vectors that stay where their sender has them.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quelea_core::message::{Message, Part, Rank};
use quelea_core::payload::{ForeignMemory, Payload, Pool};
use quelea_core::vector;
use quelea_wire::frame::{self, FrameError, Header, Limits};
use tokio::net::unix::pipe;

use super::link::{SharedLink, Ways};
use super::segment::{Place, SLOTS, Slot};
use crate::transport::stream::ByteStream;
use crate::transport::tls::LinkBytes;
use crate::transport::{AttachContext, FrameSink, Link, LinkError, limits};

/// Frames that are taken before others of the rank get their turn.
const FRAMES_PER_TURN: usize = 16;
/// Vectors up to this many elements are copied: that takes less than giving them back.
const COPIED_ELEMENTS: usize = 1024;
/// How long the next frame is looked for before the rank sleeps: about what waking it takes.
const SPIN_LIMIT: Duration = Duration::from_micros(20);
/// Frames after which the next one is looked for again, at most.
const LONGEST_PAUSE: u32 = 1023;
/// How long the processor pauses between two looks.
const PAUSES_PER_LOOK: usize = 16;

/// What reads the frames of one link.
pub(super) struct SharedReader {
    link: Rc<SharedLink>,
    limits: Limits,
    pool: Pool,
    /// Frames that were taken.
    taken: Cell<u64>,
    /// Cores of this machine that the process may use.
    cores: usize,
    /// After how many frames the next one is looked for, after it was in vain, and how many of those are left.
    pause: Cell<u32>,
    unlooked: Cell<u32>,
}

/// A vector in the pages of the peer.
#[derive(Debug)]
struct LentVector {
    ways: Arc<Ways>,
    offset: usize,
    len: usize,
    token: u32,
}

impl ForeignMemory for LentVector {
    fn values(&self) -> &[f32] {
        let values = self.ways.peer.vectors.values(self.offset, self.len);
        values.expect("checked when it was lent; the pages do not shrink")
    }

    fn values_mut(&mut self) -> Option<&mut [f32]> {
        None
    }
}

impl Drop for LentVector {
    fn drop(&mut self) {
        self.ways.give_back(self.token);
    }
}

impl SharedReader {
    pub(super) fn new(
        link: &Rc<SharedLink>,
        peer: Rank,
        context: &AttachContext<'_>,
    ) -> SharedReader {
        let limits = limits(peer, context.rank, context.len, context.inspects);
        let (link, pool) = (Rc::clone(link), context.pool.metered());
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        SharedReader {
            link,
            limits,
            pool,
            taken: Cell::new(0),
            cores,
            pause: Cell::new(0),
            unlooked: Cell::new(0),
        }
    }

    /// The link has ended.
    pub(super) fn end(&self, error: &LinkError) {
        self.link.end(error);
    }

    /// Moves frames in both directions until the peer is gone or breaks the rules.
    pub(super) async fn run(
        &self,
        connection: &LinkBytes,
        woken: &pipe::Receiver,
        sink: &dyn FrameSink,
    ) -> LinkError {
        let error = tokio::select! {
            biased;
            error = self.read_frames(woken, sink) => return error,
            error = self.link.fault() => return error,
            error = end_of(connection) => error,
        };
        // What the peer had sent before it went counts.
        loop {
            match self.take_frames(sink) {
                Ok(true) => {}
                Ok(false) => return error,
                Err(wrong) => return wrong,
            }
        }
    }

    async fn read_frames(&self, woken: &pipe::Receiver, sink: &dyn FrameSink) -> LinkError {
        loop {
            // There may be room again.
            let _ = self.link.flush();
            let before = self.taken.get();
            match self.take_frames(sink) {
                Ok(true) => {
                    tokio::task::yield_now().await;
                    continue;
                }
                Ok(false) => {}
                Err(error) => return error,
            }
            // Who has just been heard often answers at once.
            if self.taken.get() != before && self.comes_soon() {
                continue;
            }
            self.link.set_sleeping(true);
            // A frame that came before the flag was seen has woken nobody.
            if self.link.ways().peer.segment.head() == self.taken.get()
                && let Err(error) = hear(woken).await
            {
                return error.into();
            }
            self.link.set_sleeping(false);
        }
    }

    /// Looks for another frame for a moment, if that takes no core from anybody. Where it was in vain, as it
    /// is while other programs have the cores, it is tried again after twice as many frames.
    fn comes_soon(&self) -> bool {
        if !self.link.has_cores(self.cores) {
            return false;
        }
        if self.unlooked.get() > 0 {
            self.unlooked.set(self.unlooked.get() - 1);
            return false;
        }
        let has_come = self.look();
        let pause = if has_come { 0 } else { (2 * self.pause.get() + 1).min(LONGEST_PAUSE) };
        self.pause.set(pause);
        self.unlooked.set(pause);
        has_come
    }

    /// Whether a frame comes within the limit.
    fn look(&self) -> bool {
        let begun = Instant::now();
        loop {
            (0..PAUSES_PER_LOOK).for_each(|_| std::hint::spin_loop());
            if self.link.ways().peer.segment.head() != self.taken.get() {
                return true;
            }
            if begun.elapsed() > SPIN_LIMIT {
                return false;
            }
        }
    }

    /// Takes the frames that are there. `true`: there may be more.
    fn take_frames(&self, sink: &dyn FrameSink) -> Result<bool, LinkError> {
        let ways = self.link.ways();
        for _ in 0..FRAMES_PER_TURN {
            let (head, taken) = (ways.peer.segment.head(), self.taken.get());
            let waiting = head.wrapping_sub(taken);
            if waiting == 0 {
                return Ok(false);
            }
            if waiting > SLOTS {
                let told = format!("it has written {head} frames, of which {taken} were taken");
                return Err(LinkError::Shared(told));
            }
            let slot = ways.peer.segment.slot(taken);
            self.taken.set(taken + 1);
            ways.own.set_taken(taken + 1);
            ways.ring_for_room();
            let (header, message) = self.message(&slot)?;
            sink.frame(header.route.from, header.sent_micros, message)
                .map_err(LinkError::Refused)?;
        }
        Ok(true)
    }

    /// The message of a slot, all of which is checked.
    fn message(&self, slot: &Slot) -> Result<(Header, Message), LinkError> {
        let header = frame::decode_header(&slot.header, &self.limits)?;
        let (bytes, held) = (header.payload_bytes(), self.pool.metered_bytes());
        if held + bytes > self.limits.held_bytes {
            let most = self.limits.held_bytes;
            return Err(FrameError::Budget { bytes, held, most }.into());
        }
        let [first, second] = header.elements();
        let vectors = [self.vector(first, slot.places[0])?, self.vector(second, slot.places[1])?];
        let mut message = header.message(vectors);
        if self.limits.inspects {
            let largest = |part: &Part| match part {
                Part::Values(values) => vector::largest_bits(values),
                _ => 0,
            };
            let [first, second] = &message.parts;
            message.largest_bits = Some(largest(first).max(largest(second)));
        }
        Ok((header, message))
    }

    /// The vector at a place, where it is or copied.
    fn vector(&self, len: Option<usize>, place: Place) -> Result<Option<Payload>, LinkError> {
        let Some(len) = len else { return Ok(None) };
        if len == 0 {
            return Ok(Some(self.pool.take(0)));
        }
        let Place { offset, token } = place;
        let ways = self.link.ways();
        let offset = usize::try_from(offset).unwrap_or(usize::MAX);
        let Some(values) = ways.peer.vectors.values(offset, len) else {
            let told = format!("a vector of {len} elements at {offset} is not in its memory");
            return Err(LinkError::Shared(told));
        };
        if len <= COPIED_ELEMENTS {
            let copied = self.pool.copy(values);
            ways.give_back(token);
            return Ok(Some(copied));
        }
        let lent = LentVector { ways: Arc::clone(ways), offset, len, token };
        Ok(Some(self.pool.adopt(Box::new(lent))))
    }
}

/// Waits until the peer wakes this side. The end of the pipe is told by the connection.
async fn hear(woken: &pipe::Receiver) -> io::Result<()> {
    loop {
        woken.readable().await?;
        match woken.try_read(&mut [0; 64]) {
            Ok(0) => std::future::pending().await,
            Ok(_) => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Waits for the end of a connection on which nothing is said.
async fn end_of(connection: &LinkBytes) -> LinkError {
    loop {
        if let Err(error) = connection.readable().await {
            return error.into();
        }
        match connection.try_read(&mut [0; 16]) {
            Ok(0) => return LinkError::Closed,
            Ok(_) => return LinkError::Shared("it wrote to the connection".into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return error.into(),
        }
    }
}
