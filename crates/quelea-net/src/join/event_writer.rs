//! Writes what a rank says to whoever controls the run.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::controller::Incoming;
use crate::protocol::{self, PacketError};
use crate::trust::ControlStream;
use quelea_control::RankEvent;
use quelea_record::RecordKind;

/// Events that may wait for the controller before records are left out.
const WAITING: usize = 1 << 16;

/// Writes events to the controller at the other end of a line, on a thread of its own.
pub(super) struct EventWriter {
    events: Sender<RankEvent>,
    waiting: Arc<AtomicUsize>,
    left_out: u64,
    /// Gives in the end whether the report was written.
    thread: JoinHandle<bool>,
}

impl EventWriter {
    pub(super) fn new(
        line: u32,
        stream: &ControlStream,
        controller: Sender<Incoming>,
    ) -> io::Result<EventWriter> {
        let stream = stream.clone();
        let (events, queue) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = Arc::clone(&waiting);
        let write = move || {
            let mut reported = false;
            for event in queue {
                match protocol::write(&stream, &event) {
                    Ok(()) => reported |= matches!(event, RankEvent::Report(_)),
                    // Whoever reads sees that too, after the last words in the connection.
                    Err(PacketError::Closed) => break,
                    Err(error) => {
                        let reason = error.to_string();
                        let _ = controller.send(Incoming::LineEnded { line, reason });
                        break;
                    }
                }
                written.fetch_sub(1, Ordering::Relaxed);
            }
            reported
        };
        let thread = std::thread::Builder::new().name("events".to_string()).spawn(write)?;
        Ok(EventWriter { events, waiting, left_out: 0, thread })
    }

    pub(super) fn pass_on(&mut self, event: RankEvent) {
        // The coordinator counts steps.
        let may_be_left_out = matches!(
            &event,
            RankEvent::Record(record) if !matches!(record.event, RecordKind::Step { .. })
        );
        if may_be_left_out && self.waiting.load(Ordering::Relaxed) >= WAITING {
            self.left_out += 1;
            return;
        }
        if let RankEvent::Report(report) = &event
            && self.left_out > 0
        {
            let (rank, count) = (report.rank, self.left_out);
            self.put(RankEvent::Warning(format!(
                "rank {rank} left out {count} records that the coordinator did not take in time"
            )));
        }
        self.put(event);
    }

    fn put(&self, event: RankEvent) {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        // A thread that has ended has said why.
        let _ = self.events.send(event);
    }

    /// The controller is gone. Whether it has the report.
    pub(super) fn finish(self) -> bool {
        drop(self.events);
        matches!(self.thread.join(), Ok(true))
    }
}
