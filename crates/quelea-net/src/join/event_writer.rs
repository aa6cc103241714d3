//! What a joined worker and the coordinator exchange during the run: commands come, events go.

use std::io;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use tokio::sync::mpsc::UnboundedSender;

use super::coordinator_reader::RunMessage;
use crate::controller::Incoming;
use crate::protocol::{self, PacketError, SMALL_BYTES, Wait};
use crate::rank::Inbox;
use crate::transport::tcp::is_near;
use crate::trust::{ControlStream, LinkIdentity};
use quelea_control::{Command, RankEvent};
use quelea_record::RecordKind;

/// Events that may wait for the coordinator before records are left out.
const WAITING: usize = 1 << 16;

/// A coordinator on the same machine may be silent for so many times as long.
const NEAR_FACTOR: f64 = 10.0;

/// Why a joined process ends before its time.
pub(super) enum JoinEnd {
    Aborted(String),
    Gone(String),
}

/// How long the coordinator may be silent. A process of this machine whose connection is open is alive:
/// it may have been stopped, and will continue.
pub(super) fn coordinator_patience(stream: &ControlStream, peer_seconds: f64) -> f64 {
    let is_near = is_near(stream.peer_addr(), stream.local_addr()).unwrap_or(false);
    if is_near { NEAR_FACTOR * peer_seconds } else { peer_seconds }
}

/// Hears the coordinator, which says every now and then that it is alive, on a thread of its own
/// and tells the rank.
pub(super) fn attend_coordinator(
    stream: &ControlStream,
    inbox: UnboundedSender<Inbox>,
    controller: Sender<Incoming>,
    identity: Option<LinkIdentity>,
    seconds: f64,
) -> io::Result<()> {
    let stream = stream.clone();
    std::thread::spawn(move || {
        loop {
            let wait = Wait::new(seconds, "a heartbeat");
            let last = match protocol::read(&stream, SMALL_BYTES, Some(wait)) {
                Ok(RunMessage::Command(Command::Heartbeat)) => continue,
                Ok(RunMessage::Command(Command::Abort(reason))) => Incoming::Aborted(reason),
                Ok(RunMessage::Seat(seat)) => {
                    identity.iter().for_each(|identity| identity.seats().give(seat));
                    continue;
                }
                Ok(RunMessage::Command(command)) => {
                    let _ = inbox.send(Inbox::Command(command));
                    continue;
                }
                Err(error) => Incoming::Gone { rank: 0, reason: error.to_string() },
            };
            let _ = controller.send(last);
            // Whoever is writing to it need not wait.
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    });
    Ok(())
}

/// Passes on what the rank says, until the coordinator has everybody's report. Writing may wait
/// for the coordinator; this does not, so that it hears when there is none any more.
pub(super) fn serve(
    stream: &ControlStream,
    incoming: &Receiver<Incoming>,
    controller: Sender<Incoming>,
) -> Result<(), JoinEnd> {
    let mut writer =
        EventWriter::new(stream, controller).map_err(|error| JoinEnd::Gone(error.to_string()))?;
    for word in incoming {
        match word {
            // A process that left earlier, with words unread, could take its own report with it.
            Incoming::Gone { reason, .. } => return writer.finish(reason).map_err(JoinEnd::Gone),
            Incoming::Aborted(reason) => return Err(JoinEnd::Aborted(reason)),
            Incoming::Event(event) => writer.pass_on(event),
            // Only a coordinator watches others and has workers that join.
            Incoming::Said { .. }
            | Incoming::Alive { .. }
            | Incoming::Connected(_)
            | Incoming::NotConnected { .. } => {}
        }
    }
    Err(JoinEnd::Gone("its events are no longer read".into()))
}

/// Writes events to the coordinator on a thread of its own.
pub(super) struct EventWriter {
    events: Sender<RankEvent>,
    waiting: Arc<AtomicUsize>,
    left_out: u64,
    /// Gives in the end whether the report was written.
    thread: JoinHandle<bool>,
}

impl EventWriter {
    fn new(stream: &ControlStream, controller: Sender<Incoming>) -> io::Result<EventWriter> {
        let stream = stream.clone();
        let (events, queue) = channel();
        let waiting = Arc::new(AtomicUsize::new(0));
        let written = Arc::clone(&waiting);
        let thread = std::thread::spawn(move || {
            let mut reported = false;
            for event in queue {
                match protocol::write(&stream, &event) {
                    Ok(()) => reported |= matches!(event, RankEvent::Report(_)),
                    // Whoever reads sees that too, after the last words in the connection.
                    Err(PacketError::Closed) => break,
                    Err(error) => {
                        let reason = error.to_string();
                        let _ = controller.send(Incoming::Gone { rank: 0, reason });
                        break;
                    }
                }
                written.fetch_sub(1, Ordering::Relaxed);
            }
            reported
        });
        Ok(EventWriter { events, waiting, left_out: 0, thread })
    }

    fn pass_on(&mut self, event: RankEvent) {
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

    /// The coordinator is gone: that is well if it has the report.
    fn finish(self, reason: String) -> Result<(), String> {
        drop(self.events);
        if matches!(self.thread.join(), Ok(true)) { Ok(()) } else { Err(reason) }
    }
}
