//! Real gradients: cheap ones at once, expensive ones in parallel on real cores, and those of a
//! problem that can compute several together in [batches](crate::gradient_batching).
//!
//! A gradient is a function of its step and parameters, and the driver waits for a result when
//! virtual time needs it; so nothing depends on how many threads there are.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use quelea_core::node::Loan;
use quelea_core::problems::{Computed, GradientSource, Problem};

use crate::gradient_batching::GradientBatching;

/// The gradients of all workers.
pub(crate) struct GradientPool {
    finished: Vec<Option<(Loan, Computed)>>,
    computing: Computing,
}

/// Who computes gradients, and when.
enum Computing {
    /// The worker's source, when the gradient is begun.
    AtOnce(Vec<Box<dyn GradientSource>>),
    /// The worker's source, on one of several threads.
    OnThreads(ThreadedSources),
    /// The problem, several at a time.
    InBatches(GradientBatching),
}

/// The sources of all workers, each absent while its gradient is computed.
struct ThreadedSources {
    sources: Vec<Option<Box<dyn GradientSource>>>,
    threads: GradientThreads,
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
    /// The gradients of the first `workers` ranks, some from `sources` of their own, by rank; `threads` =
    /// 0 means one per core.
    pub(crate) fn new(
        problem: &dyn Problem,
        mut sources: BTreeMap<usize, Box<dyn GradientSource>>,
        workers: usize,
        threads: usize,
    ) -> GradientPool {
        let finished = (0..workers).map(|_| None).collect();
        if let (Some(batches), true) = (problem.batches(), sources.is_empty()) {
            let computing = Computing::InBatches(GradientBatching::new(batches));
            return GradientPool { finished, computing };
        }
        let source = |rank| sources.remove(&rank).unwrap_or_else(|| problem.source(rank));
        let sources: Vec<_> = (0..workers).map(source).collect();
        let operations = sources.iter().map(|source| source.operations()).max();
        let cores = || std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let threads = if threads == 0 { cores() } else { threads }.min(workers);
        let computing = if threads > 1 && operations.unwrap_or(0) >= WORTH_A_THREAD {
            let sources = sources.into_iter().map(Some).collect();
            let threads = GradientThreads::start(threads);
            Computing::OnThreads(ThreadedSources { sources, threads })
        } else {
            Computing::AtOnce(sources)
        };
        GradientPool { finished, computing }
    }

    /// Begins a gradient.
    pub(crate) fn begin(&mut self, worker: usize, mut loan: Loan) {
        match &mut self.computing {
            Computing::AtOnce(sources) => {
                let computed = sources[worker].gradient(&mut loan, &mut |_| {});
                self.finished[worker] = Some((loan, computed));
            }
            Computing::OnThreads(on) => {
                let source = on.sources[worker].take().expect("one gradient at a time");
                on.threads.give(GradientTask { worker, source, loan });
            }
            Computing::InBatches(batching) => batching.begin(worker, loan, &mut self.finished),
        }
    }

    /// The parameters at which a gradient is being computed, or has been but was not taken yet.
    pub(crate) fn params(&mut self, worker: usize) -> Option<&[f32]> {
        if let Computing::OnThreads(on) = &self.computing
            && on.sources[worker].is_none()
        {
            self.wait_for(worker);
        }
        let pending = match &self.computing {
            Computing::InBatches(batching) => batching.loan(worker),
            _ => None,
        };
        let loan = pending.or(self.finished[worker].as_ref().map(|(loan, _)| loan))?;
        Some(loan.params(0..loan.len()))
    }

    /// The gradient that was begun, as soon as it is there.
    pub(crate) fn finish(&mut self, worker: usize) -> (Loan, Computed) {
        self.wait_for(worker);
        self.finished[worker].take().expect("just waited for")
    }

    /// Computes every gradient that was begun. Evaluations see what gradients leave behind besides
    /// themselves ([`Problem::worker_state`]), and it must not depend on when they are computed.
    pub(crate) fn complete(&mut self) {
        if let Computing::InBatches(batching) = &mut self.computing {
            batching.complete(&mut self.finished);
        }
    }

    fn wait_for(&mut self, worker: usize) {
        while self.finished[worker].is_none() {
            match &mut self.computing {
                Computing::AtOnce(_) => unreachable!("it was computed when it was begun"),
                Computing::OnThreads(on) => {
                    let done = on.threads.results.recv().expect("threads outlive the channel");
                    let done = done.unwrap_or_else(|panic| resume_unwind(panic));
                    on.sources[done.worker] = Some(done.source);
                    self.finished[done.worker] = Some((done.loan, done.computed));
                }
                Computing::InBatches(batching) => batching.advance(&mut self.finished),
            }
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
