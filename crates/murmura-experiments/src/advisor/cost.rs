//! Seconds of a step in closed form. `tests/advisor.rs` holds every one of them against the
//! virtual cluster.
//!
//! Notation: n workers, S bytes of model, B bytes per second of a card, α latency, c seconds of a
//! gradient, C of the slowest one that a step waits for.

use murmura_core::params::Params;
use murmura_core::topology;

use super::Candidate;
use super::situation::Situation;

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

/// The cost of a candidate; nothing where it does not fit the situation.
pub fn predict(situation: &Situation, candidate: &Candidate) -> Option<Cost> {
    let s = situation;
    match candidate.algorithm {
        "allreduce" => all_reduce(s, candidate),
        "sync-ps" => Some(sync_ps(s)),
        "asp" => Some(asp(s)),
        "easgd" => Some(easgd(s)),
        "aladdin" => Some(aladdin(s)),
        "local-sgd" => Some(local_sgd(s)),
        "d-psgd" | "sgp" => gossip(s, candidate),
        "ad-psgd" => pairs(s, candidate),
        _ => None,
    }
}

fn cost(step_seconds: f64, waited_for: f64, bytes: f64) -> Cost {
    let exposed = ((step_seconds - waited_for) / step_seconds).max(0.0);
    Cost { step_seconds, exposed, bytes, gradients_per_message: 1.0 }
}

/// Expected seconds of the slowest of so many workers, one step at a time.
fn slowest(s: &Situation, among: usize) -> f64 {
    let ordinary = s.compute * largest(s.variation, among.min(s.workers));
    let slow = s.slow.iter().map(|(_, factor)| factor * s.compute);
    slow.fold(ordinary, f64::max)
}

/// Expected largest of `n` log-normal numbers of mean 1, by the median of the largest normal one.
fn largest(variation: f64, n: usize) -> f64 {
    if variation == 0.0 || n < 2 {
        return 1.0;
    }
    let variance = (variation * variation).ln_1p();
    let place = normal_quantile(0.5264_f64.powf(1.0 / n as f64));
    (variance.sqrt() * place - variance / 2.0).exp()
}

/// Quantile of the normal distribution (Abramowitz and Stegun 26.2.23, error below 5·10⁻⁴), for
/// probabilities above one half.
fn normal_quantile(p: f64) -> f64 {
    let t = (-2.0 * (1.0 - p).ln()).sqrt();
    let above = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let below = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    t - above / below
}

/// Mean seconds of a step where nobody waits: slow workers contribute little.
fn unhindered(s: &Situation) -> f64 {
    let ordinary = (s.workers - s.slow.len().min(s.workers)) as f64;
    let rate = ordinary + s.slow.iter().map(|(_, factor)| 1.0 / factor).sum::<f64>();
    s.compute * s.workers as f64 / rate
}

/// Bandwidth and latency of the links that the ring's slowest hop uses.
fn link(s: &Situation) -> (f64, f64) {
    if s.hosts > 1 { (s.bandwidth, s.latency) } else { (s.internal, 0.0) }
}

/// Bytes of the last bucket, and of one in general.
fn buckets(s: &Situation, bucket_mb: f64) -> (f64, f64) {
    let size = bucket_mb * 1e6;
    if size == 0.0 || size >= s.bytes() {
        return (s.bytes(), s.bytes());
    }
    let rest = s.bytes() % size;
    (if rest > 0.0 { rest } else { size }, size)
}

