//! The process that controls a run is killed, with the real command: another one takes over, where a quorum is
//! left, and finishes the run.
#![cfg(unix)]

#[path = "takeover/merging.rs"]
mod merging;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// How long a run of a few seconds may take on a machine that is busy with others.
const LIMIT: Duration = Duration::from_secs(150);

fn quelea(folder: &Path, words: &[&str], settings: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quelea"));
    command.args(words).args(settings.iter().flat_map(|setting| ["--set", setting]));
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

fn task<'a>(algorithm: &'a str, workers: &'a str, steps: &'a str) -> [&'a str; 6] {
    ["task.name=quadratic", "task.compute_ms=2", "plots=false", algorithm, workers, steps]
}

/// The processes that this one has started, by the worker that each is.
fn workers(pid: u32) -> Vec<u32> {
    let found = Command::new("pgrep").args(["-P", &pid.to_string()]).output().expect("pgrep");
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    let rank = |pid: &u32| {
        let line = Command::new("ps").args(["-o", "args=", "-p", &pid.to_string()]).output();
        let line = String::from_utf8_lossy(&line.expect("ps").stdout).into_owned();
        let words: Vec<&str> = line.split_whitespace().collect();
        let place = words.iter().position(|word| *word == "--rank").expect("it has a rank");
        words[place + 1].parse::<u32>().expect("a number")
    };
    let mut pids: Vec<u32> = found.lines().filter_map(|line| line.parse().ok()).collect();
    pids.sort_by_key(rank);
    pids
}

/// Sends a signal to these processes, one after the other.
fn signal(name: &str, pids: &[u32]) {
    let pids = pids.iter().map(u32::to_string);
    let sent = Command::new("kill").arg(format!("-{name}")).args(pids).status();
    assert!(sent.expect("kill is there").success());
}

fn kill(pids: &[u32]) {
    signal("KILL", pids);
}

/// Stops this process. Afterwards it sees nothing of what is done to the others.
fn stop(pid: u32) {
    signal("STOP", &[pid]);
    until("it is stopped", || {
        let state = Command::new("ps").args(["-o", "state=", "-p", &pid.to_string()]).output();
        state.expect("ps is there").stdout.starts_with(b"T")
    });
}

fn lives(pid: u32) -> bool {
    let asked = Command::new("kill").args(["-0", &pid.to_string()]).stderr(Stdio::null()).status();
    asked.expect("kill is there").success()
}

/// Waits until something holds; there is no other sign of it.
fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !holds() {
        assert!(begun.elapsed() < LIMIT, "waited too long until {what}");
        // The processes that are waited for need the cores.
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes of records below a folder, written or about to be.
fn recorded(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let drafts = entries.filter(|entry| entry.file_name().to_string_lossy().contains("records"));
    drafts.filter_map(|draft| Some(draft.metadata().ok()?.len())).sum()
}

/// Every file below a folder with its size.
fn written(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            found.extend(written(&path));
        } else {
            let bytes = entry.metadata().map_or(0, |file| file.len());
            found.push(format!("{}: {bytes} bytes", path.display()));
        }
    }
    found
}

fn summary(folder: &Path) -> Value {
    let bytes = std::fs::read(folder.join("summary.json")).expect("written");
    serde_json::from_slice(&bytes).expect("JSON")
}

/// A run in processes that has recorded something, and its workers' processes.
fn begun(folder: &Path, settings: &[&str]) -> (Child, Vec<u32>) {
    let words = ["train", "--processes", "--out", "run"];
    let mut run = quelea(folder, &words, settings).spawn().expect("started");
    until("it has begun", || {
        assert!(run.try_wait().expect("asked").is_none(), "it ended by itself");
        recorded(&folder.join("run")) > 0
    });
    let workers = workers(run.id());
    (run, workers)
}

fn taken_over(folder: &Path, rank: u32) -> PathBuf {
    folder.join(format!("run/taken-over-by-rank-{rank}"))
}

