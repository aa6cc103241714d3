//! Sends every worker the addresses of all, and waits until everybody is connected with everybody.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::admission::JoinedWorker;
use crate::error::NetError;
use crate::options::NetOptions;
use crate::protocol::{self, PacketError, SMALL_BYTES, SetupMessage, Wait};
use crate::transport::{MeshPlan, RankLinks, Transport};
use crate::trust::ControlStream;

/// The control connections, by rank.
pub(super) type Streams = BTreeMap<u32, ControlStream>;

/// Sends every worker the addresses of all, and waits until all are connected.
pub(super) fn exchange_addresses(
    plan: &MeshPlan,
    transport: &dyn Transport,
    joined: Vec<JoinedWorker>,
    seats: &[u32],
    options: &NetOptions,
    wait: Wait,
) -> Result<(Streams, Vec<RankLinks>), (Streams, NetError)> {
    let addresses: BTreeMap<u32, SocketAddr> =
        joined.iter().map(|worker| (worker.rank, worker.address)).collect();
    let streams: Streams = joined.into_iter().map(|worker| (worker.rank, worker.stream)).collect();
    let connect = || {
        for (rank, stream) in &streams {
            let own = stream.local_addr().map_err(|error| lost(*rank, error.into()))?;
            let addresses = table(plan, own.ip(), transport.port(), &addresses);
            let peers = SetupMessage::Peers { addresses, seats: seats.to_vec() };
            protocol::write(stream, &peers).map_err(|error| lost(*rank, error))?;
        }
        let from_here = table(plan, IpAddr::from([127, 0, 0, 1]), transport.port(), &addresses);
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

pub(super) fn lost(rank: u32, error: PacketError) -> NetError {
    NetError::Lost { rank, reason: format!("{error} while peers were connecting") }
}

/// Where the ranks are, for somebody who reaches the coordinator at `own`: a worker that is
/// reached only from the coordinator's machine is there, under the coordinator's address.
fn table(
    plan: &MeshPlan,
    own: IpAddr,
    port: u16,
    addresses: &BTreeMap<u32, SocketAddr>,
) -> Vec<String> {
    let address = |rank: usize| match addresses.get(&(rank as u32)) {
        Some(address) if address.ip().is_loopback() => SocketAddr::new(own, address.port()),
        Some(address) => *address,
        None => SocketAddr::new(own, port),
    };
    (0..plan.ranks).map(|rank| address(rank).to_string()).collect()
}
