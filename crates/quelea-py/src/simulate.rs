//! The virtual cluster with gradients that Python computes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use quelea_core::layout::Tensor;
use quelea_core::problems::{Computed, Evaluation, GradientSource, Problem};
use quelea_run::config::Config;
use quelea_run::drive;
use quelea_run::execute::{RunRecorder, execute};
use quelea_run::files::directory::Directory;
use quelea_run::prepared::PreparedRun;

use crate::Error;
use crate::settings::table;

/// Runs the configuration in virtual time and writes the files of a run into `out`.
///
/// `gradient(rank, step, params, grad)` computes one gradient and returns its loss and how many
/// samples it was averaged over; `evaluate(params)` returns loss and accuracy, or None. Vectors are
/// addresses of as many numbers as the model has.
#[pyfunction]
pub(crate) fn simulate(
    py: Python<'_>,
    settings: &Bound<'_, PyDict>,
    tensors: Vec<(String, Vec<usize>)>,
    initial: Vec<f32>,
    calls: (Py<PyAny>, Py<PyAny>),
    out: &str,
) -> PyResult<()> {
    let wrong = |error: quelea_run::error::RequestError| PyValueError::new_err(error.to_string());
    let config = Config::read(table(settings)?, &[], None).map_err(wrong)?;
    let raised = Raised::default();
    let problem = Script {
        tensors: tensors.into_iter().map(|(name, shape)| Tensor { name, shape }).collect(),
        initial,
        gradient: Arc::new(calls.0),
        evaluate: calls.1,
        raised: raised.clone(),
    };
    let plan = PreparedRun::of_problem(config, Arc::new(problem)).map_err(wrong)?;
    let directory = Directory::claim(Some(Path::new(out)), false, "").map_err(wrong)?;
    py.detach(|| {
        let drive = |listener: &mut RunRecorder<'_>| drive::simulate(&plan, listener);
        let run = AssertUnwindSafe(|| execute(&plan, &directory, &mut |_| {}, drive));
        match catch_unwind(run) {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(Error::new_err(error.to_string())),
            Err(panic) => match raised.take() {
                Some(error) => Err(error),
                None => std::panic::resume_unwind(panic),
            },
        }
    })
}

/// What Python raised inside a gradient. The driver knows no such thing, so it is ended by a panic.
#[derive(Clone, Default)]
struct Raised(Arc<Mutex<Option<PyErr>>>);

impl Raised {
    fn take(&self) -> Option<PyErr> {
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

struct Script {
    tensors: Vec<Tensor>,
    initial: Vec<f32>,
    gradient: Arc<Py<PyAny>>,
    evaluate: Py<PyAny>,
    raised: Raised,
}

impl Problem for Script {
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
        let (gradient, raised) = (Arc::clone(&self.gradient), self.raised.clone());
        Box::new(Source { rank, gradient, raised })
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        let call = |py: Python<'_>| {
            let found = self.evaluate.call1(py, (params.as_ptr() as usize,))?;
            found.extract::<(f64, Option<f64>)>(py)
        };
        let (loss, accuracy) = self.raised.or_end(Python::attach(call));
        Evaluation { loss, accuracy, bleu: None }
    }
}

struct Source {
    rank: usize,
    gradient: Arc<Py<PyAny>>,
    raised: Raised,
}

impl GradientSource for Source {
    fn gradient(&mut self, step: u64, params: &[f32], grad: &mut [f32]) -> Computed {
        let words = (self.rank, step, params.as_ptr() as usize, grad.as_mut_ptr() as usize);
        let call = |py: Python<'_>| {
            py.check_signals()?;
            self.gradient.call1(py, words)?.extract::<(f32, u32)>(py)
        };
        let (loss, samples) = self.raised.or_end(Python::attach(call));
        Computed { loss, samples }
    }

    /// One device computes for all, and Python has one lock: other threads would not help.
    fn operations(&self) -> u64 {
        0
    }
}
