//! Broadcast along a binomial tree.
//!
//! ```text
//! upon start at the root, or upon the vector from the parent:
//!     send it to place + 2^k (relative to the root) for every 2^k above the own place, largest first
//! ```

use std::sync::Arc;

use super::{Group, Label};
use crate::contract::{Awaited, Outbox};
use crate::message::{Message, Rank};
use crate::payload::Payload;

/// One broadcast of one vector.
#[derive(Debug)]
pub struct Broadcast {
    group: Arc<Group>,
    label: Label,
    root: usize,
    values: Option<Payload>,
}

impl Broadcast {
    /// From the rank at place `root`.
    pub fn new(group: Arc<Group>, label: Label, root: usize) -> Broadcast {
        Broadcast { group, label, root, values: None }
    }

    /// At the root: sends `values` to all.
    pub fn start(&mut self, outbox: &mut Outbox<'_>, values: Payload) {
        assert_eq!(self.group.me, self.root, "only the root starts");
        self.pass_on(outbox, values);
    }

    /// Elsewhere: the vector has arrived. Panics, before anything is changed, if `from` does not send it.
    pub fn on_message(&mut self, outbox: &mut Outbox<'_>, from: Rank, message: Message) {
        assert!(self.parent() == Some(from), "no vector of a broadcast is to come from {from}");
        if self.values.is_some() {
            return;
        }
        self.pass_on(outbox, message.into_values());
    }

    /// The vector, once it is here.
    pub fn values(&self) -> Option<&Payload> {
        self.values.as_ref()
    }

    /// Whom it is waiting for.
    pub fn awaiting(&self, out: &mut Vec<Awaited>) {
        if let (None, Some(from)) = (&self.values, self.parent()) {
            out.push(Awaited { from, what: "the vector that is broadcast" });
        }
    }

    /// Whom the vector comes from; nobody at the root.
    fn parent(&self) -> Option<Rank> {
        let place = self.relative();
        let parent = (place > 0).then(|| place & !(1 << place.ilog2()))?;
        Some(self.group.members[(parent + self.root) % self.group.len()])
    }

    fn relative(&self) -> usize {
        let n = self.group.len();
        (self.group.me + n - self.root) % n
    }

    fn pass_on(&mut self, outbox: &mut Outbox<'_>, values: Payload) {
        let (n, place) = (self.group.len(), self.relative());
        let above = if place == 0 { 0 } else { place.ilog2() + 1 };
        for bit in (above..usize::BITS).rev().filter(|bit| 1usize << bit < n) {
            let child = place + (1 << bit);
            if child < n {
                let to = self.group.members[(child + self.root) % n];
                outbox.send(to, self.label.bare(0).with(values.clone()));
            }
        }
        self.values = Some(values);
    }
}
