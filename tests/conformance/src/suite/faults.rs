//! Clusters in which much goes wrong, by seed.

use quelea_core::random::Rng;
use quelea_core::time::Time;
use quelea_sim::{Cluster, Crash, Flight, Pause, Rule, Verdict};

/// Any costs, delays of every message, a pause, and the loss of some workers but of the first.
pub(super) fn disturb(cluster: &mut Cluster, workers: u32, seed: u64) {
    let mut rng = Rng::new(seed, "conformance faults", 0);
    let mut pick = |choices: &[f64]| choices[rng.below(choices.len() as u64) as usize];
    cluster.compute_ms = 1.0;
    cluster.compute_cv = pick(&[0.0, 0.3, 1.0]);
    cluster.latency_us = pick(&[0.0, 50.0, 3000.0]);
    cluster.bandwidth_gbps = pick(&[0.001, 10.0]);
    cluster.detect_ms = pick(&[0.0, 0.5, 3.0, 20.0]);
    cluster.slow.insert(0, pick(&[1.0, 1.0, 7.0]));
    cluster.link_messages = pick(&[0.0, 0.0, 1.0, 3.0]) as u32;
    cluster.faults.pauses = vec![Pause { rank: 0, from_ms: 4.0, until_ms: 9.0 }];
    let longest = pick(&[0.0, 5e6]) as u64 + 1;
    let lost = pick(&[0.0, 1.0, 2.0, 4.0]) as u32;
    cluster.faults.rules = vec![Rule::function(move |flight: &Flight| {
        Verdict::Delay(Time(Rng::new(seed, "delay", flight.number).below(longest)))
    })];
    for rank in 1..=lost.min(workers - 1) {
        cluster.faults.crashes.push(Crash { rank, at_ms: rng.uniform() * 40.0 });
    }
}
