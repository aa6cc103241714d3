//! What the controller does with the events of ranks.

use quelea_core::poison::PoisonPolicy;
use quelea_core::time::Time;
use quelea_record::{Observer, RankReport, Record, RecordKind};

use crate::budget::BudgetAnswer;
use crate::controller::{Controller, RunPhase};
use crate::directive::{Recipient, RunFailure};
use crate::membership::LossPolicy;
use crate::messages::{Command, RankEvent};
use crate::suspicion::{Contact, Evidence, GRACE, RankPhase, RankProgress};
use crate::termination::ProbeAnswer;
use crate::text::{REASON_CHARS, WARNING_CHARS, shown};

/// Warnings that are kept; more are counted.
const WARNINGS: usize = 50;

impl Controller {
    /// A rank says something, at `now`.
    pub fn handle(&mut self, now: Time, event: RankEvent, observer: &mut dyn Observer) {
        self.now = now;
        // What a rank says that was taken for lost does not count any more.
        if event.speaker().is_some_and(|rank| self.ranks[rank as usize].is_lost()) {
            return self.hear_departed(event);
        }
        if let Some((rank, reason)) = event.speaker().zip(self.false_claim(&event)) {
            return self.suspect(Evidence::Seen, RunFailure::Lost { rank, reason });
        }
        match event {
            RankEvent::Record(record) => self.record(record, observer),
            RankEvent::Ticket { rank, number, urgent } => self.ticket(rank, number, urgent),
            RankEvent::Confirmed { rank, unit } => self.confirm(rank, unit),
            RankEvent::Finished { rank, at } => {
                self.hear(rank);
                self.ranks[rank as usize].phase = RankPhase::Finished;
                // Clocks of two machines agree only roughly, and nothing ends in the future.
                self.clock_seconds = self.clock_seconds.max(at.min(self.now).seconds());
                if self.phase == RunPhase::Running {
                    self.end_if_finished();
                }
            }
            RankEvent::Probed { rank, probe, drained, sent, received } => {
                let said = ProbeAnswer { is_drained: drained, sent, received };
                self.probed(probe, rank, said, observer);
            }
            RankEvent::Report(report) => {
                self.hear(report.rank);
                self.take_report(*report);
            }
            RankEvent::Salvaged { rank, step, model } => self.take_salvaged(rank, step, model),
            other => self.hear_of_cut(other, observer),
        }
    }

    /// What a rank says of cuts and of changes of membership.
    fn hear_of_cut(&mut self, event: RankEvent, observer: &mut dyn Observer) {
        match event {
            RankEvent::Model { rank, step, model } => {
                self.hear(rank);
                self.model(rank, step, model, observer);
            }
            RankEvent::Saved { rank, step, view, part } => {
                self.hear(rank);
                if view == self.members.view.number {
                    self.saved(rank, step, *part, observer);
                }
            }
            RankEvent::CutProposal { rank, step } => {
                self.hear(rank);
                self.cut_proposal(rank, step);
            }
            RankEvent::CutAgreed { rank } => {
                self.hear(rank);
                self.cut_agreed(rank);
            }
            RankEvent::Paused { rank } => {
                self.hear(rank);
                self.paused(rank);
            }
            RankEvent::Frozen { rank, number, step } => {
                self.hear(rank);
                self.frozen(rank, number, step, observer);
            }
            RankEvent::Stored { rank, number } => {
                self.hear(rank);
                self.stored(rank, number, observer);
            }
            RankEvent::Leaving { rank } => {
                self.hear(rank);
                self.wants_to_leave(rank);
            }
            RankEvent::Surveyed { rank, survey } => self.surveyed(rank, *survey, observer),
            other => self.hear_of_trouble(other),
        }
    }

    /// What a rank says of how it and others are.
    fn hear_of_trouble(&mut self, event: RankEvent) {
        match event {
            RankEvent::Heartbeat { rank, computing, waiting, gathering, sent, received } => {
                let (progress, now) = (&mut self.ranks[rank as usize], self.now);
                progress.heard = now;
                let waits = waiting || (progress.is_finished() && !computing);
                progress.stillness.hear(waits, sent, received);
                progress.computing = computing.then(|| progress.computing.unwrap_or(now));
                progress.gathering = gathering;
            }
            RankEvent::Alive { rank, computing } => {
                let (progress, now) = (&mut self.ranks[rank as usize], self.now);
                if computing {
                    progress.computing.get_or_insert(now);
                }
            }
            RankEvent::Stalled { rank, complaint } => {
                self.ranks[rank as usize].heard = self.now;
                self.hear_complaint(rank, &complaint);
            }
            RankEvent::Lost { rank, peer, reason } => self.accuse(rank, peer, &reason),
            RankEvent::Poisoned { rank, peer, reason } => {
                if self.setup.poison == PoisonPolicy::Stop {
                    let reason = shown(&reason, REASON_CHARS);
                    self.suspect(Evidence::Own, RunFailure::Poisoned { rank, reason });
                } else {
                    self.accuse(rank, peer, &reason);
                }
            }
            RankEvent::Failed { rank, reason } => {
                let reason = shown(&reason, REASON_CHARS);
                self.ranks[rank as usize].degrade(Contact::Failed);
                self.suspect(Evidence::Own, RunFailure::Failed { rank, reason });
            }
            RankEvent::Account { rank, account } => {
                self.ranks[rank as usize].heard = self.now;
                self.accounts.insert(rank, *account);
                let all = self.accounts.len() == self.ranks.len();
                if let Some(trouble) = self.trouble.as_mut().filter(|_| all) {
                    trouble.until = trouble.until.min(trouble.noted + GRACE);
                }
            }
            RankEvent::Warning(text) => {
                if self.warnings.len() >= WARNINGS {
                    self.omitted_warnings += 1;
                } else {
                    self.warnings.push(shown(&text, WARNING_CHARS));
                }
            }
            _ => unreachable!("the caller handles the rest"),
        }
    }

