//! `summary.json`: what a run came to, in one page.

use std::collections::BTreeMap;

use quelea_core::problems::{ACCURACY, Evaluation};
use quelea_record::{
    DataBooks, FACTS, FactKind, FactTotals, InFlight, Outcome, RankReport, SummaryForm,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::recovery::RecoveryEvent;
use super::tensors::ModelSlices;
use crate::checkpoint::BestModel;
use crate::evaluate::Spread;

/// What a run came to.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct Summary {
    /// The version of quelea.
    pub version: String,
    /// What the times are measured by.
    pub clock: ClockKind,
    /// The configuration with all defaults resolved.
    pub config: Value,
    /// The epochs that were asked for instead of steps, if they were.
    pub epochs: Option<f64>,
    /// Loss of the deployed model on all training data; `null` if it is not a number.
    pub loss: Option<f64>,
    /// Share of right answers on held-out data.
    pub accuracy: Option<f64>,
    /// Whatever else the task measures of the deployed model.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metrics: BTreeMap<String, f64>,
    /// The same of every worker's own model: the mean and the worst.
    pub worker_models: WorkerModels,
    /// The best model of all evaluations, which is in `best.safetensors`.
    pub best: Option<BestModel>,
    /// The steps of every worker after which the run was resumed from a checkpoint, if it was.
    pub resumed_from_step: Option<u64>,
    /// Until the last worker had finished its last step.
    pub clock_seconds: f64,
    /// Steps of all workers.
    pub steps: u64,
    /// Samples of all workers.
    pub samples: u64,
    /// Samples of all workers in a second of the run's clock.
    pub samples_per_second: Option<f64>,
    /// That, against the fastest worker computing alone without any communication.
    pub speedup: Option<f64>,
    /// How far the workers' models are apart: `sqrt((1/n) Σ ‖x_i − x̄‖²)`.
    pub consensus_distance: Option<f64>,
    /// Sums over the workers, bytes over all ranks.
    pub total: Total,
    /// Every worker.
    pub workers: Vec<WorkerSummary>,
    /// Every rank: workers, then servers.
    pub ranks: Vec<RankSummary>,
    /// What algorithms measured, under the keys of [`FACTS`].
    #[serde(flatten)]
    pub measured: Map<String, Value>,
    /// Most that was on its way at any moment, where the driver can tell.
    pub in_flight: InFlightSummary,
    /// The books of the data, where workers share them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<DataSummary>,
    /// Every process that was lost, left, joined or took over, and how soon the run had recovered.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub recovery: Vec<RecoveryEvent>,
    /// Of every worker, each step whose number this divides is in `records.jsonl`.
    pub records_stride: u64,
    /// What went wrong without ending the run.
    pub warnings: Vec<String>,
}

/// How good the workers' own models are.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct WorkerModels {
    /// Mean of their losses; `null` if it is not a number.
    pub loss_mean: Option<f64>,
    /// The largest loss.
    pub loss_worst: Option<f64>,
    /// Mean of their accuracies.
    pub accuracy_mean: Option<f64>,
    /// The least accuracy.
    pub accuracy_worst: Option<f64>,
}

/// What the times of a run are measured by.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockKind {
    /// The clock of the virtual cluster.
    Virtual,
    /// The clock on the wall.
    Real,
}

/// Sums over a run.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct Total {
    /// Seconds of computing.
    pub compute_seconds: f64,
    /// Seconds of communication that compute did not hide.
    pub exposed_seconds: f64,
    /// Seconds of waiting for slower peers.
    pub waiting_seconds: f64,
    /// Bytes sent, headers included.
    pub bytes_sent: u64,
    /// Messages sent.
    pub messages_sent: u64,
}

/// How one worker spent its time.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct WorkerSummary {
    /// Its number.
    pub rank: u32,
    /// Steps completed.
    pub steps: u64,
    /// Samples used.
    pub samples: u64,
    /// Seconds of computing.
    pub compute_seconds: f64,
    /// Seconds of communication that compute did not hide.
    pub exposed_seconds: f64,
    /// Seconds of waiting for slower peers.
    pub waiting_seconds: f64,
    /// Loss of its last mini-batch.
    pub last_loss: Option<f32>,
}

