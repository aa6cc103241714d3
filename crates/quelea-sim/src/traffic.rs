//! What the driver does with messages: from a node's outbox over the network to another's inbox.

use quelea_core::contract::{Effect, Fact};
use quelea_core::message::{Message, Part, Rank};
use quelea_core::time::Time;
use quelea_record::RecordKind;

use crate::cluster::Cluster;
use crate::collective_start::{HeldMessage, Passage};
use crate::driver::Driver;
use crate::faults::{Flight, Verdict};
use crate::network::{SentMessage, Transit, bits_per_second, microseconds, transfer};
use crate::queue::SimEvent;
use crate::rank_state::{Arrived, QueuedSend};

/// What a vector costs beside the wire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Handoff {
    fixed: Time,
    /// Nothing if size costs nothing.
    bps: Option<u64>,
}

impl Handoff {
    pub(crate) fn of_sending(cluster: &Cluster) -> Handoff {
        Handoff::new(cluster.handoff_send_us, cluster.handoff_send_gbps)
    }

    pub(crate) fn of_receiving(cluster: &Cluster) -> Handoff {
        Handoff::new(cluster.handoff_receive_us, cluster.handoff_receive_gbps)
    }

    fn new(us: f64, gbps: f64) -> Handoff {
        Handoff { fixed: microseconds(us), bps: (gbps > 0.0).then(|| bits_per_second(gbps)) }
    }

    /// A collective's vector is handed over once, which is part of its fixed cost; a message
    /// without a vector costs nothing.
    fn cost(self, message: &Message, vector_scale: f64) -> Time {
        let bytes = message.payload_bytes();
        if message.collective || bytes == 0 {
            return Time::ZERO;
        }
        self.fixed + self.bps.map_or(Time::ZERO, |bps| transfer(scaled(bytes, vector_scale), bps))
    }
}

