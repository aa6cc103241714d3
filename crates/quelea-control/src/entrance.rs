//! Joining: a worker that is connected with all others takes the place of one that was lost, at a cut.
//!
//! The others stop at an agreed step, or come to rest. The state that the sponsor saved there is the
//! joiner's too; both enter the next view.

use std::collections::BTreeSet;

use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_record::{
    Observer, RankCheckpoint, RankReport, Record, RecordKind, Request, ResumePoint,
};

use crate::controller::{Controller, RunPhase};
use crate::membership::Membership;
use crate::suspicion::RankProgress;

/// A worker that enters the run now, with the state that it begins with.
#[derive(Clone, Debug, PartialEq)]
pub struct Entrance {
    /// Its rank.
    pub rank: u32,
    /// Its state, and the changes of membership until now, its own included.
    pub start: ResumePoint,
}

/// What workers have saved at one cut.
#[derive(Debug)]
struct SponsoredState {
    /// After how many steps.
    cut: u64,
    /// Of the lowest worker.
    part: RankCheckpoint,
    /// The step of the slowest one.
    slowest: u64,
}

impl SponsoredState {
    fn at(cut: u64) -> SponsoredState {
        SponsoredState { cut, part: RankCheckpoint::default(), slowest: u64::MAX }
    }

    /// What a joiner begins with.
    fn start(&self) -> RankCheckpoint {
        let mut part = self.part.clone();
        part.state.numbers.insert("step".to_string(), self.slowest);
        part
    }
}

/// Who waits to join.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    ranks: BTreeSet<u32>,
    /// Those who enter with the cut that is under way.
    entering: Vec<u32>,
    /// The state that they begin with, once it is saved.
    sponsored: Option<SponsoredState>,
    /// Those who have entered, for the driver.
    entrances: Vec<Entrance>,
    /// Since when there are fewer workers than the run wants, and others are waited for.
    pub(crate) short_since: Option<Time>,
}

impl Waiting {
    /// A cut begins, or is given up.
    pub(crate) fn reset(&mut self) {
        self.entering.clear();
        self.sponsored = None;
    }

    /// Whether nobody wants to join or is about to.
    pub(crate) fn is_empty(&self) -> bool {
        let is_wanted = !self.ranks.is_empty() || !self.entering.is_empty();
        !is_wanted && self.sponsored.is_none() && self.short_since.is_none()
    }

    /// How many wait to join.
    pub(crate) fn count(&self) -> usize {
        self.ranks.len()
    }

    /// All who wait enter with the cut that is under way.
    pub(crate) fn enter_all(&mut self) {
        self.entering = self.ranks.iter().copied().collect();
    }

    /// Whether somebody enters with the cut that is under way.
    pub(crate) fn are_due(&self) -> bool {
        !self.entering.is_empty() || self.short_since.is_some()
    }

    /// These were about to enter, and wait again.
    pub(crate) fn put_back(&mut self, ranks: &[Rank]) {
        self.ranks.extend(ranks.iter().map(|rank| rank.0));
    }

    /// Whether this rank waits to enter.
    pub(crate) fn remove(&mut self, rank: u32) -> bool {
        self.entering.retain(|entering| *entering != rank);
        self.ranks.remove(&rank)
    }
}

impl Controller {
    /// A worker is there, connected with all others, that could take the place of `rank`.
    pub fn join(&mut self, rank: u32) -> Result<(), String> {
        let progress = self.ranks.get(rank as usize).filter(|_| (rank as usize) < self.workers);
        if !progress.is_some_and(|progress| progress.is_lost()) {
            return Err(format!("worker {rank} is not missing"));
        }
        if self.members.is_entering(Rank(rank)) {
            return Err(format!("another worker enters as rank {rank}"));
        }
        if let Some(why) = self.setup.join_refusal() {
            return Err(format!("nobody can join this run: {why}"));
        }
        if self.is_ending() {
            return Err("the run is about to end".to_string());
        }
        let is_new = rank as usize >= self.setup.workers();
        if let Some(why) = self.growth_refusal(rank).filter(|_| is_new) {
            return Err(format!("the run cannot have more workers: {why}"));
        }
        self.members.waiting.ranks.insert(rank);
        Ok(())
    }