/// What one rank sent and received.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct RankSummary {
    /// Its number.
    pub rank: u32,
    /// `worker` or `server`.
    pub role: String,
    /// Whether it took no part any more at the end.
    pub lost: bool,
    /// Whether that was because it left with notice.
    #[serde(default)]
    pub left: bool,
    /// Bytes sent, headers included.
    pub bytes_sent: u64,
    /// Bytes received, headers included.
    pub bytes_received: u64,
    /// Messages sent.
    pub messages_sent: u64,
}

/// Most that was on its way.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
pub struct InFlightSummary {
    /// Messages.
    pub peak_messages: u64,
    /// Bytes, headers included.
    pub peak_bytes: u64,
}

/// The books of data that all workers share. A unit is the data of one gradient.
#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq, Serialize)]
pub struct DataSummary {
    /// Units of the whole run.
    pub units: u64,
    /// Those that a worker has confirmed with the step that used them; none twice.
    pub confirmed: u64,
    /// Those that were handed out again because their worker was lost, and may count twice in effect.
    pub handed_out_again: u64,
}

/// What a summary is made of beside the outcome.
#[derive(Debug)]
pub struct About {
    /// What the times are measured by.
    pub clock: ClockKind,
    /// The configuration with all defaults resolved.
    pub config: Value,
    /// The epochs that were asked for, if they were.
    pub epochs: Option<f64>,
    /// How good the deployed model is.
    pub evaluation: Evaluation,
    /// How good the workers' own models are.
    pub spread: Option<Spread>,
    /// The best model of all evaluations.
    pub best: Option<BestModel>,
    /// Where the run was resumed.
    pub resumed_from_step: Option<u64>,
    /// Who was lost, left or joined.
    pub recovery: Vec<RecoveryEvent>,
    /// Of `records.jsonl`.
    pub records_stride: u64,
    /// What to add to the outcome's warnings.
    pub warnings: Vec<String>,
}

impl Summary {
    /// Puts it together.
    pub fn new(outcome: &Outcome, about: About) -> Summary {
        let workers: Vec<&RankReport> = outcome.ranks.iter().filter(|r| !r.is_server).collect();
        let samples: u64 = workers.iter().map(|rank| rank.samples).sum();
        let rate = ratio(samples as f64, outcome.clock_seconds);
        let alone = workers
            .iter()
            .filter_map(|rank| ratio(rank.samples as f64, rank.compute_seconds))
            .fold(0.0, f64::max);
        Summary {
            version: env!("CARGO_PKG_VERSION").to_string(),
            clock: about.clock,
            config: about.config,
            epochs: about.epochs,
            loss: finite(about.evaluation.loss),
            accuracy: about.evaluation.accuracy(),
            metrics: other_metrics(&about.evaluation),
            worker_models: worker_models(about.spread),
            best: about.best,
            resumed_from_step: about.resumed_from_step,
            clock_seconds: rounded(outcome.clock_seconds),
            steps: workers.iter().map(|rank| rank.steps).sum(),
            samples,
            samples_per_second: rate,
            speedup: rate.and_then(|rate| ratio(rate, alone)),
            consensus_distance: finite(ModelSlices::of(outcome).consensus_distance()),
            total: total(outcome),
            workers: workers.iter().map(|rank| worker(rank)).collect(),
            ranks: outcome.ranks.iter().map(rank).collect(),
            measured: measured(&outcome.ranks),
            in_flight: in_flight(&outcome.in_flight),
            data: outcome.data.map(data),
            recovery: about.recovery,
            records_stride: about.records_stride,
            warnings: outcome.warnings.iter().cloned().chain(about.warnings).collect(),
        }
    }
}

fn worker_models(spread: Option<Spread>) -> WorkerModels {
    let Some(Spread { loss, accuracy }) = spread else { return WorkerModels::default() };
    WorkerModels {
        loss_mean: finite(loss[0]),
        loss_worst: finite(loss[1]),
        accuracy_mean: accuracy.map(|[mean, _]| mean),
        accuracy_worst: accuracy.map(|[_, worst]| worst),
    }
}

