//! Agreement on a consistent cut through a run: where checkpoints are taken and models evaluated.
//!
//! A synchronous run is cut at a step: by its schedule, or, on request, at the latest step that any rank
//! proposes. Any other run comes to rest, is saved, and continues.

mod evaluation;
mod held;
mod inherited;
mod late;

use std::collections::{BTreeMap, BTreeSet};

use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_record::{CheckpointSchedule, Observer, RankCheckpoint, Request};

use crate::controller::{Controller, RunPhase};
use crate::directive::{Recipient, RunFailure};
use crate::messages::Command;
use crate::suspicion::RankProgress;

/// How often the observer is asked for its requests.
const POLL_INTERVAL: Time = Time(50_000_000);
/// How many cuts may be evaluated or saved in part; a rank that never answers must not fill the memory.
const CUTS_AT_ONCE: usize = 8;

/// What the controller knows of cuts.
#[derive(Debug, Default)]
pub(crate) struct CutAgreement {
    schedule: CheckpointSchedule,
    synchronous: bool,
    /// Steps of each worker.
    steps: u64,
    stage: Stage,
    /// Checkpoints until this step are written, as all ranks know.
    durable: u64,
    /// Which ranks have saved at the last steps at which some did. One whose schedule has a cut
    /// there may save before it learns that this step was agreed on.
    saved: BTreeMap<u64, BTreeSet<u32>>,
    /// The run ends with the cut that is under way.
    stop: bool,
    /// Ranks stay where they are after the cut that is under way, until they are told to continue.
    holds: bool,
    /// Why the run ends, where nobody has asked for it.
    reason: Option<String>,
    /// Some ranks rest already, and cannot continue before they have saved: a loss does not interrupt.
    must_rest: bool,
    /// Checkpoints until this step were written before this controller took over.
    written_before: u64,
    /// Some rank can be cut only after its last step.
    is_near_end: bool,
    /// No cut begins for the time being.
    is_held: bool,
    /// What a cut was for that a change of membership has interrupted.
    retry: Option<Request>,
    /// Models by step, of those ranks that have sent theirs.
    models: BTreeMap<u64, BTreeMap<u32, Vec<f32>>>,
}

/// Where the cut that is under way stands.
#[derive(Debug, Default)]
enum Stage {
    #[default]
    None,
    /// Every rank is asked where it can still be cut; the answers.
    Proposing(BTreeMap<u32, u64>),
    /// Every rank saves there. Servers learn of it first, because a server that does not know must not
    /// be passed; this many of them have not confirmed.
    Saving { step: u64, unconfirmed: usize },
    /// Nobody starts a gradient any more; these ranks may still compute one.
    Pausing { step: u64, awaited: BTreeSet<u32> },
    /// What is pending comes to rest.
    Resting { step: u64 },
    /// All ranks have saved; they continue when it is written.
    Writing { step: u64 },
    /// All ranks of a synchronous run have saved; they continue when enough workers have joined.
    Holding,
}

impl CutAgreement {
    pub(crate) fn new(schedule: CheckpointSchedule, synchronous: bool, steps: u64) -> CutAgreement {
        CutAgreement { schedule, synchronous, steps, ..CutAgreement::default() }
    }

    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.stage, Stage::None)
    }

    /// The run ends with the next cut, for this reason.
    pub(crate) fn give_reason(&mut self, reason: String) {
        self.reason = Some(reason);
    }
}

impl Controller {
    /// Whether ranks may have to wait for a cut.
    pub(crate) fn rests_for_cuts(&self) -> bool {
        self.cutting.schedule.save_every > 0 || !self.cutting.is_idle()
    }

    /// Whether nothing becomes due by itself: the run runs, nobody is suspected, leaves or joins, and no cut
    /// is under way or to be tried again.
    pub fn is_at_rest(&self) -> bool {
        let is_undisturbed = self.may_cut() && !self.watches && self.trouble.is_none();
        let has_cut = self.cutting.retry.is_some() || self.members.is_wanted_to_change();
        is_undisturbed && !has_cut && !self.has_orders()
    }

