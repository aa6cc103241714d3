//! Looks after the processes of the workers: starts another in the place of one that ended before its time.
//!
//! A process that ends soon after it was started, and was not killed from here, is started again later and
//! later, so that one that can never run does not keep the machine busy.

use std::collections::{BTreeMap, BTreeSet};
use std::process::ExitStatus;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use quelea_net::NetError;

use super::worker_process::{Starter, WorkerProcess};
use super::{ProcessOptions, Tell};
use crate::error::RunError;

/// How long a process may take to end after the run has.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);
/// How often it is looked whether a process has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// A process that lived for less than this has died at once.
const AT_ONCE: Duration = Duration::from_secs(5);
/// How long the second process in a row that dies at once waits, and the longest that any waits.
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// The processes of the workers. None outlives the last clone of this.
#[derive(Clone)]
pub(in crate::drive) struct Supervisor {
    crew: Arc<Mutex<Crew>>,
}

/// Watches the processes as long as it is held.
pub(in crate::drive) struct Watching {
    end: Option<Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Drop for Watching {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

struct Crew {
    starter: Starter,
    tell: Tell,
    seats: BTreeMap<u32, Seat>,
    restarts: u32,
    used: u32,
    /// Sentences about what happened, for the summary.
    history: Vec<String>,
    /// The first process that ended and was not started again.
    unreplaced: Option<String>,
}

/// A worker's place, and its process.
struct Seat {
    state: SeatState,
    /// How many processes in a row died at once.
    deaths_at_once: u32,
}

enum SeatState {
    /// A process was started.
    Held(Arc<WorkerProcess>),
    /// Another is started then.
    Due(Instant),
    /// Nobody comes any more.
    Empty,
}

impl Supervisor {
    pub(super) fn new(starter: Starter, options: &ProcessOptions<'_>) -> Supervisor {
        let crew = Crew {
            starter,
            tell: Arc::clone(&options.tell),
            seats: BTreeMap::new(),
            restarts: options.restarts,
            used: 0,
            history: Vec::new(),
            unreplaced: None,
        };
        Supervisor { crew: Arc::new(Mutex::new(crew)) }
    }

    fn crew(&self) -> MutexGuard<'_, Crew> {
        self.crew.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the first process of a worker.
    pub(super) fn start(&self, rank: u32) -> Result<(), String> {
        let mut crew = self.crew();
        let state = SeatState::Held(crew.starter.start(rank)?);
        crew.seats.insert(rank, Seat { state, deaths_at_once: 0 });
        Ok(())
    }

    /// The process of a worker that was not started from here is lost: another comes, if there are restarts left.
    pub(in crate::drive) fn replace_stranger(&self, rank: u32) {
        let mut crew = self.crew();
        if crew.seats.get(&rank).is_some_and(|seat| !matches!(seat.state, SeatState::Empty)) {
            // That of a process from here is seen by its end.
            return;
        }
        if crew.used == crew.restarts {
            let restarts = crew.restarts;
            let sentence = format!("worker {rank} was lost; all {restarts} restarts are used");
            return crew.say(sentence);
        }
        crew.used += 1;
        let (used, restarts) = (crew.used, crew.restarts);
        let state = SeatState::Due(Instant::now());
        crew.seats.insert(rank, Seat { state, deaths_at_once: 0 });
        crew.say(format!(
            "worker {rank} was lost; it is started again (restart {used} of {restarts})"
        ));
    }

    /// Looks after the processes on a thread of its own, where some may be started again.
    pub(in crate::drive) fn watch(&self) -> Watching {
        if self.crew().restarts == 0 {
            return Watching { end: None, thread: None };
        }
        let (end, ended) = channel::<()>();
        let crew = self.clone();
        let thread = std::thread::spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(POLL_INTERVAL) {
                crew.crew().attend(Instant::now());
            }
        });
        Watching { end: Some(end), thread: Some(thread) }
    }

    /// Whether all are there or will be; none ends by itself before the run has.
    pub(super) fn check(&self) -> Result<(), String> {
        let mut crew = self.crew();
        crew.attend(Instant::now());
        crew.unreplaced.clone().map_or(Ok(()), |how| Err(format!("{how} before the run began")))
    }

    /// Lets all processes go on without this one: they may have continued the run among themselves.
    pub(super) fn release(&self) {
        for seat in self.crew().seats.values() {
            if let SeatState::Held(process) = &seat.state {
                process.release();
            }
        }
    }

