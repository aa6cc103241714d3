//! Invitations of AD-PSGD: how a passive worker, which never asks, starts an average.
//!
//! ```text
//! passive j, when it may start an average and no invitation of it is open:  invite an active i
//! active i, upon an invitation of j:       remember j, once
//! active i, when no exchange is open:      exchange with j, in turns with those of its own choice
//! passive j, upon a request of i:          its invitation of i is closed
//! ```
//! An invitation has no vector and is not waited for. One that is not followed by a request within
//! some gradients is forgotten, so that a lost message costs averages and nothing else.

use std::collections::{BTreeMap, VecDeque};

use crate::contract::Context;
use crate::message::{Message, Rank};
use crate::state::Visitor;

/// "Exchange with me", from a passive worker to an active one.
pub(super) const INVITE: u8 = 3;

/// After so many of my gradients an open invitation is forgotten.
const PATIENCE_GRADIENTS: u64 = 16;

/// Those that I have sent and those that I have got.
#[derive(Debug, Default)]
pub(super) struct Invitations {
    /// Whom I have invited, until it asks.
    invited: Option<Rank>,
    /// My gradients since then.
    waited: u64,
    /// The number of my last invitation.
    number: u64,
    /// Who has invited me, in order, each once.
    waiting: VecDeque<Rank>,
    /// The number of the last invitation of each worker: one that comes twice counts once.
    seen: BTreeMap<(Rank, usize), u64>,
    /// The last exchange was of my own choice, so that one I am invited to is next.
    is_next: bool,
    /// A run that ends starts no more averages.
    closed: bool,
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

    /// Invites `peer`.
    pub(super) fn send(&mut self, cx: &mut Context<'_>, peer: Rank) {
        self.number += 1;
        let mut message = Message::new(INVITE, cx.step, 0);
        message.seq = self.number;
        cx.outbox.send(peer, message);
        (self.invited, self.waited) = (Some(peer), 0);
    }

    /// `from` asks me; whether it knows of my invitation does not matter, because it asks once more
    /// if it does not.
    pub(super) fn on_request(&mut self, from: Rank) {
        self.invited = self.invited.filter(|peer| *peer != from);
    }

    /// An invitation has come.
    pub(super) fn on_message(&mut self, from: Rank, message: &Message) {
        let last = self.seen.entry((from, 0)).or_insert(0);
        if message.seq > *last && !self.closed {
            *last = message.seq;
            if !self.waiting.contains(&from) {
                self.waiting.push_back(from);
            }
        }
    }

    /// Whose invitation to follow now, where `own` says that I could also choose somebody myself.
    pub(super) fn next(&mut self, own: bool) -> Option<Rank> {
        let follows = !self.waiting.is_empty() && (self.is_next || !own);
        self.is_next = !follows;
        if follows { self.waiting.pop_front() } else { None }
    }

    /// Membership has changed: only these are still neighbours of the other side.
    pub(super) fn keep(&mut self, active: bool, partners: &[Rank]) {
        self.waiting.retain(|from| active && partners.contains(from));
        self.invited = self.invited.filter(|peer| !active && partners.contains(peer));
    }

    /// No more gradients will come.
    pub(super) fn close(&mut self) {
        self.closed = true;
        self.invited = None;
        self.waiting.clear();
    }

    /// Lists the state.
    pub(super) fn state(&mut self, visitor: &mut dyn Visitor) {
        let mut invited = self.invited.map_or(u64::MAX, |peer| u64::from(peer.0));
        visitor.number("invited", &mut invited);
        self.invited = (invited != u64::MAX).then_some(Rank(invited as u32));
        visitor.number("invited.waited", &mut self.waited);
        visitor.number("invitations", &mut self.number);
        let mut waiting: Vec<u64> = self.waiting.iter().map(|from| u64::from(from.0)).collect();
        visitor.numbers("invitations.waiting", &mut waiting);
        self.waiting = waiting.into_iter().map(|from| Rank(from as u32)).collect();
        visitor.by_bucket("invitations.seen", &mut self.seen);
        visitor.flag("invitations.next", &mut self.is_next);
    }
}
