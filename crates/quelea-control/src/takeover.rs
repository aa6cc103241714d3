//! How a controller takes over from one that is gone: it puts the state together from the shares of all who
//! are within reach, and continues with a view without those who are not.
//!
//! What the one before had begun is either finished or begun anew: a view that was being stored is the next
//! one; ranks that were on the way to rest go on, or continue if some have saved; any other cut is given up.
//! Gradients that the lost process has done and told nobody of are computed again.

use std::sync::Arc;

use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_core::view::ViewChange;
use quelea_record::{Observer, RankReport, Record, RecordKind, Request, ResumePoint};

use crate::controller::{Controller, ControllerConfig, RunPhase};
use crate::directive::{Recipient, RunFailure};
use crate::member::{Inheritance, MemberState, RestState};
use crate::membership::{LossPolicy, LossRefusal, Membership};
use crate::messages::Command;
use crate::quorum::{NO_RANK, QuorumRule};
use crate::seat::ControllerSeat;
use crate::suspicion::{Evidence, RankPhase};

impl Controller {
    /// The controller that takes over at `now` with this inheritance; `config` is that of the run.
    pub fn take_over(
        config: ControllerConfig<'_>,
        now: Time,
        inheritance: &Inheritance,
        quorum: QuorumRule,
        observer: &mut dyn Observer,
    ) -> Controller {
        let mut controller = Controller::new(config, now);
        let log = inheritance.log();
        let changes: Vec<ViewChange> = log.iter().map(|entry| entry.change.clone()).collect();
        let view = config.setup.views(&changes).pop().expect("the first view is there");
        let named = log.last().map_or(inheritance.before, |entry| entry.controller);
        let Inheritance { term, rank, .. } = *inheritance;
        let seat = Some(ControllerSeat { rank, term, quorum });
        controller.members = Membership::new(view, changes);
        (controller.members.seat, controller.members.named) = (seat, named);
        controller.inherit_progress(config, inheritance);
        for record in inheritance.members.iter().flat_map(|member| &member.records) {
            observer.record(record.clone());
        }
        controller.tell_of_loss(inheritance, observer);
        let missing = controller.strike_out_missing(inheritance, observer);
        controller.continue_phase(inheritance);
        controller.catch_up(inheritance);
        controller.leave_out(missing, inheritance, observer);
        controller
    }

    fn tell_of_loss(&mut self, inheritance: &Inheritance, observer: &mut dyn Observer) {
        let &Inheritance { rank, before, .. } = inheritance;
        let step = inheritance.member(rank).map_or(0, |own| own.steps_before + own.steps);
        let (t, event) = (self.now.seconds(), RecordKind::TookOver);
        observer.record(Record { t, rank, step, event });
        let who = if before == NO_RANK {
            "the coordinator's process".to_string()
        } else {
            format!("the process of rank {before}, which controlled the run,")
        };
        self.warnings.push(format!("{who} was lost; that of rank {rank} took over"));
    }

    /// How far everybody is, and what is left of the budget.
    fn inherit_progress(&mut self, config: ControllerConfig<'_>, inheritance: &Inheritance) {
        let (start, workers) = (config.start, self.workers);
        let begun = start.steps(workers);
        // Steps and grants since the run began or was resumed.
        let (mut steps, mut granted) = (0, 0);
        for (rank, progress) in self.ranks.iter_mut().enumerate() {
            let before = start.report(Rank::from(rank)).steps;
            (progress.report, progress.steps) = (None, 0);
            if progress.is_lost() {
                // Whether it is here is said by the members alone.
                progress.phase = RankPhase::Finished;
            }
            if let Some(member) = inheritance.member(rank as u32) {
                let is_finished = member.is_finished || rank >= workers;
                progress.phase =
                    if is_finished { RankPhase::Finished } else { RankPhase::Training };
                (progress.steps_before, progress.steps) = (member.steps_before, member.steps);
                progress.position = member.position;
                progress.entered = member.position.saturating_sub(member.steps);
                progress.inherited_steps = member.steps_before.saturating_sub(progress.entered);
                let earlier = member.steps_before.saturating_sub(before);
                if rank < workers {
                    steps += earlier + member.steps;
                    granted += earlier + member.granted.max(member.steps);
                }
            }
        }
        let departed_steps = self.strike_out_absent(start);
        (steps, granted) = (steps + departed_steps, granted + departed_steps);
        let told = inheritance.members.iter().map(|member| member.done).max().unwrap_or(0);
        let untold = told.saturating_sub(begun + steps);
        self.done = begun + steps + untold;
        // A controller without workers has done no steps: others have, and are gone too.
        if inheritance.member(inheritance.before).is_none()
            && let Some(before) = self.ranks.get_mut(inheritance.before as usize)
        {
            before.steps_before += untold;
        }
        let left = self.total.saturating_sub(begun + granted + untold);
        for member in inheritance.members.iter().filter(|member| (member.rank as usize) < workers) {
            self.budget.inherit(left, member.rank as usize, member.granted);
        }
        self.budget.inherit_data(&inheritance.members);
        let durable = inheritance.members.iter().map(|member| member.durable).max().unwrap_or(0);
        let positions = inheritance.members.iter().map(|member| member.position);
        self.inherit_cuts(durable, positions.max().unwrap_or(0));
    }

