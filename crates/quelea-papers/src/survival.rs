//! Goodput over the mean time between failures, for one algorithm of each family.
//!
//! A run loses one worker by a crash, and a spare takes its place. How much work the whole cluster loses by
//! that, in seconds of all workers, is measured in the virtual cluster; at a mean time between failures of
//! `M`, goodput is then `1 − lost / M`. At the shortest `M` it is also simulated as it is, with failures at
//! random times that may overlap.

use quelea_core::meta::Meta;
use quelea_core::random::Rng;
use quelea_plot::{Axis, Chart, LineChart, LineSeries};
use quelea_run::trial::{Timing, Trial};
use quelea_sim::{Crash, Join};

use crate::error::ExperimentError;
use crate::report::{PaperReport, ParameterSource, ReportCell, ReportTable};
use crate::{Experiment, ReproduceOptions};

/// The row of the table.
pub const EXPERIMENT: Experiment = Experiment {
    meta: Meta {
        name: "survival",
        summary: "goodput over the mean time between failures, five families, up to 4,096 workers",
        paper: PAPER,
        section: "",
        file: file!(),
        options: &[],
    },
    trains: false,
    data: None,
    run,
};

const PAPER: &str = "no paper: what a crash and a spare in its place cost in the virtual cluster";

/// One algorithm of each family, with its settings.
struct SurvivalFamily {
    name: &'static str,
    settings: &'static [(&'static str, &'static str)],
}

// The rows of this experiment are algorithms, one of each family.
const FAMILIES: [SurvivalFamily; 5] = [
    SurvivalFamily { name: "allreduce", settings: &[("algorithm.collective", "halving-doubling")] },
    SurvivalFamily { name: "local-sgd", settings: &[("algorithm.collective", "halving-doubling")] },
    SurvivalFamily { name: "d-psgd", settings: &[("topology.name", "one-peer-exponential")] },
    SurvivalFamily { name: "ad-psgd", settings: &[] },
    SurvivalFamily { name: "aladdin", settings: &[] },
];

/// Parameters of the model, milliseconds of a gradient, Gbit/s and microseconds of a link.
const PARAMETERS: f64 = 6.25e6;
const COMPUTE_MS: f64 = 100.0;
const BANDWIDTH_GBPS: f64 = 25.0;
const LATENCY_US: f64 = 50.0;
/// Until a closed socket is acted on, as measured on one machine.
const DETECT_MS: f64 = 3.0;
/// When a worker is lost in the run that measures the cost, and until a spare is there.
const CRASH_MS: f64 = 2_000.0;
const SPARE_MS: f64 = 2_000.0;
/// Steps of the run that measures the cost.
const STEPS: u64 = 80;
/// Seconds between two failures of the whole cluster.
const MEANS: [(&str, f64); 5] =
    [("15 s", 15.0), ("1 min", 60.0), ("10 min", 600.0), ("1 h", 3_600.0), ("1 day", 86_400.0)];
/// Steps, and workers, of the run in which failures come at random times.
const RANDOM_STEPS: u64 = 900;
const RANDOM_WORKERS: usize = 16;

impl SurvivalFamily {
    fn trial(&self, workers: usize) -> Trial {
        let trial = Trial::new(self.name, workers, PARAMETERS)
            .set("cluster.compute_ms", COMPUTE_MS)
            .set("cluster.bandwidth_gbps", BANDWIDTH_GBPS)
            .set("cluster.latency_us", LATENCY_US)
            .set("cluster.detect_ms", DETECT_MS)
            .set("cluster.servers", (workers / 16).max(1));
        self.settings.iter().fold(trial, |trial, (key, value)| trial.set(key, value))
    }

    /// Gradients per second of the whole cluster while these workers are lost and replaced.
    fn rate(&self, workers: usize, steps: u64, crashes: &[Crash]) -> Result<f64, ExperimentError> {
        let mut plan = self.trial(workers).plan(steps)?;
        for crash in crashes {
            let Crash { rank, at_ms } = *crash;
            plan.cluster.faults.crashes.push(*crash);
            plan.cluster.faults.joins.push(Join { rank, at_ms: at_ms + SPARE_MS });
        }
        let outcome = Timing::of(&plan)?.outcome;
        let done: u64 = outcome.ranks.iter().filter(|rank| !rank.is_server).map(|r| r.steps).sum();
        Ok(done as f64 / outcome.clock_seconds)
    }

    /// Seconds of the whole cluster that one failure costs.
    fn lost_seconds(&self, workers: usize) -> Result<f64, ExperimentError> {
        let whole = self.rate(workers, STEPS, &[])?;
        let rank = (workers / 2) as u32;
        let disturbed = self.rate(workers, STEPS, &[Crash { rank, at_ms: CRASH_MS }])?;
        let seconds = STEPS as f64 * COMPUTE_MS / 1e3;
        Ok((seconds * (1.0 - disturbed / whole)).max(0.0))
    }

