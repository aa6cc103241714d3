//! The control plane in the virtual cluster: events of ranks go to the controller and its commands to
//! ranks, in order; at no cost, unless `cluster.control` = "network".

use std::sync::Arc;

use quelea_control::{Command, Directive, RankEvent, Recipient, RunFailure};
use quelea_core::message::Rank;
use quelea_core::random::Rng;
use quelea_core::time::Time;
use quelea_core::view::ViewChange;
use quelea_record::{BUFFERS, Outcome};

use crate::SimError;
use crate::cluster::ControlPath;
use crate::control_network::{ControlPacket, ControlRoute, Place};
use crate::driver::Driver;
use crate::network::microseconds;
use crate::queue::SimEvent;
use crate::rank_state::RankState;

/// A view reaches the survivors within this many nanoseconds of each other.
const VIEW_SPREAD_NS: u64 = 1_000_000;
/// After so many events the observer is asked for its requests, if nothing else happens.
const OBSERVER_INTERVAL: u32 = 64;

/// Whether the run ends with this: then nobody has to be told, and who is told alone was lost.
fn ends_all(order: &Directive) -> bool {
    order.to == Recipient::All && matches!(order.command, Command::Abort(_))
}

impl Driver<'_> {
    /// Takes what a rank tells the controller.
    pub(crate) fn collect_events(&mut self, rank: usize) {
        if !self.ranks[rank].machine.has_events() {
            return;
        }
        let first = self.events.len();
        self.events.extend(self.ranks[rank].machine.take_events());
        self.note_units(first);
        let is_worker = !self.ranks[rank].is_server();
        for event in self.events.range_mut(first..).filter(|_| is_worker) {
            if let RankEvent::Saved { part, .. } = event {
                let buffers = self.problem.worker_state(rank);
                if !buffers.is_empty() {
                    part.state.vectors.insert(BUFFERS.to_string(), buffers);
                }
            }
        }
        if self.sends_control() {
            for event in self.events.split_off(first) {
                self.tell_controller(rank, event);
            }
        }
    }

    /// Whether control messages travel over the network.
    pub(crate) fn sends_control(&self) -> bool {
        self.cluster.control != ControlPath::Free
    }

    /// The controller hears an event.
    pub(crate) fn hear_event(&mut self, event: RankEvent) {
        if matches!(event, RankEvent::Model { .. }) {
            // An evaluation sees what gradients leave behind besides themselves.
            self.gradients.complete();
        }
        self.is_controller_told = true;
        self.controller.handle(self.now, event, self.observer);
        if self.sends_control() {
            self.send_orders();
        }
    }

    /// Sends the controller's commands over the network.
    fn send_orders(&mut self) {
        if !self.controller_runs() {
            return;
        }
        let orders: Vec<Directive> = self.controller.take_orders().collect();
        let (from, term) = (self.home.place, self.controller.term());
        // Where the controller lives with a worker, others may continue although its side ends.
        let is_alone = from.is_none();
        for order in orders.into_iter().filter(|order| !is_alone || !ends_all(order)) {
            let is_view = matches!(order.command, Command::View(_));
            if let Command::View(change) = &order.command {
                self.note_view(change);
            }
            self.send_command(from, term, order);
            // The next view may be asked for at once, of those who enter with this one too.
            if is_view && !is_alone {
                self.start_entrances();
            }
        }
        self.start_entrances();
    }

    /// Sends a command of the controller of this term, which is there.
    pub(crate) fn send_command(&mut self, from: Place, term: u32, order: Directive) {
        let Directive { to, command } = order;
        let ranks = match to {
            Recipient::Rank(rank) => rank as usize..rank as usize + 1,
            Recipient::All => 0..self.ranks.len(),
        };
        for rank in ranks {
            let packet = ControlPacket::Command(term, command.clone());
            self.send_control(ControlRoute { from, to: Some(rank) }, packet);
        }
    }

    /// Carries events to the controller and its commands to ranks until there are none left. Commands
    /// lead to further events; those are handled here, not inside.
    pub(crate) fn exchange_control(&mut self) {
        if self.sends_control() {
            return self.send_orders();
        }
        if self.exchanges_control || (self.events.is_empty() && !self.controller.has_orders()) {
            return;
        }
        self.exchanges_control = true;
        loop {
            while let Some(event) = self.events.pop_front() {
                self.hear_event(event);
            }
            self.take_orders();
            let Some(order) = self.orders.pop_front() else { break };
            self.deliver_order(order);
        }
        self.exchanges_control = false;
    }

    /// What follows from a command to one rank is delivered before the next rank hears of it: after a
    /// checkpoint ranks continue one after the other, as they do where a run starts.
    fn take_orders(&mut self) {
        if !self.controller.has_orders() {
            return;
        }
        let all = 0..self.ranks.len() as u32;
        for order in self.controller.take_orders().filter(|order| !ends_all(order)).rev() {
            if order.to == Recipient::All && !matches!(order.command, Command::View(_)) {
                for rank in all.clone().rev() {
                    let (to, command) = (Recipient::Rank(rank), order.command.clone());
                    self.orders.push_front(Directive { to, command });
                }
            } else {
                self.orders.push_front(order);
            }
        }
    }

    fn deliver_order(&mut self, Directive { to, command }: Directive) {
        if matches!(command, Command::View(_)) {
            return self.announce_view();
        }
        if let Recipient::Rank(rank) = to {
            self.command(rank as usize, command);
        }
    }

    /// A rank hears a command.
    pub(crate) fn command(&mut self, rank: usize, command: Command) {
        let state = &mut self.ranks[rank];
        if !state.is_alive() || state.has_ended() {
            return;
        }
        if let Command::View(change) = command {
            return self.derive_view(rank, &change);
        }
        if matches!(command, Command::Progress { .. }) {
            // It changes a number that the rank reads when it takes a step, nothing else.
            state.machine.command(self.now, command);
            return;
        }
        if matches!(command, Command::Abort(_)) {
            return self.expel(rank);
        }
        if command == Command::Finish {
            self.note_end(rank);
        }
        let state = &mut self.ranks[rank];
        let wants_model = matches!(command, Command::SendModel(_));
        let leaves = command == Command::Leave;
        let is_last = state.machine.command(self.now, command);
        if is_last {
            state.end();
        }
        if wants_model && state.machine.is_computing() {
            self.show_while_computing(rank);
        }
        self.carry_out(rank);
        if leaves {
            self.retire(rank);
        } else if !is_last {
            self.settle(rank);
        }
    }

    /// A model that is wanted while its gradient is computed is the one that the gradient is of.
    fn show_while_computing(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        let is_lent = state.running.as_ref().is_some_and(|running| running.next == 0);
        if is_lent && state.machine.node().params().is_empty() {
            state.machine.show_lent(self.gradients.params(rank).unwrap_or_default());
        } else {
            state.machine.show_now();
        }
    }

    /// Attends to the controller again when ranks are to be probed, or something is to be decided.
    pub(crate) fn schedule_attention(&mut self) {
        if !self.controller.may_become_due() {
            return;
        }
        let times = [self.controller.next_probe(), self.controller.next_decision()];
        let Some(next) = times.into_iter().flatten().min() else { return };
        if !self.controller_runs() {
            return;
        }
        let next = next.max(self.now);
        if self.attends_at.is_none_or(|at| next < at) {
            self.attends_at = Some(next);
            self.queue.schedule(next, SimEvent::Attend);
        }
    }

    /// Lets the controller do what has become due. An outcome: the run has ended.
    ///
    /// As long as it rests and hears nothing, all it can do is ask the observer, whose requests come from
    /// outside: now and then is enough.
    pub(crate) fn attend_controller(&mut self) -> Result<Option<Outcome>, SimError> {
        self.attend_deposed();
        self.check_sides()?;
        if !self.controller_runs() {
            return Ok(None);
        }
        self.handled = self.handled.wrapping_add(1);
        let is_asked = self.handled.is_multiple_of(OBSERVER_INTERVAL) || self.invariants.is_some();
        let is_at_rest = self.controller.is_at_rest();
        if !is_asked && !self.is_controller_told && is_at_rest {
            return Ok(None);
        }
        // What it does now may let something else become due.
        self.is_controller_told = !is_at_rest;
        let ended = self.controller.poll(self.now, self.observer);
        self.exchange_control();
        if let Err(error @ RunFailure::NoQuorum(_)) = ended {
            self.end_side(error)?;
            return self.check_sides().map(|()| None);
        }
        ended.map_err(|error| match error {
            RunFailure::Stopped { step, reason } => SimError::Stopped { step, reason },
            other => SimError::Failed(other.to_string()),
        })
    }

    /// A view was agreed on: it reaches every survivor after the latency of a link.
    fn announce_view(&mut self) {
        let view = self.controller.view().clone();
        let mut rng = Rng::new(self.setup.seed, "view", u64::from(view.number));
        for &to in view.workers.iter().chain(&view.servers) {
            let spread = Time(rng.below(VIEW_SPREAD_NS));
            let state = &mut self.ranks[to.index()];
            // Those who join begin in it.
            if !state.is_alive() {
                continue;
            }
            let at = self.now + microseconds(self.cluster.latency_us) + spread;
            // Views come in order, whatever the jitter.
            state.view_at = state.view_at.max(at);
            self.queue.schedule(state.view_at, SimEvent::View(to.0));
        }
        self.views.push(view);
        self.settle_views();
        self.start_entrances();
    }

    /// A view takes longer than the commands after it. As these come in order in a real run, no cut begins
    /// before all have entered the view.
    fn settle_views(&mut self) {
        let has_entered = |state: &RankState| {
            !state.is_alive() || state.machine.node().view().number as usize + 1 >= self.views.len()
        };
        let is_settled = self.ranks.iter().all(has_entered);
        self.is_controller_told = true;
        self.controller.hold_cuts(!is_settled);
    }

    /// A survivor learns of its next view.
    pub(crate) fn enter_view(&mut self, rank: usize) {
        let state = &mut self.ranks[rank];
        if !state.is_alive() {
            return;
        }
        let number = state.machine.node().view().number + 1;
        // It may have been announced to a worker in whose place this one has joined, and begun with it.
        let Some(view) = self.views.get(number as usize) else { return };
        state.machine.change_view(self.now, Arc::clone(view));
        self.carry_out(rank);
        self.settle(rank);
        self.settle_views();
    }

    /// A survivor derives its next view from its own and what has changed, as in a real run.
    fn derive_view(&mut self, rank: usize, change: &ViewChange) {
        let state = &mut self.ranks[rank];
        let view = state.machine.node().view();
        if change.number != view.number + 1 {
            return;
        }
        let view = Arc::new(self.setup.view_after(view, change));
        state.machine.change_view(self.now, view);
        self.carry_out(rank);
        self.settle(rank);
    }

    /// The loss of a rank is noticed.
    pub(crate) fn detect(&mut self, rank: usize) {
        let at = self.ranks[rank].gone_since().unwrap_or(self.now);
        self.is_controller_told = true;
        // Another has joined in its place: it was known before that it is gone.
        if self.ranks[rank].is_alive() {
            return;
        }
        if let Some(home) = self.home.place.filter(|_| !self.home.is_gone)
            && self.ranks[home].paused_until() > self.now
        {
            // Whoever stands still notices afterwards.
            let later = self.ranks[home].paused_until();
            self.spread_loss(rank);
            return self.queue.schedule(later, SimEvent::Detect(rank as u32));
        }
        self.spread_loss(rank);
        self.tell_deposed();
        if self.home.is_gone {
            return;
        }
        self.controller.lose(self.now, Rank::from(rank).0, at, self.observer);
        self.exchange_control();
        let due = self.gates.due(self.living_workers);
        self.open_later(due);
        if !self.sends_control() {
            self.settle_views();
        }
    }
}
