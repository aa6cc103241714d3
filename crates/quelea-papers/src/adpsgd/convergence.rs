//! Loss per epoch and final accuracy of AD-PSGD, D-PSGD and AllReduce.

use std::path::Path;

use quelea_plot::Axis;
use quelea_run::trial::Trial;

use super::{AdpsgdMethod, AdpsgdReading, AdpsgdSetting, LEARNERS, METHODS, PAPER};
use crate::error::ExperimentError;
use crate::report::{BestValue, Figure, PaperReport, ParameterSource, ReportCell, ReportTable};
use crate::training::{Lesson, NamedRuns, Trained, chart};
use crate::{Experiment, ReproduceOptions, data};
use quelea_core::meta::Meta;

/// The row of the table.
pub const EXPERIMENT: Experiment = Experiment {
    meta: Meta {
        name: "adpsgd-convergence",
        summary: "loss per epoch and final accuracy of AD-PSGD, D-PSGD and AllReduce with 16 learners, \
              on handwritten digits or, with --data, on CIFAR-10",
        paper: PAPER,
        section: "",
        file: file!(),
        options: &[],
    },
    trains: true,
    data: Some("cifar10"),
    run,
};

/// A task with its schedule.
struct Course {
    /// In words, for the report.
    words: String,
    settings: Vec<String>,
    learning_rate: f64,
    epochs: u64,
    seeds: usize,
}

fn digits(options: &ReproduceOptions) -> Course {
    Course {
        words: "digits-cnn (53,000 parameters, embedded data), batch 4 a learner".into(),
        settings: vec!["task.name=digits-cnn".into(), "task.batch=4".into()],
        learning_rate: 0.02,
        epochs: options.size(20, 1) as u64,
        seeds: options.size(5, 1),
    }
}

fn cifar(folder: &Path, options: &ReproduceOptions) -> Course {
    let images = options.size(4096, 256);
    Course {
        words: format!("ResNet-20 on the first {images} images of CIFAR-10, batch 8 a learner"),
        settings: vec![
            "task.name=cifar10-resnet20".into(),
            data::setting(folder),
            "task.batch=8".into(),
            format!("task.subset={images}"),
            format!("task.test_subset={}", options.size(1000, 64)),
        ],
        learning_rate: 0.05,
        epochs: options.size(6, 1) as u64,
        seeds: 1,
    }
}

fn run(options: &ReproduceOptions) -> Result<PaperReport, ExperimentError> {
    let folder = options.data.as_deref().and_then(|folder| data::under(folder, "cifar10"));
    let course = match &folder {
        Some(folder) => cifar(folder, options),
        None => digits(options),
    };
    let title = "Loss per epoch and final accuracy of 16 learners";
    let mut report = PaperReport::new(EXPERIMENT.meta.name, title, PAPER);
    let runs = train(&course, &mut report, options)?;
    let table = accuracies(&runs);
    claims(&mut report, &table, options);
    report.tables.push(table);
    report.tables.push(losses(&runs));
    charts(&mut report, &runs);
    if !options.small {
        every_gradient(&course, &mut report, options)?;
    }
    tell(&mut report, &course);
    Ok(report)
}

/// All three, evaluated after every epoch.
fn train(
    course: &Course,
    report: &mut PaperReport,
    options: &ReproduceOptions,
) -> Result<NamedRuns, ExperimentError> {
    let lessons = Lesson::several(LEARNERS, options.seed, course.seeds, &course.settings)?;
    let mut runs = NamedRuns::new();
    for method in METHODS {
        (options.tell)(&format!("  {}", method.name()));
        let setting = AdpsgdSetting::resnet(method)?;
        setting.tell(report, method);
        let plan = |lesson: &Lesson| {
            let trial = setting.trial(method, 1.0).on_task(&lesson.settings, &lesson.problem);
            hyperparameters(trial, course).plan(course.epochs * lesson.steps_per_epoch)
        };
        runs.push((method.name().into(), Trained::over(&lessons, course.epochs, plan)?));
    }
    Ok(runs)
}

/// Whether the published implementation's half an average per gradient is why AD-PSGD is not first: the
/// same with an average for every gradient, as Algorithm 1 has it.
fn every_gradient(
    course: &Course,
    report: &mut PaperReport,
    options: &ReproduceOptions,
) -> Result<(), ExperimentError> {
    (options.tell)("  AD-PSGD with an average for every gradient");
    let method = AdpsgdMethod::AdPsgd;
    let setting = AdpsgdSetting::read(method, Some(AdpsgdReading::EveryGradient))?;
    let lessons = Lesson::several(LEARNERS, options.seed, course.seeds, &course.settings)?;
    let plan = |lesson: &Lesson| {
        let trial = setting.trial(method, 1.0).on_task(&lesson.settings, &lesson.problem);
        hyperparameters(trial, course).plan(course.epochs * lesson.steps_per_epoch)
    };
    let run = Trained::over(&lessons, course.epochs, plan)?;
    let cell = |column: &str, of: &dyn Fn(&Trained) -> f64| {
        let spread = run.spread(|run| Some(of(run)));
        ReportCell {
            spread,
            ..ReportCell::new("AD-PSGD, an average per gradient", column, of(&run))
        }
    };
    let cells = vec![
        cell("final accuracy, %", &|run| run.last().accuracy),
        cell(LOSS, &|run| run.last().loss),
        cell("training loss of the last epoch", &|run| run.last().training_loss),
    ];
    report.tables.push(ReportTable { title: "The other averaging rate of AD-PSGD".into(), cells });
    Ok(())
}

/// The same for all three, as in the paper.
fn hyperparameters(trial: Trial, course: &Course) -> Trial {
    trial
        .set("optimizer.lr", course.learning_rate)
        .set("optimizer.momentum", 0.9)
        .set("optimizer.schedule.name", "cosine")
}

