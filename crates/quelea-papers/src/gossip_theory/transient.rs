//! Transient iterations: after how many steps decentralized SGD is as good as parallel SGD,
//! measured on logistic regression, beside the lecture's formulas.

use std::sync::Arc;

use quelea_core::meta::Meta;
use quelea_core::node::Loan;
use quelea_core::problems::{Computed, Evaluation, GradientSource, Problem};
use quelea_core::random::Rng;
use quelea_core::time::Time;
use quelea_core::topology;
use quelea_plot::{Axis, Chart, LineChart, LineSeries};
use quelea_record::{CheckpointSchedule, Models, Record};
use quelea_run::prepared::PreparedRun;
use quelea_run::trial::config;

use super::PAPER;
use crate::error::ExperimentError;
use crate::report::{PaperReport, ParameterSource, ReportCell, ReportTable};
use crate::{Experiment, ReproduceOptions};

/// The row of the table.
pub const EXPERIMENT: Experiment = Experiment {
    meta: Meta {
        name: "yuan-transient",
        summary: "steps until D-SGD on ring, grid and exponential graph is as good as parallel SGD",
        paper: PAPER,
        section: "",
        file: file!(),
        options: &[],
    },
    trains: false,
    data: None,
    run,
};

const TOPOLOGIES: [&str; 3] = ["ring", "grid", "exponential"];
const WORKERS: [usize; 3] = [8, 16, 32];
/// As good as parallel SGD: excess loss at most so many times as large.
const AS_GOOD: f64 = 1.1;
const EVERY: u64 = 20;
/// Standard deviation of the noise on every entry of a gradient.
const NOISE: f32 = 0.3;

/// Gradients over all samples of a worker; the rate falls like 1/√t, as the bounds ask for.
fn plan(
    algorithm: &str,
    workers: usize,
    steps: u64,
    more: &[String],
) -> Result<PreparedRun, ExperimentError> {
    let settings = [
        format!("algorithm.name={algorithm}"),
        format!("workers={workers}"),
        format!("steps={steps}"),
        "task.name=logistic".into(),
        "task.partition=iid".into(),
        "task.batch=0".into(),
        "task.l2=0.01".into(),
        "task.hold_out=0".into(),
        "optimizer.name=sgd".into(),
        "optimizer.lr=0.5".into(),
        "optimizer.schedule.name=inverse-sqrt".into(),
        "optimizer.schedule.warmup_steps=20".into(),
        "buckets.size_mb=0".into(),
        "cluster.compute_ms=1".into(),
        "cluster.threads=1".into(),
    ];
    Ok(PreparedRun::new(config(&[&settings[..], more].concat())?)?)
}

/// The mean loss of the workers' models, every few steps.
struct Losses {
    problem: Arc<dyn Problem>,
    steps: u64,
    losses: Vec<f64>,
}

impl quelea_sim::Observer for Losses {
    fn record(&mut self, _record: Record) {}

    fn checkpoint_schedule(&self) -> CheckpointSchedule {
        CheckpointSchedule { save_every: 0, evaluations: self.steps / EVERY, steps: self.steps }
    }

    fn evaluate(&mut self, _now: Time, _step: u64, models: Models) {
        let sum: f64 = models.workers.iter().map(|(_, m)| self.problem.evaluate(m).loss).sum();
        self.losses.push(sum / models.workers.len() as f64);
    }
}

/// A problem whose gradients carry seeded noise, the same for every algorithm.
struct Noisy {
    problem: Arc<dyn Problem>,
    std: f32,
    seed: u64,
}

impl Problem for Noisy {
    fn dimensions(&self) -> usize {
        self.problem.dimensions()
    }

    fn initial(&self) -> Vec<f32> {
        self.problem.initial()
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        let source = self.problem.source(rank);
        Box::new(NoisySource { source, std: self.std, seed: self.seed, rank: rank as u64 })
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        self.problem.evaluate(params)
    }
}

