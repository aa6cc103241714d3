//! `cargo xtask bench`: ratios against a peer or a physical limit, measured in the same run.
//!
//! Every benchmark is a program of its own crate that prints one JSON object a line:
//! `{"name": …, "ratio": …, "goal": …, …}`. Here they are run one after another, collected,
//! shown as one table and kept as JSON.
//!
//! Peers that the project does not build (PyTorch's gloo, Open MPI) are measured where they are found:
//! `cargo xtask bench --torch` makes an environment for them outside the repository, once, as do
//! `cargo xtask bench peers` and `cargo xtask test`; later runs find it there.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::{
    accuracy, cargo, compile, environment, groups, many, network, output, peers, python, reality,
    survive,
};

/// One program that measures.
struct Bench {
    name: &'static str,
    what: &'static str,
    /// Arguments to cargo.
    command: &'static [&'static str],
}

const BENCHES: &[Bench] = &[
    Bench {
        name: "vector",
        what: "mixing kernels against memcpy over the same bytes",
        command: &["bench", "-q", "-p", "quelea-core", "--bench", "vector", "--", "--json"],
    },
    Bench {
        name: "codec",
        what: "encoding and decoding, GB/s of f32 on one core; the ratio is to the goal",
        command: &["bench", "-q", "-p", "quelea-core", "--bench", "codec", "--", "--json"],
    },
    Bench {
        name: "engine",
        what: "steps of networks against PyTorch (its time / ours), and what data add to a step",
        command: &["bench", "-q", "-p", "quelea-engine", "--bench", "step", "--", "--json"],
    },
    Bench {
        name: "stream",
        what: "one TCP stream through the whole stack against a bare blocking socket",
        command: &["bench", "-q", "-p", "quelea-net", "--bench", "stream", "--", "--json"],
    },
    Bench {
        name: "ring",
        what: "ring all-reduce of 25 MiB over TCP, 2 and 4 processes",
        command: &["bench", "-q", "-p", "quelea-net", "--bench", "ring", "--", "--json"],
    },
    Bench {
        name: "local",
        what: "processes of one machine: shared memory, TCP, gloo, Open MPI; 25 MiB and 4 KiB",
        command: &["bench", "-q", "-p", "quelea-net", "--bench", "local", "--", "--json"],
    },
    Bench {
        name: "detect",
        what: "a closed socket and a stopped process, until acted on; heartbeats; the ratio is to the goal",
        command: &["bench", "-q", "-p", "quelea-net", "--bench", "detect", "--", "--json"],
    },
    Bench {
        name: "stranger",
        what: "a step of a run at whose port 1,000 strangers knock, against one without",
        command: &["bench", "-q", "-p", "quelea-net", "--bench", "stranger", "--", "--json"],
    },
    Bench {
        name: "page",
        what: "steps with and without the page, how soon it shows what happens, frames with 256 ranks, a million records",
        command: &["bench", "-q", "-p", "quelea-cli", "--bench", "page", "--", "--json"],
    },
    Bench {
        name: "scale",
        what: "1,024 virtual workers × 200 steps, and how time grows",
        command: &["bench", "-q", "-p", "quelea-sim", "--bench", "scale", "--", "--json"],
    },
    Bench {
        name: "control",
        what: "what the controller exchanges with 64 to 4,096 virtual workers, per worker and step",
        command: &["bench", "-q", "-p", "quelea-sim", "--bench", "control", "--", "--json"],
    },
];

/// Measures the stream encrypted and with its messages inspected, instead of against a bare socket; and runs
/// quelea's side of the comparison with peers over TLS.
const TLS: &str = "--tls";
/// How many kills each contestant of `survive` gets.
const KILLS: &str = "--kills";
/// Contestants of `survive`, by a part of their names; may be given several times.
const ONLY: &str = "--only";
const HANDOFF: &str = "handoff";
const HANDOFF_WHAT: &str =
    "what ALADDIN takes a worker per step beside computing; the ratio is to computing";
