//! Topologies by name, for calls of Python that mix tensors themselves.

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyDict;
use quelea_core::topology::Schedule;
use quelea_run::prepared::TopologyMaker;

use crate::settings::{config, value_error};

/// Who mixes with whom, with what weights, at which step.
#[pyclass(frozen, name = "Topology", module = "quelea._core")]
pub(crate) struct PyTopology(Arc<Schedule>);

#[pymethods]
impl PyTopology {
    /// The topology that these settings name, for as many workers as they say.
    #[new]
    fn new(settings: &Bound<'_, PyDict>) -> PyResult<PyTopology> {
        let config = config(settings)?;
        let hosts: Vec<u32> = (0..config.workers as u32).collect();
        let maker = TopologyMaker::new(config.topology.clone(), config.seed);
        let schedule = maker.and_then(|maker| maker.build(&hosts)).map_err(value_error)?;
        Ok(PyTopology(schedule))
    }

    /// The weights of a step: row `i` lists `(j, W_ij)` for every weight that is not zero.
    fn weights(&self, step: u64) -> Vec<Vec<(usize, f64)>> {
        self.0.round(step).rows().to_vec()
    }

    /// The name in the table of topologies.
    #[getter]
    fn name(&self) -> &'static str {
        self.0.name()
    }
}
