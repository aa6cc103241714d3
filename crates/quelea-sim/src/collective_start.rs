//! When collectives start: after a fixed cost, and with a barrier only when all have handed over.

use std::collections::BTreeMap;

use quelea_core::message::{Message, MessageFields, Rank};
use quelea_core::time::Time;

use crate::cluster::Cluster;
use crate::network::microseconds;

/// The start of every collective of the last few steps.
#[derive(Debug)]
pub(crate) struct CollectiveStarts {
    fixed: Time,
    barrier: bool,
    gates: BTreeMap<StartKey, CollectiveGate>,
    /// Keys by the number that events carry.
    numbers: BTreeMap<u32, StartKey>,
    created: u32,
    /// How many workers have handed over each bucket of each step.
    handed: BTreeMap<(u64, u32), usize>,
}

/// One collective: of all ranks together with a barrier, of one rank without.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct StartKey {
    step: u64,
    bucket: u32,
    view: u32,
    rank: Option<Rank>,
}

#[derive(Debug)]
struct CollectiveGate {
    number: u32,
    /// Whether its opening is scheduled.
    scheduled: bool,
    open: bool,
    held: Vec<HeldMessage>,
}

/// A message that waits for its collective to start.
#[derive(Debug)]
pub(crate) struct HeldMessage {
    pub(crate) from: Rank,
    pub(crate) to: Rank,
    pub(crate) message: Message,
}

/// What became of a message at a gate.
pub(crate) enum Passage {
    /// It may go.
    Through(HeldMessage),
    /// It waits. If there is a number, this gate opens after the fixed cost.
    Waits(Option<u32>),
}

/// CollectiveStarts of steps further back than this are forgotten.
const STEPS_KEPT: u64 = 4;

impl CollectiveStarts {
    /// `barrier`: whether collectives span all workers and the cluster asks for the barrier.
    pub(crate) fn new(cluster: &Cluster, barrier: bool) -> CollectiveStarts {
        CollectiveStarts {
            fixed: microseconds(cluster.collective_fixed_us),
            barrier,
            gates: BTreeMap::new(),
            numbers: BTreeMap::new(),
            created: 0,
            handed: BTreeMap::new(),
        }
    }

    /// The fixed cost.
    pub(crate) fn fixed(&self) -> Time {
        self.fixed
    }

    /// A message of a collective, on its way out while `living` workers are alive.
    pub(crate) fn pass(&mut self, held: HeldMessage, living: usize) -> Passage {
        if !self.barrier && self.fixed == Time::ZERO {
            return Passage::Through(held);
        }
        let MessageFields { step, bucket, view, .. } = *held.message;
        let rank = (!self.barrier).then_some(held.from);
        let complete = !self.barrier || self.is_complete(step, bucket, living);
        let key = StartKey { step, bucket, view, rank };
        let gate = self.gate(key);
        if gate.open {
            return Passage::Through(held);
        }
        gate.held.push(held);
        let opens = complete && !gate.scheduled;
        gate.scheduled |= opens;
        Passage::Waits(opens.then_some(gate.number))
    }

    /// A worker has handed over a bucket. Returns the gates that this opens after the fixed cost.
    pub(crate) fn hand_over(&mut self, step: u64, bucket: usize, living: usize) -> Vec<u32> {
        if !self.barrier {
            return Vec::new();
        }
        *self.handed.entry((step, bucket as u32)).or_default() += 1;
        while self.handed.first_key_value().is_some_and(|((old, _), _)| old + STEPS_KEPT < step) {
            self.handed.pop_first();
        }
        self.due(living)
    }

    /// The gates that now open after the fixed cost, with `living` workers alive.
    pub(crate) fn due(&mut self, living: usize) -> Vec<u32> {
        let waiting: Vec<StartKey> =
            self.gates.iter().filter(|(_, gate)| !gate.scheduled).map(|(key, _)| *key).collect();
        let complete = |key: &StartKey| self.is_complete(key.step, key.bucket, living);
        let due: Vec<StartKey> = waiting.into_iter().filter(complete).collect();
        due.iter().map(|key| self.schedule(key)).collect()
    }

    /// Opens a gate.
    pub(crate) fn open(&mut self, number: u32) -> Vec<HeldMessage> {
        let gate = self.numbers.get(&number).and_then(|key| self.gates.get_mut(key));
        let Some(gate) = gate else { return Vec::new() };
        gate.open = true;
        std::mem::take(&mut gate.held)
    }

    fn is_complete(&self, step: u64, bucket: u32, living: usize) -> bool {
        self.handed.get(&(step, bucket)).is_some_and(|handed| *handed >= living)
    }

    fn schedule(&mut self, key: &StartKey) -> u32 {
        let gate = self.gates.get_mut(key).expect("listed just before");
        gate.scheduled = true;
        gate.number
    }

    fn gate(&mut self, key: StartKey) -> &mut CollectiveGate {
        if !self.gates.contains_key(&key) {
            self.forget_before(key.step);
            self.created += 1;
            self.numbers.insert(self.created, key);
        }
        let number = self.created;
        let gate = || CollectiveGate { number, scheduled: false, open: false, held: Vec::new() };
        self.gates.entry(key).or_insert_with(gate)
    }

    fn forget_before(&mut self, step: u64) {
        while let Some(oldest) = self.gates.first_entry() {
            // In gossip a rank may be many steps behind another: what it waits to send stays.
            if oldest.key().step + STEPS_KEPT >= step || !oldest.get().open {
                return;
            }
            self.numbers.remove(&oldest.remove().number);
        }
    }
}
