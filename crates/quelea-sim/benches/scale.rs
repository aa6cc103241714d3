//! How fast the virtual cluster is: workers × steps of a small quadratic, and how time grows.
//!
//! `cargo bench -p quelea-sim --bench scale -- [--json] [--once NAME WORKERS STEPS NEIGHBOURS]`
//!
//! Sizes take turns, several rounds, medians. The exponent is that of time in workers × steps:
//! 1 is linear. With `--once` one size is run once, for a profile.

#[path = "../tests/common/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod common;

use std::sync::Arc;
use std::time::Instant;

use common::{Case, Shape};
use quelea_core::topology::{Round, Schedule};
use quelea_core::view::View;

/// One run.
#[derive(Clone, Copy)]
struct Size {
    workers: usize,
    steps: u64,
    /// Neighbours in a circle, half of them on either side.
    neighbours: usize,
}

impl Size {
    const fn of(workers: usize, steps: u64) -> Size {
        Size { workers, steps, neighbours: 2 }
    }

    fn work(self) -> f64 {
        self.workers as f64 * self.steps as f64
    }
}

/// The second one is the size that is promised, the others show the growth.
const SIZES: [Size; 5] = [
    Size::of(256, 200),
    Size::of(1024, 200),
    Size::of(4096, 200),
    Size::of(8192, 200),
    Size::of(1024, 800),
];
/// Where most of the work is in messages.
const MANY_NEIGHBOURS: Size = Size { neighbours: 10, ..Size::of(1024, 200) };
const ROUNDS: usize = 5;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    if let Some(place) = arguments.iter().position(|argument| argument == "--once") {
        return once(&arguments[place + 1..]);
    }
    let json = arguments.iter().any(|argument| argument == "--json");
    for name in ["d-psgd", "aladdin"] {
        growth(name, json);
    }
    let seconds = median((0..ROUNDS).map(|_| measure("d-psgd", MANY_NEIGHBOURS)).collect());
    let title = "d-psgd, 1,024 workers × 200 steps, 10 neighbours";
    if json {
        println!("{{\"name\": \"{title}\", \"goal\": \"< 1 s\", \"seconds\": {seconds:.4}}}");
    } else {
        println!("{title}: {seconds:.3} s");
    }
}

/// Measures all sizes, and how time grows from one to another.
fn growth(name: &str, json: bool) {
    let mut seconds = vec![Vec::new(); SIZES.len()];
    for _ in 0..ROUNDS {
        for (taken, size) in seconds.iter_mut().zip(SIZES) {
            taken.push(measure(name, size));
        }
    }
    let medians: Vec<f64> = seconds.into_iter().map(median).collect();
    let growth = |from: usize, to: usize| {
        (medians[to] / medians[from]).ln() / (SIZES[to].work() / SIZES[from].work()).ln()
    };
    let (workers, steps) = (growth(0, 3), growth(1, 4));
    if json {
        println!(
            "{{\"name\": \"{name}, 1,024 workers × 200 steps\", \"goal\": \"< 2 s\", \
             \"seconds\": {:.4}, \"exponent in workers\": {workers:.3}, \
             \"exponent in steps\": {steps:.3}, \"peak MiB\": {}}}",
            medians[1],
            peak_mib()
        );
        return;
    }
    for (Size { workers, steps, .. }, seconds) in SIZES.iter().zip(&medians) {
        println!("{name}: {workers} workers × {steps} steps: {seconds:.3} s");
    }
    println!("{name}: exponent {workers:.2} in workers, {steps:.2} in steps");
    println!("{name}: at most {} MiB", peak_mib());
}

/// One run of the size that the arguments say.
fn once(arguments: &[String]) {
    let number = |place: usize| -> usize {
        arguments.get(place).and_then(|text| text.parse().ok()).expect("NAME and three numbers")
    };
    let size = Size { workers: number(1), steps: number(2) as u64, neighbours: number(3) };
    let seconds = measure(&arguments[0], size);
    println!("{seconds:.4} s, at most {} MiB", peak_mib());
}

fn measure(name: &str, size: Size) -> f64 {
    let Size { workers, steps, neighbours } = size;
    let entry = quelea_core::algorithms::find(name).expect("an algorithm of the table");
    let servers = usize::from(entry.server.is_some());
    let mut case = Case::of(entry, Shape { workers, servers, len: 10, buckets: 1, steps });
    let hosts = Arc::clone(&case.setup.view.hosts);
    let topology = Some(Arc::new(circle(workers, neighbours / 2)));
    case.setup.view = Arc::new(View::first(workers, servers, hosts, topology));
    let start = Instant::now();
    let outcome = case.run();
    assert!(outcome.warnings.is_empty(), "{:?}", outcome.warnings);
    start.elapsed().as_secs_f64()
}

/// Everybody mixes with so many on either side, with equal weights.
fn circle(n: usize, reach: usize) -> Schedule {
    let row = |i: usize| {
        let mut members: Vec<usize> =
            (0..=2 * reach).map(|offset| (i + n + offset - reach) % n).collect();
        members.sort_unstable();
        let weight = 1.0 / members.len() as f64;
        members.into_iter().map(|j| (j, weight)).collect()
    };
    Schedule::periodic(vec![Round::new((0..n).map(row).collect())])
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
