//! AD-PSGD: asynchronous decentralized parallel SGD (Lian et al. 2018; Zhang et al.'s note).
//!
//! ```text
//! upon bucket b of g (taken at a copy of x_i, some averages ago):   x_i ← x_i − η·Opt(g[b])
//! active i, when its gradient is applied and no exchange is open:
//!         j = random passive neighbour;  send x_i to j;  remember what was sent as s
//! passive j, upon x_i from i:           send x_j to i;  x_j ← x_j + ½(x_i − x_j)
//! active i, upon x_j from j:            x_i ← x_i + ½(x_j − s)
//! `averaging` = "every-gradient":
//! passive j, when its gradient is applied and no invitation of it is open:
//!         i = random active neighbour;  invite i
//! active i, invited by j:               when no exchange is open, exchange with j
//! upon a lost j, active i:              keep x_i; the exchange is closed, an invitation forgotten
//! ```
//! The difference form lets gradients land between request and answer: the result equals
//! "average, then apply", the mean is kept by every exchange, and nobody ever waits. Only active
//! workers ask, and only passive ones, so there is no cycle to deadlock in. Algorithm 1 and its
//! theory have one averaging per gradient, with a random neighbour of the worker whose gradient it
//! is; the published implementation lets only active workers start them, half as many. A passive
//! worker that asked by itself would change its model while an exchange of its own is open, and
//! the two would not be averages any more; so it invites an active one to ask. An invitation has no
//! vector and is not waited for.

mod invitations;

use std::collections::BTreeMap;

use super::{Codecs, Entry, Starters, Traffic};
use crate::contract::{Algorithm, Awaited, Context, Fact, Mode};
use crate::message::{Message, Rank};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::payload::Payload;
use crate::properties::{
    Budget, DeployedFrom, OptimizerRequirement, OptimizerSite, OptimizerState, Properties,
    TopologyRequirement,
};
use crate::state::Visitor;
use crate::vector;
use crate::view::View;
use invitations::{INVITE, Invitation, Invitations};

/// The algorithm's entry in the table.
pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "ad-psgd",
        summary: "after a gradient, average with one random neighbour; nobody waits",
        paper: "Lian et al. 2018, arXiv:1710.06952",
        section: "Algorithm 1, in the difference form that lets gradients land during an exchange",
        file: file!(),
        options: &[
            OptionSpec {
                name: "averaging",
                kind: OptionKind::Choice(&["every-gradient", "active"]),
                help: "who starts averages: every worker after its gradient, as in Algorithm 1, or \
                       only the active half, as in the published implementation (half as many)",
            },
            OptionSpec {
                name: "averages",
                kind: OptionKind::Whole { default: 1, min: 1, max: 1 << 16 },
                help: "exchanges that a worker starts per gradient, one after another",
            },
        ],
    },
    sends: "per exchange, the model to one random neighbour and its model back; one exchange per \
            gradient",
    lost_peer: "open exchanges with it are closed; a half-finished one shifts the mean once",
    resized: "every worker begins with the mean of the models and of the optimizers; no \
              exchange is open, because a run rests before it is saved",
    check: |_| Ok(()),
    codecs: |_| Codecs::OF_MODELS,
    properties: |_| Properties {
        synchronous: false,
        snapshot: true,
        servers: false,
        deploy: DeployedFrom::Workers,
        budget: Budget::TotalGradients,
        topology: TopologyRequirement::Pairs,
        optimizer: OptimizerSite::Workers,
        reads_gradient: false,
        clips_itself: false,
        keeps_mean: true,
        optimizer_rule: OptimizerRequirement::Any,
        waits_for_peers: false,
        own_start: true,
        reloadable: false,
        needs_loss: false,
        optimizer_state: OptimizerState::Kept,
    },
    traffic: |options| Traffic::Pairs {
        averages: options.whole("averages"),
        starters: Starters::new(options),
    },
    worker: |options| Box::new(AdPsgd::new(options)),
    server: None,
};

const REQUEST: u8 = 1;
const ANSWER: u8 = 2;

impl Starters {
    fn new(options: &Options) -> Starters {
        match options.text("averaging") {
            "every-gradient" => Starters::All,
            _ => Starters::Half,
        }
    }
}

