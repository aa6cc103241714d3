//! Hierarchical all-reduce: inside each host first, then between hosts, then inside again.
//!
//! The vector is cut into k chunks, k the largest number of ranks on one host. On every host,
//! chunk c has an owner; a host with fewer ranks gives some of its ranks several chunks.
//!
//! ```text
//! upon start:                        send chunk c to its owner on my host, for every c
//! upon chunk c from all on my host:  sum in the order of ranks; ring all-reduce with the
//!                                    owners of c on the other hosts
//! upon the ring's end:               send the complete chunk c to all others on my host
//! ```
//! A card carries the vector once per ring stage instead of once per rank: two hosts of four
//! move S per card, a flat ring of eight 1.75 S.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::{AllReduce, Expected, Group, Label, Ring};
use crate::contract::{Awaited, Outbox};
use crate::layout::chunks;
use crate::message::{Message, Rank};
use crate::payload::Payload;
use crate::vector;

/// One hierarchical all-reduce over one vector.
pub struct Hierarchical {
    group: Arc<Group>,
    label: Label,
    /// Places on my host, in order.
    home: Vec<usize>,
    /// Stages that a ring between hosts takes.
    ring_stages: u32,
    chunks: Vec<Chunk>,
    started: bool,
}

/// What this rank knows of one chunk.
struct Chunk {
    range: Range<usize>,
    /// The place of its owner on my host.
    owner: usize,
    /// At the owner: the parts of the others on my host, by place.
    parts: BTreeMap<usize, Payload>,
    /// At the owner: the sum over my host, once the ring runs.
    local: Option<Payload>,
    /// At the owner: the ring between hosts.
    ring: Option<Ring>,
    /// Ring messages that came before my host's sum was ready.
    early: Vec<(Rank, Message)>,
    complete: Option<Payload>,
}

impl Hierarchical {
    /// For a vector of `len` elements.
    pub fn new(group: Arc<Group>, label: Label, len: usize) -> Hierarchical {
        let mut hosts: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
        for (place, host) in group.hosts.iter().enumerate() {
            hosts.entry(*host).or_default().push(place);
        }
        let count = hosts.values().map(Vec::len).max().unwrap_or(1);
        let home = hosts[&group.hosts[group.me]].clone();
        let ring_stages = 2 * (hosts.len() as u32 - 1);
        let cut = chunks(len, count).into_iter().enumerate();
        let chunks = cut
            .map(|(c, range)| {
                let owner = home[c % home.len()];
                let owners: Vec<usize> = hosts.values().map(|at| at[c % at.len()]).collect();
                let ring = (owner == group.me).then(|| ring(&group, &owners, label, range.len()));
                Chunk {
                    range,
                    owner,
                    parts: BTreeMap::new(),
                    local: None,
                    ring,
                    early: Vec::new(),
                    complete: None,
                }
            })
            .collect();
        Hierarchical { group, label, home, ring_stages, chunks, started: false }
    }

    /// Stages of chunk c: `base(c)` inwards, then the ring's, then outwards.
    fn base(&self, c: usize) -> u32 {
        c as u32 * (self.ring_stages + 2)
    }

    /// The chunk that the messages of `stage` belong to, and their stage in it.
    fn place_of(&self, stage: u32) -> (usize, u32) {
        let stages = self.ring_stages + 2;
        ((stage / stages) as usize, stage % stages)
    }

    fn sum_if_complete(&mut self, outbox: &mut Outbox<'_>, data: &[f32], c: usize) {
        let (me, home) = (self.group.me, self.home.len());
        let chunk = &mut self.chunks[c];
        if chunk.owner != me || chunk.local.is_some() || chunk.parts.len() + 1 < home {
            return;
        }
        let own = &data[chunk.range.clone()];
        let mut parts = std::mem::take(&mut chunk.parts);
        // In the order of places: those before me, mine, those after me.
        let after = parts.split_off(&me);
        let mut sum: Option<Payload> = None;
        for part in parts.into_values() {
            sum = Some(match sum {
                None => part,
                Some(sum) => sum.plus(&part, outbox.pool),
            });
        }
        let mut sum = match sum {
            None => outbox.pool.copy(own),
            Some(sum) => sum.plus(own, outbox.pool),
        };
        for part in after.into_values() {
            sum = sum.plus(&part, outbox.pool);
        }
        outbox.work(sum.len() * 4 * (home - 1));
        chunk.local = Some(sum);
        let early = std::mem::take(&mut chunk.early);
        self.ring_event(outbox, c, None);
        for (from, message) in early {
            self.ring_event(outbox, c, Some((from, message)));
        }
    }

    /// Starts the ring of chunk `c`, or hands it a message; passes its result on.
    fn ring_event(&mut self, outbox: &mut Outbox<'_>, c: usize, event: Option<(Rank, Message)>) {
        let base = self.base(c);
        let chunk = &mut self.chunks[c];
        let (Some(ring), Some(local)) = (&mut chunk.ring, &chunk.local) else { return };
        let first = outbox.out.len();
        match event {
            None => ring.start(outbox, local),
            Some((from, message)) => ring.on_message(outbox, local, from, message),
        }
        for effect in &mut outbox.out[first..] {
            if let crate::contract::Effect::Send { message, .. } = effect {
                message.stage += base + 1;
            }
        }
        if ring.is_done() {
            let ring = chunk.ring.take().expect("just used");
            let local = chunk.local.clone().expect("just used");
            let complete = match self.ring_stages {
                0 => self.label.complete(outbox, local),
                _ => joined(outbox, ring, local.len()),
            };
            self.pass_on(outbox, c, complete);
        }
    }

