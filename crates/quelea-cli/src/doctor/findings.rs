//! What is wrong with a cluster, from what its hosts have found, and what to change.

use std::collections::BTreeMap;

use serde::Serialize;

use super::report::{Examined, ExaminedPair};

/// A way is slow if it has less than this share of the median's bandwidth.
const SLOW: f64 = 1.0 / 3.0;
/// A way is long if it takes this many times the median, and this many microseconds more.
const LONG: f64 = 3.0;
const LONG_US: f64 = 1000.0;
/// Clocks may differ by this many milliseconds: tokens and certificates have times.
const CLOCK_MS: f64 = 1000.0;
/// Processes of large runs have this many files open.
const OPEN_FILES: u64 = 4096;
/// From this many microseconds on, the way TCP answers losses matters.
const FAR_US: f64 = 10_000.0;

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FindingWeight {
    /// A run would fail.
    Error,
    /// A run would be slow, or fail when it grows.
    Warning,
    /// Worth knowing.
    Note,
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// How bad it is.
    pub weight: FindingWeight,
    /// What it is.
    pub what: String,
    /// What to change.
    pub change: String,
}

/// Everything that was found, the worst first.
pub fn findings(examined: &Examined) -> Vec<Finding> {
    let mut all = unreached(examined);
    all.extend(slow(examined));
    all.extend(long(examined));
    all.extend(clocks(examined));
    all.extend(limits(examined));
    all.extend(differences(examined));
    all.sort_by_key(|finding| finding.weight);
    all
}

fn name(examined: &Examined, host: usize) -> &str {
    &examined.hosts[host].host
}

fn unreached(examined: &Examined) -> Vec<Finding> {
    let broken: Vec<&ExaminedPair> =
        examined.pairs.iter().filter(|pair| pair.probed.problem.is_some()).collect();
    let mut found = Vec::new();
    for pair in &broken {
        let is_back = |other: &&&ExaminedPair| other.from == pair.to && other.to == pair.from;
        let both = broken.iter().find(is_back).is_some();
        if both && pair.from > pair.to {
            continue;
        }
        let (from, to) = (name(examined, pair.from), name(examined, pair.to));
        let why = pair.probed.problem.as_deref().unwrap_or_default();
        let what = if both {
            format!("{from} and {to} do not reach each other ({why})")
        } else {
            format!("{from} does not reach {to} ({why}), though {to} reaches {from}")
        };
        let change =
            format!("open the way between {from} and {to}: routes, firewalls, security groups");
        found.push(Finding { weight: FindingWeight::Error, what, change });
    }
    found
}

/// One of the two hosts of a way.
type PairEnd = fn(&ExaminedPair) -> usize;

/// Ways that have much less bandwidth than most. A host all of whose ways in one direction are slow is named
/// instead of the ways.
fn slow(examined: &Examined) -> Vec<Finding> {
    let rates: Vec<f64> = examined.pairs.iter().filter_map(|pair| pair.mbit).collect();
    let Some(usual) = median(&rates) else { return Vec::new() };
    let is_slow = |pair: &&ExaminedPair| pair.mbit.is_some_and(|mbit| mbit < SLOW * usual);
    let mut left: Vec<&ExaminedPair> = examined.pairs.iter().filter(is_slow).collect();
    let mut found = Vec::new();
    let directions: [(&str, PairEnd); 2] = [
        ("sends slowly to all others", |pair| pair.from),
        ("receives slowly from all others", |pair| pair.to),
    ];
    for (says, end) in directions {
        for host in 0..examined.hosts.len() {
            let measured =
                examined.pairs.iter().filter(|pair| end(pair) == host && pair.mbit.is_some());
            let slow: Vec<&ExaminedPair> =
                left.iter().copied().filter(|pair| end(pair) == host).collect();
            if slow.len() < 2 || slow.len() < measured.count() {
                continue;
            }
            let own: Vec<f64> = slow.iter().filter_map(|pair| pair.mbit).collect();
            let what = format!(
                "{} {says}: {} Mbit/s, where {} is usual",
                name(examined, host),
                rounded(median(&own).unwrap_or(0.0)),
                rounded(usual)
            );
            found.push(Finding {
                weight: FindingWeight::Warning,
                what,
                change: SLOW_HOST.to_string(),
            });
            left.retain(|pair| end(pair) != host);
        }
    }
    found.extend(left.iter().map(|pair| Finding {
        weight: FindingWeight::Warning,
        what: format!(
            "{} → {}: {} Mbit/s, where {} is usual",
            name(examined, pair.from),
            name(examined, pair.to),
            rounded(pair.mbit.unwrap_or(0.0)),
            rounded(usual)
        ),
        change: "look at the cables and switches between them; a topology that leaves out this way helps too".into(),
    }));
    found
}

const SLOW_HOST: &str = "look at its cable, its card's speed (`ethtool`) and limits of its machine type; an asynchronous \
                         algorithm waits less for it (`quelea plan`)";

