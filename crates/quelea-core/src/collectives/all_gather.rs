//! All-gather around a ring: everybody ends with everybody's vector, of whatever length.
//!
//! ```text
//! upon start at place r:     send own vector to r+1                             (stage 0)
//! upon stage s from r−1:     it is the vector of place r−s−1;  send it to r+1   (stage s+1)
//! ```

use std::sync::Arc;

use super::{Group, Label};
use crate::contract::{Awaited, Outbox};
use crate::message::{Message, Rank};
use crate::payload::Payload;

/// One all-gather.
#[derive(Debug)]
pub struct AllGather {
    group: Arc<Group>,
    label: Label,
    gathered: Vec<Option<Payload>>,
}

impl AllGather {
    /// Among this group.
    pub fn new(group: Arc<Group>, label: Label) -> AllGather {
        let gathered = vec![None; group.len()];
        AllGather { group, label, gathered }
    }

    /// My own vector is ready.
    pub fn start(&mut self, outbox: &mut Outbox<'_>, own: Payload) {
        self.keep(outbox, 0, self.group.me, own);
    }

    /// A message of this all-gather has arrived. Panics, before anything is changed, if it is not one that
    /// `from` sends.
    pub fn on_message(&mut self, outbox: &mut Outbox<'_>, from: Rank, message: Message) {
        let (n, stage) = (self.group.len(), message.stage as usize + 1);
        let is_sent = stage < n && from == self.before();
        assert!(
            is_sent,
            "no vector of stage {} of an all-gather is to come from {from}",
            message.stage
        );
        let place = (self.group.me + n - stage) % n;
        if self.gathered[place].is_some() {
            return;
        }
        self.keep(outbox, stage, place, message.into_values());
    }

    /// Everybody's vector, by place, once all are here.
    pub fn gathered(&self) -> Option<Vec<&Payload>> {
        self.gathered.iter().map(Option::as_ref).collect()
    }

    /// Whom it is waiting for.
    pub fn awaiting(&self, out: &mut Vec<Awaited>) {
        if self.gathered().is_none() {
            out.push(Awaited { from: self.before(), what: "a vector of the all-gather" });
        }
    }

    fn before(&self) -> Rank {
        let n = self.group.len();
        self.group.members[(self.group.me + n - 1) % n]
    }

    fn keep(&mut self, outbox: &mut Outbox<'_>, stage: usize, place: usize, values: Payload) {
        let n = self.group.len();
        if stage + 1 < n {
            let next = self.group.members[(self.group.me + 1) % n];
            outbox.send(next, self.label.bare(stage as u32).with(values.clone()));
        }
        self.gathered[place] = Some(values);
    }
}
