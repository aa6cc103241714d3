//! The building blocks of `quelea_core::kit` for algorithms in Python: vectors stay in Rust.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use quelea_core::collectives::average::{Average, COLLECTIVE};
use quelea_core::contract::Awaited;
use quelea_core::kit::exchange::{Exchange, Gathered, KIND};
use quelea_core::message::Rank;
use quelea_core::options::Options;

use super::context::{PyContext, check_topology};
use super::memory::Place;
use super::message::PyMessage;
use crate::Error;

/// Synchronous gossip: post to the neighbours, gather theirs of the same step, mix.
#[pyclass(frozen, name = "Exchange", module = "quelea._core")]
pub(crate) struct PyExchange(Mutex<Exchange>);

#[pymethods]
impl PyExchange {
    /// `gathers` is "means", where the weighted mean of the neighbours suffices, so that groups of the
    /// topology may run an all-reduce instead, or "vectors".
    #[new]
    #[pyo3(signature = (gathers="means"))]
    fn new(gathers: &str) -> PyResult<PyExchange> {
        match gathers {
            "means" => Ok(PyExchange(Mutex::new(Exchange::of_means(KIND)))),
            "vectors" => Ok(PyExchange(Mutex::default())),
            _ => Err(PyValueError::new_err(format!(
                "Exchange({gathers:?}): must be \"means\" or \"vectors\""
            ))),
        }
    }

    /// The exchange of `step`, by default the current one, is the next; what came for earlier ones is
    /// forgotten. Returns itself.
    #[pyo3(signature = (cx, step=None))]
    fn enter<'py>(
        own: &Bound<'py, Self>,
        cx: &PyContext,
        step: Option<u64>,
    ) -> PyResult<Bound<'py, Self>> {
        cx.with(|cx| {
            check_topology(cx)?;
            own.get().exchange().enter(cx, step.unwrap_or(cx.step));
            PyResult::Ok(())
        })??;
        Ok(own.clone())
    }

    /// Gives the vectors of `message` to those who mix them at its step.
    fn post(&self, cx: &PyContext, message: &PyMessage) -> PyResult<()> {
        cx.with(|cx| {
            check_topology(cx)?;
            let mut message = message.message();
            message.kind = KIND;
            self.exchange().post(&mut cx.outbox, message);
            Ok(())
        })?
    }

    /// Bucket `b` lacks nothing but the neighbours' vectors. With the first bucket of a step, its exchange
    /// begins.
    fn wait(&self, cx: &PyContext, b: usize) -> PyResult<()> {
        cx.with(|cx| {
            let count = cx.layout.buckets.len();
            if b >= count {
                return Err(PyValueError::new_err(format!("bucket {b}: there are {count}")));
            }
            check_topology(cx)?;
            let mut exchange = self.exchange();
            if exchange.is_over() {
                exchange.begin(cx, cx.step);
            }
            exchange.wait(b);
            Ok(())
        })?
    }

    /// Keeps what came; the bucket that may now be complete, or None.
    fn on_message(
        &self,
        cx: &PyContext,
        sender: u32,
        message: &PyMessage,
    ) -> PyResult<Option<usize>> {
        cx.with(|cx| {
            let message = message.message();
            self.exchange().on_message(cx, Rank(sender), message)
        })
    }

    /// Membership has changed: the lost are not waited for.
    fn on_view(&self, cx: &PyContext) -> PyResult<()> {
        cx.with(|cx| self.exchange().on_view(cx))
    }

    /// What the neighbours sent for bucket `b`, once all is here and nothing else is missing; None for None.
    #[pyo3(signature = (cx, b))]
    fn gather(&self, cx: &PyContext, b: Option<usize>) -> PyResult<Option<PyGathered>> {
        let Some(b) = b else { return Ok(None) };
        cx.with(|cx| self.exchange().gather(&cx.outbox, b).map(PyGathered))
    }

    /// One bucket more is done with this step.
    fn finish(&self) -> PyResult<()> {
        let mut exchange = self.exchange();
        if exchange.is_over() {
            return Err(Error::new_err(
                "Exchange.finish() was called more often than there are buckets in a step",
            ));
        }
        exchange.finish();
        Ok(())
    }

    /// Whether all buckets are done.
    fn is_over(&self) -> bool {
        self.exchange().is_over()
    }

    /// Whom the waiting buckets lack, for `awaiting`.
    fn awaiting(&self) -> Vec<(u32, &'static str)> {
        let mut out = Vec::new();
        self.exchange().awaiting("its vectors", &mut out);
        listed(out)
    }
}

impl PyExchange {
    fn exchange(&self) -> MutexGuard<'_, Exchange> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Everything that came in for one bucket of one step.
#[pyclass(frozen, name = "Gathered", module = "quelea._core")]
pub(crate) struct PyGathered(Gathered);

#[pymethods]
impl PyGathered {
    /// `own ← Σ_j W_ij v_j`, in the order of ranks, where v is vector number `part`.
    #[pyo3(signature = (cx, own, part=0))]
    fn mix(&self, cx: &PyContext, own: &Bound<'_, PyAny>, part: usize) -> PyResult<()> {
        let own = Place::of_tensor(own)?;
        checked_part(part)?;
        // SAFETY: a tensor that the caller holds, and Python's lock is held.
        cx.with(|cx| self.0.mix(&mut cx.outbox, part, unsafe { own.as_mut_slice() }))
    }

