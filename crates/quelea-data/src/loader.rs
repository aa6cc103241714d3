//! Batches made ahead of the step that takes them, on a few threads for all workers of a process.

use std::any::Any;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use crate::error::DataError;

/// What makes batches: a function of the step, so that a resumed run sees the same ones.
pub trait BatchSource: Send + Sync + 'static {
    /// A batch; an old one is filled again, so that its memory is used again.
    type Batch: Default + Send + 'static;

    /// Makes the batch of this step, whatever was in `batch` before.
    fn fill(&self, step: u64, batch: &mut Self::Batch) -> Result<(), DataError>;

    /// What a batch costs, which decides who makes it.
    fn effort(&self) -> Effort {
        Effort::Some
    }
}

/// What a batch costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effort {
    /// Less than waking a thread (some µs): whoever needs it makes it.
    Little,
    /// Less than a thread that has begun may have to wait for a core (some ms): made ahead, but if
    /// it is not there in time, whoever needs it makes it too.
    Some,
    /// More than that: a batch that was begun is waited for.
    Much,
}

/// Threads that make batches for any number of loaders. They end when the pool and all its
/// loaders are dropped.
#[derive(Debug)]
pub struct LoaderPool {
    queue: Arc<Queue>,
    threads: Vec<JoinHandle<()>>,
}

#[derive(Default)]
struct Queue {
    jobs: Mutex<Jobs>,
    changed: Condvar,
}

#[derive(Default)]
struct Jobs {
    waiting: VecDeque<(Arc<dyn Job>, u64)>,
    closed: bool,
}

/// A loader as its threads see it.
trait Job: Send + Sync {
    /// Makes the batch of this step if it is still wanted.
    fn work(&self, step: u64);
}

impl LoaderPool {
    /// So many threads, at least one.
    pub fn new(threads: usize) -> Arc<LoaderPool> {
        let queue = Arc::new(Queue::default());
        let spawn = |number| {
            let queue = Arc::clone(&queue);
            let builder = thread::Builder::new().name(format!("loader {number}"));
            builder.spawn(move || queue.serve()).expect("the system has threads")
        };
        let threads = (0..threads.max(1)).map(spawn).collect();
        Arc::new(LoaderPool { queue, threads })
    }

    /// How many threads there are.
    pub fn threads(&self) -> usize {
        self.threads.len()
    }
}

impl Drop for LoaderPool {
    fn drop(&mut self) {
        lock(&self.queue.jobs).closed = true;
        self.queue.changed.notify_all();
        for thread in self.threads.drain(..) {
            // Whoever drops the last loader inside a job would wait for itself.
            if thread.thread().id() != thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Queue {
    fn serve(&self) {
        let mut jobs = lock(&self.jobs);
        while !jobs.closed {
            match jobs.waiting.pop_front() {
                Some((job, step)) => {
                    drop(jobs);
                    job.work(step);
                    drop(job);
                    jobs = lock(&self.jobs);
                }
                None => jobs = self.changed.wait(jobs).unwrap_or_else(PoisonError::into_inner),
            }
        }
    }

    fn push(&self, job: Arc<dyn Job>, step: u64) {
        lock(&self.jobs).waiting.push_back((job, step));
        self.changed.notify_one();
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} batches waiting", lock(&self.jobs).waiting.len())
    }
}

/// The batches of one worker. While step `t` is computed, those of `t + 1` to `t + ahead` are
/// made.
pub struct Loader<S: BatchSource> {
    pool: Arc<LoaderPool>,
    shared: Arc<Shared<S>>,
    current: S::Batch,
    ahead: u64,
}

struct Shared<S: BatchSource> {
    source: S,
    slots: Mutex<Slots<S::Batch>>,
    changed: Condvar,
}

struct Slots<B> {
    of_step: BTreeMap<u64, Slot<B>>,
    /// Batches to be filled again.
    free: Vec<B>,
}

enum Slot<B> {
    Asked,
    Running,
    Ready(B, Result<(), DataError>),
}

impl<S: BatchSource> Loader<S> {
    /// Makes `ahead` batches in advance; with 0 the caller makes its own.
    pub fn new(pool: &Arc<LoaderPool>, source: S, ahead: usize) -> Loader<S> {
        let ahead = if source.effort() == Effort::Little { 0 } else { ahead as u64 };
        let slots = Mutex::new(Slots { of_step: BTreeMap::new(), free: Vec::new() });
        Loader {
            pool: Arc::clone(pool),
            shared: Arc::new(Shared { source, slots, changed: Condvar::new() }),
            current: S::Batch::default(),
            ahead,
        }
    }

    /// Where the batches come from.
    pub fn source(&self) -> &S {
        &self.shared.source
    }

    /// The batch of this step. Any step may be asked for; the ones after it are made next.
    pub fn batch(&mut self, step: u64) -> Result<&S::Batch, DataError> {
        let wanted = step + 1..=step.saturating_add(self.ahead);
        let is_near = {
            let mut slots = lock(&self.shared.slots);
            slots.free.push(mem::take(&mut self.current));
            slots.forget_all_but(step, *wanted.end());
            let is_near = match slots.of_step.get(&step) {
                Some(Slot::Ready(..)) => true,
                Some(Slot::Running) => self.shared.source.effort() == Effort::Much,
                // Where no thread has begun, the caller is faster than whoever is busy elsewhere.
                Some(Slot::Asked) | None => false,
            };
            if !is_near {
                slots.of_step.remove(&step);
            }
            for next in wanted {
                if let Entry::Vacant(slot) = slots.of_step.entry(next) {
                    slot.insert(Slot::Asked);
                    self.pool.queue.push(Arc::clone(&self.shared) as Arc<dyn Job>, next);
                }
            }
            is_near
        };
        let (batch, result) = if is_near { self.shared.wait(step) } else { self.shared.make(step) };
        self.current = batch;
        result.map(|()| &self.current)
    }
}

impl<S: BatchSource> Drop for Loader<S> {
    fn drop(&mut self) {
        // What is still in the queue finds nothing to do.
        lock(&self.shared.slots).of_step.clear();
    }
}

impl<S: BatchSource> std::fmt::Debug for Loader<S> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let steps: Vec<u64> = lock(&self.shared.slots).of_step.keys().copied().collect();
        write!(out, "a loader with the steps {steps:?} under way")
    }
}