fn long(examined: &Examined) -> Vec<Finding> {
    let latency = |pair: &ExaminedPair| pair.probed.latency_us;
    let all: Vec<f64> = examined.pairs.iter().filter_map(latency).collect();
    let Some(usual) = median(&all) else { return Vec::new() };
    let is_long = |us: f64| us > LONG * usual && us > usual + LONG_US;
    let one_way = examined.pairs.iter().filter(|pair| pair.from < pair.to);
    let found = one_way.filter_map(|pair| Some((pair, latency(pair).filter(|us| is_long(*us))?)));
    found
        .map(|(pair, us)| Finding {
            weight: FindingWeight::Warning,
            what: format!(
                "{} and {} are {} ms apart, where {} ms are usual",
                name(examined, pair.from),
                name(examined, pair.to),
                rounded(us / 1e3),
                rounded(usual / 1e3)
            ),
            change: "train with `topology.within_host` or hierarchical averages, so that fewer messages take this way".into(),
        })
        .collect()
}

/// Clocks that differ from that of most. A clock is judged by the median of what others say of it.
fn clocks(examined: &Examined) -> Vec<Finding> {
    let mut said: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    for pair in &examined.pairs {
        if let Some(ahead) = pair.probed.clock_ahead_ms {
            said.entry(pair.to).or_default().push(ahead);
            said.entry(pair.from).or_default().push(-ahead);
        }
    }
    let ahead = |(host, said): (usize, Vec<f64>)| Some((host, median(&said)?));
    let wrong = said.into_iter().filter_map(ahead).filter(|(_, ms)| ms.abs() > CLOCK_MS);
    wrong
        .map(|(host, ms)| Finding {
            weight: FindingWeight::Warning,
            what: format!(
                "the clock of {} is {} s {} those of most",
                name(examined, host),
                rounded(ms.abs() / 1e3),
                if ms > 0.0 { "ahead of" } else { "behind" }
            ),
            change: "start a time service (chrony, systemd-timesyncd): tokens and certificates have times".into(),
        })
        .collect()
}

fn limits(examined: &Examined) -> Vec<Finding> {
    let few = |limit: Option<u64>| limit.filter(|limit| *limit < OPEN_FILES);
    let found = examined.hosts.iter().filter_map(|host| Some((host, few(host.open_files)?)));
    found
        .map(|(host, limit)| Finding {
            weight: FindingWeight::Note,
            what: format!("a process on {} may have {limit} files open", host.host),
            change: match host.open_files_most.filter(|most| *most >= OPEN_FILES) {
                Some(most) => format!(
                    "quelea raises it up to {most} by itself; nothing up to some thousand workers"
                ),
                None => {
                    "raise the limit (`ulimit -Hn`, limits.conf) for runs with thousands of workers"
                        .into()
                }
            },
        })
        .collect()
}

/// The names of hosts by what they say.
type HostGroups<'a> = BTreeMap<String, Vec<&'a str>>;

fn grouped(examined: &Examined, of: impl Fn(usize) -> Option<String>) -> HostGroups<'_> {
    let mut groups = HostGroups::new();
    for host in 0..examined.hosts.len() {
        if let Some(value) = of(host) {
            groups.entry(value).or_default().push(name(examined, host));
        }
    }
    groups
}

fn listed(groups: HostGroups<'_>) -> String {
    let shown = groups.iter().map(|(value, hosts)| format!("{value} on {}", hosts.join(", ")));
    shown.collect::<Vec<_>>().join("; ")
}

/// What the hosts do not have in common.
fn differences(examined: &Examined) -> Vec<Finding> {
    let groups = |of: &dyn Fn(usize) -> Option<String>| grouped(examined, of);
    let mut found = Vec::new();
    let control = groups(&|host| examined.hosts[host].congestion_control.clone());
    let all: Vec<f64> = examined.pairs.iter().filter_map(|pair| pair.probed.latency_us).collect();
    let is_far = median(&all).is_some_and(|us| us > FAR_US);
    if control.len() > 1 {
        let what = format!("TCP's congestion control differs: {}", listed(control));
        let change = "set net.ipv4.tcp_congestion_control to the same on all".to_string();
        found.push(Finding { weight: FindingWeight::Note, what, change });
    } else if is_far && control.keys().all(|name| name != "bbr") {
        let what = format!(
            "hosts are far from each other, and TCP's congestion control is {}",
            listed(control)
        );
        let change =
            "try net.ipv4.tcp_congestion_control=bbr, which loses less speed to lost packets"
                .to_string();
        found.push(Finding { weight: FindingWeight::Note, what, change });
    }
    let gpus =
        groups(&|host| Some(examined.hosts[host].gpus.as_ref().map_or(0, Vec::len).to_string()));
    if gpus.len() > 1 {
        let what = format!("not all hosts see as many GPUs: {}", listed(gpus));
        let change = "look at `nvidia-smi` and CUDA_VISIBLE_DEVICES there, or give each host as many processes as it has GPUs".to_string();
        found.push(Finding { weight: FindingWeight::Warning, what, change });
    }
    found.extend(nccl(examined));
    found
}

