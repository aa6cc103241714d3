//! One rank on its thread: drives its machine by the real clock and carries out its effects.

mod outside;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc;

use quelea_control::{Command, GradientTime, LoopStatus, RankEvent, RankMachine};
use quelea_core::contract::{Effect, Mode};
use quelea_core::message::{Message, Rank};
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_core::view::{View, ViewChange};
use quelea_record::{Record, RecordKind};
use quelea_wire::frame;

use crate::clock::RunClock;
use crate::compute::{Compute, Gradient};
use crate::controller::Incoming;
use crate::early_frames::EarlyFrames;
use crate::external_loop::ExternalLoop;
use crate::leave::LeaveNotice;
use crate::running_time::StoodStill;
use crate::self_survey;
use crate::transport::{Doors, Link, LinkError, RankEndpoint};

/// What reaches a rank from other threads.
#[derive(Debug)]
pub(crate) enum Inbox {
    /// A bucket of the gradient is final, before the rest.
    Bucket(usize),
    /// The gradient is complete.
    Gradient(Gradient),
    /// The external loop has run its optimizer on every bucket.
    Optimized,
    /// The external loop computes no more gradients.
    Finished,
    /// The external loop's own state.
    LoopState(Vec<u8>),
    /// The gradient's thread cannot continue.
    Broken(String),
    /// A command of the controller.
    Command(Command),
    /// A worker that joins has connected.
    Peer(Box<dyn RankEndpoint>),
    /// The controller is gone: the rank's share of its state is wanted.
    Share,
    /// Another controller has taken over.
    MeetController,
}

/// A rank.
pub(crate) struct RankState {
    setup: RunSpec,
    machine: RankMachine,
    clock: RunClock,
    /// By peer; none to itself.
    links: Vec<Option<Rc<dyn Link>>>,
    /// How often each peer was replaced by one that joined.
    replacements: Vec<u32>,
    doors: Doors,
    /// The view of the others before this rank joins.
    joins_after: Option<Arc<View>>,
    /// Links with something new to send.
    touched: Vec<Rc<dyn Link>>,
    controller: mpsc::Sender<Incoming>,
    notice: Notice,
    compute: Option<Box<dyn Compute>>,
    external: Option<ExternalLoop>,
    /// Buckets of the gradient being computed that are handed over.
    handed: usize,
    timeline: bool,
    /// Above every number of a bucket that a message may carry.
    bucket_numbers: u32,
    /// Frames of steps to come, where steps of different ranks can be compared.
    early: Option<EarlyFrames>,
    /// Buckets on which the external loop is to run its optimizer.
    asked: Vec<(usize, Mode)>,
    all_buckets: usize,
    /// The state of this rank, which waits for that of its external loop.
    unsaved: Option<RankEvent>,
    still: StoodStill,
    /// Memory for the effects of one event.
    effects: Vec<Effect>,
}

/// Notice to leave, and whether the controller was told.
struct Notice {
    given: LeaveNotice,
    is_told: bool,
}

/// What a rank is made of.
pub(crate) struct RankConfig {
    pub(crate) setup: RunSpec,
    pub(crate) machine: RankMachine,
    pub(crate) clock: RunClock,
    pub(crate) controller: mpsc::Sender<Incoming>,
    pub(crate) leave: LeaveNotice,
    pub(crate) doors: Doors,
    /// The view of the others before this rank joins, if it does.
    pub(crate) joins_after: Option<Arc<View>>,
    /// Absent at a server.
    pub(crate) compute: Option<Box<dyn Compute>>,
    /// The loop that computes, where it is not ours.
    pub(crate) external: Option<ExternalLoop>,
    pub(crate) timeline: bool,
    /// Above every number of a bucket that a message may carry.
    pub(crate) bucket_numbers: u32,
}

impl RankState {
    pub(crate) fn new(config: RankConfig, links: Vec<Option<Rc<dyn Link>>>) -> RankState {
        let RankConfig { setup, machine, clock, controller, compute, external, .. } = config;
        RankState {
            early: setup
                .properties()
                .synchronous
                .then(|| EarlyFrames::new(setup.ranks(), config.bucket_numbers as usize)),
            setup,
            all_buckets: machine.node().layout().buckets.len(),
            machine,
            clock,
            replacements: vec![0; links.len()],
            doors: config.doors,
            joins_after: config.joins_after,
            links,
            touched: Vec::new(),
            controller,
            notice: Notice { given: config.leave, is_told: false },
            compute,
            external,
            handed: 0,
            timeline: config.timeline,
            bucket_numbers: config.bucket_numbers,
            asked: Vec::new(),
            unsaved: None,
            still: StoodStill::new(),
            effects: Vec::new(),
        }
    }

