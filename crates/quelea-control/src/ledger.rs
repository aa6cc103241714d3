//! The books of the data that all workers share: which unit was handed to whom, and which are confirmed.
//!
//! A unit is the data of one gradient. Units are numbered from 0 in the order of the epochs, and are handed out in
//! that order to workers that ask. A worker confirms a unit with the step that used it. What a lost worker held and
//! had not confirmed is handed out again, before any other. A unit below `next` that nobody holds and that does not
//! wait to be handed out again is confirmed: so none can be confirmed twice, and what is kept is two units for each
//! worker, however long the run is.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use quelea_core::state::Saved;
use quelea_record::{DATA_BOOKS, DataBooks};

use crate::member::{MemberState, MemberUnits};

/// Confirmed units that a rank remembers for a controller that takes over; of more, the oldest are forgotten
/// and would be computed again.
const KEPT_UNITS: usize = 4096;

/// The numbers of a saved state in which the books are; their names begin with [`DATA_BOOKS`].
const NEXT: &str = "next";
const AGAIN: &str = "again";
const OPEN: &str = "open.";

fn name(of: &str) -> String {
    format!("{DATA_BOOKS}{of}")
}

/// The controller's side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DataLedger {
    /// Units of the whole run.
    total: u64,
    /// Those from here on were never handed out.
    next: u64,
    /// Who holds a unit that is not confirmed.
    held: BTreeMap<u64, usize>,
    /// To be handed out again.
    returned: BTreeSet<u64>,
    /// How many were handed to a worker that was lost before it had confirmed them.
    again: u64,
}

impl DataLedger {
    /// Of a run with this many units, of which none was handed out.
    pub(crate) fn new(total: u64) -> DataLedger {
        DataLedger { total, ..DataLedger::default() }
    }

    /// Units that can be handed out now.
    pub(crate) fn available(&self) -> u64 {
        self.total.saturating_sub(self.next) + self.returned.len() as u64
    }

    /// Whether every unit is confirmed.
    pub(crate) fn is_complete(&self) -> bool {
        self.settled() >= self.total
    }

    /// All units below are confirmed.
    pub(crate) fn settled(&self) -> u64 {
        let held = self.held.keys().next().copied().unwrap_or(self.next);
        held.min(self.returned.first().copied().unwrap_or(self.next))
    }

    /// The next unit for `worker`, if there is one.
    pub(crate) fn hand_out(&mut self, worker: usize) -> Option<u64> {
        let unit = match self.returned.pop_first() {
            Some(unit) => unit,
            None if self.next < self.total => {
                self.next += 1;
                self.next - 1
            }
            None => return None,
        };
        self.held.insert(unit, worker);
        Some(unit)
    }

    /// `worker` has completed the step that used `unit`. Whether it can have: one that is confirmed may be
    /// confirmed again, which changes nothing.
    pub(crate) fn confirm(&mut self, worker: usize, unit: u64) -> bool {
        if self.held.get(&unit) == Some(&worker) {
            self.held.remove(&unit);
        }
        self.is_confirmed(unit)
    }

    fn is_confirmed(&self, unit: u64) -> bool {
        unit < self.next && !self.held.contains_key(&unit) && !self.returned.contains(&unit)
    }

    /// What `worker` held is handed out again. One that was lost may have used it; one that has left rested.
    pub(crate) fn take_back(&mut self, worker: usize, was_lost: bool) {
        let is_its = |holder: &usize| *holder == worker;
        let units: Vec<u64> =
            self.held.iter().filter(|(_, holder)| is_its(holder)).map(|(unit, _)| *unit).collect();
        self.held.retain(|_, holder| !is_its(holder));
        self.again += if was_lost { units.len() as u64 } else { 0 };
        self.returned.extend(units);
    }

    /// What the summary says of it.
    pub(crate) fn books(&self) -> DataBooks {
        let open = (self.held.len() + self.returned.len()) as u64;
        DataBooks { units: self.total, confirmed: self.next - open, handed_out_again: self.again }
    }

    /// Adds the books to a part of a checkpoint. Whoever holds a unit then has not used it: everything rests.
    pub(crate) fn save(&self, state: &mut Saved) {
        let open = self.held.keys().chain(&self.returned).enumerate();
        let open = open.map(|(place, unit)| (format!("{}{place}", name(OPEN)), *unit));
        state.numbers.extend([(name(NEXT), self.next), (name(AGAIN), self.again)]);
        state.numbers.extend(open);
    }

    /// Continues with the books in a part of a checkpoint, if they are there.
    pub(crate) fn load(&mut self, state: &Saved) {
        let Some(next) = state.numbers.get(&name(NEXT)) else { return };
        let open = name(OPEN);
        let open =
            state.numbers.range(open.clone()..).take_while(|(name, _)| name.starts_with(&open));
        self.returned = open.map(|(_, unit)| *unit).filter(|unit| unit < next).collect();
        self.again = state.numbers.get(&name(AGAIN)).copied().unwrap_or(0);
        self.next = *next;
    }

