//! Accuracy and parameter variance against virtual time, on a network that two cores can train.

use quelea_plot::Axis;
use quelea_run::trial::Trial;

use super::{AladdinCase, AladdinCosts, AladdinMethod, Calibration, METHODS, PAPER};
use crate::error::ExperimentError;
use crate::report::{BestValue, Figure, PaperReport, ParameterSource, ReportCell, ReportTable};
use crate::training::{Lesson, NamedRuns, Trained, chart};
use crate::{Experiment, ReproduceOptions};
use quelea_core::meta::Meta;

/// The row of the table.
pub const EXPERIMENT: Experiment = Experiment {
    meta: Meta {
        name: "aladdin-convergence",
        summary: "accuracy and parameter variance against time for all five, on handwritten digits",
        paper: PAPER,
        section: "",
        file: file!(),
        options: &[],
    },
    trains: true,
    data: None,
    run,
};

/// The slides' accuracy table for one model on CIFAR-10, in the order of [`METHODS`].
struct PublishedAccuracy {
    /// Final accuracy in percent.
    last: [f64; 5],
    /// Accuracy after `early_hours`.
    early: [f64; 5],
    early_hours: f64,
    /// Hours until 90 %.
    hours_to_90: [f64; 5],
}

const RESNET: PublishedAccuracy = PublishedAccuracy {
    last: [93.53, 93.15, 91.12, 93.40, 93.78],
    early: [89.92, 88.10, 84.31, 88.39, 90.71],
    early_hours: 1.0,
    hours_to_90: [0.98, 1.16, 1.36, 1.15, 0.92],
};

const VGG: PublishedAccuracy = PublishedAccuracy {
    last: [92.38, 91.71, 91.24, 92.28, 92.26],
    early: [77.65, 49.73, 70.02, 82.47, 86.87],
    early_hours: 2.0,
    hours_to_90: [6.40, 8.22, 6.18, 3.94, 2.87],
};

/// Accuracy in percent that runs are timed to.
const TARGET: f64 = 90.0;
const WORKERS: usize = 8;
const EPOCHS: usize = 12;
const EVALUATIONS: usize = 48;
const SEEDS: usize = 5;

fn run(options: &ReproduceOptions) -> Result<PaperReport, ExperimentError> {
    let calibration = Calibration::fit()?;
    let title = "Accuracy and parameter variance against time";
    let mut report = PaperReport::new(EXPERIMENT.meta.name, title, PAPER);
    let task = ["task.name=digits-cnn", "task.batch=16"].map(String::from);
    let lessons = Lesson::several(WORKERS, options.seed, options.size(SEEDS, 1), &task)?;
    let steps = lessons[0].steps_per_epoch * options.size(EPOCHS, 1) as u64;
    let models = [(calibration.resnet, RESNET), (calibration.vgg, VGG)];
    for (costs, published) in &models[..options.size(2, 1)] {
        let mut runs = NamedRuns::new();
        for method in METHODS {
            (options.tell)(&format!("  {} with the times of {}", method.name(), costs.model.name));
            let trial = calibration.trial(*costs, AladdinCase::eight(method, 1.0));
            let plan = |lesson: &Lesson| {
                hyperparameters(trial.clone().on_task(&lesson.settings, &lesson.problem))
                    .plan(steps)
            };
            let run = Trained::over(&lessons, options.size(EVALUATIONS, 4) as u64, plan)?;
            runs.push((method.name().into(), run));
        }
        charts(&mut report, &runs, costs.model.name);
        let table = table(&runs, *costs, published);
        claims(&mut report, &table, options);
        report.tables.push(table);
    }
    calibration.tell(&mut report);
    tell(&mut report, options);
    Ok(report)
}

/// The same for all five.
fn hyperparameters(trial: Trial) -> Trial {
    trial
        .set("optimizer.lr", 0.02)
        .set("optimizer.momentum", 0.9)
        .set("optimizer.schedule.name", "cosine")
}

const LAST: &str = "final accuracy, %";
const TOTAL: &str = "time in all, ALADDIN's = 1";
const EARLY: &str = "accuracy early on, %";
const UNTIL: &str = "time to 90 %, ALADDIN's in all = 1";