    fn record(&mut self, record: Record, observer: &mut dyn Observer) {
        if let RecordKind::Step { compute, .. } = record.event {
            self.done += 1;
            self.hear(record.rank);
            self.advance_position(record.rank, record.step);
            let progress = &mut self.ranks[record.rank as usize];
            progress.computing = None;
            progress.steps += 1;
            progress.compute_limit.note(Time::from_seconds(compute));
            // In virtual time, a thousand reports are enough for any bar.
            let every = if self.watches { 1 } else { (self.total / 1000).max(1) };
            if self.done.is_multiple_of(every) || self.done == self.total {
                observer.progress(self.done, self.total, Time::from_seconds(record.t));
            }
            self.tell_progress();
            self.cut_on_average();
        }
        observer.record(record);
    }

    /// A rank says that it has waited for too long. While somebody computes, the others wait for a reason; and
    /// one that has moved a moment ago, by what it has said itself, has not waited.
    fn hear_complaint(&mut self, rank: u32, complaint: &str) {
        let progress = &mut self.ranks[rank as usize];
        progress.computing = None;
        let still = self.now.since(progress.moved).seconds();
        let is_excused = self.now < self.excused_until;
        let is_computed = self.ranks.iter().any(|progress| progress.computing.is_some());
        if is_excused || is_computed || still < self.limits.peer_seconds / 2.0 {
            return;
        }
        let complaint = shown(complaint, REASON_CHARS) + &self.finished_before();
        let limit = self.limits.peer_seconds / 2.0;
        let moves = |(other, progress): (usize, &RankProgress)| {
            let is_other = other as u32 != rank && !progress.is_finished();
            is_other && self.now.since(progress.moved).seconds() < limit
        };
        // Where the others need not wait, whoever waits is alone with it.
        let others_move = self.ranks.iter().enumerate().any(moves);
        if others_move && self.on_loss != LossPolicy::Stop {
            let failure = RunFailure::Lost { rank, reason: complaint };
            return self.suspect(Evidence::Inferred, failure);
        }
        self.suspect(Evidence::Complaint, RunFailure::Stalled(complaint));
    }

    /// A rank's report, of which what others decide is replaced.
    fn take_report(&mut self, report: RankReport) {
        let rank = report.rank as usize;
        let is_server = rank >= self.workers;
        self.ranks[rank].report =
            Some(RankReport { is_server, lost: false, left: false, ..report });
    }

    pub(crate) fn hear(&mut self, rank: u32) {
        let progress = &mut self.ranks[rank as usize];
        (progress.heard, progress.moved) = (self.now, self.now);
    }

    fn ticket(&mut self, rank: u32, number: u64, urgent: bool) {
        self.hear(rank);
        match self.budget.request(rank as usize, number, urgent) {
            Some(BudgetAnswer::Granted(unit)) => self.grant(rank, unit),
            Some(BudgetAnswer::Exhausted) => {
                return self.order(Recipient::Rank(rank), Command::Deny);
            }
            Some(BudgetAnswer::Later) | None => return,
        }
        if self.budget.is_exhausted() {
            // Workers that wait for others, and so do not ask, will get none either.
            self.order(Recipient::All, Command::Deny);
        }
    }

    fn grant(&mut self, rank: u32, unit: Option<u64>) {
        let (done, settled) = (self.done, self.budget.settled());
        let grant = unit.map(|unit| Command::Unit { done, unit, settled });
        self.order(Recipient::Rank(rank), grant.unwrap_or(Command::Grant { done }));
    }

    /// A worker has used a unit of the shared data. After the last one nobody gets more.
    fn confirm(&mut self, rank: u32, unit: u64) {
        self.hear(rank);
        if !self.budget.confirm(rank as usize, unit) {
            let reason = format!("it confirmed unit {unit} of the data, which it was not handed");
            return self.suspect(Evidence::Seen, RunFailure::Lost { rank, reason });
        }
        if self.budget.is_exhausted() {
            self.order(Recipient::All, Command::Deny);
        }
    }

    /// What a worker held that takes part no more goes to those who wait.
    pub(crate) fn hand_out_again(&mut self) {
        while let Some((worker, unit)) = self.budget.serve_waiting() {
            self.grant(worker as u32, Some(unit));
        }
    }
}
