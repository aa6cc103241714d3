//! The messages that a rank exchanges, in all and by peer.

use quelea_core::message::{Message, Rank};
use quelea_core::time::Time;

use super::RankMachine;

impl RankMachine {
    /// A worker has connected that is to join as `peer`: nothing was exchanged with it before.
    pub fn meet(&mut self, peer: Rank) {
        for counts in [&mut self.sent_to, &mut self.received_from] {
            if let Some(count) = counts.get_mut(peer.index()) {
                *count = 0;
            }
        }
    }

    /// A message of `bytes` bytes has arrived.
    pub fn message(&mut self, now: Time, from: Rank, message: Message, bytes: u64) {
        self.moved = now;
        self.received += 1;
        if let Some(count) = self.received_from.get_mut(from.index()) {
            *count += 1;
            self.bytes_from[from.index()] += bytes;
        }
        self.report.bytes_received += bytes;
        self.node.message(now, from, message);
        self.judge_poisoned(now);
    }

    /// A message of `bytes` bytes leaves.
    pub fn note_sent(&mut self, to: Rank, bytes: u64) {
        self.sent += 1;
        if let Some(count) = self.sent_to.get_mut(to.index()) {
            *count += 1;
            self.bytes_to[to.index()] += bytes;
        }
        self.report.messages_sent += 1;
        self.report.bytes_sent += bytes;
    }
}
