//! Times the links and the steps of a cluster, with the workers that joined for it.
//!
//! The workers come as to a run and are connected with each other in the same way; then, instead
//! of a run, the coordinator has them measure, a few at a time, so that no two measurements are
//! in each other's way:
//!
//! ```text
//! latency    one worker per host, in pairs; inside every host, its first two workers
//! pairs      the same pairs of hosts, a stream in each direction
//! cards      one host sends to all others while all others send to it, host after host
//! inside     on every host a ring of its workers, all at once
//! steps      gradients of the task, by all workers at once
//! ```

mod probe;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use quelea_core::time::Time;
use quelea_record::Observer;

use crate::error::NetError;
use crate::options::NetOptions;
use crate::protocol::{self, PacketError, SMALL_BYTES, SetupMessage, Wait};
use crate::trust::ControlStream;
use quelea_control::{Command, REASON_CHARS, shown};

pub(crate) use probe::{Probe, Prober};

/// How long better evidence is waited for after a first sign of trouble.
const GRACE: Duration = Duration::from_millis(500);
/// How long a measurement of links may take.
const LINK_SECONDS: f64 = 60.0;

/// What was measured.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Measured {
    /// The machines, in the order of their first workers.
    pub hosts: Vec<MeasuredHost>,
    /// Between two machines, in each direction.
    pub pairs: Vec<HostPair>,
    /// Seconds of one gradient after the other, by worker; empty where they were not wanted.
    pub steps: Vec<Vec<f64>>,
}

/// A machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MeasuredHost {
    /// How the coordinator sees it; nothing for its own machine.
    pub address: Option<IpAddr>,
    /// Its workers.
    pub workers: Vec<u32>,
    /// Bytes per second to all other machines, while all of them send to it.
    pub outgoing: Option<f64>,
    /// Bytes per second from all of them.
    pub incoming: Option<f64>,
    /// Between its workers, where it has several.
    pub inside: Option<Inside>,
}

/// Between the workers of one machine.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Inside {
    /// Seconds from one to another: half of the median of round trips.
    pub latency: f64,
    /// Bytes per second of each, while all send.
    pub bandwidth: f64,
}

/// From one machine to another.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct HostPair {
    /// The machine that sends.
    pub from: usize,
    /// The one that receives.
    pub to: usize,
    /// Seconds: half of the median of round trips.
    pub latency: f64,
    /// Bytes per second, while as much goes in the other direction.
    pub bandwidth: f64,
}

/// Workers that have come to measure, by rank.
pub(crate) struct StreamSurvey<'a> {
    pub(crate) streams: &'a BTreeMap<u32, ControlStream>,
    pub(crate) options: &'a NetOptions,
}

