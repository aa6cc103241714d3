//! Messages as Python code sees them.

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use quelea_core::message::{Message, MessageFields, Part};
use quelea_core::payload::{Payload, Pool};

use super::memory::{OwnedVector, tensor_of};

/// A message, made by `cx.message` or received.
#[pyclass(frozen, name = "Message", module = "quelea._core")]
pub(crate) struct PyMessage {
    /// Its head; the vectors are beside it.
    head: Message,
    vectors: Mutex<[Vector; 2]>,
    tensors: &'static str,
    /// Where copies come from.
    pool: Pool,
}

/// A vector of a message.
enum Vector {
    Absent,
    /// Python code has not seen it: it may be shared.
    Unseen(Payload),
    /// Python code may hold views of it.
    Seen(Py<OwnedVector>),
}

impl PyMessage {
    /// Of a message whose vectors are not encoded; `tensors` is the kind that the algorithm uses.
    pub(crate) fn new(mut message: Message, tensors: &'static str, pool: &Pool) -> PyMessage {
        let parts = std::mem::take(&mut message.parts);
        let vectors = parts.map(|part| match part {
            Part::Values(values) => Vector::Unseen(values),
            Part::Empty | Part::Encoded { .. } => Vector::Absent,
        });
        PyMessage { head: message, vectors: Mutex::new(vectors), tensors, pool: pool.clone() }
    }

    /// The message itself. What Python code may still change is copied.
    pub(crate) fn message(&self) -> Message {
        let mut message = self.head.clone();
        for (part, vector) in message.parts.iter_mut().zip(&*self.vectors()) {
            *part = match vector {
                Vector::Absent => Part::Empty,
                Vector::Unseen(values) => Part::Values(values.clone()),
                Vector::Seen(owned) => Part::Values(self.pool.copy(owned.get().values())),
            };
        }
        message
    }

    /// The first vector, to be read as it is: what Python code has not seen may be shared.
    pub(crate) fn read<T>(
        &self,
        py: Python<'_>,
        unseen: impl FnOnce(&Payload) -> T,
        seen: impl FnOnce(Py<OwnedVector>) -> T,
    ) -> Option<T> {
        match &self.vectors()[0] {
            Vector::Absent => None,
            Vector::Unseen(values) => Some(unseen(values)),
            Vector::Seen(owned) => Some(seen(owned.clone_ref(py))),
        }
    }

    fn vectors(&self) -> MutexGuard<'_, [Vector; 2]> {
        self.vectors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tensor<'py>(&self, py: Python<'py>, part: usize) -> PyResult<Option<Bound<'py, PyAny>>> {
        let vector = std::mem::replace(&mut self.vectors()[part], Vector::Absent);
        let owned = match vector {
            Vector::Absent => return Ok(None),
            Vector::Unseen(values) => Py::new(py, OwnedVector::of_shared(values, &self.pool))?,
            Vector::Seen(owned) => owned,
        };
        let place = owned.get().place();
        self.vectors()[part] = Vector::Seen(owned.clone_ref(py));
        tensor_of(self.tensors, &place.buffer(py, owned.into_any())?).map(Some)
    }
}

#[pymethods]
impl PyMessage {
    /// The first vector; None without one. It is this message's own: it may be kept and changed.
    #[getter]
    fn values<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.tensor(py, 0)
    }

    /// The second vector; None without one.
    #[getter]
    fn second<'py>(&self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyAny>>> {
        self.tensor(py, 1)
    }

    #[getter]
    fn kind(&self) -> u8 {
        self.head.kind
    }

    #[getter]
    fn step(&self) -> u64 {
        self.head.step
    }

    #[getter]
    fn bucket(&self) -> u32 {
        self.head.bucket
    }

    #[getter]
    fn stage(&self) -> u32 {
        self.head.stage
    }

    #[getter]
    fn seq(&self) -> u64 {
        self.head.seq
    }

    #[getter]
    fn count(&self) -> u32 {
        self.head.count
    }

    #[getter]
    fn scalar(&self) -> f64 {
        self.head.scalar
    }

    fn __repr__(&self) -> String {
        let MessageFields { kind, step, bucket, scalar, .. } = *self.head;
        format!("Message(kind={kind}, step={step}, bucket={bucket}, scalar={scalar})")
    }
}
