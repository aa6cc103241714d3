//! The page of this process: of the run that its script trains, or of runs on the disk.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use quelea_page::access::PageProtection;
use quelea_page::description::RunDescription;
use quelea_page::folder;
use quelea_page::forecaster::{self, GradientTimes};
use quelea_page::listener::{PageFraming, PageListener};
use quelea_page::log::{LogClock, RunLog};
use quelea_page::server::{PageServer, PageSource, RunFolder};
use serde_json::{Value, json};

use crate::Error;

/// A page at an address of this machine; it ends when it is closed.
#[pyclass(frozen, name = "Page", module = "quelea._core")]
pub(crate) struct PyPage {
    address: String,
    has_token: bool,
    state: Mutex<PageState>,
}

enum PageState {
    /// The first run has not begun: whoever connects waits.
    Bound(PageListener),
    /// It is served.
    Served { server: PageServer, runs: u32 },
    /// Nobody is answered any more.
    Closed,
}

#[pymethods]
impl PyPage {
    /// Listens at `address`. With `run`, the folder of a run or of runs is shown at once; else the runs
    /// that this process trains, as soon as the first begins.
    #[new]
    #[pyo3(signature = (address, run=None))]
    fn new(py: Python<'_>, address: &str, run: Option<PathBuf>) -> PyResult<PyPage> {
        let protection = PageProtection::from_environment(false);
        let has_token = protection.token.is_some();
        let listener = PageListener::bind(address, protection).map_err(failed)?;
        let listener = listener.with_framing(PageFraming::Loopback);
        let address = listener.address().to_string();
        let state = match run {
            None => PageState::Bound(listener),
            Some(run) => {
                let source = py.detach(|| source(run))?;
                let server = PageServer::serve(listener, source).map_err(failed)?;
                PageState::Served { server, runs: 0 }
            }
        };
        Ok(PyPage { address, has_token, state: Mutex::new(state) })
    }

    /// Where it listens, as HOST:PORT.
    #[getter]
    fn address(&self) -> &str {
        &self.address
    }

    /// Whether only those see it who have the token.
    #[getter]
    fn has_token(&self) -> bool {
        self.has_token
    }

    /// Ends it, after whoever looks has seen the end of the run.
    fn close(&self, py: Python<'_>) {
        let state = std::mem::replace(&mut *self.state(), PageState::Closed);
        py.detach(|| {
            if let PageState::Served { server, .. } = &state {
                server.farewell();
            }
            drop(state);
        });
    }
}

fn failed(error: impl std::fmt::Display) -> PyErr {
    Error::new_err(format!("no page: {error}"))
}

/// The run in this folder, or all runs in it.
fn source(path: PathBuf) -> PyResult<PageSource> {
    if folder::holds_run(&path) {
        let log = folder::open(&path, forecaster::of_folder(&path)).map_err(failed)?;
        return Ok(PageSource::Run(log));
    }
    if folder::runs_of(&path).is_empty() {
        return Err(failed(folder::FolderError::NoRun { path }));
    }
    Ok(PageSource::Folder(RunFolder::new(path, Box::new(forecaster::of_folder))))
}

/// A run that is about to begin, as a page needs it.
pub(crate) struct ShownRun<'a> {
    /// Its configuration.
    pub(crate) config: &'a Value,
    /// Elements of its model.
    pub(crate) elements: usize,
    /// What its times are measured by.
    pub(crate) clock: LogClock,
    /// What it is called; nothing if by its number.
    pub(crate) name: Option<String>,
}

impl PyPage {
    fn state(&self) -> MutexGuard<'_, PageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Shows a run from now on.
    pub(crate) fn show(&self, run: ShownRun<'_>) -> PyResult<Arc<RunLog>> {
        let mut state = self.state();
        let runs = match &*state {
            PageState::Closed => return Err(Error::new_err("the page was closed")),
            PageState::Bound(_) => 1,
            PageState::Served { runs, .. } => runs + 1,
        };
        let ShownRun { config, elements, clock, name } = run;
        let name = name.unwrap_or_else(|| format!("run {runs} of this process"));
        let mut log = RunLog::live(RunDescription::of_config(config.clone(), &name), clock);
        let times = match clock {
            LogClock::Real => GradientTimes::Measured,
            LogClock::Recorded => GradientTimes::Configured,
        };
        if let Some(adviser) = forecaster::of_config(config, elements as f64, times) {
            log = log.with_adviser(adviser);
        }
        let log = Arc::new(log);
        *state = match std::mem::replace(&mut *state, PageState::Closed) {
            PageState::Bound(listener) => {
                let source = PageSource::Run(Arc::clone(&log));
                let server = PageServer::serve(listener, source).map_err(failed)?;
                PageState::Served { server, runs }
            }
            PageState::Served { server, .. } => {
                server.show(Arc::clone(&log));
                PageState::Served { server, runs }
            }
            PageState::Closed => PageState::Closed,
        };
        Ok(log)
    }
}

/// The configuration of a script's run: the script decides how long it trains, and on what.
pub(crate) fn script_config(config: &Value) -> Value {
    let mut config = config.clone();
    config["steps"] = json!(0);
    config["task"] = json!({ "name": "a PyTorch script" });
    config
}

/// The folder's name, for a page.
pub(crate) fn folder_name(path: &Path) -> String {
    folder::name(path)
}
