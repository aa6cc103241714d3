//! Peers that keep to the handshake and then break every rule, on purpose.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use common::{Run, Watch, coordinator, worker_with};
use quelea_core::message::{Message, Rank};
use quelea_core::payload::Pool;
use quelea_net::{Hosted, NetError, NetOptions};
use quelea_wire::control::{HEAD_BYTES, Reader, Writer, decode_head};
use quelea_wire::frame::{self, Route};

const NOBODY: &Hosted = &Hosted { workers: Vec::new() };

/// Worker 1 of two, connected like any other, that says what it wants.
struct Intruder {
    coordinator: TcpStream,
    peer: TcpStream,
}

/// The next packet, as its kind and body.
fn any_packet(mut stream: &TcpStream) -> (u16, Vec<u8>) {
    let mut head = [0; HEAD_BYTES];
    stream.read_exact(&mut head).expect("a packet");
    let head = decode_head(&head, 1 << 20).expect("a good head");
    let mut body = vec![0; head.length];
    stream.read_exact(&mut body).expect("its body");
    (head.kind, body)
}

/// The next packet that is no heartbeat.
fn packet(stream: &TcpStream) -> (u16, Vec<u8>) {
    let mut packets = std::iter::repeat_with(|| any_packet(stream));
    packets.find(|(kind, _)| *kind != 107).expect("they do not end")
}

fn say(mut stream: &TcpStream, packet: &[u8]) {
    stream.write_all(packet).expect("it hears");
}

/// Asks to be rank 1 until nobody else is.
fn ask_to_join(address: &str) -> (TcpStream, u64) {
    let stream = TcpStream::connect(address).expect("it listens");
    stream.set_nodelay(true).expect("connected");
    say(&stream, &Writer::default().number(1u32).text("").packet(1));
    let (kind, welcome) = packet(&stream);
    if kind == 3 {
        return ask_to_join(address);
    }
    assert_eq!(kind, 2, "it is welcome");
    let run = Reader::new(kind, &welcome).number().expect("the run");
    (stream, run)
}

impl Intruder {
    fn join(address: &str) -> Intruder {
        let (coordinator, run) = ask_to_join(address);
        // Nobody dials the highest rank.
        say(&coordinator, &Writer::default().number(1u32).packet(5));
        let (kind, peers) = packet(&coordinator);
        let addresses = Reader::new(kind, &peers).list(Reader::text).expect("addresses");
        // Of another run, and then of this one.
        assert_reveals_nothing(&addresses[0], run);
        let peer = TcpStream::connect(&addresses[0]).expect("rank 0 listens");
        say(&peer, &Writer::default().number(run).number(1u32).number(0u32).packet(11));
        assert_eq!(packet(&peer).0, 12, "it is accepted");
        say(&coordinator, &Writer::default().packet(9));
        assert_eq!(packet(&coordinator).0, 10, "the run begins");
        Intruder { coordinator, peer }
    }

    fn send(&mut self, message: &Message) {
        let header = frame::encode_header(Route { from: Rank(1), to: Rank(0) }, 0, message);
        let [first, second] = frame::slices(message);
        for bytes in [&header[..], first, second] {
            self.peer.write_all(bytes).expect("rank 0 hears");
        }
    }
}

/// Somebody of another run is refused by a rank, and does not hear which run this is.
fn assert_reveals_nothing(address: &str, run: u64) {
    let stranger = TcpStream::connect(address).expect("rank 0 listens");
    say(&stranger, &Writer::default().number(run ^ 1).number(1u32).number(0u32).packet(11));
    let (kind, refusal) = packet(&stranger);
    let told = Reader::new(kind, &refusal).text().expect("a reason");
    assert_eq!((kind, told.as_str()), (3, "it is not of this run"));
    let has = |bytes: [u8; 8]| refusal.windows(8).any(|window| window == bytes);
    assert!(!has(run.to_le_bytes()) && !has(run.to_be_bytes()), "{refusal:?}");
}

/// How a run of two ends whose worker 1 is an intruder.
fn ended(options: NetOptions, intrude: impl FnOnce(Intruder) + Send) -> NetError {
    ended_of(&Run::of("allreduce", 2), options, intrude)
}

fn ended_of(run: &Run, options: NetOptions, intrude: impl FnOnce(Intruder) + Send) -> NetError {
    let coordinator = coordinator(options);
    let address = coordinator.address().to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| intrude(Intruder::join(&address)));
        let hosted = Hosted { workers: vec![0] };
        coordinator
            .run(run.job(), &run.setup(), &run.gradients(), &hosted, &mut Watch::new())
            .expect_err("it cannot go on")
    })
}

