//! Sends and receives with tags, which run beside the collectives.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::frame::{TensorCall, Ticket};
use super::super::link::Link;
use super::super::submitted::{CallOutcome, Pending};
use super::super::{Operation, TensorMemory};
use super::{Engine, Job, Phase};

/// Keys of sends and receives: the tag, and this bit.
const TAGGED: u64 = 1 << 63;

/// A send or a receive beside the collectives.
pub(super) struct Tagged {
    pub(super) ticket: Ticket,
    pub(super) pending: Arc<Pending>,
    pub(super) source: Option<usize>,
    pub(super) due: Instant,
}

/// A receive from any rank that nobody has offered anything for.
pub(super) struct Unmatched {
    pub(super) key: u64,
    pub(super) memory: TensorMemory,
    pub(super) pending: Arc<Pending>,
    pub(super) due: Instant,
}

impl Engine {
    /// Starts a send or a receive; a collective waits for its turn.
    pub(super) fn start(
        &mut self,
        operation: Operation,
        limit: Duration,
        pending: Arc<Pending>,
    ) -> Result<(), String> {
        if let Phase::Failed(reason) = &self.phase {
            pending.end(Err(reason.clone()));
            return Ok(());
        }
        if matches!(self.phase, Phase::Left) {
            pending.end(Err("the group has been left".into()));
            return Ok(());
        }
        let due = Instant::now() + limit;
        match operation {
            Operation::Send { part, tag } => {
                let key = TAGGED | u64::from(tag);
                let posted = self.link(part.peer).map(|link| link.offer(key));
                let posted =
                    posted.and_then(|()| self.send(TensorCall::Send, key, part.peer, part.memory));
                self.keep_tagged(posted, pending, None, due)
            }
            Operation::Receive { from: Some(from), memory, tag } => {
                let key = TAGGED | u64::from(tag);
                let posted = self.link(from).map(|link| link.take_offer(key));
                let posted =
                    posted.and_then(|()| self.receive(TensorCall::Send, key, from, memory));
                self.keep_tagged(posted, pending, Some(from), due)
            }
            Operation::Receive { from: None, memory, tag } => {
                let key = TAGGED | u64::from(tag);
                self.unmatched.push(Unmatched { key, memory, pending, due });
                self.match_receives()
            }
            Operation::Window { peer, window, request } => {
                self.request(peer, window, request, pending, due)
            }
            operation => {
                self.jobs.push_back(Job { operation, limit, pending });
                Ok(())
            }
        }
    }

    pub(super) fn keep_tagged(
        &mut self,
        posted: Result<Ticket, String>,
        pending: Arc<Pending>,
        source: Option<usize>,
        due: Instant,
    ) -> Result<(), String> {
        match posted {
            Ok(ticket) => {
                self.tagged.push(Tagged { ticket, pending, source, due });
                Ok(())
            }
            Err(reason) => {
                pending.end(Err(reason.clone()));
                Err(reason)
            }
        }
    }

    /// Gives receives from any rank to ranks that have something to send.
    pub(super) fn match_receives(&mut self) -> Result<(), String> {
        let mut at = 0;
        while at < self.unmatched.len() {
            let key = self.unmatched[at].key;
            let offers = |link: &Option<Link>| link.as_ref().is_some_and(|l| l.has_offer(key));
            let Some(peer) = self.links.iter().position(offers) else {
                at += 1;
                continue;
            };
            let Unmatched { memory, pending, due, .. } = self.unmatched.remove(at);
            let posted = self.link(peer).map(|link| link.take_offer(key));
            let posted = posted.and_then(|()| self.receive(TensorCall::Send, key, peer, memory));
            self.keep_tagged(posted, pending, Some(peer), due)?;
        }
        Ok(())
    }

    /// Ends sends and receives that are complete, and fails if one is overdue.
    pub(super) fn check_tagged(&mut self) -> Result<(), String> {
        if self.tagged.is_empty() && self.unmatched.is_empty() {
            return Ok(());
        }
        let open = &self.open;
        self.tagged.retain(|tagged| {
            let is_open = open.contains(&tagged.ticket);
            if !is_open {
                tagged.pending.end(Ok(CallOutcome { source: tagged.source }));
            }
            is_open
        });
        let now = Instant::now();
        let due = self.tagged.iter().map(|tagged| tagged.due);
        let due = due.chain(self.unmatched.iter().map(|receive| receive.due)).min();
        if due.is_some_and(|due| now > due) { Err(self.overdue()) } else { Ok(()) }
    }
}
