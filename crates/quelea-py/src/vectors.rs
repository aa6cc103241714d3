//! Vectors of `f32` that Python and Rust both see, as addresses.

use pyo3::prelude::*;

use crate::optimizer_state::StateVectors;

/// Where a vector of `f32` lies in memory.
#[pyclass(frozen, get_all, from_py_object, module = "quelea._core")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct VectorAt {
    /// The address of the first element.
    pub(crate) address: usize,
    /// How many elements there are.
    pub(crate) length: usize,
}

#[pymethods]
impl VectorAt {
    #[new]
    fn new(address: usize, length: usize) -> VectorAt {
        VectorAt { address, length }
    }
}

impl VectorAt {
    /// The vector itself.
    ///
    /// # Safety
    ///
    /// It must stay where it is, and nobody else may touch it, while the slice is used.
    pub(crate) unsafe fn as_mut_slice<'a>(self) -> &'a mut [f32] {
        if self.length == 0 {
            return &mut [];
        }
        // SAFETY: the caller promises it.
        unsafe { std::slice::from_raw_parts_mut(self.address as *mut f32, self.length) }
    }
}

/// The vectors of a rank. Their memory is kept for as long as this object is.
#[pyclass(frozen, module = "quelea._core")]
pub(crate) struct RankVectors {
    /// The flat parameters.
    #[pyo3(get)]
    pub(crate) params: VectorAt,
    /// The flat gradient.
    #[pyo3(get)]
    pub(crate) grads: VectorAt,
    /// The vectors of the optimizer's state that the algorithm reads or changes.
    #[pyo3(get)]
    pub(crate) state: Vec<VectorAt>,
    pub(crate) _memory: quelea_net::external_loop::LoopVectors,
    pub(crate) _state_memory: StateVectors,
}
