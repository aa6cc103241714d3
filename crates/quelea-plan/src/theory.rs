//! What sparse mixing costs in iterations: the transient of decentralized SGD,
//! `ρ⁴n³/(1−ρ)²` steps up to a constant (Yuan 2021), against the length of the run.

use std::f64::consts::TAU;

use quelea_core::algorithms::{Service, Traffic};
use quelea_core::topology;

use crate::Candidate;
use crate::cost::{self, Cost};
use crate::mixing::Mixing;
use crate::scenario::Scenario;

/// Methods whose orders are multiplied with the same constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MixingFamily {
    /// Gossip with the same weights in every step.
    Static,
    /// Gossip with one partner a step, or with groups that change.
    Changing,
    /// Pairs, nobody waits.
    Pairs,
    /// Exact averages once per this many steps.
    Periodic,
    /// Servers that fold.
    Folded,
}

impl MixingFamily {
    /// What the orders of the theory are multiplied with. `quelea reproduce plan-convergence` fits one
    /// constant per family on runs of logistic regression, a CNN and a Transformer with 8 to 64 workers;
    /// until it has been run at full length, all have the one of `yuan-transient` (3·10⁻⁴ on a ring of 16,
    /// 6·10⁻⁵ on a grid of 32).
    pub fn constant(self) -> f64 {
        match self {
            MixingFamily::Static => 1e-4,
            MixingFamily::Changing => 1e-4,
            MixingFamily::Pairs => 1e-4,
            MixingFamily::Periodic => 1e-4,
            MixingFamily::Folded => 1e-4,
        }
    }

    fn of(candidate: &Candidate) -> MixingFamily {
        let changes = |name: &str| {
            name.starts_with("one-peer")
                || ["aer", "bipartite-exponential", "random-matching"].contains(&name)
        };
        match cost::traffic(candidate) {
            Traffic::Average { .. } => MixingFamily::Periodic,
            Traffic::Servers(_) => MixingFamily::Folded,
            Traffic::Pairs { .. } => MixingFamily::Pairs,
            Traffic::Gossip { .. } if candidate.topology.is_some_and(changes) => {
                MixingFamily::Changing
            }
            Traffic::Gossip { .. } => MixingFamily::Static,
        }
    }
}

/// What a candidate loses before it is as good as all-reduce.
#[derive(Clone, Debug, PartialEq)]
pub struct Transient {
    /// Steps.
    pub steps: f64,
    /// Where they come from.
    pub why: String,
}

impl Transient {
    /// Nothing where steps are exact, where there is nobody to agree with, or where nothing is known.
    pub fn of(scenario: &Scenario, candidate: &Candidate, cost: &Cost) -> Option<Transient> {
        let (order, why) = order(scenario, candidate, cost).filter(|_| scenario.workers > 2)?;
        Some(Transient { steps: MixingFamily::of(candidate).constant() * order, why })
    }

    /// What is to be said against a candidate, if anything: that it needs more time to get over its
    /// transient than all-reduce, at `exact_seconds` a step, needs for the whole run.
    pub fn warning(&self, scenario: &Scenario, cost: &Cost, exact_seconds: f64) -> Option<String> {
        let all = scenario.steps as f64 * exact_seconds;
        (self.steps * cost.step_seconds > all).then(|| {
            format!(
                "{}; that means about {} steps before {} workers pay off, which takes longer than all {} \
                 steps of all-reduce",
                self.why,
                rounded(self.steps),
                scenario.workers,
                scenario.steps
            )
        })
    }
}

/// Steps of a transient as a table has them.
pub fn lost(steps: f64) -> String {
    if steps < 0.5 { "–".into() } else { format!("{} steps", rounded(steps)) }
}

/// Two digits are more than the theory knows.
fn rounded(steps: f64) -> String {
    if steps < 1e6 { format!("{}", (steps / 10.0).ceil() * 10.0) } else { format!("{steps:.0e}") }
}

