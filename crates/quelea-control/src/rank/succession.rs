//! A rank's share of the controller's state, and what it repeats when another controller takes over.

use quelea_record::RankReport;

use super::RankMachine;
use crate::member::MemberState;
use crate::messages::RankEvent;

/// What only a new controller asks for.
#[derive(Debug)]
pub(super) struct ControllerShare {
    /// Steps that it had completed when its process began.
    steps_before: u64,
    /// It was given notice.
    pub(super) is_leaving: bool,
    /// Whether its last report is kept until the run has ended.
    keeps_report: bool,
    reported: Option<Box<RankReport>>,
    has_reported: bool,
}

impl ControllerShare {
    pub(super) fn new(steps_before: u64) -> ControllerShare {
        ControllerShare {
            steps_before,
            is_leaving: false,
            keeps_report: false,
            reported: None,
            has_reported: false,
        }
    }
}

impl RankMachine {
    /// Keeps the last report, to be sent again if the controller that has it is lost.
    pub fn keep_report(&mut self) {
        self.share.keeps_report = true;
    }

    pub(super) fn report_at_end(&mut self) {
        self.share.has_reported = true;
        let report = Box::new(self.final_report());
        if self.share.keeps_report {
            self.share.reported = Some(report.clone());
        }
        self.events.push(RankEvent::Report(report));
    }

    /// This rank's share of the controller's state, but for the views and records, which its driver keeps.
    pub fn member_state(&self) -> MemberState {
        let steps = self.share.reported.as_ref().map_or(self.report.steps, |sent| sent.steps);
        MemberState {
            rank: self.node.rank.0,
            steps_before: self.share.steps_before,
            steps: steps.saturating_sub(self.share.steps_before),
            position: self.node.step(),
            granted: self.budget.granted(),
            units: self.budget.units.share(),
            done: self.node.gradients_done(),
            is_finished: self.is_finished(),
            rest: self.rest_state(),
            durable: self.cutting.durable,
            has_reported: self.share.has_reported,
            is_aborted: self.is_aborted(),
            is_leaving: self.share.is_leaving,
            ..MemberState::default()
        }
    }

    /// Another controller has taken over: repeats what the one before may not have heard.
    pub fn meet_controller(&mut self) {
        self.budget.ask_again();
        let rank = self.node.rank.0;
        if let Some(report) = &self.share.reported {
            self.events.push(RankEvent::Report(report.clone()));
        } else if self.share.is_leaving {
            self.events.push(RankEvent::Leaving { rank });
        }
    }
}
