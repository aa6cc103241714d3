//! Quadratics, one per worker, for checking mathematics from outside:
//! `f_i(x) = ½ Σ_k curvature[i][k]·(x_k − target[i][k])²`, and the loss is the mean of the `f_i`.

use std::sync::Arc;

use super::{Computed, Evaluation, GradientSource, Problem};
use crate::node::loan::Loan;
use crate::random::Rng;
use crate::vector;
use crate::vector::dispatch::{Level, kernel};

/// What a quadratic problem is made of.
#[derive(Clone, Debug, Default)]
pub struct QuadraticOptions {
    /// How many workers there are.
    pub workers: usize,
    /// Length of the vector; with it, a row of one number stands for that number repeated.
    /// Without it, the rows say.
    pub dimensions: Option<usize>,
    /// One row per worker.
    pub curvature: Vec<Vec<f64>>,
    /// One row per worker.
    pub target: Vec<Vec<f64>>,
    /// Where all workers start; empty means 0.
    pub start: Vec<f64>,
    /// Standard deviation of the Gaussian noise on every entry of a gradient.
    pub noise_std: f64,
    /// Seeds the noise.
    pub seed: u64,
}

/// Why a quadratic problem was refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum QuadraticError {
    /// There must be one row per worker.
    #[error("`{field}` has {given} rows; one per worker is needed, {workers} in all")]
    Rows {
        /// `curvature` or `target`.
        field: &'static str,
        /// Rows given.
        given: usize,
        /// Rows needed.
        workers: usize,
    },
    /// A row is too short or too long.
    #[error("`{field}` has {given} numbers; {expected}")]
    Columns {
        /// The field, and the row if there are several.
        field: String,
        /// Numbers given.
        given: usize,
        /// What is allowed.
        expected: String,
    },
    /// Infinite or not a number.
    #[error("`{field}` holds {given} at position {position}; only finite numbers are allowed")]
    NotFinite {
        /// The field, and the row if there are several.
        field: String,
        /// What stands there.
        given: f64,
        /// Where, from 0.
        position: usize,
    },
    /// A negative or non-finite standard deviation.
    #[error("`noise_std` = {given}: must be a number of at least 0")]
    Noise {
        /// What was given.
        given: f64,
    },
    /// A vector without elements.
    #[error("`dimensions` = 0: must be at least 1")]
    Empty,
}

/// Quadratics, one per worker.
#[derive(Debug)]
pub struct Quadratic {
    dimensions: usize,
    workers: Arc<[Worker]>,
    start: Row,
    noise_std: f64,
    seed: u64,
}

/// The function of one worker.
#[derive(Clone, Debug)]
struct Worker {
    curvature: Row,
    target: Row,
}

impl Quadratic {
    /// Checks the options.
    pub fn new(options: &QuadraticOptions) -> Result<Quadratic, QuadraticError> {
        assert!(options.workers > 0, "a run has at least one worker");
        let by_rows = options.curvature.first().map_or(0, Vec::len);
        let shape = Shape {
            dimensions: options.dimensions.unwrap_or(by_rows),
            repeats: options.dimensions.is_some(),
            workers: options.workers,
        };
        let curvature = shape.rows("curvature", &options.curvature)?;
        let target = shape.rows("target", &options.target)?;
        if shape.dimensions == 0 {
            return Err(QuadraticError::Empty);
        }
        if !(options.noise_std >= 0.0 && options.noise_std.is_finite()) {
            return Err(QuadraticError::Noise { given: options.noise_std });
        }
        let start = match options.start.as_slice() {
            [] => Row::repeated(0.0, shape.dimensions),
            start => shape.row("start".into(), start)?,
        };
        let pairs = curvature.into_iter().zip(target);
        Ok(Quadratic {
            dimensions: shape.dimensions,
            workers: pairs.map(|(curvature, target)| Worker { curvature, target }).collect(),
            start,
            noise_std: options.noise_std,
            seed: options.seed,
        })
    }
}

impl Problem for Quadratic {
    fn dimensions(&self) -> usize {
        self.dimensions
    }

    fn initial(&self) -> Vec<f32> {
        match &self.start {
            Row::Repeated(block) => vec![block[0]; self.dimensions],
            Row::Full(values) => values.to_vec(),
        }
    }

    fn source(&self, rank: usize) -> Box<dyn GradientSource> {
        Box::new(Source {
            worker: self.workers[rank % self.workers.len()].clone(),
            dimensions: self.dimensions,
            noise_std: self.noise_std,
            noise: (self.seed, format!("quadratic.noise.{rank}")),
        })
    }

    fn evaluate(&self, params: &[f32]) -> Evaluation {
        let mut gradient = [0.0; BLOCK];
        let mut loss = |worker: &Worker| {
            let blocks = params.chunks(BLOCK).enumerate();
            blocks.map(|(index, x)| worker.block(index, x, &mut gradient[..x.len()])).sum::<f64>()
        };
        let sum: f64 = self.workers.iter().map(&mut loss).sum();
        Evaluation::of_loss(sum / self.workers.len() as f64)
    }
}

