//! A topology over some members, and its rows.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use super::{MixingRow, RowGroup};
use crate::message::Rank;
use crate::topology::{GroupExchange, Round, Schedule};

/// A topology over some members, of whom a few may be dead by now.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) from_step: u64,
    pub(super) members: Vec<Rank>,
    alive: Vec<bool>,
    pub(super) schedule: Arc<Schedule>,
    /// Rows of each round of a periodic schedule, made when first asked for.
    periodic: Vec<OnceLock<Vec<Arc<MixingRow>>>>,
    /// Rows of the latest rounds of a schedule without a period.
    recent: Mutex<BTreeMap<u64, Arc<Vec<Arc<MixingRow>>>>>,
}

impl Plan {
    pub(super) fn new(from_step: u64, members: Vec<Rank>, schedule: Arc<Schedule>) -> Plan {
        let alive = vec![true; members.len()];
        Plan::build(from_step, members, alive, schedule)
    }

    fn build(
        from_step: u64,
        members: Vec<Rank>,
        alive: Vec<bool>,
        schedule: Arc<Schedule>,
    ) -> Plan {
        let rounds = schedule.period().unwrap_or(0);
        let periodic = (0..rounds).map(|_| OnceLock::new()).collect();
        let recent = Mutex::new(BTreeMap::new());
        Plan { from_step, members, alive, schedule, periodic, recent }
    }

    pub(super) fn with_living(&self, index: &[Option<u32>]) -> Plan {
        let alive = self.members.iter().map(|rank| index[rank.index()].is_some()).collect();
        Plan::build(self.from_step, self.members.clone(), alive, Arc::clone(&self.schedule))
    }

    /// The same topology from a step on, for those who take part then.
    pub(super) fn from(&self, from_step: u64, index: &[Option<u32>]) -> Plan {
        Plan { from_step, ..self.with_living(index) }
    }

    /// The same, for another view.
    pub(super) fn again(&self) -> Plan {
        let (members, alive) = (self.members.clone(), self.alive.clone());
        Plan::build(self.from_step, members, alive, Arc::clone(&self.schedule))
    }

    pub(super) fn row(&self, step: u64, rank: Rank) -> Arc<MixingRow> {
        // Who has come in the place of another is a member from an agreed step on.
        let Some(place) = self.place(rank).filter(|place| self.alive[*place]) else {
            return Arc::new(MixingRow { incoming: vec![(rank, 1.0)], ..MixingRow::default() });
        };
        if !self.periodic.is_empty() {
            let slot = (step % self.periodic.len() as u64) as usize;
            let rows = self.periodic[slot].get_or_init(|| self.rows(step));
            return Arc::clone(&rows[place]);
        }
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let rows = recent.entry(step).or_insert_with(|| Arc::new(self.rows(step)));
        let row = Arc::clone(&rows[place]);
        while recent.len() > 8 {
            recent.pop_first();
        }
        row
    }

    /// The place of a member; that of its own number as long as all ranks are members.
    fn place(&self, rank: Rank) -> Option<usize> {
        if self.members.get(rank.index()) == Some(&rank) {
            return Some(rank.index());
        }
        self.members.binary_search(&rank).ok()
    }

    fn rows(&self, step: u64) -> Vec<Arc<MixingRow>> {
        let round = self.schedule.round(step);
        let n = self.members.len();
        let averages = self.averages_in_group(&round);
        let mut outgoing: Vec<Vec<usize>> = vec![Vec::new(); n];
        for (i, weights) in round.rows().iter().enumerate() {
            for &(j, _) in weights {
                if i != j && self.alive[i] && self.alive[j] {
                    outgoing[j].push(i);
                }
            }
        }
        let row = |(i, to): (usize, &mut Vec<usize>)| {
            to.sort_by_key(|j| (j + n - i) % n);
            let outgoing = to.iter().map(|j| self.members[*j]).collect();
            let weights = &round.rows()[i];
            let group = if !averages[i] {
                RowGroup::None
            } else if weights.iter().all(|(j, _)| self.alive[*j]) {
                RowGroup::Whole(self.schedule.groups())
            } else {
                RowGroup::Broken
            };
            Arc::new(MixingRow { incoming: self.incoming(i, weights), outgoing, group })
        };
        outgoing.iter_mut().enumerate().map(row).collect()
    }

    /// Whether a group that averages as one has lost a member, in the rounds of a period; a
    /// topology that is drawn at random may have any.
    pub(super) fn has_broken_groups(&self) -> bool {
        let Some(period) = self.schedule.period() else { return self.alive.contains(&false) };
        let is_broken = |(member, averages): (usize, bool)| averages && !self.alive[member];
        let breaks = |step: u64| {
            self.averages_in_group(&self.schedule.round(step))
                .into_iter()
                .enumerate()
                .any(is_broken)
        };
        self.alive.contains(&false) && (0..period as u64).any(breaks)
    }

    /// Which members belong to a group that averages as one.
    fn averages_in_group(&self, round: &Round) -> Vec<bool> {
        if self.schedule.groups() == GroupExchange::Send {
            return vec![false; self.members.len()];
        }
        round.averages_in_group()
    }

    /// The weights of the living, rounded to `f32`. The worker's own weight takes what the dead
    /// leave and what rounding leaves, so that the row sums to one.
    fn incoming(&self, i: usize, weights: &[(usize, f64)]) -> Vec<(Rank, f32)> {
        let mut incoming = Vec::with_capacity(weights.len() + 1);
        let mut own = 1.0;
        for &(j, weight) in weights {
            if j == i || !self.alive[j] {
                continue;
            }
            own -= f64::from(weight as f32);
            incoming.push((self.members[j], weight as f32));
        }
        let place = incoming.partition_point(|(rank, _)| *rank < self.members[i]);
        incoming.insert(place, (self.members[i], own as f32));
        incoming
    }
}
