//! Connections between workers' processes that have lost the controller: whoever wants to be the next one calls
//! the others, and keeps the connection to command them.

use std::collections::BTreeMap;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::time::Duration;

use quelea_control::PeerMessage;
use quelea_core::message::Rank;

use super::command_reader::{CommandLine, CommandListener};
use crate::controller::Incoming;
use crate::options::NetOptions;
use crate::protocol;
use crate::rendezvous::worker_reader::{EventLimits, WorkerReader, attend_worker};
use crate::transport::tcp::Dialler;
use crate::trust::{ControlStream, LinkIdentity};

/// How other processes are called.
#[derive(Clone)]
pub(super) struct Caller {
    pub(super) run: u64,
    pub(super) own: Rank,
    pub(super) identity: Option<LinkIdentity>,
    pub(super) options: NetOptions,
    /// What is expected of the events of those who are called.
    pub(super) limits: EventLimits,
}

/// A call that this process has made.
enum PeerCall {
    /// It is not answered yet; then this is said.
    Open(Vec<PeerMessage>),
    Answered(AnsweredCall),
}

/// The process of a rank that has answered.
pub(super) struct AnsweredCall {
    pub(super) stream: ControlStream,
    /// Who reads what it says.
    pub(super) reader: WorkerReader,
}

/// All of them, by rank.
pub(super) struct PeerLines {
    caller: Caller,
    listener: CommandListener,
    process: Sender<Incoming>,
    /// Where each rank listens; nothing where that is not known.
    addresses: Vec<String>,
    calls: BTreeMap<u32, PeerCall>,
    /// Those that others have made.
    heard: BTreeMap<u32, CommandLine>,
    /// The number of the next one that comes.
    next: u32,
}

impl PeerLines {
    pub(super) fn new(
        caller: Caller,
        listener: CommandListener,
        addresses: Vec<String>,
    ) -> PeerLines {
        let process = listener.process.clone();
        let (calls, heard) = (BTreeMap::new(), BTreeMap::new());
        PeerLines { caller, listener, process, addresses, calls, heard, next: 1 }
    }

    /// A rank listens there.
    pub(super) fn moved(&mut self, rank: u32, address: String) {
        if let Some(known) = self.addresses.get_mut(rank as usize) {
            *known = address;
        }
    }

    /// Somebody has called: what it says is heard from now on.
    pub(super) fn accept(&mut self, rank: u32, stream: ControlStream) {
        let (line, is_followed) = (self.next, Arc::new(AtomicBool::new(false)));
        self.next += 1;
        let limit = Duration::from_secs_f64(self.caller.options.peer_seconds / 4.0);
        let _ = stream.set_write_timeout(Some(limit));
        let opened = CommandLine { line, rank: Some(rank), stream, is_followed };
        // Without a thread nobody hears it, and it hears nothing.
        if self.listener.clone().attend(opened.clone()).is_ok()
            && let Some(before) = self.heard.insert(rank, opened)
        {
            let _ = before.stream.shutdown(Shutdown::Both);
        }
    }

    /// A line has ended.
    pub(super) fn forget(&mut self, line: u32) {
        self.heard.retain(|_, heard| heard.line != line);
    }

    /// The rank at the other end of a line that was opened there.
    pub(super) fn rank_of(&self, line: u32) -> Option<u32> {
        self.heard.iter().find(|(_, heard)| heard.line == line).map(|(rank, _)| *rank)
    }

    /// Says something to the process of a rank: calls it, or answers its call.
    pub(super) fn say(&mut self, rank: u32, message: PeerMessage) {
        if matches!(message, PeerMessage::Claim { .. }) {
            return self.claim(rank, message);
        }
        if let Some(line) = self.heard.get(&rank) {
            // One that is gone needs no answer.
            let _ = protocol::write(&line.stream, &message);
        }
    }

    fn claim(&mut self, rank: u32, message: PeerMessage) {
        match self.calls.get_mut(&rank) {
            Some(PeerCall::Open(waiting)) => waiting.push(message),
            Some(PeerCall::Answered(call)) => {
                // Whoever reads its answers sees that it is gone.
                let _ = protocol::write(&call.stream, &message);
            }
            None => {
                self.calls.insert(rank, PeerCall::Open(vec![message]));
                self.call(rank);
            }
        }
    }

    /// Calls the process of a rank, on a thread of its own.
    fn call(&self, rank: u32) {
        let Caller { run, own, identity, options, .. } = self.caller.clone();
        let address = self.addresses.get(rank as usize).cloned().unwrap_or_default();
        let dialler = Dialler { run, from: own, to: Rank(rank), address, identity, options };
        let process = self.process.clone();
        let dial = move || {
            let answer = dialler.call().map_err(|error| error.to_string());
            let _ = process.send(Incoming::Called { rank, answer });
        };
        if let Err(error) = std::thread::Builder::new().name("call".to_string()).spawn(dial) {
            let answer = Err(error.to_string());
            let _ = self.process.send(Incoming::Called { rank, answer });
        }
    }

    /// A call was answered, or not. Whether the rank is within reach.
    pub(super) fn called(&mut self, rank: u32, answer: Result<ControlStream, String>) -> bool {
        let waiting = match self.calls.remove(&rank) {
            Some(PeerCall::Open(waiting)) => waiting,
            _ => Vec::new(),
        };
        let Ok(stream) = answer else { return false };
        let limit = Duration::from_secs_f64(self.caller.options.peer_seconds / 4.0);
        let _ = stream.set_write_timeout(Some(limit));
        let limits = self.caller.limits.clone();
        let Ok(reader) = attend_worker(rank, &stream, limits, self.process.clone()) else {
            return false;
        };
        let said = waiting.iter().all(|message| protocol::write(&stream, message).is_ok());
        self.calls.insert(rank, PeerCall::Answered(AnsweredCall { stream, reader }));
        said
    }

    /// A process that was called is gone.
    pub(super) fn hung_up(&mut self, rank: u32) {
        self.calls.remove(&rank);
    }

    /// Follows the commands of a rank that has called, and votes for it. The line, if it is still there.
    pub(super) fn vote(&mut self, rank: u32, vote: &PeerMessage) -> Option<CommandLine> {
        let line = self.heard.get(&rank)?.clone();
        line.is_followed.store(true, Ordering::Release);
        protocol::write(&line.stream, vote).ok()?;
        Some(line)
    }

    /// Commands of this line count no more.
    pub(super) fn leave(&mut self, line: u32) {
        if let Some(heard) = self.heard.values().find(|heard| heard.line == line) {
            heard.is_followed.store(false, Ordering::Release);
            let _ = heard.stream.shutdown(Shutdown::Both);
        }
    }

    /// The way to a rank that was called and has answered.
    pub(super) fn take_call(&mut self, rank: u32) -> Option<AnsweredCall> {
        match self.calls.remove(&rank)? {
            PeerCall::Answered(call) => Some(call),
            PeerCall::Open(_) => None,
        }
    }

    /// Where a rank listens, as far as that is known.
    pub(super) fn address(&self, rank: u32) -> Option<&str> {
        self.addresses.get(rank as usize).map(String::as_str).filter(|place| !place.is_empty())
    }

    /// Ends all others.
    pub(super) fn close(&mut self) {
        for line in std::mem::take(&mut self.heard).into_values() {
            let _ = line.stream.shutdown(Shutdown::Both);
        }
        for call in std::mem::take(&mut self.calls).into_values() {
            if let PeerCall::Answered(call) = call {
                let _ = call.stream.shutdown(Shutdown::Both);
            }
        }
    }
}
