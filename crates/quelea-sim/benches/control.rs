//! What the controller of a run exchanges with its ranks, for 64 to 4,096 workers: control messages travel through the
//! simulated network, between the ranks' cards and one of the controller's own.
//!
//! `cargo bench -p quelea-sim --bench control -- [--json]`
//!
//! Nothing is timed: the numbers are the same on every machine. `share of the card` is how much of the virtual time
//! the controller's card (25 Gbit/s) was busy with what it received.

#[path = "../tests/common/mod.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod common;

use common::{Case, Shape};
use quelea_sim::{Cluster, ControlPath};

const WORKERS: [usize; 4] = [64, 256, 1024, 4096];
const STEPS: u64 = 50;
const COMPUTE_MS: f64 = 100.0;
const GBPS: f64 = 25.0;

fn main() {
    let json = std::env::args().any(|argument| argument == "--json");
    for name in ["d-psgd", "aladdin"] {
        for workers in WORKERS {
            measure(name, workers, json);
        }
    }
}

fn measure(name: &str, workers: usize, json: bool) {
    let case = Case::new(name, Shape { workers, servers: 0, len: 10, buckets: 1, steps: STEPS });
    let case = case.on(|cluster| {
        *cluster = Cluster {
            control: ControlPath::Network,
            compute_ms: COMPUTE_MS,
            bandwidth_gbps: GBPS,
            latency_us: 50.0,
            ..cluster.clone()
        };
    });
    let silent = &mut quelea_record::Silent;
    let (outcome, load) =
        quelea_sim::simulate_counted(&case.setup, &case.problem, &case.cluster, silent)
            .expect("the run ends well");
    let each = (workers as u64 * STEPS) as f64;
    let (received, sent) = (load.received as f64 / each, load.sent as f64 / each);
    let bytes = (load.received_bytes + load.sent_bytes) as f64 / each;
    let seconds = outcome.clock_seconds;
    let rate = (load.received + load.sent) as f64 / seconds;
    let share = load.received_bytes as f64 * 8.0 / (GBPS * 1e9) / seconds;
    let ideal = STEPS as f64 * COMPUTE_MS / 1e3;
    let title = format!("{name}, {workers} workers");
    if json {
        println!(
            "{{\"name\": \"{title}\", \"received per worker and step\": {received:.3}, \
             \"sent per worker and step\": {sent:.3}, \"bytes per worker and step\": {bytes:.1}, \
             \"messages per second\": {rate:.0}, \"share of the card\": {share:.6}, \
             \"time / computing\": {:.3}}}",
            seconds / ideal
        );
    } else {
        println!(
            "{title}: {received:.2} received and {sent:.2} sent per worker and step, {bytes:.0} bytes; \
             {rate:.0} messages/s, {:.4} % of the card; {:.3} of the time of computing",
            share * 100.0,
            seconds / ideal
        );
    }
}
