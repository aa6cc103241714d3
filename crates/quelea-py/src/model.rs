//! The model of a Python program, as a problem that drivers train.

use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use quelea_core::layout::Tensor;
use quelea_core::node::Loan;
use quelea_core::problems::{
    ACCURACY, BatchLimits, BatchedGradient, Computed, Evaluation, GradientBatches, GradientSource,
    Problem,
};

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

/// A Python object that computes gradients and evaluates models. Vectors are addresses of as many
/// numbers as the model has. Its methods:
///
/// - `gradient(rank, step, params, grad)` computes a gradient and returns the loss and the number of
///   samples
/// - `start([(rank, step, params, grad), …])` starts to compute several, `finish()` waits for the
///   first of those that were started and returns a list of what `gradient` returns; they are called
///   instead of `gradient` if the attribute `batch_limits` is not None
/// - `evaluate(params)` returns the loss and the accuracy, or None in its place
/// - `state(rank)` returns bytes that go into checkpoints, `restore(rank, bytes)` takes them over
#[derive(Clone)]
pub(crate) struct Callbacks {
    workers: Arc<Py<PyAny>>,
    limits: Option<BatchLimits>,
    /// Holds an exception that one of them has raised.
    raised: Raised,
}

impl Callbacks {
    /// Calls of this object, whose exceptions go to `raised`.
    pub(crate) fn new(py: Python<'_>, workers: Py<PyAny>, raised: Raised) -> PyResult<Callbacks> {
        let limits = workers.getattr(py, "batch_limits")?.extract::<Option<(usize, usize)>>(py)?;
        let limits = limits.map(|(gradients, batches)| BatchLimits { gradients, batches });
        Ok(Callbacks { workers: Arc::new(workers), limits, raised })
    }

    fn call<T>(&self, call: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<T>) -> T {
        self.raised.or_end(Python::attach(|py| {
            py.check_signals()?;
            call(self.workers.bind(py))
        }))
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
        self.initial.clone()
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        Box::new(CallbackGradients { rank, calls: self.calls.clone() })
    }

    fn batches(&self) -> Option<Box<dyn GradientBatches>> {
        let limits = self.calls.limits?;
        Some(Box::new(CallbackBatches { limits, calls: self.calls.clone() }))
    }

    fn worker_state(&self, rank: usize) -> Vec<f32> {
        let bytes: Vec<u8> =
            self.calls.call(|workers| workers.call_method1("state", (rank,))?.extract());
        // Vectors of checkpoints keep their bits, whatever these stand for.
        let word = |bytes: &[u8]| {
            let mut word = [0; 4];
            word[..bytes.len()].copy_from_slice(bytes);
            f32::from_le_bytes(word)
        };
        bytes.chunks(4).map(word).collect()
    }

    fn restore_worker(&self, rank: usize, state: &[f32]) -> Result<(), String> {
        let bytes: Vec<u8> = state.iter().flat_map(|word| word.to_le_bytes()).collect();
        let restored = Python::attach(|py| {
            self.calls.workers.call_method1(py, "restore", (rank, PyBytes::new(py, &bytes)))
        });
        restored.map(drop).map_err(|error| error.to_string())
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        let address = params.as_ptr() as usize;
        let (loss, accuracy) = self.calls.call(|workers| {
            workers.call_method1("evaluate", (address,))?.extract::<(f64, Option<f64>)>()
        });
        Evaluation::of_loss(loss).with(ACCURACY, accuracy)
    }
}

/// What Python raised inside a gradient or an event. Drivers know no such errors, so it ends them by a panic.
#[derive(Clone, Default)]
pub(crate) struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    /// The exception, if there was one.
    pub(crate) fn take(&self) -> Option<PyErr> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Keeps the exception, unless there is one already.
    pub(crate) fn put(&self, error: PyErr) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    /// Keeps the exception, and unwinds to whoever waits for the driver.
    pub(crate) fn end_with(&self, error: PyErr) -> ! {
        self.put(error);
        // Not a panic that is reported: Python shows what it raised.
        std::panic::resume_unwind(Box::new("Python raised an exception"))
    }

    fn or_end<T>(&self, result: PyResult<T>) -> T {
        result.unwrap_or_else(|error| self.end_with(error))
    }
}

/// What Python takes to compute a gradient.
fn request(rank: usize, loan: &mut Loan) -> (usize, u64, usize, usize) {
    let step = loan.step();
    let (params, grad) = loan.vectors();
    (rank, step, params.as_ptr() as usize, grad.as_mut_ptr() as usize)
}

struct CallbackGradients {
    rank: usize,
    calls: Callbacks,
}

impl GradientSource for CallbackGradients {
    fn gradient(&mut self, loan: &mut Loan, _ready: &mut dyn FnMut(usize)) -> Computed {
        let request = request(self.rank, loan);
        let (loss, samples) = self
            .calls
            .call(|workers| workers.call_method1("gradient", request)?.extract::<(f32, u32)>());
        Computed { loss, samples }
    }

    /// One device computes for all, and Python has one lock: other threads would not help.
    fn operations(&self) -> u64 {
        0
    }
}

/// Gradients that Python computes several at a time. It has the addresses of vectors from the start
/// of a batch until its end, while the driver keeps their loans.
struct CallbackBatches {
    limits: BatchLimits,
    calls: Callbacks,
}

impl GradientBatches for CallbackBatches {
    fn limits(&self) -> BatchLimits {
        self.limits
    }

    fn start(&mut self, batch: &mut [BatchedGradient]) {
        let each = batch.iter_mut().map(|gradient| request(gradient.worker, &mut gradient.loan));
        let requests: Vec<_> = each.collect();
        self.calls.call(|workers| workers.call_method1("start", (requests,)).map(drop));
    }

    fn finish(&mut self, batch: &mut [BatchedGradient]) {
        let found =
            self.calls.call(|workers| workers.call_method0("finish")?.extract::<Vec<(f32, u32)>>());
        assert_eq!(found.len(), batch.len(), "Python finishes every gradient of a batch");
        for (gradient, (loss, samples)) in batch.iter_mut().zip(found) {
            gradient.computed = Computed { loss, samples };
        }
    }
}
