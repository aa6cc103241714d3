//! What a joined worker says during the run, read and checked where it arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use super::part_gate::{GateTurn, PartGate};
use crate::controller::Incoming;
use crate::protocol::{self, PacketWatch, SAVED, SMALL_BYTES, WorkerMessage};
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
    gate: Arc<PartGate>,
}

impl EventLimits {
    pub(crate) fn new(ranks: usize, lengths: VectorLengths) -> EventLimits {
        EventLimits { ranks, lengths, gate: Arc::default() }
    }
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
pub(crate) fn attend_worker(
    rank: u32,
    stream: &ControlStream,
    limits: EventLimits,
    controller: Sender<Incoming>,
) -> std::io::Result<WorkerReader> {
    let EventLimits { ranks, lengths, gate } = limits;
    let stream = stream.clone();
    let reader = WorkerReader::default();
    let heeded = reader.clone();
    let most = protocol::state_bytes(lengths.model);
    let _ = stream.set_read_timeout(None);
    std::thread::spawn(move || {
        let mut budget = RecordBudget::new(Instant::now());
        let unheard = Unheard::new(most);
        let controlled = controller.clone();
        let mut signs = SignsOfLife { rank, controller: controlled, last: None, gate, turn: None };
        loop {
            let word = protocol::read_watched::<WorkerMessage>(&stream, most, &mut signs);
            let mut word = match word.map_err(|error| error.to_string()) {
                Ok(WorkerMessage::Event(event)) => Ok(event),
                Ok(WorkerMessage::Peer(message)) => {
                    if controller.send(Incoming::Peer { rank, message }).is_err() {
                        return;
                    }
                    continue;
                }
                Err(reason) => Err(reason),
            };
            let turn = signs.turn.take();
            if let (Ok(RankEvent::Saved { part, .. }), Some(turn)) = (&mut word, turn) {
                part.turn = PartTurn::new(turn);
            }
            let word = word.and_then(|event| event.check(rank, ranks, lengths).map(|()| event));
            std::thread::sleep(budget.pause(Instant::now()));
            let word = match word {
                // A sentence says whose it is: nobody warns in another's name.
                Ok(RankEvent::Warning(text)) => {
                    unheard.hold(RankEvent::Warning(format!("{text} (says rank {rank})")))
                }
                // Its arrival was noted; it says nothing else.
                Ok(RankEvent::Alive { computing: false, .. }) => continue,
                Ok(event) => unheard.hold(event),
                Err(reason) => Err(reason),
            };
            let word = word.unwrap_or_else(|reason| Incoming::Gone { rank, reason });
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

/// What a worker has said and the controller has not heard yet, in bytes.
struct Unheard {
    bytes: Arc<AtomicU64>,
    most: u64,
}

/// What one event adds to that, until it is dropped.
#[derive(Debug)]
pub(crate) struct HeldBytes {
    bytes: u64,
    all: Arc<AtomicU64>,
}

impl Drop for HeldBytes {
    fn drop(&mut self) {
        self.all.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Unheard {
    /// For a worker whose longest event has this many bytes.
    fn new(longest: u64) -> Unheard {
        Unheard { bytes: Arc::default(), most: LEAST_UNHEARD + longest }
    }

    /// Passes an event on, unless too much waits to be heard.
    fn hold(&self, event: RankEvent) -> Result<Incoming, String> {
        let bytes = vector_bytes(&event);
        let before = self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let held = HeldBytes { bytes, all: Arc::clone(&self.bytes) };
        if before + bytes <= self.most {
            return Ok(Incoming::Said { event, held });
        }
        let most = self.most;
        Err(format!("it sent {bytes} bytes after {before} that were not heard; it may send {most}"))
    }
}

/// What may wait however small the model is.
const LEAST_UNHEARD: u64 = 64 << 20;

/// Bytes of the vectors and texts of an event. The rest is small, and there are so many a second at most.
fn vector_bytes(event: &RankEvent) -> u64 {
    let elements = match event {
        RankEvent::Report(report) => report.params.len() + report.model.len(),
        RankEvent::Model { model, .. } | RankEvent::Salvaged { model, .. } => model.len(),
        RankEvent::Saved { part, .. } => part.state.vectors.values().map(Vec::len).sum(),
        RankEvent::Surveyed { survey, .. } => survey.sample.len() + 16 * survey.links.len(),
        RankEvent::Account { account, .. } => 4 * (account.sent.len() + account.received.len()),
        RankEvent::Warning(text)
        | RankEvent::Stalled { complaint: text, .. }
        | RankEvent::Lost { reason: text, .. }
        | RankEvent::Poisoned { reason: text, .. }
        | RankEvent::Failed { reason: text, .. } => text.len().div_ceil(4),
        _ => 0,
    };
    elements as u64 * 4
}

/// Events per second of one worker that are taken without delay, and how many may come at once.
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
    fn what_nobody_has_heard_has_a_limit_and_what_was_heard_has_none() {
        let unheard = Unheard::new(0);
        let model = || RankEvent::Model { rank: 1, step: 0, model: vec![0.0; 4 << 20] };
        for _ in 0..100 {
            unheard.hold(model()).expect("heard at once");
        }
        let waiting: Vec<_> = (0..4).map(|_| unheard.hold(model()).expect("64 MiB")).collect();
        let told = unheard.hold(model()).expect_err("80 MiB");
        assert_eq!(
            told,
            "it sent 16777216 bytes after 67108864 that were not heard; it may send 67108864"
        );
        drop(waiting);
        unheard.hold(model()).expect("heard");
    }

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
