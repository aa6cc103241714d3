//! What the advisor needs to know about convergence: after how many steps methods are as good as
//! all-reduce, measured on three tasks, and one constant per family of methods that brings the orders of
//! the theory near to it.

use quelea_core::meta::Meta;
use quelea_core::topology;
use quelea_run::trial::{Trial, config};

use crate::error::ExperimentError;
use crate::gossip_theory::noisy;
use crate::report::{PaperReport, ParameterSource, ReportCell, ReportTable};
use crate::training::{Lesson, Trained};
use crate::{Experiment, ReproduceOptions, data};

const PAPER: &str = "Yuan et al. 2021, Chen et al. 2021, Ko et al. 2021: orders of the transient";

/// The row of the table.
pub const EXPERIMENT: Experiment = Experiment {
    meta: Meta {
        name: "plan-convergence",
        summary: "steps until gossip, pairs, local steps and ALADDIN are as good as all-reduce, for the \
                  advisor; on logistic regression, a CNN and, with --data, a Transformer",
        paper: PAPER,
        section: "",
        file: file!(),
        options: &[],
    },
    trains: true,
    data: Some("tiny-shakespeare"),
    run,
};

/// As good as all-reduce: loss (above the lowest, where that is known) at most so many times as large.
const AS_GOOD: f64 = 1.1;

/// Methods that share a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransientFamily {
    /// The same weights in every step.
    Static,
    /// One partner a step, or groups that change.
    OnePeer,
    /// Pairs, nobody waits.
    Pairs,
    /// Exact averages once per H steps.
    Periodic,
    /// ALADDIN's ledger at servers.
    Folded,
}

const FAMILIES: [(TransientFamily, &str); 5] = [
    (TransientFamily::Static, "gossip, weights that stay"),
    (TransientFamily::OnePeer, "gossip, weights that change"),
    (TransientFamily::Pairs, "pairs, nobody waits"),
    (TransientFamily::Periodic, "exact averages per H steps"),
    (TransientFamily::Folded, "servers that fold"),
];

/// A method of the comparison.
struct Contestant {
    family: TransientFamily,
    algorithm: &'static str,
    /// The topology, or the period.
    variant: &'static str,
}

const fn on(family: TransientFamily, algorithm: &'static str, variant: &'static str) -> Contestant {
    Contestant { family, algorithm, variant }
}

const CONTESTANTS: [Contestant; 16] = [
    on(TransientFamily::Static, "d-psgd", "ring"),
    on(TransientFamily::Static, "d-psgd", "grid"),
    on(TransientFamily::Static, "d-psgd", "torus"),
    on(TransientFamily::Static, "d-psgd", "hypercube"),
    on(TransientFamily::Static, "d-psgd", "exponential"),
    on(TransientFamily::Static, "d-psgd", "star"),
    on(TransientFamily::OnePeer, "d-psgd", "one-peer-ring"),
    on(TransientFamily::OnePeer, "d-psgd", "random-matching"),
    on(TransientFamily::OnePeer, "d-psgd", "bipartite-exponential"),
    on(TransientFamily::Pairs, "ad-psgd", "ring"),
    on(TransientFamily::Pairs, "ad-psgd", "bipartite-exponential"),
    on(TransientFamily::Periodic, "local-sgd", "4"),
    on(TransientFamily::Periodic, "local-sgd", "16"),
    on(TransientFamily::Folded, "aladdin", "1"),
    on(TransientFamily::Folded, "aladdin", "4"),
    on(TransientFamily::Folded, "aladdin", "16"),
];

impl Contestant {
    fn settings(&self) -> Vec<String> {
        let mut settings = vec![format!("algorithm.name={}", self.algorithm)];
        match self.family {
            TransientFamily::Periodic | TransientFamily::Folded => {
                settings.push(format!("algorithm.period={}", self.variant));
            }
            _ => settings.push(format!("topology.name={}", self.variant)),
        }
        if self.algorithm == "d-psgd" {
            settings.push("algorithm.form=adapt-then-combine".into());
        }
        settings
    }

    fn name(&self) -> String {
        match self.family {
            TransientFamily::Periodic | TransientFamily::Folded => {
                format!("{}, period {}", self.algorithm, self.variant)
            }
            _ => format!("{}, {}", self.algorithm, self.variant),
        }
    }