    pub(crate) fn start(&mut self) {
        self.show_workers();
        match self.joins_after.take() {
            Some(old) => self.machine.enter(self.clock.now(), &old),
            None => self.machine.start(self.clock.now()),
        }
        self.settle();
    }

    /// A worker that joins as `peer` has connected. How often that peer was replaced until now.
    pub(crate) fn meet(&mut self, peer: Rank, link: Rc<dyn Link>) -> u32 {
        self.machine.meet(peer);
        self.early.iter_mut().for_each(|early| early.reset(peer));
        self.links[peer.index()] = Some(link);
        self.replacements[peer.index()] += 1;
        self.replacements[peer.index()]
    }

    /// Whether a link made after this number of replacements of its peer is still in use.
    pub(crate) fn is_current(&self, peer: Rank, replacements: u32) -> bool {
        self.replacements[peer.index()] <= replacements
    }

    /// Whether a message from another process can be one of this run: those of a view to come are held
    /// until this rank has entered it, and others enter one only after this rank has been told to expect
    /// it; those of a bucket that does not exist would be kept for a step that never asks for them, and too
    /// many of steps to come for long.
    pub(crate) fn check(&mut self, from: Rank, message: &Message) -> Result<(), String> {
        let view = self.machine.node().view().number;
        if message.view > self.machine.latest_view() {
            return Err(format!("it is of view {}, this rank is in view {view}", message.view));
        }
        if message.bucket >= self.bucket_numbers {
            return Err(format!("there is no bucket {}", message.bucket));
        }
        let Some(early) = &mut self.early else { return Ok(()) };
        let node = self.machine.node();
        let own = if node.is_server { early.latest_of_others(from) } else { node.step() };
        early.take(from, message.step, own)
    }

    /// A message has arrived, handed over at `sent_micros`.
    pub(crate) fn message(&mut self, from: Rank, sent_micros: u32, message: Message) {
        let now = self.clock.now();
        let bytes = frame::frame_bytes(&message);
        if self.timeline {
            let micros = ((now.0 / 1000) as u32).wrapping_sub(sent_micros);
            // Clocks of two machines agree only roughly; a negative span is taken as none.
            let seconds = if micros < 1 << 31 { f64::from(micros) / 1e6 } else { 0.0 };
            let to = self.machine.node().rank.0;
            let event = RecordKind::Transfer { to, bytes, seconds };
            let (t, step) = (now.seconds() - seconds, message.step);
            self.tell(RankEvent::Record(Record { t, rank: from.0, step, event }));
        }
        self.machine.message(now, from, message, bytes);
        self.settle();
    }

    /// A bucket of the gradient is final.
    pub(crate) fn bucket(&mut self, b: usize) {
        self.hand_over(self.clock.now(), b);
    }

    fn hand_over(&mut self, now: Time, b: usize) {
        self.handed = b + 1;
        self.machine.bucket(now, b);
        self.carry_out();
        self.flush();
    }

    /// The gradient is complete. What computing it took: if nobody says, all the time since it was
    /// asked for.
    pub(crate) fn gradient(&mut self, gradient: Gradient) {
        let Gradient { computed, took } = gradient;
        let now = self.clock.now();
        for b in self.handed..self.all_buckets {
            self.hand_over(now, b);
        }
        let passed = now.since(self.machine.computing_since().unwrap_or(now));
        let compute = took.map_or(passed, |took| Time(took.as_nanos() as u64));
        let spent = GradientTime { compute, exposed: passed.since(compute), waiting: Time::ZERO };
        self.machine.gradient(now, computed, spent);
        self.settle();
    }

    /// A command of the controller has come. `true`: it was the last one.
    pub(crate) fn command(&mut self, command: Command) -> bool {
        if let Command::View(change) = command {
            self.change_view(&change);
            return false;
        }
        if command == Command::Leave {
            self.notice.given.note_left();
        }
        let is_progress = matches!(command, Command::Progress { .. });
        let is_last = self.machine.command(self.clock.now(), command);
        if is_progress {
            self.show_progress();
        } else if is_last {
            self.tell_all();
        } else {
            self.settle();
        }
        is_last
    }

    /// Enters the view that follows its own.
    fn change_view(&mut self, change: &ViewChange) {
        let view = self.machine.node().view();
        if change.number != view.number + 1 {
            return;
        }
        let view = Arc::new(self.setup.view_after(view, change));
        self.doors.miss(change.ranks());
        self.doors.welcome(&change.joined);
        self.machine.change_view(self.clock.now(), view);
        self.show_workers();
        if let Some(external) = &self.external {
            external.show_changes(std::slice::from_ref(change));
        }
        self.settle();
    }

