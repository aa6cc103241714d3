//! Processes that do something together outside a run: agree at the start, wait for each other,
//! average a vector.
//!
//! Rank 0 is the hub. Everybody gives it something; it makes one answer of all and gives that to
//! everybody. Whoever dies breaks its connection, and the others hear who it was; while a run is under way that
//! continues without a lost process, so do their calls. A process that comes late, in the place of a lost one,
//! is told which run it can join.

mod frames;
mod meeting;
mod members;
mod subgroup;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use quelea_control::{REASON_CHARS, shown};

use crate::launcher::{Launched, Rendezvous};
use crate::protocol::Wait;
use crate::trust::{self, ControlStream, Security};
pub(crate) use frames::takes_frame;
use frames::{read, write};
use meeting::{Door, find, gather};
pub use members::{GroupMembers, RunUnderWay};

/// How much longer than rank 0 the others wait, so that its reason reaches them.
const ANSWER_GRACE: Duration = Duration::from_secs(5);

/// How often it is looked whether a run continues without a process that is gone.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

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
    peers: BTreeMap<u32, ControlStream>,
    address: IpAddr,
    members: GroupMembers,
    /// At a process that came late.
    joinable: Option<RunUnderWay>,
    /// At the hub: where processes come late.
    _door: Option<Door>,
}

/// Who makes a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Participants {
    /// All processes; if one is lost, nobody can.
    All,
    /// All that were not lost before.
    Remaining,
    /// All workers of a run that continues without those who are lost, before the gradient of this step at
    /// the hub.
    Living {
        /// The step.
        step: u64,
    },
}

impl Participants {
    fn may_be_lost(self) -> bool {
        matches!(self, Participants::Living { .. })
    }
}

/// What one process gives in a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Given {
    /// Whose it is.
    pub rank: u32,
    /// What it is.
    pub bytes: Vec<u8>,
}

