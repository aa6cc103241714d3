//! `cargo xtask guests`: builds, tests and measures the crates that connect quelea to other libraries.
//!
//! They are a workspace of their own (`guests/`), with a lock file of their own: what they depend on takes
//! minutes to compile and is no part of `cargo xtask test`.

use std::process::Command;

use anyhow::{Result, bail};
use serde_json::Value;

use crate::rules::root;
use crate::{bench, cargo, execute, output};

const NAME: &str = "guests";
/// Their crates are `quelea-NAME`, their examples `NAME_overhead` and `NAME_spirals`.
const LIBRARIES: &[&str] = &["burn", "candle"];

/// `cargo xtask guests [--keep]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let keep = match words {
        [] => false,
        [word] if word == "--keep" => true,
        _ => bail!("usage: cargo xtask guests [--keep]"),
    };
    execute(&mut inside(&["fmt", "--all", "--check"]))?;
    execute(&mut inside(&["clippy", "--all-targets", "--", "-D", "warnings"]))?;
    execute(inside(&["doc", "--no-deps"]).env("RUSTDOCFLAGS", "-D warnings"))?;
    execute(&mut inside(&["test"]))?;
    let mut rows = Vec::new();
    for library in LIBRARIES {
        execute(&mut example(library, "spirals"))?;
        rows.extend(overhead(library)?);
    }
    bench::table(&rows);
    if keep {
        bench::keep(rows)?;
    }
    Ok(())
}

/// What quelea adds to a step of the library, by model.
fn overhead(library: &str) -> Result<Vec<Value>> {
    let printed = output(&mut example(library, "overhead"))?;
    let row = |line: &str| -> Result<Value> {
        let mut row: Value = serde_json::from_str(line)?;
        row["bench"] = Value::from(NAME);
        Ok(row)
    };
    printed.lines().map(row).collect()
}

/// An example of the crate for this library, in release mode.
fn example(library: &str, name: &str) -> Command {
    let (package, name) = (format!("quelea-{library}"), format!("{library}_{name}"));
    inside(&["run", "--release", "--quiet", "-p", &package, "--example", &name])
}

/// Cargo in the guests' workspace.
fn inside(words: &[&str]) -> Command {
    let mut command = cargo();
    command.args(words).current_dir(root().join("guests"));
    command
}
