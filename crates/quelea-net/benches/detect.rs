//! From the end or the stop of a process until the others have entered a view without it; and what
//! heartbeats cost.

mod common;

use std::process::{Child, Command};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{is_test, median, setup, wants_json};
use quelea_core::algorithms;
use quelea_core::layout::Layout;
use quelea_core::node::Loan;
use quelea_core::problems::{Computed, GradientSource};
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_net::{Coordinator, Gradients, Hosted, LossPolicy, NetOptions, Observer, join};
use quelea_record::{Record, RecordKind, Request};

const WORKERS: usize = 4;
const ELEMENTS: usize = 1000;
/// The detector knows a process for so long before something happens to it.
const KNOWN: Duration = Duration::from_secs(3);
/// For how long the cost of heartbeats is measured.
const COST_SECONDS: f64 = 20.0;

/// Gradients that take their time and no processor.
struct Sleeps(Duration);

impl GradientSource for Sleeps {
    fn gradient(&mut self, _loan: &mut Loan, _ready: &mut dyn FnMut(usize)) -> Computed {
        std::thread::sleep(self.0);
        Computed::default()
    }

    /// On a thread of its own.
    fn operations(&self) -> u64 {
        u64::MAX
    }
}

/// What a run is made of: the milliseconds of a gradient are its job.
fn run(milliseconds: u64, steps: u64) -> (RunSpec, Gradients) {
    let entry = algorithms::find("allreduce").expect("in the table");
    let setup = RunSpec {
        layout: Arc::new(Layout::plain(ELEMENTS, 0)),
        initial: vec![1.0; ELEMENTS].into(),
        ..setup(entry.worker, WORKERS, steps)
    };
    let sleep = Duration::from_millis(milliseconds);
    (setup, Gradients::Sources(Box::new(move |_| Box::new(Sleeps(sleep)))))
}

fn child(address: &str, rank: usize) -> Child {
    Command::new(std::env::current_exe().expect("this bench"))
        .env("QUELEA_BENCH_ADDRESS", address)
        .env("QUELEA_BENCH_RANK", rank.to_string())
        .spawn()
        .expect("it starts")
}

fn take_part(address: &str) {
    let rank = std::env::var("QUELEA_BENCH_RANK").ok().and_then(|rank| rank.parse().ok());
    // The one to which something happens ends with an error, which is no news.
    let _ = join(address, rank, &NetOptions::default(), &mut |job| {
        let words = String::from_utf8_lossy(job).into_owned();
        let mut words = words.split(' ').map(|word| word.parse().expect("a number"));
        Ok(run(words.next().expect("milliseconds"), words.next().expect("steps")))
    });
}

/// Does something to a process, and stops the run after all others have entered the next view.
struct Incident {
    signal: &'static str,
    pid: String,
    began: Instant,
    struck: Option<Instant>,
    entered: Vec<Duration>,
}

impl Observer for Incident {
    fn record(&mut self, record: Record) {
        if let (RecordKind::View { .. }, Some(struck)) = (record.event, self.struck) {
            self.entered.push(struck.elapsed());
        }
    }

    fn progress(&mut self, _done: u64, _total: u64, _now: Time) {
        if self.struck.is_none() && self.began.elapsed() > KNOWN {
            self.struck = Some(Instant::now());
            let kill = Command::new("kill").args([self.signal, &self.pid]).status();
            assert!(kill.expect("kill is there").success());
        }
    }

    fn request(&mut self) -> Request {
        let all = self.entered.len() == WORKERS - 1;
        if all { Request::Stop } else { Request::Continue }
    }
}

