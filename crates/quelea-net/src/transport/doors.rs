//! How workers that join a run that has begun reach the ranks of this process.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quelea_core::message::Rank;
use tokio::sync::mpsc::UnboundedSender;

use super::RankEndpoint;
use crate::protocol::SetupMessage;
use crate::rank::Inbox;
use crate::trust::{ControlStream, LinkIdentity};

/// The ranks of this process that hear who joins, and the ranks in whose place somebody may. Clones are
/// the same doors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Doors {
    state: Arc<Mutex<DoorState>>,
    /// Where it is known whose seat is whose, if links are encrypted.
    identity: Option<LinkIdentity>,
}

#[derive(Default)]
struct DoorState {
    inboxes: BTreeMap<Rank, UnboundedSender<Inbox>>,
    absent: BTreeSet<Rank>,
    /// Where workers that ask here to join are heard.
    joining: JoinPlace,
}

impl fmt::Debug for DoorState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DoorState").field("absent", &self.absent).finish_non_exhaustive()
    }
}

/// Hears a worker that asks to join, with its first words.
pub(crate) type HearJoiner = dyn Fn(ControlStream, SetupMessage, SocketAddr) + Send + Sync;

/// Where workers are heard that ask a process of the run to join it.
#[derive(Clone, Default)]
pub(crate) enum JoinPlace {
    /// Not here.
    #[default]
    Nowhere,
    /// By this process, which controls the run.
    Here(Arc<HearJoiner>),
    /// By the process that listens there.
    There(String),
}

impl Doors {
    /// Doors of a process with this identity.
    pub(crate) fn of(identity: Option<LinkIdentity>) -> Doors {
        Doors { state: Arc::default(), identity }
    }

    fn state(&self) -> MutexGuard<'_, DoorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on workers that ask to join are heard there.
    pub(crate) fn hear_joiners(&self, place: JoinPlace) {
        self.state().joining = place;
    }

    /// Where workers that ask to join are heard.
    pub(crate) fn joining(&self) -> JoinPlace {
        self.state().joining.clone()
    }

    /// From now on `own` hears who joins.
    pub(crate) fn open(&self, own: Rank, inbox: UnboundedSender<Inbox>) {
        self.state().inboxes.insert(own, inbox);
    }

    /// Nobody takes part as these ranks.
    pub(crate) fn miss(&self, ranks: impl IntoIterator<Item = Rank>) {
        self.state().absent.extend(ranks);
    }

    /// Somebody takes part as these ranks again.
    pub(crate) fn welcome(&self, ranks: &[Rank]) {
        self.state().absent.retain(|rank| !ranks.contains(rank));
        if let Some(identity) = &self.identity {
            ranks.iter().for_each(|rank| identity.seats().enter(rank.0));
        }
    }

    /// Whether somebody may join as `peer`, and `own` is here to hear of it.
    pub(crate) fn admit(&self, peer: Rank, own: Rank) -> bool {
        let state = self.state();
        state.absent.contains(&peer) && state.inboxes.contains_key(&own)
    }

    /// Somebody who joins has connected to `own`.
    pub(crate) fn pass(&self, own: Rank, endpoint: Box<dyn RankEndpoint>) {
        if let Some(inbox) = self.state().inboxes.get(&own) {
            // A rank that has ended needs nobody.
            let _ = inbox.send(Inbox::Peer(endpoint));
        }
    }
}
