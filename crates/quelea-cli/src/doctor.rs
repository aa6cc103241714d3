//! Examines the hosts of a cluster: what each has, and how every two of them reach each other.
//!
//! On every host one process answers ([`probe::serve`]); then, in rounds in which every host takes part once,
//! one host of each pair measures the other ([`probe::measure`]). What follows from it is in [`findings`].

pub mod facts;
pub mod findings;
pub mod probe;
pub mod report;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::bail;
use quelea_run::drive::RunSecret;

use crate::remote::fleet::{EndedProcess, Fleet, RemoteLine};
use crate::remote::hosts::RemoteHost;
use facts::HostFacts;
use probe::Probed;
use report::{Examined, ExaminedPair};

/// How long hosts may take to answer.
const ANSWER_SECONDS: u64 = 20;
/// How long the measurements of one round may take.
const ROUND_SECONDS: u64 = 60;
/// How long is waited for the next line.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Examines all hosts.
pub struct Examination<'a> {
    /// Where the agents are.
    pub fleet: &'a Fleet,
    /// The hosts.
    pub hosts: &'a [RemoteHost],
    /// How each host is reached by the others.
    pub addresses: &'a [String],
    /// The port at which hosts answer.
    pub port: u16,
}

impl Examination<'_> {
    /// What was found. `tell` hears how far it is.
    pub fn run(&self, tell: &mut dyn FnMut(&str)) -> anyhow::Result<Examined> {
        let env: BTreeMap<String, String> =
            [("QUELEA_PROBE".to_string(), RunSecret::random_text()?)].into();
        for number in 0..self.hosts.len() {
            let words = ["probe", "--serve", &self.port.to_string()].map(str::to_string).to_vec();
            self.fleet.start_one(number, number as u32, words, env.clone());
        }
        let facts = self.facts()?;
        let rounds = rounds(self.hosts.len());
        let mut pairs = Vec::new();
        for (number, round) in rounds.iter().enumerate() {
            tell(&format!("round {} of {}: {} pairs", number + 1, rounds.len(), round.len()));
            pairs.extend(self.measure(round, &env));
        }
        Ok(Examined { hosts: facts, pairs })
    }

    /// What every host says of itself, once it answers.
    fn facts(&self) -> anyhow::Result<Vec<HostFacts>> {
        let until = Instant::now() + Duration::from_secs(ANSWER_SECONDS);
        let mut found: BTreeMap<u32, HostFacts> = BTreeMap::new();
        while found.len() < self.hosts.len() {
            let mut last = String::new();
            let ended = self.fleet.attend(POLL_INTERVAL, &mut |line| match facts_of(&line) {
                Some(facts) => drop(found.insert(line.rank, facts)),
                None => last = line.labelled(),
            });
            if let Some(process) = ended.first() {
                bail!("{} does not answer: {} {last}", process.host, process.how);
            }
            if Instant::now() > until {
                let late = (0..self.hosts.len()).find(|host| !found.contains_key(&(*host as u32)));
                let name = late.map_or("", |host| &self.hosts[host].name);
                bail!("{name} did not answer within {ANSWER_SECONDS} s");
            }
        }
        let named = found.into_iter().map(|(host, facts)| HostFacts {
            host: self.hosts[host as usize].name.clone(),
            ..facts
        });
        Ok(named.collect())
    }

    /// Both directions of pairs that share no host, all at once.
    fn measure(
        &self,
        round: &[(usize, usize)],
        env: &BTreeMap<String, String>,
    ) -> Vec<ExaminedPair> {
        let mut found: BTreeMap<u32, Probed> = BTreeMap::new();
        let count = self.hosts.len() as u32;
        // The first of a pair measures, the second only looks whether it reaches the first.
        let ways = round.iter().flat_map(|(a, b)| [(*a, *b, false), (*b, *a, true)]);
        let ways: Vec<(usize, usize, bool)> = ways.collect();
        for (number, (from, to, only_reach)) in ways.iter().enumerate() {
            let target = format!("{}:{}", self.addresses[*to], self.port);
            let mut words = vec!["probe".to_string(), "--measure".to_string(), target];
            words.extend(only_reach.then(|| "--only-reach".to_string()));
            self.fleet.start_one(*from, count + number as u32, words, env.clone());
        }
        let until = Instant::now() + Duration::from_secs(ROUND_SECONDS);
        let mut missing = ways.len();
        while missing > 0 && Instant::now() < until {
            let ended = self.fleet.attend(POLL_INTERVAL, &mut |line| {
                if let Some(probed) = probed_of(&line) {
                    found.insert(line.rank, probed);
                }
            });
            let of_round = |process: &&EndedProcess| process.rank >= count;
            missing -= ended.iter().filter(of_round).count().min(missing);
        }
        let probed = |number: usize| found.get(&(count + number as u32)).cloned();
        let silent = || Probed::unreached("its measurement did not end");
        let mut pairs = Vec::new();
        for (number, (from, to, _)) in ways.iter().enumerate().step_by(2) {
            let there = probed(number).unwrap_or_else(silent);
            let back = probed(number + 1).unwrap_or_else(silent);
            pairs.push(ExaminedPair {
                from: *from,
                to: *to,
                mbit: there.up_mbit,
                probed: there.clone(),
            });
            let returned = Probed { latency_us: there.latency_us, ..back };
            pairs.push(ExaminedPair {
                from: *to,
                to: *from,
                mbit: there.down_mbit,
                probed: returned,
            });
        }
        pairs
    }
}

fn facts_of(line: &RemoteLine) -> Option<HostFacts> {
    serde_json::from_str(&line.text).ok().filter(|_| !line.error)
}

fn probed_of(line: &RemoteLine) -> Option<Probed> {
    serde_json::from_str(&line.text).ok().filter(|_| !line.error)
}

/// All pairs in rounds in which every host takes part once at most (the circle method of tournaments).
fn rounds(count: usize) -> Vec<Vec<(usize, usize)>> {
    let even = count + count % 2;
    let round = |turn: usize| {
        let seat = |place: usize| if place == 0 { 0 } else { (place + turn - 1) % (even - 1) + 1 };
        let pairs = (0..even / 2).map(|place| (seat(place), seat(even - 1 - place)));
        let real = pairs.filter(|(a, b)| *a < count && *b < count);
        real.map(|(a, b)| (a.min(b), a.max(b))).collect::<Vec<_>>()
    };
    (0..even.saturating_sub(1)).map(round).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_pair_meets_once_and_nobody_is_in_two_places() {
        for count in 0..12 {
            let rounds = rounds(count);
            for round in &rounds {
                let busy: Vec<usize> = round.iter().flat_map(|(a, b)| [*a, *b]).collect();
                let distinct: BTreeSet<usize> = busy.iter().copied().collect();
                assert_eq!(busy.len(), distinct.len(), "{count}: {round:?}");
            }
            let all: BTreeSet<(usize, usize)> = rounds.concat().into_iter().collect();
            let pairs = (0..count).flat_map(|b| (0..b).map(move |a| (a, b)));
            assert_eq!(all, pairs.collect(), "{count}");
            assert_eq!(rounds.concat().len(), all.len(), "{count}");
        }
    }
}
