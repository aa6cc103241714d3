//! Where the controller lives in a run that survives it, and whether those who are left may continue.

use std::collections::BTreeSet;

use quelea_core::message::Rank;

use crate::controller::Controller;
use crate::directive::RunFailure;
use crate::membership::LossRefusal;
use crate::quorum::{MissingQuorum, NO_RANK, QuorumRule};
use crate::suspicion::Evidence;

/// The place of a controller whose run survives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControllerSeat {
    /// The rank in whose process it lives.
    pub rank: u32,
    /// Its term.
    pub term: u32,
    /// Who may continue.
    pub quorum: QuorumRule,
}

impl Controller {
    /// From now on the run survives this controller, which lives there.
    pub fn sit(&mut self, seat: ControllerSeat) {
        self.members.seat = Some(seat);
        self.members.named = seat.rank;
    }

    /// The term of a controller whose run survives it.
    pub fn term(&self) -> u32 {
        self.members.seat.map_or(0, |seat| seat.term)
    }

    /// Workers of the last agreed view that were not lost.
    fn present(&self) -> BTreeSet<u32> {
        let workers = self.members.view.workers.iter().map(|rank| rank.0);
        let living = workers.filter(|rank| !self.ranks[*rank as usize].is_lost());
        living.chain(self.members.seat.map(|seat| seat.rank)).collect()
    }

    /// Workers of the last agreed view, but for those who have left it with notice: they are on no side.
    pub(crate) fn voters(&self) -> Vec<Rank> {
        let has_left = |rank: &Rank| {
            let report = self.ranks[rank.index()].report.as_ref();
            report.is_some_and(|report| report.left)
        };
        self.members.view.workers.iter().copied().filter(|rank| !has_left(rank)).collect()
    }

    /// The run ends here if the rest of the last view could continue without those who are left.
    pub(crate) fn check_quorum(&mut self) {
        let Some(seat) = self.members.seat else { return };
        let (voters, present) = (self.voters(), self.present());
        if !seat.quorum.is_met(&voters, self.members.named, &present) {
            let error = RunFailure::NoQuorum(MissingQuorum::new(&voters, &present));
            self.suspect(Evidence::Own, error);
        }
    }

    /// A server cannot be lost: then the run ends.
    pub(crate) fn check_server(&mut self, rank: Rank) {
        let refusal = LossRefusal::of(&self.setup, &self.members.view, rank);
        if self.members.seat.is_some() && refusal == Some(LossRefusal::Server) {
            let reason = format!("lost {rank}: {}", LossRefusal::Server.consequence());
            self.suspect(Evidence::Own, RunFailure::Stalled(reason));
        }
    }

    /// A controller in a process without workers stores for itself.
    pub(crate) fn own_store(&self) -> BTreeSet<u32> {
        let seat = self.members.seat.map(|seat| seat.rank);
        seat.into_iter().filter(|rank| *rank == NO_RANK).collect()
    }
}
