//! One rank of a run whose outer loop is the training script.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use quelea_core::contract::{Mode, OptimizerSite};
use quelea_core::layout::Tensor;
use quelea_core::node::RunSpec;
use quelea_core::problems::{Computed, Problem};
use quelea_net::external_loop::{ExternalLoop, LoopHandle, LoopTurn, RankEnded};
use quelea_net::{Coordinator, Hosted, NetOptions};
use quelea_record::Silent;
use quelea_run::config::Config;
use quelea_run::prepared::PreparedRun;

use crate::group::Group;
use crate::settings::{Script, table};
use crate::state::{Shape, Store};
use crate::{Error, POLL_INTERVAL, undisturbed};

/// More than all ranks together will ever take: the script knows when it is done.
const STEPS: u64 = 1 << 60;
/// How long a script that has failed waits until the others know.
const SHUTDOWN_GRACE: Duration = Duration::from_secs(5);

/// A rank of a run. Its methods are called in turn: see `quelea_net::external_loop`.
#[pyclass(frozen, module = "quelea._core")]
pub(crate) struct Run {
    handle: LoopHandle,
    /// Gives in the end what went wrong.
    thread: Mutex<Option<JoinHandle<Result<(), String>>>>,
    /// What that was.
    outcome: OnceLock<Result<(), String>>,
    rate: Arc<AtomicU32>,
    setup: RunSpec,
    store: Store,
}

/// Keeps the memory of a rank's vectors, for tensors that look at it.
#[pyclass(frozen, module = "quelea._core")]
pub(crate) struct Memory {
    _memory: quelea_net::external_loop::LoopMemory,
    _store: Store,
}

#[pymethods]
impl Run {
    /// Starts the run with all ranks of `group`. `initial` is where the flat parameters are;
    /// `state` is how many vectors the optimizer's state has, and whether the first is a velocity.
    #[new]
    fn new(
        py: Python<'_>,
        group: &Group,
        settings: &Bound<'_, PyDict>,
        tensors: Vec<(String, Vec<usize>)>,
        initial: (usize, usize),
        state: (usize, bool),
    ) -> PyResult<Run> {
        let wrong =
            |error: quelea_run::error::RequestError| PyValueError::new_err(error.to_string());
        let config = Config::read(table(settings)?, &[], None).map_err(wrong)?;
        let tensors = tensors.into_iter().map(|(name, shape)| Tensor { name, shape }).collect();
        let (address, len) = initial;
        if len == 0 {
            return Err(Error::new_err("all parameters of the model are empty: nothing to train"));
        }
        // SAFETY: the package gives the address of a tensor that it holds during the call.
        let initial = unsafe { std::slice::from_raw_parts(address as *const f32, len) };
        let (outer, handle) = ExternalLoop::new();
        let script = Script { tensors, initial: initial.into(), outer };
        let plan = PreparedRun::of_problem(config, Arc::new(script.clone())).map_err(wrong)?;
        let rate = Arc::new(AtomicU32::new(0));
        let read = Arc::clone(&rate);
        let learning_rate = Arc::new(move |_| f32::from_bits(read.load(Ordering::Relaxed)));
        let steps = STEPS / u64::from(group.launched().world);
        let mut setup = RunSpec { learning_rate, clip: None, steps, ..plan.setup.clone() };
        let store = Store::default();
        if setup.properties().optimizer == OptimizerSite::Workers {
            setup.optimizer = store.maker(Shape { vectors: state.0, velocity: state.1 }, len);
        }
        let thread = start(py, group, setup.clone(), script)?;
        let (thread, outcome) = (Mutex::new(Some(thread)), OnceLock::new());
        Ok(Run { handle, thread, outcome, rate, setup, store })
    }

    /// Where the buckets begin and end, in order.
    #[getter]
    fn buckets(&self) -> Vec<(usize, usize)> {
        let buckets = self.setup.layout.buckets.iter();
        buckets.map(|bucket| (bucket.range.start, bucket.range.end)).collect()
    }

    /// Whether the algorithm looks at the gradient before the optimizer does.
    #[getter]
    fn reads_gradient(&self) -> bool {
        self.setup.properties().reads_gradient
    }

    /// Whether the script's parameters are a copy that is made anew for every gradient.
    #[getter]
    fn lends_a_copy(&self) -> bool {
        self.setup.properties().snapshot
    }

    /// Addresses of parameters and gradient, and their length; at the turn for a gradient.
    fn vectors(&self) -> PyResult<(usize, usize, usize)> {
        let vectors = self.handle.vectors();
        let vectors = vectors.ok_or_else(|| Error::new_err("the vectors are not lent now"))?;
        Ok((vectors.params as usize, vectors.grad as usize, vectors.len))
    }

    /// Addresses of the vectors of the optimizer's state.
    fn state_vectors(&self) -> Vec<usize> {
        self.store.addresses()
    }

    /// Keeps the vectors' memory.
    fn memory(&self) -> Memory {
        Memory { _memory: self.handle.memory(), _store: self.store.clone() }
    }