/// One worker.
struct AdPsgd {
    averages: u64,
    starters: Starters,
    /// Whether I ask, or am asked.
    active: bool,
    /// Neighbours of the other side.
    partners: Vec<Rank>,
    /// Buckets whose gradient is not applied yet.
    remaining: usize,
    /// Exchanges, or invitations, that may still be started for the last gradient.
    allowed: u64,
    /// The number of the last exchange that I started.
    seq: u64,
    open: Option<PendingExchange>,
    invitations: Invitations,
    /// The last request that was answered, by worker and bucket: one that comes twice is not.
    answered: BTreeMap<(Rank, usize), u64>,
}

/// An exchange that waits for answers.
#[derive(Debug)]
struct PendingExchange {
    peer: Rank,
    /// What was sent, per bucket; taken when the answer is here.
    sent: Vec<Option<Payload>>,
}

impl AdPsgd {
    fn new(options: &Options) -> AdPsgd {
        AdPsgd {
            averages: options.whole("averages"),
            starters: Starters::new(options),
            active: false,
            partners: Vec::new(),
            remaining: 0,
            allowed: 0,
            seq: 0,
            open: None,
            invitations: Invitations::default(),
            answered: BTreeMap::new(),
        }
    }

    fn find_partners(&mut self, cx: &Context<'_>) {
        let Some((members, schedule)) = cx.outbox.view.topology(u64::MAX) else { return };
        let place = members.binary_search(&cx.outbox.rank).expect("a member of the topology");
        let pairs = schedule.pairs();
        self.active = pairs.active[place];
        let partners = pairs.partners[place].iter().map(|j| members[*j]);
        // A topology that cannot be rebuilt without the lost still lists them.
        self.partners = partners.filter(|partner| cx.outbox.view.is_alive(*partner)).collect();
    }

    /// Starts what may be started: an exchange, or an invitation to one.
    fn ask(&mut self, cx: &mut Context<'_>) {
        if self.active {
            self.ask_passive(cx);
        } else if self.starters == Starters::All {
            self.invite(cx);
        }
    }

    fn random_partner(&self, cx: &mut Context<'_>) -> Rank {
        self.partners[cx.outbox.rng.below(self.partners.len() as u64) as usize]
    }

    fn invite(&mut self, cx: &mut Context<'_>) {
        if self.invitations.is_open() || self.allowed == 0 || self.partners.is_empty() {
            return;
        }
        self.allowed -= 1;
        let peer = self.random_partner(cx);
        self.invitations.send(cx, peer);
    }

    /// Whom to exchange with next: who has invited me, or somebody of my choice, with number 0.
    fn next_peer(&mut self, cx: &mut Context<'_>) -> Option<Invitation> {
        let own = self.allowed > 0 && !self.partners.is_empty();
        let invited = self.invitations.next(own);
        invited.or_else(|| {
            own.then(|| {
                self.allowed -= 1;
                Invitation { from: self.random_partner(cx), number: 0 }
            })
        })
    }

    fn ask_passive(&mut self, cx: &mut Context<'_>) {
        if self.open.is_some() {
            return;
        }
        let Some(Invitation { from: peer, number }) = self.next_peer(cx) else { return };
        self.seq += 1;
        let mut sent = Vec::with_capacity(cx.layout.buckets.len());
        for b in 0..cx.layout.buckets.len() {
            let values = seen(cx, b);
            let mut message = Message::new(REQUEST, cx.step, b).with(values.clone());
            (message.seq, message.scalar) = (self.seq, number as f64);
            let message = cx.outbox.rounded(message);
            cx.outbox.send(peer, message);
            sent.push(Some(values));
        }
        self.open = Some(PendingExchange { peer, sent });
    }

    fn answer(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let b = message.bucket as usize;
        let last = self.answered.entry((from, b)).or_insert(0);
        if message.seq <= *last {
            return;
        }
        *last = message.seq;
        self.invitations.on_request(message.scalar as u64);
        let own = seen(cx, b);
        let mut answer = Message::new(ANSWER, message.step, b).with(own.clone());
        answer.seq = message.seq;
        let answer = cx.outbox.rounded(answer);
        cx.outbox.send(from, answer);
        let params = &mut cx.params[cx.layout.range(b)];
        cx.outbox.work(4 * params.len());
        vector::add_difference(0.5, &message.into_values(), &own, params);
    }

