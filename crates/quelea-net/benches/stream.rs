//! One TCP stream through the whole stack, algorithm to algorithm, beside a bare blocking socket:
//! 25 MiB payloads over loopback, runs taken in turns.
//!
//! The stack gives its loopback sockets a small send buffer, which alone makes a stream faster.
//! So there are two bare sockets: as the kernel makes them, and with the same buffer as ours. The
//! second is the one that tells what the stack itself costs.
//!
//! With `--tls`: the same stream encrypted, and with every message looked at for values that no honest rank
//! sends, each beside the plain one.

mod common;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::time::Instant;

use common::{ELEMENTS, is_test, median, nothing, setup, wants_json};
use quelea_core::contract::{Algorithm, Context};
use quelea_core::message::{Message, Rank};
use quelea_core::options::Options;
use quelea_core::poison::PoisonPolicy;
use quelea_core::run_spec::RunSpec;
use quelea_core::state::Visitor;
use quelea_core::time::Time;
use quelea_net::{Coordinator, Hosted, NetOptions, RunSecret, Security, TransportKind, join};
use quelea_record::Silent;

/// What the stack asks for on loopback (`transport/tcp.rs`).
const LOOPBACK_BYTES: usize = 256 << 10;
/// Payloads of one measurement.
const COUNT: u32 = 16;
/// The first step warms up; the second is measured.
const STEPS: u64 = 2;

static MEASURED: Mutex<Vec<f64>> = Mutex::new(Vec::new());

/// Rank 0 sends, rank 1 takes and says when it has all.
#[derive(Default)]
struct Stream {
    begun: Time,
    taken: u32,
    busy: bool,
}

impl Algorithm for Stream {
    fn on_gradient(&mut self, cx: &mut Context<'_>) {
        self.busy = true;
        if cx.outbox.rank == Rank(1) {
            // "Begin": both sides are here.
            cx.outbox.send(Rank(0), Message::new(1, cx.step, 0));
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        match message.kind {
            1 => {
                let mut payload = cx.outbox.pool.take(ELEMENTS);
                if cx.step == 0 {
                    // Memory that was never written is one page of zeros, read from the cache.
                    payload.try_mut().expect("just taken").fill(1.0);
                }
                self.begun = cx.outbox.now;
                for _ in 0..COUNT {
                    cx.outbox.send(from, Message::new(2, cx.step, 0).with(payload.clone()));
                }
            }
            2 => {
                self.taken += 1;
                if self.taken == COUNT {
                    (self.taken, self.busy) = (0, false);
                    cx.outbox.send(from, Message::new(3, cx.step, 0));
                }
            }
            _ => {
                self.busy = false;
                let seconds = cx.outbox.now.since(self.begun).seconds();
                MEASURED.lock().expect("no panic").push(seconds);
            }
        }
    }

    fn is_ready(&self) -> bool {
        !self.busy
    }

    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}

fn stack() -> f64 {
    stack_with(Security::Automatic, PoisonPolicy::Ignore)
}

fn encrypted() -> f64 {
    let secret = RunSecret::random().expect("random numbers");
    stack_with(Security::Secret(secret), PoisonPolicy::Ignore)
}

fn inspected() -> f64 {
    stack_with(Security::Automatic, PoisonPolicy::Stop)
}

fn stack_with(security: Security, poison: PoisonPolicy) -> f64 {
    let worker = |_: &Options| Box::<Stream>::default() as Box<dyn Algorithm>;
    let setup = RunSpec { poison, ..setup(worker, 2, STEPS) };
    let transport = TransportKind::Tcp;
    let options = NetOptions { security, transport, ..NetOptions::default() };
    let coordinator = Coordinator::bind("127.0.0.1:0", options.clone()).expect("a free port");
    let address = coordinator.address().to_string();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            join(&address, Some(1), &options, &mut |_| Ok((setup.clone(), nothing())))
                .expect("it takes part")
        });
        let hosted = Hosted { workers: vec![0] };
        coordinator.run(Vec::new(), &setup, &nothing(), &hosted, &mut Silent).expect("it ends")
    });
    MEASURED.lock().expect("no panic").pop().expect("measured")
}

