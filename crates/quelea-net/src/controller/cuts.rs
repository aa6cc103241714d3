//! What the controller does for cuts through a run: agrees on them, lets a run rest, puts together
//! what ranks show.

use std::collections::BTreeMap;
use std::time::Duration;

use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_record::{CheckpointSchedule, Models, RankCheckpoint, Request};

use super::{Controller, POLL_INTERVAL, RunPhase};
use crate::error::NetError;
use crate::protocol::Command;

/// What the controller knows of cuts.
#[derive(Debug, Default)]
pub(super) struct CutAgreement {
    pub(super) schedule: CheckpointSchedule,
    synchronous: bool,
    /// Steps of each worker.
    steps: u64,
    stage: Stage,
    /// Cuts until this step are written, as all ranks know.
    durable: u64,
    /// How many ranks have saved at the last steps at which some did. One whose schedule has a cut
    /// there may do so before it is told that this is the step.
    saved: BTreeMap<u64, usize>,
    /// The run ends with the cut that is under way.
    stop: bool,
    /// Models by step, of those ranks that have shown theirs.
    shown: BTreeMap<u64, BTreeMap<u32, Vec<f32>>>,
}

/// Where the cut that is under way stands.
#[derive(Debug, Default)]
enum Stage {
    #[default]
    None,
    /// Every rank is asked where it can still be cut; the answers.
    Proposing(BTreeMap<u32, u64>),
    /// Every rank saves there. Servers are told first, because a server that does not know must not
    /// be passed; so many of them have not said that they know.
    Saving { step: u64, unknowing: usize },
    /// Nobody starts a gradient any more.
    Pausing { step: u64, left: usize },
    /// What is pending comes to rest.
    Resting { step: u64 },
    /// All who rest have saved; they go on when it is written.
    Writing { step: u64 },
}

/// How many cuts may be shown or saved in part; a rank that never does must not fill the memory.
const CUTS_AT_ONCE: usize = 8;

impl CutAgreement {
    pub(super) fn new(schedule: CheckpointSchedule, synchronous: bool, steps: u64) -> CutAgreement {
        CutAgreement { schedule, synchronous, steps, ..CutAgreement::default() }
    }
}

