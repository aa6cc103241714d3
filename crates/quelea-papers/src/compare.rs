//! Several algorithms on one task and one cluster, on the same data in the same order.

use quelea_plot::{Axis, Chart, LineChart, LineSeries};
use quelea_record::{Record, RecordKind};
use quelea_run::config::Config;
use quelea_run::drive;
use quelea_run::error::{RequestError, RunError};
use quelea_run::execute::execute;
use quelea_run::files::directory::Directory;
use quelea_run::files::summary::Summary;
use quelea_run::prepared::PreparedRun;
use serde_json::{Value, json};

/// What a run is to reach.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Target {
    /// A loss, or less.
    Loss(f64),
    /// An accuracy, or more.
    Accuracy(f64),
}

/// The model at one moment of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CurvePoint {
    /// Steps of each worker.
    pub step: u64,
    /// Seconds of the run's clock.
    pub seconds: f64,
    /// Loss on all training data.
    pub loss: f64,
    /// Share of right answers on held-out data.
    pub accuracy: Option<f64>,
}

/// One algorithm's run.
#[derive(Clone, Debug)]
pub struct Entrant {
    /// The algorithm.
    pub name: String,
    /// Its evaluations, the last one at the end.
    pub curve: Vec<CurvePoint>,
    /// What the run came to.
    pub summary: Summary,
}

impl Entrant {
    /// Simulates a configuration; its files go to `directory`.
    pub fn run(config: Config, directory: &Directory) -> Result<Entrant, RunError> {
        let name = config.algorithm.entry.meta.name.to_string();
        let plan = PreparedRun::new(config)?;
        plan.check_memory()?;
        let mut curve = Vec::new();
        let mut watch = |record: &Record| {
            if let RecordKind::Evaluation { loss, accuracy, .. } = record.event {
                curve.push(CurvePoint { step: record.step, seconds: record.t, loss, accuracy });
            }
        };
        let finished =
            execute(&plan, directory, &mut watch, |listener| drive::simulate(&plan, listener))?;
        Ok(Entrant { name, curve, summary: finished.summary })
    }

    /// When the target was reached, and after how many steps.
    pub fn reached(&self, target: Target) -> Option<CurvePoint> {
        let is_there = |point: &&CurvePoint| match target {
            Target::Loss(loss) => point.loss <= loss,
            Target::Accuracy(accuracy) => point.accuracy.is_some_and(|a| a >= accuracy),
        };
        self.curve.iter().find(is_there).copied()
    }

    /// Shares of the workers' time: computing, exposed communication, waiting.
    fn shares(&self) -> [f64; 3] {
        let total = &self.summary.total;
        let parts = [total.compute_seconds, total.exposed_seconds, total.waiting_seconds];
        let sum: f64 = parts.iter().sum();
        parts.map(|part| if sum > 0.0 { part / sum } else { 0.0 })
    }
}

/// Closer than this, two times are the same.
const TIE: f64 = 1.03;

/// All runs side by side.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// In the order in which they were asked for.
    pub entrants: Vec<Entrant>,
    /// What they are measured by.
    pub target: Target,
}

impl Comparison {
    /// Measured by `target`, or by the best loss that all of them reached.
    pub fn new(entrants: Vec<Entrant>, target: Option<Target>) -> Result<Comparison, RequestError> {
        let has_accuracy = entrants.iter().all(|entrant| entrant.summary.accuracy.is_some());
        if let (Some(Target::Accuracy(accuracy)), false) = (target, has_accuracy) {
            let problem = "the task has no accuracy; use --target-loss";
            return Err(RequestError::field("--target-accuracy", accuracy, problem));
        }
        let lowest = |entrant: &Entrant| {
            entrant.curve.iter().map(|point| point.loss).fold(f64::INFINITY, f64::min)
        };
        let common = entrants.iter().map(lowest).fold(f64::NEG_INFINITY, f64::max);
        Ok(Comparison { entrants, target: target.unwrap_or(Target::Loss(common)) })
    }

