//! A worker's process in a run that survives the one that controls it: drives its rank's
//! [`ControllerSuccession`] over connections with the others, and takes over when it is its turn.

mod join_hall;
mod leading;

pub(super) use join_hall::JoinHall;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use quelea_control::{
    Command, ControllerSuccession, Inheritance, MemberState, MemberUnits, MissingQuorum, NO_RANK,
    PeerMessage, RankEvent, SuccessionConfig, SuccessionStep, ViewEntry,
};
use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_core::view::{View, ViewChange};
use quelea_record::RankReport;
use tokio::sync::mpsc::UnboundedSender;

use super::command_reader::CommandLine;
use super::peer_lines::PeerLines;
use crate::controller::Incoming;
use crate::heir::Heir;
use crate::local_ranks::ProcessContext;
use crate::protocol::Survival;
use crate::rank::Inbox;
use crate::transport::JoinPlace;

/// How long votes are waited for.
const PATIENCE: Time = Time(5_000_000_000);
/// Records that travel with a vote.
const RECORDS: usize = 4096;

/// What follows for a process.
pub(super) enum NextStep {
    /// Nothing.
    Wait,
    /// It has voted for the process at the other end.
    Follow(CommandLine),
    /// It controls the run from now on.
    Lead(Box<Inheritance>),
    /// It ends, because it reaches no quorum.
    End(MissingQuorum),
    /// It ends, because its rank says nothing any more.
    Stuck(String),
}

/// With what a process begins that may have to take over.
pub(super) struct SurvivorConfig<'a> {
    pub(super) rank: Rank,
    pub(super) context: &'a ProcessContext,
    pub(super) survival: Survival,
    pub(super) inbox: UnboundedSender<Inbox>,
    pub(super) lines: PeerLines,
    pub(super) heir: &'a mut dyn Heir,
    /// Where the coordinator is that the run begins with.
    pub(super) coordinator: String,
    /// What workers need to join this run here.
    pub(super) hall: JoinHall,
}

/// A process that may have to take over.
pub(super) struct Survivor<'a> {
    config: SurvivorConfig<'a>,
    succession: ControllerSuccession,
    view: Arc<View>,
    /// When the controller was lost, if it is.
    orphaned: Option<Time>,
    /// What a new controller needs to know of this rank, as long as it is up to date.
    share: Option<MemberState>,
    /// What the rank has said since, or since the controller was lost.
    untold: Vec<RankEvent>,
    /// What those have said who have voted for this process.
    early: Vec<RankEvent>,
    /// What its rank has reported at the end.
    reported: Option<Box<RankReport>>,
    /// The terms that others have claimed, by rank.
    claimed: BTreeMap<u32, u32>,
}

