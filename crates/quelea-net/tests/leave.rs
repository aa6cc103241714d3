//! A worker is given notice over TCP: it leaves between two steps, and the others continue.

mod common;

use std::time::{Duration, Instant};

use common::{Run, Watch, coordinator};
use quelea_core::algorithms::ALGORITHMS;
use quelea_core::node::Loan;
use quelea_core::problems::{Computed, GradientSource, Problem};
use quelea_net::{Gradients, Hosted, LeaveNotice, LossPolicy, NetError, NetOptions, join};
use quelea_record::{Outcome, RecordKind};

const WORKERS: usize = 4;
const STEPS: u64 = 400;
/// Long enough that a run has not ended when a notice is noticed.
const GRADIENT: Duration = Duration::from_millis(2);

/// A gradient that takes its time.
struct Slow(Box<dyn GradientSource>);

impl GradientSource for Slow {
    fn gradient(&mut self, loan: &mut Loan, ready: &mut dyn FnMut(usize)) -> Computed {
        let begun = Instant::now();
        let computed = self.0.gradient(loan, ready);
        std::thread::sleep(GRADIENT.saturating_sub(begun.elapsed()));
        computed
    }

    fn operations(&self) -> u64 {
        1 << 40
    }
}

fn gradients(run: &Run) -> Gradients {
    let problem = run.problem();
    Gradients::Sources(Box::new(move |rank| Box::new(Slow(problem.source(rank)))))
}

fn worker(address: &str, rank: u32, options: &NetOptions) -> Result<(), NetError> {
    join(address, Some(rank), options, &mut |job| {
        let run = Run::parse(job);
        Ok((run.setup(), gradients(&run)))
    })
}

/// A run whose worker 3 is given notice once an eighth of all steps is done; whether it has left, and
/// how its process ended.
fn with_a_notice(algorithm: &str, on_loss: LossPolicy) -> (Result<Outcome, NetError>, Watch, bool) {
    let run = Run::of(algorithm, WORKERS).steps(STEPS);
    // Short ticks, so that the notice is seen soon.
    let options = NetOptions { on_loss, peer_seconds: 2.0, ..NetOptions::default() };
    let coordinator = coordinator(options.clone());
    let address = coordinator.address().to_string();
    let leave = LeaveNotice::default();
    let given = leave.clone();
    let mut watch = Watch::calling(move |done| {
        if done >= WORKERS as u64 * STEPS / 8 {
            given.give();
        }
    });
    let hosted = Hosted { workers: vec![0, 1] };
    let ended = std::thread::scope(|scope| {
        let (address, leave, options) = (&address, &leave, &options);
        scope.spawn(move || drop(worker(address, 2, options)));
        let leaver = scope.spawn(move || {
            let options = NetOptions { leave: leave.clone(), ..options.clone() };
            worker(address, 3, &options)
        });
        let (setup, gradients) = (run.setup(), gradients(&run));
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
        let (ended, watch, has_left) = with_a_notice(name, LossPolicy::Continue { min_workers: 1 });
        let outcome = ended.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(has_left && outcome.ranks[3].left, "{name}");
        assert!(outcome.ranks[3].steps >= STEPS / 16, "{name}: its own report came");
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
    let why =
        "because rank 3 was given notice: fewer workers are left than `membership.min_workers`";
    assert_eq!(reason, why);
}

#[test]
fn a_run_that_is_to_stop_at_a_loss_is_saved_when_a_worker_is_given_notice() {
    let (ended, _, _) = with_a_notice("allreduce", LossPolicy::Stop);
    let Err(NetError::Stopped { reason, .. }) = ended else { panic!("{ended:?}") };
    assert!(reason.ends_with("`membership.on_loss` is \"stop\""), "{reason}");
}
