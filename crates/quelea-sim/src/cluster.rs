//! The cluster that is simulated: cards, links, speeds, and costs beside the wire.

use std::collections::{BTreeMap, BTreeSet};

use quelea_core::node::RunSpec;

use crate::faults::Faults;

/// All knobs of the virtual cluster, units in the names. `docs/virtual-cluster.md` defines each.
///
/// `gbps` is 10⁹ bits per second, `gbs` is 10⁹ bytes per second.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Bandwidth of every host's network card, in each direction.
    pub bandwidth_gbps: f64,
    /// Hosts whose card differs, by number of the host.
    pub host_bandwidth_gbps: BTreeMap<u32, f64>,
    /// From the first byte leaving one host to its arrival at another.
    pub latency_us: f64,
    /// Bandwidth of every rank's link to the other ranks of its host, in each direction.
    pub internal_gbps: f64,
    /// As `latency_us`, inside a host.
    pub internal_latency_us: f64,
    /// Mean time of one gradient.
    pub compute_ms: f64,
    /// Coefficient of variation of that time (log-normal); 0 means constant.
    pub compute_cv: f64,
    /// The share of a gradient's time that is backward: only then do buckets become ready.
    pub backward_share: f64,
    /// Workers whose gradients take this many times as long, by rank.
    pub slow: BTreeMap<u32, f64>,
    /// Fixed time that a worker spends on giving a vector to the network.
    pub handoff_send_us: f64,
    /// Rate at which a worker gives vectors to the network; 0 means that size costs nothing.
    pub handoff_send_gbps: f64,
    /// Fixed time that a worker spends on taking a vector from the network.
    pub handoff_receive_us: f64,
    /// Rate at which a worker takes vectors from the network; 0 means that size costs nothing.
    pub handoff_receive_gbps: f64,
    /// Rate of arithmetic at servers and in reduce steps; 0 means that it costs nothing.
    pub reduce_gbs: f64,
    /// Share of the cards' bandwidth that collectives reach.
    pub collective_efficiency: f64,
    /// Share of the cards' bandwidth that other messages reach.
    pub point_to_point_efficiency: f64,
    /// Fixed time that a collective takes before its first message.
    pub collective_fixed_us: f64,
    /// A synchronous collective starts only when all living workers have handed over.
    pub start_barrier: bool,
    /// Messages that a directed link may hold until the receiving worker takes them; 0 means
    /// without limit.
    pub link_messages: u32,
    /// A worker continues only when what it sends has left its card.
    pub blocking_sends: bool,
    /// Every byte of a vector counts as so many, so that a small vector can stand for a large
    /// model; headers count as they are.
    pub vector_scale: f64,
    /// From the loss of a rank until the others are notified.
    pub detect_ms: f64,
    /// What goes wrong.
    pub faults: Faults,
    /// Real threads that compute gradients; 0 means one per core. Results do not depend on it.
    pub threads: usize,
}

impl Default for Cluster {
    fn default() -> Cluster {
        Cluster {
            bandwidth_gbps: 10.0,
            host_bandwidth_gbps: BTreeMap::new(),
            latency_us: 50.0,
            internal_gbps: 100.0,
            internal_latency_us: 0.0,
            compute_ms: 100.0,
            compute_cv: 0.0,
            backward_share: 0.67,
            slow: BTreeMap::new(),
            handoff_send_us: 0.0,
            handoff_send_gbps: 0.0,
            handoff_receive_us: 0.0,
            handoff_receive_gbps: 0.0,
            reduce_gbs: 0.0,
            collective_efficiency: 1.0,
            point_to_point_efficiency: 1.0,
            collective_fixed_us: 0.0,
            start_barrier: false,
            link_messages: 0,
            blocking_sends: false,
            vector_scale: 1.0,
            detect_ms: 1000.0,
            faults: Faults::default(),
            threads: 0,
        }
    }
}

/// Why a cluster cannot be simulated.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`cluster.{field}` = {value}: {allowed}")]
pub struct ClusterError {
    /// The field.
    pub field: String,
    /// What it was set to.
    pub value: String,
    /// What is allowed.
    pub allowed: String,
}

impl ClusterError {
    pub(crate) fn new(
        field: impl Into<String>,
        value: impl ToString,
        allowed: impl Into<String>,
    ) -> ClusterError {
        ClusterError { field: field.into(), value: value.to_string(), allowed: allowed.into() }
    }
}

/// What a number may be.
#[derive(Clone, Copy)]
struct Bounds {
    min: f64,
    max: f64,
    or_zero: bool,
}

/// Cards from one kilobit to one exabit per second.
const BANDWIDTH: Bounds = Bounds { min: 1e-6, max: 1e9, or_zero: false };
const RATE_OR_FREE: Bounds = Bounds { min: 1e-6, max: 1e9, or_zero: true };
/// Up to a quarter of an hour.
const MICROSECONDS: Bounds = Bounds { min: 0.0, max: 1e9, or_zero: false };
/// Up to a month.
const MILLISECONDS: Bounds = Bounds { min: 0.0, max: 3e9, or_zero: false };
const SLOW: Bounds = Bounds { min: 1e-6, max: 1e6, or_zero: false };
const EFFICIENCY: Bounds = Bounds { min: 1e-3, max: 1.0, or_zero: false };
const SHARE: Bounds = Bounds { min: 0.0, max: 1.0, or_zero: false };
const VECTOR: Bounds = Bounds { min: 1e-3, max: 1e9, or_zero: false };
const VARIATION: Bounds = Bounds { min: 0.0, max: 10.0, or_zero: false };

