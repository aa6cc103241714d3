//! The state of an algorithm in Python: attributes that its class names.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt};
use quelea_core::payload::Payload;
use quelea_core::state::Visitor;

use super::declaration::Declaration;
use super::memory::{OwnedVector, Place, tensor_of};
use crate::Error;

/// Shows the attributes of the state to a visitor, which may change them.
pub(super) fn attributes(
    object: &Bound<'_, PyAny>,
    declared: &Declaration,
    visitor: &mut dyn Visitor,
) -> PyResult<()> {
    for name in &declared.state {
        let value = object.getattr(name.as_str()).map_err(|_| {
            Error::new_err(format!(
                "the attribute `{name}` of state does not exist: set it in __init__, to None if it is a \
                 tensor that on_start makes"
            ))
        })?;
        if value.is_instance_of::<PyBool>() {
            let mut flag = value.extract()?;
            visitor.flag(name, &mut flag);
            object.setattr(name.as_str(), flag)?;
        } else if value.is_instance_of::<PyInt>() {
            let mut number = value.extract::<i64>()?.cast_unsigned();
            visitor.number(name, &mut number);
            object.setattr(name.as_str(), number.cast_signed())?;
        } else if value.is_instance_of::<PyFloat>() {
            let mut real = value.extract()?;
            visitor.real(name, &mut real);
            object.setattr(name.as_str(), real)?;
        } else {
            vector(object, name, &value, declared.tensors, visitor)?;
        }
    }
    Ok(())
}

/// A tensor, or None in its place. One of the same length is changed in place.
fn vector(
    object: &Bound<'_, PyAny>,
    name: &str,
    value: &Bound<'_, PyAny>,
    tensors: &str,
    visitor: &mut dyn Visitor,
) -> PyResult<()> {
    let place = if value.is_none() { None } else { Some(Place::of_tensor(value)?) };
    let mut is_present = place.is_some();
    visitor.flag(&format!("{name}.is_present"), &mut is_present);
    if !is_present {
        return object.setattr(name, object.py().None());
    }
    // SAFETY: `value` holds the tensor, and Python's lock is held.
    let own = place.map(|place| unsafe { place.as_mut_slice() });
    let mut values = own.as_deref().map(<[f32]>::to_vec).unwrap_or_default();
    visitor.vector(name, &mut values);
    match own {
        Some(own) if own.len() == values.len() => own.copy_from_slice(&values),
        _ => {
            let made = Py::new(object.py(), OwnedVector::new(Payload::from(values)))?;
            let buffer = made.get().place().buffer(object.py(), made.into_any())?;
            object.setattr(name, tensor_of(tensors, &buffer)?)?;
        }
    }
    Ok(())
}
