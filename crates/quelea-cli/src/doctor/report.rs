//! What an examination came to: a table of hosts, heat maps of pairs, settings for `plan`.

use quelea_plan::measured::ClusterSurvey;
use quelea_run::drive::measure::{HostPair, Measured, MeasuredHost};
use serde::Serialize;

use super::facts::HostFacts;
use super::findings::{Finding, median};
use super::probe::Probed;
use crate::text::{bytes, columns};

/// From the fewest to the most.
const SHADES: [char; 4] = ['░', '▒', '▓', '█'];

/// What was found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Examined {
    /// The hosts.
    pub hosts: Vec<HostFacts>,
    /// Every two of them, in both directions.
    pub pairs: Vec<ExaminedPair>,
}

/// The way from one host to another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ExaminedPair {
    /// The number of the host that sends.
    pub from: usize,
    /// The number of the one that receives.
    pub to: usize,
    /// Megabits per second in this direction.
    pub mbit: Option<f64>,
    /// What the sender found.
    #[serde(flatten)]
    pub probed: Probed,
}

impl Examined {
    /// The way between two hosts.
    pub fn pair(&self, from: usize, to: usize) -> Option<&ExaminedPair> {
        self.pairs.iter().find(|pair| pair.from == from && pair.to == to)
    }

    /// The hosts, line by line.
    pub fn host_table(&self) -> String {
        let head = ["host", "quelea", "cores", "memory", "open files", "TCP", "GPUs", "NCCL"];
        let mut rows = vec![head.map(str::to_string).to_vec()];
        for host in &self.hosts {
            let unknown = || "?".to_string();
            rows.push(vec![
                host.host.clone(),
                host.version.clone(),
                host.cores.to_string(),
                host.memory_bytes.map_or_else(unknown, bytes),
                host.open_files.map_or_else(unknown, |limit| limit.to_string()),
                host.congestion_control.clone().unwrap_or_else(unknown),
                host.gpus.as_ref().map_or("none".to_string(), |gpus| gpus.len().to_string()),
                host.nccl.clone().unwrap_or_else(|| "none".to_string()),
            ]);
        }
        columns(&rows)
    }

    /// Megabits per second from the host of a line to that of a column, shaded; × where there is no way.
    pub fn bandwidth_map(&self) -> String {
        self.map("Mbit/s, from ↓ to →", |pair| pair.mbit)
    }

    /// The same of microseconds.
    pub fn latency_map(&self) -> String {
        self.map("µs, from ↓ to →", |pair| pair.probed.latency_us)
    }

    fn map(&self, head: &str, value: fn(&ExaminedPair) -> Option<f64>) -> String {
        let values: Vec<f64> = self.pairs.iter().filter_map(value).collect();
        let names = self.hosts.iter().map(|host| host.host.clone());
        let mut rows = vec![std::iter::once(head.to_string()).chain(names).collect::<Vec<_>>()];
        for (from, host) in self.hosts.iter().enumerate() {
            let cell = |to: usize| match self.pair(from, to) {
                _ if from == to => "·".to_string(),
                Some(pair) if pair.probed.problem.is_some() => "×".to_string(),
                Some(pair) => value(pair).map_or("?".to_string(), |value| shaded(value, &values)),
                None => "?".to_string(),
            };
            let cells = (0..self.hosts.len()).map(cell);
            rows.push(std::iter::once(host.host.clone()).chain(cells).collect());
        }
        columns(&rows)
    }

    /// The run file that `plan`, `simulate` and `compare` take.
    pub fn run_file(&self) -> String {
        let survey = ClusterSurvey::new(self.measured());
        let lines = survey.settings().into_iter().map(|(key, value)| format!("{key} = {value}\n"));
        let names: Vec<&str> = self.hosts.iter().map(|host| &*host.host).collect();
        let workers = self.hosts.len();
        let about =
            format!("# Measured by `quelea doctor`: {}\nworkers = {workers}\n", names.join(", "));
        std::iter::once(about).chain(lines).collect()
    }

