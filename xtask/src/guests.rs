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
const CRATES: &[&str] = &["quelea-burn", "quelea-candle"];

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
    for name in CRATES {
        execute(&mut inside(&["run", "--release", "--quiet", "-p", name, "--example", "spirals"]))?;
        rows.push(overhead(name)?);
    }
    bench::table(&rows);
    if keep {
        bench::keep(rows)?;
    }
    Ok(())
}

/// What quelea adds to a step of the library.
fn overhead(name: &str) -> Result<Value> {
    let words = ["run", "--release", "--quiet", "-p", name, "--example", "overhead"];
    let mut row: Value = serde_json::from_str(&output(&mut inside(&words))?)?;
    row["bench"] = Value::from(NAME);
    Ok(row)
}

/// Cargo in the guests' workspace.
fn inside(words: &[&str]) -> Command {
    let mut command = cargo();
    command.args(words).current_dir(root().join("guests"));
    command
}
