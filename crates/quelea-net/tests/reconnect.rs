//! Connections between two ranks that break while both live.

mod common;

use std::sync::Arc;

use common::detour::{PeerDetour, detour};
use common::{Run, bits, coordinator, worker_with};
use quelea_core::time::Time;
use quelea_net::{Hosted, NetError, NetOptions, Observer, TransportKind};
use quelea_record::{Outcome, Record, RecordKind};

/// Breaks the connections between ranks 1 and 2 whenever so many steps are done.
struct Breaker {
    peers: Arc<PeerDetour>,
    every: u64,
    /// Who was connected again, with whom.
    restored: Vec<(u32, u32)>,
}

impl Observer for Breaker {
    fn record(&mut self, record: Record) {
        if let RecordKind::Reconnected { peer } = record.event {
            self.restored.push((record.rank, peer));
        }
    }

    fn progress(&mut self, done: u64, _total: u64, _now: Time) {
        if done.is_multiple_of(self.every) {
            self.peers.break_off();
        }
    }
}

/// A run of three whose ranks 1 and 2 are disconnected every so many steps.
fn broken(
    run: &Run,
    every: u64,
    options: &NetOptions,
) -> (Result<Outcome, NetError>, Vec<(u32, u32)>) {
    let coordinator = coordinator(options.clone());
    let direct = coordinator.address().to_string();
    let peers = Arc::new(PeerDetour::default());
    // Rank 2 connects to rank 1, through the place where connections break.
    let indirect = detour(direct.clone(), Arc::clone(&peers));
    let mut breaker = Breaker { peers, every, restored: Vec::new() };
    let ended = std::thread::scope(|scope| {
        // If the run is aborted, so is their part of it.
        scope.spawn(|| worker_with(&indirect, Some(1), options));
        scope.spawn(|| worker_with(&direct, Some(2), options));
        let hosted = Hosted { workers: vec![0] };
        coordinator.run(run.job(), &run.setup(), &run.gradients(), &hosted, &mut breaker)
    });
    (ended, breaker.restored)
}

/// Broken connections are restored, also those within this machine.
fn restoring() -> NetOptions {
    let (reconnect_seconds, transport) = (20.0, TransportKind::Tcp);
    NetOptions { reconnect_seconds, reconnects_near: true, transport, ..NetOptions::default() }
}

#[test]
fn a_run_whose_connections_break_again_and_again_ends_with_the_same_bits() {
    let options = restoring();
    for algorithm in ["allreduce", "d-psgd"] {
        let run = Run { dimensions: 5_000, ..Run::of(algorithm, 3).steps(60) };
        let whole = run.threads().expect("nothing breaks");
        let (ended, restored) = broken(&run, 20, &options);
        let outcome = ended.expect("connections are restored");
        assert_eq!(bits(&outcome), bits(&whole), "{algorithm}");
        let traffic = |outcome: &Outcome| -> Vec<(u64, u64)> {
            outcome.ranks.iter().map(|rank| (rank.messages_sent, rank.bytes_received)).collect()
        };
        assert_eq!(
            traffic(&outcome),
            traffic(&whole),
            "{algorithm}: nothing lost, nothing doubled"
        );
        let told = outcome.warnings.iter().filter(|text| text.contains("were disconnected"));
        assert!(told.count() > 0, "{algorithm}: {:?}", outcome.warnings);
        assert!(restored.contains(&(1, 2)) && restored.contains(&(2, 1)), "{restored:?}");
    }
}

#[test]
fn without_reconnecting_a_broken_connection_is_a_lost_peer() {
    let run = Run::of("allreduce", 3).steps(300);
    // Within one machine nothing is restored unless that is asked for.
    for reconnect_seconds in [0.0, 20.0] {
        let transport = TransportKind::Tcp;
        let options = NetOptions { reconnect_seconds, transport, ..NetOptions::default() };
        let error = broken(&run, 20, &options).0.expect_err("it cannot continue");
        assert!(matches!(&error, NetError::Lost { .. } | NetError::Stalled(_)), "{error}");
    }
}

#[test]
fn what_the_coordinator_says_of_restoring_holds_for_all() {
    let run = Run { dimensions: 5_000, ..Run::of("d-psgd", 3).steps(60) };
    let coordinator = coordinator(restoring());
    let direct = coordinator.address().to_string();
    let peers = Arc::new(PeerDetour::default());
    let indirect = detour(direct.clone(), Arc::clone(&peers));
    let mut breaker = Breaker { peers, every: 20, restored: Vec::new() };
    let joining = NetOptions { reconnect_seconds: 0.0, ..restoring() };
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| worker_with(&indirect, Some(1), &joining));
        scope.spawn(|| worker_with(&direct, Some(2), &joining));
        let hosted = Hosted { workers: vec![0] };
        coordinator.run(run.job(), &run.setup(), &run.gradients(), &hosted, &mut breaker)
    });
    assert_eq!(bits(&outcome.expect("restored")), bits(&run.threads().expect("nothing breaks")));
}
