//! The addresses of all ranks, as each worker is to reach them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use quelea_core::message::Rank;

use crate::error::NetError;
use crate::options::NetOptions;
use crate::protocol::{self, PacketError, SMALL_BYTES, SetupMessage, Wait};
use crate::rendezvous::admission::JoinedWorker;
use crate::transport::{RankLinks, Transport};
use crate::trust::ControlStream;

/// The connections of the workers that have joined, by rank.
pub(super) type Streams = BTreeMap<u32, ControlStream>;

/// Where a worker listens for its peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ListeningPlace {
    /// At this port of the address that its connection comes from.
    Port(u16),
    /// At this address, which is the worker's own claim.
    Advertised(SocketAddr),
}

impl ListeningPlace {
    /// Its address, where its connection comes from `ip`.
    pub(super) fn seen_at(self, ip: IpAddr) -> SocketAddr {
        match self {
            ListeningPlace::Port(port) => SocketAddr::new(ip, port),
            ListeningPlace::Advertised(address) => address,
        }
    }
}

/// Where the ranks are.
pub(super) struct AddressTable<'a> {
    pub(super) ranks: usize,
    /// Ranks that take no part; they have no address.
    pub(super) absent: &'a BTreeSet<Rank>,
    /// Where the coordinator's own ranks listen.
    pub(super) port: u16,
    /// What others are told of that, where it is not the address at which they reach the coordinator.
    pub(super) advertised: Option<SocketAddr>,
    /// Which time the seat of each rank was given.
    pub(super) seats: &'a [u32],
}

impl AddressTable<'_> {
    /// What somebody needs to connect who reaches the coordinator at `own`.
    pub(super) fn peers(&self, own: IpAddr, known: &BTreeMap<u32, SocketAddr>) -> SetupMessage {
        SetupMessage::Peers { addresses: self.seen_from(own, known), seats: self.seats.to_vec() }
    }

    /// The addresses for somebody who reaches the coordinator at `own`: a worker that is reached only
    /// from the coordinator's machine is there, under the coordinator's address.
    fn seen_from(&self, own: IpAddr, addresses: &BTreeMap<u32, SocketAddr>) -> Vec<String> {
        let address = |rank: usize| match addresses.get(&(rank as u32)) {
            _ if self.absent.contains(&Rank::from(rank)) => String::new(),
            Some(address) if address.ip().is_loopback() => {
                SocketAddr::new(own, address.port()).to_string()
            }
            Some(address) => address.to_string(),
            None => self.advertised.unwrap_or_else(|| SocketAddr::new(own, self.port)).to_string(),
        };
        (0..self.ranks).map(address).collect()
    }
}

/// Sends every worker the addresses of all, and waits until all are connected.
pub(super) fn exchange_addresses(
    table: &AddressTable<'_>,
    transport: &dyn Transport,
    joined: Vec<JoinedWorker>,
    options: &NetOptions,
    wait: Wait,
) -> Result<(Streams, Vec<RankLinks>), (Streams, NetError)> {
    let addresses: BTreeMap<u32, SocketAddr> =
        joined.iter().map(|worker| (worker.rank, worker.address)).collect();
    let streams: Streams = joined.into_iter().map(|worker| (worker.rank, worker.stream)).collect();
    let connect = || {
        for (rank, stream) in &streams {
            let own = stream.local_addr().map_err(|error| lost(*rank, error.into()))?;
            let peers = table.peers(own.ip(), &addresses);
            protocol::write(stream, &peers).map_err(|error| lost(*rank, error))?;
        }
        let from_here = table.seen_from(IpAddr::from([127, 0, 0, 1]), &addresses);
        let rank_links = transport.connect(&from_here, options, wait)?;
        for (rank, stream) in &streams {
            match protocol::read(stream, SMALL_BYTES, Some(wait)) {
                Ok(SetupMessage::Meshed) => {}
                Ok(SetupMessage::Unable { reason }) => {
                    return Err(NetError::Failed { rank: *rank, reason });
                }
                Ok(other) => {
                    let reason =
                        format!("it sent {other:?} instead of a confirmation that it is connected");
                    return Err(NetError::Failed { rank: *rank, reason });
                }
                Err(error) => return Err(lost(*rank, error)),
            }
        }
        Ok(rank_links)
    };
    match connect() {
        Ok(rank_links) => Ok((streams, rank_links)),
        Err(error) => Err((streams, error)),
    }
}

/// A worker is gone while all connect with each other.
pub(super) fn lost(rank: u32, error: PacketError) -> NetError {
    NetError::Lost { rank, reason: format!("{error} while peers were connecting") }
}
