//! `cargo xtask bench reality`: predicted against measured time per step on real, shaped links.
//!
//! Five hosts in network namespaces hang on one bridge (four for workers, one for the coordinator
//! with its servers), every link shaped by a token bucket in both directions. First the links are
//! measured by `quelea plan --measure`, and the cost of handing over a vector by a run;
//! then each algorithm is predicted with them in the virtual cluster and run over TCP.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::network::{Kept, ScratchFolder, ShapedNetwork, address};
use crate::{execute, output};

const ALGORITHMS: [&str; 5] = ["allreduce", "d-psgd", "ad-psgd", "aladdin", "sync-ps"];
/// Megabits per second.
const RATES: [u32; 2] = [1000, 100];
/// Hosts with workers; one more coordinates.
pub(crate) const WORKER_HOSTS: usize = 4;
pub(crate) const HOSTS: usize = WORKER_HOSTS + 1;
const STEPS: u64 = 12;
/// Names the folder of Fashion-MNIST, if it does not lie where `quelea data get` puts it.
pub(crate) const DATA_FOLDER: &str = "QUELEA_FASHION";
const PORT: u16 = 29_470;
/// 25 MB.
const DIMENSIONS: usize = 6_250_000;
/// Models travel in so many parts: streams share a link fairly, and whole models would arrive all
/// at once instead of one after the other, as in the virtual cluster.
const BUCKETS: f64 = 10.0;
const COMPUTE_MS: f64 = 300.0;

/// Measures everything; one row per algorithm and rate.
pub(crate) fn measure(quelea: &Path) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for rate in RATES {
        let network = ShapedNetwork::new(HOSTS, rate)?;
        let link = network.links(quelea, Workers::one_per_host())?;
        if rate == RATES[0] {
            for row in
                [overlap(&network, quelea, &link)?, network_overlap(&network, quelea, &link)?]
            {
                println!("  {row}");
                rows.push(row);
            }
        }
        println!(
            "  {rate} Mbit/s: a stream reaches {:.1} MB/s, a server {:.1} MB/s; a step costs a worker {:.1} ms",
            link.stream / 1e6,
            link.incast / 1e6,
            link.handoff_ms
        );
        for algorithm in ALGORITHMS {
            let row = compare(&network, quelea, algorithm, &link)?;
            println!("  {row}");
            rows.push(row);
        }
    }
    Ok(rows)
}

/// Where the workers of a run are: on the first hosts. The last host coordinates.
#[derive(Clone, Copy)]
pub(crate) struct Workers {
    pub(crate) hosts: usize,
    pub(crate) per_host: usize,
}

impl Workers {
    fn one_per_host() -> Workers {
        Workers { hosts: WORKER_HOSTS, per_host: 1 }
    }

    fn count(self) -> usize {
        self.hosts * self.per_host
    }
}

/// What was measured before anything is predicted.
pub(crate) struct Link {
    /// Bytes per second of one stream, and into a host that all others send to.
    pub(crate) stream: f64,
    incast: f64,
    /// Bytes per second between workers of one host, where there are several.
    pub(crate) inside: Option<f64>,
    /// What a step costs a worker beside computing and the wire.
    handoff_ms: f64,
}

/// How much faster an all-reduce is whose buckets leave during the backward pass than the same with
/// one bucket: predicted against measured.
fn overlap(network: &ShapedNetwork, quelea: &Path, link: &Link) -> Result<Value> {
    let times = |bucket_mb: &str| -> Result<Pair> {
        let mut settings = settings("allreduce");
        settings.push(format!("buckets.size_mb={bucket_mb}"));
        let measured = network.run(quelea, &settings, Workers::one_per_host())?;
        let buckets = if bucket_mb == "0" { 1.0 } else { BUCKETS };
        settings.extend([
            format!("cluster.bandwidth_gbps={}", link.stream * 8e-9),
            format!("cluster.compute_ms={COMPUTE_MS}"),
            format!("cluster.collective_fixed_us={}", link.handoff_ms * 1e3 / buckets),
            "cluster.latency_us=100".to_string(),
        ]);
        Ok(Pair { predicted: simulate(quelea, &settings)?, measured })
    };
    let (one, many) = (times("0")?, times("2.5")?);
    let (predicted, measured) = (one.predicted / many.predicted, one.measured / many.measured);
    Ok(json!({
        "name": format!("allreduce, gain of overlapping, {} Mbit/s", network.rate),
        "ratio": predicted / measured,
        "goal": "0.85 to 1.15",
        "predicted_gain": predicted,
        "measured_gain": measured,
    }))
}

