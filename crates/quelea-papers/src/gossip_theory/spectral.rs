//! ρ against the number of workers for every topology.

use std::sync::Arc;

use quelea_core::meta::Meta;
use quelea_core::options::Options;
use quelea_core::topology::{self, TOPOLOGIES};
use quelea_plot::{Axis, Chart, LineChart, LineSeries};

use super::PAPER;
use crate::error::ExperimentError;
use crate::report::{Figure, PaperReport, ParameterSource, ReportCell, ReportTable};
use crate::{Experiment, ReproduceOptions};

/// The row of the table.
pub const EXPERIMENT: Experiment = Experiment {
    meta: Meta {
        name: "yuan-spectral",
        summary: "how fast every topology mixes: 1 − ρ against the number of workers",
        paper: PAPER,
        section: "",
        file: file!(),
        options: &[],
    },
    trains: false,
    data: None,
    run,
};

const WORKERS: [usize; 7] = [4, 8, 16, 32, 64, 128, 256];

/// `1 − ρ` in closed form, where the literature has one: ring with weights ⅓, and the static
/// exponential graph for powers of two (Ying et al. 2021).
fn formula(name: &str, n: usize) -> Option<f64> {
    let n = n as f64;
    match name {
        "ring" => {
            let eigenvalue = |k: f64| (1.0 + 2.0 * (std::f64::consts::TAU * k / n).cos()) / 3.0;
            let rho = eigenvalue(1.0).abs().max(eigenvalue((n / 2.0).floor()).abs());
            Some(1.0 - rho)
        }
        "exponential" => Some(2.0 / (n.log2().ceil() + 1.0)),
        "complete" => Some(1.0),
        _ => None,
    }
}

/// What arithmetic leaves of an equation.
const EXACT: f64 = 1e-6;

fn run(options: &ReproduceOptions) -> Result<PaperReport, ExperimentError> {
    let title = "How fast topologies mix";
    let mut report = PaperReport::new(EXPERIMENT.meta.name, title, PAPER);
    let sizes = &WORKERS[..options.size(WORKERS.len(), 4)];
    let mut cells = Vec::new();
    for entry in TOPOLOGIES.iter().filter(|entry| entry.meta.name != "custom") {
        for &workers in sizes {
            let hosts: Vec<u32> = (0..workers as u32).map(|worker| worker / 2).collect();
            let params = Options::defaults(entry.meta.options);
            let request = topology::TopologyRequest {
                hosts: &hosts,
                seed: options.seed,
                options: &params,
                text: None,
            };
            let Ok(schedule) = entry.build(&request) else { continue };
            let measured = topology::report(&Arc::new(schedule));
            cells.push(ReportCell {
                row: entry.meta.name.into(),
                column: workers.to_string(),
                paper: formula(entry.meta.name, workers).map(|value| Figure::rounded(value, 1e-9)),
                ours: measured.spectral_gap,
                ..ReportCell::default()
            });
        }
    }
    report.charts.push(("gap".into(), chart(&cells)));
    report.tables.push(ReportTable { title: "1 − ρ by number of workers".into(), cells });
    let source = ParameterSource::Derived(
        "‖W − J‖₂ by singular values; for a period, its geometric mean".into(),
    );
    report.rests_on("ρ", "per round", source);
    report.rests_on(
        "hosts",
        "two workers each",
        ParameterSource::Assumed("matters to aer only".into()),
    );
    let errors = report.cells().filter_map(ReportCell::error_beyond_rounding);
    let worst = errors.fold(0.0, f64::max);
    report.claim(
        format!("closed forms of ring, exponential and complete, to {EXACT:.0e}: {worst:.0e} off"),
        worst <= EXACT,
    );
    slopes(&mut report, sizes);
    report.note(
        "Where the published column stands, it is the closed form: ring (1 + 2 cos 2π/n)/3, \
         static exponential 1 − 2/(log₂ n + 1). A one-peer graph has no ρ of its own below 1 in a \
         single round; the mean over a period is shown, and 1 means the exact average after it.",
    );
    Ok(report)
}

/// The lecture's orders: Θ(1/n²) for the ring, Θ(1/log n) for the exponential graph.
fn slopes(report: &mut PaperReport, sizes: &[usize]) {
    let (Some(first), Some(last)) = (sizes.get(1), sizes.last()) else { return };
    let gap = |name: &str, n: &usize| report.cell(name, &n.to_string()).map_or(1.0, |c| c.ours);
    let grown = *last as f64 / *first as f64;
    let ring = (gap("ring", first) / gap("ring", last)).ln() / grown.ln();
    let expected = ((*last as f64).log2() + 1.0) / ((*first as f64).log2() + 1.0);
    let exponential = gap("exponential", first) / gap("exponential", last);
    let holds = (ring - 2.0).abs() < 0.2 && (exponential / expected - 1.0).abs() < 0.01;
    report.claim(
        format!(
            "the gap falls like n^-{ring:.2} on a ring and like 1/log n on the exponential graph"
        ),
        holds,
    );
}

fn chart(cells: &[ReportCell]) -> Chart {
    let mut names: Vec<&str> = cells.iter().map(|cell| cell.row.as_str()).collect();
    names.dedup();
    let line = |name: &&str| {
        let own = cells.iter().filter(|cell| cell.row == **name);
        let points = own.filter_map(|cell| Some((cell.column.parse().ok()?, cell.ours)));
        LineSeries::line(*name, points.collect())
    };
    Chart::Lines(LineChart {
        title: "How fast topologies mix".into(),
        x: Axis::log("workers"),
        y: Axis::log("1 − ρ per round"),
        series: names.iter().map(line).collect(),
    })
}
