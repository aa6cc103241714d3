//! Processes of real runs that are killed, with the real command: others take their places, and the runs end
//! where undisturbed ones do.
#![cfg(unix)]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

fn quelea(folder: &Path, words: &[&str], settings: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quelea"));
    command.args(words).args(settings.iter().flat_map(|setting| ["--set", setting]));
    command.current_dir(folder).stdin(Stdio::null());
    command.output().expect("the command starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Small and noisy: every worker has the same minimum, so that it does not matter whose gradients are missing.
const TASK: [&str; 6] = [
    "task.name=quadratic",
    "task.target=[[1],[1],[1],[1]]",
    "task.dimensions=50",
    "task.noise_std=0.3",
    "task.compute_ms=2",
    "workers=4",
];

/// Five kills, 0.3 s apart on average.
fn survives_kills(algorithm: &str, steps: u64) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (name, steps) = (format!("algorithm.name={algorithm}"), format!("steps={steps}"));
    let settings = [&TASK[..], &[&name, &steps]].concat();
    let words = ["chaos", "--kills", "5", "--mean-seconds", "0.3", "--out", "run", "--json"];
    let ended = quelea(folder.path(), &words, &settings);
    let said = text(&ended.stderr);
    assert!(ended.status.success(), "{algorithm}: {said}");
    let ledger: Value = serde_json::from_slice(&ended.stdout).expect("the ledger");
    assert_eq!(ledger["kills"], 5, "{algorithm}");
    let incidents = ledger["incidents"].as_array().expect("a list");
    let of_members = incidents.iter().filter(|incident| incident["took_part"] == true);
    let noticed = of_members.clone().filter(|incident| !incident["noticed_seconds"].is_null());
    assert!(noticed.count() + 1 >= of_members.count(), "{algorithm}: {ledger:#}");
    let joined = incidents.iter().filter(|incident| !incident["joined_seconds"].is_null());
    assert!(joined.count() >= 2, "{algorithm}: {ledger:#}");
}

#[test]
fn the_command_kills_and_its_ledger_says_what_became_of_every_kill() {
    survives_kills("d-psgd", 2500);
}

/// The coordinator's child processes.
fn children(pid: u32) -> Vec<String> {
    let found = Command::new("pgrep").args(["-P", &pid.to_string()]).output().expect("pgrep");
    text(&found.stdout).lines().map(String::from).collect()
}

#[test]
fn a_process_that_is_killed_is_started_again_and_every_sentence_says_what_happened() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = [&TASK[..], &["algorithm.name=d-psgd", "steps=1500"]].concat();
    let mut command = Command::new(env!("CARGO_BIN_EXE_quelea"));
    command.args(["train", "--processes", "--restarts", "1", "--out", "run"]);
    command.args(settings.iter().flat_map(|setting| ["--set", setting]));
    command.current_dir(folder.path()).stdin(Stdio::null());
    let mut run = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("started");
    let records = || {
        let entries = std::fs::read_dir(folder.path().join("run")).into_iter().flatten().flatten();
        let drafts = entries.filter(|e| e.file_name().to_string_lossy().contains("records"));
        drafts.filter_map(|draft| Some(draft.metadata().ok()?.len())).sum::<u64>()
    };
    while records() == 0 {
        assert!(run.try_wait().expect("asked").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let workers = children(run.id());
    let kill = Command::new("kill").args(["-KILL", &workers[2]]).status();
    assert!(kill.expect("kill is there").success());
    let ended = run.wait_with_output().expect("waited for");
    let said = text(&ended.stderr);
    assert!(ended.status.success(), "{said}");
    let sentence = "worker 2 was killed by signal 9; it is started again (restart 1 of 1)";
    assert!(said.contains(sentence), "{said}");
    assert!(said.contains(": worker 2 lost after "), "{said}");
    assert!(said.contains(": worker 2 joined after "), "{said}");
    let summary = std::fs::read(folder.path().join("run/summary.json")).expect("written");
    let summary: Value = serde_json::from_slice(&summary).expect("JSON");
    let ranks = summary["ranks"].as_array().expect("a list");
    assert!(ranks.iter().all(|rank| rank["lost"] == false), "{summary:#}");
    let warnings = summary["warnings"].to_string();
    assert!(warnings.contains(sentence), "{warnings}");
}

#[test]
fn restarts_that_could_restart_nothing_are_refused_before_the_run() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let words = ["train", "--processes", "--restarts", "3", "--out", "run"];
    let stops = [&TASK[..], &["membership.on_loss=stop"]].concat();
    let ended = quelea(folder.path(), &words, &stops);
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    assert!(
        text(&ended.stderr).contains("`membership.on_loss` = \"stop\" ends the run"),
        "{ended:?}"
    );
    let within = ["algorithm.name=d-psgd", "topology.within_host=average", "cluster.hosts=2"];
    let ended = quelea(folder.path(), &words, &[&TASK[..], &within].concat());
    assert_eq!(ended.status.code(), Some(2), "{ended:?}");
    assert!(text(&ended.stderr).contains("nobody can join this run"), "{ended:?}");
}
