//! `cargo xtask bench peers`: steps of a PyTorch model under quelea, DDP over gloo and Decent-DP.
//!
//! The same script (`crates/quelea-py/benches/peers.py`) runs once for every rank and lets the
//! contestants take turns, in several rounds; a ratio is the median over the rounds. Ranks are
//! processes on this machine, or hosts in network namespaces with shaped links. Sharded models, unequal machines and
//! process groups have scripts of their own.

mod scripts;

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::network::{self, Kept, ScratchFolder, ShapedNetwork, address};
use crate::{environment, python};

pub(crate) const NAME: &str = "peers";
pub(crate) const WHAT: &str = "steps under PyTorch against DDP over gloo and Decent-DP";
/// What can be asked for alone, as `peers-PART`.
pub(crate) const PARTS: [&str; 8] =
    ["wrap", "c10d", "loopback", "1gbit", "hsdp", "balance", "slow", "100mbit"];

/// The peer, and what it imports beside PyTorch.
const PACKAGES: [&str; 2] = ["decent-dp==0.2.3", "loguru==0.7.3"];
/// Contestants of which nobody waits for anybody.
const FREE: [&str; 2] = ["aladdin", "ad-psgd"];
const HOSTS: usize = 4;
const PORT: u16 = 29_470;
const COMPUTE_MS: f64 = 300.0;
/// How long the processes of one scene may take in all.
pub(crate) const LIMIT: Duration = Duration::from_secs(420);

/// How the connections of quelea's processes are made; gloo's are always plain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wire {
    Plain,
    Tls,
}

impl Wire {
    /// What a process is told of it. The secret of a benchmark need not be one.
    fn variable(self) -> (&'static str, &'static str) {
        match self {
            Wire::Plain => ("QUELEA_INSECURE", "1"),
            Wire::Tls => ("QUELEA_SECRET", "a-secret-of-a-benchmark-that-everybody-may-know"),
        }
    }

    /// What the name of a row says of it.
    fn suffix(self) -> &'static str {
        if self == Wire::Tls { ", TLS" } else { "" }
    }
}

/// Measures the parts that are asked for; a row for each ratio.
pub(crate) fn measure(parts: &[&str], wire: Wire) -> Result<Vec<Value>> {
    let tools = Tools { wire, ..Tools::provide("peers.py")? };
    let mut rows = Vec::new();
    for part in PARTS.iter().filter(|part| parts.contains(part)) {
        let of_part = match *part {
            "wrap" => overhead(&tools),
            "c10d" => scripts::process_groups(wire),
            "loopback" => loopback(&tools),
            "hsdp" => scripts::hsdp(wire),
            "balance" => scripts::balance(wire),
            "1gbit" => shaped(&tools, 1000),
            "slow" => slow(&tools),
            _ => shaped(&tools, 100),
        };
        // Minutes of other parts must not be lost with one.
        let of_part = of_part.unwrap_or_else(|problem| {
            println!("  {part} failed: {problem:#}");
            vec![json!({ "name": format!("{part} failed") })]
        });
        of_part.iter().for_each(|row| println!("  {row}"));
        rows.extend(of_part);
    }
    Ok(rows)
}

/// What every process needs.
pub(crate) struct Tools {
    python: PathBuf,
    /// For `PYTHONPATH`.
    path: std::ffi::OsString,
    script: PathBuf,
    wire: Wire,
}

impl Tools {
    /// With a script of the binding's benches.
    pub(crate) fn provide(script: &str) -> Result<Tools> {
        let python = environment::provide()?;
        let peer = environment::provide_beside(&python, &PACKAGES)?;
        let own = match std::env::var_os("QUELEA_PY") {
            Some(folder) => folder.into(),
            None => python::release()?,
        };
        let path = std::env::join_paths([own, peer])?;
        let script = python::root().join("crates/quelea-py/benches").join(script);
        Ok(Tools { python, path, script, wire: Wire::Plain })
    }

