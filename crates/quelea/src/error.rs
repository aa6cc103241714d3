//! Why a run could not start or did not end well.

use quelea_core::options::OptionError;

/// Why a run could not start or did not end well.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The registry has no such entry.
    #[error("there is no {kind} named `{name}`{hint}")]
    Unknown {
        /// "algorithm".
        kind: &'static str,
        /// What was given.
        name: String,
        /// The nearest name, if there is one.
        hint: String,
    },
    /// An option of an entry.
    #[error("{kind} `{name}`: {source}")]
    Option {
        /// "algorithm".
        kind: &'static str,
        /// The entry.
        name: &'static str,
        /// Which option, and what is allowed.
        source: OptionError,
    },
    /// Settings that do not go together.
    #[error("{0}")]
    Conflict(String),
    /// The virtual cluster could not run it to its end.
    #[cfg(feature = "sim")]
    #[error(transparent)]
    Sim(#[from] quelea_sim::SimError),
    /// The real cluster could not run it to its end.
    #[cfg(feature = "net")]
    #[error(transparent)]
    Net(#[from] quelea_net::NetError),
}
