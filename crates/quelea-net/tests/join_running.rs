//! A worker's process is killed, and another joins the running run in its place.

mod common;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use common::{Run, Watch, coordinator};
use quelea_core::algorithms::ALGORITHMS;
use quelea_core::node::Loan;
use quelea_core::problems::{Computed, GradientSource, Problem};
use quelea_net::{
    Gradients, Hosted, JoinToken, LossPolicy, NetError, NetOptions, RunSecret, Security, join,
    stand_by,
};
use quelea_record::{Outcome, RecordKind};
use quelea_wire::control::{HEAD_BYTES, decode_head};

const WORKERS: usize = 4;
const STEPS: u64 = 300;
const GRADIENT: Duration = Duration::from_millis(2);
const CONTINUE: LossPolicy = LossPolicy::Continue { min_workers: 1 };

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

fn worker(address: &str, rank: Option<u32>) -> Result<(), NetError> {
    join(address, rank, &NetOptions::default(), &mut |job| {
        let run = Run::parse(job);
        Ok((run.setup(), gradients(&run)))
    })
}

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

/// Kills a process when an eighth of the steps is done.
fn killer(pid: u32, killed: &'static AtomicBool) -> Watch {
    Watch::calling(move |done| {
        if done >= WORKERS as u64 * STEPS / 8 && !killed.swap(true, Ordering::SeqCst) {
            let kill = Command::new("kill").args(["-KILL", &pid.to_string()]).status();
            assert!(kill.expect("kill is there").success());
        }
    })
}

/// A run whose last worker is killed, and in whose place another joins.
fn with_a_replacement(algorithm: &str, security: Security) -> (Result<Outcome, NetError>, Watch) {
    let run = Run::of(algorithm, WORKERS).steps(STEPS);
    let options = NetOptions { on_loss: CONTINUE, security, ..NetOptions::default() };
    let coordinator = coordinator(options);
    let token = coordinator.token("127.0.0.1");
    let plain = || coordinator.address().to_string();
    let address = token.as_ref().map_or_else(plain, JoinToken::reveal);
    let mut victim = child(&address);
    let killed: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let mut watch = killer(victim.id(), killed);
    let hosted = Hosted { workers: vec![0, 1] };
    let ended = std::thread::scope(|scope| {
        let address = &address;
        scope.spawn(move || worker(address, Some(2)).expect("it takes part to the end"));
        scope.spawn(move || {
            while !killed.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // Nobody is missing until every other rank has noticed the loss.
            while let Err(NetError::Refused { .. }) = worker(address, None) {}
        });
        coordinator.run(run.job(), &run.setup(), &gradients(&run), &hosted, &mut watch)
    });
    let _ = victim.wait();
    (ended, watch)
}

#[test]
fn every_algorithm_takes_a_worker_in_the_place_of_one_that_was_killed() {
    for entry in ALGORITHMS {
        takes_a_replacement(entry.meta.name, Security::Automatic);
    }
}

#[test]
fn a_worker_joins_an_encrypted_run_in_the_place_of_one_that_was_killed() {
    for name in ["allreduce", "d-psgd", "sync-ps", "ad-psgd"] {
        let secret = RunSecret::random().expect("random bytes");
        takes_a_replacement(name, Security::Secret(secret));
    }
}

fn takes_a_replacement(name: &str, security: Security) {
    let (ended, watch) = with_a_replacement(name, security);
    let outcome = ended.unwrap_or_else(|error| panic!("{name}: {error}"));
    assert!(outcome.ranks.iter().all(|rank| !rank.lost), "{name}: {:?}", outcome.warnings);
    let kind = |kind: fn(&RecordKind) -> bool| {
        watch.records.iter().filter(move |record| kind(&record.event))
    };
    assert_eq!(kind(|event| matches!(event, RecordKind::Lost)).count(), 1, "{name}");
    let joined = kind(|event| matches!(event, RecordKind::Joined)).next();
    let joined = joined.unwrap_or_else(|| panic!("{name}: nobody joined"));
    let state = kind(|event| matches!(event, RecordKind::StateTransferred { .. })).next();
    let state = state.unwrap_or_else(|| panic!("{name}: no state was transferred"));
    let RecordKind::StateTransferred { bytes, .. } = state.event else { unreachable!() };
    let model = 4 * outcome.ranks[3].params.len() as u64;
    assert!(bytes >= model && state.rank == joined.rank, "{name}: {bytes} of at least {model}");
    let steps = kind(|event| matches!(event, RecordKind::Step { .. }))
        .filter(|record| record.rank == 3 && record.t > joined.t);
    assert!(steps.count() > 10, "{name}: it takes steps");
    if name == "allreduce" {
        let bits = common::bits(&outcome);
        assert!(bits.iter().all(|rank| *rank == bits[0]), "replicas are equal");
    }
}

