//! What must hold in the records of any run, whatever was done to its processes: looked at record by record.
//!
//! A rank is there or it is not: it is lost or leaves only while it is there, joins only while it is not, and
//! records nothing in between. What one process of a rank records has growing steps and growing views. A rank
//! that took over is there, and was not in control before.

use std::collections::BTreeMap;

use quelea_record::{Record, RecordKind};

/// Sentences that are kept; one is enough to know.
const KEPT: usize = 20;

/// What is known of one rank.
#[derive(Clone, Copy, Debug, Default)]
struct RankState {
    /// Whether it takes part; unknown where the records begin in the middle of a run.
    is_there: Option<bool>,
    /// The last step of its present process.
    step: Option<u64>,
    /// The last view of its present process.
    view: Option<u32>,
    /// Whether its present process has taken over.
    controls: bool,
}

/// The records of a run, as they come, against what must hold.
#[derive(Debug, Default)]
pub struct RecordInvariants {
    ranks: BTreeMap<u32, RankState>,
    violations: Vec<String>,
}

impl RecordInvariants {
    /// For the records of a whole run, which begins with this number of workers.
    pub fn of_run(workers: usize) -> RecordInvariants {
        let there = RankState { is_there: Some(true), ..RankState::default() };
        let ranks = (0..workers as u32).map(|rank| (rank, there)).collect();
        RecordInvariants { ranks, violations: Vec::new() }
    }

    /// For records that begin in the middle of a run, as those of a process that has taken over do.
    pub fn of_part() -> RecordInvariants {
        RecordInvariants::default()
    }

    /// What does not hold, in sentences; empty if all is well.
    pub fn violations(&self) -> &[String] {
        &self.violations
    }

    /// Takes the next record.
    pub fn take(&mut self, record: &Record) {
        let Record { t, rank, step, .. } = *record;
        let state = self.ranks.entry(rank).or_default();
        let wrong = match &record.event {
            RecordKind::Lost | RecordKind::Left => {
                let was_there = state.is_there != Some(false);
                *state = RankState { is_there: Some(false), ..RankState::default() };
                (!was_there).then_some("was lost or left although it was not there".to_string())
            }
            RecordKind::Joined => {
                let was_there = state.is_there == Some(true);
                *state = RankState { is_there: Some(true), ..RankState::default() };
                was_there.then_some("was joined although it was there".to_string())
            }
            RecordKind::Step { .. } => state.take_step(step),
            RecordKind::View { number } => state.take_view(*number),
            RecordKind::TookOver => {
                let again = std::mem::replace(&mut state.controls, true);
                again.then_some("took over although it controlled the run".to_string())
            }
            _ => None,
        };
        if let Some(wrong) = wrong.filter(|_| self.violations.len() < KEPT) {
            self.violations.push(format!("at {t:.3} s and step {step}: rank {rank} {wrong}"));
        }
    }
}

impl RankState {
    fn take_step(&mut self, step: u64) -> Option<String> {
        if self.is_there == Some(false) {
            return Some("took a step although it was not there".to_string());
        }
        self.is_there = Some(true);
        let before = self.step.replace(step);
        before
            .filter(|before| step <= *before)
            .map(|before| format!("took this step after step {before}"))
    }

    fn take_view(&mut self, number: u32) -> Option<String> {
        if self.is_there == Some(false) {
            return Some(format!("entered view {number} although it was not there"));
        }
        let before = self.view.replace(number);
        before
            .filter(|before| number <= *before)
            .map(|before| format!("entered view {number} after view {before}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step() -> RecordKind {
        let (compute, exposed, waiting) = (0.0, 0.0, 0.0);
        RecordKind::Step { loss: 0.0, samples: 1, compute, exposed, waiting }
    }

    fn violations(mut invariants: RecordInvariants, records: &[(u64, RecordKind)]) -> Vec<String> {
        for (step, event) in records {
            invariants.take(&Record { t: 1.0, rank: 1, step: *step, event: event.clone() });
        }
        invariants.violations().to_vec()
    }

    #[test]
    fn a_worker_that_is_lost_and_replaced_breaks_nothing() {
        let records = [
            (1, step()),
            (2, step()),
            (2, RecordKind::Lost),
            (5, RecordKind::Joined),
            (5, RecordKind::View { number: 3 }),
            (6, step()),
        ];
        assert_eq!(violations(RecordInvariants::of_run(2), &records), [""; 0]);
        assert_eq!(violations(RecordInvariants::of_part(), &records), [""; 0]);
    }

    #[test]
    fn what_an_older_process_records_after_its_loss_is_found() {
        for (records, what) in [
            ([(2, RecordKind::Lost), (3, step())], "took a step although"),
            ([(2, RecordKind::Lost), (2, RecordKind::Lost)], "was lost or left although"),
            ([(3, step()), (3, step())], "took this step after step 3"),
            ([(3, step()), (3, RecordKind::Joined)], "joined although it was there"),
            (
                [(0, RecordKind::View { number: 2 }), (0, RecordKind::View { number: 2 })],
                "entered view 2 after view 2",
            ),
            ([(0, RecordKind::TookOver), (0, RecordKind::TookOver)], "took over although"),
        ] {
            let found = violations(RecordInvariants::of_run(2), &records);
            assert!(found.len() == 1 && found[0].contains(what), "{what}: {found:?}");
        }
    }

    #[test]
    fn a_worker_in_a_new_place_joins() {
        let records = [(4, RecordKind::Joined), (5, step())];
        assert_eq!(violations(RecordInvariants::of_run(1), &records), [""; 0]);
    }
}
