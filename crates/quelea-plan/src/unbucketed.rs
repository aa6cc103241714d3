//! Gossip of whole models, one message each: how long a step takes once rounds follow each other
//! steadily.
//!
//! Messages that meet at a card wait for each other, and who has waited sends later; so a round
//! takes longer than its busiest card needs (a torus of 16 five models' time instead of four), and
//! less than one in which all begin at once. No count of a single round says that: messages are
//! followed over a few rounds, as the virtual cluster does it, without any vector.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use quelea_core::random::Rng;
use quelea_core::topology::Schedule;

use crate::cost::normal_quantile;
use crate::scenario::Scenario;

/// Beyond so many workers that takes too long.
pub const WORKERS_MAX: usize = 256;
/// Rounds before the first that counts, and how many count at least.
const WARM: u64 = 8;
const COUNTED: u64 = 12;
const COUNTED_VARIED: u64 = 60;

/// What happens at a moment, by worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum RoundEvent {
    /// Its gradient is there.
    Gradient(usize),
    /// A model reaches its card; the number is that of the message.
    Head(usize),
    /// It has a model of this step.
    Arrived(usize, u64),
}

struct ModelInFlight {
    to: usize,
    step: u64,
    port: usize,
    length: u64,
    /// When its last byte could be there.
    last: u64,
}

/// The rounds as they go on; times in nanoseconds.
struct UnbucketedRounds<'a> {
    s: &'a Scenario,
    /// Who sends to whom in each round of a period, in the order of sending.
    receivers: Vec<Vec<Vec<usize>>>,
    /// How many models each awaits.
    awaited: Vec<Vec<u32>>,
    /// Nanoseconds of every worker's gradients, over and over.
    computing: Vec<Vec<u64>>,
    /// The exchange of a step goes on while its gradient is computed.
    during: bool,
    /// When ports are free: cards of hosts, then links of workers inside them.
    sending: Vec<u64>,
    receiving: Vec<u64>,
    messages: Vec<ModelInFlight>,
    events: BinaryHeap<Reverse<(u64, u64, RoundEvent)>>,
    pushed: u64,
    step: Vec<u64>,
    has_gradient: Vec<bool>,
    /// Models that have come, by worker and step.
    come: Vec<Vec<u32>>,
    steps: u64,
}

/// Seconds of a step of `schedule`.
pub fn step_seconds(s: &Scenario, schedule: &Schedule, during: bool) -> f64 {
    let period = schedule.period().unwrap_or(1).max(1) as u64;
    // What varies takes longer to average out.
    let counted = if s.variation > 0.0 { COUNTED_VARIED } else { COUNTED };
    let counted = counted.next_multiple_of(period);
    let steps = WARM + counted;
    let (mut receivers, mut awaited) = (Vec::new(), Vec::new());
    for step in 0..period {
        let (mut to, mut counts) = (vec![Vec::new(); s.workers], vec![0; s.workers]);
        for (a, b) in schedule.round(step).edges() {
            to[a].push(b);
            counts[b] += 1;
        }
        for (from, to) in to.iter_mut().enumerate() {
            to.sort_by_key(|to| (to + s.workers - from) % s.workers);
        }
        receivers.push(to);
        awaited.push(counts);
    }
    let ports = s.hosts + s.workers;
    let rounds = UnbucketedRounds {
        s,
        receivers,
        awaited,
        computing: (0..s.workers).map(|worker| computing(s, worker, counted)).collect(),
        during,
        sending: vec![0; ports],
        receiving: vec![0; ports],
        messages: Vec::new(),
        events: BinaryHeap::new(),
        pushed: 0,
        step: vec![0; s.workers],
        has_gradient: vec![false; s.workers],
        come: vec![vec![0; steps as usize + 1]; s.workers],
        steps,
    };
    rounds.follow()
}

