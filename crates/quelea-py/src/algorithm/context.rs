//! What an event of an algorithm in Python may see and do.
//!
//! One object per rank lasts for the whole run. It leads to the [`Context`] of the event that is being
//! handled, and to nothing between events: whoever has kept it gets an exception.

use std::collections::BTreeMap;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use quelea_core::contract::{Context, Effect, Fact, Mode};
use quelea_core::message::{Message, MessageFields, Part, Rank};

use super::memory::{LentVector, Place, helper, tensor_of};
use super::message::PyMessage;
use super::mixing::Mixture;
use crate::Error;

/// The `cx` of an event.
#[pyclass(frozen, name = "Context", module = "quelea._core")]
pub(crate) struct PyContext {
    /// The context of the event that is being handled; null between events.
    at: AtomicPtr<Context<'static>>,
    /// Buffers that views of this event were made of.
    lent: Mutex<Vec<LentBuffer>>,
    tensors: &'static str,
}

/// A buffer over a part of a rank's vector.
struct LentBuffer {
    buffer: Py<PyAny>,
    which: &'static str,
}

impl PyContext {
    /// For an algorithm that uses this kind of tensors.
    pub(crate) fn new(tensors: &'static str) -> PyContext {
        let at = AtomicPtr::new(ptr::null_mut());
        PyContext { at, lent: Mutex::default(), tensors }
    }

    /// An event begins: from now on this object leads to `cx`, until [`close`](PyContext::close).
    pub(crate) fn open(&self, cx: &mut Context<'_>) {
        self.at.store(ptr::from_mut(cx).cast(), Ordering::Relaxed);
    }

