// long: the methods of one class of the Python module
//! One rank of a run whose outer loop is the training script.

mod changes;
pub(crate) mod start;

use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};
use quelea_core::contract::Mode;
use quelea_core::optim::LearningRate;
use quelea_core::problems::{Computed, ModelSpec};
use quelea_core::properties::OptimizerSite;
use quelea_core::run_spec::RunSpec;
use quelea_net::LossPolicy;
use quelea_net::external_loop::{ExternalLoop, LoopHandle, LoopTurn, RankEnded};
use quelea_net::process_group::Participants;
use quelea_page::log::RunLog;
use quelea_run::prepared::run_spec;

use crate::algorithm::Outlet;
use crate::group::PyGroup;
use crate::model::{self, Raised};
use crate::optimizer_state::{StateLayout, StateVectors};
use crate::page::{PyPage, script_config};
use crate::properties::PyProperties;
use crate::settings::{config, value_error};
use crate::vectors::{RankVectors, VectorAt};
use crate::{Error, Left, POLL_INTERVAL, uninterrupted};
use changes::{MembershipChange, shown_change};
use start::{Membership, RankStart, check_restarts, recorder};

/// More steps than all ranks together will ever take: the script decides when it is done.
const STEPS: u64 = 1 << 60;
/// How long a script that has failed waits for the other ranks to receive the reason.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// Where a process is in its run.
struct Place {
    rank: u32,
    /// The run had begun before this process joined it.
    is_late: bool,
}

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
    membership: Membership,
    place: Place,
    /// Turns for a gradient that the script had.
    turns: AtomicU64,
}

