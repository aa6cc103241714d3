//! Hierarchy: any gossip method between hosts, with exact averages within a host.
//!
//! ```text
//! the first worker of a host leads it; the others are its members
//! member, upon bucket b of g_i:         send g_i[b] to the leader
//! leader, upon bucket b of all:         g[b] ← H/n · Σ_i g_i[b], in the order of ranks;
//!                                       hand g[b] to the gossip method as its own gradient
//! leader, when the method is done with the step:  send x[b] to the members, every bucket b
//! member, upon all of x:                x_i ← x
//! leader, upon start:                   send x to the members as soon as the method lets go of it
//! upon a lost member:                   the sum is over those left
//! upon a lost leader with members:      the run ends
//! upon drain:                           send what the method still changes
//! ```
//! The method sees a view whose workers are the leaders and whose topology is one of the H hosts.
//! With H/n, n the number of workers, the mean of the hosts' gradients is the mean of all workers'
//! gradients, also where hosts have different numbers of workers: a host of three counts three
//! times as much as a host of one. All workers of a host hold the same bits at every step.

use std::collections::BTreeMap;

use crate::contract::{Algorithm, Awaited, Budget, Cx, Facts, Io};
use crate::message::{Message, Rank};
use crate::payload::Payload;
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

/// A bucket of a member's gradient. Gossip methods number their messages below.
const GRADIENT: u8 = 0xe0;
/// A member's gradient is complete; its loss and samples.
const COMPUTED: u8 = 0xe1;
/// A bucket of the host's parameters for a step to come.
const PARAMS: u8 = 0xe2;
/// A bucket that has changed after the last step.
const LATE: u8 = 0xe3;

/// What drivers need to know of a method between hosts.
///
/// Workers of a host do the same number of steps, so a budget of gradients in all, whoever
/// computes them, is one of rounds; and the mean over workers is that over hosts only if all
/// hosts have as many workers.
pub(crate) fn facts(facts: Facts, view: &View) -> Facts {
    let sizes = view.workers.iter().map(|rank| view.neighbours_on_host(*rank).count());
    let (least, most) = sizes.fold((usize::MAX, 0), |(a, b), size| (a.min(size), b.max(size)));
    let keeps_mean = facts.keeps_mean && least == most;
    Facts { budget: Budget::Rounds, waits_for_peers: true, keeps_mean, ..facts }
}

/// The part of `rank` in the hierarchy around `method`, or `method` itself where there is none.
pub(crate) fn wrap(method: Box<dyn Algorithm>, view: &View, rank: Rank) -> Box<dyn Algorithm> {
    match view.between() {
        None => method,
        Some(between) if between.workers.contains(&rank) => Box::new(Leader::new(method)),
        Some(_) => Box::<Member>::default(),
    }
}

/// The worker that mixes for its host.
struct Leader {
    method: Box<dyn Algorithm>,
    /// The other workers of this host, by rank.
    members: Vec<Rank>,
    step: u64,
    /// Buckets of my own gradient that are final.
    own: usize,
    /// Buckets that the method has.
    passed: usize,
    /// Whether my own gradient is complete.
    complete: bool,
    /// The step whose parameters the members get as soon as the method is ready.
    due: Option<u64>,
    /// The members' buckets, by (step, bucket).
    gradients: BTreeMap<(u64, usize), BTreeMap<Rank, Payload>>,
    /// The members' losses and samples, by step.
    computed: BTreeMap<u64, BTreeMap<Rank, (f64, u32)>>,
    /// The host's loss and samples in this step.
    loss: f32,
    samples: u32,
    /// What the members have, by bucket.
    handed: Vec<Payload>,
    /// Counts what was handed out.
    seq: u64,
    draining: bool,
}

impl Leader {
    fn new(method: Box<dyn Algorithm>) -> Leader {
        Leader {
            method,
            members: Vec::new(),
            step: 0,
            own: 0,
            passed: 0,
            complete: false,
            due: None,
            gradients: BTreeMap::new(),
            computed: BTreeMap::new(),
            loss: 0.0,
            samples: 0,
            handed: Vec::new(),
            seq: 0,
            draining: false,
        }
    }

