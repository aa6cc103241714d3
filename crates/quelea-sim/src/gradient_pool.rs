//! Real gradients: cheap ones at once, expensive ones in parallel on real cores.
//!
//! A gradient is a function of its step and parameters, and the driver waits for a result when
//! virtual time needs it; so nothing depends on how many threads there are.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use quelea_core::node::Loan;
use quelea_core::problems::{Computed, GradientSource};

/// The gradient sources of all workers.
pub(crate) struct GradientPool {
    /// Absent while its gradient is computed elsewhere.
    sources: Vec<Option<Box<dyn GradientSource>>>,
    finished: Vec<Option<(Loan, Computed)>>,
    threads: Option<GradientThreads>,
}

struct GradientTask {
    worker: usize,
    source: Box<dyn GradientSource>,
    loan: Loan,
}

struct GradientDone {
    worker: usize,
    source: Box<dyn GradientSource>,
    loan: Loan,
    computed: Computed,
}

struct GradientThreads {
    tasks: Option<Sender<GradientTask>>,
    results: Receiver<std::thread::Result<GradientDone>>,
    handles: Vec<JoinHandle<()>>,
}

/// Below so many operations, handing a gradient to another thread costs more than computing it.
const WORTH_A_THREAD: u64 = 100_000;

impl GradientPool {
    /// With the source of every worker, by rank; `threads` = 0 means one per core.
    pub(crate) fn new(sources: Vec<Box<dyn GradientSource>>, threads: usize) -> GradientPool {
        let workers = sources.len();
        let sources: Vec<_> = sources.into_iter().map(Some).collect();
        let operations = sources.iter().flatten().map(|source| source.operations()).max();
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let threads = if threads == 0 { cores() } else { threads }.min(workers);
        let pays = threads > 1 && operations.unwrap_or(0) >= WORTH_A_THREAD;
        let finished = (0..workers).map(|_| None).collect();
        GradientPool { sources, finished, threads: pays.then(|| GradientThreads::start(threads)) }
    }

    /// Begins a gradient.
    pub(crate) fn begin(&mut self, worker: usize, mut loan: Loan) {
        let mut source = self.sources[worker].take().expect("one gradient at a time");
        match &self.threads {
            Some(threads) => threads.give(GradientTask { worker, source, loan }),
            None => {
                let computed = source.gradient(&mut loan, &mut |_| {});
                self.sources[worker] = Some(source);
                self.finished[worker] = Some((loan, computed));
            }
        }
    }

    /// The parameters at which a gradient is being computed, or has been but was not taken yet.
    pub(crate) fn params(&mut self, worker: usize) -> Option<&[f32]> {
        if self.sources[worker].is_none() {
            self.wait_for(worker);
        }
        self.finished[worker].as_ref().map(|(loan, _)| loan.params(0..loan.len()))
    }

    /// The gradient that was begun, as soon as it is there.
    pub(crate) fn finish(&mut self, worker: usize) -> (Loan, Computed) {
        self.wait_for(worker);
        self.finished[worker].take().expect("just waited for")
    }

    fn wait_for(&mut self, worker: usize) {
        while self.finished[worker].is_none() {
            let threads = self.threads.as_ref().expect("without threads it is there at once");
            let done = threads.results.recv().expect("threads live as long as the channel");
            let done = done.unwrap_or_else(|panic| resume_unwind(panic));
            self.sources[done.worker] = Some(done.source);
            self.finished[done.worker] = Some((done.loan, done.computed));
        }
    }
}

impl GradientThreads {
    fn start(count: usize) -> GradientThreads {
        let (tasks, waiting) = channel::<GradientTask>();
        let (report, results) = channel();
        let waiting = Arc::new(Mutex::new(waiting));
        let handles = (0..count).map(|_| {
            let (waiting, report) = (Arc::clone(&waiting), report.clone());
            std::thread::spawn(move || compute(&waiting, &report))
        });
        GradientThreads { tasks: Some(tasks), results, handles: handles.collect() }
    }

    fn give(&self, task: GradientTask) {
        let tasks = self.tasks.as_ref().expect("closed only when dropped");
        tasks.send(task).expect("threads live as long as the channel");
    }
}

impl Drop for GradientThreads {
    fn drop(&mut self) {
        self.tasks = None;
        for handle in self.handles.drain(..) {
            // A panic inside a gradient was caught there and handed over as a result.
            let _ = handle.join();
        }
    }
}

fn compute(
    waiting: &Mutex<Receiver<GradientTask>>,
    report: &Sender<std::thread::Result<GradientDone>>,
) {
    loop {
        let task = waiting.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(GradientTask { worker, mut source, mut loan }) = task else { return };
        let result = catch_unwind(AssertUnwindSafe(move || {
            let computed = source.gradient(&mut loan, &mut |_| {});
            GradientDone { worker, source, loan, computed }
        }));
        if report.send(result).is_err() {
            return;
        }
    }
}
