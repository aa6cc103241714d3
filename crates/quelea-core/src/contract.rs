//! The contract between an algorithm and whatever drives it.
//!
//! An algorithm is a state machine in the papers' own "upon event" form. Events come with a
//! [`Context`]: what this rank knows and may change now. What it wants done goes into the outbox as
//! [`Effect`]s. It sees no socket, clock, thread or file, so the same object runs in the virtual
//! cluster, in threads, over TCP and under an outer training loop.

use std::ops::Range;

use crate::codec::{CodecShape, Coder};
use crate::layout::Layout;
use crate::message::{Message, Part, Rank};
use crate::node::loan::SharedVector;
use crate::optim::Optimizer;
use crate::payload::{Payload, Pool};
use crate::random::Rng;
use crate::state::Visitor;
use crate::time::Time;
use crate::view::View;

/// One distributed training algorithm, as one worker or one server runs it.
///
/// All events have a default that does nothing, except [`on_message`](Algorithm::on_message).
/// Gradient events reach workers only.
pub trait Algorithm: Send {
    /// The first event, also after a resume: post what peers have not consumed at `cx.step`.
    fn on_start(&mut self, _cx: &mut Context<'_>) {}

    /// The gradient of bucket `b` is final. `cx.params` and `cx.grad` of that bucket now belong
    /// to the algorithm; those of later buckets do not yet.
    fn on_bucket(&mut self, _cx: &mut Context<'_>, _b: usize) {}

    /// The whole gradient is final; follows the last [`on_bucket`](Algorithm::on_bucket).
    fn on_gradient(&mut self, _cx: &mut Context<'_>) {}

    /// The optimizer has run on bucket `b`, as [`Context::optimize`] asked. It may come before or
    /// after [`on_gradient`](Algorithm::on_gradient).
    fn on_optimized(&mut self, _cx: &mut Context<'_>, _b: usize) {}

    /// A message has arrived whole. `cx.params` and `cx.grad` may be touched only as far as they
    /// belong to the algorithm; while `cx.computing` they are empty slices, except that algorithms
    /// marked [`Properties::snapshot`](crate::properties::Properties::snapshot) always see their parameters.
    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message);

    /// Membership has changed from `old` to `cx.outbox.view`.
    fn on_view(&mut self, _cx: &mut Context<'_>, _old: &View) {}

    /// No more gradients will come: flush what is pending, absorb what arrives.
    fn on_drain(&mut self, _cx: &mut Context<'_>) {}

    /// This worker leaves with notice, in an asynchronous run that has come to rest: hand what must not
    /// be lost, and is nowhere else, to somebody who stays.
    fn on_leave(&mut self, _cx: &mut Context<'_>) {}

    /// "I touch neither parameters nor gradient until you hand them over again": the next
    /// gradient may start. A level, not an edge; asked after every event. Servers say `false`.
    fn is_ready(&self) -> bool;

    /// Whether nothing of this rank's is still pending after [`on_drain`](Algorithm::on_drain).
    fn is_drained(&self) -> bool {
        true
    }

    /// Which ranks it is waiting for, and for what. For time-outs that name the culprit.
    fn awaiting(&self, _out: &mut Vec<Awaited>) {}

    /// What one would deploy from this rank: usually the parameters as they are.
    fn model(&self, params: &[f32], out: &mut [f32]) {
        out.copy_from_slice(params);
    }

    /// Lists the whole state between two steps once, for saving, loading and comparing. It is
    /// loaded before [`on_start`](Algorithm::on_start), which makes only what is missing.
    fn state(&mut self, visitor: &mut dyn Visitor);

    /// What a worker that joins a run takes over from another.
    fn join_rule(&self) -> JoinRule {
        JoinRule::Common
    }

    /// Whether a new worker can take the place of one that was lost, with its parameters and
    /// nothing else; the rest of the lost state is reset.
    fn can_be_replaced(&self) -> bool {
        true
    }

    /// At a server of a synchronous algorithm: whether what all workers sent in their first `step`
    /// steps is in my state, and nothing of later ones. Then it is the server's part of a cut.
    fn is_at_cut(&self, _step: u64) -> bool {
        false
    }

    /// Whether messages that a living rank sent in an older view remain good. Collectives say
    /// no; gossip and ledgers must say yes, or they hang or lose mass.
    fn keeps_older_views(&self) -> bool {
        false
    }
}

/// What a worker that joins a run takes over from another, its sponsor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JoinRule {
    /// Parameters, optimizer and step; the rest begins as in a new run.
    Common,
    /// The whole state, which all workers have in common.
    Whole,
    /// No worker can join, for this reason.
    No(&'static str),
}

/// Something that a rank is waiting for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Awaited {
    /// From whom.
    pub from: Rank,
    /// What, in words.
    pub what: &'static str,
}

/// What an event may do to the outside. Kept apart from the vectors, so that a collective can be
/// lent a slice of the gradient while it sends.
pub struct Outbox<'a> {
    /// The time of the event.
    pub now: Time,
    /// When the latest computation that my state depends on was finished.
    pub origin: Time,
    /// Who I am.
    pub rank: Rank,
    /// Who is alive, and who mixes with whom.
    pub view: &'a View,
    /// Where message memory comes from.
    pub pool: &'a Pool,
    /// Turns vectors into bytes, where the run has a codec.
    pub coder: &'a mut Coder,
    /// This rank's own random stream.
    pub rng: &'a mut Rng,
    /// Filled here, emptied by the driver, in order.
    pub out: &'a mut Vec<Effect>,
}

impl Outbox<'_> {
    /// Sends `message` to `to`.
    pub fn send(&mut self, to: Rank, message: Message) {
        debug_assert_ne!(to, self.rank, "nobody sends to themselves");
        self.out.push(Effect::Send { to, message });
    }

    /// Sends one message to several peers, who share it.
    pub fn send_to_all(&mut self, peers: &[Rank], mut message: Message) {
        let Some((last, others)) = peers.split_last() else { return };
        if !others.is_empty() {
            // Stamped before it is shared, it need not be copied later.
            message.stamp(self.view.number, self.origin);
            message = message.share();
        }
        for to in others {
            self.send(*to, message.clone());
        }
        self.send(*last, message);
    }

    /// `message` with its vectors encoded; receivers see what is decoded from them.
    pub fn encoded(&mut self, mut message: Message) -> Message {
        for part in 0..message.parts.len() {
            if let Part::Values(values) = &message.parts[part] {
                let at = Coder::place(self.rank, &message, part);
                message.parts[part] = self.coder.pack(at, values, self.pool);
            }
        }
        message
    }

    /// `message` as it travels where its vectors are models: encoded, if the codec rounds.
    pub fn rounded(&mut self, message: Message) -> Message {
        match self.coder.shape() {
            CodecShape::Rounding => self.encoded(message),
            _ => message,
        }
    }

    /// What receivers see of `values` in a [rounded](Outbox::rounded) message.
    pub fn round(&mut self, values: &mut [f32]) {
        self.coder.round(values, self.pool);
    }

    /// Reports arithmetic over `bytes` bytes that a server, a reduce step or mixing has done. The
    /// virtual cluster charges it before the sends that follow.
    pub fn work(&mut self, bytes: usize) {
        self.out.push(Effect::Work { bytes: bytes as u64 });
    }

    /// Reports a measured fact.
    pub fn measure(&mut self, fact: Fact) {
        self.out.push(Effect::Measure(fact));
    }
}

/// What a rank knows, and what it may change, when an event reaches it.
pub struct Context<'a> {
    /// Sending, the view, memory, randomness.
    pub outbox: Outbox<'a>,
    /// Steps completed by this worker. A server has none: it stays 0, and what belongs to a
    /// worker's step comes with that worker's message.
    pub step: u64,
    /// How many steps the run has, where the algorithm is budgeted in rounds; else `u64::MAX`.
    pub steps: u64,
    /// Whether a gradient is not complete yet: the vectors are not here, or only the buckets that
    /// were handed over belong to the algorithm.
    pub computing: bool,
    /// The loss that came with the last gradient.
    pub loss: f32,
    /// How many samples the last gradient was averaged over.
    pub samples: u32,
    /// What a gradient that was handed over before the membership changed is to be multiplied by,
    /// where workers weigh by their samples; 1 but in [`on_view`](Algorithm::on_view).
    pub reweigh: f32,
    /// The learning rate of this step.
    pub learning_rate: f32,
    /// The global norm to clip to, for algorithms that clip by themselves
    /// ([`Properties::clips_itself`](crate::properties::Properties::clips_itself)); `None` otherwise.
    pub clip: Option<f32>,
    /// The flat model vector, or a server's shard of it.
    pub params: &'a mut [f32],
    /// The flat gradient; at a server, scratch of the shard's size.
    pub grad: &'a mut [f32],
    /// The memory of both vectors, for views that may outlive the event.
    pub memory: VectorMemory<'a>,
    /// The buckets of this rank.
    pub layout: &'a Layout,
    /// Per bucket of a worker, the pieces of it that servers hold. Empty without servers.
    pub pieces: &'a [Vec<Piece>],
    /// The optimizer's state, for handing it to a joiner.
    pub optimizer: &'a mut dyn Optimizer,
}

/// The memory that a rank's vectors lie in, for holders outside Rust: a clone keeps it where it is
/// (see [`SharedVector::address`]). Who may touch it when is what the events say.
#[derive(Clone, Copy, Debug)]
pub struct VectorMemory<'a> {
    /// That of the parameters.
    pub params: &'a SharedVector,
    /// That of the gradient.
    pub grad: &'a SharedVector,
}

impl Context<'_> {
    /// Asks for the optimizer on bucket `b`: [`on_optimized`](Algorithm::on_optimized) follows.
    /// With clipping by the global norm the answer comes when all buckets have been asked for.
    pub fn optimize(&mut self, b: usize, mode: Mode) {
        self.optimize_at(b, mode, self.step);
    }

