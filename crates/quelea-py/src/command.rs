//! The `quelea` command inside the module, so that the package needs no other file to have it.

use std::ffi::OsString;

use pyo3::prelude::*;
use quelea_cli::Call;

use crate::algorithm::{Outlet, registry};

/// Runs the command with these words; its exit status. `program` starts this program again, for commands
/// that start workers as processes. Classes that are registered are among its algorithms.
#[pyfunction]
pub(crate) fn command_line(
    py: Python<'_>,
    program: Vec<OsString>,
    words: Vec<OsString>,
) -> PyResult<u8> {
    Outlet::remove();
    Ok(py.detach(|| quelea_cli::call(&registry(), Call { program, words })))
}
