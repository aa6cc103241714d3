//! Control messages on their way over the simulated links: a connection between the controller and each
//! rank, in order, with latency and bandwidth.
//!
//! The controller has a host of its own, with a card like the others'. A message that is delayed holds
//! up those behind it on its connection, as in TCP. What had not left a rank whole when that was lost never
//! arrives; a paused rank reads nothing.

use std::collections::VecDeque;

use quelea_control::{Command, RankEvent};
use quelea_core::time::Time;
use quelea_record::RankCheckpoint;

use crate::driver::Driver;
use crate::queue::SimEvent;
use crate::traffic::scaled;

/// What travels between the controller and a rank.
#[derive(Clone, Debug)]
pub(crate) enum ControlPacket {
    /// A rank tells the controller something.
    Event(RankEvent),
    /// The controller tells a rank something.
    Command(Command),
}

/// How often it is looked whether a rank has handed over what it sends.
const OUTBOX_INTERVAL: Time = Time(50_000);
/// Numbers in a packet beside its vectors, roughly.
const FIELD_BYTES: u64 = 48;

impl ControlPacket {
    /// Its size on the wire, where every byte of a vector counts as `scale`.
    fn bytes(&self, scale: f64) -> u64 {
        let elements = match self {
            ControlPacket::Event(event) => event_elements(event),
            ControlPacket::Command(_) => 0,
        };
        quelea_wire::control::HEAD_BYTES as u64 + FIELD_BYTES + scaled(4 * elements, scale)
    }

    fn direction(&self) -> Direction {
        match self {
            ControlPacket::Event(_) => Direction::ToController,
            ControlPacket::Command(_) => Direction::ToRank,
        }
    }
}

/// Elements of all vectors of an event.
fn event_elements(event: &RankEvent) -> usize {
    let of_part = |part: &RankCheckpoint| part.state.vectors.values().map(Vec::len).sum::<usize>();
    match event {
        RankEvent::Model { model, .. } | RankEvent::Salvaged { model, .. } => model.len(),
        RankEvent::Report(report) => report.params.len() + report.model.len(),
        RankEvent::Saved { part, .. } => of_part(part),
        _ => 0,
    }
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToController,
    ToRank,
}

/// A packet on its way.
#[derive(Clone, Debug)]
struct ControlTransit {
    rank: usize,
    /// The how-many-th connection of the rank this is on.
    connection: u32,
    packet: ControlPacket,
    bytes: u64,
    /// When its last byte leaves the sender.
    left: Time,
    /// From a byte's leaving to its arrival.
    flight: Time,
    has_arrived: bool,
}

/// All control messages on their way.
#[derive(Debug)]
pub(crate) struct ControlNetwork {
    transits: Vec<Option<ControlTransit>>,
    vacant: Vec<u32>,
    /// Numbers of the packets on each connection, by rank, in the order in which they were sent.
    to_controller: Vec<VecDeque<u32>>,
    to_rank: Vec<VecDeque<u32>>,
    /// How many connections each rank has had: a worker that joins has a new one.
    connections: Vec<u32>,
}

impl ControlNetwork {
    pub(crate) fn new(ranks: usize) -> ControlNetwork {
        let streams = vec![VecDeque::new(); ranks];
        ControlNetwork {
            transits: Vec::new(),
            vacant: Vec::new(),
            to_controller: streams.clone(),
            to_rank: streams,
            connections: vec![0; ranks],
        }
    }

    /// A rank has a new connection: what is still on the old one reaches nobody.
    pub(crate) fn reconnect(&mut self, rank: usize) {
        self.connections[rank] += 1;
        self.to_controller[rank].clear();
        self.to_rank[rank].clear();
    }

    fn is_on_old_connection(&mut self, number: u32) -> bool {
        let ControlTransit { rank, connection, .. } = *self.transit(number);
        connection != self.connections[rank]
    }

    fn stream(&mut self, rank: usize, direction: Direction) -> &mut VecDeque<u32> {
        match direction {
            Direction::ToController => &mut self.to_controller[rank],
            Direction::ToRank => &mut self.to_rank[rank],
        }
    }

