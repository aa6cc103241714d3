//! One rank as the driver holds it: its node, and what waits at it.

use std::collections::VecDeque;

use quelea_core::message::{Message, Rank};
use quelea_core::node::Node;
use quelea_core::problems::Computed;
use quelea_core::time::Time;
use quelea_record::RankReport;

use crate::compute::ComputePass;

/// One rank.
pub(crate) struct RankState {
    pub(crate) node: Node,
    pub(crate) report: RankReport,
    /// When it was lost, if it was.
    pub(crate) lost: Option<Time>,
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
    /// Where its current step stands.
    pub(crate) phase: StepPhase,
    /// When the last step was complete.
    pub(crate) ready_at: Time,
    /// Whether it has since been held up by a change of membership.
    pub(crate) frozen: bool,
    /// When the last view that was announced arrives.
    pub(crate) view_at: Time,
    /// The step of its last part in a cut.
    pub(crate) cut: u64,
}

/// Where a worker's current step stands: ready, computing, completing, ready again, and at last
/// finished. A server is always ready.
pub(crate) enum StepPhase {
    /// It may start a gradient.
    Ready,
    /// Its gradient is being computed.
    Computing(Running),
    /// Its gradient was handed over, and the step is not complete.
    Completing(Unready),
    /// It has done its share.
    Finished,
}

impl StepPhase {
    /// The gradient that is being computed.
    pub(crate) fn running(&self) -> Option<&Running> {
        if let StepPhase::Computing(running) = self { Some(running) } else { None }
    }

    /// The gradient that is being computed, to be changed.
    pub(crate) fn running_mut(&mut self) -> Option<&mut Running> {
        if let StepPhase::Computing(running) = self { Some(running) } else { None }
    }

    /// The step that is not complete.
    pub(crate) fn unready(&self) -> Option<&Unready> {
        if let StepPhase::Completing(unready) = self { Some(unready) } else { None }
    }

    /// Whether the rank has done its share.
    pub(crate) fn is_finished(&self) -> bool {
        matches!(self, StepPhase::Finished)
    }

    /// A step that is not complete ends here; the rank is ready again.
    pub(crate) fn take_unready(&mut self) -> Option<Unready> {
        self.unready()?;
        match std::mem::replace(self, StepPhase::Ready) {
            StepPhase::Completing(unready) => Some(unready),
            _ => unreachable!("just seen"),
        }
    }
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
    /// How far the pass has fallen behind since its next event was scheduled.
    pub(crate) behind: Time,
    /// Time of this step that was spent on communication so far, and on waiting for others.
    pub(crate) exposed: Time,
    pub(crate) waiting: Time,
}

/// A step that waits for the algorithm to be ready.
pub(crate) struct Unready {
    pub(crate) step: u64,
    /// When the gradient was handed over.
    pub(crate) since: Time,
    pub(crate) compute: Time,
    /// As in [`Running`], until then.
    pub(crate) exposed: Time,
    pub(crate) waiting: Time,
    pub(crate) computed: Computed,
}

impl RankState {
    /// As it stands at `now`, having done what `report` says.
    pub(crate) fn new(node: Node, report: RankReport, now: Time) -> RankState {
        let report = RankReport { rank: node.rank.0, is_server: node.is_server, ..report };
        RankState {
            cut: node.step(),
            node,
            report,
            lost: None,
            free: now,
            paused_until: Time::ZERO,
            inbox: VecDeque::new(),
            outbox: VecDeque::new(),
            wake: None,
            phase: StepPhase::Ready,
            ready_at: now,
            frozen: false,
            view_at: Time::ZERO,
        }
    }

    /// Takes the processor for `cost` more.
    pub(crate) fn occupy(&mut self, now: Time, cost: Time) {
        self.free = self.free.max(now) + cost;
    }

    /// Takes the processor for a hand-off, which also holds up a gradient that is being computed.
    pub(crate) fn hand_off(&mut self, now: Time, cost: Time) {
        self.occupy(now, cost);
        if let Some(running) = self.phase.running_mut() {
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
        if let Some(running) = self.phase.running_mut() {
            running.behind = running.behind + longer;
            running.waiting = running.waiting + longer;
        }
    }

    /// Loses the rank at `now`: what it had not completed or sent is gone. Whether it had done its
    /// share before.
    pub(crate) fn lose(&mut self, now: Time) -> bool {
        let had_finished = self.phase.is_finished();
        self.lost = Some(now);
        self.report.lost = true;
        self.outbox.clear();
        // A gradient that is being computed is never handed over.
        if self.phase.running().is_none() {
            self.phase = StepPhase::Finished;
        }
        had_finished
    }

    /// Whether it was not lost.
    pub(crate) fn is_alive(&self) -> bool {
        self.lost.is_none()
    }
}
