//! The model of a Python program, as a problem that drivers train.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use quelea_core::layout::Tensor;
use quelea_core::problems::{Computed, Evaluation, GradientSource, Problem};
use quelea_net::external_loop::ExternalLoop;

/// A PyTorch model: its parameters, and where its gradients come from.
#[derive(Clone)]
pub(crate) struct PythonModel {
    tensors: Vec<Tensor>,
    initial: Arc<[f32]>,
    gradients: GradientOrigin,
}

/// Where the gradients of a Python model come from.
#[derive(Clone)]
pub(crate) enum GradientOrigin {
    /// A training script, which is the outer loop of one rank.
    Script(ExternalLoop),
    /// Functions that a driver calls for any rank.
    Callbacks(Callbacks),
}

/// Python functions that compute gradients and evaluate models.
#[derive(Clone)]
pub(crate) struct Callbacks {
    /// `gradient(rank, step, params, grad)` returns the loss and the number of samples.
    pub(crate) gradient: Arc<Py<PyAny>>,
    /// `evaluate(params)` returns the loss and the accuracy, or None in its place.
    pub(crate) evaluate: Arc<Py<PyAny>>,
    /// Holds an exception that one of them has raised.
    pub(crate) raised: Raised,
}

impl PythonModel {
    /// A model with these parameters, by name and shape, that starts at `initial`.
    pub(crate) fn new(
        named_shapes: Vec<(String, Vec<usize>)>,
        initial: Arc<[f32]>,
        gradients: GradientOrigin,
    ) -> PythonModel {
        let tensor = |(name, shape)| Tensor { name, shape };
        PythonModel { tensors: named_shapes.into_iter().map(tensor).collect(), initial, gradients }
    }
}

impl Problem for PythonModel {
    fn dimensions(&self) -> usize {
        self.initial.len()
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.tensors.clone()
    }

    fn initial(&self) -> Vec<f32> {
        self.initial.to_vec()
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        match &self.gradients {
            GradientOrigin::Script(_) => unreachable!("the script computes the gradients"),
            GradientOrigin::Callbacks(calls) => {
                Box::new(CallbackGradients { rank, calls: calls.clone() })
            }
        }
    }

    fn outer_loop(&self, _rank: usize) -> Option<&(dyn Any + Send + Sync)> {
        match &self.gradients {
            GradientOrigin::Script(outer) => Some(outer),
            GradientOrigin::Callbacks(_) => None,
        }
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        match &self.gradients {
            GradientOrigin::Script(_) => unreachable!("the script evaluates its model itself"),
            GradientOrigin::Callbacks(calls) => calls.evaluate(params),
        }
    }
}

impl Callbacks {
    fn evaluate(&self, params: &[f32]) -> Evaluation {
        let call = |py: Python<'_>| {
            let found = self.evaluate.call1(py, (params.as_ptr() as usize,))?;
            found.extract::<(f64, Option<f64>)>(py)
        };
        let (loss, accuracy) = self.raised.or_end(Python::attach(call));
        Evaluation { loss, accuracy, bleu: None }
    }
}

/// What Python raised inside a gradient. Drivers know no such errors, so it ends them by a panic.
#[derive(Clone, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    /// The exception, if there was one.
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn or_end<T>(&self, result: PyResult<T>) -> T {
        result.unwrap_or_else(|error| {
            *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(error);
            // Not a panic that is reported: Python shows what it raised.
            std::panic::resume_unwind(Box::new("Python raised an exception"))
        })
    }
}

struct CallbackGradients {
    rank: usize,
    calls: Callbacks,
}

impl GradientSource for CallbackGradients {
    fn gradient(&mut self, step: u64, params: &[f32], grad: &mut [f32]) -> Computed {
        let args = (self.rank, step, params.as_ptr() as usize, grad.as_mut_ptr() as usize);
        let call = |py: Python<'_>| {
            py.check_signals()?;
            self.calls.gradient.call1(py, args)?.extract::<(f32, u32)>(py)
        };
        let (loss, samples) = self.calls.raised.or_end(Python::attach(call));
        Computed { loss, samples }
    }

    /// One device computes for all, and Python has one lock: other threads would not help.
    fn operations(&self) -> u64 {
        0
    }
}
