//! The state of a run in Prometheus's text format. Names carry their units; times are the run's clock.

use std::fmt::Write as _;

use crate::activity::{LinkActivity, STEP_BOUNDS};
use crate::description::RunDescription;
use crate::log::RunLog;
use crate::state::MomentState;

/// The type of the answer.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// One family of metrics.
struct MetricFamily<'a> {
    name: &'a str,
    kind: &'a str,
    help: &'a str,
}

/// All metrics of a run.
pub fn text(log: &RunLog) -> String {
    let predicted = log.predicted_samples_per_second();
    log.read(|state, now| {
        let mut out = String::new();
        let help = "Samples per second that plan predicts for this run.";
        single(&mut out, "quelea_predicted_samples_per_second", "gauge", help, predicted);
        run_metrics(&mut out, log.description(), state, now);
        rank_metrics(&mut out, log.description(), state, now);
        step_histogram(&mut out, log.description(), state);
        link_metrics(&mut out, state);
        asynchrony_metrics(&mut out, state);
        out
    })
}

fn family(out: &mut String, family: &MetricFamily<'_>) {
    let MetricFamily { name, kind, help } = family;
    let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn single(out: &mut String, name: &str, kind: &str, help: &str, value: Option<f64>) {
    let Some(value) = value else { return };
    family(out, &MetricFamily { name, kind, help });
    let _ = writeln!(out, "{name} {}", number(value));
}

/// As Prometheus writes numbers.
fn number(value: f64) -> String {
    if value.is_nan() {
        "NaN".to_string()
    } else if value.is_infinite() {
        if value > 0.0 { "+Inf" } else { "-Inf" }.to_string()
    } else {
        value.to_string()
    }
}

/// A label's value, with what the format reserves escaped.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn run_metrics(out: &mut String, about: &RunDescription, state: &MomentState, now: f64) {
    let info =
        MetricFamily { name: "quelea_run_info", kind: "gauge", help: "What is run; always 1." };
    family(out, &info);
    let _ = writeln!(
        out,
        "quelea_run_info{{run=\"{}\",algorithm=\"{}\",task=\"{}\"}} 1",
        label(&about.name),
        label(&about.algorithm),
        label(&about.task)
    );
    let total = about.steps as f64 * about.workers as f64;
    single(out, "quelea_run_clock_seconds", "gauge", "The run's clock.", Some(now));
    single(out, "quelea_run_planned_steps", "gauge", "Steps of all workers together.", Some(total));
    let rate = state.samples_per_second();
    single(
        out,
        "quelea_samples_per_second",
        "gauge",
        "Samples per second of all living workers, from their last steps.",
        Some(rate),
    );
    let evaluation = state.evaluation;
    let loss = evaluation.map(|one| one.loss);
    single(out, "quelea_evaluation_loss", "gauge", "Loss of the deployed model.", loss);
    let accuracy = evaluation.and_then(|one| one.accuracy);
    single(
        out,
        "quelea_evaluation_accuracy_ratio",
        "gauge",
        "Share of right answers of the deployed model.",
        accuracy,
    );
    let sampled = state.sampled_consensus().map(|estimate| estimate.value);
    let distance = sampled.or(evaluation.map(|one| one.consensus));
    single(
        out,
        "quelea_consensus_distance",
        "gauge",
        "Root mean square distance of the workers' models from their mean.",
        distance,
    );
    let goodput = state.goodput(about.workers);
    single(
        out,
        "quelea_goodput_ratio",
        "gauge",
        "Share of all workers' time in which gradients of completed steps were computed.",
        goodput,
    );
}

/// A number of every rank.
struct PerRank<'a> {
    family: MetricFamily<'a>,
    value: fn(&crate::activity::RankActivity, f64) -> Option<f64>,
}

const PER_RANK: &[PerRank<'static>] = &[
    PerRank {
        family: MetricFamily {
            name: "quelea_rank_steps_total",
            kind: "counter",
            help: "Steps completed by a worker.",
        },
        value: |rank, _| Some(rank.steps as f64),
    },
    PerRank {
        family: MetricFamily {
            name: "quelea_rank_samples_total",
            kind: "counter",
            help: "Samples used by a worker.",
        },
        value: |rank, _| Some(rank.samples as f64),
    },
    PerRank {
        family: MetricFamily {
            name: "quelea_rank_lost",
            kind: "gauge",
            help: "1 for a rank that was lost.",
        },
        value: |rank, _| Some(if rank.lost.is_some() { 1.0 } else { 0.0 }),
    },
    PerRank {
        family: MetricFamily {
            name: "quelea_rank_batch_loss",
            kind: "gauge",
            help: "Loss of the last mini-batch of a worker.",
        },
        value: |rank, _| rank.loss.map(f64::from),
    },
    PerRank {
        family: MetricFamily {
            name: "quelea_rank_silence_seconds",
            kind: "gauge",
            help: "Seconds since a rank last said something.",
        },
        value: |rank, now| rank.heard.map(|heard| (now - heard).max(0.0)),
    },
    PerRank {
        family: MetricFamily {
            name: "quelea_rank_deviation_distance",
            kind: "gauge",
            help: "Estimated distance of a worker's model from the mean of all.",
        },
        value: |rank, _| rank.deviation.map(|estimate| estimate.value),
    },
    PerRank {
        family: MetricFamily {
            name: "quelea_rank_resident_bytes",
            kind: "gauge",
            help: "Memory of a rank's process.",
        },
        value: |rank, _| Some(rank.memory.resident_bytes as f64).filter(|bytes| *bytes > 0.0),
    },
    PerRank {
        family: MetricFamily {
            name: "quelea_rank_gpu_bytes",
            kind: "gauge",
            help: "Memory that a rank's process has allocated on its GPU.",
        },
        value: |rank, _| Some(rank.memory.gpu_bytes as f64).filter(|bytes| *bytes > 0.0),
    },
];

