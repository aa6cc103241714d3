//! Large batches: SGD, LARS and LAMB with the same schedule, their rates scaled with the batch as their
//! papers say.

use quelea_core::meta::Meta;
use quelea_run::trial::Trial;

use crate::error::ExperimentError;
use crate::report::{PaperReport, ParameterSource, ReportCell, ReportTable};
use crate::training::{Lesson, Trained};
use crate::{Experiment, ReproduceOptions};

const PAPER: &str =
    "Goyal et al. 2017 (linear scaling), You et al. 2017 (LARS), You et al. 2020 (LAMB)";

/// The row of the table.
pub const EXPERIMENT: Experiment = Experiment {
    meta: Meta {
        name: "large-batch",
        summary: "SGD, LARS and LAMB with batches of 32 to 1024, rates scaled with the batch, on digits",
        paper: PAPER,
        section: "",
        file: file!(),
        options: &[],
    },
    trains: true,
    data: None,
    run,
};

const WORKERS: usize = 4;
/// Images of a worker and step; the first is where rates are chosen.
const BATCHES: [usize; 4] = [8, 32, 128, 256];
const EPOCHS: u64 = 60;
const SEEDS: usize = 3;
const ACCURACY: &str = "final accuracy, %";
/// Below this a run has not learnt; above, and this near to the small batch, it has. Both were fixed
/// before the first run.
const DIVERGED: f64 = 50.0;
const AS_GOOD: f64 = 2.0;

#[derive(Clone, Copy, Debug)]
struct ScaledOptimizer {
    name: &'static str,
    settings: &'static [&'static str],
    /// Rates of which the best with the smallest batch is taken.
    rates: [f64; 3],
    /// The power of the batch with which the rate grows.
    power: f64,
}

const OPTIMIZERS: [ScaledOptimizer; 3] = [
    ScaledOptimizer {
        name: "sgd",
        settings: &["optimizer.momentum=0.9"],
        rates: [0.01, 0.02, 0.04],
        power: 1.0,
    },
    ScaledOptimizer {
        name: "lars",
        settings: &["optimizer.momentum=0.9"],
        rates: [0.5, 2.0, 8.0],
        power: 1.0,
    },
    ScaledOptimizer { name: "lamb", settings: &[], rates: [0.001, 0.003, 0.01], power: 0.5 },
];

fn run(options: &ReproduceOptions) -> Result<PaperReport, ExperimentError> {
    let title = "Large batches with SGD, LARS and LAMB";
    let mut report = PaperReport::new(EXPERIMENT.meta.name, title, PAPER);
    let batches = &BATCHES[..options.size(BATCHES.len(), 2)];
    let mut lessons = Vec::new();
    for batch in batches {
        let task = ["task.name=digits-cnn".to_string(), format!("task.batch={batch}")];
        lessons.push(Lesson::several(WORKERS, options.seed, options.size(SEEDS, 1), &task)?);
    }
    let mut cells = Vec::new();
    for optimizer in OPTIMIZERS {
        (options.tell)(&format!("  {}", optimizer.name));
        let base = chosen(optimizer, &lessons[0], options)?;
        for (batch, lessons) in batches.iter().zip(&lessons) {
            let rate = base * (*batch as f64 / BATCHES[0] as f64).powf(optimizer.power);
            let run = train(optimizer, rate, lessons, options)?;
            let row = format!("{}, batch {}", optimizer.name, WORKERS * batch);
            let accuracy = |run: &Trained| finite(run.last().accuracy, 0.0);
            let spread = run.spread(|run| Some(accuracy(run)));
            cells.push(ReportCell { spread, ..ReportCell::new(&row, ACCURACY, accuracy(&run)) });
            cells.push(ReportCell::new(&row, "rate", rate));
            let loss = finite(run.last().training_loss, 1e9).min(1e9);
            cells.push(ReportCell::new(&row, "training loss", loss));
        }
    }
    let table = ReportTable { title: "At the end".into(), cells };
    if !options.small {
        claims(&mut report, &table);
    }
    report.tables.push(table);
    tell(&mut report, options);
    Ok(report)
}

