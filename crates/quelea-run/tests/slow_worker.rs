//! A worker 20 times slower than the others does not spoil a run whose learning rate falls.

use quelea_run::config::Config;
use quelea_run::config::source::parse;
use quelea_run::drive;
use quelea_run::execute::execute;
use quelea_run::files::directory::Directory;
use quelea_run::prepared::PreparedRun;

/// How far a slow worker may move the final loss, in either direction.
const TOLERANCE: f64 = 0.05;

const STEP: &str = "{ name = \"step\", milestones = [200, 300] }";
const COSINE: &str = "{ name = \"cosine\" }";
const OWN_STEP: &str = "{ name = \"step\", milestones = [200, 300], clock = \"own\" }";

/// The final loss of eight workers on the embedded data.
fn loss(algorithm: &str, schedule: &str, slow: bool) -> f64 {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = format!(
        "task = {{ name = \"logistic\", batch = 1 }}\nworkers = 8\nsteps = 400\nevaluations = 1\n\
         plots = false\nalgorithm = {algorithm}\n\
         optimizer = {{ lr = 2.0, schedule = {schedule} }}\n{}",
        if slow { "cluster.slow = { 3 = 20.0 }" } else { "" }
    );
    let config = Config::read(parse(&text).expect("TOML"), &[], None).expect("good");
    let prepared = PreparedRun::new(config).expect("good");
    let directory = Directory::claim(Some(&folder.path().join("run")), false, "").expect("new");
    let finished =
        execute(&prepared, &directory, &mut |_| {}, |observer| drive::simulate(&prepared, observer));
    finished.expect("it ends well").summary.loss.expect("finite")
}

fn assert_unmoved(algorithm: &str) {
    for schedule in [STEP, COSINE] {
        let (alone, slow) = (loss(algorithm, schedule, false), loss(algorithm, schedule, true));
        println!("{algorithm} {schedule}: {alone:.4} undisturbed, {slow:.4} with a slow worker");
        assert!(
            (slow / alone - 1.0).abs() < TOLERANCE,
            "{algorithm} {schedule}: {slow} with a slow worker, {alone} without"
        );
    }
}

#[test]
fn a_slow_worker_does_not_spoil_aladdin() {
    assert_unmoved("{ name = \"aladdin\" }");
}

#[test]
fn a_slow_worker_does_not_spoil_ad_psgd() {
    assert_unmoved("{ name = \"ad-psgd\" }");
}

#[test]
fn a_slow_worker_does_not_spoil_asp() {
    assert_unmoved("{ name = \"asp\" }");
}

#[test]
fn a_slow_worker_does_not_spoil_free_running_sgp() {
    assert_unmoved("{ name = \"sgp\", free_running = true }");
}

#[test]
fn with_the_own_clock_a_slow_worker_keeps_its_high_rate() {
    let algorithm = "{ name = \"asp\" }";
    let (alone, slow) = (loss(algorithm, OWN_STEP, false), loss(algorithm, OWN_STEP, true));
    println!("asp with the own clock: {alone:.4} undisturbed, {slow:.4} with a slow worker");
    assert!(slow > 1.5 * alone, "{slow} with a slow worker, {alone} without");
}
