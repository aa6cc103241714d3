//! What a person sees when a run has ended.

use murmura_run::conduct::Finished;
use murmura_run::files::summary::{Summary, WorkerSummary};

use crate::request::Run;
use crate::text::{bold, bytes, columns, number, pale, say, seconds, whole};

/// Workers that are listed one by one; of more, the first ones and the total.
const LISTED: usize = 16;

/// Prints the report. `asked` is the command that was typed, and the run that it was given.
pub fn print(finished: &Finished, asked: (&'static str, &Run)) {
    let summary = &finished.summary;
    say(&bold(&headline(summary)));
    say("");
    say(&columns(&results(summary)));
    say(&columns(&times(summary)));
    say(&format!("files  {}", finished.directory.display()));
    say(&pale(
        "       summary.json, records.jsonl, final.safetensors; trace.json opens in Perfetto",
    ));
    for warning in &summary.warnings {
        say(&format!("note   {warning}"));
    }
    say("");
    say("Try next:");
    for line in next(summary, asked) {
        say(&format!("  {line}"));
    }
}

fn headline(summary: &Summary) -> String {
    let name = |table: &str| summary.config[table]["name"].as_str().unwrap_or_default().to_string();
    format!(
        "{} on {}: {} workers, {} steps in {} of {} time",
        name("algorithm"),
        name("task"),
        summary.workers.len(),
        whole(summary.steps),
        seconds(summary.clock_seconds),
        summary.clock
    )
}

fn results(summary: &Summary) -> Vec<Vec<String>> {
    let row = |name: &str, value: Option<String>, what: &str| {
        let value = value.unwrap_or_else(|| "–".to_string());
        vec![name.to_string(), value, what.to_string()]
    };
    let percent = |share: f64| format!("{:.2} %", share * 100.0);
    let rows = vec![
        row("loss", summary.loss.map(number), ""),
        row("accuracy", summary.accuracy.map(percent), ""),
        row("speedup", summary.speedup.map(number), ""),
        row("consensus distance", summary.consensus_distance.map(number), ""),
        row("sent", Some(bytes(summary.total.bytes_sent)), ""),
        row("messages", Some(whole(summary.total.messages_sent)), ""),
    ];
    rows
}

/// Where the workers' time went.
fn times(summary: &Summary) -> Vec<Vec<String>> {
    let head = ["worker", "steps", "compute", "exposed", "waiting", "sent", "received"];
    let mut rows = vec![head.map(str::to_string).to_vec()];
    for (worker, rank) in summary.workers.iter().zip(&summary.ranks).take(shown(summary)) {
        let mut row = vec![worker.rank.to_string(), whole(worker.steps)];
        row.extend(split(worker).map(seconds));
        row.extend([bytes(rank.bytes_sent), bytes(rank.bytes_received)]);
        rows.push(row);
    }
    if shown(summary) < summary.workers.len() {
        rows.push(vec!["…".to_string()]);
    }
    let total = &summary.total;
    let spent = [total.compute_seconds, total.exposed_seconds, total.waiting_seconds];
    let all: f64 = spent.iter().sum();
    let mut sum = vec!["all".to_string(), whole(summary.steps)];
    sum.extend(spent.map(seconds));
    let mut share = vec![String::new(), String::new()];
    share.extend(spent.map(|part| format!("{:.1} %", 100.0 * part / all.max(f64::MIN_POSITIVE))));
    rows.extend([sum, share]);
    rows
}

fn shown(summary: &Summary) -> usize {
    if summary.workers.len() <= LISTED { LISTED } else { LISTED / 2 }
}

fn split(worker: &WorkerSummary) -> [f64; 3] {
    [worker.compute_seconds, worker.exposed_seconds, worker.waiting_seconds]
}

/// Three commands that work from here.
fn next(summary: &Summary, (command, run): (&'static str, &Run)) -> Vec<String> {
    let me = std::env::args().next().unwrap_or_else(|| "murmura".to_string());
    let file = run.file.as_ref().map(|path| format!(" {}", path.display())).unwrap_or_default();
    let other = match summary.config["algorithm"]["name"].as_str() {
        Some("allreduce") => "aladdin",
        _ => "allreduce",
    };
    let switched = if command == "simulate" { "train" } else { "simulate" };
    let lines = vec![
        format!("{me} {switched}{file}"),
        format!("{me} simulate{file} --set algorithm.name={other} --set cluster.slow.0=10"),
        format!("{me} list algorithms"),
    ];
    lines
}
