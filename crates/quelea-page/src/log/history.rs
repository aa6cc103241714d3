//! How one rank or one link was over the whole run, from the states at moments of it.

use serde_json::{Value, json};

use super::RunLog;
use crate::state::MomentState;

/// Moments at which a run is looked at.
const MOMENTS: u32 = 120;

/// What a history is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HistorySubject {
    /// A rank: its steps per second and the loss of its mini-batches.
    Rank(u32),
    /// What one rank sends to another: bytes per second, and the round trip in seconds.
    Link {
        /// Who sends.
        from: u32,
        /// To whom.
        to: u32,
    },
}

impl HistorySubject {
    fn columns(self) -> [&'static str; 3] {
        match self {
            HistorySubject::Rank(_) => ["t", "steps_per_second", "loss"],
            HistorySubject::Link { .. } => ["t", "bytes_per_second", "round_trip"],
        }
    }

    /// The numbers of a moment; none while the rank is lost or the link unused.
    fn values(self, t: f64, state: &MomentState) -> Option<Value> {
        let living = |rank: u32| state.ranks.get(rank as usize).filter(|rank| rank.lost.is_none());
        match self {
            HistorySubject::Rank(rank) => {
                let rank = living(rank).filter(|rank| rank.steps > 0)?;
                Some(json!([t, rank.steps_per_second(), rank.loss]))
            }
            HistorySubject::Link { from, to } => {
                let link = living(from)?.links.get(&to).filter(|_| living(to).is_some())?;
                let micros = link.total.round_trip_micros;
                let round_trip = (micros > 0).then(|| micros as f64 / 1e6);
                Some(json!([t, link.bytes_per_second, round_trip]))
            }
        }
    }
}

impl RunLog {
    /// At most 256 points of a rank or a link, from the beginning until now, as the API shows them.
    pub fn history_json(&self, subject: HistorySubject) -> Value {
        let (end, is_whole) = {
            let inner = self.lock();
            (inner.state.t, inner.dropped == 0)
        };
        let mut points: Vec<Value> = Vec::new();
        if is_whole {
            for moment in 1..=MOMENTS {
                let t = end * f64::from(moment) / f64::from(MOMENTS);
                // Each moment by itself: records of a live run come in between.
                let state = self.lock().at(t);
                points.extend(state.and_then(|state| subject.values(t, &state)));
            }
        } else {
            let inner = self.lock();
            let before = inner.snapshots.iter().map(|snapshot| &snapshot.state);
            let states = before.chain([&inner.state]);
            points.extend(states.filter_map(|state| subject.values(state.t, state)));
        }
        json!({ "columns": subject.columns(), "points": points })
    }
}

#[cfg(test)]
mod tests {
    use quelea_record::{LinkTotal, ProcessMemory, Record, RecordKind};

    use super::*;
    use crate::description::RunDescription;
    use crate::log::{LIVE_RECORDS, LogClock};

    fn step(t: f64, rank: u32) -> Record {
        let event =
            RecordKind::Step { loss: 0.5, samples: 2, compute: 0.01, exposed: 0.0, waiting: 0.0 };
        Record { t, rank, step: 0, event }
    }

    fn points(log: &RunLog, subject: HistorySubject) -> Vec<[f64; 2]> {
        let shown = log.history_json(subject);
        let points = shown["points"].as_array().expect("points").iter();
        points.map(|point| [0, 1].map(|place| point[place].as_f64().expect("a number"))).collect()
    }

    #[test]
    fn the_history_of_a_rank_is_its_rate_at_every_moment_until_it_was_lost() {
        let log = RunLog::recorded(RunDescription { workers: 2, ..Default::default() }, 1);
        // Ten steps a second, and from the fifth second on five.
        let times = (1..=50).map(|k| 0.1 * f64::from(k));
        let times = times.chain((1..=25).map(|k| 5.0 + 0.2 * f64::from(k)));
        log.take_all(times.map(|t| step(t, 0)));
        log.take_all([step(5.0, 1), Record { t: 7.5, rank: 1, step: 0, event: RecordKind::Lost }]);
        log.take(&step(10.0, 0));
        let found = points(&log, HistorySubject::Rank(0));
        assert_eq!(found.len(), MOMENTS as usize - 1, "before the first step nothing is known");
        let rate = |t: f64| found.iter().find(|[at, _]| *at >= t).expect("within")[1];
        assert!((rate(4.9) - 10.0).abs() < 0.1, "{}", rate(4.9));
        assert!((rate(9.0) - 5.0).abs() < 0.8, "{}", rate(9.0));
        let lost = points(&log, HistorySubject::Rank(1));
        assert!(lost.iter().all(|[t, _]| (5.0..7.5).contains(t)), "{lost:?}");
        assert!(points(&log, HistorySubject::Rank(7)).is_empty());
    }

    #[test]
    fn the_history_of_a_link_is_what_was_counted_and_survives_what_is_forgotten() {
        let about = RunDescription { workers: 2, ..Default::default() };
        let log = RunLog::live(about, LogClock::Recorded);
        let mut bytes_sent = 0;
        for k in 1..=(LIVE_RECORDS as u64 + 5000) {
            bytes_sent += 50;
            let link = LinkTotal { peer: 1, sent: k, bytes_sent, ..Default::default() };
            let (awaiting, links) = (Vec::new(), vec![link]);
            let event = RecordKind::Account { awaiting, links, memory: ProcessMemory::default() };
            log.take(&Record { t: 0.5 * k as f64, rank: 0, step: 0, event });
        }
        let found = points(&log, HistorySubject::Link { from: 0, to: 1 });
        assert!((64..=257).contains(&found.len()), "{}", found.len());
        assert!(found[0][0] < 3000.0 && found.iter().all(|[_, rate]| *rate == 100.0));
        assert!(points(&log, HistorySubject::Link { from: 1, to: 0 }).is_empty());
    }
}
