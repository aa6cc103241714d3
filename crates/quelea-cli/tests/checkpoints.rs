//! Checkpoints with the real command: going on after anything, to the bit; what is refused and why.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use quelea_core::random::Rng;
use serde_json::Value;
use tempfile::TempDir;

struct Place {
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        Place { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_quelea"));
        command.args(words).current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("the command can be started")
    }

    fn good(&self, words: &[&str]) -> Output {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(0), "{words:?}: {}", errors(&output));
        output
    }

    /// What is said of a wrong request.
    fn refused(&self, words: &[&str]) -> String {
        let output = self.run(words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {output:?}");
        errors(&output)
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    }

    fn summary(&self, run: &str) -> Value {
        serde_json::from_slice(&self.bytes(&format!("{run}/summary.json"))).expect("JSON")
    }

    fn checkpoints(&self, run: &str) -> Vec<u64> {
        let Ok(entries) = fs::read_dir(self.path(run).join("checkpoints")) else {
            return Vec::new();
        };
        let names =
            entries.map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned());
        let mut steps: Vec<u64> =
            names.filter_map(|name| name.strip_prefix("step-")?.parse().ok()).collect();
        steps.sort_unstable();
        steps
    }

    /// The most steps of a worker that a run which was killed has recorded.
    fn reached(&self, run: &str) -> u64 {
        let draft = |name: &String| name.starts_with(".records.jsonl.");
        let drafts = self.names(run).into_iter().filter(draft);
        let texts = drafts.map(|name| fs::read_to_string(self.path(run).join(name)).expect("text"));
        let lines: Vec<String> =
            texts.flat_map(|t| t.lines().map(String::from).collect::<Vec<_>>()).collect();
        let records = lines.iter().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        let steps = records.filter(|record| record["kind"] == "step");
        steps.filter_map(|record| record["step"].as_u64()).map(|step| step + 1).max().unwrap_or(0)
    }

    fn names(&self, run: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(run)).expect("a folder");
        let mut names: Vec<String> = entries
            .map(|e| e.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

fn errors(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn signal(child: &Child, name: &str) {
    let kill = Command::new("kill").args([name, &child.id().to_string()]).status();
    assert!(kill.expect("kill is there").success());
}

/// A run whose end is known to the bit.
const RUN: [&str; 12] = [
    "--set",
    "task.name=logistic",
    "--set",
    "algorithm.name=gradient-tracking",
    "--set",
    "workers=3",
    "--set",
    "steps=24",
    "--set",
    "optimizer.momentum=0.9",
    "--set",
    "checkpoint.every=8",
];

fn with<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [words, &RUN].concat()
}

#[test]
fn a_run_goes_on_to_the_same_bits_in_the_virtual_cluster_in_threads_and_in_processes() {
    let place = Place::new();
    place.good(&with(&["simulate", "-q", "--out", "whole"]));
    assert_eq!(place.checkpoints("whole"), [16, 24], "two are kept");
    let expected = place.bytes("whole/final.safetensors");
    let from = "whole/checkpoints/step-16";
    for (number, how) in
        [["simulate", "-q"], ["train", "--threads"], ["train", "--processes"]].iter().enumerate()
    {
        let out = format!("again{number}");
        place.good(&[how, &["--resume", from, "--out", &out][..]].concat());
        assert_eq!(place.bytes(&format!("{out}/final.safetensors")), expected, "{how:?}");
        let summary = place.summary(&out);
        assert_eq!(summary["resumed_from_step"], 16);
        assert_eq!(summary["steps"], 72, "totals go on");
        let records =
            String::from_utf8(place.bytes(&format!("{out}/records.jsonl"))).expect("text");
        let steps: Vec<Value> = records
            .lines()
            .map(|line| serde_json::from_str(line).expect("JSON"))
            .filter(|record: &Value| record["kind"] == "step")
            .collect();
        assert_eq!(steps.len(), 72, "every step is recorded once");
    }
}

#[test]
fn a_run_with_servers_that_went_on_is_saved_again() {
    let place = Place::new();
    let servers = ["--set", "algorithm.name=sync-ps", "--set", "optimizer.lr=0.1"];
    place.good(&[&with(&["simulate", "-q", "--out", "run"])[..], &servers].concat());
    for (steps, how) in [(40, "simulate"), (56, "train")] {
        let more = format!("steps={steps}");
        place.good(&[how, "-q", "--resume", "run", "--set", &more]);
        assert_eq!(place.checkpoints("run").last(), Some(&steps), "{how}");
    }
}

#[test]
fn every_kind_of_wrong_request_is_refused_with_its_reason() {
    let place = Place::new();
    place.good(&with(&["simulate", "-q", "--out", "run"]));
    fs::create_dir(place.path("empty")).expect("made");
    fs::write(place.path("file"), "x").expect("written");
    let refused = |words: &[&str], reason: &str| {
        let said = place.refused(&[&["simulate"], words].concat());
        assert!(said.contains(reason), "{words:?}: {said}");
    };
    refused(&["--resume", "nowhere"], "nowhere: no such folder");
    refused(&["--resume", "empty"], "empty: holds no checkpoint");
    refused(&["--resume", "file"], "file: is a file");
    refused(&["--resume", "run"], "`steps` = 24: the run has done 24 steps; set more");
    let more = ["--resume", "run", "--set", "steps=40", "--set"];
    let change = |setting: &'static str| [&more[..], &[setting]].concat();
    refused(
        &change("algorithm.name=allreduce"),
        "`algorithm.name` = \"allreduce\": the checkpoint",
    );
    refused(&change("seed=2"), "`seed` = 2: the checkpoint was made with 1");
    refused(&change("task.batch=7"), "`task.batch` = 7");
    refused(&change("optimizer.name=adam"), "`optimizer");
    refused(&change("buckets.size_mb=0.0001"), "`buckets.size_mb`");
    refused(&change("chekpoint.every=3"), "checkpoint");
    refused(&change("checkpoint.keep=0"), "`checkpoint.keep` = 0");
    assert_eq!(place.checkpoints("run"), [16, 24], "nothing has changed");
    // These may change.
    let words = ["simulate", "-q", "--resume", "run", "--out", "longer", "--set", "steps=40"];
    place.good(&[&words[..], &["--set", "evaluations=2", "--set", "optimizer.lr=0.01"]].concat());
    assert_eq!(place.summary("longer")["steps"], 120);
}

#[test]
fn a_damaged_checkpoint_is_refused_and_the_one_before_it_used() {
    let place = Place::new();
    place.good(&with(&["simulate", "-q", "--out", "whole"]));
    let expected = place.bytes("whole/final.safetensors");
    let longer = ["--set", "steps=24", "--set", "checkpoint.every=8"];
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 5] = [
        ("another SHA-256", |at| {
            let path = at.join("rank-1.safetensors");
            let mut bytes = fs::read(&path).expect("there");
            let last = bytes.len() - 3;
            bytes[last] ^= 1;
            fs::write(path, bytes).expect("written");
        }),
        ("another SHA-256", |at| {
            let path = at.join("rank-0.safetensors");
            let bytes = fs::read(&path).expect("there");
            fs::write(path, &bytes[..bytes.len() / 2]).expect("written");
        }),
        ("manifest.json", |at| fs::write(at.join("manifest.json"), "{}").expect("written")),
        ("SHA256SUMS", |at| fs::remove_file(at.join("SHA256SUMS")).expect("removed")),
        ("rank-2.safetensors", |at| fs::remove_file(at.join("rank-2.safetensors")).expect("gone")),
    ];
    for (reason, damage) in damages {
        let mut copy = Command::new("cp");
        copy.args(["-r", "whole", "copy"]).current_dir(place.folder.path());
        assert!(copy.status().expect("cp is there").success());
        damage(&place.path("copy/checkpoints/step-24"));
        let output = place.good(&[&["simulate", "--resume", "copy"][..], &longer].concat());
        let said = errors(&output);
        assert!(said.contains("step-24 is damaged or half-written"), "{said}");
        assert!(said.contains(reason) && said.contains("resuming from step-16 instead"), "{said}");
        assert_eq!(place.bytes("copy/final.safetensors"), expected);
        // With that one damaged too there is nothing to go on from.
        place.good(&with(&["simulate", "-q", "--out", "copy", "--force"]));
        damage(&place.path("copy/checkpoints/step-24"));
        damage(&place.path("copy/checkpoints/step-16"));
        let said = place.refused(&["simulate", "--resume", "copy"]);
        assert!(said.contains("has no checkpoint that is whole"), "{said}");
        fs::remove_dir_all(place.path("copy")).expect("removed");
    }
}

