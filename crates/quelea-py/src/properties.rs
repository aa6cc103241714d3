//! The properties of an algorithm, for Python.

use pyo3::prelude::*;
use pyo3::types::PyDict;
use quelea_core::algorithms::Traffic;
use quelea_core::properties::{OptimizerRequirement, OptimizerSite, OptimizerState, Properties};

use crate::settings;

/// What the package needs to know of an algorithm with its options, so that no Python file knows
/// an algorithm by name. Made from [`Properties`] and nowhere else.
#[pyclass(frozen, get_all, name = "Properties", module = "quelea._core")]
#[derive(Clone, Copy, Debug)]
pub(crate) struct PyProperties {
    /// All ranks take the same number of steps, and wait for each other.
    synchronous: bool,
    /// Gradients are computed on a copy of the parameters.
    snapshot: bool,
    /// The algorithm reads gradients before the optimizer does.
    reads_gradient: bool,
    /// Servers run the optimizer, not the ranks.
    servers_optimize: bool,
    /// Servers take plain SGD steps, and the optimizer of the ranks must do the same.
    plain_sgd: bool,
    /// No other optimizer than SGD will do.
    needs_sgd: bool,
    /// The optimizer must have no momentum.
    refuses_momentum: bool,
    /// Why, in the words of a run file; empty where nothing is asked of the optimizer.
    optimizer_reason: &'static str,
    /// Ranks may start from different parameters.
    own_start: bool,
    /// A script may replace the parameters between two steps.
    reloadable: bool,
    /// The algorithm uses the loss of every step.
    needs_loss: bool,
    /// The algorithm averages or resets the state of the optimizer.
    synchronizes_state: bool,
    /// The algorithm replaces the velocity of the optimizer's momentum.
    replaces_velocity: bool,
}

impl From<Properties> for PyProperties {
    fn from(properties: Properties) -> PyProperties {
        let rule = properties.optimizer_rule;
        PyProperties {
            synchronous: properties.synchronous,
            snapshot: properties.snapshot,
            reads_gradient: properties.reads_gradient,
            servers_optimize: properties.optimizer == OptimizerSite::Servers,
            plain_sgd: matches!(rule, OptimizerRequirement::PlainSgd(_)),
            needs_sgd: rule.needs_sgd(),
            refuses_momentum: rule.refused_options().contains(&"momentum"),
            optimizer_reason: rule.reason(),
            own_start: properties.own_start,
            reloadable: properties.reloadable,
            needs_loss: properties.needs_loss,
            synchronizes_state: properties.optimizer_state == OptimizerState::Synchronized,
            replaces_velocity: properties.optimizer_state == OptimizerState::VelocityReplaced,
        }
    }
}

/// The properties of the algorithm that these settings name, with the options that they give.
#[pyfunction]
pub(crate) fn properties(settings: &Bound<'_, PyDict>) -> PyResult<PyProperties> {
    Ok(settings::config(settings)?.properties().into())
}

/// How many steps the ranks take by themselves from one exact average to the next; 1 where they exchange
/// something at every step.
#[pyfunction]
pub(crate) fn local_steps(settings: &Bound<'_, PyDict>) -> PyResult<u64> {
    let config = settings::config(settings)?;
    let algorithm = &config.algorithm;
    Ok(match (algorithm.entry.traffic)(algorithm.options()) {
        Traffic::Average { period } => period,
        _ => 1,
    })
}
