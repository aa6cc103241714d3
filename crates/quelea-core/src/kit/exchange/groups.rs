//! The means over groups of a round, by the collectives of the table, one per bucket and vector.
//!
//! ```text
//! upon post(t, b):           if sums of a step before t are under way: wait until they are complete
//!                            else: start the sum of my vectors over my group of step t
//! upon a chunk of (t, b):    hand it to that sum, which may not have started
//! upon take(t, b):           the mean, if the sum is complete
//! upon a broken group:       forget its sums; return what I put in, to be sent one by one
//! ```
//! Sums of a step start only when mine of earlier steps are complete, as on one communication
//! stream. Otherwise buckets for different groups would hold each other up on the network card.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::collectives::{self, AllReduce, COLLECTIVES, Group, Label, is_taken};
use crate::contract::{Awaited, Outbox};
use crate::message::{Message, Part, Rank};
use crate::payload::Payload;
use crate::topology::GroupExchange;
use crate::view::RowGroup;

/// Step and bucket.
type SumKey = (u64, usize);

/// The sums of the steps that are not over.
pub(super) struct GroupSums {
    /// Workers mix once per this many steps.
    every: u64,
    sums: BTreeMap<SumKey, GroupSum>,
    /// Posted, and not started.
    queued: VecDeque<SumKey>,
}

/// One sum over one group.
struct GroupSum {
    group: Arc<Group>,
    collective: &'static collectives::Entry,
    label: Label,
    /// One per vector of a message.
    machines: [Option<Box<dyn AllReduce>>; 2],
    /// What this worker puts in; nothing before it has posted.
    own: Option<Message>,
    started: bool,
}

impl std::fmt::Debug for GroupSums {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "GroupSums({:?})", self.sums.keys())
    }
}

impl GroupSum {
    /// The sum over my group of `step`; none if there is no whole group.
    fn new(outbox: &Outbox<'_>, every: u64, kind: u8, (step, bucket): SumKey) -> Option<GroupSum> {
        let row = outbox.view.row_of_every(every, step, outbox.rank);
        let RowGroup::Whole(exchange) = row.group else { return None };
        let members: Vec<Rank> = row.incoming.iter().map(|(rank, _)| *rank).collect();
        let hosts = members.iter().map(|rank| outbox.view.hosts[rank.index()]).collect();
        let me = members.binary_search(&outbox.rank).expect("every row has the worker itself");
        let group = Group { members, hosts, me };
        Some(GroupSum {
            collective: collective(exchange, &group),
            group: Arc::new(group),
            label: Label { kind, step, bucket, phase: 0, rounds: false },
            machines: [None, None],
            own: None,
            started: false,
        })
    }

    /// The machine that sums vector number `part`, of `len` elements.
    fn machine(&mut self, part: usize, len: usize) -> &mut dyn AllReduce {
        let label = Label { phase: part as u64, ..self.label };
        let (group, build) = (&self.group, self.collective.build);
        self.machines[part].get_or_insert_with(|| build(Arc::clone(group), label, len)).as_mut()
    }

    fn start(&mut self, outbox: &mut Outbox<'_>) {
        let own = self.own.clone().expect("only what was posted is started");
        self.started = true;
        for (part, values) in vectors(&own) {
            self.machine(part, values.len()).start(outbox, values);
        }
    }

    fn on_message(&mut self, outbox: &mut Outbox<'_>, len: usize, from: Rank, message: Message) {
        let part = message.seq as usize;
        let most = self.machines.len();
        assert!(part < most, "vector {part} of a bucket: there are at most {most}");
        if !is_taken(self.machine(part, len), from, &message) {
            return;
        }
        let own = self.own.take();
        let data = own.as_ref().and_then(|own| vectors(own).nth(part)).map_or(&[][..], |(_, v)| v);
        self.machine(part, len).on_message(outbox, data, from, message);
        self.own = own;
    }

    fn is_done(&self) -> bool {
        let is_done = |part: usize| self.machines[part].as_ref().is_some_and(|m| m.is_done());
        let Some(own) = self.own.as_ref().filter(|_| self.started) else { return false };
        // What came for a vector that nobody puts in is not waited for.
        vectors(own).all(|(part, _)| is_done(part))
    }

    /// The mean of each vector; the sum must be done.
    fn into_means(mut self, outbox: &Outbox<'_>) -> [Payload; 2] {
        let scale = 1.0 / self.group.len() as f32;
        let own = self.own.take().expect("what is done was posted");
        let mut parts = own.into_parts().into_iter();
        self.machines.map(|machine| {
            let (Some(mut machine), Some(Part::Values(mut mean))) = (machine, parts.next()) else {
                return Payload::from(Vec::new());
            };
            if mean.try_mut().is_none() {
                mean = outbox.pool.copy(&mean);
            }
            machine.finish(scale, mean.try_mut().expect("held by nobody else"));
            mean
        })
    }
}

