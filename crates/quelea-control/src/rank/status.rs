//! What a rank says of itself: that it is alive, whom it waits for, the model that it has when its run
//! is aborted.

use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_record::RankReport;

use super::{LoopStatus, RankMachine};
use crate::life_cycle::LifeCycle;
use crate::messages::{Account, AwaitedPeer, RankEvent};

/// Whether the model of a run that is aborted was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SalvageState {
    /// The run continues.
    None,
    /// It was asked for, and is sent as soon as no gradient is computed on it.
    Asked,
    /// It was sent.
    Sent,
}

impl RankMachine {
    /// Of messages by peer, those exchanged with living ones; `all` where they are not counted by peer.
    pub(super) fn among_living(&self, by_peer: &[u64], all: u64) -> u64 {
        let view = self.node.view();
        if by_peer.is_empty() || view.number == 0 {
            return all;
        }
        let living =
            by_peer.iter().enumerate().filter(|(peer, _)| view.is_alive(Rank::from(*peer)));
        living.map(|(_, count)| count).sum()
    }

    /// What the rank did in the whole run, with its parameters and model if the run wants them.
    pub(super) fn final_report(&mut self) -> RankReport {
        let mut report = std::mem::take(&mut self.report);
        if self.limits.report_models {
            (report.params, report.model) = self.node.retire();
        }
        report
    }

    /// Called at every tick: says that the rank is alive, and complains when it has waited too long.
    pub fn tick(&mut self, now: Time, status: LoopStatus) {
        // Time in which this process stood still is nobody's silence.
        self.stood_still = self.stood_still + status.stood_still;
        self.moved = (self.moved + status.stood_still).min(now);
        let LoopStatus { optimizing, gathering, .. } = status;
        let computing = !gathering && (self.is_computing() || optimizing);
        let waiting = gathering || !computing && !self.node.awaiting().is_empty();
        let (sent, received) = (self.sent, self.received);
        let rank = self.node.rank.0;
        self.events.push(RankEvent::Heartbeat {
            rank,
            computing,
            waiting,
            gathering,
            sent,
            received,
        });
        if gathering {
            return;
        }
        if let Some(since) = self.computing_since() {
            let seconds = now.since(since).seconds() - self.stood_still.seconds();
            if seconds > self.compute_limit.seconds() {
                let (step, reason) = (self.node.step(), self.compute_limit.reason());
                self.failed(format!("its gradient of step {step} takes {seconds:.1} s{reason}"));
            }
            return;
        }
        let waited = now.since(self.moved).seconds();
        if waited >= self.limits.peer_seconds && self.life_cycle != LifeCycle::Finished {
            let complaint = self.complaint(waited);
            if !complaint.is_empty() {
                self.events.push(RankEvent::Stalled { rank, complaint });
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
        // One of many is enough, or the sentence is not read.
        let first = sentences.next().unwrap_or_default();
        match sentences.count() {
            0 => first,
            more => format!("{first} (and for {more} more)"),
        }
    }

    /// A peer is gone.
    pub fn lost(&mut self, peer: Rank, reason: String) {
        let rank = self.node.rank.0;
        self.events.push(RankEvent::Lost { rank, peer: peer.0, reason });
    }

    /// This rank cannot continue.
    pub fn failed(&mut self, reason: String) {
        let rank = self.node.rank.0;
        self.events.push(RankEvent::Failed { rank, reason });
    }

    /// Whether this rank starts nothing any more.
    pub(super) fn is_aborted(&self) -> bool {
        self.salvage != SalvageState::None
    }

    /// Sends the model if it was asked for and is here. In the middle of an exchange, some buckets may
    /// be one step ahead of others.
    pub(super) fn salvage_if_asked(&mut self) {
        let is_here = !self.is_computing() || self.properties.snapshot;
        if self.salvage == SalvageState::Asked && is_here {
            self.salvage = SalvageState::Sent;
            let (rank, step, model) = (self.node.rank.0, self.node.step(), self.node.model());
            self.events.push(RankEvent::Salvaged { rank, step, model });
        }
    }

    pub(super) fn explain(&mut self) {
        let awaiting = self.node.awaiting().into_iter();
        let awaiting =
            awaiting.map(|peer| AwaitedPeer { from: peer.from.0, what: peer.what.to_string() });
        let account = Box::new(Account {
            step: self.node.step(),
            awaiting: awaiting.collect(),
            sent: self.sent_to.clone(),
            received: self.received_from.clone(),
        });
        self.events.push(RankEvent::Account { rank: self.node.rank.0, account });
    }
}