fn all_reduce(s: &Situation, candidate: &Candidate) -> Option<Cost> {
    let n = s.workers as f64;
    let (last, bucket) = buckets(s, candidate.bucket_mb);
    let time = |bytes: f64| match candidate.collective {
        Some("hierarchical") => hierarchical(s, bytes),
        Some("halving-doubling") => halving(s, bytes),
        _ => ring(s, bytes),
    };
    let seconds = time(last);
    let (on_card, sent) = match candidate.collective? {
        "ring" => (2.0 * (n - 1.0) / n * s.bytes() / link(s).0, 2.0 * (n - 1.0) / n),
        "hierarchical" if s.per_host() > 1 && s.hosts > 1 && s.workers.is_multiple_of(s.hosts) => {
            let hosts = s.hosts as f64;
            let on_card = 2.0 * (hosts - 1.0) / hosts * s.bytes() / s.bandwidth;
            let per_host = s.per_host() as f64;
            (on_card, 2.0 * (hosts - 1.0) / hosts / per_host + 2.0 * (per_host - 1.0) / per_host)
        }
        "halving-doubling" if s.workers.is_power_of_two() && s.hosts == s.workers => {
            (2.0 * (n - 1.0) / n * s.bytes() / s.bandwidth, 2.0 * (n - 1.0) / n)
        }
        _ => return None,
    };
    let computing = slowest(s, s.workers);
    // The card is busy from the first bucket on, or only the last bucket is left at the end.
    let first = computing * (1.0 - s.backward * (1.0 - bucket / s.bytes()));
    let tail = seconds - on_card * last / s.bytes();
    // Or the last bucket follows the one before it.
    let before =
        computing * (1.0 - s.backward * last / s.bytes()) + time(bucket.min(s.bytes() - last));
    let step = (computing + seconds)
        .max(first + on_card + tail.max(0.0))
        .max(before + on_card * last / s.bytes());
    Some(cost(step, computing, sent * s.bytes()))
}

/// `2(n−1)(α + S/(nB))`.
fn ring(s: &Situation, bytes: f64) -> f64 {
    let (n, (bandwidth, latency)) = (s.workers as f64, link(s));
    2.0 * (n - 1.0) * (latency + bytes / (n * bandwidth))
}

/// Inside the hosts, around the hosts, inside again.
fn hierarchical(s: &Situation, bytes: f64) -> f64 {
    let (hosts, per_host) = (s.hosts as f64, s.per_host() as f64);
    let inside = bytes * (per_host - 1.0) / per_host / s.internal;
    // All ranks of a host share its card, each with its part.
    2.0 * inside + 2.0 * (hosts - 1.0) * (s.latency + bytes / (hosts * s.bandwidth))
}

/// `2(α log₂ n + (n−1)/n·S/B)`.
fn halving(s: &Situation, bytes: f64) -> f64 {
    let n = s.workers as f64;
    2.0 * (n.log2() * s.latency + (n - 1.0) / n * bytes / s.bandwidth)
}

/// All gradients into the servers' cards, all models out of them; the worker that gets the model
/// first also sends first. A worker that is late by more than that finds the cards empty, and
/// gets its model in its turn.
fn sync_ps(s: &Situation) -> Cost {
    let computing = slowest(s, s.workers);
    let one = s.bytes() / (s.servers as f64 * s.bandwidth);
    let most = (s.workers as f64 + 1.0) * one;
    let late = s.slow.iter().filter(|(_, factor)| (factor - 1.0) * s.compute > most);
    let through = late.map(|(rank, _)| (f64::from(*rank) + 2.0) * one).reduce(f64::max);
    let of_host = 2.0 * s.per_host() as f64 * s.bytes() / s.bandwidth;
    let exchange = through.unwrap_or(most.max(of_host));
    cost(computing + 2.0 * s.latency + exchange, computing, s.bytes())
}

/// A worker's own round trip, or the servers' cards.
fn asp(s: &Situation) -> Cost {
    let trip = 2.0 * (s.latency + s.bytes() / s.bandwidth);
    let ordinary = unhindered(&Situation { compute: s.compute + trip, ..s.clone() });
    let served = s.workers as f64 * s.bytes() / (s.servers as f64 * s.bandwidth);
    let card = s.per_host() as f64 * s.bytes() / s.bandwidth;
    cost(ordinary.max(served).max(card), s.compute, s.bytes())
}

/// Nobody waits; what the servers cannot take is folded.
fn aladdin(s: &Situation) -> Cost {
    let served = s.workers as f64 * s.bytes() / (s.servers as f64 * s.bandwidth);
    let card = s.per_host() as f64 * s.bytes() / s.bandwidth;
    let step = unhindered(s);
    let folded = (served.max(card) / step).max(1.0);
    let bytes = s.bytes() / folded;
    Cost { gradients_per_message: folded, ..cost(step, step, bytes) }
}

