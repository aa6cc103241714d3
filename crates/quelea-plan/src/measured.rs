//! A cluster that was measured, in the terms of `[cluster]`: what `plan --measure` finds becomes
//! settings of a run file, so that every command can use it again.

use quelea_core::algorithms;
use quelea_core::options::Options;
use quelea_core::properties::TopologyRequirement;
use quelea_run::config::Config;
use quelea_run::drive::measure::{Measured, MeasuredHost};
use quelea_run::error::RequestError;
use quelea_run::prepared::PreparedRun;
use serde_json::{Value, json};

/// A worker is slow if its gradients take so many times as long as the ordinary one's: less may be
/// the moment.
const SLOW: f64 = 1.3;
/// A card differs from the others if it is off by this share.
const DIFFERS: f64 = 0.15;

/// The plan that workers join to be measured: the task of a configuration, with an algorithm that
/// has no servers and asks for no topology, and without the faults of a simulation.
pub fn survey(config: &Config) -> Result<PreparedRun, RequestError> {
    let mut job = config.resolved();
    let fits = |entry: &&algorithms::Entry| {
        let properties = (entry.properties)(&Options::defaults(entry.meta.options));
        !properties.servers && properties.topology == TopologyRequirement::Nothing
    };
    let mut all = config.registry.entries();
    let algorithm = all.find(fits).expect("such algorithms are built in");
    job["algorithm"] = json!({ "name": algorithm.meta.name });
    for (table, keys) in
        [("", &["topology", "codec"][..]), ("cluster", &["faults", "server_hosts"])]
    {
        let place = if table.is_empty() { &mut job } else { &mut job[table] };
        let place = place.as_object_mut().expect("a configuration is made of tables");
        keys.iter().for_each(|key| drop(place.remove(*key)));
    }
    PreparedRun::from_job(&config.registry, job.to_string().as_bytes())
}

/// What was measured, workers numbered host by host.
#[derive(Clone, Debug)]
pub struct ClusterSurvey {
    measured: Measured,
    /// Mean and coefficient of variation of every worker's gradient.
    steps: Vec<(f64, f64)>,
    /// The mean over ordinary workers, where steps were measured.
    ordinary: Option<(f64, f64)>,
}

impl ClusterSurvey {
    /// Sorts out what was measured.
    pub fn new(measured: Measured) -> ClusterSurvey {
        let order = measured.hosts.iter().flat_map(|host| &host.workers);
        let of = |rank: &u32| measured.steps.get(*rank as usize);
        let samples: Vec<&Vec<f64>> = order.filter_map(of).collect();
        let typical: Vec<f64> = samples.iter().map(|seconds| median(seconds)).collect();
        let is_ordinary = |worker: &usize| typical[*worker] <= SLOW * median(&typical);
        let steps: Vec<(f64, f64)> = samples.iter().map(|seconds| spread(seconds)).collect();
        let ordinary: Vec<(f64, f64)> =
            (0..steps.len()).filter(is_ordinary).map(|worker| steps[worker]).collect();
        let mean = |part: fn(&(f64, f64)) -> f64| {
            ordinary.iter().map(part).sum::<f64>() / ordinary.len() as f64
        };
        let ordinary = (!ordinary.is_empty()).then(|| {
            let variance = mean(|step| step.1 * step.1);
            (mean(|step| step.0), variance.sqrt())
        });
        ClusterSurvey { measured, steps, ordinary }
    }