    /// Called now and then: says that it is alive, and complains when it has waited too long.
    pub(crate) fn tick(&mut self) {
        let gathering = self.external.as_ref().is_some_and(ExternalLoop::is_gathering);
        let optimizing = !self.asked.is_empty() && self.asked.len() == self.all_buckets;
        let stood_still = Time(self.still.take().as_nanos() as u64);
        let status = LoopStatus { optimizing, gathering, stood_still };
        self.machine.tick(self.clock.now(), status);
        if self.notice.given.is_given() && !std::mem::replace(&mut self.notice.is_told, true) {
            self.machine.leave();
        }
        self.tell_all();
    }

    /// The connection with a peer broke and was restored.
    pub(crate) fn restored(&mut self, peer: Rank, reason: &str) {
        let own = self.machine.node().rank;
        let text = format!("{own} and {peer} were disconnected for a moment: {reason}");
        self.tell(RankEvent::Warning(text));
        self.machine.note_reconnected(self.clock.now(), peer);
        self.tell_all();
    }

    /// A peer is gone.
    pub(crate) fn lost(&mut self, peer: Rank, reason: String) {
        self.machine.lost(peer, reason);
        self.tell_all();
    }

    /// Says what a new controller needs to know of this rank; all that it has said before is in it.
    pub(crate) fn share(&mut self) {
        self.tell_all();
        let state = Box::new(self.machine.member_state());
        let _ = self.controller.send(Incoming::Share(state));
    }

    /// Another controller has taken over: says again what the one before may not have heard.
    pub(crate) fn meet_controller(&mut self) {
        self.machine.meet_controller();
        self.settle();
    }

    /// This rank cannot continue.
    pub(crate) fn failed(&mut self, reason: String) {
        self.machine.failed(reason);
        self.tell_all();
    }

    fn tell(&self, event: RankEvent) {
        // A controller that is gone needs no telling: its host ends this rank.
        let _ = self.controller.send(Incoming::Event(event));
    }

    fn tell_all(&mut self) {
        let is_sponsor = self.is_sponsor();
        for mut event in self.machine.take_events() {
            if let RankEvent::Surveyed { survey, .. } = &mut event {
                self_survey::complete(survey, &self.links, self.external.as_ref());
            }
            if let (RankEvent::Saved { .. }, Some(external), true) =
                (&event, &self.external, is_sponsor)
            {
                external.save();
                self.unsaved = Some(event);
                continue;
            }
            let _ = self.controller.send(Incoming::Event(event));
        }
    }

    /// After every event: sends what is to be sent, and starts the next gradient if the node wants one.
    /// The kernel copies what it is given: a gradient on another thread need not wait for that.
    fn settle(&mut self) {
        for refused in self.machine.take_refused() {
            self.machine.lost(refused.from, LinkError::Refused(refused.reason).to_string());
        }
        self.carry_out();
        if self.compute.as_ref().is_some_and(|compute| compute.is_inline()) {
            self.flush();
        }
        let loan = self.machine.advance(self.clock.now());
        self.tell_all();
        // Before the loop's next turn, which it may read it in.
        self.show_progress();
        if let Some(loan) = loan {
            self.handed = 0;
            self.compute.as_mut().expect("only workers want gradients").begin(loan);
        }
        self.flush();
    }

    fn carry_out(&mut self) {
        let now = self.clock.now();
        let sent_micros = (now.0 / 1000) as u32;
        let mut effects = std::mem::take(&mut self.effects);
        effects.extend(self.machine.take_effects());
        for effect in effects.drain(..) {
            match effect {
                Effect::Send { to, message } => {
                    self.machine.note_sent(to, frame::frame_bytes(&message));
                    let link = self.links[to.index()].as_ref();
                    let link = link.expect("every other rank has a link; nobody sends to itself");
                    link.push(sent_micros, message);
                    self.touched.push(Rc::clone(link));
                }
                Effect::Measure(fact) => self.machine.note_fact(now, fact),
                Effect::Optimize { bucket, mode, .. } => {
                    self.asked.push((bucket, mode));
                    self.machine.note_optimizing(self.external.is_some());
                    if let Some(external) = &self.external
                        && self.asked.len() == self.all_buckets
                    {
                        external.optimize(mode);
                    }
                }
                Effect::Work { .. } | Effect::JumpToStep(_) => {}
            }
        }
        self.effects = effects;
        self.tell_all();
    }

    /// Sends what is to be sent, as far as that needs no waiting.
    fn flush(&mut self) {
        for link in self.touched.drain(..) {
            // A broken connection is reported by the link's task.
            let _ = link.flush();
        }
    }
}
