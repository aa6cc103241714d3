//! Linear speed-up of parallel SGD: with n workers a fixed excess loss takes 1/n of the steps, where
//! noise is what takes them.

use quelea_core::meta::Meta;
use quelea_plot::{Axis, Chart, LineChart, LineSeries};

use super::PAPER;
use super::noisy::{floor, mean_losses, plan};
use crate::error::ExperimentError;
use crate::report::{PaperReport, ParameterSource, ReportCell, ReportTable};
use crate::{Experiment, ReproduceOptions};

/// The row of the table.
pub const EXPERIMENT: Experiment = Experiment {
    meta: Meta {
        name: "yuan-speedup",
        summary: "steps of parallel SGD to a fixed loss with 1 to 16 workers: the linear speed-up",
        paper: PAPER,
        section: "",
        file: file!(),
        options: &[],
    },
    trains: false,
    data: None,
    run,
};

const WORKERS: [usize; 5] = [1, 2, 4, 8, 16];
/// Constant rates of which each number of workers gets the one that needs fewest steps.
const RATES: [f64; 8] = [0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6];
/// Excess loss that is to be reached.
const EXCESS: f64 = 0.05;
/// Standard deviation of the noise on every entry of a gradient.
const NOISE: f32 = 0.3;
const DRAWS: usize = 8;
/// Steps over which a loss is averaged before it is compared.
const WINDOW: usize = 9;
const STEPS: &str = "steps";
const SPEEDUP: &str = "speed-up";

fn run(options: &ReproduceOptions) -> Result<PaperReport, ExperimentError> {
    let title = "Linear speed-up of parallel SGD";
    let mut report = PaperReport::new(EXPERIMENT.meta.name, title, PAPER);
    let mut cells = Vec::new();
    let (mut points, mut alone) = (Vec::new(), f64::NAN);
    for &workers in &WORKERS[..options.size(WORKERS.len(), 2)] {
        let Some((steps, rate)) = fewest(workers, options)? else {
            report.note(format!("n = {workers}: not reached with any rate."));
            continue;
        };
        if workers == 1 {
            alone = steps;
        }
        let row = format!("n = {workers}");
        let columns =
            [(STEPS, steps), ("best rate", rate), (SPEEDUP, alone / steps), ("n", workers as f64)];
        cells.extend(columns.map(|(column, ours)| ReportCell::new(row.clone(), column, ours)));
        points.push((workers as f64, alone / steps));
    }
    report.charts.push(("speedup".into(), chart(points)));
    let title = format!("Steps until the excess loss is {EXCESS}");
    report.tables.push(ReportTable { title, cells });
    claims(&mut report);
    tell(&mut report, options);
    Ok(report)
}

/// The fewest steps over all rates, and the rate.
fn fewest(
    workers: usize,
    options: &ReproduceOptions,
) -> Result<Option<(f64, f64)>, ExperimentError> {
    let floor = floor(workers)?;
    let seeds = || (0..options.size(DRAWS, 2) as u64).map(|k| options.seed.wrapping_add(k));
    let mut best: Option<(f64, f64)> = None;
    for rate in RATES {
        let settings =
            [format!("optimizer.lr={rate}"), "optimizer.schedule.name=constant".to_string()];
        let limit = 4000 / workers as u64 + 200;
        let losses = mean_losses(&plan("allreduce", workers, limit, &settings)?, NOISE, seeds())?;
        let reached = reached(&losses, floor + EXCESS);
        if let Some(steps) = reached.filter(|steps| best.is_none_or(|(fewest, _)| *steps < fewest))
        {
            best = Some((steps, rate));
        }
    }
    Ok(best)
}

/// The first step around which the mean loss is this low.
fn reached(losses: &[f64], goal: f64) -> Option<f64> {
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let place = losses.windows(WINDOW).position(|part| mean(part) <= goal)?;
    Some((place + WINDOW / 2 + 1) as f64)
}

fn chart(points: Vec<(f64, f64)>) -> Chart {
    let ideal = points.iter().map(|(n, _)| (*n, *n)).collect();
    Chart::Lines(LineChart {
        title: format!("Steps of one worker over steps of n, to an excess loss of {EXCESS}"),
        x: Axis::log("workers"),
        y: Axis::log("times fewer steps"),
        series: vec![
            LineSeries::line("measured", points),
            LineSeries::dashes("linear", ideal).coloured(9),
        ],
    })
}

fn claims(report: &mut PaperReport) {
    let column = |name: &str| -> Vec<f64> {
        report.cells().filter(|cell| cell.column == name).map(|cell| cell.ours).collect()
    };
    let (steps, speeds, sizes) = (column(STEPS), column(SPEEDUP), column("n"));
    let falls = steps.windows(2).all(|pair| pair[1] < pair[0]);
    report.claim("every doubling of the workers needs fewer steps", falls);
    let half = speeds.iter().zip(&sizes).all(|(speed, n)| *speed >= 0.5 * n);
    let shown: Vec<String> =
        speeds.iter().zip(&sizes).map(|(speed, n)| format!("{n}: {speed:.1}")).collect();
    report.claim(
        format!("the speed-up is at least half of linear with every n ({})", shown.join(", ")),
        half,
    );
}

fn tell(report: &mut PaperReport, options: &ReproduceOptions) {
    let why = "the lecture gives the order O(1/√(nT)), no experiment to repeat";
    let draws = format!("normal, {NOISE} per entry; mean over {} draws", options.size(DRAWS, 2));
    report.assumes([
        ("task", "logistic regression, breast-cancer data, ℓ2 0.01", why),
        ("noise of a gradient", draws.as_str(), why),
        (
            "rate",
            "constant; for every n the best of eight from 0.0125 to 1.6",
            "the bound's is tuned",
        ),
    ]);
    report.rests_on(
        "half of linear",
        "what is asked for",
        ParameterSource::Assumed(
            "fixed before the first run; the part without noise does not shrink".into(),
        ),
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_reached_by_a_mean_not_by_one_lucky_step() {
        let mut losses = vec![1.0; 40];
        losses[5] = 0.0;
        assert_eq!(reached(&losses, 0.5), None);
        losses[20..].fill(0.2);
        assert_eq!(reached(&losses, 0.5), Some(22.0));
    }
}
