//! How much is on its way: the peak, and the peak in every stretch of the run.

use quelea_core::time::Time;
use quelea_record::{InFlight, Peak};

/// Counts messages that were handed over and not yet taken in.
#[derive(Debug)]
pub(crate) struct InFlightLoad {
    messages: u64,
    bytes: u64,
    /// Peaks of stretches of equal length; when they do not suffice, pairs are merged.
    stretches: Vec<(u64, u64)>,
    stretch_ns: u64,
    /// When the last stretch ends.
    ends: Time,
}

/// Peaks are kept for at most so many stretches of time.
const STRETCHES: usize = 32;

impl InFlightLoad {
    pub(crate) fn new() -> InFlightLoad {
        let (stretches, stretch_ns) = (vec![(0, 0)], 1_000_000);
        InFlightLoad { messages: 0, bytes: 0, stretches, stretch_ns, ends: Time(stretch_ns) }
    }

    pub(crate) fn add(&mut self, now: Time, bytes: u64) {
        self.advance(now);
        self.messages += 1;
        self.bytes += bytes;
        let last = self.stretches.last_mut().expect("never empty");
        *last = (last.0.max(self.messages), last.1.max(self.bytes));
    }

    pub(crate) fn remove(&mut self, now: Time, bytes: u64) {
        self.advance(now);
        self.messages -= 1;
        self.bytes -= bytes;
    }

    /// What is reported.
    pub(crate) fn report(&self) -> InFlight {
        let peak = |(index, &(messages, bytes)): (usize, &(u64, u64))| {
            let until = Time((index as u64 + 1) * self.stretch_ns);
            Peak { until_seconds: until.seconds(), messages, bytes }
        };
        InFlight {
            peak_messages: self.stretches.iter().map(|stretch| stretch.0).max().unwrap_or(0),
            peak_bytes: self.stretches.iter().map(|stretch| stretch.1).max().unwrap_or(0),
            series: self.stretches.iter().enumerate().map(peak).collect(),
        }
    }

    /// What is on its way when a stretch begins counts for it as well.
    fn advance(&mut self, now: Time) {
        if now < self.ends {
            return;
        }
        while now.0 / self.stretch_ns >= STRETCHES as u64 {
            let merged = self.stretches.chunks(2).map(|pair| {
                let last = pair[pair.len() - 1];
                (pair[0].0.max(last.0), pair[0].1.max(last.1))
            });
            self.stretches = merged.collect();
            self.stretch_ns *= 2;
        }
        let stretches = (now.0 / self.stretch_ns) as usize + 1;
        if self.stretches.len() < stretches {
            self.stretches.resize(stretches, (self.messages, self.bytes));
        }
        self.ends = Time(self.stretches.len() as u64 * self.stretch_ns);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peaks_survive_merging_and_quiet_stretches_stay_quiet() {
        let mut load = InFlightLoad::new();
        load.add(Time(10), 100);
        load.add(Time(20), 100);
        load.remove(Time(30), 100);
        load.add(Time(1_000_000_000), 5);
        let report = load.report();
        assert_eq!((report.peak_messages, report.peak_bytes), (2, 200));
        assert!(report.series.len() <= STRETCHES);
        assert_eq!(report.series[1].messages, 1);
        assert_eq!(report.series.last().map(|peak| (peak.messages, peak.bytes)), Some((2, 105)));
    }
}