    /// Continues as a new controller, from the books of the start and from what each of `members` says: what only
    /// the lost process knew to be confirmed is handed out again. What it has done beyond all that others have
    /// heard of cannot be counted.
    pub(crate) fn inherit(&mut self, members: &[MemberState]) {
        let (start, total) = (self.clone(), self.total);
        let of = |units: fn(&MemberUnits) -> &Vec<u64>| {
            let of_member = move |member: &MemberState| {
                let holder = member.rank as usize;
                units(&member.units).iter().map(|unit| (*unit, holder)).collect::<Vec<_>>()
            };
            members.iter().flat_map(of_member).filter(move |(unit, _)| *unit < total)
        };
        let told = members.iter().map(|member| member.units.settled.min(total)).max();
        let settled = told.unwrap_or(0).max(start.settled());
        let confirmed: BTreeSet<u64> = of(|units| &units.confirmed).map(|(unit, _)| unit).collect();
        let held: BTreeMap<u64, usize> = of(|units| &units.held).collect();
        let last = held.keys().next_back().max(confirmed.last()).map_or(0, |unit| unit + 1);
        self.next = last.max(settled).max(start.next);
        self.held = held.into_iter().filter(|(unit, _)| *unit >= settled).collect();
        let is_open = |unit: &u64| {
            !start.is_confirmed(*unit) && !confirmed.contains(unit) && !self.held.contains_key(unit)
        };
        self.returned = (settled..self.next).filter(is_open).collect();
        self.again += self.returned.len() as u64;
    }
}

/// A rank's side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RankUnits {
    /// Handed to it and not used, in order.
    unused: VecDeque<u64>,
    /// That of the step in progress.
    current: Option<u64>,
    /// Confirmed by it, and not known to be settled.
    confirmed: VecDeque<u64>,
    /// All units below are confirmed by somebody.
    settled: u64,
}

impl RankUnits {
    /// It is handed `unit`, and told that all below `settled` are confirmed.
    pub(crate) fn take(&mut self, unit: u64, settled: u64) {
        self.unused.push_back(unit);
        self.settle(settled);
    }

    /// All below `settled` are confirmed.
    pub(crate) fn settle(&mut self, settled: u64) {
        self.settled = self.settled.max(settled);
        self.confirmed.retain(|unit| *unit >= self.settled);
    }

    /// A gradient begins: its unit.
    pub(crate) fn begin(&mut self) -> Option<u64> {
        self.current = self.unused.pop_front();
        self.current
    }

    /// The gradient that was begun counts as not computed.
    pub(crate) fn give_back(&mut self) {
        if let Some(unit) = self.current.take() {
            self.unused.push_front(unit);
        }
    }

    /// The step is complete: the unit that it has used.
    pub(crate) fn confirm(&mut self) -> Option<u64> {
        let unit = self.current.take()?;
        self.confirmed.push_back(unit);
        if self.confirmed.len() > KEPT_UNITS {
            self.confirmed.pop_front();
        }
        Some(unit)
    }

