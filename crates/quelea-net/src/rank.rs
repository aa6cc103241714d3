//! One rank on its thread: passes events to the node and carries out its effects.

mod cuts;
mod life_cycle;
mod salvage;

use std::rc::Rc;
use std::sync::mpsc;

use quelea_core::contract::{Effect, Mode};
use quelea_core::message::{Message, Rank};
use quelea_core::node::Node;
use quelea_core::problems::Computed;
use quelea_core::properties::{Budget, Properties};
use quelea_core::time::Time;
use quelea_record::{RankReport, Record, RecordKind};
use quelea_wire::frame::{self, Route};
use tokio::sync::mpsc::UnboundedSender;

use crate::clock::RunClock;
use crate::compute::{Compute, Gradient};
use crate::controller::Incoming;
use crate::external_loop::ExternalLoop;
use crate::link::Link;
use crate::options::NetOptions;
use crate::protocol::{Command, RankEvent};
use crate::running_time::StoodStill;
pub(crate) use cuts::CutState;
use life_cycle::LifeCycle;
use salvage::Salvage;

/// What reaches a rank from other threads.
#[derive(Debug)]
pub(crate) enum Inbox {
    /// A message from a rank of the same process.
    Message { from: Rank, sent_micros: u32, message: Message },
    /// A bucket of the gradient is final, before the rest.
    Bucket(usize),
    /// The gradient is complete.
    Gradient(Gradient),
    /// The external loop has run its optimizer on every bucket.
    Optimized,
    /// The external loop computes no more gradients.
    Finished,
    /// The gradient's thread cannot continue.
    Broken(String),
    /// A command of the controller.
    Command(Command),
}

/// How another rank is reached.
#[derive(Clone, Debug)]
pub(crate) enum Peer {
    /// It is this one.
    Own,
    /// It lives in the same process.
    Local(UnboundedSender<Inbox>),
    /// It is connected.
    Remote(Rc<Link>),
}

/// The right to compute gradients.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RankTickets {
    /// Granted in all.
    granted: u64,
    /// Granted and not used.
    held: u64,
    /// One is asked for, and whether that was urgent.
    asked: Option<bool>,
    /// There are no more.
    exhausted: bool,
}

/// A gradient that has been handed over.
#[derive(Clone, Copy, Debug)]
struct Pending {
    step: u64,
    /// When it was here.
    done: Time,
    compute_seconds: f64,
    samples: u32,
    /// From asking for it until it was here, without the computing itself.
    handing_seconds: f64,
}

/// A rank.
pub(crate) struct RankState {
    node: Node,
    properties: Properties,
    clock: RunClock,
    options: NetOptions,
    /// By rank.
    peers: Vec<Peer>,
    /// Connections with something new to write.
    touched: Vec<Rc<Link>>,
    controller: mpsc::Sender<Incoming>,
    compute: Option<Box<dyn Compute>>,
    external: Option<ExternalLoop>,
    /// Buckets of the gradient being computed that are handed over.
    handed: usize,
    tickets: RankTickets,
    /// The gradient whose step is not complete.
    pending: Option<Pending>,
    /// The gradient whose step is complete; its time is split when the next one starts.
    idle: Option<Pending>,
    computing_since: Option<Time>,
    /// When something last happened here.
    moved: Time,
    life_cycle: LifeCycle,
    /// Messages since this process began, to be compared.
    sent: u64,
    received: u64,
    timeline: bool,
    report: RankReport,
    /// Above every number of a bucket that a message may carry.
    buckets: u32,
    cutting: CutState,
    /// Buckets on which the outer loop is to run its optimizer.
    asked: Vec<(usize, Mode)>,
    all_buckets: usize,
    /// Messages sent to and received from each rank.
    sent_to: Vec<u64>,
    received_from: Vec<u64>,
    salvage: Salvage,
    /// When it last looked at the clock, and for how long this process stood still since the
    /// gradient was asked for.
    still: StoodStill,
    stood_still: Time,
}

