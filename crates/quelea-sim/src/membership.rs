//! What happens to ranks: crashes, leaves, pauses, partitions that last long enough to be noticed.

use quelea_control::{Entrance, RankEvent, RankMachine};
use quelea_core::message::Rank;
use quelea_core::payload::Pool;
use quelea_core::time::Time;

use crate::SimError;
use crate::driver::{Driver, machine_config};
use crate::network::microseconds;
use crate::queue::SimEvent;
use crate::rank_state::{Arrived, RankState};

/// How soon a worker asks again that could not join yet.
const RETRY: Time = Time(1_000_000);

/// A fault of a rank, at its time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RankFault {
    Crash(usize),
    Leave(usize),
    Join(usize),
    Pause(usize, Time),
    /// A partition that lasts long enough to be noticed.
    Partitioned(usize),
    /// The same between two sides.
    Split(usize),
}

impl Driver<'_> {
    /// Puts the faults of ranks into the queue.
    pub(crate) fn schedule_faults(&mut self) {
        let faults = &self.cluster.faults;
        let detect_ms = self.cluster.detect_ms;
        let mut list: Vec<(f64, RankFault)> = Vec::new();
        for crash in &faults.crashes {
            list.push((crash.at_ms, RankFault::Crash(crash.rank as usize)));
        }
        for leave in &faults.leaves {
            list.push((leave.at_ms, RankFault::Leave(leave.rank as usize)));
        }
        for join in &faults.joins {
            list.push((join.at_ms, RankFault::Join(join.rank as usize)));
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
        for (number, split) in faults.splits.iter().enumerate() {
            if split.is_final(detect_ms) {
                list.push((split.from_ms + detect_ms, RankFault::Split(number)));
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
            RankFault::Leave(rank) => {
                if self.ranks[rank].is_alive() {
                    self.ranks[rank].machine.leave();
                    self.settle(rank);
                }
                Ok(())
            }
            RankFault::Join(rank) => {
                self.join(rank, number);
                Ok(())
            }
            RankFault::Pause(rank, until) => {
                self.ranks[rank].pause(self.now, until);
                self.wake_at(rank, until);
                let noticed = self.now + Time::from_ms(self.cluster.detect_ms);
                if self.ranks[rank].succession.is_some() && noticed < until {
                    self.queue.schedule(noticed, SimEvent::Silent(rank as u32));
                }
                Ok(())
            }
            RankFault::Split(number) => {
                self.split(number);
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
        if state.is_server() {
            return Err(SimError::ServerLost { rank: who, at });
        }
        if self.setup.cannot_lose(self.controller.view(), who) {
            return Err(SimError::LeaderLost { rank: who, at });
        }
        self.silence(rank);
        self.lose_home(rank);
        if self.living_workers == 0 {
            self.check_sides()?;
            return Err(SimError::AllWorkersLost { rank: who, at });
        }
        self.queue.schedule(at + noticed, SimEvent::Detect(rank as u32));
        Ok(())
    }

    /// This rank neither sends nor receives anything any more.
    pub(crate) fn silence(&mut self, rank: usize) {
        self.ranks[rank].lose(self.now);
        self.has_lost = true;
        self.living_workers -= usize::from(!self.ranks[rank].is_server());
        for Arrived { from, bytes, holds_link, .. } in std::mem::take(&mut self.ranks[rank].inbox) {
            self.leave_network(from, Rank::from(rank), bytes, holds_link);
        }
    }

    /// A worker is there that could take the place of `rank`, if that is missing. Where that cannot be said
    /// yet, it asks again.
    fn join(&mut self, rank: usize, fault: u32) {
        self.is_controller_told = true;
        if self.ranks[rank].is_alive() {
            return;
        }
        if !self.controller_runs() {
            return self.join_later(fault);
        }
        let Err(reason) = self.controller.join(rank as u32) else {
            self.home.joining.insert(rank, fault);
            return;
        };
        if self.controller.may_join_later(rank as u32) {
            return self.join_later(fault);
        }
        let text = format!("a worker could not join as rank {rank}: {reason}");
        self.controller.handle(self.now, RankEvent::Warning(text), self.observer);
    }

    /// A worker that wants to join asks again.
    pub(crate) fn join_later(&mut self, fault: u32) {
        self.faults_to_come += 1;
        self.queue.schedule(self.now + RETRY, SimEvent::Fault(fault));
    }

    /// Workers that enter with the view that was just announced. They hear the others at once, and begin
    /// when the state of their sponsor has arrived.
    pub(crate) fn start_entrances(&mut self) {
        for Entrance { rank, start } in self.controller.take_entrances() {
            let place = rank as usize;
            if self.ranks[place].running.as_ref().is_some_and(|running| running.next == 0) {
                // A worker lost while computing has not got its vectors back.
                drop(self.gradients.finish(place));
            }
            let view = self.views.last().expect("the first view is there");
            let mut config = machine_config(&self.shared_setup, &start, view, self.observer);
            let travels = self.sends_control();
            (config.asks_ahead, config.counts_links) = (travels, travels);
            let machine = RankMachine::new(config, Rank(rank), Pool::new(), self.now);
            let machine = machine.expect("the state of a peer fits");
            self.ranks[place] = RankState::new(machine, self.now);
            self.living_workers += 1;
            self.control.reconnect(place);
            self.ranks.iter_mut().for_each(|state| state.machine.meet(Rank(rank)));
            self.meet_in_succession(place);
            self.note_entrance(place);
            let state = self.setup.layout.len() as f64 * 32.0;
            let seconds = state / (self.cluster.bandwidth_gbps * 1e9);
            let at = self.now + microseconds(self.cluster.latency_us) + Time::from_seconds(seconds);
            self.queue.schedule(at, SimEvent::Enter(rank));
        }
    }

    /// The state of its sponsor has reached a worker that joins.
    pub(crate) fn enter(&mut self, rank: usize) {
        // One that was lost before it began may have a successor that has not begun either.
        if !self.ranks[rank].begin() {
            return;
        }
        let number = self.ranks[rank].machine.node().view().number as usize;
        self.ranks[rank].machine.enter(self.now, &self.views[number - 1]);
        self.carry_out(rank);
        self.settle(rank);
    }

    /// The others continue without this worker although it could: it ends.
    pub(crate) fn expel(&mut self, rank: usize) {
        self.ranks[rank].end();
        self.silence(rank);
        let due = self.gates.due(self.living_workers);
        self.open_later(due);
    }

    /// This worker has left, and has sent its report.
    pub(crate) fn retire(&mut self, rank: usize) {
        self.silence(rank);
        self.ranks[rank].leave();
        if self.ranks[rank].succession.is_some() {
            // A controller that lives there goes with it; the others notice.
            self.lose_home(rank);
            let at = self.now + Time::from_ms(self.cluster.detect_ms);
            self.queue.schedule(at, SimEvent::Detect(rank as u32));
        }
        let due = self.gates.due(self.living_workers);
        self.open_later(due);
    }
}
