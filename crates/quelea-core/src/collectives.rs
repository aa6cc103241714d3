//! Collectives as state machines that react to events, like the algorithms that use them.
//!
//! A machine serves one bucket of one step. Its owner lends it the vector with every call; the
//! vector itself stays as it was until [`AllReduce::finish`] writes the result, so that a run
//! that loses a peer half-way still has its gradients. The buffer that a peer's chunk arrived
//! in is the accumulator and is sent on: one copy per collective, not one per hop.
//!
//! Messages may arrive before `start` and in any order; a machine keeps what is early. So that nobody is
//! blamed for another's message, what arrives is checked before it is kept or passed on: who sends it, and
//! how many elements it has, follow from its stage ([`AllReduce::expected`]).
//!
//! | file | what |
//! |---|---|
//! | `ring` | bandwidth-optimal all-reduce, any number of ranks |
//! | `halving_doubling` | all-reduce in few stages, any number of ranks |
//! | `hierarchical` | all-reduce inside hosts, then between them |
//! | `all_gather`, `broadcast` | what their names say |
//! | `average` | the mean of a vector cut into parts, by any of the above and with any codec |
//! | `low_rank` | the mean of matrices by thin factors |
//! | `fold` | a sum in the order of ranks, whatever the order of arrival |
//! | `recovery` | what survivors do when a member is lost half-way |

pub mod all_gather;
pub mod average;
pub mod broadcast;
pub(crate) mod fold;
pub mod halving_doubling;
mod hierarchical;
mod low_rank;
pub mod recovery;
mod ring;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::codec::CodecShape;
use crate::contract::{Awaited, Outbox};
use crate::message::{Message, Rank};
use crate::meta::Meta;
use crate::payload::Payload;
use crate::view::View;

pub use halving_doubling::HalvingDoubling;
pub use hierarchical::Hierarchical;
pub use ring::Ring;

/// Who takes part, from one rank's side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// All who take part, by rank.
    pub members: Vec<Rank>,
    /// Their hosts, in the same order.
    pub hosts: Vec<u32>,
    /// My place among them.
    pub me: usize,
}

impl Group {
    /// All living workers of a view, seen from `rank`.
    pub fn of_workers(view: &View, rank: Rank) -> Group {
        let members = view.workers.clone();
        let hosts = members.iter().map(|rank| view.hosts[rank.index()]).collect();
        let me = view.worker_index(rank).expect("a worker of this view");
        Group { members, hosts, me }
    }

    /// Whether there are several hosts, and several members on one of them.
    pub fn spans_shared_hosts(&self) -> bool {
        let hosts: BTreeSet<u32> = self.hosts.iter().copied().collect();
        hosts.len() > 1 && hosts.len() < self.members.len()
    }

    /// How many take part.
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Whether nobody takes part.
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }
}

/// How the messages of one machine are marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Label {
    /// The message kind, in the numbering of the owner.
    pub kind: u8,
    /// The step.
    pub step: u64,
    /// The bucket.
    pub bucket: usize,
    /// Which of several sums over the bucket.
    pub phase: u64,
    /// Whether a codec that rounds may be used.
    pub rounds: bool,
}

impl Label {
    fn bare(&self, stage: u32) -> Message {
        let mut message = Message::new(self.kind, self.step, self.bucket);
        message.stage = stage;
        message.seq = self.phase;
        message.collective = true;
        message
    }

    fn message(&self, outbox: &mut Outbox<'_>, stage: u32, values: Payload) -> Message {
        let message = self.bare(stage).with(values);
        if self.rounds { outbox.rounded(message) } else { message }
    }

    /// `sum`, which is complete here and goes to others: with the bits that they get.
    fn complete(&self, outbox: &mut Outbox<'_>, mut sum: Payload) -> Payload {
        if self.rounds && outbox.coder.shape() == CodecShape::Rounding {
            match sum.try_mut() {
                Some(values) => outbox.round(values),
                None => {
                    let mut own = outbox.pool.copy(&sum);
                    outbox.round(own.try_mut().expect("just taken, so held by nobody else"));
                    sum = own;
                }
            }
        }
        sum
    }
}

