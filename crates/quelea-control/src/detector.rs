//! An accrual failure detector: how suspicious the silence of a process is, judged by the times between
//! the signs of life that came from it before.
//!
//! The detector remembers the longest gap among the recent signs of life. A process is *suspected* when its
//! silence exceeds [`GAP_FACTOR`] times that gap, at least a floor and at most a ceiling. Nothing is assumed
//! about the distribution of the gaps: on a loaded machine they have long tails, where a mean and a
//! variance (as in the φ accrual detector of Hayashibara et al. 2004) promise more than they can keep.
//!
//! ```text
//! suspicion(now) = (now − last sign of life) / clamp(3 × longest recent gap, floor, ceiling)
//! ```
//!
//! Signs of life are sent by a thread that does nothing else, so computing for a long time is not silence.
//! Time in which the observer itself stood still is excused.

use quelea_core::time::Time;

use crate::limits::SilenceLimits;

/// The longest tolerated silence, as a multiple of the longest recent gap.
const GAP_FACTOR: u64 = 3;
/// Until this number of gaps was seen, the ceiling applies.
const LEAST_GAPS: u32 = 5;
/// The longest gap is that of the last one to two times this many.
const WINDOW: u32 = 256;

/// Judges the silence of one process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccrualDetector {
    floor: Time,
    ceiling: Time,
    last: Time,
    gaps: LongestGap,
}

impl AccrualDetector {
    /// A detector whose process has just given its first sign of life.
    pub(crate) fn new(limits: SilenceLimits, first: Time) -> AccrualDetector {
        let SilenceLimits { floor_seconds, ceiling_seconds } = limits;
        AccrualDetector {
            floor: Time::from_seconds(floor_seconds.min(ceiling_seconds)),
            ceiling: Time::from_seconds(ceiling_seconds),
            last: first,
            gaps: LongestGap::default(),
        }
    }

    /// The process gave a sign of life.
    pub(crate) fn hear(&mut self, at: Time) {
        self.gaps.push(at.since(self.last));
        self.last = self.last.max(at);
    }

    /// The observer stood still for `still` until `now`: the process was not silent meanwhile, as far as
    /// the observer can tell.
    pub(crate) fn excuse(&mut self, now: Time, still: Time) {
        self.last = (self.last + still).min(now.max(self.last));
    }

    /// When it last gave a sign of life.
    pub(crate) fn last(&self) -> Time {
        self.last
    }

    /// For how long nothing was heard.
    pub(crate) fn silence(&self, now: Time) -> Time {
        now.since(self.last)
    }

    /// How long the process may be silent, judged by what was heard.
    pub(crate) fn patience(&self) -> Time {
        if self.gaps.seen < LEAST_GAPS {
            return self.ceiling;
        }
        let longest = Time(self.gaps.longest().0.saturating_mul(GAP_FACTOR));
        longest.clamp(self.floor, self.ceiling)
    }

    /// The silence as a share of the patience: from 1 on, the process is suspected.
    pub(crate) fn suspicion(&self, now: Time) -> f64 {
        self.silence(now).seconds() / self.patience().seconds()
    }

    /// The longest recent gap between two signs of life.
    pub(crate) fn longest_gap(&self) -> Time {
        self.gaps.longest()
    }
}

/// The longest of the last gaps, in two generations, so that old ones are forgotten at no cost.
#[derive(Clone, Copy, Debug, Default)]
struct LongestGap {
    current: Time,
    previous: Time,
    /// Gaps in the current generation.
    count: u32,
    /// Gaps in all, up to [`WINDOW`].
    seen: u32,
}

impl LongestGap {
    fn push(&mut self, gap: Time) {
        if self.count == WINDOW {
            (self.previous, self.current, self.count) = (self.current, Time::ZERO, 0);
        }
        self.current = self.current.max(gap);
        self.count += 1;
        self.seen = (self.seen + 1).min(WINDOW);
    }

    fn longest(&self) -> Time {
        self.current.max(self.previous)
    }
}

#[cfg(test)]
mod tests {
    use quelea_core::random::Rng;

    use super::*;

    const LIMITS: SilenceLimits = SilenceLimits { floor_seconds: 1.5, ceiling_seconds: 30.0 };
    const PERIOD: f64 = 0.2;

    /// Hears a trace of gaps, looks every 50 ms, and returns the time, and the highest suspicion
    /// before each sign of life.
    fn trace(detector: &mut AccrualDetector, gaps: impl IntoIterator<Item = f64>) -> (Time, f64) {
        let (mut now, mut highest) = (detector.last, 0.0f64);
        for gap in gaps {
            let next = now + Time::from_seconds(gap);
            let mut look = now;
            while look < next {
                highest = highest.max(detector.suspicion(look));
                look = look + Time::from_seconds(0.05);
            }
            highest = highest.max(detector.suspicion(next));
            detector.hear(next);
            now = next;
        }
        (now, highest)
    }

    fn detector() -> AccrualDetector {
        AccrualDetector::new(LIMITS, Time::ZERO)
    }