    /// `out ← scale·Σ_j W_ij (v_j − own)`: how far mixing would move `own`.
    #[pyo3(signature = (cx, own, out, scale=1.0, part=0))]
    fn pull(
        &self,
        cx: &PyContext,
        own: &Bound<'_, PyAny>,
        out: &Bound<'_, PyAny>,
        scale: f32,
        part: usize,
    ) -> PyResult<()> {
        let (own, out) = (Place::of_tensor(own)?, Place::of_tensor(out)?);
        checked_part(part)?;
        if own.length != out.length || own.address == out.address {
            return Err(PyValueError::new_err("own and out must be two vectors of one length"));
        }
        cx.with(|cx| {
            // SAFETY: as in `mix`; they are not the same.
            let (own, out) = unsafe { (own.as_mut_slice(), out.as_mut_slice()) };
            self.0.pull(&mut cx.outbox, part, own, scale, out);
        })
    }
}

fn checked_part(part: usize) -> PyResult<()> {
    if part < 2 {
        return Ok(());
    }
    Err(PyValueError::new_err(format!("part = {part}: a message has the vectors 0 and 1")))
}

/// The exact mean of the model's buckets over all workers, by a collective.
#[pyclass(frozen, name = "Average", module = "quelea._core")]
pub(crate) struct PyAverage {
    average: Mutex<Average>,
    /// Buckets of an average that is over, whose means are not written yet.
    unwritten: AtomicUsize,
}

#[pymethods]
impl PyAverage {
    /// By this collective: "ring", "halving-doubling", "hierarchical" or "auto".
    #[new]
    #[pyo3(signature = (collective="ring"))]
    fn new(collective: &str) -> PyResult<PyAverage> {
        let given = [("collective".to_string(), collective.into())];
        let options = Options::check(&[COLLECTIVE], given);
        let options = options.map_err(|error| PyValueError::new_err(error.to_string()))?;
        let average = Mutex::new(Average::new(&options));
        Ok(PyAverage { average, unwritten: AtomicUsize::new(0) })
    }

    /// From now on among the living workers; what was under way is forgotten. Returns itself.
    fn enter<'py>(own: &Bound<'py, Self>, cx: &PyContext) -> PyResult<Bound<'py, Self>> {
        cx.with(|cx| own.get().average().enter(cx, &[]))?;
        Ok(own.clone())
    }

    /// My vector of bucket `b` is ready. It must stay as it is until `finish`.
    fn start(&self, cx: &PyContext, b: usize, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let values = Place::of_tensor(values)?;
        cx.with(|cx| {
            check_length(cx, b, values)?;
            // SAFETY: a tensor that the caller holds, and Python's lock is held.
            let values = unsafe { values.as_mut_slice() };
            self.average().start(&mut cx.outbox, cx.step, b, values);
            Ok(())
        })?
    }

    /// A message has arrived; `vectors[b]` are those that were started.
    fn on_message(
        &self,
        cx: &PyContext,
        sender: u32,
        message: &PyMessage,
        vectors: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let message = message.message();
        let b = message.bucket as usize;
        let count = cx.with(|cx| cx.layout.buckets.len())?;
        if b >= count {
            return Err(Error::new_err(format!("a message of bucket {b}: there are {count}")));
        }
        let started = self.average().has_started(message.step, b);
        let vector = if started { Some(vectors.get_item(b)?) } else { None };
        let place = vector.as_ref().map(Place::of_tensor).transpose()?;
        let place = place.unwrap_or(Place { address: 0, length: 0 });
        cx.with(|cx| {
            // SAFETY: as above; `vector` holds the tensor.
            let values = unsafe { place.as_mut_slice() };
            self.average().on_message(&mut cx.outbox, values, Rank(sender), message);
        })
    }

    /// Whether all buckets are started and summed.
    fn is_done(&self) -> bool {
        self.average().is_done()
    }

    /// The average is over: writes the mean over the vector of bucket `b`.
    fn finish(&self, cx: &PyContext, b: usize, values: &Bound<'_, PyAny>) -> PyResult<()> {
        let values = Place::of_tensor(values)?;
        cx.with(|cx| {
            check_length(cx, b, values)?;
            let mut average = self.average();
            if average.is_done() {
                self.unwritten.store(cx.layout.buckets.len(), Ordering::Relaxed);
            }
            let unwritten = self.unwritten.load(Ordering::Relaxed);
            if unwritten == 0 || !average.has_started(cx.step, b) {
                return Err(Error::new_err(format!(
                    "Average.finish() of bucket {b} before is_done(), or a second time: call it once for \
                     each bucket when is_done() has returned True"
                )));
            }
            // SAFETY: as above.
            let values = unsafe { values.as_mut_slice() };
            average.finish(&mut cx.outbox, b, values);
            self.unwritten.store(unwritten - 1, Ordering::Relaxed);
            Ok(())
        })?
    }

    /// Whom it is waiting for, for `awaiting`.
    fn awaiting(&self) -> Vec<(u32, &'static str)> {
        let mut out = Vec::new();
        self.average().awaiting(&mut out);
        listed(out)
    }
}

impl PyAverage {
    fn average(&self) -> MutexGuard<'_, Average> {
        self.average.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn check_length(cx: &quelea_core::contract::Context<'_>, b: usize, values: Place) -> PyResult<()> {
    let count = cx.layout.buckets.len();
    let length = if b < count { cx.layout.range(b).len() } else { 0 };
    if b < count && length == values.length {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "a vector of {} elements for bucket {b}: there are {count} buckets, and this one has {length}",
        values.length
    )))
}

fn listed(awaited: Vec<Awaited>) -> Vec<(u32, &'static str)> {
    awaited.into_iter().map(|Awaited { from, what }| (from.0, what)).collect()
}
