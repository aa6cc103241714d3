//! One rank as any driver holds it.
//!
//! A node owns the algorithm, the vectors, the optimizer and the view of one worker or server.
//! A driver tells it what happened (`start`, `bucket`, `gradient`, `message`, `change_view`,
//! `progress`, `drain`), then takes the effects out with [`Node::take_effects`] and carries them out: sends,
//! work and measurements. Everything else (running the optimizer, clipping, holding messages
//! of a view to come) happens here, once for all drivers.
//!
//! ```text
//! node.start(now)
//! loop {
//!     if node.wants_gradient() { let loan = node.lend(); …compute, maybe elsewhere…; drop(loan) }
//!     node.bucket(now, b) for each bucket that the loan hands over; node.gradient(now, computed)
//!     node.message(now, from, message) whenever one arrives
//!     for effect in node.take_effects() { … }
//! }
//! node.drain(now); until node.is_drained() and nothing is on its way
//! ```

mod build;
mod effects;
mod held;
pub mod loan;
mod progress;
mod state;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::codec::Coder;
use crate::contract::{Algorithm, Awaited, Effect, Mode, Piece};
use crate::layout::Layout;
use crate::message::{Message, Part, Rank};
use crate::optim::{LearningRate, Optimizer};
use crate::payload::Pool;
use crate::poison::{self, Inspection, Poisoned};
use crate::problems::Computed;
use crate::properties::Properties;
use crate::random::Rng;
use crate::time::Time;
use crate::vector;
use crate::view::View;
use build::share;
use held::Held;
pub use held::RefusedMessage;
pub use loan::Loan;
use loan::SharedVector;
use progress::GlobalProgress;
pub use state::MODEL;

/// Where a node is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Not started: messages are held.
    New,
    /// Between two steps: the next gradient may start as soon as the algorithm is ready.
    Idle,
    /// A gradient is being computed, or its buckets are being handed over.
    Computing,
    /// The gradient was handed over whole; the step is complete when the algorithm is ready.
    Exchanging,
    /// There will be no more gradients; the step of the last one may not be complete.
    Draining { exchanging: bool },
}

/// One rank.
pub struct Node {
    /// Its number.
    pub rank: Rank,
    /// Whether it is a server.
    pub is_server: bool,
    properties: Properties,
    algorithm: Box<dyn Algorithm>,
    params: SharedVector,
    grad: SharedVector,
    /// Memory for the copy that is lent where parameters may change at any time.
    spare: SharedVector,
    /// Elements of the lent vectors that are here: all of them while nothing is lent.
    boundary: Arc<AtomicUsize>,
    layout: Arc<Layout>,
    pieces: Vec<Vec<Piece>>,
    optimizer: Box<dyn Optimizer>,
    /// Optimizer steps taken, per bucket.
    optimized: Vec<u64>,
    /// Buckets asked for while clipping waits for the rest.
    asked: Vec<(usize, Mode, u64)>,
    learning_rate: LearningRate,
    progress: GlobalProgress,
    clip: Option<f32>,
    /// What a gradient of this worker, or the step that it makes of one, counts for; 1 where all
    /// have as many samples.
    share: f32,
    /// The factor by which `share` has changed, while a new view is delivered.
    reweigh: f32,
    samples: Arc<[u32]>,
    coder: Coder,
    rng: Rng,
    view: Arc<View>,
    pool: Pool,
    step: u64,
    steps: u64,
    phase: Phase,
    /// The optimizer is somebody else's: drivers carry out [`Effect::Optimize`].
    outside: bool,
    computed: Computed,
    /// Messages of a view to come, or from before the start.
    held: Held,
    /// What is looked at before the algorithm gets it.
    inspection: Inspection,
    /// When the latest computation that my state depends on was finished.
    origin: Time,
    /// What the algorithm has asked for in the event that is being handled.
    effects: Vec<Effect>,
    /// What is still to be carried out of that event; empty between events.
    queue: VecDeque<Effect>,
    /// What the driver has to carry out.
    out: Vec<Effect>,
}

impl Node {
    /// The first event.
    pub fn start(&mut self, now: Time) {
        self.phase = Phase::Idle;
        self.fix_rate();
        self.event(now, |algorithm, cx| algorithm.on_start(cx));
        self.release_held(now);
    }

    /// The first event of a worker that joins a run whose others were in the view `old` before.
    pub fn enter(&mut self, now: Time, old: &View) {
        self.phase = Phase::Idle;
        self.fix_rate();
        self.event(now, |algorithm, cx| algorithm.on_start(cx));
        self.event(now, |algorithm, cx| algorithm.on_view(cx, old));
        self.release_held(now);
    }

