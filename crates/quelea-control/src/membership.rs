//! Who takes part: when a rank is lost, the survivors stop starting gradients, say how far they are,
//! and continue in a new view from a step that none of them has reached.

mod storing;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use quelea_core::message::Rank;
use quelea_core::run_spec::RunSpec;
use quelea_core::time::Time;
use quelea_core::view::{DepartedRank, View, ViewChange};
use quelea_record::{Observer, RankReport, Record, RecordKind};

use crate::blame;
use crate::controller::{Controller, RunPhase};
use crate::departure::Notices;
use crate::directive::{Recipient, RunFailure};
use crate::entrance::Waiting;
use crate::messages::Command;
use crate::seat::ControllerSeat;
use crate::suspicion::RankPhase;
use storing::StoringChange;

/// The steps of survivors differ by at most one when they are stopped; one more may be under way. The
/// rebuilt topology holds from beyond that.
const STEPS_AHEAD: u64 = 2;

/// What happens when a rank is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossPolicy {
    /// The run is aborted, and what can be saved is saved.
    Stop,
    /// The others continue where their algorithm can, as long as there are this many workers.
    Continue {
        /// Below this many the run is aborted.
        min_workers: usize,
    },
}

/// Why a run cannot continue without a rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LossRefusal {
    /// It is a server, and nobody else has its part of the model.
    Server,
    /// It mixes for its host, and its algorithm's state there cannot be taken over.
    Leader,
    /// Its process has the controller of the run.
    Controller,
    /// It is the last worker.
    LastWorker,
    /// Fewer workers would be left than the run wants.
    TooFew,
}

impl LossRefusal {
    /// Why the run of `setup`, in `view`, cannot continue without `rank`, if it cannot.
    pub fn of(setup: &RunSpec, view: &View, rank: Rank) -> Option<LossRefusal> {
        if rank.index() >= setup.seats() {
            return Some(LossRefusal::Server);
        }
        if view.workers == [rank] {
            return Some(LossRefusal::LastWorker);
        }
        setup.cannot_lose(view, rank).then_some(LossRefusal::Leader)
    }

    /// What that means, after "lost rank 3: ".
    pub(crate) fn consequence(self) -> &'static str {
        match self {
            LossRefusal::Server => "it is a server, and nobody else has its part of the model",
            LossRefusal::Leader => {
                "it mixes for its host (`topology.within_host` = \"average\"), and the state of the \
                 algorithm there is lost with it"
            }
            LossRefusal::Controller => "its process has the controller of the run",
            LossRefusal::LastWorker => "it was the last worker",
            LossRefusal::TooFew => "fewer workers are left than `membership.min_workers`",
        }
    }
}

/// The agreed view, and the change that is under way.
#[derive(Debug)]
pub(crate) struct Membership {
    /// The last view that was announced.
    pub(crate) view: Arc<View>,
    change: Option<PendingChange>,
    /// All changes until it.
    pub(crate) changes: Vec<ViewChange>,
    /// Ranks that were given notice and have not left.
    pub(crate) notices: Notices,
    /// Workers that want to join.
    pub(crate) waiting: Waiting,
    /// Where another controller may have to take over: the place of this one.
    pub(crate) seat: Option<ControllerSeat>,
    /// The controller that the view names.
    pub(crate) named: u32,
}

/// A change that is under way.
#[derive(Debug)]
enum PendingChange {
    /// Survivors are being asked how far they are.
    Standing(StandingChange),
    /// The next view is being stored by all, where another controller may have to take over.
    Storing(StoringChange),
}

/// Survivors are being asked how far they are.
#[derive(Debug)]
struct StandingChange {
    departed: Vec<Rank>,
    joined: Vec<Rank>,
    awaited: BTreeSet<u32>,
    /// Where those stand who have answered.
    stands: BTreeMap<u32, u64>,
}

impl Membership {
    pub(crate) fn new(view: Arc<View>, changes: Vec<ViewChange>) -> Membership {
        let (notices, waiting) = Default::default();
        Membership { view, change: None, changes, notices, waiting, seat: None, named: 0 }
    }

    pub(crate) fn is_changing(&self) -> bool {
        self.change.is_some()
    }

    /// Whether somebody enters as `rank` with the change that is under way.
    pub(crate) fn is_entering(&self, rank: Rank) -> bool {
        match &self.change {
            Some(PendingChange::Standing(change)) => change.joined.contains(&rank),
            Some(PendingChange::Storing(change)) => change.has_joined(rank),
            None => false,
        }
    }

    /// Whether somebody wants to leave or to join.
    pub(crate) fn is_wanted_to_change(&self) -> bool {
        !self.notices.is_empty() || !self.waiting.is_empty()
    }
}

