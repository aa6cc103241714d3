//! Rounds of groups that average by all-reduce: what one costs, and how they follow each other.
//!
//! A group of k workers on h hosts, up to p on each, takes
//!
//! ```text
//! one host, or one worker on each    2(k−1)·(α + S/(kB))
//! several of both, hierarchical      2(p−1)·(α' + S/(pB')) + 2(h−1)·(α + S/(hB))
//! a pair                             α + S/B
//! ```
//!
//! with α and B of the links that it uses, α' and B' inside a host. Groups that share a card share
//! B. Workers of different groups do not wait for each other, and a round of one group alternates
//! with cheaper ones (in `aer`, half of the pairs of hosts rest in each slot); so the length of a
//! step follows from a recursion over a few periods. Where the exchange e follows the gradient it is
//! `T_i ← max_j (T_j + c_j) + e` over the members j. Where it runs during the gradient,
//! `T_i ← max(T_i + c_i, max_j P_j + e)`, where P_j is when the first bucket of j for this step was
//! final and the sums of the step before were complete.

use quelea_core::topology::{MEMBERS_MIN, Schedule};

use crate::cost::overlapped;
use crate::scenario::Scenario;
use crate::unbucketed::computing;

/// Steps before the first that counts, and how many count at least.
const WARM: usize = 8;
const COUNTED: usize = 24;
const COUNTED_VARIED: usize = 96;

/// The rounds of a period, each a partition of the workers.
#[derive(Clone, Debug)]
pub struct GroupedRounds {
    rounds: Vec<Vec<GroupLoad>>,
}

/// One group in one round.
#[derive(Clone, Debug)]
struct GroupLoad {
    members: Vec<usize>,
    /// Seconds of its stages, whatever their size.
    fixed: f64,
    /// Seconds per byte: on the busiest card, which groups may share, and inside a host.
    on_card: f64,
    inside: f64,
    /// Bytes that all members together send, per byte of the vector.
    sent: f64,
}

impl GroupedRounds {
    /// Of a schedule whose rounds all divide the workers into groups, some of them large enough
    /// for a collective, or with workers that rest.
    pub fn new(s: &Scenario, schedule: &Schedule) -> Option<GroupedRounds> {
        let mut rounds = Vec::new();
        for step in 0..schedule.period()? as u64 {
            let groups = schedule.round(step).groups();
            if groups.iter().map(Vec::len).sum::<usize>() != s.workers {
                return None;
            }
            rounds.push(groups);
        }
        let collective = |group: &Vec<usize>| group.len() >= MEMBERS_MIN;
        let rests = |groups: &Vec<Vec<usize>>| groups.iter().any(|group| group.len() == 1);
        let uneven = s.workers > 1 && rounds.iter().any(rests);
        (uneven || rounds.iter().flatten().any(collective)).then(|| GroupedRounds {
            rounds: rounds.into_iter().map(|groups| loads(s, groups)).collect(),
        })
    }

    /// Bytes that a worker sends per step and byte of the vector, on average.
    pub fn sent(&self, s: &Scenario) -> f64 {
        let all: f64 = self.rounds.iter().flatten().map(|group| group.sent).sum();
        all / (s.workers * self.rounds.len()) as f64
    }

    /// Members of a group, on average over workers.
    pub fn members(&self, s: &Scenario) -> f64 {
        let squares = self.rounds.iter().flatten().map(|group| group.members.len().pow(2));
        squares.sum::<usize>() as f64 / (s.workers * self.rounds.len()) as f64
    }

    /// Seconds of a step, with the exchange during the gradient or after it. Steps in which all
    /// workers `average` instead, once per so many, are not counted: everyone waits for the last.
    pub fn step_seconds(
        &self,
        s: &Scenario,
        during: bool,
        bucket_mb: f64,
        average: Option<u64>,
    ) -> f64 {
        // Averages may take the place of the same rounds over and over.
        let period = average.filter(|period| *period <= AVERAGES_MAX).unwrap_or(1) as usize;
        let counted = if s.variation > 0.0 { COUNTED_VARIED } else { COUNTED };
        let counted = counted.next_multiple_of(self.rounds.len() * period);
        let times: Vec<Vec<u64>> =
            (0..s.workers).map(|worker| computing(s, worker, counted as u64)).collect();
        let is_average = |step: usize| average.is_some_and(|n| (step as u64 + 1).is_multiple_of(n));
        let mut now = WorkerTimes::new(s.workers);
        let (mut warm, mut gossiped) = (now.ends.clone(), 0);
        for step in 0..WARM * period + counted {
            if step == WARM * period {
                (warm, gossiped) = (now.ends.clone(), 0);
            }
            if is_average(step) {
                now.meet();
                continue;
            }
            gossiped += 1;
            let seconds = |worker: usize| times[worker][step % counted] as f64 * 1e-9;
            for group in &self.rounds[step % self.rounds.len()] {
                if during {
                    group.advance_during(s, bucket_mb, &mut now, &seconds);
                } else {
                    group.advance_after(s, bucket_mb, &mut now, &seconds);
                }
            }
        }
        let longest = now.ends.iter().zip(&warm).map(|(end, warm)| end - warm).fold(0.0, f64::max);
        longest / gossiped.max(1) as f64
    }
}

