//! The wrong thing on purpose: strangers, silence, taken ranks, lost and stuck peers.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use common::{Run, Watch, bits, coordinator, worker};
use quelea_core::algorithms::Entry;
use quelea_core::contract::{Algorithm, Awaited, Context};
use quelea_core::message::{Message, Rank};
use quelea_core::state::Visitor;
use quelea_net::{Hosted, NetError, NetOptions, join};

const NOBODY: &Hosted = &Hosted { workers: Vec::new() };

/// A coordinator that waits for two workers, while `disturb` does something to it; then the
/// workers come, and the run must be what it always is.
fn disturbed(disturb: impl FnOnce(&str)) -> Vec<String> {
    let run = Run::of("allreduce", 2);
    let options = NetOptions { handshake_seconds: 0.2, ..NetOptions::default() };
    let coordinator = coordinator(options);
    let address = coordinator.address().to_string();
    let outcome = std::thread::scope(|scope| {
        let conducted = scope.spawn(|| {
            coordinator.run(run.job(), &run.setup(), &run.gradients(), NOBODY, &mut Watch::new())
        });
        disturb(&address);
        for rank in 0..2 {
            let address = &address;
            scope.spawn(move || worker(address, Some(rank)).expect("it takes part"));
        }
        conducted.join().expect("no panic").expect("the run is not disturbed")
    });
    assert_eq!(bits(&outcome), bits(&run.threads().expect("threads")));
    outcome.warnings
}

#[test]
fn a_stranger_is_refused_and_told_why() {
    let warnings = disturbed(|address| {
        let mut stranger = TcpStream::connect(address).expect("it listens");
        stranger.write_all(b"GET / HTTP/1.1\r\nHost: quelea\r\n\r\n").expect("it hears");
        let mut answer = Vec::new();
        let _ = stranger.read_to_end(&mut answer);
        assert!(String::from_utf8_lossy(&answer).contains("not a quelea handshake"));
    });
    assert!(warnings.iter().any(|w| w.contains("127.0.0.1") && w.contains("QLEC")), "{warnings:?}");
}

#[test]
fn another_version_is_refused_and_told_which() {
    let warnings = disturbed(|address| {
        let mut packet = quelea_wire::control::encode(1, &[0; 16]);
        packet[4] = 99;
        let mut other = TcpStream::connect(address).expect("it listens");
        other.write_all(&packet).expect("it hears");
        let mut answer = Vec::new();
        let _ = other.read_to_end(&mut answer);
        assert!(String::from_utf8_lossy(&answer).contains("version 99"));
    });
    assert!(warnings.iter().any(|w| w.contains("version 99")), "{warnings:?}");
}

#[test]
fn a_peer_that_says_nothing_is_sent_away_after_the_time_limit() {
    let warnings = disturbed(|address| {
        let mut silent = TcpStream::connect(address).expect("it listens");
        let mut answer = Vec::new();
        silent.read_to_end(&mut answer).expect("it is closed");
        assert!(String::from_utf8_lossy(&answer).contains("waited 0.2 s for a request to join"));
    });
    assert!(warnings.iter().any(|w| w.contains("waited 0.2 s for a request")), "{warnings:?}");
}

#[test]
fn a_peer_that_drips_is_sent_away_after_the_time_limit() {
    disturbed(|address| {
        let mut slow = TcpStream::connect(address).expect("it listens");
        slow.set_read_timeout(Some(Duration::from_millis(50))).expect("connected");
        let mut answer = [0; 512];
        // A whole word would take many times the limit.
        let join = quelea_wire::control::encode(1, &[0; 16]);
        let length = join.iter().find_map(|byte| {
            slow.write_all(&[*byte]).expect("it hears");
            slow.read(&mut answer).ok()
        });
        let answer = String::from_utf8_lossy(&answer[..length.expect("an answer")]);
        assert!(answer.contains("waited 0.2 s for a request to join"), "{answer}");
    });
}

#[test]
fn many_warnings_are_counted() {
    let warnings = disturbed(|address| {
        for _ in 0..60 {
            let mut stranger = TcpStream::connect(address).expect("it listens");
            stranger.write_all(b"GET / HTTP/1.1\r\nHost: quelea\r\n\r\n").expect("it hears");
            let _ = stranger.read_to_end(&mut Vec::new());
        }
    });
    assert_eq!(warnings.len(), 51);
    assert_eq!(warnings[50], "and 10 warnings more");
}