impl Controller {
    /// The run continues without a rank that was lost, if it can; else it is aborted.
    pub(crate) fn continue_or_abort(
        &mut self,
        error: RunFailure,
        observer: &mut dyn Observer,
    ) -> Result<(), RunFailure> {
        let (rank, reason, has_failed) = match self.blamed(error) {
            RunFailure::Lost { rank, reason } => (rank, reason, false),
            RunFailure::Failed { rank, reason } => (rank, reason, true),
            other => return self.abort(other),
        };
        let failure = |reason| {
            if has_failed {
                RunFailure::Failed { rank, reason }
            } else {
                RunFailure::Lost { rank, reason }
            }
        };
        if self.ranks[rank as usize].is_lost() {
            return Ok(());
        }
        let LossPolicy::Continue { min_workers } = self.on_loss else {
            return self.abort(failure(reason));
        };
        if let Some(refusal) = self.loss_refusal(rank, min_workers)
            && !(refusal == LossRefusal::TooFew && self.fall_short())
        {
            let reason = format!("{reason}; {}", refusal.consequence());
            return self.abort(failure(reason));
        }
        self.warnings.push(format!("{}; the others continued", failure(reason)));
        self.accounts.clear();
        self.lose(self.now, rank, self.now, observer);
        Ok(())
    }

    /// What does not come to rest, with the rank that is to blame for it, where the others could continue.
    fn blamed(&self, error: RunFailure) -> RunFailure {
        let is_drained = self.phase == RunPhase::Draining && self.on_loss != LossPolicy::Stop;
        match (error, blame::culprit(&self.accounts, &self.own_ranks)) {
            (RunFailure::Stalled(reason), Some(rank)) if is_drained => {
                RunFailure::Lost { rank, reason: blame::sentence(&reason, &self.accounts) }
            }
            (error, _) => error,
        }
    }

    /// Why the run cannot continue without `rank`, if it cannot.
    pub(crate) fn loss_refusal(&self, rank: u32, min_workers: usize) -> Option<LossRefusal> {
        let refusal = self.permanent_refusal(rank);
        let workers = self.ranks[..self.workers].iter().filter(|progress| !progress.is_lost());
        refusal.or((workers.count() <= min_workers).then_some(LossRefusal::TooFew))
    }

    /// The same, however many workers are left. A loop outside that has ended takes its process with it.
    pub(crate) fn permanent_refusal(&self, rank: u32) -> Option<LossRefusal> {
        if self.is_external && self.own_ranks.contains(&rank) {
            return Some(LossRefusal::Controller);
        }
        LossRefusal::of(&self.setup, &self.members.view, Rank(rank))
    }

    /// Steps of each worker on average, of as many as there were at the start.
    pub(crate) fn mean_step(&self) -> u64 {
        self.done / self.setup.workers() as u64
    }

    /// Ranks that were not lost.
    pub(crate) fn living(&self) -> usize {
        self.ranks.len() - self.lost
    }

    /// The loss of `rank`, which happened `at`, is known: the others agree on a view without it.
    pub fn lose(&mut self, now: Time, rank: u32, at: Time, observer: &mut dyn Observer) {
        self.now = now;
        let progress = &self.ranks[rank as usize];
        if progress.is_lost() {
            return;
        }
        let (steps_before, steps) = (progress.steps_before, progress.steps);
        self.strike_out(rank, RankReport { steps: steps_before + steps, ..RankReport::default() });
        let (step, event) = (steps_before + steps, RecordKind::Lost);
        observer.record(Record { t: at.seconds(), rank, step, event });
        // A process that was only silent learns that the others continue without it.
        let reason = "the others took this process for lost and continued without it";
        self.order(Recipient::Rank(rank), Command::Abort(reason.to_string()));
        self.members.notices.forget(rank);
        self.interrupt_cut();
        self.evaluate_complete(observer);
        self.start_change(Rank(rank));
        self.check_quorum();
        self.check_server(Rank(rank));
        self.finish_change_if_all_stand(observer);
    }

    /// From now on nothing is expected of `rank`, which did what the report says.
    pub(crate) fn strike_out(&mut self, rank: u32, report: RankReport) {
        self.lost += 1;
        let is_server = rank as usize >= self.workers;
        let progress = &mut self.ranks[rank as usize];
        (progress.phase, progress.computing) = (RankPhase::Lost, None);
        let has_left = report.left;
        progress.report.get_or_insert(RankReport { rank, is_server, lost: true, ..report });
        self.budget.lose(rank as usize, progress.steps, has_left);
        self.hand_out_again();
    }