/// With the send buffer of this many bytes, or the kernel's own choice.
fn bare(send_buffer: Option<usize>) -> f64 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut stream = TcpStream::connect(address).expect("it listens");
            stream.set_nodelay(true).expect("a socket");
            let mut buffer = vec![0u8; ELEMENTS * 4];
            for _ in 0..STEPS {
                stream.write_all(&[1]).expect("open");
                for _ in 0..COUNT {
                    stream.read_exact(&mut buffer).expect("open");
                }
                stream.write_all(&[3]).expect("open");
            }
        });
        let (mut stream, _) = listener.accept().expect("it comes");
        stream.set_nodelay(true).expect("a socket");
        if let Some(bytes) = send_buffer {
            socket2::SockRef::from(&stream).set_send_buffer_size(bytes).expect("a socket");
        }
        let buffer = vec![1u8; ELEMENTS * 4];
        let mut seconds = 0.0;
        for _ in 0..STEPS {
            stream.read_exact(&mut [0]).expect("open");
            let begun = Instant::now();
            for _ in 0..COUNT {
                stream.write_all(&buffer).expect("open");
            }
            stream.read_exact(&mut [0]).expect("open");
            seconds = begun.elapsed().as_secs_f64();
        }
        seconds
    })
}

/// Median GB/s of each kind, measured in turns so that nobody always goes first.
fn rates(kinds: [fn() -> f64; 3]) -> [f64; 3] {
    let mut rates: [Vec<f64>; 3] = Default::default();
    for run in 0..runs() {
        for turn in 0..kinds.len() {
            let kind = (run + turn) % kinds.len();
            let bytes = f64::from(COUNT) * ELEMENTS as f64 * 4.0;
            rates[kind].push(bytes / kinds[kind]() / 1e9);
        }
    }
    rates.each_mut().map(|rates| median(rates))
}

fn runs() -> usize {
    if is_test() { 1 } else { 15 }
}

/// What one encrypted stream should reach, in GB/s.
const TLS_GOAL: f64 = 1.5;

fn measure_tls() {
    let [plain, encrypted, inspected] = rates([stack, encrypted, inspected]);
    let (ratio, looked_at) = (encrypted / plain, inspected / plain);
    if wants_json() {
        println!(
            "{{\"name\": \"25 MiB payloads, TLS 1.3, {TLS_GOAL} GB/s = 1\", \"goal\": 1.0, \
             \"ratio\": {:.3}, \"GB/s\": {encrypted:.3}, \"plain\": {plain:.3}, \
             \"TLS / plain\": {ratio:.3}}}",
            encrypted / TLS_GOAL
        );
        println!(
            "{{\"name\": \"25 MiB payloads, looked at for NaN, without = 1\", \"goal\": 0.9, \
             \"ratio\": {looked_at:.3}, \"GB/s\": {inspected:.3}, \"plain\": {plain:.3}}}"
        );
    } else {
        println!("25 MiB payloads over one loopback stream, medians of {} runs in turns", runs());
        println!("  plain                            {plain:6.2} GB/s");
        println!("  TLS 1.3, AES-128-GCM             {encrypted:6.2} GB/s   ratio {ratio:.2}");
        println!("  plain, looked at for NaN         {inspected:6.2} GB/s   ratio {looked_at:.2}");
    }
}

fn main() {
    if std::env::args().any(|argument| argument == "--tls") {
        return measure_tls();
    }
    let runs = runs();
    let [ours, same, default] = rates([stack, || bare(Some(LOOPBACK_BYTES)), || bare(None)]);
    let (ratio, over_default) = (ours / same, ours / default);
    if wants_json() {
        println!(
            "{{\"name\": \"25 MiB payloads, bare socket = 1\", \"goal\": 0.9, \"ratio\": {ratio:.3}, \
             \"GB/s\": {ours:.3}, \"bare, same buffer\": {same:.3}, \
             \"bare, kernel's buffer\": {default:.3}}}"
        );
    } else {
        println!("25 MiB payloads over one loopback stream, medians of {runs} runs in turns");
        println!("  whole stack                      {ours:6.2} GB/s");
        println!("  bare socket, same send buffer    {same:6.2} GB/s   ratio {ratio:.2}");
        println!("  bare socket, kernel's own buffer {default:6.2} GB/s   ratio {over_default:.2}");
    }
}
