//! What a joined worker says during the run, read and checked where it arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use crate::controller::Incoming;
use crate::protocol;
use crate::trust::ControlStream;
use quelea_control::{RankEvent, VectorLengths};

/// The controller hears at most this often that something has arrived.
const ALIVE_INTERVAL: Duration = Duration::from_millis(50);

/// Tells the controller that something has arrived, so that a process whose packet takes long does not
/// seem to be silent.
struct SignsOfLife {
    rank: u32,
    controller: Sender<Incoming>,
    last: Option<Instant>,
}

impl SignsOfLife {
    fn note(&mut self) {
        let at = Instant::now();
        if self.last.is_none_or(|last| at.saturating_duration_since(last) >= ALIVE_INTERVAL) {
            self.last = Some(at);
            let _ = self.controller.send(Incoming::Alive { rank: self.rank, at });
        }
    }
}

/// Reads the events of a joined worker on a thread of its own, until it is gone.
pub(super) fn attend_worker(
    rank: u32,
    stream: &ControlStream,
    ranks: usize,
    lengths: VectorLengths,
    controller: Sender<Incoming>,
) -> std::io::Result<WorkerReader> {
    let stream = stream.clone();
    let reader = WorkerReader::default();
    let heeded = reader.clone();
    let most = protocol::state_bytes(lengths.model);
    let _ = stream.set_read_timeout(None);
    std::thread::spawn(move || {
        let mut budget = RecordBudget::new(Instant::now());
        let mut signs = SignsOfLife { rank, controller: controller.clone(), last: None };
        loop {
            let word = protocol::read_watched::<RankEvent>(&stream, most, &mut || signs.note())
                .map_err(|error| error.to_string());
            let word = word.and_then(|event| event.check(rank, ranks, lengths).map(|()| event));
            if let Ok(RankEvent::Record(_)) = word {
                std::thread::sleep(budget.pause(Instant::now()));
            }
            let word = match word {
                // A sentence says whose it is: nobody warns in another's name.
                Ok(RankEvent::Warning(text)) => {
                    let text = format!("{text} (says rank {rank})");
                    Incoming::Event(RankEvent::Warning(text))
                }
                // Its arrival was noted; it says nothing else.
                Ok(RankEvent::Alive { computing: false, .. }) => continue,
                Ok(event) => Incoming::Event(event),
                Err(reason) => Incoming::Gone { rank, reason },
            };
            let last = matches!(word, Incoming::Gone { .. });
            if heeded.is_dismissed() {
                return;
            }
            if controller.send(word).is_err() || last {
                return;
            }
        }
    });
    Ok(reader)
}

/// Who reads what a worker says. Clones are the same reader.
#[derive(Clone, Debug, Default)]
pub(crate) struct WorkerReader {
    is_dismissed: Arc<AtomicBool>,
}

impl WorkerReader {
    /// Nothing that the worker says counts any more: another takes its place.
    pub(crate) fn dismiss(&self) {
        self.is_dismissed.store(true, Ordering::Release);
    }

    fn is_dismissed(&self) -> bool {
        self.is_dismissed.load(Ordering::Acquire)
    }
}

/// Records per second of one worker that are taken without delay, and how many may come at once.
const RECORDS_PER_SECOND: f64 = 100_000.0;
const RECORDS_AT_ONCE: f64 = 200_000.0;

/// How many records a worker may still send at once. One that sends more is read more slowly: its own queue
/// fills, it leaves records out, and says how many.
struct RecordBudget {
    left: f64,
    since: Instant,
}

impl RecordBudget {
    fn new(now: Instant) -> RecordBudget {
        RecordBudget { left: RECORDS_AT_ONCE, since: now }
    }

    /// How long to wait after one more record.
    fn pause(&mut self, now: Instant) -> Duration {
        let earned = now.saturating_duration_since(self.since).as_secs_f64() * RECORDS_PER_SECOND;
        (self.left, self.since) = ((self.left + earned).min(RECORDS_AT_ONCE) - 1.0, now);
        Duration::from_secs_f64((-self.left / RECORDS_PER_SECOND).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_records_is_read_at_the_rate_that_is_allowed() {
        let begun = Instant::now();
        let mut budget = RecordBudget::new(begun);
        let mut now = begun;
        for _ in 0..500_000 {
            now += budget.pause(now);
        }
        let expected = (500_000.0 - RECORDS_AT_ONCE) / RECORDS_PER_SECOND;
        assert!((now - begun).as_secs_f64() > 0.99 * expected, "{:?}", now - begun);
        let mut calm = RecordBudget::new(begun);
        for second in 0..1000 {
            assert!(calm.pause(begun + Duration::from_millis(second)).is_zero());
        }
    }
}