#[test]
fn a_run_goes_on_with_another_number_of_workers_and_servers() {
    for (algorithm, servers) in
        [("d-psgd", "1"), ("aladdin", "2"), ("sync-ps", "2"), ("allreduce", "1"), ("sgp", "1")]
    {
        let place = Place::new();
        let algorithm = format!("algorithm.name={algorithm}");
        let set =
            ["--set", &algorithm, "--set", "optimizer.lr=0.1", "--set", "checkpoint.every=20"];
        let start = ["simulate", "-q", "--out", "run", "--set", "workers=4", "--set", "steps=60"];
        let task = ["--set", "task.name=logistic"];
        place.good(&[&start[..], &set, &task].concat());
        let servers = format!("cluster.servers={servers}");
        let more = ["--set", "workers=6", "--set", &servers, "--set", "steps=120"];
        let words = ["simulate", "-q", "--resume", "run", "--out", "more"];
        place.good(&[&words[..], &more].concat());
        let (before, after) = (place.summary("run"), place.summary("more"));
        assert_eq!(after["workers"].as_array().expect("a list").len(), 6);
        let accuracy = |summary: &Value| summary["accuracy"].as_f64().expect("a share");
        assert!(accuracy(&after) > accuracy(&before) - 0.01, "{algorithm}: {before} {after}");
        let fewer = ["--set", "workers=2", "--set", "steps=90"];
        place
            .good(&[&["simulate", "-q", "--resume", "run", "--out", "fewer"][..], &fewer].concat());
        assert!(accuracy(&place.summary("fewer")) > accuracy(&before) - 0.02, "{algorithm}");
    }
}

