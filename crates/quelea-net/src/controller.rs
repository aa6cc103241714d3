//! Drives the controller of a run: carries events of ranks to it and its commands to them, by the real
//! clock.

mod link;

use std::collections::BTreeSet;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use quelea_control::{
    Command, Controller, ControllerConfig, ControllerSeat, Inheritance, MemberState, PeerMessage,
    QuorumRule, RankEvent, Recipient, RunFailure,
};
use quelea_core::time::Time;
use quelea_record::{Observer, Outcome};

use crate::clock::RunClock;
use crate::error::NetError;
use crate::local_ranks::ProcessContext;
use crate::protocol::{self, SetupMessage};
use crate::rendezvous::HeldBytes;
use crate::rendezvous::admission::JoinedWorker;
use crate::rendezvous::joiners::Joiners;
use crate::running_time::StoodStill;
use crate::trust::ControlStream;
use link::Delivery;
pub(crate) use link::{ControlLink, EnteringLink, TransferredState};

/// How long a rank of an aborted run may take to read a command.
const ABORT_WRITE_LIMIT: Duration = Duration::from_millis(500);

/// What reaches the controller.
#[derive(Debug)]
pub(crate) enum Incoming {
    /// A rank says something.
    Event(RankEvent),
    /// A rank of another process says something, which counts against its budget until it is heard.
    Said { event: RankEvent, held: HeldBytes },
    /// Something has arrived from the process of a rank.
    Alive { rank: u32, at: Instant },
    /// The process of a rank has gone.
    Gone { rank: u32, reason: String },
    /// A worker that joins is connected with all others.
    Connected(JoinedWorker),
    /// The state of a worker that enters is on its way to it, whole.
    Transferred(TransferredState),
    /// It is not, for this reason.
    NotConnected { rank: u32, reason: String },
    /// The controller has ended the run; only in a joined process, as all that follow.
    Aborted(String),
    /// The run has ended well.
    Ended,
    /// This connection with a controller, or with one that wants to be, has ended.
    LineEnded { line: u32, reason: String },
    /// The controller at the other end of this line has said its first word.
    Met { line: u32 },
    /// A view that is to be stored, or is in force.
    Heard(Command),
    /// A worker that joins listens there.
    Moved { rank: u32, address: String },
    /// What a new controller needs to know of the rank of this process.
    Share(Box<MemberState>),
    /// The process of a rank has something to say about who controls the run.
    Line { rank: u32, stream: ControlStream },
    /// A call to the process of a rank was answered, or why not.
    Called { rank: u32, answer: Result<ControlStream, String> },
    /// A rank says something about who controls the run.
    Peer { rank: u32, message: PeerMessage },
}

/// The controller with its links and its clock.
struct ControllerDriver {
    controller: Controller,
    links: Vec<ControlLink>,
    clock: RunClock,
    still: StoodStill,
    /// Ranks that were told to leave and have not reported.
    leaving: BTreeSet<u32>,
    joiners: Option<Joiners>,
    /// How long writing the state of a worker that joins may take.
    entrance_limit: Duration,
    /// A rank that does not read must not keep the end of the run from others.
    hurries: bool,
}

/// What another process has left behind for the controller of this one.
pub(crate) struct TakenOver {
    pub(crate) inheritance: Inheritance,
    /// How ranks receive commands.
    pub(crate) links: Vec<ControlLink>,
    /// What they have said since they voted.
    pub(crate) early: Vec<RankEvent>,
    /// How workers join from now on, if they can.
    pub(crate) joiners: Option<Joiners>,
}

/// Decides for the run until its end. On failure every rank has been told.
pub(crate) fn run(
    context: &ProcessContext,
    links: Vec<ControlLink>,
    joiners: Option<Joiners>,
    observer: &mut dyn Observer,
    incoming: &Receiver<Incoming>,
) -> Result<Outcome, NetError> {
    let own_ranks = own_ranks(&links);
    let mut controller = Controller::new(config(context, &own_ranks), context.clock.now());
    if let Some(survival) = &context.survival {
        let (rank, quorum) = (survival.controller, survival.quorum);
        controller.sit(ControllerSeat { rank, term: FIRST_TERM, quorum });
    }
    drive(ControllerDriver::new(context, controller, links, joiners), observer, incoming)
}

