//! Workers that join a running run, where links are encrypted.

use std::net::IpAddr;
use std::sync::mpsc::channel;

use quelea_core::message::Rank;
use tokio::sync::mpsc::unbounded_channel;

use super::super::{Doors, MeshPlan, Transport, TransportKind};
use crate::options::NetOptions;
use crate::protocol::Wait;
use crate::rank::Inbox;
use crate::trust::{LinkIdentity, RankKey, RankSeat, RunAuthority};

const RUN: u64 = 7;

fn identity(authority: &RunAuthority, seat: RankSeat, seats: [u32; 2]) -> LinkIdentity {
    let key = RankKey::new().expect("a key");
    let credentials = authority.certify(seat, key.public()).expect("a certificate");
    let identity = key.identity(RUN, &credentials).expect("a good one");
    identity.seats().set(seats.into());
    identity
}

fn open(rank: u32, identity: LinkIdentity, doors: Doors) -> Box<dyn Transport> {
    let plan = MeshPlan {
        run: RUN,
        ranks: 2,
        here: [Rank(rank)].into(),
        identity: Some(identity),
        is_late: rank == 1,
        doors,
    };
    let options = NetOptions { handshake_seconds: 0.5, ..NetOptions::default() };
    let ip = IpAddr::from([127, 0, 0, 1]);
    // Nobody hears warnings.
    TransportKind::Tcp.open(plan, ip, &options, channel().0).expect("a free port")
}

#[test]
fn a_worker_joins_with_a_seat_that_was_given_after_the_last_holder_had_left() {
    let authority = RunAuthority::new(RUN).expect("a key");
    let own = identity(&authority, RankSeat { rank: 0, times: 1 }, [1, 1]);
    let doors = Doors::of(Some(own.clone()));
    let (inbox, mut heard) = unbounded_channel();
    doors.open(Rank(0), inbox);
    doors.miss([Rank(1)]);
    let place = open(0, own.clone(), doors.clone());
    let addresses = [format!("127.0.0.1:{}", place.port()), String::new()];
    let mut joins = |times| {
        let shown = identity(&authority, RankSeat { rank: 1, times }, [1, times]);
        let joiner = open(1, shown, Doors::default());
        let options = NetOptions { handshake_seconds: 5.0, ..NetOptions::default() };
        let joined = joiner.connect(&addresses, &options, Wait::new(5.0, "a test"));
        if joined.is_ok() {
            // The worker is answered a moment before the rank hears of it.
            assert!(matches!(heard.blocking_recv(), Some(Inbox::Peer(_))));
        } else {
            assert!(heard.try_recv().is_err());
        }
        joined.map(|_| ()).map_err(|error| error.to_string())
    };
    // The rank has left; its former holder cannot return, and nobody takes a seat that was not given.
    let told = joins(1).expect_err("it has left");
    assert!(told.ends_with("its certificate is that of the rank 1 that has left"), "{told}");
    let told = joins(2).expect_err("it was not given");
    assert!(told.ends_with("its certificate is not rank 1's"), "{told}");
    own.seats().give(RankSeat { rank: 1, times: 2 });
    let told = joins(1).expect_err("it has left");
    assert!(told.ends_with("its certificate is not rank 1's"), "{told}");
    assert_eq!(joins(2), Ok(()));
    // It takes part and is lost: its seat holds no more.
    doors.welcome(&[Rank(1)]);
    doors.miss([Rank(1)]);
    let told = joins(2).expect_err("it has left");
    assert!(told.ends_with("its certificate is that of the rank 1 that has left"), "{told}");
}
