//! Decentralized averaging inside groups by all-reduce, as Decent-DP does it.
//!
//! ```text
//! upon start:                     all-reduce x_i[b] of step 0 inside my group, every bucket b
//! upon g[b] and the mean of x[b] over my group of this step:
//!                                 x_i[b] ← mean − η·Opt(g[b]);  all-reduce it inside my group of the next step
//! ```
//! The row `d-psgd` sends models to neighbours one by one, which for a group of k workers is k − 1
//! models each; a collective moves less than two. Groups are the rows of the topology, whose
//! members all have the same weight. Only for timing in the virtual cluster: it does not survive
//! a lost worker, so it is no row of the table of algorithms.

use std::collections::BTreeMap;
use std::sync::Arc;

use quelea_core::algorithms::{self, Codecs, Entry, Traffic};
use quelea_core::collectives::average::COLLECTIVE;
use quelea_core::collectives::{AllReduce, COLLECTIVES, Group, Label};
use quelea_core::contract::{Algorithm, Awaited, Context, Mode};
use quelea_core::message::{Message, Rank};
use quelea_core::meta::Meta;
use quelea_core::options::{OptionSpec, Options};
use quelea_core::state::Visitor;

/// The row, for setups that are made here.
pub static ENTRY: Entry = Entry {
    meta: Meta {
        name: "group-average",
        summary: "averages models inside groups by all-reduce while the next gradient is computed",
        paper: "Wang: Decent-DP",
        section: "",
        file: file!(),
        options: KEYS,
    },
    sends: "the model around a group per step",
    lost_peer: "not handled",
    resized: "not handled",
    codecs: |_| Codecs::OF_MODELS,
    check: |_| Ok(()),
    properties: |_| {
        let gossip = algorithms::find("d-psgd").expect("in the table");
        (gossip.properties)(&Options::defaults(gossip.meta.options))
    },
    traffic: |_| Traffic::Average { period: 1 },
    worker: |params| Box::new(GroupAverage::new(params)),
    server: None,
};

/// Its parameters.
pub const KEYS: &[OptionSpec] = &[COLLECTIVE];

const REDUCE: u8 = 1;

struct GroupAverage {
    collective: &'static quelea_core::collectives::Entry,
    /// The sums under way, by step and bucket; a peer may be ahead.
    running: BTreeMap<(u64, usize), Sum>,
    /// Vectors that wait for their sum to start, with step and bucket, in order.
    launches: Vec<(u64, usize, Vec<f32>)>,
    /// Buckets of this step whose gradient is here and whose mean is not.
    waiting: Vec<bool>,
    left: usize,
}

/// One sum over a group, with the vector that goes into it.
struct Sum {
    machine: Box<dyn AllReduce>,
    own: Vec<f32>,
    members: usize,
    started: bool,
}

impl GroupAverage {
    fn new(options: &Options) -> GroupAverage {
        let name = options.text("collective");
        let collective = COLLECTIVES.iter().find(|entry| entry.meta.name == name);
        GroupAverage {
            collective: collective.expect("the choice lists the table's names"),
            running: BTreeMap::new(),
            launches: Vec::new(),
            waiting: Vec::new(),
            left: 0,
        }
    }

    fn sum(&mut self, cx: &Context<'_>, step: u64, b: usize) -> &mut Sum {
        let collective = self.collective;
        self.running.entry((step, b)).or_insert_with(|| {
            let row = cx.outbox.view.row(step, cx.outbox.rank);
            let members: Vec<Rank> = row.incoming.iter().map(|(rank, _)| *rank).collect();
            let me = members.iter().position(|rank| *rank == cx.outbox.rank);
            let group = Group {
                hosts: members.iter().map(|rank| cx.outbox.view.hosts[rank.index()]).collect(),
                me: me.expect("everybody is in their own group"),
                members,
            };
            let (members, len) = (group.len(), cx.layout.range(b).len());
            let label = Label { kind: REDUCE, step, bucket: b, phase: 0, rounds: false };
            let machine = (collective.build)(Arc::new(group), label, len);
            Sum { machine, own: Vec::new(), members, started: false }
        })
    }

    fn begin(&mut self, cx: &mut Context<'_>, step: u64, b: usize) {
        let own = cx.params[cx.layout.range(b)].to_vec();
        self.launches.push((step, b, own));
        self.launch(cx);
    }

    /// Starts what may start: sums of a step only when those of earlier steps are complete, as on
    /// one stream of communication. Otherwise they would hold each other up on the card.
    fn launch(&mut self, cx: &mut Context<'_>) {
        let open = |sum: &Sum| sum.started && !sum.machine.is_done();
        let oldest = self.running.iter().find(|(_, sum)| open(sum)).map(|((step, _), _)| *step);
        for (step, b, own) in std::mem::take(&mut self.launches) {
            if oldest.is_some_and(|oldest| oldest < step) {
                self.launches.push((step, b, own));
                continue;
            }
            let sum = self.sum(cx, step, b);
            (sum.own, sum.started) = (own, true);
            sum.machine.start(&mut cx.outbox, &sum.own);
        }
    }

    fn advance(&mut self, cx: &mut Context<'_>, b: usize) {
        let key = (cx.step, b);
        let done = self.running.get(&key).is_some_and(|sum| sum.machine.is_done());
        if !done || !self.waiting.get(b).is_some_and(|waits| *waits) {
            return;
        }
        self.waiting[b] = false;
        let mut sum = self.running.remove(&key).expect("just seen");
        sum.machine.finish(1.0 / sum.members as f32, &mut sum.own);
        cx.params[cx.layout.range(b)].copy_from_slice(&sum.own);
        cx.optimize(b, Mode::Apply);
    }
}

impl Algorithm for GroupAverage {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        (0..cx.layout.buckets.len()).for_each(|b| self.begin(cx, cx.step, b));
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        if b == 0 {
            self.left = cx.layout.buckets.len();
            self.waiting = vec![false; self.left];
        }
        self.waiting[b] = true;
        self.advance(cx, b);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        self.left -= 1;
        if !cx.is_last_step() {
            self.begin(cx, cx.step + 1, b);
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let (step, b) = (message.step, message.bucket as usize);
        let sum = self.sum(cx, step, b);
        sum.machine.on_message(&mut cx.outbox, &sum.own, from, message);
        if step == cx.step {
            self.advance(cx, b);
        }
        self.launch(cx);
    }

    fn is_ready(&self) -> bool {
        self.left == 0
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        self.running.values().for_each(|sum| sum.machine.awaiting(out));
    }

    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}