    /// How soon to ask the observer again: ranks wait while a checkpoint is written.
    pub(crate) fn observer_interval(&self) -> Time {
        let last = self.cutting.saved.keys().next_back().copied().unwrap_or(0);
        let is_awaited = last > self.cutting.durable;
        if is_awaited { Time(POLL_INTERVAL.0 / 64) } else { POLL_INTERVAL }
    }

    /// Asks the observer what it requests, and does what has become due.
    pub(crate) fn attend_cuts(&mut self, observer: &mut dyn Observer) {
        let durable = if self.waits_for_disk { observer.durable_step() } else { u64::MAX };
        let durable = durable.max(self.cutting.written_before);
        let held = self.cutting.synchronous && self.cutting.schedule.save_every > 0;
        if durable != std::mem::replace(&mut self.cutting.durable, durable) && held {
            self.order(Recipient::All, Command::Durable(durable));
        }
        self.continue_after_cut(durable, observer);
        self.agree_on_cut();
        self.give_way_to_gathering();
        // Parts of different views do not fit together.
        if !self.may_cut() || self.cutting.is_near_end {
            return;
        }
        let mut request = self.cutting.retry.take().unwrap_or_else(|| observer.request());
        if request == Request::Continue && !self.members.is_wanted_to_change() {
            self.cutting.reason = None;
            return;
        }
        self.members.notices.reset();
        self.members.waiting.reset();
        if request != Request::Stop {
            self.cutting.reason = None;
            request = match self.request_of_leavers() {
                Request::Continue => match self.request_of_joiners() {
                    Request::Continue => request,
                    of_joiners => of_joiners,
                },
                of_leavers => of_leavers,
            };
        }
        if request == Request::Continue {
            return;
        }
        // A run that is about to end is not held up.
        let has_ended = |progress: &RankProgress| progress.is_finished() && !progress.is_lost();
        if self.ranks[..self.workers].iter().any(has_ended) {
            return;
        }
        self.cutting.stop = request == Request::Stop;
        if self.cutting.synchronous {
            self.cutting.stage = Stage::Proposing(BTreeMap::new());
            self.order(Recipient::All, Command::ProposeCut);
        } else {
            self.pause(self.mean_step());
        }
    }

    /// A step was completed: asks for what an asynchronous run evaluates and saves at this many steps
    /// on average.
    pub(crate) fn cut_on_average(&mut self) {
        let workers = self.setup.workers() as u64;
        if self.cutting.synchronous || !self.done.is_multiple_of(workers) {
            return;
        }
        let step = self.done / workers;
        if self.cutting.schedule.evaluates_at(step) {
            self.order(Recipient::All, Command::SendModel(step));
        }
        if !self.cutting.schedule.saves_at(step) || step >= self.cutting.steps {
            return;
        }
        if self.may_cut() {
            self.pause(step);
        } else if self.is_unsettled() {
            self.cutting.retry.get_or_insert(Request::Checkpoint);
        }
    }

    /// Whether a cut may begin now.
    fn may_cut(&self) -> bool {
        let is_running = self.phase == RunPhase::Running;
        is_running && self.cutting.is_idle() && !self.is_unsettled() && !self.is_gathered_for()
    }

    /// Whether ranks that stop where they are could be waited for in a call that all loops make together
    /// outside the run. Those of a synchronous run make it at the same step, which is cut before or after it.
    fn is_gathered_for(&self) -> bool {
        // Asked after every event: only loops outside gather.
        self.is_external && !self.cutting.synchronous && self.gathering() > 0
    }

    /// Lets a run continue whose ranks stop for a cut while others wait for them outside the run.
    fn give_way_to_gathering(&mut self) {
        if matches!(self.cutting.stage, Stage::Pausing { .. }) && self.is_gathered_for() {
            self.interrupt_cut();
        }
    }

