//! Cards, links, and what is on its way over them.
//!
//! A *port* is a full-duplex queue: the network card of a host, or the internal link of a rank.
//! Ports of hosts come first, then those of ranks, then the card of the controller's host.

use std::collections::BTreeSet;

use quelea_core::message::{Message, Rank};
use quelea_core::time::Time;

use crate::cluster::Cluster;

/// A message on its way.
#[derive(Clone, Debug)]
pub(crate) struct Transit {
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    pub(crate) message: Message,
    /// Header included.
    pub(crate) bytes: u64,
    /// When it was handed over.
    pub(crate) handed: Time,
    /// When its last byte leaves the sender.
    pub(crate) left: Time,
    /// From a byte's leaving to its arrival.
    flight: Time,
    ingress: u32,
    /// Whether it takes up room in its link until it is read.
    pub(crate) holds_link: bool,
}

/// A message as it is handed to the network.
#[derive(Clone, Debug)]
pub(crate) struct SentMessage {
    pub(crate) message: Message,
    /// Header included.
    pub(crate) bytes: u64,
    /// Beyond the latency.
    pub(crate) delay: Time,
}

/// All ports, and all messages on their way.
#[derive(Debug)]
pub(crate) struct VirtualNetwork {
    ports: Vec<Port>,
    /// The card of every rank.
    cards: Vec<u32>,
    /// The first internal link.
    internal: u32,
    /// The card of the controller's host.
    controller: u32,
    latency: Time,
    internal_latency: Time,
    transits: Vec<Option<Transit>>,
    vacant: Vec<u32>,
}

#[derive(Clone, Copy, Debug)]
struct Port {
    /// Bits per second for collectives and for other messages.
    collective_bps: u64,
    other_bps: u64,
    egress_free: Time,
    ingress_free: Time,
}

impl VirtualNetwork {
    /// The ports of ranks on these `hosts`.
    pub(crate) fn new(cluster: &Cluster, hosts: &[u32]) -> VirtualNetwork {
        let numbers: BTreeSet<u32> = hosts.iter().copied().collect();
        let numbers: Vec<u32> = numbers.into_iter().collect();
        let card = |host: &u32| {
            let gbps = cluster.host_bandwidth_gbps.get(host).unwrap_or(&cluster.bandwidth_gbps);
            Port::new(
                gbps * cluster.collective_efficiency,
                gbps * cluster.point_to_point_efficiency,
            )
        };
        let internal = Port::new(cluster.internal_gbps, cluster.internal_gbps);
        let place = |host: &u32| numbers.binary_search(host).expect("collected above") as u32;
        let plain = Port::new(
            cluster.bandwidth_gbps * cluster.collective_efficiency,
            cluster.bandwidth_gbps * cluster.point_to_point_efficiency,
        );
        let links = hosts.iter().map(|_| internal);
        VirtualNetwork {
            internal: numbers.len() as u32,
            controller: (numbers.len() + hosts.len()) as u32,
            ports: numbers.iter().map(card).chain(links).chain([plain]).collect(),
            cards: hosts.iter().map(place).collect(),
            latency: microseconds(cluster.latency_us),
            internal_latency: microseconds(cluster.internal_latency_us),
            transits: Vec::new(),
            vacant: Vec::new(),
        }
    }

    /// Hands a message over: it queues at the sender's port. Returns its number, and when its
    /// head reaches the receiver's port.
    pub(crate) fn hand_over(
        &mut self,
        now: Time,
        from: Rank,
        to: Rank,
        sent: SentMessage,
    ) -> (u32, Time) {
        let SentMessage { message, bytes, delay } = sent;
        let (egress, ingress, latency) = self.route(from, to);
        let port = &mut self.ports[egress as usize];
        let start = now.max(port.egress_free);
        let left = start + port.transfer(bytes, message.collective);
        port.egress_free = left;
        let flight = latency + delay;
        let (handed, holds_link) = (now, false);
        let transit =
            Transit { from, to, message, bytes, handed, left, flight, ingress, holds_link };
        (self.store(transit), start + flight)
    }

    /// The head has reached the receiver's port, which it claims now. Returns when the message
    /// has arrived whole: not before the sender's port has sent the last byte.
    pub(crate) fn arrive(&mut self, now: Time, number: u32) -> Time {
        let transit = self.transits[number as usize].as_ref().expect("it is on its way");
        let port = &mut self.ports[transit.ingress as usize];
        let start = now.max(port.ingress_free);
        let taken = start + port.transfer(transit.bytes, transit.message.collective);
        port.ingress_free = taken;
        taken.max(transit.left + transit.flight)
    }

    /// The card of a rank.
    pub(crate) fn card(&self, rank: usize) -> u32 {
        self.cards[rank]
    }

    /// The card of the controller's host.
    pub(crate) fn controller_card(&self) -> u32 {
        self.controller
    }

    /// From the first byte leaving one host to its arrival at another.
    pub(crate) fn latency(&self) -> Time {
        self.latency
    }

    /// Bytes that are no message of an algorithm queue at a sender's port: when the first leaves, and
    /// the last.
    pub(crate) fn leave(&mut self, now: Time, port: u32, bytes: u64) -> (Time, Time) {
        let port = &mut self.ports[port as usize];
        let start = now.max(port.egress_free);
        port.egress_free = start + port.transfer(bytes, false);
        (start, port.egress_free)
    }

