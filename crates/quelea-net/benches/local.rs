// long: four ways through the same cases, which are easier to compare in one place
//! Processes of one machine, through shared memory and over TCP: all-reduces and exchanges of pairs, 25 MiB
//! and 4 KiB, beside PyTorch's gloo and Open MPI where they are found; with the feature `mpi` over MPI too.
//!
//! Every case runs in every way in turns. A round is what lies between two completions at rank 0; of all
//! rounds of all runs of a way the median counts, for small messages the 99th percentile too.

mod common;

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use common::{is_test, median, nothing, setup, wants_json};
use quelea_core::collectives::{AllReduce, Group, HalvingDoubling, Label, Ring};
use quelea_core::contract::{Algorithm, Context};
use quelea_core::layout::{Layout, chunks};
use quelea_core::message::{Message, Rank};
use quelea_core::options::Options;
use quelea_core::run_spec::RunSpec;
use quelea_core::state::Visitor;
use quelea_core::time::Time;
use quelea_core::vector;
use quelea_net::launcher::{self, Rendezvous};
use quelea_net::{Coordinator, Gradients, Hosted, JobError, NetOptions, TransportKind, join};
use quelea_record::Silent;

/// Rounds that only fill pools and caches.
const WARM_UP: u64 = 5;
/// Below this many elements, latency costs more than bandwidth.
const SMALL_ELEMENTS: usize = 64 << 10;
/// Elements of a piece: all pieces of a vector are on their way at once.
const PIECE_ELEMENTS: usize = 1 << 18;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Exchanged {
    AllReduce,
    /// Two ranks send each other a vector and take the mean.
    Pair,
}

#[derive(Clone, Copy)]
struct Case {
    what: Exchanged,
    elements: usize,
    workers: usize,
    rounds: u64,
    /// The goal for our time over that of gloo.
    goal: f64,
}

const LARGE: usize = 25 * (1 << 20) / 4;
const SMALL: usize = 1 << 10;

const CASES: [Case; 7] = [
    Case { what: Exchanged::AllReduce, elements: LARGE, workers: 2, rounds: 20, goal: 0.5 },
    Case { what: Exchanged::AllReduce, elements: LARGE, workers: 4, rounds: 10, goal: 0.5 },
    Case { what: Exchanged::AllReduce, elements: LARGE, workers: 8, rounds: 5, goal: 0.5 },
    Case { what: Exchanged::Pair, elements: LARGE, workers: 2, rounds: 20, goal: 0.5 },
    Case { what: Exchanged::AllReduce, elements: SMALL, workers: 2, rounds: 2000, goal: 1.0 },
    Case { what: Exchanged::AllReduce, elements: SMALL, workers: 4, rounds: 1000, goal: 1.0 },
    Case { what: Exchanged::Pair, elements: SMALL, workers: 2, rounds: 2000, goal: 1.0 },
];

impl Case {
    fn name(&self) -> String {
        let what = match self.what {
            Exchanged::AllReduce => "all-reduce",
            Exchanged::Pair => "exchange of a pair",
        };
        let size = if self.elements == LARGE { "25 MiB" } else { "4 KiB" };
        format!("{what}, {size}, {} processes", self.workers)
    }

    /// As one word for the peers' programs.
    fn word(&self) -> &'static str {
        match self.what {
            Exchanged::AllReduce => "allreduce",
            Exchanged::Pair => "exchange",
        }
    }
}

/// The elements of the run that this process takes part in.
static ELEMENTS: AtomicUsize = AtomicUsize::new(1);
/// Seconds of every round at rank 0.
static MEASURED: Mutex<Vec<f64>> = Mutex::new(Vec::new());

fn elements() -> usize {
    ELEMENTS.load(Ordering::Relaxed)
}

fn pieces() -> usize {
    elements().div_ceil(PIECE_ELEMENTS)
}

fn range(piece: usize) -> Range<usize> {
    chunks(elements(), pieces())[piece].clone()
}

/// When the last round was complete.
#[derive(Default)]
struct Rounds {
    last: Time,
}

impl Rounds {
    fn note(&mut self, cx: &Context<'_>) {
        let now = cx.outbox.now;
        if cx.step >= WARM_UP && cx.outbox.rank == Rank(0) {
            MEASURED.lock().expect("no panic").push(now.since(self.last).seconds());
        }
        self.last = now;
    }
}

/// One all-reduce after another over the whole vector, in place, piece by piece.
#[derive(Default)]
struct AllReduces {
    group: Option<Arc<Group>>,
    /// By step and piece; a peer may be one step ahead.
    machines: BTreeMap<(u64, usize), Box<dyn AllReduce>>,
    rounds: Rounds,
    /// Pieces that are not reduced yet.
    left: usize,
}

