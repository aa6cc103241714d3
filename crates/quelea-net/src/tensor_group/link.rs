//! One connection of a group: what waits to be written, what may be read, and where it goes.

mod reading;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{ErrorKind, IoSlice, Write};
use std::net::TcpStream;
use std::sync::Arc;

use super::TensorMemory;
use super::frame::{Body, Frame, HEADER_BYTES, Kind, TensorCall, TensorHeader, Ticket};
use super::windows::WindowTable;
use reading::{Input, NO_HEADER, reason_of};

/// How many frames one system call writes.
const FRAMES_PER_WRITE: usize = 8;

/// What has happened on a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// A send or a receive is complete.
    Done(Ticket),
    /// The peer has something to send with this key.
    Offered(u64),
    /// The peer has failed with this reason.
    Failed(String),
    /// Something about a window has come.
    Window {
        /// What.
        header: TensorHeader,
        /// Its body.
        bytes: Vec<u8>,
    },
    /// A request to a window, or an answer, does not fit the window; its body is passed over.
    WindowRefused(String),
    /// The two sides do not agree about a call.
    Disagreed {
        /// What this side does.
        here: Side,
        /// What the peer does.
        there: Side,
    },
}

/// What one side of a connection does at a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Side {
    pub(super) call: TensorCall,
    pub(super) bytes: u64,
}

/// Whether frames can still come and go.
#[derive(Debug, PartialEq, Eq)]
enum State {
    Open,
    /// The peer has taken leave.
    Left,
    /// The connection is gone.
    Lost(String),
}

/// Something to send or receive, until the other side is there.
#[derive(Debug)]
struct Posted {
    call: TensorCall,
    memory: TensorMemory,
    ticket: Ticket,
}

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    stream: TcpStream,
    state: State,
    outgoing: VecDeque<Frame>,
    /// How much of the first outgoing frame is written.
    written: usize,
    input: Input,
    /// What the peer has memory for.
    ready: BTreeMap<u64, VecDeque<Side>>,
    /// How many these are.
    announced: usize,
    sends: BTreeMap<u64, VecDeque<Posted>>,
    receives: BTreeMap<u64, VecDeque<Posted>>,
    /// How many sends of the peer no receive was posted for, by key; negative if it is the
    /// receives that are more.
    offers: BTreeMap<u64, i64>,
    /// Whether the connection was lost while something waited for it.
    was_cut: bool,
    /// Requests to windows of the peer that it has not answered.
    requests: BTreeSet<u32>,
    /// What the bodies of requests must fit, before there is memory for them.
    windows: Arc<WindowTable>,
}

impl Link {
    pub(super) fn new(stream: TcpStream, windows: Arc<WindowTable>) -> Link {
        Link {
            stream,
            state: State::Open,
            outgoing: VecDeque::new(),
            written: 0,
            input: NO_HEADER,
            ready: BTreeMap::new(),
            announced: 0,
            sends: BTreeMap::new(),
            receives: BTreeMap::new(),
            offers: BTreeMap::new(),
            was_cut: false,
            requests: BTreeSet::new(),
            windows,
        }
    }

    pub(super) fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Why nothing can come from the peer any more.
    pub(super) fn ended(&self) -> Option<&str> {
        match &self.state {
            State::Open => None,
            State::Left => Some("it has left the group"),
            State::Lost(reason) => Some(reason),
        }
    }

    pub(super) fn is_lost(&self) -> bool {
        matches!(self.state, State::Lost(_))
    }

    pub(super) fn wants_to_write(&self) -> bool {
        !self.outgoing.is_empty() && !self.is_lost()
    }

    /// Whether a send or a receive waits for this peer.
    pub(super) fn is_awaited(&self) -> bool {
        self.was_cut
            || !self.sends.is_empty()
            || !self.receives.is_empty()
            || !self.requests.is_empty()
            || matches!(self.input, Input::Tensor { .. })
            || self.outgoing.iter().any(|frame| frame.ticket.is_some())
    }

    /// The call that something waits for at this peer.
    pub(super) fn awaited_call(&self) -> Option<TensorCall> {
        let posted = self.receives.values().chain(self.sends.values());
        posted.flatten().next().map(|posted| posted.call)
    }

    /// Announces memory for the next body of this key.
    pub(super) fn receive(
        &mut self,
        call: TensorCall,
        key: u64,
        memory: TensorMemory,
        ticket: Ticket,
    ) {
        self.receives.entry(key).or_default().push_back(Posted { call, memory, ticket });
        let bytes = memory.bytes() as u64;
        self.push(
            TensorHeader { kind: Kind::Ready, call, number: 0, key, bytes },
            Body::Nothing,
            None,
        );
    }

    /// Writes a tensor once the peer has announced memory for it.
    pub(super) fn send(
        &mut self,
        call: TensorCall,
        key: u64,
        memory: TensorMemory,
        ticket: Ticket,
        events: &mut Vec<Event>,
    ) {
        self.sends.entry(key).or_default().push_back(Posted { call, memory, ticket });
        self.match_sends(key, events);
    }

    /// Says that something with this key is to be sent.
    pub(super) fn offer(&mut self, key: u64) {
        let header =
            TensorHeader { kind: Kind::Offer, call: TensorCall::Send, number: 0, key, bytes: 0 };
        self.push(header, Body::Nothing, None);
    }

    /// Takes one of the peer's offers, or the next one to come.
    pub(super) fn take_offer(&mut self, key: u64) {
        self.count_offer(key, -1);
    }

