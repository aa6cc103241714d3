//! The bare ring all-reduce of 25 MiB over TCP, one process per rank, whole and cut into pieces.

mod common;

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::{ELEMENTS, is_test, median, nothing, setup, wants_json};
use quelea_core::collectives::{AllReduce, Group, Label, Ring};
use quelea_core::contract::{Algorithm, Context};
use quelea_core::layout::{Layout, chunks};
use quelea_core::message::{Message, Rank};
use quelea_core::options::Options;
use quelea_core::run_spec::RunSpec;
use quelea_core::state::Visitor;
use quelea_core::time::Time;
use quelea_net::{Coordinator, Hosted, NetOptions, TransportKind, join};
use quelea_record::Silent;

/// In how many pieces the vector is reduced: whole, and in pieces of about 3 MiB.
const CUTS: [usize; 2] = [1, 8];
/// Rounds that only fill pools and caches.
const WARM_UP: u64 = 3;

/// The cut of the run that this process takes part in.
static PIECES: AtomicUsize = AtomicUsize::new(1);

static MEASURED: Mutex<Vec<f64>> = Mutex::new(Vec::new());

/// One all-reduce after another over the whole vector, in place, as a ring per piece.
#[derive(Default)]
struct Rings {
    group: Option<Arc<Group>>,
    /// By step and piece; a peer may be one step ahead.
    rings: BTreeMap<(u64, usize), Ring>,
    begun: Time,
    /// Pieces that are not reduced yet.
    left: usize,
}

impl Rings {
    fn ring(&mut self, step: u64, piece: usize) -> &mut Ring {
        let group = Arc::clone(self.group.as_ref().expect("started"));
        let label = Label { kind: 1, step, bucket: piece, phase: 0, rounds: false };
        let new = || Ring::new(group, label, range(piece).len());
        self.rings.entry((step, piece)).or_insert_with(new)
    }

    fn finish_if_done(&mut self, cx: &mut Context<'_>, piece: usize) {
        if !self.ring(cx.step, piece).is_done() {
            return;
        }
        let mut ring = self.rings.remove(&(cx.step, piece)).expect("it is there");
        ring.finish(1.0 / cx.outbox.view.workers.len() as f32, &mut cx.grad[range(piece)]);
        self.left -= 1;
        if self.left == 0 && cx.step >= WARM_UP {
            MEASURED.lock().expect("no panic").push(cx.outbox.now.since(self.begun).seconds());
        }
    }
}

impl Algorithm for Rings {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.group = Some(Arc::new(Group::of_workers(cx.outbox.view, cx.outbox.rank)));
    }

    fn on_gradient(&mut self, cx: &mut Context<'_>) {
        // The clock is not set back between rounds: what lies between them counts too.
        if cx.step <= WARM_UP {
            self.begun = cx.outbox.now;
        }
        self.left = pieces();
        let step = cx.step;
        for piece in 0..pieces() {
            self.ring(step, piece).start(&mut cx.outbox, &cx.grad[range(piece)]);
        }
        for piece in 0..pieces() {
            self.finish_if_done(cx, piece);
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let (step, piece) = (message.step, message.bucket as usize);
        let is_mine = step == cx.step && self.left > 0;
        let data = if is_mine { &cx.grad[range(piece)] } else { &[] };
        self.ring(step, piece).on_message(&mut cx.outbox, data, from, message);
        if is_mine {
            self.finish_if_done(cx, piece);
        }
    }

    fn is_ready(&self) -> bool {
        self.left == 0
    }

    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}

fn pieces() -> usize {
    PIECES.load(Ordering::Relaxed)
}

fn range(piece: usize) -> Range<usize> {
    chunks(ELEMENTS, pieces())[piece].clone()
}

/// The run, with a bucket for every piece.
fn cut(workers: usize, steps: u64) -> RunSpec {
    let pieces = PIECES.load(Ordering::Relaxed);
    let layout = Arc::new(Layout::plain(ELEMENTS, ELEMENTS.div_ceil(pieces) * 4));
    RunSpec { layout, ..setup(rings, workers, steps) }
}

fn rings(_: &Options) -> Box<dyn Algorithm> {
    Box::<Rings>::default()
}