    /// A process: `prefix` may put it on another host.
    fn process(&self, mut prefix: Command, plan: &Value) -> Command {
        prefix.arg("-u").arg(&self.script).arg(plan.to_string());
        prefix.env("PYTHONPATH", &self.path).env("PYTHONDONTWRITEBYTECODE", "1");
        prefix.env("CUDA_VISIBLE_DEVICES", "");
        let (name, value) = self.wire.variable();
        prefix.env_remove("QUELEA_SECRET").env_remove("QUELEA_INSECURE").env(name, value);
        prefix
    }
}

fn overhead(tools: &Tools) -> Result<Vec<Value>> {
    let plan = json!({
        "kind": "overhead", "batch": 32, "algorithm": "allreduce", "rounds": 80, "warm": 10,
        "limit_seconds": LIMIT.as_secs(),
    });
    let process = tools.process(Command::new(&tools.python), &plan);
    let lines = JsonLines(finish(vec![process])?);
    let series = |name| lines.series(false, |line| line["name"] == name);
    Ok(vec![row("wrap, one process, ResNet-20", Some(1.02), &series("wrapped"), &series("plain"))])
}

/// A contestant's turn in every round.
struct PeerTurn {
    name: &'static str,
    compute_ms: f64,
    /// How much slower the last host is.
    slow: u32,
    warm: u32,
    steps: u32,
}

impl PeerTurn {
    fn to_json(&self) -> Value {
        let PeerTurn { name, compute_ms, slow, warm, steps } = self;
        json!({ "name": name, "compute_ms": compute_ms, "slow": slow, "warm": warm, "steps": steps })
    }
}

fn loopback(tools: &Tools) -> Result<Vec<Value>> {
    let mut rows = Vec::new();
    for processes in [2, 4] {
        let mut turns = Vec::new();
        for (compute_ms, steps) in [(0.0, 20), (COMPUTE_MS, 5)] {
            let turn = |name| PeerTurn { name, compute_ms, slow: 1, warm: 3, steps };
            turns.extend(["ddp", "allreduce", "decent-dp", "gossip"].map(turn));
        }
        let lines = run(tools, Place::Here(processes), 5, &turns)?;
        for (compute_ms, what) in [(0.0, "no compute"), (COMPUTE_MS, "300 ms compute")] {
            let series = |name: &str| lines.of(name, 1, |line| line["compute_ms"] == compute_ms);
            let wire = tools.wire.suffix();
            let place = format!("loopback, {processes} processes, {what}{wire}");
            rows.extend(against_peers(&place, Some(1.0), series));
        }
    }
    Ok(rows)
}

fn against_peers(place: &str, goal: Option<f64>, series: impl Fn(&str) -> Vec<f64>) -> Vec<Value> {
    [("allreduce", "ddp"), ("gossip", "decent-dp")]
        .map(|(ours, theirs)| {
            let name = format!("{ours} to {theirs}, {place}");
            row(&name, goal, &series(ours), &series(theirs))
        })
        .to_vec()
}

fn shaped(tools: &Tools, rate: u32) -> Result<Vec<Value>> {
    // A link of 100 Mbit/s does not carry the model in the time of a step: all take seconds there.
    let fast = rate >= 1000;
    let (rounds, warm, steps) = if fast { (4, 2, 8) } else { (3, 1, 2) };
    let turn = |name| PeerTurn { name, compute_ms: COMPUTE_MS, slow: 1, warm, steps };
    let mut turns: Vec<PeerTurn> = ["ddp", "allreduce", "decent-dp", "gossip"].map(turn).into();
    if fast {
        turns.extend(["alone", "aladdin", "ad-psgd"].map(turn));
    }
    let lines = run(tools, Place::Hosts(Hosts::single(rate)), rounds, &turns)?;
    let series = |name: &str| lines.of(name, 1, |_| true);
    let place = format!("{rate} Mbit/s{}", tools.wire.suffix());
    let mut rows = against_peers(&place, Some(1.0), series);
    if fast {
        for (name, goal) in [("gossip", Some(1.05)), ("aladdin", Some(1.05)), ("ad-psgd", None)] {
            let what = format!("{name} to one process alone, {place}");
            rows.push(row(&what, goal, &series(name), &series("alone")));
        }
    }
    Ok(rows)
}

