//! Controllers that others have taken over from, and that do not know it yet.

use quelea_control::{Command, Controller, Directive, Recipient};

use crate::driver::Driver;
use crate::rank_state::RankState;

/// A controller that others have taken over from.
pub(crate) struct DeposedController {
    pub(crate) rank: usize,
    pub(crate) controller: Controller,
}

impl Driver<'_> {
    /// Sends what a controller commands whose term is over.
    pub(super) fn send_old_orders(&mut self, rank: usize) {
        let old = self.home.deposed.iter_mut().find(|old| old.rank == rank);
        let Some(old) = old else { return };
        let term = old.controller.term();
        let orders: Vec<_> = old.controller.take_orders().collect();
        for order in orders {
            self.send_command(Some(rank), term, order);
        }
    }

    /// Lets controllers act whose term is over, and who do not know it.
    pub(crate) fn attend_deposed(&mut self) {
        let ranks: Vec<usize> = self.home.deposed.iter().map(|old| old.rank).collect();
        for rank in ranks {
            if !self.ranks[rank].is_alive() {
                self.home.deposed.retain(|old| old.rank != rank);
                continue;
            }
            if self.ranks[rank].paused_until() > self.now {
                continue;
            }
            let (now, observer) = (self.now, &mut *self.observer);
            let deposed = &mut self.home.deposed;
            let Some(old) = deposed.iter_mut().find(|old| old.rank == rank) else { continue };
            let ended = old.controller.poll(now, observer);
            self.send_old_orders(rank);
            match ended {
                Ok(None) => {}
                Ok(Some(_)) => {
                    self.home.violation = Some(format!("rank {rank} ended the run after its term"));
                }
                Err(_) => self.end_rank(rank),
            }
        }
    }

    /// A controller that stood still says that it is alive; if its term is over, it learns that.
    pub(super) fn show_life(&mut self, rank: usize) {
        let is_here = self.home.place == Some(rank) && !self.home.is_gone;
        let deposed = self.home.deposed.iter().find(|old| old.rank == rank);
        let term = deposed.map(|old| old.controller.term());
        let Some(term) = term.or(is_here.then(|| self.controller.term())) else { return };
        self.tell_deposed();
        let order = Directive { to: Recipient::All, command: Command::Heartbeat };
        self.send_command(Some(rank), term, order);
    }

    /// Controllers whose term is over notice too who is gone.
    pub(crate) fn tell_deposed(&mut self) {
        let gone = |(rank, state): (usize, &RankState)| (!state.is_alive()).then_some(rank as u32);
        let gone: Vec<u32> = self.ranks.iter().enumerate().filter_map(gone).collect();
        for old in &mut self.home.deposed {
            if self.ranks[old.rank].paused_until() <= self.now {
                let lose = |rank| old.controller.lose(self.now, rank, self.now, self.observer);
                gone.iter().copied().for_each(lose);
            }
        }
    }
}