/// Steps from one exchange to the next, as in the row's default.
const EASGD_PERIOD: f64 = 10.0;

/// The centre comes while the gradient is computed; only the servers' cards can hold it up.
fn easgd(s: &Situation) -> Cost {
    let served = s.workers as f64 * s.bytes() / (s.servers as f64 * s.bandwidth * EASGD_PERIOD);
    let trip = s.latency * 2.0 + s.bytes() / s.bandwidth;
    let late = (trip - s.compute).max(0.0) / EASGD_PERIOD;
    let own = unhindered(s);
    cost((own + late).max(served), own, s.bytes() / EASGD_PERIOD)
}

/// Steps from one average to the next, as in the row's default.
fn local_period() -> f64 {
    let row = murmura_core::algorithms::find("local-sgd").ok();
    row.map_or(1.0, |row| Params::defaults(row.keys).whole("period") as f64)
}

/// An all-reduce once per period, not overlapped; in between nobody waits.
fn local_sgd(s: &Situation) -> Cost {
    let period = local_period();
    let many = (s.variation * s.variation / period).sqrt();
    let computing = slowest(&Situation { variation: many, ..s.clone() }, s.workers);
    let n = s.workers as f64;
    let bytes = 2.0 * (n - 1.0) / n * s.bytes() / period;
    cost(computing + ring(s, s.bytes()) / period, computing, bytes)
}

/// The busiest card of a round: models that leave it or reach it, and whether ranks that share a
/// host have more to give each other.
fn busiest(s: &Situation, round: &topology::Round) -> (f64, f64) {
    let (mut leaving, mut reaching) = (vec![0.0; s.hosts], vec![0.0; s.hosts]);
    let mut inside = vec![0.0_f64; s.workers];
    for (from, to) in round.edges() {
        let (a, b) = (s.host_of(from), s.host_of(to));
        if a == b {
            inside[from] += 1.0;
        } else {
            leaving[a] += 1.0;
            reaching[b] += 1.0;
        }
    }
    let most = |counts: &[f64]| counts.iter().copied().fold(0.0, f64::max);
    (most(&leaving).max(most(&reaching)), most(&inside))
}

fn schedule(s: &Situation, name: &str) -> Option<topology::Schedule> {
    let entry = topology::find(name).ok()?;
    let hosts: Vec<u32> = (0..s.workers).map(|worker| s.host_of(worker) as u32).collect();
    let params = Params::defaults(entry.keys);
    let request = topology::Request { hosts: &hosts, seed: 1, params: &params, text: None };
    entry.build(&request).ok()
}

/// The exchange of a step goes on while the next gradient is computed.
fn gossip(s: &Situation, candidate: &Candidate) -> Option<Cost> {
    let schedule = schedule(s, candidate.topology?)?;
    let rounds = schedule.period().unwrap_or(8) as u64;
    let (mut seconds, mut models) = (0.0, 0.0);
    let mut waited = 0.0;
    for step in 0..rounds {
        let round = schedule.round(step);
        let (outside, inside) = busiest(s, &round);
        let latency = if outside > 0.0 { s.latency } else { 0.0 };
        let exchange =
            latency + (outside * s.bytes() / s.bandwidth).max(inside * s.bytes() / s.internal);
        let edges = round.edges().count() as f64 / s.workers as f64;
        let computing = slowest(s, (edges.round() as usize + 1).max(2));
        seconds += computing.max(exchange);
        waited += computing;
        models += edges;
    }
    let rounds = rounds as f64;
    Some(cost(seconds / rounds, waited / rounds, models / rounds * s.bytes()))
}

/// One exchange per step of an active worker, answered at once: a model each way per pair. Nobody
/// waits; while one is on its way no other is begun.
fn pairs(s: &Situation, candidate: &Candidate) -> Option<Cost> {
    schedule(s, candidate.topology?)?;
    let own = unhindered(s);
    let card = s.per_host() as f64 * s.bytes() / s.bandwidth;
    let steps = (card / own).max(1.0);
    Some(Cost { gradients_per_message: steps, ..cost(own, own, s.bytes() / steps) })
}
