//! The exact mean of vectors over all workers, part by part, by any collective of the table.
//!
//! The owner lends a part with every call and keeps it as it was until [`Average::finish`] writes
//! the mean over it; so after a loss the same parts can be started again.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{AllReduce, COLLECTIVES, Entry, Group, Label};
use crate::contract::{Awaited, Cx, Io};
use crate::message::{Message, Rank};
use crate::params::{Key, Kind, Params};

/// The kind of the messages of an average; owners number theirs from 2.
pub const REDUCE: u8 = 1;

/// The key of rows that average exactly.
pub const COLLECTIVE: Key = Key {
    name: "collective",
    kind: Kind::Choice(&["ring", "halving-doubling", "hierarchical", "auto"]),
    help: "how exact averages are summed",
};

/// One average after another.
pub struct Average {
    collective: &'static Entry,
    group: Arc<Group>,
    /// Elements of each part.
    lens: Vec<usize>,
    /// The sum of each (step, part). A peer may be ahead.
    running: BTreeMap<(u64, usize), Box<dyn AllReduce>>,
    /// The step whose average is under way.
    step: u64,
    /// Its parts that were handed over and not written yet.
    started: Vec<bool>,
}

impl Average {
    /// By the collective of these parameters.
    pub fn new(params: &Params) -> Average {
        let name = params.text("collective");
        let collective = COLLECTIVES.iter().find(|entry| entry.name == name);
        Average {
            collective: collective.expect("the choice lists the table's names"),
            group: Arc::new(Group { members: Vec::new(), hosts: Vec::new(), me: 0 }),
            lens: Vec::new(),
            running: BTreeMap::new(),
            step: 0,
            started: Vec::new(),
        }
    }

    /// From now on among the living workers, over parts of these lengths. What was under way is
    /// forgotten.
    pub fn enter(&mut self, cx: &Cx<'_>, lens: Vec<usize>) {
        self.group = Arc::new(Group::of_workers(cx.io.view, cx.io.rank));
        self.started = vec![false; lens.len()];
        self.lens = lens;
        self.running.clear();
    }

    /// My part is ready.
    pub fn start(&mut self, io: &mut Io<'_>, step: u64, part: usize, data: &[f32]) {
        self.step = step;
        self.started[part] = true;
        self.machine(step, part).start(io, data);
    }

    /// Whether this part was handed over, so that its vector must be lent.
    pub fn has_started(&self, step: u64, part: usize) -> bool {
        self.step == step && self.started[part]
    }

    /// A message of kind [`REDUCE`] has arrived; `data` may be empty before the part is started.
    pub fn on_message(&mut self, io: &mut Io<'_>, data: &[f32], from: Rank, message: Message) {
        let machine = self.machine(message.step, message.bucket as usize);
        machine.on_message(io, data, from, message);
    }

    /// Whether all parts are started and summed.
    pub fn is_done(&self) -> bool {
        let summed = |part| self.running.get(&(self.step, part)).is_some_and(|sum| sum.is_done());
        self.started.iter().all(|started| *started) && (0..self.lens.len()).all(summed)
    }

    /// Writes the mean over `data`.
    pub fn finish(&mut self, part: usize, data: &mut [f32]) {
        let mut machine = self.running.remove(&(self.step, part)).expect("the part was started");
        machine.finish(1.0 / self.group.len() as f32, data);
        self.started[part] = false;
    }

    /// All who take part but me, by rank.
    pub fn others(&self) -> Vec<Rank> {
        let me = self.group.members.get(self.group.me);
        self.group.members.iter().filter(|rank| Some(*rank) != me).copied().collect()
    }

    /// Whom it is waiting for.
    pub fn awaiting(&self, out: &mut Vec<Awaited>) {
        for machine in self.running.values().filter(|machine| !machine.is_done()) {
            machine.awaiting(out);
        }
    }

    fn machine(&mut self, step: u64, part: usize) -> &mut dyn AllReduce {
        let label = Label { kind: REDUCE, step, bucket: part };
        let new = || (self.collective.build)(Arc::clone(&self.group), label, self.lens[part]);
        self.running.entry((step, part)).or_insert_with(new).as_mut()
    }
}
