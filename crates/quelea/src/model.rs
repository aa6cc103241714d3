//! A model whose gradients a closure computes.

use std::sync::Arc;

use quelea_core::node::Loan;
use quelea_core::problems::{Computed, Evaluation, GradientSource, Problem, gradient_at};

/// Which mini-batch a gradient is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchId {
    /// The worker that asks, from 0.
    pub worker: usize,
    /// The worker's step, from 0.
    pub step: u64,
}

/// Computes a gradient: parameters in, gradient out, the loss returned.
pub(crate) type GradientFn = dyn Fn(BatchId, &[f32], &mut [f32]) -> f32 + Send + Sync;

/// What is trained.
#[derive(Clone)]
pub(crate) enum Model {
    /// A vector, whose gradients a closure computes.
    Plain(Vec<f32>),
    /// A problem.
    Problem(Arc<dyn Problem>),
}

/// A vector, and the gradients of a closure.
pub(crate) struct ClosureProblem {
    pub(crate) initial: Vec<f32>,
    pub(crate) gradient: Arc<GradientFn>,
    pub(crate) workers: usize,
    pub(crate) steps: u64,
}

/// What a closure does is not known; a driver should give it a thread.
const OPERATIONS: u64 = 1_000_000;

impl Problem for ClosureProblem {
    fn dimensions(&self) -> usize {
        self.initial.len()
    }

    fn initial(&self) -> Vec<f32> {
        self.initial.clone()
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        Box::new(ClosureSource { worker: rank, gradient: Arc::clone(&self.gradient) })
    }

    /// The mean over the workers, each on the mini-batch after its last.
    fn evaluate(&self, params: &[f32]) -> Evaluation {
        let loss = |worker: usize| {
            let (computed, _) = gradient_at(&mut *self.source(worker), self.steps, params);
            f64::from(computed.loss)
        };
        let sum: f64 = (0..self.workers).map(loss).sum();
        Evaluation::of_loss(sum / self.workers as f64)
    }
}

struct ClosureSource {
    worker: usize,
    gradient: Arc<GradientFn>,
}

impl GradientSource for ClosureSource {
    fn gradient(&mut self, loan: &mut Loan, _ready: &mut dyn FnMut(usize)) -> Computed {
        let batch = BatchId { worker: self.worker, step: loan.step() };
        let (params, grad) = loan.vectors();
        Computed { loss: (self.gradient)(batch, params, grad), samples: 1 }
    }

    fn operations(&self) -> u64 {
        OPERATIONS
    }
}
