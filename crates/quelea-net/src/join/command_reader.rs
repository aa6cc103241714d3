//! Hears whoever controls the run, or wants to, and tells the rank.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;

use tokio::sync::mpsc::UnboundedSender;

use super::coordinator_reader::RunMessage;
use crate::controller::Incoming;
use crate::protocol::{self, LineMessage, SMALL_BYTES, Wait};
use crate::rank::Inbox;
use crate::transport::tcp::is_near;
use crate::trust::{ControlStream, LinkIdentity};
use quelea_control::Command;

/// A coordinator on the same machine may be silent for so many times as long.
const NEAR_FACTOR: f64 = 10.0;
/// Where others can take over, a controller that says nothing for this part of the time that a process may be
/// silent at most is gone. It may be busy with one rank that does not read for a quarter of that time.
const SURVIVED_PART: f64 = 3.0;

/// How long the coordinator may be silent. Where nobody can take over, a process of this machine whose
/// connection is open is alive: it may have been stopped, and will continue.
pub(super) fn coordinator_patience(
    stream: &ControlStream,
    peer_seconds: f64,
    is_survived: bool,
) -> f64 {
    if is_survived {
        return peer_seconds / SURVIVED_PART;
    }
    let is_near = is_near(stream.peer_addr(), stream.local_addr()).unwrap_or(false);
    if is_near { NEAR_FACTOR * peer_seconds } else { peer_seconds }
}

/// A connection with a process that controls the run, or wants to.
#[derive(Clone, Debug)]
pub(super) struct CommandLine {
    /// Its number in this process.
    pub(super) line: u32,
    /// The rank of the other process; none for the coordinator that the run begins with.
    pub(super) rank: Option<u32>,
    pub(super) stream: ControlStream,
    /// Whether its commands are followed: this process has voted for it.
    pub(super) is_followed: Arc<AtomicBool>,
}

/// Who hears what comes over a line.
#[derive(Clone)]
pub(super) struct CommandListener {
    pub(super) inbox: UnboundedSender<Inbox>,
    pub(super) process: Sender<Incoming>,
    pub(super) identity: Option<LinkIdentity>,
    /// How long it may be silent.
    pub(super) seconds: f64,
}

impl CommandListener {
    /// Reads a line until it has ended, on a thread of its own.
    pub(super) fn attend(self, line: CommandLine) -> std::io::Result<()> {
        let read = move || {
            let mut has_spoken = line.rank.is_none();
            let last = loop {
                if let Some(last) = self.hear(&line, &mut has_spoken) {
                    break last;
                }
            };
            let _ = self.process.send(last);
            // Whoever is writing to it need not wait.
            let _ = line.stream.shutdown(Shutdown::Both);
        };
        std::thread::Builder::new().name("commands".to_string()).spawn(read).map(drop)
    }

    /// Hears one word; the last one is for this process.
    fn hear(&self, line: &CommandLine, has_spoken: &mut bool) -> Option<Incoming> {
        let ended = |reason: String| Some(Incoming::LineEnded { line: line.line, reason });
        let wait = Wait::new(self.seconds, "a heartbeat");
        let word = match protocol::read(&line.stream, SMALL_BYTES, Some(wait)) {
            Ok(LineMessage::Peer(message)) => {
                let rank = line.rank?;
                let _ = self.process.send(Incoming::Peer { rank, message });
                return None;
            }
            Ok(LineMessage::Run(word)) => word,
            Err(error) => return ended(error.to_string()),
        };
        if !line.is_followed.load(Ordering::Acquire) {
            return ended("it commands, and nobody here has voted for it".to_string());
        }
        if !std::mem::replace(has_spoken, true) {
            let _ = self.process.send(Incoming::Met { line: line.line });
            let _ = self.inbox.send(Inbox::MeetController);
        }
        self.obey(word)
    }

    fn obey(&self, word: RunMessage) -> Option<Incoming> {
        match word {
            RunMessage::Command(Command::Heartbeat) => {}
            RunMessage::Command(Command::Abort(reason)) => return Some(Incoming::Aborted(reason)),
            RunMessage::Command(command) => {
                if matches!(command, Command::Store(_) | Command::View(_)) {
                    // The process knows of a view before its rank says that it does.
                    let _ = self.process.send(Incoming::Heard(command.clone()));
                }
                let _ = self.inbox.send(Inbox::Command(command));
            }
            RunMessage::Seat(seat) => {
                self.identity.iter().for_each(|identity| identity.seats().give(seat));
            }
            RunMessage::Moved { rank, address } => {
                let _ = self.process.send(Incoming::Moved { rank, address });
            }
            RunMessage::Ended => {
                let _ = self.process.send(Incoming::Ended);
            }
        }
        None
    }
}
