//! One connection between two ranks: frames out without copying, frames in as they come.
//!
//! A frame is written at once as far as the kernel takes it; the rest is written by a task when
//! there is room again. Reading never waits for writing, so two ranks that write to each other
//! cannot block each other. With partners that change at every step, frames of a later one also wait
//! until those of earlier steps are written to all peers: see [`WriteOrder`].

mod order;
mod reading;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::rc::Rc;

use quelea_core::message::{Message, Rank};
use quelea_wire::HEADER_BYTES;
use quelea_wire::frame::{self, Limits};
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;

pub(crate) use order::WriteOrder;
pub(crate) use reading::{ReadError, read_frames};

/// Frames that are joined into one write at most.
const JOINED: usize = 16;

/// The sending side.
#[derive(Debug)]
pub(crate) struct Link {
    stream: OwnedWriteHalf,
    order: Rc<WriteOrder>,
    queue: RefCell<FrameQueue>,
    /// Wakes the task that writes what the kernel did not take.
    room_wanted: Notify,
}

#[derive(Debug, Default)]
struct FrameQueue {
    frames: VecDeque<PendingFrame>,
    /// Bytes of the first frame that are written.
    written: usize,
    /// The kernel's buffer is full; the task has the word.
    blocked: bool,
}

#[derive(Debug)]
struct PendingFrame {
    /// Its place in the [`WriteOrder`].
    step: u64,
    header: [u8; HEADER_BYTES],
    message: Message,
}

impl Link {
    pub(crate) fn new(stream: OwnedWriteHalf, order: &Rc<WriteOrder>) -> Rc<Link> {
        let link = Rc::new(Link {
            stream,
            order: Rc::clone(order),
            queue: RefCell::default(),
            room_wanted: Notify::new(),
        });
        order.join(&link);
        link
    }

    /// Puts a frame into the queue; [`flush`](Link::flush) writes it.
    pub(crate) fn push(&self, header: [u8; HEADER_BYTES], message: Message) {
        let frames = &mut self.queue.borrow_mut().frames;
        // A frame goes after those before it on its link, whatever their steps.
        let step = frames.back().map_or(0, |last| last.step).max(message.step);
        self.order.add(step);
        frames.push_back(PendingFrame { step, header, message });
    }

    /// Writes what may be written, here and then elsewhere.
    pub(crate) fn flush(&self) -> io::Result<()> {
        let last = self.order.last();
        self.write()?;
        self.order.go_on(last);
        Ok(())
    }

    /// Writes what the kernel takes, unless the task is at it.
    fn write(&self) -> io::Result<()> {
        let mut queue = self.queue.borrow_mut();
        if !queue.blocked && !queue.write(&self.stream, &self.order)? {
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
                let last = self.order.last();
                let written = self.queue.borrow_mut().write(&self.stream, &self.order);
                match written {
                    Ok(true) => {
                        self.queue.borrow_mut().blocked = false;
                        self.order.go_on(last);
                        break;
                    }
                    Ok(false) => self.order.go_on(last),
                    Err(error) => return error,
                }
            }
        }
    }
}

impl FrameQueue {
    /// Writes until there is nothing that may be written (`true`) or the kernel takes no more
    /// (`false`).
    fn write(&mut self, stream: &OwnedWriteHalf, order: &WriteOrder) -> io::Result<bool> {
        loop {
            let mut slices = [IoSlice::new(&[]); 3 * JOINED];
            let count = self.slices(&mut slices, order.last());
            if count == 0 {
                return Ok(true);
            }
            match stream.try_write_vectored(&slices[..count]) {
                Ok(written) => self.advance(written, order),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>; 3 * JOINED], last: u64) -> usize {
        let mut skip = self.written;
        let mut count = 0;
        let allowed = self.frames.iter().take_while(|frame| frame.step <= last);
        for frame in allowed.take(JOINED) {
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

    fn advance(&mut self, written: usize, order: &WriteOrder) {
        self.written += written;
        while let Some(first) = self.frames.front() {
            let length = frame::frame_bytes(&first.message) as usize;
            if self.written < length {
                return;
            }
            self.written -= length;
            order.done(first.step);
            self.frames.pop_front();
        }
    }
}

/// The limits of the connection over which `from` sends to `to`, in a run over vectors of `len`
/// elements. A codec may need half as much again as the plain vector, and a little more.
pub(crate) fn limits(from: Rank, to: Rank, len: usize) -> Limits {
    Limits { route: frame::Route { from, to }, part_bytes: len as u64 * 7 + 4096 }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{TcpListener, TcpStream};
    use std::time::Duration;

    use quelea_core::payload::Pool;

    use super::*;

    /// A link, and the end of it that reads.
    async fn link(order: &Rc<WriteOrder>) -> (Rc<Link>, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let far =
            TcpStream::connect(listener.local_addr().expect("it listens")).expect("it accepts");
        let (near, _) = listener.accept().expect("it connects");
        near.set_nonblocking(true).expect("a socket can");
        let near = tokio::net::TcpStream::from_std(near).expect("in a runtime");
        near.writable().await.expect("it is open");
        far.set_read_timeout(Some(Duration::from_secs(20))).expect("a socket can");
        (Link::new(near.into_split().1, order), far)
    }

    fn push(link: &Link, step: u64, len: usize) -> usize {
        let message = Message::new(1, step, 0).with(Pool::default().take(len));
        let route = frame::Route { from: Rank(0), to: Rank(1) };
        link.push(frame::encode_header(route, 0, &message), message.clone());
        link.flush().expect("it is open");
        frame::frame_bytes(&message) as usize
    }

    fn is_silent(mut far: &TcpStream) -> bool {
        far.set_nonblocking(true).expect("a socket can");
        let read = far.read(&mut [0]);
        far.set_nonblocking(false).expect("a socket can");
        read.is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    }

    /// More than a kernel holds of one connection.
    const LARGE: usize = 16 << 20;

    #[tokio::test(flavor = "current_thread")]
    async fn a_later_step_waits_until_earlier_ones_are_written_to_all() {
        let order = WriteOrder::new(true);
        let (first, mut first_far) = link(&order).await;
        let (second, mut second_far) = link(&order).await;
        let large = push(&first, 4, LARGE);
        let small = push(&second, 5, 3);
        assert!(is_silent(&second_far), "step 4 is not written");
        // An earlier step may always be written; on the same link it comes after what was before it.
        let (third, mut third_far) = link(&order).await;
        let early = push(&third, 3, 3);
        third_far.read_exact(&mut vec![0; early]).expect("it was written");
        push(&second, 2, 3);
        assert!(is_silent(&second_far));
        let reading = std::thread::spawn(move || {
            first_far.read_exact(&mut vec![0; large]).expect("it is written by and by");
            second_far.read_exact(&mut vec![0; 2 * small]).expect("then this");
        });
        let ended = tokio::task::spawn_blocking(|| reading.join());
        tokio::select! {
            error = first.write_rest() => panic!("{error}"),
            joined = ended => joined.expect("it ran").expect("it read"),
        }
    }

    #[tokio::test(flavor = "current_thread")]
    async fn without_an_order_nobody_waits() {
        let order = WriteOrder::new(false);
        let (first, _first_far) = link(&order).await;
        let (second, mut second_far) = link(&order).await;
        push(&first, 4, LARGE);
        let small = push(&second, 5, 3);
        second_far.read_exact(&mut vec![0; small]).expect("it was written");
    }
}
