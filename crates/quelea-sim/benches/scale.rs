//! How fast the virtual cluster is: workers × steps of a small quadratic, and how time grows.
//!
//! `cargo bench -p quelea-sim --bench scale -- [--json]`
//!
//! Sizes take turns, several rounds, medians. The exponent is that of time in workers × steps:
//! 1 is linear.

#[path = "../tests/common/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod common;

use std::time::Instant;

use common::{Case, Shape};

/// Workers and steps; the second one is the size that is promised, the others show the growth.
const SIZES: [(usize, u64); 4] = [(256, 200), (1024, 200), (4096, 200), (1024, 800)];
const ROUNDS: usize = 5;

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    for name in ["d-psgd", "aladdin"] {
        let mut seconds = vec![Vec::new(); SIZES.len()];
        for _ in 0..ROUNDS {
            for (taken, (workers, steps)) in seconds.iter_mut().zip(SIZES) {
                taken.push(measure(name, workers, steps));
            }
        }
        let medians: Vec<f64> = seconds.into_iter().map(median).collect();
        let growth = |from: usize, to: usize| {
            let size = |(workers, steps): (usize, u64)| workers as f64 * steps as f64;
            (medians[to] / medians[from]).ln() / (size(SIZES[to]) / size(SIZES[from])).ln()
        };
        let (workers, steps) = (growth(0, 2), growth(1, 3));
        if json {
            println!(
                "{{\"name\": \"{name}, 1,024 workers × 200 steps\", \"goal\": \"< 2 s\", \
                 \"seconds\": {:.4}, \"exponent in workers\": {workers:.3}, \
                 \"exponent in steps\": {steps:.3}, \"peak MiB\": {}}}",
                medians[1],
                peak_mib()
            );
        } else {
            let shown = SIZES.iter().zip(&medians);
            shown.for_each(|((n, t), s)| println!("{name}: {n} workers × {t} steps: {s:.3} s"));
            println!("{name}: exponent {workers:.2} in workers, {steps:.2} in steps");
            println!("{name}: at most {} MiB", peak_mib());
        }
    }
}

fn measure(name: &str, workers: usize, steps: u64) -> f64 {
    let entry = quelea_core::algorithms::find(name).expect("an algorithm of the table");
    let servers = usize::from(entry.server.is_some());
    let case = Case::of(entry, Shape { workers, servers, len: 10, buckets: 1, steps });
    let start = Instant::now();
    let outcome = case.run();
    assert!(outcome.warnings.is_empty(), "{:?}", outcome.warnings);
    start.elapsed().as_secs_f64()
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

/// The most memory that the process ever had; 0 where the system does not tell.
fn peak_mib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) / 1024
}
