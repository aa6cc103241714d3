//! Cuts that were under way when another controller took over, and cuts that a driver holds up.

use quelea_record::Request;

use super::CutAgreement;
use crate::controller::Controller;

impl CutAgreement {
    /// As a new controller finds it: checkpoints until `step` are written, and what a cut was for that
    /// did not come about.
    pub(crate) fn inherit(&mut self, step: u64, retry: Option<Request>) {
        (self.durable, self.written_before, self.retry) = (step, step, retry);
    }

    /// Until which step checkpoints were written before this controller took over.
    pub(crate) fn written_before(&self) -> u64 {
        self.written_before
    }
}

impl Controller {
    /// No cut begins while this holds: for drivers whose views take longer than other commands.
    pub fn hold_cuts(&mut self, is_held: bool) {
        self.cutting.is_held = is_held;
    }

    /// Some ranks rest already for a cut of which this controller knows nothing else: all come to rest.
    pub(crate) fn rest_with_others(&mut self) {
        self.cutting.must_rest = true;
        self.pause(self.mean_step());
    }
}
