//! One rank as any driver holds it.
//!
//! A node owns the algorithm, the vectors, the optimizer and the view of one worker or server.
//! A driver tells it what happened (`start`, `bucket`, `gradient`, `message`, `change_view`,
//! `drain`), then takes the effects out with [`Node::take_effects`] and carries them out: sends,
//! work and measurements. Everything else (running the optimizer, clipping, holding messages
//! of a view to come) happens here, once for all drivers.
//!
//! ```text
//! node.start(now)
//! loop {
//!     if node.wants_gradient() { let lent = node.lend(); …compute, maybe elsewhere…; node.restore(lent) }
//!     node.bucket(now, b) for each bucket as it becomes ready; node.gradient(now, computed)
//!     node.message(now, from, message) whenever one arrives
//!     for effect in node.take_effects() { … }
//! }
//! node.drain(now); until node.is_drained() and nothing is on its way
//! ```

use std::collections::VecDeque;
use std::sync::Arc;

use crate::algorithms::{Entry, hierarchy};
use crate::codec::{self, Coder};
use crate::contract::{Algorithm, Awaited, Context, Effect, Mode, Outbox, Piece};
use crate::layout::{Layout, intersect};
use crate::message::{Message, Part, Rank};
use crate::optim::{At, LearningRate, Optimizer};
use crate::options::Options;
use crate::payload::Pool;
use crate::problems::Computed;
use crate::properties::{OptimizerSite, Properties};
use crate::random::Rng;
use crate::state::{Load, Saved, Visitor};
use crate::time::Time;
use crate::topology::Schedule;
use crate::vector;
use crate::view::View;

/// Makes an optimizer for a vector of this length.
pub type MakeOptimizer = Arc<dyn Fn(usize) -> Box<dyn Optimizer> + Send + Sync>;

/// Makes the topology over these workers (their hosts are given in order).
pub type MakeTopology = Arc<dyn Fn(&[u32]) -> Option<Arc<Schedule>> + Send + Sync>;

/// The vector of a saved state that one would deploy, where it is not `params`.
pub const MODEL: &str = "model";

/// Everything that the nodes of a run have in common.
#[derive(Clone)]
pub struct RunSpec {
    /// The algorithm.
    pub entry: &'static Entry,
    /// Its parameters.
    pub options: Options,
    /// What vectors travel as.
    pub codec: CodecChoice,
    /// How the model is cut.
    pub layout: Arc<Layout>,
    /// Where every worker starts.
    pub initial: Arc<[f32]>,
    /// The optimizer.
    pub optimizer: MakeOptimizer,
    /// The learning rate by step.
    pub learning_rate: LearningRate,
    /// Clip gradients to this global norm.
    pub clip: Option<f32>,
    /// Samples that a gradient of each worker is averaged over, so that one of more samples
    /// counts for more; empty if all are alike.
    pub samples: Arc<[u32]>,
    /// Steps per worker.
    pub steps: u64,
    /// The run's seed.
    pub seed: u64,
    /// The first view.
    pub view: Arc<View>,
    /// Makes the topology anew when membership changes.
    pub topology: Option<MakeTopology>,
}

/// A codec with its parameters.
#[derive(Clone, Debug)]
pub struct CodecChoice {
    /// The codec.
    pub entry: &'static codec::Entry,
    /// Its parameters.
    pub options: Options,
}

impl Default for CodecChoice {
    /// Vectors travel as they are.
    fn default() -> CodecChoice {
        let entry = codec::find("f32").expect("in the table");
        CodecChoice { entry, options: Options::defaults(entry.keys) }
    }
}

impl RunSpec {
    /// What drivers need to know of the algorithm.
    pub fn properties(&self) -> Properties {
        let properties = (self.entry.properties)(&self.options);
        match self.view.between() {
            Some(_) => hierarchy::properties(properties, &self.view),
            None => properties,
        }
    }

    /// Ranks in all: workers, then servers.
    pub fn ranks(&self) -> usize {
        self.view.hosts.len()
    }