/// Sums one vector over a group, so that all have the same bits.
pub trait AllReduce: Send {
    /// My own vector is ready.
    fn start(&mut self, outbox: &mut Outbox<'_>, data: &[f32]);

    /// What a message of `stage` from `from` is to this rank.
    fn expected(&self, from: Rank, stage: u32) -> Expected;

    /// A message of this collective has arrived, and is one that [is taken](is_taken): owners ask first. Before
    /// `start`, `data` may be empty.
    fn on_message(&mut self, outbox: &mut Outbox<'_>, data: &[f32], from: Rank, message: Message);

    /// Whether the sum is complete here.
    fn is_done(&self) -> bool;

    /// Writes `scale ×` the sum over `data`, and lets go of all memory.
    fn finish(&mut self, scale: f32, data: &mut [f32]);

    /// Whom it is waiting for.
    fn awaiting(&self, out: &mut Vec<Awaited>);
}

/// What a message of a collective is to its receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// It is to come, with this many elements.
    Length(usize),
    /// Its stage is here: a second copy is ignored.
    Here,
    /// Its sender has no such message to send.
    Nothing,
}

/// Whether `machine` takes this message of `from`; not if it has it. Panics if `from` has no such message to send, or if
/// it has another length. Nothing is changed before.
pub fn is_taken(machine: &dyn AllReduce, from: Rank, message: &Message) -> bool {
    let (stage, step, bucket) = (message.stage, message.step, message.bucket);
    match machine.expected(from, stage) {
        Expected::Length(len) => {
            message.expect_length(len);
            true
        }
        Expected::Here => false,
        Expected::Nothing => {
            panic!(
                "no message of stage {stage} of bucket {bucket} in step {step} is to come from {from}"
            )
        }
    }
}

/// One entry of the table.
pub struct Entry {
    /// Name, summary, paper and options.
    pub meta: Meta,
    /// Makes the machine for a bucket of this length.
    pub build: fn(Arc<Group>, Label, usize) -> Box<dyn AllReduce>,
}

/// All all-reduces, by name; the first one is the default.
pub const COLLECTIVES: &[Entry] = &[
    Entry {
        meta: Meta {
            name: "ring",
            summary: "2(n−1) stages of 1/n of the vector each; bandwidth-optimal",
            paper: "Patarasuk and Yuan 2009",
            section: "the bandwidth-optimal schedule",
            file: "crates/quelea-core/src/collectives/ring.rs",
            options: &[],
        },
        build: |group, label, len| Box::new(Ring::new(group, label, len)),
    },
    Entry {
        meta: Meta {
            name: "halving-doubling",
            summary: "2 log2 n stages; fewer messages, for small vectors",
            paper: "Thakur, Rabenseifner and Gropp 2005",
            section: "the section on reduce-scatter followed by all-gather (Rabenseifner)",
            file: "crates/quelea-core/src/collectives/halving_doubling.rs",
            options: &[],
        },
        build: |group, label, len| Box::new(HalvingDoubling::new(group, label, len)),
    },
    Entry {
        meta: Meta {
            name: "hierarchical",
            summary: "reduce-scatter inside hosts, rings between them, all-gather inside",
            paper: "Goyal et al. 2017, arXiv:1706.02677",
            section: "the ring between hosts, one chunk per rank of a host",
            file: "crates/quelea-core/src/collectives/hierarchical.rs",
            options: &[],
        },
        build: |group, label, len| Box::new(Hierarchical::new(group, label, len)),
    },
    Entry {
        meta: Meta {
            name: "auto",
            summary: "halving-doubling below 256 KiB per rank, ring above",
            paper: "Thakur, Rabenseifner and Gropp 2005",
            section: "halving-doubling for small vectors, the ring for large ones, as Thakur et al.",
            file: "crates/quelea-core/src/collectives.rs",
            options: &[],
        },
        build: |group, label, len| {
            if len * 4 < SMALL_BYTES_PER_RANK * group.len() {
                Box::new(HalvingDoubling::new(group, label, len))
            } else {
                Box::new(Ring::new(group, label, len))
            }
        },
    },
];

/// Bytes per rank below which latency costs more than bandwidth.
const SMALL_BYTES_PER_RANK: usize = 256 * 1024;

#[cfg(test)]
mod tests;