struct NoisySource {
    source: Box<dyn GradientSource>,
    std: f32,
    seed: u64,
    rank: u64,
}

impl GradientSource for NoisySource {
    fn gradient(&mut self, loan: &mut Loan, _ready: &mut dyn FnMut(usize)) -> Computed {
        let mut rng = Rng::new(self.seed, "gradient noise", self.rank << 40 | loan.step());
        loan.hold();
        let computed = self.source.gradient(loan, &mut |_| {});
        let (_, grad) = loan.vectors();
        grad.iter_mut().for_each(|g| *g += self.std * rng.normal() as f32);
        computed
    }

    fn operations(&self) -> u64 {
        self.source.operations()
    }
}

/// Mean loss of the workers' models, every few steps.
fn losses(plan: &PreparedRun, std: f32, seed: u64) -> Result<Vec<f64>, ExperimentError> {
    let mut losses =
        Losses { problem: Arc::clone(&plan.problem), steps: plan.setup.steps, losses: Vec::new() };
    let noisy = Noisy { problem: Arc::clone(&plan.problem), std, seed };
    quelea_sim::simulate(&plan.setup.simulated(), &noisy, &plan.cluster, &mut losses)?;
    Ok(losses.losses)
}

fn run(options: &ReproduceOptions) -> Result<PaperReport, ExperimentError> {
    let mut report = PaperReport::new(EXPERIMENT.meta.name, "Transient iterations", PAPER);
    let steps = options.size(3000, 600) as u64;
    let mut cells = Vec::new();
    for &workers in &WORKERS[..options.size(WORKERS.len(), 2)] {
        let curves = curves(workers, steps, options.seed)?;
        for (name, curve) in &curves {
            let (gap, formula) = theory(name, workers)?;
            let columns = [
                ("steps until as good", reached(curve).unwrap_or(steps as f64)),
                ("excess at the end, times parallel SGD", curve.last().map_or(f64::NAN, |p| p.1)),
                ("1 − ρ", gap),
                ("formula ρ⁴n³/(1−ρ)²", formula),
            ];
            let row = format!("{name}, n = {workers}");
            cells.extend(columns.map(|(column, ours)| ReportCell {
                row: row.clone(),
                column: column.into(),
                paper: None,
                ours,
                fitted: false,
            }));
            if reached(curve).is_none() {
                report.note(format!("{row}: not reached within {steps} steps."));
            }
        }
        report.charts.push((format!("excess-{workers}"), chart(workers, curves)));
    }
    let title = format!("Steps until the excess loss is within {AS_GOOD} of parallel SGD's");
    report.tables.push(ReportTable { title, cells });
    tell(&mut report);
    claims(&mut report, &WORKERS[..options.size(WORKERS.len(), 2)]);
    Ok(report)
}

/// Excess loss relative to parallel SGD's, over stretches of the run that grow by √2.
type Curve = Vec<(f64, f64)>;

fn curves(
    workers: usize,
    steps: u64,
    seed: u64,
) -> Result<Vec<(&'static str, Curve)>, ExperimentError> {
    let exact: [String; 2] = ["optimizer.lr=1.0".into(), "optimizer.schedule.name=constant".into()];
    let floor = losses(&plan("allreduce", workers, 1000, &exact)?, 0.0, seed)?;
    let floor = floor.into_iter().fold(f64::INFINITY, f64::min);
    let parallel = losses(&plan("allreduce", workers, steps, &[])?, NOISE, seed)?;
    let mut curves = Vec::new();
    for name in TOPOLOGIES {
        let more =
            [format!("topology.name={name}"), "algorithm.form=adapt-then-combine".to_string()];
        let own = losses(&plan("d-psgd", workers, steps, &more)?, NOISE, seed)?;
        let excess = |losses: &[f64]| losses.iter().map(|loss| loss - floor).sum::<f64>();
        let mut curve = Vec::new();
        let mut from = 2.0_f64;
        while from * 2.0 <= own.len() as f64 {
            let stretch = from as usize..(from * 2.0) as usize;
            let ratio = excess(&own[stretch.clone()]) / excess(&parallel[stretch]);
            curve.push((from * 1.5 * EVERY as f64, ratio));
            from *= std::f64::consts::SQRT_2;
        }
        curves.push((name, curve));
    }
    Ok(curves)
}