    /// Settings of a run file.
    pub fn settings(&self) -> Vec<(&'static str, String)> {
        let mut settings = vec![("cluster.hosts", self.measured.hosts.len().to_string())];
        let mut put = |key, value: f64| settings.push((key, rounded(value).to_string()));
        let inside: Vec<_> = self.measured.hosts.iter().filter_map(|host| host.inside).collect();
        let among = |part: fn(&quelea_run::drive::measure::Inside) -> f64| {
            (!inside.is_empty()).then(|| median(&inside.iter().map(part).collect::<Vec<_>>()))
        };
        let (speed, near) = (among(|inside| inside.bandwidth), among(|inside| inside.latency));
        if let (Some(speed), Some(near)) = (speed, near) {
            put("cluster.internal_gbps", speed * 8e-9);
            put("cluster.internal_latency_us", near * 1e6);
        }
        let far: Vec<f64> = self.measured.pairs.iter().map(|pair| pair.latency).collect();
        // On one machine servers are reached as workers are.
        let latency = if far.is_empty() { near } else { Some(median(&far)) };
        if let Some(bandwidth) = self.card().or(speed) {
            put("cluster.bandwidth_gbps", bandwidth * 8e-9);
        }
        if let Some(latency) = latency {
            put("cluster.latency_us", latency * 1e6);
        }
        if let Some((mean, variation)) = self.ordinary {
            put("cluster.compute_ms", mean * 1e3);
            put("cluster.compute_cv", variation);
        }
        if self.ordinary.is_some() {
            settings.push(("cluster.slow", table(self.slow())));
        }
        settings.push(("cluster.host_bandwidth_gbps", table(self.other_cards())));
        settings
    }

    /// Bytes per second of every host's card, the slower of its two directions. It can do what it
    /// did in any of the measurements; where it did less, others were in the way.
    fn cards(&self) -> Vec<Option<f64>> {
        let card = |(number, host): (usize, &MeasuredHost)| {
            let pairs = || self.measured.pairs.iter();
            let out = pairs().filter(|pair| pair.from == number).map(|pair| pair.bandwidth);
            let into = pairs().filter(|pair| pair.to == number).map(|pair| pair.bandwidth);
            Some(out.fold(host.outgoing?, f64::max).min(into.fold(host.incoming?, f64::max)))
        };
        self.measured.hosts.iter().enumerate().map(card).collect()
    }

    /// Bytes per second of an ordinary card.
    fn card(&self) -> Option<f64> {
        let cards: Vec<f64> = self.cards().into_iter().flatten().collect();
        (!cards.is_empty()).then(|| median(&cards))
    }

    /// Gigabits per second of the cards that differ, by host.
    fn other_cards(&self) -> Vec<(usize, f64)> {
        let Some(ordinary) = self.card() else { return Vec::new() };
        let cards = self.cards().into_iter().enumerate();
        let other = |(host, card): (usize, Option<f64>)| {
            let card = card.filter(|card| (card / ordinary - 1.0).abs() > DIFFERS)?;
            Some((host, rounded(card * 8e-9)))
        };
        cards.filter_map(other).collect()
    }

    /// How many times as long the slow workers take.
    fn slow(&self) -> Vec<(usize, f64)> {
        let Some((ordinary, _)) = self.ordinary else { return Vec::new() };
        let factors = self.steps.iter().map(|(mean, _)| mean / ordinary).enumerate();
        factors.filter(|(_, f)| *f > SLOW).map(|(worker, f)| (worker, rounded(f))).collect()
    }

    /// In one line.
    pub fn summary(&self) -> String {
        let (workers, hosts) = (self.workers(), self.measured.hosts.len());
        let several = |count: usize| if count == 1 { "" } else { "s" };
        let mut text =
            format!("{workers} worker{} on {hosts} host{}", several(workers), several(hosts));
        if let Some((mean, variation)) = self.ordinary {
            text +=
                &format!(", {} ms a gradient (± {:.0} %)", rounded(mean * 1e3), variation * 1e2);
        }
        for (worker, factor) in self.slow() {
            text += &format!(", worker {worker} {factor} times as slow");
        }
        text
    }

