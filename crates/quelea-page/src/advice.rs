//! What `plan` predicted of a run, what is measured, and the one sentence that says what would be faster.

use serde_json::{Value, json};

use crate::activity::StepSeconds;
use crate::description::RunDescription;
use crate::state::MomentState;

/// What the advisor says of a run, given how long a gradient takes.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanForecast {
    /// Seconds of a step as the run is configured.
    pub step_seconds: f64,
    /// What the advisor would take.
    pub best: String,
    /// Seconds of a step of that.
    pub best_step_seconds: f64,
    /// Why, in a sentence.
    pub verdict: String,
}

/// Asks the advisor: seconds of a gradient in, forecast out.
pub type Adviser = Box<dyn Fn(f64) -> Option<PlanForecast> + Send + Sync>;

/// What was predicted, what is measured, and what would be faster.
pub(crate) fn advice_json(
    state: &MomentState,
    about: &RunDescription,
    forecast: Option<&PlanForecast>,
) -> Value {
    let measured = state.step_seconds(about.workers);
    let rate = |step_seconds: f64| batch_rate(state, about, step_seconds);
    let predicted = forecast.map(|forecast| forecast.step_seconds);
    json!({
        "measured_step_seconds": measured,
        "predicted_step_seconds": predicted,
        "measured_samples_per_second": measured.and_then(rate),
        "predicted_samples_per_second": predicted.and_then(rate),
        "sentence": advice_sentence(state, about, forecast, measured),
        "verdict": forecast.map(|forecast| &forecast.verdict),
    })
}

/// Samples per second, if a step of all living workers takes so long.
fn batch_rate(state: &MomentState, about: &RunDescription, step_seconds: f64) -> Option<f64> {
    let workers = state.ranks.iter().take(about.workers).filter(|rank| rank.lost.is_none());
    let batch: f64 = workers.map(|rank| f64::from(rank.batch)).sum();
    (step_seconds > 0.0 && batch > 0.0).then(|| batch / step_seconds)
}

/// Samples per second that `plan` predicts.
pub(crate) fn predicted_rate(
    state: &MomentState,
    about: &RunDescription,
    forecast: &PlanForecast,
) -> Option<f64> {
    batch_rate(state, about, forecast.step_seconds)
}

/// The one sentence that says what would be faster.
fn advice_sentence(
    state: &MomentState,
    about: &RunDescription,
    forecast: Option<&PlanForecast>,
    measured: Option<f64>,
) -> String {
    let workers = state.ranks.iter().take(about.workers).enumerate();
    let mut compute: Vec<(usize, f64)> = workers
        .filter(|(_, rank)| rank.steps > 0 && rank.lost.is_none())
        .map(|(number, rank)| (number, rank.total.compute / rank.steps as f64))
        .collect();
    compute.sort_by(|a, b| a.1.total_cmp(&b.1));
    if let (Some(slowest), Some(median)) = (compute.last(), compute.get(compute.len() / 2))
        && about.synchronous
        && compute.len() > 2
        && slowest.1 > SLOW * median.1
    {
        let factor = slowest.1 / median.1;
        return format!(
            "rank {} computes {factor:.1} times as long as the median, and all wait for it: without \
             it, or with an asynchronous algorithm, steps would be about {factor:.1} times as fast",
            slowest.0
        );
    }
    let Some(forecast) = forecast else {
        return match measured {
            Some(_) => "plan has no prediction for this run".to_string(),
            None => "nothing is measured yet".to_string(),
        };
    };
    let PlanForecast { step_seconds, best, best_step_seconds, .. } = forecast;
    if let Some(measured) = measured.filter(|measured| *measured > MISSED * step_seconds) {
        return format!(
            "steps take {:.1} times as long as plan predicts for the configured cluster: {}",
            measured / step_seconds,
            remedy(state)
        );
    }
    if best_step_seconds * FASTER < *step_seconds {
        let factor = step_seconds / best_step_seconds;
        return format!(
            "{best} would take {:.2} ms a step instead of {:.2} ms: {factor:.1} times as fast",
            best_step_seconds * 1e3,
            step_seconds * 1e3
        );
    }
    "nothing that plan compares would be much faster".to_string()
}

/// What takes most of the workers' time, and what would shorten it.
fn remedy(state: &MomentState) -> String {
    let sum = |of: fn(&StepSeconds) -> f64| state.ranks.iter().map(|rank| of(&rank.total)).sum();
    let parts: [(f64, &str); 3] = [
        (
            sum(|seconds| seconds.exposed),
            "is communication that compute does not hide, so rarer or smaller exchanges (more local \
             steps, fewer neighbours, a codec) would be faster",
        ),
        (
            sum(|seconds| seconds.waiting),
            "is waiting for slower peers, so an asynchronous algorithm would be faster",
        ),
        (
            sum(|seconds| seconds.compute),
            "is computing, so more workers would be faster, if they had processors of their own",
        ),
    ];
    let all: f64 = parts.iter().map(|(seconds, _)| seconds).sum();
    let most = parts.iter().max_by(|a, b| a.0.total_cmp(&b.0)).expect("three parts");
    format!("{:.0} % of their time {}", 100.0 * most.0 / all.max(f64::MIN_POSITIVE), most.1)
}

/// Steps that take this many times as long as predicted are explained.
const MISSED: f64 = 1.5;
/// A worker that takes this many times the median's time is named.
const SLOW: f64 = 1.3;
/// What is faster by less is not worth a change.
const FASTER: f64 = 1.05;