    /// What a new controller needs of it.
    pub(crate) fn share(&self) -> MemberUnits {
        MemberUnits {
            settled: self.settled,
            held: self.current.iter().chain(&self.unused).copied().collect(),
            confirmed: self.confirmed.iter().copied().collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use quelea_core::random::Rng;

    use super::*;

    #[test]
    fn units_are_handed_out_in_order_and_those_of_a_lost_worker_first() {
        let mut ledger = DataLedger::new(4);
        assert_eq!([0, 1, 0].map(|worker| ledger.hand_out(worker)), [0, 1, 2].map(Some));
        assert!(ledger.confirm(1, 1) && !ledger.confirm(1, 2) && !ledger.confirm(1, 3));
        assert_eq!((ledger.settled(), ledger.available()), (0, 1));
        ledger.take_back(0, true);
        assert_eq!(
            [1, 1, 1, 1].map(|worker| ledger.hand_out(worker)),
            [Some(0), Some(2), Some(3), None]
        );
        assert!(!ledger.is_complete());
        assert!([0, 2, 3].iter().all(|unit| ledger.confirm(1, *unit)));
        assert!(ledger.is_complete());
        let books = DataBooks { units: 4, confirmed: 4, handed_out_again: 2 };
        assert_eq!(ledger.books(), books);
    }

    #[test]
    fn what_is_confirmed_again_changes_nothing() {
        let mut ledger = DataLedger::new(2);
        ledger.hand_out(0);
        assert!(ledger.confirm(0, 0));
        let before = ledger.clone();
        assert!(ledger.confirm(1, 0));
        assert_eq!(ledger, before);
    }

    #[test]
    fn a_unit_that_was_begun_and_given_back_is_begun_again_first() {
        let mut units = RankUnits::default();
        units.take(3, 0);
        units.take(5, 1);
        assert_eq!(units.begin(), Some(3));
        units.give_back();
        units.give_back();
        assert_eq!((units.begin(), units.confirm(), units.begin()), (Some(3), Some(3), Some(5)));
        let share = MemberUnits { settled: 1, held: vec![5], confirmed: vec![3] };
        assert_eq!(units.share(), share);
        units.settle(4);
        assert_eq!(units.share(), MemberUnits { settled: 4, held: vec![5], confirmed: vec![] });
    }

    /// Workers with their sides of the books, and what they have really done.
    struct Played {
        ledger: DataLedger,
        workers: BTreeMap<usize, RankUnits>,
        /// How often a step with each unit was completed by somebody.
        used: Vec<u64>,
        /// Units that a lost controller's process had used and nobody else had heard of.
        unheard: u64,
        rng: Rng,
    }

    impl Played {
        fn new(seed: u64, total: u64, workers: usize) -> Played {
            Played {
                ledger: DataLedger::new(total),
                workers: (0..workers).map(|worker| (worker, RankUnits::default())).collect(),
                used: vec![0; total as usize],
                unheard: 0,
                rng: Rng::new(seed, "played", 0),
            }
        }

        fn any_worker(&mut self) -> usize {
            let place = self.rng.below(self.workers.len() as u64) as usize;
            *self.workers.keys().nth(place).expect("one of them")
        }

        /// A worker asks, uses what it has, or both; sometimes its confirmation is lost with it.
        fn step(&mut self) {
            let worker = self.any_worker();
            let units = self.workers.get_mut(&worker).expect("it takes part");
            if units.share().held.len() < 2
                && let Some(unit) = self.ledger.hand_out(worker)
            {
                units.take(unit, self.ledger.settled());
            }
            let wants = self.rng.uniform() < 0.7;
            if wants && units.begin().is_some() {
                let unit = units.confirm().expect("it was just begun");
                self.used[unit as usize] += 1;
                if self.workers.len() > 1 && self.rng.uniform() < 0.02 {
                    return self.lose(worker);
                }
                assert!(self.ledger.confirm(worker, unit), "unit {unit} was handed to {worker}");
            }
        }

        fn lose(&mut self, worker: usize) {
            self.workers.remove(&worker);
            self.ledger.take_back(worker, true);
        }

        /// The controller is lost with a worker; another puts the books together.
        fn take_over(&mut self, start: &DataLedger) {
            let lost = self.any_worker();
            self.workers.remove(&lost);
            let member = |(rank, units): (&usize, &RankUnits)| MemberState {
                rank: *rank as u32,
                units: units.share(),
                ..MemberState::default()
            };
            let members: Vec<MemberState> = self.workers.iter().map(member).collect();
            let again = self.ledger.again;
            self.ledger = DataLedger { again, ..start.clone() };
            self.ledger.inherit(&members);
            let beyond = &self.used[self.ledger.next as usize..];
            self.unheard += beyond.iter().filter(|times| **times > 0).count() as u64;
        }

        /// Everything rests, is saved, and a run with another number of workers resumes.
        fn resume(&mut self, workers: usize) -> DataLedger {
            let mut saved = Saved::default();
            self.ledger.save(&mut saved);
            self.ledger = DataLedger::new(self.used.len() as u64);
            self.ledger.load(&saved);
            self.workers = (0..workers).map(|worker| (worker, RankUnits::default())).collect();
            self.ledger.clone()
        }
    }

    #[test]
    fn with_random_losses_joins_take_overs_and_resumes_every_unit_is_confirmed_and_none_is_missing()
    {
        for seed in 0..400 {
            let mut played = Played::new(seed, 40 + seed % 57, 5);
            let (mut start, mut next_rank) = (played.ledger.clone(), 5);
            let mut steps = 0;
            while !played.ledger.is_complete() {
                steps += 1;
                assert!(steps < 100_000, "seed {seed} does not end");
                match played.rng.below(200) {
                    0 if played.workers.len() > 1 => {
                        let lost = played.any_worker();
                        played.lose(lost);
                    }
                    1 | 2 => {
                        played.workers.insert(next_rank, RankUnits::default());
                        next_rank += 1;
                    }
                    3 if played.workers.len() > 2 => played.take_over(&start),
                    4 => {
                        start = played.resume(1 + (seed as usize + steps) % 6);
                        next_rank = 6;
                    }
                    _ => played.step(),
                }
            }
            let DataBooks { units, confirmed, handed_out_again } = played.ledger.books();
            assert_eq!((units, confirmed), (played.used.len() as u64, units), "seed {seed}");
            // Somebody has really used every unit, and as few were used twice as the books admit.
            assert!(played.used.iter().all(|times| *times >= 1), "seed {seed}");
            let twice: u64 = played.used.iter().map(|times| times - 1).sum();
            let admitted = handed_out_again + played.unheard;
            assert!(twice <= admitted, "seed {seed}: {twice} of {admitted}");
        }
    }
}