    /// The event is over. Which vector Python code has kept a view of, if it has: its memory stays, but
    /// who computes on it does not know of the view.
    pub(crate) fn close(&self, py: Python<'_>) -> Option<&'static str> {
        self.at.store(ptr::null_mut(), Ordering::Relaxed);
        let lent = std::mem::take(&mut *self.lent());
        // SAFETY: an object that is held here, and Python's lock is held.
        let is_kept =
            |lent: &&LentBuffer| unsafe { pyo3::ffi::Py_REFCNT(lent.buffer.as_ptr()) } > 1;
        lent.iter().find(is_kept)?;
        // A cycle of objects that nobody can reach may hold it.
        let _ = py.import("gc").and_then(|gc| gc.call_method0("collect"));
        lent.iter().find(is_kept).map(|lent| lent.which)
    }

    fn lent(&self) -> MutexGuard<'_, Vec<LentBuffer>> {
        self.lent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `use_it` with the context of the event. It must not call Python code.
    pub(crate) fn with<T>(&self, use_it: impl FnOnce(&mut Context<'_>) -> T) -> PyResult<T> {
        let at = self.at.load(Ordering::Relaxed);
        if at.is_null() {
            return Err(Error::new_err(
                "cx is used after its event has returned: use the cx that each event is called with",
            ));
        }
        // SAFETY: set for the time of an event, whose thread is in Python code and does not use it
        // meanwhile; Python's lock lets one thread at a time come here, and `use_it` keeps the lock.
        Ok(use_it(unsafe { &mut *at }))
    }

    fn lend(&self, py: Python<'_>, which: Which, b: Option<usize>) -> PyResult<Py<PyAny>> {
        let (place, memory) = self.with(|cx| {
            let (values, memory) = match which {
                Which::Params => (&mut *cx.params, cx.memory.params),
                Which::Grad => (&mut *cx.grad, cx.memory.grad),
            };
            let range = match b {
                None => 0..values.len(),
                Some(b) if b < cx.layout.buckets.len() => cx.layout.range(b),
                Some(b) => return Err(no_bucket(b, cx.layout.buckets.len())),
            };
            let here = values.get_mut(range);
            let here = here.ok_or_else(|| not_here(which.name(), b.unwrap_or_default()))?;
            Ok((Place::of(here), memory.clone()))
        })??;
        let owner = Py::new(py, LentVector(memory))?.into_any();
        let buffer = place.buffer(py, owner)?;
        let tensor = tensor_of(self.tensors, &buffer)?;
        self.lent().push(LentBuffer { buffer: buffer.unbind(), which: which.name() });
        Ok(tensor.unbind())
    }
}

/// One of a rank's vectors.
#[derive(Clone, Copy)]
enum Which {
    Params,
    Grad,
}

impl Which {
    fn name(self) -> &'static str {
        match self {
            Which::Params => "params",
            Which::Grad => "grad",
        }
    }
}

fn no_bucket(b: usize, count: usize) -> PyErr {
    PyIndexError::new_err(format!("bucket {b}: there are {count}, from 0 to {}", count - 1))
}

fn not_here(which: &str, b: usize) -> PyErr {
    Error::new_err(format!(
        "cx.{which}[{b}] is not the algorithm's now: a gradient is being computed. It is from \
         on_bucket(cx, {b}) until is_ready() returns True; keep what arrives meanwhile, or declare \
         snapshot = True to always have the parameters"
    ))
}

#[pymethods]
impl PyContext {
    /// The parameters: bucket `b` is `cx.params[b]`.
    #[getter]
    fn params<'py>(slf: &Bound<'py, PyContext>) -> PyResult<Bound<'py, PyAny>> {
        helper(slf.py(), "BucketVectors")?.call1((slf, "params"))
    }

    /// The gradient: bucket `b` is `cx.grad[b]`.
    #[getter]
    fn grad<'py>(slf: &Bound<'py, PyContext>) -> PyResult<Bound<'py, PyAny>> {
        helper(slf.py(), "BucketVectors")?.call1((slf, "grad"))
    }

    /// A view of bucket `b` of a vector, or of all that is here.
    fn _bucket(&self, py: Python<'_>, which: &str, b: Option<usize>) -> PyResult<Py<PyAny>> {
        self.lend(py, if which == "params" { Which::Params } else { Which::Grad }, b)
    }

    /// How many buckets the model has.
    #[getter]
    fn buckets(&self) -> PyResult<usize> {
        self.with(|cx| cx.layout.buckets.len())
    }

    /// The number of this worker.
    #[getter]
    fn rank(&self) -> PyResult<u32> {
        self.with(|cx| cx.outbox.rank.0)
    }

    /// Steps that this worker has completed.
    #[getter]
    fn step(&self) -> PyResult<u64> {
        self.with(|cx| cx.step)
    }

    /// How many steps the run has; where a script decides, more than it will take.
    #[getter]
    fn steps(&self) -> PyResult<u64> {
        self.with(|cx| cx.steps)
    }

    /// Whether there will be no step after this one.
    #[getter]
    fn is_last_step(&self) -> PyResult<bool> {
        self.with(|cx| cx.is_last_step())
    }

    /// Whether a gradient is not complete yet.
    #[getter]
    fn computing(&self) -> PyResult<bool> {
        self.with(|cx| cx.computing)
    }

    /// The loss that came with the last gradient.
    #[getter]
    fn loss(&self) -> PyResult<f32> {
        self.with(|cx| cx.loss)
    }

    /// How many samples the last gradient was averaged over.
    #[getter]
    fn samples(&self) -> PyResult<u32> {
        self.with(|cx| cx.samples)
    }

    /// In `on_view`: what a gradient that was handed over before is to be multiplied by.
    #[getter]
    fn reweigh(&self) -> PyResult<f32> {
        self.with(|cx| cx.reweigh)
    }

    /// The learning rate of this step.
    #[getter]
    fn learning_rate(&self) -> PyResult<f32> {
        self.with(|cx| cx.learning_rate)
    }

    /// The global norm to clip to, for algorithms that declare `clips_itself`.
    #[getter]
    fn clip(&self) -> PyResult<Option<f32>> {
        self.with(|cx| cx.clip)
    }

    /// The time of the event, in seconds since the start of the run.
    #[getter]
    fn now(&self) -> PyResult<f64> {
        self.with(|cx| cx.outbox.now.0 as f64 / 1e9)
    }

    /// Living workers, by rank.
    #[getter]
    fn workers(&self) -> PyResult<Vec<u32>> {
        self.with(|cx| cx.outbox.view.workers.iter().map(|rank| rank.0).collect())
    }

    /// Counts changes of membership.
    #[getter]
    fn view(&self) -> PyResult<u32> {
        self.with(|cx| cx.outbox.view.number)
    }

    /// Who mixes with this worker at a step, as `(rank, weight)`, itself included.
    #[pyo3(signature = (step=None))]
    fn incoming(&self, step: Option<u64>) -> PyResult<Vec<(u32, f32)>> {
        self.row(step, |row| row.incoming.iter().map(|(rank, weight)| (rank.0, *weight)).collect())
    }

    /// Who mixes this worker's vectors at a step.
    #[pyo3(signature = (step=None))]
    fn outgoing(&self, step: Option<u64>) -> PyResult<Vec<u32>> {
        self.row(step, |row| row.outgoing.iter().map(|rank| rank.0).collect())
    }

    /// A message with copies of these vectors, for `send`.
    #[pyo3(signature = (values=None, second=None, kind=1, step=None, bucket=0, stage=0, seq=0, count=0, scalar=0.0))]
    #[allow(clippy::too_many_arguments, reason = "a call of Python")]
    fn message(
        &self,
        values: Option<&Bound<'_, PyAny>>,
        second: Option<&Bound<'_, PyAny>>,
        kind: u8,
        step: Option<u64>,
        bucket: u32,
        stage: u32,
        seq: u64,
        count: u32,
        scalar: f64,
    ) -> PyResult<PyMessage> {
        let places = [values, second].map(|given| given.map(Place::of_tensor).transpose());
        let [values, second] = places;
        let places = [values?, second?];
        self.with(|cx| {
            // SAFETY: tensors that the caller holds, and Python's lock is held.
            let copied = |place: Place| cx.outbox.pool.copy(unsafe { place.as_mut_slice() });
            let parts =
                places.map(|place| place.map_or(Part::Empty, |at| Part::Values(copied(at))));
            let step = step.unwrap_or(cx.step);
            let fields = MessageFields {
                kind,
                step,
                bucket,
                stage,
                seq,
                count,
                scalar,
                parts,
                ..MessageFields::default()
            };
            PyMessage::new(Message::from(fields), self.tensors, cx.outbox.pool)
        })
    }

    /// Sends a message to a rank.
    fn send(&self, to: u32, message: &PyMessage) -> PyResult<()> {
        self.with(|cx| {
            let to = Rank(to);
            if to == cx.outbox.rank || !cx.outbox.view.is_alive(to) {
                let living: Vec<u32> = cx.outbox.view.workers.iter().map(|rank| rank.0).collect();
                return Err(Error::new_err(format!(
                    "cx.send({}, …) at rank {}: must be another rank that is alive, of {living:?}",
                    to.0, cx.outbox.rank.0
                )));
            }
            let message = message.message();
            cx.outbox.send(to, message);
            Ok(())
        })?
    }

    /// `own ← Σ weights[j]·vectors[j]` in one pass and in the order of ranks, where `own` is this worker's
    /// vector. `vectors` has a tensor or a message of every other rank with a weight.
    fn mix(
        &self,
        own: &Bound<'_, PyAny>,
        weights: BTreeMap<u32, f64>,
        vectors: BTreeMap<u32, Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let me = self.rank()?;
        let (place, mixture) = (Place::of_tensor(own)?, Mixture::new(me, &weights, &vectors)?);
        self.with(|cx| mixture.write(cx, place))?
    }

    /// Asks for the optimizer on bucket `b`: `on_optimized(cx, b)` follows. With the mode "apply" the
    /// parameters take the step; with "displace" the gradient is replaced by the displacement and the
    /// parameters stay; with "apply_and_report" both happen.
    #[pyo3(signature = (b, mode="apply"))]
    fn optimize(&self, b: usize, mode: &str) -> PyResult<()> {
        let mode = match mode {
            "apply" => Mode::Apply,
            "displace" => Mode::Displace,
            "apply_and_report" => Mode::ApplyAndReport,
            _ => {
                return Err(Error::new_err(format!(
                    "cx.optimize({b}, {mode:?}): the mode is \"apply\", \"displace\" or \
                     \"apply_and_report\""
                )));
            }
        };
        self.with(|cx| {
            let count = cx.layout.buckets.len();
            if b >= count {
                return Err(no_bucket(b, count));
            }
            if cx.layout.range(b).end > cx.grad.len() {
                return Err(not_here("grad", b));
            }
            cx.optimize(b, mode);
            Ok(())
        })?
    }

    /// A random number from 0 to 1, of this rank's own stream.
    fn random(&self) -> PyResult<f64> {
        self.with(|cx| cx.outbox.rng.uniform())
    }

    /// A random whole number below `bound`.
    fn random_below(&self, bound: u64) -> PyResult<u64> {
        if bound == 0 {
            return Err(Error::new_err("cx.random_below(0): must be at least 1"));
        }
        self.with(|cx| cx.outbox.rng.below(bound))
    }

    /// Reports arithmetic over so many bytes, which the virtual cluster charges.
    fn work(&self, bytes: usize) -> PyResult<()> {
        self.with(|cx| cx.outbox.work(bytes))
    }

    /// Reports how many updates the model had seen since the base of the gradient applied now.
    fn staleness(&self, updates: u64) -> PyResult<()> {
        self.with(|cx| cx.outbox.measure(Fact::Staleness(updates)))
    }

    /// This worker continues at another step: it has taken over a peer's state.
    fn jump_to_step(&self, step: u64) -> PyResult<()> {
        self.with(|cx| cx.outbox.out.push(Effect::JumpToStep(step)))
    }
}

impl PyContext {
    fn row<T>(
        &self,
        step: Option<u64>,
        read: impl FnOnce(&quelea_core::view::MixingRow) -> T,
    ) -> PyResult<T> {
        self.with(|cx| {
            check_topology(cx)?;
            Ok(read(&cx.outbox.view.row(step.unwrap_or(cx.step), cx.outbox.rank)))
        })?
    }
}

/// Raises if the run has no topology.
pub(super) fn check_topology(cx: &Context<'_>) -> PyResult<()> {
    match cx.outbox.view.topology(0) {
        Some(_) => Ok(()),
        None => Err(Error::new_err(
            "the run has no topology: declare topology = \"mixing\" in the class of the algorithm",
        )),
    }
}
