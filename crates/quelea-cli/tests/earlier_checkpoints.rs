//! Checkpoints of an earlier release, kept under `fixtures`: they resume, and end with the bits that
//! the earlier release ended with.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Synchronous algorithms, without and with a server; the second is saved within a period.
const KEPT: &[&str] = &["allreduce", "aladdin-barrier"];

fn kept(algorithm: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/checkpoints-0.1").join(algorithm)
}

/// What a run that resumes from `checkpoint` ends with after `steps`.
fn resumed(driver: &str, checkpoint: &Path, steps: &str) -> Vec<u8> {
    let place = tempfile::tempdir().expect("a temporary folder");
    let mut command = Command::new(env!("CARGO_BIN_EXE_quelea"));
    command.args([driver, "--quiet", "--out", "run", "--set", steps, "--resume"]).arg(checkpoint);
    command.current_dir(place.path()).stdin(Stdio::null());
    let output = command.output().expect("the command can be started");
    assert!(output.status.success(), "{driver}: {}", String::from_utf8_lossy(&output.stderr));
    fs::read(place.path().join("run/final.safetensors")).expect("a run leaves its final model")
}

#[test]
fn a_checkpoint_of_version_0_1_ends_with_the_bits_that_version_0_1_ended_with() {
    for algorithm in KEPT {
        let expected = fs::read(kept(algorithm).join("final.safetensors")).expect("a kept file");
        for driver in ["simulate", "train"] {
            let found = resumed(driver, &kept(algorithm).join("step-10"), "steps=30");
            assert_eq!(found, expected, "{algorithm}, {driver}");
        }
    }
}

#[test]
fn the_kept_models_are_those_of_step_30_alone() {
    for algorithm in KEPT {
        let expected = fs::read(kept(algorithm).join("final.safetensors")).expect("a kept file");
        let earlier = resumed("simulate", &kept(algorithm).join("step-10"), "steps=29");
        assert_ne!(earlier, expected, "{algorithm}: one step less must end elsewhere");
    }
}
