//! Why an experiment has no result.

use quelea_run::error::{RequestError, RunError};
use quelea_sim::SimError;

/// Why an experiment has no result.
#[derive(Debug, thiserror::Error)]
pub enum ExperimentError {
    /// What was asked for makes no sense.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A run did not reach its end.
    #[error(transparent)]
    Run(RunError),
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

impl From<RunError> for ExperimentError {
    /// A request that was wrong stays one.
    fn from(error: RunError) -> ExperimentError {
        match error {
            RunError::Request(error) => ExperimentError::Request(error),
            other => ExperimentError::Run(other),
        }
    }
}

impl From<SimError> for ExperimentError {
    fn from(error: SimError) -> ExperimentError {
        ExperimentError::Run(RunError::Sim(error))
    }
}
