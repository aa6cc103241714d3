//! Seconds of a step in closed form, from what the rows of the table of algorithms say they
//! exchange ([`Traffic`]). `tests/closed_forms.rs` holds every one of them against the virtual cluster.
//!
//! Notation: n workers, S bytes of model, B bytes per second of a card, α latency, c seconds of a
//! gradient, C of the slowest one that a step waits for, k vectors that leave a card in a round.
//!
//! | traffic | algorithms | seconds of a step |
//! |---|---|---|
//! | average of every step | allreduce | C and the last bucket's average, or the cards |
//! | average per H steps | local-sgd, slowmo, bmuf, diloco | C + average/H |
//! | gossip during the gradient | d-psgd, extra, choco, d-amsgrad (2S), sgp (overlap) | max(C, α + kS/B) |
//! | gossip after the gradient | decentlam, qg-dmsgd, d2, exact-diffusion, gradient-tracking (2S) | as an average of every step, of α + kS/B |
//! | either, in groups of the topology that average by all-reduce | those that mix means, on aer and complete | see `grouped.rs` |
//! | the same, and an average per H | gossip-pga, gossip-aga (its first H) | the two mixed |
//! | pairs | ad-psgd | c, the exchanges as rare as the cards make them |
//! | servers, together | sync-ps | C + all gradients in, all models out |
//! | servers, alone | asp; ssp (C of s + 1 steps) | c + 2(α + S/B), or the servers' cards |
//! | servers, per H steps | easgd, eamsgd | c, or the servers' cards |
//! | servers, never waiting | aladdin | c, gradients folded as the cards make them |

mod servers;

use std::collections::BTreeMap;

use quelea_core::algorithms::{Gathers, Traffic, When};
use quelea_core::codec;
use quelea_core::options::Options;
use quelea_core::properties::TopologyRequirement;
use quelea_core::topology::Pairs;

use crate::Candidate;
use crate::grouped::GroupedRounds;
use crate::mixing::Mixing;
use crate::scenario::Scenario;
use crate::unbucketed;

/// What a step costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// Mean seconds of a step of a worker.
    pub step_seconds: f64,
    /// Share of it that is neither computing nor waiting for a slower worker.
    pub exposed: f64,
    /// Bytes that a worker sends per step, on average.
    pub bytes: f64,
    /// Gradients per message or exchange; above 1, the network cannot keep up with the workers.
    pub gradients_per_message: f64,
}

/// The cost of a candidate, or why it has none.
pub fn predict(scenario: &Scenario, candidate: &Candidate) -> Result<Cost, String> {
    CostModel::new(scenario).predict(candidate)
}

/// What the row of a candidate exchanges.
pub fn traffic(candidate: &Candidate) -> Traffic {
    (candidate.algorithm.traffic)(&candidate.params())
}

/// Costs in one scenario.
pub struct CostModel<'a> {
    s: &'a Scenario,
    /// Topologies that were looked at, by what is asked of them.
    mixings: BTreeMap<(&'static str, bool), Result<Mixing, String>>,
}

impl CostModel<'_> {
    /// In this scenario.
    pub fn new(s: &Scenario) -> CostModel<'_> {
        CostModel { s, mixings: BTreeMap::new() }
    }

    /// The cost of a candidate, or why it has none.
    pub fn predict(&mut self, candidate: &Candidate) -> Result<Cost, String> {
        let s = &Scenario { wire: wire(self.s, candidate), ..self.s.clone() };
        match traffic(candidate) {
            Traffic::Average { period } => average(s, candidate, period),
            Traffic::Gossip { vectors, when, every, average, gathers } => {
                // Once per some steps is as much of the network as a part of the vectors per step.
                let vectors = vectors as f64 / every as f64;
                let gossip = Gossip { vectors, when, average, gathers };
                gossip.cost(s, candidate, self.mixing(candidate)?)
            }
            Traffic::Pairs { averages, starters } => {
                let schedule = &self.mixing(candidate)?.schedule;
                Ok(pairs(s, schedule.pairs(), averages as f64 * starters.share()))
            }
            Traffic::Servers(service) => Ok(servers::cost_of(s, service)),
        }
    }

    fn mixing(&mut self, candidate: &Candidate) -> Result<&Mixing, String> {
        let need = (candidate.algorithm.properties)(&candidate.params()).topology;
        let name = candidate.topology.ok_or("it needs a topology")?;
        let mixing = self.mixings.entry((name, need == TopologyRequirement::Edges));
        let mixing =
            mixing.or_insert_with(|| Mixing::new(self.s, name, need == TopologyRequirement::Edges));
        let mixing = mixing.as_ref().map_err(Clone::clone)?;
        mixing.refusal(need).map_or(Ok(mixing), Err)
    }
}

