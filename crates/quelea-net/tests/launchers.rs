//! Runs under a real launcher, where there is one.

mod common;

use std::process::Command;

use common::{Run, Watch, bits, worker};
use quelea_net::launcher::detect;
use quelea_net::{Coordinator, Hosted, NetOptions};

/// What every process does, whoever has launched it.
fn take_part(run: &Run, result: &str) {
    let launched = detect(|name| std::env::var(name).ok()).expect("usable").expect("a launcher");
    assert_eq!(launched.world as usize, run.workers);
    if launched.rank > 0 {
        return worker(&launched.rendezvous.to_join(), Some(launched.rank)).expect("it takes part");
    }
    let coordinator = Coordinator::of_launch(&launched, NetOptions::default()).expect("it listens");
    let hosted = Hosted { workers: vec![0] };
    let (setup, gradients) = (run.setup(), run.gradients());
    let outcome = coordinator.run(run.job(), &setup, &gradients, &hosted, &mut Watch::new());
    let bits = format!("{:?}", bits(&outcome.expect("it ends")));
    std::fs::write(result, bits).expect("a folder for it");
}

/// Not a test by itself: what the launchers launch.
#[test]
fn launched_process() {
    let (Ok(job), Ok(result)) =
        (std::env::var("QUELEA_TEST_JOB"), std::env::var("QUELEA_TEST_RESULT"))
    else {
        return;
    };
    take_part(&Run::parse(job.as_bytes()), &result);
}

fn launch(command: &mut Command, run: &Run, name: &str) -> String {
    let result = std::env::temp_dir().join(format!("quelea-{name}-{}", std::process::id()));
    let status = command
        .arg(std::env::current_exe().expect("this test"))
        .args(["--exact", "launched_process"])
        .env("QUELEA_TEST_JOB", String::from_utf8(run.job()).expect("text"))
        .env("QUELEA_TEST_RESULT", &result)
        .output()
        .expect("the launcher starts");
    assert!(status.status.success(), "{}", String::from_utf8_lossy(&status.stderr));
    let bits = std::fs::read_to_string(&result).expect("rank 0 has written it");
    std::fs::remove_file(&result).expect("it was there");
    bits
}

#[test]
fn mpirun_gives_the_same_bits_as_threads() {
    if Command::new("mpirun").arg("--version").output().is_err() {
        eprintln!("skipped: mpirun is not installed (Debian: openmpi-bin)");
        return;
    }
    for name in ["allreduce", "sync-ps"] {
        let run = Run::of(name, 4);
        let mut mpirun = Command::new("mpirun");
        mpirun.args(["--allow-run-as-root", "--oversubscribe", "-n", "4"]);
        let there = launch(&mut mpirun, &run, name);
        assert_eq!(there, format!("{:?}", bits(&run.threads().expect("threads"))));
    }
}

#[test]
fn variables_set_by_hand_are_enough() {
    let run = Run::of("d-psgd", 2);
    let free = common::coordinator(NetOptions::default()).address();
    let process = |rank: u32| {
        let mut env = Command::new("env");
        env.env("QUELEA_RANK", rank.to_string())
            .env("QUELEA_WORLD_SIZE", "2")
            .env("QUELEA_RENDEZVOUS", free.to_string());
        env
    };
    let there = std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let status = process(1)
                .arg(std::env::current_exe().expect("this test"))
                .args(["--exact", "launched_process"])
                .env("QUELEA_TEST_JOB", String::from_utf8(run.job()).expect("text"))
                .env("QUELEA_TEST_RESULT", "unused")
                .output();
            assert!(status.expect("it starts").status.success());
        });
        let there = launch(&mut process(0), &run, "by-hand");
        other.join().expect("it took part");
        there
    });
    assert_eq!(there, format!("{:?}", bits(&run.threads().expect("threads"))));
}