/// The same for a network of the engine, whose backward pass says when a bucket is final: two workers,
/// one for each core of this machine. What a gradient takes is measured with one worker alone.
fn network_overlap(network: &ShapedNetwork, quelea: &Path, link: &Link) -> Result<Value> {
    let workers = |workers: usize, bucket_mb: &str| {
        let mut settings = network_settings();
        settings.extend([format!("workers={workers}"), format!("buckets.size_mb={bucket_mb}")]);
        settings
    };
    let compute_ms = processes(quelea, &workers(1, "0"))? * 1e3;
    let times = |bucket_mb: &str| -> Result<Pair> {
        let mut settings = workers(2, bucket_mb);
        let measured = network.run(quelea, &settings, Workers { hosts: 2, per_host: 1 })?;
        settings.extend([
            format!("cluster.bandwidth_gbps={}", link.stream * 8e-9),
            format!("cluster.compute_ms={compute_ms}"),
            "cluster.latency_us=100".to_string(),
        ]);
        Ok(Pair { predicted: simulate(quelea, &settings)?, measured })
    };
    let (one, many) = (times("0")?, times("1")?);
    let (predicted, measured) = (one.predicted / many.predicted, one.measured / many.measured);
    Ok(json!({
        "name": format!("allreduce of fashion-cnn, gain of overlapping, {} Mbit/s", network.rate),
        "ratio": predicted / measured,
        "goal": "0.85 to 1.15",
        "predicted_gain": predicted,
        "measured_gain": measured,
        "compute_ms": compute_ms,
        "one_bucket_ms": one.measured * 1e3,
        "overlapped_ms": many.measured * 1e3,
    }))
}

/// A run of the network.
fn network_settings() -> Vec<String> {
    let mut settings: Vec<String> = [
        "algorithm.name=allreduce",
        "steps=12",
        "evaluations=0",
        "task.name=fashion-cnn",
        "task.batch=128",
        "optimizer.lr=0.01",
    ]
    .map(String::from)
    .into();
    if let Ok(folder) = std::env::var(DATA_FOLDER) {
        settings.push(format!("task.data={folder}"));
    }
    settings
}

/// Seconds of a step.
struct Pair {
    predicted: f64,
    measured: f64,
}

fn compare(network: &ShapedNetwork, quelea: &Path, algorithm: &str, link: &Link) -> Result<Value> {
    let mut predicting = settings(algorithm);
    let measured = network.run(quelea, &predicting, Workers::one_per_host())?;
    let has_servers = ["aladdin", "sync-ps"].contains(&algorithm);
    let bandwidth = if has_servers { link.incast } else { link.stream };
    // ALADDIN takes its displacement over at every step, whether it is sent or folded.
    let (inside_ms, sent_ms) = match algorithm {
        "aladdin" => (link.handoff_ms, 0.0),
        _ => (0.0, link.handoff_ms),
    };
    let handoff_us = sent_ms * 1e3 / BUCKETS;
    predicting.extend([
        format!("cluster.bandwidth_gbps={}", bandwidth * 8e-9),
        format!("cluster.compute_ms={}", COMPUTE_MS + inside_ms),
        format!("cluster.handoff_send_us={handoff_us}"),
        format!("cluster.collective_fixed_us={handoff_us}"),
        "cluster.latency_us=100".to_string(),
    ]);
    let predicted = simulate(quelea, &predicting)?;
    Ok(json!({
        "name": format!("{algorithm}, {} Mbit/s", network.rate),
        "ratio": predicted / measured,
        "goal": "0.85 to 1.15",
        "predicted_ms": predicted * 1e3,
        "measured_ms": measured * 1e3,
    }))
}

