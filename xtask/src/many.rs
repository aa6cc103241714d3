//! `cargo xtask bench many`: as many processes as this machine carries, each one worker of a tiny model: how long they
//! take to start, what each holds, and what the one that coordinates spends.

use std::collections::BTreeSet;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::reality;

pub(crate) const NAME: &str = "many";
pub(crate) const WHAT: &str =
    "64 and 256 processes of a tiny model on one machine: start, memory, files, the controller";

const PROCESSES: [usize; 2] = [64, 256];
/// How long a start may take.
const PATIENCE: Duration = Duration::from_secs(120);
/// What is not measured at the beginning of a run, and how long it is measured then.
const SETTLE: Duration = Duration::from_secs(3);
const SPAN: Duration = Duration::from_secs(15);
/// Ticks of the clock of `/proc/PID/stat` in a second.
const TICKS: f64 = 100.0;

pub(crate) fn measure() -> Result<Vec<Value>> {
    let program = reality::program()?;
    let mut rows = Vec::new();
    for workers in PROCESSES {
        for transport in ["tcp", "auto"] {
            rows.push(measure_run(&program, workers, transport)?);
        }
    }
    Ok(rows)
}

/// A run that is ended when this is dropped.
struct Running {
    child: Child,
    folder: PathBuf,
}

impl Drop for Running {
    fn drop(&mut self) {
        // Its processes end with their parent.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn measure_run(program: &Path, workers: usize, transport: &str) -> Result<Value> {
    let folder = std::env::temp_dir().join(format!("quelea-many-{}", std::process::id()));
    let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let mut command = Command::new(program);
    command.args(["train", "--processes", "--quiet", "--transport", transport]);
    command.args(["--health", &format!("127.0.0.1:{port}")]);
    for setting in [
        format!("workers={workers}"),
        "steps=100000".into(),
        "task.name=quadratic".into(),
        "task.compute_ms=1000".into(),
        "algorithm.name=d-psgd".into(),
        "topology.name=ring".into(),
        "evaluations=1".into(),
    ] {
        command.args(["--set", &setting]);
    }
    command.arg("--out").arg(&folder).arg("--force").stdout(Stdio::null());
    let begun = Instant::now();
    let child = command.spawn().context("the program does not start")?;
    let mut running = Running { child, folder };
    while !is_ready(port) {
        if let Some(status) = running.child.try_wait()? {
            bail!("{workers} processes over {transport}: the run has ended with {status}");
        }
        if begun.elapsed() > PATIENCE {
            bail!("{workers} processes over {transport}: not started after {PATIENCE:?}");
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let start_seconds = begun.elapsed().as_secs_f64();
    std::thread::sleep(SETTLE);
    let coordinator = running.child.id();
    let (before, at) = (cpu_seconds(coordinator)?, Instant::now());
    std::thread::sleep(SPAN);
    let controller = (cpu_seconds(coordinator)? - before) / at.elapsed().as_secs_f64();
    let members = descendants(coordinator)?;
    let mut megabytes: Vec<f64> =
        members.iter().filter_map(|pid| private_megabytes(*pid)).collect();
    let mut files: Vec<f64> = members.iter().filter_map(|pid| open_files(*pid)).collect();
    if megabytes.len() != workers || files.len() != workers {
        bail!("{workers} processes over {transport}: {} were seen", megabytes.len());
    }
    Ok(json!({
        "name": format!("{workers} processes, {transport}"),
        "goal": "start < 20 s, < 12 MB each, controller < 0.1 of a core",
        "start seconds": start_seconds,
        "MB, median": median(&mut megabytes),
        "MB, most": megabytes.last(),
        "files, median": median(&mut files),
        "controller, cores": controller,
    }))
}

/// Whether the run has begun.
fn is_ready(port: u16) -> bool {
    let ask = || -> Option<String> {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
        write!(stream, "GET /readyz HTTP/1.0\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        Some(answer)
    };
    ask().is_some_and(|answer| answer.starts_with("HTTP/1.0 200"))
}

/// Seconds of processor time of a process, its threads included.
fn cpu_seconds(pid: u32) -> Result<f64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    // The name of the program, in parentheses, may hold anything.
    let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
    let fields: Vec<&str> = rest.split_whitespace().collect();
    let ticks = |place: usize| fields.get(place).and_then(|field| field.parse::<f64>().ok());
    let (user, system) = (ticks(11).context("no time")?, ticks(12).context("no time")?);
    Ok((user + system) / TICKS)
}

/// All processes below one.
fn descendants(pid: u32) -> Result<Vec<u32>> {
    let mut found: BTreeSet<u32> = [pid].into();
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(child) = entry.file_name().to_string_lossy().parse::<u32>().ok() else { continue };
        // One that has ended meanwhile is not there.
        let Ok(stat) = fs::read_to_string(format!("/proc/{child}/stat")) else { continue };
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        let parent = rest.split_whitespace().nth(1).and_then(|parent| parent.parse::<u32>().ok());
        parents.extend(parent.map(|parent| (child, parent)));
    }
    let mut known = 0;
    while known < found.len() {
        known = found.len();
        found.extend(
            parents
                .iter()
                .filter(|(_, parent)| found.contains(parent))
                .map(|(child, _)| *child)
                .collect::<Vec<_>>(),
        );
    }
    found.remove(&pid);
    Ok(found.into_iter().collect())
}

/// What a process holds, where pages that it shares with others are divided among them.
fn private_megabytes(pid: u32) -> Option<f64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = rollup.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    Some(line.split_whitespace().next()?.parse::<f64>().ok()? * 1024.0 / 1e6)
}

fn open_files(pid: u32) -> Option<f64> {
    Some(fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as f64)
}

/// The one in the middle; they are in order then.
fn median(numbers: &mut [f64]) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_measured_with_those_below_it() {
        let mut child = Command::new("sleep").arg("60").spawn().expect("it starts");
        let below = descendants(std::process::id()).expect("/proc is there");
        let is_seen = below.contains(&child.id());
        let files = open_files(child.id());
        child.kill().and_then(|()| child.wait()).expect("it ends");
        assert!(is_seen, "{below:?}");
        assert!(files.is_some_and(|files| files >= 3.0), "{files:?}");
        assert!(cpu_seconds(std::process::id()).expect("it runs") >= 0.0);
        assert!(private_megabytes(std::process::id()).expect("it runs") > 0.1);
    }
}
