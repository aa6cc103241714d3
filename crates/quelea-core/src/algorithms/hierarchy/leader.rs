//! The worker that mixes for its host.

use std::collections::BTreeMap;

use super::{COMPUTED, LATE, PARAMS, between};
use crate::contract::{Algorithm, Awaited, Context, Outbox};
use crate::message::{Message, Rank};
use crate::payload::Payload;
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

/// The leader of a host, or what a member would need to become one.
pub(super) struct Leader {
    method: Box<dyn Algorithm>,
    started: bool,
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
    /// What the members have, by bucket, and since which step.
    handed: Vec<Payload>,
    handed_step: Option<u64>,
    /// Counts what was handed out late.
    seq: u64,
    /// Messages for a method that has not started yet.
    early: Vec<(Rank, Message)>,
    draining: bool,
}

impl Leader {
    pub(super) fn new(method: Box<dyn Algorithm>) -> Leader {
        Leader {
            method,
            started: false,
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
            handed_step: None,
            seq: 0,
            early: Vec::new(),
            draining: false,
        }
    }

    /// The run starts, or resumes from a saved state.
    pub(super) fn enter(&mut self, cx: &Context<'_>) {
        self.step = cx.step;
        self.find_members(cx);
    }

    pub(super) fn has_started(&self) -> bool {
        self.started
    }

    /// The step whose parameters were handed out last.
    pub(super) fn handed_step(&self) -> Option<u64> {
        self.handed_step
    }

    /// I lead from now on. Whether the workers of the host have the parameters of this step says
    /// whether they wait for them.
    pub(super) fn start(&mut self, cx: &mut Context<'_>, all_have_it: bool) {
        self.started = true;
        self.step = cx.step;
        self.due = (!all_have_it).then_some(cx.step);
        if all_have_it && !self.members.is_empty() {
            self.handed = (0..cx.layout.buckets.len()).map(|b| cx.params_payload(b)).collect();
        }
        self.pass(cx, |method, cx| method.on_start(cx));
        if self.draining {
            self.pass(cx, |method, cx| method.on_drain(cx));
        }
        for (from, message) in std::mem::take(&mut self.early) {
            self.on_method_message(cx, from, message);
        }
    }

    /// An event of the method, and what follows from it.
    pub(super) fn pass(
        &mut self,
        cx: &mut Context<'_>,
        event: impl FnOnce(&mut dyn Algorithm, &mut Context<'_>),
    ) {
        let mut inner = Context {
            outbox: Outbox {
                now: cx.outbox.now,
                origin: cx.outbox.origin,
                rank: cx.outbox.rank,
                view: between(cx.outbox.view),
                pool: cx.outbox.pool,
                rng: &mut *cx.outbox.rng,
                out: &mut *cx.outbox.out,
                coder: &mut *cx.outbox.coder,
            },
            step: cx.step,
            steps: cx.steps,
            computing: cx.computing || (self.own > 0 && self.due.is_none()),
            loss: self.loss,
            samples: self.samples,
            reweigh: cx.reweigh,
            learning_rate: cx.learning_rate,
            clip: cx.clip,
            params: &mut *cx.params,
            grad: &mut *cx.grad,
            memory: cx.memory,
            layout: cx.layout,
            pieces: cx.pieces,
            optimizer: &mut *cx.optimizer,
        };
        event(&mut *self.method, &mut inner);
        self.hand_out_if_due(cx);
    }

    pub(super) fn on_bucket(&mut self, b: usize) {
        self.own = b + 1;
    }

    pub(super) fn on_gradient(&mut self) {
        self.complete = true;
    }

    /// The step is over without me.
    pub(super) fn forget_gradient(&mut self) {
        (self.own, self.passed, self.complete) = (0, 0, false);
    }

    /// A bucket of a member's gradient, or its end.
    pub(super) fn on_member_message(&mut self, from: Rank, message: Message) {
        let (step, b) = (message.step, message.bucket as usize);
        if step < self.step {
            return;
        }
        if message.kind == COMPUTED {
            let computed = (message.scalar, message.count);
            self.computed.entry(step).or_default().insert(from, computed);
        } else {
            self.gradients.entry((step, b)).or_default().insert(from, message.into_values());
        }
    }

    pub(super) fn on_method_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let outdated = message.view < between(cx.outbox.view).number;
        if !self.started {
            self.early.push((from, message));
        } else if !outdated || self.method.keeps_older_views() {
            self.pass(cx, |method, cx| method.on_message(cx, from, message));
        }
    }

    pub(super) fn on_view(&mut self, cx: &mut Context<'_>, old: &View) {
        self.find_members(cx);
        let members = &self.members;
        for gradients in self.gradients.values_mut() {
            gradients.retain(|rank, _| members.contains(rank));
        }
        self.computed.values_mut().for_each(|of| of.retain(|rank, _| members.contains(rank)));
        self.early.retain(|(from, _)| cx.outbox.view.is_alive(*from));
        let old = between(old);
        if self.started && old.number != between(cx.outbox.view).number {
            self.pass(cx, |method, cx| method.on_view(cx, old));
        }
    }