const RESNET: &str = "final accuracy, %, [ResNet-20]";
const LOSS: &str = "held-out loss";
const VGG: &str = "final accuracy, %, [VGG]";

/// Published final accuracies in percent: ResNet-20, VGG.
fn published(method: AdpsgdMethod) -> [f64; 2] {
    match method {
        AdpsgdMethod::AdPsgd => [91.02, 88.58],
        AdpsgdMethod::AllReduce => [90.72, 84.04],
        AdpsgdMethod::DPsgd => [90.81, 84.48],
    }
}

fn accuracies(runs: &NamedRuns) -> ReportTable {
    let mut cells = Vec::new();
    for ((name, run), method) in runs.iter().zip(METHODS) {
        let last = run.last();
        let [resnet, vgg] =
            published(method).map(|value| Some(Figure::printed(value, 2).elsewhere()));
        let columns = [
            (RESNET, resnet, last.accuracy),
            (VGG, vgg, last.accuracy),
            (LOSS, None, last.loss),
            ("virtual seconds in all", None, last.seconds),
        ];
        for (column, paper, ours) in columns {
            let (row, column) = (name.clone(), column.to_string());
            let spread = match column.as_str() {
                RESNET | VGG => run.spread(|run| Some(run.last().accuracy)),
                LOSS => run.spread(|run| Some(run.last().loss)),
                _ => None,
            };
            cells.push(ReportCell { row, column, paper, ours, spread, ..ReportCell::default() });
        }
    }
    ReportTable { title: "At the end".into(), cells }
}

fn losses(runs: &NamedRuns) -> ReportTable {
    let mut cells = Vec::new();
    for (name, run) in runs {
        for (epoch, moment) in run.moments.iter().enumerate() {
            cells.push(ReportCell {
                row: format!("epoch {}", epoch + 1),
                column: name.clone(),
                ours: moment.training_loss,
                ..ReportCell::default()
            });
        }
    }
    ReportTable { title: "Mean training loss of each epoch".into(), cells }
}

fn charts(report: &mut PaperReport, runs: &NamedRuns) {
    let steps_per_epoch = |(_, run): &(String, Trained)| run.last().step / run.moments.len() as f64;
    let steps_per_epoch = runs.first().map_or(1.0, steps_per_epoch);
    let loss = chart(
        "Training loss",
        runs,
        Axis::linear("epochs"),
        Axis::log("mean loss of an epoch's mini-batches"),
        |moment| (moment.step / steps_per_epoch, moment.training_loss),
    );
    let accuracy = chart(
        "Accuracy on held-out data",
        runs,
        Axis::linear("virtual seconds"),
        Axis::linear("percent"),
        |moment| (moment.seconds, moment.accuracy),
    );
    report.charts.push(("loss".into(), loss));
    report.charts.push(("accuracy".into(), accuracy));
}

fn claims(report: &mut PaperReport, table: &ReportTable, options: &ReproduceOptions) {
    let ours = |method: AdpsgdMethod, column: &str| {
        let cell = table.cells.iter().find(|c| c.row == method.name() && c.column == column);
        cell.map_or(f64::NAN, |cell| cell.ours)
    };
    let seconds = |method| ours(method, "virtual seconds in all");
    report.claim(
        "AD-PSGD takes the least time and D-PSGD no more than AllReduce, as published",
        seconds(AdpsgdMethod::AdPsgd) < seconds(AdpsgdMethod::DPsgd)
            && seconds(AdpsgdMethod::DPsgd) <= seconds(AdpsgdMethod::AllReduce),
    );
    if options.small {
        return;
    }
    let apart = |method| (ours(method, RESNET) - ours(AdpsgdMethod::AllReduce, RESNET)).abs();
    let worst = apart(AdpsgdMethod::AdPsgd).max(apart(AdpsgdMethod::DPsgd));
    report.claim(
        format!(
            "gossip ends within one point of AllReduce's accuracy (published for ResNet-20: 0.30); \
             worst {worst:.2}"
        ),
        worst <= 1.0,
    );
    report.claim_order(table, RESNET, BestValue::Highest);
}

fn tell(report: &mut PaperReport, course: &Course) {
    report.rests_on("cluster", "16 learners, 100 Gbit/s InfiniBand", ParameterSource::Stated);
    report.rests_on("hyper-parameters", "the same for all three", ParameterSource::Stated);
    let how = "18.04 s per epoch on one learner, batch 32".to_string();
    let milliseconds = format!("{:.2} ms", super::RESNET_COMPUTE * 1e3);
    report.rests_on("time of a gradient", milliseconds, ParameterSource::Derived(how));
    let why = "the paper trains 164 epochs of CIFAR-10, which two cores cannot".to_string();
    report.rests_on("task", course.words.clone(), ParameterSource::Assumed(why.clone()));
    report.rests_on("length", format!("{} epochs", course.epochs), ParameterSource::Assumed(why));
    let rate = course.learning_rate;
    let optimizer = format!("SGD, momentum 0.9, rate {rate} falling as half a cosine");
    report.rests_on("optimizer", optimizer, ParameterSource::Assumed("not stated".into()));
    report.rests_on(
        "every number",
        format!("mean over {} seeds", course.seeds),
        ParameterSource::Assumed("what two cores can train".into()),
    );
    report.note(
        "The published accuracies are of ResNet-20 and VGG on the whole of CIFAR-10 for 164 and 100 \
         epochs; only the order in a column can be compared. Times are those of the published \
         ResNet-20.",
    );
    report.note(
        "Early on the mean loss of AD-PSGD's learners is above that of the others: each learner's own \
         model is measured, and one exchange a step leaves them further apart than a ring does.",
    );
}
