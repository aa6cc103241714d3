//! The page's server, its API and what stands beside it, without a browser.

mod seeing;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use seeing::{Serving, http, quelea, request, run, summary};
use serde_json::Value;

const SMALL: &[&str] = &[
    "--set",
    "task.name=quadratic",
    "--set",
    "workers=4",
    "--set",
    "steps=60",
    "--set",
    "algorithm.name=d-psgd",
    "--set",
    "topology.name=ring",
    "--set",
    "evaluations=5",
];

/// Simulates a small run into `folder/name`.
fn simulated(folder: &Path, name: &str, more: &[&str]) {
    let words: Vec<&str> = ["simulate", "-q", "--out", name]
        .into_iter()
        .chain(SMALL.iter().copied())
        .chain(more.iter().copied())
        .collect();
    run(&words, folder);
}

fn page(folder: &Path) -> Serving {
    Serving::start(quelea().arg("page").arg(folder).args(["--bind", "127.0.0.1:0"]))
}

/// Every number that the page shows of the end is that of the summary.
fn assert_same(state: &Value, summary: &Value) {
    let progress = &state["progress"];
    for key in [
        "loss",
        "accuracy",
        "steps",
        "samples",
        "samples_per_second",
        "clock_seconds",
        "consensus_distance",
    ] {
        assert_eq!(progress[key], summary[key], "{key}");
    }
    for (rank, worker) in summary["workers"].as_array().expect("workers").iter().enumerate() {
        for key in ["compute_seconds", "exposed_seconds", "waiting_seconds", "samples"] {
            assert_eq!(state["ranks"][rank][key], worker[key], "{key} of {rank}");
        }
        assert_eq!(state["ranks"][rank]["step"], worker["steps"]);
        assert_eq!(state["ranks"][rank]["bytes_sent"], summary["ranks"][rank]["bytes_sent"]);
    }
}

#[test]
fn a_simulated_run_is_shown_with_the_numbers_of_its_summary_and_at_any_moment() {
    let folder = tempfile::tempdir().expect("a folder");
    simulated(folder.path(), "first", &[]);
    let path = folder.path().join("first");
    let (serving, summary) = (page(&path), summary(&path));
    let state = serving.json("/api/state");
    assert_eq!((&state["phase"], &state["has_ended"]), (&"ended".into(), &true.into()));
    assert_same(&state, &summary);
    // At half of its time: as many steps as the records of that half.
    let half = summary["clock_seconds"].as_f64().expect("a clock") / 2.0;
    let records = std::fs::read_to_string(path.join("records.jsonl")).expect("records");
    let records: Vec<Value> =
        records.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let before = records.iter().filter(|r| r["kind"] == "step" && r["t"].as_f64() <= Some(half));
    let past = serving.json(&format!("/api/state?t={half}"));
    assert_eq!(past["progress"]["steps"], before.count());
    assert_eq!(past["is_past"], true);
    let curves = serving.json("/api/curves");
    let evaluations = records.iter().filter(|record| record["kind"] == "evaluation").count();
    assert_eq!(curves["loss"].as_array().map(Vec::len), Some(evaluations));
    let about = serving.json("/api/run");
    assert_eq!(about["topology"]["rounds"][0].as_array().map(Vec::len), Some(8), "a ring of four");
    // The stream has every line, and an end.
    let stream = http(&serving.address, "/api/records", &[]);
    assert_eq!(stream.body.matches("data: {\"t\"").count(), records.len());
    assert!(stream.body.ends_with("event: end\ndata: {}\n\n"));
    // A client that was cut off after its tenth record has the others, whatever it asked for at first.
    let resumed = http(&serving.address, "/api/records?from=0", &[("Last-Event-ID", "10")]);
    assert_eq!(resumed.body.matches("data: {\"t\"").count(), records.len() - 10);
    let history = serving.json("/api/history?rank=2");
    assert_eq!(history["columns"], serde_json::json!(["t", "steps_per_second", "loss"]));
    assert!(history["points"].as_array().map(Vec::len) > Some(100), "{history}");
    for query in ["", "?rank=1&to=2", "?from=1", "?from=4294967296&to=0"] {
        let refused = http(&serving.address, &format!("/api/history{query}"), &[]);
        assert_eq!(refused.status, 400, "{query}");
    }
}

/// The process of this rank among those that a command of ours has started.
fn process_of(parent: u32, rank: u32) -> Option<u32> {
    let wanted = format!("\0--rank\0{rank}\0");
    let processes = std::fs::read_dir("/proc").expect("Linux").flatten();
    processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok()).find(|process| {
        let read = |name: &str| {
            std::fs::read_to_string(format!("/proc/{process}/{name}")).unwrap_or_default()
        };
        let status = read("status");
        let of = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        of.and_then(|of| of.trim().parse().ok()) == Some(parent)
            && read("cmdline").contains(&wanted)
    })
}

fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").args([name, &process.to_string()]).status();
    assert!(sent.expect("kill is here").success());
}

#[test]
fn ranks_say_for_whom_they_wait_and_the_page_names_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = quelea();
    command.args(["train", "--processes", "--page", "127.0.0.1:0", "--out"]);
    command.arg(folder.path().join("live")).args(SMALL);
    command.args(["--set", "task.compute_ms=20", "--set", "steps=100000"]);
    let serving = Serving::start(&mut command);
    serving.wait_for("a survey", |state| {
        let links = state["links"].as_array().map_or(0, Vec::len);
        links == 8 && state["waits"]["is_inferred"] == false
    });
    let slow = process_of(serving.child.id(), 1).expect("a process of its own");
    signal(slow, "-STOP");
    let state = serving.wait_for("those who wait", |state| {
        let edges = state["waits"]["edges"].as_array().expect("edges");
        let waits = |rank: u64| edges.iter().any(|edge| edge["rank"] == rank && edge["for"] == 1);
        waits(0) && waits(2)
    });
    signal(slow, "-CONT");
    let waits = &state["waits"];
    assert_eq!(waits["is_inferred"], false, "{waits}");
    let sentence = waits["sentence"].as_str().expect("text");
    assert!(sentence.contains("for rank 1") || sentence.contains("of rank 1"), "{sentence}");
    let states = [0, 2].map(|rank| state["ranks"][rank]["state"].clone());
    assert_eq!(states, ["waiting", "waiting"]);
}

#[test]
fn every_answer_forbids_scripts_from_elsewhere_and_other_names_than_this_machine() {
    let folder = tempfile::tempdir().expect("a folder");
    simulated(folder.path(), "first", &[]);
    let serving = page(&folder.path().join("first"));
    for path in ["/", "/main.js", "/api/state", "/nowhere"] {
        let head = http(&serving.address, path, &[]).head;
        assert!(head.contains("content-security-policy: default-src 'none'; script-src 'self'"));
        assert!(head.contains("x-content-type-options: nosniff"), "{head}");
        assert!(!head.contains("unsafe"), "{head}");
    }
    let foreign = http(&serving.address, "/api/state", &[("Host", "example.org")]);
    assert_eq!((foreign.status, foreign.body.as_str()), (403, ""));
    let unmarked = request(&serving.address, "POST", "/api/act?action=stop", &[], "");
    assert_eq!(unmarked.status, 403);
    let marked = [("x-quelea-action", "1")];
    let refused = request(&serving.address, "POST", "/api/act?action=stop", &marked, "");
    assert_eq!(refused.status, 409, "a finished run takes no orders");
}

#[test]
fn a_wrong_token_learns_nothing_and_open_addresses_need_one() {
    let folder = tempfile::tempdir().expect("a folder");
    simulated(folder.path(), "first", &[]);
    let path = folder.path().join("first");
    let token = "a-token-of-enough-characters";
    let mut command = quelea();
    command.arg("page").arg(&path).args(["--bind", "127.0.0.1:0"]);
    let serving = Serving::start(command.env("QUELEA_PAGE_TOKEN", token));
    for path in ["/", "/main.js", "/api/state", "/metrics", "/nowhere"] {
        for header in ["Bearer wrong", "Bearer a-token-of-enough-characterz", ""] {
            let answer = http(&serving.address, path, &[("Authorization", header)]);
            assert_eq!((answer.status, answer.body.as_str()), (401, ""), "{path}");
        }
    }
    let right = format!("Bearer {token}");
    assert_eq!(http(&serving.address, "/api/state", &[("Authorization", &right)]).status, 200);
    let mut open = quelea();
    open.arg("page").arg(&path).args(["--bind", "0.0.0.0:0"]).env_remove("QUELEA_PAGE_TOKEN");
    let refused = open.output().expect("the command is built");
    assert!(!refused.status.success());
    assert!(String::from_utf8_lossy(&refused.stderr).contains("QUELEA_PAGE_TOKEN"));
    let refused = open.env("QUELEA_PAGE_TOKEN", token).output().expect("the command is built");
    assert!(!refused.status.success());
    let told = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(told.contains("the page is not encrypted") && told.contains("--insecure"), "{told}");
    let serving = Serving::start(open.arg("--insecure"));
    let port = serving.address.rsplit(':').next().expect("a port");
    let near = format!("127.0.0.1:{port}");
    assert_eq!(http(&near, "/api/state", &[]).status, 401);
    assert_eq!(http(&near, "/api/state", &[("Authorization", &right)]).status, 200);
}

