//! One rank's part in cuts through the run: models that are evaluated, states that are saved.
//!
//! A synchronous algorithm is cut rank by rank, each as it passes the step; nobody waits. To agree
//! on a cut that no schedule has, every rank proposes the first step at which it can still take part,
//! and stops there until the latest proposal is agreed. Other algorithms come to rest, are saved, and
//! continue from there.

use std::sync::Arc;

use quelea_core::payload::Pool;
use quelea_core::properties::Budget;
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_record::{CheckpointSchedule, RankCheckpoint, RankReport, ResumePoint};

use super::{RankMachine, StepPhase};
use crate::member::RestState;
use crate::messages::{Command, RankEvent};

/// What a rank knows of cuts.
pub(super) struct CutState {
    setup: Arc<RunSpec>,
    pool: Pool,
    schedule: CheckpointSchedule,
    /// The next step of the schedule after `last`.
    scheduled: Option<u64>,
    /// The step of its last part in a cut: a checkpoint or a model that was evaluated.
    last: u64,
    /// The step of its last checkpoint. One may be requested where only the model was evaluated.
    saved: u64,
    /// The step of the last model that it sent for a cut.
    shown: u64,
    /// A cut that was agreed on.
    requested: Option<u64>,
    /// It starts no gradient from this step on.
    hold: Option<u64>,
    /// The same, until older checkpoints are written.
    limit: u64,
    /// Until which step they are, as far as is known.
    pub(super) durable: u64,
    /// It rests and has saved, and was not told to continue.
    is_saved: bool,
    pause: PauseState,
    /// Its model is wanted, for these steps.
    evaluations: Vec<u64>,
}

/// Whether a rank starts gradients while the run comes to rest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PauseState {
    /// It does.
    None,
    /// It does not; it may still compute one.
    Asked,
    /// It does not, and has said that it computes none.
    Confirmed,
}

impl CutState {
    pub(super) fn new(
        setup: Arc<RunSpec>,
        pool: Pool,
        schedule: CheckpointSchedule,
        step: u64,
        waits_for_disk: bool,
    ) -> CutState {
        CutState {
            setup,
            pool,
            schedule,
            scheduled: schedule.next(step),
            last: step,
            saved: step,
            shown: step,
            requested: None,
            hold: None,
            limit: if waits_for_disk { schedule.limit(step) } else { u64::MAX },
            durable: step,
            is_saved: false,
            pause: PauseState::None,
            evaluations: Vec::new(),
        }
    }

    /// Its last part in a cut is that of `step`.
    fn pass(&mut self, step: u64) {
        (self.last, self.scheduled) = (step, self.schedule.next(step));
    }

    /// Membership has changed. Parts of the view before belong to no cut any more: a rank that waits
    /// until its part is written saves again.
    pub(super) fn enter_view(&mut self) {
        self.requested.take_if(|requested| *requested <= self.last);
        if self.last == self.limit {
            self.pass(self.last - 1);
            self.saved = self.saved.min(self.last);
        }
    }
}

impl RankMachine {
    /// Where it is on the way to rest.
    pub(super) fn rest_state(&self) -> RestState {
        if self.cutting.is_saved {
            RestState::Saved
        } else if self.life_cycle.is_draining() {
            RestState::Resting
        } else if self.cutting.pause != PauseState::None {
            RestState::Paused
        } else {
            RestState::None
        }
    }

    /// Handles a command about cuts; returns any other.
    pub(super) fn cut_command(&mut self, now: Time, command: Command) -> Option<Command> {
        let rank = self.node.rank.0;
        match command {
            Command::ProposeCut => {
                let is_busy = u64::from(!matches!(self.phase, StepPhase::Ready));
                let step = (self.node.step() + is_busy).max(self.cutting.last + 1);
                self.cutting.hold = Some(step);
                self.events.push(RankEvent::CutProposal { rank, step });
            }
            Command::SaveAt { step, last } => {
                self.cutting.requested = Some(step);
                self.cutting.hold = last.then_some(step);
                self.events.push(RankEvent::CutAgreed { rank });
            }
            Command::Durable(step) => {
                self.cutting.durable = step;
                self.cutting.limit = self.cutting.schedule.limit(step);
            }
            Command::SendModel(step) => self.cutting.evaluations.push(step),
            Command::Pause => self.cutting.pause = PauseState::Asked,
            Command::Save(step) => self.save_at_rest(step),
            Command::Continue => {
                (self.cutting.pause, self.cutting.hold) = (PauseState::None, None);
                self.cutting.requested = None;
                self.cutting.is_saved = false;
                if self.life_cycle.resume() {
                    self.node.start(now);
                }
            }
            other => return Some(other),
        }
        None
    }

