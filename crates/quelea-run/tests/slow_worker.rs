//! A worker 20 times slower than the others does not spoil a run whose learning rate falls.

use quelea_run::config::Config;
use quelea_run::config::source::parse;
use quelea_run::drive;
use quelea_run::execute::execute;
use quelea_run::files::directory::Directory;
use quelea_run::prepared::PreparedRun;

/// How far a slow worker may move the final loss, in either direction.
const TOLERANCE: f64 = 0.05;

/// The rate falls after a half and after three quarters of the steps.
const STEP: &str = "{ name = \"step\", milestones = [HALF, LATE] }";
const COSINE: &str = "{ name = \"cosine\" }";
const OWN_STEP: &str = "{ name = \"step\", milestones = [HALF, LATE], clock = \"own\" }";

/// What a run trains with: the rate is so high that at the end of the schedule, not before, the
/// loss is that of the optimum.
struct Trial {
    algorithm: &'static str,
    lr: f64,
    steps: u64,
}

const ALADDIN: Trial = Trial { algorithm: "{ name = \"aladdin\" }", lr: 40.0, steps: 800 };
const AD_PSGD: Trial = Trial { algorithm: "{ name = \"ad-psgd\" }", lr: 40.0, steps: 800 };
const ASP: Trial = Trial { algorithm: "{ name = \"asp\" }", lr: 40.0, steps: 800 };
/// In push-sum a slow worker also gathers weight, which the others lack: at any rate their steps are
/// longer, and what they leave behind takes longer to decay.
const SGP: Trial =
    Trial { algorithm: "{ name = \"sgp\", free_running = true }", lr: 20.0, steps: 3200 };

impl Trial {
    /// The final loss of eight workers on the embedded data, one of them slow or none.
    fn loss(&self, schedule: &str, slow: bool) -> f64 {
        let Trial { algorithm, lr, steps } = self;
        let schedule = schedule.replace("HALF", &(steps / 2).to_string());
        let schedule = schedule.replace("LATE", &(steps * 3 / 4).to_string());
        let folder = tempfile::tempdir().expect("a temporary folder");
        let text = format!(
            "task = {{ name = \"logistic\", batch = 4, l2 = 0.01 }}\nworkers = 8\nsteps = {steps}\n\
             evaluations = 1\nplots = false\nalgorithm = {algorithm}\n\
             optimizer = {{ lr = {lr}, schedule = {schedule} }}\n{}",
            if slow { "cluster.slow = { 3 = 20.0 }" } else { "" }
        );
        let config = Config::read(parse(&text).expect("TOML"), &[], None).expect("good");
        let prepared = PreparedRun::new(config).expect("good");
        let out = folder.path().join("run");
        let directory = Directory::claim(Some(&out), false, "").expect("a new folder");
        let finished = execute(&prepared, &directory, &mut |_| {}, |observer| {
            drive::simulate(&prepared, observer)
        });
        finished.expect("it ends well").summary.loss.expect("finite")
    }

    fn both(&self, schedule: &str) -> (f64, f64) {
        let (alone, slow) = (self.loss(schedule, false), self.loss(schedule, true));
        println!("{} {schedule}: {alone:.4} undisturbed, {slow:.4} disturbed", self.algorithm);
        (alone, slow)
    }

    fn assert_not_spoilt(&self) {
        for schedule in [STEP, COSINE] {
            let (alone, slow) = self.both(schedule);
            assert!(
                (slow / alone - 1.0).abs() < TOLERANCE,
                "{} {schedule}: {slow} with a slow worker, {alone} without",
                self.algorithm
            );
        }
    }
}

#[test]
fn a_slow_worker_does_not_spoil_aladdin() {
    ALADDIN.assert_not_spoilt();
}

#[test]
fn a_slow_worker_does_not_spoil_ad_psgd() {
    AD_PSGD.assert_not_spoilt();
}

#[test]
fn a_slow_worker_does_not_spoil_asp() {
    ASP.assert_not_spoilt();
}

#[test]
fn a_slow_worker_does_not_spoil_free_running_sgp() {
    SGP.assert_not_spoilt();
}

#[test]
fn with_the_own_clock_a_slow_worker_keeps_its_high_rate() {
    for trial in [ALADDIN, AD_PSGD, ASP] {
        let (alone, slow) = trial.both(OWN_STEP);
        assert!(slow > 1.2 * alone, "{slow} with a slow worker, {alone} without");
    }
}
