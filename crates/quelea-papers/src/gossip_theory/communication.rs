//! Communication per iteration with 256 GPUs: ring all-reduce against partial averaging.

use quelea_plot::{Axis, BarChart, BarSeries, Chart};
use quelea_run::trial::Trial;

use super::PAPER;
use crate::error::ExperimentError;
use crate::report::{Figure, PaperReport, ParameterSource, ReportCell, ReportTable};
use crate::{Experiment, ReproduceOptions};
use quelea_core::meta::Meta;

/// The row of the table.
pub const EXPERIMENT: Experiment = Experiment {
    meta: Meta {
        name: "yuan-communication",
        summary: "256 GPUs: milliseconds of ring all-reduce and of partial averaging, two model sizes",
        paper: PAPER,
        section: "",
        file: file!(),
        options: &[],
    },
    trains: false,
    data: None,
    run,
};

const GPUS: usize = 256;
/// Parameters, and published milliseconds of all-reduce and partial averaging.
const MODELS: [(&str, f64, [f64; 2]); 2] =
    [("ResNet-50", 25.5e6, [278.0, 150.0]), ("BERT", 300e6, [1469.0, 567.0])];
const COLUMNS: [&str; 2] = ["all-reduce", "partial averaging"];

/// What three of the four cells say.
#[derive(Clone, Copy, Debug)]
struct FittedNetwork {
    bytes_per_ms: f64,
    latency_ms: f64,
    fixed_ms: f64,
}

impl FittedNetwork {
    /// All-reduce takes `F + 2(n−1)(α + S/(nB))`, one exchange with a peer `F + α + S/B`.
    fn fit() -> FittedNetwork {
        let stages = 2.0 * (GPUS as f64 - 1.0);
        let [(_, small, [small_ms, partial_ms]), (_, large, [large_ms, _])] = MODELS;
        let per_byte = (large_ms - small_ms) / (4.0 * (large - small) * stages / GPUS as f64);
        let left = small_ms - 4.0 * small * stages / GPUS as f64 * per_byte;
        let other = partial_ms - 4.0 * small * per_byte;
        let latency_ms = (left - other) / (stages - 1.0);
        FittedNetwork { bytes_per_ms: 1.0 / per_byte, latency_ms, fixed_ms: other - latency_ms }
    }

    fn trial(&self, name: &str, parameters: f64, gpus: usize) -> Trial {
        Trial::new(name, gpus, parameters)
            .set("cluster.compute_ms", 0)
            .set("cluster.bandwidth_gbps", self.bytes_per_ms * 8.0 / 1e6)
            .set("cluster.latency_us", self.latency_ms * 1e3)
    }

    fn milliseconds(
        &self,
        column: usize,
        parameters: f64,
        gpus: usize,
    ) -> Result<f64, ExperimentError> {
        let trial = match column {
            0 => self
                .trial("allreduce", parameters, gpus)
                .set("cluster.collective_fixed_us", self.fixed_ms * 1e3),
            _ => self
                .trial("d-psgd", parameters, gpus)
                .set("algorithm.form", "adapt-then-combine")
                .set("topology.name", "one-peer-exponential")
                .set("cluster.handoff_send_us", self.fixed_ms * 1e3),
        };
        Ok(trial.run(4)?.step_seconds() * 1e3)
    }
}

fn run(options: &ReproduceOptions) -> Result<PaperReport, ExperimentError> {
    let title = "Communication per iteration with 256 GPUs";
    let mut report = PaperReport::new(EXPERIMENT.meta.name, title, PAPER);
    let network = FittedNetwork::fit();
    let gpus = options.size(GPUS, 32);
    let mut cells = Vec::new();
    for (row, (name, parameters, published)) in MODELS.into_iter().enumerate() {
        for (column, published) in published.into_iter().enumerate() {
            cells.push(ReportCell {
                row: name.into(),
                column: COLUMNS[column].into(),
                paper: Some(Figure::printed(published, 0)),
                ours: network.milliseconds(column, parameters, gpus)?,
                fitted: (row, column) != (1, 1),
                spread: None,
            });
        }
    }
    tell(&mut report, network);
    report.charts.push(("communication".into(), chart(&cells)));
    report.tables.push(ReportTable { title: "Milliseconds per iteration".into(), cells });
    claims(&mut report);
    notes(&mut report);
    Ok(report)
}

fn tell(report: &mut PaperReport, network: FittedNetwork) {
    report.rests_on("GPUs", "256", ParameterSource::Stated);
    report.rests_on("parameters", "25.5 and 300 million, 4 bytes each", ParameterSource::Stated);
    let on = "the three other cells together";
    let gbs = network.bytes_per_ms / 1e6;
    report.rests_on("bandwidth", format!("{gbs:.2} GB/s"), ParameterSource::Fitted(on.into()));
    let micros = network.latency_ms * 1e3;
    report.rests_on(
        "time of a ring step",
        format!("{micros:.0} µs"),
        ParameterSource::Fitted(on.into()),
    );
    let fixed = format!("{:.1} ms", network.fixed_ms);
    report.rests_on("fixed cost per iteration", fixed, ParameterSource::Fitted(on.into()));
    let why = "the lecture does not say how many".to_string();
    report.rests_on(
        "peers of a partial average",
        "1 (one-peer exponential)",
        ParameterSource::Assumed(why),
    );
}

fn chart(cells: &[ReportCell]) -> Chart {
    let values = |column: &str| {
        let own = || cells.iter().filter(|cell| cell.column == column);
        BarSeries::new(column, own().map(|cell| Some(cell.ours)).collect())
            .marked(own().map(|cell| cell.paper.map(|figure| figure.value)).collect())
    };
    Chart::Bars(BarChart {
        title: "Communication per iteration, 256 GPUs".into(),
        y: Axis::linear("milliseconds"),
        groups: MODELS.map(|(name, ..)| name.to_string()).to_vec(),
        series: COLUMNS.map(values).to_vec(),
        stacked: false,
    })
}

fn claims(report: &mut PaperReport) {
    let ours = |row: &str, column: usize| {
        report.cell(row, COLUMNS[column]).map_or(f64::NAN, |cell| cell.ours)
    };
    let cheaper = MODELS.iter().all(|(name, ..)| ours(name, 1) < ours(name, 0));
    let saved = |name| ours(name, 0) - ours(name, 1);
    let grows = saved("BERT") > saved("ResNet-50");
    report.claim("partial averaging is cheaper for both sizes, as published", cheaper);
    report.claim("and saves more time for the larger model, as published", grows);
}

fn notes(report: &mut PaperReport) {
    report.note(
        "Four cells and three unknowns: this is a fit, and one cell, BERT with partial averaging, \
         shows how far it carries (about 32 % too slow). The published slopes differ by a factor of \
         2.86 between all-reduce and partial averaging; exchanging whole models with one peer \
         allows 1.99. The fixed cost may be coordination, or the published times may contain \
         computation; the lecture does not say.",
    );
}