#[test]
fn a_rank_that_does_not_exist_is_refused() {
    disturbed(|address| {
        let error = worker(address, Some(7)).expect_err("there is no worker 7");
        assert_eq!(
            error.to_string(),
            format!("{address} refused: there is no worker 7; workers are 0 to 1")
        );
    });
}

#[test]
fn a_second_process_with_a_taken_rank_is_refused_by_name() {
    let run = Run::of("allreduce", 2);
    let coordinator = coordinator(NetOptions::default());
    let address = coordinator.address().to_string();
    std::thread::scope(|scope| {
        let conducted = scope.spawn(|| {
            let hosted = Hosted { workers: vec![0] };
            coordinator.run(run.job(), &run.setup(), &run.gradients(), &hosted, &mut Watch::new())
        });
        let error = worker(&address, Some(0)).expect_err("rank 0 lives with the coordinator");
        assert!(
            error.to_string().ends_with("rank 0 is taken by the coordinator itself"),
            "{error}"
        );
        scope.spawn(|| worker(&address, Some(1)).expect("it takes part"));
        conducted.join().expect("no panic").expect("the run is not disturbed");
    });
}

#[test]
fn missing_workers_are_named() {
    let run = Run::of("allreduce", 2);
    let options = NetOptions { connect_seconds: 0.2, ..NetOptions::default() };
    let coordinator = coordinator(options);
    let hosted = Hosted { workers: vec![0] };
    let error = coordinator
        .run(run.job(), &run.setup(), &run.gradients(), &hosted, &mut Watch::new())
        .expect_err("nobody came");
    assert!(matches!(&error, NetError::Missing { .. }), "{error}");
    assert!(error.to_string().ends_with("for worker 1 to join"), "{error}");
}

#[test]
fn whoever_was_refused_while_workers_are_missing_is_named() {
    let run = Run::of("allreduce", 1);
    let coordinator = coordinator(NetOptions { connect_seconds: 1.0, ..NetOptions::default() });
    let mut stranger = TcpStream::connect(coordinator.address()).expect("it listens");
    stranger.write_all(b"GET / HTTP/1.1\r\nHost: quelea\r\n\r\n").expect("it hears");
    let error = coordinator
        .run(run.job(), &run.setup(), &run.gradients(), NOBODY, &mut Watch::new())
        .expect_err("no worker came");
    let text = error.to_string();
    assert!(text.contains(" for worker 0 to join (last it refused 127.0.0.1:"), "{text}");
}

#[test]
fn a_coordinator_that_is_not_there_is_named() {
    let gone = coordinator(NetOptions::default()).address().to_string();
    let options = NetOptions { connect_seconds: 0.1, ..NetOptions::default() };
    let error = join(&gone, None, &options, &mut |_| Err("never asked".into()));
    let text = error.expect_err("nobody listens").to_string();
    assert!(text.starts_with(&format!("no coordinator answered at {gone} within")), "{text}");
}

#[test]
fn a_worker_that_cannot_run_the_job_ends_the_run_by_name() {
    let run = Run::of("allreduce", 1);
    let coordinator = coordinator(NetOptions::default());
    let address = coordinator.address().to_string();
    std::thread::scope(|scope| {
        let refuse =
            || join(&address, None, &NetOptions::default(), &mut |_| Err("no data here".into()));
        let joined = scope.spawn(refuse);
        let error = coordinator
            .run(run.job(), &run.setup(), &run.gradients(), NOBODY, &mut Watch::new())
            .expect_err("its only worker cannot");
        assert!(error.to_string().starts_with("rank 0 failed: no data here"), "{error}");
        let error = joined.join().expect("no panic").expect_err("it cannot");
        assert_eq!(error.to_string(), "the coordinator's job cannot be run here: no data here");
    });
}

/// Waits for an answer that never comes.
struct Deaf {
    waiting: bool,
}

impl Algorithm for Deaf {
    fn on_gradient(&mut self, _cx: &mut Context<'_>) {
        self.waiting = true;
    }
    fn on_message(&mut self, _cx: &mut Context<'_>, _from: Rank, _message: Message) {}
    fn is_ready(&self) -> bool {
        !self.waiting
    }
    fn awaiting(&self, out: &mut Vec<Awaited>) {
        out.push(Awaited { from: Rank(1), what: "an answer" });
    }
    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}

#[test]
fn whoever_waits_too_long_says_for_whom_for_what_and_how_long() {
    let entry: &'static Entry = Box::leak(Box::new(Entry {
        worker: |_| Box::new(Deaf { waiting: false }),
        ..*quelea_core::algorithms::find("allreduce").expect("in the table")
    }));
    let run = Run { algorithm: entry, ..Run::of("allreduce", 2) };
    let options = NetOptions { peer_seconds: 0.2, ..NetOptions::default() };
    let error = quelea_net::threads(&run.setup(), &run.gradients(), &options, &mut Watch::new())
        .expect_err("nobody answers");
    let text = error.to_string();
    assert!(
        text.contains(" waited 0.") && text.contains(" s for rank 1: an answer of step 0"),
        "{text}"
    );
}

