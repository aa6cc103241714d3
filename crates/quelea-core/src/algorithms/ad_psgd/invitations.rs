//! Invitations of AD-PSGD: how a passive worker, which never asks, starts an average.
//!
//! ```text
//! passive j, when it may start an average and no invitation of it is open:  invite an active i
//! active i, upon an invitation of j:       remember j and its number
//! active i, when no exchange is open:      exchange with j, in turns with those of its own choice
//! passive j, upon the request of i with that number:  the invitation is closed
//! upon drain:                              what is open is followed; none is sent any more
//! ```
//! An invitation has no vector, and no gradient waits for it. One that is not followed within some
//! gradients is replaced by another, so that a lost message costs averages and nothing else.

use std::collections::{BTreeMap, VecDeque};

use crate::contract::{Awaited, Context};
use crate::message::{Message, Rank};
use crate::state::Visitor;

/// "Exchange with me", from a passive worker to an active one.
pub(super) const INVITE: u8 = 3;

/// After this many of my gradients an open invitation is given up.
const PATIENCE_GRADIENTS: u64 = 16;

/// Those that I have sent and those that I have got.
#[derive(Debug, Default)]
pub(super) struct Invitations {
    /// Whom I have invited, until it asks.
    invited: Option<Rank>,
    /// My gradients since then.
    waited: u64,
    /// The number of my last invitation, from 1.
    number: u64,
    /// Who has invited me, in order, each once with its newest number.
    waiting: VecDeque<Invitation>,
    /// The number of the last invitation of each worker: one that comes twice counts once.
    seen: BTreeMap<(Rank, usize), u64>,
    /// The last exchange was of my own choice, so that one I am invited to is next.
    is_next: bool,
}

/// An invitation that is to be followed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Invitation {
    /// Who has sent it.
    pub(super) from: Rank,
    /// Its number, for the request.
    pub(super) number: u64,
}

impl Invitations {
    /// One more gradient is applied.
    pub(super) fn on_gradient(&mut self) {
        self.waited += 1;
        if self.waited >= PATIENCE_GRADIENTS {
            self.invited = None;
        }
    }

    /// Whether one of mine is open.
    pub(super) fn is_open(&self) -> bool {
        self.invited.is_some()
    }

    /// Whether none is open at either end.
    pub(super) fn is_drained(&self) -> bool {
        self.invited.is_none() && self.waiting.is_empty()
    }

    /// Whose request is still to come.
    pub(super) fn awaiting(&self, out: &mut Vec<Awaited>) {
        out.extend(self.invited.map(|from| Awaited { from, what: "its request" }));
    }

    /// Invites `peer`.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, peer: Rank) {
        self.number += 1;
        let mut message = Message::new(INVITE, cx.step, 0);
        message.seq = self.number;
        cx.outbox.send(peer, message);
        (self.invited, self.waited) = (Some(peer), 0);
    }

    /// Somebody asks me, because of this invitation of mine; 0 is none.
    pub(super) fn on_request(&mut self, number: u64) {
        if number == self.number {
            self.invited = None;
        }
    }

    /// An invitation has come.
    pub(super) fn on_message(&mut self, from: Rank, message: &Message) {
        let last = self.seen.entry((from, 0)).or_insert(0);
        if message.seq <= *last {
            return;
        }
        *last = message.seq;
        match self.waiting.iter_mut().find(|known| known.from == from) {
            Some(known) => known.number = message.seq,
            None => self.waiting.push_back(Invitation { from, number: message.seq }),
        }
    }

    /// Which to follow now, where `own` says that I could also choose somebody myself.
    pub(super) fn next(&mut self, own: bool) -> Option<Invitation> {
        let follows = !self.waiting.is_empty() && (self.is_next || !own);
        self.is_next = !follows;
        if follows { self.waiting.pop_front() } else { None }
    }

    /// Membership has changed: only these are still neighbours of the other side.
    pub(super) fn keep(&mut self, active: bool, partners: &[Rank]) {
        self.waiting.retain(|known| active && partners.contains(&known.from));
        self.invited = self.invited.filter(|peer| !active && partners.contains(peer));
    }

    /// Forgets those who take part no more: one that joins in their place numbers from 1.
    pub(super) fn forget(&mut self, is_alive: impl Fn(Rank) -> bool) {
        self.seen.retain(|(from, _), _| is_alive(*from));
    }

    /// Lists the state.
    pub(super) fn state(&mut self, visitor: &mut dyn Visitor) {
        let mut invited = self.invited.map_or(u64::MAX, |peer| u64::from(peer.0));
        visitor.number("invited", &mut invited);
        self.invited = (invited != u64::MAX).then_some(Rank(invited as u32));
        visitor.number("invited.waited", &mut self.waited);
        visitor.number("invitations", &mut self.number);
        let waiting = self.waiting.iter().flat_map(|known| [known.from.0.into(), known.number]);
        let mut waiting: Vec<u64> = waiting.collect();
        visitor.numbers("invitations.waiting", &mut waiting);
        let pairs = waiting.chunks_exact(2);
        let known = |pair: &[u64]| Invitation { from: Rank(pair[0] as u32), number: pair[1] };
        self.waiting = pairs.map(known).collect();
        visitor.by_bucket("invitations.seen", &mut self.seen);
        visitor.flag("invitations.next", &mut self.is_next);
    }
}
