//! Accuracy and parameter variance against virtual time, on a real but small training task.

use std::sync::Arc;

use murmura_core::contract::Deploy;
use murmura_core::problems::Problem;
use murmura_core::time::Time;
use murmura_plot::{Axis, Chart, Lines, Series, Stroke};
use murmura_record::{Cuts, Models as Shown, Record};
use murmura_run::files::tensors::Models;

use super::{Calibration, Case, METHODS, PAPER};
use crate::error::ExperimentError;
use crate::report::{Cell, Report, Source, Table};
use crate::{Experiment, Options};

/// The row of the table.
pub const EXPERIMENT: Experiment = Experiment {
    name: "aladdin-convergence",
    summary: "accuracy, loss and parameter variance against time for all five, on a small task",
    paper: PAPER,
    trains: false,
    run,
};

/// Elements of the model: thirty features and a bias.
const ELEMENTS: f64 = 31.0;
/// Loss that a run is timed to.
const TARGET: f64 = 0.12;

/// The model at one moment.
#[derive(Clone, Copy, Debug)]
struct Point {
    seconds: f64,
    loss: f64,
    accuracy: f64,
    variance: f64,
}

struct Watch {
    problem: Arc<dyn Problem>,
    deploy: Deploy,
    steps: u64,
    points: Vec<Point>,
}

impl murmura_sim::Observer for Watch {
    fn record(&mut self, _record: Record) {}

    fn cuts(&self) -> Cuts {
        Cuts { save_every: 0, shows: self.steps / 2, steps: self.steps }
    }

    fn shown(&mut self, now: Time, _step: u64, models: Shown) {
        let models = Models {
            workers: models.workers.iter().map(|(_, model)| model.as_slice()).collect(),
            servers: models.servers.iter().map(|(_, model)| model.as_slice()).collect(),
        };
        let evaluation = self.problem.evaluate(&models.deployed(self.deploy));
        self.points.push(Point {
            seconds: now.seconds(),
            loss: evaluation.loss,
            accuracy: evaluation.accuracy.unwrap_or(0.0),
            variance: models.consensus_distance().powi(2) / ELEMENTS,
        });
    }
}

fn run(options: &Options) -> Result<Report, ExperimentError> {
    let calibration = Calibration::fit()?;
    let title = "Accuracy and parameter variance against time";
    let mut report = Report::new(EXPERIMENT.name, title, PAPER);
    let steps = options.size(200, 60) as u64;
    let mut curves = Vec::new();
    for method in METHODS {
        let trial = calibration
            .trial(calibration.resnet, Case::eight(method, 1.0))
            .on_task("logistic", ELEMENTS)
            .set("task.batch", 16)
            .set("optimizer.lr", 0.1)
            .set("seed", options.seed);
        let plan = trial.plan(steps)?;
        let mut watch = Watch {
            problem: Arc::clone(&plan.problem),
            deploy: plan.setup.facts().deploy,
            steps,
            points: Vec::new(),
        };
        murmura_sim::simulate(&plan.setup, &*plan.problem, &plan.cluster, &mut watch)?;
        curves.push((method.name(), watch.points));
    }
    let common = curves.iter().filter_map(|(_, points)| points.last()).map(|point| point.seconds);
    let early = common.fold(f64::INFINITY, f64::min) / 2.0;
    report.tables.push(table(&curves, early));
    report
        .charts
        .push(chart(&curves, "accuracy", Axis::linear("share of right answers"), |p| p.accuracy));
    report.charts.push(chart(&curves, "loss", Axis::log("loss on all training data"), |p| p.loss));
    report.charts.push(chart(
        &curves,
        "variance",
        Axis::log("mean variance of a parameter"),
        |p| p.variance,
    ));
    calibration.tell(&mut report);
    let why =
        "small enough for seconds; the slides train ResNet-50 and VGG-16 on CIFAR-10".to_string();
    let task = "logistic regression, breast-cancer data, batch 16 a worker, timed as ResNet-50";
    report.rests_on("task", task, Source::Assumed(why));
    claims(&mut report);
    report.note(
        "Published for ResNet-50 on CIFAR-10: final accuracy .9353 (AR-SGD), .9315 (ASP), .9112 (EASGD), \
         .9340 (SGP), .9378 (ALADDIN); hours to 90 %: 0.98, 1.16, 1.36, 1.15, 0.92. A convex task \
         shows who is there first, not who generalises better.",
    );
    Ok(report)
}

fn table(curves: &[(&'static str, Vec<Point>)], early: f64) -> Table {
    let mut cells = Vec::new();
    for (name, points) in curves {
        let last = points.last();
        let before = points.iter().rev().find(|point| point.seconds <= early);
        let reached = points.iter().find(|point| point.loss <= TARGET);
        let columns = [
            ("final accuracy", last.map(|point| point.accuracy)),
            ("final loss", last.map(|point| point.loss)),
            ("seconds in all", last.map(|point| point.seconds)),
            ("loss at half of the shortest", before.map(|point| point.loss)),
            ("seconds to a loss of 0.12", reached.map(|point| point.seconds)),
            ("variance at the end", last.map(|point| point.variance)),
        ];
        for (column, ours) in columns {
            let Some(ours) = ours else { continue };
            let (row, column) = ((*name).to_string(), column.to_string());
            cells.push(Cell { row, column, paper: None, ours, fitted: false });
        }
    }
    Table { title: "What each comes to".into(), cells }
}

fn chart(
    curves: &[(&'static str, Vec<Point>)],
    name: &str,
    y: Axis,
    of: fn(&Point) -> f64,
) -> (String, Chart) {
    let line = |(name, points): &(&'static str, Vec<Point>)| {
        let points = points.iter().map(|point| (point.seconds, of(point))).collect();
        Series { stroke: Stroke::Line, ..Series::line(*name, points) }
    };
    let chart = Chart::Lines(Lines {
        title: format!("{}{} against virtual time", name[..1].to_uppercase(), &name[1..]),
        x: Axis::linear("seconds"),
        y,
        series: curves.iter().map(line).collect(),
    });
    (name.to_string(), chart)
}

fn claims(report: &mut Report) {
    let column = |column: &str| -> Vec<(String, f64)> {
        let cells = report.cells().filter(|cell| cell.column == column);
        cells.map(|cell| (cell.row.clone(), cell.ours)).collect()
    };
    let accuracies = column("final accuracy");
    let best = accuracies.iter().map(|(_, accuracy)| *accuracy).fold(0.0, f64::max);
    let near = accuracies.iter().all(|(_, accuracy)| *accuracy > best - 0.03);
    let seconds = column("seconds in all");
    let shortest = seconds.iter().min_by(|a, b| a.1.total_cmp(&b.1)).map(|(name, _)| name.clone());
    report.claim("all end within three points of the best accuracy", near);
    report.claim(
        "ALADDIN needs the least time for the same gradients, as published",
        shortest.as_deref() == Some("ALADDIN"),
    );
}