    /// As `plan --measure` has it. What a card can do is what it did with its best peer.
    fn measured(&self) -> Measured {
        let best = |is: &dyn Fn(&&ExaminedPair) -> bool| {
            let rates = self.pairs.iter().filter(is).filter_map(|pair| pair.mbit);
            rates.max_by(f64::total_cmp).map(|mbit| mbit * 1e6 / 8.0)
        };
        let host = |number: usize| MeasuredHost {
            workers: vec![number as u32],
            outgoing: best(&|pair| pair.from == number),
            incoming: best(&|pair| pair.to == number),
            ..MeasuredHost::default()
        };
        let pair = |pair: &ExaminedPair| {
            Some(HostPair {
                from: pair.from,
                to: pair.to,
                latency: pair.probed.latency_us? / 1e6,
                bandwidth: pair.mbit? * 1e6 / 8.0,
            })
        };
        Measured {
            hosts: (0..self.hosts.len()).map(host).collect(),
            pairs: self.pairs.iter().filter_map(pair).collect(),
            steps: Vec::new(),
        }
    }

    /// Everything, for programs.
    pub fn json(&self, findings: &[Finding]) -> serde_json::Value {
        serde_json::json!({ "hosts": self.hosts, "pairs": self.pairs, "findings": findings })
    }
}

/// A number with three digits that count, and a shade by its logarithm beside the median.
fn shaded(value: f64, all: &[f64]) -> String {
    let ratio = (value / median(all).unwrap_or(value).max(1e-12)).max(1e-12).log2();
    let shade = match ratio {
        r if r < -2.0 => SHADES[0],
        r if r < -0.5 => SHADES[1],
        r if r < 1.0 => SHADES[2],
        _ => SHADES[3],
    };
    let text = match value {
        v if v >= 100.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    };
    format!("{text} {shade}")
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// So many hosts, all pairs alike.
    pub fn even(count: usize, mbit: f64, latency_us: f64) -> Examined {
        let name = |number: usize| char::from(b'a' + number as u8).to_string();
        let host = |number| HostFacts {
            host: name(number),
            version: "1.0.0".into(),
            cores: 8,
            open_files: Some(65_536),
            congestion_control: Some("cubic".into()),
            ..HostFacts::default()
        };
        let probed = Probed {
            problem: None,
            latency_us: Some(latency_us),
            clock_ahead_ms: Some(0.1),
            ..Probed::unreached("")
        };
        let others =
            |from: usize| (0..count).filter(move |to| *to != from).map(move |to| (from, to));
        let pairs = (0..count).flat_map(others);
        let pair = |(from, to)| ExaminedPair { from, to, mbit: Some(mbit), probed: probed.clone() };
        Examined { hosts: (0..count).map(host).collect(), pairs: pairs.map(pair).collect() }
    }

    #[test]
    fn maps_show_slow_and_missing_ways() {
        let mut examined = even(3, 940.0, 50.0);
        examined.pairs[0].mbit = Some(9.5);
        examined.pairs[5].probed.problem = Some("timed out".into());
        let map = examined.bandwidth_map();
        let lines: Vec<&str> = map.lines().collect();
        assert_eq!(
            lines[1].split_whitespace().collect::<Vec<_>>(),
            ["a", "·", "9.50", "░", "940", "▓"]
        );
        assert_eq!(lines[3].split_whitespace().collect::<Vec<_>>(), ["c", "940", "▓", "×", "·"]);
    }

    #[test]
    fn what_was_measured_is_a_run_file() {
        let text = even(4, 800.0, 50.0).run_file();
        for line in [
            "workers = 4",
            "cluster.hosts = 4",
            "cluster.bandwidth_gbps = 0.8",
            "cluster.latency_us = 50",
        ] {
            assert!(text.lines().any(|told| told == line), "{line} is not in\n{text}");
        }
        quelea_run::config::source::parse(&text).expect("TOML");
    }
}
