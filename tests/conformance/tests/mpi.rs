//! Runs over MPI, each in processes that the real `mpirun` starts: the same bits as in the virtual cluster.

use std::process::Command;

use conformance::forms::{self, AlgorithmForm};
use conformance::scenario::{counted, result, scenario_of};
use conformance::{Arm, plan};
use quelea_core::algorithms::ALGORITHMS;
use quelea_net::launcher::{Rendezvous, detect};
use quelea_net::{Coordinator, Hosted, JobError, NetOptions, join};
use quelea_record::{Observer, Record};
use quelea_run::drive::slowed;

struct Silent;

impl Observer for Silent {
    fn record(&mut self, _record: Record) {}
}

/// Not a test by itself: what `mpirun` starts.
#[test]
fn launched_process() {
    let variable = |name: &str| std::env::var(name).ok();
    let (Some(scenario), Some(path)) =
        (variable("QUELEA_TEST_SCENARIO"), variable("QUELEA_TEST_RESULT"))
    else {
        return;
    };
    let plan = plan(&scenario);
    let mut launched = detect(variable).expect("usable").expect("a launcher");
    launched.rendezvous = Rendezvous::Mpi;
    if launched.rank > 0 {
        let mut build =
            |_: &[u8]| -> Result<_, JobError> { Ok((plan.setup.clone(), slowed(&plan))) };
        let place = launched.rendezvous.to_join();
        join(&place, Some(launched.rank), &NetOptions::default(), &mut build).expect("it ends");
        return;
    }
    let coordinator = Coordinator::of_launch(&launched, NetOptions::default()).expect("it listens");
    let hosted = Hosted { workers: vec![0] };
    let (setup, gradients) = (&plan.setup, slowed(&plan));
    let outcome = coordinator.run(Vec::new(), setup, &gradients, &hosted, &mut Silent);
    let found = format!("{:?}", counted(&outcome.expect("it ends")));
    std::fs::write(path, found).expect("a folder for it");
}

/// Parameters, bytes and messages of every rank.
fn over_mpi(scenario: &str, workers: usize) -> String {
    let result = std::env::temp_dir().join(format!("quelea-mpi-test-{}", std::process::id()));
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "-n", &workers.to_string()])
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", "launched_process"])
        .env("QUELEA_TEST_SCENARIO", scenario)
        .env("QUELEA_TEST_RESULT", &result)
        .output()
        .expect("mpirun is there: cargo xtask mpi installs it");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let found = std::fs::read_to_string(&result).expect("rank 0 has written it");
    std::fs::remove_file(&result).expect("it was there");
    found
}

fn check(form: &AlgorithmForm, scenario: &str, workers: usize) {
    let expected = format!("{:?}", result(Arm::Virtual, &plan(scenario)));
    assert!(over_mpi(scenario, workers) == expected, "n = {workers}, {}", form.text());
}

/// One synchronous form of each algorithm that has any.
fn first_synchronous() -> Vec<AlgorithmForm> {
    let first =
        |entry| forms::forms_of(entry).into_iter().find(|form| form.properties().synchronous);
    ALGORITHMS.iter().filter_map(first).collect()
}

/// One test at a time launches processes: they are more than this machine has cores.
#[test]
fn synchronous_algorithms_give_the_same_bits_and_bytes_over_mpi() {
    let forms = first_synchronous();
    for form in &forms {
        check(form, &scenario_of(form, 4, 12, ""), 4);
    }
    let many = ["allreduce", "d-psgd", "sync-ps"];
    for form in forms.iter().filter(|form| many.contains(&form.entry.meta.name)) {
        for workers in [1, 2, 3, 5, 6, 7, 8] {
            check(form, &scenario_of(form, workers, 12, ""), workers);
        }
        // Vectors that travel by themselves, and are received where they stay.
        for dimensions in [20_000, 300_000] {
            let scenario = format!(
                "workers = 4\nsteps = 6\n[algorithm]\n{}\n[buckets]\nsize_mb = 0.4\n\
                 [task]\nname = \"quadratic\"\ndimensions = {dimensions}\nnoise_std = 0.5\n\
                 curvature = [[1], [2], [3], [4]]\ntarget = [[1], [-2], [0.5], [3]]\n\
                 [optimizer]\nlr = 0.05\n[cluster]\nservers = 2",
                form.text()
            );
            check(form, &scenario, 4);
        }
    }
    // Partners that change at every step: frames are written in the order of steps.
    for form in forms.iter().filter(|form| form.entry.meta.name == "d-psgd") {
        let more = "[topology]\nname = \"one-peer-exponential\"";
        check(form, &scenario_of(form, 8, 12, more), 8);
    }
}