fn finishes_without_its_coordinator(algorithm: &str) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let name = format!("algorithm.name={algorithm}");
    let (mut run, workers) = begun(folder.path(), &task(&name, "workers=4", "steps=1500"));
    kill(&[run.id()]);
    run.wait().expect("it was killed");
    until("the others have ended", || !workers.iter().any(|pid| lives(*pid)));
    let rest = taken_over(folder.path(), 0);
    assert!(rest.join("final.safetensors").exists(), "{algorithm}: {:?}", written(folder.path()));
    let summary = summary(&rest);
    let warnings = summary["warnings"].to_string();
    let places = "what was recorded before is in run, the rest and the final model are in run/";
    assert!(warnings.contains("the coordinator's process was lost"), "{algorithm}: {warnings}");
    assert!(warnings.contains(places), "{algorithm}: {warnings}");
    let records = std::fs::read_to_string(rest.join("records.jsonl")).expect("written");
    assert_eq!(records.matches("\"kind\":\"took_over\"").count(), 1, "{algorithm}");
    assert_eq!(records.matches("\"kind\":\"lost\"").count(), 0, "{algorithm}: no worker is lost");
}

#[test]
fn a_run_whose_starting_process_is_killed_is_finished_by_its_workers() {
    finishes_without_its_coordinator("d-psgd");
}

#[test]
fn workers_that_share_a_budget_of_gradients_finish_without_their_coordinator() {
    finishes_without_its_coordinator("ad-psgd");
}

#[test]
fn replicas_of_all_reduce_finish_without_their_coordinator() {
    finishes_without_its_coordinator("allreduce");
}

#[test]
fn when_the_process_that_has_taken_over_is_killed_too_the_next_one_takes_over() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = task("algorithm.name=d-psgd", "workers=5", "steps=3000");
    let (mut run, workers) = begun(folder.path(), &settings);
    kill(&[run.id()]);
    run.wait().expect("it was killed");
    until("rank 0 has taken over", || recorded(&taken_over(folder.path(), 0)) > 0);
    kill(&[workers[0]]);
    until("the others have ended", || !workers.iter().any(|pid| lives(*pid)));
    assert!(!taken_over(folder.path(), 0).join("final.safetensors").exists());
    let rest = taken_over(folder.path(), 1);
    assert!(rest.join("final.safetensors").exists());
    let summary = summary(&rest);
    assert_eq!(summary["ranks"][0]["lost"], true, "{summary}");
    assert!(summary["warnings"].to_string().contains("rank 1 took over"), "{summary}");
}

/// What was recorded below a folder, written or about to be.
fn records(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let drafts = entries.filter(|entry| entry.file_name().to_string_lossy().contains("records"));
    drafts.filter_map(|draft| std::fs::read_to_string(draft.path()).ok()).collect()
}

/// Whether a worker of this rank has joined and taken steps since, by these records.
fn has_joined(records: &str, rank: u32) -> bool {
    let joined = format!("\"rank\":{rank},");
    let of_rank = records.lines().filter(|line| line.contains(&joined));
    let mut since = of_rank.skip_while(|line| !line.contains("\"kind\":\"joined\""));
    since.any(|line| line.contains("\"kind\":\"step\""))
}

#[test]
fn after_a_take_over_workers_that_are_lost_are_replaced() {
    for algorithm in ["algorithm.name=d-psgd", "algorithm.name=ad-psgd"] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let settings = task(algorithm, "workers=4", "steps=6000");
        let words = ["train", "--processes", "--restarts", "3", "--out", "run"];
        let mut run = quelea(folder.path(), &words, &settings).spawn().expect("started");
        until("it has begun", || recorded(&folder.path().join("run")) > 0);
        let workers = workers(run.id());
        kill(&[run.id()]);
        run.wait().expect("it was killed");
        let rest = taken_over(folder.path(), 0);
        until("rank 0 has taken over", || records(&rest).contains("\"kind\":\"took_over\""));
        kill(&[workers[2]]);
        until("another worker has joined and takes steps", || has_joined(&records(&rest), 2));
        until("the others have ended", || !workers.iter().any(|pid| lives(*pid)));
        let summary = summary(&rest);
        assert!(rest.join("final.safetensors").exists(), "{:?}", written(folder.path()));
        assert_eq!(summary["ranks"][2]["lost"], false, "{summary}");
        let told = "worker 2 was lost; it is started again (restart 1 of 3)";
        assert!(summary["warnings"].to_string().contains(told), "{summary}");
    }
}

