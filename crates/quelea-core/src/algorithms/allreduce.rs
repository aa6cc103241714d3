//! AllReduce SGD: every replica takes the same step with the mean of all gradients.
//!
//! ```text
//! upon bucket b of g_i:               start the all-reduce of g_i[b]
//! upon bucket b reduced:              keep g_i[b];   g[b] ← Σ_i g_i[b] / n
//! upon all buckets reduced:           x ← x − η·Opt(g)
//! upon a lost peer:                   compare steps; those behind take over a peer's state;
//!                                     restart this step's all-reduce from the kept gradients
//! ```
//! Replicas hold the same bits after every step: each chunk is summed once and copied.

use super::{Codecs, Entry, Traffic};
use crate::collectives::average::{Average, COLLECTIVE};
use crate::collectives::recovery::{self, Recovered, Recovery};
use crate::contract::{Algorithm, Awaited, Context, Mode};
use crate::message::{Message, Rank};
use crate::meta::Meta;
use crate::options::Options;
use crate::properties::{
    Budget, DeployedFrom, OptimizerSite, OptimizerState, Properties, TopologyRequirement,
};
use crate::state::Visitor;
use crate::vector;
use crate::view::View;

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "allreduce",
        summary: "synchronous SGD; every step averages all gradients exactly",
        paper: "Goyal et al. 2017, arXiv:1706.02677; ring: Patarasuk and Yuan 2009",
        section: "Sections 2 and 4 of Goyal et al.; the ring is the schedule of Patarasuk and Yuan",
        file: file!(),
        options: &[COLLECTIVE],
    },
    sends: "gradient buckets around a ring: 2(n−1)/n of the model per step",
    lost_peer: "the step is restarted among the survivors from their kept gradients; replicas \
                stay bit-equal",
    resized: "every replica begins with the same model and optimizer state",
    check: |_| Ok(()),
    codecs: |_| Codecs::All,
    properties: |_| Properties {
        synchronous: true,
        snapshot: false,
        servers: false,
        deploy: DeployedFrom::Workers,
        budget: Budget::Rounds,
        topology: TopologyRequirement::Nothing,
        optimizer: OptimizerSite::Workers,
        reads_gradient: true,
        clips_itself: false,
        keeps_mean: true,
        plain_sgd: false,
        waits_for_peers: true,
        own_start: false,
        reloadable: true,
        needs_loss: false,
        optimizer_state: OptimizerState::Kept,
    },
    traffic: |_| Traffic::Average { period: 1 },
    worker: |options| Box::new(AllReduceSgd::new(options)),
    server: None,
};

/// One worker.
struct AllReduceSgd {
    average: Average,
    /// Buckets of this step's gradient that were handed over.
    handed: usize,
    /// Buckets of this step that the optimizer has done.
    optimized: usize,
    recovery: Recovery,
}

impl AllReduceSgd {
    fn new(options: &Options) -> AllReduceSgd {
        let average = Average::new(options);
        AllReduceSgd { average, handed: 0, optimized: 0, recovery: Recovery::default() }
    }

    fn enter(&mut self, cx: &Context<'_>) {
        self.average.enter(cx, &[]);
    }

    fn start(&mut self, cx: &mut Context<'_>, b: usize) {
        self.average.start(&mut cx.outbox, cx.step, b, &cx.grad[cx.layout.range(b)]);
        self.step_if_reduced(cx, b);
    }

    /// Means are written while later buckets are in flight, so that this costs no time at the end.
    fn step_if_reduced(&mut self, cx: &mut Context<'_>, b: usize) {
        self.average.finish_early(&mut cx.outbox, b, &mut cx.grad[cx.layout.range(b)]);
        if !self.average.is_done() {
            return;
        }
        for b in 0..cx.layout.buckets.len() {
            self.average.finish(&mut cx.outbox, b, &mut cx.grad[cx.layout.range(b)]);
            cx.optimize(b, Mode::Apply);
        }
    }

    fn after_recovery(&mut self, cx: &mut Context<'_>, recovered: Option<Recovered>) {
        match recovered {
            Some(Recovered::Restart) => (0..self.handed).for_each(|b| self.start(cx, b)),
            Some(Recovered::Entered) => self.handed = 0,
            None => {}
        }
    }
}

impl Algorithm for AllReduceSgd {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.enter(cx);
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        self.handed = b + 1;
        if !self.recovery.is_running() {
            self.start(cx, b);
        }
    }

    fn on_gradient(&mut self, cx: &mut Context<'_>) {
        self.recovery.on_gradient(cx);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, _b: usize) {
        self.optimized += 1;
        if self.optimized == cx.layout.buckets.len() {
            (self.handed, self.optimized) = (0, 0);
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        if message.kind >= recovery::FIRST_KIND {
            let recovered = self.recovery.on_message(cx, from, message);
            return self.after_recovery(cx, recovered);
        }
        let b = message.bucket as usize;
        let started = self.average.has_started(message.step, b);
        let range = if started { cx.range(b) } else { 0..0 };
        self.average.on_message(&mut cx.outbox, &cx.grad[range], from, message);
        if started {
            self.step_if_reduced(cx, b);
        }
    }

    fn on_view(&mut self, cx: &mut Context<'_>, _old: &View) {
        for b in 0..self.handed {
            let handed = &mut cx.grad[cx.layout.range(b)];
            self.average.undo(b, handed);
            if cx.reweigh != 1.0 {
                vector::scale(cx.reweigh, handed);
            }
        }
        self.enter(cx);
        let recovered = self.recovery.begin(cx);
        self.after_recovery(cx, recovered);
    }

    fn is_ready(&self) -> bool {
        self.handed == 0 && !self.recovery.is_running()
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        self.recovery.awaiting(&self.average.others(), out);
        self.average.awaiting(out);
    }

    /// Early chunks of peers are sent again after a resume.
    fn state(&mut self, visitor: &mut dyn Visitor) {
        self.average.state(visitor);
    }
}
