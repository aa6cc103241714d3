//! Cuts through a run: when models are shown and states saved, and what a run goes on from.

use quelea_core::message::Rank;
use quelea_core::node::{Node, RunSpec};
use quelea_core::payload::Pool;
use quelea_core::state::Saved;
use quelea_core::time::Time;

use crate::RankReport;

/// At which steps of every worker something is to be shown or saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cuts {
    /// The whole state is saved every so many steps; 0 means never by itself.
    pub save_every: u64,
    /// Models are shown so many times, evenly over `steps`, the last time at the end, where the
    /// outcome has them.
    pub shows: u64,
    /// Steps of each worker.
    pub steps: u64,
}

impl Cuts {
    /// Whether the state after this many steps is saved.
    pub fn saves_at(&self, step: u64) -> bool {
        step > 0 && self.save_every > 0 && step.is_multiple_of(self.save_every)
    }

    /// Whether the models after this many steps are shown.
    pub fn shows_at(&self, step: u64) -> bool {
        step > 0 && step < self.steps && self.passed(step) > self.passed(step - 1)
    }

    /// The next step after this one at which there is something to do.
    pub fn next(&self, step: u64) -> Option<u64> {
        let save = (self.save_every > 0).then(|| (step / self.save_every + 1) * self.save_every);
        let show = (self.shows > 1).then(|| {
            let next = (self.passed(step) + 1) * u128::from(self.steps);
            next.div_ceil(u128::from(self.shows)) as u64
        });
        let show = show.filter(|show| *show < self.steps);
        [save, show].into_iter().flatten().min()
    }

    /// The step that no worker may pass while all cuts until `safe` are written: that of the next
    /// cut, so that never more is lost than what is done between two.
    pub fn limit(&self, safe: u64) -> u64 {
        match self.save_every {
            0 => u64::MAX,
            every => (safe / every).saturating_add(1).saturating_mul(every),
        }
    }

    fn passed(&self, step: u64) -> u128 {
        u128::from(step) * u128::from(self.shows) / u128::from(self.steps.max(1))
    }
}

/// One rank's part of a cut, or of what a run goes on from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Part {
    /// Its whole state.
    pub state: Saved,
    /// What it has done until then, without parameters and model.
    pub report: RankReport,
}

/// What a run goes on from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Start {
    /// Every rank's part; empty for a run that begins.
    pub parts: Vec<Part>,
    /// The parts are of another number of ranks, and what only the algorithm knows begins anew.
    pub anew: bool,
    /// The run's clock.
    pub now: Time,
}

impl Start {
    /// The node of `rank`, as it was.
    pub fn node(&self, setup: &RunSpec, rank: Rank, pool: Pool) -> Result<Node, String> {
        let mut node = setup.node(rank, pool);
        if let Some(part) = self.parts.get(rank.index()) {
            let loaded = match self.anew {
                true => node.load_common(&part.state),
                false => node.load(&part.state),
            };
            loaded.map_err(|problem| format!("the state of {rank} does not fit: {problem}"))?;
        }
        Ok(node)
    }

    /// What `rank` had done.
    pub fn report(&self, rank: Rank) -> RankReport {
        self.parts.get(rank.index()).map(|part| part.report.clone()).unwrap_or_default()
    }

    /// Steps that the first `workers` ranks had done together.
    pub fn steps(&self, workers: usize) -> u64 {
        self.parts.iter().take(workers).map(Part::step).sum()
    }
}

impl Part {
    /// The part of `node` in the cut after `step` steps of the workers.
    pub fn of(node: &mut Node, step: u64, report: RankReport) -> Part {
        let mut state = node.save();
        if node.is_server {
            // It takes no steps of its own; who goes on from here must know which cut is behind it.
            state.numbers.insert("step".to_string(), step);
        }
        Part { state, report }
    }

    /// Steps that this worker had done.
    pub fn step(&self) -> u64 {
        self.state.numbers.get("step").copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exactly_so_many_models_are_shown_evenly_and_the_last_at_the_end() {
        for (steps, shows) in [(2000, 20), (30, 20), (2000, 7), (10, 4), (20, 20), (1001, 1000)] {
            let cuts = Cuts { save_every: 0, shows, steps };
            let mut due: Vec<u64> = (0..=steps).filter(|step| cuts.shows_at(*step)).collect();
            due.push(steps);
            assert_eq!(due.len() as u64, shows, "{steps} steps");
            for (number, step) in due.iter().enumerate() {
                let even = (number as f64 + 1.0) * steps as f64 / shows as f64;
                assert!((*step as f64 - even).abs() <= 1.0, "{step} for {even} of {steps}");
            }
        }
        let cuts = |shows| Cuts { save_every: 0, shows, steps: 10 };
        assert!((0..=10).all(|step| !cuts(0).shows_at(step) && !cuts(1).shows_at(step)));
        assert!((1..10).all(|step| cuts(25).shows_at(step)), "at most one per step");
    }

    #[test]
    fn the_next_cut_is_the_first_at_which_something_is_due() {
        for (save_every, shows, steps) in [(0, 7, 100), (3, 0, 20), (4, 5, 33), (0, 1, 9)] {
            let cuts = Cuts { save_every, shows, steps };
            for step in 0..steps {
                let due = |at: &u64| cuts.saves_at(*at) || cuts.shows_at(*at);
                let next = (step + 1..=steps).find(due);
                assert_eq!(cuts.next(step).filter(|next| *next <= steps), next, "{cuts:?} {step}");
            }
        }
    }
}