    /// Keys whose sends and receives are equal in number are forgotten.
    fn count_offer(&mut self, key: u64, change: i64) {
        let count = self.offers.entry(key).or_default();
        *count += change;
        if *count == 0 {
            self.offers.remove(&key);
        }
    }

    /// Whether the peer has something to send with this key that nobody has asked for.
    pub(super) fn has_offer(&self, key: u64) -> bool {
        self.offers.get(&key).is_some_and(|count| *count > 0)
    }

    /// Takes leave, or says why this rank has failed.
    pub(super) fn say(&mut self, kind: Kind, reason: &str) {
        self.push_owned(kind, 0, 0, reason.as_bytes().to_vec());
    }

    /// Asks the peer something about a window; its answer has the same number.
    pub(super) fn request(&mut self, kind: Kind, window: u64, number: u32, body: Vec<u8>) {
        self.requests.insert(number);
        self.push_owned(kind, window, number, body);
    }

    /// Answers such a request.
    pub(super) fn answer(&mut self, window: u64, number: u32, body: Vec<u8>) {
        self.push_owned(Kind::Answer, window, number, body);
    }

    fn push_owned(&mut self, kind: Kind, key: u64, number: u32, body: Vec<u8>) {
        let bytes = body.len() as u64;
        let header = TensorHeader { kind, call: TensorCall::Window, number, key, bytes };
        self.push(header, Body::Owned(body), None);
    }

    /// Forgets all tensors. What is half written is copied and what is half read is discarded, so
    /// that the reason for a failure can follow.
    pub(super) fn forget_tensors(&mut self) {
        self.sends.clear();
        self.receives.clear();
        if let Some(frame) = self.outgoing.front_mut().filter(|_| self.written > 0) {
            frame.body = Body::Owned(frame.body.as_slice().to_vec());
            frame.ticket = None;
        }
        self.outgoing.retain(|frame| !matches!(frame.body, Body::Lent(_)));
        if let Input::Tensor { memory, filled, .. } = self.input {
            self.input = Input::Discarded { left: memory.bytes() - filled };
        }
        self.requests.clear();
        self.was_cut = false;
    }

    /// Nothing follows from this side.
    pub(super) fn close_writing(&self) {
        // The peer may have closed it already.
        let _ = self.stream.shutdown(std::net::Shutdown::Write);
    }

    /// Gives the connection up. Of several reasons the first one counts.
    fn lose(&mut self, reason: String) {
        if self.is_lost() {
            return;
        }
        let reason = self.ended().map_or(reason, Into::into);
        self.state = State::Lost(reason);
        self.was_cut = self.is_awaited();
        // It may be closed already.
        let _ = self.stream.shutdown(std::net::Shutdown::Both);
        self.outgoing.clear();
        self.written = 0;
        self.input = NO_HEADER;
    }

    fn push(&mut self, header: TensorHeader, body: Body, ticket: Option<Ticket>) {
        self.outgoing.push_back(Frame { header: header.encode(), body, ticket });
    }

    /// Starts all sends of a key that the peer has memory for.
    fn match_sends(&mut self, key: u64, events: &mut Vec<Event>) {
        loop {
            let (Some(sends), Some(ready)) = (self.sends.get_mut(&key), self.ready.get_mut(&key))
            else {
                return;
            };
            let (posted, there) = match (sends.pop_front(), ready.pop_front()) {
                (Some(posted), Some(there)) => (posted, there),
                _ => unreachable!("empty queues are removed"),
            };
            self.announced -= 1;
            if sends.is_empty() {
                self.sends.remove(&key);
            }
            if ready.is_empty() {
                self.ready.remove(&key);
            }
            let here = Side { call: posted.call, bytes: posted.memory.bytes() as u64 };
            if here != there {
                events.push(Event::Disagreed { here, there });
                return;
            }
            let Side { call, bytes } = here;
            let header = TensorHeader { kind: Kind::Data, call, number: 0, key, bytes };
            self.push(header, Body::Lent(posted.memory), Some(posted.ticket));
        }
    }

    /// Writes as much as the kernel takes.
    pub(super) fn write(&mut self, events: &mut Vec<Event>) {
        while self.wants_to_write() {
            let mut parts = [IoSlice::new(&[]); 2 * FRAMES_PER_WRITE];
            let mut skip = self.written;
            for (at, frame) in self.outgoing.iter().take(FRAMES_PER_WRITE).enumerate() {
                let body = frame.body.as_slice();
                let header = &frame.header[skip.min(HEADER_BYTES)..];
                let body = &body[skip.saturating_sub(HEADER_BYTES)..];
                parts[2 * at] = IoSlice::new(header);
                parts[2 * at + 1] = IoSlice::new(body);
                skip = 0;
            }
            match self.stream.write_vectored(&parts) {
                Ok(count) => self.advance(count, events),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    // What the peer has said last, perhaps why it fails, is still to be read.
                    self.read(events);
                    return self.lose(reason_of(&error));
                }
            }
        }
    }

    fn advance(&mut self, count: usize, events: &mut Vec<Event>) {
        self.written += count;
        while let Some(frame) = self.outgoing.front() {
            let whole = HEADER_BYTES + frame.body.as_slice().len();
            if self.written < whole {
                return;
            }
            self.written -= whole;
            events.extend(frame.ticket.map(Event::Done));
            self.outgoing.pop_front();
        }
    }
}