/// The vectors of a message, by number.
fn vectors(message: &Message) -> impl Iterator<Item = (usize, &[f32])> {
    message.parts.iter().enumerate().filter_map(|(part, vector)| match vector {
        Part::Values(values) => Some((part, &values[..])),
        _ => None,
    })
}

/// The collective that fits the group, unless one is asked for by name.
fn collective(exchange: GroupExchange, group: &Group) -> &'static collectives::Entry {
    let name = match exchange {
        GroupExchange::Collective(name) => name,
        _ if group.spans_shared_hosts() => "hierarchical",
        _ => "ring",
    };
    let entry = COLLECTIVES.iter().find(|entry| entry.meta.name == name);
    entry.expect("the choice lists the table's names")
}

impl GroupSums {
    /// Of workers that mix once per `every` steps.
    pub(super) fn of_every(every: u64) -> GroupSums {
        GroupSums { every, sums: BTreeMap::new(), queued: VecDeque::new() }
    }

    /// My vectors are ready: starts their sum, or lets it wait for those of earlier steps.
    pub(super) fn post(&mut self, outbox: &mut Outbox<'_>, message: Message) {
        let key = (message.step, message.bucket as usize);
        let Some(sum) = self.sum(outbox, message.kind, key) else { return };
        sum.own = Some(message);
        self.queued.push_back(key);
        self.launch(outbox);
    }

    /// A chunk has arrived for a bucket of `len` elements. What belongs to no whole group is
    /// dropped: a member of it was lost.
    pub(super) fn on_message(
        &mut self,
        outbox: &mut Outbox<'_>,
        len: usize,
        from: Rank,
        message: Message,
    ) {
        let key = (message.step, message.bucket as usize);
        if let Some(sum) = self.sum(outbox, message.kind, key) {
            sum.on_message(outbox, len, from, message);
            self.launch(outbox);
        }
    }

    /// The means of bucket `b`, if their sum is complete.
    pub(super) fn take(
        &mut self,
        outbox: &Outbox<'_>,
        step: u64,
        b: usize,
    ) -> Option<[Payload; 2]> {
        if !self.sums.get(&(step, b))?.is_done() {
            return None;
        }
        Some(self.sums.remove(&(step, b))?.into_means(outbox))
    }

    /// Whom the sum of bucket `b` waits for.
    pub(super) fn awaiting(&self, step: u64, b: usize, out: &mut Vec<Awaited>) {
        let sum = self.sums.get(&(step, b));
        sum.into_iter().flat_map(|sum| sum.machines.iter().flatten()).for_each(|machine| {
            machine.awaiting(out);
        });
    }

    /// Forgets the sums of groups that have lost a member; returns what I had put in. A sum that
    /// is complete here stays, and what I had put in is returned as well: others may lack it.
    pub(super) fn break_off(&mut self, outbox: &mut Outbox<'_>) -> Vec<Message> {
        let row = |step: u64| outbox.view.row_of_every(self.every, step, outbox.rank);
        let is_broken = |step: u64| row(step).group == RowGroup::Broken;
        let broken: Vec<SumKey> =
            self.sums.keys().copied().filter(|(step, _)| is_broken(*step)).collect();
        let mut posted = Vec::new();
        for key in broken {
            posted.extend(self.sums[&key].own.clone());
            if !self.sums[&key].is_done() {
                self.sums.remove(&key);
            }
        }
        self.queued.retain(|key| self.sums.contains_key(key));
        self.launch(outbox);
        posted
    }

    /// Steps before `step` are over.
    pub(super) fn forget_before(&mut self, step: u64) {
        self.sums = self.sums.split_off(&(step, 0));
        self.queued.retain(|key| self.sums.contains_key(key));
    }

    fn sum(&mut self, outbox: &Outbox<'_>, kind: u8, key: SumKey) -> Option<&mut GroupSum> {
        match self.sums.entry(key) {
            Entry::Occupied(sum) => Some(sum.into_mut()),
            Entry::Vacant(place) => {
                Some(place.insert(GroupSum::new(outbox, self.every, kind, key)?))
            }
        }
    }

    /// Starts what may start, in the order of posting.
    fn launch(&mut self, outbox: &mut Outbox<'_>) {
        let is_open = |sum: &GroupSum| sum.started && !sum.is_done();
        while let Some(key) = self.queued.front().copied() {
            let oldest = self.sums.iter().find(|(_, sum)| is_open(sum)).map(|((step, _), _)| *step);
            if oldest.is_some_and(|oldest| oldest < key.0) {
                return;
            }
            self.queued.pop_front();
            if let Some(sum) = self.sums.get_mut(&key) {
                sum.start(outbox);
            }
        }
    }
}
