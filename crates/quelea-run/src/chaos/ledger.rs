//! What was done to which worker, and what the run made of it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use quelea_record::{Record, RecordKind};
use serde::Serialize;

/// When something was heard here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Heard(pub(super) Instant);

impl Heard {
    fn seconds_since(self, earlier: Heard) -> f64 {
        self.0.saturating_duration_since(earlier.0).as_secs_f64()
    }
}

/// What was done to a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum IncidentKind {
    /// It was killed.
    Kill,
    /// It was stopped, and continued later.
    Pause,
}

/// One thing that was done, and what came of it. Seconds are those since it was done.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Incident {
    /// What.
    pub kind: IncidentKind,
    /// To whom.
    pub rank: u32,
    /// When, in seconds since the first step.
    pub at_seconds: f64,
    /// Whether the worker took part; else its process was only about to join.
    pub took_part: bool,
    /// For how long it was stopped.
    pub paused_seconds: Option<f64>,
    /// Until the loss was acted on.
    pub noticed_seconds: Option<f64>,
    /// Until another worker had finished its next step after that.
    pub next_step_seconds: Option<f64>,
    /// Until a worker took its place.
    pub joined_seconds: Option<f64>,
    /// Until that worker had finished its first step.
    pub first_step_seconds: Option<f64>,
    /// The longest step of any other worker that was under way then or ended within two seconds.
    pub longest_step_seconds: Option<f64>,
}

/// For how long after an incident steps of others count as disturbed by it.
const DISTURBED_SECONDS: f64 = 2.0;
/// Steps whose times are kept for the median.
const KEPT_STEPS: usize = 1 << 16;

/// An incident with its moment.
struct Entry {
    at: Heard,
    incident: Incident,
}

/// Who takes part, and everything that was done.
pub(super) struct Ledger {
    members: BTreeSet<u32>,
    first_step: Option<Heard>,
    entries: Vec<Entry>,
    /// When each worker's last step ended, on the run's clock.
    ended: BTreeMap<u32, f64>,
    /// How long steps took.
    steps: Vec<f64>,
}

impl Ledger {
    pub(super) fn new(workers: usize) -> Ledger {
        let members = (0..workers as u32).collect();
        let (entries, steps) = (Vec::new(), Vec::new());
        Ledger { members, first_step: None, entries, ended: BTreeMap::new(), steps }
    }

    /// The median seconds between two steps of a worker.
    pub(super) fn median_step_seconds(&self) -> Option<f64> {
        let mut steps = self.steps.clone();
        steps.sort_by(f64::total_cmp);
        steps.get(steps.len() / 2).copied()
    }

    pub(super) fn has_begun(&self) -> bool {
        self.first_step.is_some()
    }

    /// Workers that take part and were not killed.
    pub(super) fn members(&self) -> &BTreeSet<u32> {
        &self.members
    }

    pub(super) fn incidents(&self) -> Vec<Incident> {
        self.entries.iter().map(|entry| entry.incident.clone()).collect()
    }

    /// A process was killed, or stopped for this long.
    pub(super) fn note(&mut self, rank: u32, paused: Option<Duration>, at: Heard) {
        let kind = if paused.is_some() { IncidentKind::Pause } else { IncidentKind::Kill };
        let took_part = match kind {
            IncidentKind::Kill => self.members.remove(&rank),
            IncidentKind::Pause => self.members.contains(&rank),
        };
        let incident = Incident {
            kind,
            rank,
            at_seconds: self.first_step.map_or(0.0, |first| at.seconds_since(first)),
            took_part,
            paused_seconds: paused.map(|paused| paused.as_secs_f64()),
            noticed_seconds: None,
            next_step_seconds: None,
            joined_seconds: None,
            first_step_seconds: None,
            longest_step_seconds: None,
        };
        self.entries.push(Entry { at, incident });
    }