/// Steps up to a constant before n workers pay off, and where they come from.
fn order(scenario: &Scenario, candidate: &Candidate, cost: &Cost) -> Option<(f64, String)> {
    let n = scenario.workers as f64;
    let rarely = cost.gradients_per_message;
    let (gap, why) = match cost::traffic(candidate) {
        Traffic::Servers(Service::Folded { period, alpha }) => {
            // n³C² with C = (1+ζ²)/(1−ζ²)·π − 1, ζ = 1 − α, π at least what is folded.
            let (apart, period) = ((1.0 - alpha).powi(2), period as f64);
            let spread = (1.0 + apart) / (1.0 - apart) * rarely.max(period) - 1.0;
            let servers = (rarely * scenario.servers as f64).ceil();
            let who = if scenario.servers == 1 { "one server" } else { "the servers" };
            let why = if rarely > period.max(1.5) {
                format!(
                    "{rarely:.0} gradients share a message, because {who} cannot take more \
                     ({servers} could)"
                )
            } else {
                format!("workers move by {alpha} to the model once per {period} gradients")
            };
            return Some((n.powi(3) * spread * spread, why));
        }
        Traffic::Servers(_) | Traffic::Average { period: 1 } => return None,
        // n³H² (Chen et al. 2021, table 2).
        Traffic::Average { period } => {
            (1.0 / period as f64, format!("it averages once per {period} steps"))
        }
        Traffic::Gossip { every, average, .. } => {
            let gap = gap_in(scenario, candidate.topology?)? / (rarely * every as f64);
            // C_β = Σ_{k<H} β^k takes the place of 1/(1−β), ibidem.
            let rounds = average.map_or(1.0, |period| 1.0 - (1.0 - gap).powf(period as f64));
            (gap / rounds, sparse(gap))
        }
        Traffic::Pairs { averages, starters } => {
            // Not at every gradient where only half of the workers start, or the network is slow.
            let often = (averages as f64 * starters.share()).min(1.0);
            let gap = often * gap_in(scenario, candidate.topology?)? / rarely;
            (gap, sparse(gap))
        }
    };
    Some(((1.0 - gap).powi(4) * n.powi(3) / (gap * gap), why))
}

fn sparse(gap: f64) -> String {
    format!("its sparse mixing (1 − ρ = {gap:.1e})")
}

/// `1 − ρ` per round: in closed form, or computed for a topology that another crate has registered.
fn gap_in(scenario: &Scenario, name: &str) -> Option<f64> {
    gap(name, scenario.workers).or_else(|| {
        let mut added = scenario.registry.added::<topology::Entry>();
        let is_small = scenario.workers <= GAP_WORKERS_MAX;
        let entry = added.find(|entry| entry.meta.name == name).filter(|_| is_small)?;
        let mixing = Mixing::new(scenario, entry.meta.name, false).ok()?;
        Some(topology::report(&mixing.schedule).spectral_gap).filter(|gap| *gap < EXACT_GAP)
    })
}

/// Beyond this many workers the gap of a registered topology is not computed.
const GAP_WORKERS_MAX: usize = 256;
/// Mixing that is as good as an exact mean needs no warning.
const EXACT_GAP: f64 = 1.0 - 1e-9;

/// `1 − ρ` per round in closed form, at any size; nothing where a period gives the exact mean.
pub fn gap(topology: &str, n: usize) -> Option<f64> {
    let cosine = |n: f64| (TAU / n).cos();
    let size = n as f64;
    match topology {
        "ring" => Some(2.0 / 3.0 * (1.0 - cosine(size))).filter(|_| n > 3),
        "bipartite-exponential" => Some(1.0 / (size.log2() + 1.0)),
        "exponential" => Some(2.0 / (size.log2().ceil() + 1.0)),
        // Two steps along a ring of pairs are about one of the ring.
        "one-peer-ring" => Some(0.5 * (1.0 - cosine(size))).filter(|_| n > 4),
        "torus" => Some(0.4 * (1.0 - cosine(side(n)))).filter(|_| n > 8),
        "grid" => Some(0.4 * (1.0 - (TAU / (2.0 * side(n))).cos())).filter(|_| n > 8),
        _ => None,
    }
}

/// The longer side of the most nearly square rectangle of n.
fn side(n: usize) -> f64 {
    let short = (1..=n.isqrt()).rev().find(|side| n.is_multiple_of(*side)).unwrap_or(1);
    (n / short) as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use quelea_core::options::Options;

    #[test]
    fn closed_forms_are_near_the_measured_gaps() {
        for (name, within) in [
            ("ring", 1.001),
            ("exponential", 1.001),
            ("bipartite-exponential", 1.3),
            ("torus", 1.3),
            ("grid", 1.6),
            ("one-peer-ring", 1.6),
        ] {
            for n in [16, 64, 128] {
                let entry = topology::find(name).expect("a row");
                let hosts: Vec<u32> = (0..n as u32).collect();
                let params = Options::defaults(entry.meta.options);
                let request = topology::TopologyRequest {
                    hosts: &hosts,
                    seed: 1,
                    options: &params,
                    text: None,
                };
                let measured = topology::report(&entry.build(&request).expect("fits")).spectral_gap;
                let ratio = gap(name, n).expect("known") / measured;
                assert!((1.0 / within..=within).contains(&ratio), "{name} {n}: {ratio}");
            }
        }
    }
}