    /// Number of workers at the start.
    pub fn workers(&self) -> usize {
        self.view.workers.len()
    }

    /// The shard of each server, in order of rank.
    pub fn shards(&self) -> Vec<std::ops::Range<usize>> {
        self.layout.shards(self.view.servers.len())
    }

    /// The node of `rank`, with message memory from `pool`.
    pub fn node(&self, rank: Rank, pool: Pool) -> Node {
        let properties = self.properties();
        let is_server = rank.index() >= self.workers();
        let shards = self.shards();
        let (layout, params) = if is_server {
            let shard = &shards[rank.index() - self.workers()];
            (Arc::new(self.layout.restricted(shard)), self.initial[shard.clone()].to_vec())
        } else {
            (Arc::clone(&self.layout), self.initial.to_vec())
        };
        let algorithm = if is_server {
            (self.entry.server.expect("the row says that it has servers"))(&self.options)
        } else {
            hierarchy::wrap((self.entry.worker)(&self.options), &self.view)
        };
        let optimizes = is_server == (properties.optimizer == OptimizerSite::Servers);
        let optimizer = (self.optimizer)(if optimizes { params.len() } else { 0 });
        let steps = match properties.budget {
            crate::properties::Budget::Rounds => self.steps,
            crate::properties::Budget::TotalGradients => u64::MAX,
        };
        Node {
            rank,
            is_server,
            properties,
            algorithm,
            grad: vec![0.0; params.len()],
            params,
            spare: Vec::new(),
            pieces: if is_server {
                Vec::new()
            } else {
                pieces(&self.layout, &shards, self.workers())
            },
            optimized: vec![0; layout.buckets.len()],
            asked: Vec::new(),
            layout,
            optimizer,
            learning_rate: Arc::clone(&self.learning_rate),
            clip: self.clip,
            share: share(&self.samples, &self.view, rank),
            reweigh: 1.0,
            samples: Arc::clone(&self.samples),
            coder: Coder::new(self.codec.entry, &self.codec.options, self.seed),
            rng: Rng::new(self.seed, "algorithm", u64::from(rank.0)),
            view: Arc::clone(&self.view),
            pool,
            step: 0,
            steps,
            started: false,
            computing: false,
            lent: false,
            gradient_given: false,
            draining: false,
            outside: false,
            computed: Computed::default(),
            held: Vec::new(),
            origin: Time::ZERO,
            effects: Vec::new(),
            queue: VecDeque::new(),
            out: Vec::new(),
        }
    }

    /// Whether the loss of `rank` ends the run: it mixes for others of its host, and none of them
    /// could go on from the parameters alone.
    pub fn cannot_lose(&self, view: &View, rank: Rank) -> bool {
        view.is_leader_of_others(rank) && !(self.entry.worker)(&self.options).can_be_replaced()
    }

    /// The view after `lost` were lost, with the topology rebuilt over the survivors from
    /// `from_step` on.
    pub fn view_without(&self, view: &View, lost: &[Rank], from_step: u64) -> View {
        let mixing = view.mixing_without(lost);
        let hosts: Vec<u32> = mixing.iter().map(|rank| view.hosts[rank.index()]).collect();
        let rebuilt = self.topology.as_ref().and_then(|make| make(&hosts));
        view.without(lost, from_step, rebuilt)
    }
}

/// `samples_i · n / Σ samples`: with it, the plain mean over the workers is the mean over samples.
fn share(samples: &[u32], view: &View, rank: Rank) -> f32 {
    let of = |rank: &Rank| samples.get(rank.index()).map_or(1.0, |samples| f64::from(*samples));
    let sum: f64 = view.workers.iter().map(of).sum();
    (of(&rank) * view.workers.len() as f64 / sum) as f32
}

fn pieces(layout: &Layout, shards: &[std::ops::Range<usize>], workers: usize) -> Vec<Vec<Piece>> {
    let mut index = 0;
    let mut of_bucket = |bucket: &crate::layout::Bucket| {
        let held = shards.iter().enumerate().filter_map(|(server, shard)| {
            let range = intersect(&bucket.range, shard)?;
            index += 1;
            Some(Piece { server: Rank::from(workers + server), range, index: index - 1 })
        });
        held.collect()
    };
    layout.buckets.iter().map(&mut of_bucket).collect()
}

