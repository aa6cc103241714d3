//! Processes that die while they join a running run: the others continue, and the next one joins.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Run, coordinator};
use quelea_core::node::Loan;
use quelea_core::problems::{Computed, GradientSource, Problem};
use quelea_net::{Gradients, Hosted, LossPolicy, NetError, NetOptions, Observer, join};
use quelea_record::{Record, RecordKind, Request};

const WORKERS: usize = 3;
/// The rank of those who die.
const VICTIM: u32 = 2;
/// More than are ever taken: the run is asked to stop.
const STEPS: u64 = 10_000_000;

/// When a process dies.
const LOADING: &str = "loading";
const ENTERING: &str = "entering";
const NEVER: &str = "never";

/// A gradient that takes a millisecond, so that the machine is not kept busy.
struct Slow(Box<dyn GradientSource>);

impl GradientSource for Slow {
    fn gradient(&mut self, loan: &mut Loan, ready: &mut dyn FnMut(usize)) -> Computed {
        let begun = Instant::now();
        let computed = self.0.gradient(loan, ready);
        std::thread::sleep(Duration::from_millis(1).saturating_sub(begun.elapsed()));
        computed
    }

    fn operations(&self) -> u64 {
        1 << 40
    }
}

fn gradients(run: &Run, dies: &'static str) -> Gradients {
    let problem = run.problem();
    Gradients::Sources(Box::new(move |rank| {
        if dies == ENTERING {
            // It has its state, and is in the view.
            std::process::abort();
        }
        Box::new(Slow(problem.source(rank)))
    }))
}

fn worker(address: &str, rank: u32, dies: &'static str) -> Result<(), NetError> {
    join(address, Some(rank), &NetOptions::default(), &mut |job| {
        if dies == LOADING {
            std::process::abort();
        }
        let run = Run::parse(job);
        Ok((run.setup(), gradients(&run, dies)))
    })
}

/// Not a test by itself: what [`child`] runs in a process of its own.
#[test]
fn child_process() {
    let Ok(address) = std::env::var("QUELEA_TEST_COORDINATOR") else { return };
    let dies = std::env::var("QUELEA_TEST_DIES").unwrap_or_default();
    let dies = [LOADING, ENTERING, NEVER].into_iter().find(|stage| *stage == dies);
    // Its coordinator says why it ends.
    let _ = worker(&address, VICTIM, dies.expect("a stage"));
    std::process::exit(0);
}

fn child(address: &str, dies: &str) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child_process", "--nocapture"])
        .env("QUELEA_TEST_COORDINATOR", address)
        .env("QUELEA_TEST_DIES", dies)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

/// What the test and the run tell each other.
#[derive(Default)]
struct Signals {
    /// Steps of the worker that is killed and replaced.
    steps: AtomicU64,
    joined: AtomicU64,
    stops: AtomicBool,
}

impl Signals {
    fn await_steps(&self, more_than: u64) {
        let limit = Instant::now() + Duration::from_secs(120);
        while self.steps.load(Ordering::SeqCst) <= more_than {
            assert!(Instant::now() < limit, "nobody takes steps as rank {VICTIM}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

struct SignallingObserver(Arc<Signals>);

impl Observer for SignallingObserver {
    fn record(&mut self, record: Record) {
        if record.rank != VICTIM {
            return;
        }
        match record.event {
            RecordKind::Step { .. } => drop(self.0.steps.fetch_add(1, Ordering::SeqCst)),
            RecordKind::Joined => drop(self.0.joined.fetch_add(1, Ordering::SeqCst)),
            _ => {}
        }
    }

    fn request(&mut self) -> Request {
        if self.0.stops.load(Ordering::SeqCst) { Request::Stop } else { Request::Continue }
    }
}

/// One process after the other joins and dies, each at another moment; the last one takes steps.
fn replace_until_one_stays(address: &str, signals: &Signals) {
    let mut first = child(address, NEVER);
    signals.await_steps(20);
    let _ = first.kill();
    let _ = first.wait();
    for stage in [LOADING, ENTERING, ENTERING, LOADING] {
        let _ = child(address, stage).wait();
    }
    // Anywhere between starting, connecting, waiting for a cut and the first steps.
    for k in 0..8 {
        let mut any = child(address, NEVER);
        std::thread::sleep(Duration::from_millis(15 * k));
        let _ = any.kill();
        let _ = any.wait();
    }
    let before = signals.steps.load(Ordering::SeqCst);
    let mut last = child(address, NEVER);
    signals.await_steps(before + 20);
    signals.stops.store(true, Ordering::SeqCst);
    let _ = last.wait();
}

fn survives_dying_joiners(algorithm: &str) {
    let run = Run::of(algorithm, WORKERS).steps(STEPS);
    let on_loss = LossPolicy::Continue { min_workers: 1 };
    let coordinator = coordinator(NetOptions { on_loss, ..NetOptions::default() });
    let address = coordinator.address().to_string();
    let signals = Arc::new(Signals::default());
    let hosted = Hosted { workers: vec![0, 1] };
    let ended = std::thread::scope(|scope| {
        let (address, shared) = (&address, Arc::clone(&signals));
        scope.spawn(move || {
            let signals = &*shared;
            let replaced = catch_unwind(AssertUnwindSafe(|| {
                replace_until_one_stays(address, signals);
            }));
            // The run ends in any case.
            signals.stops.store(true, Ordering::SeqCst);
            replaced.unwrap_or_else(|panic| resume_unwind(panic));
        });
        let mut observer = SignallingObserver(Arc::clone(&signals));
        coordinator.run(run.job(), &run.setup(), &gradients(&run, NEVER), &hosted, &mut observer)
    });
    assert!(matches!(ended, Err(NetError::Stopped { .. })), "{algorithm}: {ended:?}");
    // Those that died as they entered, and the last one; the others may have come that far.
    assert!(signals.joined.load(Ordering::SeqCst) >= 3, "{algorithm}");
}

#[test]
fn a_synchronous_run_survives_processes_that_die_while_they_join() {
    survives_dying_joiners("allreduce");
}

#[test]
fn an_asynchronous_run_survives_processes_that_die_while_they_join() {
    survives_dying_joiners("ad-psgd");
}
