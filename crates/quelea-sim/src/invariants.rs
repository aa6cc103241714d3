//! What must hold after every event of a run, whatever goes wrong in it.
//!
//! - Views with the same number are equal everywhere, and a rank's view only grows, by one at a time.
//! - No rank enters a view that was not announced or that excludes it; none that lives is excluded.
//! - The steps of a rank only grow.
//! - At most one controller takes over in a term; no rank hears a command of an older term than it has
//!   promised; a controller whose term is over ends no run.
//! - The run ends: within a number of events, and not in a deadlock.
//! - Where workers share the data, at the end every unit is confirmed exactly once, somebody has completed a step
//!   with each, and no more were used twice than the books say.
//! - At the end the sums over the living workers hold that their algorithm must keep.

use std::collections::BTreeMap;

use quelea_control::RankEvent;
use quelea_core::message::Rank;
use quelea_core::state::Saved;
use quelea_core::view::View;
use quelea_record::{DataBooks, Outcome};

use crate::SimError;
use crate::cluster::ControlPath;
use crate::driver::Driver;
use crate::rank_state::RankState;

/// Sums in single precision may be off by this much for every unit of their largest term.
const TOLERANCE: f64 = 1e-4;

/// Two views are compared over this many steps: the rebuilt topology holds from two steps ahead.
const STEPS_COMPARED: u64 = 6;

/// What has been seen of each rank.
#[derive(Debug)]
pub(crate) struct Invariants {
    views: Vec<u32>,
    steps: Vec<u64>,
    events: u64,
    event_limit: u64,
    /// The states of the workers when they were told to end.
    ended: Vec<(usize, Saved)>,
    /// How often a step with each unit of the shared data was completed.
    used: BTreeMap<u64, u64>,
}

/// Two vectors of the workers' states, where they have both, whose sums over all living ones are equal;
/// without a second the first sums to nothing.
struct EqualSums {
    left: &'static str,
    right: Option<&'static str>,
}

const EQUAL_SUMS: &[EqualSums] = &[
    EqualSums { left: "tracker", right: Some("gradient") },
    EqualSums { left: "tracked", right: Some("largest") },
    EqualSums { left: "correction", right: None },
];

