//! Who controls the run where the controller lives with a worker (`cluster.control` = "worker"): its loss,
//! its long silence, sides of a partition, and controllers whose term is over.

mod deposed;
mod sides;

use std::collections::BTreeMap;

use quelea_control::{
    Command, Controller, ControllerSeat, ControllerSuccession, Inheritance, MemberState,
    MissingQuorum, PeerMessage, QuorumRule, RankEvent, SuccessionConfig, SuccessionStep, ViewEntry,
};
use quelea_core::time::Time;
use quelea_core::view::ViewChange;

use crate::cluster::{Cluster, ControlPath};
use crate::control_network::{ControlPacket, ControlRoute, Place};
use crate::driver::{Driver, controller_config, machine_config};
use crate::network::microseconds;
use crate::queue::SimEvent;
pub(crate) use deposed::DeposedController;

/// The term of a run's first controller.
pub(crate) const FIRST_TERM: u32 = 1;
/// Votes are waited for at least this long.
const LEAST_PATIENCE: Time = Time(50_000_000);

/// Where the controller lives, and those whose term is over.
#[derive(Default)]
pub(crate) struct ControllerHome {
    /// With this rank, or on a host of its own.
    pub(crate) place: Place,
    /// It is gone, and nobody has taken over.
    pub(crate) is_gone: bool,
    /// Controllers that others have taken over from, and that do not know it.
    pub(crate) deposed: Vec<DeposedController>,
    /// Why the last one of a side ended.
    missing: Option<MissingQuorum>,
    /// Every view that was announced, by number.
    announced: Vec<ViewChange>,
    /// Workers that want to join and are not let in yet, with the fault that brought them.
    pub(crate) joining: BTreeMap<usize, u32>,
    /// Something that must not happen has happened.
    pub(crate) violation: Option<String>,
}

/// For how long votes are waited for.
fn patience(cluster: &Cluster) -> Time {
    let detection = Time::from_ms(4.0 * cluster.detect_ms);
    LEAST_PATIENCE.max(detection + microseconds(20.0 * cluster.latency_us))
}

