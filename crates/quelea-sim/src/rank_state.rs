//! One rank as the driver holds it: its machine, its processor, and what waits at it.

use std::collections::VecDeque;

use quelea_control::{ControllerSuccession, RankEvent, RankMachine};
use quelea_core::message::{Message, Rank};
use quelea_core::time::Time;

use crate::compute::ComputePass;
use crate::takeover::FIRST_TERM;

/// One rank.
pub(crate) struct RankState {
    pub(crate) machine: RankMachine,
    /// Since when it takes part. What was sent to or by a worker before it in its place is not its own.
    pub(crate) since: Time,
    presence: Presence,
    /// Until when its processor is taken by arithmetic, hand-offs or a pause. Messages are read,
    /// sends go out, and gradients start only then.
    pub(crate) free: Time,
    /// Until when it stands still.
    paused_until: Time,
    /// Delivered messages that wait for the processor, in order of arrival.
    pub(crate) inbox: VecDeque<Arrived>,
    /// Sends that wait for the processor or for room in a link, in order.
    pub(crate) outbox: VecDeque<QueuedSend>,
    /// The earliest wake-up that is scheduled.
    pub(crate) wake: Option<Time>,
    /// The gradient that is being computed.
    pub(crate) running: Option<Running>,
    /// When the last view that was announced arrives.
    pub(crate) view_at: Time,
    /// Its part in who controls the run, where that may change.
    pub(crate) succession: Option<ControllerSuccession>,
    /// What no controller has taken: it has lost its own.
    pub(crate) untold: Vec<RankEvent>,
    /// The term of the last controller that it has met.
    pub(crate) met_term: u32,
    /// What was told to it, as the controller to be.
    pub(crate) early: Vec<RankEvent>,
}

/// Where a rank is between its entrance and its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Presence {
    /// It joins, and the state of its sponsor has not reached it yet.
    Entering,
    Training,
    /// It has received its last command.
    Ended,
    /// It is gone since `at`.
    Gone {
        at: Time,
        departure: Departure,
    },
}

/// What a rank that is gone had done before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Departure {
    /// It was lost while it trained.
    Crashed,
    /// It had received its last command.
    AfterItsEnd,
    /// It has left by agreement: what it had to say still arrives.
    Left,
}

/// A delivered message that waits for the processor.
pub(crate) struct Arrived {
    pub(crate) from: Rank,
    pub(crate) message: Message,
    pub(crate) bytes: u64,
    /// What taking it from the network still costs.
    pub(crate) handoff: Time,
    /// Whether it takes up room in its link until it is read.
    pub(crate) holds_link: bool,
}

/// A send that waits.
pub(crate) struct QueuedSend {
    /// When the processor has it ready.
    pub(crate) at: Time,
    pub(crate) to: Rank,
    pub(crate) message: Message,
}

/// A gradient that is being computed.
pub(crate) struct Running {
    pub(crate) pass: ComputePass,
    /// The bucket that is ready next.
    pub(crate) next: usize,
    /// When that is; an event at another time is of a gradient that was never finished.
    pub(crate) due: Time,
    /// How far the pass has fallen behind since its next event was scheduled.
    pub(crate) behind: Time,
    /// Time of this step that was spent on communication so far, and on waiting for others.
    pub(crate) exposed: Time,
    pub(crate) waiting: Time,
}

impl RankState {
    /// As it stands at `now`.
    pub(crate) fn new(machine: RankMachine, now: Time) -> RankState {
        RankState {
            machine,
            since: now,
            presence: Presence::Entering,
            free: now,
            paused_until: Time::ZERO,
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            wake: None,
            running: None,
            view_at: Time::ZERO,
            succession: None,
            untold: Vec::new(),
            met_term: FIRST_TERM,
            early: Vec::new(),
        }
    }

    /// Whether it is a server.
    pub(crate) fn is_server(&self) -> bool {
        self.machine.node().is_server
    }

    /// Takes the processor for `cost` more.
    pub(crate) fn occupy(&mut self, now: Time, cost: Time) {
        self.free = self.free.max(now) + cost;
    }

    /// Takes the processor for a hand-off, which also holds up a gradient that is being computed.
    pub(crate) fn hand_off(&mut self, now: Time, cost: Time) {
        self.occupy(now, cost);
        if let Some(running) = &mut self.running {
            running.behind = running.behind + cost;
            running.exposed = running.exposed + cost;
        }
    }

    /// Cannot continue before `until`, when a send has left its card.
    pub(crate) fn block(&mut self, now: Time, until: Time) {
        let longer = until.since(self.free.max(now));
        self.hand_off(now, longer);
    }

    /// Stands still until `until`.
    pub(crate) fn pause(&mut self, now: Time, until: Time) {
        // Where pauses overlap, the time counts once.
        let longer = until.since(now.max(self.paused_until));
        self.paused_until = self.paused_until.max(until);
        self.free = self.free.max(until);
        if let Some(running) = &mut self.running {
            running.behind = running.behind + longer;
            running.waiting = running.waiting + longer;
        }
    }

    /// Until when it stands still.
    pub(crate) fn paused_until(&self) -> Time {
        self.paused_until
    }

    /// It trains from now on. `false`: it is not one that waits to enter.
    pub(crate) fn begin(&mut self) -> bool {
        let enters = self.presence == Presence::Entering;
        if enters {
            self.presence = Presence::Training;
        }
        enters
    }

    /// It has received its last command.
    pub(crate) fn end(&mut self) {
        self.presence = Presence::Ended;
    }

    /// Loses the rank at `now`: what it had not completed or sent is gone, and a gradient that is being
    /// computed is never handed over.
    pub(crate) fn lose(&mut self, now: Time) {
        let departure = if self.has_ended() { Departure::AfterItsEnd } else { Departure::Crashed };
        self.presence = Presence::Gone { at: now, departure };
        self.outbox.clear();
    }

    /// The rank, which is gone, has left by agreement.
    pub(crate) fn leave(&mut self) {
        if let Presence::Gone { departure, .. } = &mut self.presence {
            *departure = Departure::Left;
        }
    }

    /// Whether it is not gone.
    pub(crate) fn is_alive(&self) -> bool {
        self.gone_since().is_none()
    }

    /// Its part in who controls the run, where that may change and it is not gone.
    pub(crate) fn living_succession(&mut self) -> Option<&mut ControllerSuccession> {
        let is_alive = self.is_alive();
        self.succession.as_mut().filter(|_| is_alive)
    }

    /// Since when it is gone, if it is.
    pub(crate) fn gone_since(&self) -> Option<Time> {
        match self.presence {
            Presence::Gone { at, .. } => Some(at),
            _ => None,
        }
    }

    /// Whether it has received its last command, and with it given its vectors away.
    pub(crate) fn has_ended(&self) -> bool {
        match self.presence {
            Presence::Entering | Presence::Training => false,
            Presence::Ended => true,
            Presence::Gone { departure, .. } => departure != Departure::Crashed,
        }
    }

    /// Whether it has left by agreement.
    pub(crate) fn has_left(&self) -> bool {
        matches!(self.presence, Presence::Gone { departure: Departure::Left, .. })
    }
}
