//! Time saved against AllReduce on three clusters.

use quelea_core::meta::Meta;
use quelea_plot::{Axis, BarChart, BarSeries, Chart};
use quelea_run::trial::Trial;

use super::{DecentDpForm, PAPER};
use crate::error::ExperimentError;
use crate::fit::Fit;
use crate::report::{Figure, PaperReport, ParameterSource, ReportCell, ReportTable};
use crate::{Experiment, ReproduceOptions};

/// The row of the table.
pub const EXPERIMENT: Experiment = Experiment {
    meta: Meta {
        name: "decentdp-speedup",
        summary: "three clusters: Complete, Ring and AER against AllReduce, with overlap and varying \
              compute times",
        paper: PAPER,
        section: "",
        file: file!(),
        options: &[],
    },
    trains: false,
    data: None,
    run,
};

/// One cluster of the poster with its model.
#[derive(Clone, Copy, Debug)]
struct PosterCluster {
    name: &'static str,
    hosts: usize,
    per_host: usize,
    gbps: f64,
    parameters: f64,
    /// Seconds of a gradient.
    compute: f64,
    /// Coefficient of variation of it.
    variation: f64,
    /// Share of line rate that averages reach, of groups and of pairs.
    efficiency: f64,
    /// Published percent of time saved: Complete, Ring, AER.
    saved: [Option<f64>; 3],
}

const A40: PosterCluster = PosterCluster {
    name: "4×4 A40",
    hosts: 4,
    per_host: 4,
    gbps: 25.0,
    parameters: 61e6,
    compute: 0.0547,
    variation: 0.30,
    efficiency: 1.0,
    saved: [Some(22.03), Some(49.35), Some(61.05)],
};
const A100: PosterCluster = PosterCluster {
    name: "2×4 A100",
    hosts: 2,
    per_host: 4,
    gbps: 100.0,
    parameters: 210e6,
    compute: 0.25,
    variation: 0.08,
    efficiency: 1.0,
    saved: [Some(10.61), Some(14.82), Some(15.01)],
};
const T4: PosterCluster = PosterCluster {
    name: "4×8 T4",
    hosts: 4,
    per_host: 8,
    gbps: 100.0,
    parameters: 25.5e6,
    compute: 0.40,
    variation: 0.02,
    efficiency: 1.0,
    saved: [Some(5.41), None, Some(6.46)],
};

/// Milliseconds of AllReduce with 16 A40, from the figure of the Decent-DP paper.
const A40_ALLREDUCE_SECONDS: f64 = 0.1955;
const FORMS: [DecentDpForm; 3] = [DecentDpForm::Complete, DecentDpForm::Ring, DecentDpForm::Aer];
const BUCKET_MB: f64 = 25.0;

impl PosterCluster {
    fn trial(&self, algorithm: &str, seed: u64) -> Trial {
        let workers = self.hosts * self.per_host;
        Trial::new(algorithm, workers, self.parameters)
            .cut(64)
            .buckets_mb(BUCKET_MB)
            .set("seed", seed)
            .set("cluster.hosts", self.hosts)
            .set("cluster.bandwidth_gbps", self.gbps)
            .set("cluster.latency_us", if self.gbps > 25.0 { 5.0 } else { 50.0 })
            .set("cluster.internal_gbps", 100.0)
            .set("cluster.compute_ms", self.compute * 1e3)
            .set("cluster.compute_cv", self.variation)
            .set("cluster.backward_share", 2.0 / 3.0)
            .set("cluster.collective_efficiency", self.efficiency)
            // Pairs are averaged by the same library.
            .set("cluster.point_to_point_efficiency", self.efficiency)
    }

    /// Seconds of a step.
    fn step(&self, form: DecentDpForm, options: &ReproduceOptions) -> Result<f64, ExperimentError> {
        self.step_with(form, &[], options)
    }

    /// The same with some settings changed.
    fn step_with(
        &self,
        form: DecentDpForm,
        changed: &[(&str, &str)],
        options: &ReproduceOptions,
    ) -> Result<f64, ExperimentError> {
        let (algorithm, topology) = form.run();
        // A group of all is summed around one ring, like the gradients.
        let groups = if form == DecentDpForm::Complete { "ring" } else { "all-reduce" };
        let trial = self
            .trial(algorithm, options.seed)
            .set("topology.name", topology)
            .set("topology.groups", groups);
        let trial = changed.iter().fold(trial, |trial, (key, value)| trial.set(key, value));
        Ok(trial.run(60)?.step_seconds())
    }
}