    pub(super) fn on_drain(&mut self, cx: &mut Context<'_>) {
        self.draining = true;
        if self.started {
            self.pass(cx, |method, cx| method.on_drain(cx));
        }
    }

    /// Hands the method whatever all workers of the host have.
    pub(super) fn advance(&mut self, cx: &mut Context<'_>) {
        while self.started && self.passed < self.own && self.lacking_bucket().next().is_none() {
            let b = self.passed;
            self.sum(cx, b);
            self.passed += 1;
            self.pass(cx, |method, cx| method.on_bucket(cx, b));
        }
        let whole = self.complete && self.passed == cx.layout.buckets.len() && self.due.is_none();
        if whole && self.lacking_loss().next().is_none() {
            let others = self.computed.remove(&self.step).unwrap_or_default();
            let loss: f64 = others.values().map(|(loss, _)| loss).sum();
            self.loss = ((f64::from(cx.loss) + loss) * share(cx.outbox.view)) as f32;
            self.samples = cx.samples + others.values().map(|(_, samples)| samples).sum::<u32>();
            self.due = Some(cx.step + 1);
            self.pass(cx, |method, cx| method.on_gradient(cx));
        }
    }

    /// `g[b] ← H/n · Σ_i g_i[b]`; I am the first of the host.
    fn sum(&mut self, cx: &mut Context<'_>, b: usize) {
        let own = &mut cx.grad[cx.layout.range(b)];
        let others = self.gradients.remove(&(self.step, b)).unwrap_or_default();
        others.values().for_each(|gradient| vector::add(gradient, own));
        let share = share(cx.outbox.view) as f32;
        if share != 1.0 {
            vector::scale(share, own);
        }
        if !others.is_empty() {
            cx.outbox.work(own.len() * 4 * others.len());
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

    /// Sends the members the method's new parameters, with which they continue.
    fn hand_out_if_due(&mut self, cx: &mut Context<'_>) {
        let Some(step) = self.due.filter(|_| self.method.is_ready()) else { return };
        self.forget_gradient();
        self.due = None;
        (self.step, self.handed_step) = (step, Some(step));
        self.gradients = self.gradients.split_off(&(step, 0));
        self.computed = self.computed.split_off(&step);
        if self.members.is_empty() {
            return;
        }
        self.handed = (0..cx.layout.buckets.len()).map(|b| cx.params_payload(b)).collect();
        for b in 0..self.handed.len() {
            self.hand_out(cx, PARAMS, b);
        }
    }

    /// Methods whose parameters change at any time may change them after the last step too.
    pub(super) fn hand_out_late(&mut self, cx: &mut Context<'_>) {
        for b in 0..self.handed.len() {
            if self.draining && self.handed[b][..] != cx.params[cx.layout.range(b)] {
                self.handed[b] = cx.params_payload(b);
                self.seq += 1;
                self.hand_out(cx, LATE, b);
            }
        }
    }

    fn hand_out(&self, cx: &mut Context<'_>, kind: u8, b: usize) {
        for member in &self.members {
            let mut message = Message::new(kind, self.step, b).with(self.handed[b].clone());
            message.seq = self.seq;
            cx.outbox.send(*member, message);
        }
    }

    fn find_members(&mut self, cx: &Context<'_>) {
        let host = cx.outbox.view.neighbours_on_host(cx.outbox.rank);
        self.members = host.filter(|rank| *rank != cx.outbox.rank).collect();
    }

    pub(super) fn is_ready(&self) -> bool {
        self.own == 0 && self.due.is_none() && self.method.is_ready()
    }

    pub(super) fn is_drained(&self) -> bool {
        !self.started || self.method.is_drained()
    }

    pub(super) fn awaiting(&self, out: &mut Vec<Awaited>) {
        self.method.awaiting(out);
        let lacks_bucket = self.passed < self.own;
        let buckets = self.lacking_bucket().filter(|_| lacks_bucket);
        out.extend(buckets.map(|from| Awaited { from, what: "its gradient" }));
        let lacks_loss = self.complete && !lacks_bucket && self.due.is_none();
        let losses = self.lacking_loss().filter(|_| lacks_loss);
        out.extend(losses.map(|from| Awaited { from, what: "the end of its gradient" }));
    }

    pub(super) fn model(&self, params: &[f32], out: &mut [f32]) {
        self.method.model(params, out);
    }

    pub(super) fn state(&mut self, visitor: &mut dyn Visitor) {
        self.method.state(visitor);
    }
}

/// H/n: hosts per worker.
fn share(view: &View) -> f64 {
    between(view).workers.len() as f64 / view.workers.len() as f64
}
