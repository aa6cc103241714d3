//! Strangers stay out, and nothing readable leaves the machine.

mod common;

use std::io::{Read, Write};
use std::net::{IpAddr, TcpStream};
use std::time::Duration;

use common::capture::{Capture, has, own_address};
use common::{Run, Watch, bits, worker_with};
use quelea_net::launcher::{Launched, Rendezvous};
use quelea_net::process_group::{Given, GroupCall, Participants, ProcessGroup};
use quelea_net::{
    Coordinator, Hosted, JoinToken, NetError, NetOptions, RunSecret, Security, TransportKind,
};
use quelea_record::Outcome;

const MARK: &str = "mark-of-this-job";

fn secret(text: &str) -> Security {
    let text = format!("{text}{text}{text}{text}{text}{text}");
    Security::Secret(RunSecret::from_text("a test", &text).expect("long enough"))
}

fn with(security: Security) -> NetOptions {
    NetOptions { security, ..NetOptions::default() }
}

/// A coordinator that asks for a token although it listens here.
fn guarded(options: NetOptions) -> (Coordinator, JoinToken) {
    let options = NetOptions { security: secret("here"), ..options };
    let coordinator = Coordinator::bind("127.0.0.1:0", options).expect("a free port");
    let token = coordinator.token("127.0.0.1").expect("it has one");
    (coordinator, token)
}

/// Worker 0 at the coordinator, worker 1 at `place`, while `disturb` does something.
fn run_of_two(
    run: &Run,
    coordinator: Coordinator,
    place: &str,
    options: &NetOptions,
    disturb: impl FnOnce(),
) -> Result<Outcome, NetError> {
    let hosted = Hosted { workers: vec![0] };
    let job = [&run.job()[..], b" ", MARK.as_bytes()].concat();
    std::thread::scope(|scope| {
        let conducted = scope.spawn(move || {
            coordinator.run(job, &run.setup(), &run.gradients(), &hosted, &mut Watch::new())
        });
        disturb();
        scope.spawn(|| worker_with(place, Some(1), options).expect("it takes part"));
        conducted.join().expect("no panic")
    })
}

/// What is seen on the network of a run between two processes.
fn seen(ip: IpAddr, security: Security) -> Option<(Vec<u8>, Outcome, Option<JoinToken>)> {
    let run = Run { dimensions: 5_000, ..Run::of("d-psgd", 2) };
    let capture = Capture::start(ip)?;
    // As between two machines.
    let options = NetOptions { transport: TransportKind::Tcp, ..with(security) };
    let coordinator = Coordinator::bind(&format!("{ip}:0"), options.clone()).expect("a free port");
    let token = coordinator.token(&ip.to_string());
    let place = token.as_ref().map_or(coordinator.address().to_string(), JoinToken::reveal);
    let outcome = run_of_two(&run, coordinator, &place, &options, || {}).expect("it ends well");
    assert_eq!(bits(&outcome), bits(&run.threads().expect("threads")));
    Some((capture.finish(), outcome, token))
}

/// A few parameters of worker 1, which sends all of them in its report.
fn parameters(outcome: &Outcome) -> Vec<Vec<u8>> {
    let values = outcome.ranks[1].params.chunks_exact(4).step_by(100);
    values.map(|four| four.iter().flat_map(|value| value.to_le_bytes()).collect()).collect()
}

#[test]
fn between_machines_nothing_can_be_read_unless_that_was_asked_for() {
    let Some(ip) = own_address() else {
        return eprintln!("skipped: this machine has no address but loopback");
    };
    let Some((plain, outcome, token)) = seen(ip, Security::Insecure) else {
        return eprintln!("skipped: this process may not see packets (it needs CAP_NET_RAW)");
    };
    // The recording shows what it should not show below.
    assert_eq!(token, None);
    assert!(has(&plain, MARK.as_bytes()) && has(&plain, b"QLEA") && has(&plain, b"QLEC"));
    assert!(parameters(&outcome).iter().any(|part| has(&plain, part)));

    let (bytes, outcome, token) = seen(ip, Security::Automatic).expect("as before");
    let token = token.expect("the default beyond this machine").reveal();
    assert!(bytes.len() > plain.len() / 2, "{} and {}", bytes.len(), plain.len());
    for text in [MARK, "QLEA", "QLEC", "d-psgd", "quelea", "rank-", &token[token.len() - 24..]] {
        assert!(!has(&bytes, text.as_bytes()), "{text}");
    }
    for part in parameters(&outcome) {
        assert!(!has(&bytes, &part), "{part:?}");
    }
}

