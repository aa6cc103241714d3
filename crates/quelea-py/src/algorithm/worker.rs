//! A worker whose events Python code handles.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use pyo3::IntoPyObjectExt;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use quelea_core::contract::{Algorithm, Awaited, Context, JoinRule};
use quelea_core::message::{Message, Rank};
use quelea_core::options::Options;
use quelea_core::payload::Payload;
use quelea_core::state::Visitor;
use quelea_core::view::View;

use super::context::PyContext;
use super::memory::{OwnedVector, Place, tensor_of};
use super::message::PyMessage;
use super::outlet::Outlet;
use super::{PyClass, visit};
use crate::Error;

/// One worker.
pub(super) struct PyWorker {
    class: Arc<PyClass>,
    /// The object of Python; none if it could not be made.
    object: Option<Py<PyAny>>,
    context: Option<Py<PyContext>>,
    /// What `is_ready` and `is_drained` returned after the last event: state changes in events only.
    ready: bool,
    drained: bool,
    /// An event has raised: the run ends, and nothing more is asked of the object.
    failed: AtomicBool,
    outlet: Option<Outlet>,
}

impl PyWorker {
    /// A worker of this class with these options.
    pub(super) fn new(class: Arc<PyClass>, options: &Options) -> PyWorker {
        let outlet = Outlet::current();
        let failed = AtomicBool::new(false);
        let mut worker = PyWorker {
            class,
            object: None,
            context: None,
            ready: false,
            drained: true,
            failed,
            outlet,
        };
        let made = Python::attach(|py| {
            let object = worker.class.instance(py, options)?;
            let context = Py::new(py, PyContext::new(worker.class.declared.tensors))?;
            Ok((object, context))
        });
        match made {
            Ok((object, context)) => {
                (worker.object, worker.context) = (Some(object), Some(context));
            }
            Err(error) => worker.fail("__init__", error),
        }
        worker
    }

    /// Handles an event: calls the method with `cx` and what `arguments` adds.
    fn event<A>(&mut self, method: &'static str, cx: &mut Context<'_>, arguments: A)
    where
        A: for<'py> FnOnce(Python<'py>) -> PyResult<Vec<Bound<'py, PyAny>>>,
    {
        let (Some(object), Some(context), false) =
            (&self.object, &self.context, self.failed.load(Ordering::Relaxed))
        else {
            return;
        };
        let declared = &self.class.declared;
        // State changes in events only, so that without one nothing is to be asked.
        if !declared.defines(method) && method != "on_start" {
            return;
        }
        let handled = Python::attach(|py| {
            let (object, context) = (object.bind(py), context.bind(py));
            if declared.defines(method) {
                let mut all = vec![context.clone().into_any()];
                all.extend(arguments(py)?);
                let all = PyTuple::new(py, all)?;
                context.get().open(cx);
                let called = object.call_method1(method, all);
                let kept = context.get().close(py);
                called?;
                if let Some(which) = kept {
                    return Err(kept_view(which));
                }
            }
            let ready = object.call_method0(pyo3::intern!(py, "is_ready"))?.is_truthy()?;
            let drained = if declared.defines("is_drained") {
                object.call_method0("is_drained")?.is_truthy()?
            } else {
                true
            };
            Ok((ready, drained))
        });
        match handled {
            Ok((ready, drained)) => (self.ready, self.drained) = (ready, drained),
            Err(error) => self.fail(method, error),
        }
    }

    /// Calls a method that is no event and sees no context.
    fn ask<T>(
        &self,
        method: &str,
        call: impl for<'py> FnOnce(&Bound<'py, PyAny>) -> PyResult<T>,
    ) -> Option<T> {
        let object = self.object.as_ref().filter(|_| !self.failed.load(Ordering::Relaxed))?;
        let answer = Python::attach(|py| call(object.bind(py)));
        answer.map_err(|error| self.fail(method, error)).ok()
    }

    /// The method has raised: tells whoever runs this worker.
    fn fail(&self, method: &str, error: PyErr) {
        self.failed.store(true, Ordering::Relaxed);
        let class = &self.class.declared.class_name;
        let reason = Python::attach(|py| {
            let kind =
                error.get_type(py).name().map_or_else(|_| "?".into(), |name| name.to_string());
            let value = error.value(py);
            // Python 3.10 has no notes; the traceback names the method there too.
            let _ = value.call_method1("add_note", (format!("raised in {class}.{method}"),));
            format!("{class}.{method} raised {kind}: {value}")
        });
        match &self.outlet {
            Some(outlet) => outlet.fail(error, reason),
            None => {
                Python::attach(|py| error.print(py));
                panic!("{reason}");
            }
        }
    }
}

