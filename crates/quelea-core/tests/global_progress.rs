//! Learning rates that follow all workers, not each its own step.

mod support;

use quelea_core::optim::ScheduleClock;
use quelea_core::random::Rng;
use support::{Case, Choice, Lab};

const WORKERS: usize = 4;
const STEPS: u64 = 6;
const RATE: f64 = 1.0 / 64.0;

/// Every step has half the rate of the one before.
fn halved(step: u64) -> f64 {
    0.5f64.powi(step as i32)
}

/// A flat slope: curvatures so small that every gradient is −1.
fn flat(algorithm: &'static str, clock: ScheduleClock) -> Lab {
    let case = Case {
        workers: WORKERS,
        curvature: vec![vec![1e-9]; WORKERS],
        target: vec![vec![1e9]; WORKERS],
        steps: STEPS,
        learning_rate: RATE,
        schedule: halved,
        ..Case::reference(algorithm)
    };
    Lab::with(&case, |setup| setup.schedule_clock = clock)
}

/// Worker 0 starts its first gradient at once and completes it when all others of the budget are
/// done; nobody else is slow, and messages arrive at once.
fn run_with_slow_worker(lab: &mut Lab) {
    let turn = |lab: &Lab, choice: &Choice| match choice {
        Choice::Deliver(_) => 0,
        Choice::Start(0) => 1,
        Choice::Finish(0) => u64::MAX,
        Choice::Finish(_) => 2,
        Choice::Start(rank) => 3 + lab.gradients[*rank],
    };
    while let Some(choice) = lab.choices().into_iter().min_by_key(|choice| turn(lab, choice)) {
        lab.take(choice);
    }
    lab.run_to_end(&mut Rng::new(1, "drain", 0));
}

/// How far all gradients of the budget move the mean with rates that follow all workers.
fn moved_by_all() -> f64 {
    let gradients = 0..STEPS * WORKERS as u64;
    gradients.map(|k| RATE * halved(k / WORKERS as u64) / WORKERS as f64).sum()
}

/// The same with rates that follow each worker.
fn moved_by_each(lab: &Lab) -> f64 {
    let of_worker = |gradients: &u64| (0..*gradients).map(halved).sum::<f64>();
    RATE * lab.gradients.iter().map(of_worker).sum::<f64>() / WORKERS as f64
}

fn assert_near(found: f64, expected: f64, what: &str) {
    assert!((found / expected - 1.0).abs() < 1e-4, "{what}: moved by {found}, not by {expected}");
}

#[test]
fn a_server_applies_every_gradient_with_the_rate_of_all_workers() {
    let mut lab = flat("asp", ScheduleClock::Global);
    run_with_slow_worker(&mut lab);
    assert_eq!(lab.gradients[0], 1);
    assert_near(f64::from(lab.server_model()[0]), moved_by_all(), "asp");
}

#[test]
fn a_slow_worker_takes_its_step_with_the_rate_of_all_workers() {
    let mut lab = flat("ad-psgd", ScheduleClock::Global);
    run_with_slow_worker(&mut lab);
    assert_eq!(lab.gradients[0], 1);
    assert_near(lab.mean()[0], moved_by_all(), "ad-psgd");
}

#[test]
fn the_own_clock_counts_each_workers_steps() {
    for algorithm in ["asp", "ad-psgd"] {
        let mut lab = flat(algorithm, ScheduleClock::Own);
        run_with_slow_worker(&mut lab);
        let expected = moved_by_each(&lab);
        assert!((expected / moved_by_all() - 1.0).abs() > 0.05, "the two clocks can be told apart");
        let servers = algorithm == "asp";
        let moved = if servers { f64::from(lab.server_model()[0]) } else { lab.mean()[0] };
        assert_near(moved, expected, algorithm);
    }
}

#[test]
fn the_global_step_is_the_mean_over_the_workers_and_never_falls() {
    let mut lab = Lab::new(&Case::reference("asp"));
    for node in &mut lab.nodes {
        for (done, step) in [(0, 0), (3, 0), (4, 1), (11, 2), (5, 2), (400, 100)] {
            node.progress(done);
            assert_eq!(node.global_step(), step, "{} after {done} gradients", node.rank);
        }
    }
}

#[test]
fn where_all_workers_do_the_same_rounds_the_global_step_is_their_own() {
    let mut lab = Lab::new(&Case::reference("allreduce"));
    lab.run_until_step(7, &mut Rng::new(1, "rounds", 0));
    for node in &mut lab.nodes {
        node.progress(400);
        assert_eq!(node.global_step(), 7);
    }
}