impl Controller<'_> {
    /// Whether ranks may have to wait for a cut.
    pub(super) fn rests_for_cuts(&self) -> bool {
        self.cutting.schedule.save_every > 0 || !matches!(self.cutting.stage, Stage::None)
    }

    /// How soon to look after cuts again: ranks wait while one is written.
    pub(super) fn poll_interval(&self) -> Duration {
        let last = self.cutting.saved.keys().next_back().copied().unwrap_or(0);
        if last > self.cutting.durable { POLL_INTERVAL / 64 } else { POLL_INTERVAL }
    }

    /// Asks what is requested for; does what has become due.
    pub(super) fn attend_cuts(&mut self) {
        let durable = self.observer.durable_step();
        let held = self.cutting.synchronous && self.cutting.schedule.save_every > 0;
        if durable != std::mem::replace(&mut self.cutting.durable, durable) && held {
            self.tell_all(&Command::Durable(durable));
        }
        if matches!(self.cutting.stage, Stage::Writing { step } if step <= durable) {
            self.cutting.stage = Stage::None;
            self.enter(RunPhase::Running);
            self.tell_all(&Command::Continue);
            self.end_if_finished();
        }
        if self.phase != RunPhase::Running || !matches!(self.cutting.stage, Stage::None) {
            return;
        }
        let request = self.observer.request();
        // A run that is about to end is not held up.
        let ends = self.ranks[..self.workers].iter().any(|progress| progress.finished);
        if request == Request::Continue || ends {
            return;
        }
        self.cutting.stop = request == Request::Stop;
        if self.cutting.synchronous {
            self.cutting.stage = Stage::Proposing(BTreeMap::new());
            self.tell_all(&Command::ProposeCut);
        } else {
            self.pause(self.done / self.workers as u64);
        }
    }

    /// So many steps are done in all: asks for what an asynchronous run shows and saves then.
    pub(super) fn cut_on_average(&mut self) {
        let workers = self.workers as u64;
        if self.cutting.synchronous || !self.done.is_multiple_of(workers) {
            return;
        }
        let step = self.done / workers;
        if self.cutting.schedule.evaluates_at(step) {
            self.tell_all(&Command::SendModel(step));
        }
        let free = matches!(self.cutting.stage, Stage::None) && self.phase == RunPhase::Running;
        if free && self.cutting.schedule.saves_at(step) && step < self.cutting.steps {
            self.pause(step);
        }
    }

    fn pause(&mut self, step: u64) {
        self.cutting.stage = Stage::Pausing { step, left: self.links.len() };
        self.tell_all(&Command::Pause);
    }

    pub(super) fn cut_proposal(&mut self, rank: u32, step: u64) {
        let Stage::Proposing(answers) = &mut self.cutting.stage else { return };
        answers.insert(rank, step);
        if answers.len() < self.links.len() {
            return;
        }
        let step = answers.values().copied().max().unwrap_or(0);
        if step >= self.cutting.steps {
            self.cutting.stage = Stage::None;
            self.cutting.stop = false;
            // Ranks that have ended meanwhile are not to begin again.
            if self.phase == RunPhase::Running {
                self.tell_all(&Command::Continue);
            }
            return;
        }
        let (ranks, unknowing) = (self.links.len(), self.links.len() - self.workers);
        self.cutting.stage = Stage::Saving { step, unknowing };
        self.tell_of(step, self.workers..ranks);
        if unknowing == 0 {
            self.tell_of(step, 0..self.workers);
        }
    }

    pub(super) fn cut_agreed(&mut self, rank: u32) {
        let Stage::Saving { step, unknowing, .. } = &mut self.cutting.stage else { return };
        if rank as usize >= self.workers && *unknowing > 0 {
            *unknowing -= 1;
            if *unknowing == 0 {
                let step = *step;
                self.tell_of(step, 0..self.workers);
            }
        }
    }

    fn tell_of(&mut self, step: u64, ranks: std::ops::Range<usize>) {
        let last = self.cutting.stop;
        ranks.for_each(|rank| self.tell(rank as u32, Command::SaveAt { step, last }));
    }

    pub(super) fn paused(&mut self) {
        let Stage::Pausing { step, left } = &mut self.cutting.stage else { return };
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.cutting.stage = Stage::Resting { step: *step };
            self.drain();
        }
    }

    /// Nothing is on its way any more. Whether that was for a cut.
    pub(super) fn save_at_rest(&mut self) -> bool {
        let Stage::Resting { step } = self.cutting.stage else { return false };
        // Workers that count by themselves may have been saved after as many steps on average.
        self.cutting.saved.remove(&step);
        self.cutting.stage = Stage::Saving { step, unknowing: 0 };
        self.tell_all(&Command::Save(step));
        true
    }

    /// A rank's part of a cut has come.
    pub(super) fn saved(&mut self, rank: u32, at: u64, part: RankCheckpoint) {
        self.observer.checkpoint(self.now(), at, Rank(rank), part);
        let saved = &mut self.cutting.saved;
        *saved.entry(at).or_default() += 1;
        if saved.len() > CUTS_AT_ONCE {
            saved.pop_first();
        }
    }

    /// Goes on, or ends the run, if all know of the cut and have saved. An error is that it ends.
    pub(super) fn end_saving_if_whole(&mut self) -> Result<(), NetError> {
        let Stage::Saving { step: at, unknowing: 0 } = self.cutting.stage else { return Ok(()) };
        if self.cutting.saved.get(&at) != Some(&self.links.len()) {
            return Ok(());
        }
        let rests = !self.cutting.synchronous;
        self.cutting.stage = if rests { Stage::Writing { step: at } } else { Stage::None };
        if self.cutting.stop { Err(NetError::Stopped { step: at }) } else { Ok(()) }
    }

    /// A rank has shown its model; once all have, they are passed on.
    pub(super) fn model(&mut self, rank: u32, step: u64, model: Vec<f32>) {
        let shown = self.cutting.shown.entry(step).or_default();
        shown.insert(rank, model);
        if shown.len() < self.links.len() {
            if self.cutting.shown.len() > CUTS_AT_ONCE {
                self.cutting.shown.pop_first();
            }
            return;
        }
        let all = self.cutting.shown.remove(&step).unwrap_or_default();
        let (workers, servers) = all
            .into_iter()
            .map(|(rank, model)| (Rank(rank), model))
            .partition(|(rank, _)| rank.index() < self.workers);
        self.observer.evaluate(self.now(), step, Models { workers, servers });
    }

    fn now(&self) -> Time {
        self.clock.now()
    }
}
