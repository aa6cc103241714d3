//! Checkpoints: when models are evaluated and states saved, and what a run resumes from.

use std::any::Any;
use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use quelea_core::message::Rank;
use quelea_core::node::Node;
use quelea_core::payload::Pool;
use quelea_core::run_spec::RunSpec;
use quelea_core::state::Saved;
use quelea_core::time::Time;
use quelea_core::view::{View, ViewChange};

use crate::RankReport;

/// The steps of every worker after which models are evaluated or states saved.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CheckpointSchedule {
    /// The whole state is saved every `save_every` steps; 0 means only on request.
    pub save_every: u64,
    /// How often models are evaluated, evenly over `steps`. The last evaluation is at the end, of
    /// the models in the outcome.
    pub evaluations: u64,
    /// Steps of each worker.
    pub steps: u64,
}

impl CheckpointSchedule {
    /// Whether the state after this many steps is saved.
    pub fn saves_at(&self, step: u64) -> bool {
        step > 0 && self.save_every > 0 && step.is_multiple_of(self.save_every)
    }

    /// Whether the models after this many steps are evaluated.
    pub fn evaluates_at(&self, step: u64) -> bool {
        step > 0 && step < self.steps && self.passed(step) > self.passed(step - 1)
    }

    /// The next step after this one at which there is something to do.
    pub fn next(&self, step: u64) -> Option<u64> {
        let save = (self.save_every > 0).then(|| (step / self.save_every + 1) * self.save_every);
        let evaluate = (self.evaluations > 1).then(|| {
            let next = (self.passed(step) + 1) * u128::from(self.steps);
            next.div_ceil(u128::from(self.evaluations)) as u64
        });
        let evaluate = evaluate.filter(|evaluate| *evaluate < self.steps);
        [save, evaluate].into_iter().flatten().min()
    }

    /// The step that no worker may pass while checkpoints are written up to `durable_step`: that of
    /// the next checkpoint, so that a failure loses at most the work between two.
    pub fn limit(&self, durable_step: u64) -> u64 {
        match self.save_every {
            0 => u64::MAX,
            every => (durable_step / every).saturating_add(1).saturating_mul(every),
        }
    }

    fn passed(&self, step: u64) -> u128 {
        u128::from(step) * u128::from(self.evaluations) / u128::from(self.steps.max(1))
    }
}

/// One rank's part of a checkpoint.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankCheckpoint {
    /// Its whole state.
    pub state: Saved,
    /// Its totals until then, without parameters and model.
    pub report: RankReport,
    /// What ends when the part is not needed any more.
    pub turn: PartTurn,
}

/// Held by a part of a checkpoint that came from another process, until it is written: the next part
/// may come when it is dropped. A clone of a part holds nothing.
#[derive(Default)]
pub struct PartTurn(Option<Box<dyn Any + Send + Sync>>);

impl PartTurn {
    /// Drops `held` with the part.
    pub fn new(held: impl Any + Send + Sync) -> PartTurn {
        PartTurn(Some(Box::new(held)))
    }
}

impl Clone for PartTurn {
    fn clone(&self) -> PartTurn {
        PartTurn(None)
    }
}

impl PartialEq for PartTurn {
    /// Says nothing about the part.
    fn eq(&self, _: &PartTurn) -> bool {
        true
    }
}

impl fmt::Debug for PartTurn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "PartTurn(held)" } else { "PartTurn" })
    }
}

/// The state from which a run resumes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ResumePoint {
    /// Every rank's part; empty for a new run. That of a rank which was lost before has its steps and
    /// totals only.
    pub parts: Vec<RankCheckpoint>,
    /// The parts are of another number of ranks: the state that only the algorithm knows is reset.
    pub resized: bool,
    /// The run's clock.
    pub now: Time,
    /// The changes of membership until then.
    pub changes: Vec<ViewChange>,
    /// The rank joins a run with the last change; its part is another's.
    pub joins: bool,
}

impl ResumePoint {
    /// The view in which the run resumes.
    pub fn view(&self, setup: &RunSpec) -> Arc<View> {
        setup.views(&self.changes).pop().expect("the first view is there")
    }

    /// The ranks that were lost before.
    pub fn departed(&self) -> impl Iterator<Item = Rank> {
        ViewChange::absent(&self.changes).into_iter().map(|departed| departed.rank)
    }

    /// The ranks as which nobody takes part when the run starts or resumes: those that were lost or have
    /// left, and those that are kept for workers that join later.
    pub fn absent(&self, setup: &RunSpec) -> BTreeSet<Rank> {
        let view = self.view(setup);
        (0..setup.ranks()).map(Rank::from).filter(|rank| !view.is_alive(*rank)).collect()
    }

