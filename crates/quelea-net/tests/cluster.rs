//! Whole runs: as threads, and over sockets.

mod common;

use common::{Run, Watch, bits};
use quelea_core::algorithms::ALGORITHMS;
use quelea_core::options::Options;
use quelea_core::properties::Budget;
use quelea_net::NetOptions;
use quelea_record::RecordKind;

#[test]
fn synchronous_algorithms_give_the_same_bits_in_threads_and_over_sockets() {
    for entry in ALGORITHMS {
        if !(entry.properties)(&Options::defaults(entry.meta.options)).synchronous {
            continue;
        }
        for workers in [1, 2, 3, 4] {
            let run = Run::of(entry.meta.name, workers);
            let near = run.threads().expect("threads");
            let far = run.sockets(workers % 2 == 0).expect("sockets");
            assert_eq!(bits(&near), bits(&far), "{} with {workers}", entry.meta.name);
            let traffic = |outcome: &quelea_record::Outcome| -> Vec<(u64, u64)> {
                outcome.ranks.iter().map(|rank| (rank.bytes_sent, rank.bytes_received)).collect()
            };
            assert_eq!(traffic(&near), traffic(&far));
        }
    }
}

#[test]
fn asynchronous_runs_compute_exactly_their_budget_of_gradients() {
    for entry in ALGORITHMS {
        if (entry.properties)(&Options::defaults(entry.meta.options)).budget
            != Budget::TotalGradients
        {
            continue;
        }
        for run in [Run::of(entry.meta.name, 3), Run::of(entry.meta.name, 4).steps(1)] {
            for outcome in [run.threads(), run.sockets(false), run.sockets(true)] {
                let outcome = outcome.expect("it ends");
                let steps: u64 = outcome.ranks[..run.workers].iter().map(|rank| rank.steps).sum();
                assert_eq!(steps, run.workers as u64 * run.steps, "{}", entry.meta.name);
                let sent: u64 = outcome.ranks.iter().map(|rank| rank.bytes_sent).sum();
                let received: u64 = outcome.ranks.iter().map(|rank| rank.bytes_received).sum();
                assert_eq!(sent, received, "nothing is left on its way");
            }
        }
    }
}

#[test]
fn every_step_is_recorded_and_time_is_split() {
    let run = Run::of("d-psgd", 3).steps(7);
    let mut watch = Watch::new();
    let options = NetOptions::default();
    let outcome =
        quelea_net::threads(&run.setup(), &run.gradients(), &options, &mut watch).expect("it ends");
    let steps = watch.records.iter().filter(|r| matches!(r.event, RecordKind::Step { .. })).count();
    let spans =
        watch.records.iter().filter(|r| matches!(r.event, RecordKind::Compute { .. })).count();
    let transfers = watch.records.iter().filter(|r| matches!(r.event, RecordKind::Transfer { .. }));
    assert_eq!((steps, spans), (21, 21));
    let sent: u64 = outcome.ranks.iter().map(|rank| rank.messages_sent).sum();
    assert_eq!(transfers.count() as u64, sent);
    for rank in &outcome.ranks {
        assert!(rank.exposed_seconds >= 0.0 && rank.waiting_seconds >= 0.0);
        let split = rank.compute_seconds + rank.exposed_seconds + rank.waiting_seconds;
        assert!(split <= outcome.clock_seconds * 1.01, "{split} of {}", outcome.clock_seconds);
    }
}

#[test]
fn a_run_without_steps_ends_where_it_starts() {
    for name in ["allreduce", "asp"] {
        let outcome = Run::of(name, 2).steps(0).threads().expect("nothing to do");
        assert!(outcome.ranks.iter().all(|rank| rank.params.iter().all(|x| *x == 0.0)));
    }
}