impl Driver<'_> {
    /// Lets the controller live with worker 0, if the cluster wants that.
    pub(crate) fn seat_controller(&mut self, changes: &[ViewChange]) {
        self.home.announced = changes.to_vec();
        if self.cluster.control != ControlPath::Worker {
            return;
        }
        let first = self.controller.view().workers.first().map_or(0, |rank| rank.0);
        self.home.place = Some(first as usize);
        let quorum = QuorumRule::Majority;
        self.controller.sit(ControllerSeat { rank: first, term: FIRST_TERM, quorum });
        for rank in 0..self.ranks.len() {
            self.begin_succession(rank);
        }
    }

    /// A rank hears the controller from now on, and may have to take over from it.
    fn begin_succession(&mut self, rank: usize) {
        let Some(controller) = self.home.place.map(|rank| rank as u32) else { return };
        let entry = |change: &ViewChange| ViewEntry { controller, change: change.clone() };
        let (term, state) = (self.controller.term(), &mut self.ranks[rank]);
        state.machine.keep_report();
        state.met_term = term;
        state.succession = Some(ControllerSuccession::new(SuccessionConfig {
            rank: rank as u32,
            controller,
            term,
            log: self.home.announced.iter().map(entry).collect(),
            quorum: QuorumRule::Majority,
            patience: patience(self.cluster),
        }));
    }

    /// A worker has joined: it is within everybody's reach.
    pub(crate) fn meet_in_succession(&mut self, rank: usize) {
        self.home.joining.remove(&rank);
        if self.cluster.control != ControlPath::Worker {
            return;
        }
        for state in &mut self.ranks {
            if let Some(succession) = &mut state.succession {
                succession.met(rank as u32);
            }
        }
        self.begin_succession(rank);
    }

    /// Whether the controller acts now: its host lives, and does not stand still.
    pub(crate) fn controller_runs(&self) -> bool {
        let runs = |rank: usize| {
            self.ranks[rank].is_alive() && self.ranks[rank].paused_until() <= self.now
        };
        !self.home.is_gone && self.home.place.is_none_or(runs)
    }

    /// Where a rank sends its events; nowhere while it has no controller.
    pub(crate) fn tell_controller(&mut self, rank: usize, event: RankEvent) {
        let state = &mut self.ranks[rank];
        let to = match &state.succession {
            None => self.home.place,
            Some(succession) if succession.is_orphaned() => {
                return state.untold.push(event);
            }
            Some(succession) => Some(succession.controller() as usize),
        };
        self.send_control(ControlRoute { from: Some(rank), to }, ControlPacket::Event(event));
    }

    /// An event has arrived at this place: for the controller there, or the one to be.
    pub(crate) fn event_arrived(&mut self, to: Place, event: RankEvent) {
        if to == self.home.place && !self.home.is_gone {
            return self.hear_event(event);
        }
        let Some(rank) = to else { return };
        let (now, deposed) = (self.now, &mut self.home.deposed);
        if let Some(old) = deposed.iter_mut().find(|old| old.rank == rank) {
            old.controller.handle(now, event, self.observer);
            self.send_old_orders(rank);
        } else if self.ranks[rank].is_alive() {
            self.ranks[rank].early.push(event);
        }
    }

    /// A command of the controller at `from` has arrived at a rank.
    pub(crate) fn command_arrived(&mut self, rank: usize, from: Place, term: u32, word: Command) {
        let state = &mut self.ranks[rank];
        let is_alive = state.is_alive();
        let (Some(succession), Some(from)) = (&mut state.succession, from) else {
            return self.command(rank, word);
        };
        if !is_alive || !succession.hears_command(from as u32, term) {
            return self.attend_succession(rank);
        }
        if term < succession.term() {
            self.home.violation = Some(format!("rank {rank} heard a command of term {term}"));
        }
        if std::mem::replace(&mut state.met_term, term) < term {
            state.machine.meet_controller();
            self.collect_events(rank);
        } else if !succession.is_orphaned() {
            // The controller was only silent.
            for event in std::mem::take(&mut state.untold) {
                self.tell_controller(rank, event);
            }
        }
        let controller = from as u32;
        let succession = self.ranks[rank].succession.as_mut().expect("just seen");
        match &word {
            Command::Store(change) => {
                succession.store(ViewEntry { controller, change: change.clone() });
            }
            Command::View(change) => {
                succession.enter_view(ViewEntry { controller, change: change.clone() });
            }
            Command::Abort(_) => return self.end_rank(rank),
            _ => {}
        }
        self.command(rank, word);
    }

    /// A rank says something about who controls the run.
    pub(crate) fn peer_arrived(&mut self, rank: usize, from: Place, message: PeerMessage) {
        let (state, Some(from)) = (&mut self.ranks[rank], from) else { return };
        let view = state.machine.node().view().clone();
        if let Some(succession) = state.living_succession() {
            succession.handle(from as u32, message, &view);
        }
        self.attend_succession(rank);
    }

    /// Lets a rank do what follows for it from who controls the run.
    pub(crate) fn attend_succession(&mut self, rank: usize) {
        let (now, state) = (self.now, &mut self.ranks[rank]);
        let until = state.paused_until();
        if until > now && state.is_alive() {
            return self.queue.schedule(until, SimEvent::Succession(rank as u32));
        }
        let is_alive = state.is_alive();
        let Some(succession) = state.succession.as_mut().filter(|_| is_alive) else {
            return;
        };
        let (machine, untold) = (&state.machine, &state.untold);
        let own = || {
            // All but the records is asked for again.
            let records = untold.iter().filter_map(|event| match event {
                RankEvent::Record(record) => Some(record.clone()),
                _ => None,
            });
            MemberState { records: records.collect(), ..machine.member_state() }
        };
        let view = machine.node().view().clone();
        let step = succession.poll(now, &view, own);
        let messages = succession.take_messages();
        if let Some(at) = succession.next_deadline().filter(|at| *at > now) {
            self.queue.schedule(at, SimEvent::Succession(rank as u32));
        }
        let has_voted = messages.iter().any(|(_, word)| matches!(word, PeerMessage::Vote { .. }));
        if has_voted || matches!(step, SuccessionStep::TakeOver(_)) {
            state.untold.clear();
        }
        for (to, message) in messages {
            let route = ControlRoute { from: Some(rank), to: Some(to as usize) };
            self.send_control(route, ControlPacket::Peer(message));
        }
        match step {
            SuccessionStep::Wait => {}
            SuccessionStep::TakeOver(inheritance) => self.take_over(rank, &inheritance),
            SuccessionStep::End(missing) => {
                self.home.missing = Some(missing);
                self.end_rank(rank);
            }
            SuccessionStep::Deposed => self.end_rank(rank),
        }
    }

    /// The controller lives with this rank from now on.
    fn take_over(&mut self, rank: usize, inheritance: &Inheritance) {
        if inheritance.term <= self.controller.term() {
            let term = inheritance.term;
            self.home.violation = Some(format!("two controllers in term {term}"));
        }
        let start = self.start.clone();
        let view = self.views.last().expect("the first view is there").clone();
        let machine = machine_config(&self.shared_setup, &start, &view, self.observer);
        let config = controller_config(machine);
        let quorum = QuorumRule::Majority;
        let mut controller =
            Controller::take_over(config, self.now, inheritance, quorum, self.observer);
        controller.use_probes();
        self.is_controller_told = true;
        let old = std::mem::replace(&mut self.controller, controller);
        let before = self.home.place.replace(rank);
        let was_gone = std::mem::replace(&mut self.home.is_gone, false);
        if let Some(rank) = before.filter(|rank| !was_gone && self.ranks[*rank].is_alive()) {
            self.home.deposed.push(DeposedController { rank, controller: old });
        }
        let state = &mut self.ranks[rank];
        state.met_term = inheritance.term;
        state.machine.meet_controller();
        let lost: Vec<u32> =
            state.succession.iter().flat_map(ControllerSuccession::unreachable).collect();
        for peer in lost {
            self.controller.lose(self.now, peer, self.now, self.observer);
        }
        for event in std::mem::take(&mut self.ranks[rank].early) {
            self.hear_event(event);
        }
        // Nobody knows any more of those who waited to join: they ask again.
        for fault in std::mem::take(&mut self.home.joining).into_values() {
            self.join_later(fault);
        }
        self.collect_events(rank);
        self.exchange_control();
        self.settle(rank);
    }

    /// A rank ends by itself: its process is gone, which others notice.
    pub(crate) fn end_rank(&mut self, rank: usize) {
        if !self.ranks[rank].is_alive() {
            return;
        }
        self.silence(rank);
        self.lose_home(rank);
        let at = self.now + Time::from_ms(self.cluster.detect_ms);
        self.queue.schedule(at, SimEvent::Detect(rank as u32));
    }

    /// A rank is gone, and with it a controller that lived there.
    pub(crate) fn lose_home(&mut self, rank: usize) {
        self.home.deposed.retain(|old| old.rank != rank);
        if self.home.place == Some(rank) {
            self.home.is_gone = true;
        }
    }

    /// All living ranks know that `rank` is gone.
    pub(crate) fn spread_loss(&mut self, rank: usize) {
        let others = (0..self.ranks.len()).filter(|other| *other != rank);
        for other in others.collect::<Vec<_>>() {
            self.learn_loss(other, rank);
        }
    }

    fn learn_loss(&mut self, rank: usize, peer: usize) {
        let (now, state) = (self.now, &mut self.ranks[rank]);
        let view = state.machine.node().view().clone();
        if let Some(succession) = state.living_succession() {
            succession.lost(now, peer as u32, &view);
            self.attend_succession(rank);
        }
    }

    /// The rank with the controller has stood still for so long that others notice.
    pub(crate) fn silent(&mut self, rank: usize) {
        let until = self.ranks[rank].paused_until();
        if !self.ranks[rank].is_alive() {
            return;
        }
        if until <= self.now {
            return self.show_life(rank);
        }
        self.queue.schedule(until, SimEvent::Silent(rank as u32));
        if self.home.place != Some(rank) {
            return;
        }
        for other in (0..self.ranks.len()).filter(|other| *other != rank) {
            let (now, state) = (self.now, &mut self.ranks[other]);
            let view = state.machine.node().view().clone();
            if let Some(succession) = state.living_succession() {
                succession.silent(now, rank as u32, &view);
                self.attend_succession(other);
            }
        }
    }

    /// A view is announced: one with a number that was announced before must be the same.
    pub(crate) fn note_view(&mut self, change: &ViewChange) {
        let before = self.home.announced.get(change.number as usize - 1);
        if before.is_some_and(|before| before != change) {
            let number = change.number;
            self.home.violation = Some(format!("there are two views {number}"));
        }
        if change.number as usize == self.views.len() {
            let last = self.views.last().expect("the first view is there");
            let view = self.setup.view_after(last, change);
            self.views.push(std::sync::Arc::new(view));
            self.home.announced.push(change.clone());
        }
    }

    /// Whether this rank hears the controller of the latest term.
    pub(crate) fn follows(&self, rank: usize) -> bool {
        let term = self.controller.term();
        self.ranks[rank].succession.as_ref().is_none_or(|succession| {
            succession.term() == term
                && !succession.is_orphaned()
                && !self.home.is_gone
                && Some(succession.controller() as usize) == self.home.place
        })
    }
}