    #[test]
    fn a_process_whose_heartbeats_are_regular_is_suspected_at_the_floor() {
        let mut detector = detector();
        let (last, highest) = trace(&mut detector, vec![PERIOD; 100]);
        assert!(highest < 0.2, "{highest}");
        assert!(detector.suspicion(last + Time::from_seconds(1.499)) < 1.0);
        assert!(detector.suspicion(last + Time::from_seconds(1.5)) >= 1.0);
    }

    #[test]
    fn before_there_is_anything_to_judge_by_the_ceiling_holds() {
        let mut detector = detector();
        let (last, _) = trace(&mut detector, vec![PERIOD; 4]);
        assert!(detector.suspicion(last + Time::from_seconds(29.9)) < 1.0);
        assert!(detector.suspicion(last + Time::from_seconds(30.0)) >= 1.0);
    }

    #[test]
    fn the_silence_that_is_tolerated_follows_the_longest_recent_gap() {
        let mut detector = detector();
        trace(&mut detector, vec![PERIOD; 10]);
        trace(&mut detector, [1.2]);
        trace(&mut detector, vec![PERIOD; 10]);
        assert_eq!(detector.patience(), Time::from_seconds(3.6), "three times 1.2 s");
        trace(&mut detector, [20.0]);
        assert_eq!(detector.patience(), Time::from_seconds(30.0), "not above the ceiling");
        // Two generations later nothing of it is left.
        trace(&mut detector, vec![PERIOD; 2 * WINDOW as usize + 1]);
        assert_eq!(detector.patience(), Time::from_seconds(1.5));
    }

    #[test]
    fn jitter_of_half_a_second_is_no_reason_for_suspicion() {
        let mut rng = Rng::new(3, "jitter", 0);
        let gaps = (0..50_000).map(|_| PERIOD + 0.5 * rng.uniform());
        let (_, highest) = trace(&mut detector(), gaps.collect::<Vec<_>>());
        assert!(highest < 0.5, "{highest}");
    }

    /// A thread that sleeps for a period and then waits for a processor that others want: at load 8 on two
    /// cores three run before it, each for a slice of 4 to 100 ms, where its machine is swapping for
    /// longer. Steps of 0.1 to 20 s compete with it for the whole of their backward pass.
    fn loaded(rng: &mut Rng, seconds: f64) -> Vec<f64> {
        let (mut gaps, mut time) = (Vec::new(), 0.0);
        while time < seconds {
            let step = 0.1 * 200.0f64.powf(rng.uniform());
            let end = time + step;
            while time < end {
                let slices = (0..3).map(|_| 0.004 + 0.096 * rng.uniform().powi(3)).sum::<f64>();
                let swap = if rng.below(200) == 0 { rng.uniform() } else { 0.0 };
                let gap = PERIOD + slices + swap;
                gaps.push(gap);
                time += gap;
            }
        }
        gaps
    }

    #[test]
    fn a_loaded_machine_with_steps_of_any_length_raises_no_suspicion() {
        for seed in 0..20 {
            let mut rng = Rng::new(seed, "load", 0);
            let gaps = loaded(&mut rng, 3600.0);
            let (_, highest) = trace(&mut detector(), gaps);
            assert!(highest < 1.0, "seed {seed}: {highest}");
        }
    }

    #[test]
    fn heartbeats_that_come_in_bursts_count_by_the_time_between_bursts() {
        let mut detector = detector();
        let burst = || [1.0, 0.0, 0.0, 0.0, 0.0];
        let (last, highest) = trace(&mut detector, (0..40).flat_map(|_| burst()));
        assert!(highest < 1.0, "{highest}");
        assert!(detector.suspicion(last + Time::from_seconds(2.9)) < 1.0);
    }

    #[test]
    fn the_time_in_which_the_observer_stood_still_is_nobodys_silence() {
        let mut detector = detector();
        let (last, _) = trace(&mut detector, vec![PERIOD; 20]);
        let still = Time::from_seconds(40.0);
        let now = last + still + Time::from_seconds(0.1);
        assert!(detector.suspicion(now) > 1.0, "before it knows that it stood still");
        detector.excuse(now, still);
        assert_eq!(detector.silence(now), Time::from_seconds(0.1));
        detector.hear(now);
        assert_eq!(detector.patience(), Time::from_seconds(1.5), "and it is no gap either");
    }

    #[test]
    fn an_excuse_is_never_longer_than_the_silence() {
        let mut detector = detector();
        let (last, _) = trace(&mut detector, vec![PERIOD; 20]);
        let now = last + Time::from_seconds(0.3);
        detector.excuse(now, Time::from_seconds(5.0));
        assert_eq!(detector.silence(now), Time::ZERO);
        assert!(detector.suspicion(now + Time::from_seconds(1.5)) >= 1.0, "and does not last");
    }

    #[test]
    fn a_floor_above_the_ceiling_gives_way() {
        let limits = SilenceLimits { floor_seconds: 5.0, ceiling_seconds: 2.0 };
        let mut detector = AccrualDetector::new(limits, Time::ZERO);
        trace(&mut detector, vec![PERIOD; 20]);
        assert_eq!(detector.patience(), Time::from_seconds(2.0));
    }
}
