//! A run as one HTML file that can be sent to somebody: figures, plots, how time was spent,
//! what was lost and recovered, the configuration. It loads nothing and contains no script.

use std::fmt::Write as _;

use quelea_plot::{Axis, BarChart, BarSeries, Chart, LineChart, LineSeries};
use serde_json::Value;

use crate::curves::{BinnedCurve, RunCurves};
use crate::folder::flat;
use crate::log::{LogPhase, RunLog};

/// Workers that have a bar of their own; of more, the first.
const BARS: usize = 32;

const STYLE: &str = "\
body{font:15px/1.5 system-ui,sans-serif;max-width:60em;margin:2em auto;padding:0 1em;color:#1b1e21;background:#fff}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{padding:.2em .7em;text-align:right;border-bottom:1px solid #d5d8db}\
th:first-child,td:first-child{text-align:left}th{color:#5b6268;font-weight:500}\
figure{margin:1.5em 0}svg{max-width:100%;height:auto}.note{color:#5b6268}";

/// The report of a run.
pub fn html(log: &RunLog) -> String {
    let about = log.description();
    let state = log.state_json(None);
    let mut out = String::new();
    let title = format!("{}: {} on {}", about.name, about.algorithm, about.task);
    let title = escaped(&title);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
    );
    let ended = match log.phase() {
        LogPhase::Ended => "The run has ended.".to_string(),
        LogPhase::Open => "The run had not ended when this was written.".to_string(),
        LogPhase::Failed(reason) => format!("The run was broken off: {reason}"),
    };
    let _ = writeln!(out, "<p class=\"note\">{} quelea {}.</p>", escaped(&ended), version());
    figures(&mut out, &state);
    log.read_curves(|curves| plots(&mut out, curves));
    breakdown(&mut out, &state);
    recovery(&mut out, &state);
    warnings(&mut out, &state["summary"]["warnings"]);
    configuration(&mut out, &about.config);
    out.push_str("</body></html>\n");
    out
}

fn version() -> &'static str {
    env!("CARGO_PKG_VERSION")
}

/// Text as it may stand in HTML.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A value as it stands in `summary.json`.
fn shown(value: &Value) -> String {
    match value {
        Value::Null => "–".to_string(),
        Value::String(text) => escaped(text),
        other => escaped(&other.to_string()),
    }
}

fn figures(out: &mut String, state: &Value) {
    let progress = &state["progress"];
    let rows = [
        ("loss of the deployed model", "loss"),
        ("accuracy", "accuracy"),
        ("consensus distance", "consensus_distance"),
        ("seconds", "clock_seconds"),
        ("steps of all workers", "steps"),
        ("samples", "samples"),
        ("samples per second", "samples_per_second"),
        ("goodput", "goodput"),
    ];
    out.push_str("<h2>Figures</h2>\n<table>\n");
    for (name, key) in rows {
        let _ = writeln!(out, "<tr><td>{name}</td><td>{}</td></tr>", shown(&progress[key]));
    }
    let bytes = shown(&state["summary"]["total"]["bytes_sent"]);
    let _ = writeln!(out, "<tr><td>bytes sent</td><td>{bytes}</td></tr>\n</table>");
    let sentence = state["advice"]["sentence"].as_str().unwrap_or_default();
    let _ = writeln!(out, "<p>{}</p>", escaped(sentence));
}

fn series(name: &str, curve: &BinnedCurve) -> LineSeries {
    LineSeries::line(name, curve.points().map(|(at, value)| (at.step, value)).collect())
}

fn plots(out: &mut String, curves: &RunCurves) {
    let chart = |title: &str, y: Axis, series: Vec<LineSeries>| {
        let x = Axis::linear("steps of each worker");
        Chart::Lines(LineChart { title: title.into(), x, y, series })
    };
    let is_positive = |curve: &BinnedCurve| curve.points().all(|(_, value)| value > 0.0);
    let axis = |curve: &BinnedCurve, name: &str| {
        if is_positive(curve) { Axis::log(name) } else { Axis::linear(name) }
    };
    let mut charts = Vec::new();
    let losses =
        vec![series("mini-batches", &curves.batch_loss), series("deployed model", &curves.loss)];
    charts.push(chart("Loss", axis(&curves.batch_loss, "loss"), losses));
    if curves.accuracy.points().next().is_some() {
        let accuracy = vec![series("deployed model", &curves.accuracy)];
        charts.push(chart("Accuracy", Axis::linear("share of right answers"), accuracy));
    }
    if curves.consensus.points().any(|(_, value)| value > 0.0) {
        let distance = vec![series("all workers", &curves.consensus)];
        let axis = axis(&curves.consensus, "distance from the mean");
        charts.push(chart("Consensus distance", axis, distance));
    }
    let seconds = vec![series("mean of the workers", &curves.step_seconds)];
    charts.push(chart("Time of a step", Axis::linear("seconds"), seconds));
    out.push_str("<h2>Plots</h2>\n");
    for chart in charts {
        let _ = writeln!(out, "<figure>{}</figure>", chart.svg());
    }
}

