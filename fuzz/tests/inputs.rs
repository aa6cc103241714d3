//! A fixed number of inputs to every target, in the test command. One test only: memory is counted per process.

use quelea_fuzz::campaign::{self, InputRange};
use quelea_fuzz::target;

/// Of all targets together; `cargo xtask fuzz` runs 10^7.
const INPUTS: u64 = 100_000;

#[test]
fn no_input_makes_a_reader_panic_hang_or_take_much_memory() {
    let shares: u64 = target::all().map(|target| target.share).sum();
    let mut failures = Vec::new();
    for target in target::all() {
        let range = InputRange { seed: 1, first: 0, count: INPUTS * target.share / shares + 1 };
        // Named before it runs: an input that ends the process cannot be named afterwards.
        println!("{}: {} inputs", target.name, range.count);
        let report = campaign::run(target, range, None).expect("a temporary folder");
        println!("  {:.2} s, at most {} bytes", report.seconds, report.peak_bytes);
        failures.extend(report.failure.map(|failure| failure.to_string()));
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