/// Waits until there is a checkpoint, or the run has ended.
fn wait_for_checkpoint(place: &Place, run: &str, child: &mut Child) {
    let begun = Instant::now();
    while place.checkpoints(run).is_empty() && child.try_wait().expect("asked").is_none() {
        assert!(begun.elapsed() < Duration::from_secs(120), "no checkpoint came");
        std::thread::yield_now();
    }
}

#[test]
fn being_asked_to_stop_saves_a_run() {
    let place = Place::new();
    for how in [&["simulate"][..], &["train", "--threads"], &["train", "--processes"]] {
        for algorithm in ["algorithm.name=d-psgd", "algorithm.name=aladdin"] {
            let _ = fs::remove_dir_all(place.path("run"));
            let words = ["--out", "run", "--set", algorithm, "--set", "workers=3"];
            let words = [&words[..], &["--set", "task.name=logistic"]].concat();
            let long = ["--set", "steps=1000000000", "--set", "checkpoint.every=50"];
            let mut child = place
                .command(&[how, &words, &long].concat())
                .stderr(Stdio::piped())
                .stdout(Stdio::null())
                .spawn()
                .expect("started");
            wait_for_checkpoint(&place, "run", &mut child);
            signal(&child, "-TERM");
            let output = child.wait_with_output().expect("waited for");
            let said = errors(&output);
            assert_eq!(output.status.code(), Some(130), "{how:?} {algorithm}: {said}");
            assert!(said.contains("resume it with --resume run"), "{said}");
            assert!(place.names("run").contains(&"records.jsonl".to_string()), "{said}");
            let last = *place.checkpoints("run").last().expect("there is one");
            let steps = format!("steps={}", last + 30);
            let on = ["--resume", "run", "-q", "--set", &steps, "--set", "checkpoint.every=0"];
            place.good(&[how, &on].concat());
            assert_eq!(place.summary("run")["resumed_from_step"], last);
        }
    }
}

#[test]
fn being_asked_twice_ends_a_run_at_once() {
    let place = Place::new();
    // The first gradient of worker 0 takes minutes, so that there is no step to be saved at.
    let words = ["train", "--threads", "--out", "run", "--set", "algorithm.name=d-psgd"];
    let slow = ["--set", "workers=2", "--set", "cluster.slow={ 0 = 1e6 }"];
    let large = ["--set", "task.name=quadratic", "--set", "task.dimensions=500000"];
    let mut child = place
        .command(&[&words[..], &slow, &large].concat())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect("started");
    let begun = Instant::now();
    let draft = |name: &String| name.starts_with(".records");
    while !place.path("run").exists() || !place.names("run").iter().any(draft) {
        assert!(begun.elapsed() < Duration::from_secs(60), "it does not begin");
        std::thread::yield_now();
    }
    let mut said = BufReader::new(child.stderr.take().expect("piped")).lines();
    // Before the run is driven, the first one ends it; so ask until it has been heard.
    signal(&child, "-INT");
    let first = said.by_ref().map(|line| line.expect("text")).find(|line| !line.is_empty());
    let first = first.expect("it says something");
    if first.contains("saving the run") {
        signal(&child, "-INT");
        let rest: String = said.map(|line| line.expect("text")).collect();
        assert!(rest.contains("ended at once"), "{rest}");
    }
    assert_eq!(child.wait().expect("waited for").code(), Some(130));
    assert!(!place.path("run").exists(), "nothing was saved, so nothing stays");
}