#[test]
fn a_live_run_is_shown_while_it_lasts_and_ends_with_its_summary() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("live");
    let mut command = quelea();
    command.args(["train", "--threads", "--page", "127.0.0.1:0", "--out"]).arg(&out);
    command.args(SMALL).args(["--set", "task.compute_ms=20", "--tensorboard"]);
    let mut serving = Serving::start(&mut command);
    let state =
        serving.wait_for("the first steps", |state| state["progress"]["steps"].as_u64() > Some(20));
    assert_eq!(state["phase"], "running");
    assert_eq!(state["ranks"].as_array().map(Vec::len), Some(4));
    assert!(state["actions"].as_array().is_some_and(|actions| actions.contains(&"stop".into())));
    let state = serving.wait_for("a survey", |state| {
        let links = state["links"].as_array().map_or(0, Vec::len);
        links == 8 && !state["progress"]["sampled_consensus"].is_null()
    });
    assert!(state["links"][0]["bytes"].as_u64() > Some(0), "{}", state["links"]);
    assert!(state["links"][0]["round_trip"].is_null(), "ranks of one process have no connection");
    let advice = &state["advice"];
    assert!(advice["predicted_samples_per_second"].as_f64() > Some(0.0), "{advice}");
    let screen = run(&["top", &serving.address, "--once"], folder.path());
    assert!(screen.contains("memory") && screen.contains(" MB"), "{screen}");
    let mut top = quelea();
    top.args(["top", &serving.address, "--interval", "0.1"]).stdout(Stdio::piped());
    let top = top.spawn().expect("the command is built");
    let metrics = http(&serving.address, "/metrics", &[]).body;
    for name in ["quelea_rank_resident_bytes{rank=\"3\"} ", "quelea_predicted_samples_per_second "]
    {
        assert!(metrics.contains(name), "{metrics}");
    }
    check_metrics(folder.path(), &metrics);
    let ended = serving.wait_for("the end", |state| state["has_ended"] == true);
    assert!(serving.child.wait().expect("it ends").success());
    assert_same(&ended, &summary(&out));
    assert_same(&page(&out).json("/api/state"), &summary(&out));
    // What follows a run looks again and again, and ends with it.
    let followed = top.wait_with_output().expect("it ends");
    assert!(followed.status.success());
    let screens = String::from_utf8(followed.stdout).expect("text");
    assert!(screens.matches("consensus distance").count() > 1, "{screens}");
    assert!(screens.contains(", running"), "{screens}");
    let last = screens.rsplit("quelea ").next().expect("a screen");
    assert!(last.contains(", ended") || last.contains("has ended"), "{last}");
    let events = std::fs::read_dir(out.join("tensorboard")).expect("event files").count();
    assert_eq!(events, 1);
}

#[test]
fn a_run_that_workers_join_is_shown_too() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = quelea();
    command.args(["serve", "--bind", "127.0.0.1:0", "--page", "127.0.0.1:0", "--out", "served"]);
    command.args(SMALL).args(["--set", "workers=2", "--set", "task.compute_ms=20"]);
    let mut child = command
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the command is built");
    let mut lines = BufReader::new(child.stderr.take().expect("piped")).lines();
    let (mut place, mut page) = (None, None);
    while place.is_none() || page.is_none() {
        let line = lines.next().expect("it goes on").expect("text");
        if let Some((_, rest)) = line.split_once("the page is at http://") {
            page = rest.split('/').next().map(str::to_string);
        } else if place.is_none() && line.contains("127.0.0.1:") {
            place = line.rsplit(' ').next().map(str::to_string);
        }
    }
    std::thread::spawn(move || lines.for_each(drop));
    let mut serving = Serving { child, address: page.expect("it was said") };
    let place = place.expect("it was said");
    let workers = [0, 1].map(|_| {
        let mut join = quelea();
        join.args(["join", &place, "-q"]).stderr(Stdio::null()).spawn().expect("started")
    });
    let state = serving.wait_for("a survey", |state| {
        let ranks = state["ranks"].as_array().expect("ranks");
        ranks.iter().all(|rank| rank["resident_bytes"].as_u64() > Some(0))
    });
    assert!(state["actions"].as_array().is_some_and(|actions| actions.contains(&"drop".into())));
    let ended = serving.wait_for("the end", |state| state["has_ended"] == true);
    for mut worker in workers {
        assert!(worker.wait().expect("it ends").success());
    }
    assert!(serving.child.wait().expect("it ends").success());
    assert_same(&ended, &summary(&folder.path().join("served")));
}

#[test]
fn metrics_pass_promtool_where_it_is_installed_and_have_the_form_in_any_case() {
    let folder = tempfile::tempdir().expect("a folder");
    simulated(
        folder.path(),
        "first",
        &["--set", "algorithm.name=asp", "--set", "cluster.servers=1"],
    );
    let serving = page(&folder.path().join("first"));
    let text = http(&serving.address, "/metrics", &[]).body;
    check_metrics(folder.path(), &text);
    for rank in 0..4 {
        let count = format!("quelea_step_seconds_count{{rank=\"{rank}\"}} ");
        assert!(text.contains(&count), "{text}");
    }
    assert!(text.contains("quelea_staleness_updates_bucket{le=\"+Inf\"}"), "{text}");
}