    /// Whether the next gradient may start.
    pub fn wants_gradient(&self) -> bool {
        self.phase == Phase::Idle
            && !self.is_server
            && self.step < self.steps
            && self.algorithm.is_ready()
    }

    /// Lends the vectors for computing gradient number [`Node::step`]. Algorithms that may change
    /// their parameters at any time lend a copy.
    pub fn lend(&mut self) -> Loan {
        assert!(self.wants_gradient(), "only a node that wants a gradient lends its vectors");
        self.phase = Phase::Computing;
        let params = if self.properties.snapshot {
            self.copy_to_spare();
            self.spare.clone()
        } else {
            self.params.clone()
        };
        let layout = Arc::clone(&self.layout);
        Loan::new(params, self.grad.clone(), layout, self.step, Arc::clone(&self.boundary))
    }

    fn copy_to_spare(&mut self) {
        if self.spare.is_empty() {
            self.spare = vec![0.0; self.params.len()].into();
        }
        // SAFETY: nothing is lent, so both are this node's alone.
        unsafe {
            let spare = self.spare.slice_mut(0..self.params.len());
            spare.copy_from_slice(self.params.slice(0..self.params.len()));
        }
    }

    /// No gradient will come of the loan, which is over.
    pub fn cancel_gradient(&mut self) {
        assert_eq!(self.phase, Phase::Computing, "only a gradient that was begun is cancelled");
        assert!(!self.is_lent(), "a loan ends before its gradient is cancelled");
        self.phase = Phase::Idle;
    }

    /// Elements of the gradient, and of parameters that are lent themselves, which are here.
    fn visible(&self) -> usize {
        self.boundary.load(Ordering::Acquire)
    }

    fn is_lent(&self) -> bool {
        self.visible() < self.grad.len()
    }

    /// From now on the optimizer is the driver's: it finds [`Effect::Optimize`] among the effects,
    /// and answers each with [`Node::optimized`]. Until then this node touches neither parameters
    /// nor gradient of that bucket.
    pub fn optimize_outside(&mut self) {
        self.outside = true;
    }

    /// The optimizer has run on bucket `b` as an effect asked.
    pub fn optimized(&mut self, now: Time, b: usize) {
        self.event(now, |algorithm, cx| algorithm.on_optimized(cx, b));
    }

    /// What a node that is not used any more ends with: parameters and model. The memory of the
    /// gradient goes first, so that this takes no more than training did.
    pub fn retire(&mut self) -> (Vec<f32>, Vec<f32>) {
        (self.grad, self.spare) = Default::default();
        let model = self.model();
        (std::mem::take(&mut self.params).into_vec(), model)
    }

    /// The gradient of bucket `b` is final. Buckets come in order.
    pub fn bucket(&mut self, now: Time, b: usize) {
        self.origin = self.origin.max(now);
        if b == 0 {
            self.fix_rate();
        }
        if self.share != 1.0 && self.weighs_gradient() {
            // SAFETY: the bucket was handed over, and no event is being handled.
            let grad = unsafe { self.grad.slice_mut(0..self.visible()) };
            vector::scale(self.share, &mut grad[self.layout.range(b)]);
        }
        self.event(now, |algorithm, cx| algorithm.on_bucket(cx, b));
    }

    /// Whether gradients are multiplied by [`share`](Node::share), for algorithms that combine
    /// gradients. Elsewhere the worker's own step is: under an optimizer whose steps are about as
    /// long whatever the gradient is multiplied by, such as Adam, the weight would cancel.
    fn weighs_gradient(&self) -> bool {
        self.properties.reads_gradient || self.outside
    }

    /// The whole gradient is final.
    pub fn gradient(&mut self, now: Time, computed: Computed) {
        assert!(!self.is_lent(), "a loan ends before its gradient is complete");
        self.phase = Phase::Exchanging;
        self.computed = computed;
        self.origin = self.origin.max(now);
        self.event(now, |algorithm, cx| algorithm.on_gradient(cx));
    }

