//! Chaos: random faults that follow from a seed.
//!
//! Incidents happen at random times; each consists of two faults at about the same time, of any kinds:
//! crashes of workers, workers that leave, pauses of any rank, slow links, partitions of one pair, partitions of one worker that
//! last until it counts as lost, two sides that take each other for lost, and late control messages. Where the
//! controller lives with a worker, these are its faults too. [`ChaosScenario`] puts them into random small runs
//! of every algorithm and checks what must hold whatever goes wrong.

mod scenario;

pub use scenario::{ChaosFailure, ChaosScenario};

use quelea_core::random::Rng;
use quelea_core::time::Time;

use crate::faults::{
    ControlDelay, Crash, Faults, Leave, PairPartition, Pause, PlainRule, RankPartition, Rule,
    SidePartition, Verdict,
};

/// Which faults are drawn, and how many.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChaosOptions {
    /// How often something happens: two faults at about the same time.
    pub incidents: u32,
    /// Mean time between two incidents; the time is exponentially distributed.
    pub mean_ms: f64,
    /// Workers crash, or are partitioned from all others until they count as lost.
    pub crashes: bool,
    /// Workers leave with notice.
    pub leaves: bool,
    /// Ranks stand still.
    pub pauses: bool,
    /// Links become slow, or do not deliver for a while.
    pub links: bool,
    /// Control messages arrive late.
    pub control: bool,
    /// The cluster falls into two sides that do not reach each other; only where the controller lives with
    /// a worker.
    pub splits: bool,
    /// This many workers are never lost and never leave.
    pub survivors: u32,
}

/// What one fault is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FaultKind {
    Crash,
    LostPartition,
    Leave,
    Pause,
    SlowLink,
    PairPartition,
    ControlDelay,
    Split,
}

/// The ranks of a run, and the times in which it lives.
#[derive(Clone, Copy, Debug)]
pub struct ChaosTarget {
    /// Workers; they come first.
    pub workers: u32,
    /// Servers, which may be paused and cut off, and are never lost.
    pub servers: u32,
    /// The cluster's time from a loss until it is noticed.
    pub detect_ms: f64,
}

impl ChaosOptions {
    fn kinds(&self) -> Vec<FaultKind> {
        let kinds = [
            (FaultKind::Crash, self.crashes),
            (FaultKind::LostPartition, self.crashes),
            (FaultKind::Leave, self.leaves),
            (FaultKind::Pause, self.pauses),
            (FaultKind::SlowLink, self.links),
            (FaultKind::PairPartition, self.links),
            (FaultKind::ControlDelay, self.control),
            (FaultKind::Split, self.splits),
        ];
        kinds.into_iter().filter(|(_, is_wanted)| *is_wanted).map(|(kind, _)| kind).collect()
    }

    /// The faults of a run with this `seed`.
    pub fn draw(&self, seed: u64, target: ChaosTarget) -> Faults {
        let kinds = self.kinds();
        let mut draw = FaultDraw {
            rng: Rng::new(seed, "chaos", 0),
            target,
            living: (0..target.workers).collect(),
            faults: Faults::default(),
        };
        let mut at_ms = 0.0;
        for _ in 0..if kinds.is_empty() { 0 } else { self.incidents } {
            at_ms += -self.mean_ms * (1.0 - draw.rng.uniform()).ln();
            for _ in 0..2 {
                let kind = kinds[draw.rng.below(kinds.len() as u64) as usize];
                let later_ms = 0.3 * self.mean_ms * draw.rng.uniform();
                draw.add(kind, at_ms + later_ms, self);
            }
        }
        draw.faults
    }
}

/// Faults that are being drawn.
struct FaultDraw {
    rng: Rng,
    target: ChaosTarget,
    /// Workers that are still there.
    living: Vec<u32>,
    faults: Faults,
}