/// A call that all processes make together.
#[derive(Clone, Copy, Debug)]
pub struct GroupCall<'a> {
    /// Its name: all must be at the same one.
    pub what: &'a str,
    /// How long everybody may take to come to it.
    pub limit: Duration,
    /// Who makes it.
    pub participants: Participants,
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

    /// A group of one.
    fn alone() -> ProcessGroup {
        meeting::group(0, BTreeMap::new(), IpAddr::V4(Ipv4Addr::LOCALHOST))
    }

    /// Where the hub's machine is reached; at the hub, the address to listen on.
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Who takes part, as the hub knows.
    pub fn members(&self) -> &GroupMembers {
        &self.members
    }

    /// The run that this process can join, if it came late.
    pub fn joinable(&self) -> Option<RunUnderWay> {
        self.joinable
    }

    /// Everybody gives `mine`; everybody gets what the hub's `fold` makes of all, which are in the
    /// order of ranks.
    pub fn together(
        &mut self,
        call: GroupCall<'_>,
        mine: Vec<u8>,
        fold: impl FnOnce(Vec<Given>) -> Result<Vec<u8>, String>,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<Vec<u8>, ProcessGroupError> {
        if self.rank != 0 {
            return self.ask_hub(call, &mine, keep_waiting);
        }
        let begun = Instant::now();
        self.members.settle(&mut self.peers);
        let callers = self.callers(call);
        let mut patience = || begun.elapsed() < call.limit && keep_waiting();
        let all = self.collect(call, mine, &callers, begun, &mut patience);
        let folded = all.and_then(|all| fold(all).map_err(ProcessGroupError::Refused));
        self.answer(call, &callers, &folded, keep_waiting)?;
        folded
    }

    /// One of the others gives its part and gets the hub's answer.
    fn ask_hub(
        &self,
        call: GroupCall<'_>,
        mine: &[u8],
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<Vec<u8>, ProcessGroupError> {
        let begun = Instant::now();
        let stream = self.peers.get(&0).expect("everybody else is connected with the hub");
        let limit = call.limit + ANSWER_GRACE;
        let mut patience = || begun.elapsed() < limit && keep_waiting();
        let answer = write(stream, true, call.what, mine, &mut patience)
            .and_then(|()| read(stream, &mut patience))
            .map_err(|error| call.failure(0, &error, begun, limit))?;
        if answer.good {
            return Ok(answer.body);
        }
        let reason = String::from_utf8_lossy(&answer.body);
        Err(ProcessGroupError::Refused(shown(&reason, REASON_CHARS)))
    }

    /// Those of whom the hub expects the call.
    fn callers(&self, call: GroupCall<'_>) -> Vec<u32> {
        let makes_call = |rank: &u32| match call.participants {
            Participants::All | Participants::Remaining => true,
            Participants::Living { step } => self.members.makes_call(*rank, step),
        };
        self.peers.keys().copied().filter(makes_call).collect()
    }

    /// What everybody gives, at the hub.
    fn collect(
        &self,
        call: GroupCall<'_>,
        mine: Vec<u8>,
        callers: &[u32],
        begun: Instant,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<Vec<Given>, ProcessGroupError> {
        let may_be_lost = call.participants.may_be_lost();
        let mut all = vec![Given { rank: 0, bytes: mine }];
        for rank in callers {
            let is_lost = || may_be_lost && self.members.is_lost(*rank);
            let word = read(&self.peers[rank], &mut || !is_lost() && keep_waiting());
            let word = match word {
                Ok(word) => word,
                // Whether the run continues without it is for the run to say.
                Err(error) if may_be_lost && is_gone(&error) => {
                    while !is_lost() {
                        if !keep_waiting() {
                            return Err(call.failure(*rank, &error, begun, call.limit));
                        }
                        std::thread::sleep(POLL_INTERVAL);
                    }
                    continue;
                }
                Err(_) if is_lost() => continue,
                Err(error) => return Err(call.failure(*rank, &error, begun, call.limit)),
            };
            if word.what != call.what {
                let (what, other) = (call.what, shown(&word.what, REASON_CHARS));
                return Err(ProcessGroupError::Refused(format!(
                    "rank 0 is at {what}, but rank {rank} at {other}: all ranks must make the same \
                     calls in the same order"
                )));
            }
            all.push(Given { rank: *rank, bytes: word.body });
        }
        self.check_complete(call)?;
        Ok(all)
    }

    /// Refuses a call that needs all processes where one is lost.
    fn check_complete(&self, call: GroupCall<'_>) -> Result<(), ProcessGroupError> {
        match self.members.lost().first() {
            Some(rank) if call.participants == Participants::All => {
                Err(ProcessGroupError::Refused(format!(
                    "rank {rank} was lost, and {} needs all processes",
                    call.what
                )))
            }
            _ => Ok(()),
        }
    }

    /// Tells everybody what came of a call.
    fn answer(
        &self,
        call: GroupCall<'_>,
        callers: &[u32],
        folded: &Result<Vec<u8>, ProcessGroupError>,
        keep_waiting: KeepWaiting<'_>,
    ) -> Result<(), ProcessGroupError> {
        // The answer has a time of its own.
        let begun = Instant::now();
        let limit = ANSWER_GRACE.max(call.limit);
        let may_be_lost = call.participants.may_be_lost();
        for rank in callers {
            let is_lost = || may_be_lost && self.members.is_lost(*rank);
            let mut patience = || begun.elapsed() < limit && !is_lost() && keep_waiting();
            let stream = &self.peers[rank];
            match folded {
                Ok(body) => {
                    let told = write(stream, true, call.what, body, &mut patience);
                    // Whoever is lost needs no answer.
                    told.or_else(|error| if may_be_lost { Ok(()) } else { Err(error) })
                        .map_err(|error| call.failure(*rank, &error, begun, call.limit))?;
                }
                Err(error) => {
                    // Whoever is gone already is the reason, or is as good as gone.
                    let text = error.to_string();
                    let _ = write(stream, false, call.what, text.as_bytes(), &mut patience);
                }
            }
        }
        Ok(())
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
    if is_gone(error) { "its process has ended".into() } else { error.to_string() }
}

/// Whether the other end of a connection was closed.
fn is_gone(error: &io::Error) -> bool {
    use ErrorKind::{BrokenPipe, ConnectionReset, UnexpectedEof};
    matches!(error.kind(), UnexpectedEof | ConnectionReset | BrokenPipe)
}

fn refused(text: impl Into<String>) -> ProcessGroupError {
    ProcessGroupError::Setup(text.into())
}
