//! Vectors that Python code and Rust both touch during an event, without copies.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use quelea_core::node::loan::SharedVector;
use quelea_core::payload::{Payload, Pool};

/// Keeps the memory of a rank's vector for views that Python code holds.
#[pyclass(frozen, name = "LentVector", module = "quelea._core")]
pub(crate) struct LentVector(
    #[expect(dead_code, reason = "held, not read")] pub(crate) SharedVector,
);

/// The vector of a message that Python code has looked at: nobody else holds it, so that it may be
/// changed.
#[pyclass(frozen, name = "OwnedVector", module = "quelea._core")]
pub(crate) struct OwnedVector {
    values: Payload,
    address: usize,
}

impl OwnedVector {
    /// Of a payload that nobody else holds.
    pub(crate) fn new(mut values: Payload) -> OwnedVector {
        let memory = values.try_mut().expect("nobody else holds it");
        let address = memory.as_mut_ptr() as usize;
        OwnedVector { values, address }
    }

    /// Of this payload, copied to memory of the pool if somebody else holds it.
    pub(crate) fn of_shared(mut values: Payload, pool: &Pool) -> OwnedVector {
        let is_shared = values.try_mut().is_none();
        OwnedVector::new(if is_shared { pool.copy(&values) } else { values })
    }

    /// Where it lies.
    pub(crate) fn place(&self) -> Place {
        Place { address: self.address, length: self.values.len() }
    }

    /// The values as they are now.
    pub(crate) fn values(&self) -> &[f32] {
        &self.values
    }
}

/// Where a vector lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) address: usize,
    pub(crate) length: usize,
}

impl Place {
    /// Of a slice.
    pub(crate) fn of(values: &mut [f32]) -> Place {
        Place { address: values.as_mut_ptr() as usize, length: values.len() }
    }

    /// Of a tensor of PyTorch or an array of NumPy; raises what is wrong with it.
    pub(crate) fn of_tensor(tensor: &Bound<'_, PyAny>) -> PyResult<Place> {
        let place_of = helper(tensor.py(), "place_of")?;
        let (address, length) = place_of.call1((tensor,))?.extract()?;
        Ok(Place { address, length })
    }

    /// The vector itself.
    ///
    /// # Safety
    ///
    /// Nobody else may touch it while the slice is used, and its owner must stay.
    pub(crate) unsafe fn as_mut_slice<'a>(self) -> &'a mut [f32] {
        if self.length == 0 {
            return &mut [];
        }
        // SAFETY: the caller promises it; `place_of` has checked type and alignment.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut f32, self.length) }
    }

    /// A buffer object over it that holds a reference to `owner`.
    pub(crate) fn buffer<'py>(
        self,
        py: Python<'py>,
        owner: Py<PyAny>,
    ) -> PyResult<Bound<'py, PyAny>> {
        helper(py, "buffer_at")?.call1((self.address, self.length, owner))
    }
}

/// A tensor of this kind over a buffer.
pub(crate) fn tensor_of<'py>(
    kind: &str,
    buffer: &Bound<'py, PyAny>,
) -> PyResult<Bound<'py, PyAny>> {
    helper(buffer.py(), "tensor_of")?.call1((kind, buffer))
}

/// A function of the package's `_views.py`.
pub(crate) fn helper<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static MODULE: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let import = || py.import(intern!(py, "quelea._views")).map(Bound::unbind);
    MODULE.get_or_try_init(py, import)?.bind(py).getattr(name)
}
