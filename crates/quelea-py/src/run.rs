//! One rank of a run whose outer loop is the training script.

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyDict;
use quelea_core::contract::Mode;
use quelea_core::problems::{Computed, ModelSpec};
use quelea_core::properties::OptimizerSite;
use quelea_core::run_spec::RunSpec;
use quelea_net::external_loop::{ExternalLoop, LoopHandle, LoopTurn, RankEnded};
use quelea_net::{Coordinator, Gradients, Hosted, NetOptions};
use quelea_page::log::{LogClock, RunLog};
use quelea_run::prepared::run_spec;
use serde_json::Value;

use crate::algorithm::Outlet;
use crate::group::PyGroup;
use crate::model::{self, Raised};
use crate::optimizer_state::{StateLayout, StateVectors};
use crate::page::{PyPage, ShownRun, folder_name, script_config};
use crate::properties::PyProperties;
use crate::recorder::{RecordFile, ScriptRecorder};
use crate::settings::{config, value_error};
use crate::vectors::{RankVectors, VectorAt};
use crate::{Error, POLL_INTERVAL, uninterrupted};

/// More steps than all ranks together will ever take: the script decides when it is done.
const STEPS: u64 = 1 << 60;
/// How long a script that has failed waits for the other ranks to receive the reason.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// A rank of a run. Its methods are called in the order that `quelea_net::external_loop` describes.
#[pyclass(frozen, name = "Run", module = "quelea._core")]
pub(crate) struct PyRun {
    handle: Arc<LoopHandle>,
    /// Holds what an event of an algorithm in Python has raised.
    raised: Raised,
    /// Returns what went wrong, if anything did.
    thread: Mutex<Option<JoinHandle<Result<(), String>>>>,
    /// What the thread has returned.
    outcome: OnceLock<Result<(), String>>,
    rate: Arc<AtomicU32>,
    setup: RunSpec,
    state: StateVectors,
    /// Where the page of this process sees the run, if it has one.
    shown: Option<Arc<RunLog>>,
}

