//! A worker's process is killed, and the others continue by their algorithm's own rule.

mod common;

use std::process::{Child, Command, Stdio};

use common::{Run, Watch, coordinator, worker};
use quelea_core::algorithms::ALGORITHMS;
use quelea_core::properties::Budget;
use quelea_net::{Hosted, LossPolicy, NetError, NetOptions};
use quelea_record::{Outcome, RecordKind};

const WORKERS: usize = 4;
const STEPS: u64 = 300;

/// Not a test by itself: what [`child`] runs in a process of its own.
#[test]
fn child_process() {
    let Ok(address) = std::env::var("QUELEA_TEST_COORDINATOR") else { return };
    // Its coordinator says why it ends.
    let _ = worker(&address, Some(WORKERS as u32 - 1));
    std::process::exit(0);
}

fn child(address: &str) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child_process", "--nocapture"])
        .env("QUELEA_TEST_COORDINATOR", address)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

/// A run whose last worker is killed once a third of all steps is done; what is recorded of it.
fn with_a_loss(algorithm: &str, on_loss: LossPolicy) -> (Result<Outcome, NetError>, Watch) {
    let run = Run::of(algorithm, WORKERS).steps(STEPS);
    let coordinator = coordinator(NetOptions { on_loss, ..NetOptions::default() });
    let address = coordinator.address().to_string();
    let mut victim = child(&address);
    let pid = victim.id().to_string();
    let mut watch = Watch::calling(move |done| {
        if done == WORKERS as u64 * STEPS / 3 {
            let kill = Command::new("kill").args(["-KILL", &pid]).status();
            assert!(kill.expect("kill is there").success());
        }
    });
    let hosted = Hosted { workers: vec![0, 1] };
    let ended = std::thread::scope(|scope| {
        let joined = scope.spawn(|| worker(&address, Some(2)));
        let (setup, gradients) = (run.setup(), run.gradients());
        let ended = coordinator.run(run.job(), &setup, &gradients, &hosted, &mut watch);
        let joined = joined.join().expect("no panic");
        assert_eq!(joined.is_ok(), ended.is_ok(), "{algorithm}: {joined:?}");
        ended
    });
    let _ = victim.wait();
    (ended, watch)
}

#[test]
fn every_algorithm_continues_without_a_worker_that_is_killed() {
    for entry in ALGORITHMS {
        let name = entry.meta.name;
        let (ended, watch) = with_a_loss(name, LossPolicy::Continue { min_workers: 1 });
        let outcome = ended.unwrap_or_else(|error| panic!("{name}: {error}"));
        let lost: Vec<u32> =
            outcome.ranks.iter().filter(|rank| rank.lost).map(|rank| rank.rank).collect();
        assert_eq!(lost, [WORKERS as u32 - 1], "{name}");
        let survivors = || outcome.ranks.iter().filter(|rank| !rank.lost && !rank.is_server);
        let steps: Vec<u64> = survivors().map(|rank| rank.steps).collect();
        let run = Run::of(name, WORKERS);
        match run.setup().properties().budget {
            Budget::Rounds => assert_eq!(steps, [STEPS; WORKERS - 1], "{name}"),
            // What the lost worker did not do is done by the others, in whatever shares; only what it
            // held when they had already ended, its gradient and the next one, is done by nobody.
            Budget::TotalGradients => {
                let total: u64 = outcome.ranks.iter().map(|rank| rank.steps).sum();
                let budget = WORKERS as u64 * STEPS;
                assert!((budget - 2..=budget).contains(&total), "{name}: {steps:?}");
            }
        }
        assert!(survivors().all(|rank| rank.params.iter().all(|x| x.is_finite())), "{name}");
        let warned = outcome.warnings.iter().any(|text| text.starts_with("lost rank 3: "));
        assert!(warned, "{name}: {:?}", outcome.warnings);
        let entered = watch
            .records
            .iter()
            .filter(|record| matches!(record.event, RecordKind::View { number: 1 }));
        assert_eq!(entered.count(), outcome.ranks.len() - 1, "{name}: every survivor enters it");
    }
}

#[test]
fn replicas_of_all_reduce_stay_equal_after_a_kill() {
    let (ended, _) = with_a_loss("allreduce", LossPolicy::Continue { min_workers: 1 });
    let outcome = ended.expect("it continues");
    let bits = common::bits(&outcome);
    assert_eq!((&bits[0], &bits[0]), (&bits[1], &bits[2]));
}

#[test]
fn a_run_that_would_have_too_few_workers_ends_and_says_so() {
    let (ended, _) = with_a_loss("d-psgd", LossPolicy::Continue { min_workers: WORKERS });
    let text = ended.expect_err("four are wanted").to_string();
    assert!(text.starts_with("lost rank 3: "), "{text}");
    assert!(text.ends_with("fewer workers are left than `membership.min_workers`"), "{text}");
}

#[test]
fn a_run_that_is_to_stop_at_a_loss_stops() {
    let (ended, _) = with_a_loss("d-psgd", LossPolicy::Stop);
    let text = ended.expect_err("it stops").to_string();
    assert!(text.starts_with("lost rank 3: "), "{text}");
}
