//! Hierarchy: any gossip method between hosts, with exact averages within a host.
//!
//! ```text
//! the first living worker of a host leads it; the others are its members
//! member, upon bucket b of g_i:         send g_i[b] to the leader
//! leader, upon bucket b of all:         g[b] ← H/n · Σ_i g_i[b], in the order of ranks;
//!                                       hand g[b] to the gossip method as its own gradient
//! leader, when the method is done with the step:  send x[b] to the members, every bucket b
//! member, upon all of x:                x_i ← x
//! leader, upon start:                   send x to the members as soon as the method lets go of it
//! upon a lost member:                   the sum is over those left
//! upon a lost leader:                   the next worker of the host leads; see `succession`
//! upon drain:                           send what the method still changes
//! ```
//! The method sees a view whose workers are the leaders and whose topology is one of the H hosts.
//! With H/n, n the number of workers, the mean of the hosts' gradients is the mean of all workers'
//! gradients, also where hosts have different numbers of workers: a host of three counts three
//! times as much as a host of one. All workers of a host hold the same bits at every step.

mod leader;
mod member;
mod succession;

use crate::contract::{Algorithm, Awaited, Context};
use crate::message::{Message, Rank};
use crate::properties::{Budget, Properties};
use crate::state::Visitor;
use crate::view::View;
use leader::Leader;
use member::Member;
use succession::Succession;

/// A bucket of a member's gradient. Gossip methods number their messages below.
const GRADIENT: u8 = 0xe0;
/// A member's gradient is complete; its loss and samples.
const COMPUTED: u8 = 0xe1;
/// A bucket of the host's parameters for a step to come.
const PARAMS: u8 = 0xe2;
/// A bucket that has changed after the last step.
const LATE: u8 = 0xe3;
/// After a loss: the step whose parameters the sender has, counted from 1; 0 is none.
const POSITION: u8 = 0xe4;

/// What drivers need to know of a method between hosts.
///
/// Workers of a host do the same number of steps, so a budget of gradients over all
/// workers is a budget of rounds; and the mean over workers is that over hosts only if all
/// hosts have as many workers.
pub(crate) fn properties(properties: Properties, view: &View) -> Properties {
    let sizes = view.workers.iter().map(|rank| view.neighbours_on_host(*rank).count());
    let (least, most) = sizes.fold((usize::MAX, 0), |(a, b), size| (a.min(size), b.max(size)));
    let keeps_mean = properties.keeps_mean && least == most;
    Properties {
        budget: Budget::Rounds,
        waits_for_peers: true,
        reads_gradient: true,
        keeps_mean,
        ..properties
    }
}

/// The part of a worker in the hierarchy around `method`, or `method` itself where there is none.
pub(crate) fn wrap(method: Box<dyn Algorithm>, view: &View) -> Box<dyn Algorithm> {
    match view.between() {
        None => method,
        Some(_) => Box::new(Worker {
            me: Rank(0),
            first: Rank(0),
            leader: Leader::new(method),
            member: Member::default(),
            succession: Succession::default(),
        }),
    }
}

fn between(view: &View) -> &View {
    view.between().expect("a hierarchy has a view between hosts")
}

/// One worker: a member, or the leader of its host. A member may become the leader.
struct Worker {
    me: Rank,
    /// The leader of my host.
    first: Rank,
    leader: Leader,
    member: Member,
    succession: Succession,
}

impl Worker {
    fn leads(&self) -> bool {
        self.me == self.first
    }

    /// What can be done now that something has happened.
    fn settle(&mut self, cx: &mut Context<'_>) {
        self.succession.serve(cx, self.member.step);
        let may_start = !self.leader.has_started() && !self.succession.is_open();
        let is_there = self.member.step.is_none_or(|step| step == cx.step);
        if self.leads() && may_start && is_there && !cx.computing {
            self.leader.start(cx, self.member.step.is_some());
        }
        if self.leads() {
            self.leader.advance(cx);
            self.leader.hand_out_late(cx);
            self.member.step = self.leader.handed_step().or(self.member.step);
        }
    }
}

impl Algorithm for Worker {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.me = cx.outbox.rank;
        self.first = cx.outbox.view.neighbours_on_host(self.me).next().expect("I am on my host");
        self.leader.enter(cx);
        self.settle(cx);
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        // Before the method may touch them: the parameters that somebody waits for.
        self.succession.serve(cx, self.member.step);
        self.member.ready = false;
        self.member.handed = b + 1;
        self.leader.on_bucket(b);
        if !self.leads() {
            Member::send_bucket(cx, self.first, b);
        }
        self.settle(cx);
    }

    fn on_gradient(&mut self, cx: &mut Context<'_>) {
        self.member.complete = true;
        self.leader.on_gradient();
        if !self.leads() {
            Member::send_computed(cx, self.first);
        }
        self.settle(cx);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        self.leader.pass(cx, |method, cx| method.on_optimized(cx, b));
        self.settle(cx);
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        match message.kind {
            GRADIENT | COMPUTED => self.leader.on_member_message(from, message),
            PARAMS => {
                if self.member.on_params(cx, message) {
                    self.leader.forget_gradient();
                }
            }
            LATE => self.member.on_late(cx, message),
            POSITION => self.succession.on_position(cx, from, &message),
            _ => self.leader.on_method_message(cx, from, message),
        }
        self.settle(cx);
    }

    fn on_view(&mut self, cx: &mut Context<'_>, old: &View) {
        let host = |view: &View| view.neighbours_on_host(self.me).collect::<Vec<Rank>>();
        let (before, now) = (host(old), host(cx.outbox.view));
        let had = self.first;
        self.first = now[0];
        self.leader.on_view(cx, old);
        if before != now {
            self.succession.begin(cx, &now, self.member.step);
        }
        if had != self.first {
            self.member.forget_leader();
            if !self.leads() {
                self.member.send_again(cx, self.first);
            }
        }
        self.settle(cx);
    }

    fn on_drain(&mut self, cx: &mut Context<'_>) {
        self.leader.on_drain(cx);
        self.settle(cx);
    }

    fn is_ready(&self) -> bool {
        if self.leads() && self.leader.has_started() {
            self.leader.is_ready()
        } else {
            self.member.ready
        }
    }

    fn is_drained(&self) -> bool {
        self.leader.is_drained()
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        self.succession.awaiting(self.me, out);
        if self.leads() && self.leader.has_started() {
            self.leader.awaiting(out);
        } else if !self.member.ready && !self.leads() {
            out.push(Awaited { from: self.first, what: "the parameters of its host" });
        }
    }

    fn model(&self, params: &[f32], out: &mut [f32]) {
        self.leader.model(params, out);
    }

    /// Between steps a member has nothing but parameters, and the leader hands them out again.
    fn state(&mut self, visitor: &mut dyn Visitor) {
        self.leader.state(visitor);
    }

    /// What a living worker of my host has sent is good in any view; messages of the method are
    /// dropped by the leader where they are not.
    fn keeps_older_views(&self) -> bool {
        true
    }
}
