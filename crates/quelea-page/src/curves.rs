//! Loss, accuracy and distance over a whole run, in a few hundred points however long it is.

use std::collections::BTreeMap;

use quelea_record::{Record, RecordKind};
use serde_json::{Value, json};

/// Points of a curve at most.
const POINTS: usize = 512;
/// Ranks whose own deviation is drawn.
const DEVIATIONS: u32 = 64;

/// One curve: neighbouring values are averaged as soon as there are too many.
#[derive(Clone, Debug, Default)]
pub struct BinnedCurve {
    bins: Vec<Bin>,
    /// Values of a whole bin.
    width: u64,
}

/// Sums over the values of one bin.
#[derive(Clone, Copy, Debug, Default)]
struct Bin {
    count: u64,
    at: CurvePosition,
    value: f64,
}

/// Where a value belongs on each axis.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CurvePosition {
    /// Seconds of the run's clock.
    pub t: f64,
    /// Steps of every worker.
    pub step: f64,
    /// Samples of all workers.
    pub samples: f64,
}

impl BinnedCurve {
    /// Takes a value. What is not finite is left out.
    pub fn take(&mut self, at: CurvePosition, value: f64) {
        if !value.is_finite() {
            return;
        }
        self.width = self.width.max(1);
        if self.bins.last().is_none_or(|bin| bin.count >= self.width) {
            if self.bins.len() == POINTS {
                self.halve();
            }
            self.bins.push(Bin::default());
        }
        let bin = self.bins.last_mut().expect("one was pushed");
        bin.add(&Bin { count: 1, at, value });
    }

    fn halve(&mut self) {
        let merge = |pair: &[Bin]| {
            let mut sum = pair[0];
            pair[1..].iter().for_each(|bin| sum.add(bin));
            sum
        };
        self.bins = self.bins.chunks(2).map(merge).collect();
        self.width *= 2;
    }

    /// Positions and means, in order.
    pub fn points(&self) -> impl Iterator<Item = (CurvePosition, f64)> {
        self.bins.iter().map(|bin| {
            let count = bin.count as f64;
            let CurvePosition { t, step, samples } = bin.at;
            let at = CurvePosition { t: t / count, step: step / count, samples: samples / count };
            (at, bin.value / count)
        })
    }

    /// `[t, step, samples, value]` for each point.
    pub fn json(&self) -> Value {
        self.points().map(|(at, value)| json!([at.t, at.step, at.samples, value])).collect()
    }
}

impl Bin {
    fn add(&mut self, other: &Bin) {
        self.count += other.count;
        self.at.t += other.at.t;
        self.at.step += other.at.step;
        self.at.samples += other.at.samples;
        self.value += other.value;
    }
}

/// The curves of a run.
#[derive(Clone, Debug, Default)]
pub struct RunCurves {
    /// Mean loss of mini-batches.
    pub batch_loss: BinnedCurve,
    /// Loss of the deployed model.
    pub loss: BinnedCurve,
    /// Its accuracy.
    pub accuracy: BinnedCurve,
    /// The least accuracy of a worker's own model.
    pub worst_accuracy: BinnedCurve,
    /// How far the workers are apart, at evaluations.
    pub consensus: BinnedCurve,
    /// Seconds of a step.
    pub step_seconds: BinnedCurve,
    /// How far each rank is from the mean of all.
    pub deviations: BTreeMap<u32, BinnedCurve>,
}

impl RunCurves {
    /// Of a run with this many workers, whose steps are averaged from the beginning.
    pub fn new(workers: usize) -> RunCurves {
        let of_all = BinnedCurve { bins: Vec::new(), width: workers.max(1) as u64 };
        let step_seconds = of_all.clone();
        RunCurves { batch_loss: of_all, step_seconds, ..RunCurves::default() }
    }

    /// Takes a record, when this many samples were used.
    pub fn take(&mut self, record: &Record, samples: u64) {
        let at = CurvePosition { t: record.t, step: record.step as f64, samples: samples as f64 };
        match record.event {
            RecordKind::Step { loss, compute, exposed, waiting, .. } => {
                self.batch_loss.take(at, f64::from(loss));
                self.step_seconds.take(at, compute + exposed + waiting);
            }
            RecordKind::Evaluation { loss, accuracy, consensus } => {
                self.loss.take(at, loss);
                self.accuracy.take(at, accuracy.unwrap_or(f64::NAN));
                self.consensus.take(at, consensus);
            }
            RecordKind::Workers { accuracy: Some([_, worst]), .. } => {
                self.worst_accuracy.take(at, worst);
            }
            RecordKind::Deviation { distance, .. } if record.rank < DEVIATIONS => {
                self.deviations.entry(record.rank).or_default().take(at, distance);
            }
            _ => {}
        }
    }

    /// As the API shows them.
    pub fn json(&self) -> Value {
        let deviations =
            self.deviations.iter().map(|(rank, curve)| (rank.to_string(), curve.json()));
        json!({
            "columns": ["t", "step", "samples", "value"],
            "batch_loss": self.batch_loss.json(),
            "loss": self.loss.json(),
            "accuracy": self.accuracy.json(),
            "worst_accuracy": self.worst_accuracy.json(),
            "consensus_distance": self.consensus.json(),
            "step_seconds": self.step_seconds.json(),
            "deviations": deviations.collect::<serde_json::Map<_, _>>(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_of_any_length_keeps_its_mean_and_few_points() {
        let mut curve = BinnedCurve::default();
        let count = 100_000;
        for k in 0..count {
            let at = CurvePosition { t: f64::from(k), ..CurvePosition::default() };
            curve.take(at, f64::from(k % 7));
        }
        let points: Vec<_> = curve.points().collect();
        assert!(points.len() <= POINTS && points.len() > POINTS / 4, "{}", points.len());
        assert!(points.windows(2).all(|pair| pair[0].0.t < pair[1].0.t));
        let weighted: f64 = curve.bins.iter().map(|bin| bin.value).sum();
        let exact: f64 = (0..count).map(|k| f64::from(k % 7)).sum();
        assert_eq!(weighted, exact);
    }
}