impl Driver<'_> {
    /// Carries out what a node has asked for.
    pub(crate) fn carry_out(&mut self, rank: usize) {
        let mut effects = std::mem::take(&mut self.effects);
        effects.extend(self.ranks[rank].machine.take_effects());
        let mut last_vector = None;
        for effect in effects.drain(..) {
            match effect {
                Effect::Send { to, message } => {
                    // One vector that goes to several peers is handed to the network once.
                    let vector = vector_of(&message);
                    let again = vector.is_some() && vector == last_vector;
                    last_vector = vector;
                    self.send(rank, to, message, again);
                }
                Effect::Work { bytes } => self.arithmetic(rank, bytes),
                Effect::Measure(fact) => self.measure(rank, fact),
                // The node has carried these out itself.
                Effect::Optimize { .. } | Effect::JumpToStep(_) => {}
            }
        }
        self.effects = effects;
        self.collect_events(rank);
        self.flush_outbox(rank);
    }

    /// A fact comes about at nearly every event of some algorithms. Where the controller would hear of it
    /// next, and only pass it on, it is recorded at once.
    fn measure(&mut self, rank: usize, fact: Fact) {
        let is_heard_next = !self.sends_control() && self.events.is_empty();
        let machine = &mut self.ranks[rank].machine;
        if !is_heard_next || machine.has_events() || self.has_lost {
            return machine.note_fact(self.now, fact);
        }
        let record = machine.count_fact(self.now, fact);
        self.observer.record(record);
    }

    fn arithmetic(&mut self, rank: usize, bytes: u64) {
        if let Some(bps) = self.reduce_bps {
            let bytes = scaled(bytes as usize, self.cluster.vector_scale);
            self.ranks[rank].occupy(self.now, transfer(bytes, bps));
        }
    }

    fn send(&mut self, from: usize, to: Rank, message: Message, handed_off: bool) {
        let state = &mut self.ranks[from];
        if !state.is_server() && !handed_off {
            let cost = self.handoff_send.cost(&message, self.cluster.vector_scale);
            state.hand_off(self.now, cost);
        }
        let held = HeldMessage { from: Rank::from(from), to, message };
        if !held.message.collective {
            return self.queue_out(held);
        }
        match self.gates.pass(held, self.living_workers) {
            Passage::Through(held) => self.queue_out(held),
            Passage::Waits(opens) => self.open_later(opens),
        }
    }

    /// These gates open when the fixed cost of a collective has passed.
    pub(crate) fn open_later(&mut self, gates: impl IntoIterator<Item = u32>) {
        for gate in gates {
            self.queue.schedule(self.now + self.gates.fixed(), SimEvent::Open(gate));
        }
    }

    /// A collective starts: what was held goes out.
    pub(crate) fn open_gate(&mut self, number: u32) {
        for held in self.gates.open(number) {
            let rank = held.from.index();
            if self.ranks[rank].is_alive() {
                self.queue_out(held);
                self.flush_outbox(rank);
            }
        }
    }

    fn queue_out(&mut self, held: HeldMessage) {
        let HeldMessage { from, to, message } = held;
        let limited = self.is_limited(from.index(), &message);
        let state = &mut self.ranks[from.index()];
        let at = state.free.max(self.now);
        if at > self.now || limited || !state.outbox.is_empty() {
            return state.outbox.push_back(QueuedSend { at, to, message });
        }
        self.hand_over(from.index(), to, message, false);
    }

    /// Hands to the network what the processor has ready and links have room for, in order.
    pub(crate) fn flush_outbox(&mut self, rank: usize) {
        while let Some(front) = self.ranks[rank].outbox.front() {
            if front.at > self.now {
                let at = front.at;
                return self.wake_at(rank, at);
            }
            let link = (rank as u32, front.to.0);
            let limited = self.is_limited(rank, &front.message);
            if limited && self.links.get(&link) >= Some(&self.cluster.link_messages) {
                // The message that is read next wakes this rank.
                return;
            }
            let front = self.ranks[rank].outbox.pop_front().expect("just seen");
            if limited {
                *self.links.entry(link).or_default() += 1;
            }
            self.hand_over(rank, front.to, front.message, limited);
        }
    }

    fn is_limited(&self, from: usize, message: &Message) -> bool {
        self.cluster.link_messages > 0 && !message.collective && !self.ranks[from].is_server()
    }

    /// Puts a message on the wire, its content being what it is.
    pub(crate) fn put_on_wire(
        &mut self,
        from: usize,
        to: Rank,
        message: Message,
        holds_link: bool,
    ) {
        let sender = Rank::from(from);
        let header = quelea_wire::HEADER_BYTES as u64;
        let bytes = header + scaled(message.payload_bytes(), self.cluster.vector_scale);
        let verdict = self.verdict(sender, to, &message, bytes);
        self.ranks[from].machine.note_sent(to, bytes);
        self.messages += 1;
        self.in_flight.add(self.now, bytes);
        let delay = if let Verdict::Delay(delay) = verdict { delay } else { Time::ZERO };
        let (number, head) =
            self.network.hand_over(self.now, sender, to, SentMessage { message, bytes, delay });
        let transit = self.network.transit_mut(number);
        transit.holds_link = holds_link;
        if self.cluster.blocking_sends && !self.ranks[from].is_server() {
            let left = transit.left;
            self.ranks[from].block(self.now, left);
        }
        match verdict {
            Verdict::Drop => self.discard(number),
            Verdict::Duplicate => {
                self.queue.schedule(head, SimEvent::Arrive(number));
                self.in_flight.add(self.now, bytes);
                let copy = self.network.duplicate(number);
                self.queue.schedule(head, SimEvent::Arrive(copy));
            }
            Verdict::Pass | Verdict::Delay(_) => {
                self.queue.schedule(head, SimEvent::Arrive(number))
            }
        }
    }

    fn verdict(&self, from: Rank, to: Rank, message: &Message, bytes: u64) -> Verdict {
        let faults = &self.cluster.faults;
        if !faults.touches_messages() {
            return Verdict::Pass;
        }
        let (number, kind, time) = (self.messages, message.kind, self.now);
        let flight = Flight { number, from, to, kind, time, bytes };
        let split = self.split_delay(from.index(), to.index());
        faults.verdict(self.setup.seed, split, &flight)
    }

    /// The head of a message has reached the receiver's card.
    pub(crate) fn arrive(&mut self, number: u32) {
        if self.was_cut_short(self.network.transit(number)) {
            return self.discard(number);
        }
        let at = self.network.arrive(self.now, number);
        self.queue.schedule(at, SimEvent::Deliver(number));
    }

    /// A message has arrived whole.
    pub(crate) fn deliver(&mut self, number: u32) {
        let transit = self.network.transit(number);
        let rank = transit.to.index();
        if self.was_cut_short(transit) || !self.ranks[rank].is_alive() {
            return self.discard(number);
        }
        let Transit { from, to, message, bytes, handed, holds_link, .. } =
            self.network.take(number);
        if self.timeline {
            let seconds = self.now.since(handed).seconds();
            let step = self.ranks[from.index()].machine.node().step();
            self.note(handed, from, step, RecordKind::Transfer { to: to.0, bytes, seconds });
        }
        let state = &mut self.ranks[rank];
        let is_worker = !state.is_server();
        let handoff = if is_worker {
            self.handoff_receive.cost(&message, self.cluster.vector_scale)
        } else {
            Time::ZERO
        };
        let limited = self.cluster.link_messages > 0;
        let arrived = Arrived { from, message, bytes, handoff, holds_link };
        if limited || handoff > Time::ZERO || state.free > self.now || !state.inbox.is_empty() {
            state.inbox.push_back(arrived);
        } else {
            self.read(rank, arrived);
        }
        self.settle(rank);
    }

    /// A rank that is lost sends nothing more: what had not left it whole never arrives.
    fn was_cut_short(&self, transit: &Transit) -> bool {
        // Asked twice for every message, so that the sender's state stays out of the way.
        self.has_lost && (self.was_cut_off(transit) || self.is_of_predecessor(transit))
    }

    /// Whether its sender was lost before it had left.
    fn was_cut_off(&self, transit: &Transit) -> bool {
        self.ranks[transit.from.index()].gone_since().is_some_and(|gone| transit.left > gone)
    }

    /// Whether it was sent by or to a worker in whose place another has joined meanwhile.
    fn is_of_predecessor(&self, transit: &Transit) -> bool {
        let since = |rank: Rank| self.ranks[rank.index()].since;
        transit.handed < since(transit.from) || transit.handed < since(transit.to)
    }

    fn discard(&mut self, number: u32) {
        let Transit { from, to, bytes, holds_link, .. } = self.network.take(number);
        self.leave_network(from, to, bytes, holds_link);
    }

    /// A message no longer counts as being on its way.
    pub(crate) fn leave_network(&mut self, from: Rank, to: Rank, bytes: u64, holds_link: bool) {
        self.in_flight.remove(self.now, bytes);
        if holds_link {
            let held = self.links.get_mut(&(from.0, to.0)).expect("counted when handed over");
            *held -= 1;
            self.wake_at(from.index(), self.now);
        }
    }

    /// Reads what has arrived, as soon as the processor is free. Where links are limited, a
    /// worker reads them only between gradients.
    pub(crate) fn read_inbox(&mut self, rank: usize) {
        loop {
            let state = &mut self.ranks[rank];
            let blocked = self.cluster.blocking_sends && !state.outbox.is_empty();
            let Some(front) = state.inbox.front_mut().filter(|_| !blocked) else { return };
            if state.free > self.now {
                let at = state.free;
                return self.wake_at(rank, at);
            }
            let handoff = std::mem::take(&mut front.handoff);
            let computing = state.running.is_some();
            if computing && self.cluster.link_messages > 0 && !front.message.collective {
                front.handoff = handoff;
                return;
            }
            if handoff > Time::ZERO {
                state.hand_off(self.now, handoff);
                continue;
            }
            let arrived = state.inbox.pop_front().expect("just seen");
            self.read(rank, arrived);
        }
    }

    fn read(&mut self, rank: usize, arrived: Arrived) {
        let Arrived { from, message, bytes, holds_link, .. } = arrived;
        self.ranks[rank].machine.message(self.now, from, message, bytes);
        self.leave_network(from, Rank::from(rank), bytes, holds_link);
        self.carry_out(rank);
    }
}

/// What so many bytes of a vector count as.
pub(crate) fn scaled(bytes: usize, scale: f64) -> u64 {
    if scale == 1.0 { bytes as u64 } else { (bytes as f64 * scale).round() as u64 }
}

/// Where the first vector of a message lies, to tell whether two messages carry the same one.
fn vector_of(message: &Message) -> Option<(*const f32, usize)> {
    match &message.parts[0] {
        Part::Values(values) => Some((values.as_ptr(), values.len())),
        Part::Encoded { data, .. } => Some((data.as_ptr(), data.len())),
        Part::Empty => None,
    }
}
