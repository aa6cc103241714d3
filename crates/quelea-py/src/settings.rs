//! The settings of a Python program, as a configuration.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use quelea_run::config::Config;
use quelea_run::error::RequestError;
use toml::{Table, Value};

use crate::algorithm::registry;

/// The configuration that these settings describe, of built-in entries and classes that are registered.
pub(crate) fn config(settings: &Bound<'_, PyDict>) -> PyResult<Config> {
    Config::read_with(&registry(), table(settings)?, &[], None).map_err(value_error)
}

/// A refused request as Python's `ValueError`.
pub(crate) fn value_error(error: RequestError) -> PyErr {
    PyValueError::new_err(error.to_string())
}

/// A dictionary of plain values as a table of the configuration; keys whose value is `None` are
/// left out.
fn table(dict: &Bound<'_, PyDict>) -> PyResult<Table> {
    let mut table = Table::new();
    for (key, value) in dict.iter() {
        let key: String = key.extract()?;
        if !value.is_none() {
            let value = plain(&value)
                .map_err(|problem| PyTypeError::new_err(format!("{key} = {value}: {problem}")))?;
            table.insert(key, value);
        }
    }
    Ok(table)
}

fn plain(value: &Bound<'_, PyAny>) -> Result<Value, String> {
    let wrong = |error: PyErr| error.to_string();
    if value.is_instance_of::<PyBool>() {
        value.extract().map(Value::Boolean).map_err(wrong)
    } else if value.is_instance_of::<PyInt>() {
        value.extract().map(Value::Integer).map_err(wrong)
    } else if value.is_instance_of::<PyFloat>() {
        value.extract().map(Value::Float).map_err(wrong)
    } else if value.is_instance_of::<PyString>() {
        value.extract().map(Value::String).map_err(wrong)
    } else if value.is_instance_of::<PyList>() || value.is_instance_of::<PyTuple>() {
        let items = value.try_iter().map_err(wrong)?;
        let items = items.map(|item| plain(&item.map_err(wrong)?));
        items.collect::<Result<Vec<_>, _>>().map(Value::Array)
    } else if let Ok(dict) = value.cast::<PyDict>() {
        table(dict).map(Value::Table).map_err(wrong)
    } else {
        Err("must be a number, a string, a list, a dictionary, True or False".to_string())
    }
}
