//! Runs that come to rest at any moment, are saved, and continue from there.

mod support;

use quelea_core::algorithms::ALGORITHMS;
use quelea_core::properties::Budget;
use quelea_core::random::Rng;
use support::{Case, Lab};

/// The servers' step is complete or not begun when nothing is on its way, and they sent their model to
/// everybody: a late worker has it too, in whatever order models arrived.
#[test]
fn late_workers_stand_where_the_servers_do_once_the_run_rests() {
    for seed in 0..400 {
        let case = Case { steps: 12, servers: 2, ..Case::wide("sync-ps", 4, 7) };
        let case = case.with("backup", 1.0 + (seed % 3) as f64);
        let (mut lab, mut rng) = (Lab::new(&case), Rng::new(seed, "moment", 0));
        lab.some_events(&mut rng, 900);
        lab.rest(&mut rng);
        let step = lab.real(4, "steps.0").to_bits();
        for worker in 0..4 {
            assert_eq!(lab.nodes[worker].step(), step, "seed {seed}: worker {worker}");
            assert_eq!(lab.nodes[worker].params(), lab.server_model(), "seed {seed}: {worker}");
        }
    }
}

/// Whatever was forgotten of the time before the rest, nobody waits for it.
#[test]
fn a_run_of_rounds_that_was_saved_at_rest_ends() {
    for entry in ALGORITHMS {
        for (key, value) in [("", 0.0), ("backup", 2.0), ("staleness", 1.0)] {
            let servers = if entry.server.is_some() { 2 } else { 0 };
            let mut case = Case { steps: 12, servers, ..Case::wide(entry.meta.name, 4, 7) };
            if entry.meta.options.iter().any(|option| option.name == key) {
                case = case.with(key, value);
            } else if !key.is_empty() {
                continue;
            }
            let properties = case.setup().0.properties();
            if properties.synchronous || properties.budget != Budget::Rounds {
                continue;
            }
            for seed in 0..150 {
                let (mut lab, mut rng) = (Lab::new(&case), Rng::new(seed, "moment", 0));
                lab.some_events(&mut rng, 900);
                lab.rest(&mut rng);
                let saved = lab.saved();
                Lab::resumed(&case, &saved).run_to_end(&mut rng);
            }
        }
    }
}