/// Bytes on the wire per byte of a vector.
fn wire(s: &Scenario, candidate: &Candidate) -> f64 {
    let codec = candidate.codec.and_then(|name| s.registry.find::<codec::Entry>(name).ok());
    let Some(row) = codec else { return s.wire };
    let len = (s.parameters as usize).max(1);
    row.bytes(&Options::defaults(row.meta.options), len) as f64 / (4.0 * len as f64)
}

fn cost(step_seconds: f64, waited_for: f64, bytes: f64) -> Cost {
    let exposed = ((step_seconds - waited_for) / step_seconds).max(0.0);
    Cost { step_seconds, exposed, bytes, gradients_per_message: 1.0 }
}

/// Expected seconds of the slowest of so many workers, one step at a time.
fn slowest(s: &Scenario, among: usize) -> f64 {
    let ordinary = s.compute * largest(s.variation, among.min(s.workers));
    let slow = s.slow.iter().map(|(_, factor)| factor * s.compute);
    slow.fold(ordinary, f64::max)
}

/// The same, of the mean over so many steps.
fn slowest_over(s: &Scenario, steps: f64) -> f64 {
    let variation = (s.variation * s.variation / steps).sqrt();
    slowest(&Scenario { variation, ..s.clone() }, s.workers)
}

/// Expected largest of `n` log-normal numbers of mean 1, by the median of the largest normal one.
fn largest(variation: f64, n: usize) -> f64 {
    if variation == 0.0 || n < 2 {
        return 1.0;
    }
    let variance = (variation * variation).ln_1p();
    let place = normal_quantile(0.5264_f64.powf(1.0 / n as f64));
    // Of a few that vary much the median of the largest is below the mean of one.
    (variance.sqrt() * place - variance / 2.0).exp().max(1.0)
}

