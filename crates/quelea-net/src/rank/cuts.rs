//! One rank's part in cuts through the run: models that are evaluated, states that are saved.
//!
//! A synchronous algorithm is cut rank by rank, each as it passes the step; nobody waits. To agree
//! on a cut that no schedule has, every rank proposes the first step at which it can still take part,
//! and stops there until the latest proposal is agreed. Other algorithms come to rest, are saved, and
//! continue from there.

use quelea_core::payload::Pool;
use quelea_core::properties::Budget;
use quelea_core::run_spec::RunSpec;
use quelea_record::{CheckpointSchedule, RankCheckpoint, RankReport, ResumePoint};

use super::RankState;
use crate::protocol::{Command, RankEvent};

/// What a rank knows of cuts.
pub(crate) struct CutState {
    pub(super) setup: RunSpec,
    pub(super) pool: Pool,
    pub(super) schedule: CheckpointSchedule,
    /// The step of its last part in a cut.
    last: u64,
    /// A cut that was agreed on.
    requested: Option<u64>,
    /// It starts no gradient from this step on.
    hold: Option<u64>,
    /// The same, until older cuts are written.
    limit: u64,
    /// It starts none at all, and whether it has said that it computes none.
    pausing: Option<bool>,
    /// Its model is wanted, for these steps.
    evaluations: Vec<u64>,
}

impl CutState {
    pub(crate) fn new(
        setup: RunSpec,
        pool: Pool,
        schedule: CheckpointSchedule,
        step: u64,
    ) -> CutState {
        let (requested, hold, pausing, evaluations) = (None, None, None, Vec::new());
        let limit = schedule.limit(step);
        CutState { setup, pool, schedule, last: step, requested, hold, limit, pausing, evaluations }
    }
}

impl RankState {
    /// Handles a command about cuts; returns any other.
    pub(super) fn cut_command(&mut self, command: Command) -> Option<Command> {
        let rank = self.node.rank.0;
        match command {
            Command::ProposeCut => {
                let busy = u64::from(self.computing_since.is_some() || self.pending.is_some());
                let step = (self.node.step() + busy).max(self.cutting.last + 1);
                self.cutting.hold = Some(step);
                self.tell(RankEvent::CutProposal { rank, step });
            }
            Command::SaveAt { step, last } => {
                self.cutting.requested = Some(step);
                self.cutting.hold = last.then_some(step);
                self.tell(RankEvent::CutAgreed { rank });
            }
            Command::Durable(step) => self.cutting.limit = self.cutting.schedule.limit(step),
            Command::SendModel(step) => self.cutting.evaluations.push(step),
            Command::Pause => self.cutting.pausing = Some(false),
            Command::Save(step) => self.save_at_rest(step),
            Command::Continue => {
                (self.cutting.pausing, self.cutting.hold) = (None, None);
                if self.life_cycle.resume() {
                    self.node.start(self.moved);
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
            self.cutting.last = step;
            if self.cutting.requested == Some(step) || self.cutting.schedule.saves_at(step) {
                self.split_time();
                self.save(step);
            }
            if self.cutting.schedule.evaluates_at(step) {
                self.show(step);
            }
        }
    }

    /// The cut at which this rank now stands, if there is one.
    fn next_cut(&self) -> Option<u64> {
        let CutState { schedule, last, requested, .. } = &self.cutting;
        let requested = requested.filter(|requested| requested > last);
        let next = [requested, schedule.next(*last)].into_iter().flatten().min()?;
        let step = if self.node.is_server { next } else { self.node.step() };
        (step >= next && self.pending.is_none() && self.node.is_at_cut(step)).then_some(step)
    }

    /// While a gradient is computed the parameters may be elsewhere; then they are awaited.
    fn show_if_asked(&mut self) {
        let here = self.computing_since.is_none() || self.properties.snapshot;
        if here {
            let evaluations = std::mem::take(&mut self.cutting.evaluations);
            evaluations.into_iter().for_each(|step| self.show(step));
        }
    }

    fn show(&self, step: u64) {
        self.tell(RankEvent::Model { rank: self.node.rank.0, step, model: self.node.model() });
    }

    fn save(&mut self, step: u64) -> RankCheckpoint {
        let report = RankReport { params: Vec::new(), model: Vec::new(), ..self.report.clone() };
        let part = RankCheckpoint::of(&mut self.node, step, report);
        let saved = Box::new(part.clone());
        self.tell(RankEvent::Saved { rank: self.node.rank.0, step, part: saved });
        part
    }

    /// Whether no gradient is to be started now.
    pub(super) fn is_held(&mut self) -> bool {
        if self.is_broken_off() {
            return true;
        }
        if let Some(told) = &mut self.cutting.pausing {
            if !*told && self.computing_since.is_none() {
                *told = true;
                self.tell(RankEvent::Paused { rank: self.node.rank.0 });
            }
            return true;
        }
        let limit = if self.properties.synchronous { self.cutting.limit } else { u64::MAX };
        self.node.step() >= self.cutting.hold.unwrap_or(u64::MAX).min(limit)
    }

    /// Everything has come to rest: saves it, and stands ready to go on from what was saved.
    fn save_at_rest(&mut self, step: u64) {
        self.split_time();
        let part = self.save(step);
        // A gradient whose step could not be completed is computed again.
        if self.pending.take().is_some() && self.properties.budget == Budget::TotalGradients {
            self.tickets.held += 1;
        }
        self.idle = None;
        let mut parts = vec![RankCheckpoint::default(); self.node.rank.index()];
        parts.push(part);
        let start = ResumePoint { parts, ..ResumePoint::default() };
        match start.node(&self.cutting.setup, self.node.rank, self.cutting.pool.clone()) {
            Ok(mut node) => {
                // Its own part does not say how far the others are.
                node.progress(self.node.gradients_done());
                self.node = node;
            }
            Err(problem) => self.failed(problem),
        }
    }
}
