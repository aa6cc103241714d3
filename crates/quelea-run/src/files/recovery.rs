//! What a run lost when processes were lost, left or joined, and how soon it had recovered.

use std::collections::BTreeSet;

use quelea_record::{Record, RecordKind};
use serde::{Deserialize, Serialize};

/// A change of membership, and what followed. Seconds are of the run's clock.
#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
pub struct RecoveryEvent {
    /// What happened.
    pub kind: RecoveryKind,
    /// To which rank.
    pub rank: u32,
    /// When it was acted on.
    pub at_seconds: f64,
    /// From its last step until it was acted on, for a rank that was lost: detection, and the step in which it was.
    pub silent_seconds: Option<f64>,
    /// Until every other worker had finished a step.
    pub next_step_seconds: Option<f64>,
    /// Until a worker had taken the place of one that was lost or left, and had finished its first step.
    pub full_membership_seconds: Option<f64>,
}

/// What happened to a rank.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RecoveryKind {
    /// It was lost.
    Lost,
    /// It left with notice.
    Left,
    /// A worker joined as this rank.
    Joined,
    /// Its process took over the control of the run.
    TookOver,
}

/// Follows the records of a run.
#[derive(Debug)]
pub struct RecoveryTable {
    members: BTreeSet<u32>,
    /// When each worker finished its last step.
    last_steps: Vec<Option<f64>>,
    followed: Vec<FollowedEvent>,
}

#[derive(Debug)]
struct FollowedEvent {
    event: RecoveryEvent,
    /// Those who have not finished a step since.
    awaited: BTreeSet<u32>,
    /// Somebody has taken the place since.
    is_replaced: bool,
}

impl RecoveryTable {
    /// For a run in which these workers take part at the beginning.
    pub fn new(workers: impl IntoIterator<Item = u32>) -> RecoveryTable {
        let (last_steps, followed) = (Vec::new(), Vec::new());
        RecoveryTable { members: workers.into_iter().collect(), last_steps, followed }
    }

    /// Takes the next record.
    pub fn take(&mut self, record: &Record) {
        let Record { t, rank, .. } = *record;
        match record.event {
            RecordKind::Step { .. } => self.step(rank, t),
            RecordKind::Lost => self.note(RecoveryKind::Lost, rank, t),
            RecordKind::Left => self.note(RecoveryKind::Left, rank, t),
            RecordKind::Joined => self.note(RecoveryKind::Joined, rank, t),
            RecordKind::TookOver => self.note(RecoveryKind::TookOver, rank, t),
            _ => {}
        }
    }

    /// All that happened, in order.
    pub fn events(&self) -> Vec<RecoveryEvent> {
        self.followed.iter().map(|followed| followed.event.clone()).collect()
    }

    fn note(&mut self, kind: RecoveryKind, rank: u32, t: f64) {
        match kind {
            RecoveryKind::Lost | RecoveryKind::Left => {
                self.members.remove(&rank);
                // Nothing is expected of it any more.
                for followed in &mut self.followed {
                    followed.awaited.remove(&rank);
                }
            }
            RecoveryKind::Joined => {
                self.members.insert(rank);
                for followed in self.followed.iter_mut().filter(|f| f.event.rank == rank) {
                    followed.is_replaced = true;
                }
            }
            RecoveryKind::TookOver => {}
        }
        let last = self.last_steps.get(rank as usize).copied().flatten();
        let event = RecoveryEvent {
            kind,
            rank,
            at_seconds: t,
            silent_seconds: last.filter(|_| kind == RecoveryKind::Lost).map(|last| t - last),
            next_step_seconds: None,
            full_membership_seconds: None,
        };
        let mut awaited = self.members.clone();
        awaited.remove(&rank);
        self.followed.push(FollowedEvent { event, awaited, is_replaced: false });
    }

    fn step(&mut self, rank: u32, t: f64) {
        let place = rank as usize;
        if self.last_steps.len() <= place {
            self.last_steps.resize(place + 1, None);
        }
        self.last_steps[place] = Some(t);
        for FollowedEvent { event, awaited, is_replaced } in &mut self.followed {
            // Records of several processes need not come in order.
            if t <= event.at_seconds {
                continue;
            }
            let seconds = t - event.at_seconds;
            if awaited.remove(&rank) && awaited.is_empty() {
                event.next_step_seconds = Some(seconds);
            }
            let is_gone = matches!(event.kind, RecoveryKind::Lost | RecoveryKind::Left);
            if is_gone && *is_replaced && event.rank == rank {
                event.full_membership_seconds.get_or_insert(seconds);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(t: f64, rank: u32, event: RecordKind) -> Record {
        Record { t, rank, step: 0, event }
    }

    fn step(t: f64, rank: u32) -> Record {
        let (compute, exposed, waiting) = (0.0, 0.0, 0.0);
        record(t, rank, RecordKind::Step { loss: 0.0, samples: 1, compute, exposed, waiting })
    }

    #[test]
    fn a_lost_worker_is_followed_until_all_others_have_taken_a_step_and_another_is_there() {
        let mut table = RecoveryTable::new(0..3);
        for next in [
            step(1.0, 2),
            record(1.5, 2, RecordKind::Lost),
            // It was under way before.
            step(1.25, 1),
            step(2.0, 0),
            step(2.5, 1),
            record(4.0, 2, RecordKind::Joined),
            step(5.5, 2),
            step(6.0, 0),
            step(6.0, 1),
        ] {
            table.take(&next);
        }
        let events = table.events();
        assert_eq!(events.len(), 2);
        let [lost, joined] = [&events[0], &events[1]];
        assert_eq!((lost.kind, lost.rank, lost.silent_seconds), (RecoveryKind::Lost, 2, Some(0.5)));
        assert_eq!(lost.next_step_seconds, Some(1.0), "the slower of the two others");
        assert_eq!(lost.full_membership_seconds, Some(4.0));
        assert_eq!((joined.kind, joined.next_step_seconds), (RecoveryKind::Joined, Some(2.0)));
    }

    #[test]
    fn nobody_waits_for_a_second_worker_that_is_lost_before_its_next_step() {
        let mut table = RecoveryTable::new(0..3);
        table.take(&record(1.0, 2, RecordKind::Lost));
        table.take(&record(1.1, 1, RecordKind::Lost));
        table.take(&step(2.0, 0));
        let seconds = table.events().iter().map(|e| e.next_step_seconds).collect::<Vec<_>>();
        assert_eq!(seconds, [Some(1.0), Some(0.8999999999999999)]);
    }
}
