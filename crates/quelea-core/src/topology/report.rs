//! What a topology costs and how fast it mixes.

use std::sync::Arc;

use super::spectrum::{product_rho, rho};
use super::{Round, Schedule};

/// Rounds that are looked at where there is no period.
const SAMPLE: usize = 8;

/// Costs and speed of a topology.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The topology.
    pub name: &'static str,
    /// Number of workers.
    pub workers: usize,
    /// Every round is the same.
    pub is_static: bool,
    /// `W_ij = W_ji` in every round.
    pub is_symmetric: bool,
    /// Somebody sends to a worker that does not send back in the same round.
    pub is_directed: bool,
    /// After how many rounds they repeat; `None` if they are drawn at random.
    pub period: Option<usize>,
    /// Each round of the period; the first eight if they are drawn at random.
    pub rounds: Vec<RoundReport>,
    /// `‖W_{P−1} … W_0 − J‖₂` over a period; 0 means the exact mean. `None` without a period.
    pub period_rho: Option<f64>,
    /// By how much a random round shrinks `Σ‖x_i − x̄‖²` on average; `None` if nothing is random.
    pub mean_square: Option<f64>,
    /// Contraction per round: ρ itself if static, `period_rho^(1/period)`, or `√mean_square`.
    pub rho: f64,
    /// `1 − rho`.
    pub spectral_gap: f64,
    /// Steps, up to a constant, before n workers pay off when all see the same distribution:
    /// `ρ⁴n³/(1−ρ)²`. `None` where the formula says nothing, see `note`.
    pub transient_iid: Option<f64>,
    /// The same when every worker has a distribution of its own: `ρ⁴n³/(1−ρ)⁴`.
    pub transient_non_iid: Option<f64>,
    /// What a reader of these numbers should know; empty if nothing.
    pub note: &'static str,
}

/// Costs and speed of one round.
#[derive(Clone, Debug, PartialEq)]
pub struct RoundReport {
    /// Most vectors that one worker receives.
    pub in_degree_max: usize,
    /// Most vectors that one worker sends.
    pub out_degree_max: usize,
    /// Vectors that a worker sends on average.
    pub models_sent_mean: f64,
    /// `‖W − J‖₂`; 1 means that some difference between workers outlives the round.
    pub rho: f64,
}

/// Measures a topology.
pub fn report(schedule: &Schedule) -> Report {
    let n = schedule.workers();
    let steps = schedule.period().unwrap_or(SAMPLE) as u64;
    let rounds: Vec<Arc<Round>> = (0..steps).map(|step| schedule.round(step)).collect();
    let measured: Vec<RoundReport> = rounds.iter().map(measure).collect();
    let period_rho = schedule.period().map(|period| match period {
        1 => measured[0].rho,
        _ => product_rho(&rounds),
    });
    let mean_square = schedule.mean_square();
    let rho = match (period_rho, mean_square) {
        (Some(product), _) => product.powf(1.0 / rounds.len() as f64),
        (None, mean_square) => mean_square.unwrap_or(1.0).sqrt(),
    };
    let note = match (rho, schedule.period()) {
        (0.0, Some(2..)) => {
            "the exact mean after every period: the bound on transient iterations does not apply"
        }
        (1.0.., _) => "a period may leave some difference between workers as large as it was",
        _ => "",
    };
    let transient = |power| note.is_empty().then(|| transient(rho, n, power));
    Report {
        name: schedule.name(),
        workers: n,
        is_static: schedule.period() == Some(1),
        is_symmetric: rounds.iter().all(|round| round.is_symmetric()),
        is_directed: rounds.iter().any(|round| round.is_directed()),
        period: schedule.period(),
        rounds: measured,
        period_rho,
        mean_square,
        rho,
        spectral_gap: 1.0 - rho,
        transient_iid: transient(2),
        transient_non_iid: transient(4),
        note,
    }
}

fn measure(round: &Arc<Round>) -> RoundReport {
    let n = round.workers();
    let (mut incoming, mut outgoing, mut sent) = (vec![0; n], vec![0; n], 0usize);
    for (from, to) in round.edges() {
        incoming[to] += 1;
        outgoing[from] += 1;
        sent += 1;
    }
    RoundReport {
        in_degree_max: incoming.into_iter().max().unwrap_or(0),
        out_degree_max: outgoing.into_iter().max().unwrap_or(0),
        models_sent_mean: sent as f64 / n as f64,
        rho: rho(round),
    }
}

/// `ρ⁴n³/(1−ρ)^power` (Yuan's lecture, A1 to A4, with σ = b = 1).
fn transient(rho: f64, workers: usize, power: i32) -> f64 {
    rho.powi(4) * (workers as f64).powi(3) / (1.0 - rho).powi(power)
}
