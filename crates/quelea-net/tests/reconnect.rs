//! Connections between two ranks that break while both live.

mod common;

use std::sync::Arc;

use common::detour::{PeerDetour, detour};
use common::{Run, bits, coordinator, worker_with};
use quelea_core::time::Time;
use quelea_net::{Hosted, NetError, NetOptions, Observer};
use quelea_record::{Outcome, Record};

/// Breaks the connections between ranks 1 and 2 whenever so many steps are done.
struct Breaker {
    peers: Arc<PeerDetour>,
    every: u64,
}

impl Observer for Breaker {
    fn record(&mut self, _record: Record) {}

    fn progress(&mut self, done: u64, _total: u64, _now: Time) {
        if done.is_multiple_of(self.every) {
            self.peers.break_off();
        }
    }
}

/// A run of three whose ranks 1 and 2 are disconnected every so many steps.
fn broken(run: &Run, every: u64, options: &NetOptions) -> Result<Outcome, NetError> {
    let coordinator = coordinator(options.clone());
    let direct = coordinator.address().to_string();
    let peers = Arc::new(PeerDetour::default());
    // Rank 2 connects to rank 1, through the place where connections break.
    let indirect = detour(direct.clone(), Arc::clone(&peers));
    let mut breaker = Breaker { peers, every };
    std::thread::scope(|scope| {
        // If the run is aborted, so is their part of it.
        scope.spawn(|| worker_with(&indirect, Some(1), options));
        scope.spawn(|| worker_with(&direct, Some(2), options));
        let hosted = Hosted { workers: vec![0] };
        coordinator.run(run.job(), &run.setup(), &run.gradients(), &hosted, &mut breaker)
    })
}

#[test]
fn a_run_whose_connections_break_again_and_again_ends_with_the_same_bits() {
    let options = NetOptions { reconnect_seconds: 20.0, ..NetOptions::default() };
    for algorithm in ["allreduce", "d-psgd"] {
        let run = Run { dimensions: 5_000, ..Run::of(algorithm, 3).steps(60) };
        let whole = run.threads().expect("nothing breaks");
        let outcome = broken(&run, 20, &options).expect("connections are restored");
        assert_eq!(bits(&outcome), bits(&whole), "{algorithm}");
        let traffic = |outcome: &Outcome| -> Vec<(u64, u64)> {
            outcome.ranks.iter().map(|rank| (rank.messages_sent, rank.bytes_received)).collect()
        };
        assert_eq!(
            traffic(&outcome),
            traffic(&whole),
            "{algorithm}: nothing lost, nothing doubled"
        );
        let restored = outcome.warnings.iter().filter(|text| text.contains("were disconnected"));
        assert!(restored.count() > 0, "{algorithm}: {:?}", outcome.warnings);
    }
}

#[test]
fn without_reconnecting_a_broken_connection_is_a_lost_peer() {
    let run = Run::of("allreduce", 3).steps(300);
    let error = broken(&run, 20, &NetOptions::default()).expect_err("it cannot continue");
    assert!(matches!(&error, NetError::Lost { .. } | NetError::Stalled(_)), "{error}");
}