/// Seconds from a signal to the last process until all others have entered the view without it.
fn seconds_to_act(signal: &'static str) -> f64 {
    let (milliseconds, steps) = (10, u64::MAX >> 8);
    let on_loss = LossPolicy::Continue { min_workers: 1 };
    let options = NetOptions { on_loss, ..NetOptions::default() };
    let coordinator = Coordinator::bind("127.0.0.1:0", options).expect("a free port");
    let address = coordinator.address().to_string();
    let mut children: Vec<Child> = (1..WORKERS).map(|rank| child(&address, rank)).collect();
    let mut incident = Incident {
        signal,
        pid: children[WORKERS - 2].id().to_string(),
        began: Instant::now(),
        struck: None,
        entered: Vec::new(),
    };
    let (setup, gradients) = run(milliseconds, steps);
    let job = format!("{milliseconds} {steps}").into_bytes();
    let hosted = Hosted { workers: vec![0] };
    let ended = coordinator.run(job, &setup, &gradients, &hosted, &mut incident);
    end(&mut children);
    drop(ended.expect_err("it is stopped"));
    incident.entered.iter().max().expect("all have entered it").as_secs_f64()
}

fn end(children: &mut [Child]) {
    for child in children {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Looks at the processor time of a worker's process while all of them compute one gradient.
struct CostWatch {
    pid: u32,
    first: Option<(Instant, f64)>,
    share: Option<f64>,
}

impl Observer for CostWatch {
    fn record(&mut self, _record: Record) {}

    fn request(&mut self) -> Request {
        let spent = processor_seconds(self.pid);
        match self.first {
            None => self.first = Some((Instant::now(), spent)),
            Some((since, before)) if since.elapsed().as_secs_f64() > 0.8 * COST_SECONDS => {
                let share = (spent - before) / since.elapsed().as_secs_f64();
                self.share.get_or_insert(share);
            }
            Some(_) => {}
        }
        Request::Continue
    }
}

/// Processor time of all threads of a process.
fn processor_seconds(pid: u32) -> f64 {
    let threads = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split(' ').next()?.parse::<f64>().ok()
    });
    nanoseconds.sum::<f64>() / 1e9
}

/// The share of a core that a worker's process takes while it only waits for its gradient.
fn heartbeat_share() -> f64 {
    let (milliseconds, steps) = ((COST_SECONDS * 1000.0) as u64, 1);
    let coordinator = Coordinator::bind("127.0.0.1:0", NetOptions::default()).expect("a free port");
    let address = coordinator.address().to_string();
    let mut children: Vec<Child> = (1..WORKERS).map(|rank| child(&address, rank)).collect();
    let mut watch = CostWatch { pid: children[0].id(), first: None, share: None };
    let (setup, gradients) = run(milliseconds, steps);
    let job = format!("{milliseconds} {steps}").into_bytes();
    let hosted = Hosted { workers: vec![0] };
    let ended = coordinator.run(job, &setup, &gradients, &hosted, &mut watch);
    end(&mut children);
    drop(ended.expect("it ends well"));
    watch.share.expect("it was measured")
}

fn show(name: &str, unit: &str, measured: f64, goal: f64) {
    let ratio = measured / goal;
    if wants_json() {
        println!(
            "{{\"name\": \"{name}\", \"ratio\": {ratio:.4}, \"goal\": \"<= 1\", \"{unit}\": {measured:.5}}}"
        );
    } else {
        println!("{name}: {measured:.5} {unit}, goal {goal}");
    }
}

fn main() {
    if let Ok(address) = std::env::var("QUELEA_BENCH_ADDRESS") {
        return take_part(&address);
    }
    if is_test() {
        return;
    }
    for (signal, name, goal) in
        [("-KILL", "closed socket, acted on", 0.1), ("-STOP", "stopped process, acted on", 2.0)]
    {
        let mut seconds: Vec<f64> = (0..5).map(|_| seconds_to_act(signal)).collect();
        show(name, "seconds", median(&mut seconds), goal);
        let most = seconds.last().expect("five of them");
        show(&format!("{name}, slowest of five"), "seconds", *most, goal);
    }
    show("heartbeats, share of a core per rank", "share", heartbeat_share(), 0.005);
}
