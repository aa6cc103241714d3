//! SGP that never waits: a worker adds what has arrived.
//!
//! ```text
//! upon g[b] at z_i:          x_i[b] ← x_i[b] − η·Opt(g[b]);  if w_i ≥ ½: divide (x_i[b], w_i) as in SGP
//!                            for each receiver j: add its share to what j is owed;  pay j
//!                            z_i[b] ← x_i[b]/w_i
//! pay j:                     if j has acknowledged the last payment: send all that j is owed, numbered
//!                            if that was 8 of my steps ago (then 16, 32, …): send it once more
//! upon a payment from j:     acknowledge it;  if it is new: (x_i[b], w_i) ← (x_i[b], w_i) + payment
//! upon its acknowledgement:  forget the payment;  pay j
//! upon drain:                pay everyone
//! without folding:           send every share at once, without number or acknowledgement, as published
//! upon a lost peer:          take back what it was owed and what it has not acknowledged
//! upon leaving:              give all of (x_i, w_i) to one that stays
//! ```
//! What is owed is the sum of all shares since the last acknowledgement, so a message that is
//! lost, late or doubled changes no sum: it is only late. (The sum since the beginning, which
//! needs no acknowledgement, would outgrow the precision of `f32`.) A worker that gives faster
//! than it gets keeps what it has: z_i moves by η/w_i, ever further as its weight shrinks.

use std::collections::BTreeMap;

use crate::contract::{Algorithm, Awaited, Context, Mode, Outbox};
use crate::kit::push_sum::PushSum;
use crate::message::{Message, Rank};
use crate::payload::{Payload, Pool};
use crate::state::Visitor;
use crate::view::View;

const PAYMENT: u8 = 1;
const ACKNOWLEDGE: u8 = 2;

/// The sender's steps after which a payment without an acknowledgement is sent again; after that, twice as many
/// each time, so that copies do not pile up before a link that is only slow.
const PATIENCE_STEPS: u64 = 8;

/// A worker whose weight is below this keeps its mass in that step.
const LEAST_WEIGHT: f64 = 0.5;

/// One worker.
#[derive(Default)]
pub struct Free {
    /// Whether every share is a message of its own, without an acknowledgement.
    unfolded: bool,
    mass: PushSum,
    /// Buckets that are not done with this step.
    remaining: usize,
    /// By receiver and bucket.
    debts: BTreeMap<(Rank, usize), Debt>,
    /// The number of the last payment that was taken in, by sender and bucket.
    seen: BTreeMap<(Rank, usize), u64>,
    draining: bool,
}

/// What one receiver has not acknowledged.
#[derive(Debug, Default)]
struct Debt {
    /// The number of the last payment.
    seq: u64,
    /// The sender's step when it was last sent.
    paid_at: u64,
    /// How often it was sent again. A resumed worker counts anew: it sends all of them again at its start.
    repeats: u32,
    /// The last payment, until it is acknowledged.
    paid: Mass,
    /// The sum of the shares since then.
    owed: Mass,
}

#[derive(Clone, Debug, Default)]
struct Mass {
    values: Option<Payload>,
    weight: f64,
}

impl Mass {
    fn add(&mut self, pool: &Pool, values: &Payload, weight: f64) {
        self.weight += weight;
        self.values = Some(match self.values.take() {
            Some(sum) => sum.plus(values, pool),
            None => values.clone(),
        });
    }

    fn state(&mut self, name: &str, visitor: &mut dyn Visitor) {
        visitor.real(&format!("{name}.weight"), &mut self.weight);
        visitor.payload(name, &mut self.values);
    }
}

impl Debt {
    fn pay(&mut self, outbox: &mut Outbox<'_>, step: u64, to: Rank, b: usize) {
        if self.paid.values.is_none() && self.owed.values.is_some() {
            self.paid = std::mem::take(&mut self.owed);
            self.seq += 1;
            self.repeats = 0;
            self.send(outbox, step, to, b);
        } else if self.paid.values.is_some() && step >= self.paid_at + self.patience() {
            self.repeats += 1;
            self.send(outbox, step, to, b);
        }
    }

    fn patience(&self) -> u64 {
        PATIENCE_STEPS << self.repeats.min(32)
    }

    fn send(&mut self, outbox: &mut Outbox<'_>, step: u64, to: Rank, b: usize) {
        let Some(values) = &self.paid.values else { return };
        let mut message = Message::new(PAYMENT, step, b);
        (message.seq, message.scalar) = (self.seq, self.paid.weight);
        outbox.send(to, message.with(values.clone()));
        self.paid_at = step;
    }
}

impl Free {
    /// One that folds what is not acknowledged, or one that sends every share by itself.
    pub fn new(folds: bool) -> Free {
        Free { unfolded: !folds, ..Free::default() }
    }

    fn take_in(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let b = message.bucket as usize;
        if message.seq == 0 {
            let weight = message.scalar;
            return self.mass.add(cx, b, &message.into_values(), weight);
        }
        let mut answer = Message::new(ACKNOWLEDGE, message.step, b);
        answer.seq = message.seq;
        cx.outbox.send(from, answer);
        let seen = self.seen.entry((from, b)).or_default();
        if message.seq > *seen {
            *seen = message.seq;
            let weight = message.scalar;
            self.mass.add(cx, b, &message.into_values(), weight);
        }
    }

