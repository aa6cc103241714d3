//! Real processes are killed while they train: others take their places, and runs end where undisturbed ones do.
#![cfg(unix)]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use quelea_core::registry::Registry;
use quelea_run::chaos::{Incident, ProcessChaos, ProcessChaosRun};
use quelea_run::config::Config;
use quelea_run::config::source::parse;
use quelea_run::drive::{self, Joining, ProcessOptions};
use quelea_run::execute::{Finished, execute};
use quelea_run::files::directory::Directory;
use quelea_run::prepared::PreparedRun;

/// Not a test by itself: what the processes of the workers run, as `quelea join` does.
#[test]
fn child_process() {
    let Ok(address) = std::env::var("QUELEA_TEST_COORDINATOR") else { return };
    let rank = std::env::var("QUELEA_TEST_RANK").ok().and_then(|rank| rank.parse().ok());
    drive::end_with_parent();
    let joining = Joining { rank, wait_seconds: 60.0, ..Joining::default() };
    let ended = drive::join(&Registry::builtin(), &address, &joining, None);
    if let Err(error) = &ended {
        eprintln!("error: {error}");
    }
    std::process::exit(i32::from(ended.is_err()));
}

/// A command that takes the arguments of `quelea join` and runs [`child_process`].
fn worker_command(folder: &Path) -> PathBuf {
    let path = folder.join("worker");
    let test = std::env::current_exe().expect("this test");
    let script = format!(
        "#!/bin/sh\nQUELEA_TEST_COORDINATOR=$2 QUELEA_TEST_RANK=$4 exec {} --exact child_process --nocapture\n",
        test.display()
    );
    fs::write(&path, script).expect("written");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("permitted");
    path
}

/// Every worker has the same minimum: whose gradients are missing for a while does not matter.
fn prepared(algorithm: &str, steps: u64, seed: u64) -> PreparedRun {
    let file = format!(
        "workers = 4\nsteps = {steps}\nseed = {seed}\nevaluations = 1\n[algorithm]\nname = \"{algorithm}\"\n\
         [task]\nname = \"quadratic\"\ndimensions = 50\nnoise_std = 0.3\ncompute_ms = 2.0\n\
         target = [[1.0], [1.0], [1.0], [1.0]]\n"
    );
    PreparedRun::new(Config::read(parse(&file).expect("TOML"), &[], None).expect("good"))
        .expect("good")
}

fn simulated(algorithm: &str, steps: u64, seed: u64, folder: &Path) -> f64 {
    let prepared = prepared(algorithm, steps, seed);
    let out = folder.join(format!("reference-{seed}"));
    let directory = Directory::claim(Some(&out), false, "").expect("new");
    let finished = execute(&prepared, &directory, &mut |_| {}, |recorder| {
        drive::simulate(&prepared, recorder)
    });
    finished.expect("it ends well").summary.loss.expect("a loss")
}

/// Kills processes of a real run at random.
fn disturbed(
    prepared: &PreparedRun,
    plan: ProcessChaos,
    folder: &Path,
) -> (Finished, Vec<Incident>) {
    let command = worker_command(folder);
    let chaos = ProcessChaosRun::new(plan, prepared.config.workers);
    let options = ProcessOptions { restarts: 3 * plan.kills, ..ProcessOptions::new(&command) };
    let directory = Directory::claim(Some(&folder.join("run")), false, "").expect("new");
    let finished = execute(prepared, &directory, &mut |record| chaos.take(record), |recorder| {
        let _disturbing = chaos.start();
        drive::processes(prepared, &options, recorder)
    });
    let finished = finished.unwrap_or_else(|error| panic!("{error}: {:#?}", chaos.incidents()));
    assert_eq!(chaos.violations(), [""; 0], "{:#?}", chaos.incidents());
    (finished, chaos.incidents())
}

fn survives_ten_kills(algorithm: &str) {
    const STEPS: u64 = 3000;
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plan = ProcessChaos { kills: 10, pauses: 0, mean_seconds: 0.3, survivors: 2, seed: 7 };
    let (finished, incidents) = disturbed(&prepared(algorithm, STEPS, 1), plan, folder.path());
    let summary = &finished.summary;
    assert_eq!(incidents.len(), 10, "{algorithm}: {incidents:#?}");
    // The last ones may have come so late that the run had ended before.
    let joined = incidents.iter().filter(|incident| incident.joined_seconds.is_some()).count();
    assert!(joined >= 5, "{algorithm}: {incidents:#?}");
    let sentences =
        |text: &str| summary.warnings.iter().filter(|warning| warning.contains(text)).count();
    assert!(
        sentences("was killed by signal 9; it is started again") >= 5,
        "{:#?}",
        summary.warnings
    );
    let losses: Vec<f64> =
        (2..8).map(|seed| simulated(algorithm, STEPS, seed, folder.path())).collect();
    let mean = losses.iter().sum::<f64>() / losses.len() as f64;
    let squares: f64 = losses.iter().map(|loss| (loss - mean).powi(2)).sum();
    let deviation = (squares / (losses.len() as f64 - 1.0)).sqrt();
    let loss = summary.loss.expect("a loss");
    // The mean of six has an uncertainty of its own.
    let most = 3.0 * deviation * (1.0 + 1.0 / losses.len() as f64).sqrt();
    assert!((loss - mean).abs() < most, "{algorithm}: {loss}, undisturbed {mean} ± {deviation}");
}

/// One after the other: the processes of a run are killed by their worker's number.
#[test]
fn runs_survive_ten_kills_each_and_end_where_undisturbed_ones_do() {
    for algorithm in ["allreduce", "ad-psgd"] {
        survives_ten_kills(algorithm);
    }
}