    /// The order of the theory, as the advisor has it.
    fn order(&self, workers: usize) -> Result<f64, ExperimentError> {
        let n = workers as f64;
        let gap = match self.family {
            TransientFamily::Folded => {
                let period: f64 = self.variant.parse().expect("a number");
                // α = 0.5.
                let spread = 1.25 / 0.75 * period - 1.0;
                return Ok(n.powi(3) * spread * spread);
            }
            TransientFamily::Periodic => 1.0 / self.variant.parse::<f64>().expect("a number"),
            _ => {
                let settings = [self.settings(), vec![format!("workers={workers}")]].concat();
                let settings =
                    [settings, vec!["steps=1".into(), "task.name=quadratic".into()]].concat();
                let plan = quelea_run::prepared::PreparedRun::new(config(&settings)?)?;
                let found =
                    plan.setup.view.topology(0).map(|(_, schedule)| topology::report(schedule));
                found.map_or(f64::NAN, |report| report.spectral_gap)
            }
        };
        Ok((1.0 - gap).powi(4) * n.powi(3) / (gap * gap))
    }
}

/// One measured number.
struct Measurement {
    family: TransientFamily,
    row: String,
    /// Steps; nothing where the run was too short.
    steps: Option<f64>,
    order: f64,
}

fn run(options: &ReproduceOptions) -> Result<PaperReport, ExperimentError> {
    let title = "Steps until methods are as good as all-reduce, for the advisor";
    let mut report = PaperReport::new(EXPERIMENT.meta.name, title, PAPER);
    let mut found = Vec::new();
    for workers in sizes(options, &[8, 16, 32, 64]) {
        (options.tell)(&format!("  logistic regression, {workers} workers"));
        measure(&mut found, "logistic", workers, options, |settings| {
            logistic(workers, settings, options)
        })?;
    }
    for workers in sizes(options, &[8, 32]) {
        (options.tell)(&format!("  digits-cnn, {workers} workers"));
        let task = ["task.name=digits-cnn".to_string(), "task.batch=4".into()];
        measure_task(&mut found, "CNN", workers, &task, options)?;
    }
    let folder = options.data.as_deref().and_then(|folder| data::under(folder, "tiny-shakespeare"));
    match folder {
        Some(folder) => {
            let mut task: Vec<String> = [
                "name=shakespeare-lm",
                "batch=2",
                "context=32",
                "width=32",
                "layers=1",
                "heads=2",
                "dropout=0",
                "test_subset=2048",
            ]
            .map(|setting| format!("task.{setting}"))
            .to_vec();
            task.push(data::setting(&folder));
            for workers in sizes(options, &[8, 32]) {
                (options.tell)(&format!("  shakespeare-lm, {workers} workers"));
                measure_task(&mut found, "Transformer", workers, &task, options)?;
            }
        }
        None => report.note("The Transformer was not run: it needs --data with tiny-shakespeare."),
    }
    let constants = fitted(&found);
    report.tables.push(against(&found, &constants));
    report.tables.push(constants_table(&found, &constants));
    claims(&mut report, &found, &constants);
    tell(&mut report, options);
    Ok(report)
}

fn sizes(options: &ReproduceOptions, all: &[usize]) -> Vec<usize> {
    all[..options.size(all.len(), 1)].to_vec()
}

/// All contestants beside all-reduce, by what `losses` gives for settings: steps and losses.
fn measure(
    found: &mut Vec<Measurement>,
    task: &str,
    workers: usize,
    options: &ReproduceOptions,
    losses: impl Fn(&[String]) -> Result<Vec<f64>, ExperimentError>,
) -> Result<(), ExperimentError> {
    let exact = losses(&["algorithm.name=allreduce".into()])?;
    let every = options.size(1, 4);
    for contestant in CONTESTANTS.iter().step_by(every) {
        let own = losses(&contestant.settings())?;
        found.push(Measurement {
            family: contestant.family,
            row: format!("{task}, n = {workers}: {}", contestant.name()),
            steps: reached(&own, &exact),
            order: contestant.order(workers)?,
        });
    }
    Ok(())
}

