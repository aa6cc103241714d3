//! The Rust side of the Python package `quelea`.
//!
//! Python holds a `Group` of processes and, in it, a `Run`: one rank
//! whose outer loop is the training script. Nothing here knows PyTorch: vectors are addresses, the
//! package makes tensors of them. Whatever waits does so outside Python's lock.

mod group;
mod memory;
mod run;
mod settings;
mod simulate;
mod state;

use std::time::Duration;

use pyo3::prelude::*;

pyo3::create_exception!(
    quelea,
    Error,
    pyo3::exceptions::PyRuntimeError,
    "A run cannot go on: a process is gone, a peer does not answer, a call came at a wrong time."
);

/// How often somebody who waits looks whether a person has interrupted.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Whether nobody has interrupted; if somebody has, why goes to `raised`.
fn undisturbed(raised: &mut Option<PyErr>) -> bool {
    match Python::attach(|py| py.check_signals()) {
        Ok(()) => true,
        Err(error) => {
            *raised = Some(error);
            false
        }
    }
}

/// The algorithms, with one line and the keyword arguments of each.
#[pyfunction]
fn algorithms() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    let row = |entry: &quelea_core::algorithms::Entry| {
        (entry.name, entry.summary, entry.keys.iter().map(|key| key.name).collect())
    };
    quelea_core::algorithms::ALGORITHMS.iter().map(row).collect()
}

#[pymodule]
fn _core(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("Error", module.py().get_type::<Error>())?;
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<group::Group>()?;
    module.add_class::<run::Run>()?;
    module.add_class::<run::Memory>()?;
    module.add_function(wrap_pyfunction!(simulate::simulate, module)?)?;
    module.add_function(wrap_pyfunction!(memory::large_allocations, module)?)?;
    module.add_function(wrap_pyfunction!(algorithms, module)?)
}