fn rank_metrics(out: &mut String, about: &RunDescription, state: &MomentState, now: f64) {
    for metric in PER_RANK {
        let values = state.ranks.iter().enumerate().take(about.ranks().max(1));
        let values = values.filter_map(|(rank, one)| Some((rank, (metric.value)(one, now)?)));
        let values: Vec<(usize, f64)> = values.collect();
        if values.is_empty() {
            continue;
        }
        family(out, &metric.family);
        for (rank, value) in values {
            let _ = writeln!(out, "{}{{rank=\"{rank}\"}} {}", metric.family.name, number(value));
        }
    }
    family(
        out,
        &MetricFamily {
            name: "quelea_rank_seconds_total",
            kind: "counter",
            help: "How a worker has spent its time: compute, exposed communication, waiting.",
        },
    );
    for (rank, one) in state.ranks.iter().enumerate().take(about.workers) {
        let parts = [
            ("compute", one.total.compute),
            ("exposed", one.total.exposed),
            ("waiting", one.total.waiting),
        ];
        for (part, seconds) in parts {
            let _ = writeln!(
                out,
                "quelea_rank_seconds_total{{rank=\"{rank}\",part=\"{part}\"}} {}",
                number(seconds)
            );
        }
    }
}

fn step_histogram(out: &mut String, about: &RunDescription, state: &MomentState) {
    family(
        out,
        &MetricFamily {
            name: "quelea_step_seconds",
            kind: "histogram",
            help: "Time of a worker's step.",
        },
    );
    for (rank, one) in state.ranks.iter().enumerate().take(about.workers) {
        let mut sum = 0;
        for (bound, count) in STEP_BOUNDS.iter().zip(&one.histogram) {
            sum += count;
            let _ = writeln!(
                out,
                "quelea_step_seconds_bucket{{rank=\"{rank}\",le=\"{}\"}} {sum}",
                number(*bound)
            );
        }
        let steps = one.steps;
        let _ = writeln!(out, "quelea_step_seconds_bucket{{rank=\"{rank}\",le=\"+Inf\"}} {steps}");
        let seconds = number(one.total.sum());
        let _ = writeln!(out, "quelea_step_seconds_sum{{rank=\"{rank}\"}} {seconds}");
        let _ = writeln!(out, "quelea_step_seconds_count{{rank=\"{rank}\"}} {steps}");
    }
}

/// One metric of every link.
struct PerLink {
    family: MetricFamily<'static>,
    value: fn(&LinkActivity) -> Option<f64>,
}

const PER_LINK: &[PerLink] = &[
    PerLink {
        family: MetricFamily {
            name: "quelea_link_sent_bytes_total",
            kind: "counter",
            help: "Bytes that one rank has sent to another.",
        },
        value: |link| Some(link.total.bytes_sent as f64),
    },
    PerLink {
        family: MetricFamily {
            name: "quelea_link_sent_messages_total",
            kind: "counter",
            help: "Messages that one rank has sent to another.",
        },
        value: |link| Some(link.total.sent as f64),
    },
    PerLink {
        family: MetricFamily {
            name: "quelea_link_round_trip_seconds",
            kind: "gauge",
            help: "Round trip of a connection, smoothed, as the system measures it.",
        },
        value: |link| {
            let micros = link.total.round_trip_micros;
            (micros > 0).then(|| micros as f64 / 1e6)
        },
    },
    PerLink {
        family: MetricFamily {
            name: "quelea_link_resent_segments_total",
            kind: "counter",
            help: "Segments of a connection that the system has sent again.",
        },
        value: |link| link.is_counted.then_some(link.total.resent as f64),
    },
];

fn link_metrics(out: &mut String, state: &MomentState) {
    let links = || {
        let ranks = state.ranks.iter().enumerate();
        ranks.flat_map(|(from, rank)| rank.links.iter().map(move |(to, link)| (from, to, link)))
    };
    if links().next().is_none() {
        return;
    }
    for PerLink { family: about, value } in PER_LINK {
        let mut values =
            links().filter_map(|(from, to, link)| Some((from, to, value(link)?))).peekable();
        if values.peek().is_some() {
            family(out, about);
        }
        for (from, to, value) in values {
            let name = about.name;
            let _ = writeln!(out, "{name}{{from=\"{from}\",to=\"{to}\"}} {}", number(value));
        }
    }
}

fn asynchrony_metrics(out: &mut String, state: &MomentState) {
    if state.staleness.is_empty() {
        return;
    }
    let name = "quelea_staleness_updates";
    let help = "How many updates late gradients were applied.";
    family(out, &MetricFamily { name, kind: "histogram", help });
    let (mut sum, mut updates) = (0, 0);
    for (late, count) in &state.staleness {
        sum += count;
        updates += late * count;
        let _ = writeln!(out, "{name}_bucket{{le=\"{late}\"}} {sum}");
    }
    let _ = writeln!(
        out,
        "{name}_bucket{{le=\"+Inf\"}} {sum}\n{name}_sum {updates}\n{name}_count {sum}"
    );
}
