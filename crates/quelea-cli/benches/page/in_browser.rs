//! The page in a real browser: how soon it shows what happens, frames per second, a million records.

use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use quelea_page::description::RunDescription;
use quelea_page::folder;
use quelea_page::log::{LogClock, RunLog};
use quelea_page::server::{PageServer, PageSource};
use quelea_record::{LinkTotal, ProcessMemory, Record, RecordKind};
use serde_json::{Value, json};

use crate::seeing::browser::Browser;
use crate::seeing::{Serving, quelea, request, run};
use crate::{TICK, stat_fields};

/// A run whose page is opened while it trains: until its four ranks are shown, and until one that was killed is red.
pub fn live() -> Vec<Value> {
    let Some(browser) = Browser::start() else { return Vec::new() };
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = quelea();
    command.args(["train", "--processes", "--page", "127.0.0.1:0", "--out"]);
    command.arg(folder.path().join("live"));
    let settings = ["task.name=quadratic", "workers=4", "steps=100000", "algorithm.name=d-psgd"];
    let more = ["topology.name=ring", "task.compute_ms=20", "membership.min_workers=2"];
    settings.iter().chain(&more).for_each(|setting| {
        command.args(["--set", setting]);
    });
    let serving = Serving::start(&mut command);
    serving.wait_for("the first steps", |state| state["progress"]["steps"].as_u64() > Some(8));
    let opened = Instant::now();
    browser.open(&format!("http://{}/", serving.address));
    browser.wait_for(
        "return document.querySelectorAll('#ranks tr[data-state=running], \
         #ranks tr[data-state=waiting]').length === 4",
    );
    let shown = opened.elapsed().as_secs_f64();
    let killed = Instant::now();
    let clock = serving.json("/api/state")["now"].as_f64().expect("a clock");
    let header = [("x-quelea-action", "1")];
    let done = request(&serving.address, "POST", "/api/act?action=kill&rank=2", &header, "");
    assert_eq!(done.status, 200, "{}", done.body);
    browser.wait_for(
        "return document.querySelector('#ranks tr[data-rank=\"2\"]').dataset.state === 'lost'",
    );
    let red = killed.elapsed().as_secs_f64();
    let lost = serving.json("/api/state")["ranks"][2]["lost_at"].as_f64().expect("it is lost");
    let detected = lost - clock;
    vec![
        json!({
            "name": "four ranks of a running training are shown: seconds / 2",
            "ratio": shown / 2.0, "goal": "at most 1", "seconds": shown,
        }),
        json!({
            "name": "a killed rank is red: seconds after the run knows of its loss, of 1",
            "ratio": red - detected, "goal": "at most 1",
            "detected_after_seconds": detected, "red_after_seconds": red,
        }),
    ]
}

/// Seconds for which frames are counted.
const FRAME_SECONDS: u64 = 10;
const CROWD: u32 = 256;
const COUNT_FRAMES: &str = "
    window.frames_seen = 0; window.longest_gap = 0;
    let last = performance.now();
    const tick = () => {
        const now = performance.now();
        window.frames_seen += 1;
        window.longest_gap = Math.max(window.longest_gap, now - last);
        last = now;
        requestAnimationFrame(tick);
    };
    tick();";

/// Frames per second while time passes.
fn frames_per_second(browser: &Browser) -> f64 {
    browser.script(COUNT_FRAMES);
    let at = Instant::now();
    std::thread::sleep(Duration::from_secs(FRAME_SECONDS));
    let frames = browser.script("return window.frames_seen").as_f64().expect("a number");
    frames / at.elapsed().as_secs_f64()
}

fn frames_row(name: &str, frames: f64) -> Value {
    json!({
        "name": format!("{name}: frames per second / 30"),
        "ratio": frames / 30.0, "goal": 1.0, "frames_per_second": frames,
    })
}

/// Who sends to whom in the run of 256 ranks.
fn crowd_description() -> RunDescription {
    let config = json!({
        "workers": CROWD, "steps": 1000, "algorithm": { "name": "d-psgd" },
        "topology": { "name": "exponential" }, "task": { "name": "a PyTorch script" },
        "cluster": { "hosts": CROWD / 8, "bandwidth_gbps": 10.0 },
    });
    let about = RunDescription::of_config(config, "crowd");
    assert_eq!(about.edges(0).len(), CROWD as usize, "each sends to one in a round");
    about
}

/// 256 ranks with their links that record 10 times a second each: frames per second, and what the server takes.
pub fn crowd() -> Vec<Value> {
    let Some(browser) = Browser::start() else { return Vec::new() };
    let log = Arc::new(RunLog::live(crowd_description(), LogClock::Real));
    let server =
        PageServer::start("127.0.0.1:0", Default::default(), PageSource::Run(Arc::clone(&log)))
            .expect("a port");
    let is_over = Arc::new(AtomicBool::new(false));
    let over = Arc::clone(&is_over);
    let feed = std::thread::spawn(move || feed(&log, &over));
    browser.open(&format!("http://{}/", server.address()));
    browser.wait_for(
        "return document.querySelectorAll('#ranks tbody tr').length === 256
             && document.querySelectorAll('#topology [data-edge]').length >= 128",
    );
    let (processor, at) = (server_seconds(), Instant::now());
    let frames = frames_per_second(&browser);
    let share = (server_seconds() - processor) / at.elapsed().as_secs_f64();
    is_over.store(true, Ordering::Relaxed);
    feed.join().expect("it ends");
    vec![
        frames_row("256 ranks with their links, 10 records/s each", frames),
        json!({
            "name": "256 ranks with their links, 10 records/s each: the server's share of a core",
            "ratio": share, "goal": "at most 0.05",
        }),
    ]
}

