//! The Rust side of the Python package `quelea`.
//!
//! Python holds a `Group` of processes and, in it, a `Run`: one rank whose outer loop is the
//! training script. Nothing here knows PyTorch: vectors are addresses, and the package makes
//! tensors of them. Every call that waits releases Python's lock meanwhile.

mod algorithm;
mod allocations;
mod command;
mod conformance;
mod event_times;
mod group;
mod model;
mod optimizer_state;
mod page;
mod properties;
mod recorder;
mod run;
mod settings;
mod simulate;
mod tensors;
mod topology;
mod vectors;

use std::time::Duration;

use pyo3::prelude::*;

pyo3::create_exception!(
    quelea,
    Error,
    pyo3::exceptions::PyRuntimeError,
    "A run cannot continue: a process has died, a peer does not answer, or a call came at the wrong time."
);

pyo3::create_exception!(
    quelea,
    Left,
    pyo3::exceptions::PySystemExit,
    "This process was given notice and has left its run; the others continue. It ends the script, with status 0."
);

/// How often a call that waits checks for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Whether Python was not interrupted by a signal; if it was, the exception goes to `raised`.
fn uninterrupted(raised: &mut Option<PyErr>) -> bool {
    match Python::attach(|py| py.check_signals()) {
        Ok(()) => true,
        Err(error) => {
            *raised = Some(error);
            false
        }
    }
}

/// The algorithms, registered ones included, with one line and the keyword arguments of each.
#[pyfunction]
fn algorithms() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let described = |entry: &quelea_core::algorithms::Entry| {
        (
            entry.meta.name,
            entry.meta.summary,
            entry.meta.options.iter().map(|key| key.name).collect(),
        )
    };
    algorithm::registry().entries().map(described).collect()
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Error", module.py().get_type::<Error>())?;
    module.add("Left", module.py().get_type::<Left>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<group::PyGroup>()?;
    module.add_class::<page::PyPage>()?;
    module.add_class::<properties::PyProperties>()?;
    module.add_class::<run::PyRun>()?;
    module.add_class::<vectors::RankVectors>()?;
    module.add_class::<vectors::VectorAt>()?;
    module.add_class::<tensors::TensorAt>()?;
    module.add_class::<tensors::PyListener>()?;
    module.add_class::<tensors::PyTensorGroup>()?;
    module.add_class::<tensors::PyPending>()?;
    module.add_class::<topology::PyTopology>()?;
    algorithm::add_to(module)?;
    module.add_function(wrap_pyfunction!(tensors::tensor_types, module)?)?;
    module.add_function(wrap_pyfunction!(properties::properties, module)?)?;
    module.add_function(wrap_pyfunction!(properties::local_steps, module)?)?;
    module.add_function(wrap_pyfunction!(simulate::simulate, module)?)?;
    module.add_function(wrap_pyfunction!(command::command_line, module)?)?;
    module.add_function(wrap_pyfunction!(conformance::conformance, module)?)?;
    module.add_function(wrap_pyfunction!(conformance::conformance_properties, module)?)?;
    module.add_function(wrap_pyfunction!(event_times::event_times, module)?)?;
    module.add_function(wrap_pyfunction!(allocations::large_allocations, module)?)?;
    module.add_function(wrap_pyfunction!(algorithms, module)?)
}