/// What a rank is made of.
pub(crate) struct RankConfig {
    pub(crate) node: Node,
    pub(crate) properties: Properties,
    pub(crate) clock: RunClock,
    pub(crate) options: NetOptions,
    pub(crate) controller: mpsc::Sender<Incoming>,
    /// Absent at a server.
    pub(crate) compute: Option<Box<dyn Compute>>,
    /// The loop that computes, where it is not ours.
    pub(crate) external: Option<ExternalLoop>,
    pub(crate) timeline: bool,
    /// Above every number of a bucket that a message may carry.
    pub(crate) buckets: u32,
    /// What it did before.
    pub(crate) report: RankReport,
    pub(crate) cutting: CutState,
}

impl RankState {
    pub(crate) fn new(config: RankConfig, peers: Vec<Peer>) -> RankState {
        let RankConfig {
            node,
            properties,
            clock,
            options,
            controller,
            compute,
            external,
            timeline,
            buckets,
            ..
        } = config;
        let report = RankReport { rank: node.rank.0, is_server: node.is_server, ..config.report };
        let ranks = peers.len();
        RankState {
            life_cycle: LifeCycle::new(node.is_server),
            all_buckets: node.layout().buckets.len(),
            node,
            properties,
            options,
            peers,
            touched: Vec::new(),
            controller,
            compute,
            external,
            handed: 0,
            tickets: RankTickets::default(),
            pending: None,
            idle: None,
            computing_since: None,
            moved: clock.now(),
            clock,
            sent: 0,
            received: 0,
            timeline,
            report,
            buckets,
            cutting: config.cutting,
            asked: Vec::new(),
            sent_to: vec![0; ranks],
            received_from: vec![0; ranks],
            salvage: Salvage::None,
            still: StoodStill::new(),
            stood_still: Time::ZERO,
        }
    }

    pub(crate) fn start(&mut self) {
        self.node.start(self.clock.now());
        self.settle();
    }

    /// Whether a message from another process can be one of this run: those of a view to come
    /// would be held, and real runs have one view; those of a bucket that does not exist would be
    /// kept for a step that never asks for them.
    pub(crate) fn check(&self, message: &Message) -> Result<(), String> {
        let view = self.node.view().number;
        if message.view > view {
            return Err(format!("it is of view {}, this rank is in view {view}", message.view));
        }
        if message.bucket >= self.buckets {
            return Err(format!("there is no bucket {}", message.bucket));
        }
        Ok(())
    }

    /// A message has arrived, handed over at `sent_micros`.
    pub(crate) fn message(&mut self, from: Rank, sent_micros: u32, message: Message) {
        let now = self.clock.now();
        self.moved = now;
        self.received += 1;
        self.received_from[from.index()] += 1;
        let bytes = frame::frame_bytes(&message);
        self.report.bytes_received += bytes;
        if self.timeline {
            let micros = ((now.0 / 1000) as u32).wrapping_sub(sent_micros);
            // Clocks of two machines agree only roughly; a negative span is taken as none.
            let seconds = if micros < 1 << 31 { f64::from(micros) / 1e6 } else { 0.0 };
            let event = RecordKind::Transfer { to: self.node.rank.0, bytes, seconds };
            let (t, step) = (now.seconds() - seconds, message.step);
            self.tell(RankEvent::Record(Record { t, rank: from.0, step, event }));
        }
        self.node.message(now, from, message);
        self.settle();
    }

    /// A bucket of the gradient is final.
    pub(crate) fn bucket(&mut self, b: usize) {
        let now = self.clock.now();
        self.moved = now;
        self.hand_over(now, b);
    }

    fn hand_over(&mut self, now: Time, b: usize) {
        self.handed = b + 1;
        self.node.bucket(now, b);
        self.carry_out();
        self.flush();
    }