impl<B> Slots<B> {
    /// Keeps the steps `from..=to`: the others are of another part of the run.
    fn forget_all_but(&mut self, from: u64, to: u64) {
        let strangers: Vec<u64> =
            self.of_step.keys().copied().filter(|step| !(from..=to).contains(step)).collect();
        for step in strangers {
            if let Some(Slot::Ready(batch, _)) = self.of_step.remove(&step) {
                self.free.push(batch);
            }
        }
    }
}

impl<S: BatchSource> Shared<S> {
    /// Makes a batch here and now. A panic becomes an error.
    fn make(&self, step: u64) -> (S::Batch, Result<(), DataError>) {
        let mut batch = lock(&self.slots).free.pop().unwrap_or_default();
        let filled = catch_unwind(AssertUnwindSafe(|| self.source.fill(step, &mut batch)));
        let result = filled
            .unwrap_or_else(|panic| Err(DataError::Panicked { step, problem: words(&*panic) }));
        (batch, result)
    }

    /// Waits for a batch that a thread is making or has made.
    fn wait(&self, step: u64) -> (S::Batch, Result<(), DataError>) {
        let mut slots = lock(&self.slots);
        loop {
            match slots.of_step.remove(&step) {
                Some(Slot::Ready(batch, result)) => return (batch, result),
                Some(slot) => drop(slots.of_step.insert(step, slot)),
                None => unreachable!("only the caller takes batches away"),
            }
            slots = self.changed.wait(slots).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl<S: BatchSource> Job for Shared<S> {
    fn work(&self, step: u64) {
        match lock(&self.slots).of_step.get_mut(&step) {
            Some(slot @ Slot::Asked) => *slot = Slot::Running,
            _ => return,
        }
        let (batch, result) = self.make(step);
        let mut slots = lock(&self.slots);
        match slots.of_step.get_mut(&step) {
            // Asked for again after it was forgotten: the same step is the same batch.
            Some(slot @ (Slot::Running | Slot::Asked)) => *slot = Slot::Ready(batch, result),
            _ => slots.free.push(batch),
        }
        self.changed.notify_all();
    }
}

/// A lock is never held while foreign code runs, so a poisoned one holds whole values.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without words".to_string())
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::thread::ThreadId;

    use super::*;

    /// The batch of a step is the step, thrice; it counts the buffers it was given for the first
    /// time.
    #[derive(Default)]
    struct Steps {
        fresh: AtomicUsize,
        made: AtomicUsize,
    }

    impl BatchSource for Arc<Steps> {
        type Batch = Vec<u64>;

        fn fill(&self, step: u64, batch: &mut Vec<u64>) -> Result<(), DataError> {
            self.fresh.fetch_add(usize::from(batch.capacity() == 0), Ordering::Relaxed);
            self.made.fetch_add(1, Ordering::Relaxed);
            batch.clear();
            batch.extend([step; 3]);
            match step {
                666 => Err(DataError::damaged(std::path::Path::new("six.jpg"), "is damaged")),
                777 => panic!("seven is too much"),
                _ => Ok(()),
            }
        }
    }

    #[test]
    fn any_step_comes_right_whatever_was_asked_before() {
        let pool = LoaderPool::new(3);
        let mut loader = Loader::new(&pool, Arc::new(Steps::default()), 2);
        for step in (0..50).chain([10, 11, 12, 1000, 1001, 3, 5, 7, 6, 6, 5]) {
            assert_eq!(*loader.batch(step).expect("good"), [step; 3]);
        }
    }

    #[test]
    fn buffers_are_used_again() {
        let (pool, steps) = (LoaderPool::new(4), Arc::new(Steps::default()));
        let mut loader = Loader::new(&pool, Arc::clone(&steps), 2);
        for step in 0..600 {
            loader.batch(step).expect("good");
        }
        let fresh = steps.fresh.load(Ordering::Relaxed);
        // The current one, two ahead, and one in the hands of each thread.
        assert!(fresh <= 7, "{fresh} buffers for 600 steps");
        assert!(steps.made.load(Ordering::Relaxed) >= 600);
    }

    #[test]
    fn many_loaders_share_few_threads() {
        let pool = LoaderPool::new(2);
        let mut loaders: Vec<_> =
            (0..64).map(|_| Loader::new(&pool, Arc::new(Steps::default()), 1)).collect();
        for step in 0..20 {
            for loader in &mut loaders {
                assert_eq!(*loader.batch(step).expect("good"), [step; 3]);
            }
        }
    }

    #[test]
    fn an_error_or_a_panic_comes_with_its_step_and_the_next_step_is_good() {
        let pool = LoaderPool::new(1);
        let mut loader = Loader::new(&pool, Arc::new(Steps::default()), 1);
        for bad in [666, 777] {
            // Once made by the caller, once ahead.
            for first in [bad, bad - 1] {
                for step in first..bad {
                    loader.batch(step).expect("good");
                }
                let error = loader.batch(bad).expect_err("bad").to_string();
                let said = ["six.jpg: is damaged", "step 777 failed: seven is too much"];
                assert!(said.iter().any(|words| error.contains(words)), "{error}");
                assert_eq!(*loader.batch(bad + 1).expect("good"), [bad + 1; 3]);
            }
        }
    }

    /// Says when it has begun, and waits to be let go.
    struct Gate {
        effort: Effort,
        begun: Mutex<mpsc::Sender<u64>>,
        go: Barrier,
        /// Threads that have made a batch.
        makers: Mutex<Vec<ThreadId>>,
    }

    impl BatchSource for Arc<Gate> {
        type Batch = u64;

        fn fill(&self, step: u64, batch: &mut u64) -> Result<(), DataError> {
            *batch = step;
            let maker = thread::current();
            if maker.name().is_some_and(|name| name.starts_with("loader ")) {
                let _ = lock(&self.begun).send(step);
                self.go.wait();
            }
            lock(&self.makers).push(maker.id());
            Ok(())
        }

        fn effort(&self) -> Effort {
            self.effort
        }
    }

    fn gate(effort: Effort) -> (Arc<Gate>, mpsc::Receiver<u64>) {
        let (begun, begins) = mpsc::channel();
        let (begun, makers) = (Mutex::new(begun), Mutex::default());
        (Arc::new(Gate { effort, begun, go: Barrier::new(2), makers }), begins)
    }

    #[test]
    fn the_next_batch_is_made_while_the_current_one_is_used() {
        let (gate, begins) = gate(Effort::Much);
        let mut loader = Loader::new(&LoaderPool::new(1), Arc::clone(&gate), 1);
        assert_eq!(*loader.batch(0).expect("good"), 0);
        // Nobody has asked for step 1 yet.
        assert_eq!(begins.recv(), Ok(1));
        let opener = thread::spawn({
            let gate = Arc::clone(&gate);
            move || gate.go.wait()
        });
        // It is waited for, though it was not ready.
        assert_eq!(*loader.batch(1).expect("good"), 1);
        opener.join().expect("no panic");
        assert_eq!(begins.recv(), Ok(2));
        let makers = lock(&gate.makers).clone();
        assert_eq!((makers.len(), makers[0]), (2, thread::current().id()));
        assert_ne!(makers[1], thread::current().id());
        gate.go.wait();
        let shared = Arc::downgrade(&loader.shared);
        drop(loader);
        // The threads were joined: nothing holds the source any more.
        assert!(shared.upgrade().is_none());
    }

    #[test]
    fn a_batch_that_is_quickly_made_is_not_waited_for() {
        let (gate, begins) = gate(Effort::Some);
        let mut loader = Loader::new(&LoaderPool::new(1), Arc::clone(&gate), 1);
        loader.batch(0).expect("good");
        // The thread has begun, and does not get on.
        assert_eq!(begins.recv(), Ok(1));
        assert_eq!(*loader.batch(1).expect("good"), 1);
        assert_eq!(*lock(&gate.makers), [thread::current().id(); 2]);
        gate.go.wait();
        assert_eq!(begins.recv(), Ok(2));
        gate.go.wait();
    }
}
