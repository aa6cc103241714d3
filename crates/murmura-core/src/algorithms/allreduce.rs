//! AllReduce SGD: every replica takes the same step with the mean of all gradients.
//!
//! ```text
//! upon bucket b of g_i:               start the all-reduce of g_i[b]
//! upon all buckets reduced:           g ← Σ_i g_i / n;   x ← x − η·Opt(g)
//! upon a lost peer:                   compare steps; those behind take over a peer's state;
//!                                     restart this step's all-reduce from the kept gradients
//! ```
//! Replicas hold the same bits after every step: each chunk is summed once and copied.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::Entry;
use crate::collectives::recovery::{self, Recovered, Recovery};
use crate::collectives::{self, AllReduce, COLLECTIVES, Group, Label};
use crate::contract::{Algorithm, Awaited, Budget, Cx, Deploy, Facts, Mode, Need, Place};
use crate::message::{Message, Rank};
use crate::params::{Key, Kind, Params};
use crate::state::Visitor;
use crate::view::View;

/// The row of the table.
pub const ENTRY: Entry = Entry {
    name: "allreduce",
    summary: "synchronous SGD; every step averages all gradients exactly",
    paper: "Goyal et al. 2017, arXiv:1706.02677; ring: Patarasuk and Yuan 2009",
    sends: "gradient buckets around a ring: 2(n−1)/n of the model per step",
    lost_peer: "the step is restarted among the survivors from their kept gradients; replicas \
                stay bit-equal",
    keys: &[Key {
        name: "collective",
        kind: Kind::Choice(&["ring", "halving-doubling", "hierarchical", "auto"]),
        help: "how gradients are summed",
    }],
    check: |_| Ok(()),
    facts: |_| Facts {
        synchronous: true,
        snapshot: false,
        servers: false,
        deploy: Deploy::Workers,
        budget: Budget::Rounds,
        topology: Need::Nothing,
        optimizer: Place::Workers,
        clips_itself: false,
        keeps_mean: true,
        waits_for_peers: true,
    },
    worker: |params| Box::new(AllReduceSgd::new(params)),
    server: None,
};

const REDUCE: u8 = 1;

/// One worker.
struct AllReduceSgd {
    collective: &'static collectives::Entry,
    group: Arc<Group>,
    /// The all-reduce of each (step, bucket). A peer may be one step ahead.
    running: BTreeMap<(u64, usize), Box<dyn AllReduce>>,
    /// Buckets of this step's gradient that were handed over.
    handed: usize,
    /// Buckets of this step that the optimizer has done.
    optimized: usize,
    recovery: Recovery,
}

impl AllReduceSgd {
    fn new(params: &Params) -> AllReduceSgd {
        let name = params.text("collective");
        let collective = COLLECTIVES.iter().find(|entry| entry.name == name);
        AllReduceSgd {
            collective: collective.expect("the choice lists the table's names"),
            group: Arc::new(Group { members: Vec::new(), hosts: Vec::new(), me: 0 }),
            running: BTreeMap::new(),
            handed: 0,
            optimized: 0,
            recovery: Recovery::default(),
        }
    }

    fn machine(&mut self, cx: &Cx<'_>, step: u64, b: usize) -> &mut dyn AllReduce {
        let (group, build) = (&self.group, self.collective.build);
        let label = Label { kind: REDUCE, step, bucket: b };
        let new = || build(Arc::clone(group), label, cx.range(b).len());
        self.running.entry((step, b)).or_insert_with(new).as_mut()
    }

    fn start(&mut self, cx: &mut Cx<'_>, b: usize) {
        let range = cx.range(b);
        let step = cx.step;
        self.machine(cx, step, b).start(&mut cx.io, &cx.grad[range]);
        self.step_if_reduced(cx);
    }

    /// Nothing is written before all buckets are reduced, so that until then the step can be
    /// restarted from `cx.grad`.
    fn step_if_reduced(&mut self, cx: &mut Cx<'_>) {
        let buckets = cx.layout.buckets.len();
        // After a loss the buckets are started again one by one, though all were handed over.
        let reduced = |b| self.running.get(&(cx.step, b)).is_some_and(|machine| machine.is_done());
        if self.handed < buckets || !(0..buckets).all(reduced) {
            return;
        }
        let scale = 1.0 / self.group.len() as f32;
        for b in 0..buckets {
            let mut machine = self.running.remove(&(cx.step, b)).expect("every bucket was started");
            machine.finish(scale, &mut cx.grad[cx.layout.range(b)]);
            cx.optimize(b, Mode::Apply);
        }
    }

    fn after_recovery(&mut self, cx: &mut Cx<'_>, recovered: Option<Recovered>) {
        match recovered {
            Some(Recovered::Restart) => (0..self.handed).for_each(|b| self.start(cx, b)),
            Some(Recovered::Entered) => self.handed = 0,
            None => {}
        }
    }
}

impl Algorithm for AllReduceSgd {
    fn on_start(&mut self, cx: &mut Cx<'_>) {
        self.group = Arc::new(Group::of_workers(cx.io.view, cx.io.rank));
    }

    fn on_bucket(&mut self, cx: &mut Cx<'_>, b: usize) {
        self.handed = b + 1;
        if !self.recovery.is_running() {
            self.start(cx, b);
        }
    }

    fn on_gradient(&mut self, cx: &mut Cx<'_>) {
        self.recovery.on_gradient(cx);
    }

    fn on_optimized(&mut self, cx: &mut Cx<'_>, _b: usize) {
        self.optimized += 1;
        if self.optimized == cx.layout.buckets.len() {
            (self.handed, self.optimized) = (0, 0);
        }
    }

    fn on_message(&mut self, cx: &mut Cx<'_>, from: Rank, message: Message) {
        if message.kind >= recovery::FIRST_KIND {
            let recovered = self.recovery.on_message(cx, from, message);
            return self.after_recovery(cx, recovered);
        }
        let (step, b) = (message.step, message.bucket as usize);
        let handed = step == cx.step && b < self.handed;
        let range = if handed { cx.range(b) } else { 0..0 };
        self.machine(cx, step, b).on_message(&mut cx.io, &cx.grad[range], from, message);
        if handed {
            self.step_if_reduced(cx);
        }
    }

    fn on_view(&mut self, cx: &mut Cx<'_>, _old: &View) {
        self.group = Arc::new(Group::of_workers(cx.io.view, cx.io.rank));
        self.running.clear();
        let recovered = self.recovery.begin(cx);
        self.after_recovery(cx, recovered);
    }

    fn is_ready(&self) -> bool {
        self.handed == 0 && !self.recovery.is_running()
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        self.recovery.awaiting(&self.group.members, out);
        out.retain(|awaited| awaited.from != self.group.members[self.group.me]);
        for machine in self.running.values().filter(|machine| !machine.is_done()) {
            machine.awaiting(out);
        }
    }

    /// Between steps there is nothing but parameters and optimizer; early chunks of peers are
    /// sent again after a resume.
    fn state(&mut self, _visitor: &mut dyn Visitor) {}
}
