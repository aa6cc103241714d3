//! What can be wrong with data.

use std::io;
use std::path::{Path, PathBuf};

/// Why data could not be read, or not used.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file could not be written.
    #[error("cannot write {}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The content is not what it should be.
    #[error("{}: {problem}", path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A file of the data set is not there.
    #[error("{} holds no {wanted}", folder.display())]
    Missing {
        /// Where it was looked for.
        folder: PathBuf,
        /// What was looked for.
        wanted: String,
    },
    /// A loader thread came to grief; the message is that of the panic.
    #[error("making the batch of step {step} failed: {problem}")]
    Panicked {
        /// The step whose batch it was.
        step: u64,
        /// What the panic said.
        problem: String,
    },
}

impl DataError {
    /// For `map_err` after reading `path`: says what early ends and bad streams mean.
    pub(crate) fn reading(path: &Path) -> impl Fn(io::Error) -> DataError + '_ {
        |source| match source.kind() {
            io::ErrorKind::UnexpectedEof => {
                DataError::damaged(path, "ends too early: the file was cut off".to_string())
            }
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput => {
                DataError::damaged(path, format!("is damaged: {source}"))
            }
            _ => DataError::Read { path: path.to_path_buf(), source },
        }
    }

    /// For `map_err` after writing `path`.
    pub(crate) fn writing(path: &Path) -> impl Fn(io::Error) -> DataError + '_ {
        |source| DataError::Write { path: path.to_path_buf(), source }
    }

    pub(crate) fn damaged(path: &Path, problem: impl Into<String>) -> DataError {
        DataError::Damaged { path: path.to_path_buf(), problem: problem.into() }
    }
}
