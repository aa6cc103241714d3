//! Waiting for workers where fewer are left than the run wants: the others stop at a cut, and continue when enough
//! have joined.
//!
//! The loss itself is dealt with as any other: a view without the lost worker. Then a cut is asked for as if somebody
//! wanted to join, and held until enough do, or until the time is over.

use quelea_core::time::Time;

use crate::controller::Controller;
use crate::directive::RunFailure;
use crate::membership::LossPolicy;
use crate::suspicion::{Evidence, RankProgress};

/// While nobody is expected to move, nobody is judged for so much longer.
const EXCUSED: Time = Time(2_000_000_000);

impl Controller {
    /// Whether workers that join would be waited for.
    fn waits_for_joiners(&self) -> bool {
        let can_join = self.setup.join_refusal().is_none() && !self.is_ending();
        self.limits.joiner_seconds > 0.0 && can_join
    }

    /// Too few workers are left. Whether others are waited for.
    pub(crate) fn fall_short(&mut self) -> bool {
        if !self.waits_for_joiners() {
            return false;
        }
        let seconds = self.limits.joiner_seconds;
        let waiting = &mut self.members.waiting;
        if waiting.short_since.is_none() {
            waiting.short_since = Some(self.now);
            self.warnings.push(format!(
                "fewer workers were left than `membership.min_workers`; the run waited up to {seconds} s \
                 for others to join"
            ));
        }
        true
    }

    /// Whether those who wait to join are still too few, so that the others do not continue.
    pub(crate) fn is_held_for_joiners(&self) -> bool {
        let waiting = &self.members.waiting;
        let LossPolicy::Continue { min_workers } = self.on_loss else { return false };
        let living = self.ranks[..self.workers].iter().filter(|progress| !progress.is_lost());
        waiting.short_since.is_some() && living.count() + waiting.count() < min_workers
    }

    /// Looks whether enough have come, and whether it has been waited for too long.
    pub(crate) fn attend_short_handed(&mut self) {
        let Some(since) = self.members.waiting.short_since else { return };
        self.excused_until = self.excused_until.max(self.now + EXCUSED);
        let has_ended = |progress: &RankProgress| progress.is_finished() && !progress.is_lost();
        if self.ranks[..self.workers].iter().any(has_ended) {
            // A run that is about to end is not held up.
            self.members.waiting.short_since = None;
            return;
        }
        let limit = self.limits.joiner_seconds;
        if self.is_held_for_joiners() && self.now.since(since).seconds() >= limit {
            self.members.waiting.short_since = None;
            let text = format!(
                "fewer workers are left than `membership.min_workers`, and within {limit} s too few joined"
            );
            self.suspect(Evidence::Own, RunFailure::Stalled(text));
        }
    }

    /// Enough have come: all of them enter with the cut at which the others are held.
    pub(crate) fn end_holding(&mut self) {
        self.members.waiting.short_since = None;
        self.members.waiting.enter_all();
    }
}
