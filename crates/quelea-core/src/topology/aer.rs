//! The alternating exponential ring of Decent-DP, for workers that share hosts.
//!
//! ```text
//! for r in 0..log2(hosts):
//!     for the p-th pair of hosts (j, j xor 2^r), by j:
//!         p even:  slot 2r each host by itself,    slot 2r+1 both hosts together
//!         p odd:   slot 2r both hosts together,    slot 2r+1 each host by itself
//! ```
//!
//! So in every slot half of the pairs use the network between hosts. The product of a period
//! is exactly the mean. One host alone takes its mean in every round.

use std::collections::BTreeMap;

use super::weights::groups;
use super::{Round, Schedule, TopologyError, TopologyRequest, TopologyShape};

pub(super) fn aer(request: &TopologyRequest) -> Result<Schedule, TopologyError> {
    let hosts = workers_by_host(request.hosts)?;
    let n = request.hosts.len();
    let rounds = match hosts.len().ilog2() {
        0 => vec![groups(n, &hosts)],
        bits => (0..2 * bits).map(|slot| round(n, &hosts, slot)).collect(),
    };
    Ok(Schedule::periodic(rounds).shaped(TopologyShape::Hosts(request.hosts.to_vec())))
}

fn round(workers: usize, hosts: &[Vec<usize>], slot: u32) -> Round {
    let bit = 1 << (slot / 2);
    let firsts = (0..hosts.len()).filter(|host| host & bit == 0);
    let mut averaged = Vec::new();
    for (place, host) in firsts.enumerate() {
        let (one, other) = (&hosts[host], &hosts[host ^ bit]);
        if place % 2 == slot as usize % 2 {
            averaged.extend([one.clone(), other.clone()]);
        } else {
            averaged.push([one.as_slice(), other].concat());
        }
    }
    groups(workers, &averaged)
}

/// The workers of each host, hosts in order of their numbers: a power of two, all alike.
fn workers_by_host(hosts: &[u32]) -> Result<Vec<Vec<usize>>, TopologyError> {
    let mut by_host: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (worker, host) in hosts.iter().enumerate() {
        by_host.entry(*host).or_default().push(worker);
    }
    let refuse = |problem| Err(TopologyError::Hosts { topology: "aer", problem });
    let count = by_host.len();
    if !count.is_power_of_two() {
        let above = count.next_power_of_two();
        return refuse(format!(
            "needs a power of two hosts: {count} hosts do not work, {} and {above} do",
            above / 2
        ));
    }
    let most = by_host.iter().max_by_key(|(_, workers)| workers.len());
    let fewest = by_host.iter().min_by_key(|(_, workers)| workers.len());
    if let (Some((a, many)), Some((b, few))) = (most, fewest)
        && many.len() != few.len()
    {
        return refuse(format!(
            "needs equally many workers on each host: host {a} has {}, host {b} has {}; {} \
             workers on these {count} hosts would do",
            many.len(),
            few.len(),
            many.len() * count
        ));
    }
    Ok(by_host.into_values().collect())
}