    /// An event of the method, and what follows from it.
    fn pass(&mut self, cx: &mut Cx<'_>, event: impl FnOnce(&mut dyn Algorithm, &mut Cx<'_>)) {
        let mut inner = Cx {
            io: Io {
                now: cx.io.now,
                rank: cx.io.rank,
                view: between(cx.io.view),
                pool: cx.io.pool,
                rng: &mut *cx.io.rng,
                out: &mut *cx.io.out,
                coder: &mut *cx.io.coder,
            },
            step: cx.step,
            steps: cx.steps,
            computing: cx.computing || (self.own > 0 && self.due.is_none()),
            loss: self.loss,
            samples: self.samples,
            learning_rate: cx.learning_rate,
            clip: cx.clip,
            params: &mut *cx.params,
            grad: &mut *cx.grad,
            layout: cx.layout,
            pieces: cx.pieces,
            optimizer: &mut *cx.optimizer,
        };
        event(&mut *self.method, &mut inner);
        self.hand_out_if_due(cx);
    }

    /// Hands the method whatever all workers of the host have.
    fn advance(&mut self, cx: &mut Cx<'_>) {
        while self.passed < self.own && self.lacking_bucket().next().is_none() {
            let b = self.passed;
            self.sum(cx, b);
            self.passed += 1;
            self.pass(cx, |method, cx| method.on_bucket(cx, b));
        }
        let whole = self.complete && self.passed == cx.layout.buckets.len() && self.due.is_none();
        if whole && self.lacking_loss().next().is_none() {
            let others = self.computed.remove(&self.step).unwrap_or_default();
            let loss: f64 = others.values().map(|(loss, _)| loss).sum();
            self.loss = ((f64::from(cx.loss) + loss) * share(cx.io.view)) as f32;
            self.samples = cx.samples + others.values().map(|(_, samples)| samples).sum::<u32>();
            self.due = Some(cx.step + 1);
            self.pass(cx, |method, cx| method.on_gradient(cx));
        }
    }

    /// `g[b] ← H/n · Σ_i g_i[b]`; I am the first of the host.
    fn sum(&mut self, cx: &mut Cx<'_>, b: usize) {
        let own = &mut cx.grad[cx.layout.range(b)];
        let others = self.gradients.remove(&(self.step, b)).unwrap_or_default();
        others.values().for_each(|gradient| vector::add(gradient, own));
        let share = share(cx.io.view) as f32;
        if share != 1.0 {
            vector::scale(share, own);
        }
        if !others.is_empty() {
            cx.io.work(own.len() * 4 * others.len());
        }
    }

    fn lacking_bucket(&self) -> impl Iterator<Item = Rank> {
        let here = self.gradients.get(&(self.step, self.passed));
        self.members.iter().copied().filter(move |rank| !here.is_some_and(|h| h.contains_key(rank)))
    }

    fn lacking_loss(&self) -> impl Iterator<Item = Rank> {
        let here = self.computed.get(&self.step);
        self.members.iter().copied().filter(move |rank| !here.is_some_and(|h| h.contains_key(rank)))
    }

    /// The members go on with what the method has made of the parameters.
    fn hand_out_if_due(&mut self, cx: &mut Cx<'_>) {
        let Some(step) = self.due.filter(|_| self.method.is_ready()) else { return };
        (self.due, self.own, self.passed, self.complete) = (None, 0, 0, false);
        self.step = step;
        self.gradients = self.gradients.split_off(&(step, 0));
        self.computed = self.computed.split_off(&step);
        if self.members.is_empty() {
            return;
        }
        self.handed = (0..cx.layout.buckets.len()).map(|b| cx.params_payload(b)).collect();
        self.seq += 1;
        for b in 0..self.handed.len() {
            self.hand_out(cx, PARAMS, b);
        }
    }

    /// Methods whose parameters change at any time may change them after the last step too.
    fn hand_out_late(&mut self, cx: &mut Cx<'_>) {
        for b in 0..self.handed.len() {
            if self.draining && self.handed[b][..] != cx.params[cx.layout.range(b)] {
                self.handed[b] = cx.params_payload(b);
                self.seq += 1;
                self.hand_out(cx, LATE, b);
            }
        }
    }

    fn hand_out(&self, cx: &mut Cx<'_>, kind: u8, b: usize) {
        for member in &self.members {
            let message = Message::new(kind, self.step, b).with(self.handed[b].clone());
            cx.io.send(*member, Message { seq: self.seq, ..message });
        }
    }

    fn find_members(&mut self, cx: &Cx<'_>) {
        let host = cx.io.view.neighbours_on_host(cx.io.rank);
        self.members = host.filter(|rank| *rank != cx.io.rank).collect();
    }
}

impl Algorithm for Leader {
    fn on_start(&mut self, cx: &mut Cx<'_>) {
        self.find_members(cx);
        self.step = cx.step;
        self.due = Some(cx.step);
        self.pass(cx, |method, cx| method.on_start(cx));
    }

    fn on_bucket(&mut self, cx: &mut Cx<'_>, b: usize) {
        self.own = b + 1;
        self.advance(cx);
    }

    fn on_gradient(&mut self, cx: &mut Cx<'_>) {
        self.complete = true;
        self.advance(cx);
    }