    /// From now on the others agree on a view without `departed`, whose rank is struck out.
    pub(crate) fn start_change(&mut self, departed: Rank) {
        match &mut self.members.change {
            Some(PendingChange::Standing(change)) => {
                change.departed.push(departed);
                change.awaited.remove(&departed.0);
                // Those who wanted to join wait for the next cut: theirs is not whole any more.
                self.members.waiting.put_back(&std::mem::take(&mut change.joined));
            }
            // It may be in force somewhere: the next one is without this rank.
            Some(PendingChange::Storing(change)) => change.lost.push(departed),
            None => self.freeze(vec![departed], Vec::new()),
        }
    }

    /// From now on the others agree on a view with `joined`.
    pub(crate) fn start_joining(&mut self, joined: Rank) {
        match &mut self.members.change {
            Some(PendingChange::Standing(change)) => change.joined.push(joined),
            Some(PendingChange::Storing(_)) => self.members.waiting.put_back(&[joined]),
            None => self.freeze(Vec::new(), vec![joined]),
        }
    }

    pub(crate) fn freeze(&mut self, departed: Vec<Rank>, joined: Vec<Rank>) {
        let alive = |rank: &u32| !self.ranks[*rank as usize].is_lost();
        let awaited = (0..self.ranks.len() as u32).filter(alive).collect();
        let standing = StandingChange { departed, joined, awaited, stands: BTreeMap::new() };
        self.members.change = Some(PendingChange::Standing(standing));
        self.order(Recipient::All, Command::Freeze(self.members.view.number + 1));
    }

    /// A rank starts no more gradients before view `number`, and is at `step`.
    pub(crate) fn frozen(
        &mut self,
        rank: u32,
        number: u32,
        step: u64,
        observer: &mut dyn Observer,
    ) {
        let expected = self.members.view.number + 1;
        let Some(PendingChange::Standing(change)) = &mut self.members.change else { return };
        if number == expected && change.awaited.remove(&rank) {
            change.stands.insert(rank, step);
            self.finish_change_if_all_stand(observer);
        }
    }

    pub(crate) fn finish_change_if_all_stand(&mut self, observer: &mut dyn Observer) {
        let Some(PendingChange::Standing(standing)) = &self.members.change else { return };
        if !standing.awaited.is_empty() {
            return;
        }
        // Where one stands that has been lost since counts as well, unless it lied.
        let lied =
            |rank: u32, step: u64| self.ranks[rank as usize].is_lost() && self.is_beyond(step);
        let stands = standing.stands.iter().map(|(rank, step)| (*step, *rank));
        let latest = stands.filter(|(step, rank)| !lied(*rank, *step)).max();
        let (furthest, rank) = latest.unwrap_or_default();
        if !self.is_plausible(rank, furthest) {
            return;
        }
        let Some(PendingChange::Standing(standing)) = self.members.change.take() else { return };
        let from_step = furthest + STEPS_AHEAD;
        let steps = |rank: &Rank| {
            let progress = &self.ranks[rank.index()];
            let left = progress.report.as_ref().is_some_and(|report| report.left);
            DepartedRank { rank: *rank, steps: progress.steps_before + progress.steps, left }
        };
        let departed = standing.departed.iter().map(steps).collect();
        let number = self.members.view.number + 1;
        // Who enters while everything comes to its end would have to be told what the others were told.
        let joined = if self.is_ending() { Vec::new() } else { standing.joined };
        let change = ViewChange { number, departed, joined, from_step };
        if self.members.seat.is_some() {
            self.begin_storing(change);
        } else {
            self.put_in_force(change, false, observer);
        }
    }

    fn put_in_force(
        &mut self,
        change: ViewChange,
        is_inherited: bool,
        observer: &mut dyn Observer,
    ) {
        self.members.view = Arc::new(self.setup.view_after(&self.members.view, &change));
        if let Some(seat) = self.members.seat {
            self.members.named = seat.rank;
        }
        self.members.changes.push(change.clone());
        self.forget_parts();
        observer.view_changed(&change);
        // Whoever was to join under another controller has no state from which to begin.
        if !is_inherited {
            change.joined.iter().for_each(|rank| self.enter_run(*rank, observer));
        }
        self.order(Recipient::All, Command::View(change));
        match self.phase {
            RunPhase::Running => {
                // Those who stand still because somebody has left.
                if self.cutting.is_idle() {
                    self.order(Recipient::All, Command::Continue);
                }
                self.end_if_finished();
            }
            RunPhase::Draining => self.restart_drain(),
            RunPhase::Finishing | RunPhase::Salvaging => {}
        }
    }
}