    /// Sends and saves what has become due.
    pub(super) fn cut_if_due(&mut self) {
        if !self.properties.synchronous {
            return self.show_if_asked();
        }
        while let Some(step) = self.next_cut() {
            self.cutting.pass(step);
            if self.cutting.requested == Some(step) || self.cutting.schedule.saves_at(step) {
                self.cutting.saved = step;
                let part = self.part(step);
                self.send_part(step, part);
            }
            if self.cutting.schedule.evaluates_at(step) && step > self.cutting.shown {
                self.cutting.shown = step;
                self.show(step);
            }
        }
    }

    /// The cut at which this rank now stands, if there is one.
    fn next_cut(&self) -> Option<u64> {
        let CutState { scheduled, last, saved, requested, .. } = &self.cutting;
        // Where only the model was evaluated, the state may still be requested.
        let requested = requested
            .filter(|requested| requested > last || (requested == last && saved < requested));
        let next = [requested, *scheduled].into_iter().flatten().min()?;
        let step = if self.node.is_server { next } else { self.node.step() };
        let is_between = !matches!(self.phase, StepPhase::Completing(_));
        (step >= next && is_between && self.node.is_at_cut(step)).then_some(step)
    }

    /// Whether the parameters are here: while a gradient is computed they may be lent.
    fn has_params(&self) -> bool {
        !self.is_computing() || self.properties.snapshot
    }

    fn show_if_asked(&mut self) {
        if self.has_params() {
            self.show_now();
        }
    }

    /// Answers requests for the model with `params`, which the driver has lent for a gradient.
    pub fn show_lent(&mut self, params: &[f32]) {
        for step in std::mem::take(&mut self.cutting.evaluations) {
            let (rank, model) = (self.node.rank.0, params.to_vec());
            self.events.push(RankEvent::Model { rank, step, model });
        }
    }

    /// Answers requests for the model with the parameters that are here, although a gradient is computed.
    pub fn show_now(&mut self) {
        let evaluations = std::mem::take(&mut self.cutting.evaluations);
        evaluations.into_iter().for_each(|step| self.show(step));
    }

    fn show(&mut self, step: u64) {
        let (rank, model) = (self.node.rank.0, self.node.model());
        self.events.push(RankEvent::Model { rank, step, model });
    }

    /// A copy of the state: the only one that is made.
    fn part(&mut self, step: u64) -> RankCheckpoint {
        let report = RankReport { params: Vec::new(), model: Vec::new(), ..self.report.clone() };
        RankCheckpoint::of(&mut self.node, step, report)
    }

    fn send_part(&mut self, step: u64, part: RankCheckpoint) {
        let (rank, view) = (self.node.rank.0, self.node.view().number);
        self.events.push(RankEvent::Saved { rank, step, view, part: Box::new(part) });
    }

    /// Says that the rank computes no gradient, and will not start one, if that was asked.
    pub(super) fn confirm_pause(&mut self) {
        if self.cutting.pause == PauseState::Asked && !self.is_computing() {
            self.cutting.pause = PauseState::Confirmed;
            self.events.push(RankEvent::Paused { rank: self.node.rank.0 });
        }
    }

    /// Whether no gradient is to be started now.
    pub(super) fn is_held(&mut self) -> bool {
        if self.is_aborted() {
            return true;
        }
        if self.frozen_until.is_some() {
            self.was_frozen = true;
            return true;
        }
        if self.cutting.pause != PauseState::None {
            return true;
        }
        let limit = if self.properties.synchronous { self.cutting.limit } else { u64::MAX };
        self.node.step() >= self.cutting.hold.unwrap_or(u64::MAX).min(limit)
    }

    /// Everything has come to rest: saves it, and stands ready to continue from what was saved.
    fn save_at_rest(&mut self, step: u64) {
        let part = self.part(step);
        self.cutting.is_saved = true;
        // A gradient whose step could not be completed is computed again.
        let was_pending = matches!(self.phase, StepPhase::Completing(_));
        self.phase = StepPhase::Ready;
        if was_pending && self.properties.budget == Budget::TotalGradients {
            self.budget.give_back();
        }
        let mut parts = vec![RankCheckpoint::default(); self.node.rank.index()];
        parts.push(part);
        let mut start = ResumePoint { parts, ..ResumePoint::default() };
        let (view, pool) = (self.node.view(), self.cutting.pool.clone());
        let resumed = start.node_in(view, &self.cutting.setup, self.node.rank, pool);
        let part = start.parts.pop().expect("it was just put there");
        self.send_part(step, part);
        match resumed {
            Ok(mut node) => {
                // Its own part does not say how far the others are.
                node.progress(self.node.gradients_done());
                let before = std::mem::replace(&mut self.node, node);
                self.node.take_over(before);
            }
            Err(problem) => self.failed(problem),
        }
    }
}