/// One rank.
pub struct Node {
    /// Its number.
    pub rank: Rank,
    /// Whether it is a server.
    pub is_server: bool,
    properties: Properties,
    algorithm: Box<dyn Algorithm>,
    params: Vec<f32>,
    grad: Vec<f32>,
    /// Memory for the copy that a row marked `snapshot` lends.
    spare: Vec<f32>,
    layout: Arc<Layout>,
    pieces: Vec<Vec<Piece>>,
    optimizer: Box<dyn Optimizer>,
    /// Optimizer steps taken, per bucket.
    optimized: Vec<u64>,
    /// Buckets asked for while clipping waits for the rest.
    asked: Vec<(usize, Mode, u64)>,
    learning_rate: LearningRate,
    clip: Option<f32>,
    /// What a gradient of this worker counts for; 1 where all have as many samples.
    share: f32,
    /// What it has changed by, while a change of the membership is told.
    reweigh: f32,
    samples: Arc<[u32]>,
    coder: Coder,
    rng: Rng,
    view: Arc<View>,
    pool: Pool,
    step: u64,
    steps: u64,
    started: bool,
    computing: bool,
    lent: bool,
    /// The gradient of `step` has been handed over whole.
    gradient_given: bool,
    draining: bool,
    /// The optimizer is somebody else's: drivers carry out [`Effect::Optimize`].
    outside: bool,
    computed: Computed,
    /// Messages of a view to come, or from before the start.
    held: Vec<(Rank, Message)>,
    /// When the latest computation that my state depends on was finished.
    origin: Time,
    /// What the algorithm has asked for in the event that is being handled.
    effects: Vec<Effect>,
    /// What is still to be carried out of that event; empty between events.
    queue: VecDeque<Effect>,
    /// What the driver has to carry out.
    out: Vec<Effect>,
}

/// The vectors of a node, lent to whoever computes its gradient.
#[derive(Debug)]
pub struct Loan {
    /// Where the gradient is to be taken.
    pub params: Vec<f32>,
    /// Where it is to be written.
    pub grad: Vec<f32>,
    /// Which of the worker's gradients this is, from 0.
    pub step: u64,
}

impl Node {
    /// The first event.
    pub fn start(&mut self, now: Time) {
        self.started = true;
        self.event(now, |algorithm, cx| algorithm.on_start(cx));
        self.release_held(now);
    }

    /// Whether the next gradient may start.
    pub fn wants_gradient(&self) -> bool {
        self.started
            && !self.is_server
            && !self.draining
            && !self.computing
            && !self.gradient_given
            && self.step < self.steps
            && self.algorithm.is_ready()
    }

    /// Lends the vectors for computing gradient number [`Node::step`]. Rows that may change
    /// their parameters at any time lend a copy.
    pub fn lend(&mut self) -> Loan {
        assert!(self.wants_gradient(), "only a node that wants a gradient lends its vectors");
        self.computing = true;
        self.lent = true;
        let params = if self.properties.snapshot {
            let mut copy = std::mem::take(&mut self.spare);
            copy.clone_from(&self.params);
            copy
        } else {
            std::mem::take(&mut self.params)
        };
        Loan { params, grad: std::mem::take(&mut self.grad), step: self.step }
    }

    /// Takes the vectors back, with the gradient written. Before the first bucket is handed over.
    pub fn restore(&mut self, lent: Loan) {
        assert!(self.lent, "only what was lent is restored");
        self.lent = false;
        if self.properties.snapshot {
            self.spare = lent.params;
        } else {
            self.params = lent.params;
        }
        self.grad = lent.grad;
    }

    /// Takes the vectors back: no gradient will come of them.
    pub fn take_back(&mut self, lent: Loan) {
        self.restore(lent);
        self.computing = false;
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
        (std::mem::take(&mut self.params), model)
    }

