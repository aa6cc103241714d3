//! Random runs with random faults, of the controller too: what must hold whatever goes wrong.

use quelea_sim::chaos::ChaosScenario;

/// `cargo xtask chaos --seeds 10000` runs more of them.
const SEEDS: u64 = 300;

#[test]
fn random_faults_break_nothing_that_must_hold() {
    let mut failures = Vec::new();
    for seed in 0..SEEDS {
        if let Err(failure) = ChaosScenario::new(seed).run() {
            failures.push(format!("{failure}\n  repeat it with: cargo xtask chaos --seed {seed}"));
        }
    }
    let shown = failures.iter().take(5).cloned().collect::<Vec<_>>().join("\n\n");
    assert!(failures.is_empty(), "{} of {SEEDS} seeds failed:\n{shown}", failures.len());
}
