//! A thousand connections of somebody without a token: no rank is taken, nothing is kept, nothing is told.

mod common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use common::{Run, Watch, bits, worker_with};
use quelea_net::tensor_group::{Listener, Peers, Reach, TensorGroup};
use quelea_net::{Coordinator, Hosted, NetOptions, RunSecret, Security};

const VISITS: usize = 1000;
/// What a stranger may cost, in bytes.
const MEMORY: usize = 10 << 20;

/// Memory of this process that is in use, in bytes.
fn resident() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux has it");
    let pages: usize = text.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a number");
    // SAFETY: asks for a number.
    pages * usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).expect("positive")
}

/// What an honest worker says first, recorded in between. The worker is told nothing.
fn recorded(place: &str, coordinator: SocketAddr, options: &NetOptions) -> Vec<u8> {
    let between = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let place = place
        .replace(&coordinator.to_string(), &between.local_addr().expect("it listens").to_string());
    std::thread::scope(|scope| {
        scope.spawn(move || worker_with(&place, Some(1), options));
        let (mut worker, _) = between.accept().expect("it comes");
        let mut target = TcpStream::connect(coordinator).expect("it listens");
        let mut first = vec![0; 16 << 10];
        let count = worker.read(&mut first).expect("it speaks first");
        first.truncate(count);
        target.write_all(&first).expect("it hears");
        // The rest of the handshake, as far as it fits into one answer of each side.
        let mut answer = vec![0; 16 << 10];
        let count = target.read(&mut answer).expect("it answers");
        worker.write_all(&answer[..count]).expect("it hears");
        let mut second = vec![0; 16 << 10];
        let count = worker.read(&mut second).unwrap_or(0);
        first.extend_from_slice(&second[..count]);
        first
    })
}

/// One visit of a stranger, of one of several kinds; what it was told. Some stay until the end.
fn visit(number: usize, address: SocketAddr, replay: &[u8], staying: &mut Vec<TcpStream>) -> usize {
    let Ok(mut stream) = TcpStream::connect(address) else { return 0 };
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("connected");
    let noise: Vec<u8> = (0..4096usize).map(|i| (i * number * 31 % 251) as u8).collect();
    let hello: &[u8] = match number % 5 {
        0 => &noise,
        1 => b"GET / HTTP/1.1\r\nHost: quelea\r\n\r\n",
        2 => &replay[..replay.len() / 2],
        3 => replay,
        _ => {
            staying.push(stream);
            return 0;
        }
    };
    // Whoever is not heard sees that the connection is closed.
    let _ = stream.write_all(hello);
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    for secret in [&b"d-psgd"[..], b"rank-", b"QLE", b"refused", b"token"] {
        assert!(!answer.windows(secret.len()).any(|part| part == secret), "{number}: {answer:?}");
    }
    let is_tls = hello.first() == Some(&0x16);
    // An alert; to somebody who begins as TLS does, the server's part of the handshake.
    assert!(answer.len() < if is_tls { 4096 } else { 16 }, "{number}: {} bytes", answer.len());
    answer.len()
}

#[test]
fn a_thousand_strangers_take_no_rank_and_no_memory_and_learn_nothing() {
    let secret = RunSecret::random().expect("random numbers");
    let options = NetOptions { security: Security::Secret(secret), ..NetOptions::default() };
    let here = NetOptions { handshake_seconds: 2.0, ..options.clone() };
    let coordinator = Coordinator::bind("127.0.0.1:0", here).expect("a free port");
    let address = coordinator.address();
    let token = coordinator.token("127.0.0.1").expect("it has one").reveal();
    let run = Run { dimensions: 5_000, ..Run::of("d-psgd", 2) };
    let run = run.steps(200);
    let hosted = Hosted { workers: vec![0] };
    let (outcome, grown) = std::thread::scope(|scope| {
        let conducted = scope.spawn(|| {
            coordinator.run(run.job(), &run.setup(), &run.gradients(), &hosted, &mut Watch::new())
        });
        let replay = recorded(
            &address.to_string(),
            address,
            &NetOptions { connect_seconds: 2.0, ..options.clone() },
        );
        assert!(replay.len() > 100 && replay[0] == 0x16, "{} bytes", replay.len());
        let (mut staying, before) = (Vec::new(), resident());
        let mut most = before;
        for number in 0..VISITS {
            visit(number, address, &replay, &mut staying);
            most = most.max(resident());
        }
        // Those who stay are there while the honest worker joins.
        scope.spawn(|| worker_with(&token, Some(1), &options).expect("its rank is free"));
        let outcome = conducted.join().expect("no panic").expect("the run is not disturbed");
        (outcome, most - before)
    });
    assert_eq!(bits(&outcome), bits(&run.threads().expect("threads")));
    println!("memory grew by {} KiB at most", grown >> 10);
    assert!(grown < MEMORY, "{grown} bytes");
}

#[test]
fn strangers_at_the_door_of_a_tensor_group_hold_up_nobody() {
    let listeners: Vec<Listener> =
        (0..2).map(|_| Listener::bind(Reach::Loopback).expect("a free port")).collect();
    let addresses: Vec<Vec<String>> =
        listeners.iter().map(|listener| vec![format!("127.0.0.1:{}", listener.port())]).collect();
    let door: SocketAddr = addresses[0][0].parse().expect("an address");
    // They come first: silent ones, half a hello, the wrong token, noise.
    let strangers: Vec<TcpStream> = (0..VISITS / 4)
        .map_while(|number| {
            let mut stream = TcpStream::connect_timeout(&door, Duration::from_secs(1)).ok()?;
            let hello = [&b"quelea\x01t"[..], &[8; 16], &[1, 0, 0, 0], &[0; 4]].concat();
            let said = [&[][..], &hello[..20], &hello, &[0xff; 64]][number % 4];
            let _ = stream.write_all(said);
            Some(stream)
        })
        .collect();
    assert!(strangers.len() > 100, "the queue of a listener holds {}", strangers.len());
    let connect = |(rank, listener)| {
        let peers = Peers { rank, addresses: addresses.clone(), token: [7; 16] };
        TensorGroup::connect(listener, &peers, vec![0, 1], Duration::from_secs(60)).map(|_| ())
    };
    let begun = std::time::Instant::now();
    std::thread::scope(|scope| {
        let connect = &connect;
        let threads: Vec<_> = listeners
            .into_iter()
            .enumerate()
            .map(|one| scope.spawn(move || connect(one)))
            .collect();
        for thread in threads {
            thread.join().expect("no panic").expect("the group comes together");
        }
    });
    // Each silent stranger used to take five seconds.
    assert!(begun.elapsed() < Duration::from_secs(55), "{:?}", begun.elapsed());
}