/// The gradient source of one worker.
struct Source {
    worker: Worker,
    dimensions: usize,
    noise_std: f64,
    /// Seed and name of the noise's streams, one per step.
    noise: (u64, String),
}

impl GradientSource for Source {
    fn gradient(&mut self, loan: &mut Loan, ready: &mut dyn FnMut(usize)) -> Computed {
        assert_eq!(loan.len(), self.dimensions, "lengths agree");
        let noisy = self.noise_std > 0.0;
        let mut rng = noisy.then(|| Rng::new(self.noise.0, &self.noise.1, loan.step()));
        let mut loss = 0.0;
        for (index, start) in (0..self.dimensions).step_by(BLOCK).enumerate() {
            let end = (start + BLOCK).min(self.dimensions);
            let (x, grad) = loan.vectors_at(start..end);
            loss += self.worker.block(index, x, grad);
            if let Some(rng) = &mut rng {
                grad.iter_mut().for_each(|g| *g += (self.noise_std * rng.normal()) as f32);
            }
            loan.hand_over(end, ready);
        }
        Computed { loss: loss as f32, samples: 1 }
    }

    fn operations(&self) -> u64 {
        let per_entry = if self.noise_std > 0.0 { 100 } else { 4 };
        self.dimensions as u64 * per_entry
    }
}

/// Elements of a block: those of all inputs stay in the fastest cache.
const BLOCK: usize = 1024;
/// A block of at most so many is short.
const SHORT_BLOCK: usize = 64;

impl Worker {
    /// Writes the gradient of block `index` and returns the block's part of the loss.
    fn block(&self, index: usize, x: &[f32], grad: &mut [f32]) -> f64 {
        // Zeros that nobody needs would take longer than all else in a short block.
        if x.len() <= SHORT_BLOCK {
            self.block_with(&mut [0.0; SHORT_BLOCK][..x.len()], index, x, grad)
        } else {
            self.block_with(&mut [0.0; BLOCK][..x.len()], index, x, grad)
        }
    }

    /// As [`block`](Worker::block), with memory for the distances from the target.
    fn block_with(&self, distance: &mut [f32], index: usize, x: &[f32], grad: &mut [f32]) -> f64 {
        let start = index * BLOCK;
        let curvature = self.curvature.part(start, x.len());
        let target = self.target.part(start, x.len());
        write_gradient(Level::best(), curvature, target, x, distance, grad);
        0.5 * vector::dot(grad, distance)
    }
}

kernel! {
    fn write_gradient(
        curvature: &[f32],
        target: &[f32],
        x: &[f32],
        distance: &mut [f32],
        grad: &mut [f32],
    ) {
        for ((distance, x), target) in distance.iter_mut().zip(x).zip(target) {
            *distance = x - target;
        }
        for ((grad, curvature), distance) in grad.iter_mut().zip(curvature).zip(distance) {
            *grad = curvature * *distance;
        }
    }
}

/// A row of numbers.
#[derive(Clone, Debug)]
enum Row {
    /// One number, spelt out for one block.
    Repeated(Arc<[f32]>),
    Full(Arc<[f32]>),
}

impl Row {
    fn repeated(value: f64, dimensions: usize) -> Row {
        Row::Repeated(vec![value as f32; dimensions.min(BLOCK)].into())
    }

    /// The `len` entries from `start` on, within one block.
    fn part(&self, start: usize, len: usize) -> &[f32] {
        match self {
            Row::Repeated(block) => &block[..len],
            Row::Full(values) => &values[start..start + len],
        }
    }
}

/// What rows are checked against.
struct Shape {
    dimensions: usize,
    repeats: bool,
    workers: usize,
}

impl Shape {
    fn rows(&self, field: &'static str, rows: &[Vec<f64>]) -> Result<Vec<Row>, QuadraticError> {
        if rows.len() != self.workers {
            return Err(QuadraticError::Rows { field, given: rows.len(), workers: self.workers });
        }
        let named = rows.iter().enumerate();
        named.map(|(index, row)| self.row(format!("{field}[{index}]"), row)).collect()
    }

    fn row(&self, field: String, row: &[f64]) -> Result<Row, QuadraticError> {
        if let Some(position) = row.iter().position(|value| !value.is_finite()) {
            return Err(QuadraticError::NotFinite { field, given: row[position], position });
        }
        match row {
            [value] if self.repeats => Ok(Row::repeated(*value, self.dimensions)),
            _ if row.len() == self.dimensions => {
                Ok(Row::Full(row.iter().map(|value| *value as f32).collect()))
            }
            _ => {
                Err(QuadraticError::Columns { field, given: row.len(), expected: self.expected() })
            }
        }
    }

