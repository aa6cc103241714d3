//! The worker of every synchronous gossip method with one exchange per step.

use super::{Exchange, Gathered};
use crate::algorithms::Gathers;
use crate::contract::{Algorithm, Awaited, Context};
use crate::message::{Message, Rank};
use crate::state::Visitor;
use crate::view::View;

/// The kind of the messages of methods with one exchange per step.
pub const KIND: u8 = 1;

/// A method with one exchange per step: what is its own of the events. [`SyncGossip`] does the rest.
pub trait GossipMethod: Send {
    /// What a worker waits for, for time-outs that name the culprit.
    const AWAITED: &'static str;

    /// What it gathers from its neighbours.
    const GATHERS: Gathers = Gathers::Means;

    /// The first event: enters the exchange of `cx.step`, and posts what peers have not consumed.
    fn on_start(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange);

    /// The gradient of bucket `b` is final.
    fn on_bucket(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize);

    /// The whole gradient is final.
    fn on_gradient(&mut self, _cx: &mut Context<'_>, _exchange: &mut Exchange) {}

    /// The optimizer has run on bucket `b`.
    fn on_optimized(&mut self, cx: &mut Context<'_>, exchange: &mut Exchange, b: usize);

    /// Bucket `b` was [waiting](Exchange::wait), and the vectors of all neighbours are here.
    fn on_gathered(
        &mut self,
        cx: &mut Context<'_>,
        exchange: &mut Exchange,
        b: usize,
        gathered: Gathered,
    );

    /// As [`Algorithm::state`].
    fn state(&mut self, visitor: &mut dyn Visitor);
}

/// The worker of a [`GossipMethod`]: keeps what neighbours send until the method waits for it.
#[derive(Debug, Default)]
pub struct SyncGossip<M> {
    exchange: Exchange,
    method: M,
}

impl<M: GossipMethod> SyncGossip<M> {
    /// The worker, for the table.
    pub fn boxed(method: M) -> Box<SyncGossip<M>> {
        SyncGossip::boxed_of_every(1, method)
    }

    /// As [`boxed`](SyncGossip::boxed), of a method that exchanges once per `every` steps.
    pub fn boxed_of_every(every: u64, method: M) -> Box<SyncGossip<M>> {
        let exchange = match M::GATHERS {
            Gathers::Means => Exchange::of_means(KIND),
            Gathers::Vectors => Exchange::default(),
        };
        Box::new(SyncGossip { exchange: exchange.every(every), method })
    }

    fn gather(&mut self, cx: &mut Context<'_>, b: usize) {
        if let Some(gathered) = self.exchange.gather(&cx.outbox, b) {
            self.method.on_gathered(cx, &mut self.exchange, b, gathered);
        }
    }

    fn gather_all(&mut self, cx: &mut Context<'_>) {
        (0..cx.layout.buckets.len()).for_each(|b| self.gather(cx, b));
    }
}

impl<M: GossipMethod> Algorithm for SyncGossip<M> {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.method.on_start(cx, &mut self.exchange);
        self.gather_all(cx);
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        self.method.on_bucket(cx, &mut self.exchange, b);
        self.gather(cx, b);
    }

    fn on_gradient(&mut self, cx: &mut Context<'_>) {
        self.method.on_gradient(cx, &mut self.exchange);
        self.gather_all(cx);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        self.method.on_optimized(cx, &mut self.exchange, b);
        self.gather(cx, b);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        if let Some(b) = self.exchange.on_message(cx, from, message) {
            self.gather(cx, b);
        }
    }

    fn on_view(&mut self, cx: &mut Context<'_>, _old: &View) {
        self.exchange.on_view(cx);
        self.gather_all(cx);
    }

    fn is_ready(&self) -> bool {
        self.exchange.is_over()
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        self.exchange.awaiting(M::AWAITED, out);
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        self.method.state(visitor);
    }

    /// A neighbour that has mixed my vector no longer has it to send again, so what was sent
    /// in an older view must stay good.
    fn keeps_older_views(&self) -> bool {
        true
    }
}
