//! How ranks continue after a cut: when it is written, and when enough workers are there.

use quelea_record::Observer;

use super::Stage;
use crate::controller::{Controller, RunPhase};
use crate::directive::Recipient;
use crate::messages::Command;

impl Controller {
    /// Lets those continue who were held at a cut, if nothing holds them any more; steps until `durable` are written.
    pub(super) fn continue_after_cut(&mut self, durable: u64, observer: &mut dyn Observer) {
        self.attend_short_handed();
        if matches!(self.cutting.stage, Stage::Holding) && !self.is_held_for_joiners() {
            self.cutting.stage = Stage::None;
            self.end_holding();
            self.let_in(observer);
            if !self.members.is_changing() {
                self.order(Recipient::All, Command::Continue);
            }
        }
        let is_written = matches!(self.cutting.stage, Stage::Writing { step } if step <= durable);
        if is_written && !self.is_held_for_joiners() {
            self.cutting.stage = Stage::None;
            if self.members.waiting.short_since.is_some() {
                self.end_holding();
            }
            self.enter(RunPhase::Running);
            self.order(Recipient::All, Command::Continue);
            if self.members.waiting.are_due() {
                self.let_in(observer);
            }
            self.end_if_finished();
        }
    }
}