#[pymethods]
impl PyRun {
    /// Starts the run with all ranks of `group`. `initial` are the flat parameters;
    /// `state_vectors` is how many vectors of the optimizer's state the algorithm needs, and
    /// `has_velocity` whether the first of them is the velocity of momentum. At rank 0, `page` shows the
    /// run, and its records go to the folder `records`.
    #[new]
    #[pyo3(signature = (
        group, settings, tensors, initial, state_vectors, has_velocity, page=None, records=None
    ))]
    #[expect(clippy::too_many_arguments, reason = "they are keywords in Python")]
    fn new(
        py: Python<'_>,
        group: &PyGroup,
        settings: &Bound<'_, PyDict>,
        tensors: Vec<(String, Vec<usize>)>,
        initial: VectorAt,
        state_vectors: usize,
        has_velocity: bool,
        page: Option<&PyPage>,
        records: Option<PathBuf>,
    ) -> PyResult<PyRun> {
        let config = config(settings)?;
        let resolved = config.resolved();
        if initial.length == 0 {
            return Err(Error::new_err("all parameters of the model are empty: nothing to train"));
        }
        // SAFETY: the package passes the address of a tensor that it holds during the call.
        let start = unsafe { initial.as_mut_slice() };
        let (outer, handle) = ExternalLoop::new();
        let tensors = model::tensors(tensors);
        let model = ModelSpec { tensors, initial: start.to_vec(), samples: Vec::new() };
        let spec = run_spec(config, model).map_err(value_error)?;
        let rate = Arc::new(AtomicU32::new(0));
        let read = Arc::clone(&rate);
        let learning_rate = Arc::new(move |_| f32::from_bits(read.load(Ordering::Relaxed)));
        let steps = STEPS / u64::from(group.launched().world);
        let mut setup = RunSpec { learning_rate, clip: None, steps, ..spec };
        let state = StateVectors::default();
        if setup.properties().optimizer == OptimizerSite::Workers {
            let layout = StateLayout { vectors: state_vectors, has_velocity };
            setup.optimizer = state.maker(layout, initial.length);
        }
        let (handle, raised) = (Arc::new(handle), Raised::default());
        let told = Arc::downgrade(&handle);
        let end = move |reason| {
            if let Some(handle) = told.upgrade() {
                handle.fail(reason);
            }
        };
        Outlet { raised: raised.clone(), end: Some(Arc::new(end)) }.install();
        let recorder = match group.launched().rank {
            0 => recorder(&script_config(&resolved), initial.length, page, records)?,
            _ => ScriptRecorder::default(),
        };
        let shown = recorder.log.clone();
        let thread = spawn(py, group, setup.clone(), outer, recorder)?;
        let (thread, outcome) = (Mutex::new(Some(thread)), OnceLock::new());
        Ok(PyRun { handle, raised, thread, outcome, rate, setup, state, shown })
    }

    /// Start and end of every bucket, in order.
    #[getter]
    fn buckets(&self) -> Vec<(usize, usize)> {
        let buckets = self.setup.layout.buckets.iter();
        buckets.map(|bucket| (bucket.range.start, bucket.range.end)).collect()
    }

    /// The properties of the algorithm in this run.
    #[getter]
    fn properties(&self) -> PyProperties {
        self.setup.properties().into()
    }

    /// The step at which all ranks are on average, as far as this one knows.
    #[getter]
    fn global_step(&self) -> u64 {
        self.handle.global_step()
    }

    /// The vectors of the rank; at the turn for a gradient.
    fn vectors(&self) -> PyResult<RankVectors> {
        let vectors = self.handle.vectors();
        let vectors = vectors.ok_or_else(|| {
            Error::new_err("the vectors are with the rank now: wait for the turn for a gradient")
        })?;
        let length = vectors.params.len();
        let at = |address: usize| VectorAt { address, length };
        Ok(RankVectors {
            params: at(vectors.params.address() as usize),
            grads: at(vectors.grad.address() as usize),
            state: self.state.addresses().into_iter().map(at).collect(),
            _memory: vectors,
            _state_memory: self.state.clone(),
        })
    }

    /// Sets the learning rate of the current step.
    fn set_learning_rate(&self, rate: f32) {
        self.rate.store(rate.to_bits(), Ordering::Relaxed);
    }

    /// Bucket `b` of the gradient is final.
    fn bucket(&self, py: Python<'_>, b: usize) -> PyResult<()> {
        self.checked(py, self.handle.bucket(b))
    }

    /// The gradient over so many samples is complete; 0 where nobody knows how many.
    fn gradient(&self, py: Python<'_>, loss: f32, samples: u32) -> PyResult<()> {
        self.checked(py, self.handle.gradient(Computed { loss, samples }))
    }

    /// Says how many bytes the script has allocated on its GPU, for those who look at the run.
    fn note_gpu_bytes(&self, bytes: u64) {
        self.handle.note_gpu_bytes(bytes);
    }

    /// The optimizer has run, as the last turn asked.
    fn optimized(&self, py: Python<'_>) -> PyResult<()> {
        self.checked(py, self.handle.optimized())
    }

    /// Waits for the script's turn, and returns its name: "gradient", or the mode in which the
    /// optimizer is to run. The names are the values of Python's `LoopTurn`.
    fn wait(&self, py: Python<'_>) -> PyResult<&'static str> {
        loop {
            match py.detach(|| self.handle.wait(POLL_INTERVAL)) {
                Ok(Some(LoopTurn::Gradient(_))) => return Ok("gradient"),
                Ok(Some(LoopTurn::Optimize(Mode::Apply))) => return Ok("apply"),
                Ok(Some(LoopTurn::Optimize(Mode::Displace))) => return Ok("displace"),
                Ok(Some(LoopTurn::Optimize(Mode::ApplyAndReport))) => {
                    return Ok("apply_and_report");
                }
                Ok(None) => py.check_signals()?,
                Err(RankEnded) => return Err(self.failure(py)),
            }
        }
    }

    /// No more gradients; waits until the run has ended for all ranks.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.checked(py, self.handle.finish())?;
        match self.end(py)? {
            Ok(()) => Ok(()),
            Err(reason) => Err(self.raised.take().unwrap_or_else(|| Error::new_err(reason))),
        }
    }

    /// Ends the run for all ranks with this reason, and waits a few seconds at most for them to
    /// receive it. False if the run had ended already.
    fn fail(&self, py: Python<'_>, reason: String) -> bool {
        self.handle.fail(reason.clone());
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return false };
        self.show_end(&Err(reason));
        let until = Instant::now() + SHUTDOWN_GRACE;
        py.detach(|| {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        true
    }
}

impl PyRun {
    /// Marks that the script is in a call that all ranks make together, or has returned from it.
    pub(crate) fn gather(&self, is_there: bool) {
        self.handle.gather(is_there);
    }