fn ratio(above: f64, below: f64) -> Option<f64> {
    (below > 0.0).then(|| above / below).and_then(finite)
}

fn finite(number: f64) -> Option<f64> {
    number.is_finite().then_some(number)
}

/// To the nanosecond, which is all that clocks know: what is below it comes from adding up.
fn rounded(seconds: f64) -> f64 {
    (seconds * 1e9).round() / 1e9
}

fn total(outcome: &Outcome) -> Total {
    let seconds = |of: fn(&RankReport) -> f64| rounded(outcome.ranks.iter().map(of).sum());
    Total {
        compute_seconds: seconds(|rank| rank.compute_seconds),
        exposed_seconds: seconds(|rank| rank.exposed_seconds),
        waiting_seconds: seconds(|rank| rank.waiting_seconds),
        bytes_sent: outcome.ranks.iter().map(|rank| rank.bytes_sent).sum(),
        messages_sent: outcome.ranks.iter().map(|rank| rank.messages_sent).sum(),
    }
}

fn worker(rank: &RankReport) -> WorkerSummary {
    WorkerSummary {
        rank: rank.rank,
        steps: rank.steps,
        samples: rank.samples,
        compute_seconds: rounded(rank.compute_seconds),
        exposed_seconds: rounded(rank.exposed_seconds),
        waiting_seconds: rounded(rank.waiting_seconds),
        last_loss: Some(rank.last_loss).filter(|loss| loss.is_finite()),
    }
}

fn rank(rank: &RankReport) -> RankSummary {
    RankSummary {
        rank: rank.rank,
        role: if rank.is_server { "server" } else { "worker" }.to_string(),
        lost: rank.lost,
        left: rank.left,
        bytes_sent: rank.bytes_sent,
        bytes_received: rank.bytes_received,
        messages_sent: rank.messages_sent,
    }
}

fn measured(ranks: &[RankReport]) -> Map<String, Value> {
    let mut all = FactTotals::default();
    ranks.iter().for_each(|rank| all.add_all(&rank.facts));
    let value = |kind: &FactKind| match kind.summary.form {
        SummaryForm::Histogram => json!(all.histogram(kind)),
        SummaryForm::Mean => json!(all.mean(kind)),
        SummaryForm::Count => json!(all.count(kind)),
    };
    FACTS.into_iter().map(|kind| (kind.summary.key.to_string(), value(kind))).collect()
}

fn in_flight(peaks: &InFlight) -> InFlightSummary {
    InFlightSummary { peak_messages: peaks.peak_messages, peak_bytes: peaks.peak_bytes }
}

fn data(books: DataBooks) -> DataSummary {
    let DataBooks { units, confirmed, handed_out_again } = books;
    DataSummary { units, confirmed, handed_out_again }
}

/// The metrics that have no place of their own.
fn other_metrics(evaluation: &Evaluation) -> BTreeMap<String, f64> {
    let others = evaluation.metrics.iter().filter(|metric| metric.name != ACCURACY);
    others.map(|metric| (metric.name.to_string(), metric.value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speedup_is_against_the_fastest_worker_alone() {
        let worker = |rank, samples, compute_seconds| RankReport {
            rank,
            samples,
            compute_seconds,
            model: vec![0.0],
            ..RankReport::default()
        };
        let ranks = vec![worker(0, 100, 10.0), worker(1, 100, 40.0)];
        let outcome = Outcome { clock_seconds: 40.0, ranks, ..Outcome::default() };
        let about = About {
            clock: ClockKind::Virtual,
            config: Value::Null,
            epochs: None,
            evaluation: Evaluation::of_loss(f64::NAN),
            spread: None,
            best: None,
            resumed_from_step: None,
            recovery: Vec::new(),
            records_stride: 1,
            warnings: Vec::new(),
        };
        let summary = Summary::new(&outcome, about);
        assert_eq!(summary.samples_per_second, Some(5.0));
        assert_eq!(summary.speedup, Some(0.5));
        assert_eq!(summary.loss, None);
        assert_eq!(summary.measured["gradients_per_message"], Value::Null);
    }
}
