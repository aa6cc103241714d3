//! The virtual cluster with gradients that Python computes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use quelea_run::checkpoint::read;
use quelea_run::config::Config;
use quelea_run::drive;
use quelea_run::error::RequestError;
use quelea_run::execute::execute;
use quelea_run::files::directory::Directory;
use quelea_run::prepared::PreparedRun;
use quelea_run::recorder::RunRecorder;

use crate::Error;
use crate::algorithm::simulated;
use crate::model::{self, Callbacks, PythonModel, Raised};
use crate::settings::{config, value_error};

/// Runs the configuration in virtual time, writes the files of a run into `out`, and returns where
/// they are.
///
/// `workers` computes and evaluates; [`Callbacks`] lists its methods. With `resume`, the folder of a
/// run, the run continues from the newest checkpoint there, in the same folder unless `out` is given.
#[pyfunction]
#[pyo3(signature = (settings, tensors, initial, workers, out, resume))]
pub(crate) fn simulate(
    py: Python<'_>,
    settings: &Bound<'_, PyDict>,
    tensors: Vec<(String, Vec<usize>)>,
    initial: Vec<f32>,
    workers: Py<PyAny>,
    out: Option<&str>,
    resume: Option<&str>,
) -> PyResult<String> {
    let config = config(settings)?;
    let raised = Raised::default();
    let calls = Callbacks::new(py, workers, raised.clone())?;
    let model = PythonModel { tensors: model::tensors(tensors), initial, calls };
    let prepared = prepare(config, model, resume).map_err(value_error)?;
    let directory = directory(&prepared, out).map_err(value_error)?;
    py.detach(|| {
        let drive = |recorder: &mut RunRecorder<'_>| drive::simulate(&prepared, recorder);
        let run = AssertUnwindSafe(|| execute(&prepared, &directory, &mut |_| {}, drive));
        match simulated(raised.clone(), || catch_unwind(run)) {
            Ok(Ok(finished)) => Ok(finished.directory.display().to_string()),
            Ok(Err(error)) => Err(Error::new_err(error.to_string())),
            Err(panic) => match raised.take() {
                Some(error) => Err(error),
                None => std::panic::resume_unwind(panic),
            },
        }
    })
}

fn prepare(
    config: Config,
    model: PythonModel,
    resume: Option<&str>,
) -> Result<PreparedRun, RequestError> {
    let checkpoint = resume.map(|run| read::open(Path::new(run))).transpose()?;
    let prepared = PreparedRun::of_problem(config, Arc::new(model))?;
    match checkpoint {
        Some(checkpoint) => prepared.resume_from(&checkpoint),
        None => Ok(prepared),
    }
}

/// The folder of the run: that of the run that is resumed, unless another is named.
fn directory(prepared: &PreparedRun, out: Option<&str>) -> Result<Directory, RequestError> {
    let out = out.map(Path::new);
    match &prepared.resumed {
        Some(from) if out.is_none_or(|out| out == from.run) => Directory::reopen(&from.run),
        _ => Directory::claim(out, false, prepared.config.algorithm.entry.meta.name),
    }
}