fn feed(log: &RunLog, is_over: &AtomicBool) {
    let begun = Instant::now();
    for tick in 0u64.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
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
            // Twice a second a survey.
            if tick.is_multiple_of(5) {
                let link = |power: u32| LinkTotal {
                    peer: (rank + (1 << power)) % CROWD,
                    sent: tick + 1,
                    received: tick + 1,
                    bytes_sent: 1_000_000 * (tick + 1),
                    bytes_received: 1_000_000 * (tick + 1),
                    round_trip_micros: 100 + u64::from(rank),
                    resent: 0,
                };
                let (awaiting, links) = (Vec::new(), (0..8).map(link).collect());
                let memory = ProcessMemory { resident_bytes: 1 << 30, gpu_bytes: 0 };
                let event = RecordKind::Account { awaiting, links, memory };
                log.take(&Record { t, rank, step: (t * 10.0) as u64, event });
            }
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Seconds of processor that threads of page servers have taken.
fn server_seconds() -> f64 {
    let tasks = std::fs::read_dir("/proc/self/task").expect("Linux").flatten();
    let ours = tasks.filter_map(|task| std::fs::read_to_string(task.path().join("stat")).ok());
    let ours = ours.filter(|stat| stat.contains("(quelea-page)") || stat.contains("(tokio-"));
    let seconds = ours.map(|stat| {
        let fields = stat_fields(&stat);
        (fields[11] + fields[12]) * TICK
    });
    seconds.sum()
}

/// 256 virtual ranks, simulated, opened and played at real time: frames per second.
pub fn replay() -> Vec<Value> {
    let Some(browser) = Browser::start() else { return Vec::new() };
    let folder = tempfile::tempdir().expect("a folder");
    let settings = ["workers=256", "task.name=quadratic", "steps=300", "algorithm.name=d-psgd"];
    let more = ["topology.name=exponential", "cluster.compute_ms=100", "plots=false"];
    let mut words = vec!["simulate", "-q", "--out", "crowd"];
    settings.iter().chain(&more).for_each(|setting| words.extend(["--set", setting]));
    run(&words, folder.path());
    let path = folder.path().join("crowd");
    let serving = Serving::start(quelea().arg("page").arg(&path).args(["--bind", "127.0.0.1:0"]));
    browser.open(&format!("http://{}/", serving.address));
    browser.wait_for("return document.querySelectorAll('#topology [data-edge]').length >= 128");
    browser.script("document.getElementById('speed').value = '1'");
    browser.click("#play");
    browser.wait_for("return document.getElementById('status').textContent.includes('shown at')");
    let shown = |browser: &Browser| {
        let text = browser.script("return document.body.dataset.shown");
        text.as_str().and_then(|text| text.parse::<f64>().ok()).expect("a number")
    };
    let before = shown(&browser);
    let frames = frames_per_second(&browser);
    let moments = (shown(&browser) - before) / FRAME_SECONDS as f64;
    let mut row = frames_row("256 virtual ranks, replayed at real time", frames);
    row["moments_per_second"] = json!(moments);
    vec![row]
}

/// How often the slider is moved.
const MOVES: u32 = 50;

/// A run of a million records: until it is read, until a browser shows it, and what moving the slider does.
pub fn million() -> Vec<Value> {
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
    drop(log);
    let mut rows = vec![json!({
        "name": "a run of a million records is read: seconds / 3",
        "ratio": seconds / 3.0, "goal": "at most 1", "seconds": seconds, "moment_ms": each * 1e3,
    })];
    let Some(browser) = Browser::start() else { return rows };
    let begun = Instant::now();
    let mut command = quelea();
    let serving =
        Serving::start(command.arg("page").arg(run.path()).args(["--bind", "127.0.0.1:0"]));
    browser.open(&format!("http://{}/", serving.address));
    browser.wait_for("return document.querySelectorAll('#ranks tbody tr').length === 64");
    let seconds = begun.elapsed().as_secs_f64();
    browser.script(COUNT_FRAMES);
    for step in 0..MOVES {
        // Back and forth, each as soon as the one before is shown.
        let place = (step * 617) % 1000;
        browser.script(&format!(
            "window.shown_before = document.body.dataset.shown;
             const s = document.getElementById('slider');
             s.value = {place}; s.dispatchEvent(new Event('input'))"
        ));
        browser.wait_for("return document.body.dataset.shown !== window.shown_before");
    }
    let gap = browser.script("return window.longest_gap").as_f64().expect("a number");
    rows.push(json!({
        "name": "a run of a million records is open in a browser: seconds / 3",
        "ratio": seconds / 3.0, "goal": "at most 1", "seconds": seconds,
    }));
    rows.push(json!({
        "name": "a run of a million records, slider moved 50 times: longest time between frames / 100 ms",
        "ratio": gap / 100.0, "goal": "at most 1", "longest_gap_ms": gap,
    }));
    rows
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