#[test]
fn a_full_disk_is_told_and_replaces_nothing() {
    let place = Place::new();
    // A file where the folder of checkpoints should be stands for a disk that takes nothing.
    fs::create_dir(place.path("run")).expect("made");
    let words = with(&["simulate", "--out", "run", "--force"]);
    fs::write(place.path("run/checkpoints"), "in the way").expect("written");
    let output = place.good(&words);
    assert!(errors(&output).contains("checkpoint of step 8: "), "{}", errors(&output));
    let warnings = place.summary("run")["warnings"].to_string();
    assert!(warnings.contains("checkpoints could not be written"), "{warnings}");
    assert!(place.refused(&["simulate", "--resume", "run"]).contains("no checkpoint"));
}

/// Checkpoints of the runs that are killed.
const EVERY: u64 = 20;

/// Kills runs at any moment and lets them go on. Synchronous ones end with the same bits.
fn kill_and_resume(how: &[&str], algorithm: &str, kills: usize) {
    let place = Place::new();
    let name = format!("algorithm.name={algorithm}");
    let settings = [
        name.as_str(),
        "workers=3",
        "steps=120",
        "optimizer.momentum=0.9",
        "optimizer.lr=0.001",
        "task.name=quadratic",
        "task.dimensions=5000",
        "task.noise_std=0.1",
        "checkpoint.every=20",
        "evaluations=5",
        // Asleep most of the time, so that a kill finds it at any step without much computing.
        "cluster.slow={ 0 = 8.0 }",
        // Else the workers of a run in processes would finish it by themselves.
        "membership.on_loss=stop",
    ];
    let words: Vec<&str> = settings.iter().flat_map(|setting| ["--set", setting]).collect();
    let is_exact = algorithm != "aladdin";
    let begun = Instant::now();
    place.good(&[how, &["-q", "--out", "whole"], &words].concat());
    let whole = begun.elapsed();
    let expected = place.bytes("whole/final.safetensors");
    let mut rng = Rng::new(1, &format!("kills {how:?} {algorithm}"), 0);
    for number in 0..kills {
        let _ = fs::remove_dir_all(place.path("run"));
        let mut child = place
            .command(&[how, &["-q", "--out", "run"], &words].concat())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("started");
        // Any moment from the start of the process to after its end.
        let moment = whole.mul_f64(1.1 * rng.uniform());
        let at = Instant::now() + moment;
        while Instant::now() < at && child.try_wait().expect("asked").is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        let _ = child.kill();
        let _ = child.wait();
        let left = place.checkpoints("run");
        let check = |when: &str| {
            let same = place.bytes("run/final.safetensors") == expected;
            assert!(same || !is_exact, "{algorithm}, kill {number} after {moment:?}: {when}");
            assert_eq!(place.summary("run")["failure"], Value::Null);
        };
        if place.path("run/summary.json").exists() {
            check("it had ended");
            continue;
        }
        let Some(last) = left.last().copied() else {
            assert!(!place.path("run/final.safetensors").exists());
            continue;
        };
        assert_eq!(last % EVERY, 0);
        let reached = place.reached("run");
        let bound = if is_exact { last + EVERY } else { u64::MAX };
        assert!(reached <= bound, "{algorithm}, kill {number}: {reached} steps, saved {last}");
        if last >= 120 {
            continue;
        }
        let output = place.good(&[how, &["--resume", "run"]].concat());
        assert!(!errors(&output).contains("damaged"), "kill {number}: {}", errors(&output));
        check("it went on");
        assert_eq!(place.summary("run")["resumed_from_step"], last);
        let hidden = place.names("run").into_iter().filter(|name| name.starts_with('.'));
        assert_eq!(hidden.count(), 0, "nothing half-written stays");
    }
}

#[test]
fn a_run_in_threads_survives_being_killed_at_any_moment() {
    kill_and_resume(&["train", "--threads"], "gradient-tracking", 8);
    kill_and_resume(&["train", "--threads"], "aladdin", 3);
}

#[test]
fn a_run_in_processes_survives_being_killed_at_any_moment() {
    kill_and_resume(&["train", "--processes"], "gradient-tracking", 4);
    kill_and_resume(&["train", "--processes"], "sync-ps", 3);
    kill_and_resume(&["train", "--processes"], "sgp", 3);
}
