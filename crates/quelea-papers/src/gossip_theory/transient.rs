//! Transient iterations: after how many steps decentralized SGD is as good as parallel SGD,
//! measured on logistic regression, beside the lecture's formulas.

use quelea_core::meta::Meta;
use quelea_core::topology;
use quelea_plot::{Axis, Chart, LineChart, LineSeries};

use super::PAPER;
use super::noisy::{floor, mean_losses, plan};
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
/// Draws of the noise over which an excess is averaged.
const DRAWS: usize = 8;
/// Standard deviation of the noise on every entry of a gradient.
const NOISE: f32 = 0.3;

fn run(options: &ReproduceOptions) -> Result<PaperReport, ExperimentError> {
    let mut report = PaperReport::new(EXPERIMENT.meta.name, "Transient iterations", PAPER);
    let steps = options.size(3000, 600) as u64;
    let mut cells = Vec::new();
    for &workers in &WORKERS[..options.size(WORKERS.len(), 2)] {
        let curves = curves(workers, steps, options)?;
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
                ours,
                ..ReportCell::default()
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
    options: &ReproduceOptions,
) -> Result<Vec<(&'static str, Curve)>, ExperimentError> {
    let floor = floor(workers)?;
    let seeds = || (0..options.size(DRAWS, 2) as u64).map(|k| options.seed.wrapping_add(k));
    let parallel = mean_losses(&plan("allreduce", workers, steps, &[])?, NOISE, seeds())?;
    let mut curves = Vec::new();
    for name in TOPOLOGIES {
        let more =
            [format!("topology.name={name}"), "algorithm.form=adapt-then-combine".to_string()];
        let own = mean_losses(&plan("d-psgd", workers, steps, &more)?, NOISE, seeds())?;
        let excess = |losses: &[f64]| losses.iter().map(|loss| loss - floor).sum::<f64>();
        let mut curve = Vec::new();
        let mut from = 2.0_f64;
        while from * 2.0 <= own.len() as f64 {
            let stretch = from as usize..(from * 2.0) as usize;
            let ratio = excess(&own[stretch.clone()]) / excess(&parallel[stretch]);
            curve.push((from * 1.5, ratio));
            from *= std::f64::consts::SQRT_2;
        }
        curves.push((name, curve));
    }
    Ok(curves)
}

/// The step from which the excess stays within the bound; none, where it never was beyond.
fn reached(curve: &[(f64, f64)]) -> Option<f64> {
    let last_bad = curve.iter().rposition(|(_, ratio)| *ratio > AS_GOOD);
    match last_bad {
        None => Some(0.0),
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
        (
            "noise of a gradient",
            "normal, 0.3 per entry; the mean over eight draws, the same for all",
        ),
        ("learning rate", "0.5, falling like 1/√t after 20 steps"),
        ("D-SGD", "adapt-then-combine"),
        ("excess", "loss of the mean of the workers' models above that of exact gradient descent"),
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
    let (first, last) = (sizes[0], sizes[sizes.len() - 1]);
    let growth: Vec<String> = TOPOLOGIES
        .iter()
        .map(|name| {
            let times = |column: &str| at(name, last, column) / at(name, first, column);
            let measured = times(steps);
            let measured =
                if measured.is_finite() { format!("{measured:.1}") } else { "–".to_string() };
            format!("{name} {measured} (formula {:.0})", times("formula ρ⁴n³/(1−ρ)²"))
        })
        .collect();
    let growth = growth.join(", ");
    report.claim("ring needs no fewer steps than grid, and grid than exponential", ordered);
    report.claim("on a ring, more workers stay behind parallel SGD for longer", grows);
    report.finding(format!("steps with n = {last}, times those with n = {first}: {growth}"));
}
