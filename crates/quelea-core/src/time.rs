//! Time as an argument: nanoseconds since the run began, on a virtual or a real clock.

use std::ops::{Add, Sub};

/// A moment of a run, or a span, in nanoseconds.
///
/// The standard `Instant` cannot be made without asking the system, so the core has its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(pub u64);

impl Time {
    /// The beginning of the run.
    pub const ZERO: Time = Time(0);

    /// As seconds.
    pub fn seconds(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// From seconds, rounded to the nearest nanosecond; negative values become zero.
    pub fn from_seconds(seconds: f64) -> Time {
        Time((seconds * 1e9).round() as u64)
    }

    /// From milliseconds, rounded to the nearest nanosecond; negative values become zero.
    pub fn from_ms(ms: f64) -> Time {
        Time((ms * 1e6).round() as u64)
    }

    /// The span since `earlier`, or zero.
    pub fn since(self, earlier: Time) -> Time {
        Time(self.0.saturating_sub(earlier.0))
    }
}

impl Add for Time {
    type Output = Time;
    fn add(self, other: Time) -> Time {
        Time(self.0 + other.0)
    }
}

impl Sub for Time {
    type Output = Time;
    fn sub(self, other: Time) -> Time {
        Time(self.0 - other.0)
    }
}