/// A page has no place for what is not a number.
fn finite(value: f64, otherwise: f64) -> f64 {
    if value.is_finite() { value } else { otherwise }
}

/// The rate with the lowest training loss of the smallest batch.
fn chosen(
    optimizer: ScaledOptimizer,
    lessons: &[Lesson],
    options: &ReproduceOptions,
) -> Result<f64, ExperimentError> {
    let mut best = (f64::INFINITY, optimizer.rates[1]);
    for rate in &optimizer.rates[..options.size(3, 1)] {
        let loss = train(optimizer, *rate, &lessons[..1], options)?.last().training_loss;
        if loss < best.0 {
            best = (loss, *rate);
        }
    }
    Ok(best.1)
}

fn train(
    optimizer: ScaledOptimizer,
    rate: f64,
    lessons: &[Lesson],
    options: &ReproduceOptions,
) -> Result<Trained, ExperimentError> {
    let epochs = options.size(EPOCHS as usize, 1) as u64;
    Trained::over(lessons, epochs.min(12), |lesson| {
        let steps = epochs * lesson.steps_per_epoch;
        let trial = Trial::new("allreduce", WORKERS, lesson.problem.dimensions() as f64)
            .on_task(&lesson.settings, &lesson.problem)
            .set("optimizer.name", optimizer.name);
        let set = |trial: Trial, setting: &&str| {
            let (key, value) = setting.split_once('=').expect("a setting");
            trial.set(key, value)
        };
        optimizer
            .settings
            .iter()
            .fold(trial, set)
            .set("optimizer.lr", rate)
            .set("optimizer.schedule.name", "cosine")
            .set("optimizer.schedule.warmup_steps", steps / 12)
            .plan(steps)
    })
}

fn claims(report: &mut PaperReport, table: &ReportTable) {
    let accuracy = |name: &str, batch: usize| {
        let row = format!("{name}, batch {}", WORKERS * batch);
        let found = |cell: &&ReportCell| cell.row == row && cell.column == ACCURACY;
        table.cells.iter().find(found).map_or(f64::NAN, |cell| cell.ours)
    };
    let diverged: Vec<usize> =
        BATCHES.into_iter().filter(|batch| accuracy("sgd", *batch) < DIVERGED).collect();
    let shown: Vec<String> = diverged.iter().map(|batch| (WORKERS * batch).to_string()).collect();
    if diverged.is_empty() {
        report.finding("SGD with a rate that grows with the batch learns with every batch tried");
    }
    for name in ["lars", "lamb"] {
        let least = accuracy(name, BATCHES[0]) - AS_GOOD;
        let trains = |batch: &usize| accuracy(name, *batch) >= least;
        if !diverged.is_empty() {
            report.claim(
                format!(
                    "{name} is within {AS_GOOD} points of its own small batch where SGD is below \
                     {DIVERGED} % (batches of {})",
                    shown.join(", ")
                ),
                diverged.iter().all(trains),
            );
        }
        let largest = BATCHES.into_iter().rev().find(|batch| trains(batch)).unwrap_or(BATCHES[0]);
        report.finding(format!(
            "{name}: the largest batch within {AS_GOOD} points of the smallest is {}",
            WORKERS * largest
        ));
    }
}

fn tell(report: &mut PaperReport, options: &ReproduceOptions) {
    report.rests_on(
        "scaling",
        "linear of SGD and LARS, square root of LAMB",
        ParameterSource::Stated,
    );
    let why = "what two cores can train";
    let length = format!(
        "{} epochs, mean over {} seeds",
        options.size(EPOCHS as usize, 1),
        options.size(SEEDS, 1)
    );
    report.assumes([
        ("task", "digits-cnn (53,000 parameters, 1,438 images), 4 workers, all-reduce", why),
        ("length", length.as_str(), why),
        ("schedule", "warm-up over a twelfth, then half a cosine; the same for all", "usual"),
        (
            "rate with the smallest batch",
            "of three the one with the lowest training loss, per optimizer",
            "the same number of trials for each",
        ),
    ]);
}
