//! Runs that cannot continue: what their ranks still have is kept, the link that does not deliver is
//! named, and a process that stood still blames nobody.
#![cfg(unix)]

mod common;

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use common::detour::{PeerDetour, detour};
use common::{Run, coordinator, worker_with};
use quelea_core::time::Time;
use quelea_net::{Hosted, NetError, NetOptions, Observer, TransportKind};
use quelea_record::{Outcome, Record, SalvagedModel};

/// Calls back on progress, and keeps what is salvaged.
struct Keeper<'a> {
    on_progress: Box<dyn FnMut(u64) + Send + 'a>,
    salvaged: Vec<SalvagedModel>,
}

impl Observer for Keeper<'_> {
    fn record(&mut self, _record: Record) {}

    fn progress(&mut self, done: u64, _total: u64, _now: Time) {
        (self.on_progress)(done);
    }

    fn salvaged(&mut self, _now: Time, models: Vec<SalvagedModel>) {
        self.salvaged.extend(models);
    }
}

impl<'a> Keeper<'a> {
    fn calling(on_progress: impl FnMut(u64) + Send + 'a) -> Keeper<'a> {
        Keeper { on_progress: Box::new(on_progress), salvaged: Vec::new() }
    }

    fn ranks(&self) -> Vec<u32> {
        self.salvaged.iter().map(|one| one.rank.0).collect()
    }
}

/// A run of three whose ranks 1 and 2 cannot reach each other any more after some steps.
fn cut(algorithm: &str) -> (NetError, Vec<SalvagedModel>) {
    // Asynchronous workers that are not cut off do all steps that are left; then the end stalls.
    let run = Run::of(algorithm, 3);
    let is_synchronous = run.setup().properties().synchronous;
    let run = run.steps(if is_synchronous { u64::MAX >> 8 } else { 20_000 });
    // Between machines: shared memory cannot be cut.
    let transport = TransportKind::Tcp;
    let options =
        NetOptions { peer_seconds: 2.0, drain_seconds: 2.0, transport, ..NetOptions::default() };
    let coordinator = coordinator(options.clone());
    let direct = coordinator.address().to_string();
    let peers = Arc::new(PeerDetour::default());
    // Rank 2 connects to rank 1, through the place that can be cut.
    let guarded = detour(direct.clone(), Arc::clone(&peers));
    let mut keeper = Keeper::calling(|done| {
        if done >= 30 {
            peers.cut();
        }
    });
    let error = std::thread::scope(|scope| {
        scope.spawn(|| worker_with(&guarded, Some(1), &options).expect_err("it is broken off"));
        scope.spawn(|| worker_with(&direct, Some(2), &options).expect_err("it is broken off"));
        let hosted = Hosted { workers: vec![0] };
        coordinator
            .run(run.job(), &run.setup(), &run.gradients(), &hosted, &mut keeper)
            .expect_err("it cannot go on")
    });
    (error, keeper.salvaged)
}

#[test]
fn a_cut_between_two_ranks_is_named_and_every_model_is_kept() {
    for algorithm in ["allreduce", "d-psgd", "ad-psgd"] {
        let (error, models) = cut(algorithm);
        let text = error.to_string();
        let names_edge = ["rank 1 could not reach rank 2", "rank 2 could not reach rank 1"]
            .iter()
            .any(|edge| text.contains(edge));
        let both = text.contains("rank 1 and rank 2 could not reach each other");
        assert!(names_edge || both, "{algorithm}: {text}");
        let ranks: Vec<u32> = models.iter().map(|one| one.rank.0).collect();
        assert_eq!(ranks, [0, 1, 2], "{algorithm}: all of them still answer");
        for one in &models {
            assert!(one.step > 0, "{algorithm}: {} after {} steps", one.rank, one.step);
            assert_eq!(one.model.len(), 37, "{algorithm}");
        }
    }
}

/// Not a test by itself: what [`child`] runs in a process of its own.
#[test]
fn child_process() {
    let Ok(role) = std::env::var("QUELEA_TEST_ROLE") else { return };
    let options = NetOptions { peer_seconds: 2.0, ..NetOptions::default() };
    let ended = match role.as_str() {
        "coordinate" => coordinate(options).map(drop),
        address => worker_with(address, None, &options),
    };
    if let Err(error) = &ended {
        println!("\nfailed {error}");
    }
    std::process::exit(i32::from(ended.is_err()));
}

/// A run with one worker here and two that join, which tells where it listens and that it has begun.
fn coordinate(options: NetOptions) -> Result<Outcome, NetError> {
    let run = Run::of("allreduce", 3).steps(40_000);
    let coordinator = coordinator(options);
    println!("\naddress {}", coordinator.address());
    let mut keeper = Keeper::calling(|done| {
        if done == 30 {
            println!("\nbegun");
        }
    });
    let hosted = Hosted { workers: vec![0] };
    coordinator.run(run.job(), &run.setup(), &run.gradients(), &hosted, &mut keeper)
}

fn child(role: &str) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child_process", "--nocapture"])
        .env("QUELEA_TEST_ROLE", role)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

fn signal(children: &[&Child], name: &str) {
    for child in children {
        let kill = Command::new("kill").args([name, &child.id().to_string()]).status();
        assert!(kill.expect("kill is there").success());
    }
}

/// Stops the coordinator, and the workers too if `all`, for more than twice as long as a peer may be silent,
/// and lets them continue.
fn stopped_for_a_while(all: bool) {
    let mut coordinator = child("coordinate");
    let mut lines = BufReader::new(coordinator.stdout.take().expect("piped")).lines();
    let mut hear = |word: &str| {
        let mut lines = lines.by_ref().map(|line| line.expect("text"));
        lines.find_map(|line| line.strip_prefix(word).map(String::from))
    };
    let address = hear("address ").expect("it listens");
    let mut workers = [child(&address), child(&address)];
    hear("begun").expect("it begins");
    let mut stopped = vec![&coordinator];
    stopped.extend(workers.iter().filter(|_| all));
    signal(&stopped, "-STOP");
    // The time that passes is what is tested.
    std::thread::sleep(Duration::from_secs(5));
    signal(&stopped, "-CONT");
    let failed = hear("failed ");
    let status = coordinator.wait().expect("waited for").code();
    assert_eq!((status, failed), (Some(0), None), "all stopped: {all}");
    for worker in &mut workers {
        assert_eq!(worker.wait().expect("waited for").code(), Some(0));
    }
}

#[test]
fn a_run_whose_processes_were_all_stopped_continues() {
    stopped_for_a_while(true);
}

#[test]
fn a_run_whose_coordinator_was_stopped_continues() {
    stopped_for_a_while(false);
}

#[test]
fn the_models_of_survivors_are_kept_when_a_process_is_killed() {
    let run = Run::of("d-psgd", 3).steps(u64::MAX >> 8);
    let coordinator = coordinator(NetOptions::default());
    let address = coordinator.address().to_string();
    let mut victim = child(&address);
    let pid = victim.id().to_string();
    let mut keeper = Keeper::calling(|done| {
        if done == 300 {
            let kill = Command::new("kill").args(["-KILL", &pid]).status();
            assert!(kill.expect("kill is there").success());
        }
    });
    let hosted = Hosted { workers: vec![0, 1] };
    let error = coordinator
        .run(run.job(), &run.setup(), &run.gradients(), &hosted, &mut keeper)
        .expect_err("it cannot go on");
    let _ = victim.wait();
    assert!(error.to_string().starts_with("lost rank 2: "), "{error}");
    assert_eq!(keeper.ranks(), [0, 1]);
    assert!(keeper.salvaged.iter().all(|one| one.step > 50), "{:?}", keeper.salvaged);
}
