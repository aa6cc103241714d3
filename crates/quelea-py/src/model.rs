//! The model of a Python program, as a problem that drivers train.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use quelea_core::layout::Tensor;
use quelea_core::node::Loan;
use quelea_core::problems::{ACCURACY, Computed, Evaluation, GradientSource, Problem};

/// A PyTorch model whose gradients Python functions compute, for any rank.
pub(crate) struct PythonModel {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) initial: Vec<f32>,
    pub(crate) calls: Callbacks,
}

/// The tensors of a model, from their names and shapes.
pub(crate) fn tensors(named_shapes: Vec<(String, Vec<usize>)>) -> Vec<Tensor> {
    named_shapes.into_iter().map(|(name, shape)| Tensor { name, shape }).collect()
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

impl Problem for PythonModel {
    fn dimensions(&self) -> usize {
        self.initial.len()
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.tensors.clone()
    }

    fn initial(&self) -> Vec<f32> {
        self.initial.clone()
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        Box::new(CallbackGradients { rank, calls: self.calls.clone() })
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        self.calls.evaluate(params)
    }
}

impl Callbacks {
    fn evaluate(&self, params: &[f32]) -> Evaluation {
        let call = |py: Python<'_>| {
            let found = self.evaluate.call1(py, (params.as_ptr() as usize,))?;
            found.extract::<(f64, Option<f64>)>(py)
        };
        let (loss, accuracy) = self.raised.or_end(Python::attach(call));
        Evaluation::of_loss(loss).with(ACCURACY, accuracy)
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
    fn gradient(&mut self, loan: &mut Loan, _ready: &mut dyn FnMut(usize)) -> Computed {
        let step = loan.step();
        let (params, grad) = loan.vectors();
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
