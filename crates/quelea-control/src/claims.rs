//! What a rank says of itself that cannot be true of this run, and how far each rank is by what it has said.
//!
//! Numbers of a rank decide for others: the step of a cut, the first step of a new view, how far all are. So
//! each is compared with what the rank has said before and with what the others say.

use std::ops::RangeInclusive;

use quelea_core::properties::Budget;
use quelea_core::time::Time;
use quelea_record::{Record, RecordKind};

use crate::controller::{Controller, RunPhase};
use crate::directive::RunFailure;
use crate::messages::RankEvent;
use crate::suspicion::{Evidence, GRACE};

/// A rank may be this many steps beyond what was heard of the one that is furthest: one that it computes, and
/// two that a new view is ahead.
const STEPS_AHEAD: u64 = 3;
/// For how long a number is not believed before its speaker is taken for lost: what others have said may be
/// heard later.
const DISPUTE_TIME: Time = Time(20 * GRACE.0);

/// Since when a number of a rank is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dispute {
    rank: u32,
    step: u64,
    since: Time,
}

/// The number that holds up the others now, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Disputes {
    open: Option<Dispute>,
}

impl Disputes {
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.is_some()
    }
}

impl Controller {
    /// What of this cannot be true, in words that follow "lost rank 3: ". Ranks of this process say what they
    /// do.
    pub(crate) fn false_claim(&self, event: &RankEvent) -> Option<String> {
        let rank = event.speaker()?;
        if self.own_ranks.contains(&rank) {
            return None;
        }
        let beyond = |step: u64, what: &str, steps: RangeInclusive<u64>| {
            let is_beyond = !steps.contains(&step);
            is_beyond.then(|| format!("it sent {what} of step {step} of {}", steps.end()))
        };
        // One that has ended may be asked for the step after its last one.
        let steps = 0..=self.most_steps().saturating_add(1);
        match event {
            RankEvent::Record(record) => {
                beyond(record.step, "a record", steps).or_else(|| self.false_step(record))
            }
            RankEvent::CutProposal { step, .. } => beyond(*step, "a proposal for a cut", steps),
            RankEvent::Frozen { step, .. } => beyond(*step, "its step", steps),
            RankEvent::Model { step, .. } => beyond(*step, "a model", steps),
            RankEvent::Saved { step, part, .. } => beyond(*step, "a checkpoint", steps.clone())
                .or_else(|| beyond(part.step(), "a checkpoint", steps)),
            RankEvent::Report(report) => {
                let is_early = matches!(self.phase, RunPhase::Running | RunPhase::Draining);
                let early = is_early.then(|| "it sent its report before the end".to_string());
                let inherited = self.ranks[rank as usize].inherited_steps;
                let steps = 0..=steps.end().saturating_add(inherited);
                early.or_else(|| beyond(report.steps, "a report", steps))
            }
            _ => None,
        }
    }

    /// The most steps that one worker can complete.
    fn most_steps(&self) -> u64 {
        if self.properties.budget == Budget::TotalGradients { self.total } else { self.setup.steps }
    }

    /// A step that this worker cannot have completed.
    fn false_step(&self, record: &Record) -> Option<String> {
        if !matches!(record.event, RecordKind::Step { .. }) {
            return None;
        }
        let progress = self.ranks.get(record.rank as usize)?;
        // One before it in its place may have been further than where it began.
        let before = progress.steps_before.min(progress.entered);
        let completed = progress.steps + 1;
        if before.saturating_add(completed) > self.most_steps() {
            return Some(format!("it reported more than {} steps", self.most_steps()));
        }
        let granted = self.budget.granted(record.rank as usize).filter(|_| !self.is_external);
        let is_granted = granted.is_none_or(|granted| completed <= granted);
        (!is_granted).then(|| "it reported a gradient that it was not granted".to_string())
    }

    /// A worker has completed step `step`. One that skips steps has caught up with others.
    pub(crate) fn advance_position(&mut self, rank: u32, step: u64) {
        let (position, next) = (self.ranks[rank as usize].position, step.saturating_add(1));
        // All ranks are looked at only for one that skips steps: this is asked at every step of every rank.
        let is_plausible = next <= position + 1 || !self.is_beyond(next);
        self.ranks[rank as usize].position =
            if is_plausible { next.max(position) } else { position + 1 };
    }

    /// The step of the worker that is furthest, by what was heard.
    fn furthest(&self) -> u64 {
        let living = self.ranks[..self.workers].iter().filter(|progress| !progress.is_lost());
        living.map(|progress| progress.position).max().unwrap_or(0)
    }

    /// Whether this step is further than anybody can be, by what was heard.
    pub(crate) fn is_beyond(&self, step: u64) -> bool {
        step > self.furthest().saturating_add(STEPS_AHEAD)
    }

    /// When the number that is not believed now costs its speaker its place.
    pub(crate) fn dispute_deadline(&self) -> Option<Time> {
        let deadline = self.disputes.open.map(|open| open.since + DISPUTE_TIME);
        deadline.filter(|at| *at > self.now)
    }

    /// Whether all others may depend on `rank` being at `step`. One that is further than anybody can be holds
    /// them up for a while, in which more may be heard, and is then taken for lost.
    pub(crate) fn is_plausible(&mut self, rank: u32, step: u64) -> bool {
        let furthest = self.furthest();
        let is_own = self.own_ranks.contains(&rank) || rank as usize >= self.workers;
        if is_own || !self.is_beyond(step) {
            self.disputes.open = None;
            return true;
        }
        let now = self.now;
        let dispute = Dispute { rank, step, since: now };
        let open = *self.disputes.open.get_or_insert(dispute);
        if (open.rank, open.step) != (rank, step) {
            self.disputes.open = Some(dispute);
        } else if now >= open.since + DISPUTE_TIME {
            self.disputes.open = None;
            let reason =
                format!("it says that it is at step {step}, and nobody is beyond {furthest}");
            self.suspect(Evidence::Inferred, RunFailure::Lost { rank, reason });
        }
        false
    }
}