    /// Whether some ranks may be in another view than others.
    fn is_unsettled(&self) -> bool {
        self.members.is_changing() || self.cutting.is_held
    }

    fn pause(&mut self, step: u64) {
        let ranks = 0..self.ranks.len() as u32;
        let awaited = ranks.filter(|rank| !self.ranks[*rank as usize].is_lost()).collect();
        self.cutting.stage = Stage::Pausing { step, awaited };
        self.order(Recipient::All, Command::Pause);
    }

    pub(crate) fn cut_proposal(&mut self, rank: u32, step: u64) {
        let Stage::Proposing(answers) = &mut self.cutting.stage else { return };
        answers.insert(rank, step);
        self.agree_on_cut();
    }

    /// Agrees on the latest step that was proposed, once all have proposed one.
    fn agree_on_cut(&mut self) {
        let Stage::Proposing(answers) = &self.cutting.stage else { return };
        if answers.len() < self.ranks.len() - self.lost {
            return;
        }
        let latest = answers.iter().map(|(rank, step)| (*step, *rank)).max();
        let Some((step, rank)) = latest else { return };
        if !self.is_plausible(rank, step) {
            return;
        }
        if step >= self.cutting.steps {
            // Steps only grow: there is no room for a cut on request any more.
            self.cutting.is_near_end = true;
            self.cutting.stage = Stage::None;
            self.cutting.stop = false;
            // Ranks that have ended meanwhile must not start again.
            if self.phase == RunPhase::Running {
                self.order(Recipient::All, Command::Continue);
            }
            return;
        }
        let (ranks, unconfirmed) = (self.ranks.len(), self.ranks.len() - self.workers);
        self.cutting.stage = Stage::Saving { step, unconfirmed };
        self.announce_cut(step, self.workers..ranks);
        if unconfirmed == 0 {
            self.announce_cut(step, 0..self.workers);
        }
    }

    pub(crate) fn cut_agreed(&mut self, rank: u32) {
        let Stage::Saving { step, unconfirmed } = &mut self.cutting.stage else { return };
        if rank as usize >= self.workers && *unconfirmed > 0 {
            *unconfirmed -= 1;
            if *unconfirmed == 0 {
                let step = *step;
                self.announce_cut(step, 0..self.workers);
            }
        }
    }

    fn announce_cut(&mut self, step: u64, ranks: std::ops::Range<usize>) {
        let changes = self.members.notices.are_due() || self.members.waiting.are_due();
        let last = self.cutting.stop || changes;
        self.cutting.holds = last;
        for rank in ranks.filter(|rank| !self.ranks[*rank].is_lost()).collect::<Vec<_>>() {
            self.order(Recipient::Rank(rank as u32), Command::SaveAt { step, last });
        }
    }

    pub(crate) fn paused(&mut self, rank: u32) {
        let Stage::Pausing { awaited, .. } = &mut self.cutting.stage else { return };
        awaited.remove(&rank);
        self.rest_if_all_paused();
    }

    fn rest_if_all_paused(&mut self) {
        let Stage::Pausing { step, awaited } = &self.cutting.stage else { return };
        if awaited.is_empty() {
            self.cutting.stage = Stage::Resting { step: *step };
            self.cutting.must_rest = false;
            self.drain();
        }
    }

    /// Nothing is on its way any more. Whether that was for a cut.
    pub(crate) fn save_at_rest(&mut self, observer: &mut dyn Observer) -> bool {
        let Stage::Resting { step } = self.cutting.stage else { return false };
        if self.attend_leavers_at_rest(observer) {
            return true;
        }
        // Workers that count by themselves may have saved after as many steps on average.
        self.cutting.saved.remove(&step);
        self.cutting.stage = Stage::Saving { step, unconfirmed: 0 };
        self.order(Recipient::All, Command::Save(step));
        true
    }