    /// The head of such bytes has reached the receiver's port: when that has taken them all.
    pub(crate) fn enter(&mut self, now: Time, port: u32, bytes: u64) -> Time {
        let port = &mut self.ports[port as usize];
        port.ingress_free = now.max(port.ingress_free) + port.transfer(bytes, false);
        port.ingress_free
    }

    /// A message on its way.
    pub(crate) fn transit(&self, number: u32) -> &Transit {
        self.transits[number as usize].as_ref().expect("it is on its way")
    }

    /// A message on its way, to be changed.
    pub(crate) fn transit_mut(&mut self, number: u32) -> &mut Transit {
        self.transits[number as usize].as_mut().expect("it is on its way")
    }

    /// A copy of a message, whose head arrives together with the first one's.
    pub(crate) fn duplicate(&mut self, number: u32) -> u32 {
        let copy = Transit { holds_link: false, ..self.transit(number).clone() };
        self.store(copy)
    }

    /// Takes a message off the network.
    pub(crate) fn take(&mut self, number: u32) -> Transit {
        self.vacant.push(number);
        self.transits[number as usize].take().expect("it is on its way")
    }

    /// Whether no message of an algorithm is on its way.
    pub(crate) fn is_empty(&self) -> bool {
        self.vacant.len() == self.transits.len()
    }

    fn route(&self, from: Rank, to: Rank) -> (u32, u32, Time) {
        let (a, b) = (self.cards[from.index()], self.cards[to.index()]);
        if a != b {
            return (a, b, self.latency);
        }
        (self.internal + from.0, self.internal + to.0, self.internal_latency)
    }

    fn store(&mut self, transit: Transit) -> u32 {
        if let Some(number) = self.vacant.pop() {
            self.transits[number as usize] = Some(transit);
            return number;
        }
        self.transits.push(Some(transit));
        u32::try_from(self.transits.len() - 1).expect("fewer than 2^32 messages on their way")
    }
}

impl Port {
    fn new(collective_gbps: f64, other_gbps: f64) -> Port {
        Port {
            collective_bps: bits_per_second(collective_gbps),
            other_bps: bits_per_second(other_gbps),
            egress_free: Time::ZERO,
            ingress_free: Time::ZERO,
        }
    }

    fn transfer(&self, bytes: u64, collective: bool) -> Time {
        transfer(bytes, if collective { self.collective_bps } else { self.other_bps })
    }
}

/// Bits per second, rounded; at least one.
pub(crate) fn bits_per_second(gbps: f64) -> u64 {
    ((gbps * 1e9).round() as u64).max(1)
}

/// How long `bytes` take at this rate, rounded up to whole nanoseconds.
pub(crate) fn transfer(bytes: u64, bits_per_second: u64) -> Time {
    const NANOBITS: u64 = 8_000_000_000;
    Time(match bytes.checked_mul(NANOBITS) {
        Some(product) => product.div_ceil(bits_per_second),
        None => {
            let exact = (u128::from(bytes) * u128::from(NANOBITS)).div_ceil(bits_per_second.into());
            u64::try_from(exact).expect("a message takes less than five hundred years")
        }
    })
}

/// Rounded to the nearest nanosecond.
pub(crate) fn microseconds(us: f64) -> Time {
    Time((us * 1e3).round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use quelea_core::payload::Payload;

    fn message(bytes: u64) -> SentMessage {
        let vector = (bytes as usize - quelea_wire::HEADER_BYTES) / 4;
        let message = Message::new(0, 0, 0).with(Payload::from(vec![0.0; vector]));
        SentMessage { message, bytes, delay: Time::ZERO }
    }

    #[test]
    fn transfer_times_are_rounded_up() {
        assert_eq!(transfer(1, 8_000_000_000), Time(1));
        assert_eq!(transfer(1, 3_000_000_000), Time(3));
        assert_eq!(transfer(5_000_000_000, 1_000), Time(40_000_000_000_000_000));
    }

    #[test]
    fn a_fast_card_does_not_receive_before_a_slow_one_has_sent() {
        let mut cluster = Cluster { bandwidth_gbps: 10.0, ..Cluster::default() };
        cluster.host_bandwidth_gbps.insert(0, 1.0);
        let mut network = VirtualNetwork::new(&cluster, &[0, 1]);
        let (number, head) = network.hand_over(Time::ZERO, Rank(0), Rank(1), message(4_000_000));
        assert_eq!(head, Time(50_000));
        // 4 MB take 32 ms from the slow card and 3.2 ms into the fast one.
        assert_eq!(network.arrive(head, number), Time(32_050_000));
        let (number, head) = network.hand_over(Time::ZERO, Rank(1), Rank(0), message(4_000_000));
        assert_eq!(network.arrive(head, number), Time(32_050_000));
    }

    #[test]
    fn ranks_of_one_host_do_not_use_its_card() {
        let cluster = Cluster { internal_gbps: 80.0, ..Cluster::default() };
        let mut network = VirtualNetwork::new(&cluster, &[7, 7, 9]);
        let (inside, head) = network.hand_over(Time::ZERO, Rank(0), Rank(1), message(10_000));
        assert_eq!(network.arrive(head, inside), Time(1_000));
        let (outside, head) = network.hand_over(Time::ZERO, Rank(0), Rank(2), message(10_000));
        assert_eq!(network.arrive(head, outside), Time(50_000 + 8_000));
    }
}