/// One host two and ten times slower than the others.
fn slow(tools: &Tools) -> Result<Vec<Value>> {
    let mut turns = Vec::new();
    for slow in [1, 2, 10] {
        let free = |name| PeerTurn { name, compute_ms: COMPUTE_MS, slow, warm: 2, steps: 10 };
        turns.extend(FREE.map(free));
        if slow > 1 {
            // Whoever is ahead at first waits only after some steps.
            let (warm, steps) = if slow == 2 { (3, 8) } else { (1, 2) };
            let turn = |name| PeerTurn { name, compute_ms: COMPUTE_MS, slow, warm, steps };
            turns.extend(["ddp", "allreduce", "decent-dp", "gossip"].map(turn));
        }
    }
    let lines = run(tools, Place::Hosts(Hosts::single(1000)), 3, &turns)?;
    let mut rows = Vec::new();
    for slow in [2, 10] {
        let place = format!("one host {slow} times slower{}", tools.wire.suffix());
        let others = |line: &Value| line["rank"].as_u64() != Some(HOSTS as u64 - 1);
        for name in FREE {
            let what = format!("{name} to undisturbed, {place}");
            let (disturbed, calm) = (lines.of(name, slow, others), lines.of(name, 1, others));
            rows.push(row(&what, Some(1.05), &disturbed, &calm));
        }
        // Everybody waits for the slow one, whoever exchanges.
        rows.extend(against_peers(&place, None, |name| lines.of(name, slow, |_| true)));
    }
    Ok(rows)
}

/// Where the ranks are.
pub(crate) enum Place {
    /// So many processes on this machine.
    Here(usize),
    /// Hosts in network namespaces.
    Hosts(Hosts),
}

/// Hosts with shaped links.
#[derive(Clone, Copy)]
pub(crate) struct Hosts {
    /// Of every link, in megabits per second.
    pub(crate) rate: u32,
    pub(crate) hosts: usize,
    /// On each host.
    pub(crate) ranks: usize,
}

impl Hosts {
    /// Four of them, with one rank each.
    pub(crate) fn single(rate: u32) -> Hosts {
        Hosts { rate, hosts: HOSTS, ranks: 1 }
    }
}

fn run(tools: &Tools, place: Place, rounds: u32, turns: &[PeerTurn]) -> Result<JsonLines> {
    let turns: Vec<Value> = turns.iter().map(PeerTurn::to_json).collect();
    let limit = LIMIT.as_secs();
    let plan = json!({ "kind": "peers", "limit_seconds": limit, "rounds": rounds, "turns": turns });
    Ok(JsonLines(run_plan(tools, &place, &plan)?))
}

/// Runs the script with this plan at every rank; the lines that the ranks printed.
pub(crate) fn run_plan(tools: &Tools, place: &Place, plan: &Value) -> Result<Vec<Value>> {
    let (world, local_world, network) = match *place {
        Place::Here(processes) => (processes, processes, None),
        Place::Hosts(Hosts { rate, hosts, ranks }) => {
            (hosts * ranks, ranks, Some(ShapedNetwork::new(hosts, rate)?))
        }
    };
    let (master, port) = match network {
        None => ("127.0.0.1".to_string(), free_ports()?),
        Some(_) => (address(0), PORT),
    };
    let mut processes = Vec::new();
    for rank in 0..world {
        let host = rank / local_world;
        let (prefix, device) = match &network {
            None => (Command::new(&tools.python), "lo"),
            Some(network) => {
                let mut inside = network.inside(host);
                // They have one kernel: without these, quelea would take them for one machine.
                inside.env("QUELEA_NODE", format!("host-{host}")).env("QUELEA_TRANSPORT", "tcp");
                inside.arg(&tools.python);
                (inside, "eth0")
            }
        };
        let mut process = tools.process(prefix, plan);
        process.env("RANK", rank.to_string()).env("WORLD_SIZE", world.to_string());
        process.env("LOCAL_RANK", (rank % local_world).to_string());
        process.env("LOCAL_WORLD_SIZE", local_world.to_string());
        process.env("MASTER_ADDR", &master).env("MASTER_PORT", port.to_string());
        process.env("GLOO_SOCKET_IFNAME", device).env("OMP_NUM_THREADS", "1");
        processes.push(process);
    }
    finish(processes)
}