    /// Nothing is expected of those who are not in the last agreed view. The steps that they have done since
    /// the run began or was resumed.
    fn strike_out_absent(&mut self, start: &ResumePoint) -> u64 {
        self.lost = 0;
        let (view, departed) =
            (Arc::clone(&self.members.view), ViewChange::absent(&self.members.changes));
        let mut steps = 0;
        for rank in (0..self.ranks.len()).map(Rank::from).filter(|rank| !view.is_alive(*rank)) {
            let before = start.report(rank);
            let Some(gone) = departed.iter().find(|gone| gone.rank == rank) else {
                // A place that nobody has taken yet.
                self.strike_out(rank.0, before);
                continue;
            };
            self.ranks[rank.index()].steps_before = gone.steps;
            let report = RankReport { steps: gone.steps, left: gone.left, ..RankReport::default() };
            self.strike_out(rank.0, report);
            steps += gone.steps.saturating_sub(before.steps);
        }
        steps
    }

    /// Continues where the one before has stopped: running, coming to rest, draining, or reporting.
    fn continue_phase(&mut self, inheritance: &Inheritance) {
        let members = &inheritance.members;
        if members.iter().any(|member| member.is_aborted) {
            let reason = "the run was being aborted when the process that controlled it was lost";
            return self.suspect(Evidence::Own, RunFailure::Stalled(reason.to_string()));
        }
        if members.iter().any(|member| member.has_reported) {
            self.enter(RunPhase::Finishing);
            return self.order(Recipient::All, Command::Finish);
        }
        let is_any = |rest: RestState| members.iter().any(|member| member.rest == rest);
        let has_saved = is_any(RestState::Saved);
        let has_ended =
            members.iter().all(|member| member.is_finished || member.rank as usize >= self.workers);
        let step = self.mean_step();
        for member in members {
            let to = Recipient::Rank(member.rank);
            if has_saved && member.rest == RestState::Resting {
                self.order(to, Command::Save(step));
            }
            if has_saved || member.rest != RestState::Resting {
                self.order(to, Command::Continue);
            }
        }
        if !has_ended && !has_saved && is_any(RestState::Resting) {
            self.rest_with_others();
        } else if has_saved || is_any(RestState::Paused) {
            let durable = self.cutting.written_before();
            self.cutting.inherit(durable, Some(Request::Checkpoint));
        }
    }

    /// Tells those who lack some of the agreed views.
    fn catch_up(&mut self, inheritance: &Inheritance) {
        for MemberState { rank, log, .. } in &inheritance.members {
            for change in self.members.changes.iter().skip(log.len()).cloned().collect::<Vec<_>>() {
                self.order(Recipient::Rank(*rank), Command::View(change));
            }
        }
    }

    /// From now on nothing is expected of those who are not within reach.
    fn strike_out_missing(
        &mut self,
        inheritance: &Inheritance,
        observer: &mut dyn Observer,
    ) -> Vec<Rank> {
        let view = self.members.view.clone();
        let members = view.workers.iter().chain(&view.servers).copied();
        let missing: Vec<Rank> =
            members.filter(|rank| inheritance.member(rank.0).is_none()).collect();
        for rank in &missing {
            self.refuse_if_needed(*rank);
            let steps = self.ranks[rank.index()].steps_before;
            self.strike_out(rank.0, RankReport { steps, ..RankReport::default() });
            let (t, rank, step) = (self.now.seconds(), rank.0, steps);
            observer.record(Record { t, rank, step, event: RecordKind::Lost });
        }
        for rank in &missing {
            let reason = "the others took this process for lost and continued without it";
            self.order(Recipient::Rank(rank.0), Command::Abort(reason.to_string()));
        }
        self.check_quorum();
        missing
    }

    /// The others agree on a view without those who are missing.
    fn leave_out(
        &mut self,
        missing: Vec<Rank>,
        inheritance: &Inheritance,
        observer: &mut dyn Observer,
    ) {
        if let Some(pending) = inheritance.pending() {
            self.members.inherit(pending.entry.change, missing);
            self.announce_storing();
        } else if self.phase != RunPhase::Finishing && !missing.is_empty() {
            self.freeze(missing, Vec::new());
            self.finish_change_if_all_stand(observer);
        }
        if self.phase == RunPhase::Running {
            self.end_if_finished();
        }
    }

    /// Whether the run cannot continue without `rank`: then it ends.
    fn refuse_if_needed(&mut self, rank: Rank) {
        let refusal = match self.on_loss {
            LossPolicy::Continue { min_workers } => self.loss_refusal(rank.0, min_workers),
            LossPolicy::Stop => None,
        };
        let refusal = refusal.or(LossRefusal::of(&self.setup, &self.members.view, rank));
        if refusal == Some(LossRefusal::TooFew) && self.fall_short() {
            return;
        }
        if let Some(refusal) = refusal {
            let reason = format!("lost {rank}: {}", refusal.consequence());
            self.suspect(Evidence::Own, RunFailure::Stalled(reason));
        }
    }

    /// Those whom an inherited view leaves out although they were heard take part no more. One who was to join
    /// may have begun, and begins anew.
    pub(crate) fn exclude(&mut self, change: &ViewChange) {
        for rank in &change.joined {
            let reason = "the process that controlled the run was lost while this one joined";
            self.order(Recipient::Rank(rank.0), Command::Abort(reason.to_string()));
        }
        for gone in &change.departed {
            if !self.ranks[gone.rank.index()].is_lost() {
                let (steps, left) = (gone.steps, gone.left);
                self.strike_out(gone.rank.0, RankReport { steps, left, ..RankReport::default() });
                let reason = "the others took this process for lost and continued without it";
                self.order(Recipient::Rank(gone.rank.0), Command::Abort(reason.to_string()));
            }
        }
    }
}