    /// The gradient is complete.
    pub(crate) fn gradient(&mut self, gradient: Gradient) {
        let Gradient { computed, took } = gradient;
        let took = took.map(|took| took.as_secs_f64());
        let now = self.take_gradient(self.node.step(), computed, took);
        for b in self.handed..self.all_buckets {
            self.hand_over(now, b);
        }
        self.node.gradient(now, computed);
        self.settle();
    }

    /// Notes that a gradient is complete, and what computing it took: if nobody says, all the time
    /// since it was asked for.
    fn take_gradient(&mut self, step: u64, computed: Computed, took: Option<f64>) -> Time {
        let now = self.clock.now();
        self.moved = now;
        let asked = self.computing_since.take().unwrap_or(now);
        let passed = now.since(asked).seconds();
        let compute_seconds = took.unwrap_or(passed);
        let handing_seconds = (passed - compute_seconds).max(0.0);
        self.report.compute_seconds += compute_seconds;
        self.report.samples += u64::from(computed.samples);
        self.report.last_loss = computed.loss;
        let samples = computed.samples;
        self.pending = Some(Pending { step, done: now, compute_seconds, samples, handing_seconds });
        if self.timeline {
            let t = now.seconds() - compute_seconds;
            let event = RecordKind::Compute { seconds: compute_seconds };
            self.tell(RankEvent::Record(Record { t, rank: self.node.rank.0, step, event }));
        }
        now
    }

    /// The external loop has run its optimizer.
    pub(crate) fn optimized(&mut self) {
        self.moved = self.clock.now();
        for (bucket, _) in std::mem::take(&mut self.asked) {
            self.node.optimized(self.moved, bucket);
        }
        self.settle();
    }

    /// The external loop computes no more gradients; the last that it was asked for is not to be.
    pub(crate) fn loop_finished(&mut self) {
        self.moved = self.clock.now();
        self.node.cancel_gradient();
        self.computing_since = None;
        self.finish();
        self.settle();
    }

    /// A command of the controller has come. `true`: it was the last one.
    pub(crate) fn command(&mut self, command: Command) -> bool {
        if let Command::Progress { done } | Command::Grant { done } = command {
            self.node.progress(done);
        }
        // What the others do is no sign that this rank moves.
        if matches!(command, Command::Progress { .. }) {
            self.show_progress();
            return false;
        }
        self.moved = self.clock.now();
        let Some(command) = self.cut_command(command) else {
            self.settle();
            return false;
        };
        match command {
            Command::Grant { .. } => {
                self.tickets.granted += 1;
                self.tickets.held += 1;
                self.tickets.asked = None;
            }
            Command::Deny => {
                self.tickets.exhausted = true;
                self.tickets.asked = None;
            }
            Command::Drain => {
                self.life_cycle.drain();
                self.node.drain(self.moved);
            }
            Command::Probe(probe) => self.tell(RankEvent::Probed {
                rank: self.node.rank.0,
                probe,
                drained: self.life_cycle.is_draining() && self.node.is_drained(),
                sent: self.sent,
                received: self.received,
            }),
            Command::Finish => {
                let report = self.final_report();
                self.tell(RankEvent::Report(Box::new(report)));
                return true;
            }
            Command::Salvage => self.salvage = Salvage::Asked,
            Command::Explain => {
                let account = Box::new(self.account());
                self.tell(RankEvent::Account { rank: self.node.rank.0, account });
            }
            Command::Abort(_) => return true,
            _ => {}
        }
        self.settle();
        false
    }