fn run(options: &ReproduceOptions) -> Result<PaperReport, ExperimentError> {
    let title = "Time of a step relative to AllReduce";
    let mut report = PaperReport::new(EXPERIMENT.meta.name, title, PAPER);
    let a40 = PosterCluster { efficiency: efficiency(options)?, ..A40 };
    let fitted = if options.small {
        vec![a40]
    } else {
        vec![a40, varied(A100, options)?, varied(T4, options)?]
    };
    let mut cells = Vec::new();
    for cluster in &fitted {
        cells.extend(rows(cluster, options)?);
        tell(&mut report, cluster);
    }
    report.charts.push(("relative-time".into(), chart(&fitted, &cells)));
    report.tables.push(ReportTable { title: "Time of a step relative to AllReduce".into(), cells });
    report.tables.push(line_rate(options)?);
    for cluster in &fitted {
        for form in FORMS {
            let what = format!("{}, {}", cluster.name, form.name());
            let is_meant =
                |cell: &ReportCell| cell.row == cluster.name && cell.column == form.name();
            report.claim_within(&what, is_meant);
        }
    }
    orderings(&mut report);
    shared(&mut report);
    readings(&mut report, &fitted[0], options)?;
    notes(&mut report);
    Ok(report)
}

/// Collective efficiency of the A40 cluster, on the milliseconds of AllReduce.
fn efficiency(options: &ReproduceOptions) -> Result<f64, ExperimentError> {
    let fit = Fit {
        parameter: "collective efficiency",
        cell: "AllReduce, 16 A40, 195.5 ms",
        goal: A40_ALLREDUCE_SECONDS,
        range: (0.4, 1.0),
    };
    fit.solve_to(1e-3, |efficiency| {
        PosterCluster { efficiency, ..A40 }.step(DecentDpForm::AllReduce, options)
    })
}

/// The cluster with its variation fitted on Complete.
fn varied(
    cluster: PosterCluster,
    options: &ReproduceOptions,
) -> Result<PosterCluster, ExperimentError> {
    let fit = Fit {
        parameter: "variation of compute times",
        cell: cluster.name,
        goal: 1.0 - cluster.saved[0].unwrap_or(0.0) / 100.0,
        range: (0.0, 0.3),
    };
    let variation = fit.solve_to(1e-3, |variation| {
        let tried = PosterCluster { variation, ..cluster };
        Ok(tried.step(DecentDpForm::Complete, options)?
            / tried.step(DecentDpForm::AllReduce, options)?)
    })?;
    Ok(PosterCluster { variation, ..cluster })
}

fn rows(
    cluster: &PosterCluster,
    options: &ReproduceOptions,
) -> Result<Vec<ReportCell>, ExperimentError> {
    let reference = cluster.step(DecentDpForm::AllReduce, options)?;
    let mut cells = Vec::new();
    for (form, saved) in FORMS.into_iter().zip(cluster.saved) {
        let figure = |saved: f64| Figure::rounded(1.0 - saved / 100.0, 5e-5);
        cells.push(ReportCell {
            row: cluster.name.into(),
            column: form.name().into(),
            paper: saved.map(figure),
            ours: cluster.step(form, options)? / reference,
            fitted: form == DecentDpForm::Complete && cluster.name != A40.name,
            spread: None,
        });
    }
    Ok(cells)
}

/// The A40 cluster at line rate, where nothing but the length of a gradient is fitted.
fn line_rate(options: &ReproduceOptions) -> Result<ReportTable, ExperimentError> {
    let mut cells = rows(&A40, options)?;
    cells.iter_mut().for_each(|cell| cell.row = format!("{} at line rate", cell.row));
    Ok(ReportTable { title: "The same without a fitted efficiency".into(), cells })
}

fn tell(report: &mut PaperReport, cluster: &PosterCluster) {
    let name = cluster.name;
    let PosterCluster { hosts, per_host, gbps, parameters, compute, .. } = *cluster;
    report.rests_on(
        &format!("{name}: cluster"),
        format!("{hosts} hosts × {per_host}, {gbps} Gbit/s"),
        ParameterSource::Stated,
    );
    let why = "the usual size of the model that is named".to_string();
    let size = format!("{} million", parameters / 1e6);
    report.rests_on(&format!("{name}: parameters"), size, ParameterSource::Assumed(why));
    let is_a40 = name == A40.name;
    let source = if is_a40 {
        ParameterSource::Fitted("AER with 8 GPUs in the paper's figure (109.5 ms), halved".into())
    } else {
        ParameterSource::Assumed("hardly matters while communication fits into a step".into())
    };
    report.rests_on(
        &format!("{name}: seconds of a gradient"),
        format!("{:.1} ms", compute * 1e3),
        source,
    );
    let source = if is_a40 {
        ParameterSource::Assumed("the poster says \"high\"".into())
    } else {
        ParameterSource::Fitted(format!("Complete, {name}"))
    };
    let variation = format!("{:.3}", cluster.variation);
    report.rests_on(&format!("{name}: variation of it"), variation, source);
    let source = if is_a40 {
        ParameterSource::Fitted("AllReduce with 16 GPUs in the paper's figure (195.5 ms)".into())
    } else {
        ParameterSource::Assumed("not needed".into())
    };
    let efficiency = format!("{:.2} of line rate", cluster.efficiency);
    report.rests_on(&format!("{name}: efficiency of collectives"), efficiency, source);
}