/// A run of this algorithm with a worker on every host.
pub(crate) fn settings(algorithm: &str) -> Vec<String> {
    vec![
        format!("algorithm.name={algorithm}"),
        format!("workers={WORKER_HOSTS}"),
        format!("steps={STEPS}"),
        "evaluations=0".into(),
        "task.name=quadratic".into(),
        format!("task.dimensions={DIMENSIONS}"),
        format!("task.compute_ms={COMPUTE_MS}"),
        "optimizer.lr=0.01".into(),
        format!("buckets.size_mb={}", 4.0 * DIMENSIONS as f64 / 1e6 / BUCKETS),
        "topology.name=ring".into(),
    ]
}

fn arguments(command: &mut Command, settings: &[String]) {
    for setting in settings {
        command.arg("--set").arg(setting);
    }
}

/// Seconds of a step, by the summary that a run prints.
fn step_seconds(summary: &str) -> Result<f64> {
    let summary: Value = serde_json::from_str(summary)?;
    let clock = summary["clock_seconds"].as_f64().context("a summary has a clock")?;
    Ok(clock / STEPS as f64)
}

/// Seconds of a step in the virtual cluster.
pub(crate) fn simulate(quelea: &Path, settings: &[String]) -> Result<f64> {
    let folder = ScratchFolder::new("simulated")?;
    let mut command = Command::new(quelea);
    command.args(["simulate", "--json", "-q", "--out"]).arg(folder.path.join("run"));
    arguments(&mut command, settings);
    step_seconds(&output(&mut command)?)
}

/// Seconds of a step in processes of this machine, over links that nothing slows down.
pub(crate) fn processes(quelea: &Path, settings: &[String]) -> Result<f64> {
    let folder = ScratchFolder::new("processes")?;
    let mut command = Command::new(quelea);
    command.args(["train", "--processes", "--json", "-q", "--out"]).arg(folder.path.join("run"));
    arguments(&mut command, settings);
    step_seconds(&output(&mut command)?)
}

/// Milliseconds that a step costs a worker beside computing and the wire: one worker and its
/// server on this machine, whose pushes nobody waits for.
fn handoff(quelea: &Path) -> Result<f64> {
    let mut settings = settings("aladdin");
    settings.push("workers=1".into());
    Ok((processes(quelea, &settings)? * 1e3 - COMPUTE_MS).max(0.0))
}

/// Sizes of the ALADDIN slides: a name, parameters, milliseconds of a gradient.
const SIZES: [(&str, usize, f64); 2] =
    [("ResNet-50", 23_000_000, 1050.0), ("VGG-16", 128_000_000, 957.0)];

/// What ALADDIN takes a worker per step beside computing, for models of the papers' sizes.
pub(crate) fn handoffs(quelea: &Path) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for (name, parameters, compute_ms) in SIZES {
        let folder = ScratchFolder::new("handoff")?;
        let run = folder.path.join("run");
        let mut command = Command::new(quelea);
        command.args(["train", "--processes", "-q", "--out"]).arg(&run);
        let more = [
            "workers=1".to_string(),
            "buckets.size_mb=0".into(),
            format!("task.dimensions={parameters}"),
            format!("task.compute_ms={compute_ms}"),
        ];
        arguments(&mut command, &[settings("aladdin"), more.to_vec()].concat());
        output(&mut command)?;
        let median_ms = median_exposed(&run.join("records.jsonl"))? * 1e3;
        rows.push(json!({
            "name": format!("hand-off of {name}"),
            "ratio": median_ms / compute_ms,
            "median_ms": median_ms,
            "ns_per_byte": median_ms * 1e6 / (4.0 * parameters as f64),
        }));
    }
    Ok(rows)
}

