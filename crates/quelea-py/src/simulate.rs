//! The virtual cluster with gradients that Python computes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use quelea_run::drive;
use quelea_run::execute::execute;
use quelea_run::files::directory::Directory;
use quelea_run::prepared::PreparedRun;
use quelea_run::recorder::RunRecorder;

use crate::Error;
use crate::model::{self, Callbacks, PythonModel, Raised};
use crate::settings::{config, value_error};

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
    gradient: Py<PyAny>,
    evaluate: Py<PyAny>,
    out: &str,
) -> PyResult<()> {
    let config = config(settings)?;
    let raised = Raised::default();
    let calls = Callbacks {
        gradient: Arc::new(gradient),
        evaluate: Arc::new(evaluate),
        raised: raised.clone(),
    };
    let model = PythonModel { tensors: model::tensors(tensors), initial, calls };
    let plan = PreparedRun::of_problem(config, Arc::new(model)).map_err(value_error)?;
    let directory = Directory::claim(Some(Path::new(out)), false, "").map_err(value_error)?;
    py.detach(|| {
        let drive = |recorder: &mut RunRecorder<'_>| drive::simulate(&plan, recorder);
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
