//! Algorithms in Python: classes that are registered beside the built-in entries.
//!
//! An entry consists of functions without state, so each entry of a class has an option `python` whose
//! only value names the class; the functions find it in the table here. Entries are never freed: there
//! is one per class that was registered.

mod context;
mod declaration;
mod kit;
mod memory;
mod message;
mod mixing;
mod outlet;
mod visit;
mod worker;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyType};
use quelea_core::algorithms::{Codecs, Entry, Traffic};
use quelea_core::contract::Algorithm;
use quelea_core::options::{OptionKind, Options, Value};
use quelea_core::properties::Properties;
use quelea_core::registry::Registry;

use crate::Error;
use declaration::{CLASS_OPTION, Declaration};
pub(crate) use outlet::{Outlet, simulated};
use worker::PyWorker;

/// A class that was registered.
pub(crate) struct PyClass {
    class: Py<PyType>,
    declared: Declaration,
    entry: &'static Entry,
}

/// Every class that was registered, in order; of those with one name the last is meant.
static CLASSES: Mutex<Vec<Arc<PyClass>>> = Mutex::new(Vec::new());

fn classes() -> MutexGuard<'static, Vec<Arc<PyClass>>> {
    CLASSES.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Registers a class; `declared` is what the package has read from it. A class of the same name that
/// was registered before is replaced.
#[pyfunction]
pub(crate) fn register_algorithm(
    algorithm: Bound<'_, PyType>,
    declared: Declaration,
) -> PyResult<()> {
    let mut all = classes();
    if all
        .iter()
        .rev()
        .find(|other| other.declared.name == declared.name)
        .is_some_and(|other| other.class.bind(algorithm.py()).is(&algorithm))
    {
        return Ok(());
    }
    let entry = declared.entry(&key_of(&all, &declared))?;
    // The name is checked against the built-in entries only: a later class replaces an earlier one.
    let checked = Registry::builtin().try_with(entry);
    checked.map_err(|error| Error::new_err(error.to_string()))?;
    all.push(Arc::new(PyClass { class: algorithm.unbind(), declared, entry }));
    Ok(())
}

/// What the option of a class says: the same in every process that registers the same classes, and after a
/// class was defined again.
fn key_of(all: &[Arc<PyClass>], declared: &Declaration) -> String {
    let (class, name) = (&declared.class_name, &declared.name);
    let is_taken =
        |other: &Arc<PyClass>| other.declared.class_name == *class && other.declared.name != *name;
    if all.iter().any(is_taken) { format!("{class} ({name})") } else { class.clone() }
}

/// The built-in entries and the classes that are registered now.
pub(crate) fn registry() -> Registry {
    let all = classes();
    let is_last = |(k, class): &(usize, &Arc<PyClass>)| {
        !all[k + 1..].iter().any(|later| later.declared.name == class.declared.name)
    };
    let current = all.iter().enumerate().filter(is_last).map(|(_, class)| class.entry);
    current.fold(Registry::builtin(), Registry::with)
}

/// The class that these options of an entry name.
fn class_of(options: &Options) -> Arc<PyClass> {
    let key = options.text(CLASS_OPTION);
    let named = |class: &&Arc<PyClass>| match class.entry.meta.options[0].kind {
        OptionKind::Choice(keys) => keys[0] == key,
        _ => false,
    };
    let all = classes();
    Arc::clone(all.iter().rev().find(named).expect("entries are made of classes in the table"))
}

/// An entry's function: what drivers need to know.
fn properties(options: &Options) -> Properties {
    class_of(options).declared.properties
}

/// An entry's function: what a worker exchanges.
fn traffic(options: &Options) -> Traffic {
    class_of(options).declared.traffic
}

/// An entry's function: which codecs it supports.
fn codecs(_options: &Options) -> Codecs {
    Codecs::Exact("its Python code sends and receives plain vectors")
}

/// An entry's function: one worker.
fn worker(options: &Options) -> Box<dyn Algorithm> {
    Box::new(PyWorker::new(class_of(options), options))
}

impl PyClass {
    /// An object of the class with these options.
    fn instance(&self, py: Python<'_>, options: &Options) -> PyResult<Py<PyAny>> {
        let given = PyDict::new(py);
        for (name, value) in options.iter().filter(|(name, _)| *name != CLASS_OPTION) {
            let spec = self.entry.meta.options.iter().find(|spec| spec.name == name);
            let is_whole = spec.is_some_and(|spec| matches!(spec.kind, OptionKind::Whole { .. }));
            match value {
                Value::Number(number) if is_whole => given.set_item(name, *number as u64)?,
                Value::Number(number) => given.set_item(name, *number)?,
                Value::Text(text) => given.set_item(name, text)?,
                Value::Flag(flag) => given.set_item(name, *flag)?,
                Value::Numbers(numbers) => given.set_item(name, numbers.clone())?,
            }
        }
        Ok(self.class.bind(py).call((), Some(&given))?.unbind())
    }
}

/// Adds what Python code sees of this.
pub(crate) fn add_to(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_class::<context::PyContext>()?;
    module.add_class::<kit::PyAverage>()?;
    module.add_class::<kit::PyExchange>()?;
    module.add_class::<kit::PyGathered>()?;
    module.add_class::<message::PyMessage>()?;
    module.add_function(wrap_pyfunction!(register_algorithm, module)?)
}
