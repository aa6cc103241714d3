//! Keys that the tasks with networks have in common.

use std::path::Path;

use quelea_core::options::{OptionKind, OptionSpec};
use quelea_core::problems::partition::Partition;
use quelea_data::catalogue;
use quelea_data::error::DataError;
use quelea_engine::error::EngineError;
use quelea_engine::work::WorkOptions;

use super::TaskRequest;
use crate::error::RequestError;

/// `data`.
pub(super) const DATA: OptionSpec = OptionSpec {
    name: "data",
    kind: OptionKind::Text,
    help: "where the data are; if absent, where `quelea data get` puts them",
};

/// `batch`.
pub(super) const fn batch(default: u64) -> OptionSpec {
    OptionSpec {
        name: "batch",
        kind: OptionKind::Whole { default, min: 1, max: 1 << 24 },
        help: "samples in a worker's mini-batch",
    }
}

/// `batches`.
pub(super) const BATCHES: OptionSpec = OptionSpec {
    name: "batches",
    kind: OptionKind::Reals,
    help: "samples in the mini-batch of each worker, for workers of different speed; averages \
           weigh each worker by them",
};

/// `accumulate`.
pub(super) const ACCUMULATE: OptionSpec = OptionSpec {
    name: "accumulate",
    kind: OptionKind::Whole { default: 1, min: 1, max: 1 << 16 },
    help: "mini-batches whose gradients are averaged into one",
};

/// `partition`.
pub(super) const PARTITION: OptionSpec = OptionSpec {
    name: "partition",
    kind: OptionKind::Choice(&["iid", "dirichlet"]),
    help: "who gets which samples",
};

/// `concentration`.
pub(super) const CONCENTRATION: OptionSpec = OptionSpec {
    name: "concentration",
    kind: OptionKind::Real { default: 0.5, min: f64::MIN_POSITIVE, max: 1e9 },
    help: "of dirichlet: the smaller, the more the workers' data differ",
};

/// `subset`.
pub(super) const SUBSET: OptionSpec = OptionSpec {
    name: "subset",
    kind: OptionKind::Whole { default: 0, min: 0, max: 1 << 32 },
    help: "only so many of the training samples, the first ones; 0 = all",
};

/// `test_subset`.
pub(super) const TEST_SUBSET: OptionSpec = OptionSpec {
    name: "test_subset",
    kind: OptionKind::Whole { default: 0, min: 0, max: 1 << 32 },
    help: "only so many of the held-out samples, the first ones; 0 = all",
};

/// How the workers share the data.
pub(super) fn work_options(request: &TaskRequest) -> WorkOptions {
    let options = &request.values.options;
    // Text has no labels to divide it by, and so no such key.
    let divided = options.iter().any(|(name, _)| name == "partition");
    WorkOptions {
        workers: request.workers,
        batch: options.whole("batch") as usize,
        batches: options.reals("batches").to_vec(),
        accumulate: options.whole("accumulate") as usize,
        partition: match divided.then(|| options.text("partition")) {
            Some("dirichlet") => {
                Partition::Dirichlet { concentration: options.real("concentration") }
            }
            _ => Partition::Iid,
        },
        shared: request.shared_data,
        subset: options.whole("subset") as usize,
        test_subset: options.whole("test_subset") as usize,
        seed: request.seed,
    }
}

/// Reads the data set `name` from where `task.data` says, or from where downloads go.
pub(super) fn located<T>(
    request: &TaskRequest,
    name: &str,
    read: impl FnOnce(&Path) -> Result<T, DataError>,
) -> Result<T, RequestError> {
    let given = request.values.options.text("data");
    let field =
        |problem: String| RequestError::field("task.data", toml::Value::from(given), problem);
    if !given.is_empty() {
        return read(Path::new(given)).map_err(|error| field(error.to_string()));
    }
    let how = match catalogue::find(name) {
        Ok(_) => format!(
            "the data set {name} is not on this machine; `quelea data get {name}` fetches it, \
             or --data PATH says where it is"
        ),
        Err(_) => "--data PATH must say where the images are; quelea cannot fetch them".into(),
    };
    let home = catalogue::home(name).filter(|home| home.exists());
    let home = home.ok_or_else(|| field(how.clone()))?;
    read(&home).map_err(|error| match error {
        DataError::Missing { .. } => field(format!("{how} ({error})")),
        other => field(other.to_string()),
    })
}

/// What is wrong, by the name of the key.
pub(super) fn refused(request: &TaskRequest, error: &EngineError) -> RequestError {
    match error {
        EngineError::TooFewSamples { .. } => {
            RequestError::field("workers", request.workers, error.to_string())
        }
        other => RequestError::Conflict(format!("[task]: {other}")),
    }
}
