//! What the page costs: step times of real runs with and without it, frames per second with 256 ranks, and how
//! long a run of a million records takes to open.

#[path = "../tests/seeing/mod.rs"]
mod seeing;

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quelea_page::description::RunDescription;
use quelea_page::folder;
use quelea_page::log::{LogClock, RunLog};
use quelea_page::server::{PageServer, PageSource};
use quelea_record::{Record, RecordKind};
use seeing::browser::Browser;
use seeing::{Serving, http, quelea, summary};
use serde_json::{Value, json};

/// How often every way to run is measured; they take turns.
const ROUNDS: usize = 21;
/// How often the page asks for the state, and of how many times for the curves too.
const ASK_INTERVAL: Duration = Duration::from_millis(500);
const CURVES_EVERY: u64 = 4;

fn main() {
    if !std::env::args().any(|word| word == "--bench") {
        return;
    }
    let mut rows = Vec::new();
    for load in LOADS {
        rows.extend(cost(load));
    }
    rows.extend(crowd());
    rows.push(million());
    rows.iter().for_each(|row| println!("{row}"));
}

/// Runs whose steps are timed.
struct Load {
    name: &'static str,
    steps: u64,
    settings: &'static [&'static str],
}

const LOADS: &[Load] = &[
    // Whatever is added to a step is seen, and no processor is needed meanwhile.
    Load {
        name: "4 workers, gradients of 10 ms that wait",
        steps: 200,
        settings: &["workers=4", "task.name=quadratic", "task.compute_ms=10"],
    },
    // Two workers have both cores of a small machine: the server takes its time from them.
    Load {
        name: "2 workers, gradients that compute",
        steps: 400,
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

/// Step times with the page against those without it: the median over rounds of what each round shows.
fn cost(load: &Load) -> Vec<Value> {
    let mut seconds = [const { Vec::new() }; WAYS.len()];
    for round in 0..ROUNDS {
        // Who comes first changes: a machine that slows down or speeds up is nobody's merit.
        for turn in 0..WAYS.len() {
            let place = (round + turn) % WAYS.len();
            seconds[place].push(step_seconds(load, WAYS[place]));
        }
    }
    let ratios = |place: usize| {
        let pairs = seconds[place].iter().zip(&seconds[0]);
        pairs.map(|(with, without)| with / without).collect::<Vec<f64>>()
    };
    let row = |place: usize, what: &str| {
        let found = ratios(place);
        json!({
            "name": format!("step time with the page {what} / without: {}", load.name),
            "ratio": quantile(found.clone(), 0.5),
            "goal": "at most 1.01",
            "quarter": quantile(found.clone(), 0.25),
            "three_quarters": quantile(found, 0.75),
            "step_ms_with": quantile(seconds[place].clone(), 0.5) * 1e3,
            "step_ms_without": quantile(seconds[0].clone(), 0.5) * 1e3,
            "rounds": ROUNDS,
        })
    };
    vec![row(1, "and nobody looking"), row(2, "open")]
}

fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * share).round() as usize]
}

