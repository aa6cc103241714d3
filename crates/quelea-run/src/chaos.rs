//! Chaos over real processes: kills and pauses of workers at random moments, and a ledger of what the run
//! made of each.
//!
//! The processes are those of [`drive::processes`](crate::drive::processes), which starts another in the
//! place of one that was killed. Faults of simulated runs are `[chaos]` of the configuration.

mod disturber;
mod invariants;
mod ledger;

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Instant;

use quelea_record::Record;

use disturber::Disturber;
pub use invariants::RecordInvariants;
use ledger::{Heard, Ledger};
pub use ledger::{Incident, IncidentKind};

/// What is done to the processes of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ProcessChaos {
    /// How many are killed.
    pub kills: u32,
    /// How many are stopped for a while.
    pub pauses: u32,
    /// Mean time between two incidents; the time is exponentially distributed.
    pub mean_seconds: f64,
    /// So many workers are always left that take part.
    pub survivors: usize,
    /// What the moments and the victims follow from.
    pub seed: u64,
}

/// Disturbs one run, and keeps its ledger. It hears every record of the run.
pub struct ProcessChaosRun {
    plan: ProcessChaos,
    ledger: Arc<Mutex<Ledger>>,
    invariants: Mutex<RecordInvariants>,
}

/// Processes are killed as long as this is held.
pub struct Disturbing {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Disturbing {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl ProcessChaosRun {
    /// For a run of so many workers.
    pub fn new(plan: ProcessChaos, workers: usize) -> ProcessChaosRun {
        let ledger = Arc::new(Mutex::new(Ledger::new(workers)));
        let invariants = Mutex::new(RecordInvariants::of_run(workers));
        ProcessChaosRun { plan, ledger, invariants }
    }

    fn ledger(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a record of the run, as it comes.
    pub fn take(&self, record: &Record) {
        self.ledger().take(record, Heard(Instant::now()));
        self.invariants.lock().unwrap_or_else(PoisonError::into_inner).take(record);
    }

    /// What the records of the run do not keep to, in sentences; empty if all is well.
    pub fn violations(&self) -> Vec<String> {
        let invariants = self.invariants.lock().unwrap_or_else(PoisonError::into_inner);
        invariants.violations().to_vec()
    }

    /// The median seconds between two steps of a worker.
    pub fn median_step_seconds(&self) -> Option<f64> {
        self.ledger().median_step_seconds()
    }

    /// From the run's first step on, things happen to its processes.
    pub fn start(&self) -> Disturbing {
        let (end, ended) = channel();
        let disturber = Disturber::new(self.plan, Arc::clone(&self.ledger), ended);
        let thread = std::thread::spawn(move || disturber.run());
        Disturbing { end: Some(end), thread: Some(thread) }
    }

    /// All that was done, in order.
    pub fn incidents(&self) -> Vec<Incident> {
        self.ledger().incidents()
    }
}
