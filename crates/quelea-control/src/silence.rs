//! Which processes are silent for longer than what was heard of them explains.

use quelea_core::time::Time;

use crate::controller::{Controller, RunPhase};
use crate::detector::AccrualDetector;
use crate::directive::RunFailure;
use crate::membership::LossPolicy;
use crate::suspicion::{Contact, Evidence};

impl Controller {
    /// The process of `rank` gave a sign of life.
    pub fn alive(&mut self, at: Time, rank: u32) {
        let limits = self.limits.silence;
        let detector = &mut self.ranks[rank as usize].detector;
        detector.get_or_insert_with(|| AccrualDetector::new(limits, at)).hear(at);
    }

    /// The process of a rank is gone.
    pub fn gone(&mut self, now: Time, rank: u32, reason: String) {
        self.now = now;
        if self.ranks[rank as usize].is_lost() {
            self.members.waiting.remove(rank);
            return;
        }
        self.ranks[rank as usize].degrade(Contact::Gone);
        self.accusations.explain(rank);
        if self.ranks[rank as usize].report.is_none() {
            self.suspect(Evidence::Seen, RunFailure::Lost { rank, reason });
        }
    }

    /// Nothing can be said to a rank any more; why is seen where it is read.
    pub fn unreachable(&mut self, rank: u32) {
        self.ranks[rank as usize].degrade(Contact::Unreachable);
    }

    /// How often it is looked who is silent.
    pub(crate) fn watch_period(&self) -> Time {
        Time(self.limits.heartbeat_period().0 / 2)
    }

    /// Looks who is silent, unless this process stood still shortly before.
    pub(crate) fn watch(&mut self) {
        self.watched = self.now;
        if self.heard_until >= self.excused_until && self.phase != RunPhase::Salvaging {
            self.judge_silence();
        }
    }

    fn judge_silence(&mut self) {
        let now = self.heard_until;
        let suspected = self.ranks.iter().enumerate().filter_map(|(rank, progress)| {
            let detector = progress.detector.as_ref().filter(|_| progress.report.is_none())?;
            let silence = detector.silence(now);
            let is_suspected =
                detector.suspicion(now) >= 1.0 && silence >= self.least_silence(rank as u32);
            is_suspected.then(|| (silence, rank as u32, detector.longest_gap()))
        });
        if let Some((silence, rank, gap)) = suspected.max() {
            let (silence, gap) = (silence.seconds(), gap.seconds());
            let reason = format!(
                "it has been silent for {silence:.1} s (its heartbeats came at most {gap:.1} s apart)"
            );
            self.accusations.explain(rank);
            self.suspect(Evidence::Seen, RunFailure::Lost { rank, reason });
        }
    }

    /// Nothing is gained by haste where the others cannot continue without `rank`: there it may be silent
    /// for as long as the ceiling allows.
    fn least_silence(&self, rank: u32) -> Time {
        let LossPolicy::Continue { min_workers } = self.on_loss else {
            return Time::from_seconds(self.limits.silence.ceiling_seconds);
        };
        match self.loss_refusal(rank, min_workers) {
            Some(_) => Time::from_seconds(self.limits.silence.ceiling_seconds),
            None => Time::ZERO,
        }
    }
}
