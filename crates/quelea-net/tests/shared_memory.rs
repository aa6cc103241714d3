//! Processes that share memory are killed and paused in the middle of an exchange: nobody is stuck, nothing
//! is left behind, and what is only paused changes no bit. `cargo xtask chaos --shared-memory` does it a
//! thousand times.

#![cfg(target_os = "linux")]

mod common;

use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use common::{Run, Watch, bits, coordinator};
use quelea_core::random::Rng;
use quelea_net::{Hosted, NetError, NetOptions, TransportKind, join};

const WORKERS: usize = 3;
/// The process that is killed or paused.
const VICTIM: u32 = WORKERS as u32 - 1;
/// Within this time a loss is acted on, on a busy machine too.
const PATIENCE: Duration = Duration::from_secs(30);

/// One test at a time: what is mapped is the process's.
static TURN: Mutex<()> = Mutex::new(());

fn turn() -> MutexGuard<'static, ()> {
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How many times a process is killed, and paused.
fn rounds() -> u64 {
    std::env::var("QUELEA_TEST_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(20)
}

/// An all-reduce of one long bucket after the other: hardly anything but exchanges.
fn run(steps: u64) -> Run {
    Run { dimensions: 200_000, bucket_bytes: 0, ..Run::of("allreduce", WORKERS) }.steps(steps)
}

fn take_part(address: &str, steps: u64) -> Result<(), NetError> {
    let run = run(steps);
    join(address, Some(VICTIM), &NetOptions::default(), &mut |_| Ok((run.setup(), run.gradients())))
}

/// Not a test by itself: what [`child`] runs in a process of its own.
#[test]
fn child_process() {
    let Ok(address) = std::env::var("QUELEA_TEST_COORDINATOR") else { return };
    let steps = std::env::var("QUELEA_TEST_STEPS").ok().and_then(|steps| steps.parse().ok());
    // Its coordinator says why it ends.
    let _ = take_part(&address, steps.expect("the parent says how many"));
    std::process::exit(0);
}

fn child(address: &str, steps: u64) -> Child {
    Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "child_process", "--nocapture"])
        .env("QUELEA_TEST_COORDINATOR", address)
        .env("QUELEA_TEST_STEPS", steps.to_string())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts")
}

/// What this process has mapped of shared memory.
fn mapped() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
    maps.lines().filter(|line| line.contains("memfd:quelea-")).count()
}

/// What it has open of shared memory.
fn open_files() -> usize {
    let all = std::fs::read_dir("/proc/self/fd").expect("Linux has it");
    let targets = all.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("memfd:quelea-")).count()
}

fn signal(name: &str, process: u32) {
    let sent = Command::new("kill").args([name, &process.to_string()]).status();
    assert!(sent.expect("kill is there").success(), "{name}");
}

/// One run whose last worker is killed after some steps, drawn by lot. How long that took to be acted on.
fn kill_once(rng: &mut Rng) -> Duration {
    let steps = u64::MAX >> 8;
    let run = run(steps);
    let coordinator = coordinator(NetOptions::default());
    let mut victim = child(&coordinator.address().to_string(), steps);
    let (process, after) = (victim.id(), 1 + rng.below(60));
    let killed = Arc::new(Mutex::new(None));
    let (noted, shares) = (Arc::clone(&killed), Arc::new(AtomicBool::new(false)));
    let seen = Arc::clone(&shares);
    let mut watch = Watch::calling(move |done| {
        let mut noted = noted.lock().expect("no panic");
        if done >= after && noted.is_none() {
            seen.store(mapped() > 0, Ordering::Relaxed);
            signal("-KILL", process);
            *noted = Some(Instant::now());
        }
    });
    let hosted = Hosted { workers: vec![0, 1] };
    let (setup, gradients) = (run.setup(), run.gradients());
    let ended = coordinator.run(run.job(), &setup, &gradients, &hosted, &mut watch);
    let _ = victim.wait();
    let told = ended.expect_err("a worker is lost").to_string();
    assert!(told.contains(&format!("worker {VICTIM}")) || told.contains("rank 2"), "{told}");
    assert!(shares.load(Ordering::Relaxed), "the processes shared memory");
    let killed = killed.lock().expect("no panic").expect("it was killed");
    killed.elapsed()
}

