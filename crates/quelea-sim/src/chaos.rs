//! Chaos: random faults that follow from a seed.
//!
//! Incidents happen at random times; each consists of two faults at about the same time, of any kinds:
//! crashes of workers, workers that leave, workers that join in their place, pauses of any rank, slow links,
//! partitions of one pair, partitions of one worker that last until it counts as lost, two sides that take each
//! other for lost, and late control messages. Where the controller lives with a worker, these are its faults
//! too. [`ChaosScenario`] puts them into random small runs
//! of every algorithm and checks what must hold whatever goes wrong.

mod scenario;

pub use scenario::{ChaosFailure, ChaosScenario};

use quelea_core::random::Rng;
use quelea_core::time::Time;

use crate::faults::{
    ControlDelay, Crash, Faults, Join, Leave, PairPartition, Pause, PlainRule, RankPartition, Rule,
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
    /// Workers join in the place of those who were lost or have left; they may be lost again.
    pub joins: bool,
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
    Join,
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
    /// Places after theirs for workers that join.
    pub spare: u32,
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
            (FaultKind::Join, self.joins),
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
            missing: (target.workers..target.workers + target.spare)
                .map(MissingWorker::new)
                .collect(),
            replaced: Vec::new(),
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
        let Faults { joins, splits, .. } = &mut draw.faults;
        let healed_ms = splits.iter().map(|split| split.until_ms).fold(0.0, f64::max);
        // Whoever comes before that would not be reached by all.
        joins.iter_mut().for_each(|join| join.at_ms = join.at_ms.max(healed_ms));
        draw.faults
    }
}

/// A worker as which nobody takes part.
struct MissingWorker {
    rank: u32,
    /// Its place is not reached before that.
    cut_off_until_ms: f64,
}

impl MissingWorker {
    fn new(rank: u32) -> MissingWorker {
        MissingWorker { rank, cut_off_until_ms: 0.0 }
    }
}

/// Faults that are being drawn.
struct FaultDraw {
    rng: Rng,
    target: ChaosTarget,
    /// Workers that are there since the start.
    living: Vec<u32>,
    /// Those that were lost or have left, or have never been there.
    missing: Vec<MissingWorker>,
    /// Those in whose place another joins, sooner or later: they may be lost again at any moment.
    replaced: Vec<u32>,
    faults: Faults,
}

impl FaultDraw {
    fn add(&mut self, kind: FaultKind, from_ms: f64, options: &ChaosOptions) {
        let ranks = self.target.workers + self.target.spare + self.target.servers;
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
            FaultKind::LostPartition => self.partition(from_ms, until_ms, options),
            FaultKind::Leave => {
                if let Some(rank) = self.victim(options) {
                    self.faults.leaves.push(Leave { rank, at_ms: from_ms });
                }
            }
            FaultKind::Join => self.join(from_ms),
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

    /// A worker is not reached until it counts as lost, and for some time after that.
    fn partition(&mut self, from_ms: f64, until_ms: f64, options: &ChaosOptions) {
        let replaced = self.replaced.clone();
        let Some(rank) = self.victim(options) else { return };
        // One that begins before somebody has joined in the place would last until after that, and
        // nobody would notice.
        if replaced.contains(&rank) {
            return self.faults.crashes.push(Crash { rank, at_ms: from_ms });
        }
        let until_ms = until_ms + 2.0 * self.target.detect_ms + 1.0;
        self.faults.partitions.push(RankPartition { rank, from_ms, until_ms });
        // Whoever comes in its place before that would not be reached either.
        let of_rank = |missing: &&mut MissingWorker| missing.rank == rank;
        if let Some(missing) = self.missing.iter_mut().find(of_rank) {
            missing.cut_off_until_ms = until_ms;
        }
    }

    /// A worker joins where one is missing.
    fn join(&mut self, from_ms: f64) {
        if self.missing.is_empty() {
            return;
        }
        let place = self.rng.below(self.missing.len() as u64) as usize;
        let MissingWorker { rank, cut_off_until_ms } = self.missing.swap_remove(place);
        self.replaced.push(rank);
        self.faults.joins.push(Join { rank, at_ms: from_ms.max(cut_off_until_ms) });
    }

    /// A worker that may be lost, if there is one left.
    fn victim(&mut self, options: &ChaosOptions) -> Option<u32> {
        let spare = self.living.len().saturating_sub(options.survivors.max(1) as usize);
        let living = if spare > 0 { self.living.len() } else { 0 };
        let choices = living + self.replaced.len();
        if choices == 0 {
            return None;
        }
        let place = self.rng.below(choices as u64) as usize;
        let rank = if place < living {
            self.living.swap_remove(place)
        } else {
            self.replaced.swap_remove(place - living)
        };
        // A partition of its place that was drawn before may last longer.
        let partitions = self.faults.partitions.iter().filter(|partition| partition.rank == rank);
        let cut_off_until_ms = partitions.map(|partition| partition.until_ms).fold(0.0, f64::max);
        self.missing.push(MissingWorker { rank, cut_off_until_ms });
        Some(rank)
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
        joins: false,
        pauses: true,
        links: true,
        control: true,
        splits: false,
        survivors: 2,
    };
    const TARGET: ChaosTarget = ChaosTarget { workers: 6, spare: 0, servers: 1, detect_ms: 5.0 };

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
    fn only_those_who_are_missing_are_replaced_and_the_survivors_are_never_lost() {
        let with_joins = ChaosOptions { joins: true, ..ALL };
        for seed in 0..50 {
            let faults = with_joins.draw(seed, TARGET);
            faults.check().expect("good faults");
            let losses = faults.crashes.iter().map(|crash| (crash.rank, crash.at_ms));
            let losses = losses.chain(faults.leaves.iter().map(|leave| (leave.rank, leave.at_ms)));
            let losses: Vec<_> = losses
                .chain(
                    faults.partitions.iter().map(|partition| (partition.rank, partition.from_ms)),
                )
                .collect();
            assert!(!faults.joins.is_empty(), "seed {seed}");
            for rank in 0..TARGET.workers {
                let joins = faults.joins.iter().filter(|join| join.rank == rank).count();
                let lost = losses.iter().filter(|(whose, _)| *whose == rank).count();
                assert!(joins <= lost && lost <= joins + 1, "{rank}: {joins} joins, {lost} losses");
            }
            let never =
                (0..TARGET.workers).filter(|rank| losses.iter().all(|(lost, _)| lost != rank));
            assert!(never.count() >= 2, "two survive everything");
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
