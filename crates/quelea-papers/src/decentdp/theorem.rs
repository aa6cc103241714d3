//! Theorem 4.1 of Decent-DP: its dependence on the graph, `(1+λ²)/(1−λ²)²`, beside what AccumAdam
//! comes to on graphs of 8 to 64 workers.

use quelea_core::meta::Meta;
use quelea_core::topology;

use super::PAPER;
use crate::bowl::{Bowl, BowlMeans};
use crate::error::ExperimentError;
use crate::report::{PaperReport, ParameterSource, ReportCell, ReportTable};
use crate::{Experiment, ReproduceOptions};

/// The row of the table.
pub const EXPERIMENT: Experiment = Experiment {
    meta: Meta {
        name: "decentdp-theorem",
        summary: "Theorem 4.1's dependence on the spectral gap beside AccumAdam's runs, 8 to 64 workers",
        paper: PAPER,
        section: "",
        file: file!(),
        options: &[],
    },
    trains: false,
    data: None,
    run,
};

const TOPOLOGIES: [&str; 6] = ["ring", "one-peer-ring", "grid", "exponential", "aer", "complete"];
const WORKERS: [usize; 4] = [8, 16, 32, 64];
const FACTOR: &str = "(1+λ²)/(1−λ²)²";
const DISTANCE: &str = "squared distance of the workers, times α⁻²";
const GRADIENT: &str = "mean of ‖∇f‖², times the complete graph's";
const RATE: f64 = 0.01;

fn run(options: &ReproduceOptions) -> Result<PaperReport, ExperimentError> {
    let title = "Theorem 4.1: the graph's part of the bound, and what runs come to";
    let mut report = PaperReport::new(EXPERIMENT.meta.name, title, PAPER);
    let steps = options.size(1500, 200) as u64;
    let mut cells = Vec::new();
    for workers in &WORKERS[..options.size(WORKERS.len(), 2)] {
        let bowl = Bowl { workers: *workers, steps, noise: 0.3 };
        let complete = means(&bowl, "complete", options)?;
        for name in TOPOLOGIES {
            let (found, lambda) = (means(&bowl, name, options)?, second_eigenvalue(&bowl, name)?);
            let squared = lambda * lambda;
            let row = format!("{name}, n = {workers}");
            let columns = [
                ("λ", lambda),
                (FACTOR, (1.0 + squared) / (1.0 - squared).powi(2)),
                (DISTANCE, found.distance / (RATE * RATE)),
                (GRADIENT, found.gradient / complete.gradient),
            ];
            cells.extend(columns.map(|(column, ours)| ReportCell::new(row.clone(), column, ours)));
        }
    }
    report.tables.push(ReportTable { title: "AccumAdam, s = 4".into(), cells });
    if !options.small {
        claims(&mut report);
    }
    tell(&mut report, steps);
    Ok(report)
}

fn means(
    bowl: &Bowl,
    topology: &str,
    options: &ReproduceOptions,
) -> Result<BowlMeans, ExperimentError> {
    let settings = [
        "algorithm.name=d-psgd".to_string(),
        format!("topology.name={topology}"),
        "optimizer.name=accum-adam".into(),
        "optimizer.accumulate=4".into(),
        format!("optimizer.lr={RATE}"),
    ];
    bowl.run(&settings, (0..options.size(3, 1) as u64).map(|s| options.seed + s))
}

/// `λ` per round: one minus the spectral gap; 0 where a period gives the exact mean.
fn second_eigenvalue(bowl: &Bowl, name: &str) -> Result<f64, ExperimentError> {
    let plan = bowl.plan(&["algorithm.name=d-psgd".into(), format!("topology.name={name}")])?;
    let found = plan.setup.view.topology(0).map(|(_, schedule)| topology::report(schedule));
    Ok(found.map_or(f64::NAN, |report| (1.0 - report.spectral_gap).clamp(0.0, 1.0)))
}

fn claims(report: &mut PaperReport) {
    let column = |name: &str| -> Vec<f64> {
        report.cells().filter(|cell| cell.column == name).map(|cell| cell.ours).collect()
    };
    let (factors, distances, gradients) = (column(FACTOR), column(DISTANCE), column(GRADIENT));
    let logs =
        |values: &[f64]| values.iter().map(|value| value.max(1e-12).ln()).collect::<Vec<_>>();
    let (slope, correlation) = line(&logs(&factors), &logs(&distances));
    report.claim(
        format!(
            "workers are farther apart where the theorem's factor is larger (correlation of the \
             logarithms {correlation:.2}, at least 0.8)"
        ),
        correlation >= 0.8,
    );
    report.finding(format!(
        "the squared distance grows like the factor to the power {slope:.2}; the theorem's worst case is 1"
    ));
    let worst = gradients.iter().copied().fold(0.0_f64, f64::max);
    report.finding(format!(
        "the gradient norm is at most {worst:.2} times that of the complete graph, where the theorem's \
         factor is up to {:.0} times as large",
        factors.iter().copied().fold(0.0_f64, f64::max)
    ));
}

/// Slope and correlation of a straight line through points.
fn line(x: &[f64], y: &[f64]) -> (f64, f64) {
    let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
    let (mx, my) = (mean(x), mean(y));
    let sum = |f: &dyn Fn(f64, f64) -> f64| -> f64 {
        x.iter().zip(y).map(|(a, b)| f(a - mx, b - my)).sum()
    };
    let (xy, xx, yy) = (sum(&|a, b| a * b), sum(&|a, _| a * a), sum(&|_, b| b * b));
    (xy / xx, xy / (xx * yy).sqrt())
}

fn tell(report: &mut PaperReport, steps: u64) {
    report.rests_on(
        "theorem",
        "the graph enters E‖∇F(x̄)‖² through a term proportional to α²(1+λ²)/(1−λ²)²",
        ParameterSource::Stated,
    );
    report.rests_on("AccumAdam", "β = (0.9, 0.999), moments of 4 steps", ParameterSource::Stated);
    let length = format!("{steps} steps, rate {RATE}, mean over three seeds");
    let why = "the poster gives a bound, no experiment to repeat";
    report.assumes([
        ("function", "a quadratic of 20 entries, curvature 0.1 to 1, noise 0.3 per entry", why),
        ("length", length.as_str(), why),
        ("correlation that is asked for", "0.8", "fixed before the first run"),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_straight_line_is_found() {
        let (slope, correlation) = line(&[0.0, 1.0, 2.0], &[1.0, 3.0, 5.0]);
        assert!((slope - 2.0).abs() < 1e-12 && (correlation - 1.0).abs() < 1e-12);
    }
}
