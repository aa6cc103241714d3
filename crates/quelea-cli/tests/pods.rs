//! What a manifest of Kubernetes runs, run without a cluster: the container's command and environment with the real
//! program, its probes, SIGTERM, and the next pod that resumes.
#![cfg(unix)]

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

const QUELEA: &str = env!("CARGO_BIN_EXE_quelea");
/// How long anything may take.
const PATIENCE: Duration = Duration::from_secs(120);
const RUN: &str = "\
steps = 150
[task]
name = \"quadratic\"
compute_ms = 20
[algorithm]
name = \"d-psgd\"
[checkpoint]
every = 10
";

/// What the container of a manifest is given.
struct Container {
    place: TempDir,
    script: String,
    env: Vec<(String, String)>,
    rendezvous: u16,
}

impl Container {
    /// The container of the file `manifest`, as `submit` writes it for two workers.
    fn of(form: &str, manifest: &str) -> Container {
        let place = tempfile::tempdir().expect("a temporary folder");
        fs::write(place.path().join("run.toml"), RUN).expect("written");
        let words = format!("submit kubernetes run.toml --workers 2 --form {form} --to manifests");
        let written =
            Command::new(QUELEA).args(words.split(' ')).current_dir(place.path()).output();
        let written = written.expect("it starts");
        assert!(written.status.success(), "{}", String::from_utf8_lossy(&written.stderr));
        let text = fs::read_to_string(place.path().join("manifests").join(manifest));
        let text = text.expect("a manifest");
        let rendezvous = free_port();
        // What the cluster mounts is in another place here.
        let mounted = place.path().join("manifests/run.toml");
        let script = script(&text).replace("/etc/quelea/run.toml", &mounted.display().to_string());
        Container { script, env: environment(&text), rendezvous, place }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    fn out(&self) -> PathBuf {
        self.path("data/run")
    }

    /// A pod with this index. The cluster sets the index, resolves names and mounts the volumes.
    fn start(&self, more: &[(&str, &str)]) -> Pod {
        let bin = self.path("bin");
        fs::create_dir_all(&bin).expect("made");
        let _ = std::os::unix::fs::symlink(QUELEA, bin.join("quelea"));
        let health = free_port();
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &self.script]).env_clear().current_dir(self.place.path());
        command.env("PATH", format!("{}:/usr/bin:/bin", bin.display()));
        for (name, value) in &self.env {
            let value = match name.as_str() {
                "OUT" => self.out().display().to_string(),
                "QUELEA_HEALTH" => format!("127.0.0.1:{health}"),
                "QUELEA_SECRET" => "0123456789012345678901".to_string(),
                "QUELEA_RENDEZVOUS" => format!("127.0.0.1:{}", self.rendezvous),
                _ => value.clone(),
            };
            command.env(name, value);
        }
        command.envs(more.iter().copied());
        let log = self.path(&format!("pod-{health}.log"));
        let file = fs::File::create(&log).expect("made");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        Pod { child: command.spawn().expect("a shell"), health, log }
    }
}

/// A container that runs.
struct Pod {
    child: Child,
    health: u16,
    log: PathBuf,
}

impl Pod {
    /// The status that a probe gets; nothing, where nobody answers.
    fn probe(&self, path: &str) -> Option<u16> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.health)).ok()?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: 10.0.0.1\r\nConnection: close\r\n\r\n")
            .ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        answer.split(' ').nth(1)?.parse().ok()
    }

    fn told(&self) -> String {
        fs::read_to_string(&self.log).expect("its output")
    }

    fn await_probe(&mut self, path: &str, status: u16) {
        until(&format!("{path} to answer {status}"), || {
            let ended = self.child.try_wait().expect("a child");
            assert_eq!(ended, None, "it has ended: {}", self.told());
            self.probe(path) == Some(status)
        });
    }

    /// What a cluster sends to a pod that it takes away; the program has taken the place of the shell.
    fn terminate(&self) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-TERM", &pid]).status();
        assert!(sent.expect("kill is there").success());
    }

    fn end(&mut self) -> ExitStatus {
        let mut ended = None;
        until("a pod to end", || {
            ended = self.child.try_wait().expect("a child");
            ended.is_some()
        });
        ended.expect("it has ended")
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let limit = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < limit, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.local_addr().expect("it listens").port()
}

/// The container's shell text.
fn script(manifest: &str) -> String {
    let block = manifest.lines().skip_while(|line| !line.ends_with("- |")).skip(1);
    let mut block = block.peekable();
    let margin =
        block.peek().expect("a text").len() - block.peek().expect("a text").trim_start().len();
    let inside = block.take_while(|line| line.len() - line.trim_start().len() >= margin);
    inside.map(|line| format!("{}\n", line.trim_start())).collect()
}

