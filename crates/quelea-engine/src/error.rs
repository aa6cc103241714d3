//! Why a problem was refused.

/// Why a problem was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum EngineError {
    /// A worker without samples has no gradient.
    #[error("{samples} training samples are too few for {workers} workers: each needs one")]
    TooFewSamples {
        /// Samples there are.
        samples: usize,
        /// Workers there are.
        workers: usize,
    },
    /// Sizes that do not go with the workers.
    #[error("`batches` names {given} sizes for {workers} workers; give one for each, or none")]
    Batches {
        /// How many were given.
        given: usize,
        /// How many workers there are.
        workers: usize,
    },
    /// A size that is not one.
    #[error("`batches` holds {given}; every size is a whole number of at least 1")]
    BatchSize {
        /// What was given.
        given: f64,
    },
    /// Nothing to measure with.
    #[error("there is nothing to measure the model with: the test data are empty")]
    NothingHeldOut,
    /// A model that does not add up.
    #[error("{0}")]
    Model(String),
}