/// Rarer averages do not matter for which rounds are left.
const AVERAGES_MAX: u64 = 64;

/// Where the workers are.
struct WorkerTimes {
    /// When the last step of each was over.
    ends: Vec<f64>,
    /// When the first bucket of each for the next step could be exchanged.
    posts: Vec<f64>,
}

impl WorkerTimes {
    fn new(workers: usize) -> WorkerTimes {
        WorkerTimes { ends: vec![0.0; workers], posts: vec![0.0; workers] }
    }

    /// Everyone waits for the last.
    fn meet(&mut self) {
        let last = self.ends.iter().copied().fold(0.0, f64::max);
        self.ends.fill(last);
        self.posts.fill(last);
    }
}

/// The groups of a round with their loads; cards that several use are shared.
fn loads(s: &Scenario, groups: Vec<Vec<usize>>) -> Vec<GroupLoad> {
    let mut loads: Vec<GroupLoad> =
        groups.into_iter().map(|members| GroupLoad::new(s, members)).collect();
    let mut cards = vec![0.0; s.hosts];
    for group in &loads {
        group.hosts(s).iter().for_each(|host| cards[*host] += group.on_card);
    }
    for group in &mut loads {
        let busiest = group.hosts(s).iter().map(|host| cards[*host]).fold(0.0, f64::max);
        group.on_card = if group.on_card > 0.0 { busiest } else { 0.0 };
    }
    loads
}

impl GroupLoad {
    fn new(s: &Scenario, members: Vec<usize>) -> GroupLoad {
        let mut group = GroupLoad { members, fixed: 0.0, on_card: 0.0, inside: 0.0, sent: 0.0 };
        let (k, hosts) = (group.members.len(), group.hosts(s).len());
        let around = |n: usize| 2.0 * (n as f64 - 1.0) / n as f64;
        let stages = |n: usize| 2.0 * (n as f64 - 1.0);
        let spans = hosts > 1;
        let (latency, per_byte) = if spans {
            (s.latency, 1.0 / s.bandwidth)
        } else {
            (s.internal_latency, 1.0 / s.internal)
        };
        let on_links = if k < MEMBERS_MIN {
            // A model each way, or none for a worker alone.
            group.sent = k as f64 * (k as f64 - 1.0);
            group.fixed = group.sent.min(1.0) * latency;
            group.sent.min(1.0) * per_byte
        } else if spans && hosts < k {
            let most = k.div_ceil(hosts);
            group.inside = around(most) / s.internal;
            group.fixed = stages(most) * s.internal_latency + stages(hosts) * latency;
            group.sent = hosts as f64 * around(hosts) + k as f64 * around(most);
            around(hosts) * per_byte
        } else {
            group.fixed = stages(k) * latency;
            group.sent = k as f64 * around(k);
            around(k) * per_byte
        };
        if spans {
            group.on_card = on_links;
        } else {
            group.inside = on_links;
        }
        group
    }

    /// A step whose exchange runs during the gradient.
    fn advance_during(
        &self,
        s: &Scenario,
        bucket_mb: f64,
        now: &mut WorkerTimes,
        seconds: &dyn Fn(usize) -> f64,
    ) {
        let bucket = match bucket_mb * 1e6 * s.wire {
            0.0 => s.sent(),
            size => size.min(s.sent()),
        };
        let last = |times: &[f64]| self.members.iter().map(|j| times[*j]).fold(0.0, f64::max);
        let (started, ended) = (last(&now.posts), last(&now.ends));
        // Buckets follow each other on the busiest links, and the last one is posted at the end.
        let first = self.seconds(bucket);
        let summed = (started + first + (s.sent() - bucket) * self.busy()).max(ended + first);
        let until_first = 1.0 - s.backward * (1.0 - bucket / s.sent());
        for member in &self.members {
            let (end, compute) = (now.ends[*member], seconds(*member));
            now.ends[*member] = (end + compute).max(summed);
            // Sums of the next step start when those of this one are complete.
            now.posts[*member] = (end + until_first * compute).max(summed);
        }
    }

    /// A step whose exchange follows the gradient, as far as buckets do not overlap with it.
    fn advance_after(
        &self,
        s: &Scenario,
        bucket_mb: f64,
        now: &mut WorkerTimes,
        seconds: &dyn Fn(usize) -> f64,
    ) {
        let even = Scenario { variation: 0.0, slow: Vec::new(), ..s.clone() };
        let step = overlapped(&even, bucket_mb, &|bytes| self.seconds(bytes), self.busy());
        let computed = self.members.iter().map(|j| now.ends[*j] + seconds(*j)).fold(0.0, f64::max);
        for member in &self.members {
            now.ends[*member] = computed + step - s.compute;
        }
    }

    /// Its hosts, each once.
    fn hosts(&self, s: &Scenario) -> Vec<usize> {
        let mut hosts: Vec<usize> = self.members.iter().map(|member| s.host_of(*member)).collect();
        hosts.dedup();
        hosts
    }

    /// Seconds of so many bytes by themselves.
    fn seconds(&self, bytes: f64) -> f64 {
        self.fixed + bytes * (self.on_card + self.inside)
    }

    /// Seconds per byte of the links that are busy longest.
    fn busy(&self) -> f64 {
        self.on_card.max(self.inside)
    }
}