    /// The table: names of the columns, then a line for every algorithm.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let head = [
            "",
            "to target",
            "steps",
            "loss",
            "accuracy",
            "time",
            "MB sent",
            "exposed",
            "waiting",
            "consensus",
        ];
        let mut rows = vec![head.map(String::from).to_vec()];
        for entrant in &self.entrants {
            let reached = entrant.reached(self.target);
            let [_, exposed, waiting] = entrant.shares();
            let summary = &entrant.summary;
            let some = |value: Option<f64>| value.map_or("–".to_string(), |v| format!("{v:.4}"));
            rows.push(vec![
                entrant.name.clone(),
                reached.map_or("never".into(), |point| format!("{:.3} s", point.seconds)),
                reached.map_or(String::new(), |point| point.step.to_string()),
                some(summary.loss),
                some(summary.accuracy),
                format!("{:.3} s", summary.clock_seconds),
                format!("{:.2}", summary.total.bytes_sent as f64 / 1e6),
                format!("{:.0} %", 100.0 * exposed),
                format!("{:.0} %", 100.0 * waiting),
                summary.consensus_distance.map_or("–".into(), |d| format!("{d:.2e}")),
            ]);
        }
        rows
    }

    /// What they are measured by, in words.
    pub fn goal(&self) -> String {
        match self.target {
            Target::Loss(loss) => format!("loss {loss:.4}"),
            Target::Accuracy(accuracy) => format!("accuracy {accuracy:.4}"),
        }
    }

    /// Which one to take, and why.
    pub fn verdict(&self) -> String {
        let mut there: Vec<(&Entrant, CurvePoint)> = self
            .entrants
            .iter()
            .filter_map(|entrant| Some((entrant, entrant.reached(self.target)?)))
            .collect();
        there.sort_by(|a, b| a.1.seconds.total_cmp(&b.1.seconds));
        let goal = self.goal();
        let Some((winner, first)) = there.first() else {
            return format!("None of them reaches {goal}: train longer, or ask for less.");
        };
        let mut text =
            format!("Take {}: it reaches {goal} after {:.3} s", winner.name, first.seconds);
        if let Some((second, then)) = there.get(1) {
            let factor = then.seconds / first.seconds.max(f64::MIN_POSITIVE);
            if factor < TIE {
                text += &format!("; {} is as fast ({:.3} s)", second.name, then.seconds);
            } else {
                text += &format!(", {factor:.2} times as fast as {}", second.name);
                text += &reason(winner, *first, second, *then);
            }
        }
        text.push('.');
        let loss = |entrant: &Entrant| entrant.summary.loss.unwrap_or(f64::INFINITY);
        let best = self.entrants.iter().min_by(|a, b| loss(a).total_cmp(&loss(b)));
        if let Some(best) = best.filter(|best| loss(best) < 0.98 * loss(winner)) {
            text += &format!(
                " Given the whole run, {} ends lower: {:.4} against {:.4}.",
                best.name,
                loss(best),
                loss(winner)
            );
        }
        text
    }

    /// Loss against steps, and against time.
    pub fn charts(&self) -> Vec<(String, Chart)> {
        let chart = |name: &str, label: &str, x: fn(&CurvePoint) -> f64| {
            let line = |entrant: &Entrant| {
                let points = entrant.curve.iter().map(|point| (x(point), point.loss));
                let mut series = LineSeries::line(entrant.name.clone(), points.collect());
                series.stroke = quelea_plot::Stroke::Line;
                series
            };
            let chart = Chart::Lines(LineChart {
                title: format!("Loss against {name}"),
                x: Axis::linear(label),
                y: Axis::log("loss on all training data"),
                series: self.entrants.iter().map(line).collect(),
            });
            (format!("loss-{name}"), chart)
        };
        vec![
            chart("steps", "steps of each worker", |point| point.step as f64),
            chart("time", "seconds", |point| point.seconds),
        ]
    }

    /// What `--json` prints.
    pub fn json(&self) -> Value {
        let entrants = self.entrants.iter().map(|entrant| {
            let reached = entrant.reached(self.target);
            let [compute, exposed, waiting] = entrant.shares();
            let summary = &entrant.summary;
            json!({
                "algorithm": entrant.name,
                "seconds_to_target": reached.map(|point| point.seconds),
                "steps_to_target": reached.map(|point| point.step),
                "loss": summary.loss,
                "accuracy": summary.accuracy,
                "clock_seconds": summary.clock_seconds,
                "bytes_sent": summary.total.bytes_sent,
                "compute_share": compute,
                "exposed_share": exposed,
                "waiting_share": waiting,
                "consensus_distance": summary.consensus_distance,
            })
        });
        let target = match self.target {
            Target::Loss(loss) => json!({ "loss": loss }),
            Target::Accuracy(accuracy) => json!({ "accuracy": accuracy }),
        };
        json!({
            "target": target,
            "algorithms": entrants.collect::<Vec<_>>(),
            "verdict": self.verdict(),
        })
    }
}

/// Why the first is ahead of the second: fewer steps, or shorter ones, and what they lose.
fn reason(winner: &Entrant, first: CurvePoint, second: &Entrant, then: CurvePoint) -> String {
    if (first.step as f64) < 0.9 * then.step as f64 {
        return format!(": it needs {} steps instead of {}", first.step, then.step);
    }
    let [ours, theirs] = [winner.shares(), second.shares()];
    let lost = |shares: [f64; 3]| (100.0 * shares[1], 100.0 * shares[2]);
    let ((exposed, waiting), (exposed_too, waiting_too)) = (lost(ours), lost(theirs));
    format!(
        ": its workers spend {exposed:.0} % of their time on communication and {waiting:.0} % \
         waiting, instead of {exposed_too:.0} % and {waiting_too:.0} %"
    )
}