fn shared(report: &mut PaperReport) {
    report.assumes([
        ("AllReduce", "flat ring in buckets of 25 MB, overlapped with the backward pass", "as DDP"),
        ("AER", "groups by all-reduce, hierarchical where they span hosts", "as published"),
        ("backward share", "two thirds", "usual"),
        ("inside a host", "100 Gbit/s per GPU", "usual"),
        ("latency", "50 µs on Ethernet, 5 µs on InfiniBand", "usual"),
    ]);
}

/// What the poster leaves open and was chosen because it explains its figures best, with what the
/// other reading comes to on the cluster of A40.
fn readings(
    report: &mut PaperReport,
    a40: &PosterCluster,
    options: &ReproduceOptions,
) -> Result<(), ExperimentError> {
    let choices = [
        (
            "Ring",
            "pairs of neighbouring ranks, alternating: `ring` of the public code",
            DecentDpForm::Ring,
            [("topology.name", "ring")],
            "both neighbours in every step, as D-PSGD has it",
        ),
        (
            "Complete",
            "models instead of gradients, one step late, flat ring",
            DecentDpForm::Complete,
            [("topology.groups", "all-reduce")],
            "hierarchical: inside hosts first",
        ),
        (
            "AER, groups",
            "averaged by all-reduce",
            DecentDpForm::Aer,
            [("topology.groups", "send")],
            "models sent one by one",
        ),
    ];
    for (name, chosen, form, settings, what) in choices {
        let other = if options.small {
            "the other reading is left out of a small version".to_string()
        } else {
            let place = FORMS.iter().position(|known| *known == form);
            let saved = place.and_then(|place| a40.saved[place]).unwrap_or(f64::NAN);
            let published = 1.0 - saved / 100.0;
            let exact = a40.step(DecentDpForm::AllReduce, options)?;
            let off = |seconds: f64| 100.0 * (seconds / exact / published - 1.0);
            let (ours, theirs) =
                (a40.step(form, options)?, a40.step_with(form, &settings, options)?);
            format!("otherwise ({what}): {:+.1} % instead of {:+.1} %", off(theirs), off(ours))
        };
        report.rests_on(name, chosen, ParameterSource::FittedDiscrete { other });
    }
    Ok(())
}

fn orderings(report: &mut PaperReport) {
    let ours = |row: &str, form: DecentDpForm| report.cell(row, form.name()).map(|cell| cell.ours);
    let a40 = FORMS.map(|form| ours(A40.name, form));
    let on_a40 = a40[0] < Some(1.0) && a40[1] < a40[0] && a40[2] < a40[1];
    let (complete, aer) = (DecentDpForm::Complete, DecentDpForm::Aer);
    let near = |row: &str| match (ours(row, complete), ours(row, aer)) {
        (Some(complete), Some(aer)) => aer < 1.0 && (aer - complete).abs() < 0.012,
        _ => true,
    };
    let ties = near(A100.name) && near(T4.name);
    report.claim("A40: AER is fastest, then Ring, Complete, AllReduce, as published", on_a40);
    report.claim(
        "A100 and T4: all are ahead of AllReduce; AER and Complete tie within 1.2 points \
         (published: AER ahead by 4.4 and 1.1)",
        ties,
    );
}

fn chart(clusters: &[PosterCluster], cells: &[ReportCell]) -> Chart {
    let values = |form: DecentDpForm| {
        let own = || cells.iter().filter(|cell| cell.column == form.name());
        BarSeries::new(form.name(), own().map(|cell| Some(cell.ours)).collect())
            .marked(own().map(|cell| cell.paper.map(|figure| figure.value)).collect())
    };
    Chart::Bars(BarChart {
        title: "Time of a step relative to AllReduce".into(),
        y: Axis::linear("1 = AllReduce"),
        groups: clusters.iter().map(|cluster| cluster.name.to_string()).collect(),
        series: FORMS.map(values).to_vec(),
        stacked: false,
    })
}

fn notes(report: &mut PaperReport) {
    report.note(
        "The poster's figures are percent of time saved; shown here is the time that is left, \
         because \"within ten points\" would accept anything where five are saved.",
    );
    report.note(
        "Not explained: why Complete is 4 points worse than AER on the A100s. One step of delay \
         absorbs independent variation completely, whatever the topology. Plausible: collective \
         kernels slow the computation, the global one more. It is not fitted.",
    );
    report.note(
        "A40: with a variation of 0.25 instead of 0.30 Complete is 10.7 % off instead of about 10, \
         and AER 4 % instead of about 1. Complete is bound by its card; the published 152 ms would \
         need more than the line rate left over by AllReduce's own time.",
    );
    report.note(
        "Sums of a step start only when those of the step before are complete. Where they may \
         overtake, buckets for different partners hold each other up on the card, and from 87 % of \
         line rate down AER suddenly takes as long as the ring: the order of launches matters.",
    );
    report.note(
        "All of them are `d-psgd` as anybody runs it; groups are averaged by all-reduce, as \
         Decent-DP does it (`topology.groups`).",
    );
}