/// The coordinator stands still before the first checkpoint: workers send it their parts and wait until it is written,
/// which it never is.
#[test]
fn a_checkpoint_that_was_lost_with_the_coordinator_holds_nobody_up() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let [name, compute, plots, algorithm, workers, steps] =
        task("algorithm.name=d-psgd", "workers=4", "steps=1500");
    let settings = [name, compute, plots, algorithm, workers, steps, "checkpoint.every=300"];
    let (mut run, _) = begun(folder.path(), &settings);
    stop(run.id());
    let rest = taken_over(folder.path(), 0);
    until("the others have finished", || rest.join("summary.json").exists());
    kill(&[run.id()]);
    run.wait().expect("it was killed");
    let records = std::fs::read_to_string(rest.join("records.jsonl")).expect("written");
    let saved = records.matches("\"kind\":\"checkpoint\"").count();
    assert!(saved > 0, "checkpoints are made again: {records}");
}

/// A coordinator at which workers join, and its address.
fn serve(folder: &Path, settings: &[&str]) -> (Child, String) {
    let words = ["serve", "--bind", "127.0.0.1:0", "--out", "run"];
    let mut serve = quelea(folder, &words, settings).spawn().expect("started");
    let mut said = std::io::BufReader::new(serve.stderr.take().expect("piped"));
    let mut line = String::new();
    while !line.contains("quelea join ") {
        line.clear();
        let read = std::io::BufRead::read_line(&mut said, &mut line).expect("text");
        assert!(read > 0, "it says where it listens");
    }
    // What else it says must not fill the pipe.
    std::thread::spawn(move || std::io::copy(&mut said, &mut std::io::sink()));
    (serve, line.trim().rsplit(' ').next().expect("an address").to_string())
}

#[test]
fn a_worker_joins_at_the_address_of_any_other_before_and_after_a_take_over() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = task("algorithm.name=d-psgd", "workers=3", "steps=8000");
    let (mut serve, address) = serve(folder.path(), &settings);
    let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    let port = free.local_addr().expect("bound").port().to_string();
    drop(free);
    let join = |place: &str, rank: &str, port: &str| {
        let out = format!("left-{rank}");
        let words = ["join", place, "--rank", rank, "--quiet", "--out", &out];
        let listens: &[&str] = if port.is_empty() { &[] } else { &["--listen-port", port] };
        let words = [&words[..], listens].concat();
        quelea(folder.path(), &words, &[]).spawn().expect("started")
    };
    let mut heir = join(&address, "0", "");
    let mut member = join(&address, "1", &port);
    let mut lost = join(&address, "2", "");
    let member_address = format!("127.0.0.1:{port}");
    until("it has begun", || recorded(&folder.path().join("run")) > 0);
    kill(&[lost.id()]);
    lost.wait().expect("it was killed");
    let mut second = join(&member_address, "2", "");
    let first_part = folder.path().join("run");
    until("another has joined before", || has_joined(&records(&first_part), 2));
    kill(&[serve.id()]);
    serve.wait().expect("it was killed");
    let rest = folder.path().join("left-0");
    until("rank 0 has taken over", || records(&rest).contains("\"kind\":\"took_over\""));
    kill(&[second.id()]);
    second.wait().expect("it was killed");
    let mut third = join(&member_address, "2", "");
    until("another has joined afterwards", || has_joined(&records(&rest), 2));
    for process in [&mut heir, &mut member, &mut third] {
        assert!(process.wait().expect("it ends").success());
    }
    assert_eq!(summary(&rest)["ranks"][2]["lost"], false);
}

