//! What goes wrong: with a message on its way, with a rank. What a message contains is the subject of
//! `attacks`.
//!
//! A fault of a message is a function of the message: an ordered list of rules is asked, and the
//! first that does not let it pass decides. A fault of a rank is an entry in a list.

mod split;

use std::fmt;
use std::sync::Arc;

use quelea_core::message::Rank;
use quelea_core::random::Rng;
use quelea_core::time::Time;

use crate::attacks::Attack;
use crate::cluster::ClusterError;
pub use split::SidePartition;
pub(crate) use split::SplitLink;

/// All that goes wrong in a run.
#[derive(Clone, Debug, Default)]
pub struct Faults {
    /// Asked in order when a message is handed to the network.
    pub rules: Vec<Rule>,
    /// Ranks that are lost for good.
    pub crashes: Vec<Crash>,
    /// Workers that are given notice, and leave.
    pub leaves: Vec<Leave>,
    /// Workers that join in the place of one that was lost or has left.
    pub joins: Vec<Join>,
    /// Ranks that stand still for a while: they neither compute, nor read, nor send.
    pub pauses: Vec<Pause>,
    /// Ranks whose messages, sent and received, are dropped for a while.
    pub partitions: Vec<RankPartition>,
    /// Pairs of ranks that do not reach each other for a while; what they send arrives afterwards.
    pub pair_partitions: Vec<PairPartition>,
    /// Sets of ranks that reach each other and nobody else for a while.
    pub splits: Vec<SidePartition>,
    /// Control messages of ranks that arrive later, where they travel over the network.
    pub control_delays: Vec<ControlDelay>,
    /// Workers that send something else than their algorithm says.
    pub attacks: Vec<Attack>,
}

/// A rank is lost for good.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Crash {
    /// Which.
    pub rank: u32,
    /// When.
    pub at_ms: f64,
}

/// A worker is given notice: it leaves at the next cut, or, if the run cannot do without it, the run is
/// saved and ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Leave {
    /// Which.
    pub rank: u32,
    /// When.
    pub at_ms: f64,
}

/// A worker joins in the place of one that was lost or has left.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Join {
    /// In whose place.
    pub rank: u32,
    /// When it is there, with its data.
    pub at_ms: f64,
}

/// A rank stands still for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pause {
    /// Which.
    pub rank: u32,
    /// Since when.
    pub from_ms: f64,
    /// Until when.
    pub until_ms: f64,
}

/// A rank is partitioned from all others for a while. If that lasts longer than the cluster's
/// `detect_ms`, the rank counts as lost, and stops.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RankPartition {
    /// Which.
    pub rank: u32,
    /// Since when.
    pub from_ms: f64,
    /// Until when.
    pub until_ms: f64,
}

/// Two ranks do not reach each other for a while, and everybody else reaches both. What they send each
/// other meanwhile arrives when it is over, as over a connection that is restored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairPartition {
    /// One of them.
    pub rank: u32,
    /// The other.
    pub peer: u32,
    /// Since when.
    pub from_ms: f64,
    /// Until when.
    pub until_ms: f64,
}

/// Control messages between a rank and the controller arrive later for a while, in order.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ControlDelay {
    /// Which rank.
    pub rank: u32,
    /// Since when.
    pub from_ms: f64,
    /// Until when.
    pub until_ms: f64,
    /// How much later.
    pub delay_ms: f64,
}

/// A message as a rule sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Flight {
    /// The how-many-th message of the run this is, from 0: a handle for seeded choices.
    pub number: u64,
    /// The sender.
    pub from: Rank,
    /// The receiver.
    pub to: Rank,
    /// The message's kind, in the numbering of the algorithm.
    pub kind: u8,
    /// When it was handed over.
    pub time: Time,
    /// Its size, header included.
    pub bytes: u64,
}

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The next rule is asked; after the last, the message arrives as usual.
    Pass,
    /// It arrives later, and may be overtaken.
    Delay(Time),
    /// It never arrives.
    Drop,
    /// It arrives twice.
    Duplicate,
}

/// One rule about messages.
#[derive(Clone)]
pub enum Rule {
    /// A plain one, for configurations.
    Plain(PlainRule),
    /// Any function.
    Function(Arc<dyn Fn(&Flight) -> Verdict + Send + Sync>),
}

