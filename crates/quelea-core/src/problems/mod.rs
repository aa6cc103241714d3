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

    /// The gradient source of worker `rank`.
    fn source(&self, rank: usize) -> Box<dyn GradientSource>;

    /// As [`source`](Problem::source), with the labels in reverse order: of `c` classes, label `k` is
    /// taken for `c − 1 − k`. Nothing where there are no labels.
    fn flipped_source(&self, _rank: usize) -> Option<Box<dyn GradientSource>> {
        None
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