    /// What does not fit a plan, in sentences.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let counts = self.measured.hosts.iter().map(|host| host.workers.len());
        let (least, most) = (counts.clone().min(), counts.max());
        if most.unwrap_or(0) > least.unwrap_or(0) + 1 {
            notes.push(
                "the hosts have unequal numbers of workers; the plan spreads them evenly".into(),
            );
        }
        let blocks = self.measured.hosts.iter().flat_map(|host| &host.workers);
        if !blocks.is_sorted() {
            notes.push("workers are numbered host by host here, not as they joined".into());
        }
        notes
    }

    fn workers(&self) -> usize {
        self.measured.hosts.iter().map(|host| host.workers.len()).sum()
    }

    /// The table of hosts, names of the columns first.
    pub fn rows(&self) -> Vec<Vec<String>> {
        let head = ["host", "workers", "out", "in", "latency", "inside", "latency inside"];
        let mut rows = vec![head.map(String::from).to_vec()];
        for (number, host) in self.measured.hosts.iter().enumerate() {
            let far = self.measured.pairs.iter().filter(|pair| pair.from == number);
            let far: Vec<f64> = far.map(|pair| pair.latency).collect();
            let or_none = |text: Option<String>| text.unwrap_or_else(|| "–".into());
            rows.push(vec![
                host.address.map_or("this machine".into(), |address| address.to_string()),
                host.workers.len().to_string(),
                or_none(host.outgoing.map(rate)),
                or_none(host.incoming.map(rate)),
                or_none((!far.is_empty()).then(|| micros(median(&far)))),
                or_none(host.inside.map(|inside| rate(inside.bandwidth))),
                or_none(host.inside.map(|inside| micros(inside.latency))),
            ]);
        }
        rows
    }

    /// What `--json` prints of it.
    pub fn json(&self) -> Value {
        let hosts = self.measured.hosts.iter().map(|host| {
            json!({
                "address": host.address.map(|address| address.to_string()),
                "workers": host.workers.len(),
                "outgoing_bytes_per_second": host.outgoing,
                "incoming_bytes_per_second": host.incoming,
                "internal_bytes_per_second": host.inside.map(|inside| inside.bandwidth),
                "internal_latency_seconds": host.inside.map(|inside| inside.latency),
            })
        });
        let pairs = self.measured.pairs.iter().map(|pair| {
            json!({
                "from": pair.from,
                "to": pair.to,
                "latency_seconds": pair.latency,
                "bytes_per_second": pair.bandwidth,
            })
        });
        let steps =
            self.steps.iter().map(|(mean, cv)| json!({ "compute_seconds": mean, "cv": cv }));
        json!({
            "hosts": hosts.collect::<Vec<_>>(),
            "pairs": pairs.collect::<Vec<_>>(),
            "workers": steps.collect::<Vec<_>>(),
        })
    }
}

/// A table of numbered values, as TOML.
fn table(values: Vec<(usize, f64)>) -> String {
    let values = values.iter().map(|(number, value)| format!("\"{number}\" = {value:?}"));
    format!("{{ {} }}", values.collect::<Vec<_>>().join(", "))
}

/// Four digits are more than a measurement knows.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().expect("its own number")
}

fn rate(bytes_per_second: f64) -> String {
    match bytes_per_second * 8e-6 {
        mbit if mbit < 1e3 => format!("{mbit:.1} Mbit/s"),
        mbit => format!("{:.2} Gbit/s", mbit / 1e3),
    }
}

fn micros(seconds: f64) -> String {
    format!("{:.0} µs", seconds * 1e6)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(0.0)
}

