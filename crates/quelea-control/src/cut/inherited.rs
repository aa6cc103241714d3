//! Cuts that were under way when another controller took over, and cuts that a driver holds up.

use quelea_record::Request;

use super::CutAgreement;
use crate::controller::Controller;
use crate::directive::Recipient;
use crate::messages::Command;

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
    /// Checkpoints until `durable` are written, as far as anybody within reach was told; `furthest` is the step of the
    /// fastest. Ranks of a synchronous run wait at the next checkpoint until it is written. One that somebody has come
    /// to went in part to the lost process, and will never be whole here: nobody waits for it, and another one is made.
    pub(crate) fn inherit_cuts(&mut self, durable: u64, furthest: u64) {
        let CutAgreement { schedule, synchronous, steps, .. } = &self.cutting;
        let is_awaited = self.waits_for_disk && *synchronous && schedule.save_every > 0;
        let next = schedule.limit(durable);
        let is_lost = is_awaited && furthest >= next;
        let retry = (is_lost && furthest < *steps).then_some(Request::Checkpoint);
        let durable = if is_lost { next } else { durable };
        self.cutting.inherit(durable, retry);
        if is_awaited {
            // Some may have heard of it and others not.
            self.order(Recipient::All, Command::Durable(durable));
        }
    }

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