    fn pass_on(&mut self, outbox: &mut Outbox<'_>, c: usize, complete: Payload) {
        let stage = self.base(c) + self.ring_stages + 1;
        for place in self.home.iter().filter(|place| **place != self.group.me) {
            let message = self.label.message(outbox, stage, complete.clone());
            outbox.send(self.group.members[*place], message);
        }
        self.chunks[c].complete = Some(complete);
    }
}

fn ring(group: &Group, owners: &[usize], label: Label, len: usize) -> Ring {
    let members = owners.iter().map(|place| group.members[*place]).collect();
    let hosts = owners.iter().map(|place| group.hosts[*place]).collect();
    let me = owners.iter().position(|place| *place == group.me).expect("I own this chunk");
    Ring::new(Arc::new(Group { members, hosts, me }), label, len)
}

fn joined(outbox: &Outbox<'_>, ring: Ring, len: usize) -> Payload {
    let mut joined = outbox.pool.take(len);
    let out = joined.try_mut().expect("just taken, so held by nobody else");
    for (range, values) in ring.into_chunks() {
        out[range].copy_from_slice(&values);
    }
    joined
}

impl AllReduce for Hierarchical {
    fn start(&mut self, outbox: &mut Outbox<'_>, data: &[f32]) {
        self.started = true;
        for c in 0..self.chunks.len() {
            let Chunk { owner, range, .. } = &self.chunks[c];
            if *owner != self.group.me {
                let values = outbox.pool.copy(&data[range.clone()]);
                let message = self.label.message(outbox, self.base(c), values);
                outbox.send(self.group.members[*owner], message);
            }
        }
        for c in 0..self.chunks.len() {
            self.sum_if_complete(outbox, data, c);
        }
    }

    fn expected(&self, from: Rank, stage: u32) -> Expected {
        let (c, stage) = self.place_of(stage);
        let place = self.group.members.iter().position(|rank| *rank == from);
        let (Some(chunk), Some(place)) = (self.chunks.get(c), place) else {
            return Expected::Nothing;
        };
        let owns = chunk.owner == self.group.me;
        let (is_sent, is_here) = if stage == 0 {
            let is_neighbour = place != self.group.me && self.home.contains(&place);
            let is_here = chunk.local.is_some() || chunk.parts.contains_key(&place);
            (owns && is_neighbour, is_here)
        } else if stage == self.ring_stages + 1 {
            (!owns && place == chunk.owner, chunk.complete.is_some())
        } else {
            match &chunk.ring {
                None if owns => return Expected::Here,
                None => return Expected::Nothing,
                Some(ring) => {
                    let is_early = |(_, early): &(Rank, Message)| early.stage == stage - 1;
                    return match ring.expected(from, stage - 1) {
                        Expected::Length(_) if chunk.early.iter().any(is_early) => Expected::Here,
                        expected => expected,
                    };
                }
            }
        };
        match (is_sent, is_here) {
            (false, _) => Expected::Nothing,
            (true, true) => Expected::Here,
            (true, false) => Expected::Length(chunk.range.len()),
        }
    }

    fn on_message(
        &mut self,
        outbox: &mut Outbox<'_>,
        data: &[f32],
        from: Rank,
        mut message: Message,
    ) {
        let (c, stage) = self.place_of(message.stage);
        let Some(chunk) = self.chunks.get_mut(c) else { return };
        if stage == 0 {
            let place = self.group.members.binary_search(&from).expect("a member sent it");
            chunk.parts.insert(place, message.into_values());
            if self.started {
                self.sum_if_complete(outbox, data, c);
            }
        } else if stage == self.ring_stages + 1 {
            chunk.complete = Some(message.into_values());
        } else {
            message.stage = stage - 1;
            if chunk.local.is_some() {
                self.ring_event(outbox, c, Some((from, message)));
            } else {
                chunk.early.push((from, message));
            }
        }
    }

    fn is_done(&self) -> bool {
        self.started && self.chunks.iter().all(|chunk| chunk.complete.is_some())
    }

    fn finish(&mut self, scale: f32, data: &mut [f32]) {
        for chunk in &mut self.chunks {
            let values = chunk.complete.take().expect("it is done");
            vector::scaled(scale, &values, &mut data[chunk.range.clone()]);
        }
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        for chunk in self.chunks.iter().filter(|chunk| self.started && chunk.complete.is_none()) {
            if chunk.owner != self.group.me {
                let from = self.group.members[chunk.owner];
                out.push(Awaited { from, what: "a complete chunk from its owner on this host" });
            } else if let (Some(_), Some(ring)) = (&chunk.local, &chunk.ring) {
                ring.awaiting(out);
            } else {
                let missing = self
                    .home
                    .iter()
                    .filter(|place| **place != self.group.me && !chunk.parts.contains_key(*place));
                out.extend(missing.map(|place| Awaited {
                    from: self.group.members[*place],
                    what: "its part of a chunk of the hierarchical all-reduce",
                }));
            }
        }
    }
}
