//! Learning rates of asynchronous runs follow all workers, in threads and over sockets.

mod common;

use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use common::{Run, coordinator};
use quelea_core::node::Loan;
use quelea_core::optim::ScheduleClock;
use quelea_core::problems::{Computed, GradientSource};
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_net::{Gradients, Hosted, NetOptions, Observer, join};
use quelea_record::{Outcome, Record, Request};

const WORKERS: usize = 4;
const STEPS: u64 = 20;
/// The step from which on the rate is 0.
const DROP: u64 = 8;
/// Gradients of each fast worker before the slow one may complete its first: 3 · 15 / 4 > 8.
const AHEAD: u64 = 15;
/// The controller has told everybody how far the run is when nothing has happened for so long.
const QUIET: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_secs(30);

/// Who is where.
#[derive(Default)]
struct Places {
    /// Fast workers that have done what they may without the slow one.
    waiting: usize,
    /// The slow worker may compute.
    is_open: bool,
    /// Gradients that the slow worker has done.
    done: u64,
}

/// Holds the slow worker up until the others are ahead, then those until it has taken part.
#[derive(Default)]
struct Gate {
    places: Mutex<Places>,
    changed: Condvar,
}

impl Gate {
    fn change(&self, change: impl FnOnce(&mut Places)) {
        change(&mut self.places.lock().expect("nobody panics with it"));
        self.changed.notify_all();
    }

    fn wait_until(&self, holds: impl Fn(&Places) -> bool) {
        let places: MutexGuard<'_, Places> = self.places.lock().expect("nobody panics with it");
        let waited = self.changed.wait_timeout_while(places, LIMIT, |places| !holds(places));
        assert!(!waited.expect("nobody panics with it").1.timed_out(), "the gate stays closed");
    }
}

/// Gradients of 0, but for those of worker 0 from its step `from` on: only they can move a model.
struct Source {
    gate: Arc<Gate>,
    rank: usize,
    from: u64,
}

impl GradientSource for Source {
    fn gradient(&mut self, loan: &mut Loan, _ready: &mut dyn FnMut(usize)) -> Computed {
        let step = loan.step();
        if self.rank == 0 {
            self.gate.wait_until(|places| places.is_open);
            self.gate.change(|places| places.done = step + 1);
        } else if step >= AHEAD {
            if step == AHEAD {
                self.gate.change(|places| places.waiting += 1);
            }
            self.gate.wait_until(|places| places.done > self.from + 1);
        }
        let moves = self.rank == 0 && step >= self.from;
        loan.vectors().1.fill(if moves { 1000.0 } else { 0.0 });
        Computed { loss: 0.0, samples: 1 }
    }

    /// Enough for a thread of its own, as a source that waits needs.
    fn operations(&self) -> u64 {
        1 << 40
    }
}

/// Opens the gate once the fast workers wait and everybody knows how far the run is.
struct Opener {
    gate: Arc<Gate>,
    moved: Instant,
}

impl Observer for Opener {
    fn record(&mut self, _record: Record) {}

    fn progress(&mut self, _done: u64, _total: u64, _now: Time) {
        self.moved = Instant::now();
    }

    fn request(&mut self) -> Request {
        let is_quiet = self.moved.elapsed() >= QUIET;
        self.gate.change(|places| places.is_open |= is_quiet && places.waiting == WORKERS - 1);
        Request::Continue
    }
}

struct Trial {
    run: Run,
    clock: ScheduleClock,
    gate: Arc<Gate>,
    from: u64,
}

impl Trial {
    fn new(algorithm: &str, clock: ScheduleClock, from: u64) -> Trial {
        let run = Run::of(algorithm, WORKERS).steps(STEPS);
        Trial { run, clock, gate: Arc::default(), from }
    }

    fn setup(&self) -> RunSpec {
        RunSpec {
            initial: vec![0.0; self.run.dimensions].into(),
            learning_rate: Arc::new(|step| if step < DROP { 0.1 } else { 0.0 }),
            schedule_clock: self.clock,
            ..self.run.setup()
        }
    }

    fn gradients(&self) -> Gradients {
        let (gate, from) = (Arc::clone(&self.gate), self.from);
        Gradients::Sources(Box::new(move |rank| {
            Box::new(Source { gate: Arc::clone(&gate), rank, from })
        }))
    }

    fn opener(&self) -> Opener {
        Opener { gate: Arc::clone(&self.gate), moved: Instant::now() }
    }

    fn in_threads(&self) -> Outcome {
        let options = NetOptions::default();
        quelea_net::threads(&self.setup(), &self.gradients(), &options, &mut self.opener())
            .expect("it ends")
    }

    fn over_sockets(&self) -> Outcome {
        let coordinator = coordinator(NetOptions::default());
        let address = coordinator.address().to_string();
        std::thread::scope(|scope| {
            for rank in 0..WORKERS {
                let address = &address;
                scope.spawn(move || {
                    let mut build = |_: &[u8]| Ok((self.setup(), self.gradients()));
                    join(address, Some(rank as u32), &NetOptions::default(), &mut build)
                        .expect("it takes part")
                });
            }
            let hosted = Hosted { workers: Vec::new() };
            let (setup, gradients) = (self.setup(), self.gradients());
            coordinator
                .run(self.run.job(), &setup, &gradients, &hosted, &mut self.opener())
                .expect("it ends")
        })
    }
}

fn has_moved(outcome: &Outcome) -> bool {
    outcome.ranks.iter().any(|rank| rank.params.iter().any(|x| *x != 0.0))
}

#[test]
fn the_rate_of_a_slow_worker_has_dropped_when_that_of_the_others_has() {
    for algorithm in ["ad-psgd", "aladdin", "asp"] {
        let outcome = Trial::new(algorithm, ScheduleClock::Global, 0).in_threads();
        assert!(!has_moved(&outcome), "{algorithm}: the slow worker's rate is not 0");
        let own = Trial::new(algorithm, ScheduleClock::Own, 0).in_threads();
        assert!(has_moved(&own), "{algorithm}: with its own clock its rate is the first one");
    }
}

/// Here grants bring the number: that of its third gradient is sent after the others were ahead.
#[test]
fn the_rate_of_a_slow_worker_has_dropped_over_sockets_too() {
    for algorithm in ["ad-psgd", "asp"] {
        let outcome = Trial::new(algorithm, ScheduleClock::Global, 2).over_sockets();
        assert!(!has_moved(&outcome), "{algorithm}: the slow worker's rate is not 0");
        let own = Trial::new(algorithm, ScheduleClock::Own, 2).over_sockets();
        assert!(has_moved(&own), "{algorithm}: with its own clock its rate is the first one");
    }
}