/// Mean and coefficient of variation of the log-normal distribution with the same median and the
/// same middle 80 %: that is how steps vary in a plan, and a pause of the whole machine is no
/// variation of the step.
fn spread(values: &[f64]) -> (f64, f64) {
    /// Standard deviations between the quantiles 0.1 and 0.9 of a normal distribution.
    const MIDDLE: f64 = 2.563;
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let quantile = |share: f64| sorted[(share * (sorted.len() - 1) as f64).round() as usize];
    let variance = ((quantile(0.9) / quantile(0.1)).ln() / MIDDLE).powi(2);
    (quantile(0.5) * (variance / 2.0).exp(), variance.exp_m1().sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;
    use quelea_run::config::source::{self, parse};
    use quelea_run::drive::measure::{HostPair, Inside};

    /// Two workers on each of two hosts, as they joined: 0 and 2, 1 and 3; worker 2 is slow.
    fn measured() -> Measured {
        let host = |workers: [u32; 2], card: f64| MeasuredHost {
            workers: workers.to_vec(),
            outgoing: Some(card),
            incoming: Some(1.1 * card),
            inside: Some(Inside { latency: 10e-6, bandwidth: 2e9 }),
            ..MeasuredHost::default()
        };
        let pair = |from, to| HostPair { from, to, latency: 200e-6, bandwidth: 12e6 };
        Measured {
            hosts: vec![host([0, 2], 125e6), host([1, 3], 12.5e6)],
            pairs: vec![pair(0, 1), pair(1, 0)],
            steps: vec![
                vec![0.1; 5],
                vec![0.11, 0.1, 0.09, 0.1, 0.1],
                vec![0.5; 5],
                // One pause is no variation.
                [vec![0.1; 20], vec![7.0]].concat(),
            ],
        }
    }

    fn scenario(survey: &ClusterSurvey) -> Scenario {
        let table = parse("workers = 4\n[task]\nname = \"quadratic\"").expect("TOML");
        let settings = survey
            .settings()
            .into_iter()
            .map(|(key, value)| source::setting(&format!("{key}={value}")).expect("a setting"));
        let config = Config::read(table, &settings.collect::<Vec<_>>(), None).expect("it fits");
        Scenario::new(config, None).expect("it can be planned for")
    }

    #[test]
    fn what_is_measured_becomes_the_situation_that_is_planned_for() {
        let survey = ClusterSurvey::new(measured());
        let scenario = scenario(&survey);
        assert_eq!((scenario.workers, scenario.hosts), (4, 2));
        // Numbered host by host, the slow one is the second.
        assert!(matches!(scenario.slow[..], [(1, f)] if (f - 5.0).abs() < 0.01));
        assert!((scenario.compute - 0.1).abs() < 1e-3);
        assert!((scenario.variation - 0.0453).abs() < 1e-3, "{}", scenario.variation);
        assert!((scenario.latency - 200e-6).abs() < 1e-12);
        assert!((scenario.internal - 2e9).abs() < 1.0);
        // The slower card holds everybody up.
        assert!((scenario.bandwidth - 12.5e6).abs() < 1.0, "{}", scenario.bandwidth);
        assert!(survey.summary().contains("worker 1 4.995 times as slow"), "{}", survey.summary());
        assert_eq!(survey.notes().len(), 1, "{:?}", survey.notes());
    }

    #[test]
    fn on_one_machine_servers_are_reached_as_workers_are() {
        let mut measured = measured();
        measured.hosts.truncate(1);
        measured.hosts[0].workers = vec![0, 1, 2, 3];
        (measured.hosts[0].outgoing, measured.hosts[0].incoming) = (None, None);
        measured.pairs.clear();
        let scenario = scenario(&ClusterSurvey::new(measured));
        assert_eq!(scenario.hosts, 1);
        assert_eq!(scenario.bandwidth, scenario.internal);
        assert!((scenario.latency - 10e-6).abs() < 1e-12);
    }

    #[test]
    fn any_task_is_measured_without_servers() {
        for algorithm in ["aladdin", "d-psgd", "choco"] {
            let text = format!(
                "workers = 3\n[task]\nname = \"quadratic\"\n[algorithm]\nname = \"{algorithm}\"\n\
                 [cluster.faults]\ncrashes = [{{ rank = 1, at_ms = 5 }}]"
            );
            let config = Config::read(parse(&text).expect("TOML"), &[], None).expect("good");
            let plan = survey(&config).expect("it can be measured");
            assert_eq!((plan.config.servers(), plan.setup.ranks()), (0, 3));
            assert!(plan.cluster.faults.crashes.is_empty());
        }
    }
}
