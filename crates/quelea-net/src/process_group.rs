//! Processes that do something together outside a run: agree at the start, wait for each other,
//! average a vector.
//!
//! Rank 0 is the hub. Everybody gives it something; it makes one answer of all and gives that to
//! everybody. Whoever dies breaks its connection, and the others hear who it was.

mod frames;
mod meeting;

use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use quelea_control::{REASON_CHARS, shown};

use crate::launcher::{Launched, Rendezvous};
use crate::protocol::Wait;
use crate::trust::{self, ControlStream, Security};
pub(crate) use frames::takes_frame;
use frames::{read, write};
use meeting::{find, gather};

/// How much longer than rank 0 the others wait, so that its reason reaches them.
const ANSWER_GRACE: Duration = Duration::from_secs(5);

/// Why processes could not do something together.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ProcessGroupError {
    /// They did not find each other.
    #[error("{0}")]
    Setup(String),
    /// Somebody is gone.
    #[error("rank {rank} is gone while the others were at {what}: {reason}")]
    Gone {
        /// Who.
        rank: u32,
        /// At what.
        what: String,
        /// How it was noticed.
        reason: String,
    },
    /// Somebody did not come to a call.
    #[error("waited {seconds:.1} s for rank {rank} at {what}")]
    TimedOut {
        /// Who.
        rank: u32,
        /// At what.
        what: String,
        /// How long.
        seconds: f64,
    },
    /// The hub made no answer of what everybody gave.
    #[error("{0}")]
    Refused(String),
    /// Whoever waited was told to stop.
    #[error("interrupted")]
    Interrupted,
}

/// Looks up now and then while it waits: `false` ends the waiting.
pub type KeepWaiting<'a> = &'a mut dyn FnMut() -> bool;

/// All processes of one launch.
#[derive(Debug)]
pub struct ProcessGroup {
    rank: u32,
    /// At rank 0 the others, by rank; elsewhere rank 0 alone.
    peers: Vec<(u32, ControlStream)>,
    address: IpAddr,
}

/// A call that all processes make together.
#[derive(Clone, Copy, Debug)]
pub struct GroupCall<'a> {
    /// Its name: all must be at the same one.
    pub what: &'a str,
    /// How long everybody may take to come to it.
    pub limit: Duration,
}

impl ProcessGroup {
    /// Finds the others, within so many seconds in all. Beyond this machine, connections are encrypted
    /// for those who know the secret.
    pub fn open(
        launched: &Launched,
        security: &Security,
        seconds: f64,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<ProcessGroup, ProcessGroupError> {
        if let (Rendezvous::Address(address), 2..) = (&launched.rendezvous, launched.world) {
            let checked = security.check_host(trust::host_of(address));
            checked.map_err(|error| refused(error.to_string()))?;
        }
        let wait = Wait::new(seconds, "the other processes");
        match launched.rank {
            0 => gather(launched, security, wait, keep_waiting),
            _ => find(launched, security, wait, keep_waiting),
        }
    }

    /// Where the hub's machine is reached; at the hub, the address to listen on.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Everybody gives `mine`; everybody gets what the hub's `fold` makes of all, which are in the
    /// order of ranks.
    pub fn together(
        &mut self,
        call: GroupCall<'_>,
        mine: Vec<u8>,
        fold: impl FnOnce(Vec<Vec<u8>>) -> Result<Vec<u8>, String>,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<Vec<u8>, ProcessGroupError> {
        let begun = Instant::now();
        if self.rank != 0 {
            let (rank, stream) = &self.peers[0];
            let limit = call.limit + ANSWER_GRACE;
            let mut patience = || begun.elapsed() < limit && keep_waiting();
            let answer = write(stream, true, call.what, &mine, &mut patience)
                .and_then(|()| read(stream, &mut patience))
                .map_err(|error| call.failure(*rank, &error, begun, limit))?;
            return if answer.good {
                Ok(answer.body)
            } else {
                let reason = String::from_utf8_lossy(&answer.body);
                Err(ProcessGroupError::Refused(shown(&reason, REASON_CHARS)))
            };
        }
        let mut patience = || begun.elapsed() < call.limit && keep_waiting();
        let all = self.collect(call, mine, begun, &mut patience);
        let folded = all.and_then(|all| fold(all).map_err(ProcessGroupError::Refused));
        // The answer has a time of its own.
        let answering = Instant::now();
        let mut patience = || answering.elapsed() < ANSWER_GRACE.max(call.limit) && keep_waiting();
        for (rank, stream) in &self.peers {
            let told = match &folded {
                Ok(body) => write(stream, true, call.what, body, &mut patience),
                Err(error) => {
                    // Whoever is gone already is the reason, or is as good as gone.
                    let text = error.to_string();
                    let _ = write(stream, false, call.what, text.as_bytes(), &mut patience);
                    Ok(())
                }
            };
            told.map_err(|error| call.failure(*rank, &error, answering, call.limit))?;
        }
        folded
    }

    /// What everybody gives, at the hub.
    fn collect(
        &self,
        call: GroupCall<'_>,
        mine: Vec<u8>,
        begun: Instant,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<Vec<Vec<u8>>, ProcessGroupError> {
        let mut all = vec![mine];
        for (rank, stream) in &self.peers {
            let word = read(stream, keep_waiting)
                .map_err(|error| call.failure(*rank, &error, begun, call.limit))?;
            if word.what != call.what {
                let (what, other) = (call.what, shown(&word.what, REASON_CHARS));
                return Err(ProcessGroupError::Refused(format!(
                    "rank 0 is at {what}, but rank {rank} at {other}: all ranks must make the same \
                     calls in the same order"
                )));
            }
            all.push(word.body);
        }
        Ok(all)
    }
}

impl GroupCall<'_> {
    fn failure(
        &self,
        rank: u32,
        error: &io::Error,
        begun: Instant,
        limit: Duration,
    ) -> ProcessGroupError {
        let (what, seconds) = (self.what.to_string(), begun.elapsed().as_secs_f64());
        match error.kind() {
            ErrorKind::Interrupted if begun.elapsed() >= limit => {
                ProcessGroupError::TimedOut { rank, what, seconds }
            }
            ErrorKind::Interrupted => ProcessGroupError::Interrupted,
            _ => ProcessGroupError::Gone { rank, what, reason: said(error) },
        }
    }
}

fn said(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset | ErrorKind::BrokenPipe => {
            "its process has ended".into()
        }
        _ => error.to_string(),
    }
}

fn refused(text: impl Into<String>) -> ProcessGroupError {
    ProcessGroupError::Setup(text.into())
}
