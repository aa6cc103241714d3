//! What one rank does, from its records: rates that follow the last steps, totals, links.

use std::collections::BTreeMap;

use quelea_record::{AwaitedRank, LinkTotal, ProcessMemory};

/// How much the newest step counts in a rate.
const NEWEST: f64 = 0.1;
/// Upper bounds of the histogram of step times, in seconds; the last bucket has none.
pub const STEP_BOUNDS: [f64; 13] =
    [0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0];

/// One rank of a run.
#[derive(Clone, Debug, Default)]
pub struct RankActivity {
    /// Steps completed.
    pub steps: u64,
    /// The number of the last one.
    pub last_step: u64,
    /// Samples used.
    pub samples: u64,
    /// Samples of the last mini-batch.
    pub batch: u32,
    /// Loss of the last mini-batch.
    pub loss: Option<f32>,
    /// When it last said something.
    pub heard: Option<f64>,
    /// When it last completed a step.
    pub stepped: Option<f64>,
    /// When it was lost, or left.
    pub lost: Option<f64>,
    /// Whether it left with notice.
    pub has_left: bool,
    /// The view that it is in.
    pub view: u32,
    /// Seconds of its last steps.
    pub recent: StepSeconds,
    /// Seconds of all its steps.
    pub total: StepSeconds,
    /// Seconds between its last steps, from end to end.
    pub interval: f64,
    /// Steps by how long they took, in the buckets of [`STEP_BOUNDS`] and one beyond.
    pub histogram: [u64; STEP_BOUNDS.len() + 1],
    /// How far its model is from the mean of all, and the standard error of that.
    pub deviation: Option<Estimate>,
    /// What it last said of its waits.
    pub account: Option<SaidWaits>,
    /// Where the worker that has this rank now began.
    pub began: WorkerBeginning,
    /// What its process holds.
    pub memory: ProcessMemory,
    /// What it has exchanged with each peer.
    pub links: BTreeMap<u32, LinkActivity>,
}

/// Whom a rank waited for at the moment when it was asked.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SaidWaits {
    /// When.
    pub t: f64,
    /// Its last step before that.
    pub since: f64,
    /// Steps that it had completed.
    pub step: u64,
    /// For whom; empty where it waited for nobody.
    pub awaiting: Vec<AwaitedRank>,
}

/// When a worker began, and how many steps others had taken in its place.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WorkerBeginning {
    /// When.
    pub t: f64,
    /// Steps of this rank before.
    pub steps: u64,
}

/// How the seconds of a step, or of many, were spent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct StepSeconds {
    /// Computing.
    pub compute: f64,
    /// Communication that compute did not hide.
    pub exposed: f64,
    /// Waiting for slower peers.
    pub waiting: f64,
}

/// An estimated number.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// The number.
    pub value: f64,
    /// Its standard error.
    pub error: f64,
}

/// What a rank has exchanged with one peer.
#[derive(Clone, Copy, Debug, Default)]
pub struct LinkActivity {
    /// In all.
    pub total: LinkTotal,
    /// When the totals were taken.
    pub at: f64,
    /// When messages last went either way.
    pub active: f64,
    /// Bytes per second, both ways, since the totals before.
    pub bytes_per_second: f64,
    /// Segments that were sent again since the totals before.
    pub resent_recently: u64,
    /// Whether the ranks themselves count its messages.
    pub is_counted: bool,
    /// Seconds between its last messages, where they were recorded one by one.
    pub gap: f64,
    /// Seconds of its last message from end to end, where that was recorded.
    pub delay: Option<f64>,
}

impl StepSeconds {
    /// All together.
    pub fn sum(&self) -> f64 {
        self.compute + self.exposed + self.waiting
    }

    fn follow(&mut self, newest: StepSeconds, weight: f64) {
        let follow = |old: &mut f64, new: f64| *old += weight * (new - *old);
        follow(&mut self.compute, newest.compute);
        follow(&mut self.exposed, newest.exposed);
        follow(&mut self.waiting, newest.waiting);
    }
}

/// One step of a worker.
#[derive(Clone, Copy, Debug)]
pub struct CompletedStep {
    /// When.
    pub t: f64,
    /// Its number.
    pub step: u64,
    /// How many steps it stands for, where not all were written.
    pub stands_for: u64,
    /// Loss of the mini-batch.
    pub loss: f32,
    /// Samples of the mini-batch.
    pub samples: u32,
    /// How its time was spent.
    pub seconds: StepSeconds,
}

impl RankActivity {
    /// Takes a step.
    pub fn step(&mut self, step: CompletedStep) {
        let CompletedStep { t, stands_for, seconds, .. } = step;
        let weight = if self.steps == self.began.steps { 1.0 } else { NEWEST };
        self.recent.follow(seconds, weight);
        let passed = match self.stepped {
            Some(before) => (t - before) / stands_for as f64,
            None => seconds.sum(),
        };
        self.interval += weight * (passed - self.interval);
        self.steps += stands_for;
        self.last_step = step.step;
        self.samples += u64::from(step.samples) * stands_for;
        self.batch = step.samples;
        self.loss = Some(step.loss);
        (self.heard, self.stepped) = (Some(t), Some(t));
        let times = stands_for as f64;
        self.total.compute += seconds.compute * times;
        self.total.exposed += seconds.exposed * times;
        self.total.waiting += seconds.waiting * times;
        let took = seconds.sum();
        let bucket = STEP_BOUNDS.iter().position(|bound| took <= *bound);
        self.histogram[bucket.unwrap_or(STEP_BOUNDS.len())] += stands_for;
    }

