//! The run's clock: the coordinator's, as every process estimates it.

use std::time::{Duration, Instant};

use quelea_core::time::Time;

/// Gives nanoseconds since the run began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunClock {
    /// A moment on this process's clock that is the run's zero.
    zero: Instant,
}

impl RunClock {
    /// A clock whose zero is now.
    pub(crate) fn start() -> RunClock {
        RunClock { zero: Instant::now() }
    }

    /// A clock that shows `now` at this moment.
    pub(crate) fn showing(now: Time, at: Instant) -> RunClock {
        // A process that has been up for a shorter time than the run cannot represent its zero;
        // its own start is then the best there is.
        let zero = at.checked_sub(Duration::from_nanos(now.0)).unwrap_or(at);
        RunClock { zero }
    }

    /// Moves the zero forward, to `zero` on this clock.
    pub(crate) fn restarted(self, zero: Time) -> RunClock {
        RunClock { zero: self.zero + Duration::from_nanos(zero.0) }
    }

    /// The time at a moment on this process's clock.
    pub(crate) fn at(&self, moment: Instant) -> Time {
        Time(moment.saturating_duration_since(self.zero).as_nanos() as u64)
    }

    /// The time.
    pub(crate) fn now(&self) -> Time {
        Time(self.zero.elapsed().as_nanos() as u64)
    }
}