fn table(runs: &NamedRuns, costs: AladdinCosts, published: &PublishedAccuracy) -> ReportTable {
    let hours = costs.model.hours;
    let unit = runs.last().map_or(f64::NAN, |(_, aladdin)| aladdin.last().seconds);
    let early = published.early_hours / hours[4] * unit;
    let mut cells = Vec::new();
    for (index, ((name, run), method)) in runs.iter().zip(METHODS).enumerate() {
        let mut cell = |column: &str, paper: Figure, ours: f64| {
            // ALADDIN's own time is the unit; ASP's was fitted on.
            let known = method == AladdinMethod::Aladdin
                || method == AladdinMethod::Asp && costs.model.name == super::VGG.name;
            let fitted = column == TOTAL && known;
            let (row, column) = (name.clone(), column.to_string());
            cells.push(ReportCell { row, column, paper: Some(paper), ours, fitted });
        };
        let percent = |value: f64| Figure::printed(value, 2).elsewhere();
        let ratio = |value: f64| Figure::rounded(value / hours[4], 0.01 / hours[4]);
        cell(LAST, percent(published.last[index]), run.last().accuracy);
        cell(TOTAL, ratio(hours[index]), run.last().seconds / unit);
        cell(EARLY, percent(published.early[index]), run.at(early).accuracy);
        if let Some(seconds) = run.reached(TARGET) {
            cell(UNTIL, ratio(published.hours_to_90[index]).elsewhere(), seconds / unit);
        }
    }
    ReportTable { title: format!("With the times of {}", costs.model.name), cells }
}

fn charts(report: &mut PaperReport, runs: &NamedRuns, model: &str) {
    let name = model.to_lowercase();
    let seconds = || Axis::linear("virtual seconds");
    let accuracy = chart(
        &format!("Accuracy on held-out digits, with the times of {model}"),
        runs,
        seconds(),
        Axis::linear("percent").within(80.0, 100.0),
        |moment| (moment.seconds, moment.accuracy),
    );
    let variance = chart(
        &format!("How far the workers are apart, with the times of {model}"),
        runs,
        seconds(),
        Axis::log("mean variance of a parameter (AR-SGD: exactly 0)"),
        |moment| (moment.seconds, moment.variance),
    );
    report.charts.push((format!("accuracy-{name}"), accuracy));
    report.charts.push((format!("variance-{name}"), variance));
}

/// Who should be first, and the whole published order; of a small version only the times.
fn claims(report: &mut PaperReport, table: &ReportTable, options: &ReproduceOptions) {
    let columns =
        [(TOTAL, BestValue::Lowest), (EARLY, BestValue::Highest), (UNTIL, BestValue::Lowest)];
    for (column, best) in &columns[..options.size(3, 1)] {
        let name = AladdinMethod::Aladdin.name();
        report.claim(
            format!("{}, {column}: {name} is first, as published", table.title),
            table.order(column, *best, |cell| cell.ours).first() == Some(&name),
        );
    }
    if options.small {
        return;
    }
    for (column, best) in columns.into_iter().chain([(LAST, BestValue::Highest)]) {
        report.claim_order(table, column, best);
    }
}

fn tell(report: &mut PaperReport, options: &ReproduceOptions) {
    let why = "the slides train ResNet-50 and VGG-16 on CIFAR-10, which two cores cannot";
    let epochs = format!("{} epochs", options.size(EPOCHS, 1));
    let seeds = format!("mean over {} seeds", options.size(SEEDS, 1));
    let assumed = [
        ("task", "digits-cnn (53,000 parameters, embedded data), batch 16 a worker", why),
        ("length", epochs.as_str(), why),
        ("optimizer", "SGD, momentum 0.9, rate 0.02 falling as half a cosine", "not stated"),
        ("fixed accuracy", "90 %, as in the slides for CIFAR-10", "all of them reach it"),
        ("every number", seeds.as_str(), "one held-out digit is 0.28 points"),
    ];
    report.assumes(assumed);
    report.rests_on(
        "early on",
        "0.55 (ResNet-50) and 0.40 (VGG-16) of ALADDIN's time in all",
        ParameterSource::Derived("1 of its 1.81 h, 2 of its 4.97 h".into()),
    );
    report.note(
        "Accuracies were published for another task; only the order in a column can be compared, and \
         it is said above where it differs. Times are those of the published models: a vector of \
         the digits' network counts as many bytes as theirs, and a gradient takes as long.",
    );
    report.note(
        "Where final accuracies lie closer together than some tenths of a point, their order is \
         chance: another seed changes it.",
    );
    report.note(
        "Not reproduced: that EASGD is behind ASP in accuracy. Our reading: asynchrony acts like more \
         momentum (Mitliagkas et al. 2016), so that ASP would need a lower rate than the one that \
         all five share here; the slides do not say whose rates were tuned.",
    );
}
