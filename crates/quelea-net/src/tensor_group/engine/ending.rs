//! How a group ends: by a failure that all ranks hear of, or by taking leave.

use super::super::frame::Kind;
use super::super::link::Link;
use super::super::submitted::CallOutcome;
use super::{Engine, Phase};

impl Engine {
    /// Ends everything with this reason, and tells the peers.
    pub(super) fn fail(&mut self, reason: &str) {
        if !matches!(self.phase, Phase::Running) {
            return;
        }
        self.phase = Phase::Failed(reason.into());
        for link in self.links.iter_mut().flatten() {
            link.forget_tensors();
            link.say(Kind::Failed, reason);
            link.write(&mut Vec::new());
        }
        self.open.clear();
        self.numbers.clear();
        let jobs = self.jobs.drain(..).map(|job| job.pending);
        let tagged = self.tagged.drain(..).map(|tagged| tagged.pending);
        let unmatched = self.unmatched.drain(..).map(|receive| receive.pending);
        for pending in jobs.chain(tagged).chain(unmatched) {
            pending.end(Err(reason.into()));
        }
    }

    /// Says goodbye once everything is done that was submitted.
    pub(super) fn leave_if_done(&mut self) {
        if self.leaving.is_none() || !self.jobs.is_empty() || !self.tagged.is_empty() {
            return;
        }
        if matches!(self.phase, Phase::Running) {
            self.phase = Phase::Left;
            for link in self.links.iter_mut().flatten() {
                link.say(Kind::Leave, "");
                link.write(&mut Vec::new());
            }
        }
        if self.links.iter().flatten().any(Link::wants_to_write) {
            return;
        }
        if let Some(done) = self.leaving.take() {
            self.links.iter().flatten().for_each(Link::close_writing);
            done.end(Ok(CallOutcome { source: None }));
        }
    }
}
