//! Random runs with random faults, of the controller too: what must hold whatever goes wrong.

use quelea_sim::chaos::ChaosScenario;

/// `cargo xtask chaos --seeds 10000` runs more of them.
const SEEDS: u64 = 300;

#[test]
fn random_faults_break_nothing_that_must_hold() {
    for seed in 0..SEEDS {
        if let Err(failure) = ChaosScenario::new(seed).run() {
            panic!("{failure}\n  repeat it with: cargo xtask chaos --seed {seed}");
        }
    }
}