    fn pay(&mut self, cx: &mut Context<'_>, of_bucket: impl Fn(usize) -> bool) {
        for ((to, b), debt) in self.debts.iter_mut().filter(|((_, b), _)| of_bucket(*b)) {
            debt.pay(&mut cx.outbox, cx.step, *to, *b);
        }
    }

    /// Sends everything that is not acknowledged once more: the first copies may be lost.
    fn repeat(&mut self, cx: &mut Context<'_>) {
        for ((to, b), debt) in &mut self.debts {
            debt.send(&mut cx.outbox, cx.step, *to, *b);
        }
    }
}

impl Algorithm for Free {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.mass.start(cx);
        self.repeat(cx);
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        if b == 0 {
            self.remaining = cx.layout.buckets.len();
        }
        cx.optimize(b, Mode::Displace);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        self.mass.displace(cx, b);
        if self.unfolded || self.mass.weight(b) >= LEAST_WEIGHT {
            let row = cx.outbox.view.row(cx.step, cx.outbox.rank);
            let (share, weight) = self.mass.divide(cx, b, row.outgoing.len());
            for to in &row.outgoing {
                if self.unfolded {
                    let mut message = Message::new(PAYMENT, cx.step, b);
                    message.scalar = weight;
                    cx.outbox.send(*to, message.with(share.clone()));
                    continue;
                }
                self.debts.entry((*to, b)).or_default().owed.add(cx.outbox.pool, &share, weight);
            }
        }
        self.pay(cx, |bucket| bucket == b);
        self.mass.show(cx, b);
        self.remaining -= 1;
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let b = message.bucket as usize;
        if message.kind == PAYMENT {
            self.take_in(cx, from, message);
            if self.draining {
                self.mass.show(cx, b);
            }
            return;
        }
        if let Some(debt) = self.debts.get_mut(&(from, b)).filter(|debt| debt.seq == message.seq) {
            debt.paid = Mass::default();
            debt.pay(&mut cx.outbox, cx.step, from, b);
        }
    }

    fn on_view(&mut self, cx: &mut Context<'_>, _old: &View) {
        let view = cx.outbox.view;
        self.seen.retain(|(from, _), _| view.is_alive(*from));
        self.debts.retain(|(to, b), debt| {
            let is_alive = view.is_alive(*to);
            for mass in [&debt.paid, &debt.owed] {
                if let Some(values) = mass.values.as_ref().filter(|_| !is_alive) {
                    self.mass.add(cx, *b, values, mass.weight);
                }
            }
            is_alive
        });
    }

    fn on_drain(&mut self, cx: &mut Context<'_>) {
        self.draining = true;
        self.repeat(cx);
        self.pay(cx, |_| true);
    }

    /// All mass goes to the next worker, as a payment that needs no acknowledgement: the run rests.
    fn on_leave(&mut self, cx: &mut Context<'_>) {
        let (me, workers) = (cx.outbox.rank, &cx.outbox.view.workers);
        let next = workers.iter().find(|rank| **rank > me).or(workers.first());
        let Some(heir) = next.copied().filter(|rank| *rank != me) else { return };
        for b in 0..cx.layout.buckets.len() {
            let (values, weight) = self.mass.give_up(cx, b);
            let mut message = Message::new(PAYMENT, cx.step, b);
            message.scalar = weight;
            cx.outbox.send(heir, message.with(values));
        }
    }

    fn is_ready(&self) -> bool {
        self.remaining == 0
    }

    fn is_drained(&self) -> bool {
        self.debts.values().all(|debt| debt.paid.values.is_none() && debt.owed.values.is_none())
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        let open =
            self.debts.iter().filter(|(_, debt)| self.draining && debt.paid.values.is_some());
        out.extend(open.map(|((from, _), _)| Awaited { from: *from, what: "an acknowledgement" }));
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        self.mass.state(visitor);
        visit_map("debts", &mut self.debts, visitor, |name, debt, visitor| {
            visitor.number(&format!("{name}.seq"), &mut debt.seq);
            visitor.number(&format!("{name}.paid_at"), &mut debt.paid_at);
            debt.paid.state(&format!("{name}.paid"), visitor);
            debt.owed.state(&format!("{name}.owed"), visitor);
        });
        visit_map("seen", &mut self.seen, visitor, |name, seq, visitor| visitor.number(name, seq));
    }

    /// Payments of an older view are mass like any other.
    fn keeps_older_views(&self) -> bool {
        true
    }
}

/// Visits a map by peer and bucket; loading replaces its content.
fn visit_map<T: Default>(
    name: &str,
    map: &mut BTreeMap<(Rank, usize), T>,
    visitor: &mut dyn Visitor,
    visit: impl Fn(&str, &mut T, &mut dyn Visitor),
) {
    let mut entries: Vec<_> = std::mem::take(map).into_iter().collect();
    let mut len = entries.len() as u64;
    visitor.number(name, &mut len);
    entries.resize_with(len as usize, Default::default);
    for (slot, ((rank, b), value)) in entries.iter_mut().enumerate() {
        let name = format!("{name}.{slot}");
        let (mut peer, mut bucket) = (u64::from(rank.0), *b as u64);
        visitor.number(&format!("{name}.peer"), &mut peer);
        visitor.number(&format!("{name}.bucket"), &mut bucket);
        (*rank, *b) = (Rank(peer as u32), bucket as usize);
        visit(&name, value, visitor);
    }
    map.extend(entries);
}
