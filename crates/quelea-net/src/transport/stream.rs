//! Frames over a stream of bytes: out without copying, in as they come.
//!
//! A frame is written at once as far as the stream takes it; the rest is written by a task when
//! there is room again. Reading never waits for writing, so two ranks that write to each other
//! cannot block each other. With partners that change at every step, frames of a later one also wait
//! until those of earlier steps are written to all peers: see [`WriteOrder`].
//!
//! Frames are numbered by their place on the link, in each direction; the numbers are not sent. When a
//! stream breaks, each side says how many frames it has received, and [`StreamLink::resume`] continues
//! over a new stream from exactly there.

mod queue;
mod reading;

use std::cell::{Cell, RefCell};
use std::fmt;
use std::io::{self, IoSlice};
use std::rc::Rc;

use quelea_core::message::Message;
use quelea_core::payload::Pool;
use quelea_wire::frame::{self, Limits, Route};
use tokio::sync::Notify;

use super::order::{OrderedLink, WriteOrder};
use super::{FrameSink, Link, LinkError, LinkQuality};
use queue::{FrameQueue, PendingFrame};

/// A connected, non-blocking stream of bytes inside a tokio runtime.
pub(crate) trait ByteStream: fmt::Debug + 'static {
    /// Writes as much of `slices` as there is room for, or `WouldBlock`.
    fn try_write_vectored(&self, slices: &[IoSlice<'_>]) -> io::Result<usize>;

    /// Writes what the stream keeps of earlier writes, or `WouldBlock`; streams that keep nothing have
    /// nothing to do.
    fn try_flush(&self) -> io::Result<()> {
        Ok(())
    }

    /// Waits until there may be room.
    fn writable(&self) -> impl Future<Output = io::Result<()>>;

    /// Reads what is there, or `WouldBlock`; 0 at the end of the stream.
    fn try_read(&self, target: &mut [u8]) -> io::Result<usize>;

    /// Waits until there may be something to read.
    fn readable(&self) -> impl Future<Output = io::Result<()>>;

    /// So many bytes of one vector are still to come, and no part of them is of use: a reader may be
    /// woken later. 0 where nothing is known.
    fn expect_bytes(&self, missing: usize);

    /// How the system finds the connection.
    fn quality(&self) -> LinkQuality {
        LinkQuality::default()
    }
}

/// Both directions of a link over a stream.
#[derive(Debug)]
pub(crate) struct StreamLink<S> {
    route: Route,
    /// The present one; a new one takes its place when it breaks.
    stream: RefCell<Rc<S>>,
    order: Rc<WriteOrder>,
    queue: RefCell<FrameQueue>,
    /// Wakes the task that writes what the stream did not take.
    room_wanted: Notify,
    /// Frames that have arrived.
    received: Cell<u64>,
    /// Bytes that may wait to be written.
    unsent_limit: u64,
    /// Wakes the task when more than that wait.
    overfull: Notify,
}

/// How much a link keeps for its peer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SendBudget {
    /// Of the frames that were written, those within the last so many bytes are kept, to be sent again
    /// over another stream.
    pub(crate) kept_bytes: usize,
    /// So many bytes may wait to be written; a peer that leaves more unread is lost.
    pub(crate) unsent_bytes: u64,
}

/// What is needed to read frames.
#[derive(Clone, Debug)]
pub(crate) struct Receiving {
    pub(crate) limits: Limits,
    pub(crate) pool: Pool,
}

impl<S: ByteStream> StreamLink<S> {
    /// Sends along `route`.
    pub(crate) fn new(
        route: Route,
        stream: S,
        order: &Rc<WriteOrder>,
        budget: SendBudget,
    ) -> Rc<StreamLink<S>> {
        let link = Rc::new(StreamLink {
            route,
            stream: RefCell::new(Rc::new(stream)),
            order: Rc::clone(order),
            queue: RefCell::new(FrameQueue::new(budget.kept_bytes)),
            room_wanted: Notify::new(),
            received: Cell::new(0),
            unsent_limit: budget.unsent_bytes,
            overfull: Notify::new(),
        });
        let ordered: Rc<dyn OrderedLink> = Rc::<StreamLink<S>>::clone(&link);
        order.join(&ordered);
        link
    }

