//! `cargo xtask bench survive`: SIGKILL to processes of one PyTorch script under quelea, torchft, hivemind and torchrun.
//!
//! `crates/quelea-py/benches/survive_kills.py` starts four processes of `survive.py` under one contestant, kills some
//! of them one after the other and measures what follows. Peers come from PyPI into a folder outside the
//! repository; one that cannot be installed or does not run has a row that says so.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use crate::{environment, python};

pub(crate) const NAME: &str = "survive";
pub(crate) const WHAT: &str =
    "SIGKILL to one of four processes under PyTorch: quelea, torchft, hivemind, torchrun";
/// How many kills each contestant gets: `--kills N`.
pub(crate) const KILLS: u32 = 10;
const PROCESSES: u32 = 4;
const COMPUTE_MS: u32 = 100;
/// Steps between two exchanges of those who do not exchange at every step, and between two checkpoints.
const EVERY: u32 = 10;

/// One contestant: the system, and what its row says.
struct Contestant {
    name: &'static str,
    system: &'static str,
    /// What the script passes on to quelea.
    settings: fn() -> Value,
    /// Steps between two exchanges, or two checkpoints.
    every: u32,
    /// Time-outs of operations, where the system has them.
    timeout_seconds: u32,
    note: &'static str,
}

const OURS_NOTE: &str = "rank 0 is not killed: its loss ends a script's run; launch --restarts";

/// One of quelea's algorithms.
const fn ours(name: &'static str, settings: fn() -> Value, every: u32) -> Contestant {
    Contestant { name, system: "quelea", settings, every, timeout_seconds: 0, note: OURS_NOTE }
}

const CONTESTANTS: [Contestant; 8] = [
    ours("quelea allreduce", || json!({ "algorithm": "allreduce" }), 1),
    ours("quelea d-psgd", || json!({ "algorithm": "d-psgd" }), 1),
    ours("quelea ad-psgd", || json!({ "algorithm": "ad-psgd" }), 1),
    ours("quelea aladdin", || json!({ "algorithm": "aladdin" }), 1),
    ours("quelea diloco", || json!({ "algorithm": "diloco", "period": EVERY }), EVERY),
    Contestant {
        name: "torchft 0.2.0",
        system: "torchft",
        settings: || json!({}),
        every: 1,
        timeout_seconds: 5,
        note: "gloo, all-reduce of gradients, time-out 5 s; the lighthouse is not killed; restarted at once",
    },
    Contestant {
        name: "hivemind 1.1.12",
        system: "hivemind",
        settings: || json!({}),
        every: EVERY,
        timeout_seconds: 10,
        note: "an epoch of 10 steps of 4 peers, matchmaking 3 s, time-out 10 s; the first DHT node is not \
               killed; restarted at once",
    },
    Contestant {
        name: "torchrun",
        system: "torchrun",
        settings: || json!({}),
        every: EVERY,
        timeout_seconds: 60,
        note: "DDP over gloo; all processes are restarted from a checkpoint of every 10th step",
    },
];

/// Seconds that pass before a peer of the default settings looks for its group.
const MATCHMAKING_SECONDS: u32 = 3;

/// Measures all contestants, or those whose names contain one of `only`; a row for each.
pub(crate) fn measure(kills: u32, only: &[String]) -> Result<Vec<Value>> {
    let python = environment::provide()?;
    let own = match std::env::var_os("QUELEA_PY") {
        Some(folder) => PathBuf::from(folder),
        None => python::release()?,
    };
    let peers = environment::survivors(&python);
    let is_asked = |name: &str| only.is_empty() || only.iter().any(|word| name.contains(&**word));
    let mut rows = Vec::new();
    for contestant in CONTESTANTS.iter().filter(|contestant| is_asked(contestant.name)) {
        let path = match (&peers, contestant.system) {
            (Ok(peers), _) => Ok(std::env::join_paths([&own, peers])?),
            (Err(_), "quelea" | "torchrun") => Ok(own.clone().into_os_string()),
            (Err(problem), _) => Err(format!("cannot be installed: {problem:#}")),
        };
        let found = path.and_then(|path| {
            kill(&python, &path, contestant, kills).map_err(|problem| format!("{problem:#}"))
        });
        let found = found.unwrap_or_else(|problem| json!({ "kills": 0, "problem": problem }));
        let row = row(contestant, kills, &found);
        println!("  {row}");
        rows.push(row);
    }
    Ok(rows)
}