/// A rule made of plain data: messages that match get the verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlainRule {
    /// Only messages from this rank.
    pub from: Option<u32>,
    /// Only messages to this rank.
    pub to: Option<u32>,
    /// Only messages of this kind.
    pub kind: Option<u8>,
    /// Only messages handed over at this time or later.
    pub from_ms: f64,
    /// Only messages handed over before this time.
    pub until_ms: f64,
    /// Of those, only this share, chosen by the run's seed.
    pub share: f64,
    /// What becomes of them.
    pub verdict: Verdict,
}

impl PlainRule {
    /// All messages, at all times.
    pub fn all(verdict: Verdict) -> PlainRule {
        PlainRule {
            from: None,
            to: None,
            kind: None,
            from_ms: 0.0,
            until_ms: f64::INFINITY,
            share: 1.0,
            verdict,
        }
    }

    fn matches(&self, seed: u64, flight: &Flight) -> bool {
        self.from.is_none_or(|from| from == flight.from.0)
            && self.to.is_none_or(|to| to == flight.to.0)
            && self.kind.is_none_or(|kind| kind == flight.kind)
            && (Time::from_ms(self.from_ms)..Time::from_ms(self.until_ms)).contains(&flight.time)
            && (self.share >= 1.0 || Rng::new(seed, "fault", flight.number).uniform() < self.share)
    }
}

impl Rule {
    /// A rule from a function.
    pub fn function(rule: impl Fn(&Flight) -> Verdict + Send + Sync + 'static) -> Rule {
        Rule::Function(Arc::new(rule))
    }

    fn verdict(&self, seed: u64, flight: &Flight) -> Verdict {
        match self {
            Rule::Plain(rule) if rule.matches(seed, flight) => rule.verdict,
            Rule::Plain(_) => Verdict::Pass,
            Rule::Function(rule) => rule(flight),
        }
    }
}

impl fmt::Debug for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Rule::Plain(rule) => rule.fmt(f),
            Rule::Function(_) => f.write_str("Function"),
        }
    }
}

impl Faults {
    /// What becomes of this message, which `split`s hold up for so long, if it arrives across them.
    pub(crate) fn verdict(&self, seed: u64, split: Option<Time>, flight: &Flight) -> Verdict {
        if self.partitions.iter().any(|partition| partition.separates(flight)) {
            return Verdict::Drop;
        }
        match split {
            None => return Verdict::Drop,
            Some(Time::ZERO) => {}
            Some(delay) => return Verdict::Delay(delay),
        }
        let mut held = self.pair_partitions.iter().filter_map(|pair| pair.holds_up(flight));
        if let Some(delay) = held.next() {
            return Verdict::Delay(delay);
        }
        let mut verdicts = self.rules.iter().map(|rule| rule.verdict(seed, flight));
        verdicts.find(|verdict| *verdict != Verdict::Pass).unwrap_or(Verdict::Pass)
    }

    /// How much later a control message arrives that is sent now, by `rank` or to it. Across a partition
    /// it is sent again until that ends; never, if the partition lasts until the rank counts as lost.
    pub(crate) fn control_delay(&self, rank: u32, now: Time, detect_ms: f64) -> Option<Time> {
        let spans = |of: u32, from_ms: f64, until_ms: f64| {
            of == rank && (Time::from_ms(from_ms)..Time::from_ms(until_ms)).contains(&now)
        };
        let late = self.control_delays.iter();
        let late = late.filter(|delay| spans(delay.rank, delay.from_ms, delay.until_ms));
        let late = late.map(|delay| Time::from_ms(delay.delay_ms));
        let cut = self.partitions.iter();
        let cut = cut.filter(|cut| spans(cut.rank, cut.from_ms, cut.until_ms));
        let is_final = |cut: &RankPartition| cut.until_ms - cut.from_ms > detect_ms;
        if cut.clone().any(is_final) {
            return None;
        }
        let cut = cut.map(|cut| Time::from_ms(cut.until_ms).since(now));
        Some(late.chain(cut).max().unwrap_or(Time::ZERO))
    }

    /// Whether any message can be touched at all.
    pub(crate) fn touches_messages(&self) -> bool {
        !self.rules.is_empty()
            || !self.partitions.is_empty()
            || !self.pair_partitions.is_empty()
            || !self.splits.is_empty()
    }

