//! The suite that the built-in algorithms pass, for classes in Python.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

use ::conformance::suite::{PROPERTIES, Suite};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use quelea_core::algorithms::Entry;

use crate::algorithm::{Outlet, registry, simulated};
use crate::model::Raised;

/// The properties that an algorithm is checked for, by name.
#[pyfunction]
pub(crate) fn conformance_properties() -> Vec<&'static str> {
    PROPERTIES.iter().map(|property| property.name).collect()
}

/// Why an algorithm does not have a property; None if it has. What an event raises in the virtual cluster is
/// raised here.
#[pyfunction]
pub(crate) fn conformance(
    py: Python<'_>,
    algorithm: &str,
    property: &str,
) -> PyResult<Option<String>> {
    let registry = registry();
    let entry = registry.find::<Entry>(algorithm);
    let unknown = |_| PyValueError::new_err(format!("no algorithm `{algorithm}`"));
    let entry: &'static Entry = entry.map_err(unknown)?;
    let known = PROPERTIES.iter().find(|known| known.name == property).ok_or_else(|| {
        let names = conformance_properties().join(", ");
        PyValueError::new_err(format!("no property `{property}`: there are {names}"))
    })?;
    // Ranks on threads of their own print what they raise.
    Outlet::remove();
    let raised = Raised::default();
    let check = || catch_unwind(AssertUnwindSafe(|| (known.check)(&Suite::of(entry))));
    match py.detach(|| simulated(raised.clone(), check)) {
        Ok(()) => Ok(None),
        Err(panic) => match raised.take() {
            Some(error) => Err(error),
            None => Ok(Some(text_of(&*panic))),
        },
    }
}

fn text_of(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<String>().cloned();
    let text = text.or_else(|| panic.downcast_ref::<&str>().map(ToString::to_string));
    text.unwrap_or_else(|| "it panicked".into())
}