/// The step from which the excess stays within the bound.
fn reached(curve: &[(f64, f64)]) -> Option<f64> {
    let last_bad = curve.iter().rposition(|(_, ratio)| *ratio > AS_GOOD);
    match last_bad {
        None => curve.first().map(|(step, _)| *step),
        Some(place) => curve.get(place + 1).map(|(step, _)| *step),
    }
}

/// `1 − ρ` and what the lecture says up to a constant.
fn theory(name: &str, workers: usize) -> Result<(f64, f64), ExperimentError> {
    let more = [format!("topology.name={name}")];
    let plan = plan("d-psgd", workers, 1, &more)?;
    let schedule = plan.setup.view.topology(0).map(|(_, schedule)| topology::report(schedule));
    let found = schedule.map(|report| (report.spectral_gap, report.transient_iid));
    Ok(found.map_or((f64::NAN, f64::NAN), |(gap, iid)| (gap, iid.unwrap_or(f64::NAN))))
}

fn chart(workers: usize, curves: Vec<(&'static str, Curve)>) -> Chart {
    let last = curves.first().and_then(|(_, curve)| curve.last()).map_or(1.0, |point| point.0);
    let first = curves.first().and_then(|(_, curve)| curve.first()).map_or(1.0, |point| point.0);
    let mut series: Vec<LineSeries> =
        curves.into_iter().map(|(name, curve)| LineSeries::line(name, curve)).collect();
    let bound = vec![(first, AS_GOOD), (last, AS_GOOD)];
    series.push(LineSeries::dashes("as good as parallel SGD", bound).coloured(9));
    Chart::Lines(LineChart {
        title: format!("Excess loss of D-SGD relative to parallel SGD, {workers} workers"),
        x: Axis::log("steps"),
        y: Axis::linear("times the excess of parallel SGD"),
        series,
    })
}

fn tell(report: &mut PaperReport) {
    let parameters = [
        ("task", "logistic regression, breast-cancer data, ℓ2 0.01, data dealt at random"),
        ("noise of a gradient", "normal, 0.3 per entry, the same draws for all"),
        ("learning rate", "0.5, falling like 1/√t after 20 steps"),
        ("D-SGD", "adapt-then-combine"),
        ("excess", "mean loss of the workers' models above that of exact gradient descent"),
    ];
    for (name, value) in parameters {
        let why = "the lecture gives orders, no experiment to repeat".to_string();
        report.rests_on(name, value, ParameterSource::Assumed(why));
    }
    report.note(
        "The formulas are orders without constants; what can be compared is who needs more steps, \
         and how that grows with n.",
    );
}

fn claims(report: &mut PaperReport, sizes: &[usize]) {
    let at = |name: &str, n: usize, column: &str| {
        report.cell(&format!("{name}, n = {n}"), column).map_or(f64::NAN, |cell| cell.ours)
    };
    let (steps, excess) = ("steps until as good", "excess at the end, times parallel SGD");
    let falls = |n: &usize| {
        at("ring", *n, steps) >= at("grid", *n, steps)
            && at("grid", *n, steps) >= at("exponential", *n, steps)
    };
    let grows =
        sizes.windows(2).all(|pair| at("ring", pair[0], excess) <= at("ring", pair[1], excess));
    let ordered = sizes.iter().all(falls);
    report.claim("ring needs no fewer steps than grid, and grid than exponential", ordered);
    report.claim("on a ring, more workers stay behind parallel SGD for longer", grows);
}