    pub(crate) fn check(&self) -> Result<(), ClusterError> {
        for crash in &self.crashes {
            check_span("crashes.at_ms", crash.at_ms, f64::INFINITY)?;
        }
        for leave in &self.leaves {
            check_span("leaves.at_ms", leave.at_ms, f64::INFINITY)?;
        }
        for join in &self.joins {
            check_span("joins.at_ms", join.at_ms, f64::INFINITY)?;
        }
        for pause in &self.pauses {
            check_span("pauses", pause.from_ms, pause.until_ms)?;
            check_span("pauses", pause.until_ms, f64::INFINITY)?;
        }
        for partition in &self.partitions {
            check_span("partitions", partition.from_ms, partition.until_ms)?;
        }
        for pair in &self.pair_partitions {
            check_span("pair_partitions", pair.from_ms, pair.until_ms)?;
            check_span("pair_partitions", pair.until_ms, f64::INFINITY)?;
        }
        for split in &self.splits {
            check_span("splits", split.from_ms, split.until_ms)?;
            check_span("splits", split.until_ms, f64::INFINITY)?;
        }
        for delay in &self.control_delays {
            check_span("control_delays", delay.from_ms, delay.until_ms)?;
            check_span("control_delays.delay_ms", delay.delay_ms, f64::INFINITY)?;
        }
        for rule in &self.rules {
            if let Rule::Plain(rule) = rule {
                check_span("rules", rule.from_ms, rule.until_ms)?;
                if !(0.0..=1.0).contains(&rule.share) {
                    let allowed = "must be from 0 to 1";
                    return Err(ClusterError::new("faults.rules.share", rule.share, allowed));
                }
            }
        }
        Ok(())
    }

    pub(crate) fn check_ranks(&self, ranks: u32) -> Result<(), ClusterError> {
        let crashes = self.crashes.iter().map(|crash| ("crashes", crash.rank));
        let leaves = self.leaves.iter().map(|leave| ("leaves", leave.rank));
        let joins = self.joins.iter().map(|join| ("joins", join.rank));
        let pauses = self.pauses.iter().map(|pause| ("pauses", pause.rank));
        let partitions = self.partitions.iter().map(|partition| ("partitions", partition.rank));
        let delays = self.control_delays.iter().map(|delay| ("control_delays", delay.rank));
        let pairs = self.pair_partitions.iter().flat_map(|pair| [pair.rank, pair.peer]);
        let pairs = pairs.map(|rank| ("pair_partitions", rank));
        let splits = self.splits.iter().flat_map(|split| &split.ranks);
        let splits = splits.map(|rank| ("splits", *rank));
        let all = crashes.chain(leaves).chain(joins).chain(pauses).chain(partitions);
        let unknown = all.chain(delays).chain(pairs).chain(splits).find(|(_, rank)| *rank >= ranks);
        unknown.map_or(Ok(()), |(list, rank)| {
            let allowed = format!("there are {ranks} ranks, numbered from 0");
            Err(ClusterError::new(format!("faults.{list}.rank"), rank, allowed))
        })
    }
}

impl RankPartition {
    fn separates(&self, flight: &Flight) -> bool {
        let touched = self.rank == flight.from.0 || self.rank == flight.to.0;
        let span = Time::from_ms(self.from_ms)..Time::from_ms(self.until_ms);
        touched && span.contains(&flight.time)
    }
}

impl PairPartition {
    /// For how long this message is held up, if it is.
    fn holds_up(&self, flight: &Flight) -> Option<Time> {
        let ends = [self.rank, self.peer];
        let is_between = ends.contains(&flight.from.0) && ends.contains(&flight.to.0);
        let until = Time::from_ms(self.until_ms);
        let span = Time::from_ms(self.from_ms)..until;
        (is_between && span.contains(&flight.time)).then(|| until.since(flight.time))
    }
}

