//! What ranks say of each other, and whom the controller believes.
//!
//! A rank sees its own links only, and it may lie: what it says of another is checked before anybody is taken
//! for lost.
//!
//! | what else is known | who is taken for lost |
//! |---|---|
//! | the accuser is a rank of the controller's own process | the accused |
//! | the controller itself does not hear the accused any more | the accused, see `silence` |
//! | a second rank is in conflict with the accused | the accused |
//! | the accuser is in conflict with several ranks, each of them with nobody else | the accuser |
//! | nothing: the controller hears the accused, and nobody else complains | the accuser |
//!
//! Two ranks are in conflict when one has accused the other, at any time of the run. So a liar removes nobody
//! but itself, and one that misbehaves towards one rank at a time is found out by the second.

use std::collections::BTreeSet;

use quelea_core::time::Time;

use crate::controller::{Controller, RunPhase};
use crate::directive::RunFailure;
use crate::membership::LossPolicy;
use crate::suspicion::{Evidence, GRACE};
use crate::text::{REASON_CHARS, shown};

/// How long a second witness is waited for.
const WITNESS_TIME: Time = Time(4 * GRACE.0);
/// Accusations of one rank that are kept at once: it has no more peers to lose than there are ranks, and one
/// that accuses more than a few is the one with the problem.
const OPEN_PER_RANK: usize = 16;

/// One rank says that it has lost another.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Accusation {
    accuser: u32,
    accused: u32,
    reason: String,
    since: Time,
}

/// Two ranks that cannot both be right, the lower one first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Conflict {
    low: u32,
    high: u32,
}

impl Conflict {
    fn between(a: u32, b: u32) -> Conflict {
        Conflict { low: a.min(b), high: a.max(b) }
    }

    fn has(self, rank: u32) -> bool {
        self.low == rank || self.high == rank
    }
}

/// The accusations of a run.
#[derive(Debug, Default)]
pub(crate) struct Accusations {
    /// Those on which nothing was decided.
    open: Vec<Accusation>,
    conflicts: BTreeSet<Conflict>,
}

/// What becomes of an accusation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AccusationVerdict {
    /// Others say the same: the accused is lost.
    Confirmed,
    /// Nobody else does, or the accuser is in conflict with more ranks: it is the one who is lost.
    Unconfirmed,
    /// It is too early.
    Pending,
}

impl Accusations {
    /// With how many ranks this one is in conflict.
    fn conflicts_of(&self, rank: u32) -> usize {
        self.conflicts.iter().filter(|conflict| conflict.has(rank)).count()
    }

    /// Who is in conflict with `accused`: "rank 1 and rank 4".
    fn witnesses(&self, accused: u32) -> String {
        let others = self.conflicts.iter().filter(|conflict| conflict.has(accused));
        let others = others.map(|conflict| conflict.low + conflict.high - accused);
        others.map(|rank| format!("rank {rank}")).collect::<Vec<_>>().join(" and ")
    }

    /// This rank is gone for a reason of its own, which explains all conflicts with it.
    pub(crate) fn explain(&mut self, rank: u32) {
        self.conflicts.retain(|conflict| !conflict.has(rank));
        self.open.retain(|open| open.accuser != rank && open.accused != rank);
    }

    fn remember(&mut self, accusation: Accusation) {
        let Accusation { accuser, accused, .. } = accusation;
        self.conflicts.insert(Conflict::between(accuser, accused));
        let is_open = |open: &Accusation| (open.accuser, open.accused) == (accuser, accused);
        let of_accuser = self.open.iter().filter(|open| open.accuser == accuser).count();
        if !self.open.iter().any(is_open) && of_accuser < OPEN_PER_RANK {
            self.open.push(accusation);
        }
    }
}

impl Controller {
    /// `accuser` says that it has lost `accused`.
    pub(crate) fn accuse(&mut self, accuser: u32, accused: u32, reason: &str) {
        let is_over = matches!(self.phase, RunPhase::Finishing | RunPhase::Salvaging);
        if is_over || accuser == accused || self.ranks[accused as usize].is_lost() {
            return;
        }
        let reason = shown(reason, REASON_CHARS);
        if self.own_ranks.contains(&accuser) {
            // What a rank of this process sees, this process sees.
            let reason = format!("{reason} (seen by rank {accuser})");
            return self.suspect(Evidence::Inferred, RunFailure::Lost { rank: accused, reason });
        }
        let accusation = Accusation { accuser, accused, reason, since: self.now };
        self.accusations.remember(accusation);
    }

