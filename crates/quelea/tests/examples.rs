//! Every example runs and ends well. Each checks its own result.

use std::path::{Path, PathBuf};
use std::process::Command;

/// The example as it was built beside this test; built now where it was not.
fn built(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test has a path");
    let profile = test.ancestors().nth(2).expect("target/PROFILE/deps");
    let path = profile.join("examples").join(name);
    if !path.exists() {
        let target = profile.parent().expect("target");
        let build = ["build", "--quiet", "--offline", "-p", "quelea", "--example", name];
        let status = Command::new(env!("CARGO"))
            .args(build)
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status();
        assert!(status.expect("cargo can be started").success(), "{name} does not build");
    }
    path
}

fn run(name: &str) -> String {
    let output = Command::new(built(name)).output().expect("it was built");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name}: {said}");
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn own_model_finds_the_weights() {
    assert!(run("own_model").starts_with("weights [2.00"));
}

#[test]
fn own_algorithm_sends_half_as_much() {
    assert!(run("own_algorithm").starts_with("mean parameter 2.5"));
}

#[test]
fn slow_worker_shows_who_waits() {
    let table = run("slow_worker");
    assert_eq!(table.lines().count(), 5, "{table}");
}

#[test]
fn two_machines_train_over_tcp() {
    assert!(run("two_machines").starts_with("loss "));
}

#[test]
fn plan_advises() {
    assert!(run("plan").lines().last().is_some_and(|line| line.starts_with("Take ")));
}

#[test]
fn every_example_is_run_here() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples");
    let mut names: Vec<String> = std::fs::read_dir(folder)
        .expect("there are examples")
        .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    let run = ["own_algorithm", "own_model", "plan", "slow_worker", "two_machines"];
    assert_eq!(names, run.map(|name| format!("{name}.rs")));
}