impl<'a> Survivor<'a> {
    pub(super) fn new(config: SurvivorConfig<'a>) -> Survivor<'a> {
        let ProcessContext { setup, start, .. } = config.context;
        let controller = config.survival.controller;
        let entry = |change: &ViewChange| ViewEntry { controller, change: change.clone() };
        let succession = ControllerSuccession::new(SuccessionConfig {
            rank: config.rank.0,
            controller,
            term: config.survival.term,
            log: start.changes.iter().map(entry).collect(),
            quorum: config.survival.quorum,
            patience: PATIENCE,
        });
        let view = start.view(setup);
        Survivor {
            config,
            succession,
            view,
            orphaned: None,
            share: None,
            untold: Vec::new(),
            early: Vec::new(),
            reported: None,
            claimed: BTreeMap::new(),
        }
    }

    fn now(&self) -> Time {
        self.config.context.clock.now()
    }

    /// Whether its worker has left with notice: then the run does not concern it any more.
    pub(super) fn has_left(&self) -> bool {
        self.config.context.options.leave.has_left()
    }

    /// When to attend to it at the latest.
    pub(super) fn next_deadline(&self) -> Option<Duration> {
        let since = self.orphaned?;
        let ends = [since + PATIENCE, since + Time(4 * PATIENCE.0)];
        let turns = ends.into_iter().filter(|turn| *turn > self.now());
        let deadline = self.succession.next_deadline().into_iter().chain(turns).min()?;
        Some(Duration::from_nanos(deadline.since(self.now()).0))
    }

    /// Its rank says this.
    pub(super) fn note(&mut self, event: &RankEvent) {
        match event {
            // Whether the controller is there is seen on its own line.
            RankEvent::Lost { peer, .. } if *peer != self.succession.controller() => {
                self.succession.lost(self.config.context.clock.now(), *peer, &self.view);
            }
            RankEvent::Report(report) => {
                self.reported = Some(report.clone());
                if self.orphaned.is_some() && self.share.is_none() {
                    self.share_report();
                }
            }
            _ => {}
        }
    }

    /// Keeps what nobody can be told now.
    pub(super) fn keep(&mut self, event: RankEvent) {
        let is_passing = matches!(
            event,
            RankEvent::Alive { .. }
                | RankEvent::Heartbeat { .. }
                | RankEvent::Stalled { .. }
                | RankEvent::Surveyed { .. }
                | RankEvent::Account { .. }
        );
        // A new controller asks for reports again.
        if !is_passing && !matches!(event, RankEvent::Report(_)) {
            self.untold.push(event);
        }
    }

    pub(super) fn take_untold(&mut self) -> Vec<RankEvent> {
        let mut untold = std::mem::take(&mut self.untold);
        let report = self.reported.clone().map(RankEvent::Report);
        // Its rank has ended, and cannot say it again.
        untold.extend(report);
        untold
    }

    /// Somebody else says something.
    pub(super) fn hear(&mut self, word: Incoming, is_following: bool) {
        let now = self.now();
        match word {
            Incoming::Heard(Command::Store(change)) => {
                let controller = self.succession.controller();
                self.succession.store(ViewEntry { controller, change });
            }
            Incoming::Heard(Command::View(change)) => self.enter_view(change),
            Incoming::Moved { rank, address } => self.config.lines.moved(rank, address),
            Incoming::Share(state) => self.take_share(*state),
            Incoming::Line { rank, stream } => self.config.lines.accept(rank, stream),
            Incoming::Called { rank, answer } => {
                let is_there = self.config.lines.called(rank, answer);
                let gone = (!is_there).then_some(rank);
                gone.into_iter().for_each(|rank| self.succession.lost(now, rank, &self.view));
            }
            Incoming::Gone { rank, .. } => {
                self.config.lines.hung_up(rank);
                if !is_following {
                    self.succession.lost(now, rank, &self.view);
                }
            }
            Incoming::Met { line } => self.meet(line),
            Incoming::Peer { rank, message } => self.hear_peer(rank, message),
            Incoming::Said { event, .. } => self.early.push(event),
            _ => {}
        }
    }

    fn hear_peer(&mut self, rank: u32, message: PeerMessage) {
        match &message {
            PeerMessage::Claim { term } => {
                self.claimed.insert(rank, *term);
            }
            PeerMessage::Vote { state, .. }
                if state.check(rank, self.config.context.setup.ranks()).is_err() =>
            {
                return;
            }
            _ => {}
        }
        self.succession.handle(rank, message, &self.view);
    }

    fn enter_view(&mut self, change: ViewChange) {
        if change.number == self.view.number + 1 {
            self.view = Arc::new(self.config.context.setup.view_after(&self.view, &change));
        }
        for rank in &change.joined {
            self.succession.met(rank.0);
        }
        let controller = self.succession.controller();
        self.succession.enter_view(ViewEntry { controller, change });
    }

    fn take_share(&mut self, mut state: MemberState) {
        let records = self.untold.drain(..).filter_map(|event| match event {
            RankEvent::Record(record) => Some(record),
            _ => None,
        });
        state.records = records.take(RECORDS).collect();
        self.share = Some(state);
    }

    /// Its rank has ended: its report is its share.
    fn share_report(&mut self) {
        let Some(report) = &self.reported else { return };
        let (rank, steps) = (report.rank, report.steps);
        let steps_before = self.config.context.start.report(self.config.rank).steps;
        let steps_since = steps.saturating_sub(steps_before);
        self.take_share(MemberState {
            rank,
            steps_before,
            steps: steps_since,
            position: steps,
            granted: steps_since,
            is_finished: true,
            has_reported: true,
            // Reports are asked for when all shared data are confirmed.
            units: MemberUnits { settled: u64::MAX, ..MemberUnits::default() },
            ..MemberState::default()
        });
    }

    /// The rank's share is wanted as it is now.
    fn ask_for_share(&mut self) {
        self.share = None;
        if self.config.inbox.send(Inbox::Share).is_err() {
            self.share_report();
        }
    }

    /// The controller at the other end of a line has said its first word: it controls the run.
    fn meet(&mut self, line: u32) {
        let Some(rank) = self.config.lines.rank_of(line) else { return };
        let term = self.claimed.get(&rank).copied().unwrap_or(self.succession.term());
        self.succession.hears_command(rank, term);
        if let Some(address) = self.config.lines.address(rank) {
            let place = JoinPlace::There(address.to_string());
            self.config.context.doors.hear_joiners(place);
        }
    }

    /// A line that is not followed has ended.
    pub(super) fn forget(&mut self, line: u32) {
        self.config.lines.forget(line);
    }

    /// Commands of this line count no more.
    pub(super) fn leave(&mut self, line: u32) {
        self.config.lines.leave(line);
        self.orphaned = Some(self.now());
        self.ask_for_share();
    }

    /// The controller at the other end of this line is gone.
    pub(super) fn lose_controller(&mut self, line: u32) {
        let (now, controller) = (self.now(), self.succession.controller());
        let ranks = match self.config.lines.rank_of(line) {
            Some(rank) => vec![rank],
            None => self.config.survival.ranks.clone(),
        };
        for rank in ranks.into_iter().chain([controller]) {
            self.succession.lost(now, rank, &self.view);
        }
        self.config.lines.forget(line);
        self.orphaned = Some(now);
        self.ask_for_share();
    }

    /// Whether it has voted, and is to vote for another now.
    pub(super) fn changes_its_vote(&self) -> bool {
        self.orphaned.is_none() && self.succession.owes_vote()
    }

    /// Those before this rank had their turn, and none has claimed the controller's place.
    fn pass_over_the_silent(&mut self, now: Time) {
        let is_over = |since: Time| since + PATIENCE <= now;
        if self.orphaned.is_none_or(|since| !is_over(since)) || !self.succession.is_orphaned() {
            return;
        }
        let workers = self.view.workers.iter().map(|rank| rank.0);
        let gone: BTreeSet<u32> = self.succession.unreachable().collect();
        let (before, after): (BTreeSet<u32>, BTreeSet<u32>) = workers
            .filter(|rank| !gone.contains(rank))
            .partition(|rank| *rank < self.config.rank.0);
        // Without them it could not take over either.
        if !self.config.survival.quorum.is_met(&self.view.workers, NO_RANK, &after) {
            return;
        }
        for rank in before {
            self.succession.lost(now, rank, &self.view);
        }
    }

    /// Does what has become due.
    pub(super) fn attend(&mut self) -> NextStep {
        let Some(since) = self.orphaned else { return NextStep::Wait };
        let now = self.now();
        let Some(share) = self.share.clone() else {
            let is_over = since + Time(4 * PATIENCE.0) <= now;
            let reason = "the coordinator is gone, and the rank of this process says nothing";
            return if is_over { NextStep::Stuck(reason.to_string()) } else { NextStep::Wait };
        };
        self.pass_over_the_silent(now);
        let step = self.succession.poll(now, &self.view, || share.clone());
        let mut next = match step {
            SuccessionStep::TakeOver(inheritance) => NextStep::Lead(inheritance),
            SuccessionStep::End(missing) => NextStep::End(missing),
            SuccessionStep::Wait | SuccessionStep::Deposed => NextStep::Wait,
        };
        for (rank, message) in self.succession.take_messages() {
            if !matches!(message, PeerMessage::Vote { .. }) {
                self.config.lines.say(rank, message);
            } else if let Some(line) = self.config.lines.vote(rank, &message) {
                self.orphaned = None;
                next = NextStep::Follow(line);
            } else {
                self.succession.lost(now, rank, &self.view);
                self.ask_for_share();
            }
        }
        next
    }
}
