//! `logistic`: binary logistic regression on a LIBSVM file or on the embedded data.

use std::path::Path;
use std::sync::Arc;

use flate2::read::MultiGzDecoder;
use quelea_core::meta::Meta;
use quelea_core::options::{OptionKind, OptionSpec, Options};
use quelea_core::problems::dataset::Dataset;
use quelea_core::problems::logistic::{Logistic, LogisticError, LogisticOptions};
use quelea_core::problems::partition::Partition;

use super::{Built, TaskEntry, TaskRequest};
use crate::config::source::why;
use crate::error::RequestError;
use crate::files::limited::{read_limited, read_to_limit};

/// The row.
pub const TASK: TaskEntry = TaskEntry {
    meta: Meta {
        name: "logistic",
        summary: "logistic regression with two classes, on a LIBSVM file or on the embedded \
              breast-cancer data (UCI, 569 samples)",
        paper: "",
        section: "",
        file: file!(),
        options: &[
            OptionSpec {
                name: "data",
                kind: OptionKind::Text,
                help: "LIBSVM file, plain or gzip; the embedded data if absent",
            },
            OptionSpec {
                name: "test",
                kind: OptionKind::Text,
                help: "LIBSVM file that accuracy is measured on; if absent, hold_out decides",
            },
            OptionSpec {
                name: "hold_out",
                kind: OptionKind::Real { default: 0.2, min: 0.0, max: 0.9 },
                help: "share of the data that is held out for accuracy where there is no test file",
            },
            OptionSpec {
                name: "batch",
                kind: OptionKind::Whole { default: 32, min: 0, max: 1 << 32 },
                help: "samples in a worker's mini-batch; 0 = all that it has",
            },
            OptionSpec {
                name: "partition",
                kind: OptionKind::Choice(&["iid", "dirichlet"]),
                help: "who gets which samples",
            },
            OptionSpec {
                name: "concentration",
                kind: OptionKind::Real { default: 0.5, min: f64::MIN_POSITIVE, max: 1e9 },
                help: "of dirichlet: the smaller, the more the workers' data differ",
            },
            OptionSpec {
                name: "l2",
                kind: OptionKind::Real { default: 0.0, min: 0.0, max: 1e9 },
                help: "strength of the quadratic penalty on the weights",
            },
            OptionSpec {
                name: "bias",
                kind: OptionKind::Flag(true),
                help: "whether there is a bias term",
            },
            OptionSpec {
                name: "compute_ms",
                kind: OptionKind::Real { default: 0.0, min: 0.0, max: 1e6 },
                help: "how long a gradient takes at least in `train`, for experiments",
            },
        ],
    },
    extras: &[],
    build,
};

/// The longest file of data, and the longest text that a packed one may hold.
const DATA_BYTES: u64 = 8 << 30;

/// Breast Cancer Wisconsin (Diagnostic); `data/README.md` says where it comes from.
const EMBEDDED: &[u8] = include_bytes!("../../data/wdbc.libsvm");

fn build(request: &TaskRequest) -> Result<Built, RequestError> {
    let options = &request.values.options;
    let (train, test) = data(options, request.seed)?;
    let options = LogisticOptions {
        workers: request.workers,
        batch: options.whole("batch") as usize,
        partition: match options.text("partition") {
            "dirichlet" => Partition::Dirichlet { concentration: options.real("concentration") },
            _ => Partition::Iid,
        },
        shared: request.shared_data,
        bias: options.flag("bias"),
        l2: options.real("l2"),
        seed: request.seed,
    };
    let problem = Logistic::new(train, test, &options).map_err(|error| match error {
        LogisticError::TooFewSamples { .. } => {
            RequestError::field("workers", request.workers, error.to_string())
        }
        other => RequestError::Conflict(format!("[task]: {other}")),
    })?;
    let steps_per_epoch = Some(problem.steps_per_epoch());
    Ok(Built { problem: Arc::new(problem), steps_per_epoch })
}

/// Training data, and what accuracy is measured on.
fn data(options: &Options, seed: u64) -> Result<(Dataset, Option<Dataset>), RequestError> {
    let train = match options.text("data") {
        "" => Dataset::parse(EMBEDDED).expect("the embedded data were checked"),
        path => load("task.data", path)?,
    };
    match (options.text("test"), options.real("hold_out")) {
        ("", 0.0) => Ok((train, None)),
        ("", share) => {
            let (train, test) = train.hold_out(share, seed);
            Ok((train, Some(test)))
        }
        (path, _) => Ok((train, Some(load("task.test", path)?))),
    }
}

fn load(field: &str, path: &str) -> Result<Dataset, RequestError> {
    let refuse = |problem: String| RequestError::field(field, toml::Value::from(path), problem);
    let bytes = read_limited(Path::new(path), DATA_BYTES).map_err(|error| refuse(why(&error)))?;
    let text = if bytes.starts_with(&[0x1f, 0x8b]) {
        read_to_limit(MultiGzDecoder::new(bytes.as_slice()), DATA_BYTES).map_err(|error| {
            let is_damaged = error.kind() != std::io::ErrorKind::FileTooLarge;
            refuse(format!("{}{error}", if is_damaged { "is a damaged gzip file: " } else { "" }))
        })?
    } else {
        bytes
    };
    let dataset =
        Dataset::parse(&text).map_err(|error| refuse(format!("is not a LIBSVM file: {error}")))?;
    if dataset.is_empty() {
        return Err(refuse("holds no samples".to_string()));
    }
    Ok(dataset)
}