/// Two spares wait from the beginning: one is needed, the other hears that the run has ended.
#[test]
fn a_spare_takes_the_place_of_a_lost_worker_and_another_is_told_that_it_is_not_needed() {
    let run = Run::of("d-psgd", WORKERS).steps(STEPS);
    let coordinator = coordinator(NetOptions { on_loss: CONTINUE, ..NetOptions::default() });
    let address = coordinator.address().to_string();
    let mut victim = child(&address);
    let killed: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let mut watch = killer(victim.id(), killed);
    let hosted = Hosted { workers: vec![0, 1, 2] };
    let (ended, spares) = std::thread::scope(|scope| {
        let address = &address;
        let spare = || {
            let build = &mut |job: &[u8]| {
                let run = Run::parse(job);
                Ok((run.setup(), gradients(&run)))
            };
            stand_by(address, &NetOptions::default(), build, None)
        };
        let spares = [(); 2].map(|()| scope.spawn(spare));
        let ended = coordinator.run(run.job(), &run.setup(), &gradients(&run), &hosted, &mut watch);
        (ended, spares.map(|spare| spare.join().expect("no panic")))
    });
    let _ = victim.wait();
    let outcome = ended.expect("it ends well");
    assert!(outcome.ranks.iter().all(|rank| !rank.lost), "{:?}", outcome.warnings);
    let joined = watch.records.iter().filter(|record| record.event == RecordKind::Joined);
    assert_eq!(joined.map(|record| record.rank).collect::<Vec<_>>(), [WORKERS as u32 - 1]);
    assert_eq!(spares.iter().filter(|spare| spare.is_ok()).count(), 1, "{spares:?}");
    let unneeded = |spare: &&Result<(), NetError>| matches!(spare, Err(NetError::Unneeded { .. }));
    assert_eq!(spares.iter().filter(unneeded).count(), 1, "{spares:?}");
}

/// A run of four workers that a fifth joins, in a new place.
#[test]
fn a_worker_joins_beside_all_others() {
    for name in ["allreduce", "d-psgd", "ad-psgd", "aladdin", "sync-ps", "sgp"] {
        let run = Run { spare: 1, ..Run::of(name, WORKERS).steps(STEPS) };
        let coordinator = coordinator(NetOptions { on_loss: CONTINUE, ..NetOptions::default() });
        let address = coordinator.address().to_string();
        let begun: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let mut watch = Watch::calling(|done| {
            if done >= WORKERS as u64 * STEPS / 8 {
                begun.store(true, Ordering::SeqCst);
            }
        });
        let hosted = Hosted { workers: vec![0, 1, 2] };
        let ended = std::thread::scope(|scope| {
            let address = &address;
            scope.spawn(move || worker(address, Some(3)).expect("it takes part to the end"));
            // There is room for one of the two.
            let asking = [(); 2].map(|()| {
                scope.spawn(move || {
                    while !begun.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    worker(address, None)
                })
            });
            let ended =
                coordinator.run(run.job(), &run.setup(), &gradients(&run), &hosted, &mut watch);
            let answers = asking.map(|asking| asking.join().expect("no panic"));
            let refusals: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
            assert_eq!(refusals.len(), 1, "{name}: {refusals:?}");
            let reason = refusals[0].to_string();
            assert!(reason.ends_with("`membership.max_workers` makes room for more"), "{reason}");
            ended
        });
        let outcome = ended.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(outcome.ranks.iter().all(|rank| !rank.lost), "{name}: {:?}", outcome.warnings);
        let is_step = |record: &&quelea_record::Record| {
            record.rank == WORKERS as u32 && matches!(record.event, RecordKind::Step { .. })
        };
        let steps = watch.records.iter().filter(is_step).count();
        assert!(steps > 10, "{name}: {steps} steps of the new worker");
    }
}

