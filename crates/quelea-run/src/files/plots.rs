//! `plots/`: loss, accuracy, consensus distance and the split of time, as SVG and PNG.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use quelea_plot::{Axis, BarChart, BarSeries, Chart, LineChart, LineSeries};
use quelea_record::{Record, RecordKind};
use serde_json::Value;

use super::summary::{Summary, WorkerSummary};

/// The folder in a run's folder.
pub const FOLDER: &str = "plots";
/// Points of a curve that is taken from every step.
const POINTS: u64 = 200;
/// Workers that have a bar of their own; of more, evenly chosen ones.
const BARS: usize = 16;

/// What the curves of a run are made of.
#[derive(Clone, Debug)]
pub struct Curves {
    /// Steps that one point stands for.
    width: u64,
    /// Sum and number of the losses of mini-batches, by point.
    losses: BTreeMap<u64, (f64, u64)>,
    evaluations: Vec<EvaluationPoint>,
    /// Mean and worst accuracy of the workers, by step.
    workers: Vec<(u64, [f64; 2])>,
}

#[derive(Clone, Copy, Debug)]
struct EvaluationPoint {
    step: u64,
    loss: f64,
    accuracy: Option<f64>,
    consensus: f64,
}

impl Curves {
    /// Of a run of so many steps of each worker.
    pub fn new(steps: u64) -> Curves {
        let width = steps.div_ceil(POINTS).max(1);
        Curves { width, losses: BTreeMap::new(), evaluations: Vec::new(), workers: Vec::new() }
    }

    /// Takes what a record says.
    pub fn take(&mut self, record: &Record) {
        let step = record.step;
        match record.event {
            RecordKind::Step { loss, .. } => self.add_loss(step, f64::from(loss)),
            RecordKind::Evaluation { loss, accuracy, consensus } => {
                self.evaluations.push(EvaluationPoint { step, loss, accuracy, consensus });
            }
            RecordKind::Workers { accuracy: Some(accuracy), .. } => {
                self.workers.push((step, accuracy))
            }
            _ => {}
        }
    }

    /// Takes what a line of an earlier run says.
    pub fn take_line(&mut self, line: &Value) {
        let (Some(step), Some(kind)) = (line["step"].as_u64(), line["kind"].as_str()) else {
            return;
        };
        let real = |key: &str| line[key].as_f64();
        match kind {
            "step" => self.add_loss(step, real("loss").unwrap_or(f64::NAN)),
            "evaluation" => self.evaluations.push(EvaluationPoint {
                step,
                loss: real("loss").unwrap_or(f64::NAN),
                accuracy: real("accuracy"),
                consensus: real("consensus").unwrap_or(f64::NAN),
            }),
            "workers" => {
                let both = real("accuracy_mean").zip(real("accuracy_worst"));
                self.workers.extend(both.map(|(mean, worst)| (step, [mean, worst])));
            }
            _ => {}
        }
    }

    fn add_loss(&mut self, step: u64, loss: f64) {
        let (sum, count) = self.losses.entry(step / self.width).or_default();
        (*sum, *count) = (*sum + loss, *count + 1);
    }