/// Seconds of a step of one run, by its own clock.
fn step_seconds(load: &Load, seen: Seen) -> f64 {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("run");
    let mut command = quelea();
    command.args(["train", "--processes", "--out"]).arg(&out);
    let always = ["algorithm.name=d-psgd", "topology.name=ring", "evaluations=0", "plots=false"];
    let steps = format!("steps={}", load.steps);
    for setting in always.iter().chain(load.settings).chain([&steps.as_str()]) {
        command.args(["--set", setting]);
    }
    if seen == Seen::Not {
        let output = command.arg("-q").output().expect("the command is built");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    } else {
        let mut serving = Serving::start(command.args(["--page", "127.0.0.1:0"]));
        watched(&mut serving, seen == Seen::Watched);
    }
    let clock = summary(&out)["clock_seconds"].as_f64().expect("a clock");
    clock / load.steps as f64
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

/// Seconds for which frames are counted.
const CROWD_SECONDS: u64 = 10;
const CROWD: u32 = 256;

/// 256 ranks that record 10 times a second each: frames per second, and what the server takes.
fn crowd() -> Vec<Value> {
    let Some(browser) = Browser::start() else { return Vec::new() };
    let about = RunDescription {
        name: "crowd".into(),
        workers: CROWD as usize,
        hosts: (0..CROWD).map(|rank| rank / 8).collect(),
        steps: 1000,
        ..RunDescription::default()
    };
    let log = Arc::new(RunLog::live(about, LogClock::Real));
    let server =
        PageServer::start("127.0.0.1:0", Default::default(), PageSource::Run(Arc::clone(&log)))
            .expect("a port");
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let feed = std::thread::spawn(move || feed(&log, &over));
    browser.open(&format!("http://{}/", server.address()));
    browser.wait_for("return document.querySelectorAll('#ranks tbody tr').length === 256");
    browser.script(
        "window.frames_seen = 0;
         const tick = () => { window.frames_seen += 1; requestAnimationFrame(tick); }; tick();",
    );
    let (processor, at) = (server_seconds(), Instant::now());
    std::thread::sleep(Duration::from_secs(CROWD_SECONDS));
    let passed = at.elapsed().as_secs_f64();
    let frames = browser.script("return window.frames_seen").as_f64().expect("a number") / passed;
    let share = (server_seconds() - processor) / passed;
    is_over.store(true, Ordering::Relaxed);
    feed.join().expect("it ends");
    vec![
        json!({
            "name": "256 ranks, 10 records/s each: frames per second / 30",
            "ratio": frames / 30.0, "goal": 1.0, "frames_per_second": frames,
        }),
        json!({
            "name": "256 ranks, 10 records/s each: the server's share of a core",
            "ratio": share, "goal": "at most 0.05",
        }),
    ]
}

fn feed(log: &RunLog, is_over: &AtomicBool) {
    let begun = Instant::now();
    while !is_over.load(Ordering::Relaxed) {
        let t = begun.elapsed().as_secs_f64();
        for rank in 0..CROWD {
            let event = RecordKind::Step {
                loss: (1.0 / (1.0 + t)) as f32,
                samples: 32,
                compute: 0.08,
                exposed: 0.01,
                waiting: 0.01,
            };
            log.take(&Record { t, rank, step: (t * 10.0) as u64, event });
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Seconds of processor that threads of page servers have taken.
fn server_seconds() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux").flatten();
    let ours = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let ours = ours.filter(|stat| stat.contains("(quelea-page)") || stat.contains("(tokio-"));
    let ticks = ours.map(|stat| {
        let fields: Vec<&str> = stat.rsplit(") ").next().expect("fields").split(' ').collect();
        fields[11].parse::<f64>().expect("ticks") + fields[12].parse::<f64>().expect("ticks")
    });
    ticks.sum::<f64>() / 100.0
}

/// A run of a million records: until it is open, and until a moment of it is shown.
fn million() -> Value {
    let run = tempfile::tempdir().expect("a folder");
    write_million(run.path());
    let begun = Instant::now();
    let log = folder::open(run.path(), None).expect("a run");
    let seconds = begun.elapsed().as_secs_f64();
    let end = log.read(|state, _| state.t);
    let moments = 200;
    let begun = Instant::now();
    for moment in 0..moments {
        log.state_json(Some(end * f64::from(moment) / f64::from(moments)));
    }
    let each = begun.elapsed().as_secs_f64() / f64::from(moments);
    json!({
        "name": "a run of a million records opens: seconds / 3",
        "ratio": seconds / 3.0, "goal": "at most 1", "seconds": seconds, "moment_ms": each * 1e3,
    })
}

fn write_million(folder: &Path) {
    let (records, workers) = (1_000_000, 64);
    let mut text = String::new();
    for k in 0..records {
        let (rank, step) = (k % workers, k / workers);
        let t = f64::from(step) * 0.125 + f64::from(rank) * 1e-4;
        let _ = writeln!(
            text,
            "{{\"t\":{t:?},\"rank\":{rank},\"step\":{step},\"kind\":\"step\",\"loss\":0.5,\
             \"samples\":32,\"compute\":0.1,\"exposed\":0.02,\"waiting\":0.005}}"
        );
    }
    std::fs::write(folder.join("records.jsonl"), &text).expect("written");
    let summary = "{\"config\":{\"workers\":64,\"steps\":15625},\"records_stride\":1}";
    std::fs::write(folder.join("summary.json"), summary).expect("written");
}
