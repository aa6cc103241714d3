//! What the driver does when a rank is lost: survivors stop, agree, and continue in a new view.

use std::sync::Arc;

use quelea_core::message::Rank;
use quelea_core::random::Rng;
use quelea_core::time::Time;
use quelea_record::RecordKind;

use crate::SimError;
use crate::driver::Driver;
use crate::network::microseconds;
use crate::queue::SimEvent;
use crate::rank_state::Arrived;

/// A fault of a rank, at its time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RankFault {
    Crash(usize),
    Pause(usize, Time),
    /// A partition that lasts long enough to be noticed.
    Partitioned(usize),
}

/// The steps of survivors differ by at most one when the loss is noticed; one more may be under
/// way. The rebuilt topology holds from beyond that.
const STEPS_AHEAD: u64 = 2;

/// A view reaches the survivors within so many nanoseconds of each other.
const VIEW_SPREAD_NS: u64 = 1_000_000;

impl Driver<'_> {
    /// Puts the faults of ranks into the queue.
    pub(crate) fn schedule_faults(&mut self) {
        let faults = &self.cluster.faults;
        let detect_ms = self.cluster.detect_ms;
        let mut list: Vec<(f64, RankFault)> = Vec::new();
        for crash in &faults.crashes {
            list.push((crash.at_ms, RankFault::Crash(crash.rank as usize)));
        }
        for pause in &faults.pauses {
            let until = Time::from_ms(pause.until_ms);
            list.push((pause.from_ms, RankFault::Pause(pause.rank as usize, until)));
        }
        for partition in &faults.partitions {
            if partition.until_ms - partition.from_ms > detect_ms {
                list.push((
                    partition.from_ms + detect_ms,
                    RankFault::Partitioned(partition.rank as usize),
                ));
            }
        }
        for (number, (at_ms, _)) in list.iter().enumerate() {
            self.queue.schedule(Time::from_ms(*at_ms), SimEvent::Fault(number as u32));
        }
        self.faults_to_come = list.len();
        self.faults = list.into_iter().map(|(_, fault)| fault).collect();
    }

    /// Something happens to a rank.
    pub(crate) fn fault(&mut self, number: u32) -> Result<(), SimError> {
        self.faults_to_come -= 1;
        match self.faults[number as usize] {
            RankFault::Crash(rank) => self.lose(rank, Time::from_ms(self.cluster.detect_ms)),
            RankFault::Partitioned(rank) => self.lose(rank, Time::ZERO),
            RankFault::Pause(rank, until) => {
                self.ranks[rank].pause(self.now, until);
                self.wake_at(rank, until);
                Ok(())
            }
        }
    }

    /// From now on this rank does nothing any more; the others learn of it after `noticed`.
    fn lose(&mut self, rank: usize, noticed: Time) -> Result<(), SimError> {
        let state = &mut self.ranks[rank];
        if !state.is_alive() {
            return Ok(());
        }
        let (who, at) = (Rank::from(rank), self.now);
        if state.node.is_server {
            return Err(SimError::ServerLost { rank: who, at });
        }
        if self.setup.cannot_lose(self.views.last().expect("there is a first view"), who) {
            return Err(SimError::LeaderLost { rank: who, at });
        }
        let state = &mut self.ranks[rank];
        let step = state.node.step();
        if !state.lose(at) {
            self.unfinished -= 1;
        }
        self.living_workers -= 1;
        if self.living_workers == 0 {
            return Err(SimError::AllWorkersLost { rank: who, at });
        }
        for Arrived { from, bytes, holds_link, .. } in std::mem::take(&mut self.ranks[rank].inbox) {
            self.leave_network(from, who, bytes, holds_link);
        }
        self.note(at, who, step, RecordKind::Lost);
        self.queue.schedule(at + noticed, SimEvent::Detect(rank as u32));
        Ok(())
    }

    /// The loss of a rank is noticed: nobody starts a gradient until the new view has reached it.
    pub(crate) fn detect(&mut self, rank: usize) {
        let survivors = self.ranks.iter().filter(|state| state.is_alive());
        let furthest = survivors.filter(|state| !state.node.is_server);
        let furthest = furthest.map(|state| state.node.step()).max().unwrap_or(0);
        let latest = self.views.last().expect("there is a first view");
        let lost = [Rank::from(rank)];
        let view = Arc::new(self.setup.view_without(latest, &lost, furthest + STEPS_AHEAD));
        let mut rng = Rng::new(self.setup.seed, "view", u64::from(view.number));
        for &to in view.workers.iter().chain(&view.servers) {
            let spread = Time(rng.below(VIEW_SPREAD_NS));
            let state = &mut self.ranks[to.index()];
            let at = self.now + microseconds(self.cluster.latency_us) + spread;
            // Views come in order, whatever the jitter.
            state.view_at = state.view_at.max(at);
            self.queue.schedule(state.view_at, SimEvent::View(to.0));
        }
        self.views.push(view);
        let due = self.gates.due(self.living_workers);
        self.open_later(due);
    }

    /// A survivor learns of its next view.
    pub(crate) fn enter_view(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        if !state.is_alive() {
            return;
        }
        let number = state.node.view().number + 1;
        state.node.change_view(self.now, Arc::clone(&self.views[number as usize]));
        let step = state.node.step();
        self.note(self.now, Rank::from(rank), step, RecordKind::View { number });
        self.carry_out(rank);
        self.settle(rank);
    }

    /// Whether a view that this rank does not know yet has been announced.
    pub(crate) fn is_frozen(&self, rank: usize) -> bool {
        self.ranks[rank].node.view().number as usize + 1 < self.views.len()
    }
}
