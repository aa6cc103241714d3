//! `quelea train --transport mpi` under the real `mpirun`, against the same run over TCP and in the virtual cluster.

use std::path::Path;
use std::process::{Command, Output};

use tempfile::TempDir;

const RUN: &str =
    "steps = 20\nseed = 5\n[algorithm]\nname = \"d-psgd\"\n[task]\nname = \"digits-mlp\"\n";

fn folder() -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    std::fs::write(folder.path().join("run.toml"), RUN).expect("it can be written to");
    folder
}

fn quelea(folder: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quelea"));
    command.args(words).current_dir(folder).output().expect("it is built")
}

fn mpirun(folder: &Path, processes: usize, words: &[&str], spares: Option<&str>) -> Output {
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-n", &processes.to_string()]);
    command.arg(env!("CARGO_BIN_EXE_quelea")).args(words).current_dir(folder);
    command.envs(spares.map(|spares| ("QUELEA_SPARES", spares)));
    command.output().expect("mpirun is there: cargo xtask mpi installs it")
}

fn succeeded(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn model(folder: &Path, run: &str) -> Vec<u8> {
    std::fs::read(folder.join(run).join("final.safetensors")).expect("the run has written it")
}

#[test]
fn a_run_over_mpi_ends_with_the_file_that_tcp_and_the_virtual_cluster_end_with() {
    let folder = folder();
    let path = folder.path();
    let train = ["train", "run.toml", "--set", "workers=3", "--transport"];
    succeeded(&quelea(path, &["simulate", "run.toml", "--set", "workers=3", "--out", "virtual"]));
    succeeded(&quelea(path, &[&train[..], &["tcp", "--processes", "--out", "tcp"]].concat()));
    succeeded(&mpirun(path, 3, &[&train[..], &["mpi", "--out", "mpi"]].concat(), None));
    assert!(model(path, "mpi") == model(path, "tcp"));
    assert!(model(path, "mpi") == model(path, "virtual"));
    let summary = std::fs::read_to_string(path.join("mpi/summary.json")).expect("written");
    assert!(summary.contains("\"transport\": \"mpi\""), "{summary}");
}

#[test]
fn a_run_over_mpi_is_resumed_over_mpi() {
    let folder = folder();
    let path = folder.path();
    let whole = ["train", "run.toml", "--transport", "mpi", "--out", "whole"];
    succeeded(&mpirun(path, 2, &whole, None));
    let half = ["train", "run.toml", "--transport", "mpi", "--out", "half"];
    let early = ["--set", "steps=10", "--set", "checkpoint.every=5"];
    succeeded(&mpirun(path, 2, &[&half[..], &early].concat(), None));
    let resume = ["train", "--resume", "half", "--set", "steps=20", "--out", "resumed"];
    let refused = mpirun(path, 2, &resume, None);
    assert!(!refused.status.success());
    succeeded(&mpirun(path, 2, &[&resume[..], &["--transport", "mpi"]].concat(), None));
    assert!(model(path, "resumed") == model(path, "whole"));
}

#[test]
fn a_run_over_mpi_that_cannot_begin_says_why() {
    let folder = folder();
    let path = folder.path();
    let alone = quelea(path, &["train", "run.toml", "--processes", "--transport", "mpi"]);
    let said = String::from_utf8_lossy(&alone.stderr).into_owned();
    assert!(
        said.contains("`transport` = mpi: needs processes that mpirun or srun has started"),
        "{said}"
    );
    let spares = mpirun(path, 2, &["train", "run.toml", "--transport", "mpi"], Some("1"));
    let said = String::from_utf8_lossy(&spares.stderr).into_owned();
    assert!(!spares.status.success());
    assert!(
        said.contains("QUELEA_SPARES=1: nobody joins a run over MPI after its start"),
        "{said}"
    );
}
