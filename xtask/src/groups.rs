//! `cargo xtask bench groups`: groups of a topology that average by all-reduce, against the same
//! groups sending models one by one, over TCP between shaped hosts with two workers each; and both
//! against their prediction in the virtual cluster.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use crate::network::ShapedNetwork;
use crate::reality::{HOSTS, Link, WORKER_HOSTS, Workers, processes, settings, simulate};

pub(crate) const NAME: &str = "groups";
pub(crate) const WHAT: &str =
    "group averages by all-reduce and by sending, 4 hosts × 2 workers on shaped links";

/// Megabits per second.
const RATE: u32 = 1000;
const PER_HOST: usize = 2;
const ALGORITHM: &str = "d-psgd"; // names: example
const TOPOLOGIES: [&str; 2] = ["aer", "complete"];

/// Predicted and measured time of a step for each topology and exchange, and how much faster
/// all-reduce is.
pub(crate) fn measure(quelea: &Path) -> Result<Vec<Value>> {
    let network = ShapedNetwork::new(HOSTS, RATE)?;
    let link = network.links(quelea, Workers { hosts: WORKER_HOSTS, per_host: PER_HOST })?;
    let mut rows = Vec::new();
    for topology in TOPOLOGIES {
        let mut measured = Vec::new();
        for exchange in ["all-reduce", "send"] {
            let settings = grouped(topology, exchange);
            let seconds = network.run(
                quelea,
                &settings,
                Workers { hosts: WORKER_HOSTS, per_host: PER_HOST },
            )?;
            let predicted = predict(quelea, settings, &link)?;
            measured.push(seconds);
            rows.push(json!({
                "name": format!("{ALGORITHM} on {topology}, groups {exchange}, {RATE} Mbit/s"),
                "ratio": predicted / seconds,
                "goal": "0.85 to 1.15",
                "predicted_ms": predicted * 1e3,
                "measured_ms": seconds * 1e3,
            }));
        }
        rows.push(json!({
            "name": format!("{ALGORITHM} on {topology}, sending against all-reduce"),
            "ratio": measured[1] / measured[0],
            "goal": 1.0,
        }));
    }
    rows.iter().for_each(|row| println!("  {row}"));
    Ok(rows)
}

fn grouped(topology: &str, exchange: &str) -> Vec<String> {
    let mut settings = settings(ALGORITHM);
    settings.extend([
        format!("workers={}", WORKER_HOSTS * PER_HOST),
        format!("cluster.hosts={WORKER_HOSTS}"),
        format!("topology.name={topology}"),
        format!("topology.groups={exchange}"),
    ]);
    settings
}

/// Seconds of a step in the virtual cluster with the links that were measured. What a step takes
/// beside the wire is that of the same run without shaped links: all workers share the processors
/// of this machine, whatever they exchange.
fn predict(quelea: &Path, mut settings: Vec<String>, link: &Link) -> Result<f64> {
    let unshaped = processes(quelea, &settings)?;
    settings.extend([
        format!("cluster.bandwidth_gbps={}", link.stream * 8e-9),
        format!("cluster.compute_ms={}", unshaped * 1e3),
        "cluster.backward_share=0".to_string(),
        "cluster.latency_us=100".to_string(),
    ]);
    settings.extend(link.inside.map(|rate| format!("cluster.internal_gbps={}", rate * 8e-9)));
    simulate(quelea, &settings)
}