    /// The learning rate of the step that begins.
    fn set_learning_rate(&self, rate: f32) {
        self.rate.store(rate.to_bits(), Ordering::Relaxed);
    }

    /// Bucket `b` of the gradient is final.
    fn bucket(&self, py: Python<'_>, b: usize) -> PyResult<()> {
        self.told(py, self.handle.bucket(b))
    }

    /// The gradient is complete.
    fn gradient(&self, py: Python<'_>, loss: f32) -> PyResult<()> {
        self.told(py, self.handle.gradient(Computed { loss, samples: 0 }))
    }

    /// The optimizer has run as was asked.
    fn optimized(&self, py: Python<'_>) -> PyResult<()> {
        self.told(py, self.handle.optimized())
    }

    /// Waits for the script's turn: "gradient", "apply", "displace" or "move".
    fn wait(&self, py: Python<'_>) -> PyResult<&'static str> {
        loop {
            match py.detach(|| self.handle.wait(POLL_INTERVAL)) {
                Ok(Some(LoopTurn::Gradient(_))) => return Ok("gradient"),
                Ok(Some(LoopTurn::Optimize(Mode::Apply))) => return Ok("apply"),
                Ok(Some(LoopTurn::Optimize(Mode::Displace))) => return Ok("displace"),
                Ok(Some(LoopTurn::Optimize(Mode::ApplyAndReport))) => return Ok("move"),
                Ok(None) => py.check_signals()?,
                Err(RankEnded) => return Err(self.why(py)),
            }
        }
    }

    /// No more gradients; waits until the run has ended for all ranks.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.told(py, self.handle.finish())?;
        match self.end(py)? {
            Ok(()) => Ok(()),
            Err(reason) => Err(Error::new_err(reason)),
        }
    }

    /// Ends the run for all ranks, and waits until they have heard why, for a few seconds at most.
    /// False: it had ended before.
    fn fail(&self, py: Python<'_>, reason: String) -> bool {
        self.handle.fail(reason);
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = thread else { return false };
        let until = Instant::now() + SHUTDOWN_GRACE;
        py.detach(|| {
            while !thread.is_finished() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        true
    }
}

impl Run {
    /// The script goes where all ranks come together outside the run, or comes back.
    pub(crate) fn gather(&self, is_there: bool) {
        self.handle.gather(is_there);
    }

    /// Whether the run has ended.
    pub(crate) fn is_over(&self) -> bool {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    fn told(&self, py: Python<'_>, told: Result<(), RankEnded>) -> PyResult<()> {
        told.map_err(|RankEnded| self.why(py))
    }

    /// Why the run has ended.
    pub(crate) fn why(&self, py: Python<'_>) -> PyErr {
        match self.end(py) {
            Ok(Ok(())) => Error::new_err("the run has ended"),
            Ok(Err(reason)) => Error::new_err(reason),
            Err(interrupted) => interrupted,
        }
    }

    /// Waits for the end. The inner result is the run's.
    fn end(&self, py: Python<'_>) -> PyResult<Result<(), String>> {
        let taken = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some(thread) = taken else {
            let before = || Err("the run has ended before".into());
            return Ok(self.outcome.get().cloned().unwrap_or_else(before));
        };
        py.detach(|| {
            let mut raised = None;
            while !thread.is_finished() {
                std::thread::sleep(Duration::from_millis(5));
                if !undisturbed(&mut raised) {
                    return Err(raised.expect("that is why it is disturbed"));
                }
            }
            let ended = thread.join();
            let ended = ended.unwrap_or_else(|_| Err("quelea has a defect: it panicked".into()));
            Ok(self.outcome.get_or_init(|| ended).clone())
        })
    }
}

/// Starts this process's part of the run on a thread of its own.
fn start(
    py: Python<'_>,
    group: &Group,
    setup: RunSpec,
    script: Script,
) -> PyResult<JoinHandle<Result<(), String>>> {
    let (rank, address) = (group.launched().rank, group.assembly().address());
    // The scripts have their models.
    let options =
        NetOptions { connect_seconds: 60.0, report_models: false, ..NetOptions::default() };
    let coordinator = match rank {
        0 => Some(bind(address, &options)?),
        _ => None,
    };
    let port = coordinator.as_ref().map_or(0, |coordinator| coordinator.address().port());
    let told = group.together(py, "wrap()", port.to_le_bytes().to_vec(), None, |mut all| {
        Ok(all.swap_remove(0))
    })?;
    let port = <[u8; 2]>::try_from(&told[..]).map(u16::from_le_bytes);
    let port = port.map_err(|_| Error::new_err("rank 0 did not say where it listens"))?;
    let run = move || match coordinator {
        Some(coordinator) => {
            let hosted = Hosted { workers: vec![0] };
            let ended = coordinator.run(Vec::new(), &setup, &script, &hosted, &mut Silent);
            ended.map(|_| ()).map_err(|error| error.to_string())
        }
        None => {
            let place = std::net::SocketAddr::new(address, port).to_string();
            let mut build = |_: &[u8]| {
                let problem: Box<dyn Problem> = Box::new(script.clone());
                Ok((setup.clone(), problem))
            };
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