    /// Whether a worker that could not join as `rank` may try again: its predecessor's loss is not known
    /// yet.
    pub fn may_join_later(&self, rank: u32) -> bool {
        let progress = self.ranks.get(rank as usize);
        !self.is_ending() && progress.is_some_and(|progress| !progress.is_lost())
    }

    /// Why nobody can join in a new place as `rank`, if nobody can. Those who wait to join will be there too.
    fn growth_refusal(&self, rank: u32) -> Option<String> {
        let Membership { view, waiting, .. } = &self.members;
        let joining: Vec<Rank> = waiting.ranks.iter().copied().chain([rank]).map(Rank).collect();
        self.setup.growth_refusal(view, &joining)
    }

    /// Whether no gradient will be started any more. A run that rests for a checkpoint continues.
    pub(crate) fn is_ending(&self) -> bool {
        match self.phase {
            RunPhase::Running => false,
            RunPhase::Draining => self.cutting.is_idle(),
            RunPhase::Finishing | RunPhase::Salvaging => true,
        }
    }

    /// Who has entered since the last call; the driver starts them.
    pub fn take_entrances(&mut self) -> Vec<Entrance> {
        std::mem::take(&mut self.members.waiting.entrances)
    }

    /// What those who wait to join request: a cut at which they enter.
    pub(crate) fn request_of_joiners(&mut self) -> Request {
        let waiting = &mut self.members.waiting;
        waiting.enter_all();
        if waiting.are_due() { Request::Checkpoint } else { Request::Continue }
    }

    /// Keeps the state that the lowest worker has saved at the cut after `cut` steps, for those who enter.
    /// Where workers count by themselves, a joiner begins with the step of the slowest. Parts of an earlier
    /// cut, which some ranks' schedule has on the way to this one, do not count.
    pub(crate) fn sponsor(&mut self, rank: u32, cut: u64, part: &RankCheckpoint) {
        if !self.members.waiting.are_due() || rank as usize >= self.workers {
            return;
        }
        let is_first = self.members.view.workers.first() == Some(&Rank(rank));
        let sponsored = &mut self.members.waiting.sponsored;
        let kept = sponsored.get_or_insert_with(|| SponsoredState::at(cut));
        if kept.cut < cut {
            *kept = SponsoredState::at(cut);
        }
        if kept.cut > cut {
            return;
        }
        kept.slowest = kept.slowest.min(part.step());
        if is_first {
            kept.part = part.clone();
        }
    }

    /// All others have saved and those who enter have a sponsor: a view with them is agreed on.
    pub(crate) fn let_in(&mut self, observer: &mut dyn Observer) {
        let entering = std::mem::take(&mut self.members.waiting.entering);
        for rank in entering {
            self.members.waiting.ranks.remove(&rank);
            self.start_joining(Rank(rank));
        }
        self.finish_change_if_all_stand(observer);
    }

    /// A worker is in the new view.
    pub(crate) fn enter_run(&mut self, rank: Rank, observer: &mut dyn Observer) {
        let (place, now) = (rank.index(), self.now);
        let before = &self.ranks[place];
        let steps = before.steps_before + before.steps;
        self.ranks[place] =
            RankProgress { steps_before: steps, ..RankProgress::new(false, &self.limits, now) };
        self.lost -= 1;
        self.budget.revive(place);
        let sponsored = self.members.waiting.sponsored.as_ref();
        let mut part = sponsored.map(SponsoredState::start).unwrap_or_default();
        let (step, event) = (part.step(), RecordKind::Joined);
        // One before it in its place may have been further.
        let inherited = steps.saturating_sub(step);
        let progress = &mut self.ranks[place];
        (progress.position, progress.entered, progress.inherited_steps) = (step, step, inherited);
        part.report = RankReport { rank: rank.0, steps, ..RankReport::default() };
        let mut parts = vec![RankCheckpoint::default(); place];
        parts.push(part);
        let changes = self.members.changes.clone();
        let start = ResumePoint { parts, now, changes, joins: true, ..ResumePoint::default() };
        self.members.waiting.entrances.push(Entrance { rank: rank.0, start });
        self.warnings.push(format!("a worker joined as rank {rank} at step {step}", rank = rank.0));
        observer.record(Record { t: now.seconds(), rank: rank.0, step, event });
    }
}