/// The median of what steps exposed; the first two make the memory.
fn median_exposed(records: &Path) -> Result<f64> {
    let mut exposed = Vec::new();
    for line in std::fs::read_to_string(records)?.lines() {
        let record: Value = serde_json::from_str(line)?;
        if record["kind"] == "step" {
            exposed.extend(record["exposed"].as_f64());
        }
    }
    let mut exposed = exposed.split_off(2.min(exposed.len()));
    exposed.sort_by(f64::total_cmp);
    exposed.get(exposed.len() / 2).copied().context("the run has steps")
}

impl ShapedNetwork {
    /// What `plan --measure` finds with these workers; the last host asks them.
    pub(crate) fn links(&self, quelea: &Path, workers: Workers) -> Result<Link> {
        let place = format!("{}:{PORT}", address(WORKER_HOSTS));
        let mut plan = self.inside(WORKER_HOSTS);
        plan.arg(quelea).args(["plan", "--measure", "--listen", &place, "--wait", "60", "--json"]);
        plan.arg("--insecure");
        let count = workers.count().to_string();
        plan.args(["-n", &count, "--parameters", &DIMENSIONS.to_string()]);
        plan.args(["--compute-ms", &COMPUTE_MS.to_string()]).stdout(Stdio::piped());
        let plan: Value = serde_json::from_str(&self.with_workers(quelea, plan, workers)?)?;
        let mean = |list: &str, field: &str| -> Result<f64> {
            let items = plan["measured"][list].as_array().context("a list of what was measured")?;
            let values: Vec<f64> = items.iter().filter_map(|item| item[field].as_f64()).collect();
            Ok(values.iter().sum::<f64>() / values.len() as f64)
        };
        let to_all = mean("hosts", "outgoing_bytes_per_second")?;
        let from_all = mean("hosts", "incoming_bytes_per_second")?;
        Ok(Link {
            stream: mean("pairs", "bytes_per_second")?,
            incast: to_all.min(from_all),
            inside: mean("hosts", "internal_bytes_per_second").ok().filter(|rate| rate.is_finite()),
            handoff_ms: handoff(quelea)?,
        })
    }

    /// Seconds of a step of a configuration, with these workers; the last host
    /// coordinates.
    pub(crate) fn run(&self, quelea: &Path, settings: &[String], workers: Workers) -> Result<f64> {
        let folder = ScratchFolder::new("measured")?;
        let place = format!("{}:{PORT}", address(WORKER_HOSTS));
        let mut serve = self.inside(WORKER_HOSTS);
        serve.arg(quelea).args(["serve", "--bind", &place, "--wait", "60", "--json", "-q"]);
        serve.arg("--insecure");
        serve.arg("--out").arg(folder.path.join("run")).stdout(Stdio::piped());
        arguments(&mut serve, settings);
        step_seconds(&self.with_workers(quelea, serve, workers)?)
    }

    /// Lets workers join a command of the last host; what that prints.
    fn with_workers(
        &self,
        quelea: &Path,
        mut command: Command,
        workers: Workers,
    ) -> Result<String> {
        let place = format!("{}:{PORT}", address(WORKER_HOSTS));
        let command = Kept(command.spawn()?);
        let mut joined = Vec::new();
        for rank in 0..workers.count() {
            let mut join = self.inside(rank / workers.per_host);
            join.arg(quelea).args(["join", &place, "--wait", "60", "-q", "--insecure", "--rank"]);
            join.arg(rank.to_string());
            if let Ok(folder) = std::env::var(DATA_FOLDER) {
                join.args(["--data", &folder]);
            }
            joined.push(Kept(join.spawn()?));
        }
        let printed = command.finish()?;
        for worker in joined {
            worker.finish()?;
        }
        Ok(printed)
    }
}

/// The program that is measured: of this working tree, built for speed.
pub(crate) fn program() -> Result<PathBuf> {
    if let Some(path) = std::env::var_os("QUELEA_BIN") {
        return Ok(path.into());
    }
    execute(crate::cargo().args(["build", "--release", "-q", "-p", "quelea-cli"]))?;
    let own = std::env::current_exe()?;
    let folder = own.parent().and_then(Path::parent).context("xtask lies in a target folder")?;
    Ok(folder.join("release/quelea"))
}
