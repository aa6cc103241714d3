//! Runs that cannot continue, with the real command: what was computed is kept, and said where.
#![cfg(unix)]

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Command, Stdio};

use safetensors::SafeTensors;
use safetensors::tensor::Metadata;

fn quelea(folder: &Path, words: &[&str], settings: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quelea"));
    command.args(words).args(settings.iter().flat_map(|setting| ["--set", setting]));
    command.current_dir(folder).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// The processes that this one has started.
fn children(pid: u32) -> Vec<String> {
    let found = Command::new("pgrep").args(["-P", &pid.to_string()]).output().expect("pgrep");
    String::from_utf8_lossy(&found.stdout).lines().map(String::from).collect()
}

fn values(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let tensor = file.tensor(name).unwrap_or_else(|error| panic!("{name}: {error}"));
    tensor.data().as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
}

#[test]
fn a_lost_worker_before_the_first_checkpoint_leaves_the_models_of_the_others() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = [
        "task.name=quadratic",
        "task.dimensions=1000",
        "task.compute_ms=2",
        "algorithm.name=d-psgd",
        "workers=4",
        "steps=100000",
        "membership.on_loss=stop",
    ];
    let words = ["train", "--processes", "--out", "run", "--set", "evaluations=2000"];
    let mut run = quelea(folder.path(), &words, &settings).spawn().expect("started");
    let mut said = BufReader::new(run.stderr.take().expect("piped"));
    let records = || {
        let entries = fs::read_dir(folder.path().join("run")).into_iter().flatten().flatten();
        let drafts = entries.filter(|e| e.file_name().to_string_lossy().contains("records"));
        drafts.filter_map(|draft| Some(draft.metadata().ok()?.len())).sum::<u64>()
    };
    while records() == 0 {
        assert!(run.try_wait().expect("asked").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let workers = children(run.id());
    assert_eq!(workers.len(), 4, "{workers:?}");
    let kill = Command::new("kill").args(["-KILL", &workers[3]]).status();
    assert!(kill.expect("kill is there").success());
    let mut text = String::new();
    said.by_ref().read_to_string(&mut text).expect("text");
    assert_eq!(run.wait().expect("waited for").code(), Some(1), "{text}");
    let last = text.lines().last().expect("it says something");
    assert!(last.contains("worker 3 was killed by signal 9"), "{text}");
    assert!(last.contains("the models of 3 of 4 ranks, after "), "{text}");
    assert!(last.ends_with("are in run/aborted.safetensors"), "{text}");
    let bytes = fs::read(folder.path().join("run/aborted.safetensors")).expect("kept");
    let (_, about): (usize, Metadata) = SafeTensors::read_metadata(&bytes).expect("a head");
    let about = about.metadata().as_ref().expect("steps").clone();
    let file = SafeTensors::deserialize(&bytes).expect("a whole file");
    let model = values(&file, "model");
    let mut mean = vec![0f64; 1000];
    for rank in 0..3 {
        let step: u64 = about[&format!("step.worker.{rank}")].parse().expect("a number");
        assert!(step > 0, "{about:?}");
        let own = values(&file, &format!("worker.{rank}"));
        mean.iter_mut().zip(own).for_each(|(sum, x)| *sum += f64::from(x));
    }
    let mean: Vec<f32> = mean.iter().map(|sum| (sum / 3.0) as f32).collect();
    assert_eq!(model, mean, "the mean of those that are left");
    assert!(file.tensor("worker.3").is_err());
    let lines = fs::read_to_string(folder.path().join("run/records.jsonl")).expect("kept");
    assert!(lines.lines().any(|line| line.contains("\"kind\":\"step\"")));
    let again = quelea(folder.path(), &["train", "--threads", "--out", "run"], &settings).output();
    let again = String::from_utf8_lossy(&again.expect("started").stderr).into_owned();
    assert!(again.contains("holds an earlier run"), "{again}");
    // Nobody reads lines after the end.
    assert_eq!(said.lines().count(), 0);
}

#[test]
fn a_run_whose_worker_is_killed_continues_without_it_and_says_so() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = [
        "task.name=quadratic",
        "task.compute_ms=2",
        "algorithm.name=d-psgd",
        "workers=4",
        "steps=1000",
        "plots=false",
    ];
    let words = ["train", "--processes", "--out", "run", "--set", "evaluations=200"];
    let mut run = quelea(folder.path(), &words, &settings);
    let run = run.stdout(Stdio::piped()).spawn().expect("started");
    let is_recording = || {
        let entries = fs::read_dir(folder.path().join("run")).into_iter().flatten().flatten();
        let drafts = entries.filter(|e| e.file_name().to_string_lossy().contains("records"));
        drafts.filter_map(|draft| Some(draft.metadata().ok()?.len())).sum::<u64>() > 0
    };
    while !is_recording() {
        std::thread::yield_now();
    }
    let workers = children(run.id());
    let kill = Command::new("kill").args(["-KILL", &workers[3]]).status();
    assert!(kill.expect("kill is there").success());
    let output = run.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(said.contains("worker 3 (lost)"), "{said}");
    assert!(said.contains("lost rank 3: ") && said.contains("; the others continued"), "{said}");
    let bytes = fs::read(folder.path().join("run/final.safetensors")).expect("written");
    let file = SafeTensors::deserialize(&bytes).expect("a whole file");
    assert!(file.names().iter().any(|name| name.starts_with("model")), "{:?}", file.names());
    let lines = fs::read_to_string(folder.path().join("run/records.jsonl")).expect("written");
    assert_eq!(lines.lines().filter(|line| line.contains("\"kind\":\"lost\"")).count(), 1);
}

/// How many lines of this kind a run has recorded so far.
fn recorded(folder: &Path, kind: &str) -> usize {
    let entries = fs::read_dir(folder.join("run")).into_iter().flatten().flatten();
    let drafts = entries.filter(|e| e.file_name().to_string_lossy().contains("records"));
    let texts = drafts.filter_map(|draft| fs::read_to_string(draft.path()).ok());
    let kind = format!("\"kind\":\"{kind}\"");
    texts.map(|text| text.lines().filter(|line| line.contains(&kind)).count()).sum()
}

#[test]
fn a_run_that_has_lost_a_worker_is_saved_at_an_interrupt_and_resumes_with_the_others() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = [
        "task.name=quadratic",
        "task.compute_ms=2",
        "algorithm.name=d-psgd",
        "workers=4",
        "steps=3000",
        "plots=false",
        "checkpoint.every=100",
        "evaluations=200",
    ];
    let mut run = quelea(folder.path(), &["train", "--processes", "--out", "run"], &settings)
        .spawn()
        .expect("started");
    while recorded(folder.path(), "checkpoint") == 0 {
        assert!(run.try_wait().expect("asked").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let workers = children(run.id());
    let kill = Command::new("kill").args(["-KILL", &workers[3]]).status();
    assert!(kill.expect("kill is there").success());
    // What was recorded is with the system whenever a checkpoint is.
    while recorded(folder.path(), "lost") == 0 {
        assert!(run.try_wait().expect("asked").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let kill = Command::new("kill").args(["-INT", &run.id().to_string()]).status();
    assert!(kill.expect("kill is there").success());
    let output = run.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(130), "{said}");
    assert!(said.contains("resume it with --resume run"), "{said}");
    let newest = |folder: &Path| {
        let entries = fs::read_dir(folder.join("run/checkpoints")).expect("there are some");
        let names = entries.flatten().filter_map(|e| e.file_name().into_string().ok());
        let steps = names.filter_map(|name| name.strip_prefix("step-")?.parse::<u64>().ok());
        steps.max().expect("one is whole")
    };
    let step = newest(folder.path());
    let manifest = folder.path().join(format!("run/checkpoints/step-{step}/manifest.json"));
    let manifest: serde_json::Value =
        serde_json::from_slice(&fs::read(manifest).expect("written")).expect("JSON");
    assert_eq!(manifest["changes"][0]["departed"][0]["rank"], 3, "{manifest}");
    let end = format!("steps={}", step + 50);
    let words = ["train", "--processes", "--resume", "run"];
    let mut again = quelea(folder.path(), &words, &[&end]);
    let again = again.stdout(Stdio::piped()).output().expect("started");
    let said = String::from_utf8_lossy(&again.stdout).into_owned();
    assert_eq!(again.status.code(), Some(0), "{again:?}");
    assert!(said.contains("worker 3 (lost)"), "{said}");
    assert!(said.contains("the run continues without worker 3, which was lost"), "{said}");
}

#[test]
fn a_worker_that_receives_sigterm_leaves_and_the_others_continue() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = [
        "task.name=quadratic",
        "task.compute_ms=2",
        "algorithm.name=d-psgd",
        "workers=4",
        "steps=1500",
        "plots=false",
        "checkpoint.every=50",
    ];
    let mut run = quelea(folder.path(), &["train", "--processes", "--out", "run"], &settings);
    let mut run = run.stdout(Stdio::piped()).spawn().expect("started");
    while recorded(folder.path(), "checkpoint") == 0 {
        assert!(run.try_wait().expect("asked").is_none(), "it ended by itself");
        std::thread::yield_now();
    }
    let workers = children(run.id());
    let kill = Command::new("kill").args(["-TERM", &workers[3]]).status();
    assert!(kill.expect("kill is there").success());
    let output = run.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(said.contains("worker 3 (left)"), "{said}");
    assert!(said.contains("rank 3 left with notice; the others continued"), "{said}");
    let lines = fs::read_to_string(folder.path().join("run/records.jsonl")).expect("written");
    assert_eq!(lines.lines().filter(|line| line.contains("\"kind\":\"left\"")).count(), 1);
    assert_eq!(lines.lines().filter(|line| line.contains("\"kind\":\"lost\"")).count(), 0);
}

#[test]
fn the_limit_of_open_files_is_raised_or_said_to_be_too_low() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = |limit: &str| {
        let quelea = env!("CARGO_BIN_EXE_quelea");
        let settings = "--set workers=40 --set steps=3 --set algorithm.name=allreduce";
        let line = format!("{limit} && exec {quelea} train --threads --force --out run {settings}");
        let output = Command::new("sh").args(["-c", &line]).current_dir(folder.path()).output();
        output.expect("started")
    };
    let raised = run("ulimit -Sn 64");
    assert!(raised.status.success(), "{raised:?}");
    let refused = run("ulimit -n 100");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("needs about 192 open files and connections and may have 100"), "{said}");
}