    /// As [`optimize`](Context::optimize), with the learning rate of another step: a server uses that
    /// of the worker whose gradient it applies, unless the schedule follows
    /// [all workers](crate::optim::ScheduleClock::Global).
    pub fn optimize_at(&mut self, b: usize, mode: Mode, step: u64) {
        self.outbox.out.push(Effect::Optimize { bucket: b, mode, step });
    }

    /// Where bucket `b` lies.
    pub fn range(&self, b: usize) -> Range<usize> {
        self.layout.range(b)
    }

    /// A pooled copy of bucket `b` of the parameters.
    pub fn params_payload(&self, b: usize) -> Payload {
        self.outbox.pool.copy(&self.params[self.layout.range(b)])
    }

    /// Whether there will be no step after this one.
    pub fn is_last_step(&self) -> bool {
        self.step.saturating_add(1) >= self.steps
    }
}

/// The part of a bucket that one server holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The server.
    pub server: Rank,
    /// Where the piece lies in the worker's vector.
    pub range: Range<usize>,
    /// A number for the piece, dense over all buckets: an index for per-piece state.
    pub index: usize,
}

/// What an algorithm wants done.
#[derive(Debug)]
pub enum Effect {
    /// Deliver this message.
    Send {
        /// To whom.
        to: Rank,
        /// What.
        message: Message,
    },
    /// Run the optimizer on a bucket. The node does it; drivers see it only where the optimizer is
    /// [outside](crate::node::Node::optimize_outside).
    Optimize {
        /// Which bucket.
        bucket: usize,
        /// What to do with the result.
        mode: Mode,
        /// The step whose learning rate is used, where the schedule follows single workers.
        step: u64,
    },
    /// A server, a reduce step or mixing has done arithmetic.
    Work {
        /// Bytes that it has processed.
        bytes: u64,
    },
    /// This worker continues at another step: it has taken over a peer's state. A gradient that
    /// it is computing is thrown away.
    JumpToStep(u64),
    /// A measured fact.
    Measure(Fact),
}

/// What the optimizer's result does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// The parameters take the step.
    Apply,
    /// The gradient is replaced by the displacement η·u; the parameters stay.
    Displace,
    /// Both: the parameters take the step, and the gradient is replaced by the displacement.
    ApplyAndReport,
}

/// Properties that only the algorithm can measure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Fact {
    /// How many updates the model had seen since the base of the gradient applied now.
    Staleness(u64),
    /// How many gradients were folded into one message.
    Folded(u32),
    /// An exchange was broken off half-way by a lost peer; the mean shifted once.
    HalfExchange,
    /// A message of this rank had values that no honest rank sends.
    Poisoned(u32),
}