/// Stays connected until it is told that the run has ended.
fn stay(intruder: &Intruder) {
    while packet(&intruder.coordinator).0 != 106 {}
}

#[test]
fn whoever_leaves_before_the_run_frees_its_rank() {
    let run = Run::of("allreduce", 2);
    let coordinator = coordinator(NetOptions::default());
    let address = coordinator.address().to_string();
    let outcome = std::thread::scope(|scope| {
        let conducted = scope.spawn(|| {
            coordinator.run(run.job(), &run.setup(), &run.gradients(), NOBODY, &mut Watch::new())
        });
        for is_ready in [false, true] {
            let (stream, _) = ask_to_join(&address);
            if is_ready {
                say(&stream, &Writer::default().number(1u32).packet(5));
            }
        }
        drop(ask_to_join(&address));
        scope.spawn(|| {
            worker_with(&address, Some(0), &NetOptions::default()).expect("it takes part")
        });
        scope.spawn(|| while worker_with(&address, Some(1), &NetOptions::default()).is_err() {});
        conducted.join().expect("no panic").expect("the run is not disturbed")
    });
    let is_named = |text: &String| text.contains("which was to be rank 1");
    assert!(outcome.warnings.iter().any(is_named), "{:?}", outcome.warnings);
}

#[test]
fn whoever_speaks_for_another_rank_or_reports_another_model_is_named() {
    let heartbeat = |rank: u32| alive(rank, false);
    let ticket = |rank: u32| Writer::default().number(rank).number(1u32).number(1u32).packet(201);
    let lost = Writer::default().number(1u32).number(7u32).text("no").packet(208);
    let reals = |w: Writer| w.real(0.0).real(0.0).real(0.0);
    let numbers = |w: Writer, count| (0..count).fold(w, |w, _| w.number(0u32));
    let report = numbers(reals(numbers(Writer::default().number(1u32), 5)), 3);
    let report = numbers(report.list::<u32>(&[], |w, _| w), 1).values(&[1.0]).values(&[]);
    let shown = Writer::default().number(1u32).number(5u32).values(&[1.0, 2.0]).packet(211);
    let saved = Writer::default().number(1u32).number(5u32).number(0u32).list::<u32>(&[], |w, _| w);
    let saved = saved.list(&["params"], |w, name| w.text(name).values(&[1.0]));
    let saved = numbers(reals(numbers(saved.number(1u32), 5)), 3);
    let saved = numbers(saved.list::<u32>(&[], |w, _| w), 1).values(&[]).values(&[]).packet(212);
    let report = report.packet(204);
    let step = |t: f64, exposed: f64| {
        let head = Writer::default().real(t).number(1u32).number(4u32).number(0u32);
        head.number(0u32).number(1u32).real(0.0).real(exposed).real(0.0).packet(205)
    };
    let evaluation = Writer::default().real(0.0).number(1u32).number(4u32).number(3u32);
    let evaluation = evaluation.real(0.1).number(false).real(0.0).real(0.0).packet(205);
    let negative =
        Writer::default().number(1u32).number(0u32).number(0u32).number(0u32).number(1u32);
    let negative = numbers(negative.number(1u32).real(-1.0).real(0.0).real(0.0), 3);
    let negative = numbers(negative.list::<u32>(&[], |w, _| w), 1).values(&[1.0; 37]);
    let negative = negative.values(&[1.0; 37]).packet(204);
    // That it has left.
    let left = Writer::default().real(0.0).number(1u32).number(4u32).number(11u32).packet(205);
    // How long a transfer between two others took.
    let transfer = Writer::default().real(0.0).number(1u32).number(4u32).number(2u32);
    let transfer = transfer.number(0u32).number(80u32).real(0.1).packet(205);
    let words = [
        (negative, "lost rank 1: its report has `compute_seconds` = -1"),
        (transfer, "lost rank 1: it sent an event of rank 0"),
        (step(0.0, -1.0), "lost rank 1: its record of step 4 has `exposed` = -1"),
        (step(0.0, f64::NAN), "lost rank 1: its record of step 4 has `exposed` = NaN"),
        (step(f64::INFINITY, 0.0), "lost rank 1: its record of step 4 has `t` = inf"),
        (evaluation, "lost rank 1: it sent a record that only the coordinator makes"),
        (left, "lost rank 1: it sent a record that only the coordinator makes"),
        (shown, "lost rank 1: it showed a model of 2, not 37"),
        (saved, "lost rank 1: it saved 1 parameters and vectors of 1, not 37"),
        (report, "lost rank 1: it reported 1 parameters and a model of 0, not 37"),
        (heartbeat(999), "lost rank 1: it sent an event of rank 999"),
        (ticket(0), "lost rank 1: it sent an event of rank 0"),
        (lost, "lost rank 1: it named rank 7; ranks are 0 to 1"),
    ];
    for (word, expected) in words {
        let error = ended(NetOptions::default(), |intruder| {
            say(&intruder.coordinator, &word);
            stay(&intruder);
        });
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn what_a_worker_says_reaches_nobody_with_control_characters() {
    let failed = Writer::default().number(1u32).text("\u{1b}]0;title\u{7}\u{9b}31mred").packet(209);
    let error = ended(NetOptions::default(), |intruder| {
        say(&intruder.coordinator, &failed);
        stay(&intruder);
    });
    let text = error.to_string();
    assert!(text.starts_with("rank 1 failed: ") && text.ends_with("31mred"), "{text}");
    assert!(!text.chars().any(char::is_control), "{text:?}");
}

#[test]
fn a_packet_that_is_long_for_its_kind_is_refused_before_it_is_read() {
    // A sentence of a mebibyte; a record with a name of as much.
    let long = "x".repeat(1 << 20);
    let warning = Writer::default().text(&long).packet(210);
    let measured = Writer::default().real(0.0).number(1u32).number(4u32).number(4u32);
    let measured = measured.text(&long).number(1u32).packet(205);
    for (word, most) in [(warning, 16 << 10), (measured, 4 << 10)] {
        let length = word.len() - HEAD_BYTES;
        let error = ended(NetOptions::default(), |intruder| {
            // The coordinator stops reading after the head.
            let _ = (&intruder.coordinator).write_all(&word);
            stay(&intruder);
        });
        let expected =
            format!("lost rank 1: a packet of {length} bytes where at most {most} are allowed");
        assert_eq!(error.to_string(), expected);
    }
}

#[test]
fn frames_that_nobody_uses_up_reach_a_budget_that_names_their_sender() {
    // Early frames of steps to come are kept until their step: 64 MiB of them at most.
    let run = Run { dimensions: 1 << 20, bucket_bytes: 4 << 20, ..Run::of("d-psgd", 2) };
    let options = NetOptions { peer_seconds: 20.0, ..NetOptions::default() };
    let vector = Pool::new().copy(&vec![1.0; 1 << 20]);
    let error = ended_of(&run, options, |mut intruder| {
        for step in 1..64 {
            let message = Message::new(0, step, 0).with(vector.clone());
            let header = frame::encode_header(Route { from: Rank(1), to: Rank(0) }, 0, &message);
            let [first, _] = frame::slices(&message);
            // The receiver closes the connection in the middle.
            if [&header[..], first].iter().any(|part| intruder.peer.write_all(part).is_err()) {
                break;
            }
        }
        stay(&intruder);
    });
    let text = error.to_string();
    let expected = "lost rank 1: it sent a bad frame: 4194304 bytes after ";
    assert!(text.starts_with(expected), "{text}");
    assert!(text.ends_with("one sender may have 67108864 here (seen by rank 0)"), "{text}");
}

#[test]
fn a_message_that_cannot_be_taken_ends_the_run_at_once_and_names_its_sender() {
    let pool = Pool::new();
    let mut late = Message::default();
    late.view = 1;
    let short = Message::new(0, 0, 0).with(pool.copy(&[1.0]));
    let messages = [
        (Message::new(0, 0, 9999), "there is no bucket 9999"),
        (late, "it is of view 1, this rank is in view 0"),
        (short, ""),
    ];
    for (message, expected) in messages {
        // Whoever only waited for it would wait for half a minute.
        let error = ended(NetOptions::default(), |mut intruder| {
            intruder.send(&message);
            stay(&intruder);
        });
        let text = error.to_string();
        let expected =
            format!("lost rank 1: it sent a message that could not be taken: {expected}");
        assert!(text.starts_with(&expected), "{text}");
    }
}

#[test]
fn a_rank_that_asks_and_never_listens_is_named() {
    // All tickets are gone from the start, so that every question is answered.
    let run = Run::of("ad-psgd", 2).steps(0);
    let options = NetOptions { peer_seconds: 1.0, connect_seconds: 600.0, ..NetOptions::default() };
    let error = ended_of(&run, options, |intruder| {
        let ticket = Writer::default().number(1u32).number(1u32).number(1u32).packet(201);
        let tickets = ticket.repeat(1000);
        while (&intruder.coordinator).write_all(&tickets).is_ok() {}
    });
    let text = error.to_string();
    // The system rounds the limit, a quarter of `peer_seconds`, to its own ticks.
    assert!(text.starts_with("lost rank 1: timed out writing to it after 0."), "{text}");
}

/// How a lone worker ends whose coordinator starts the run and then only does `act`, and reads
/// nothing.
fn abandoned(act: impl Fn(&TcpStream)) -> NetError {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("it listens").to_string();
    let run = Run::of("allreduce", 1).steps(u64::MAX >> 8);
    let options = NetOptions { peer_seconds: 0.5, connect_seconds: 600.0, ..NetOptions::default() };
    std::thread::scope(|scope| {
        let joined = scope.spawn(|| worker_with(&address, None, &options));
        let (stream, _) = listener.accept().expect("it comes");
        assert_eq!(packet(&stream).0, 1);
        let welcome = Writer::default().number(1u32).number(0u32).number(false).number(true);
        let welcome = welcome.number(false).number(true).number(0u64);
        say(&stream, &welcome.bytes(&run.job()).packet(2));
        while packet(&stream).0 == 6 {
            say(&stream, &Writer::default().number(0u32).packet(7));
        }
        say(
            &stream,
            &Writer::default()
                .list(std::slice::from_ref(&address), |w, a| w.text(a))
                .list::<u32>(&[], |w, _| w)
                .packet(8),
        );
        assert_eq!(packet(&stream).0, 9);
        let start = [0u64; 4].iter().fold(Writer::default(), |w, field| w.number(*field));
        say(&stream, &start.list::<u32>(&[], |w, _| w).packet(10));
        while !joined.is_finished() {
            act(&stream);
        }
        joined.join().expect("no panic").expect_err("nobody coordinates")
    })
}

#[test]
fn a_worker_leaves_a_coordinator_that_has_stopped() {
    let error = abandoned(|_| std::thread::yield_now());
    // One on the same machine, whose connection is open, may take ten times as long.
    assert!(error.to_string().contains("waited 5.0 s for a heartbeat"), "{error}");
}

#[test]
fn a_worker_leaves_a_coordinator_that_takes_no_word() {
    let error = abandoned(|mut stream| {
        let _ = stream.write_all(&Writer::default().packet(107));
    });
    assert!(error.to_string().contains("timed out writing to it after "), "{error}");
}

/// What a rank says that has sent and received nothing.
fn alive(rank: u32, computing: bool) -> Vec<u8> {
    let doing = Writer::default().number(rank).number(computing).number(false);
    doing.number(0u32).number(0u32).number(0u32).packet(206)
}

/// Says that it is alive as often as the coordinator does, and `answer`s what it is told, until
/// it is told that the run has ended.
fn live(intruder: &Intruder, computing: bool, mut answer: impl FnMut(u16, &[u8])) {
    let heartbeat = alive(1, computing);
    loop {
        let (kind, body) = any_packet(&intruder.coordinator);
        if kind == 106 {
            return;
        }
        say(&intruder.coordinator, &heartbeat);
        answer(kind, &body);
    }
}

#[test]
fn whoever_computes_or_idles_for_ever_is_named() {
    let run = Run::of("ad-psgd", 2).steps(0);
    let limits = NetOptions { compute_seconds: 0.1, peer_seconds: 0.4, ..NetOptions::default() };
    for (computing, expected) in [(true, "its gradient"), (false, "a step or its end")] {
        let intrude = |intruder: Intruder| live(&intruder, computing, |_, _| {});
        let text = ended_of(&run, limits.clone(), intrude).to_string();
        let expected = format!(" s for rank 1: {expected}");
        assert!(text.starts_with("waited ") && text.ends_with(&expected), "{text}");
    }
}

#[test]
fn whoever_never_reports_or_never_comes_to_rest_is_named() {
    let run = Run::of("ad-psgd", 2).steps(0);
    let limits = NetOptions { drain_seconds: 0.05, peer_seconds: 0.4, ..NetOptions::default() };
    for (restless, expected) in
        [(0, " s for rank 1: its report"), (1, " s for the last messages: ")]
    {
        let error = ended_of(&run, limits.clone(), |intruder| {
            say(&intruder.coordinator, &Writer::default().number(1u32).number(0u32).packet(202));
            let mut sent = 0u32;
            live(&intruder, false, |kind, body| {
                if kind == 104 {
                    sent += restless;
                    let probe = Reader::new(kind, body).number().expect("its number");
                    let answer = Writer::default().number(1u32).number(probe).number(true);
                    say(&intruder.coordinator, &answer.number(sent).number(0u32).packet(203));
                }
            });
        });
        let text = error.to_string();
        assert!(text.starts_with("waited ") && text.contains(expected), "{text}");
    }
}

#[test]
fn whoever_is_of_another_run_is_refused_by_a_rank_and_does_not_hear_which_run_it_is() {
    // The intruder asks as somebody of another run before it connects; see `Intruder::join`.
    let error = ended(NetOptions::default(), drop);
    assert!(error.to_string().contains("rank 1"), "{error}");
}