/// Nanoseconds of so many gradients of a worker: the quantiles of the log-normal distribution in random order, so
/// that their mean is what it should be.
pub(crate) fn computing(s: &Scenario, worker: usize, count: u64) -> Vec<u64> {
    let slow = s.slow.iter().find(|(rank, _)| *rank as usize == worker);
    let mean = s.compute * slow.map_or(1.0, |(_, factor)| *factor);
    let deviation = (s.variation * s.variation).ln_1p().sqrt();
    let place = |number: u64| normal_quantile((number as f64 + 0.5) / count as f64);
    let mut times: Vec<f64> = (0..count).map(|number| (deviation * place(number)).exp()).collect();
    let scale = mean * count as f64 / times.iter().sum::<f64>();
    Rng::new(1, "plan", worker as u64).shuffle(&mut times);
    times.iter().map(|time| nanos(scale * time)).collect()
}

fn nanos(seconds: f64) -> u64 {
    (seconds * 1e9).round() as u64
}

impl UnbucketedRounds<'_> {
    /// Seconds of a step, over those that count.
    fn follow(mut self) -> f64 {
        let workers = self.s.workers;
        (0..workers).for_each(|worker| self.begin(worker, 0));
        let (mut warm, mut ends) = (vec![0; workers], vec![0; workers]);
        while let Some(Reverse((now, _, event))) = self.events.pop() {
            let worker = match event {
                RoundEvent::Gradient(worker) => {
                    self.has_gradient[worker] = true;
                    if !self.during {
                        self.send(worker, now);
                    }
                    worker
                }
                RoundEvent::Head(number) => {
                    self.reach(number, now);
                    continue;
                }
                RoundEvent::Arrived(worker, step) => {
                    self.come[worker][step as usize] += 1;
                    worker
                }
            };
            if self.is_over(worker) {
                ends[worker] = now;
                if self.step[worker] + 1 == WARM {
                    warm[worker] = now;
                }
                self.step[worker] += 1;
                self.begin(worker, now);
            }
        }
        // In the long run all have the pace of the slowest; until then those far from it run ahead.
        let longest = ends.iter().zip(&warm).map(|(end, warm)| end - warm).max().unwrap_or(0);
        longest as f64 * 1e-9 / (self.steps - WARM) as f64
    }

    fn begin(&mut self, worker: usize, now: u64) {
        if self.step[worker] == self.steps {
            return;
        }
        self.has_gradient[worker] = false;
        if self.during {
            self.send(worker, now);
        }
        let times = &self.computing[worker];
        let took = times[self.step[worker] as usize % times.len()];
        self.push(now + took, RoundEvent::Gradient(worker));
    }

    fn round(&self, step: u64) -> usize {
        step as usize % self.receivers.len()
    }

    fn is_over(&self, worker: usize) -> bool {
        let step = self.step[worker];
        let awaited = self.awaited[self.round(step)][worker];
        step < self.steps
            && self.has_gradient[worker]
            && self.come[worker][step as usize] == awaited
    }

    fn push(&mut self, at: u64, event: RoundEvent) {
        self.pushed += 1;
        self.events.push(Reverse((at, self.pushed, event)));
    }

    fn send(&mut self, from: usize, now: u64) {
        let (s, step) = (self.s, self.step[from]);
        let round = self.round(step);
        for place in 0..self.receivers[round][from].len() {
            let to = self.receivers[round][from][place];
            let (a, b) = (s.host_of(from), s.host_of(to));
            let (out, port, rate, latency) = if a == b {
                (s.hosts + from, s.hosts + to, s.internal, s.internal_latency)
            } else {
                (a, b, s.bandwidth, s.latency)
            };
            let (length, flight) = (nanos(s.sent() / rate), nanos(latency));
            let start = now.max(self.sending[out]);
            self.sending[out] = start + length;
            let last = start + length + flight;
            self.messages.push(ModelInFlight { to, step, port, length, last });
            self.push(start + flight, RoundEvent::Head(self.messages.len() - 1));
        }
    }

    fn reach(&mut self, number: usize, now: u64) {
        let ModelInFlight { to, step, port, length, last } = self.messages[number];
        let taken = now.max(self.receiving[port]) + length;
        self.receiving[port] = taken;
        self.push(taken.max(last), RoundEvent::Arrived(to, step));
    }
}