#[test]
fn an_encrypted_run_has_the_bits_of_every_other() {
    for name in ["allreduce", "sync-ps", "ad-psgd"] {
        let run = Run { dimensions: 3_000, ..Run::of(name, 2) };
        let (coordinator, token) = guarded(NetOptions::default());
        let options = NetOptions::default();
        let outcome = run_of_two(&run, coordinator, &token.reveal(), &options, || {});
        let outcome = outcome.expect("it ends well");
        if name != "ad-psgd" {
            assert_eq!(bits(&outcome), bits(&run.threads().expect("threads")), "{name}");
        }
    }
}

#[test]
fn whoever_has_no_valid_token_takes_no_seat_and_learns_nothing() {
    let run = Run::of("allreduce", 2);
    let options = NetOptions { handshake_seconds: 1.0, ..NetOptions::default() };
    let (coordinator, token) = guarded(options);
    let address = coordinator.address();
    let outcome = run_of_two(&run, coordinator, &token.reveal(), &NetOptions::default(), || {
        let refused = |place: &str, options: &NetOptions| {
            worker_with(place, None, options).expect_err("it may not join").to_string()
        };
        // Another run's token: the secret is wrong, or even the certificate.
        let (_other, others) = guarded(NetOptions::default());
        let there = JoinToken { address: address.to_string(), ..others.clone() };
        let told = refused(&there.reveal(), &NetOptions::default());
        assert!(told.contains("another coordinator listens there"), "{told}");
        let wrong = JoinToken { secret: RunSecret::random().expect("random"), ..token.clone() };
        let told = refused(&wrong.reveal(), &NetOptions::default());
        assert!(
            told.ends_with("does not accept this token or secret: it is of another run"),
            "{told}"
        );
        // A secret that a launcher handed out for something else.
        let told = refused(&address.to_string(), &with(secret("else")));
        assert!(told.ends_with("it is of another run"), "{told}");
        // No token at all, and no TLS at all.
        let told = refused(&address.to_string(), &NetOptions::default());
        assert!(told.contains("closed"), "{told}");
        for first in [&b"GET / HTTP/1.1\r\nHost: quelea\r\n\r\n"[..], b"\x16\x03\x01\xff\xff"] {
            let mut stranger = TcpStream::connect(address).expect("it listens");
            stranger.write_all(first).expect("it hears");
            let mut answer = Vec::new();
            let _ = stranger.read_to_end(&mut answer);
            assert!(answer.len() < 16, "an alert at most: {answer:?}");
        }
        // Silence holds no seat.
        let silent: Vec<TcpStream> =
            (0..4).map(|_| TcpStream::connect(address).expect("it listens")).collect();
        std::mem::forget(silent);
    });
    let outcome = outcome.expect("the run is not disturbed");
    assert_eq!(bits(&outcome), bits(&run.threads().expect("threads")));
    let warned = |part: &str| outcome.warnings.iter().any(|text| text.contains(part));
    assert!(warned("it does not know the run's secret"), "{:?}", outcome.warnings);
}

#[test]
fn an_expired_token_is_refused_with_the_reason() {
    let (_coordinator, token) = guarded(NetOptions::default());
    let old = JoinToken { expires: 1, ..token };
    let told = worker_with(&old.reveal(), None, &NetOptions::default());
    let told = told.expect_err("it is over").to_string();
    assert!(told.contains("the token expired ") && told.ends_with("ask for a new one"), "{told}");
}

#[test]
fn a_coordinator_refuses_its_own_token_after_its_time() {
    let Some(ip) = own_address() else {
        return eprintln!("skipped: this machine has no address but loopback");
    };
    let run = Run::of("allreduce", 1);
    let options = NetOptions { token_seconds: 0.0, connect_seconds: 5.0, ..NetOptions::default() };
    let coordinator = Coordinator::bind(&format!("{ip}:0"), options).expect("a free port");
    let token = coordinator.token(&ip.to_string()).expect("it has one");
    // A worker whose clock is late.
    let token = JoinToken { expires: u64::MAX, ..token };
    std::thread::scope(|scope| {
        let nobody = Hosted::default();
        let conducted = scope.spawn(move || {
            coordinator.run(run.job(), &run.setup(), &run.gradients(), &nobody, &mut Watch::new())
        });
        let told = worker_with(&token.reveal(), None, &NetOptions::default());
        let told = told.expect_err("it is over").to_string();
        assert!(told.ends_with("refused: the token has expired; ask for a new one"), "{told}");
        let missing = conducted.join().expect("no panic").expect_err("nobody came").to_string();
        assert!(missing.contains("its token has expired"), "{missing}");
    });
}