    /// Takes the vectors out of a node that is not used any more, for whoever still looks at their
    /// memory.
    pub fn take_vectors(&mut self) -> [Vec<f32>; 3] {
        [&mut self.params, &mut self.grad, &mut self.spare].map(std::mem::take)
    }

    /// The gradient of bucket `b` is final. Buckets come in order.
    pub fn bucket(&mut self, now: Time, b: usize) {
        self.origin = self.origin.max(now);
        if self.share != 1.0 {
            vector::scale(self.share, &mut self.grad[self.layout.range(b)]);
        }
        self.event(now, |algorithm, cx| algorithm.on_bucket(cx, b));
    }

    /// The whole gradient is final.
    pub fn gradient(&mut self, now: Time, computed: Computed) {
        self.computing = false;
        self.gradient_given = true;
        self.computed = computed;
        self.origin = self.origin.max(now);
        self.event(now, |algorithm, cx| algorithm.on_gradient(cx));
    }

    /// A message has arrived.
    pub fn message(&mut self, now: Time, from: Rank, message: Message) {
        if !self.started || message.view > self.view.number {
            self.held.push((from, message));
            return;
        }
        let outdated = message.view < self.view.number && !self.algorithm.keeps_older_views();
        if outdated || !self.view.is_alive(from) {
            return;
        }
        self.origin = self.origin.max(message.origin);
        let message = self.decoded(from, message);
        self.event(now, |algorithm, cx| algorithm.on_message(cx, from, message));
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
        if self.started {
            self.reweigh = self.share / before;
            self.event(now, |algorithm, cx| algorithm.on_view(cx, &old));
            self.reweigh = 1.0;
            self.release_held(now);
        }
    }

