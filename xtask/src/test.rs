//! `cargo xtask test`: everything that must hold, cheapest first.

use std::process::Command;

use anyhow::{Result, bail};

use crate::{cargo, edges, execute, exists, tidy};

pub(crate) fn run(words: &[String]) -> Result<()> {
    let quick = match words {
        [] => false,
        [word] if word == "--quick" => true,
        _ => bail!("usage: cargo xtask test [--quick]"),
    };
    execute(cargo().args(["fmt", "--all", "--check"]))?;
    tidy::check()?;
    edges::check()?;
    if !quick {
        execute(cargo().args(["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"]))?;
        let docs = ["doc", "--workspace", "--no-deps", "--document-private-items"];
        execute(cargo().args(docs).env("RUSTDOCFLAGS", "-D warnings"))?;
    }
    let missing: Vec<&Optional> = OPTIONAL.iter().filter(|tool| !tool.provide()).collect();
    if exists("cargo-nextest") {
        execute(cargo().args(["nextest", "run", "--workspace", "--no-fail-fast"]))?;
    } else {
        execute(cargo().args(["test", "--workspace", "--tests", "--bins", "--no-fail-fast"]))?;
    }
    execute(cargo().args(["test", "--workspace", "--doc", "--quiet"]))?;
    for tool in &missing {
        println!("skipped: {} ({} is not here; {})", tool.tests, tool.program, tool.remedy());
    }
    if !missing.is_empty() && std::env::var_os("CI").is_some() {
        bail!("CI must not skip tests");
    }
    println!("\nall good{}", if missing.is_empty() { "" } else { ", but for what was skipped" });
    Ok(())
}

/// A program that some tests need and the project does not build.
struct Optional {
    program: &'static str,
    package: &'static str,
    tests: &'static str,
}

const OPTIONAL: &[Optional] =
    &[Optional { program: "mpirun", package: "openmpi-bin", tests: "runs under the real mpirun" }];

impl Optional {
    /// Whether it is here, if need be after installing it (which needs root and apt).
    fn provide(&self) -> bool {
        if exists(self.program) {
            return true;
        }
        if !is_root() || !exists("apt-get") {
            return false;
        }
        let quiet = ["-y", "-qq", "--no-install-recommends", "install", self.package];
        let update = execute(Command::new("apt-get").args(["-qq", "update"]));
        let install =
            execute(Command::new("apt-get").args(quiet).env("DEBIAN_FRONTEND", "noninteractive"));
        update.and(install).is_ok() && exists(self.program)
    }

    fn remedy(&self) -> String {
        format!("install the package {}", self.package)
    }
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|output| output.stdout.starts_with(b"0\n"))
}
