//! Storing a view before it is in force, where another controller may have to take over: a quorum of the view
//! before must know it.

use std::collections::BTreeSet;

use quelea_core::message::Rank;
use quelea_core::view::ViewChange;
use quelea_record::Observer;

use super::{Membership, PendingChange};
use crate::controller::Controller;
use crate::directive::Recipient;
use crate::messages::Command;

/// A view that is in force once a quorum of the one before has stored it.
#[derive(Debug)]
pub(super) struct StoringChange {
    change: ViewChange,
    stored: BTreeSet<u32>,
    /// Whether it is that of a controller before: its joiners have no state.
    is_inherited: bool,
    /// Lost since.
    pub(super) lost: Vec<Rank>,
}

impl StoringChange {
    /// Whether somebody enters as `rank` with this view.
    pub(super) fn has_joined(&self, rank: Rank) -> bool {
        self.change.joined.contains(&rank)
    }
}

impl Membership {
    /// Whether workers enter with the view that is being stored.
    pub(crate) fn lets_in(&self) -> bool {
        let Some(PendingChange::Storing(storing)) = &self.change else { return false };
        !storing.is_inherited && !storing.change.joined.is_empty()
    }

    /// The view that a controller before has begun to store is the next one; then `lost` are left out.
    pub(crate) fn inherit(&mut self, change: ViewChange, lost: Vec<Rank>) {
        let stored = BTreeSet::new();
        let storing = StoringChange { change, stored, is_inherited: true, lost };
        self.change = Some(PendingChange::Storing(storing));
    }
}

impl Controller {
    /// All stand: the view that is to follow is stored by all.
    pub(super) fn begin_storing(&mut self, change: ViewChange) {
        let (stored, lost) = (self.own_store(), Vec::new());
        let storing = StoringChange { change, stored, is_inherited: false, lost };
        self.members.change = Some(PendingChange::Storing(storing));
        self.announce_storing();
    }

    /// Asks all to store the view that is to follow.
    pub(crate) fn announce_storing(&mut self) {
        let Some(PendingChange::Storing(storing)) = &self.members.change else { return };
        let command = Command::Store(storing.change.clone());
        self.order(Recipient::All, command);
    }

    /// A rank has stored the next view.
    pub(crate) fn stored(&mut self, rank: u32, number: u32, observer: &mut dyn Observer) {
        let Some(seat) = self.members.seat else { return };
        let (voters, named) = (self.voters(), self.members.named);
        let Some(PendingChange::Storing(storing)) = &mut self.members.change else { return };
        if number != storing.change.number {
            return;
        }
        storing.stored.insert(rank);
        let is_agreed = seat.quorum.is_met(&voters, named, &storing.stored);
        if !is_agreed {
            return;
        }
        let Some(PendingChange::Storing(storing)) = self.members.change.take() else { return };
        let StoringChange { change, is_inherited, mut lost, .. } = storing;
        if is_inherited {
            lost.extend(&change.joined);
            self.exclude(&change);
        }
        let departed = change.ranks();
        lost.retain(|rank| !departed.contains(rank));
        self.put_in_force(change, is_inherited, observer);
        if !lost.is_empty() {
            self.freeze(lost, Vec::new());
            self.check_quorum();
            self.finish_change_if_all_stand(observer);
        }
    }
}
