//! Two sides that do not reach each other: who notices, and when nobody is left.

use quelea_control::RunFailure;
use quelea_core::message::Rank;
use quelea_core::time::Time;

use crate::SimError;
use crate::driver::Driver;
use crate::faults::SplitLink;

impl Driver<'_> {
    /// Both sides of a partition notice that they do not reach the other.
    pub(crate) fn split(&mut self, number: usize) {
        let ranks = self.ranks.len();
        let split = &self.cluster.faults.splits[number];
        let is_apart = |a: usize, b: usize| split.separates(a as u32, b as u32);
        if let Some(home) = self.home.place.filter(|_| !self.home.is_gone) {
            self.is_controller_told = true;
            for rank in (0..ranks).filter(|rank| is_apart(home, *rank)) {
                if self.ranks[rank].is_alive() {
                    self.controller.lose(self.now, rank as u32, self.now, self.observer);
                }
            }
            self.exchange_control();
        }
        for rank in 0..ranks {
            for peer in (0..ranks).filter(|peer| is_apart(rank, *peer)) {
                self.learn_loss(rank, peer);
            }
        }
    }

    /// How much later a message between two ranks arrives because their sides are split, if it does.
    pub(crate) fn split_delay(&self, a: usize, b: usize) -> Option<Time> {
        let since = self.ranks[a].since.max(self.ranks[b].since);
        let link = SplitLink { ends: [a as u32, b as u32], since };
        self.cluster.faults.split_delay(link, self.now, self.cluster.detect_ms)
    }

    /// The controller's side has no quorum: it ends, and the other may continue.
    pub(crate) fn end_side(&mut self, error: RunFailure) -> Result<(), SimError> {
        let RunFailure::NoQuorum(missing) = error else {
            return Err(SimError::Resume(error.to_string()));
        };
        self.home.missing = Some(missing);
        if let Some(rank) = self.home.place {
            self.end_rank(rank);
        }
        Ok(())
    }

    /// An error if nobody is left: all sides have ended for want of a quorum.
    pub(crate) fn check_sides(&self) -> Result<(), SimError> {
        if self.living_workers > 0 {
            return Ok(());
        }
        let at = self.now;
        match (&self.home.missing, self.home.place) {
            (Some(missing), _) => Err(SimError::NoQuorum { at, missing: missing.clone() }),
            (None, Some(rank)) => Err(SimError::AllWorkersLost { rank: Rank::from(rank), at }),
            (None, None) => Ok(()),
        }
    }
}