/// Noise of a known size, as in `yuan-transient`: excess over the lowest loss.
fn logistic(
    workers: usize,
    settings: &[String],
    options: &ReproduceOptions,
) -> Result<Vec<f64>, ExperimentError> {
    let steps = options.size(2000, 200) as u64;
    let floor = noisy::floor(workers)?;
    let plan = noisy::plan("allreduce", workers, steps, settings)?;
    let seeds = (0..options.size(2, 1) as u64).map(|k| options.seed.wrapping_add(k));
    let losses = noisy::mean_losses(&plan, 0.3, seeds)?;
    Ok(losses.into_iter().map(|loss| loss - floor).collect())
}

/// A network: the loss of the deployed model on held-out data, in evaluations that stand for some steps.
fn measure_task(
    found: &mut Vec<Measurement>,
    task: &str,
    workers: usize,
    settings: &[String],
    options: &ReproduceOptions,
) -> Result<(), ExperimentError> {
    let lesson = Lesson::new(workers, options.seed, settings.to_vec())?;
    let steps = options.size(240, 12) as u64;
    measure(found, task, workers, options, |method| {
        let algorithm = method[0].split_once('=').expect("a setting").1;
        let mut trial = Trial::new(algorithm, workers, lesson.problem.dimensions() as f64)
            .on_task(&lesson.settings, &lesson.problem)
            .set("optimizer.lr", 0.1)
            .set("cluster.threads", 2)
            .set("cluster.compute_ms", 1)
            .set("cluster.bandwidth_gbps", 1000);
        for setting in &method[1..] {
            let (key, value) = setting.split_once('=').expect("a setting");
            trial = trial.set(key, value);
        }
        let run = Trained::of(&trial.plan(steps)?, steps / EVERY)?;
        let each = run.moments.iter().flat_map(|m| std::iter::repeat_n(m.loss, EVERY as usize));
        Ok(each.collect())
    })
}

/// Steps of a network from one evaluation to the next.
const EVERY: u64 = 4;

/// The step from which the mean loss over stretches of the run, each √2 times as far as the one before,
/// stays within the bound; nothing where it is not even in the last one.
fn reached(own: &[f64], exact: &[f64]) -> Option<f64> {
    let mut last_bad = 0.0;
    let mut from = 2.0_f64;
    let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
    let length = own.len().min(exact.len());
    while (from * 2.0) as usize <= length {
        let stretch = from as usize..(from * 2.0) as usize;
        if mean(&own[stretch.clone()]) > AS_GOOD * mean(&exact[stretch]) {
            last_bad = from * 2.0;
        }
        from *= std::f64::consts::SQRT_2;
    }
    let is_in_time = last_bad * std::f64::consts::SQRT_2 <= length as f64;
    is_in_time.then_some(last_bad)
}

/// One constant per family: the geometric mean of measured over order, where both are known.
fn fitted(found: &[Measurement]) -> Vec<Option<f64>> {
    let constant = |family: TransientFamily| {
        let ratios: Vec<f64> =
            usable(found, family).map(|(steps, order)| (steps / order).ln()).collect();
        let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
        (!ratios.is_empty()).then(|| mean.exp())
    };
    FAMILIES.iter().map(|(family, _)| constant(*family)).collect()
}

/// Measured steps and order of a family's cells in which there was a transient and it ended.
fn usable(found: &[Measurement], family: TransientFamily) -> impl Iterator<Item = (f64, f64)> {
    let own = found.iter().filter(move |cell| cell.family == family);
    own.filter_map(|cell| Some((cell.steps?, cell.order)))
        .filter(|(steps, order)| *steps > 0.0 && *order > 0.0)
}

fn constant_of(constants: &[Option<f64>], family: TransientFamily) -> f64 {
    let place = FAMILIES.iter().position(|(known, _)| *known == family).expect("a family");
    constants[place].unwrap_or(0.0)
}

fn against(found: &[Measurement], constants: &[Option<f64>]) -> ReportTable {
    let mut cells = Vec::new();
    for cell in found {
        if let Some(steps) = cell.steps {
            cells.push(ReportCell::new(cell.row.clone(), "measured, steps", steps));
        }
        let predicted = constant_of(constants, cell.family) * cell.order;
        cells.push(ReportCell::new(cell.row.clone(), "predicted, steps", predicted));
        cells.push(ReportCell::new(cell.row.clone(), "order of the theory", cell.order));
    }
    let title =
        "Predicted with one constant per family, and measured (empty: not within the run)".into();
    ReportTable { title, cells }
}

