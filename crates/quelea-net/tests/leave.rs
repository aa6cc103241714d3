//! A worker is given notice over TCP: it leaves between two steps, and the others continue.

mod common;

use common::{Run, Watch, coordinator, worker, worker_with};
use quelea_core::algorithms::ALGORITHMS;
use quelea_net::{Hosted, LeaveNotice, LossPolicy, NetError, NetOptions};
use quelea_record::{Outcome, RecordKind};

const WORKERS: usize = 4;
const STEPS: u64 = 300;

/// A run whose worker 3 is given notice once a third of all steps is done; whether it has left, and
/// how its process ended.
fn with_a_notice(algorithm: &str, on_loss: LossPolicy) -> (Result<Outcome, NetError>, Watch, bool) {
    let run = Run::of(algorithm, WORKERS).steps(STEPS);
    // Short ticks, so that the notice is seen while the run lasts.
    let options = NetOptions { on_loss, peer_seconds: 5.0, ..NetOptions::default() };
    let coordinator = coordinator(options.clone());
    let address = coordinator.address().to_string();
    let leave = LeaveNotice::default();
    let given = leave.clone();
    let mut watch = Watch::calling(move |done| {
        // The others must not have ended when the notice is seen.
        if done >= WORKERS as u64 * STEPS / 3 && !given.has_left() {
            given.give();
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    });
    let hosted = Hosted { workers: vec![0, 1] };
    let ended = std::thread::scope(|scope| {
        let (address, leave) = (&address, &leave);
        scope.spawn(move || drop(worker(address, Some(2))));
        let leaver = scope.spawn(move || {
            let options = NetOptions { leave: leave.clone(), peer_seconds: 0.1, ..options };
            worker_with(address, Some(3), &options)
        });
        let (setup, gradients) = (run.setup(), run.gradients());
        let ended = coordinator.run(run.job(), &setup, &gradients, &hosted, &mut watch);
        let left = leaver.join().expect("no panic");
        assert_eq!(left.is_ok(), ended.is_ok(), "{algorithm}: {left:?}");
        ended
    });
    (ended, watch, leave.has_left())
}

#[test]
fn every_algorithm_lets_a_worker_go_between_two_steps() {
    for entry in ALGORITHMS {
        let name = entry.meta.name;
        let (ended, watch, has_left) =
            with_a_notice(name, LossPolicy::Continue { min_workers: 1 });
        let outcome = ended.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(has_left && outcome.ranks[3].left, "{name}");
        assert!(outcome.ranks[3].steps >= STEPS / 8, "{name}: its own report came");
        let of = |kind: fn(&RecordKind) -> bool| {
            watch.records.iter().filter(move |record| kind(&record.event))
        };
        assert_eq!(of(|event| matches!(event, RecordKind::Left)).count(), 1, "{name}");
        assert_eq!(of(|event| matches!(event, RecordKind::Lost)).count(), 0, "{name}");
        let mut steps: Vec<(u32, u64)> = of(|event| matches!(event, RecordKind::Step { .. }))
            .map(|record| (record.rank, record.step))
            .collect();
        let all = steps.len();
        steps.sort_unstable();
        steps.dedup();
        assert_eq!(steps.len(), all, "{name}: a step was repeated");
    }
}

#[test]
fn a_run_that_would_have_too_few_workers_is_saved_and_ends_and_says_why() {
    let (ended, _, has_left) = with_a_notice("d-psgd", LossPolicy::Continue { min_workers: 4 });
    let Err(NetError::Stopped { reason, .. }) = ended else { panic!("{ended:?}") };
    assert!(!has_left);
    let why = "because rank 3 was given notice: fewer workers are left than `membership.min_workers`";
    assert_eq!(reason, why);
}

#[test]
fn a_run_that_is_to_stop_at_a_loss_is_saved_when_a_worker_is_given_notice() {
    let (ended, _, _) = with_a_notice("allreduce", LossPolicy::Stop);
    let Err(NetError::Stopped { reason, .. }) = ended else { panic!("{ended:?}") };
    assert!(reason.ends_with("`membership.on_loss` is \"stop\""), "{reason}");
}