    fn absorb(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let (b, seq) = (message.bucket as usize, message.seq);
        let Some(exchange) = &mut self.open else { return };
        if exchange.peer != from || seq != self.seq {
            return;
        }
        let Some(sent) = exchange.sent[b].take() else { return };
        let theirs = message.into_values();
        cx.outbox.work(4 * sent.len());
        vector::add_difference(0.5, &theirs, &sent, &mut cx.params[cx.layout.range(b)]);
        if exchange.sent.iter().all(Option::is_none) {
            self.open = None;
            self.ask(cx);
        }
    }
}

/// Bucket `b` of the parameters as a peer sees it.
fn seen(cx: &mut Context<'_>, b: usize) -> Payload {
    let mut values = cx.params_payload(b);
    cx.outbox.round(values.try_mut().expect("just taken, so held by nobody else"));
    values
}

impl Algorithm for AdPsgd {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.find_partners(cx);
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        if b == 0 {
            self.remaining = cx.layout.buckets.len();
        }
        cx.optimize(b, Mode::Displace);
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        let range = cx.range(b);
        vector::axpy(-1.0, &cx.grad[range.clone()], &mut cx.params[range]);
        self.remaining -= 1;
        if self.remaining == 0 {
            self.allowed = self.averages;
            self.invitations.on_gradient();
            self.ask(cx);
        }
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        match message.kind {
            REQUEST => {
                self.answer(cx, from, message);
                self.ask(cx);
            }
            // Who is no neighbour of mine any more will see that in the same view.
            INVITE if self.active && self.partners.contains(&from) => {
                self.invitations.on_message(from, &message);
                self.ask(cx);
            }
            INVITE => {}
            _ => self.absorb(cx, from, message),
        }
    }

    fn on_view(&mut self, cx: &mut Context<'_>, _old: &View) {
        self.find_partners(cx);
        // One that joins in the place of a lost worker numbers its requests from 1.
        self.answered.retain(|(from, _), _| cx.outbox.view.is_alive(*from));
        self.invitations.forget(|rank| cx.outbox.view.is_alive(rank));
        self.invitations.keep(self.active, &self.partners);
        if self.open.as_ref().is_some_and(|exchange| !cx.outbox.view.is_alive(exchange.peer)) {
            self.open = None;
            cx.outbox.measure(Fact::HalfExchange);
            self.allowed += 1;
            self.ask(cx);
        }
    }

    fn on_drain(&mut self, _cx: &mut Context<'_>) {
        self.allowed = 0;
    }

    fn is_ready(&self) -> bool {
        self.remaining == 0
    }

    fn is_drained(&self) -> bool {
        self.open.is_none() && self.invitations.is_drained()
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        if let Some(exchange) = &self.open {
            out.push(Awaited { from: exchange.peer, what: "its model" });
        }
        self.invitations.awaiting(out);
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        visitor.number("seq", &mut self.seq);
        visitor.number("allowed", &mut self.allowed);
        visitor.by_bucket("answered", &mut self.answered);
        let mut peer = self.open.as_ref().map_or(u64::MAX, |exchange| u64::from(exchange.peer.0));
        let mut buckets = self.open.as_ref().map_or(0, |exchange| exchange.sent.len() as u64);
        visitor.number("peer", &mut peer);
        visitor.number("buckets", &mut buckets);
        let mut sent = self.open.take().map(|exchange| exchange.sent).unwrap_or_default();
        sent.resize(buckets as usize, None);
        for (b, sent) in sent.iter_mut().enumerate() {
            visitor.payload(&format!("sent.{b}"), sent);
        }
        self.open = (peer != u64::MAX).then(|| PendingExchange { peer: Rank(peer as u32), sent });
        if self.starters == Starters::All {
            self.invitations.state(visitor);
        }
    }

    fn keeps_older_views(&self) -> bool {
        true
    }
}