    /// When the next accusation can be decided on, if there is one.
    pub(crate) fn next_verdict(&self) -> Option<Time> {
        let open = self.accusations.open.iter().map(|open| open.since + WITNESS_TIME);
        // One that waits for a sign of life is looked at whenever there may be one.
        open.filter(|at| *at > self.now).min()
    }

    /// Whether [`next_decision`](Self::next_decision) or [`next_probe`](Self::next_probe) may name a time.
    #[inline]
    pub fn may_become_due(&self) -> bool {
        self.trouble.is_some()
            || !self.accusations.open.is_empty()
            || self.disputes.is_open()
            || self.probes.next.is_some()
    }

    /// When something is decided that ranks have said of others, for drivers that watch nobody by the clock.
    pub fn next_decision(&self) -> Option<Time> {
        if self.phase == RunPhase::Salvaging {
            return None;
        }
        let trouble = self.trouble.as_ref().map(|trouble| trouble.until);
        [trouble, self.next_verdict(), self.dispute_deadline()].into_iter().flatten().min()
    }

    /// Decides on accusations for which enough is known.
    pub(crate) fn decide_accusations(&mut self) {
        let trouble = self.trouble.as_ref();
        if trouble.is_some_and(|trouble| trouble.weight <= Evidence::Inferred) {
            return;
        }
        let ranks = &self.ranks;
        let is_lost = |rank: u32| ranks[rank as usize].is_lost();
        self.accusations.open.retain(|open| !is_lost(open.accuser) && !is_lost(open.accused));
        let open = &self.accusations.open;
        let decided = open.iter().find_map(|accusation| match self.verdict(accusation) {
            AccusationVerdict::Pending => None,
            verdict => Some((accusation.clone(), verdict)),
        });
        let Some((accusation, verdict)) = decided else { return };
        self.accusations.open.retain(|open| *open != accusation);
        let Accusation { accuser, accused, reason, .. } = accusation;
        let error = match verdict {
            AccusationVerdict::Confirmed => {
                let witnesses = self.accusations.witnesses(accused);
                let reason = format!("{reason} (seen by {witnesses})");
                RunFailure::Lost { rank: accused, reason }
            }
            // The run ends with either: who sees what is all that can be said.
            _ if self.on_loss == LossPolicy::Stop => {
                let reason = format!(
                    "{reason} (seen by rank {accuser} only; the coordinator hears rank {accused})"
                );
                RunFailure::Lost { rank: accused, reason }
            }
            _ => {
                let reason = format!(
                    "it says that it has lost rank {accused} ({reason}), which the coordinator \
                     hears and nobody else has lost"
                );
                RunFailure::Lost { rank: accuser, reason }
            }
        };
        // A liar explains all conflicts with it; where it is one word against another, the next one counts.
        if verdict == AccusationVerdict::Confirmed {
            self.accusations.explain(accused);
        } else if self.accusations.conflicts_of(accuser) > 1 {
            self.accusations.explain(accuser);
        }
        self.suspect(Evidence::Inferred, error);
    }

    fn verdict(&self, accusation: &Accusation) -> AccusationVerdict {
        let Accusation { accuser, accused, since, .. } = *accusation;
        let against = self.accusations.conflicts_of(accused);
        // Ranks of this process do not lie to it.
        let may_be_true = !self.own_ranks.contains(&accused);
        if may_be_true && against > self.accusations.conflicts_of(accuser) {
            return AccusationVerdict::Confirmed;
        }
        let is_heard = self.has_heard_since(accused, since + GRACE);
        if self.now >= since + WITNESS_TIME && is_heard {
            return AccusationVerdict::Unconfirmed;
        }
        AccusationVerdict::Pending
    }

    /// Whether the process of `rank` has shown since then that it is alive. One that has not is silent, and
    /// that is judged elsewhere.
    fn has_heard_since(&self, rank: u32, since: Time) -> bool {
        if !self.watches || self.own_ranks.contains(&rank) {
            return true;
        }
        let progress = &self.ranks[rank as usize];
        let signs = progress.detector.as_ref().map_or(progress.heard, |detector| detector.last());
        !progress.is_gone() && signs.max(progress.heard) >= since
    }
}
