//! `cargo xtask chaos --real`: `quelea chaos` for one algorithm of every family, eight processes each.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{cargo, execute, output};

/// One algorithm of every family.
const ALGORITHMS: [&str; 8] =
    ["allreduce", "d-psgd", "ad-psgd", "sgp", "aladdin", "asp", "local-sgd", "gradient-tracking"];

/// Those whose workers share the data: each batch of every epoch must be confirmed exactly once.
const SHARING: [&str; 3] = ["ad-psgd", "aladdin", "asp"];
const SHARED: [&str; 4] = ["workers=8", "task.name=logistic", "data=shared", "task.compute_ms=20"];

/// Every worker has the same minimum: whose gradients are missing for a while does not matter.
const SETTINGS: [&str; 6] = [
    "workers=8",
    "task.name=quadratic",
    "task.target=[[1],[1],[1],[1],[1],[1],[1],[1]]",
    "task.dimensions=1000",
    "task.noise_std=0.3",
    "task.compute_ms=20",
];

/// Seconds of a step of `compute_ms` = 20, at least, and how much longer than its kills a run lasts.
const STEP_SECONDS: f64 = 0.020;
const MARGIN: f64 = 1.3;

/// What is asked for.
#[derive(Clone, Debug, PartialEq)]
struct RealChaos {
    kills: u32,
    mean_seconds: f64,
    seed: u64,
    algorithms: Vec<String>,
}

impl Default for RealChaos {
    fn default() -> RealChaos {
        let algorithms = ALGORITHMS.map(String::from).to_vec();
        RealChaos { kills: 125, mean_seconds: 5.0, seed: 1, algorithms }
    }
}

pub(super) fn run(words: &[String]) -> Result<()> {
    let asked = read(words)?;
    execute(cargo().args(["build", "--quiet", "-p", "quelea-cli"]))?;
    let mut failed = Vec::new();
    for algorithm in &asked.algorithms {
        match attempt(&asked, algorithm) {
            Ok(line) => println!("{line}"),
            Err(error) => {
                println!("{algorithm}: {error:#}");
                failed.push(algorithm.as_str());
            }
        }
    }
    if failed.is_empty() { Ok(()) } else { bail!("failed: {}", failed.join(", ")) }
}

/// Kills processes of one run; a line of its ledger.
fn attempt(asked: &RealChaos, algorithm: &str) -> Result<String> {
    let steps = MARGIN * f64::from(asked.kills) * asked.mean_seconds / STEP_SECONDS + 200.0;
    let folder = std::env::temp_dir().join(format!("quelea-chaos-{algorithm}"));
    let mut command = Command::new(executable());
    command.args(["chaos", "--json", "--kills", &asked.kills.to_string()]);
    command.args(["--mean-seconds", &asked.mean_seconds.to_string()]);
    command.args(["--seed", &asked.seed.to_string(), "--force", "--out"]).arg(&folder);
    let own = [format!("algorithm.name={algorithm}"), format!("steps={steps:.0}")];
    let settings: &[&str] = if SHARING.contains(&algorithm) { &SHARED } else { &SETTINGS };
    for setting in settings.iter().copied().chain(own.iter().map(String::as_str)) {
        command.args(["--set", setting]);
    }
    let ledger: Value = serde_json::from_str(&output(&mut command)?).context("its ledger")?;
    let incidents = ledger["incidents"].as_array().context("no incidents")?;
    let times = |key: &str| {
        let mut all: Vec<f64> = incidents.iter().filter_map(|one| one[key].as_f64()).collect();
        all.sort_by(f64::total_cmp);
        let (median, slowest) = (all.get(all.len() / 2), all.last());
        let shown =
            |value: Option<&f64>| value.map_or("–".to_string(), |s| format!("{:.0} ms", s * 1e3));
        format!("{} / {}", shown(median), shown(slowest))
    };
    Ok(format!(
        "{algorithm}: {} kills in {:.0} s; acted on after {} (median / slowest), others' next step {}, \
         joined {}, its first step {}; loss {:.2} deviations from undisturbed",
        ledger["kills"],
        ledger["clock_seconds"].as_f64().unwrap_or(f64::NAN),
        times("noticed_seconds"),
        times("next_step_seconds"),
        times("joined_seconds"),
        times("first_step_seconds"),
        ledger["deviations"].as_f64().unwrap_or(f64::NAN),
    ))
}

fn executable() -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    target.join("debug").join("quelea")
}

fn read(words: &[String]) -> Result<RealChaos> {
    let mut asked = RealChaos::default();
    for pair in words.chunks(2) {
        let [name, value] = pair else { bail!("`{}` needs a value", pair[0]) };
        let wrong = || format!("`{name} {value}`: not a number");
        match name.as_str() {
            "--kills" => asked.kills = value.parse().with_context(wrong)?,
            "--mean-seconds" => asked.mean_seconds = value.parse().with_context(wrong)?,
            "--seed" => asked.seed = value.parse().with_context(wrong)?,
            "--algorithms" => asked.algorithms = value.split(',').map(String::from).collect(),
            other => bail!(
                "unknown option `{other}`; there are --kills, --mean-seconds, --seed and --algorithms"
            ),
        }
    }
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_killed_how_often_is_what_was_asked_for() {
        let words = |line: &str| line.split(' ').map(String::from).collect::<Vec<_>>();
        assert_eq!(read(&[]).expect("the default").algorithms.len(), 8);
        let asked =
            read(&words("--kills 3 --mean-seconds 0.5 --algorithms asp,sgp")).expect("good");
        assert_eq!((asked.kills, asked.mean_seconds, asked.seed), (3, 0.5, 1));
        assert_eq!(asked.algorithms, ["asp", "sgp"]);
        assert!(read(&words("--kills x")).is_err() && read(&words("--kills")).is_err());
    }
}
