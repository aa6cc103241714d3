//! `cargo xtask sanitize`: the tests of unsafe code under AddressSanitizer and ThreadSanitizer, or under valgrind
//! where the toolchain does not bring their libraries.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, bail};

use crate::{cargo, execute, exists, output};

/// One set of tests that exercise unsafe code.
struct SanitizedSuite {
    name: &'static str,
    package: &'static str,
    /// Which test program of the package: `--lib`, or `--test NAME`.
    program: &'static [&'static str],
    /// Which tests; all if none is named.
    tests: &'static [&'static str],
    /// Whether several threads share memory in them.
    is_threaded: bool,
}

const SUITES: &[SanitizedSuite] = &[
    SanitizedSuite {
        name: "vectors",
        package: "quelea-core",
        program: &["--lib"],
        tests: &["vector::", "codec::", "payload::"],
        is_threaded: false,
    },
    SanitizedSuite {
        name: "loan",
        package: "quelea-core",
        program: &["--lib"],
        tests: &["node::loan", "payload::"],
        is_threaded: true,
    },
    SanitizedSuite {
        name: "kernels",
        package: "quelea-engine",
        program: &["--lib"],
        tests: &["ops::", "matrix::"],
        is_threaded: false,
    },
    SanitizedSuite {
        name: "tensor-group",
        package: "quelea-net",
        program: &["--test", "tensor_group"],
        tests: &[],
        is_threaded: true,
    },
    SanitizedSuite {
        name: "shared-memory",
        package: "quelea-net",
        program: &["--lib"],
        tests: &["transport::shared_memory"],
        is_threaded: true,
    },
    SanitizedSuite {
        name: "shared-memory-runs",
        package: "quelea-net",
        program: &["--test", "shared_memory"],
        tests: &[],
        is_threaded: true,
    },
    SanitizedSuite {
        name: "external-loop",
        package: "quelea-net",
        program: &["--test", "external_loop"],
        tests: &[],
        is_threaded: true,
    },
];

/// What looks over the shoulder of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sanitizer {
    Address,
    Thread,
}

impl Sanitizer {
    const ALL: [Sanitizer; 2] = [Sanitizer::Address, Sanitizer::Thread];

    fn name(self) -> &'static str {
        match self {
            Sanitizer::Address => "address",
            Sanitizer::Thread => "thread",
        }
    }

    /// The library that the toolchain must have.
    fn library(self) -> &'static str {
        match self {
            Sanitizer::Address => "asan",
            Sanitizer::Thread => "tsan",
        }
    }
}

/// `cargo xtask sanitize [address] [thread] [valgrind] [SUITE…]`.
pub(crate) fn run(words: &[String]) -> Result<()> {
    let is_tool =
        |word: &str| word == "valgrind" || Sanitizer::ALL.iter().any(|one| one.name() == word);
    let known = |word: &str| is_tool(word) || SUITES.iter().any(|suite| suite.name == word);
    if let Some(unknown) = words.iter().find(|word| !known(word)) {
        let names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
        bail!("`{unknown}` is none of address, thread, valgrind, {}", names.join(", "));
    }
    let named = |name: &str| words.iter().any(|word| word == name);
    let has_tools = words.iter().any(|word| is_tool(word));
    let has_suites = words.iter().any(|word| !is_tool(word));
    let mut skipped = Vec::new();
    for suite in SUITES.iter().filter(|suite| !has_suites || named(suite.name)) {
        let mut is_covered = false;
        for sanitizer in Sanitizer::ALL.into_iter().filter(|one| !has_tools || named(one.name())) {
            if sanitizer == Sanitizer::Thread && !suite.is_threaded {
                continue;
            }
            if has_library(sanitizer)? {
                under_sanitizer(suite, sanitizer)?;
                is_covered = true;
            }
        }
        if named("valgrind") || (!has_tools && !is_covered) {
            if !exists("valgrind") {
                skipped.push(suite.name);
                continue;
            }
            under_valgrind(suite)?;
        }
    }
    if !skipped.is_empty() {
        bail!("neither the sanitizers' libraries nor valgrind are here: {}", skipped.join(", "));
    }
    println!("\nno finding");
    Ok(())
}

/// Stable toolchains bring the libraries, and switch to them when they are told that they build the compiler.
fn has_library(sanitizer: Sanitizer) -> Result<bool> {
    let sysroot = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    let folder = Path::new(sysroot.trim()).join("lib/rustlib").join(host()?).join("lib");
    let ending = format!("_rt.{}.a", sanitizer.library());
    let mut entries = std::fs::read_dir(&folder).into_iter().flatten().flatten();
    Ok(entries.any(|entry| entry.file_name().to_string_lossy().ends_with(&ending)))
}

fn host() -> Result<String> {
    let about = output(Command::new("rustc").arg("-vV"))?;
    let host = about.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("rustc does not say what it runs on")?.to_string())
}

fn under_sanitizer(suite: &SanitizedSuite, sanitizer: Sanitizer) -> Result<()> {
    // The standard library was built without: of what it does itself, nothing is seen.
    let flags = format!("-Zsanitizer={} -Cunsafe-allow-abi-mismatch=sanitizer", sanitizer.name());
    let target = root().join("target").join(format!("sanitize-{}", sanitizer.name()));
    let mut tests = cargo();
    tests.args(["test", "--package", suite.package]).args(suite.program);
    // With a target, build scripts and macros are built as usual.
    tests.args(["--target", &host()?, "--target-dir"]).arg(target);
    tests.env("RUSTC_BOOTSTRAP", "1").env("RUSTFLAGS", flags);
    if sanitizer == Sanitizer::Thread {
        tests.env("TSAN_OPTIONS", format!("suppressions={}", suppressions().display()));
    }
    execute(tests.arg("--").args(suite.tests))
}

fn under_valgrind(suite: &SanitizedSuite) -> Result<()> {
    let mut build = cargo();
    build.args(["test", "--no-run", "--message-format", "json", "--package", suite.package]);
    let messages = output(build.args(suite.program))?;
    let program = messages.lines().rev().find_map(|line| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        message["executable"].as_str().map(String::from)
    });
    let program = program.context("cargo names no test program")?;
    let options = ["--error-exitcode=9", "--quiet", "--undef-value-errors=no", "--leak-check=no"];
    execute(Command::new("valgrind").args(options).arg(program).args(suite.tests))
}

/// What ThreadSanitizer reports although it is none, because the standard library is not instrumented.
fn suppressions() -> PathBuf {
    root().join("xtask/src/sanitize.supp")
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask has a parent")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tools_and_suites_are_taken() {
        let told = run(&["everything".to_string()]).expect_err("unknown").to_string();
        assert!(
            told.contains("`everything` is none of address, thread, valgrind, vectors"),
            "{told}"
        );
    }
}
