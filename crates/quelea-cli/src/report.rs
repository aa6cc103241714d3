//! What a person sees when a run has ended.

use quelea_core::algorithms::{ALGORITHMS, Codecs, Entry, Gathers, Service, Traffic, When};
use quelea_core::options::Options;
use quelea_core::properties::TopologyRequirement;
use quelea_core::registry::Registry;
use quelea_record::{FACTS, SummaryForm};
use quelea_run::execute::Finished;
use quelea_run::files::summary::{ClockKind, RankSummary, Summary, WorkerSummary};
use serde_json::Value;

use crate::request::Invocation;
use crate::text::{bold, bytes, columns, number, pale, say, seconds, whole};

/// Workers that are listed one by one; of more, the first ones and the total.
const LISTED: usize = 16;

/// Prints the report. `asked` is the command line of the run.
pub fn print(registry: &Registry, finished: &Finished, asked: Invocation<'_>) {
    let summary = &finished.summary;
    say(&bold(&headline(summary)));
    say("");
    say(&columns(&results(summary)));
    say(&columns(&times(summary)));
    for warning in &summary.warnings {
        say(&format!("Note: {warning}"));
    }
    say(&format!("Files: {}", finished.directory.display()));
    say(&pale("  summary.json  records.jsonl  final.safetensors  trace.json (opens in Perfetto)"));
    let others = ["best.safetensors", "plots", "checkpoints"];
    let others = others.into_iter().filter(|name| finished.directory.join(name).exists());
    say(&pale(&format!("  {}", others.collect::<Vec<_>>().join("  "))));
    say("\nTry next:");
    for (line, what) in next(registry, summary, asked) {
        say(&format!("  {line}"));
        say(&pale(&format!("      {what}")));
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
        match summary.clock {
            ClockKind::Virtual => "virtual",
            ClockKind::Real => "real",
        }
    )
}

fn results(summary: &Summary) -> Vec<Vec<String>> {
    let total = &summary.total;
    let percent = |share: f64| format!("{:.2} %", share * 100.0);
    let own = &summary.worker_models;
    // Where all workers hold the deployed model there is nothing to tell of them.
    let apart = own.accuracy_worst.filter(|worst| Some(*worst) != summary.accuracy);
    let workers = apart.zip(own.accuracy_mean);
    let workers = workers.map(|(worst, mean)| format!("{}, {}", percent(mean), percent(worst)));
    let best = summary.best.filter(|best| best.accuracy > summary.accuracy);
    let best = best.and_then(|best| {
        Some(format!("{} after {} steps", percent(best.accuracy?), whole(best.step)))
    });
    let rows = [
        ("loss", Some(summary.loss.map_or_else(|| "NaN".to_string(), number))),
        ("accuracy", summary.accuracy.map(percent)),
        ("  of workers: mean, worst", workers),
        ("  best", best),
        ("consensus distance", summary.consensus_distance.map(number)),
        ("samples per second", summary.samples_per_second.map(|rate| whole(rate as u64))),
        ("speedup over one worker", summary.speedup.map(|speedup| format!("{speedup:.2}"))),
        ("bytes sent", Some(bytes(total.bytes_sent))),
        ("messages sent", Some(whole(total.messages_sent))),
    ];
    let means = FACTS.iter().map(|kind| &kind.summary).filter(|s| s.form == SummaryForm::Mean);
    let means = means.map(|mean| {
        let value = summary.measured.get(mean.key).and_then(Value::as_f64);
        (mean.key.replace('_', " "), value.map(number))
    });
    let rows = rows.into_iter().map(|(name, value)| (name.to_string(), value)).chain(means);
    let mut there: Vec<Vec<String>> =
        rows.filter_map(|(name, value)| Some(vec![name, value?])).collect();
    let metric = |(name, value): (&String, &f64)| vec![name.clone(), format!("{value:.1}")];
    there.splice(1..1, summary.metrics.iter().map(metric));
    there
}

/// Where the workers' time went. What is left of the clock, before a worker's first gradient and
/// after its last step, has a column where it is not negligible.
fn times(summary: &Summary) -> Vec<Vec<String>> {
    let split = |worker: &WorkerSummary| {
        let known = [worker.compute_seconds, worker.exposed_seconds, worker.waiting_seconds];
        let other = summary.clock_seconds - known.iter().sum::<f64>();
        [known[0], known[1], known[2], other.max(0.0)]
    };
    let spent = summary.workers.iter().map(split).fold([0.0; 4], |sum, part| {
        [sum[0] + part[0], sum[1] + part[1], sum[2] + part[2], sum[3] + part[3]]
    });
    let all = spent.iter().sum::<f64>().max(f64::MIN_POSITIVE);
    let columns = if spent[3] > 0.01 * all { 4 } else { 3 };
    let names = ["compute", "exposed", "waiting", "other"];
    let table = |name: &str, steps: &str, parts: [String; 4], traffic: [String; 2]| {
        let parts = parts.into_iter().take(columns);
        [name.to_string(), steps.to_string()].into_iter().chain(parts).chain(traffic).collect()
    };
    let traffic = |rank: &RankSummary| [bytes(rank.bytes_sent), bytes(rank.bytes_received)];
    let mut rows: Vec<Vec<String>> = vec![table(
        "",
        "steps",
        names.map(str::to_string),
        ["sent", "received"].map(str::to_string),
    )];
    for (worker, rank) in summary.workers.iter().zip(&summary.ranks).take(shown(summary)) {
        let gone = match (rank.left, rank.lost) {
            (true, _) => " (left)",
            (false, true) => " (lost)",
            (false, false) => "",
        };
        let name = format!("worker {}{gone}", worker.rank);
        rows.push(table(&name, &whole(worker.steps), split(worker).map(seconds), traffic(rank)));
    }
    if shown(summary) < summary.workers.len() {
        rows.push(vec!["…".to_string()]);
    }
    for (number, rank) in summary.ranks.iter().skip(summary.workers.len()).enumerate() {
        rows.push(table(&format!("server {number}"), "", Default::default(), traffic(rank)));
    }
    let share = spent.map(|part| format!("{:.1} %", 100.0 * part / all));
    rows.push(table("workers", &whole(summary.steps), spent.map(seconds), Default::default()));
    rows.push(table("", "", share, Default::default()));
    rows
}

