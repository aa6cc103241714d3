//! The bare ring all-reduce of 25 MiB over TCP, one process per rank, beside what one round
//! would take at the speed of a bare socket.

mod common;

use std::collections::BTreeMap;
use std::ops::Range;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use common::{ELEMENTS, Nothing, is_test, median, setup, wants_json};
use murmura_core::collectives::{AllReduce, Group, Label, Ring};
use murmura_core::contract::{Algorithm, Cx};
use murmura_core::layout::chunks;
use murmura_core::message::{Message, Rank};
use murmura_core::params::Params;
use murmura_core::problems::Problem;
use murmura_core::state::Visitor;
use murmura_core::time::Time;
use murmura_net::{Coordinator, Hosted, Options, join};
use murmura_record::Nowhere;

/// The vector is reduced in pieces of 1 MiB: each is added while it is still in the cache, and
/// sent on while the next arrives.
const PIECES: usize = 25;
/// Rounds that only fill pools and caches.
const WARM_UP: u64 = 3;

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
        let label = Label { kind: 1, step, bucket: piece };
        let new = || Ring::new(group, label, range(piece).len());
        self.rings.entry((step, piece)).or_insert_with(new)
    }

    fn finish_if_done(&mut self, cx: &mut Cx<'_>, piece: usize) {
        if !self.ring(cx.step, piece).is_done() {
            return;
        }
        let mut ring = self.rings.remove(&(cx.step, piece)).expect("it is there");
        ring.finish(1.0 / cx.io.view.workers.len() as f32, &mut cx.grad[range(piece)]);
        self.left -= 1;
        if self.left == 0 && cx.step >= WARM_UP {
            MEASURED.lock().expect("no panic").push(cx.io.now.since(self.begun).seconds());
        }
    }
}

impl Algorithm for Rings {
    fn on_start(&mut self, cx: &mut Cx<'_>) {
        self.group = Some(Arc::new(Group::of_workers(cx.io.view, cx.io.rank)));
    }

    fn on_gradient(&mut self, cx: &mut Cx<'_>) {
        // The clock is not set back between rounds: what lies between them counts too.
        if cx.step <= WARM_UP {
            self.begun = cx.io.now;
        }
        self.left = PIECES;
        let step = cx.step;
        for piece in 0..PIECES {
            self.ring(step, piece).start(&mut cx.io, &cx.grad[range(piece)]);
        }
        for piece in 0..PIECES {
            self.finish_if_done(cx, piece);
        }
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, from: Rank, message: Message) {
        let (step, piece) = (message.step, message.bucket as usize);
        let is_mine = step == cx.step && self.left > 0;
        let data = if is_mine { &cx.grad[range(piece)] } else { &[] };
        self.ring(step, piece).on_message(&mut cx.io, data, from, message);
        if is_mine {
            self.finish_if_done(cx, piece);
        }
    }

    fn is_ready(&self) -> bool {
        self.left == 0
    }

    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}

fn range(piece: usize) -> Range<usize> {
    chunks(ELEMENTS, PIECES)[piece].clone()
}

fn rings(_: &Params) -> Box<dyn Algorithm> {
    Box::<Rings>::default()
}

fn child(address: &str, rank: usize) -> Child {
    Command::new(std::env::current_exe().expect("this bench"))
        .env("MURMURA_BENCH_ADDRESS", address)
        .env("MURMURA_BENCH_RANK", rank.to_string())
        .spawn()
        .expect("it starts")
}

fn take_part(address: &str) {
    let rank = std::env::var("MURMURA_BENCH_RANK").ok().and_then(|rank| rank.parse().ok());
    join(address, rank, &Options::default(), &mut |job| {
        let text = String::from_utf8_lossy(job);
        let (workers, steps) = text.split_once(' ').ok_or("two numbers")?;
        let number = |text: &str| text.parse::<u64>().map_err(|error| error.to_string());
        let setup = setup(rings, number(workers)? as usize, number(steps)?);
        Ok((setup, Box::new(Nothing) as Box<dyn Problem>))
    })
    .expect("it takes part");
}

/// Milliseconds per round, by the clock of rank 0 over all rounds after the warm-up.
fn processes(workers: usize, rounds: u64) -> f64 {
    let steps = WARM_UP + rounds;
    let coordinator = Coordinator::bind("127.0.0.1:0", Options::default()).expect("a free port");
    let address = coordinator.address().to_string();
    let children: Vec<Child> = (1..workers).map(|rank| child(&address, rank)).collect();
    let job = format!("{workers} {steps}").into_bytes();
    let hosted = Hosted { workers: vec![0] };
    MEASURED.lock().expect("no panic").clear();
    coordinator
        .run(job, &setup(rings, workers, steps), &Nothing, &hosted, &mut Nowhere)
        .expect("it ends");
    for mut child in children {
        assert!(child.wait().expect("it was started").success());
    }
    let total = *MEASURED.lock().expect("no panic").last().expect("measured");
    total / rounds as f64 * 1e3
}

fn main() {
    if let Ok(address) = std::env::var("MURMURA_BENCH_ADDRESS") {
        return take_part(&address);
    }
    let (runs, rounds) = if is_test() { (1, 1) } else { (9, 10) };
    for workers in [2, 4] {
        let mut each: Vec<f64> = (0..runs).map(|_| processes(workers, rounds)).collect();
        let least = each.iter().copied().fold(f64::INFINITY, f64::min);
        let ms = median(&mut each);
        if wants_json() {
            println!(
                "{{\"bench\":\"ring\",\"processes\":{workers},\"ms\":{ms:.2},\"least_ms\":{least:.2}}}"
            );
        } else {
            println!(
                "ring all-reduce of 25 MiB, {workers} processes over TCP: {ms:.1} ms \
                 (median of {runs} × {rounds} rounds; least {least:.1})"
            );
        }
    }
}