    /// The charts, by name of their files. What a run has not has no chart.
    fn charts(&self, summary: &Summary) -> Vec<(&'static str, Chart)> {
        let title = |what: &str| {
            let name = |table: &str| summary.config[table]["name"].as_str().unwrap_or_default();
            format!("{what}: {} on {}", name("algorithm"), name("task"))
        };
        let chart = |what: &str, y: Axis, series: Vec<LineSeries>| {
            let x = Axis::linear("steps of each worker");
            Chart::Lines(LineChart { title: title(what), x, y, series })
        };
        let of = |value: fn(&EvaluationPoint) -> Option<f64>| -> Vec<(f64, f64)> {
            let points = self.evaluations.iter();
            points.filter_map(|one| Some((one.step as f64, value(one)?))).collect()
        };
        let batches = self.losses.iter().map(|(point, (sum, count))| {
            let middle = (*point as f64 + 0.5) * self.width as f64;
            (middle, sum / *count as f64)
        });
        let losses = of(|one| Some(one.loss));
        let is_positive = losses.iter().all(|(_, loss)| *loss > 0.0 || !loss.is_finite());
        let axis = if is_positive { Axis::log("loss") } else { Axis::linear("loss") };
        let loss = vec![
            LineSeries::line("mini-batches, all workers", batches.collect()),
            LineSeries::line("deployed model, all training data", losses),
        ];
        let mut charts = vec![("loss", chart("Loss", axis, loss))];
        let percent = |points: Vec<(f64, f64)>| points.into_iter().map(|(x, y)| (x, y * 100.0));
        let accuracy = of(|one| one.accuracy);
        if !accuracy.is_empty() {
            let mut series = vec![LineSeries::line("deployed model", percent(accuracy).collect())];
            for (index, name) in ["mean of the workers", "worst worker"].into_iter().enumerate() {
                let points = self.workers.iter().map(|(step, both)| (*step as f64, both[index]));
                series.push(LineSeries::points(name, percent(points.collect()).collect()));
            }
            charts.push(("accuracy", chart("Accuracy", Axis::linear("% right"), series)));
        }
        let consensus = of(|one| (one.consensus > 0.0).then_some(one.consensus));
        if !consensus.is_empty() {
            let series = vec![LineSeries::line("consensus distance", consensus)];
            let axis = Axis::log("distance of the workers from their mean");
            charts.push(("consensus", chart("Consensus distance", axis, series)));
        }
        charts.push(("time", times(title("Time of each worker"), summary)));
        charts
    }

    /// Draws all charts into `folder`, which appears whole.
    pub fn write(&self, run: &Path, summary: &Summary) -> io::Result<()> {
        let beside = run.join(format!(".{FOLDER}.{}.partial", std::process::id()));
        let drawn = self.draw(&beside, summary).and_then(|()| {
            let place = run.join(FOLDER);
            match fs::remove_dir_all(&place) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => fs::rename(&beside, place),
            }
        });
        if drawn.is_err() {
            let _ = fs::remove_dir_all(&beside);
        }
        drawn
    }

    fn draw(&self, folder: &Path, summary: &Summary) -> io::Result<()> {
        fs::create_dir_all(folder)?;
        for (name, chart) in self.charts(summary) {
            fs::write(folder.join(format!("{name}.svg")), chart.svg())?;
            fs::write(folder.join(format!("{name}.png")), chart.png())?;
        }
        Ok(())
    }
}

/// Seconds of every worker, one part above the other.
fn times(title: String, summary: &Summary) -> Chart {
    let all = &summary.workers;
    let step = all.len().div_ceil(BARS).max(1);
    let shown: Vec<&WorkerSummary> = all.iter().step_by(step).collect();
    let part = |name: &str, of: fn(&WorkerSummary) -> f64| {
        BarSeries::new(name, shown.iter().map(|worker| Some(of(worker))).collect())
    };
    Chart::Bars(BarChart {
        title,
        y: Axis::linear("seconds"),
        groups: shown.iter().map(|worker| format!("{}", worker.rank)).collect(),
        series: vec![
            part("computing", |worker| worker.compute_seconds),
            part("communication that computing did not hide", |worker| worker.exposed_seconds),
            part("waiting for slower workers", |worker| worker.waiting_seconds),
        ],
        stacked: true,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_are_the_same_from_records_and_from_the_lines_that_they_become() {
        let events = [
            RecordKind::Step { loss: 0.5, samples: 1, compute: 0.0, exposed: 0.0, waiting: 0.0 },
            RecordKind::Evaluation { loss: 0.25, accuracy: Some(0.5), consensus: 2.0 },
            RecordKind::Workers { loss: [1.0, 2.0], accuracy: Some([0.5, 0.25]) },
            RecordKind::Lost,
        ];
        let (mut live, mut again) = (Curves::new(1000), Curves::new(1000));
        for (step, event) in events.into_iter().enumerate() {
            let record = Record { t: 1.0, rank: 0, step: step as u64, event };
            live.take(&record);
            let mut line = Vec::new();
            super::super::records::write_line(&mut line, &record).expect("written");
            again.take_line(&serde_json::from_slice(&line).expect("JSON"));
        }
        assert_eq!(format!("{live:?}"), format!("{again:?}"));
        assert_eq!((live.width, live.losses[&0]), (5, (0.5, 1)));
    }
}