const REALITY: &str = "reality";
const REALITY_WHAT: &str = "predicted against measured time per step, 4 hosts on shaped links";

const EVENTS: &str = "events";
const EVENTS_WHAT: &str = "events of algorithms in Python, against the same ones in Rust";

type Measure = fn(&Path) -> Result<Vec<Value>>;
/// Benches that run the whole program between shaped hosts: name, what they measure, and how.
const SHAPED: [(&str, &str, Measure); 2] =
    [(REALITY, REALITY_WHAT, reality::measure), (groups::NAME, groups::WHAT, groups::measure)];

type MeasureHere = fn() -> Result<Vec<Value>>;
/// Benches of this module and others that need only this machine.
const LOCAL: [(&str, &str, MeasureHere); 3] = [
    (HANDOFF, HANDOFF_WHAT, || reality::handoffs(&reality::program()?)),
    (compile::NAME, compile::WHAT, compile::measure),
    (many::NAME, many::WHAT, many::measure),
];

/// Rows of a bench that runs the whole program.
fn whole(name: &str, measure: Measure) -> Result<Vec<Value>> {
    Ok(named(name, measure(&reality::program()?)?))
}

/// Rows with the name of their bench.
fn named(bench: &str, mut rows: Vec<Value>) -> Vec<Value> {
    rows.iter_mut().for_each(|row| row["bench"] = Value::from(bench));
    rows
}

/// Prints all benches.
fn list() {
    BENCHES.iter().for_each(|bench| println!("{:8} {}", bench.name, bench.what));
    println!("{HANDOFF:8} {HANDOFF_WHAT}");
    println!("{:8} {}", compile::NAME, compile::WHAT);
    println!("{:8} {}", many::NAME, many::WHAT);
    println!("{REALITY:8} {REALITY_WHAT}");
    println!("{:8} {}", groups::NAME, groups::WHAT);
    println!("{:8} {}", accuracy::NAME, accuracy::WHAT);
    println!("{EVENTS:8} {EVENTS_WHAT}");
    println!("{:8} {}; {KILLS}=N, {ONLY}=NAME", survive::NAME, survive::WHAT);
    println!("{:8} {}; parts: peers-{}", peers::NAME, peers::WHAT, peers::PARTS.join(", peers-"));
}

pub(crate) fn run(words: &[String]) -> Result<()> {
    if words.iter().any(|word| word == "--list") {
        list();
        return Ok(());
    }
    let (flags, names): (Vec<&String>, Vec<&String>) =
        words.iter().partition(|word| word.starts_with("--"));
    let keep = flags.iter().any(|flag| *flag == "--keep");
    if flags.iter().any(|flag| *flag == "--torch") {
        environment::provide()?;
    }
    check_flags(&flags)?;
    let tls = flags.iter().any(|flag| *flag == TLS);
    for name in &names {
        let others = [groups::NAME, accuracy::NAME, compile::NAME, many::NAME, survive::NAME];
        let known = [REALITY, HANDOFF, EVENTS].iter().chain(&others).any(|known| known == name)
            || !peer_parts(&[name]).is_empty();
        if !known && !BENCHES.iter().any(|bench| bench.name == *name) {
            bail!("no benchmark `{name}`; `cargo xtask bench --list` shows all");
        }
    }
    let mut rows = Vec::new();
    for bench in BENCHES {
        if names.is_empty() || names.iter().any(|name| *name == bench.name) {
            println!("{}: {} …", bench.name, bench.what);
            let is_encrypted = tls && bench.name == "stream";
            rows.extend(measure(bench, if is_encrypted { &[TLS] } else { &[] })?);
        }
    }
    for (name, what, measure) in LOCAL {
        if names.is_empty() || names.iter().any(|asked| *asked == name) {
            println!("{name}: {what} …");
            rows.extend(named(name, measure()?));
        }
    }
    for (name, what, measure) in SHAPED {
        if names.is_empty() || names.iter().any(|asked| *asked == name) {
            println!("{name}: {what} …");
            match network::refusal() {
                Some(why) => println!("  left out: {why}"),
                None => rows.extend(whole(name, measure)?),
            }
        }
    }
    rows.extend(measure_events(&names)?);
    rows.extend(measure_accuracy(&names)?);
    rows.extend(measure_survival(&names, &flags)?);
    let wire = if tls { peers::Wire::Tls } else { peers::Wire::Plain };
    rows.extend(measure_peers(&names, wire)?);
    table(&rows);
    if keep {
        self::keep(rows)?;
    }
    Ok(())
}