    /// Takes whom it says that it waits for at `t`.
    pub fn said(&mut self, t: f64, awaiting: Vec<AwaitedRank>) {
        let since = self.stepped.unwrap_or(self.began.t);
        self.heard = Some(t);
        self.account = Some(SaidWaits { t, since, step: self.steps, awaiting });
    }

    /// Whether it waits for somebody, by what it last said: the end of a step ends a wait.
    pub fn is_waiting(&self) -> bool {
        let is_current = |said: &&SaidWaits| self.stepped.is_none_or(|stepped| stepped <= said.t);
        self.account.as_ref().filter(is_current).is_some_and(|said| !said.awaiting.is_empty())
    }

    /// It was lost at `t`, or has left. What was known of its model is of no use any more.
    pub fn leave(&mut self, t: f64, has_notice: bool) {
        (self.lost, self.has_left) = (Some(t), has_notice);
        (self.deviation, self.account) = (None, None);
    }

    /// Another worker has taken its place.
    pub fn join(&mut self, t: f64) {
        (self.lost, self.has_left) = (None, false);
        (self.deviation, self.account) = (None, None);
        (self.heard, self.stepped) = (Some(t), Some(t));
        self.began = WorkerBeginning { t, steps: self.steps };
    }

    /// Steps per second since its worker began until `now`, if it has completed any.
    pub fn mean_steps_per_second(&self, now: f64) -> Option<f64> {
        let (steps, passed) = (self.steps - self.began.steps, now - self.began.t);
        (steps > 0 && passed > 0.0).then(|| steps as f64 / passed)
    }

    /// Takes what it has exchanged with a peer until `t`.
    pub fn exchanged(&mut self, t: f64, total: LinkTotal) {
        let link = self.links.entry(total.peer).or_default();
        let before = if link.is_counted { link.total } else { LinkTotal::default() };
        let bytes = (total.bytes_sent + total.bytes_received)
            .saturating_sub(before.bytes_sent + before.bytes_received);
        let passed = if link.is_counted { t - link.at } else { t };
        link.bytes_per_second = if passed > 0.0 { bytes as f64 / passed } else { 0.0 };
        if (total.sent, total.received) != (before.sent, before.received) {
            link.active = t;
        }
        // A connection that was restored counts anew.
        link.resent_recently = total.resent.saturating_sub(before.resent);
        (link.total, link.at, link.is_counted) = (total, t, true);
    }

    /// Takes a message to a peer that was recorded by itself.
    pub fn transferred(&mut self, t: f64, to: u32, bytes: u64, seconds: f64) {
        let link = self.links.entry(to).or_default();
        let is_first = link.delay.is_none();
        link.delay = Some(seconds);
        if link.is_counted {
            return;
        }
        link.total.peer = to;
        link.total.sent += 1;
        link.total.bytes_sent += bytes;
        let weight = if is_first { 1.0 } else { NEWEST };
        link.gap += weight * ((t - link.active).max(0.0) - link.gap);
        link.bytes_per_second = if link.gap > 0.0 { bytes as f64 / link.gap } else { 0.0 };
        (link.at, link.active) = (t, t);
    }

    /// Steps per second, from its last steps.
    pub fn steps_per_second(&self) -> f64 {
        if self.interval > 0.0 { 1.0 / self.interval } else { 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(t: f64, compute: f64, stands_for: u64) -> CompletedStep {
        let seconds = StepSeconds { compute, exposed: 0.25, waiting: 0.0 };
        CompletedStep { t, step: 0, stands_for, loss: 1.0, samples: 8, seconds }
    }

    #[test]
    fn rates_of_even_steps_are_those_of_each() {
        let mut rank = RankActivity::default();
        (1..=40).for_each(|k| rank.step(step(f64::from(k), 0.75, 1)));
        assert_eq!((rank.steps, rank.samples), (40, 320));
        assert!((rank.steps_per_second() - 1.0).abs() < 1e-12);
        assert!((rank.recent.sum() - 1.0).abs() < 1e-12);
        assert_eq!(rank.total, StepSeconds { compute: 30.0, exposed: 10.0, waiting: 0.0 });
        assert_eq!(rank.histogram[10], 40, "1 s is in the bucket up to 1 s");
    }

    #[test]
    fn a_step_that_stands_for_four_counts_as_four_of_a_quarter_of_the_distance() {
        let mut rank = RankActivity::default();
        (1..=30).for_each(|k| rank.step(step(4.0 * f64::from(k), 0.75, 4)));
        assert_eq!((rank.steps, rank.samples), (120, 960));
        assert!((rank.steps_per_second() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_link_shows_the_rate_since_the_totals_before_and_when_it_was_last_used() {
        let mut rank = RankActivity::default();
        let total =
            |sent, bytes_sent| LinkTotal { peer: 2, sent, bytes_sent, ..Default::default() };
        rank.exchanged(1.0, total(1, 100));
        rank.exchanged(3.0, total(5, 500));
        rank.exchanged(4.0, total(5, 500));
        let link = rank.links[&2];
        assert_eq!((link.bytes_per_second, link.active, link.at), (0.0, 3.0, 4.0));
        rank.exchanged(4.5, total(6, 600));
        assert_eq!(rank.links[&2].bytes_per_second, 200.0);
        let resent = |resent| LinkTotal { peer: 2, sent: 6, resent, ..Default::default() };
        for (total, recently) in [(3, 3), (4, 1), (4, 0), (1, 0)] {
            rank.exchanged(5.0, resent(total));
            assert_eq!(rank.links[&2].resent_recently, recently);
        }
    }
}
