//! The addresses of all ranks, as each worker is to reach them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use quelea_core::message::Rank;

/// Where the ranks are.
pub(super) struct AddressTable<'a> {
    pub(super) ranks: usize,
    /// Ranks that take no part; they have no address.
    pub(super) absent: &'a BTreeSet<Rank>,
    /// Where the coordinator's own ranks listen.
    pub(super) port: u16,
}

impl AddressTable<'_> {
    /// The addresses for somebody who reaches the coordinator at `own`: a worker that is reached only
    /// from the coordinator's machine is there, under the coordinator's address.
    pub(super) fn seen_from(
        &self,
        own: IpAddr,
        addresses: &BTreeMap<u32, SocketAddr>,
    ) -> Vec<String> {
        let address = |rank: usize| match addresses.get(&(rank as u32)) {
            _ if self.absent.contains(&Rank::from(rank)) => String::new(),
            Some(address) if address.ip().is_loopback() => {
                SocketAddr::new(own, address.port()).to_string()
            }
            Some(address) => address.to_string(),
            None => SocketAddr::new(own, self.port).to_string(),
        };
        (0..self.ranks).map(address).collect()
    }
}