/// Refuses options that there are not.
fn check_flags(flags: &[&String]) -> Result<()> {
    let known_flags = ["--keep", "--torch", TLS, KILLS, ONLY];
    let key = |flag: &str| flag.split('=').next().unwrap_or_default().to_string();
    if let Some(flag) = flags.iter().find(|flag| !known_flags.contains(&key(flag).as_str())) {
        bail!(
            "unknown option `{flag}`; there are --keep, --torch, {TLS}, {KILLS}=N, {ONLY}=NAME and --list"
        );
    }
    Ok(())
}

/// Renews these rows in `docs/benchmarks.json`.
pub(crate) fn keep(rows: Vec<Value>) -> Result<()> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent");
    let file = root.join("docs/benchmarks.json");
    let beside = file.with_extension("json.new");
    let kept = serde_json::from_str(&fs::read_to_string(&file)?)?;
    fs::write(&beside, serde_json::to_string_pretty(&renewed(kept, rows))? + "\n")?;
    fs::rename(&beside, &file)?;
    println!("\nkept in docs/benchmarks.json");
    Ok(())
}

/// What was kept, with what was measured now in place of the same.
fn renewed(kept: Vec<Value>, rows: Vec<Value>) -> Vec<Value> {
    let same = |a: &Value, b: &Value| a["bench"] == b["bench"] && a["name"] == b["name"];
    let old = kept.into_iter().filter(|old| !rows.iter().any(|row| same(old, row)));
    old.collect::<Vec<_>>().into_iter().chain(rows).collect()
}

/// The parts of the comparison with peers that `names` ask for: all of them, if it is named itself
/// or nothing is.
fn peer_parts(names: &[&String]) -> Vec<&'static str> {
    let all = names.is_empty() || names.iter().any(|name| *name == peers::NAME);
    let named = |part: &&str| names.iter().any(|name| **name == format!("{}-{part}", peers::NAME));
    peers::PARTS.into_iter().filter(|part| all || named(part)).collect()
}

fn measure_events(names: &[&String]) -> Result<Vec<Value>> {
    if !names.is_empty() && !names.iter().any(|name| *name == EVENTS) {
        return Ok(Vec::new());
    }
    println!("{EVENTS}: {EVENTS_WHAT} …");
    if names.is_empty() && environment::found().is_none() {
        println!("  left out: needs --torch");
        return Ok(Vec::new());
    }
    let mut rows = python::event_times()?;
    rows.iter_mut().for_each(|row| row["bench"] = Value::from(EVENTS));
    Ok(rows)
}

/// Takes a quarter of an hour and data: only if it is named.
fn measure_accuracy(names: &[&String]) -> Result<Vec<Value>> {
    if !names.iter().any(|name| *name == accuracy::NAME) {
        return Ok(Vec::new());
    }
    println!("{}: {} …", accuracy::NAME, accuracy::WHAT);
    let mut rows = accuracy::measure()?;
    rows.iter_mut().for_each(|row| row["bench"] = Value::from(accuracy::NAME));
    Ok(rows)
}

