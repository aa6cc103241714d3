//! The right to compute gradients, where all workers together have a number of them.

use std::collections::BTreeSet;

use quelea_core::properties::Budget;
use quelea_core::run_spec::DataAssignment;
use quelea_core::state::Saved;
use quelea_record::{DataBooks, ResumePoint};

use crate::controller::ControllerConfig;
use crate::ledger::{DataLedger, RankUnits};
use crate::member::MemberState;

/// The controller's side: how many are left, and who was granted how many.
#[derive(Debug)]
pub(crate) struct GradientBudget {
    /// Whether there is a common budget at all; else every worker does its rounds.
    is_shared: bool,
    left: u64,
    granted: Vec<u64>,
    /// Where workers share the data: what there is to be handed out, instead of `left`.
    ledger: Option<DataLedger>,
    /// Workers that would compute now, and wait for a unit that somebody may not confirm.
    waiting: BTreeSet<usize>,
}

/// In the place of what a worker was granted that is lost: it asks for no more.
const LOST: u64 = u64::MAX - 1;

/// The answer to a request for a gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BudgetAnswer {
    /// It may be computed: of this unit, where workers share the data.
    Granted(Option<u64>),
    /// There are no more.
    Exhausted,
    /// Not yet: the worker asks again when it needs it.
    Later,
}

impl GradientBudget {
    /// Of a run, as it starts or resumes.
    pub(crate) fn of(config: ControllerConfig<'_>) -> GradientBudget {
        let ControllerConfig { setup, start, .. } = config;
        let is_shared = setup.properties().budget == Budget::TotalGradients;
        let (total, seats) = (setup.workers() as u64 * setup.steps, setup.seats());
        let left = total.saturating_sub(start.steps(seats));
        let mut budget = GradientBudget::new(is_shared, left, seats);
        if is_shared && setup.data == DataAssignment::Shared && !config.is_external {
            budget.share_data(total, start);
        }
        budget
    }

    fn new(is_shared: bool, left: u64, workers: usize) -> GradientBudget {
        let (ledger, waiting) = (None, BTreeSet::new());
        GradientBudget { is_shared, left, granted: vec![0; workers], ledger, waiting }
    }

    /// Every gradient is of one of `total` units of data, of which those that `start` has were confirmed.
    fn share_data(&mut self, total: u64, start: &ResumePoint) {
        let mut ledger = DataLedger::new(total);
        start.parts.iter().for_each(|part| ledger.load(&part.state));
        self.ledger = Some(ledger);
    }

    /// Adds the books of the shared data to a part of a checkpoint.
    pub(crate) fn save_data(&self, state: &mut Saved) {
        if let Some(ledger) = &self.ledger {
            ledger.save(state);
        }
    }

    /// What the summary says of the shared data.
    pub(crate) fn books(&self) -> Option<DataBooks> {
        self.ledger.as_ref().map(DataLedger::books)
    }

    /// All units of shared data below are confirmed.
    pub(crate) fn settled(&self) -> u64 {
        self.ledger.as_ref().map_or(0, DataLedger::settled)
    }

    /// `worker` has used `unit`. Whether it can have.
    pub(crate) fn confirm(&mut self, worker: usize, unit: u64) -> bool {
        self.ledger.as_mut().is_some_and(|ledger| ledger.confirm(worker, unit))
    }

    /// Somebody who waits, and a unit for it that was handed to another before.
    pub(crate) fn serve_waiting(&mut self) -> Option<(usize, u64)> {
        let worker = *self.waiting.first()?;
        let unit = self.ledger.as_mut()?.hand_out(worker)?;
        self.waiting.remove(&worker);
        self.granted[worker] += 1;
        Some((worker, unit))
    }

    /// What can be granted now.
    fn left(&self) -> u64 {
        self.ledger.as_ref().map_or(self.left, DataLedger::available)
    }

    /// Whether gradients are counted in all.
    pub(crate) fn is_shared(&self) -> bool {
        self.is_shared
    }