    /// Moves frames in both directions over the present stream; ends only with an error.
    pub(crate) async fn run(&self, receiving: &Receiving, sink: &dyn FrameSink) -> LinkError {
        tokio::select! {
            biased;
            error = self.read_frames(receiving, sink) => error,
            error = self.write_rest() => error,
            error = self.overflow() => error,
        }
    }

    /// Ends when the peer leaves more unread than it may.
    async fn overflow(&self) -> LinkError {
        self.overfull.notified().await;
        let waiting = self.queue.borrow().waiting_bytes();
        LinkError::Unread { waiting, most: self.unsent_limit }
    }

    /// Frames that have arrived since the link was opened, over all its streams.
    pub(crate) fn received(&self) -> u64 {
        self.received.get()
    }

    /// Continues over `stream`, to a peer that has received this many frames; an error says why that
    /// cannot be.
    pub(crate) fn resume(&self, stream: S, peer_received: u64) -> Result<(), String> {
        self.queue.borrow_mut().rewind(peer_received, &self.order)?;
        *self.stream.borrow_mut() = Rc::new(stream);
        // What is pending is written by the task; a flush meanwhile leaves it alone.
        self.room_wanted.notify_one();
        Ok(())
    }

    /// Writes what the stream takes, unless the task is at it.
    fn write(&self) -> io::Result<()> {
        let stream = self.stream.borrow();
        let mut queue = self.queue.borrow_mut();
        if !queue.is_blocked() && !queue.write(&**stream, &self.order)? {
            queue.set_blocked(true);
            self.room_wanted.notify_one();
        }
        Ok(())
    }

    /// Waits until the stream has room: a new one seems to have none until its runtime has looked.
    #[cfg(test)]
    pub(super) async fn is_writable(&self) {
        let stream = Rc::clone(&self.stream.borrow());
        stream.writable().await.expect("it is open");
    }

    /// Writes whatever a flush could not; ends only with an error.
    pub(super) async fn write_rest(&self) -> LinkError {
        let stream = Rc::clone(&self.stream.borrow());
        loop {
            self.room_wanted.notified().await;
            loop {
                if let Err(error) = stream.writable().await {
                    return error.into();
                }
                let last = self.order.last();
                let written = self.queue.borrow_mut().write(&*stream, &self.order);
                match written {
                    Ok(true) => {
                        self.queue.borrow_mut().set_blocked(false);
                        self.order.release(last);
                        break;
                    }
                    Ok(false) => self.order.release(last),
                    Err(error) => return error.into(),
                }
            }
        }
    }
}

impl<S: ByteStream> Link for StreamLink<S> {
    fn push(&self, sent_micros: u32, message: Message) {
        let header = frame::encode_header(self.route, sent_micros, &message);
        let mut queue = self.queue.borrow_mut();
        // A frame goes after those before it on its link, whatever their steps.
        let step = queue.last_step().max(message.step);
        self.order.add(step);
        queue.push(PendingFrame { step, header, message });
        if queue.waiting_bytes() > self.unsent_limit {
            self.overfull.notify_one();
        }
    }

    /// Writes what may be written, here and then elsewhere.
    fn flush(&self) -> Result<(), LinkError> {
        let last = self.order.last();
        self.write()?;
        self.order.release(last);
        Ok(())
    }

    fn quality(&self) -> LinkQuality {
        self.stream.borrow().quality()
    }
}

impl<S: ByteStream> OrderedLink for StreamLink<S> {
    fn write_released(&self) {
        // A broken connection is reported by the link's task.
        let _ = self.write();
    }
}