/// The container's variables; those from secrets have no value.
fn environment(manifest: &str) -> Vec<(String, String)> {
    let lines: Vec<&str> = manifest.lines().map(str::trim).collect();
    let begin = lines.iter().position(|line| *line == "env:").expect("an environment");
    let end = lines.iter().position(|line| line.starts_with("image:")).expect("an image");
    let mut found: Vec<(String, String)> = Vec::new();
    for line in &lines[begin..end] {
        if let Some(name) = line.strip_prefix("- name: ") {
            found.push((name.to_string(), String::new()));
        } else if let Some(value) = line.strip_prefix("value: ") {
            found.last_mut().expect("a name").1 = value.trim_matches('"').to_string();
        }
    }
    found
}

fn has_checkpoint(out: &Path) -> bool {
    let entries = fs::read_dir(out.join("checkpoints")).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name()).any(|name| name.to_string_lossy().starts_with("step-"))
}

fn model(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("final.safetensors")).expect("a model")
}

/// The run as if nothing had happened.
fn undisturbed(container: &Container) -> Vec<u8> {
    let words = "train run.toml --set workers=2 --set task.compute_ms=0 --threads -q --out whole";
    let mut command = Command::new(QUELEA);
    let ran = command.args(words.split(' ')).current_dir(container.place.path()).status();
    assert!(ran.expect("it starts").success());
    model(&container.path("whole"))
}

fn resumed_from(container: &Container) -> Option<u64> {
    let summary = fs::read(container.out().join("summary.json")).expect("a summary");
    let summary: Value = serde_json::from_slice(&summary).expect("JSON");
    summary["resumed_from_step"].as_u64()
}

#[test]
fn pods_of_a_job_answer_probes_are_saved_by_sigterm_and_resume() {
    let container = Container::of("job", "job.yaml");
    let start = |index: &str| container.start(&[("JOB_COMPLETION_INDEX", index)]);
    let mut first = start("0");
    first.await_probe("/healthz", 200);
    assert_eq!(first.probe("/readyz"), Some(503), "it waits for the other: {}", first.told());
    let mut second = start("1");
    first.await_probe("/readyz", 200);
    second.await_probe("/readyz", 200);
    until("a checkpoint", || has_checkpoint(&container.out()));

    // A node is drained: the cluster takes its pods away, and starts others elsewhere.
    first.terminate();
    assert_eq!(first.end().code(), Some(130), "{}", first.told());
    assert!(first.told().contains("interrupted; saving the run"), "{}", first.told());
    let ended = second.end();
    assert!(!ended.success() && ended.code() != Some(2), "{ended}: {}", second.told());
    assert!(!container.out().join("summary.json").exists());

    let (mut first, mut second) = (start("0"), start("1"));
    assert!(first.end().success(), "{}", first.told());
    assert!(second.end().success(), "{}", second.told());
    assert!(first.told().contains("resuming from step"), "{}", first.told());
    assert!(resumed_from(&container) >= Some(10));
    assert_eq!(model(&container.out()), undisturbed(&container), "the interruption cannot be seen");

    // A pod that is started once more has nothing to do.
    assert!(start("0").end().success());
}

#[test]
fn a_coordinator_that_is_replaced_resumes_and_workers_join_again() {
    let coordinator = Container::of("elastic", "coordinator.yaml");
    let place = format!("127.0.0.1:{}", coordinator.rendezvous);
    let mut coordinator = coordinator;
    coordinator.script =
        coordinator.script.replace("--bind 0.0.0.0:29470", &format!("--bind {place}"));
    let manifest = fs::read_to_string(coordinator.path("manifests/workers.yaml")).expect("written");
    assert!(manifest.contains("- join\n"), "{manifest}");
    // The StatefulSet's container runs the program without a shell; a pod that has ended is started again.
    let worker = || {
        let health = free_port();
        let log = coordinator.path(&format!("worker-{health}.log"));
        let file = fs::File::create(&log).expect("made");
        let mut command = Command::new(QUELEA);
        command.args(["join", &place, "--wait", "600"]).stderr(file);
        command.env("QUELEA_HEALTH", health.to_string());
        command.env("QUELEA_SECRET", "0123456789012345678901");
        Pod { child: command.spawn().expect("it starts"), health, log }
    };
    let mut serve = coordinator.start(&[]);
    let mut workers = [worker(), worker()];
    workers.iter_mut().for_each(|worker| worker.await_probe("/healthz", 200));
    workers.iter_mut().for_each(|worker| worker.await_probe("/readyz", 200));
    serve.await_probe("/readyz", 200);
    until("a checkpoint", || has_checkpoint(&coordinator.out()));
    serve.terminate();
    assert_eq!(serve.end().code(), Some(130), "{}", serve.told());
    workers.iter_mut().for_each(|worker| {
        worker.end();
    });

    let mut serve = coordinator.start(&[]);
    let mut workers = [worker(), worker()];
    assert!(serve.end().success(), "{}", serve.told());
    for worker in &mut workers {
        assert!(worker.end().success(), "{}", worker.told());
    }
    assert!(resumed_from(&coordinator) >= Some(10));
    assert_eq!(model(&coordinator.out()), undisturbed(&coordinator));
}