/// A run may last ten virtual years: far below what 64 bits of nanoseconds hold.
const LONGEST_MS: f64 = 10.0 * 365.0 * 86_400_000.0;

impl Bounds {
    fn check(self, field: &str, value: f64) -> Result<(), ClusterError> {
        if (self.min..=self.max).contains(&value) || self.or_zero && value == 0.0 {
            return Ok(());
        }
        let zero = if self.or_zero { "0, or " } else { "" };
        let allowed = format!("must be {zero}a number from {} to {}", self.min, self.max);
        Err(ClusterError::new(field, value, allowed))
    }
}

impl Cluster {
    /// Whether all numbers make sense by themselves.
    pub fn check(&self) -> Result<(), ClusterError> {
        let numbers = [
            (BANDWIDTH, "bandwidth_gbps", self.bandwidth_gbps),
            (MICROSECONDS, "latency_us", self.latency_us),
            (BANDWIDTH, "internal_gbps", self.internal_gbps),
            (MICROSECONDS, "internal_latency_us", self.internal_latency_us),
            (MILLISECONDS, "compute_ms", self.compute_ms),
            (VARIATION, "compute_cv", self.compute_cv),
            (SHARE, "backward_share", self.backward_share),
            (MICROSECONDS, "handoff_send_us", self.handoff_send_us),
            (RATE_OR_FREE, "handoff_send_gbps", self.handoff_send_gbps),
            (MICROSECONDS, "handoff_receive_us", self.handoff_receive_us),
            (RATE_OR_FREE, "handoff_receive_gbps", self.handoff_receive_gbps),
            (RATE_OR_FREE, "reduce_gbs", self.reduce_gbs),
            (EFFICIENCY, "collective_efficiency", self.collective_efficiency),
            (EFFICIENCY, "point_to_point_efficiency", self.point_to_point_efficiency),
            (MICROSECONDS, "collective_fixed_us", self.collective_fixed_us),
            (VECTOR, "vector_scale", self.vector_scale),
            (MILLISECONDS, "detect_ms", self.detect_ms),
        ];
        for (span, field, value) in numbers {
            span.check(field, value)?;
        }
        for (host, gbps) in &self.host_bandwidth_gbps {
            BANDWIDTH.check(&format!("host_bandwidth_gbps.{host}"), *gbps)?;
        }
        for (rank, factor) in &self.slow {
            SLOW.check(&format!("slow.{rank}"), *factor)?;
        }
        self.faults.check()
    }

    /// Whether it also fits the run: ranks and hosts exist, and the run fits the clock.
    pub fn check_for(&self, setup: &RunSpec) -> Result<(), ClusterError> {
        self.check()?;
        let workers = setup.workers() as u32;
        if let Some(rank) = self.slow.keys().find(|rank| **rank >= workers) {
            let allowed = format!("there are {workers} workers, numbered from 0");
            return Err(ClusterError::new("slow", format!("{{ {rank} = … }}"), allowed));
        }
        let hosts: BTreeSet<u32> = setup.view.hosts.iter().copied().collect();
        if let Some(host) = self.host_bandwidth_gbps.keys().find(|host| !hosts.contains(host)) {
            let allowed = format!("no rank lives there; hosts are {hosts:?}");
            return Err(ClusterError::new(
                "host_bandwidth_gbps",
                format!("{{ {host} = … }}"),
                allowed,
            ));
        }
        self.faults.check_ranks(setup.ranks() as u32)?;
        let slowest = self.slow.values().copied().fold(1.0, f64::max);
        let longest_ms = self.compute_ms * slowest * setup.steps as f64;
        if longest_ms > LONGEST_MS {
            let allowed = format!(
                "with {} steps and a slow-down of {slowest} the run would exceed ten years",
                setup.steps
            );
            return Err(ClusterError::new("compute_ms", self.compute_ms, allowed));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(change: impl FnOnce(&mut Cluster)) -> String {
        let mut cluster = Cluster::default();
        change(&mut cluster);
        cluster.check().expect_err("refused").to_string()
    }

    #[test]
    fn impossible_numbers_are_refused_by_name() {
        assert_eq!(
            refusal(|c| c.bandwidth_gbps = 0.0),
            "`cluster.bandwidth_gbps` = 0: must be a number from 0.000001 to 1000000000"
        );
        assert!(refusal(|c| c.latency_us = f64::NAN).starts_with("`cluster.latency_us` = NaN"));
        assert!(refusal(|c| c.compute_ms = f64::INFINITY).contains("compute_ms"));
        assert!(refusal(|c| c.compute_ms = -1.0).contains("compute_ms"));
        assert!(refusal(|c| c.backward_share = 1.5).contains("from 0 to 1"));
        assert!(refusal(|c| c.collective_efficiency = 0.0).contains("collective_efficiency"));
        assert!(refusal(|c| c.reduce_gbs = -3.0).contains("0, or a number"));
        let slow = refusal(|c| c.slow = BTreeMap::from([(3, 0.0)]));
        assert!(slow.starts_with("`cluster.slow.3` = 0"), "{slow}");
        let card = refusal(|c| c.host_bandwidth_gbps = BTreeMap::from([(1, -1.0)]));
        assert!(card.starts_with("`cluster.host_bandwidth_gbps.1` = -1"), "{card}");
    }

    #[test]
    fn the_default_cluster_is_good() {
        assert_eq!(Cluster::default().check(), Ok(()));
    }
}
