//! The sending side: frames into slots, vectors lent until they come back.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use quelea_core::message::{Message, Part, Rank};
use quelea_core::payload::{Payload, Pool};
use quelea_wire::HEADER_BYTES;
use quelea_wire::frame::{self, Route};
use tokio::sync::Notify;

use super::memory::Arena;
use super::offer::{PeerMemory, SharedMemory};
use super::segment::{NO_TOKEN, OwnSegment, Place, SLOTS, Slot, TOKENS};
use crate::transport::order::{OrderedLink, WriteOrder};
use crate::transport::{AttachContext, Link, LinkError, UNSENT_VECTORS, budget_bytes};

/// The pages of both directions. Lent vectors keep them, on whatever thread they are dropped.
#[derive(Debug)]
pub(super) struct Ways {
    pub(super) own: OwnSegment,
    pub(super) peer: PeerMemory,
    /// How many vectors of the peer were given back.
    returned: Mutex<u64>,
}

impl Ways {
    pub(super) fn new(own: OwnSegment, peer: PeerMemory) -> Ways {
        Ways { own, peer, returned: Mutex::new(0) }
    }

    /// Wakes the peer. A full pipe wakes as well, and one that is closed wakes nobody.
    pub(super) fn ring(&self) {
        let _ = (&self.peer.bell).write(&[1]);
    }

    /// Wakes the peer if it waits for slots or vectors.
    pub(super) fn ring_for_room(&self) {
        if self.peer.segment.waits_for_room() {
            self.ring();
        }
    }

    /// Gives a vector of the peer back.
    pub(super) fn give_back(&self, token: u32) {
        if token == NO_TOKEN {
            return;
        }
        let mut returned = self.returned.lock().unwrap_or_else(PoisonError::into_inner);
        self.own.give_back(*returned, token);
        *returned += 1;
        drop(returned);
        self.ring_for_room();
    }
}

/// Both directions of a link through shared memory.
#[derive(Debug)]
pub(super) struct SharedLink {
    route: Route,
    order: Rc<WriteOrder>,
    arena: Arc<Arena>,
    staging: Pool,
    ways: Arc<Ways>,
    /// How many links like this one the process has.
    links: Arc<AtomicUsize>,
    sending: RefCell<Sending>,
    /// More than this may not wait to be taken.
    unsent_limit: u64,
    /// What this side has told the peer that it waits for: frames, room.
    waiting: Cell<(bool, bool)>,
    /// Why the link must end.
    fault: RefCell<Option<LinkError>>,
    /// Wakes the task to see it.
    faulty: Notify,
}

/// A frame that waits for a slot.
#[derive(Debug)]
struct WaitingFrame {
    /// Its place in the [`WriteOrder`].
    step: u64,
    header: [u8; HEADER_BYTES],
    message: Message,
}

/// What is on its way.
#[derive(Debug, Default)]
struct Sending {
    queue: VecDeque<WaitingFrame>,
    /// Bytes of the frames in the queue and in slots.
    bytes: u64,
    /// Frames that were put into slots.
    head: u64,
    /// Bytes of those that the peer has not taken.
    untaken: VecDeque<u64>,
    /// How many vectors the peer has given back.
    returned: u64,
    lent: LentVectors,
}

/// The vectors that a peer has, by token.
#[derive(Debug, Default)]
struct LentVectors {
    vectors: Vec<Option<Payload>>,
    free: Vec<u32>,
}

impl LentVectors {
    /// Whether there are tokens for another frame.
    fn has_room(&self) -> bool {
        self.free.len() as u64 + (TOKENS - self.vectors.len() as u64) >= 2
    }

    fn lend(&mut self, payload: Payload) -> u32 {
        if let Some(token) = self.free.pop() {
            self.vectors[token as usize] = Some(payload);
            return token;
        }
        self.vectors.push(Some(payload));
        self.vectors.len() as u32 - 1
    }

    /// Takes one back, if it is out.
    fn take_back(&mut self, token: u64) -> Option<Payload> {
        let place = usize::try_from(token).ok().and_then(|at| self.vectors.get_mut(at))?;
        let payload = place.take()?;
        self.free.push(token as u32);
        Some(payload)
    }
}

impl Sending {
    /// Looks what the peer has taken and given back.
    fn collect(&mut self, ways: &Ways) -> Result<(), LinkError> {
        let taken = ways.peer.segment.taken();
        let first = self.head - self.untaken.len() as u64;
        let Some(count) = taken.checked_sub(first).filter(|_| taken <= self.head) else {
            return Err(LinkError::Shared(format!(
                "it has taken {taken} frames of {}, after {first}",
                self.head
            )));
        };
        self.bytes -= self.untaken.drain(..count as usize).sum::<u64>();
        let returned = ways.peer.segment.returned();
        while self.returned != returned {
            let token = ways.peer.segment.returned_token(self.returned);
            if self.lent.take_back(token).is_none() {
                return Err(LinkError::Shared(format!(
                    "it gave back vector {token}, which it has not"
                )));
            }
            self.returned += 1;
        }
        Ok(())
    }

    fn has_room(&self) -> bool {
        (self.untaken.len() as u64) < SLOTS && self.lent.has_room()
    }
}

