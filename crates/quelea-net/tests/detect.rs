//! How a process that is stopped, or whose connection is cut, is noticed without a time-out that somebody
//! has set.

mod common;

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Run, Watch, coordinator, worker};
use quelea_core::node::Loan;
use quelea_core::problems::{Computed, GradientSource, Problem};
use quelea_core::time::Time;
use quelea_net::{Gradients, Hosted, LossPolicy, NetOptions, Observer};
use quelea_record::{Record, RecordKind, Request};

const WORKERS: usize = 3;

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

/// Stops a process once the detector has known it for a while, and the run after that was acted on.
struct Stopper {
    pid: String,
    began: Instant,
    stopped: Option<Instant>,
    noticed: Option<Duration>,
    lost: Vec<u32>,
}

impl Observer for Stopper {
    fn record(&mut self, record: Record) {
        match record.event {
            RecordKind::Lost => self.lost.push(record.rank),
            RecordKind::View { number: 1 } => {
                self.noticed = self.noticed.or(self.stopped.map(|stopped| stopped.elapsed()));
            }
            _ => {}
        }
    }

    fn progress(&mut self, _done: u64, _total: u64, _now: Time) {
        if self.stopped.is_none() && self.began.elapsed() > Duration::from_secs(3) {
            let kill = Command::new("kill").args(["-STOP", &self.pid]).status();
            assert!(kill.expect("kill is there").success());
            self.stopped = Some(Instant::now());
        }
    }

    fn request(&mut self) -> Request {
        if self.noticed.is_some() { Request::Stop } else { Request::Continue }
    }
}

#[test]
fn a_process_that_is_stopped_is_lost_without_a_time_out_that_somebody_has_set() {
    let run = Run::of("d-psgd", WORKERS).steps(u64::MAX >> 8);
    let on_loss = LossPolicy::Continue { min_workers: 1 };
    let coordinator = coordinator(NetOptions { on_loss, ..NetOptions::default() });
    let mut victim = child(&coordinator.address().to_string());
    let mut stopper = Stopper {
        pid: victim.id().to_string(),
        began: Instant::now(),
        stopped: None,
        noticed: None,
        lost: Vec::new(),
    };
    let hosted = Hosted { workers: vec![0, 1] };
    let (setup, gradients) = (run.setup(), run.gradients());
    let ended = coordinator.run(run.job(), &setup, &gradients, &hosted, &mut stopper);
    let _ = victim.kill();
    let _ = victim.wait();
    let text = ended.expect_err("the test stops it").to_string();
    assert!(text.starts_with("stopped"), "{text}");
    assert_eq!(stopper.lost, [WORKERS as u32 - 1]);
    let noticed = stopper.noticed.expect("it was acted on");
    println!("a stopped process was acted on after {:.2} s", noticed.as_secs_f64());
    // On an idle machine it takes about 1.6 s.
    assert!(noticed < Duration::from_secs(20), "{noticed:?}");
}

/// A source that says it is quick and takes its time, so that it runs on the rank's own thread.
struct Deceptive {
    source: Box<dyn GradientSource>,
    calls: u32,
    long: Duration,
}

impl GradientSource for Deceptive {
    fn gradient(&mut self, loan: &mut Loan, ready: &mut dyn FnMut(usize)) -> Computed {
        self.calls += 1;
        if self.calls == 10 {
            // The time that passes is what is tested.
            std::thread::sleep(self.long);
        }
        self.source.gradient(loan, ready)
    }

    fn operations(&self) -> u64 {
        1
    }
}

#[test]
fn a_worker_that_computes_on_its_own_thread_for_longer_than_silence_is_allowed_stays() {
    let run = Run::of("d-psgd", 2).steps(20);
    let options = NetOptions { peer_seconds: 2.0, ..NetOptions::default() };
    let coordinator = coordinator(NetOptions {
        on_loss: LossPolicy::Continue { min_workers: 1 },
        ..options.clone()
    });
    let address = coordinator.address().to_string();
    let hosted = Hosted { workers: vec![0] };
    let slow = |run: &Run, long: Duration| {
        let run = run.clone();
        Gradients::Sources(Box::new(move |rank| {
            let source = run.problem().source(rank);
            Box::new(Deceptive { source, calls: 0, long })
        }))
    };
    let outcome = std::thread::scope(|scope| {
        let joined = scope.spawn(|| {
            quelea_net::join(&address, Some(1), &options, &mut |job| {
                let run = Run::parse(job);
                let gradients = slow(&run, Duration::from_secs(5));
                Ok((run.setup(), gradients))
            })
        });
        let gradients = slow(&run, Duration::ZERO);
        let outcome =
            coordinator.run(run.job(), &run.setup(), &gradients, &hosted, &mut Watch::new());
        joined.join().expect("no panic").expect("it takes part to the end");
        outcome
    });
    let outcome = outcome.expect("computing is not silence");
    assert!(outcome.ranks.iter().all(|rank| !rank.lost && rank.steps == 20));
}