#[pymethods]
impl PyRun {
    /// Starts the run with all ranks of `group`, or joins the one that is under way. `initial` are the flat
    /// parameters; `state_vectors` is how many vectors of the optimizer's state the algorithm needs, and
    /// `has_velocity` whether the first of them is the velocity of momentum. `described` are settings and
    /// model in lines, `restarts` how many lost processes the launcher would start again. At rank 0, `page`
    /// shows the run, and its records go to the folder `records`.
    #[new]
    #[pyo3(signature = (
        group, settings, tensors, initial, state_vectors, has_velocity, described, restarts=0, page=None,
        records=None
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
        described: Vec<String>,
        restarts: u32,
        page: Option<&PyPage>,
        records: Option<PathBuf>,
    ) -> PyResult<PyRun> {
        let config = config(settings)?;
        let resolved = config.resolved();
        let membership = Membership::of(&config);
        if initial.length == 0 {
            return Err(Error::new_err("all parameters of the model are empty: nothing to train"));
        }
        // SAFETY: the package passes the address of a tensor that it holds during the call.
        let start = unsafe { initial.as_mut_slice() };
        let (script, handle) = ExternalLoop::new();
        let tensors = model::tensors(tensors);
        let model = ModelSpec { tensors, initial: start.to_vec(), samples: Vec::new() };
        let spec = run_spec(config, model).map_err(value_error)?;
        check_restarts(restarts, membership.on_loss, &spec).map_err(Error::new_err)?;
        let rate = Arc::new(AtomicU32::new(0));
        let steps = STEPS / u64::from(group.launched().world);
        let mut setup =
            RunSpec { learning_rate: rate_in(Arc::clone(&rate)), clip: None, steps, ..spec };
        let state = StateVectors::default();
        if setup.properties().optimizer == OptimizerSite::Workers {
            let layout = StateLayout { vectors: state_vectors, has_velocity };
            setup.optimizer = state.maker(layout, initial.length);
        }
        let (handle, raised) = (Arc::new(handle), Raised::default());
        install_outlet(&handle, &raised);
        let recorder = recorder(group, &script_config(&resolved), initial.length, page, records)?;
        let (shown, joinable) = (recorder.log.clone(), group.take_joinable());
        let described = described.join("\n");
        let (run, members) = (setup.clone(), membership.clone());
        let begun =
            RankStart { setup: run, script, recorder, membership: members, described, joinable };
        let (thread, outcome) = (Mutex::new(Some(begun.spawn(py, group)?)), OnceLock::new());
        let place = Place { rank: group.launched().rank, is_late: joinable.is_some() };
        Ok(PyRun {
            handle,
            raised,
            thread,
            outcome,
            rate,
            setup,
            state,
            shown,
            membership,
            place,
            turns: AtomicU64::new(0),
        })
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

    /// The step of the first gradient: 0, or where the others were when this process joined.
    #[getter]
    fn start_step(&self) -> u64 {
        self.handle.entrance().step
    }

    /// What another rank's script has saved, where this process has joined a run; after the first turn.
    #[getter]
    fn joined_state<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyBytes>> {
        self.handle.entrance().state.map(|state| PyBytes::new(py, &state))
    }

    /// The ranks that take part, as far as this one knows.
    #[getter]
    fn workers(&self) -> Vec<u32> {
        self.handle.workers()
    }

    /// The changes of membership since the run began: who departed after how many steps, who joined, and from
    /// which step on it holds.
    #[getter]
    fn changes(&self) -> Vec<MembershipChange> {
        self.handle.changes().iter().map(shown_change).collect()
    }

    /// Whether the others continue when this process is lost or leaves.
    #[getter]
    fn can_leave(&self) -> bool {
        self.place.rank != 0 && self.membership.on_loss != LossPolicy::Stop
    }

    /// Whether the others continue when rank 0's process is lost.
    #[getter]
    fn survives(&self) -> bool {
        self.membership.survives(&self.setup)
    }

    /// Whether this process has left the run.
    #[getter]
    fn has_left(&self) -> bool {
        self.membership.leave.has_left()
    }

    /// Gives this process notice: it leaves the run as soon as the others can do without it.
    fn leave(&self) {
        self.membership.leave.give();
    }

    /// What the script needs besides the rank's vectors, as the turn "save" asked.
    fn saved(&self, py: Python<'_>, state: &Bound<'_, PyBytes>) -> PyResult<()> {
        self.checked(py, self.handle.saved(state.as_bytes().to_vec()))
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

    /// Waits for the script's turn, and returns its name: "gradient", "save", or the mode in which the
    /// optimizer is to run. The names are the values of Python's `Turn`.
    fn wait(&self, py: Python<'_>) -> PyResult<&'static str> {
        loop {
            match py.detach(|| self.handle.wait(POLL_INTERVAL)) {
                Ok(Some(LoopTurn::Gradient(_))) => {
                    self.turns.fetch_add(1, Ordering::Relaxed);
                    return Ok("gradient");
                }
                Ok(Some(LoopTurn::Save)) => return Ok("save"),
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

    /// No more gradients; waits until the run has ended for all ranks. `save` gives what the script needs
    /// besides the rank's vectors, for a process that joins meanwhile.
    fn finish(&self, py: Python<'_>, save: &Bound<'_, PyAny>) -> PyResult<()> {
        self.checked(py, self.handle.finish())?;
        loop {
            match py.detach(|| self.handle.wait(POLL_INTERVAL)) {
                Ok(Some(LoopTurn::Save)) => self.saved(py, save.call0()?.cast()?)?,
                Ok(_) => py.check_signals()?,
                Err(RankEnded) => break,
            }
        }
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

    /// Who makes a call that this script makes now.
    pub(crate) fn participants(&self) -> Participants {
        let turns = self.turns.load(Ordering::Relaxed);
        let step = self.start_step() + turns.saturating_sub(1);
        if self.membership.on_loss == LossPolicy::Stop {
            Participants::All
        } else {
            Participants::Living { step }
        }
    }

    /// Whether this process came late and has taken no step yet.
    pub(crate) fn has_just_joined(&self) -> bool {
        self.place.is_late && self.turns.load(Ordering::Relaxed) <= 1
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
            Ok(Ok(())) if self.membership.leave.has_left() => Left::new_err(()),
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

/// A learning rate that is read where the script has written it.
fn rate_in(rate: Arc<AtomicU32>) -> LearningRate {
    Arc::new(move |_| f32::from_bits(rate.load(Ordering::Relaxed)))
}

/// An event of an algorithm in Python that raises ends the run.
fn install_outlet(handle: &Arc<LoopHandle>, raised: &Raised) {
    let told = Arc::downgrade(handle);
    let end = move |reason| {
        if let Some(handle) = told.upgrade() {
            handle.fail(reason);
        }
    };
    Outlet { raised: raised.clone(), end: Some(Arc::new(end)) }.install();
}
