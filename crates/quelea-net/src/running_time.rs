//! Time in which this process ran. Whoever was stopped for a while (Ctrl-Z, a debugger, a virtual
//! machine that was moved) has heard nothing meanwhile, and must not take that for others' silence.

use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// How often the clock is read at least.
const PERIOD: Duration = Duration::from_millis(50);
/// Between two readings the process stood still for whatever is beyond this.
const LONGEST_GAP: Duration = Duration::from_millis(500);
/// Less than this is no standing still, but a busy machine.
const LEAST: Duration = Duration::from_millis(100);

/// Adds up the time between readings, long gaps only in part.
#[derive(Clone, Copy, Debug)]
struct RunningTime {
    last: Instant,
    elapsed: Duration,
}

impl RunningTime {
    fn new(now: Instant) -> RunningTime {
        RunningTime { last: now, elapsed: Duration::ZERO }
    }

    fn read(&mut self, now: Instant) -> Duration {
        self.elapsed += now.saturating_duration_since(self.last).min(LONGEST_GAP);
        self.last = self.last.max(now);
        self.elapsed
    }
}

static PROCESS: OnceLock<Mutex<RunningTime>> = OnceLock::new();

fn read(process: &Mutex<RunningTime>) -> Duration {
    let mut time = process.lock().unwrap_or_else(PoisonError::into_inner);
    time.read(Instant::now())
}

/// How long this process has run, without the time in which it stood still.
pub(crate) fn now() -> Duration {
    let process = PROCESS.get_or_init(|| {
        // It ends with the process.
        std::thread::spawn(|| {
            loop {
                std::thread::sleep(PERIOD);
                PROCESS.get().map(read);
            }
        });
        Mutex::new(RunningTime::new(Instant::now()))
    });
    read(process)
}

/// Tells its owner for how long the process stood still.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoodStill {
    seen: Instant,
    running: Duration,
}

impl StoodStill {
    pub(crate) fn new() -> StoodStill {
        StoodStill { running: now(), seen: Instant::now() }
    }

    /// For how long since the last call.
    pub(crate) fn take(&mut self) -> Duration {
        let (running, seen) = (now(), Instant::now());
        self.between(seen, running)
    }

    fn between(&mut self, seen: Instant, running: Duration) -> Duration {
        let passed = seen.saturating_duration_since(self.seen);
        let still = passed.saturating_sub(running.saturating_sub(self.running));
        (self.seen, self.running) = (seen, running);
        if still >= LEAST { still } else { Duration::ZERO }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_between_two_readings_does_not_count_beyond_its_usual_length() {
        let begun = Instant::now();
        let mut time = RunningTime::new(begun);
        let mut still = StoodStill { seen: begun, running: Duration::ZERO };
        let mut at = |milliseconds: u64| {
            let now = begun + Duration::from_millis(milliseconds);
            let running = time.read(now);
            (running.as_millis(), still.between(now, running).as_millis())
        };
        assert_eq!(at(50), (50, 0));
        assert_eq!(at(450), (450, 0), "a busy machine");
        assert_eq!(at(40_450), (950, 39_500), "it was stopped for 40 s");
        assert_eq!(at(40_500), (1000, 0), "and runs again");
    }
}
