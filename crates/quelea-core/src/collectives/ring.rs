//! Ring all-reduce (Patarasuk and Yuan 2009): bandwidth-optimal for every number of ranks.
//!
//! ```text
//! upon start at place r of n:       send chunk r to r+1                           (stage 0)
//! upon stage s < n−1, chunk c = r−s−1, from r−1:   c += own c;  send c to r+1     (stage s+1)
//!                                   after stage n−2, r owns the complete chunk r+1
//! upon stage s ≥ n−1, chunk c:      keep c;  send c to r+1, unless r+1 has it     (stage s+1)
//! ```
//! All places modulo n. Chunk c is summed in the order of the places c, c+1, …, so every rank
//! ends with the same bits.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{AllReduce, Expected, Group, Label};
use crate::contract::{Awaited, Outbox};
use crate::layout::chunks;
use crate::message::{Message, Rank};
use crate::payload::Payload;
use crate::vector;

/// One ring over one vector.
#[derive(Debug)]
pub struct Ring {
    group: Arc<Group>,
    label: Label,
    chunks: Vec<Range<usize>>,
    /// The next stage to be received; none before the start.
    next: Option<u32>,
    /// Stages that arrived too early.
    early: BTreeMap<u32, Payload>,
    /// Complete chunks.
    complete: Vec<Option<Payload>>,
}

impl Ring {
    /// A ring for a vector of `len` elements.
    pub fn new(group: Arc<Group>, label: Label, len: usize) -> Ring {
        let n = group.len();
        let complete = vec![None; n];
        Ring { chunks: chunks(len, n), group, label, next: None, early: BTreeMap::new(), complete }
    }

    fn stages(&self) -> u32 {
        2 * (self.group.len() as u32 - 1)
    }

    /// The place `back` places before me.
    fn place(&self, back: usize) -> usize {
        let n = self.group.len();
        (self.group.me + 2 * n - back) % n
    }

    fn send(&self, outbox: &mut Outbox<'_>, stage: u32, values: Payload) {
        let next = self.group.members[(self.group.me + 1) % self.group.len()];
        let message = self.label.message(outbox, stage, values);
        outbox.send(next, message);
    }

    /// The chunk that comes in this stage.
    fn chunk_of(&self, stage: u32) -> usize {
        let reduces = self.group.len() as u32 - 1;
        let back = if stage < reduces { stage + 1 } else { stage - reduces };
        self.place(back as usize)
    }

    fn receive(&mut self, outbox: &mut Outbox<'_>, data: &[f32], stage: u32, values: Payload) {
        let last_reduce = self.group.len() as u32 - 2;
        let chunk = self.chunk_of(stage);
        if stage <= last_reduce {
            outbox.work(values.len() * 4);
            let mut sum = values.plus(&data[self.chunks[chunk].clone()], outbox.pool);
            if stage == last_reduce {
                sum = self.label.complete(outbox, sum);
                self.complete[chunk] = Some(sum.clone());
            }
            self.send(outbox, stage + 1, sum);
        } else {
            self.complete[chunk] = Some(values.clone());
            if stage + 1 < self.stages() {
                self.send(outbox, stage + 1, values);
            }
        }
    }

    /// The complete sum, chunk by chunk.
    pub(super) fn into_chunks(self) -> impl Iterator<Item = (Range<usize>, Payload)> {
        let complete = self.complete.into_iter().map(|chunk| chunk.expect("the ring is done"));
        self.chunks.into_iter().zip(complete)
    }
}

impl AllReduce for Ring {
    fn start(&mut self, outbox: &mut Outbox<'_>, data: &[f32]) {
        self.next = Some(0);
        if self.group.len() == 1 {
            return;
        }
        let own = outbox.pool.copy(&data[self.chunks[self.group.me].clone()]);
        self.send(outbox, 0, own);
        self.advance(outbox, data);
    }

    fn expected(&self, from: Rank, stage: u32) -> Expected {
        if stage >= self.stages() || from != self.group.members[self.place(1)] {
            return Expected::Nothing;
        }
        if self.next.is_some_and(|next| stage < next) || self.early.contains_key(&stage) {
            return Expected::Here;
        }
        Expected::Length(self.chunks[self.chunk_of(stage)].len())
    }

    fn on_message(&mut self, outbox: &mut Outbox<'_>, data: &[f32], _from: Rank, message: Message) {
        self.early.insert(message.stage, message.into_values());
        self.advance(outbox, data);
    }

    fn is_done(&self) -> bool {
        self.next.is_some_and(|next| next >= self.stages())
    }

    fn finish(&mut self, scale: f32, data: &mut [f32]) {
        if self.group.len() == 1 {
            vector::scale(scale, data);
        }
        for (range, chunk) in self.chunks.iter().zip(&mut self.complete) {
            if let Some(values) = chunk.take() {
                vector::scaled(scale, &values, &mut data[range.clone()]);
            }
        }
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        if self.next.is_some() && !self.is_done() {
            let from = self.group.members[self.place(1)];
            out.push(Awaited { from, what: "a chunk of the ring all-reduce" });
        }
    }
}

impl Ring {
    fn advance(&mut self, outbox: &mut Outbox<'_>, data: &[f32]) {
        while let Some(stage) = self.next {
            let Some(values) = self.early.remove(&stage) else { return };
            self.receive(outbox, data, stage, values);
            self.next = Some(stage + 1);
        }
    }
}
