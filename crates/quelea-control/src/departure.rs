//! Leaving with notice: at a cut, so that nobody repeats a step and nothing is on its way.
//!
//! A synchronous run stops at an agreed step, an asynchronous one comes to rest and the leaver hands over
//! what only it has. Then the others continue in a view without it.

use std::collections::BTreeSet;

use quelea_core::message::Rank;
use quelea_core::time::Time;
use quelea_record::{Observer, RankReport, Record, RecordKind, Request};

use crate::controller::Controller;
use crate::directive::Recipient;
use crate::membership::{LossPolicy, LossRefusal};
use crate::messages::{Command, RankEvent};

/// How long others are waited for after the first notice: where all processes of a run are given notice, the
/// run is to be saved with all of them.
const NOTICE_GRACE: Time = Time(200_000_000);

/// Who was given notice.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    ranks: BTreeSet<u32>,
    /// When the first of them said so.
    since: Time,
    /// Those who leave with the cut that is under way.
    departing: Vec<u32>,
    /// Whether they have handed over what only they had.
    have_handed_over: bool,
}

impl Notices {
    /// This rank is gone.
    pub(crate) fn forget(&mut self, rank: u32) {
        self.ranks.remove(&rank);
        self.departing.retain(|departing| *departing != rank);
    }

    /// A cut begins, or is given up.
    pub(crate) fn reset(&mut self) {
        self.departing.clear();
        self.have_handed_over = false;
    }

    /// Whether nobody was given notice or is about to leave.
    pub(crate) fn is_empty(&self) -> bool {
        self.ranks.is_empty() && self.departing.is_empty() && !self.have_handed_over
    }

    /// Whether somebody leaves with the cut that is under way.
    pub(crate) fn are_due(&self) -> bool {
        !self.departing.is_empty()
    }
}

impl Controller {
    /// A rank was given notice.
    pub(crate) fn wants_to_leave(&mut self, rank: u32) {
        let notices = &mut self.members.notices;
        if notices.ranks.is_empty() {
            notices.since = self.now;
        }
        notices.ranks.insert(rank);
    }

    /// What those who want to leave request: a cut at which they do, or the end of a run that cannot do
    /// without them. A moment is waited for others: where all are given notice, nobody leaves alone.
    pub(crate) fn request_of_leavers(&mut self) -> Request {
        let notices = &self.members.notices;
        let is_early = self.watches && self.now < notices.since + NOTICE_GRACE;
        if notices.ranks.is_empty() || is_early {
            return Request::Continue;
        }
        if let Some((rank, why)) = self.reason_to_stay() {
            self.cutting.give_reason(format!("because rank {rank} was given notice: {why}"));
            return Request::Stop;
        }
        let notices = &mut self.members.notices;
        notices.departing = notices.ranks.iter().copied().collect();
        Request::Checkpoint
    }

    /// Who cannot leave, and why.
    fn reason_to_stay(&self) -> Option<(u32, &'static str)> {
        let ranks = &self.members.notices.ranks;
        let first = *ranks.first()?;
        let LossPolicy::Continue { min_workers } = self.on_loss else {
            return Some((first, "`membership.on_loss` is \"stop\""));
        };
        let of = |rank: &u32| {
            let refusal = LossRefusal::of(&self.setup, &self.members.view, Rank(*rank))?;
            Some((*rank, refusal.consequence()))
        };
        let left = self.members.view.workers.len().saturating_sub(ranks.len());
        let too_few = (left < min_workers.max(1)).then(|| LossRefusal::TooFew.consequence());
        ranks.iter().find_map(of).or(too_few.map(|why| (first, why)))
    }

    /// An asynchronous run rests. Whether those who leave with this cut must do something first.
    pub(crate) fn attend_leavers_at_rest(&mut self, observer: &mut dyn Observer) -> bool {
        if !self.members.notices.are_due() {
            return false;
        }
        if std::mem::replace(&mut self.members.notices.have_handed_over, true) {
            self.let_go(observer);
            return true;
        }
        for rank in self.members.notices.departing.clone() {
            self.order(Recipient::Rank(rank), Command::HandOver);
        }
        self.restart_drain();
        true
    }

    /// Those who leave with this cut have left; the others agree on a view without them.
    pub(crate) fn let_go(&mut self, observer: &mut dyn Observer) {
        let departing = std::mem::take(&mut self.members.notices.departing);
        for rank in departing {
            self.members.notices.forget(rank);
            let progress = &self.ranks[rank as usize];
            let steps = progress.steps_before + progress.steps;
            self.order(Recipient::Rank(rank), Command::Leave);
            self.strike_out(rank, RankReport { left: true, steps, ..RankReport::default() });
            self.warnings.push(format!("rank {rank} left with notice; the others continued"));
            let (t, event) = (self.now.seconds(), RecordKind::Left);
            observer.record(Record { t, rank, step: steps, event });
            self.start_change(Rank(rank));
        }
        self.evaluate_complete(observer);
        self.finish_change_if_all_stand(observer);
    }

    /// A rank that takes part no more says something: only the report of one that has left counts.
    pub(crate) fn hear_departed(&mut self, event: RankEvent) {
        let RankEvent::Report(report) = event else { return };
        let kept = &mut self.ranks[report.rank as usize].report;
        if kept.as_ref().is_some_and(|kept| kept.left) {
            let is_server = report.rank as usize >= self.workers;
            *kept = Some(RankReport { is_server, lost: true, left: true, ..*report });
        }
    }
}
