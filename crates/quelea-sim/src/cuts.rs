//! Cuts through a run: models that are evaluated, states that are saved.
//!
//! A synchronous algorithm is cut rank by rank, each as it passes the step; nothing waits. Others
//! have no such cut: no more gradients are started, everything comes to rest, all is saved, and
//! the run continues from what was saved.

use quelea_core::message::Rank;
use quelea_record::{BUFFERS, RankCheckpoint, Request, ResumePoint};

use crate::SimError;
use crate::driver::Driver;
use crate::rank_state::StepPhase;

/// The cut that is under way, besides those of every so many steps.
#[derive(Debug, Default)]
pub(crate) struct CutState {
    /// Of a synchronous run: the cut that was requested for, and how many parts are missing.
    requested: Option<(u64, usize)>,
    /// Of any other: the run is coming to rest, to be cut after so many steps.
    pausing: Option<u64>,
    /// The run ends with that cut.
    stop: bool,
}

impl CutState {
    /// Whether a worker after `step` steps starts no gradient.
    pub(crate) fn holds(&self, step: u64) -> bool {
        self.pausing.is_some() || (self.stop && self.requested.is_some_and(|(at, _)| step >= at))
    }
}

impl Driver<'_> {
    /// After every event: does what has become due.
    pub(crate) fn attend_cuts(&mut self) -> Result<(), SimError> {
        if let (Some((step, 0)), true) = (self.cutting.requested, self.cutting.stop) {
            return Err(SimError::Stopped { step });
        }
        let request = self.observer.request();
        if request != Request::Continue && self.is_whole() {
            self.request_cut(request);
        }
        if let Some(step) = self.cutting.pausing
            && self.ranks.iter().all(|state| state.phase.running().is_none())
        {
            self.rest_and_save(step)?;
        }
        Ok(())
    }

    /// After a loss there are no cuts: what the lost rank held is in none of them.
    fn is_whole(&self) -> bool {
        self.views.len() == 1 && self.living_workers == self.setup.workers()
    }

    fn request_cut(&mut self, request: Request) {
        let busy = self.cutting.pausing.is_some();
        let busy = busy || self.cutting.requested.is_some_and(|(_, missing)| missing > 0);
        if busy || self.unfinished < self.setup.workers() {
            return;
        }
        self.cutting.stop = request == Request::Stop;
        if !self.properties.synchronous {
            self.cutting.pausing = Some(self.steps_done / self.setup.workers() as u64);
            return;
        }
        // The first step that nobody has passed or been cut at.
        let first = self.ranks.iter().map(|state| {
            let busy = matches!(state.phase, StepPhase::Computing(_) | StepPhase::Completing(_));
            (state.node.step() + u64::from(busy)).max(state.cut + 1)
        });
        let at = first.max().unwrap_or(0);
        if at >= self.setup.steps {
            self.cutting.stop = false;
            return;
        }
        self.cutting.requested = Some((at, self.ranks.len()));
        (0..self.ranks.len()).for_each(|rank| self.cut_if_due(rank));
    }

    /// Takes this rank's part of the synchronous cuts that it has come to.
    pub(crate) fn cut_if_due(&mut self, rank: usize) {
        let none_due = self.schedule.save_every == 0 && self.cutting.requested.is_none();
        if none_due || !self.properties.synchronous || !self.is_whole() {
            return;
        }
        while let Some(step) = self.next_cut(rank) {
            self.ranks[rank].cut = step;
            let requested = self.cutting.requested.is_some_and(|(at, _)| at == step);
            if requested || self.schedule.saves_at(step) {
                self.save(rank, step);
            }
            if let Some((_, missing)) = self.cutting.requested.as_mut().filter(|_| requested) {
                *missing -= 1;
            }
        }
    }

    /// The cut at which this rank now stands, if there is one.
    fn next_cut(&self, rank: usize) -> Option<u64> {
        let state = &self.ranks[rank];
        let requested = self.cutting.requested.map(|(at, _)| at).filter(|at| *at > state.cut);
        let next = [requested, self.schedule.next(state.cut)].into_iter().flatten().min()?;
        let step = if state.node.is_server { next } else { state.node.step() };
        (step >= next && state.phase.unready().is_none() && state.node.is_at_cut(step))
            .then_some(step)
    }

    fn save(&mut self, rank: usize, step: u64) -> RankCheckpoint {
        let state = &mut self.ranks[rank];
        let mut part = RankCheckpoint::of(&mut state.node, step, state.report.clone());
        let buffers =
            if state.node.is_server { Vec::new() } else { self.problem.worker_state(rank) };
        if !buffers.is_empty() {
            part.state.vectors.insert(BUFFERS.to_string(), buffers);
        }
        self.observer.checkpoint(self.now, step, Rank::from(rank), part.clone());
        part
    }

    /// The workers have done so many steps on average.
    pub(crate) fn cut_on_average(&mut self, step: u64) {
        if self.schedule.evaluates_at(step) {
            self.gradients.complete();
            let models = self.models();
            self.observer.evaluate(self.now, step, models);
        }
        let due =
            self.schedule.saves_at(step) && !self.properties.synchronous && step < self.setup.steps;
        if due && self.is_whole() && self.unfinished == self.setup.workers() {
            self.cutting.pausing = Some(step);
        }
    }

    /// Nobody computes: lets everything come to rest, saves it, and continues from there.
    fn rest_and_save(&mut self, step: u64) -> Result<(), SimError> {
        self.drain()?;
        let parts = (0..self.ranks.len()).map(|rank| self.save(rank, step)).collect();
        if self.cutting.stop {
            return Err(SimError::Stopped { step });
        }
        let start = ResumePoint { parts, resized: false, now: self.now };
        for (rank, state) in self.ranks.iter_mut().enumerate() {
            let node = start.node(self.setup, Rank::from(rank), self.pool.clone());
            state.node = node.map_err(SimError::Resume)?;
            // A gradient whose step could not be completed is computed again.
            if state.phase.take_unready().is_some() {
                self.gradients_left += 1;
            }
        }
        self.cutting.pausing = None;
        for rank in 0..self.ranks.len() {
            self.ranks[rank].node.start(self.now);
            self.carry_out(rank);
        }
        (0..self.ranks.len()).for_each(|rank| self.settle(rank));
        Ok(())
    }
}