/// A run of three that wants three: when one is killed, the others wait for another.
#[test]
fn where_too_few_workers_are_left_the_others_wait_for_one_that_joins() {
    for name in ["allreduce", "ad-psgd"] {
        let run = Run::of(name, WORKERS).steps(STEPS);
        let min_workers = WORKERS;
        let coordinator = coordinator(NetOptions {
            on_loss: LossPolicy::Continue { min_workers },
            joiner_seconds: 120.0,
            ..NetOptions::default()
        });
        let address = coordinator.address().to_string();
        let mut victim = child(&address);
        let killed: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let mut watch = killer(victim.id(), killed);
        let hosted = Hosted { workers: vec![0, 1, 2] };
        let ended = std::thread::scope(|scope| {
            let address = &address;
            scope.spawn(move || {
                while !killed.load(Ordering::SeqCst) {
                    std::thread::yield_now();
                }
                while let Err(NetError::Refused { .. }) = worker(address, None) {}
            });
            coordinator.run(run.job(), &run.setup(), &gradients(&run), &hosted, &mut watch)
        });
        let _ = victim.wait();
        let outcome = ended.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(outcome.ranks.iter().all(|rank| !rank.lost), "{name}: {:?}", outcome.warnings);
        let waited = outcome.warnings.iter().any(|text| text.contains("waited up to 120 s"));
        assert!(waited, "{name}: {:?}", outcome.warnings);
        let is_joined = |record: &quelea_record::Record| record.event == RecordKind::Joined;
        assert_eq!(watch.records.iter().filter(|record| is_joined(record)).count(), 1, "{name}");
    }
}

#[test]
fn where_nobody_joins_in_time_the_run_ends_and_says_so() {
    let run = Run::of("d-psgd", WORKERS).steps(100 * STEPS);
    let coordinator = coordinator(NetOptions {
        on_loss: LossPolicy::Continue { min_workers: WORKERS },
        joiner_seconds: 1.0,
        ..NetOptions::default()
    });
    let mut victim = child(&coordinator.address().to_string());
    let killed: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let mut watch = killer(victim.id(), killed);
    let hosted = Hosted { workers: vec![0, 1, 2] };
    let ended = coordinator.run(run.job(), &run.setup(), &gradients(&run), &hosted, &mut watch);
    let _ = victim.wait();
    let error = ended.expect_err("nobody joins").to_string();
    assert!(error.contains("within 1 s too few joined"), "{error}");
}

/// The number of the packet that has a joiner's state.
const RESUME: u16 = 13;

/// A place through which a worker reaches the coordinator, where its state waits until it is released. Whether it
/// waits there is said in `held`.
fn slow_entrance(coordinator: String, held: Arc<AtomicBool>, released: Receiver<()>) -> String {
    let place = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = place.local_addr().expect("it listens").to_string();
    std::thread::spawn(move || {
        let (mut worker, _) = place.accept().expect("the worker comes");
        let mut coordinator = TcpStream::connect(coordinator).expect("it listens");
        let copy = |stream: &TcpStream| stream.try_clone().expect("a socket");
        let (mut up, mut to) = (copy(&worker), copy(&coordinator));
        std::thread::spawn(move || std::io::copy(&mut up, &mut to));
        loop {
            let mut bytes = vec![0; HEAD_BYTES];
            if coordinator.read_exact(&mut bytes).is_err() {
                let _ = worker.shutdown(Shutdown::Both);
                return;
            }
            let head = bytes[..].try_into().expect("a head");
            let head = decode_head(&head, 1 << 30).expect("a good head");
            if head.kind == RESUME {
                held.store(true, Ordering::SeqCst);
                released.recv().expect("it is released");
            }
            let mut body = vec![0; head.length];
            coordinator.read_exact(&mut body).expect("its body");
            bytes.extend(body);
            worker.write_all(&bytes).expect("it hears");
        }
    });
    address
}