    /// Says how the process of a worker that was lost has ended.
    pub(super) fn explain(&self, error: RunError) -> RunError {
        let RunError::Net(NetError::Lost { rank, .. }) = &error else { return error };
        let process = match self.crew().seats.get(rank) {
            Some(Seat { state: SeatState::Held(process), .. }) => Arc::clone(process),
            _ => return error,
        };
        match process.wait_until(Instant::now() + Duration::from_secs(1)) {
            Some(status) => {
                RunError::Process(format!("worker {rank} {} ({error})", process.how(status)))
            }
            None => error,
        }
    }

    /// Waits until all have ended, those at once that take no part; says what happened to them, and which
    /// did not end well.
    pub(in crate::drive) fn part(&self, absent: &BTreeSet<u32>) -> Vec<String> {
        let until = Instant::now() + SHUTDOWN_GRACE;
        let (seats, mut said) = {
            let mut crew = self.crew();
            (std::mem::take(&mut crew.seats), std::mem::take(&mut crew.history))
        };
        for (rank, seat) in seats {
            let SeatState::Held(process) = seat.state else { continue };
            if absent.contains(&rank) {
                // It was lost, or waits for a seat that it will not get.
                if let Some(status) = process.ended().filter(|status| !status.success()) {
                    said.push(format!("worker {rank} {}", process.how(status)));
                }
                process.end();
                continue;
            }
            match process.wait_until(until) {
                Some(status) if status.success() => {}
                Some(status) => {
                    said.push(format!("worker {rank} {} after the run", process.how(status)));
                }
                None => {
                    process.end();
                    said.push(format!("the process of worker {rank} had to be ended"));
                }
            }
        }
        said
    }
}

impl Crew {
    /// Does what has become due.
    fn attend(&mut self, now: Instant) {
        let ranks: Vec<u32> = self.seats.keys().copied().collect();
        for rank in ranks {
            let Some(seat) = self.seats.get(&rank) else { continue };
            match &seat.state {
                SeatState::Held(process) => {
                    let process = Arc::clone(process);
                    if let Some(status) = process.ended() {
                        self.replace(rank, &process, status, now);
                    }
                }
                SeatState::Due(at) if *at <= now => self.start_again(rank),
                SeatState::Due(_) | SeatState::Empty => {}
            }
        }
    }

    /// A process has ended: another comes, if it ended badly and there are restarts left.
    fn replace(&mut self, rank: u32, process: &WorkerProcess, status: ExitStatus, now: Instant) {
        let how = format!("worker {rank} {}", process.how(status));
        let (left, restarts) = (self.restarts - self.used, self.restarts);
        if status.success() || left == 0 {
            self.seat(rank).state = SeatState::Empty;
            if restarts > 0 && !status.success() {
                self.say(format!(
                    "{how}; it is not started again: all {restarts} restarts are used"
                ));
            }
            self.unreplaced.get_or_insert(how);
            return;
        }
        self.used += 1;
        let used = self.used;
        let died_at_once = process.lived(now) < AT_ONCE && !process.was_killed_here();
        let seat = self.seat(rank);
        seat.deaths_at_once = if died_at_once { seat.deaths_at_once + 1 } else { 0 };
        let pause = pause(seat.deaths_at_once);
        seat.state = SeatState::Due(now + pause);
        let when = if pause.is_zero() {
            "it is started again".to_string()
        } else {
            format!("it is started again in {:.2} s", pause.as_secs_f64())
        };
        self.say(format!("{how}; {when} (restart {used} of {restarts})"));
    }

    fn start_again(&mut self, rank: u32) {
        let started = self.starter.start(rank);
        self.seat(rank).state = match started {
            Ok(process) => SeatState::Held(process),
            Err(reason) => {
                self.say(format!("{reason}; it is not started again"));
                self.unreplaced.get_or_insert(reason);
                SeatState::Empty
            }
        };
    }

    fn seat(&mut self, rank: u32) -> &mut Seat {
        self.seats.get_mut(&rank).expect("seats stay until all part")
    }

    fn say(&mut self, sentence: String) {
        (self.tell)(&sentence);
        self.history.push(sentence);
    }
}

/// How long to wait after so many deaths at once in a row: nothing after the first.
fn pause(deaths_at_once: u32) -> Duration {
    match deaths_at_once {
        0 | 1 => Duration::ZERO,
        more => FIRST_PAUSE.saturating_mul(1 << (more - 2).min(16)).min(LONGEST_PAUSE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn processes_that_die_at_once_are_started_later_and_later() {
        let pauses: Vec<u128> = (0..12).map(|deaths| pause(deaths).as_millis()).collect();
        assert_eq!(pauses, [0, 0, 250, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000]);
        assert_eq!(pause(u32::MAX), LONGEST_PAUSE);
    }
}