/// Not a test by itself: what [`child`] runs in a process of its own.
#[test]
fn child_process() {
    if let Ok(address) = std::env::var("QUELEA_TEST_ADDRESS") {
        let rank = std::env::var("QUELEA_TEST_RANK").ok().and_then(|rank| rank.parse().ok());
        let outcome = worker(&address, rank);
        eprintln!("child: {outcome:?}");
        std::process::exit(i32::from(outcome.is_err()));
    }
}

fn child(address: &str, rank: u32) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child_process", "--nocapture"])
        .env("QUELEA_TEST_ADDRESS", address)
        .env("QUELEA_TEST_RANK", rank.to_string())
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .expect("it starts")
}

/// Three processes; something is done to the third in the middle of the run.
fn harmed(signal: &'static str, options: NetOptions) -> (NetError, f64) {
    let run = Run::of("allreduce", 3).steps(u64::MAX >> 8);
    let coordinator = coordinator(options);
    let address = coordinator.address().to_string();
    let children = [child(&address, 1), child(&address, 2)];
    let victim = children[1].id();
    let begun = Arc::new(Mutex::new(None));
    let struck = Arc::clone(&begun);
    let mut watch = Watch::calling(move |done| {
        let mut struck = struck.lock().expect("no panic");
        if done >= 30 && struck.is_none() {
            *struck = Some(Instant::now());
            let kill = Command::new("kill").args([signal, &victim.to_string()]).status();
            assert!(kill.expect("kill exists").success());
        }
    });
    let hosted = Hosted { workers: vec![0] };
    let error = coordinator
        .run(run.job(), &run.setup(), &run.gradients(), &hosted, &mut watch)
        .expect_err("it cannot go on");
    let seconds = begun.lock().expect("no panic").expect("it was struck").elapsed().as_secs_f64();
    let [mut bystander, mut struck] = children;
    let _ = struck.kill();
    let _ = struck.wait();
    assert_eq!(bystander.wait().expect("it ends by itself").code(), Some(1));
    (error, seconds)
}

#[test]
fn a_killed_process_ends_the_run_for_everybody_and_is_named() {
    let (error, _) = harmed("-KILL", NetOptions::default());
    assert!(matches!(error, NetError::Lost { rank: 2, .. }), "{error}");
    assert!(error.to_string().starts_with("lost rank 2: the connection was closed"), "{error}");
}

#[test]
fn a_process_that_stops_without_a_word_is_named_after_the_time_limit() {
    let options = NetOptions { peer_seconds: 1.0, ..NetOptions::default() };
    let (error, _) = harmed("-STOP", options);
    let text = error.to_string();
    assert!(text.contains("rank 2") || text.contains("rank 1"), "{text}");
}

#[test]
fn workers_end_when_the_coordinator_is_gone() {
    let run = Run::of("allreduce", 2).steps(u64::MAX >> 8);
    let coordinator = coordinator(NetOptions::default());
    let address = coordinator.address().to_string();
    let mut worker = child(&address, 1);
    let watch = &mut Watch::calling(|done| assert!(done < 20, "the coordinator dies here"));
    let conducted = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let hosted = Hosted { workers: vec![0] };
        coordinator.run(run.job(), &run.setup(), &run.gradients(), &hosted, watch)
    }));
    assert!(conducted.is_err());
    assert_eq!(worker.wait().expect("it ends by itself").code(), Some(1));
}

#[test]
fn a_coordinator_that_gives_a_rank_that_does_not_exist_is_refused() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it listens").to_string();
    std::thread::scope(|scope| {
        let joined = scope.spawn(|| worker(&address, None));
        let (mut stream, _) = listener.accept().expect("it comes");
        let job = Run::of("allreduce", 2).job();
        let fields = quelea_wire::control::Writer::default().number(1u32).number(2u32);
        let fields = fields.number(false).number(false).number(false).number(true);
        let welcome = fields.number(0u64).bytes(&job).packet(2);
        stream.write_all(&welcome).expect("it hears");
        let error = joined.join().expect("no panic").expect_err("there is no worker 2");
        assert!(error.to_string().ends_with("failed: it gave rank 2 of 2 workers"), "{error}");
    });
}
