//! What Python asks for, as a configuration.

use std::sync::Arc;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};
use quelea_core::layout::Tensor;
use quelea_core::problems::{Evaluation, GradientSource, Problem};
use quelea_net::external_loop::ExternalLoop;
use toml::{Table, Value};

/// A dictionary of plain values as a table of the configuration; what is `None` is left out.
pub(crate) fn table(dict: &Bound<'_, PyDict>) -> PyResult<Table> {
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
        Err("must be a number, a text, True or False".to_string())
    }
}

/// A model that a training script trains.
#[derive(Clone)]
pub(crate) struct Script {
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) initial: Arc<[f32]>,
    pub(crate) outer: ExternalLoop,
}

impl Problem for Script {
    fn dimensions(&self) -> usize {
        self.initial.len()
    }

    fn tensors(&self) -> Vec<Tensor> {
        self.tensors.clone()
    }

    fn initial(&self) -> Vec<f32> {
        self.initial.to_vec()
    }

    fn source(&self, _rank: usize) -> Box<dyn GradientSource> {
        unreachable!("the script gives the gradients")
    }

    fn outer_loop(&self, _rank: usize) -> Option<&(dyn std::any::Any + Send + Sync)> {
        Some(&self.outer)
    }

    fn evaluate(&self, _params: &[f32]) -> Evaluation {
        unreachable!("the script evaluates by itself")
    }
}
