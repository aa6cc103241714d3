//! Control messages on their way over the simulated links: a connection between every two who talk, in order,
//! with latency and bandwidth.
//!
//! The controller has a host of its own, with a card like the others', or lives with a rank. A message that
//! is delayed holds up those behind it on its connection, as in TCP. What had not left a rank whole when that
//! was lost never arrives; a paused rank reads nothing.

use std::collections::{BTreeMap, VecDeque};

use quelea_control::{Command, PeerMessage, RankEvent};
use quelea_core::time::Time;
use quelea_record::RankCheckpoint;

use crate::driver::Driver;
use crate::queue::SimEvent;
use crate::traffic::scaled;

/// What travels between the controller and a rank, or between two ranks.
#[derive(Clone, Debug)]
pub(crate) enum ControlPacket {
    /// A rank tells the controller something.
    Event(RankEvent),
    /// The controller of this term tells a rank something.
    Command(u32, Command),
    /// A rank tells another something about who controls the run.
    Peer(PeerMessage),
}

/// Where control messages come from and go to: a rank, with the controller or not, or the controller's own
/// host.
pub(crate) type Place = Option<usize>;

/// How often it is looked whether a rank has handed over what it sends.
const OUTBOX_INTERVAL: Time = Time(50_000);
/// How long a packet takes from one thread of a process to another.
const WITHIN_PROCESS: Time = Time(1_000);
/// Numbers in a packet beside its vectors, roughly.
const FIELD_BYTES: u64 = 48;

impl ControlPacket {
    /// Its size on the wire, where every byte of a vector counts as `scale`.
    fn bytes(&self, scale: f64) -> u64 {
        let elements = match self {
            ControlPacket::Event(event) => event_elements(event),
            ControlPacket::Command(..) | ControlPacket::Peer(_) => 0,
        };
        quelea_wire::control::HEAD_BYTES as u64 + FIELD_BYTES + scaled(4 * elements, scale)
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ControlRoute {
    pub(crate) from: Place,
    pub(crate) to: Place,
}

/// A packet on its way.
#[derive(Clone, Debug)]
struct ControlTransit {
    route: ControlRoute,
    /// The incarnations of both ends when it was sent.
    ends: [u32; 2],
    packet: ControlPacket,
    bytes: u64,
    /// When its last byte leaves the sender.
    left: Time,
    /// From a byte's leaving to its arrival.
    flight: Time,
    has_arrived: bool,
}

/// What a controller with a host of its own has exchanged with ranks over the simulated network.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ControlLoad {
    /// Messages that ranks have sent to it.
    pub received: u64,
    /// Their bytes.
    pub received_bytes: u64,
    /// Messages that it has sent.
    pub sent: u64,
    /// Their bytes.
    pub sent_bytes: u64,
}

impl ControlLoad {
    fn count(&mut self, route: ControlRoute, bytes: u64) {
        match (route.from, route.to) {
            (Some(_), None) => {
                self.received += 1;
                self.received_bytes += bytes;
            }
            (None, Some(_)) => {
                self.sent += 1;
                self.sent_bytes += bytes;
            }
            _ => {}
        }
    }
}

/// All control messages on their way.
#[derive(Debug, Default)]
pub(crate) struct ControlNetwork {
    transits: Vec<Option<ControlTransit>>,
    vacant: Vec<u32>,
    /// Numbers of the packets on each connection, in the order in which they were sent.
    streams: BTreeMap<ControlRoute, VecDeque<u32>>,
    /// How many workers each rank has had: one that joins has connections of its own.
    incarnations: Vec<u32>,
    load: ControlLoad,
}

impl ControlNetwork {
    pub(crate) fn new(ranks: usize) -> ControlNetwork {
        ControlNetwork { incarnations: vec![0; ranks], ..ControlNetwork::default() }
    }

    /// What the controller has exchanged so far.
    pub(crate) fn load(&self) -> ControlLoad {
        self.load
    }

    /// A rank has new connections: what is still on the old ones reaches nobody.
    pub(crate) fn reconnect(&mut self, rank: usize) {
        self.incarnations[rank] += 1;
        self.streams.retain(|route, _| ![route.from, route.to].contains(&Some(rank)));
    }

    fn ends(&self, route: ControlRoute) -> [u32; 2] {
        [route.from, route.to].map(|place| place.map_or(0, |rank| self.incarnations[rank]))
    }

    fn is_on_old_connection(&mut self, number: u32) -> bool {
        let ControlTransit { route, ends, .. } = *self.transit(number);
        ends != self.ends(route)
    }

