//! The virtual cluster with gradients that Python computes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use quelea_page::log::LogClock;
use quelea_record::Record;
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
use crate::page::{PyPage, ShownRun, folder_name};
use crate::settings::{config, value_error};

/// Runs the configuration in virtual time, writes the files of a run into `out`, and returns where
/// they are.
///
/// `workers` computes and evaluates; [`Callbacks`] lists its methods. With `resume`, the folder of a
/// run, the run continues from the newest checkpoint there, in the same folder unless `out` is given.
/// `page` shows it while it lasts.
#[pyfunction]
#[pyo3(signature = (settings, tensors, initial, workers, out, resume, page=None))]
#[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
pub(crate) fn simulate(
    py: Python<'_>,
    settings: &Bound<'_, PyDict>,
    tensors: Vec<(String, Vec<usize>)>,
    initial: Vec<f32>,
    workers: Py<PyAny>,
    out: Option<&str>,
    resume: Option<&str>,
    page: Option<&PyPage>,
) -> PyResult<String> {
    let config = config(settings)?;
    let raised = Raised::default();
    let calls = Callbacks::new(py, workers, raised.clone())?;
    let model = PythonModel { tensors: model::tensors(tensors), initial, calls };
    let prepared = prepare(config, model, resume).map_err(value_error)?;
    let directory = directory(&prepared, out).map_err(value_error)?;
    let resolved = prepared.config.resolved();
    let shown = || ShownRun {
        config: &resolved,
        elements: prepared.setup.layout.len(),
        clock: LogClock::Recorded,
        name: out.map(|out| folder_name(Path::new(out))),
    };
    let log = page.map(|page| page.show(shown())).transpose()?;
    py.detach(|| {
        let drive = |recorder: &mut RunRecorder<'_>| drive::simulate(&prepared, recorder);
        let mut watch = |record: &Record| {
            if let Some(log) = &log {
                log.take(record);
            }
        };
        let run = AssertUnwindSafe(|| execute(&prepared, &directory, &mut watch, drive));
        match simulated(raised.clone(), || catch_unwind(run)) {
            Ok(Ok(finished)) => {
                if let (Some(log), Ok(summary)) = (&log, serde_json::to_value(&finished.summary)) {
                    log.finish(summary);
                }
                Ok(finished.directory.display().to_string())
            }
            Ok(Err(error)) => {
                log.iter().for_each(|log| log.fail(error.to_string()));
                Err(Error::new_err(error.to_string()))
            }
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