impl FaultDraw {
    fn add(&mut self, kind: FaultKind, from_ms: f64, options: &ChaosOptions) {
        let ranks = self.target.workers + self.target.servers;
        let rank = self.rng.below(u64::from(ranks)) as u32;
        let others = u64::from(ranks).saturating_sub(1).max(1);
        let peer = (rank + 1 + self.rng.below(others) as u32) % ranks;
        let until_ms = from_ms + options.mean_ms * (0.1 + 2.0 * self.rng.uniform());
        match kind {
            FaultKind::Crash => {
                if let Some(rank) = self.victim(options) {
                    self.faults.crashes.push(Crash { rank, at_ms: from_ms });
                }
            }
            FaultKind::LostPartition => {
                if let Some(rank) = self.victim(options) {
                    let until_ms = until_ms + 2.0 * self.target.detect_ms + 1.0;
                    self.faults.partitions.push(RankPartition { rank, from_ms, until_ms });
                }
            }
            FaultKind::Leave => {
                if let Some(rank) = self.victim(options) {
                    self.faults.leaves.push(Leave { rank, at_ms: from_ms });
                }
            }
            FaultKind::Pause => self.faults.pauses.push(Pause { rank, from_ms, until_ms }),
            FaultKind::SlowLink => {
                let delay = Time::from_ms(options.mean_ms * self.rng.uniform());
                let verdict = Verdict::Delay(delay);
                let (from, to) = (Some(rank), Some(peer));
                let rule = PlainRule { from, to, from_ms, until_ms, ..PlainRule::all(verdict) };
                self.faults.rules.push(Rule::Plain(rule));
            }
            FaultKind::PairPartition => {
                let pair = PairPartition { rank, peer, from_ms, until_ms };
                self.faults.pair_partitions.push(pair);
            }
            FaultKind::Split => {
                // Servers stay together.
                let ranks: Vec<u32> =
                    (0..self.target.workers).filter(|_| self.rng.below(2) == 1).collect();
                let until_ms = until_ms + 2.0 * self.target.detect_ms + 1.0;
                if !ranks.is_empty() {
                    self.faults.splits.push(SidePartition { ranks, from_ms, until_ms });
                }
            }
            FaultKind::ControlDelay => {
                let delay_ms = options.mean_ms * self.rng.uniform();
                let delay = ControlDelay { rank, from_ms, until_ms, delay_ms };
                self.faults.control_delays.push(delay);
            }
        }
    }

    /// A worker that may be lost, if there is one left.
    fn victim(&mut self, options: &ChaosOptions) -> Option<u32> {
        if self.living.len() <= options.survivors.max(1) as usize {
            return None;
        }
        let place = self.rng.below(self.living.len() as u64) as usize;
        Some(self.living.swap_remove(place))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: ChaosOptions = ChaosOptions {
        incidents: 50,
        mean_ms: 3.0,
        crashes: true,
        leaves: true,
        pauses: true,
        links: true,
        control: true,
        splits: false,
        survivors: 2,
    };
    const TARGET: ChaosTarget = ChaosTarget { workers: 6, servers: 1, detect_ms: 5.0 };

    #[test]
    fn the_same_seed_gives_the_same_faults_and_another_seed_others() {
        let text = |seed| format!("{:?}", ALL.draw(seed, TARGET));
        assert_eq!(text(1), text(1));
        assert_ne!(text(1), text(2));
    }

    #[test]
    fn two_faults_belong_to_an_incident_and_some_workers_survive_all_of_them() {
        for seed in 0..50 {
            let faults = ALL.draw(seed, TARGET);
            faults.check().expect("good faults");
            faults.check_ranks(7).expect("of ranks that exist");
            let lost = faults.crashes.len() + faults.partitions.len() + faults.leaves.len();
            assert_eq!(lost, 4, "all but two of six");
            let others = faults.pauses.len()
                + faults.rules.len()
                + faults.pair_partitions.len()
                + faults.control_delays.len();
            assert!((40..=100 - lost).contains(&others), "{others}");
            assert!(faults.crashes.iter().all(|crash| crash.rank < 6), "servers are not lost");
            let is_noticed = |cut: &RankPartition| cut.until_ms - cut.from_ms > TARGET.detect_ms;
            assert!(faults.partitions.iter().all(is_noticed));
        }
    }

    #[test]
    fn only_the_kinds_that_are_wanted_are_drawn() {
        let pauses =
            ChaosOptions { crashes: false, leaves: false, links: false, control: false, ..ALL };
        let faults = pauses.draw(1, TARGET);
        assert_eq!(faults.pauses.len(), 100);
        let none = ChaosOptions { pauses: false, ..pauses };
        assert_eq!(none.draw(1, TARGET).pauses.len(), 0);
    }
}