#[test]
fn a_process_that_is_killed_in_an_exchange_leaves_nobody_stuck_and_nothing_behind() {
    let _turn = turn();
    let mut rng = Rng::new(7, "kills", 0);
    let mut slowest = Duration::ZERO;
    for _ in 0..rounds() {
        slowest = slowest.max(kill_once(&mut rng));
        assert!(slowest < PATIENCE, "{slowest:?}");
    }
    assert_eq!((mapped(), open_files()), (0, 0), "mappings and files of shared memory");
    println!("{} kills, acted on after {slowest:?} at most", rounds());
}

#[test]
fn a_process_that_is_paused_in_an_exchange_changes_nothing() {
    let _turn = turn();
    const PAUSE_EVERY: u64 = 12;
    let steps = 2 * rounds() * PAUSE_EVERY / WORKERS as u64;
    let run = run(steps);
    let expected = bits(&run.threads().expect("it ends"));
    let coordinator = coordinator(NetOptions::default());
    let mut victim = child(&coordinator.address().to_string(), steps);
    let (process, most) = (victim.id(), rounds());
    let pauses = Arc::new(AtomicU64::new(0));
    let (counted, mut next) = (Arc::clone(&pauses), PAUSE_EVERY);
    let mut watch = Watch::calling(move |done| {
        if done >= next && counted.load(Ordering::Relaxed) < most {
            next = done + PAUSE_EVERY;
            signal("-STOP", process);
            // The time that passes is what is tested.
            std::thread::sleep(Duration::from_millis(20));
            signal("-CONT", process);
            counted.fetch_add(1, Ordering::Relaxed);
        }
    });
    let hosted = Hosted { workers: vec![0, 1] };
    let (setup, gradients) = (run.setup(), run.gradients());
    let ended = coordinator.run(run.job(), &setup, &gradients, &hosted, &mut watch);
    assert!(victim.wait().expect("it was started").success());
    assert_eq!(pauses.load(Ordering::Relaxed), most);
    assert!(bits(&ended.expect("it ends")) == expected, "the bits of an undisturbed run");
}

#[test]
fn shared_memory_is_left_out_where_one_side_asks_for_tcp() {
    let _turn = turn();
    let asked = |here, there| {
        let run = run(8);
        // Connections between machines are restored in such a run; memory does not break.
        let reconnect_seconds = 20.0;
        let transport =
            |kind| NetOptions { transport: kind, reconnect_seconds, ..NetOptions::default() };
        let coordinator = coordinator(transport(here));
        let address = coordinator.address().to_string();
        std::thread::scope(|scope| {
            let (setup, gradients) = (run.setup(), run.gradients());
            for rank in 1..WORKERS as u32 {
                let (address, run) = (&address, &run);
                let options = transport(there);
                scope.spawn(move || {
                    let mut build = |_: &[u8]| Ok((run.setup(), run.gradients()));
                    join(address, Some(rank), &options, &mut build).expect("it takes part")
                });
            }
            let most = Arc::new(AtomicU64::new(0));
            let seen = Arc::clone(&most);
            let mut watch = Watch::calling(move |_| {
                seen.fetch_max(lines_of_frames(), Ordering::Relaxed);
            });
            let hosted = Hosted { workers: vec![0] };
            let outcome = coordinator.run(run.job(), &setup, &gradients, &hosted, &mut watch);
            (bits(&outcome.expect("it ends")), most.load(Ordering::Relaxed) > 0)
        })
    };
    let (shared, shares) = asked(TransportKind::Auto, TransportKind::Auto);
    assert!(shares);
    for (here, there) in
        [(TransportKind::Tcp, TransportKind::Auto), (TransportKind::Auto, TransportKind::Tcp)]
    {
        let (found, shares) = asked(here, there);
        assert!(!shares, "{here} and {there}");
        assert!(found == shared, "{here} and {there}: the same bits");
    }
}

/// How often pages between two ranks are mapped here.
fn lines_of_frames() -> u64 {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux has it");
    maps.lines().filter(|line| line.contains("memfd:quelea-frames")).count() as u64
}