    /// A rank was lost. What is coming to rest for a cut does so without it. A cut in any other stage is
    /// given up, the others continue, and it is tried again in the view to come: a rank that has saved
    /// must have continued before it hears of a change, or its state would not follow.
    pub(crate) fn interrupt_cut(&mut self) {
        let ranks = &self.ranks;
        if let Stage::Pausing { awaited, .. } = &mut self.cutting.stage
            && self.cutting.must_rest
        {
            awaited.retain(|rank| !ranks[*rank as usize].is_lost());
            return self.rest_if_all_paused();
        }
        if matches!(self.cutting.stage, Stage::None | Stage::Resting { .. }) {
            return;
        }
        let is_whole = matches!(self.cutting.stage, Stage::Writing { .. });
        let request = if self.cutting.stop { Request::Stop } else { Request::Checkpoint };
        self.cutting.retry = (!is_whole).then_some(request);
        self.cutting.stage = Stage::None;
        self.cutting.stop = false;
        // A synchronous run whose ranks have ended meanwhile is not started again.
        if !self.cutting.synchronous || self.phase == RunPhase::Running {
            self.enter(RunPhase::Running);
            self.order(Recipient::All, Command::Continue);
        }
    }

    /// Membership has changed: the parts of cuts that are not whole belong to no cut any more.
    pub(crate) fn forget_parts(&mut self) {
        self.cutting.saved.clear();
    }

    /// A rank's part of a checkpoint has come.
    pub(crate) fn saved(
        &mut self,
        rank: u32,
        step: u64,
        mut part: RankCheckpoint,
        observer: &mut dyn Observer,
    ) {
        // The rank that was lost is missing in what is saved until the others have the new view.
        if self.members.is_changing() {
            return;
        }
        let is_agreed =
            matches!(self.cutting.stage, Stage::Saving { step: agreed, .. } if agreed == step);
        let is_due = is_agreed || self.cutting.synchronous && self.cutting.schedule.saves_at(step);
        let saved = &mut self.cutting.saved;
        // What nobody waits for, and what was saved before, is not written.
        if !is_due || !saved.entry(step).or_default().insert(rank) {
            return;
        }
        if saved.len() > CUTS_AT_ONCE {
            saved.pop_first();
        }
        self.sponsor(rank, step, &part);
        if self.members.view.workers.first() == Some(&Rank(rank)) {
            self.budget.save_data(&mut part.state);
        }
        observer.checkpoint(self.now, step, Rank(rank), part);
    }

    /// Continues, or ends the run, if all ranks know of the cut and have saved. An error: it ends.
    pub(crate) fn end_saving_if_whole(
        &mut self,
        observer: &mut dyn Observer,
    ) -> Result<(), RunFailure> {
        let Stage::Saving { step, unconfirmed: 0 } = self.cutting.stage else { return Ok(()) };
        if self.cutting.saved.get(&step).map_or(0, BTreeSet::len) != self.living() {
            return Ok(());
        }
        let rests = !self.cutting.synchronous;
        self.cutting.stage = if rests { Stage::Writing { step } } else { Stage::None };
        if self.cutting.stop {
            let reason = self.cutting.reason.take().unwrap_or_else(|| "as asked".to_string());
            return Err(RunFailure::Stopped { step, reason });
        }
        if self.members.notices.are_due() {
            self.let_go(observer);
        } else if !rests && self.is_held_for_joiners() {
            self.cutting.stage = Stage::Holding;
        } else if !rests && self.members.waiting.are_due() {
            if self.members.waiting.short_since.is_some() {
                self.end_holding();
            }
            self.let_in(observer);
        } else if !rests && self.cutting.holds {
            // Whoever wanted to join is gone.
            self.order(Recipient::All, Command::Continue);
        }
        Ok(())
    }
}