/// Decides for the run from now on, until its end, in the place of a process that is gone.
pub(crate) fn take_over(
    context: &ProcessContext,
    taken: TakenOver,
    observer: &mut dyn Observer,
    incoming: &Receiver<Incoming>,
) -> Result<Outcome, NetError> {
    let TakenOver { inheritance, links, early, joiners } = taken;
    let (own_ranks, now) = (own_ranks(&links), context.clock.now());
    let config = config(context, &own_ranks);
    let quorum = context.survival.as_ref().map_or(QuorumRule::Majority, |survival| survival.quorum);
    let controller = Controller::take_over(config, now, &inheritance, quorum, observer);
    let mut driver = ControllerDriver::new(context, controller, links, joiners);
    for event in early {
        driver.handle(now, event, observer);
    }
    drive(driver, observer, incoming)
}

/// The term of a run's first controller.
pub(crate) const FIRST_TERM: u32 = 1;

/// Ranks of this process.
fn own_ranks(links: &[ControlLink]) -> Vec<u32> {
    let is_local = |rank: &u32| matches!(links[*rank as usize], ControlLink::Local(_));
    (0..links.len() as u32).filter(is_local).collect()
}

fn config<'a>(context: &'a ProcessContext, own_ranks: &'a [u32]) -> ControllerConfig<'a> {
    ControllerConfig {
        setup: &context.setup,
        start: &context.start,
        schedule: context.schedule,
        limits: context.options.control_limits(),
        on_loss: context.options.on_loss,
        watches: true,
        waits_for_disk: true,
        own_ranks,
        is_external: context.is_external,
    }
}