    /// A message has arrived.
    pub fn message(&mut self, now: Time, from: Rank, message: Message) {
        if self.phase == Phase::New || message.view > self.view.number {
            self.held.messages.push((from, message));
            return;
        }
        let outdated = message.view < self.view.number && !self.algorithm.keeps_older_views();
        if outdated || !self.view.is_alive(from) {
            return;
        }
        self.origin = self.origin.max(message.origin);
        let message = self.decoded(from, message);
        if self.inspection.is_on
            && let Some(poisoned) = poison::inspect(from, &message)
        {
            return self.inspection.poisoned.push(poisoned);
        }
        self.event(now, |algorithm, cx| algorithm.on_message(cx, from, message));
    }

    /// From now on, messages with values that no honest rank sends do not reach the algorithm.
    pub fn inspect_messages(&mut self) {
        self.inspection.is_on = true;
    }

    /// Those that did not reach it since the last call.
    pub fn take_poisoned(&mut self) -> Vec<Poisoned> {
        std::mem::take(&mut self.inspection.poisoned)
    }

    /// `message` with plain vectors. Panics if they are not what the run's codec writes, as an
    /// algorithm does with a vector that is not what its peers send.
    fn decoded(&mut self, from: Rank, mut message: Message) -> Message {
        for part in 0..message.parts.len() {
            if matches!(message.parts[part], Part::Encoded { .. }) {
                let (at, most) = (Coder::place(from, &message, part), self.layout.len());
                let values = self.coder.unpack(at, &message.parts[part], most, &self.pool);
                let values = values.unwrap_or_else(|error| panic!("{error}"));
                message.parts[part] = Part::Values(values);
                // What was seen of it was encoded.
                message.largest_bits = None;
            }
        }
        message
    }

    /// Membership has changed.
    pub fn change_view(&mut self, now: Time, view: Arc<View>) {
        assert!(view.number > self.view.number, "views only go up");
        let old = std::mem::replace(&mut self.view, view);
        let before =
            std::mem::replace(&mut self.share, share(&self.samples, &self.view, self.rank));
        if self.phase != Phase::New {
            self.reweigh = self.share / before;
            self.event(now, |algorithm, cx| algorithm.on_view(cx, &old));
            self.reweigh = 1.0;
            self.release_held(now);
        }
    }

    /// No more gradients will be asked for.
    pub fn drain(&mut self, now: Time) {
        assert_ne!(self.phase, Phase::Computing, "nobody computes when a run ends");
        self.phase = Phase::Draining { exchanging: self.phase == Phase::Exchanging };
        self.event(now, |algorithm, cx| algorithm.on_drain(cx));
    }

    /// This worker is drained, and leaves with notice: see [`Algorithm::on_leave`].
    pub fn leave(&mut self, now: Time) {
        self.event(now, |algorithm, cx| algorithm.on_leave(cx));
    }

    /// Whether nothing of this rank's is pending any more.
    pub fn is_drained(&self) -> bool {
        self.algorithm.is_drained()
    }

    /// What the driver has to carry out, in order: sends, work, measurements, and optimizer steps
    /// if they are [outside](Node::optimize_outside).
    pub fn take_effects(&mut self) -> std::vec::Drain<'_, Effect> {
        self.out.drain(..)
    }

    /// Steps completed.
    pub fn step(&self) -> u64 {
        self.step
    }

    /// Whether a gradient is being computed.
    pub fn is_computing(&self) -> bool {
        self.phase == Phase::Computing
    }

    /// Whether this worker has done all its rounds.
    pub fn has_finished_rounds(&self) -> bool {
        self.step >= self.steps
    }

    /// When the latest computation that this node's state depends on was finished. After an idle
    /// time, what lies before it was waiting for a slower peer, what lies after was
    /// communication.
    pub fn origin(&self) -> Time {
        self.origin
    }

    /// Whom the algorithm is waiting for.
    pub fn awaiting(&self) -> Vec<Awaited> {
        let mut awaited = Vec::new();
        self.algorithm.awaiting(&mut awaited);
        awaited
    }

    /// The buckets of this rank.
    pub fn layout(&self) -> &Layout {
        &self.layout
    }

    /// The view that this node is in.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// The parameters as they are, as far as they are not lent.
    pub fn params(&self) -> &[f32] {
        // SAFETY: what is visible is this node's, which is borrowed.
        unsafe { self.params.slice(0..self.visible_params()) }
    }

    fn visible_params(&self) -> usize {
        if self.properties.snapshot || self.is_server { self.params.len() } else { self.visible() }
    }

    /// What one would deploy from this rank.
    pub fn model(&self) -> Vec<f32> {
        let params = self.params();
        let mut model = vec![0.0; params.len()];
        self.algorithm.model(params, &mut model);
        model
    }
}