/// What goes through shared memory is measured by `local`.
fn over_tcp() -> NetOptions {
    NetOptions { transport: TransportKind::Tcp, ..NetOptions::default() }
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
    join(address, rank, &over_tcp(), &mut |job| {
        let text = String::from_utf8_lossy(job).into_owned();
        let numbers: Vec<u64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
        let [workers, steps, pieces] = numbers[..] else { return Err("three numbers".into()) };
        PIECES.store(pieces as usize, Ordering::Relaxed);
        let setup = cut(workers as usize, steps);
        Ok((setup, nothing()))
    })
    .expect("it takes part");
}

/// Milliseconds per round, by the clock of rank 0 over all rounds after the warm-up.
fn processes(workers: usize, pieces: usize, rounds: u64) -> f64 {
    PIECES.store(pieces, Ordering::Relaxed);
    let steps = WARM_UP + rounds;
    let coordinator = Coordinator::bind("127.0.0.1:0", over_tcp()).expect("a free port");
    let address = coordinator.address().to_string();
    let children: Vec<Child> = (1..workers).map(|rank| child(&address, rank)).collect();
    let job = format!("{workers} {steps} {pieces}").into_bytes();
    let hosted = Hosted { workers: vec![0] };
    MEASURED.lock().expect("no panic").clear();
    coordinator.run(job, &cut(workers, steps), &nothing(), &hosted, &mut Silent).expect("it ends");
    for mut child in children {
        assert!(child.wait().expect("it was started").success());
    }
    let total = *MEASURED.lock().expect("no panic").last().expect("measured");
    total / rounds as f64 * 1e3
}

/// The same by PyTorch over gloo, where `QUELEA_TORCH_PYTHON` names a Python that has it.
fn gloo(python: &str, workers: usize, rounds: u64) -> f64 {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/gloo.py");
    let output = Command::new(python)
        .args([script, &workers.to_string(), &rounds.to_string()])
        .env("OMP_NUM_THREADS", "1")
        .output()
        .expect("QUELEA_TORCH_PYTHON can be started");
    let printed = String::from_utf8_lossy(&output.stdout);
    let said = String::from_utf8_lossy(&output.stderr);
    printed.trim().parse().unwrap_or_else(|_| panic!("gloo printed {printed:?}: {said}"))
}

fn main() {
    if let Ok(address) = std::env::var("QUELEA_BENCH_ADDRESS") {
        return take_part(&address);
    }
    let python = std::env::var("QUELEA_TORCH_PYTHON").ok();
    let (runs, rounds) = if is_test() { (1, 1) } else { (9, 10) };
    for workers in [2, 4] {
        let mut each: [Vec<f64>; CUTS.len()] = Default::default();
        let mut peer = Vec::new();
        for run in 0..runs {
            for turn in 0..CUTS.len() {
                let cut = (run + turn) % CUTS.len();
                each[cut].push(processes(workers, CUTS[cut], rounds));
            }
            peer.extend(python.as_ref().map(|python| gloo(python, workers, rounds)));
        }
        let peer = (!peer.is_empty()).then(|| median(&mut peer));
        for (pieces, times) in CUTS.iter().zip(&mut each) {
            report(workers, *pieces, times, peer);
        }
    }
}

fn report(workers: usize, pieces: usize, times: &mut [f64], gloo: Option<f64>) {
    let (runs, ms) = (times.len(), median(times));
    let (least, most) = (times[0], times[runs - 1]);
    if wants_json() {
        let peer =
            gloo.map(|gloo| format!("\"gloo ms\": {gloo:.2}, \"ratio\": {:.3}, ", gloo / ms));
        println!(
            "{{\"name\": \"{workers} processes, {pieces} pieces\", {}\"goal\": \"1 (gloo's time / ours)\", \
             \"ms\": {ms:.2}, \"least ms\": {least:.2}, \"most ms\": {most:.2}}}",
            peer.unwrap_or_default()
        );
    } else {
        let peer = gloo.map(|gloo| format!("; gloo {gloo:.1} ms"));
        println!(
            "ring all-reduce of 25 MiB over TCP, {workers} processes, {pieces:2} pieces: \
             {ms:5.1} ms (median of {runs} runs in turns; {least:.1} to {most:.1}){}",
            peer.unwrap_or_default()
        );
    }
}