impl StreamSurvey<'_> {
    /// Measures everything; on failure everybody is told. The observer hears how many
    /// measurements there will be.
    pub(crate) fn measure(
        &self,
        steps: bool,
        observer: &mut dyn Observer,
    ) -> Result<Measured, NetError> {
        let hosts = self.hosts();
        let streams = tournament(hosts.len()).len() + if hosts.len() > 2 { hosts.len() } else { 0 };
        let total = streams + usize::from(hosts.len() < self.streams.len()) + usize::from(steps);
        observer.progress(0, total as u64, Time::ZERO);
        let measured = self.all(hosts, steps);
        let last = |stream| match &measured {
            Ok(_) => protocol::write(stream, &SetupMessage::Measured),
            Err(error) => protocol::write(stream, &Command::Abort(error.to_string())),
        };
        for stream in self.streams.values() {
            // Whoever is gone needs no telling.
            let _ = last(stream);
        }
        measured
    }

    fn all(&self, hosts: Vec<MeasuredHost>, steps: bool) -> Result<Measured, NetError> {
        let mut measured = Measured { hosts, ..Measured::default() };
        self.between(&mut measured)?;
        self.cards(&mut measured)?;
        self.inside(&mut measured.hosts)?;
        if steps {
            let all = self.streams.keys().map(|rank| (*rank, Probe::Compute)).collect();
            measured.steps = self.ask(all, self.options.compute_seconds)?.into_values().collect();
        }
        Ok(measured)
    }

    /// Workers that come from one address share a machine.
    fn hosts(&self) -> Vec<MeasuredHost> {
        let mut hosts: Vec<MeasuredHost> = Vec::new();
        for (rank, stream) in self.streams {
            let (peer, own) = (stream.peer_addr().ok(), stream.local_addr().ok());
            let own = own.map(|own| own.ip());
            let address =
                peer.map(|peer| peer.ip()).filter(|ip| !ip.is_loopback() && Some(*ip) != own);
            match hosts.iter_mut().find(|host| host.address == address) {
                Some(host) => host.workers.push(*rank),
                None => hosts.push(MeasuredHost {
                    address,
                    workers: vec![*rank],
                    ..MeasuredHost::default()
                }),
            }
        }
        hosts
    }

    /// Latency and bandwidth of every pair of machines.
    fn between(&self, measured: &mut Measured) -> Result<(), NetError> {
        let first: Vec<u32> = measured.hosts.iter().map(|host| host.workers[0]).collect();
        for round in tournament(first.len()) {
            let questions = round.iter().flat_map(|(a, b)| {
                let (asks, answers) = (first[*a], first[*b]);
                [(asks, Probe::Ask(answers)), (answers, Probe::Answer(asks))]
            });
            let answered = self.ask(questions.collect(), LINK_SECONDS)?;
            let streams = round.iter().flat_map(|(a, b)| {
                let both = |own, other| (own, Probe::Stream { to: vec![other], from: vec![other] });
                [both(first[*a], first[*b]), both(first[*b], first[*a])]
            });
            let streamed = self.ask(streams.collect(), LINK_SECONDS)?;
            for (a, b) in round {
                let latency = median(&answered[&first[a]]) / 2.0;
                for (from, to) in [(a, b), (b, a)] {
                    let bandwidth = streamed[&first[to]][0];
                    measured.pairs.push(HostPair { from, to, latency, bandwidth });
                }
            }
        }
        measured.pairs.sort_by_key(|pair| (pair.from, pair.to));
        Ok(())
    }

    /// What every machine's card can do when all others talk to it.
    fn cards(&self, measured: &mut Measured) -> Result<(), NetError> {
        let first: Vec<u32> = measured.hosts.iter().map(|host| host.workers[0]).collect();
        if let [a, b] = measured.pairs.as_slice() {
            for (pair, other) in [(a, b), (b, a)] {
                let host = &mut measured.hosts[pair.from];
                (host.outgoing, host.incoming) = (Some(pair.bandwidth), Some(other.bandwidth));
            }
            return Ok(());
        }
        for (number, own) in first.iter().enumerate().filter(|_| first.len() > 2) {
            let others: Vec<u32> = first.iter().copied().filter(|rank| rank != own).collect();
            let back = |rank: &u32| (*rank, Probe::Stream { to: vec![*own], from: vec![*own] });
            let mut all: BTreeMap<u32, Probe> = others.iter().map(back).collect();
            all.insert(*own, Probe::Stream { to: others.clone(), from: others });
            let rates = self.ask(all, LINK_SECONDS)?;
            let sum = |which: fn(u32, u32) -> bool| {
                let chosen = rates.iter().filter(|(rank, _)| which(**rank, *own));
                Some(chosen.map(|(_, rates)| rates.iter().sum::<f64>()).sum())
            };
            let host = &mut measured.hosts[number];
            host.incoming = sum(|rank, own| rank == own);
            host.outgoing = sum(|rank, own| rank != own);
        }
        Ok(())
    }

    /// Inside all machines at once.
    fn inside(&self, hosts: &mut [MeasuredHost]) -> Result<(), NetError> {
        let mut shared: Vec<&mut MeasuredHost> =
            hosts.iter_mut().filter(|h| h.workers.len() > 1).collect();
        let questions = shared.iter().flat_map(|host| {
            let (asks, answers) = (host.workers[0], host.workers[1]);
            [(asks, Probe::Ask(answers)), (answers, Probe::Answer(asks))]
        });
        let answered = self.ask(questions.collect(), LINK_SECONDS)?;
        let ring = shared.iter().flat_map(|host| {
            let workers = &host.workers;
            let neighbour = |place: usize| vec![workers[place % workers.len()]];
            workers.iter().enumerate().map(move |(place, rank)| {
                let (to, from) = (neighbour(place + 1), neighbour(place + workers.len() - 1));
                (*rank, Probe::Stream { to, from })
            })
        });
        let rates = self.ask(ring.collect(), LINK_SECONDS)?;
        for host in &mut shared {
            let own: Vec<f64> = host.workers.iter().map(|rank| rates[rank][0]).collect();
            let latency = median(&answered[&host.workers[0]]) / 2.0;
            host.inside = Some(Inside { latency, bandwidth: median(&own) });
        }
        Ok(())
    }

    /// Has workers measure at the same time; what each of them found.
    fn ask(
        &self,
        probes: BTreeMap<u32, Probe>,
        seconds: f64,
    ) -> Result<BTreeMap<u32, Vec<f64>>, NetError> {
        let (sender, answers) = channel();
        for (rank, probe) in &probes {
            let stream = &self.streams[rank];
            let wait = Wait::new(seconds, "what it was to measure");
            let asked = protocol::write(stream, &SetupMessage::Measure(probe.clone()));
            let stream = stream.clone();
            let (rank, expected, sender) = (*rank, probe.values(), sender.clone());
            std::thread::spawn(move || {
                let answer = asked.and_then(|()| protocol::read(&stream, SMALL_BYTES, Some(wait)));
                // Nobody listens any more where another worker has failed.
                let _ = sender.send((rank, judge(rank, answer, expected)));
            });
        }
        drop(sender);
        let mut found = BTreeMap::new();
        while let Ok((rank, answer)) = answers.recv() {
            match answer {
                Ok(values) => drop(found.insert(rank, values)),
                Err(error) => return Err(better(error, || answers.recv_timeout(GRACE))),
            }
        }
        Ok(found)
    }
}