impl AllReduces {
    fn machine(&mut self, step: u64, piece: usize) -> &mut dyn AllReduce {
        let group = Arc::clone(self.group.as_ref().expect("started"));
        let label = Label { kind: 1, step, bucket: piece, phase: 0, rounds: false };
        let len = range(piece).len();
        let new = || -> Box<dyn AllReduce> {
            if elements() < SMALL_ELEMENTS {
                Box::new(HalvingDoubling::new(group, label, len))
            } else {
                Box::new(Ring::new(group, label, len))
            }
        };
        &mut **self.machines.entry((step, piece)).or_insert_with(new)
    }

    fn finish_if_done(&mut self, cx: &mut Context<'_>, piece: usize) {
        if !self.machine(cx.step, piece).is_done() {
            return;
        }
        let mut machine = self.machines.remove(&(cx.step, piece)).expect("it is there");
        machine.finish(1.0 / cx.outbox.view.workers.len() as f32, &mut cx.grad[range(piece)]);
        self.left -= 1;
        if self.left == 0 {
            self.rounds.note(cx);
        }
    }
}

impl Algorithm for AllReduces {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.group = Some(Arc::new(Group::of_workers(cx.outbox.view, cx.outbox.rank)));
    }

    fn on_gradient(&mut self, cx: &mut Context<'_>) {
        self.left = pieces();
        let step = cx.step;
        for piece in 0..pieces() {
            self.machine(step, piece).start(&mut cx.outbox, &cx.grad[range(piece)]);
        }
        for piece in 0..pieces() {
            self.finish_if_done(cx, piece);
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let (step, piece) = (message.step, message.bucket as usize);
        let is_mine = step == cx.step && self.left > 0;
        let data = if is_mine { &cx.grad[range(piece)] } else { &[] };
        self.machine(step, piece).on_message(&mut cx.outbox, data, from, message);
        if is_mine {
            self.finish_if_done(cx, piece);
        }
    }

    fn is_ready(&self) -> bool {
        self.left == 0
    }

    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}

/// Two ranks that exchange their vectors and take the mean, as gossip does.
#[derive(Default)]
struct Pairs {
    /// What came before this rank was there.
    early: BTreeMap<usize, Message>,
    rounds: Rounds,
    left: usize,
}

impl Pairs {
    fn mix(&mut self, cx: &mut Context<'_>, piece: usize, message: Message) {
        vector::lerp(0.5, &message.into_values(), &mut cx.grad[range(piece)]);
        self.left -= 1;
        if self.left == 0 {
            self.rounds.note(cx);
        }
    }
}