    /// No more gradients will be asked for.
    pub fn drain(&mut self, now: Time) {
        self.draining = true;
        self.event(now, |algorithm, cx| algorithm.on_drain(cx));
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
        self.computing
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

    /// The parameters as they are (empty while lent).
    pub fn params(&self) -> &[f32] {
        &self.params
    }

    /// What one would deploy from this rank.
    pub fn model(&self) -> Vec<f32> {
        let mut model = vec![0.0; self.params.len()];
        self.algorithm.model(&self.params, &mut model);
        model
    }

    /// Walks over the whole state.
    pub fn state(&mut self, visitor: &mut dyn Visitor) {
        self.common_state(visitor);
        for (slot, word) in self.rng.words().iter_mut().enumerate() {
            visitor.number(&format!("rng.{slot}"), word);
        }
        self.algorithm.state(visitor);
    }

    /// Whether this node's state is its part of a cut after `step` steps of every worker: a
    /// worker stands before its next gradient, a server has what was sent until then.
    pub fn is_at_cut(&self, step: u64) -> bool {
        match self.is_server {
            true => self.algorithm.is_at_cut(step),
            false => {
                let rests = !self.computing && !self.gradient_given && self.algorithm.is_ready();
                self.step == step && rests
            }
        }
    }

    /// Copies the whole state. What one would deploy goes with it where that is not what the
    /// parameters are.
    pub fn save(&mut self) -> Saved {
        let mut saved = Saved::default();
        self.state(&mut saved);
        let model = self.model();
        if model != self.params {
            saved.vectors.insert(MODEL.to_string(), model);
        }
        saved
    }

    /// Takes over a state that was saved, before the start.
    pub fn load(&mut self, saved: &Saved) -> Result<(), String> {
        assert!(!self.started, "a state is loaded before the start");
        let mut load = Load::new(saved);
        self.state(&mut load);
        load.finish()
    }

    /// As [`load`](Node::load), but for what only the algorithm knows: it begins anew from the
    /// parameters. This is how another number of workers goes on.
    pub fn load_common(&mut self, saved: &Saved) -> Result<(), String> {
        assert!(!self.started, "a state is loaded before the start");
        let mut load = Load::new(saved);
        self.common_state(&mut load);
        load.finish()
    }

    /// What every rank has, whatever the algorithm.
    fn common_state(&mut self, visitor: &mut dyn Visitor) {
        visitor.number("step", &mut self.step);
        visitor.vector("params", &mut self.params);
        for (slot, count) in self.optimized.iter_mut().enumerate() {
            visitor.number(&format!("optimized.{slot}"), count);
        }
        for (slot, vector) in self.optimizer.vectors().into_iter().enumerate() {
            visitor.vector(&format!("optimizer.{slot}"), vector);
        }
    }

    fn release_held(&mut self, now: Time) {
        for (from, message) in std::mem::take(&mut self.held) {
            self.message(now, from, message);
        }
    }

    /// Runs one event, then everything that follows from it at once.
    fn event(&mut self, now: Time, handle: impl FnOnce(&mut dyn Algorithm, &mut Context<'_>)) {
        self.call(now, handle);
        self.queue.extend(self.effects.drain(..));
        while let Some(effect) = self.queue.pop_front() {
            self.carry_out(now, effect);
            // What an optimized bucket leads to comes before what was asked for after it.
            for effect in self.effects.drain(..).rev() {
                self.queue.push_front(effect);
            }
        }
        if self.gradient_given && self.algorithm.is_ready() {
            self.gradient_given = false;
            self.step += 1;
        }
    }

    fn call(&mut self, now: Time, handle: impl FnOnce(&mut dyn Algorithm, &mut Context<'_>)) {
        let mut cx = Context {
            outbox: Outbox {
                now,
                rank: self.rank,
                view: &self.view,
                pool: &self.pool,
                coder: &mut self.coder,
                rng: &mut self.rng,
                out: &mut self.effects,
            },
            step: self.step,
            steps: self.steps,
            computing: self.computing,
            loss: self.computed.loss,
            samples: self.computed.samples,
            reweigh: self.reweigh,
            learning_rate: (self.learning_rate)(self.step),
            clip: self.clip.filter(|_| self.properties.clips_itself),
            params: &mut self.params,
            grad: &mut self.grad,
            layout: &self.layout,
            pieces: &self.pieces,
            optimizer: &mut *self.optimizer,
        };
        handle(&mut *self.algorithm, &mut cx);
    }

    fn carry_out(&mut self, now: Time, effect: Effect) {
        match effect {
            Effect::Send { to, mut message } => {
                message.view = self.view.number;
                message.origin = self.origin;
                self.out.push(Effect::Send { to, message });
            }
            Effect::Optimize { .. } if self.outside => self.out.push(effect),
            Effect::Optimize { bucket, mode, step } => match self.clip {
                Some(limit) if !self.properties.clips_itself => {
                    self.asked.push((bucket, mode, step));
                    if self.asked.len() == self.layout.buckets.len() {
                        vector::clip(f64::from(limit), &mut self.grad);
                        for (bucket, mode, step) in std::mem::take(&mut self.asked) {
                            self.optimize(now, bucket, mode, step);
                        }
                    }
                }
                _ => self.optimize(now, bucket, mode, step),
            },
            Effect::JumpToStep(step) => {
                self.step = step;
                self.gradient_given = false;
                self.optimized.fill(step);
                self.asked.clear();
            }
            Effect::Work { .. } | Effect::Measure(_) => self.out.push(effect),
        }
    }

    fn optimize(&mut self, now: Time, bucket: usize, mode: Mode, step: u64) {
        let at = At { step: self.optimized[bucket], learning_rate: (self.learning_rate)(step) };
        self.optimized[bucket] += 1;
        let range = self.layout.range(bucket);
        let grad = &mut self.grad[range.clone()];
        let params = &mut self.params[range.clone()];
        match mode {
            Mode::Apply => self.optimizer.apply(at, range, params, grad),
            Mode::Displace => self.optimizer.displace(at, range, params, grad),
            Mode::ApplyAndReport => {
                self.optimizer.displace(at, range, params, grad);
                vector::axpy(-1.0, grad, params);
            }
        }
        self.call(now, |algorithm, cx| algorithm.on_optimized(cx, bucket));
    }
}