fn kill(python: &Path, path: &OsString, contestant: &Contestant, kills: u32) -> Result<Value> {
    let victims: Vec<u32> = (u32::from(contestant.system == "quelea")..PROCESSES).collect();
    let plan = json!({
        "system": contestant.system, "kills": kills, "processes": PROCESSES, "compute_ms": COMPUTE_MS,
        "seed": 7, "every": contestant.every, "victims": victims, "settings": (contestant.settings)(),
        "timeout_seconds": contestant.timeout_seconds, "matchmaking_seconds": MATCHMAKING_SECONDS,
    });
    let script = python::root().join("crates/quelea-py/benches/survive_kills.py");
    let mut command = Command::new(python);
    command.args(["-W", "ignore", "-u"]).arg(script).arg(plan.to_string());
    command.env("PYTHONPATH", path).env("PYTHONDONTWRITEBYTECODE", "1");
    command.env("CUDA_VISIBLE_DEVICES", "").env("OMP_NUM_THREADS", "1");
    command.env("GLOO_SOCKET_IFNAME", "lo").env_remove("QUELEA_SECRET").env("QUELEA_INSECURE", "1");
    let output = command.stdin(Stdio::null()).output()?;
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = said.lines().rfind(|line| line.starts_with('{'));
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    let Some(last) = last.filter(|_| output.status.success()) else {
        bail!("{}", errors.lines().next_back().unwrap_or("it said nothing"));
    };
    serde_json::from_str(last).context("what it printed is no JSON")
}

fn row(contestant: &Contestant, kills: u32, found: &Value) -> Value {
    let mut row = json!({
        "name": contestant.name, "kills": found["kills"], "kills_asked": kills, "note": contestant.note,
    });
    for key in MEASURED {
        for key in [key.to_string(), format!("{key}_worst")] {
            if let Some(number) = found[&key].as_f64() {
                row[key] = Value::from((number * 1e3).round() / 1e3);
            }
        }
    }
    if let Some(problem) = found["problem"].as_str() {
        // Of what a process said, the end says why.
        let last = problem.trim_end().lines().next_back().unwrap_or_default();
        let first: String = problem.chars().take(80).collect();
        row["problem"] = Value::from(format!("{} … {last}", first.lines().next().unwrap_or("")));
    }
    row
}

/// What is measured of every kill: medians, and the worst under `KEY_worst`.
const MEASURED: [&str; 4] = ["next_step_seconds", "full_seconds", "step_seconds", "steps_lost"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_contestant_that_does_not_run_has_a_row_that_says_why() {
        let found = json!({ "kills": 0, "problem": "waited; it said last: first line\nno module named x\n" });
        let row = row(&CONTESTANTS[5], 3, &found);
        assert_eq!(row["problem"], "waited; it said last: first line … no module named x");
        assert_eq!((&row["kills"], &row["kills_asked"]), (&json!(0), &json!(3)));
        assert!(row.get("next_step_seconds").is_none());
    }

    #[test]
    fn a_row_has_medians_and_the_worst() {
        let found = json!({ "kills": 2, "problem": null, "full_seconds": 1.23456, "full_seconds_worst": 2.0 });
        let row = row(&CONTESTANTS[0], 2, &found);
        assert_eq!(
            (&row["full_seconds"], &row["full_seconds_worst"]),
            (&json!(1.235), &json!(2.0))
        );
        assert!(row.get("problem").is_none());
    }
}