/// Takes half an hour and peers from PyPI: only if it is named.
fn measure_survival(names: &[&String], flags: &[&String]) -> Result<Vec<Value>> {
    if !names.iter().any(|name| *name == survive::NAME) {
        return Ok(Vec::new());
    }
    println!("{}: {} …", survive::NAME, survive::WHAT);
    let values = |key: &str| -> Vec<String> {
        let of_key = flags.iter().filter_map(|flag| flag.strip_prefix(key)?.strip_prefix('='));
        of_key.map(str::to_string).collect()
    };
    let kills = match values(KILLS).last() {
        Some(given) => given.parse().with_context(|| format!("{KILLS}={given}"))?,
        None => survive::KILLS,
    };
    Ok(named(survive::NAME, survive::measure(kills, &values(ONLY))?))
}

fn measure_peers(names: &[&String], wire: peers::Wire) -> Result<Vec<Value>> {
    let parts = peer_parts(names);
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    println!("{}: {} …", peers::NAME, peers::WHAT);
    let why = match network::refusal() {
        Some(why) => Some(why),
        None if names.is_empty() && environment::found().is_none() => Some("needs --torch"),
        None => None,
    };
    if let Some(why) = why {
        println!("  left out: {why}");
        return Ok(Vec::new());
    }
    let mut rows = peers::measure(&parts, wire)?;
    rows.iter_mut().for_each(|row| row["bench"] = Value::from(peers::NAME));
    Ok(rows)
}

fn measure(bench: &Bench, more: &[&str]) -> Result<Vec<Value>> {
    let mut command = cargo();
    command.args(bench.command).args(more);
    if let Some(python) = environment::found() {
        command.env("QUELEA_TORCH_PYTHON", python);
    }
    let printed = output(&mut command)?;
    let lines = printed.lines().filter(|line| line.starts_with('{'));
    let mut rows = Vec::new();
    for line in lines {
        let mut row: Value = serde_json::from_str(line)?;
        row["bench"] = Value::from(bench.name);
        rows.push(row);
    }
    if rows.is_empty() {
        bail!("`{}` printed no result", bench.name);
    }
    Ok(rows)
}

/// Prints rows as a table.
pub(crate) fn table(rows: &[Value]) {
    let name = |row: &Value| row["name"].as_str().unwrap_or_default().to_string();
    let width = rows.iter().map(|row| name(row).chars().count()).max().unwrap_or(0).max(34);
    println!("\n{:8} {:width$} {:>9} {:>9}  details", "bench", "what", "ratio", "goal");
    for row in rows {
        let number = |key: &str| {
            row[key].as_f64().map_or_else(|| "–".to_string(), |number| format!("{number:.3}"))
        };
        let known = ["bench", "name", "ratio", "goal"];
        let details = row.as_object().into_iter().flatten();
        let details: Vec<String> = details
            .filter(|(key, _)| !known.contains(&key.as_str()))
            .map(|(key, value)| match value.as_f64() {
                Some(number) if value.is_f64() => format!("{key} {number:.4}"),
                _ => format!("{key} {value}"),
            })
            .collect();
        println!(
            "{:8} {:width$} {:>9} {:>9}  {}",
            row["bench"].as_str().unwrap_or_default(),
            name(row),
            number("ratio"),
            row["goal"].as_str().map_or_else(|| number("goal"), str::to_string),
            details.join(", ")
        );
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_not_measured_again_stays() {
        let row = |bench: &str, name: &str, ratio: f64| json!({ "bench": bench, "name": name, "ratio": ratio });
        let kept = vec![row("codec", "f16", 1.0), row("ring", "f16", 2.0)];
        let found = renewed(kept, vec![row("codec", "f16", 3.0), row("codec", "sign", 4.0)]);
        let expected = [("ring", "f16", 2.0), ("codec", "f16", 3.0), ("codec", "sign", 4.0)];
        assert_eq!(found, expected.map(|(bench, name, ratio)| row(bench, name, ratio)));
    }
}
