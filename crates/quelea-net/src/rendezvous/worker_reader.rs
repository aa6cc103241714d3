//! What a joined worker says during the run, read and checked where it arrives.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::part_gate::{GateTurn, PartGate};
use crate::controller::Incoming;
use crate::protocol::{self, PacketWatch, SAVED, SMALL_BYTES};
use crate::trust::ControlStream;
use quelea_control::{RankEvent, VectorLengths};
use quelea_record::PartTurn;

/// The controller hears at most this often that something has arrived.
const ALIVE_INTERVAL: Duration = Duration::from_millis(50);

/// How long a part of a checkpoint waits for the one before it to be written. Then it is read nevertheless: its
/// sender waits meanwhile, and must not take this process for lost.
const PART_PATIENCE: Duration = Duration::from_secs(5);

/// Tells the controller that something has arrived, so that a process whose packet takes long does not
/// seem to be silent.
struct SignsOfLife {
    rank: u32,
    controller: Sender<Incoming>,
    last: Option<Instant>,
    gate: Arc<PartGate>,
    /// Of the part that is being read.
    turn: Option<GateTurn>,
}

/// What the coordinator expects of the events of its workers.
#[derive(Clone, Debug)]
pub(crate) struct EventLimits {
    pub(crate) ranks: usize,
    pub(crate) lengths: VectorLengths,
    /// Where the parts of checkpoints wait.
    pub(crate) gate: Arc<PartGate>,
}

impl PacketWatch for SignsOfLife {
    fn arrived(&mut self) {
        self.note();
    }

    /// A process whose part waits for its turn is not silent: it is this one that does not read.
    fn announced(&mut self, kind: u16, bytes: u64) {
        if kind == SAVED && bytes > SMALL_BYTES {
            let gate = Arc::clone(&self.gate);
            self.turn = Some(gate.enter(PART_PATIENCE, &mut || self.note()));
        }
    }
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
    limits: EventLimits,
    controller: Sender<Incoming>,
) -> std::io::Result<()> {
    let EventLimits { ranks, lengths, gate } = limits;
    let stream = stream.clone();
    let most = protocol::state_bytes(lengths.model);
    let _ = stream.set_read_timeout(None);
    std::thread::spawn(move || {
        let mut budget = RecordBudget::new(Instant::now());
        let controlled = controller.clone();
        let mut signs = SignsOfLife { rank, controller: controlled, last: None, gate, turn: None };
        loop {
            let mut word = protocol::read_watched::<RankEvent>(&stream, most, &mut signs)
                .map_err(|error| error.to_string());
            let turn = signs.turn.take();
            if let (Ok(RankEvent::Saved { part, .. }), Some(turn)) = (&mut word, turn) {
                part.turn = PartTurn::new(turn);
            }
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
            if controller.send(word).is_err() || last {
                return;
            }
        }
    });
    Ok(())
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