/// How many open files a run of these words says that it needs.
fn files_needed(folder: &Path, words: &str) -> u64 {
    let line = format!("ulimit -n 20 && exec {} {words}", env!("CARGO_BIN_EXE_quelea"));
    let output = Command::new("sh").args(["-c", &line]).current_dir(folder).output();
    let said = String::from_utf8_lossy(&output.expect("started").stderr).into_owned();
    let rest = said.split("needs about ").nth(1).unwrap_or_else(|| panic!("no number: {said}"));
    rest.split(' ').next().and_then(|word| word.parse().ok()).expect("a number")
}

#[test]
fn a_flood_of_sockets_while_a_run_goes_on_takes_no_descriptor_from_its_peers() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let settings = "--set task.name=quadratic --set task.compute_ms=2 --set workers=2 --set steps=1500 \
                    --set algorithm.name=d-psgd --set plots=false";
    let words = format!("serve --bind 127.0.0.1:0 --out served {settings}");
    let needed = files_needed(folder.path(), &words);
    let line = format!("ulimit -n {needed} && exec {} {words}", env!("CARGO_BIN_EXE_quelea"));
    let mut serve = Command::new("sh");
    serve.args(["-c", &line]).current_dir(folder.path()).stderr(Stdio::piped());
    let mut serve = serve.stdout(Stdio::null()).spawn().expect("started");
    let mut said = BufReader::new(serve.stderr.take().expect("piped")).lines();
    let mut lines = said.by_ref().map(|line| line.expect("text"));
    let line = lines.find(|line| line.contains("quelea join ")).expect("it says where it is");
    let address = line.trim().rsplit(' ').next().expect("an address").to_string();
    let join = || {
        let mut join = Command::new(env!("CARGO_BIN_EXE_quelea"));
        join.args(["join", &address, "-q"]).current_dir(folder.path()).spawn().expect("started")
    };
    let mut workers = [join(), join()];
    let is_recording = || {
        let entries = std::fs::read_dir(folder.path().join("served")).into_iter().flatten();
        let mut records = entries.flatten().filter(|entry| {
            let is_record = entry.file_name().to_string_lossy().contains("records");
            is_record && entry.metadata().is_ok_and(|file| file.len() > 0)
        });
        records.next().is_some()
    };
    let begun = std::time::Instant::now();
    while !is_recording() {
        assert!(begun.elapsed() < std::time::Duration::from_secs(100), "it does not begin");
        std::thread::yield_now();
    }
    // More than it may open at all. Those that it does not take wait in the kernel, or are refused.
    let place: std::net::SocketAddr = address.parse().expect("an address");
    let patience = std::time::Duration::from_millis(20);
    let flood = || std::net::TcpStream::connect_timeout(&place, patience).ok();
    let silent: Vec<_> = (0..needed + 300).map(|_| flood()).collect();
    assert!(silent.iter().flatten().count() > 64, "nobody came through");
    for worker in &mut workers {
        assert!(worker.wait().expect("waited for").success());
    }
    let rest: Vec<String> = lines.collect();
    assert!(serve.wait().expect("waited for").success(), "{rest:?}");
    drop(silent);
    let mut alone = Command::new(env!("CARGO_BIN_EXE_quelea"));
    alone.args(["train", "--threads", "-q", "--out", "alone"]).args(settings.split_whitespace());
    assert!(alone.current_dir(folder.path()).status().expect("started").success());
    let model = |run: &str| std::fs::read(folder.path().join(run).join("final.safetensors"));
    assert_eq!(model("served").expect("a model"), model("alone").expect("a model"));
}
