//! A crate outside the workspace with an algorithm of its own (`tests/fixtures/own-algorithm`): it is
//! built with this repository's crates and trains in every driver, under every command.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

const NAME: &str = "damped-gossip";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// Runs cargo in the fixture, into the target directory of this build.
fn cargo(words: &[&str]) -> Output {
    let fixture = root().join("tests/fixtures/own-algorithm");
    // The versions of the workspace, so that nothing is downloaded and common dependencies are shared.
    let lock = fs::read(root().join("Cargo.lock")).expect("the workspace has a lock file");
    if fs::read(fixture.join("Cargo.lock")).is_err() {
        fs::write(fixture.join("Cargo.lock"), lock).expect("the fixture can be written to");
    }
    let mut command = Command::new(env!("CARGO"));
    command.args(words).args(["--offline", "--target-dir"]).arg(target()).current_dir(fixture);
    // Variables of this test's own package would make build scripts of dependencies run again.
    let of_package =
        |name: &String| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST");
    for name in std::env::vars().map(|(name, _)| name).filter(of_package) {
        command.env_remove(name);
    }
    let output = command.output().expect("cargo can be started");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

/// The directory that this test was built into: `target/debug/deps/own_algorithm-…`.
fn target() -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    test.ancestors().nth(3).expect("target/debug/deps").to_path_buf()
}

/// The command of the fixture, which is built first.
fn own(folder: &TempDir, words: &[&str]) -> String {
    cargo(&["build", "--quiet"]);
    let output = Command::new(target().join("debug/own-algorithm"))
        .args(words)
        .current_dir(folder.path())
        .output()
        .expect("it was just built");
    assert!(output.status.success(), "{words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

fn folder() -> TempDir {
    tempfile::tempdir().expect("a temporary folder")
}

const RUN: &str = "workers = 3\nsteps = 20\n[algorithm]\nname = \"damped-gossip\"\ngamma = 0.5\n\
                   [task]\nname = \"logistic\"\n[checkpoint]\nevery = 10\n";

#[test]
fn it_ends_with_the_same_bits_in_the_virtual_cluster_in_threads_and_in_processes() {
    let folder = folder();
    fs::write(folder.path().join("run.toml"), RUN).expect("written");
    let model = |out: &str, words: &[&str]| {
        own(&folder, &[words, &["run.toml", "--quiet", "--out", out]].concat());
        fs::read(folder.path().join(out).join("final.safetensors")).expect("a model")
    };
    let simulated = model("virtual", &["simulate"]);
    assert!(model("threads", &["train", "--threads"]) == simulated, "threads");
    assert!(model("processes", &["train", "--processes"]) == simulated, "processes");
    // Another γ is another model: the option reaches the algorithm.
    let other = model("other", &["simulate", "--set", "algorithm.gamma=0.9"]);
    assert!(other != simulated);
    // The same from the checkpoint half-way.
    fs::remove_file(folder.path().join("virtual/final.safetensors")).expect("it was there");
    own(
        &folder,
        &["simulate", "--quiet", "--resume", "virtual/checkpoints/step-10", "--out", "again"],
    );
    let again = fs::read(folder.path().join("again/final.safetensors")).expect("a model");
    assert!(again == simulated, "resumed");
}

#[test]
fn it_is_listed_planned_and_compared_beside_the_built_in_ones() {
    let folder = folder();
    let listed: Value =
        serde_json::from_str(&own(&folder, &["list", "algorithms", "--json"])).expect("JSON");
    let names: Vec<&str> =
        listed.as_array().expect("a list").iter().filter_map(|row| row["name"].as_str()).collect();
    assert_eq!(names.last(), Some(&NAME));
    assert!(names.contains(&"d-psgd"));
    let plan = ["plan", "--model", "resnet-50", "--workers", "8", "--compute-ms", "100", "--json"];
    let plan: Value = serde_json::from_str(&own(&folder, &plan)).expect("JSON");
    let step = |name: &str| {
        let all = plan["predictions"].as_array().expect("a list");
        let of_ring = |p: &&Value| p["algorithm"] == name && p["topology"] == "ring";
        all.iter().find(of_ring).and_then(|p| p["step_seconds"].as_f64()).expect("predicted")
    };
    // It exchanges what decentlam does, when it does: one model to each neighbour, after the gradient.
    assert_eq!(step(NAME), step("decentlam"));
    let compare = ["compare", "--algorithms", "allreduce,damped-gossip", "--json", "--out", "both"];
    let settings = ["--set", "task.name=logistic", "--set", "workers=4", "--set", "steps=50"];
    let compared = own(&folder, &[&compare[..], &settings].concat());
    assert!(compared.contains(NAME) && compared.contains("allreduce"), "{compared}");
}

#[test]
fn it_passes_the_conformance_suite() {
    let output = cargo(&["test", "--quiet"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(said.contains("10 passed"), "{said}");
}
