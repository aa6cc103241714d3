//! `cargo xtask bench`: ratios against a peer or a physical limit, measured in the same run.
//!
//! Every benchmark is a program of its own crate that prints one JSON object a line:
//! `{"name": …, "ratio": …, "goal": …, …}`. Here they are run one after another, collected,
//! shown as one table and kept as JSON.

use std::fs;
use std::path::Path;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::{cargo, output};

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
        command: &["bench", "-q", "-p", "murmura-core", "--bench", "vector", "--", "--json"],
    },
    Bench {
        name: "stream",
        what: "one TCP stream through the whole stack against a bare blocking socket",
        command: &["bench", "-q", "-p", "murmura-net", "--bench", "stream", "--", "--json"],
    },
    Bench {
        name: "ring",
        what: "ring all-reduce of 25 MiB over TCP, 2 and 4 processes",
        command: &["bench", "-q", "-p", "murmura-net", "--bench", "ring", "--", "--json"],
    },
    Bench {
        name: "scale",
        what: "1,024 virtual workers × 200 steps, and how time grows",
        command: &["bench", "-q", "-p", "murmura-sim", "--bench", "scale", "--", "--json"],
    },
];

pub(crate) fn run(words: &[String]) -> Result<()> {
    if words.iter().any(|word| word == "--list") {
        BENCHES.iter().for_each(|bench| println!("{:8} {}", bench.name, bench.what));
        return Ok(());
    }
    let keep = words.iter().any(|word| word == "--keep");
    let names: Vec<&String> = words.iter().filter(|word| *word != "--keep").collect();
    for name in &names {
        if !BENCHES.iter().any(|bench| bench.name == *name) {
            bail!("no benchmark `{name}`; `cargo xtask bench --list` shows all");
        }
    }
    let mut rows = Vec::new();
    for bench in BENCHES {
        if names.is_empty() || names.iter().any(|name| *name == bench.name) {
            println!("{}: {} …", bench.name, bench.what);
            rows.extend(measure(bench)?);
        }
    }
    table(&rows);
    if keep {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent");
        let file = root.join("docs/benchmarks.json");
        let beside = file.with_extension("json.new");
        fs::write(&beside, serde_json::to_string_pretty(&rows)? + "\n")?;
        fs::rename(&beside, &file)?;
        println!("\nkept in docs/benchmarks.json");
    }
    Ok(())
}

fn measure(bench: &Bench) -> Result<Vec<Value>> {
    let printed = output(cargo().args(bench.command))?;
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

fn table(rows: &[Value]) {
    println!("\n{:8} {:34} {:>9} {:>9}  details", "bench", "what", "ratio", "goal");
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
            "{:8} {:34} {:>9} {:>9}  {}",
            row["bench"].as_str().unwrap_or_default(),
            row["name"].as_str().unwrap_or_default(),
            number("ratio"),
            row["goal"].as_str().map_or_else(|| number("goal"), str::to_string),
            details.join(", ")
        );
    }
}