    fn on_optimized(&mut self, cx: &mut Cx<'_>, b: usize) {
        self.pass(cx, |method, cx| method.on_optimized(cx, b));
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, from: Rank, message: Message) {
        let (step, b) = (message.step, message.bucket as usize);
        match message.kind {
            GRADIENT | COMPUTED if step < self.step => {}
            GRADIENT => {
                let gradients = self.gradients.entry((step, b)).or_default();
                gradients.insert(from, message.into_values());
                self.advance(cx);
            }
            COMPUTED => {
                let computed = (message.scalar, message.count);
                self.computed.entry(step).or_default().insert(from, computed);
                self.advance(cx);
            }
            _ => {
                let outdated = message.view < between(cx.io.view).number;
                if !outdated || self.method.spans_views() {
                    self.pass(cx, |method, cx| method.on_message(cx, from, message));
                    self.hand_out_late(cx);
                }
            }
        }
    }

    fn on_view(&mut self, cx: &mut Cx<'_>, old: &View) {
        self.find_members(cx);
        let members = &self.members;
        let forget = |of: &mut BTreeMap<Rank, Payload>| of.retain(|rank, _| members.contains(rank));
        self.gradients.values_mut().for_each(forget);
        self.computed.values_mut().for_each(|of| of.retain(|rank, _| members.contains(rank)));
        let old = between(old);
        if old.number != between(cx.io.view).number {
            self.pass(cx, |method, cx| method.on_view(cx, old));
        }
        self.advance(cx);
        self.hand_out_late(cx);
    }

    fn on_drain(&mut self, cx: &mut Cx<'_>) {
        self.draining = true;
        self.pass(cx, |method, cx| method.on_drain(cx));
        self.hand_out_late(cx);
    }

    fn is_ready(&self) -> bool {
        self.own == 0 && self.due.is_none() && self.method.is_ready()
    }

    fn is_drained(&self) -> bool {
        self.method.is_drained()
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        self.method.awaiting(out);
        let lacks_bucket = self.passed < self.own;
        let buckets = self.lacking_bucket().filter(|_| lacks_bucket);
        out.extend(buckets.map(|from| Awaited { from, what: "its gradient" }));
        let lacks_loss = self.complete && !lacks_bucket && self.due.is_none();
        let losses = self.lacking_loss().filter(|_| lacks_loss);
        out.extend(losses.map(|from| Awaited { from, what: "the end of its gradient" }));
    }

    fn model(&self, params: &[f32], out: &mut [f32]) {
        self.method.model(params, out);
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        self.method.state(visitor);
    }

    /// What a living worker of my host has sent is good in any view; messages of the method are
    /// dropped here where they are not.
    fn spans_views(&self) -> bool {
        true
    }
}

/// H/n: hosts per worker.
fn share(view: &View) -> f64 {
    between(view).workers.len() as f64 / view.workers.len() as f64
}

fn between(view: &View) -> &View {
    view.between().expect("a hierarchy has a view between hosts")
}

/// A worker that computes for its leader.
#[derive(Default)]
struct Member {
    leader: Rank,
    ready: bool,
    /// The step whose parameters I have.
    step: Option<u64>,
    /// Buckets of the parameters of the next step that have come.
    next: BTreeMap<usize, Payload>,
    /// The number of the last late change, by bucket.
    late: BTreeMap<usize, u64>,
}

impl Algorithm for Member {
    fn on_start(&mut self, cx: &mut Cx<'_>) {
        let first = cx.io.view.neighbours_on_host(cx.io.rank).next();
        self.leader = first.expect("I am on my host");
    }

    fn on_bucket(&mut self, cx: &mut Cx<'_>, b: usize) {
        self.ready = false;
        let gradient = cx.io.pool.copy(&cx.grad[cx.layout.range(b)]);
        cx.io.send(self.leader, Message::new(GRADIENT, cx.step, b).with(gradient));
    }

    fn on_gradient(&mut self, cx: &mut Cx<'_>) {
        let message = Message::new(COMPUTED, cx.step, 0);
        let (scalar, count) = (f64::from(cx.loss), cx.samples);
        cx.io.send(self.leader, Message { scalar, count, ..message });
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, _from: Rank, message: Message) {
        let b = message.bucket as usize;
        if message.kind == LATE {
            let late = self.late.entry(b).or_default();
            if message.seq > *late {
                *late = message.seq;
                cx.params[cx.layout.range(b)].copy_from_slice(&message.into_values());
            }
            return;
        }
        let step = Some(message.step);
        if step <= self.step {
            return;
        }
        self.next.insert(b, message.into_values());
        if self.next.len() == cx.layout.buckets.len() {
            for (b, values) in std::mem::take(&mut self.next) {
                cx.params[cx.layout.range(b)].copy_from_slice(&values);
            }
            (self.step, self.ready) = (step, true);
        }
    }

    fn is_ready(&self) -> bool {
        self.ready
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        if !self.ready {
            out.push(Awaited { from: self.leader, what: "the parameters of its host" });
        }
    }

    /// Between steps there is nothing but parameters, and the leader hands them out again.
    fn state(&mut self, _visitor: &mut dyn Visitor) {}

    fn spans_views(&self) -> bool {
        true
    }
}