impl Algorithm for Pairs {
    fn on_gradient(&mut self, cx: &mut Context<'_>) {
        self.left = pieces();
        let peer = Rank(1 - cx.outbox.rank.0);
        for piece in 0..pieces() {
            let values = cx.outbox.pool.copy(&cx.grad[range(piece)]);
            cx.outbox.send(peer, Message::new(1, cx.step, piece).with(values));
        }
        for (piece, message) in std::mem::take(&mut self.early) {
            self.mix(cx, piece, message);
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, _from: Rank, message: Message) {
        let piece = message.bucket as usize;
        if message.step == cx.step && self.left > 0 {
            self.mix(cx, piece, message);
        } else {
            self.early.insert(piece, message);
        }
    }

    fn is_ready(&self) -> bool {
        self.left == 0
    }

    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}

fn spec(what: Exchanged, workers: usize, steps: u64) -> RunSpec {
    let worker: fn(&Options) -> Box<dyn Algorithm> = match what {
        Exchanged::AllReduce => |_| Box::<AllReduces>::default(),
        Exchanged::Pair => |_| Box::<Pairs>::default(),
    };
    let layout = Arc::new(Layout::plain(elements(), elements().div_ceil(pieces()) * 4));
    RunSpec { layout, initial: vec![1.0; elements()].into(), ..setup(worker, workers, steps) }
}

fn options(transport: TransportKind) -> NetOptions {
    NetOptions { transport, ..NetOptions::default() }
}

fn take_part(address: &str) {
    let rank = std::env::var("QUELEA_BENCH_RANK").ok().and_then(|rank| rank.parse().ok());
    join(address, rank, &NetOptions::default(), &mut read_job).expect("it takes part");
}

fn read_job(job: &[u8]) -> Result<(RunSpec, Gradients), JobError> {
    let text = String::from_utf8_lossy(job).into_owned();
    let numbers: Vec<u64> = text.split(' ').filter_map(|word| word.parse().ok()).collect();
    let [is_pair, elements, workers, steps] = numbers[..] else {
        return Err("four numbers".into());
    };
    ELEMENTS.store(elements as usize, Ordering::Relaxed);
    let what = if is_pair == 1 { Exchanged::Pair } else { Exchanged::AllReduce };
    Ok((spec(what, workers as usize, steps), nothing()))
}

fn write_job(case: &Case, steps: u64) -> String {
    let is_pair = u8::from(case.what == Exchanged::Pair);
    format!("{is_pair} {} {} {steps}", case.elements, case.workers)
}

/// One of the processes that `mpirun` has started; the first prints the milliseconds of every round.
fn take_part_over_mpi(job: &str) {
    let found = launcher::detect(|name| std::env::var(name).ok());
    let mut launched = found.expect("usable").expect("mpirun");
    launched.rendezvous = Rendezvous::Mpi;
    if launched.rank > 0 {
        let place = launched.rendezvous.to_join();
        let (rank, options) = (Some(launched.rank), NetOptions::default());
        return join(&place, rank, &options, &mut read_job).expect("it takes part");
    }
    let coordinator = Coordinator::of_launch(&launched, NetOptions::default()).expect("a port");
    let (spec, gradients) = read_job(job.as_bytes()).expect("this program has written it");
    let hosted = Hosted { workers: vec![0] };
    coordinator.run(job.into(), &spec, &gradients, &hosted, &mut Silent).expect("it ends");
    for seconds in &*MEASURED.lock().expect("no panic") {
        println!("{}", seconds * 1e3);
    }
}

/// quelea over MPI, where it is built with it.
fn over_mpi(case: &Case) -> Vec<f64> {
    if !cfg!(feature = "mpi") {
        return Vec::new();
    }
    let mut command = mpirun(case);
    command.arg(std::env::current_exe().expect("this bench"));
    printed(command.env("QUELEA_BENCH_OVER_MPI", write_job(case, WARM_UP + case.rounds)))
}

/// Milliseconds of every round.
fn quelea(case: &Case, transport: TransportKind) -> Vec<f64> {
    ELEMENTS.store(case.elements, Ordering::Relaxed);
    let Case { what, workers, rounds, .. } = *case;
    let steps = WARM_UP + rounds;
    let coordinator = Coordinator::bind("127.0.0.1:0", options(transport)).expect("a free port");
    let address = coordinator.address().to_string();
    let child = |rank: usize| -> Child {
        Command::new(std::env::current_exe().expect("this bench"))
            .env("QUELEA_BENCH_ADDRESS", &address)
            .env("QUELEA_BENCH_RANK", rank.to_string())
            .spawn()
            .expect("it starts")
    };
    let children: Vec<Child> = (1..workers).map(child).collect();
    let job = write_job(case, steps).into_bytes();
    let hosted = Hosted { workers: vec![0] };
    MEASURED.lock().expect("no panic").clear();
    let spec = spec(what, workers, steps);
    coordinator.run(job, &spec, &nothing(), &hosted, &mut Silent).expect("it ends");
    for mut child in children {
        assert!(child.wait().expect("it was started").success());
    }
    let seconds = std::mem::take(&mut *MEASURED.lock().expect("no panic"));
    seconds.into_iter().map(|seconds| seconds * 1e3).collect()
}

/// What a peer's program prints: milliseconds of every round.
fn printed(command: &mut Command) -> Vec<f64> {
    let output = command.output().expect("it can be started");
    let printed = String::from_utf8_lossy(&output.stdout);
    let times: Vec<f64> = printed.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    assert!(!times.is_empty(), "{printed:?}: {}", String::from_utf8_lossy(&output.stderr));
    times
}

/// PyTorch over gloo.
fn gloo(python: &str, case: &Case) -> Vec<f64> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/gloo_local.py");
    let words = [case.workers, case.rounds as usize, case.elements].map(|word| word.to_string());
    let mut command = Command::new(python);
    printed(command.arg(script).arg(case.word()).args(words).env("OMP_NUM_THREADS", "1"))
}

/// Open MPI, whose program was compiled to this path.
fn mpi(program: &PathBuf, case: &Case) -> Vec<f64> {
    let words = [case.rounds as usize, case.elements].map(|word| word.to_string());
    printed(mpirun(case).arg(program).arg(case.word()).args(words))
}