fn breakdown(out: &mut String, state: &Value) {
    let ranks = state["ranks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let workers: Vec<&Value> = ranks.iter().filter(|rank| rank["role"] == "worker").collect();
    let parts = ["compute", "exposed", "waiting"];
    let values = |part: &str| {
        let key = format!("{part}_seconds");
        workers.iter().take(BARS).map(|rank| rank[&key].as_f64()).collect()
    };
    let chart = Chart::Bars(BarChart {
        title: "How each worker's time was spent".into(),
        y: Axis::linear("seconds"),
        groups: workers.iter().take(BARS).map(|rank| rank["rank"].to_string()).collect(),
        series: parts.map(|part| BarSeries::new(part, values(part))).to_vec(),
        stacked: true,
    });
    out.push_str("<h2>Breakdown</h2>\n");
    if !workers.is_empty() {
        let _ = writeln!(out, "<figure>{}</figure>", chart.svg());
    }
    let columns = [
        "rank",
        "role",
        "host",
        "state",
        "step",
        "samples",
        "compute_seconds",
        "exposed_seconds",
        "waiting_seconds",
        "bytes_sent",
        "bytes_received",
    ];
    out.push_str("<table><tr>");
    columns.iter().for_each(|name| out.push_str(&format!("<th>{}</th>", name.replace('_', " "))));
    out.push_str("</tr>\n");
    for rank in ranks {
        out.push_str("<tr>");
        columns.iter().for_each(|name| out.push_str(&format!("<td>{}</td>", shown(&rank[*name]))));
        out.push_str("</tr>\n");
    }
    out.push_str("</table>\n");
}

/// What was lost, and how long it took until the others continued.
fn recovery(out: &mut String, state: &Value) {
    let events = state["membership"].as_array().map(Vec::as_slice).unwrap_or_default();
    out.push_str("<h2>Losses and recovery</h2>\n");
    if events.is_empty() {
        out.push_str("<p>No rank was lost, and no checkpoint was written.</p>\n");
        return;
    }
    out.push_str("<table><tr><th>seconds</th><th>step</th><th>what</th><th>others continued after</th></tr>\n");
    for (place, event) in events.iter().enumerate() {
        let t = event["t"].as_f64().unwrap_or(0.0);
        let follows = events[place..].iter().find(|later| later["kind"] == "view");
        let after = follows.filter(|_| event["kind"] == "lost").and_then(|view| view["t"].as_f64());
        let after = after.map_or(String::new(), |at| format!("{:.3} s", at - t));
        let text = shown(&event["text"]);
        let _ = writeln!(
            out,
            "<tr><td>{t:.3}</td><td>{}</td><td>{text}</td><td>{after}</td></tr>",
            shown(&event["step"])
        );
    }
    out.push_str("</table>\n");
}

fn warnings(out: &mut String, warnings: &Value) {
    let warnings = warnings.as_array().map(Vec::as_slice).unwrap_or_default();
    if warnings.is_empty() {
        return;
    }
    out.push_str("<h2>Warnings</h2>\n<ul>\n");
    warnings.iter().for_each(|warning| out.push_str(&format!("<li>{}</li>\n", shown(warning))));
    out.push_str("</ul>\n");
}

fn configuration(out: &mut String, config: &Value) {
    out.push_str("<h2>Configuration</h2>\n<table>\n");
    let flat = flat(config);
    for (key, value) in flat.as_object().into_iter().flatten() {
        let _ = writeln!(out, "<tr><td>{}</td><td>{}</td></tr>", escaped(key), shown(value));
    }
    out.push_str("</table>\n");
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::RunDescription;
    use quelea_record::{Record, RecordKind};
    use serde_json::json;

    #[test]
    fn a_report_is_one_file_without_scripts_and_shows_what_was_lost() {
        let config = json!({ "algorithm": { "name": "<b>" }, "workers": 2 });
        let about = RunDescription {
            name: "a <run>".into(),
            workers: 2,
            config,
            ..RunDescription::default()
        };
        let log = RunLog::recorded(about, 1);
        let event =
            RecordKind::Step { loss: 0.5, samples: 1, compute: 1.0, exposed: 0.0, waiting: 0.0 };
        log.take(&Record { t: 1.0, rank: 0, step: 0, event });
        log.take(&Record { t: 2.0, rank: 1, step: 0, event: RecordKind::Lost });
        log.take(&Record { t: 2.25, rank: 0, step: 1, event: RecordKind::View { number: 1 } });
        let html = html(&log);
        assert!(html.contains("a &lt;run&gt;") && html.contains("&lt;b&gt;"));
        assert!(html.contains("rank 1 was lost") && html.contains("0.250 s"));
        assert!(!html.contains("<script") && !html.contains("src="));
        let links =
            html.matches("http").count() - html.matches("http://www.w3.org/2000/svg").count();
        assert_eq!(links, 0);
    }
}