    /// Whether the last gradient was granted, or, where workers share the data, is done.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.is_shared && self.ledger.as_ref().map_or(self.left == 0, DataLedger::is_complete)
    }

    /// How many `worker` was granted, where they are counted.
    pub(crate) fn granted(&self, worker: usize) -> Option<u64> {
        self.granted.get(worker).copied().filter(|_| self.is_shared)
    }

    /// `worker` was lost after `done` gradients, or has left: those that it was granted and has not completed
    /// are computed by others.
    pub(crate) fn lose(&mut self, worker: usize, done: u64, has_left: bool) {
        self.waiting.remove(&worker);
        if let Some(ledger) = &mut self.ledger {
            ledger.take_back(worker, !has_left);
        }
        if let Some(granted) = self.granted.get_mut(worker).filter(|granted| **granted != LOST) {
            self.left += granted.saturating_sub(done);
            *granted = LOST;
        }
    }

    /// A worker has joined in the place of `worker`: it has been granted nothing.
    pub(crate) fn revive(&mut self, worker: usize) {
        self.granted[worker] = 0;
    }

    /// As a new controller finds it: `left` beyond those that `worker` was `granted`.
    pub(crate) fn inherit(&mut self, left: u64, worker: usize, granted: u64) {
        self.left = left;
        self.granted[worker] = granted;
    }

    /// The same for shared data.
    pub(crate) fn inherit_data(&mut self, members: &[MemberState]) {
        if let Some(ledger) = &mut self.ledger {
            ledger.inherit(members);
        }
    }

    /// `worker` asks for its gradient number `number`, from 1. One that is wanted soon is granted while
    /// there are plenty; near the end only one that is computed now, so that no worker holds the right
    /// to a gradient while others are idle. Nothing for a request that was answered before.
    pub(crate) fn request(
        &mut self,
        worker: usize,
        number: u64,
        urgent: bool,
    ) -> Option<BudgetAnswer> {
        if !self.is_shared || number != self.granted[worker] + 1 {
            return None;
        }
        if self.is_exhausted() {
            return Some(BudgetAnswer::Exhausted);
        }
        if !urgent && self.left() <= 2 * self.granted.len() as u64 {
            return Some(BudgetAnswer::Later);
        }
        let unit = match &mut self.ledger {
            Some(ledger) => {
                let Some(unit) = ledger.hand_out(worker) else {
                    // Others hold the last ones, and may be lost.
                    self.waiting.insert(worker);
                    return Some(BudgetAnswer::Later);
                };
                Some(unit)
            }
            None => {
                self.left -= 1;
                None
            }
        };
        self.granted[worker] += 1;
        Some(BudgetAnswer::Granted(unit))
    }
}

/// A rank's side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RankBudget {
    /// Granted in all.
    granted: u64,
    /// Granted and not used.
    held: u64,
    /// One is asked for, and whether that was urgent.
    asked: Option<bool>,
    /// There are no more.
    is_denied: bool,
    /// Which data they are of, where workers share them.
    pub(crate) units: RankUnits,
}

impl RankBudget {
    /// Whether there are none left for this rank.
    pub(crate) fn is_exhausted(&self) -> bool {
        self.is_denied && self.held == 0
    }

    /// The number of the gradient to ask for, unless that was done as urgently, or there are none.
    pub(crate) fn ask(&mut self, urgent: bool) -> Option<u64> {
        if self.is_denied || self.asked >= Some(urgent) {
            return None;
        }
        self.asked = Some(urgent);
        Some(self.granted + 1)
    }

    /// How many were granted in all.
    pub(crate) fn granted(&self) -> u64 {
        self.granted
    }

    /// The one that was asked is gone.
    pub(crate) fn ask_again(&mut self) {
        self.asked = None;
    }

    pub(crate) fn grant(&mut self) {
        self.granted += 1;
        self.held += 1;
        self.asked = None;
    }

    pub(crate) fn deny(&mut self) {
        // Shared data are denied when all are confirmed.
        self.units.settle(u64::MAX);
        self.is_denied = true;
        self.asked = None;
    }

    /// Uses one, if there is one.
    pub(crate) fn take(&mut self) -> bool {
        let has_one = self.held > 0;
        self.held -= u64::from(has_one);
        has_one
    }

    /// A gradient that was begun counts as not computed.
    pub(crate) fn give_back(&mut self) {
        self.units.give_back();
        self.held += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_gradients_are_granted_than_there_are_and_the_last_ones_only_if_urgent() {
        let mut budget = GradientBudget::new(true, 5, 2);
        assert_eq!(budget.request(0, 1, false), Some(BudgetAnswer::Granted(None)));
        assert_eq!(budget.request(0, 2, false), Some(BudgetAnswer::Later));
        for number in 1..=4 {
            assert_eq!(budget.request(1, number, true), Some(BudgetAnswer::Granted(None)));
        }
        assert_eq!(budget.request(0, 2, true), Some(BudgetAnswer::Exhausted));
    }

    #[test]
    fn a_request_that_was_answered_is_not_answered_again() {
        let mut budget = GradientBudget::new(true, 5, 1);
        assert_eq!(budget.request(0, 1, true), Some(BudgetAnswer::Granted(None)));
        assert_eq!(budget.request(0, 1, true), None);
        assert_eq!(GradientBudget::new(false, 5, 1).request(0, 1, true), None);
    }

    #[test]
    fn a_rank_asks_again_only_more_urgently_and_not_after_the_last() {
        let mut rank = RankBudget::default();
        assert_eq!([rank.ask(false), rank.ask(false), rank.ask(true)], [Some(1), None, Some(1)]);
        rank.grant();
        assert!(rank.take() && !rank.take());
        assert_eq!(rank.ask(true), Some(2));
        rank.deny();
        assert_eq!(rank.ask(true), None);
    }
}
