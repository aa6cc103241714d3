//! The bare ring all-reduce of 25 MiB over TCP, one process per rank, beside what one round
//! would take at the speed of a bare socket.

mod common;

use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use common::{ELEMENTS, Nothing, is_test, median, setup, wants_json};
use murmura_core::collectives::{AllReduce, Group, Label, Ring};
use murmura_core::contract::{Algorithm, Cx};
use murmura_core::message::{Message, Rank};
use murmura_core::params::Params;
use murmura_core::problems::Problem;
use murmura_core::state::Visitor;
use murmura_core::time::Time;
use murmura_net::{Coordinator, Hosted, Options, join};
use murmura_record::Nowhere;

/// Rounds that only fill pools and caches.
const WARM_UP: u64 = 3;

static MEASURED: Mutex<Vec<f64>> = Mutex::new(Vec::new());

/// One ring after another over the whole vector, as `all_reduce` in place would do it.
#[derive(Default)]
struct Rings {
    group: Option<Arc<Group>>,
    /// The ring of this step, and of the next one if a peer is ahead.
    rings: std::collections::BTreeMap<u64, Ring>,
    begun: Time,
    busy: bool,
}

impl Rings {
    fn ring(&mut self, step: u64) -> &mut Ring {
        let group = Arc::clone(self.group.as_ref().expect("started"));
        let label = Label { kind: 1, step, bucket: 0 };
        self.rings.entry(step).or_insert_with(|| Ring::new(group, label, ELEMENTS))
    }

    fn finish_if_done(&mut self, cx: &mut Cx<'_>) {
        if self.busy && self.ring(cx.step).is_done() {
            let mut ring = self.rings.remove(&cx.step).expect("it is there");
            ring.finish(1.0 / cx.io.view.workers.len() as f32, cx.grad);
            self.busy = false;
            if cx.step >= WARM_UP {
                MEASURED.lock().expect("no panic").push(cx.io.now.since(self.begun).seconds());
            }
        }
    }
}

impl Algorithm for Rings {
    fn on_start(&mut self, cx: &mut Cx<'_>) {
        self.group = Some(Arc::new(Group::of_workers(cx.io.view, cx.io.rank)));
    }

    fn on_gradient(&mut self, cx: &mut Cx<'_>) {
        // From the moment at which this rank's last round was over: what comes between rounds
        // is counted too, and nobody gains by letting others wait.
        if cx.step <= WARM_UP {
            self.begun = cx.io.now;
        }
        self.busy = true;
        let step = cx.step;
        self.ring(step).start(&mut cx.io, cx.grad);
        self.finish_if_done(cx);
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, from: Rank, message: Message) {
        let mine = message.step == cx.step && self.busy;
        let data = if mine { &*cx.grad } else { &[] };
        self.ring(message.step).on_message(&mut cx.io, data, from, message);
        self.finish_if_done(cx);
    }

    fn is_ready(&self) -> bool {
        !self.busy
    }

    fn state(&mut self, _visitor: &mut dyn Visitor) {}
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