    /// Called now and then: says that it is alive, and complains when it has waited too long.
    pub(crate) fn tick(&mut self) {
        let (now, rank) = (self.clock.now(), self.node.rank.0);
        self.excuse(now);
        // An outer loop that is at its optimizer computes too.
        let optimizing = !self.asked.is_empty() && self.asked.len() == self.all_buckets;
        let gathering = self.external.as_ref().is_some_and(ExternalLoop::is_gathering);
        let computing = !gathering && (self.computing_since.is_some() || optimizing);
        let waiting = gathering || !computing && !self.node.awaiting().is_empty();
        let (sent, received) = (self.sent, self.received);
        self.tell(RankEvent::Heartbeat { rank, computing, waiting, gathering, sent, received });
        if gathering {
            return;
        }
        if let Some(since) = self.computing_since {
            let seconds = now.since(since).seconds() - self.stood_still.seconds();
            if seconds > self.options.compute_seconds {
                let reason =
                    format!("its gradient of step {} takes {seconds:.1} s", self.node.step());
                self.tell(RankEvent::Failed { rank, reason });
            }
            return;
        }
        let waited = now.since(self.moved).seconds();
        if waited >= self.options.peer_seconds && self.life_cycle != LifeCycle::Finished {
            let complaint = self.complaint(waited);
            if !complaint.is_empty() {
                self.tell(RankEvent::Stalled { rank, complaint });
            }
        }
    }

    /// "rank 2 waited 30.0 s for rank 1: …"
    fn complaint(&self, waited: f64) -> String {
        let (rank, step) = (self.node.rank, self.node.step());
        let mut sentences = self.node.awaiting().into_iter().map(|awaited| {
            let what = awaited.what;
            format!("{rank} waited {waited:.1} s for {}: {what} of step {step}", awaited.from)
        });
        // Whoever waits for many is told about one, or the sentence is not read.
        let first = sentences.next().unwrap_or_default();
        match sentences.count() {
            0 => first,
            more => format!("{first} (and for {more} more)"),
        }
    }

    /// A peer is gone.
    pub(crate) fn lost(&self, peer: Rank, reason: String) {
        self.tell(RankEvent::Lost { rank: self.node.rank.0, peer: peer.0, reason });
    }

    /// This rank cannot continue.
    pub(crate) fn failed(&self, reason: String) {
        self.tell(RankEvent::Failed { rank: self.node.rank.0, reason });
    }

    fn tell(&self, event: RankEvent) {
        // A controller that is gone needs no telling: its host ends this rank.
        let _ = self.controller.send(Incoming::Event(event));
    }

    /// After every event: sends what is to be sent, and goes on if the node wants to. The kernel
    /// copies what it is given: whoever computes on another thread need not wait for that.
    fn settle(&mut self) {
        self.carry_out();
        if self.compute.as_ref().is_some_and(|compute| compute.is_inline()) {
            self.flush();
        }
        self.complete_step();
        self.cut_if_due();
        self.salvage_if_asked();
        // Before the loop's next turn, which it may read in.
        self.show_progress();
        self.go_on();
        self.flush();
    }

    fn show_progress(&self) {
        if let Some(external) = &self.external {
            external.show_global_step(self.node.global_step());
        }
    }

    fn carry_out(&mut self) {
        let now = self.clock.now();
        let sent_micros = (now.0 / 1000) as u32;
        let (from, step) = (self.node.rank, self.node.step());
        for effect in self.node.take_effects() {
            match effect {
                Effect::Send { to, message } => {
                    self.sent += 1;
                    self.sent_to[to.index()] += 1;
                    self.report.messages_sent += 1;
                    self.report.bytes_sent += frame::frame_bytes(&message);
                    match &self.peers[to.index()] {
                        Peer::Local(inbox) => {
                            // A rank that has ended is known to the controller.
                            let _ = inbox.send(Inbox::Message { from, sent_micros, message });
                        }
                        Peer::Remote(link) => {
                            let route = Route { from, to };
                            link.push(frame::encode_header(route, sent_micros, &message), message);
                            self.touched.push(Rc::clone(link));
                        }
                        Peer::Own => unreachable!("nobody sends to themselves"),
                    }
                }
                Effect::Measure(fact) => {
                    let event = self.report.take(fact);
                    let record = Record { t: now.seconds(), rank: from.0, step, event };
                    let _ = self.controller.send(Incoming::Event(RankEvent::Record(record)));
                }
                Effect::Optimize { bucket, mode, .. } => {
                    self.asked.push((bucket, mode));
                    if let Some(external) = &self.external
                        && self.asked.len() == self.all_buckets
                    {
                        external.optimize(mode);
                    }
                }
                Effect::Work { .. } | Effect::JumpToStep(_) => {}
            }
        }
    }