#[test]
fn plain_connections_to_other_machines_must_be_asked_for() {
    let told = worker_with("192.0.2.1:29470", None, &NetOptions::default());
    let told = told.expect_err("it is elsewhere").to_string();
    assert!(told.starts_with("192.0.2.1 is not this machine"), "{told}");
    let launched = launches(Rendezvous::Address("192.0.2.1:0".into()), 2).swap_remove(0);
    let told = Coordinator::of_launch(&launched, NetOptions::default());
    let told = told.expect_err("no secret").to_string();
    assert!(told.starts_with("192.0.2.1 is not this machine"), "{told}");
    let near = launches(Rendezvous::Address("localhost:0".into()), 2).swap_remove(0);
    let near = Coordinator::of_launch(&near, NetOptions::default()).expect("a free port");
    assert!(near.address().ip().is_loopback(), "{}", near.address());
}

fn launches(rendezvous: Rendezvous, world: u32) -> Vec<Launched> {
    let launched = |rank| Launched {
        rank,
        world,
        rendezvous: rendezvous.clone(),
        local_rank: None,
        local_size: None,
        launcher: "a test",
    };
    (0..world).map(launched).collect()
}

/// What two processes come to that were given these secrets.
fn grouped(name: &str, secrets: [Security; 2]) -> Vec<Result<Vec<u8>, String>> {
    let path = std::env::temp_dir().join(format!("quelea-trust-{name}-{}", std::process::id()));
    let launches = launches(Rendezvous::LocalFile(path), 2);
    std::thread::scope(|scope| {
        let spawn = |(launched, security): (Launched, Security)| {
            scope.spawn(move || {
                let seconds = if launched.rank == 0 { 2.0 } else { 20.0 };
                let group = ProcessGroup::open(&launched, &security, seconds, &mut || true);
                let mut group = group.map_err(|error| error.to_string())?;
                let call = GroupCall {
                    what: "a test",
                    limit: Duration::from_secs(20),
                    participants: Participants::All,
                };
                let mine = vec![launched.rank as u8];
                let join =
                    |all: Vec<Given>| Ok(all.into_iter().flat_map(|given| given.bytes).collect());
                let all = group.together(call, mine, join, &mut || true);
                all.map_err(|error| error.to_string())
            })
        };
        let threads: Vec<_> = launches.into_iter().zip(secrets).map(spawn).collect();
        threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
    })
}

#[test]
fn processes_of_a_launch_meet_with_one_secret_only() {
    let met = grouped("same", [secret("same"), secret("same")]);
    assert_eq!(met, vec![Ok(vec![0, 1]), Ok(vec![0, 1])]);
    let apart = grouped("other", [secret("same"), secret("other")]);
    let texts: Vec<String> = apart.into_iter().map(|end| end.expect_err("apart")).collect();
    assert!(texts[0].contains("rank 1 did not come to init()"), "{texts:?}");
    assert!(texts[1].ends_with("it is of another run"), "{texts:?}");
}

#[test]
fn a_rank_that_does_not_come_to_a_call_is_named_after_the_limit() {
    let path = std::env::temp_dir().join(format!("quelea-late-{}", std::process::id()));
    let launches = launches(Rendezvous::LocalFile(path), 2);
    let (late, is_late) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let (first, second) = (launches[0].clone(), launches[1].clone());
        scope.spawn(move || {
            let security = Security::Automatic;
            let _group =
                ProcessGroup::open(&second, &security, 20.0, &mut || true).expect("it comes");
            // It stays connected, and makes no call.
            let _ = is_late.recv();
        });
        let group = ProcessGroup::open(&first, &Security::Automatic, 20.0, &mut || true);
        let call = GroupCall {
            what: "barrier()",
            limit: Duration::from_millis(200),
            participants: Participants::All,
        };
        let ended = group.expect("both come").together(call, vec![], |_| Ok(vec![]), &mut || true);
        let told = ended.expect_err("nobody comes").to_string();
        assert!(
            told.starts_with("waited 0.") && told.ends_with(" s for rank 1 at barrier()"),
            "{told}"
        );
        drop(late);
    });
}
