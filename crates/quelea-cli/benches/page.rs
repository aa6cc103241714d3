//! What the page costs: time and processor time of steps with and without it, how soon it shows what happens,
//! frames per second with 256 ranks live and replayed, and a run of a million records from the command to the
//! browser. Words after `--bench` name the parts that are measured: `cost`, `live`, `crowd`, `replay`, `million`.

#[path = "page/in_browser.rs"]
mod in_browser;
#[path = "../tests/seeing/mod.rs"]
mod seeing;

use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use in_browser::{crowd, live, million, replay};
use seeing::{Serving, http, quelea, summary};
use serde_json::{Value, json};

/// How often the page asks for the state, and of how many times for the curves too.
const ASK_INTERVAL: Duration = Duration::from_millis(500);
const CURVES_EVERY: u64 = 4;

type MeasurePart = fn() -> Vec<Value>;
const PARTS: [(&str, MeasurePart); 5] = [
    ("cost", || LOADS.iter().flat_map(cost).collect()),
    ("live", live),
    ("crowd", crowd),
    ("replay", replay),
    ("million", million),
];

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if !words.iter().any(|word| word == "--bench") {
        return;
    }
    let is_named = |name: &str| words.iter().any(|word| word == name);
    let is_any_named = PARTS.iter().any(|(name, _)| is_named(name));
    for (name, measure) in PARTS {
        if is_named(name) || !is_any_named {
            measure().iter().for_each(|row| println!("{row}"));
        }
    }
}

/// Runs whose steps are timed.
struct Load {
    name: &'static str,
    /// Whether its gradients need the processor.
    is_computing: bool,
    /// How often every way to run is measured; they take turns.
    rounds: usize,
    steps: u64,
    settings: &'static [&'static str],
}

const LOADS: &[Load] = &[
    // Whatever is added to a step is seen, and no processor is needed meanwhile.
    Load {
        name: "4 workers, gradients of 10 ms that wait",
        is_computing: false,
        rounds: 11,
        steps: 200,
        settings: &["workers=4", "task.name=quadratic", "task.compute_ms=10"],
    },
    // Two workers have both cores of a small machine: the server takes its time from them.
    Load {
        name: "2 workers, gradients that compute",
        is_computing: true,
        rounds: 31,
        steps: 200,
        settings: &["workers=2", "task.name=quadratic", "task.dimensions=2000000"],
    },
];

/// How a run is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Not,
    Unwatched,
    Watched,
}

const WAYS: [Seen; 3] = [Seen::Not, Seen::Unwatched, Seen::Watched];

/// What a step of one run took.
#[derive(Clone, Copy)]
struct StepCost {
    /// Seconds by the run's own clock.
    clock: f64,
    /// Seconds of processor in all processes of the run.
    processor: f64,
}

/// Steps with the page against those without it: the median over rounds of what each round shows.
fn cost(load: &Load) -> Vec<Value> {
    let mut found = [const { Vec::new() }; WAYS.len()];
    for round in 0..load.rounds {
        // Who comes first changes: a machine that slows down or speeds up is nobody's merit.
        for turn in 0..WAYS.len() {
            let place = (round + turn) % WAYS.len();
            found[place].push(step_cost(load, WAYS[place]));
        }
    }
    let row = |place: usize, what: &str, of: fn(&StepCost) -> f64, name: &str, unit: &str| {
        let all = |place: usize| found[place].iter().map(of).collect::<Vec<f64>>();
        let pairs = all(place).into_iter().zip(all(0));
        let ratios: Vec<f64> = pairs.map(|(with, without)| with / without).collect();
        let (low, high) = (quantile(ratios.clone(), 0.25), quantile(ratios.clone(), 0.75));
        json!({
            "name": format!("{name} with the page {what} / without: {}", load.name),
            "ratio": quantile(ratios, 0.5),
            "goal": "at most 1.01",
            "quarter": low,
            "three_quarters": high,
            // Of a median of numbers that scatter like a normal distribution.
            "standard_error": 1.2533 * (high - low) / 1.349 / (load.rounds as f64).sqrt(),
            (format!("{unit}_with")): quantile(all(place), 0.5) * 1e3,
            (format!("{unit}_without")): quantile(all(0), 0.5) * 1e3,
            "rounds": load.rounds,
        })
    };
    let mut rows = Vec::new();
    for (place, what) in [(1, "and nobody looking"), (2, "open")] {
        rows.push(row(place, what, |cost| cost.clock, "step time", "step_ms"));
        if load.is_computing {
            let name = "processor time of a step";
            rows.push(row(place, what, |cost| cost.processor, name, "processor_ms"));
        }
    }
    rows
}

fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share).round() as usize]
}

/// What a step of one run takes.
fn step_cost(load: &Load, seen: Seen) -> StepCost {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("run");
    let mut command = quelea();
    command.args(["train", "--processes", "--out"]).arg(&out);
    let always = ["algorithm.name=d-psgd", "topology.name=ring", "evaluations=0", "plots=false"];
    let steps = format!("steps={}", load.steps);
    for setting in always.iter().chain(load.settings).chain([&steps.as_str()]) {
        command.args(["--set", setting]);
    }
    let before = children_seconds();
    if seen == Seen::Not {
        // It says what it does, as one with a page.
        let output = command.stdout(Stdio::null()).output().expect("the command is built");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    } else {
        let mut serving = Serving::start(command.args(["--page", "127.0.0.1:0"]));
        watched(&mut serving, seen == Seen::Watched);
    }
    let (processor, steps) = (children_seconds() - before, load.steps as f64);
    let clock = summary(&out)["clock_seconds"].as_f64().expect("a clock");
    StepCost { clock: clock / steps, processor: processor / steps }
}

/// A tick of the times that the system lists.
const TICK: f64 = 0.01;

/// Fields of a `stat` of Linux, from the state on.
fn stat_fields(stat: &str) -> Vec<f64> {
    let fields = stat.rsplit(") ").next().expect("fields").split(' ');
    fields.map(|field| field.trim().parse().unwrap_or(0.0)).collect()
}

/// Seconds of processor of all processes that have ended and were waited for, with those that they waited for.
fn children_seconds() -> f64 {
    let fields = stat_fields(&std::fs::read_to_string("/proc/self/stat").expect("Linux"));
    (fields[13] + fields[14]) * TICK
}

/// Waits for the end of a run, and asks meanwhile as the page in a browser does.
fn watched(serving: &mut Serving, is_watched: bool) {
    let is_over = Arc::new(AtomicBool::new(false));
    let (over, address) = (Arc::clone(&is_over), serving.address.clone());
    let ask = move || {
        for number in 0u64.. {
            if over.load(Ordering::Relaxed) {
                return;
            }
            // A run that has just ended closes its port.
            let ended = std::net::TcpStream::connect(&address).is_err();
            if ended {
                return;
            }
            let state = http(&address, "/api/state", &[]);
            if state.body.contains("\"has_ended\":true") {
                return;
            }
            if number.is_multiple_of(CURVES_EVERY) {
                http(&address, "/api/curves", &[]);
            }
            std::thread::sleep(ASK_INTERVAL);
        }
    };
    let client = is_watched.then(|| std::thread::spawn(ask));
    assert!(serving.child.wait().expect("it ends").success());
    is_over.store(true, Ordering::Relaxed);
    if let Some(client) = client {
        // One that found the port closed has nothing more to ask.
        let _ = client.join();
    }
}