    /// Goodput where workers are lost at random times, `mean` seconds apart.
    fn at_random(&self, mean: f64, seed: u64) -> Result<f64, ExperimentError> {
        let whole = self.rate(RANDOM_WORKERS, RANDOM_STEPS, &[])?;
        let mut rng = Rng::new(seed, "survival", 0);
        let end = RANDOM_STEPS as f64 * COMPUTE_MS / 1e3;
        let (mut crashes, mut t) = (Vec::new(), 0.0);
        loop {
            t -= mean * (1.0 - rng.uniform()).ln();
            // The last ones would be lost in a run that is about to end.
            if t > end - mean {
                break;
            }
            // Not one whose spare has not come yet.
            let busy = |rank: u32, crash: &Crash| {
                crash.rank == rank && crash.at_ms + 2.0 * SPARE_MS > t * 1e3
            };
            let free: Vec<u32> = (0..RANDOM_WORKERS as u32)
                .filter(|rank| !crashes.iter().any(|crash| busy(*rank, crash)))
                .collect();
            let rank = free[rng.below(free.len() as u64) as usize];
            crashes.push(Crash { rank, at_ms: t * 1e3 });
        }
        let disturbed = self.rate(RANDOM_WORKERS, RANDOM_STEPS, &crashes)?;
        // What counts is the time in which the failures were.
        let failures = crashes.len().max(1) as f64;
        let lost = (end * (1.0 - disturbed / whole)).max(0.0) / failures;
        Ok(1.0 - lost / mean)
    }
}

fn run(options: &ReproduceOptions) -> Result<PaperReport, ExperimentError> {
    let title = "Goodput over the mean time between failures";
    let mut report = PaperReport::new(EXPERIMENT.meta.name, title, PAPER);
    let sizes: &[usize] = if options.small { &[16] } else { &[64, 512, 4096] };
    for workers in sizes {
        let mut cells = Vec::new();
        for family in &FAMILIES {
            (options.tell)(&format!("{workers} workers, {}", family.name));
            let lost = family.lost_seconds(*workers)?;
            cells.push(cell(family.name, "lost, s", lost));
            for (name, mean) in MEANS {
                cells.push(cell(family.name, name, 100.0 * (1.0 - lost / mean).max(0.0)));
            }
        }
        report.charts.push((format!("goodput-{workers}"), chart(*workers, &cells)));
        let title =
            format!("{workers} workers: seconds lost by one failure, and goodput in percent");
        report.tables.push(ReportTable { title, cells });
    }
    random_times(&mut report, options)?;
    parameters(&mut report);
    claims(&mut report);
    notes(&mut report);
    Ok(report)
}

fn cell(row: &str, column: &str, ours: f64) -> ReportCell {
    let (row, column) = (row.into(), column.into());
    ReportCell { row, column, paper: None, ours, spread: None, fitted: false }
}

/// The shortest mean, simulated as it is, beside what follows from the cost of one failure.
fn random_times(
    report: &mut PaperReport,
    options: &ReproduceOptions,
) -> Result<(), ExperimentError> {
    let (_, mean) = MEANS[0];
    let mut cells = Vec::new();
    for family in &FAMILIES {
        let simulated = 100.0 * family.at_random(mean, options.seed)?;
        let follows = 100.0 * (1.0 - family.lost_seconds(RANDOM_WORKERS)? / mean);
        cells.push(cell(family.name, "at random times", simulated));
        cells.push(cell(family.name, "from one failure", follows));
    }
    let title = format!(
        "{RANDOM_WORKERS} workers, {mean} s between failures: goodput in percent, two ways"
    );
    report.tables.push(ReportTable { title, cells });
    Ok(())
}

fn chart(workers: usize, cells: &[ReportCell]) -> Chart {
    let series = FAMILIES.iter().map(|family| {
        let own = |column: &str| {
            cells.iter().find(|cell| cell.row == family.name && cell.column == column)
        };
        let points = MEANS.iter().filter_map(|(name, mean)| Some((*mean, own(name)?.ours)));
        LineSeries::line(family.name, points.collect())
    });
    Chart::Lines(LineChart {
        title: format!("Goodput, {workers} workers"),
        x: Axis::log("seconds between two failures"),
        y: Axis::linear("goodput, %"),
        series: series.collect(),
    })
}

fn parameters(report: &mut PaperReport) {
    report.assumes([
        ("parameters", format!("{:.2} million", PARAMETERS / 1e6), "a model of 25 MB"),
        ("gradient", format!("{COMPUTE_MS} ms"), "as in `xtask bench survive`"),
        ("links", format!("{BANDWIDTH_GBPS} Gbit/s, {LATENCY_US} µs"), "a usual cluster"),
        ("a spare", format!("there after {} s", SPARE_MS / 1e3), "it has waited at the run"),
    ]);
    let measured = ParameterSource::Measured("`xtask bench detect`, a closed socket".into());
    report.rests_on("detection", format!("{DETECT_MS} ms"), measured);
}

fn claims(report: &mut PaperReport) {
    let cells: Vec<ReportCell> = report.cells().cloned().collect();
    let of = |column: &'static str| cells.iter().filter(move |cell| cell.column == column);
    let lost = of("lost, s").map(|cell| cell.ours).fold(0.0, f64::max);
    report.claim("one failure costs less than a second of the whole cluster", lost < 1.0);
    let pairs = of("at random times").zip(of("from one failure"));
    let apart = pairs.map(|(a, b)| (a.ours - b.ours).abs()).fold(0.0, f64::max);
    report.claim("goodput at random times is within 3 % of what one failure costs", apart < 3.0);
}

fn notes(report: &mut PaperReport) {
    report.note(
        "A crash is a closed socket. Lost time has three parts: until the others continue, the share of \
         the lost worker until its spare is there, and the cut at which the spare enters. The time \
         that a spare's state needs on its link is not part of it: the others train meanwhile where \
         their algorithm does not wait for it.",
    );
}