impl SharedLink {
    pub(super) fn new(
        memory: SharedMemory,
        ways: Ways,
        peer: Rank,
        context: &AttachContext<'_>,
    ) -> Rc<SharedLink> {
        let SharedMemory { arena, staging, links, .. } = memory;
        links.fetch_add(1, Ordering::Relaxed);
        let link = Rc::new(SharedLink {
            route: Route { from: context.rank, to: peer },
            order: Rc::clone(context.order),
            arena,
            staging,
            ways: Arc::new(ways),
            links,
            sending: RefCell::default(),
            unsent_limit: budget_bytes(context.len, UNSENT_VECTORS),
            waiting: Cell::new((false, false)),
            fault: RefCell::default(),
            faulty: Notify::new(),
        });
        let ordered: Rc<dyn OrderedLink> = Rc::<SharedLink>::clone(&link);
        context.order.join(&ordered);
        link
    }

    pub(super) fn ways(&self) -> &Arc<Ways> {
        &self.ways
    }

    /// Whether this rank and all peers that it shares memory with have a core each.
    pub(super) fn has_cores(&self, cores: usize) -> bool {
        self.links.load(Ordering::Relaxed) < cores
    }

    /// Ends when the link must end although its connection is open.
    pub(super) async fn fault(&self) -> LinkError {
        loop {
            if let Some(fault) = self.fault.borrow_mut().take() {
                return fault;
            }
            self.faulty.notified().await;
        }
    }

    fn fail(&self, error: LinkError) {
        *self.fault.borrow_mut() = Some(error);
        self.faulty.notify_one();
    }

    /// Says whether this side sleeps until there are frames.
    pub(super) fn set_sleeping(&self, sleeps: bool) {
        let (before, for_room) = self.waiting.get();
        if sleeps != before {
            self.waiting.set((sleeps, for_room));
            self.ways.own.set_waiting(sleeps, for_room);
        }
    }

    fn set_waiting_for_room(&self, for_room: bool) {
        let (sleeps, before) = self.waiting.get();
        if for_room != before {
            self.waiting.set((sleeps, for_room));
            self.ways.own.set_waiting(sleeps, for_room);
        }
    }

    /// The link has ended. A peer that is gone reads nothing any more, so its vectors may be used again; one
    /// that broke the rules may go on, and they are kept as long as the link.
    pub(super) fn end(&self, error: &LinkError) {
        if error.is_disconnection() {
            self.sending.borrow_mut().lent = LentVectors::default();
        }
    }

    /// Puts into slots what may be sent, as far as there are any.
    fn write(&self) -> Result<(), LinkError> {
        let mut sending = self.sending.borrow_mut();
        let before = sending.head;
        sending.collect(&self.ways)?;
        while sending.queue.front().is_some_and(|first| first.step <= self.order.last()) {
            if !sending.has_room() {
                // Whoever makes room from now on says so; it may have been made before.
                self.set_waiting_for_room(true);
                sending.collect(&self.ways)?;
                if !sending.has_room() {
                    break;
                }
            }
            self.set_waiting_for_room(false);
            let first = sending.queue.pop_front().expect("it is the front");
            self.put(&mut sending, &first)?;
            self.order.done(first.step);
        }
        let is_new = sending.head != before;
        drop(sending);
        if is_new && self.ways.peer.segment.sleeps() {
            self.ways.ring();
        }
        Ok(())
    }

    fn put(&self, sending: &mut Sending, frame: &WaitingFrame) -> Result<(), LinkError> {
        let mut places = [Place { offset: 0, token: NO_TOKEN }; 2];
        for (place, part) in places.iter_mut().zip(&frame.message.parts) {
            let (Part::Values(data) | Part::Encoded { data, .. }) = part else { continue };
            if !data.is_empty() {
                *place = self.lend(sending, data)?;
            }
        }
        self.ways.own.write(sending.head, &Slot { header: frame.header, places });
        sending.head += 1;
        sending.untaken.push_back(frame::frame_bytes(&frame.message));
        self.ways.own.publish(sending.head);
        Ok(())
    }

    /// Lends a vector; one that does not lie in the arena is copied there.
    fn lend(&self, sending: &mut Sending, data: &Payload) -> Result<Place, LinkError> {
        let payload = match self.arena.offset_of(data) {
            Some(_) => data.clone(),
            None => self.staging.copy(data),
        };
        let offset = self.arena.offset_of(&payload).ok_or_else(|| {
            let full = "there is no more memory to share with other processes";
            LinkError::Broken(io::Error::new(io::ErrorKind::OutOfMemory, full))
        })?;
        Ok(Place { offset: offset as u64, token: sending.lent.lend(payload) })
    }
}

impl Link for SharedLink {
    fn push(&self, sent_micros: u32, message: Message) {
        let header = frame::encode_header(self.route, sent_micros, &message);
        let mut sending = self.sending.borrow_mut();
        // A frame goes after those before it on its link, whatever their steps.
        let last = sending.queue.back().map_or(0, |last| last.step);
        let step = last.max(message.step);
        self.order.add(step);
        sending.bytes += frame::frame_bytes(&message);
        sending.queue.push_back(WaitingFrame { step, header, message });
        if sending.bytes > self.unsent_limit {
            // It may have taken some meanwhile.
            let collected = sending.collect(&self.ways);
            let waiting = sending.bytes;
            drop(sending);
            match collected {
                Err(error) => self.fail(error),
                Ok(()) if waiting > self.unsent_limit => {
                    self.fail(LinkError::Unread { waiting, most: self.unsent_limit });
                }
                Ok(()) => {}
            }
        }
    }

    /// Sends what may be sent, here and then elsewhere.
    fn flush(&self) -> Result<(), LinkError> {
        let last = self.order.last();
        if let Err(error) = self.write() {
            self.fail(error);
        }
        self.order.release(last);
        Ok(())
    }
}

impl OrderedLink for SharedLink {
    fn write_released(&self) {
        if let Err(error) = self.write() {
            self.fail(error);
        }
    }
}