type WorkerAnswer = (u32, Result<Vec<f64>, NetError>);

/// Of the signs of trouble that come within a moment, the one that says who is gone: the others
/// only miss it.
fn better(first: NetError, next: impl Fn() -> Result<WorkerAnswer, RecvTimeoutError>) -> NetError {
    let until = Instant::now() + GRACE;
    let mut best = first;
    while !matches!(best, NetError::Lost { .. }) && Instant::now() < until {
        match next() {
            Ok((_, Err(error))) => best = error,
            Ok(_) => {}
            Err(_) => break,
        }
    }
    best
}

/// What a worker has found, if it makes sense.
fn judge(
    rank: u32,
    answer: Result<SetupMessage, PacketError>,
    expected: Option<usize>,
) -> Result<Vec<f64>, NetError> {
    let failed = |reason: String| NetError::Failed { rank, reason };
    match answer {
        Ok(SetupMessage::Found { values }) => {
            let good = values.iter().all(|value| value.is_finite() && *value > 0.0);
            if expected.map_or(!values.is_empty(), |count| count == values.len()) && good {
                Ok(values)
            } else {
                Err(failed("what it has measured makes no sense".into()))
            }
        }
        Ok(SetupMessage::Unable { reason }) => Err(failed(shown(&reason, REASON_CHARS))),
        Ok(other) => Err(failed(format!("it sent {other:?} instead of its measurements"))),
        Err(error) => {
            Err(NetError::Lost { rank, reason: format!("{error} while it was measuring") })
        }
    }
}

/// Rounds in which everybody meets at most one other, and in all everybody meets everybody.
fn tournament(players: usize) -> Vec<Vec<(usize, usize)>> {
    let rank_links = players + players % 2;
    let at = |round: usize, links: usize| match links {
        0 => 0,
        links => 1 + (links - 1 + round) % (rank_links - 1),
    };
    let round = |round: usize| {
        let pairs =
            (0..rank_links / 2).map(|links| (at(round, links), at(round, rank_links - 1 - links)));
        pairs.filter(|(a, b)| *a.max(b) < players).map(|(a, b)| (a.min(b), a.max(b))).collect()
    };
    (0..rank_links.saturating_sub(1)).map(round).collect()
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn in_a_tournament_all_meet_once_and_nobody_twice_in_a_round() {
        for players in 0..9 {
            let rounds = tournament(players);
            for round in &rounds {
                let there: BTreeSet<usize> = round.iter().flat_map(|(a, b)| [*a, *b]).collect();
                assert_eq!(there.len(), 2 * round.len(), "{round:?}");
            }
            let met: BTreeSet<(usize, usize)> = rounds.concat().into_iter().collect();
            assert_eq!(met.len(), players * players.saturating_sub(1) / 2, "{players}");
            assert_eq!(rounds.concat().len(), met.len());
        }
    }

    #[test]
    fn what_makes_no_sense_is_not_believed() {
        let judged = |values: Vec<f64>, count| judge(3, Ok(SetupMessage::Found { values }), count);
        assert!(judged(vec![1.0, 2.0], Some(2)).is_ok());
        assert!(judged(vec![1.0], None).is_ok());
        for (values, count) in
            [(vec![1.0], Some(2)), (vec![f64::NAN], Some(1)), (vec![-1.0], Some(1)), (vec![], None)]
        {
            let told = judged(values, count).expect_err("refused").to_string();
            assert_eq!(told, "rank 3 failed: what it has measured makes no sense");
        }
    }
}