    /// A record has come at this moment.
    pub(super) fn take(&mut self, record: &Record, now: Heard) {
        let rank = record.rank;
        match record.event {
            RecordKind::Step { .. } => self.step(rank, record.t, now),
            RecordKind::Lost | RecordKind::Left => {
                self.members.remove(&rank);
                self.ended.remove(&rank);
                let of_rank = |entry: &&mut Entry| {
                    let Incident { rank: whose, took_part, noticed_seconds, .. } = entry.incident;
                    whose == rank && took_part && noticed_seconds.is_none()
                };
                if let Some(entry) = self.entries.iter_mut().rev().find(of_rank) {
                    entry.incident.noticed_seconds = Some(now.seconds_since(entry.at));
                }
            }
            RecordKind::Joined => {
                self.members.insert(rank);
                for Entry { at, incident } in &mut self.entries {
                    // A pause that nobody has noticed has lost nobody.
                    let is_open = incident.noticed_seconds.is_some() || !incident.took_part;
                    if incident.rank == rank && is_open && incident.joined_seconds.is_none() {
                        incident.joined_seconds = Some(now.seconds_since(*at));
                    }
                }
            }
            _ => {}
        }
    }

    fn step(&mut self, rank: u32, t: f64, now: Heard) {
        self.first_step.get_or_insert(now);
        if let Some(before) = self.ended.insert(rank, t) {
            let took = t - before;
            if self.steps.len() < KEPT_STEPS {
                self.steps.push(took);
            }
            for Entry { at, incident } in &mut self.entries {
                if incident.rank != rank && now.seconds_since(*at) <= DISTURBED_SECONDS.max(took) {
                    let longest = incident.longest_step_seconds.get_or_insert(took);
                    *longest = longest.max(took);
                }
            }
        }
        for Entry { at, incident } in &mut self.entries {
            let Incident { rank: whose, noticed_seconds, joined_seconds, .. } = *incident;
            let seconds = now.seconds_since(*at);
            if whose != rank && noticed_seconds.is_some() {
                incident.next_step_seconds.get_or_insert(seconds);
            } else if whose == rank && joined_seconds.is_some() {
                incident.first_step_seconds.get_or_insert(seconds);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(rank: u32, event: RecordKind) -> Record {
        Record { t: 0.0, rank, step: 0, event }
    }

    fn step(rank: u32) -> Record {
        let (compute, exposed, waiting) = (0.0, 0.0, 0.0);
        record(rank, RecordKind::Step { loss: 0.0, samples: 1, compute, exposed, waiting })
    }

    #[test]
    fn a_kill_is_followed_from_its_notice_to_the_first_step_of_the_worker_that_joins() {
        let begun = Instant::now();
        let after = |seconds: u64| Heard(begun + Duration::from_secs(seconds));
        let mut ledger = Ledger::new(3);
        ledger.take(&step(0), after(0));
        ledger.note(2, None, after(10));
        assert_eq!(ledger.members(), &BTreeSet::from([0, 1]));
        ledger.take(&step(1), after(11));
        ledger.take(&record(2, RecordKind::Lost), after(12));
        ledger.take(&step(1), after(14));
        // The process that comes in its place is killed before it takes part.
        ledger.note(2, None, after(15));
        ledger.take(&record(2, RecordKind::Joined), after(18));
        ledger.take(&step(0), after(19));
        ledger.take(&step(2), after(21));
        let incidents = ledger.incidents();
        let times = |incident: &Incident| {
            [
                incident.noticed_seconds,
                incident.next_step_seconds,
                incident.joined_seconds,
                incident.first_step_seconds,
            ]
        };
        assert_eq!(times(&incidents[0]), [Some(2.0), Some(4.0), Some(8.0), Some(11.0)]);
        assert_eq!(times(&incidents[1]), [None, None, Some(3.0), Some(6.0)]);
        assert!(incidents[0].took_part && !incidents[1].took_part);
        assert_eq!(ledger.members().len(), 3);
    }

    #[test]
    fn a_short_pause_that_nobody_noticed_has_lost_nobody() {
        let begun = Heard(Instant::now());
        let mut ledger = Ledger::new(2);
        ledger.note(1, Some(Duration::from_millis(100)), begun);
        ledger.take(&step(1), begun);
        let incident = &ledger.incidents()[0];
        assert_eq!((incident.kind, incident.noticed_seconds), (IncidentKind::Pause, None));
        assert_eq!(ledger.members().len(), 2);
    }
}