/// NCCL is of interest where there are GPUs.
fn nccl(examined: &Examined) -> Vec<Finding> {
    let has_gpus =
        |host: usize| examined.hosts[host].gpus.as_ref().is_some_and(|gpus| !gpus.is_empty());
    let mut found = Vec::new();
    let versions = grouped(examined, |host| {
        let version = examined.hosts[host].nccl.clone().unwrap_or_else(|| "none".to_string());
        has_gpus(host).then_some(version)
    });
    if versions.len() > 1 {
        let what = format!("the system's NCCL differs: {}", listed(versions));
        let change = "install the same version on all hosts with GPUs, or use that of one Python package everywhere".to_string();
        found.push(Finding { weight: FindingWeight::Warning, what, change });
    }
    let interfaces = grouped(examined, |host| {
        let told = examined.hosts[host].nccl_interface.clone();
        has_gpus(host).then(|| told.unwrap_or_else(|| "not set".to_string()))
    });
    if interfaces.len() > 1 {
        let what = format!("NCCL_SOCKET_IFNAME differs: {}", listed(interfaces));
        let change =
            "set it to the interface of the same network on all hosts with GPUs".to_string();
        found.push(Finding { weight: FindingWeight::Note, what, change });
    }
    found
}

/// With three digits that count.
fn rounded(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// The middle one.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::even;
    use super::*;

    fn told(examined: &Examined) -> Vec<String> {
        findings(examined).into_iter().map(|finding| finding.what).collect()
    }

    fn pair_mut(examined: &mut Examined, from: usize, to: usize) -> &mut ExaminedPair {
        let found = examined.pairs.iter_mut().find(|pair| pair.from == from && pair.to == to);
        found.expect("all pairs are there")
    }

    #[test]
    fn a_cluster_without_faults_has_no_findings() {
        assert_eq!(told(&even(4, 940.0, 50.0)), [""; 0]);
    }

    #[test]
    fn a_slow_way_a_slow_host_and_a_missing_way_are_named() {
        let mut examined = even(4, 900.0, 50.0);
        pair_mut(&mut examined, 1, 2).mbit = Some(10.0);
        for (from, to) in [(0, 3), (3, 0)] {
            let pair = pair_mut(&mut examined, from, to);
            (pair.mbit, pair.probed.problem) = (None, Some("timed out".into()));
        }
        let expected = [
            "a and d do not reach each other (timed out)",
            "b → c: 10.0 Mbit/s, where 900 is usual",
        ];
        assert_eq!(told(&examined), expected);
        let mut examined = even(4, 900.0, 50.0);
        for to in [0, 1, 3] {
            pair_mut(&mut examined, 2, to).mbit = Some(20.0);
        }
        assert_eq!(
            told(&examined),
            ["c sends slowly to all others: 20.0 Mbit/s, where 900 is usual"]
        );
        let mut examined = even(3, 900.0, 50.0);
        pair_mut(&mut examined, 0, 1).probed.problem = Some("refused".into());
        assert_eq!(told(&examined), ["a does not reach b (refused), though b reaches a"]);
    }

    #[test]
    fn clocks_latencies_and_settings_that_differ_are_named() {
        let mut examined = even(4, 900.0, 50.0);
        for pair in &mut examined.pairs {
            let ahead = |host: usize| if host == 2 { 5000.0 } else { 0.0 };
            pair.probed.clock_ahead_ms = Some(ahead(pair.to) - ahead(pair.from));
        }
        for (from, to) in [(0, 1), (1, 0)] {
            pair_mut(&mut examined, from, to).probed.latency_us = Some(20_000.0);
        }
        examined.hosts[3].congestion_control = Some("bbr".into());
        examined.hosts[3].open_files = Some(1024);
        examined.hosts[0].gpus = Some(vec!["GPU 0".into()]);
        let expected = [
            "a and b are 20.0 ms apart, where 0.05 ms are usual",
            "the clock of c is 5.00 s ahead of those of most",
            "not all hosts see as many GPUs: 0 on b, c, d; 1 on a",
            "a process on d may have 1024 files open",
            "TCP's congestion control differs: bbr on d; cubic on a, b, c",
        ];
        assert_eq!(told(&examined), expected);
    }

    #[test]
    fn nccl_that_differs_is_named_where_there_are_gpus() {
        let mut examined = even(3, 900.0, 50.0);
        examined.hosts[0].nccl = Some("2.19.3".into());
        assert_eq!(told(&examined), [""; 0], "nobody has a GPU");
        for host in &mut examined.hosts {
            host.gpus = Some(vec!["GPU 0".into()]);
        }
        examined.hosts[1].nccl = Some("2.21.5".into());
        examined.hosts[2].nccl_interface = Some("ib0".into());
        let expected = [
            "the system's NCCL differs: 2.19.3 on a; 2.21.5 on b; none on c",
            "NCCL_SOCKET_IFNAME differs: ib0 on c; not set on a, b",
        ];
        assert_eq!(told(&examined), expected);
    }
}