#[test]
fn the_others_train_while_the_state_of_a_joiner_is_on_its_way() {
    for name in ["ad-psgd", "aladdin"] {
        // More than the connection holds.
        let (dimensions, bucket_bytes) = (4_000_000, 1 << 30);
        let run = Run { spare: 1, dimensions, bucket_bytes, ..Run::of(name, 2).steps(60) };
        let coordinator = coordinator(NetOptions { on_loss: CONTINUE, ..NetOptions::default() });
        let (begin, begun) = channel();
        let (release, released) = channel();
        let held = Arc::new(AtomicBool::new(false));
        let address = slow_entrance(coordinator.address().to_string(), Arc::clone(&held), released);
        let (mut begin, mut held_at) = (Some(begin), None);
        let mut watch = Watch::calling(move |done| {
            if done >= 10 {
                begin.take().into_iter().for_each(|begin| begin.send(()).expect("it waits"));
            }
            if held.load(Ordering::SeqCst) && done >= *held_at.get_or_insert(done) + 20 {
                let _ = release.send(());
            }
        });
        let hosted = Hosted { workers: vec![0, 1] };
        let ended = std::thread::scope(|scope| {
            let (address, joined) = (&address, &run);
            let joiner = scope.spawn(move || {
                begun.recv().expect("it begins");
                let options = NetOptions { entrance_seconds: 120.0, ..NetOptions::default() };
                let build = &mut |_: &[u8]| Ok((joined.setup(), gradients(joined)));
                join(address, None, &options, build)
            });
            let ended =
                coordinator.run(run.job(), &run.setup(), &gradients(&run), &hosted, &mut watch);
            joiner.join().expect("no panic").expect("it takes part to the end");
            ended
        });
        let outcome = ended.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(!outcome.ranks[2].lost, "{name}: {:?}", outcome.warnings);
        let is = |kind: fn(&RecordKind) -> bool| {
            let place = watch.records.iter().position(move |record| kind(&record.event));
            place.unwrap_or_else(|| panic!("{name}: it is not recorded"))
        };
        let joined = is(|event| *event == RecordKind::Joined);
        let sent = is(|event| matches!(event, RecordKind::StateTransferred { .. }));
        let steps = watch.records[joined..sent].iter();
        let steps = steps.filter(|record| matches!(record.event, RecordKind::Step { .. }));
        assert!(steps.count() >= 15, "{name}: the others train meanwhile");
    }
}

/// Two workers that arrive at the same moment exchange with each other too.
#[test]
fn workers_that_join_at_once_are_connected_with_each_other() {
    for name in ["allreduce", "ad-psgd"] {
        let run = Run { spare: 2, ..Run::of(name, 2).steps(2 * STEPS) };
        let coordinator = coordinator(NetOptions { on_loss: CONTINUE, ..NetOptions::default() });
        let address = coordinator.address().to_string();
        let begun: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
        let mut watch = Watch::calling(|done| begun.store(done >= STEPS / 8, Ordering::SeqCst));
        let hosted = Hosted { workers: vec![0, 1] };
        let ended = std::thread::scope(|scope| {
            let address = &address;
            for _ in 0..2 {
                scope.spawn(move || {
                    while !begun.load(Ordering::SeqCst) {
                        std::thread::yield_now();
                    }
                    worker(address, None).expect("it takes part to the end")
                });
            }
            coordinator.run(run.job(), &run.setup(), &gradients(&run), &hosted, &mut watch)
        });
        let outcome = ended.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert!(outcome.ranks.iter().all(|rank| !rank.lost), "{name}: {:?}", outcome.warnings);
        let joined = watch.records.iter().filter(|record| record.event == RecordKind::Joined);
        assert_eq!(joined.count(), 2, "{name}");
    }
}

/// Before the run begins, only as many join as it starts with.
#[test]
fn places_for_later_are_not_waited_for() {
    let run = Run { spare: 3, ..Run::of("d-psgd", 2) };
    let outcome = run.sockets(true).expect("it runs with two");
    let lost: Vec<u32> = outcome.ranks.iter().filter(|r| r.lost).map(|r| r.rank).collect();
    assert_eq!(lost, [2, 3, 4]);
}