/// The launcher, for as many processes as the case has.
fn mpirun(case: &Case) -> Command {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n"]);
    // Without it, ranks that share cores wait for each other in busy loops.
    let is_crowded = std::thread::available_parallelism().is_ok_and(|n| n.get() < case.workers);
    command.arg(case.workers.to_string());
    command.args(["--mca", "mpi_yield_when_idle", if is_crowded { "1" } else { "0" }]);
    command
}

/// Compiles the program for Open MPI, where there is a compiler for it.
fn mpi_program() -> Option<PathBuf> {
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/mpi_local.c");
    let program = std::env::temp_dir().join(format!("quelea-mpi-local-{}", std::process::id()));
    let mut compiler = Command::new("mpicc");
    let compiled = compiler.args(["-O3", "-march=native", source, "-o"]).arg(&program).status();
    compiled.is_ok_and(|status| status.success()).then_some(program)
}

/// All rounds of one way.
#[derive(Default)]
struct Times(Vec<f64>);

impl Times {
    fn median(&mut self) -> Option<f64> {
        (!self.0.is_empty()).then(|| median(&mut self.0))
    }

    fn percentile(&mut self) -> Option<f64> {
        self.0.sort_by(f64::total_cmp);
        self.0.get(self.0.len() * 99 / 100).copied()
    }
}

#[derive(Default)]
struct Found {
    shared: Times,
    tcp: Times,
    gloo: Times,
    mpi: Times,
    over_mpi: Times,
}

fn measure(case: &Case, python: Option<&str>, program: Option<&PathBuf>, runs: usize) -> Found {
    let mut found = Found::default();
    for run in 0..runs {
        for turn in 0..5 {
            match (run + turn) % 5 {
                0 => found.shared.0.extend(quelea(case, TransportKind::Auto)),
                1 => found.tcp.0.extend(quelea(case, TransportKind::Tcp)),
                2 => found.gloo.0.extend(python.into_iter().flat_map(|python| gloo(python, case))),
                3 => found.over_mpi.0.extend(if is_test() { Vec::new() } else { over_mpi(case) }),
                _ => found.mpi.0.extend(program.into_iter().flat_map(|path| mpi(path, case))),
            }
        }
    }
    found
}

fn main() {
    if let Ok(address) = std::env::var("QUELEA_BENCH_ADDRESS") {
        return take_part(&address);
    }
    if let Ok(job) = std::env::var("QUELEA_BENCH_OVER_MPI") {
        return take_part_over_mpi(&job);
    }
    let python = std::env::var("QUELEA_TORCH_PYTHON").ok().filter(|_| !is_test());
    let program = if is_test() { None } else { mpi_program() };
    let wanted = std::env::var("QUELEA_BENCH_CASE").unwrap_or_default();
    for case in CASES.iter().filter(|case| case.name().contains(&wanted)) {
        let case = if is_test() { Case { rounds: 2, ..*case } } else { *case };
        let runs = if is_test() { 1 } else { 5 };
        let found = measure(&case, python.as_deref(), program.as_ref(), runs);
        report(&case, found);
    }
    if let Some(program) = program {
        // What is left in the temporary folder harms nobody.
        let _ = std::fs::remove_file(program);
    }
}

fn report(case: &Case, mut found: Found) {
    let (name, is_small) = (case.name(), case.elements == SMALL);
    let ours = found.shared.median().expect("measured");
    let open_mpi = found.mpi.median();
    let each = [
        ("shared memory", &mut found.shared),
        ("TCP", &mut found.tcp),
        ("gloo", &mut found.gloo),
        ("Open MPI", &mut found.mpi),
        ("over MPI", &mut found.over_mpi),
    ];
    let mut fields = Vec::new();
    for (way, times) in each {
        let Some(ms) = times.median() else { continue };
        fields.push(format!("\"{way} ms\": {ms:.4}"));
        if is_small {
            let percentile = times.percentile().expect("measured");
            fields.push(format!("\"{way} 99 % ms\": {percentile:.4}"));
        }
        if way == "gloo" {
            fields.push(format!("\"ratio\": {:.3}", ours / ms));
        } else if way == "over MPI" {
            fields.extend(open_mpi.map(|its| format!("\"over MPI / Open MPI\": {:.3}", ms / its)));
        } else if way != "shared memory" {
            fields.push(format!("\"ours / {way}\": {:.3}", ours / ms));
        }
    }
    if wants_json() {
        let goal = case.goal;
        println!(
            "{{\"name\": \"{name}\", \"goal\": \"{goal} (ours / gloo)\", {}}}",
            fields.join(", ")
        );
    } else {
        println!("{name}: {}", fields.join(", ").replace('"', ""));
    }
}
