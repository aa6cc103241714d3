//! Pending gradients that are computed together.
//!
//! A gradient depends on nothing but its step and the parameters that were lent for it, and virtual
//! time needs it only when its first bucket is ready. So gradients that were begun wait until they
//! fill a batch or until one of them is needed, whichever comes first. Which gradients are in a
//! batch follows from virtual time alone.

use std::collections::VecDeque;

use quelea_core::node::Loan;
use quelea_core::problems::{BatchLimits, BatchedGradient, Computed, GradientBatches};

/// The gradients that were begun and are not there yet.
pub(crate) struct GradientBatching {
    batches: Box<dyn GradientBatches>,
    limits: BatchLimits,
    /// Begun, not started.
    waiting: Vec<BatchedGradient>,
    /// Started, the first one first.
    started: VecDeque<Vec<BatchedGradient>>,
}

/// By worker, what was computed and not taken yet.
type Untaken = [Option<(Loan, Computed)>];

impl GradientBatching {
    /// Nothing is pending.
    pub(crate) fn new(batches: Box<dyn GradientBatches>) -> GradientBatching {
        let limits = batches.limits();
        GradientBatching { batches, limits, waiting: Vec::new(), started: VecDeque::new() }
    }

    /// Begins a gradient.
    pub(crate) fn begin(&mut self, worker: usize, loan: Loan, finished: &mut Untaken) {
        self.waiting.push(BatchedGradient { worker, loan, computed: Computed::default() });
        if self.waiting.len() >= self.limits.gradients {
            self.start(finished);
        }
    }

    /// The loan of a pending gradient.
    pub(crate) fn loan(&self, worker: usize) -> Option<&Loan> {
        let mut pending = self.started.iter().flatten().chain(&self.waiting);
        pending.find(|gradient| gradient.worker == worker).map(|gradient| &gradient.loan)
    }

    /// Finishes the batch that was started first; those that wait are started before.
    pub(crate) fn advance(&mut self, finished: &mut Untaken) {
        self.start(finished);
        self.finish_first(finished);
    }

    /// Finishes everything.
    pub(crate) fn complete(&mut self, finished: &mut Untaken) {
        self.start(finished);
        while !self.started.is_empty() {
            self.finish_first(finished);
        }
    }

    fn start(&mut self, finished: &mut Untaken) {
        if self.waiting.is_empty() {
            return;
        }
        while self.started.len() >= self.limits.batches {
            self.finish_first(finished);
        }
        let mut batch = std::mem::take(&mut self.waiting);
        self.batches.start(&mut batch);
        self.started.push_back(batch);
    }

    fn finish_first(&mut self, finished: &mut Untaken) {
        let Some(mut batch) = self.started.pop_front() else { return };
        self.batches.finish(&mut batch);
        for BatchedGradient { worker, loan, computed } in batch {
            finished[worker] = Some((loan, computed));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use quelea_core::layout::Layout;

    use super::*;

    /// What happened to a batch of which workers.
    type Notes = Arc<Mutex<Vec<(&'static str, Vec<usize>)>>>;

    /// Twice the parameters; notes the workers of each batch when it is started and finished.
    struct Doubled {
        notes: Notes,
    }

    impl Doubled {
        fn note(&self, what: &'static str, batch: &[BatchedGradient]) {
            let workers = batch.iter().map(|gradient| gradient.worker).collect();
            self.notes.lock().expect("nobody panics with it").push((what, workers));
        }
    }

    impl GradientBatches for Doubled {
        fn limits(&self) -> BatchLimits {
            BatchLimits { gradients: 2, batches: 2 }
        }

        fn start(&mut self, batch: &mut [BatchedGradient]) {
            self.note("start", batch);
        }

        fn finish(&mut self, batch: &mut [BatchedGradient]) {
            self.note("finish", batch);
            for gradient in batch {
                let (params, grad) = gradient.loan.vectors();
                grad.iter_mut().zip(params).for_each(|(g, x)| *g = 2.0 * x);
                gradient.computed = Computed { loss: params[0], samples: 1 };
            }
        }
    }

    fn loan(value: f32) -> Loan {
        Loan::detached(vec![value], Arc::new(Layout::plain(1, 0)), 0)
    }

    #[test]
    fn gradients_wait_until_a_batch_is_full_or_one_is_needed() {
        let notes = Notes::default();
        let mut batching = GradientBatching::new(Box::new(Doubled { notes: Arc::clone(&notes) }));
        let mut finished: Vec<Option<(Loan, Computed)>> = (0..6).map(|_| None).collect();
        for worker in 0..3 {
            batching.begin(worker, loan(worker as f32), &mut finished);
        }
        // The first needed one is in the full batch, and the one that waits is started too.
        assert!(batching.loan(0).is_some() && batching.loan(2).is_some());
        batching.advance(&mut finished);
        let (gradient, computed) = finished[1].take().expect("in the first batch");
        assert_eq!((gradient.into_gradient(), computed.loss), (vec![2.0], 1.0));
        // Two are in flight at most.
        (3..6).for_each(|worker| batching.begin(worker, loan(5.0), &mut finished));
        batching.complete(&mut finished);
        assert_eq!(finished.iter().filter(|one| one.is_some()).count(), 5);
        let expected = [
            ("start", vec![0, 1]),
            ("start", vec![2]),
            ("finish", vec![0, 1]),
            ("start", vec![3, 4]),
            ("finish", vec![2]),
            ("start", vec![5]),
            ("finish", vec![3, 4]),
            ("finish", vec![5]),
        ];
        assert_eq!(*notes.lock().expect("nobody panicked"), expected);
    }
}