    fn expected(&self) -> String {
        if self.repeats {
            format!("1 or `dimensions` = {} are allowed", self.dimensions)
        } else {
            format!("{} are needed, as in `curvature[0]`", self.dimensions)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problems::gradient_at;

    fn options() -> QuadraticOptions {
        QuadraticOptions {
            workers: 2,
            curvature: vec![vec![1.0, 2.0], vec![3.0, 0.5]],
            target: vec![vec![1.0, -1.0], vec![0.0, 4.0]],
            ..QuadraticOptions::default()
        }
    }

    fn refusal(change: impl FnOnce(&mut QuadraticOptions)) -> String {
        let mut options = options();
        change(&mut options);
        Quadratic::new(&options).expect_err("refused").to_string()
    }

    fn gradient(problem: &Quadratic, rank: usize, step: u64, x: &[f32]) -> (f32, Vec<f32>) {
        let (computed, grad) = gradient_at(&mut *problem.source(rank), step, x);
        (computed.loss, grad)
    }

    #[test]
    fn losses_and_gradients_are_those_worked_out_by_hand() {
        let problem = Quadratic::new(&options()).expect("good options");
        assert_eq!(problem.initial(), [0.0, 0.0]);
        assert_eq!(gradient(&problem, 0, 0, &[3.0, 1.0]), (6.0, vec![2.0, 4.0]));
        assert_eq!(gradient(&problem, 1, 0, &[3.0, 1.0]), (15.75, vec![9.0, -1.5]));
        let evaluation = problem.evaluate(&[3.0, 1.0]);
        assert_eq!((evaluation.loss, evaluation.accuracy()), (10.875, None));
    }

    #[test]
    fn a_repeated_number_is_the_row_spelt_out() {
        let d = 2 * BLOCK + 7;
        let repeated = |start: Vec<f64>, times: usize| QuadraticOptions {
            workers: 1,
            dimensions: Some(d),
            curvature: vec![vec![1.7; times]],
            target: vec![vec![0.3; times]],
            start,
            ..QuadraticOptions::default()
        };
        let short = Quadratic::new(&repeated(vec![2.0], 1)).expect("good options");
        let long = Quadratic::new(&repeated(vec![2.0; d], d)).expect("good options");
        let x = short.initial();
        assert_eq!(x, long.initial());
        assert_eq!(gradient(&short, 0, 0, &x), gradient(&long, 0, 0, &x));
        assert_eq!(short.evaluate(&x), long.evaluate(&x));
        let expected = 0.5 * 1.7 * 1.7f64.powi(2) * d as f64;
        assert!((short.evaluate(&x).loss / expected - 1.0).abs() < 1e-6);
    }

    #[test]
    fn noise_depends_on_seed_rank_and_step_alone() {
        let with_seed = |seed| {
            let options = QuadraticOptions { noise_std: 0.5, seed, ..options() };
            Quadratic::new(&options).expect("good options")
        };
        let noise = |seed, rank, step| gradient(&with_seed(seed), rank, step, &[1.0, -1.0]).1;
        assert_eq!(noise(1, 0, 3), noise(1, 0, 3));
        assert_ne!(noise(1, 0, 3), noise(2, 0, 3));
        assert_ne!(noise(1, 0, 3), noise(1, 0, 4));
        let noise_of = |rank, clean: [f32; 2]| -> Vec<f32> {
            noise(1, rank, 3).iter().zip(clean).map(|(noisy, clean)| noisy - clean).collect()
        };
        assert_ne!(noise_of(0, [0.0, 0.0]), noise_of(1, [3.0, -2.5]));
        let draws: Vec<f32> = (0..5000).flat_map(|step| noise(1, 0, step)).collect();
        let variance = draws.iter().map(|x| x * x).sum::<f32>() / draws.len() as f32;
        assert!((variance - 0.25).abs() < 0.02, "{variance}");
    }

    #[test]
    fn refusals_name_the_field_the_row_and_what_is_expected() {
        assert_eq!(
            refusal(|options| options.target.truncate(1)),
            "`target` has 1 rows; one per worker is needed, 2 in all"
        );
        assert_eq!(
            refusal(|options| options.target[1] = vec![1.0; 3]),
            "`target[1]` has 3 numbers; 2 are needed, as in `curvature[0]`"
        );
        assert_eq!(
            refusal(|options| options.dimensions = Some(5)),
            "`curvature[0]` has 2 numbers; 1 or `dimensions` = 5 are allowed"
        );
        assert_eq!(
            refusal(|options| options.start = vec![1.0]),
            "`start` has 1 numbers; 2 are needed, as in `curvature[0]`"
        );
        assert_eq!(
            refusal(|options| options.curvature[1][1] = f64::NAN),
            "`curvature[1]` holds NaN at position 1; only finite numbers are allowed"
        );
        assert!(refusal(|options| options.noise_std = -1.0).contains("at least 0"));
        assert!(refusal(|options| options.noise_std = f64::INFINITY).contains("at least 0"));
        let empty = |options: &mut QuadraticOptions| {
            (options.curvature, options.target) = (vec![vec![]; 2], vec![vec![]; 2]);
        };
        assert!(refusal(empty).contains("at least 1"));
    }
}
