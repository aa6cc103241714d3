//! Frames that wait to be written, and those that may have to be written again.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use quelea_core::message::Message;
use quelea_wire::HEADER_BYTES;
use quelea_wire::frame;

use super::ByteStream;
use crate::transport::order::WriteOrder;

/// Frames that are joined into one write at most.
const JOINED: usize = 16;

/// The frames of one direction of a link.
#[derive(Debug, Default)]
pub(super) struct FrameQueue {
    frames: VecDeque<PendingFrame>,
    /// Bytes of all of them.
    bytes: u64,
    /// Bytes of the first frame that are written.
    written: usize,
    /// The stream takes no more; the link's task writes from now on.
    blocked: bool,
    /// Frames that were written completely.
    sent: u64,
    /// The last of those, as many as `kept_limit` says.
    kept: VecDeque<PendingFrame>,
    kept_bytes: usize,
    /// Bytes that a stream may hold between the two ends.
    kept_limit: usize,
}

#[derive(Debug)]
pub(super) struct PendingFrame {
    /// Its place in the [`WriteOrder`].
    pub(super) step: u64,
    pub(super) header: [u8; HEADER_BYTES],
    pub(super) message: Message,
}

impl PendingFrame {
    fn bytes(&self) -> usize {
        frame::frame_bytes(&self.message) as usize
    }
}

impl FrameQueue {
    pub(super) fn new(kept_limit: usize) -> FrameQueue {
        FrameQueue { kept_limit, ..FrameQueue::default() }
    }

    pub(super) fn push(&mut self, frame: PendingFrame) {
        self.bytes += frame.bytes() as u64;
        self.frames.push_back(frame);
    }

    /// Bytes of the frames that wait.
    pub(super) fn waiting_bytes(&self) -> u64 {
        self.bytes
    }

    /// Of the last frame that waits; 0 if there is none.
    pub(super) fn last_step(&self) -> u64 {
        self.frames.back().map_or(0, |last| last.step)
    }

    pub(super) fn is_blocked(&self) -> bool {
        self.blocked
    }

    pub(super) fn set_blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
    }

    /// Writes until there is nothing that may be written (`true`) or the stream takes no more
    /// (`false`).
    pub(super) fn write(
        &mut self,
        stream: &impl ByteStream,
        order: &WriteOrder,
    ) -> io::Result<bool> {
        loop {
            let mut slices = [IoSlice::new(&[]); 3 * JOINED];
            let count = self.slices(&mut slices, order.last());
            if count == 0 {
                return match stream.try_flush() {
                    Ok(()) => Ok(true),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
                    Err(error) => Err(error),
                };
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
            let length = first.bytes();
            if self.written < length {
                return;
            }
            self.written -= length;
            order.done(first.step);
            self.sent += 1;
            let first = self.frames.pop_front().expect("it is the front");
            self.bytes -= length as u64;
            if self.kept_limit > 0 {
                self.keep(first);
            }
        }
    }

    /// Keeps a written frame, and as many before it as may still be on their way. The frame that is
    /// cut by the limit is among them: of it a part may be missing.
    fn keep(&mut self, frame: PendingFrame) {
        self.kept_bytes += frame.bytes();
        self.kept.push_back(frame);
        while let Some(oldest) = self.kept.front().map(PendingFrame::bytes)
            && self.kept_bytes - oldest >= self.kept_limit
        {
            self.kept_bytes -= oldest;
            self.kept.pop_front();
        }
    }

    /// Everything after the first `received` frames is to be written, over a new stream.
    pub(super) fn rewind(&mut self, received: u64, order: &WriteOrder) -> Result<(), String> {
        let Some(missing) = self.sent.checked_sub(received) else {
            return Err(format!("it has received {received} frames of {}", self.sent));
        };
        if missing > self.kept.len() as u64 {
            let kept = self.kept.len();
            return Err(format!("{missing} frames are missing, of which {kept} are kept"));
        }
        for _ in 0..missing {
            let frame = self.kept.pop_back().expect("as many are kept");
            self.kept_bytes -= frame.bytes();
            order.add(frame.step);
            self.bytes += frame.bytes() as u64;
            self.frames.push_front(frame);
        }
        (self.sent, self.written) = (received, 0);
        // The task writes first.
        self.blocked = true;
        Ok(())
    }
}