    fn store(&mut self, transit: ControlTransit) -> u32 {
        let (rank, direction) = (transit.rank, transit.packet.direction());
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.transits.push(None);
            u32::try_from(self.transits.len() - 1).expect("fewer than 2^32 packets on their way")
        });
        self.transits[number as usize] = Some(transit);
        self.stream(rank, direction).push_back(number);
        number
    }

    fn transit(&mut self, number: u32) -> &mut ControlTransit {
        self.transits[number as usize].as_mut().expect("it is on its way")
    }

    /// Takes a packet off its connection.
    fn take(&mut self, number: u32) -> ControlTransit {
        let transit = self.transits[number as usize].take().expect("it is on its way");
        self.vacant.push(number);
        self.stream(transit.rank, transit.packet.direction()).retain(|other| *other != number);
        transit
    }

    /// The first packet of a connection, if it has arrived.
    fn first_arrived(&mut self, rank: usize, direction: Direction) -> Option<u32> {
        let first = self.stream(rank, direction).front().copied()?;
        self.transit(first).has_arrived.then_some(first)
    }
}

impl Driver<'_> {
    /// Sends a control message over the network.
    pub(crate) fn send_control(&mut self, rank: usize, packet: ControlPacket) {
        if !self.ranks[rank].is_alive() {
            return;
        }
        let bytes = packet.bytes(self.cluster.vector_scale);
        let port = match packet.direction() {
            Direction::ToController => self.network.card(rank),
            Direction::ToRank => self.network.controller_card(),
        };
        let (start, left) = self.network.leave(self.now, port, bytes);
        let (faults, detect_ms) = (&self.cluster.faults, self.cluster.detect_ms);
        let Some(delay) = faults.control_delay(rank as u32, self.now, detect_ms) else { return };
        let flight = self.network.latency() + delay;
        let (connection, has_arrived) = (self.control.connections[rank], false);
        let transit = ControlTransit { rank, connection, packet, bytes, left, flight, has_arrived };
        let number = self.control.store(transit);
        self.queue.schedule(start + flight, SimEvent::ControlArrive(number));
    }

    /// The head of a control message has reached the receiver's card.
    pub(crate) fn control_arrive(&mut self, number: u32) {
        if self.control.is_on_old_connection(number) {
            return drop(self.control.take(number));
        }
        let &mut ControlTransit { rank, bytes, left, flight, ref packet, .. } =
            self.control.transit(number);
        let direction = packet.direction();
        if self.was_control_cut_short(rank, direction, left) {
            drop(self.control.take(number));
            return self.deliver_control(rank, direction);
        }
        let port = match direction {
            Direction::ToController => self.network.controller_card(),
            Direction::ToRank => self.network.card(rank),
        };
        let at = self.network.enter(self.now, port, bytes).max(left + flight);
        self.queue.schedule(at, SimEvent::ControlDeliver(number));
    }

    /// A control message has arrived whole, or the rank that reads it runs again.
    pub(crate) fn control_deliver(&mut self, number: u32) {
        if self.control.is_on_old_connection(number) {
            return drop(self.control.take(number));
        }
        let transit = self.control.transit(number);
        transit.has_arrived = true;
        let (rank, left, direction) = (transit.rank, transit.left, transit.packet.direction());
        if self.was_control_cut_short(rank, direction, left) {
            drop(self.control.take(number));
        }
        self.deliver_control(rank, direction);
    }

    /// A rank that is lost sends nothing more: what had not left it whole never arrives.
    fn was_control_cut_short(&self, rank: usize, direction: Direction, left: Time) -> bool {
        let is_sender = direction == Direction::ToController && !self.ranks[rank].has_left;
        is_sender && self.ranks[rank].lost.is_some_and(|lost| left > lost)
    }

    /// When a rank reads this packet, if not now: when it runs again after a pause. What it has
    /// not handed to the network yet counts as sent in a real run, so that a probe is read after that.
    fn reads_later(&mut self, rank: usize, number: u32) -> Option<Time> {
        let state = &self.ranks[rank];
        let ControlPacket::Command(command) = &self.control.transit(number).packet else {
            return None;
        };
        let is_probe = matches!(command, Command::Probe(_));
        if state.is_alive() && is_probe && !state.outbox.is_empty() {
            return Some(self.now + OUTBOX_INTERVAL);
        }
        Some(state.paused_until()).filter(|until| *until > self.now)
    }

    /// Hands over what has arrived on a connection, in order.
    fn deliver_control(&mut self, rank: usize, direction: Direction) {
        while let Some(number) = self.control.first_arrived(rank, direction) {
            if let Some(later) = self.reads_later(rank, number) {
                self.control.transit(number).has_arrived = false;
                return self.queue.schedule(later, SimEvent::ControlDeliver(number));
            }
            match self.control.take(number).packet {
                ControlPacket::Event(event) => self.hear_event(event),
                ControlPacket::Command(command) => self.command(rank, command),
            }
        }
    }
}
