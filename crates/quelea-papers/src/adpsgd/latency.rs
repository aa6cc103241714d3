//! Seconds per epoch against the latency of the network: from InfiniBand to clouds and the Internet of
//! Things, for which the paper recommends AD-PSGD.

use quelea_core::meta::Meta;
use quelea_plot::{Axis, Chart, LineChart, LineSeries};

use super::{AdpsgdMethod, AdpsgdSetting, GRADIENTS_PER_EPOCH, METHODS, PAPER, RESNET_COMPUTE};
use crate::error::ExperimentError;
use crate::report::{PaperReport, ParameterSource, ReportCell, ReportTable};
use crate::{Experiment, ReproduceOptions};

/// The row of the table.
pub const EXPERIMENT: Experiment = Experiment {
    meta: Meta {
        name: "adpsgd-latency",
        summary: "seconds per epoch of AD-PSGD, AllReduce and D-PSGD with latencies of 2 µs to 100 ms",
        paper: PAPER,
        section: "",
        file: file!(),
        options: &[],
    },
    trains: false,
    data: None,
    run,
};

/// One-way, in microseconds.
const LATENCIES: [f64; 8] = [2.0, 50.0, 200.0, 1e3, 3e3, 1e4, 3e4, 1e5];
/// Of a data centre and of an Internet line.
const RATES: [f64; 2] = [100.0, 1.0];

fn run(options: &ReproduceOptions) -> Result<PaperReport, ExperimentError> {
    let title = "Seconds per epoch of 16 learners against latency";
    let mut report = PaperReport::new(EXPERIMENT.meta.name, title, PAPER);
    for gbps in &RATES[..options.size(RATES.len(), 1)] {
        let mut cells = Vec::new();
        for method in METHODS {
            let setting = AdpsgdSetting::resnet(method)?;
            for latency in &LATENCIES[..options.size(LATENCIES.len(), 4)] {
                let seconds = GRADIENTS_PER_EPOCH / rate(&setting, method, *gbps, *latency)?;
                cells.push(ReportCell::new(row(*gbps, *latency), method.name(), seconds));
            }
        }
        report.charts.push((format!("latency-{gbps}"), chart(*gbps, &cells)));
        let title = format!("Seconds per epoch, ResNet-20, {gbps} Gbit/s");
        report.tables.push(ReportTable { title, cells });
    }
    claims(&mut report);
    tell(&mut report);
    Ok(report)
}

fn row(gbps: f64, latency: f64) -> String {
    let latency =
        if latency < 1e3 { format!("{latency} µs") } else { format!("{} ms", latency / 1e3) };
    format!("{gbps} Gbit/s, {latency}")
}

/// Gradients per second of all learners.
fn rate(
    setting: &AdpsgdSetting,
    method: AdpsgdMethod,
    gbps: f64,
    latency: f64,
) -> Result<f64, ExperimentError> {
    let steps = if method == AdpsgdMethod::AdPsgd { 300 } else { 12 };
    let trial = setting
        .trial(method, 1.0)
        .set("cluster.bandwidth_gbps", gbps)
        .set("cluster.latency_us", latency);
    Ok(trial.run(steps)?.rate())
}

fn chart(gbps: f64, cells: &[ReportCell]) -> Chart {
    let line = |method: AdpsgdMethod| {
        let own = cells.iter().filter(|cell| cell.column == method.name());
        let points = own.zip(LATENCIES).map(|(cell, latency)| (latency / 1e3, cell.ours));
        LineSeries::line(method.name(), points.collect())
    };
    Chart::Lines(LineChart {
        title: format!("Seconds per epoch against latency, {gbps} Gbit/s"),
        x: Axis::log("latency, ms"),
        y: Axis::log("seconds per epoch"),
        series: METHODS.map(line).to_vec(),
    })
}

fn claims(report: &mut PaperReport) {
    let ours = |row: &str, method: AdpsgdMethod| {
        report.cell(row, method.name()).map_or(f64::NAN, |cell| cell.ours)
    };
    let rows: Vec<String> = report
        .cells()
        .filter(|cell| cell.column == AdpsgdMethod::AdPsgd.name())
        .map(|cell| cell.row.clone())
        .collect();
    let fastest = rows.iter().all(|row| {
        let own = ours(row, AdpsgdMethod::AdPsgd);
        own < ours(row, AdpsgdMethod::DPsgd) && own < ours(row, AdpsgdMethod::AllReduce)
    });
    let first = &rows[0];
    let grows = |method| -> Vec<String> {
        rows.iter().map(|row| format!("{:.1}", ours(row, method) / ours(first, method))).collect()
    };
    let found = METHODS.map(|method| format!("{} {}", method.name(), grows(method).join(", ")));
    let found = format!("times as long as in the first row, row by row: {}", found.join("; "));
    report.claim("AD-PSGD is fastest at every latency", fastest);
    report.finding(found);
}

fn tell(report: &mut PaperReport) {
    report.rests_on("cluster", "16 learners", ParameterSource::Stated);
    report.rests_on(
        "seconds of a gradient",
        format!("{:.2} ms", RESNET_COMPUTE * 1e3),
        ParameterSource::Derived("18.04 s per epoch on one learner, batch 32".into()),
    );
    let why = "the paper recommends AD-PSGD for clouds and the Internet of Things without numbers";
    report.assumes([
        ("latencies", "2 µs (InfiniBand) to 100 ms (another continent), one way", why),
        ("bandwidth", "100 Gbit/s as in its cluster; 1 Gbit/s", why),
        (
            "overheads per step",
            "as fitted in adpsgd-slowdown on the row without a slow learner",
            why,
        ),
    ]);
}
