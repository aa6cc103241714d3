//! Messages of a view that this node is not in yet, and what of them could not be taken.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Node;
use crate::message::{Message, Rank};
use crate::time::Time;

/// What is held back.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// Of a view to come, or from before the start.
    pub(super) messages: Vec<(Rank, Message)>,
    /// Whether one that the algorithm cannot take is its sender's fault, and does not end this rank.
    is_contained: bool,
    refused: Vec<RefusedMessage>,
}

/// A message that the algorithm could not take when its view came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedMessage {
    /// Who sent it.
    pub from: Rank,
    /// What is wrong with it.
    pub reason: String,
}

impl Node {
    /// From now on, a held message that the algorithm cannot take is [kept](Node::take_refused) with its
    /// sender's name and does not panic. (Of messages that are not held, the caller sees that.)
    pub fn contain_held(&mut self) {
        self.held.is_contained = true;
    }

    /// Held messages that could not be taken since the last call.
    pub fn take_refused(&mut self) -> Vec<RefusedMessage> {
        std::mem::take(&mut self.held.refused)
    }

    pub(super) fn release_held(&mut self, now: Time) {
        for (from, message) in std::mem::take(&mut self.held.messages) {
            if !self.held.is_contained {
                self.message(now, from, message);
                continue;
            }
            let taken = catch_unwind(AssertUnwindSafe(|| self.message(now, from, message)));
            if let Err(panic) = taken {
                let text = panic.downcast_ref::<String>().map(String::as_str);
                let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                let reason = text.unwrap_or("it is not what its sender has to send").to_string();
                self.held.refused.push(RefusedMessage { from, reason });
            }
        }
    }
}