/// A port that is free, and the next one too: quelea meets there.
fn free_ports() -> Result<u16> {
    for _ in 0..100 {
        let first = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        if first < u16::MAX && TcpListener::bind(("127.0.0.1", first + 1)).is_ok() {
            return Ok(first);
        }
    }
    anyhow::bail!("there are no two free ports in a row")
}

/// Runs the processes to their end; returns the lines that they printed.
fn finish(processes: Vec<Command>) -> Result<Vec<Value>> {
    let scratch = ScratchFolder::new(NAME)?;
    let file = |kind: &str, rank: usize| scratch.path.join(format!("{kind}-{rank}"));
    let mut all = Vec::new();
    let count = processes.len();
    for (rank, mut process) in processes.into_iter().enumerate() {
        process.stdout(File::create(file("out", rank))?);
        process.stderr(File::create(file("err", rank))?);
        all.push(Kept(process.spawn()?));
    }
    // They watch the same limit, and know better where they hang.
    network::finish_all(all, LIMIT + Duration::from_secs(10)).with_context(|| {
        let said = (0..count).map(|rank| tail(rank, &file("err", rank)));
        said.collect::<Vec<_>>().join("\n")
    })?;
    let mut lines = Vec::new();
    for rank in 0..count {
        for line in std::fs::read_to_string(file("out", rank))?.lines() {
            lines.push(serde_json::from_str(line).with_context(|| line.to_string())?);
        }
    }
    Ok(lines)
}

fn tail(rank: usize, file: &Path) -> String {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    let last = lines[lines.len().saturating_sub(12)..].join("\n");
    format!("process {rank} said:\n{last}")
}

/// What the processes printed.
struct JsonLines(Vec<Value>);

impl JsonLines {
    /// Milliseconds of a contestant's step for each round: the mean over the ranks where nobody
    /// waits, else the pace of the slowest.
    fn of(&self, name: &str, slow: u32, also: impl Fn(&Value) -> bool) -> Vec<f64> {
        let which = |line: &Value| line["name"] == name && line["slow"] == slow && also(line);
        self.series(FREE.contains(&name), which)
    }

    fn series(&self, free: bool, which: impl Fn(&Value) -> bool) -> Vec<f64> {
        let mut rounds: std::collections::BTreeMap<u64, Vec<f64>> = Default::default();
        for line in self.0.iter().filter(|line| which(line)) {
            if let (Some(round), Some(took)) = (line["round"].as_u64(), line["step_ms"].as_f64()) {
                rounds.entry(round).or_default().push(took);
            }
        }
        let mean = |ranks: &Vec<f64>| ranks.iter().sum::<f64>() / ranks.len() as f64;
        let most = |ranks: &Vec<f64>| ranks.iter().copied().fold(0.0, f64::max);
        rounds.values().map(|ranks| if free { mean(ranks) } else { most(ranks) }).collect()
    }
}

/// The median over the rounds of a ratio within each.
fn row(name: &str, goal: Option<f64>, ours: &[f64], theirs: &[f64]) -> Value {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    let mut row = json!({
        "name": name,
        "ratio": median(&ratios),
        "ours_ms": median(ours),
        "theirs_ms": median(theirs),
        "rounds": ratios.len(),
    });
    if let Some(goal) = goal {
        row["goal"] = Value::from(goal);
    }
    row
}

pub(crate) fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        length if length % 2 == 1 => Some(sorted[middle]),
        _ => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
    }
}