    /// The node of `rank`, with the state of its part.
    pub fn node(&self, setup: &RunSpec, rank: Rank, pool: Pool) -> Result<Node, String> {
        self.node_in(&self.view(setup), setup, rank, pool)
    }

    /// As [`node`](ResumePoint::node), in the view that this point has. The node of a rank that was
    /// lost is there to be looked at.
    pub fn node_in(
        &self,
        view: &Arc<View>,
        setup: &RunSpec,
        rank: Rank,
        pool: Pool,
    ) -> Result<Node, String> {
        let mut node = setup.node_in(view, rank, pool);
        let part = self.parts.get(rank.index());
        if let Some(part) = part.filter(|_| view.is_alive(rank)) {
            let loaded = if self.joins {
                node.load_of_sponsor(&part.state)
            } else if self.resized {
                node.load_common(&part.state)
            } else {
                node.load(&part.state)
            };
            loaded.map_err(|problem| format!("the state of {rank} does not fit: {problem}"))?;
            node.progress(self.steps(setup.seats()));
        }
        Ok(node)
    }

    /// The totals of `rank` until then.
    pub fn report(&self, rank: Rank) -> RankReport {
        self.parts.get(rank.index()).map(|part| part.report.clone()).unwrap_or_default()
    }

    /// Steps that the first `workers` ranks had taken together, as far as their parts are here.
    pub fn steps(&self, workers: usize) -> u64 {
        let workers_have_joined = self.changes.iter().any(|change| !change.joined.is_empty());
        if workers_have_joined {
            // One that joined continues at the step of another.
            return self.parts.iter().take(workers).map(|part| part.report.steps).sum();
        }
        self.parts.iter().take(workers).map(RankCheckpoint::step).sum()
    }
}

/// The vector of a worker's state that holds what the problem keeps of it.
pub const BUFFERS: &str = "buffers";

/// What the names of the numbers begin with in which the lowest worker's state has the books of the data that all
/// workers share.
pub const DATA_BOOKS: &str = "data.";

impl RankCheckpoint {
    /// The part of `node` in the checkpoint after `step` steps of the workers.
    pub fn of(node: &mut Node, step: u64, report: RankReport) -> RankCheckpoint {
        let mut state = node.save();
        if node.is_server {
            // A server takes no steps of its own; the resumed run needs the checkpoint's step.
            state.numbers.insert("step".to_string(), step);
        }
        RankCheckpoint { state, report, ..RankCheckpoint::default() }
    }

    /// Steps that this worker had taken.
    pub fn step(&self) -> u64 {
        self.state.numbers.get("step").copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn models_are_evaluated_exactly_as_often_as_asked_evenly_and_last_at_the_end() {
        for (steps, evaluations) in
            [(2000, 20), (30, 20), (2000, 7), (10, 4), (20, 20), (1001, 1000)]
        {
            let schedule = CheckpointSchedule { save_every: 0, evaluations, steps };
            let mut due: Vec<u64> =
                (0..=steps).filter(|step| schedule.evaluates_at(*step)).collect();
            due.push(steps);
            assert_eq!(due.len() as u64, evaluations, "{steps} steps");
            for (number, step) in due.iter().enumerate() {
                let even = (number as f64 + 1.0) * steps as f64 / evaluations as f64;
                assert!((*step as f64 - even).abs() <= 1.0, "{step} for {even} of {steps}");
            }
        }
        let schedule = |evaluations| CheckpointSchedule { save_every: 0, evaluations, steps: 10 };
        assert!(
            (0..=10).all(|step| !schedule(0).evaluates_at(step) && !schedule(1).evaluates_at(step))
        );
        assert!((1..10).all(|step| schedule(25).evaluates_at(step)), "at most one per step");
    }

    #[test]
    fn the_next_checkpoint_is_the_first_at_which_something_is_due() {
        for (save_every, evaluations, steps) in [(0, 7, 100), (3, 0, 20), (4, 5, 33), (0, 1, 9)] {
            let schedule = CheckpointSchedule { save_every, evaluations, steps };
            for step in 0..steps {
                let due = |at: &u64| schedule.saves_at(*at) || schedule.evaluates_at(*at);
                let next = (step + 1..=steps).find(due);
                assert_eq!(
                    schedule.next(step).filter(|next| *next <= steps),
                    next,
                    "{schedule:?} {step}"
                );
            }
        }
    }
}
