//! `quadratic`: `f_i(x) = ½ Σ_k curvature[i][k]·(x_k − target[i][k])²`, one row per worker.

use std::sync::Arc;

use quelea_core::meta::Meta;
use quelea_core::options::{OptionKind, OptionSpec};
use quelea_core::problems::quadratic::{Quadratic, QuadraticError, QuadraticOptions};

use super::{Built, TaskEntry, TaskRequest};
use crate::config::section::{ExtraKey, ExtraShape, list};
use crate::error::RequestError;

/// The row.
pub const TASK: TaskEntry = TaskEntry {
    meta: Meta {
        name: "quadratic",
        summary: "f_i(x) = ½ Σ_k curvature[i][k]·(x_k − target[i][k])², one row per worker",
        paper: "",
        section: "",
        file: file!(),
        options: &[
            OptionSpec {
                name: "dimensions",
                kind: OptionKind::Whole { default: 0, min: 0, max: 1 << 32 },
                help: "length of the vector; a row of one number is then repeated; 0 = as the rows say",
            },
            OptionSpec {
                name: "start",
                kind: OptionKind::Reals,
                help: "where all workers start; 0 if absent",
            },
            OptionSpec {
                name: "noise_std",
                kind: OptionKind::Real { default: 0.0, min: 0.0, max: 1e30 },
                help: "standard deviation of seeded noise on every entry of a gradient",
            },
            OptionSpec {
                name: "compute_ms",
                kind: OptionKind::Real { default: 0.0, min: 0.0, max: 1e6 },
                help: "how long a gradient takes at least in `train`, for experiments",
            },
        ],
    },
    extras: &[
        ExtraKey {
            name: "curvature",
            shape: ExtraShape::Matrix,
            help: "one row per worker; 1 if absent",
        },
        ExtraKey {
            name: "target",
            shape: ExtraShape::Matrix,
            help: "one row per worker; the worker's number, from 1, if absent",
        },
    ],
    build,
};

fn build(request: &TaskRequest) -> Result<Built, RequestError> {
    let (values, workers) = (request.values, request.workers);
    let dimensions = match values.options.whole("dimensions") {
        0 if values.matrix("curvature").or(values.matrix("target")).is_none() => Some(10),
        0 => None,
        dimensions => Some(dimensions as usize),
    };
    let width = values.matrix("curvature").or(values.matrix("target")).map_or(1, first_width);
    let width = if dimensions.is_some() { 1 } else { width };
    let given = |name: &str, default: &dyn Fn(usize) -> f64| match values.matrix(name) {
        Some(rows) => rows.to_vec(),
        None => (0..workers).map(|worker| vec![default(worker); width]).collect(),
    };
    let options = QuadraticOptions {
        workers,
        dimensions,
        curvature: given("curvature", &|_| 1.0),
        target: given("target", &|worker| worker as f64 + 1.0),
        start: values.options.reals("start").to_vec(),
        noise_std: values.options.real("noise_std"),
        seed: request.seed,
    };
    let problem = Quadratic::new(&options).map_err(|error| refused(request, &error))?;
    Ok(Built { problem: Arc::new(problem), steps_per_epoch: None })
}

fn first_width(rows: &[Vec<f64>]) -> usize {
    rows.first().map_or(1, Vec::len)
}

/// The core's refusal with the field's full path; the field may come with a row, `target[2]`.
fn refused(request: &TaskRequest, error: &QuadraticError) -> RequestError {
    let field = match error {
        QuadraticError::Rows { field, .. } => field,
        QuadraticError::Columns { field, .. } | QuadraticError::NotFinite { field, .. } => {
            field.split('[').next().unwrap_or(field)
        }
        QuadraticError::Noise { .. } => "noise_std",
        QuadraticError::Empty => "dimensions",
    };
    let given = match request.values.matrix(field) {
        Some(rows) => {
            let rows: Vec<String> = rows.iter().map(|row| list(row)).collect();
            format!("[{}]", rows.join(", "))
        }
        None => list(request.values.options.reals("start")),
    };
    RequestError::field(format!("task.{field}"), given, error.to_string())
}
