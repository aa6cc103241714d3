//! Why an experiment has no result.

use quelea_run::error::RequestError;
use quelea_sim::SimError;

/// Why an experiment has no result.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// What was asked for makes no sense.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A run could not be simulated to its end.
    #[error(transparent)]
    Sim(#[from] SimError),
    /// A data set is not there.
    #[error(
        "needs the data set {name}, which is not here; `quelea data get {name}` fetches it, or \
         --data PATH says where it is"
    )]
    NoData {
        /// Which.
        name: &'static str,
    },
    /// A parameter could not be fitted.
    #[error("cannot fit {parameter} on {cell}: no value from {low} to {high} gives {goal}")]
    Fit {
        /// Which.
        parameter: String,
        /// On what.
        cell: String,
        /// Searched from here …
        low: f64,
        /// … to here.
        high: f64,
        /// What it should give.
        goal: f64,
    },
}