    fn store(&mut self, transit: ControlTransit) -> u32 {
        let route = transit.route;
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.transits.push(None);
            u32::try_from(self.transits.len() - 1).expect("fewer than 2^32 packets on their way")
        });
        self.transits[number as usize] = Some(transit);
        self.streams.entry(route).or_default().push_back(number);
        number
    }

    fn transit(&mut self, number: u32) -> &mut ControlTransit {
        self.transits[number as usize].as_mut().expect("it is on its way")
    }

    /// Takes a packet off its connection.
    fn take(&mut self, number: u32) -> ControlTransit {
        let transit = self.transits[number as usize].take().expect("it is on its way");
        self.vacant.push(number);
        let stream = self.streams.entry(transit.route).or_default();
        stream.retain(|other| *other != number);
        transit
    }

    /// The first packet of a connection, if it has arrived.
    fn first_arrived(&mut self, route: ControlRoute) -> Option<u32> {
        let first = self.streams.get(&route)?.front().copied()?;
        self.transit(first).has_arrived.then_some(first)
    }
}

impl Driver<'_> {
    /// Sends a control message over the network, or to another thread of the same process.
    pub(crate) fn send_control(&mut self, route: ControlRoute, packet: ControlPacket) {
        let ends = [route.from, route.to];
        if ends.iter().flatten().any(|rank| !self.ranks[*rank].is_alive()) {
            return;
        }
        let bytes = packet.bytes(self.cluster.vector_scale);
        if route.from == route.to {
            let (left, flight, ends) = (self.now, WITHIN_PROCESS, self.control.ends(route));
            let has_arrived = false;
            let transit = ControlTransit { route, ends, packet, bytes, left, flight, has_arrived };
            let number = self.control.store(transit);
            return self.queue.schedule(left + flight, SimEvent::ControlDeliver(number));
        }
        self.control.load.count(route, bytes);
        let port = self.port_of(route.from);
        let (start, left) = self.network.leave(self.now, port, bytes);
        let Some(delay) = self.control_delay(route) else { return };
        let flight = self.network.latency() + delay;
        let (ends, has_arrived) = (self.control.ends(route), false);
        let transit = ControlTransit { route, ends, packet, bytes, left, flight, has_arrived };
        let number = self.control.store(transit);
        self.queue.schedule(start + flight, SimEvent::ControlArrive(number));
    }

    fn port_of(&self, place: Place) -> u32 {
        place.map_or(self.network.controller_card(), |rank| self.network.card(rank))
    }

    /// How much later a packet arrives, if it does.
    fn control_delay(&self, route: ControlRoute) -> Option<Time> {
        let (faults, detect_ms) = (&self.cluster.faults, self.cluster.detect_ms);
        let mut longest = Time::ZERO;
        for rank in [route.from, route.to].into_iter().flatten() {
            longest = longest.max(faults.control_delay(rank as u32, self.now, detect_ms)?);
        }
        if let (Some(from), Some(to)) = (route.from, route.to) {
            longest = longest.max(self.split_delay(from, to)?);
        }
        Some(longest)
    }

    /// The head of a control message has reached the receiver's card.
    pub(crate) fn control_arrive(&mut self, number: u32) {
        if self.control.is_on_old_connection(number) {
            return drop(self.control.take(number));
        }
        let &mut ControlTransit { route, bytes, left, flight, .. } = self.control.transit(number);
        if self.was_control_cut_short(route, left) {
            drop(self.control.take(number));
            return self.deliver_control(route);
        }
        let port = self.port_of(route.to);
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
        let (route, left) = (transit.route, transit.left);
        if self.was_control_cut_short(route, left) {
            drop(self.control.take(number));
        }
        self.deliver_control(route);
    }

    /// A rank that is lost sends nothing more: what had not left it whole never arrives.
    fn was_control_cut_short(&self, route: ControlRoute, left: Time) -> bool {
        let Some(sender) = route.from.map(|rank| &self.ranks[rank]) else { return false };
        !sender.has_left() && sender.gone_since().is_some_and(|gone| left > gone)
    }

    /// When a rank reads this packet, if not now: when it runs again after a pause. What it has
    /// not handed to the network yet counts as sent in a real run, so that a probe is read after that.
    fn reads_later(&mut self, route: ControlRoute, number: u32) -> Option<Time> {
        let state = &self.ranks[route.to?];
        let packet = &self.control.transit(number).packet;
        let is_probe = matches!(packet, ControlPacket::Command(_, Command::Probe(_)));
        if state.is_alive() && is_probe && !state.outbox.is_empty() {
            return Some(self.now + OUTBOX_INTERVAL);
        }
        Some(state.paused_until()).filter(|until| *until > self.now)
    }

    /// Hands over what has arrived on a connection, in order.
    fn deliver_control(&mut self, route: ControlRoute) {
        while let Some(number) = self.control.first_arrived(route) {
            if let Some(later) = self.reads_later(route, number) {
                self.control.transit(number).has_arrived = false;
                return self.queue.schedule(later, SimEvent::ControlDeliver(number));
            }
            match (self.control.take(number).packet, route.to) {
                (ControlPacket::Event(event), to) => self.event_arrived(to, event),
                (ControlPacket::Command(term, command), Some(rank)) => {
                    self.command_arrived(rank, route.from, term, command);
                }
                (ControlPacket::Peer(message), Some(rank)) => {
                    self.peer_arrived(rank, route.from, message);
                }
                _ => {}
            }
        }
    }
}