/// Times are at most a month from the beginning, and in order.
fn check_span(list: &str, from_ms: f64, until_ms: f64) -> Result<(), ClusterError> {
    if !(0.0..=3e9).contains(&from_ms) {
        let allowed = "a time must be from 0 to 3000000000 ms";
        return Err(ClusterError::new(format!("faults.{list}"), from_ms, allowed));
    }
    if until_ms > from_ms {
        return Ok(());
    }
    let allowed = format!("must end after it begins, at {from_ms} ms");
    Err(ClusterError::new(format!("faults.{list}"), until_ms, allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(from: u32, to: u32, ms: f64) -> Flight {
        let time = Time::from_ms(ms);
        Flight { number: 0, from: Rank(from), to: Rank(to), kind: 1, time, bytes: 100 }
    }

    #[test]
    fn the_first_rule_that_does_not_pass_decides() {
        let drop = PlainRule { from: Some(1), ..PlainRule::all(Verdict::Drop) };
        let twice = PlainRule { from_ms: 5.0, ..PlainRule::all(Verdict::Duplicate) };
        let rules = vec![Rule::Plain(drop), Rule::Plain(twice)];
        let faults = Faults { rules, ..Faults::default() };
        assert_eq!(faults.verdict(1, Some(Time::ZERO), &flight(1, 0, 9.0)), Verdict::Drop);
        assert_eq!(faults.verdict(1, Some(Time::ZERO), &flight(0, 1, 9.0)), Verdict::Duplicate);
        assert_eq!(faults.verdict(1, Some(Time::ZERO), &flight(0, 1, 4.0)), Verdict::Pass);
    }

    #[test]
    fn a_partition_touches_both_directions_for_its_time_only() {
        let partitions = vec![RankPartition { rank: 2, from_ms: 1.0, until_ms: 2.0 }];
        let faults = Faults { partitions, ..Faults::default() };
        assert_eq!(faults.verdict(1, Some(Time::ZERO), &flight(2, 0, 1.0)), Verdict::Drop);
        assert_eq!(faults.verdict(1, Some(Time::ZERO), &flight(0, 2, 1.5)), Verdict::Drop);
        assert_eq!(faults.verdict(1, Some(Time::ZERO), &flight(0, 2, 2.0)), Verdict::Pass);
        assert_eq!(faults.verdict(1, Some(Time::ZERO), &flight(0, 1, 1.5)), Verdict::Pass);
    }

    #[test]
    fn what_a_separated_pair_sends_arrives_when_the_partition_ends() {
        let pair = PairPartition { rank: 2, peer: 0, from_ms: 1.0, until_ms: 4.0 };
        let faults = Faults { pair_partitions: vec![pair], ..Faults::default() };
        assert_eq!(
            faults.verdict(1, Some(Time::ZERO), &flight(2, 0, 1.5)),
            Verdict::Delay(Time::from_ms(2.5))
        );
        assert_eq!(
            faults.verdict(1, Some(Time::ZERO), &flight(0, 2, 3.0)),
            Verdict::Delay(Time::from_ms(1.0))
        );
        assert_eq!(faults.verdict(1, Some(Time::ZERO), &flight(0, 1, 3.0)), Verdict::Pass);
        assert_eq!(faults.verdict(1, Some(Time::ZERO), &flight(0, 2, 4.0)), Verdict::Pass);
    }

    #[test]
    fn control_messages_wait_for_the_end_of_a_partition_that_the_rank_survives() {
        let partitions = vec![
            RankPartition { rank: 1, from_ms: 1.0, until_ms: 3.0 },
            RankPartition { rank: 2, from_ms: 1.0, until_ms: 30.0 },
        ];
        let late = ControlDelay { rank: 1, from_ms: 2.0, until_ms: 9.0, delay_ms: 5.0 };
        let faults = Faults { partitions, control_delays: vec![late], ..Faults::default() };
        let delay = |rank, ms| faults.control_delay(rank, Time::from_ms(ms), 10.0);
        assert_eq!(delay(1, 1.5), Some(Time::from_ms(1.5)));
        assert_eq!(delay(1, 2.5), Some(Time::from_ms(5.0)));
        assert_eq!(delay(1, 9.0), Some(Time::ZERO));
        assert_eq!(delay(2, 9.0), None, "it counts as lost before the partition ends");
        assert_eq!(delay(0, 2.5), Some(Time::ZERO));
    }

    #[test]
    fn wrong_spans_and_ranks_are_named() {
        let pauses = vec![Pause { rank: 9, from_ms: 5.0, until_ms: 5.0 }];
        let faults = Faults { pauses, ..Faults::default() };
        let span = faults.check().expect_err("empty span").to_string();
        assert_eq!(span, "`cluster.faults.pauses` = 5: must end after it begins, at 5 ms");
        let rank = faults.check_ranks(4).expect_err("unknown rank").to_string();
        assert_eq!(rank, "`cluster.faults.pauses.rank` = 9: there are 4 ranks, numbered from 0");
    }
}