fn kept_view(which: &str) -> PyErr {
    Error::new_err(format!(
        "a tensor that is a view of cx.{which} was kept after the event: the memory is computed on \
         between events; keep cx.{which}[b].clone() (NumPy: .copy()), or message.values, which is the \
         message's own"
    ))
}

impl Algorithm for PyWorker {
    fn on_start(&mut self, cx: &mut Context<'_>) {
        self.event("on_start", cx, |_| Ok(Vec::new()));
    }

    fn on_bucket(&mut self, cx: &mut Context<'_>, b: usize) {
        self.event("on_bucket", cx, |py| Ok(vec![b.into_bound_py_any(py)?]));
    }

    fn on_gradient(&mut self, cx: &mut Context<'_>) {
        self.event("on_gradient", cx, |_| Ok(Vec::new()));
    }

    fn on_optimized(&mut self, cx: &mut Context<'_>, b: usize) {
        self.event("on_optimized", cx, |py| Ok(vec![b.into_bound_py_any(py)?]));
    }

    fn on_message(&mut self, cx: &mut Context<'_>, from: Rank, message: Message) {
        let message = PyMessage::new(message, self.class.declared.tensors, cx.outbox.pool);
        self.event("on_message", cx, |py| {
            let message = Py::new(py, message)?.into_bound(py).into_any();
            Ok(vec![from.0.into_bound_py_any(py)?, message])
        });
    }

    fn on_view(&mut self, cx: &mut Context<'_>, old: &View) {
        let before: Vec<u32> = old.workers.iter().map(|rank| rank.0).collect();
        self.event("on_view", cx, |py| Ok(vec![before.into_bound_py_any(py)?]));
    }

    fn on_drain(&mut self, cx: &mut Context<'_>) {
        self.event("on_drain", cx, |_| Ok(Vec::new()));
    }

    fn on_leave(&mut self, cx: &mut Context<'_>) {
        self.event("on_leave", cx, |_| Ok(Vec::new()));
    }

    fn is_ready(&self) -> bool {
        self.ready && !self.failed.load(Ordering::Relaxed)
    }

    fn is_drained(&self) -> bool {
        self.drained
    }

    fn awaiting(&self, out: &mut Vec<Awaited>) {
        if !self.class.declared.defines("awaiting") {
            return;
        }
        let awaited = self.ask("awaiting", |object| {
            object.call_method0("awaiting")?.extract::<Vec<(u32, String)>>()
        });
        for (from, what) in awaited.unwrap_or_default() {
            out.push(Awaited { from: Rank(from), what: interned(&what) });
        }
    }

    fn model(&self, params: &[f32], out: &mut [f32]) {
        out.copy_from_slice(params);
        if !self.class.declared.defines("model") {
            return;
        }
        let tensors = self.class.declared.tensors;
        self.ask("model", |object| {
            let py = object.py();
            let own = Py::new(py, OwnedVector::new(Payload::from(params.to_vec())))?;
            let buffer = own.get().place().buffer(py, own.into_any())?;
            let made = object.call_method1("model", (tensor_of(tensors, &buffer)?,))?;
            let place = Place::of_tensor(&made)?;
            if place.length != out.len() {
                let (length, expected) = (place.length, out.len());
                return Err(Error::new_err(format!(
                    "model() returned {length} elements: the parameters have {expected}"
                )));
            }
            // SAFETY: `made` holds the tensor, and Python's lock is held.
            out.copy_from_slice(unsafe { place.as_mut_slice() });
            Ok(())
        });
    }

    fn state(&mut self, visitor: &mut dyn Visitor) {
        let class = Arc::clone(&self.class);
        self.ask("state", |object| visit::attributes(object, &class.declared, visitor));
    }

    fn join_rule(&self) -> JoinRule {
        self.class.declared.join_rule
    }

    fn can_be_replaced(&self) -> bool {
        self.class.declared.can_be_replaced
    }

    fn keeps_older_views(&self) -> bool {
        self.class.declared.keeps_older_views
    }
}

/// The same text for the whole run of the process; of very many different ones, none.
fn interned(text: &str) -> &'static str {
    const MOST: usize = 64;
    static TEXTS: Mutex<Vec<&'static str>> = Mutex::new(Vec::new());
    let mut texts = TEXTS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = texts.iter().find(|known| **known == text) {
        return known;
    }
    if texts.len() == MOST {
        return "its message";
    }
    let kept: &'static str = Box::leak(text.to_string().into_boxed_str());
    texts.push(kept);
    kept
}