/// Quantile of the normal distribution (Abramowitz and Stegun 26.2.23, error below 5·10⁻⁴).
pub(crate) fn normal_quantile(p: f64) -> f64 {
    if p < 0.5 {
        return -normal_quantile(1.0 - p);
    }
    let t = (-2.0 * (1.0 - p).ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    t - above / below
}

/// Mean seconds of a step where nobody waits: slow workers contribute little.
fn unhindered(s: &Scenario) -> f64 {
    let ordinary = (s.workers - s.slow.len().min(s.workers)) as f64;
    let rate = ordinary + s.slow.iter().map(|(_, factor)| 1.0 / factor).sum::<f64>();
    s.compute * s.workers as f64 / rate
}

/// Bandwidth and latency of the links that the ring's slowest hop uses.
fn link(s: &Scenario) -> (f64, f64) {
    if s.hosts > 1 { (s.bandwidth, s.latency) } else { (s.internal, s.internal_latency) }
}

/// Bytes on the wire of the last bucket, and of one in general.
fn buckets(s: &Scenario, bucket_mb: f64) -> (f64, f64) {
    let size = bucket_mb * 1e6 * s.wire;
    if size == 0.0 || size >= s.sent() {
        return (s.sent(), s.sent());
    }
    let rest = s.sent() % size;
    (if rest > 0.0 { rest } else { size }, size)
}

/// A step whose buckets are exchanged as they become final, and awaited: `time` of so many bytes,
/// of which `on_card` per byte keep the card busy.
pub(crate) fn overlapped(
    s: &Scenario,
    bucket_mb: f64,
    time: &dyn Fn(f64) -> f64,
    on_card: f64,
) -> f64 {
    let computing = slowest(s, s.workers);
    let (last, bucket) = buckets(s, bucket_mb);
    let seconds = time(last);
    // The card is busy from the first bucket on, or only the last bucket is left at the end.
    let first = computing * (1.0 - s.backward * (1.0 - bucket / s.sent()));
    let tail = seconds - on_card * last;
    // Or the last bucket follows the one before it.
    let before =
        computing * (1.0 - s.backward * last / s.sent()) + time(bucket.min(s.sent() - last));
    (computing + seconds)
        .max(first + on_card * s.sent() + tail.max(0.0))
        .max(before + on_card * last)
}

/// An exact average: seconds of so many bytes, seconds that a byte keeps the card busy, and bytes
/// that a worker sends per byte.
struct ExactAverage {
    seconds: fn(&Scenario, f64) -> f64,
    on_card: f64,
    sent: f64,
}

impl ExactAverage {
    fn new(s: &Scenario, collective: &str) -> Result<ExactAverage, String> {
        let (n, hosts, per_host) = (s.workers as f64, s.hosts as f64, s.per_host() as f64);
        let around = 2.0 * (n - 1.0) / n;
        match collective {
            "ring" => Ok(ExactAverage { seconds: ring, on_card: around / link(s).0, sent: around }),
            "hierarchical" => {
                if s.per_host() < 2 || s.hosts < 2 || !s.workers.is_multiple_of(s.hosts) {
                    return Err(
                        "needs several hosts with equally many workers, several on each".into()
                    );
                }
                let between = 2.0 * (hosts - 1.0) / hosts;
                let sent = between / per_host + 2.0 * (per_host - 1.0) / per_host;
                Ok(ExactAverage { seconds: hierarchical, on_card: between / s.bandwidth, sent })
            }
            "halving-doubling" => {
                if !s.workers.is_power_of_two() || s.hosts != s.workers || s.workers < 2 {
                    return Err("is predicted for a power of two workers, each on its host".into());
                }
                Ok(ExactAverage { seconds: halving, on_card: around / s.bandwidth, sent: around })
            }
            other => Err(format!("the collective `{other}` has no closed form")),
        }
    }

    /// A step that ends with it.
    fn step(&self, s: &Scenario, bucket_mb: f64) -> f64 {
        overlapped(s, bucket_mb, &|bytes| (self.seconds)(s, bytes), self.on_card)
    }
}

fn average(s: &Scenario, candidate: &Candidate, period: u64) -> Result<Cost, String> {
    let average = ExactAverage::new(s, candidate.collective.unwrap_or("ring"))?;
    let (period, bytes) = (period as f64, average.sent * s.sent());
    let exposed = average.step(s, candidate.bucket_mb) - slowest(s, s.workers);
    // In between nobody waits, so that differences between workers add up until the average.
    let computing = slowest_over(s, period);
    Ok(cost(computing + exposed / period, computing, bytes / period))
}

/// `2(n−1)(α + S/(nB))`.
fn ring(s: &Scenario, bytes: f64) -> f64 {
    let (n, (bandwidth, latency)) = (s.workers as f64, link(s));
    2.0 * (n - 1.0) * (latency + bytes / (n * bandwidth))
}

/// Inside the hosts, around the hosts, inside again.
fn hierarchical(s: &Scenario, bytes: f64) -> f64 {
    let (hosts, per_host) = (s.hosts as f64, s.per_host() as f64);
    let inside = (per_host - 1.0) * (s.internal_latency + bytes / per_host / s.internal);
    // All ranks of a host share its card, each with its part.
    2.0 * inside + 2.0 * (hosts - 1.0) * (s.latency + bytes / (hosts * s.bandwidth))
}

/// `2(α log₂ n + (n−1)/n·S/B)`.
fn halving(s: &Scenario, bytes: f64) -> f64 {
    let n = s.workers as f64;
    2.0 * (n.log2() * s.latency + (n - 1.0) / n * bytes / s.bandwidth)
}

/// One exchange of an active worker after another, answered at once: a model each way per pair, so
/// many exchanges per gradient of the average worker. Nobody waits; while one is on its way no
/// other is begun.
fn pairs(s: &Scenario, pairs: &Pairs, exchanges: f64) -> Cost {
    let own = unhindered(s);
    // Half of the workers start all of them, with neighbours on their host and on others.
    let is_near = |i: usize, j: usize| s.host_of(i) == s.host_of(j);
    let active = (0..s.workers).filter(|i| pairs.active[*i]);
    let all: Vec<bool> =
        active.flat_map(|i| pairs.partners[i].iter().map(move |j| is_near(i, *j))).collect();
    let near = all.iter().filter(|near| **near).count() as f64 / all.len().max(1) as f64;
    let of_active = 2.0 * exchanges;
    // One that is over early waits for the gradient that allows the next.
    let inside = (2.0 * (s.internal_latency + s.sent() / s.internal)).max(own / of_active);
    let between = (2.0 * (s.latency + s.sent() / s.bandwidth)).max(own / of_active);
    let trip = near * inside + (1.0 - near) * between;
    let steps = (of_active * trip.max((1.0 - near) * servers::through_card(s)) / own).max(1.0);
    Cost { gradients_per_message: steps, ..cost(own, own, of_active * s.sent() / steps) }
}

/// Vectors to all neighbours per step.
struct Gossip {
    vectors: f64,
    when: When,
    average: Option<u64>,
    gathers: Gathers,
}

impl Gossip {
    fn cost(&self, s: &Scenario, candidate: &Candidate, mixing: &Mixing) -> Result<Cost, String> {
        // Two vectors in one message are one message of twice the length.
        let s = &Scenario { wire: self.vectors * s.wire, ..s.clone() };
        let groups = mixing.groups.as_ref().filter(|_| self.gathers == Gathers::Means);
        let gossip = match groups {
            Some(groups) => self.in_groups(s, candidate, groups),
            None => self.one_by_one(s, candidate, mixing),
        };
        match self.average {
            None => Ok(gossip),
            Some(period) => mixed(gossip, &average(s, candidate, 1)?, period as f64),
        }
    }

    /// Groups average by all-reduce.
    fn in_groups(&self, s: &Scenario, candidate: &Candidate, groups: &GroupedRounds) -> Cost {
        let during = self.when == When::DuringGradient;
        let seconds = groups.step_seconds(s, during, candidate.bucket_mb, self.average);
        let waited = slowest(s, groups.members(s).round() as usize).min(seconds);
        cost(seconds, waited, groups.sent(s) * s.sent())
    }

    /// Vectors go to neighbours one by one.
    fn one_by_one(&self, s: &Scenario, candidate: &Candidate, mixing: &Mixing) -> Cost {
        let (mut seconds, mut waited) = (0.0, 0.0);
        let (mut steps_per_exchange, mut neighbours) = (0.0, 0.0);
        for (round, load) in mixing.rounds.iter().enumerate() {
            let share = self.share(round, mixing.rounds.len());
            let exchange = |bytes: f64| load.seconds(s, bytes);
            let computing = slowest(s, (load.neighbours.round() as usize + 1).max(2));
            let own = unhindered(s);
            let (step, waits) = match self.when {
                When::Never => (own, own),
                When::DuringGradient => (computing.max(exchange(s.sent())), computing),
                When::AfterGradient => {
                    let step = overlapped(s, candidate.bucket_mb, &exchange, load.busy(s));
                    (step - slowest(s, s.workers) + computing, computing)
                }
            };
            seconds += share * step;
            waited += share * waits;
            neighbours += share * load.neighbours;
            steps_per_exchange += share * (exchange(s.sent()) / own).max(1.0);
        }
        let is_whole = buckets(s, candidate.bucket_mb).0 == s.sent();
        if is_whole && self.when != When::Never && s.workers <= unbucketed::WORKERS_MAX {
            let during = self.when == When::DuringGradient;
            seconds = unbucketed::step_seconds(s, &mixing.schedule, during);
            waited = waited.min(seconds);
        }
        let mut cost = cost(seconds, waited, neighbours * s.sent());
        if self.when == When::Never {
            cost.gradients_per_message = steps_per_exchange;
            cost.bytes /= cost.gradients_per_message;
        }
        cost
    }

    /// The share of a round of a period of so many in the steps that gossip: an average may always
    /// take the place of the same ones.
    fn share(&self, round: usize, rounds: usize) -> f64 {
        let period = self.average.unwrap_or(u64::MAX) as usize;
        let gossips = |step: &usize| !(step + 1).is_multiple_of(period);
        let window = if period < 1 << 16 { rounds * period } else { rounds };
        let all = (0..window).filter(gossips).count().max(1);
        (0..window).filter(gossips).filter(|step| step % rounds == round).count() as f64
            / all as f64
    }
}

/// One step of the second per `period`, the others of the first.
fn mixed(most: Cost, last: &Cost, period: f64) -> Result<Cost, String> {
    let mean = |a: f64, b: f64| ((period - 1.0) * a + b) / period;
    let step_seconds = mean(most.step_seconds, last.step_seconds);
    let exposed = |cost: &Cost| cost.exposed * cost.step_seconds;
    Ok(Cost {
        step_seconds,
        exposed: mean(exposed(&most), exposed(last)) / step_seconds,
        bytes: mean(most.bytes, last.bytes),
        gradients_per_message: 1.0,
    })
}
