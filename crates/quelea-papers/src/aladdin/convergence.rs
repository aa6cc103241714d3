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
    if !options.small {
        (options.tell)("  ASP with other rates");
        let (costs, published) = &models[0];
        let trial = calibration.trial(*costs, AladdinCase::eight(AladdinMethod::Asp, 1.0));
        let aladdin = calibration.time(*costs, AladdinCase::eight(AladdinMethod::Aladdin, 1.0))?;
        let unit = steps as f64 * aladdin.step_seconds();
        let early = published.early_hours / costs.model.hours[4] * unit;
        rates_of_asp(&mut report, &lessons, &trial, steps, early)?;
    }
    calibration.tell(&mut report, options);
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
const LOSS: &str = "held-out loss";
const VARIANCE: &str = "variance of a parameter, mean over the run";
const UNTIL: &str = "time to 90 %, ALADDIN's in all = 1";

fn table(runs: &NamedRuns, costs: AladdinCosts, published: &PublishedAccuracy) -> ReportTable {
    let hours = costs.model.hours;
    let unit = runs.last().map_or(f64::NAN, |(_, aladdin)| aladdin.last().seconds);
    let early = published.early_hours / hours[4] * unit;
    let mut cells = Vec::new();
    for (index, ((name, run), method)) in runs.iter().zip(METHODS).enumerate() {
        let mut cell = |column: &str, paper: Option<Figure>, ours: f64, spread: Option<f64>| {
            // ALADDIN's own time is the unit; the ratio of two fitted speeds predicts nothing.
            let fitted = column == TOTAL && method.is_fitted_in_hours(costs.model);
            let (row, column) = (name.clone(), column.to_string());
            cells.push(ReportCell { row, column, paper, ours, fitted, spread });
        };
        let percent = |value: f64| Some(Figure::printed(value, 2).elsewhere());
        let ratio = |value: f64| Some(Figure::rounded(value / hours[4], 0.01 / hours[4]));
        let spread = |of: &dyn Fn(&Trained) -> f64| run.spread(|run| Some(of(run)));
        let (accuracy, at) = (run.last().accuracy, run.at(early).accuracy);
        let total = run.last().seconds / unit;
        cell(LAST, percent(published.last[index]), accuracy, spread(&|run| run.last().accuracy));
        cell(TOTAL, ratio(hours[index]), total, None);
        cell(EARLY, percent(published.early[index]), at, spread(&|run| run.at(early).accuracy));
        if let Some(seconds) = run.reached(TARGET) {
            let hours = ratio(published.hours_to_90[index]).map(Figure::elsewhere);
            let apart = run.spread(|run| run.reached(TARGET).map(|seconds| seconds / unit));
            cell(UNTIL, hours, seconds / unit, apart);
        }
        cell(LOSS, None, run.last().loss, spread(&|run| run.last().loss));
        let variance = |run: &Trained| run.throughout(|moment| moment.variance);
        cell(VARIANCE, None, variance(run), spread(&variance));
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
    against(report, table);
    for (column, best) in columns.into_iter().chain([(LAST, BestValue::Highest)]) {
        report.claim_order(table, column, best);
    }
}

/// What the slides say of ALADDIN beside others: low variance of the parameters, generalization, no
/// accuracy lost.
fn against(report: &mut PaperReport, table: &ReportTable) {
    let cell = |row: AladdinMethod, column: &str| {
        let found = |cell: &&ReportCell| cell.row == row.name() && cell.column == column;
        table.cells.iter().find(found).expect("a row of every method")
    };
    let with_spread = |cell: &ReportCell, digits: usize| {
        let spread = cell.spread.map_or(String::new(), |spread| format!(" ± {spread:.digits$}"));
        format!("{:.digits$}{spread}", cell.ours)
    };
    let exact = AladdinMethod::ArSgd;
    let mut line = |what: &str, other: AladdinMethod, column: &str, least: f64, digits: usize| {
        let (ours, theirs) = (cell(AladdinMethod::Aladdin, column), cell(other, column));
        let ahead = if column == LAST { ours.ours - theirs.ours } else { theirs.ours - ours.ours };
        let text = format!(
            "{}: {what} {}: {} against {}",
            table.title,
            other.name(),
            with_spread(ours, digits),
            with_spread(theirs, digits)
        );
        report.claim(text, ahead >= least);
    };
    line(
        "ALADDIN's parameters vary less between workers than those of",
        AladdinMethod::Sgp,
        VARIANCE,
        0.0,
        7,
    );
    line(
        "ALADDIN's parameters vary less between workers than those of",
        AladdinMethod::Easgd,
        VARIANCE,
        0.0,
        7,
    );
    line("ALADDIN's held-out loss is no higher than that of", exact, LOSS, 0.0, 3);
    line("ALADDIN's accuracy is at most 0.2 points below that of", exact, LAST, -0.2, 2);
}

/// Whether ASP's rate is why it is behind EASGD: the same with lower rates, and without momentum.
fn rates_of_asp(
    report: &mut PaperReport,
    lessons: &[Lesson],
    trial: &Trial,
    steps: u64,
    early: f64,
) -> Result<(), ExperimentError> {
    let mut cells = Vec::new();
    for (name, rate, momentum) in [
        ("half the rate", 0.01, 0.9),
        ("a quarter of the rate", 0.005, 0.9),
        ("no momentum", 0.02, 0.0),
    ] {
        let plan = |lesson: &Lesson| {
            hyperparameters(trial.clone().on_task(&lesson.settings, &lesson.problem))
                .set("optimizer.lr", rate)
                .set("optimizer.momentum", momentum)
                .plan(steps)
        };
        let run = Trained::over(lessons, EVALUATIONS as u64, plan)?;
        let mut cell = |column: &str, of: &dyn Fn(&Trained) -> f64| {
            let spread = run.spread(|run| Some(of(run)));
            cells.push(ReportCell {
                spread,
                ..ReportCell::new(format!("ASP, {name}"), column, of(&run))
            });
        };
        cell(EARLY, &|run| run.at(early).accuracy);
        cell(LAST, &|run| run.last().accuracy);
    }
    let title = "ASP with other rates, with the times of ResNet-50".to_string();
    report.tables.push(ReportTable { title, cells });
    Ok(())
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
        "An order counts as missed only where two rows are farther apart than their seeds: one held-out \
         digit is 0.28 points.",
    );
    report.note(
        "Not reproduced: that EASGD is behind ASP in accuracy. One reading is that asynchrony acts like \
         more momentum (Mitliagkas et al. 2016), so that ASP would need a lower rate than the one that \
         all five share here; the table of ASP with other rates tries it. The slides do not say whose \
         rates were tuned.",
    );
}