impl Driver<'_> {
    /// Checks from now on, and ends the run after so many events.
    pub(crate) fn check_with(&mut self, event_limit: u64) {
        let ranks = self.ranks.len();
        let (views, steps, ended) = (vec![0; ranks], vec![0; ranks], Vec::new());
        self.invariants =
            Some(Invariants { views, steps, events: 0, event_limit, ended, used: BTreeMap::new() });
    }

    /// Checks what must hold after every event, if that was asked for.
    pub(crate) fn check_invariants(&mut self) -> Result<(), SimError> {
        let Some(mut seen) = self.invariants.take() else { return Ok(()) };
        let broken = self.broken(&mut seen);
        self.invariants = Some(seen);
        broken.map_or(Ok(()), |what| Err(SimError::Broken { at: self.now, what }))
    }

    fn broken(&self, seen: &mut Invariants) -> Option<String> {
        seen.events += 1;
        if seen.events > seen.event_limit {
            return Some(format!("the run has not ended after {} events", seen.event_limit));
        }
        if let Some(violation) = &self.home.violation {
            return Some(violation.clone());
        }
        let agreed = self.controller.view();
        for (rank, state) in self.ranks.iter().enumerate().filter(|(_, state)| state.is_alive()) {
            let (who, node) = (Rank::from(rank), state.machine.node());
            let leaves = self.cluster.faults.leaves.iter().any(|leave| leave.rank == who.0);
            // Those who are on the other side of a partition, or were silent for long, end by themselves.
            let follows = self.follows(rank);
            if follows && !agreed.is_alive(who) && !leaves {
                return Some(format!("{who} lives and is excluded from view {}", agreed.number));
            }
            let (step, before) = (node.step(), seen.steps[rank]);
            if step < before {
                return Some(format!("{who} went from step {before} back to step {step}"));
            }
            seen.steps[rank] = step;
            let (view, before) = (node.view(), seen.views[rank]);
            if view.number != before {
                let is_known = !follows || view.number <= agreed.number;
                if view.number != before + 1 || !is_known {
                    let (from, to) = (before, view.number);
                    return Some(format!("{who} went from view {from} to view {to}"));
                }
                seen.views[rank] = view.number;
                let announced = self.views.get(view.number as usize);
                if !announced.is_some_and(|announced| are_equal(view, announced, step)) {
                    return Some(format!("{who} has another view {} than others", view.number));
                }
            }
        }
        None
    }

    /// A worker joins: its predecessor's steps and views are not its own.
    pub(crate) fn note_entrance(&mut self, rank: usize) {
        let node = self.ranks[rank].machine.node();
        let (view, step) = (node.view().number, node.step());
        if let Some(seen) = &mut self.invariants {
            (seen.views[rank], seen.steps[rank]) = (view, step);
            seen.ended.retain(|(ended, _)| *ended != rank);
        }
    }

    /// Ranks say these events, from the one in this place on: counts the units of shared data that are used.
    pub(crate) fn note_units(&mut self, first_event: usize) {
        let Some(seen) = &mut self.invariants else { return };
        for event in self.events.range(first_event..) {
            if let RankEvent::Confirmed { unit, .. } = event {
                *seen.used.entry(*unit).or_default() += 1;
            }
        }
    }

    /// What is wrong with the books of the shared data, if anything is.
    fn wrong_books(&self, seen: &Invariants, books: DataBooks) -> Option<String> {
        let DataBooks { units, confirmed, handed_out_again } = books;
        if confirmed != units || units != self.setup.workers() as u64 * self.setup.steps {
            return Some(format!("{confirmed} of {units} units of the data are confirmed"));
        }
        if let Some(unit) = (0..units).find(|unit| !seen.used.contains_key(unit)) {
            return Some(format!("unit {unit} of the data is confirmed, and nobody has used it"));
        }
        let twice = seen.used.values().map(|times| times - 1).sum::<u64>();
        // A process that is lost with the controller has used some that nobody else has heard of.
        let is_known = self.cluster.control != ControlPath::Worker;
        (is_known && twice > handed_out_again).then(|| {
            format!("{twice} units of the data were used again; the books say {handed_out_again}")
        })
    }

    /// A rank is told to end: keeps its state, if what must hold at the end is checked.
    pub(crate) fn note_end(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        if let Some(seen) = self.invariants.as_mut().filter(|_| !state.is_server()) {
            seen.ended.push((rank, state.machine.inspect_state()));
        }
    }

    /// Checks what must hold at the end, if that was asked for.
    pub(crate) fn check_end(&self, outcome: &Outcome) -> Result<(), SimError> {
        let Some(seen) = &self.invariants else { return Ok(()) };
        if let Some(what) = outcome.data.and_then(|books| self.wrong_books(seen, books)) {
            return Err(SimError::Broken { at: self.now, what });
        }
        let living = seen.ended.iter().filter(|(rank, _)| self.ranks[*rank].is_alive());
        let states: Vec<&Saved> = living.map(|(_, state)| state).collect();
        if !self.has_settled_losses() {
            return Ok(());
        }
        let wrong = EQUAL_SUMS.iter().find_map(|sums| sums.difference(&states));
        let wrong = wrong.or_else(|| self.lost_mass(&states));
        wrong.map_or(Ok(()), |what| Err(SimError::Broken { at: self.now, what }))
    }

    /// Whether every loss was noticed, and the survivors have passed the step that was agreed on after
    /// it, at which they clear their sums. A run may end before.
    fn has_settled_losses(&self) -> bool {
        let (steps, view) = (self.setup.steps, self.controller.view());
        let is_settled = |(rank, state): (usize, &RankState)| {
            if state.is_alive() {
                state.machine.node().view().number == view.number
            } else {
                !view.is_alive(Rank::from(rank))
            }
        };
        let is_ahead = (steps..steps + STEPS_COMPARED).any(|step| view.changes_at(step));
        !is_ahead && self.ranks.iter().enumerate().all(is_settled)
    }

    /// Push-sum weights of the living workers sum to their number.
    fn lost_mass(&self, states: &[&Saved]) -> Option<String> {
        (0..self.setup.layout.buckets.len()).find_map(|b| {
            let name = format!("weight.{b}");
            let weights: Option<Vec<u64>> =
                states.iter().map(|state| state.numbers.get(&name).copied()).collect();
            let total: f64 = weights?.into_iter().map(f64::from_bits).sum();
            let is_off = (total - states.len() as f64).abs() > 1e-9;
            is_off.then(|| format!("push-sum weights are {total} in sum, of {}", states.len()))
        })
    }
}

/// Whether two views have the same members, and the same topology for a while from `step` on.
fn are_equal(left: &View, right: &View, step: u64) -> bool {
    let members = |view: &View| (view.number, view.workers.clone(), view.servers.clone());
    let has_topology = left.topology(step).is_some();
    let is_same_at = |step: u64| {
        let rows = |view: &View| -> Vec<_> {
            view.workers.iter().map(|rank| view.row(step, *rank)).collect()
        };
        left.changes_at(step) == right.changes_at(step)
            && left.topology(step).is_some() == right.topology(step).is_some()
            && (!has_topology || rows(left) == rows(right))
    };
    members(left) == members(right) && (step..step + STEPS_COMPARED).all(is_same_at)
}

impl EqualSums {
    /// Where the sums differ, if they do.
    fn difference(&self, states: &[&Saved]) -> Option<String> {
        let sum = |name: &str| -> Vec<(f64, f64)> {
            let mut sums = Vec::new();
            for vector in states.iter().filter_map(|state| state.vectors.get(name)) {
                sums.resize(vector.len().max(sums.len()), (0.0, 0.0f64));
                for (sum, value) in sums.iter_mut().zip(vector) {
                    *sum = (sum.0 + f64::from(*value), sum.1.max(f64::from(value.abs())));
                }
            }
            sums
        };
        let has_both = |state: &&Saved| {
            let right = self.right.is_none_or(|name| state.vectors.contains_key(name));
            right && state.vectors.contains_key(self.left)
        };
        if !states.iter().all(has_both) {
            return None;
        }
        let left = sum(self.left);
        let right = self.right.map_or_else(|| vec![(0.0, 0.0); left.len()], sum);
        let mut places = left.iter().zip(&right).enumerate();
        places.find_map(|(place, (left, right))| {
            let allowed = TOLERANCE * (1.0 + left.1.max(right.1));
            let is_off = (left.0 - right.0).abs() > allowed;
            is_off.then(|| {
                let (name, place) = (self.left, format!("element {place}"));
                format!("`{name}` of the living is {} in sum, not {} ({place})", left.0, right.0)
            })
        })
    }
}