fn shown(summary: &Summary) -> usize {
    if summary.workers.len() <= LISTED { LISTED } else { LISTED / 2 }
}

/// Commands that work from here, and what they show.
fn next(
    registry: &Registry,
    summary: &Summary,
    asked: Invocation<'_>,
) -> Vec<(String, &'static str)> {
    let me = std::env::args().next().unwrap_or_else(|| "quelea".to_string());
    let Invocation { command, run } = asked;
    let asked = run.as_typed(&[]);
    let other = another(registry, &summary.config);
    let switched = match command {
        "simulate" => (format!("{me} train{asked}"), "the same run for real"),
        _ => (format!("{me} simulate{asked}"), "the same run in the virtual cluster"),
    };
    let without = run.as_typed(&["algorithm.name", "cluster.slow.0"]);
    let slow =
        format!("{me} simulate{without} --set algorithm.name={other} --set cluster.slow.0=10");
    let list = format!("{me} list algorithms");
    let mut next = vec![
        switched,
        (slow, "another algorithm, and a worker ten times slower"),
        (list, "all there are"),
    ];
    let task = summary.config["task"]["name"].as_str().unwrap_or_default();
    if task.starts_with("digits") {
        let train = "--set task.name=cifar10-resnet20 --set workers=2 --set epochs=1";
        next.push((
            format!("{me} data get cifar10 && {me} train {train}"),
            "a larger network on CIFAR-10",
        ));
    }
    next
}

/// An algorithm that takes the same settings and exchanges in another way.
fn another(registry: &Registry, config: &Value) -> &'static str {
    let between_hosts = config["topology"]["within_host"] == "average";
    let has_codec = config["codec"]["name"].as_str().is_some_and(|name| name == LOW_RANK);
    let own = config["algorithm"]["name"].as_str();
    let own = own.and_then(|name| registry.find::<Entry>(name).ok());
    let own = own.map(ExchangeKind::of);
    let fits = |other: &ExchangeKind| {
        if between_hosts && own == Some(ExchangeKind::MIXING) {
            other.topology == TopologyRequirement::Edges
        } else if between_hosts {
            *other == ExchangeKind::MIXING
        } else if own != Some(ExchangeKind::EXACT) {
            *other == ExchangeKind::EXACT
        } else if has_codec {
            other.codecs == Codecs::All && other.is_periodic()
        } else {
            matches!(other.traffic, Traffic::Servers(Service::Folded { .. }))
        }
    };
    let found = ALGORITHMS.iter().find(|entry| fits(&ExchangeKind::of(entry)));
    found.expect("the table has an algorithm of every kind").meta.name
}

/// The codec that only averages take.
const LOW_RANK: &str = "power-sgd";

/// What an algorithm exchanges by default, over what, and with which codecs.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ExchangeKind {
    traffic: Traffic,
    topology: TopologyRequirement,
    codecs: Codecs,
    /// Nothing but the gradients moves the mean of the workers.
    keeps_mean: bool,
}

impl ExchangeKind {
    /// An exact average of every step.
    const EXACT: ExchangeKind = ExchangeKind {
        traffic: Traffic::Average { period: 1 },
        topology: TopologyRequirement::Nothing,
        codecs: Codecs::All,
        keeps_mean: true,
    };
    /// One model to every neighbour while the gradient is computed.
    const MIXING: ExchangeKind = ExchangeKind {
        traffic: Traffic::Gossip {
            vectors: 1,
            when: When::DuringGradient,
            every: 1,
            average: None,
            gathers: Gathers::Means,
        },
        topology: TopologyRequirement::Mixing,
        codecs: Codecs::OF_MODELS,
        keeps_mean: true,
    };

    fn of(entry: &Entry) -> ExchangeKind {
        let options = Options::defaults(entry.meta.options);
        let properties = (entry.properties)(&options);
        ExchangeKind {
            traffic: (entry.traffic)(&options),
            topology: properties.topology,
            codecs: (entry.codecs)(&options),
            keeps_mean: properties.keeps_mean,
        }
    }

    fn is_periodic(&self) -> bool {
        matches!(self.traffic, Traffic::Average { period } if period > 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is proposed after a run with this algorithm, codec and place of averages.
    fn proposed(algorithm: &str, codec: &str, within_host: &str) -> &'static str {
        another(
            &Registry::builtin(),
            &serde_json::json!({
                "algorithm": { "name": algorithm },
                "codec": { "name": codec },
                "topology": { "within_host": within_host },
            }),
        )
    }

    #[test]
    fn what_is_proposed_next_takes_the_same_settings() {
        assert_eq!(proposed("aladdin", "none", "none"), "allreduce");
        assert_eq!(proposed("allreduce", "none", "none"), "aladdin");
        assert_eq!(proposed("allreduce", "power-sgd", "none"), "local-sgd");
        assert_eq!(proposed("sgp", "none", "average"), "d-psgd");
        assert_eq!(proposed("d-psgd", "none", "average"), "sgp");
    }
}