    /// Whether the run has ended.
    pub(crate) fn is_over(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Shows whoever looks how the run has ended.
    fn show_end(&self, ended: &Result<(), String>) {
        if let Some(log) = &self.shown {
            match ended {
                Ok(()) => log.close(),
                Err(reason) => log.fail(reason.clone()),
            }
        }
    }

    fn checked(&self, py: Python<'_>, accepted: Result<(), RankEnded>) -> PyResult<()> {
        accepted.map_err(|RankEnded| self.failure(py))
    }

    /// Why the run has ended.
    pub(crate) fn failure(&self, py: Python<'_>) -> PyErr {
        match self.end(py) {
            Ok(Ok(())) => Error::new_err("the run has ended"),
            Ok(Err(reason)) => self.raised.take().unwrap_or_else(|| Error::new_err(reason)),
            Err(interrupted) => interrupted,
        }
    }

    /// Waits for the end. The inner result is the run's.
    fn end(&self, py: Python<'_>) -> PyResult<Result<(), String>> {
        let taken = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = taken else {
            let earlier = || Err("the run has already ended".into());
            return Ok(self.outcome.get().cloned().unwrap_or_else(earlier));
        };
        py.detach(|| {
            let mut raised = None;
            while !thread.is_finished() {
                std::thread::sleep(Duration::from_millis(5));
                if !uninterrupted(&mut raised) {
                    return Err(raised.expect("set when it is interrupted"));
                }
            }
            let ended = thread.join();
            let ended = ended.unwrap_or_else(|_| {
                Err("internal error in quelea: the rank's thread panicked".into())
            });
            self.show_end(&ended);
            Ok(self.outcome.get_or_init(|| ended).clone())
        })
    }
}

/// What takes the records of the run at rank 0, for its page and its folder.
fn recorder(
    config: &Value,
    elements: usize,
    page: Option<&PyPage>,
    records: Option<PathBuf>,
) -> PyResult<ScriptRecorder> {
    let file = records.as_ref().map(|folder| {
        RecordFile::create(folder, config).map_err(|error| {
            Error::new_err(format!("cannot write records to {}: {error}", folder.display()))
        })
    });
    let name = records.as_deref().map(folder_name);
    let shown = ShownRun { config, elements, clock: LogClock::Real, name };
    let log = page.map(|page| page.show(shown)).transpose()?;
    Ok(ScriptRecorder { log, file: file.transpose()? })
}

/// Starts this process's part of the run on its own thread.
fn spawn(
    py: Python<'_>,
    group: &PyGroup,
    setup: RunSpec,
    script: ExternalLoop,
    mut recorder: ScriptRecorder,
) -> PyResult<JoinHandle<Result<(), String>>> {
    let (rank, address) = (group.launched().rank, group.assembly().address());
    // The scripts hold their models: nobody needs them reported.
    // What a script does between two steps, such as an evaluation, seems to be a part of its gradient.
    let options = NetOptions {
        connect_seconds: 60.0,
        report_models: false,
        compute_factor: f64::INFINITY,
        security: group.security(),
        ..NetOptions::default()
    };
    let coordinator = if rank == 0 { Some(bind(address, &options)?) } else { None };
    let port = coordinator.as_ref().map_or(0, |coordinator| coordinator.address().port());
    let answer = group.together(py, "wrap()", port.to_le_bytes().to_vec(), None, |mut all| {
        Ok(all.swap_remove(0))
    })?;
    let port = <[u8; 2]>::try_from(&answer[..]).map(u16::from_le_bytes);
    let port =
        port.map_err(|_| Error::new_err("rank 0 did not send the port of its coordinator"))?;
    let gradients = move || {
        let script = script.clone();
        Gradients::External(Box::new(move |_| script.clone()))
    };
    let run = move || match coordinator {
        Some(coordinator) => {
            let hosted = Hosted { workers: vec![0] };
            let ended = coordinator.run(Vec::new(), &setup, &gradients(), &hosted, &mut recorder);
            ended.map(|_| ()).map_err(|error| error.to_string())
        }
        None => {
            let place = std::net::SocketAddr::new(address, port).to_string();
            let mut build = |_: &[u8]| Ok((setup.clone(), gradients()));
            let ended = quelea_net::join(&place, Some(rank), &options, &mut build);
            ended.map_err(|error| error.to_string())
        }
    };
    let thread = std::thread::Builder::new().name("quelea".into()).spawn(run);
    thread.map_err(|error| Error::new_err(format!("cannot start a thread: {error}")))
}

fn bind(address: IpAddr, options: &NetOptions) -> PyResult<Coordinator> {
    Coordinator::bind(&std::net::SocketAddr::new(address, 0).to_string(), options.clone())
        .map_err(|error| Error::new_err(error.to_string()))
}
