//! How fast the virtual cluster is: workers × steps of two algorithms on a small quadratic.
//!
//! `cargo run --release -p murmura-sim --example scale`

#[path = "../tests/common/mod.rs"]
#[allow(dead_code)]
mod common;

use std::time::Instant;

use common::{Case, Shape};

fn main() {
    println!("{:>10} {:>8} {:>6} {:>10} {:>10}", "algorithm", "workers", "steps", "seconds", "MiB");
    let given: Vec<String> = std::env::args().skip(1).collect();
    if let [name, workers, steps] = &given[..] {
        let number = |text: &String| text.parse().expect("a whole number");
        return measure(name, number(workers), number(steps) as u64);
    }
    for name in ["d-psgd", "aladdin", "sync-ps"] {
        for (workers, steps) in [(256, 200), (1024, 50), (1024, 200), (4096, 200)] {
            measure(name, workers, steps);
        }
    }
}

fn measure(name: &str, workers: usize, steps: u64) {
    let entry = murmura_core::algorithms::find(name).expect("an algorithm of the table");
    let servers = usize::from(entry.server.is_some());
    let case = Case::of(entry, Shape { workers, servers, len: 10, buckets: 1, steps });
    let start = Instant::now();
    let outcome = case.run();
    assert!(outcome.warnings.is_empty(), "{:?}", outcome.warnings);
    let seconds = start.elapsed().as_secs_f64();
    println!("{name:>10} {workers:>8} {steps:>6} {seconds:>10.3} {:>10}", peak_mib());
}

/// The most memory that the process ever had, where the system tells.
fn peak_mib() -> String {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.map_or_else(|| "?".to_string(), |kib| (kib / 1024).to_string())
}