fn drive(
    mut driver: ControllerDriver,
    observer: &mut dyn Observer,
    incoming: &Receiver<Incoming>,
) -> Result<Outcome, NetError> {
    loop {
        let now = driver.hear(incoming, observer)?;
        let ended = driver.controller.poll(now, observer);
        // What is said to all from now on is said to those who have just entered, too.
        driver.start_entrances();
        driver.deliver();
        match ended {
            Ok(None) => {}
            Ok(Some(outcome)) => {
                driver.say_that_it_ended();
                return Ok(outcome);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

impl ControllerDriver {
    fn new(
        context: &ProcessContext,
        controller: Controller,
        links: Vec<ControlLink>,
        joiners: Option<Joiners>,
    ) -> ControllerDriver {
        ControllerDriver {
            controller,
            links,
            clock: context.clock,
            still: StoodStill::new(),
            leaving: BTreeSet::new(),
            joiners,
            entrance_limit: Duration::from_secs_f64(context.options.peer_seconds / 4.0),
            hurries: false,
        }
    }

    /// Everybody's report is here: nobody has to take over.
    fn say_that_it_ended(&self) {
        for link in &self.links {
            if let ControlLink::Remote(stream) = link {
                // One that is gone has reported too.
                let _ = protocol::write(stream, &SetupMessage::Ended);
            }
        }
    }

    /// Waits for what a rank says, at most until the controller's next deadline. Returns the time until
    /// which it is known for how long this process stood still; if it stands still after that, nobody is
    /// judged by a later one.
    fn hear(
        &mut self,
        incoming: &Receiver<Incoming>,
        observer: &mut dyn Observer,
    ) -> Result<Time, NetError> {
        self.joiners.iter_mut().for_each(|joiners| joiners.attend(&mut self.links));
        self.vouch_for_entering();
        let wait = self.controller.next_deadline().since(self.clock.now());
        let asked = self.clock.now();
        let word = incoming.try_recv().or_else(|_| {
            self.controller.caught_up(asked);
            incoming.recv_timeout(Duration::from_nanos(wait.0))
        });
        let (now, still) = (self.clock.now(), self.still.take());
        if !still.is_zero() {
            self.controller.excuse(now, Time(still.as_nanos() as u64));
        }
        match word {
            Ok(Incoming::Event(event)) => self.handle(now, event, observer),
            Ok(Incoming::Said { event, held }) => {
                self.handle(now, event, observer);
                drop(held);
            }
            Ok(Incoming::Alive { rank, at }) => self.controller.alive(self.clock.at(at), rank),
            Ok(Incoming::Gone { rank, reason }) => {
                if let Some(joiners) = &mut self.joiners
                    && joiners.waiting.contains_key(&rank)
                {
                    joiners.give_up(rank, &reason);
                }
                self.controller.gone(now, rank, reason);
            }
            Ok(Incoming::Connected(worker)) => self.let_join(worker),
            Ok(Incoming::Transferred(state)) => self.transferred(state, observer),
            Ok(Incoming::NotConnected { rank, reason }) => {
                self.joiners.iter_mut().for_each(|joiners| joiners.give_up(rank, &reason));
            }
            Ok(Incoming::Aborted(reason)) => return Err(NetError::Aborted(reason)),
            // Words of the time before this process has taken over, and calls that come too late.
            Ok(
                Incoming::Ended
                | Incoming::LineEnded { .. }
                | Incoming::Met { .. }
                | Incoming::Heard(_)
                | Incoming::Moved { .. }
                | Incoming::Share(_)
                | Incoming::Line { .. }
                | Incoming::Called { .. }
                | Incoming::Peer { .. },
            )
            | Err(_) => {}
        }
        Ok(now)
    }

    /// A rank says something.
    fn handle(&mut self, now: Time, event: RankEvent, observer: &mut dyn Observer) {
        let reporter =
            if let RankEvent::Report(report) = &event { Some(report.rank) } else { None };
        self.controller.handle(now, event, observer);
        if let Some(rank) = reporter.filter(|rank| self.leaving.remove(rank)) {
            // Its process ends when it sees that this was all.
            self.links[rank as usize] = ControlLink::Broken;
        }
    }

    /// A worker is connected with all others: it enters at the next cut, if it can.
    fn let_join(&mut self, worker: JoinedWorker) {
        let Some(joiners) = &mut self.joiners else { return };
        match self.controller.join(worker.rank) {
            Ok(()) => joiners.keep(worker),
            Err(reason) => joiners.refuse(&worker, &reason),
        }
    }

    /// Sends those who enter their state. The others continue meanwhile.
    fn start_entrances(&mut self) {
        for entrance in self.controller.take_entrances() {
            let (rank, limit, now) = (entrance.rank, self.entrance_limit, self.clock.now());
            let Some(joiners) = &mut self.joiners else { continue };
            match joiners.start(entrance, limit, now) {
                Ok(link) => self.links[rank as usize] = ControlLink::Entering(link),
                Err(reason) => self.controller.gone(now, rank, reason),
            }
        }
    }

    /// A worker that reads its state says nothing; whether it reads is seen by the thread that writes.
    fn vouch_for_entering(&mut self) {
        for (rank, link) in self.links.iter().enumerate() {
            if let ControlLink::Entering(_) = link {
                self.controller.alive(self.clock.now(), rank as u32);
            }
        }
    }

    /// The state of a worker that enters has gone out, or has not.
    fn transferred(&mut self, state: TransferredState, observer: &mut dyn Observer) {
        let TransferredState { rank, number, sent } = state;
        let link = &mut self.links[rank as usize];
        if !link.is_entering(number) {
            return;
        }
        match sent.and_then(|record| link.complete().map(|()| record)) {
            Ok(record) => observer.record(record),
            Err(reason) => {
                *link = ControlLink::Broken;
                self.controller.gone(self.clock.now(), rank, reason);
            }
        }
    }

    fn deliver(&mut self) {
        if self.controller.is_aborting() && !std::mem::replace(&mut self.hurries, true) {
            for link in &self.links {
                if let ControlLink::Remote(stream) = link {
                    let _ = stream.set_write_timeout(Some(ABORT_WRITE_LIMIT));
                }
            }
        }
        let orders: Vec<_> = self.controller.take_orders().collect();
        for order in orders {
            // A rank that is the only one to receive the end has left the run.
            let ends = matches!(order.command, Command::Abort(_) | Command::Leave);
            if let (Recipient::Rank(rank), Some(joiners), true) = (order.to, &self.joiners, ends) {
                joiners.admission.vacate(rank);
            }
            let ranks = match order.to {
                Recipient::Rank(rank) => rank..rank + 1,
                Recipient::All => 0..self.links.len() as u32,
            };
            for rank in ranks {
                let told = self.links[rank as usize].tell(&order.command);
                if order.command == Command::Leave {
                    self.leaving.insert(rank);
                }
                match told {
                    Delivery::Sent => {}
                    Delivery::Closed => self.controller.unreachable(rank),
                    Delivery::Failed(reason) => {
                        self.controller.gone(self.clock.now(), rank, reason);
                    }
                }
            }
        }
    }
}

impl From<RunFailure> for NetError {
    fn from(error: RunFailure) -> NetError {
        match error {
            RunFailure::Lost { rank, reason } => NetError::Lost { rank, reason },
            RunFailure::Stalled(text) => NetError::Stalled(text),
            RunFailure::NoQuorum(missing) => NetError::NoQuorum(missing),
            RunFailure::Failed { rank, reason } | RunFailure::Poisoned { rank, reason } => {
                NetError::Failed { rank, reason }
            }
            RunFailure::Stopped { step, reason } => NetError::Stopped { step, reason },
        }
    }
}