    /// Gives to the kernel what is to be sent.
    fn flush(&mut self) {
        for link in self.touched.drain(..) {
            // A broken connection is reported by whoever reads it.
            let _ = link.flush();
        }
    }

    fn complete_step(&mut self) {
        let complete = |pending: &mut Pending| self.node.step() > pending.step;
        if let Some(pending) = self.pending.take_if(complete) {
            self.idle = Some(pending);
        }
    }

    /// Splits the time of the last step, from its gradient to the next one. What is neither
    /// computing nor waiting for a slower peer is communication, the way of a gradient between
    /// threads included.
    fn split_time(&mut self) {
        let Some(pending) = self.idle.take() else { return };
        let now = self.clock.now();
        let idle = now.since(pending.done);
        let waiting = if self.properties.waits_for_peers {
            self.node.origin().since(pending.done).min(idle)
        } else {
            Time::ZERO
        };
        let exposed = (idle - waiting).seconds() + pending.handing_seconds;
        self.report.steps += 1;
        self.report.waiting_seconds += waiting.seconds();
        self.report.exposed_seconds += exposed;
        let event = RecordKind::Step {
            loss: self.report.last_loss,
            samples: pending.samples,
            compute: pending.compute_seconds,
            exposed,
            waiting: waiting.seconds(),
        };
        let (t, rank) = (now.seconds(), self.node.rank.0);
        self.tell(RankEvent::Record(Record { t, rank, step: pending.step, event }));
    }

    /// Starts the next gradient, or asks for the right to, or finishes.
    fn go_on(&mut self) {
        if self.is_held() || self.life_cycle.is_finished() || self.pending.is_some() {
            return;
        }
        if self.node.has_finished_rounds() {
            self.finish();
        } else if self.node.wants_gradient() {
            match self.properties.budget {
                // The outer loop decides by itself how many there are.
                _ if self.external.is_some() => self.compute(),
                Budget::Rounds => self.compute(),
                Budget::TotalGradients if self.tickets.held > 0 => {
                    self.tickets.held -= 1;
                    self.compute();
                    self.ask(false);
                }
                Budget::TotalGradients if self.tickets.exhausted => self.finish(),
                Budget::TotalGradients => self.ask(true),
            }
        }
    }

    fn compute(&mut self) {
        self.split_time();
        self.computing_since = Some(self.clock.now());
        self.stood_still = Time::ZERO;
        self.handed = 0;
        let loan = self.node.lend();
        self.compute.as_mut().expect("only workers want gradients").begin(loan);
    }

    /// Asks for a ticket, unless it has been done as urgently, or there are none.
    fn ask(&mut self, urgent: bool) {
        if self.tickets.exhausted || self.tickets.asked >= Some(urgent) {
            return;
        }
        self.tickets.asked = Some(urgent);
        let number = self.tickets.granted + 1;
        self.tell(RankEvent::Ticket { rank: self.node.rank.0, number, urgent });
    }

    fn finish(&mut self) {
        self.split_time();
        self.life_cycle.finish();
        self.tell(RankEvent::Finished { rank: self.node.rank.0, at: self.clock.now() });
    }

    fn final_report(&mut self) -> RankReport {
        let mut report = std::mem::take(&mut self.report);
        if self.options.report_models {
            (report.params, report.model) = self.node.retire();
        }
        report
    }
}