fn constants_table(found: &[Measurement], constants: &[Option<f64>]) -> ReportTable {
    let mut cells = Vec::new();
    for ((family, name), constant) in FAMILIES.iter().zip(constants) {
        let count = usable(found, *family).count();
        let off = worst(found, *family, *constant);
        cells.push(ReportCell::new(*name, "constant (fitted)", constant.unwrap_or(0.0)));
        cells.push(ReportCell::new(*name, "cells it was fitted on", count as f64));
        cells.push(ReportCell::new(*name, "worst factor between predicted and measured", off));
    }
    ReportTable { title: "One constant per family".into(), cells }
}

fn worst(found: &[Measurement], family: TransientFamily, constant: Option<f64>) -> f64 {
    let factor = |(steps, order): (f64, f64)| {
        let ratio = constant.unwrap_or(0.0) * order / steps;
        ratio.max(1.0 / ratio)
    };
    usable(found, family).map(factor).fold(1.0, f64::max)
}

fn claims(report: &mut PaperReport, found: &[Measurement], constants: &[Option<f64>]) {
    for ((family, name), constant) in FAMILIES.iter().zip(constants) {
        let own = || found.iter().filter(|cell| cell.family == *family);
        let never = own().filter(|cell| cell.steps == Some(0.0)).count();
        let open = own().filter(|cell| cell.steps.is_none()).count();
        report.finding(format!(
            "{name}: of {} cells {never} were never behind all-reduce by more than {:.0} %, {open} still were \
             at the end, the others are predicted within a factor of {:.0}",
            own().count(),
            100.0 * (AS_GOOD - 1.0),
            worst(found, *family, *constant).ceil()
        ));
    }
}

fn tell(report: &mut PaperReport, options: &ReproduceOptions) {
    report.rests_on(
        "orders",
        "ρ⁴n³/(1−ρ)²; 1 − ρ = 1/H for averages per H steps; n³C² for servers that fold",
        ParameterSource::Stated,
    );
    report.rests_on(
        "constants",
        "one per family",
        ParameterSource::Fitted(
            "all cells of the family in which a transient was seen to end".into(),
        ),
    );
    let why = "what two cores can train";
    let lengths = format!(
        "{} steps of logistic regression, {} of networks",
        options.size(2000, 200),
        options.size(240, 12)
    );
    report.assumes([
        (
            "logistic regression",
            "noise 0.3 per entry, two draws, rate falling like 1/√t",
            "as in yuan-transient",
        ),
        ("CNN", "digits-cnn, batch 4 a worker, rate 0.1", why),
        ("Transformer", "a layer of width 32, context 32, batch 2 a worker, rate 0.1", why),
        ("lengths", lengths.as_str(), why),
        (
            "as good",
            "loss within 10 % of all-reduce's, over stretches of the run",
            "fixed before the runs",
        ),
    ]);
    report.note(
        "The orders are worst cases that grow like n³/(1−ρ)². Where what is measured grows more slowly, one \
         constant per family overestimates the largest graphs and underestimates the smallest: the worst \
         factor of the family says by how much.",
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transient_ends_where_the_loss_stays_within_the_bound() {
        let exact = vec![1.0; 200];
        assert_eq!(reached(&vec![1.05; 200], &exact), Some(0.0));
        assert_eq!(reached(&vec![2.0; 200], &exact), None);
        let late: Vec<f64> = (0..200).map(|k| if k < 30 { 2.0 } else { 1.0 }).collect();
        let steps = reached(&late, &exact).expect("within the run");
        assert!((40.0..100.0).contains(&steps), "{steps}");
    }

    #[test]
    fn a_constant_is_the_geometric_mean_of_measured_over_order() {
        let cell = |steps, order| Measurement {
            family: TransientFamily::Static,
            row: String::new(),
            steps,
            order,
        };
        let found =
            [cell(Some(10.0), 1.0), cell(Some(40.0), 1.0), cell(None, 9.0), cell(Some(0.0), 5.0)];
        let constants = fitted(&found);
        assert!((constants[0].expect("two cells") - 20.0).abs() < 1e-9);
        assert_eq!(constants[1], None);
        let off = worst(&found, TransientFamily::Static, constants[0]);
        assert!((off - 2.0).abs() < 1e-9, "{off}");
    }
}
