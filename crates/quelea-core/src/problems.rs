//! Problems that the core can solve by itself: for tests, for fast simulation, for the default.

pub mod dataset;
pub mod logistic;
pub mod partition;
pub mod quadratic;

use std::sync::Arc;

use crate::layout::{Layout, Tensor};
use crate::node::loan::Loan;

/// A model with its data: where parameters start, who computes gradients, how good a model is.
pub trait Problem: Send + Sync {
    /// Length of the flat vector.
    fn dimensions(&self) -> usize;

    /// The tensors in backward order; empty if the model is one plain vector.
    fn tensors(&self) -> Vec<Tensor> {
        Vec::new()
    }

    /// The common start of all workers.
    fn initial(&self) -> Vec<f32>;

    /// The gradient source of worker `rank`. A worker that joins in a new place, beyond those for whom the
    /// data were divided, has the data of one of them, in an order of its own.
    fn source(&self, rank: usize) -> Box<dyn GradientSource>;

    /// Computes gradients of several workers together, where that is faster than one
    /// [source](Problem::source) after the other. A driver whose clock is virtual uses it instead
    /// of sources.
    fn batches(&self) -> Option<Box<dyn GradientBatches>> {
        None
    }

    /// What the gradients of worker `rank` have left behind besides gradients, such as its running
    /// statistics of batch normalisation. Virtual clusters keep it in checkpoints.
    fn worker_state(&self, _rank: usize) -> Vec<f32> {
        Vec::new()
    }

    /// Takes over what [`worker_state`](Problem::worker_state) returned; the reason if it does not
    /// fit.
    fn restore_worker(&self, _rank: usize, _state: &[f32]) -> Result<(), String> {
        Ok(())
    }

    /// As [`source`](Problem::source), with the labels in reverse order: of `c` classes, label `k` is
    /// taken for `c − 1 − k`. Nothing where there are no labels.
    fn flipped_source(&self, _rank: usize) -> Option<Box<dyn GradientSource>> {
        None
    }

    /// Whether all sources draw from all data, in one order: a gradient is then of the batch
    /// [`Loan::batch`], whichever worker computes it, and every sample of an epoch is in one batch.
    fn shares_data(&self) -> bool {
        false
    }

    /// How many samples a gradient of each worker is averaged over; empty if all are alike.
    fn samples(&self) -> Vec<u32> {
        Vec::new()
    }

    /// What belongs to a model with these parameters but is not trained (the statistics of batch
    /// normalisation), by name: for export.
    fn buffers(&self, _params: &[f32]) -> Vec<(Tensor, Vec<f32>)> {
        Vec::new()
    }

    /// How good `params` are. A function of the parameters alone: what a model needs besides them
    /// is computed here from the data.
    fn evaluate(&self, params: &[f32]) -> Evaluation;
}

/// What is trained, without its data and its gradient sources.
#[derive(Clone, Debug, Default)]
pub struct ModelSpec {
    /// The tensors in backward order; empty if the model is one plain vector.
    pub tensors: Vec<Tensor>,
    /// The common start of all workers.
    pub initial: Vec<f32>,
    /// How many samples a gradient of each worker is averaged over; empty if all are alike.
    pub samples: Vec<u32>,
}

impl ModelSpec {
    /// What a problem trains.
    pub fn of(problem: &dyn Problem) -> ModelSpec {
        ModelSpec {
            tensors: problem.tensors(),
            initial: problem.initial(),
            samples: problem.samples(),
        }
    }
}

/// Parameters in, loss and gradient out, for one worker. What it returns is a function of the
/// step and the parameters alone, never of timing.
pub trait GradientSource: Send {
    /// Computes gradient number [`Loan::step`] at the parameters of `loan` into its gradient.
    ///
    /// A source that knows which part of the gradient is final before the rest is computed says
    /// so with [`Loan::hand_over`], passing `ready` on: then those buckets are exchanged
    /// meanwhile. The driver hands over what is left when this returns.
    fn gradient(&mut self, loan: &mut Loan, ready: &mut dyn FnMut(usize)) -> Computed;

    /// Rough number of arithmetic operations of one gradient; tells a driver whether computing
    /// several in parallel pays.
    fn operations(&self) -> u64;
}

/// Computes gradients of several workers at the same time. Each of them is the same function of
/// its step and parameters as that of the worker's [source](GradientSource), up to rounding,
/// whichever gradients are computed with it.
pub trait GradientBatches: Send {
    /// How gradients are best put together.
    fn limits(&self) -> BatchLimits;

    /// Starts to compute these gradients, and may return before they are there. Until the batch is
    /// finished the driver keeps the loans and does not touch their vectors.
    fn start(&mut self, batch: &mut [BatchedGradient]);

    /// Waits for the batch, which is the first of those that were started and not finished.
    fn finish(&mut self, batch: &mut [BatchedGradient]);
}

/// How gradients are best put together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchLimits {
    /// The most gradients in a batch. As many are started together at once; fewer are when one of
    /// them is needed.
    pub gradients: usize,
    /// The most batches that are started and not finished.
    pub batches: usize,
}

/// One gradient of a batch.
#[derive(Debug)]
pub struct BatchedGradient {
    /// Whose it is.
    pub worker: usize,
    /// Where its parameters are, and where it goes.
    pub loan: Loan,
    /// What comes with it, once it is finished.
    pub computed: Computed,
}

/// One gradient outside a node: for measuring and for checking sources.
pub fn gradient_at(
    source: &mut dyn GradientSource,
    step: u64,
    params: &[f32],
) -> (Computed, Vec<f32>) {
    let layout = Arc::new(Layout::plain(params.len(), 0));
    let mut loan = Loan::detached(params.to_vec(), layout, step);
    let computed = source.gradient(&mut loan, &mut |_| {});
    (computed, loan.into_gradient())
}

/// What comes with a gradient.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Computed {
    /// The loss over the mini-batch.
    pub loss: f32,
    /// How many samples it was averaged over.
    pub samples: u32,
}

/// How good a model is.
#[derive(Clone, Debug, PartialEq)]
pub struct Evaluation {
    /// The loss: over all training data of the small problems, over held-out data of networks.
    pub loss: f64,
    /// Whatever else the problem measures.
    pub metrics: Vec<Metric>,
}

/// A measure of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Metric {
    /// Its name in files and reports.
    pub name: &'static str,
    /// Its value.
    pub value: f64,
}

/// The share of right answers on held-out data.
pub const ACCURACY: &str = "accuracy";

impl Evaluation {
    /// An evaluation by the loss alone.
    pub fn of_loss(loss: f64) -> Evaluation {
        Evaluation { loss, metrics: Vec::new() }
    }

    /// With a metric, where it is known.
    pub fn with(mut self, name: &'static str, value: Option<f64>) -> Evaluation {
        self.metrics.extend(value.map(|value| Metric { name, value }));
        self
    }

    /// The metric of this name, if it was measured.
    pub fn metric(&self, name: &str) -> Option<f64> {
        self.metrics.iter().find(|metric| metric.name == name).map(|metric| metric.value)
    }

    /// The share of right answers on held-out data, where there are answers.
    pub fn accuracy(&self) -> Option<f64> {
        self.metric(ACCURACY)
    }
}
