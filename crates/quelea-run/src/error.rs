//! Why a request was refused, and why a run failed. The two have different exit statuses.

use std::path::PathBuf;

/// As much of a wrong value as a message repeats.
const GIVEN_CHARS: usize = 80;

/// The request was wrong: nothing was run and nothing was written.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RequestError {
    /// A key of the configuration.
    #[error("`{path}` = {given}: {problem}")]
    Field {
        /// The key with its tables, dotted.
        path: String,
        /// What was written, as TOML.
        given: String,
        /// What is allowed instead.
        problem: String,
    },
    /// A file that was named.
    #[error("{}: {problem}", path.display())]
    File {
        /// Its path.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A `--set` that is not `key=value`.
    #[error("--set {given}: {problem}")]
    Setting {
        /// What was written.
        given: String,
        /// What is allowed instead.
        problem: String,
    },
    /// Parts of the request that do not go together.
    #[error("{0}")]
    Conflict(String),
}

impl RequestError {
    /// A key, with the value as TOML would write it; of a long one, the beginning.
    pub fn field(
        path: impl Into<String>,
        given: impl std::fmt::Display,
        problem: impl Into<String>,
    ) -> RequestError {
        let mut given = given.to_string();
        if let Some((cut, _)) = given.char_indices().nth(GIVEN_CHARS) {
            given.truncate(cut);
            given.push('…');
        }
        RequestError::Field { path: path.into(), given, problem: problem.into() }
    }

    /// A file.
    pub fn file(path: impl Into<PathBuf>, problem: impl std::fmt::Display) -> RequestError {
        RequestError::File { path: path.into(), problem: problem.to_string() }
    }
}

/// Why there is no finished run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The request was wrong.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The virtual cluster could not go on.
    #[error(transparent)]
    Sim(#[from] quelea_sim::SimError),
    /// The real cluster could not go on.
    #[error(transparent)]
    Net(#[from] quelea_net::NetError),
    /// The run was interrupted, and its state is saved.
    #[error(
        "interrupted after {step} steps of each worker{}; resume it with --resume {}",
        because(reason),
        directory.display()
    )]
    Stopped {
        /// Steps of each worker.
        step: u64,
        /// Why, where nobody asked for it.
        reason: Option<String>,
        /// The run's folder.
        directory: PathBuf,
    },
    /// The run was broken off; what its ranks still had is kept.
    #[error("{error}; {kept}")]
    BrokenOff {
        /// Why.
        error: Box<RunError>,
        /// What is kept, and where.
        kept: String,
    },
    /// The run has ended and its model is written; the process was asked to end before the rest was.
    #[error("interrupted after the run had ended; its model is in {}", model.display())]
    Interrupted {
        /// Where the model is.
        model: PathBuf,
    },
    /// A process could not be started or ended badly.
    #[error("{0}")]
    Process(String),
    /// The run has ended well and its model is written; some of its other files could not be.
    #[error("the run has ended, but these could not be written: {missing}; its model is in {}", model.display())]
    Incomplete {
        /// What is missing, and why.
        missing: String,
        /// Where the model is.
        model: PathBuf,
    },
    /// A file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// Which.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl RunError {
    /// Whether this process reaches too few of the others, who may continue without it.
    pub fn is_missing_quorum(&self) -> bool {
        match self {
            RunError::Net(quelea_net::NetError::NoQuorum(_)) => true,
            RunError::BrokenOff { error, .. } => error.is_missing_quorum(),
            _ => false,
        }
    }

    /// Whether the request was wrong, so that nothing was run: also one that the coordinator of
    /// a run refused, for a rank that is taken or does not exist.
    pub fn is_request(&self) -> bool {
        use {quelea_net::NetError, quelea_sim::SimError};
        matches!(
            self,
            RunError::Request(_)
                | RunError::Sim(SimError::Cluster(_))
                | RunError::Net(NetError::Refused { .. })
        )
    }
}

/// ", because …", where there is a reason.
fn because(reason: &Option<String>) -> String {
    reason.iter().map(|reason| format!(", {reason}")).collect()
}