#[test]
fn two_of_four_without_their_coordinator_end_with_their_models_and_say_whom_they_miss() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = task("algorithm.name=d-psgd", "workers=4", "steps=100000");
    let (mut serve, address) = serve(folder.path(), &settings);
    let join = |rank: u32| {
        let rank = rank.to_string();
        let out = format!("left-{rank}");
        let words = ["join", &address, "--rank", &rank, "--quiet", "--out", &out];
        quelea(folder.path(), &words, &[]).spawn().expect("started")
    };
    let mut joined: Vec<Child> = (0..4).map(join).collect();
    until("it has begun", || recorded(&folder.path().join("run")) > 0);
    // A coordinator that is killed last would have entered a view without the others, in which two are a quorum.
    stop(serve.id());
    kill(&[joined[0].id(), joined[2].id()]);
    kill(&[serve.id()]);
    let mut first = 0;
    for rank in [3, 1] {
        let output = joined.remove(rank).wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(75), "{said}");
        // The one that ends second may have seen the end of the first.
        let missing = ["0, 2 cannot be reached: 2 of 4", "0, 1, 2 cannot be", "0, 2, 3 cannot be"];
        assert!(missing.iter().any(|missing| said.contains(missing)), "{said}");
        first += usize::from(said.contains(missing[0]));
        let model = format!("left-{rank}/aborted.safetensors");
        assert!(folder.path().join(&model).exists(), "{said}");
        assert!(said.contains(&model), "{said}");
    }
    assert!(first > 0, "one of them ended first");
    joined.iter_mut().for_each(|child| drop(child.wait()));
    let _ = serve.wait();
}

/// An address at which other machines reach this one, if it has any.
fn own_address() -> Option<String> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("192.0.2.1:9").ok()?;
    let ip = socket.local_addr().ok()?.ip();
    (!ip.is_loopback() && !ip.is_unspecified()).then(|| ip.to_string())
}

#[test]
fn encrypted_links_outlive_the_coordinator_and_its_key() {
    let Some(ip) = own_address() else {
        return eprintln!("skipped: this machine has no address but loopback");
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = task("algorithm.name=d-psgd", "workers=4", "steps=1500");
    let bind = format!("{ip}:0");
    let words = ["serve", "--bind", &bind, "--out", "run"];
    let mut serve = quelea(folder.path(), &words, &settings);
    let mut serve = serve.env("XDG_RUNTIME_DIR", folder.path()).spawn().expect("started");
    let mut said = std::io::BufReader::new(serve.stderr.take().expect("piped"));
    let mut token = String::new();
    while !token.contains("quelea join ") {
        token.clear();
        let read = std::io::BufRead::read_line(&mut said, &mut token).expect("text");
        assert!(read > 0, "it prints its token");
    }
    let token = token.trim().rsplit(' ').next().expect("a token").to_string();
    assert!(token.starts_with(&format!("quelea:{ip}:")), "only those with the token come in");
    let join = |rank: u32| {
        let out = format!("left-{rank}");
        let words = ["join", "--rank", &rank.to_string(), "--quiet", "--out", &out];
        quelea(folder.path(), &words, &[]).env("QUELEA_TOKEN", &token).spawn().expect("started")
    };
    let joined: Vec<Child> = (0..4).map(join).collect();
    until("it has begun", || recorded(&folder.path().join("run")) > 0);
    kill(&[serve.id()]);
    serve.wait().expect("it was killed");
    for worker in joined {
        let output = worker.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        assert!(!said.contains(&token[token.len() - 30..]), "the token is shown: {said}");
    }
    let rest = folder.path().join("left-0");
    assert!(rest.join("final.safetensors").exists(), "{:?}", written(folder.path()));
    let records = std::fs::read_to_string(rest.join("records.jsonl")).expect("written");
    assert_eq!(records.matches("\"kind\":\"took_over\"").count(), 1);
    assert_eq!(records.matches("\"kind\":\"lost\"").count(), 0, "no worker is lost");
}