/// Whether metrics have the form of Prometheus, to promtool too where it is installed.
fn check_metrics(folder: &Path, text: &str) {
    check_form(text);
    if !seeing::has("promtool") {
        println!("skipped: promtool is not here (package prometheus)");
        return;
    }
    let file = folder.join("metrics");
    std::fs::write(&file, text).expect("written");
    let input = std::fs::File::open(&file).expect("there");
    let checked = Command::new("promtool").args(["check", "metrics"]).stdin(input).output();
    let checked = checked.expect("promtool is here");
    let said = String::from_utf8_lossy(&checked.stderr);
    assert!(checked.status.success() && said.is_empty(), "{said}");
}

/// Every sample belongs to the family that was declared last, and is a number.
fn check_form(text: &str) {
    let mut families = std::collections::BTreeSet::new();
    let mut current = String::new();
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            current = rest.split(' ').next().expect("a name").to_string();
            assert!(families.insert(current.clone()), "{current} is declared twice");
        } else if !line.starts_with("# HELP ") {
            let (name, value) = line.rsplit_once(' ').expect("a value");
            assert!(name.starts_with(&current), "{line} is under {current}");
            assert!(value.parse::<f64>().is_ok() || value == "+Inf", "{line}");
        }
    }
    assert!(families.len() > 5, "{families:?}");
}

#[test]
fn a_folder_of_runs_is_listed_with_configurations_and_each_run_opens_by_its_name_only() {
    let folder = tempfile::tempdir().expect("a folder");
    simulated(folder.path(), "a", &[]);
    simulated(folder.path(), "b", &["--set", "optimizer.lr=0.01"]);
    let serving = page(folder.path());
    let list = serving.json("/api/runs");
    assert_eq!(list["several"], true);
    assert_eq!(list["runs"][1]["config"]["optimizer.lr"], 0.01);
    let state = serving.json("/api/state?run=b");
    assert_same(&state, &summary(&folder.path().join("b")));
    for name in ["c", "..", "../a", ""] {
        let answer = http(&serving.address, &format!("/api/state?run={name}"), &[]);
        assert_eq!(answer.status, 404, "{name}");
    }
}

#[test]
fn top_and_report_show_what_the_summary_says() {
    let folder = tempfile::tempdir().expect("a folder");
    simulated(folder.path(), "first", &[]);
    let path = folder.path().join("first");
    let serving = page(&path);
    let screen = run(&["top", &serving.address, "--once"], folder.path());
    assert!(screen.contains("240 of 240 steps"), "{screen}");
    assert!(screen.contains("rank") && screen.contains("ended"), "{screen}");
    let said = run(&["report", "first"], folder.path());
    let html = std::fs::read_to_string(folder.path().join(said.trim())).expect("a report");
    let loss = summary(&path)["loss"].to_string();
    assert!(html.contains(&loss) && html.contains("topology.name") && html.contains("<svg"));
    assert!(!html.contains("<script"));
}

/// Prints every scalar that TensorBoard's own reader finds in a folder.
const READER: &str = "\
import sys, glob
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
for path in glob.glob(sys.argv[1] + '/*'):
    for event in EventFileLoader(path).Load():
        for value in event.summary.value:
            print(event.step, value.tag, repr(float(value.tensor.float_val[0])))
";

#[test]
fn tensorboard_reads_the_event_file_as_it_was_measured() {
    let python = std::env::var_os("QUELEA_TENSORBOARD_PYTHON");
    let path = std::env::var_os("QUELEA_TENSORBOARD_PATH");
    let (Some(python), Some(path)) = (python, path) else {
        println!("skipped: `cargo xtask test` provides TensorBoard");
        return;
    };
    let folder = tempfile::tempdir().expect("a folder");
    simulated(folder.path(), "first", &["--tensorboard"]);
    let run = folder.path().join("first");
    let mut reader = Command::new(python);
    reader.args(["-c", READER]).arg(run.join("tensorboard")).env("PYTHONPATH", path);
    let output = reader.output().expect("Python is there");
    let said = String::from_utf8(output.stdout).expect("text");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let last = summary(&run)["loss"].as_f64().expect("a loss") as f32;
    let losses: Vec<&str> = said.lines().filter(|line| line.contains("evaluation/loss")).collect();
    assert_eq!(losses.len(), 5, "{said}");
    let read: f64 = losses[4].rsplit_once(' ').expect("a value").1.parse().expect("a number");
    assert_eq!(read as f32, last);
    assert_eq!(said.lines().filter(|line| line.contains("loss/rank_0")).count(), 60);
}
