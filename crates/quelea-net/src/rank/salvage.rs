//! What a rank says of itself when its run has come to a halt: whom it waits for, and the model that it
//! has.

use quelea_core::time::Time;

use super::RankState;
use crate::protocol::{Account, AwaitedPeer, RankEvent};

/// Whether the model of a run that is broken off was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Salvage {
    /// The run continues.
    None,
    /// It was asked for, and is sent as soon as nobody computes on it.
    Asked,
    /// It was sent.
    Given,
}

impl RankState {
    /// Whether this rank starts nothing any more.
    pub(super) fn is_broken_off(&self) -> bool {
        self.salvage != Salvage::None
    }

    /// Sends the model if it was asked for and is here. In the middle of an exchange, some buckets may
    /// be one step ahead of others.
    pub(super) fn salvage_if_asked(&mut self) {
        let is_here = self.computing_since.is_none() || self.properties.snapshot;
        if self.salvage == Salvage::Asked && is_here {
            self.salvage = Salvage::Given;
            let (rank, step) = (self.node.rank.0, self.node.step());
            self.tell(RankEvent::Salvaged { rank, step, model: self.node.model() });
        }
    }

    pub(super) fn account(&self) -> Account {
        let awaiting = self.node.awaiting().into_iter();
        let awaiting =
            awaiting.map(|peer| AwaitedPeer { from: peer.from.0, what: peer.what.to_string() });
        Account {
            step: self.node.step(),
            awaiting: awaiting.collect(),
            sent: self.sent_to.clone(),
            received: self.received_from.clone(),
        }
    }

    /// Time in which this process stood still is nobody's silence.
    pub(super) fn excuse(&mut self, now: Time) {
        let still = Time(self.still.take().as_nanos() as u64);
        self.stood_still = self.stood_still + still;
        self.moved = (self.moved + still).min(now);
    }
}
