//! PowerSGD: the mean of matrices by two thin factors (Vogels et al. 2019, Algorithm 1).
//!
//! ```text
//! per matrix M = G + e (rows × columns), r = min(rank, rows, columns), Q from the last time:
//!     P ← M·Q;       P ← Σ over all ranks           (first sum; vectors travel with it as they are)
//!     P ← orthonormal columns;   Q ← Mᵀ·P;   Q ← mean over all ranks          (second sum)
//!     mean ← P·Qᵀ;   e ← M − P·Qᵀ
//! ```
//! All ranks have the same P and Q, hence the same mean. If the mean has rank ≤ r and Q spans its
//! rows, it is exact; what is left out comes back with e. Nothing is kept before the end, so an
//! average that a lost peer has broken off can be started again.

use std::ops::Range;

use crate::codec::convert;
use crate::layout::Tensor;
use crate::payload::{Payload, Pool};
use crate::random::Rng;
use crate::state::Visitor;
use crate::vector;

/// A matrix within one part of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Matrix {
    range: Range<usize>,
    rows: usize,
    columns: usize,
    rank: usize,
}

/// Which elements of a part are matrices, and which are not worth a factor.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cut {
    matrices: Vec<Matrix>,
    vectors: Vec<Range<usize>>,
}

/// What a part remembers from average to average.
#[derive(Clone, Debug, Default)]
pub struct LowRankMemory {
    /// e; empty at first.
    pub error: Vec<f32>,
    /// All Q, one after another; empty at first.
    pub factor: Vec<f32>,
    /// The learning rate that multiplies what e was left out of; 0 where that is done already.
    rate: f64,
}

impl LowRankMemory {
    /// As [`ErrorFeedback::at_rate`](crate::codec::ErrorFeedback::at_rate).
    pub fn at_rate(&mut self, rate: f32) {
        convert(&mut self.rate, rate, &mut self.error);
    }

    /// Lists it under `name`.
    pub fn state(&mut self, name: &str, visitor: &mut dyn Visitor) {
        visitor.vector(&format!("{name}.error"), &mut self.error);
        visitor.vector(name, &mut self.factor);
        if !self.error.is_empty() {
            visitor.real(&format!("{name}.rate"), &mut self.rate);
        }
    }
}

/// One average under way.
#[derive(Debug)]
pub struct LowRank {
    /// G + e.
    whole: Payload,
    /// All P, then the vectors; after the first sum P is orthonormal and the vectors are means.
    first: Payload,
    /// All Q.
    second: Option<Payload>,
}

impl Cut {
    /// Of a part that these tensors fill, with factors of `rank` columns. What would not get
    /// smaller is left as it is.
    pub fn new<'a>(tensors: impl Iterator<Item = &'a Tensor>, rank: usize) -> Cut {
        let (mut cut, mut start) = (Cut::default(), 0);
        for tensor in tensors {
            let range = start..start + tensor.len();
            start = range.end;
            let rows = tensor.shape.first().copied().unwrap_or(1).max(1);
            let columns = tensor.len() / rows;
            let rank = rank.min(rows).min(columns);
            if tensor.shape.len() >= 2 && rank * (rows + columns) < rows * columns {
                cut.matrices.push(Matrix { range, rows, columns, rank });
            } else {
                cut.vectors.push(range);
            }
        }
        cut
    }

    /// Whether there is anything to gain.
    pub fn has_matrices(&self) -> bool {
        !self.matrices.is_empty()
    }

    /// Elements of the first sum.
    pub fn first_len(&self) -> usize {
        self.rows() + self.vectors.iter().map(Range::len).sum::<usize>()
    }

    /// Elements of the second sum.
    pub fn second_len(&self) -> usize {
        self.matrices.iter().map(|matrix| matrix.columns * matrix.rank).sum()
    }

    fn rows(&self) -> usize {
        self.matrices.iter().map(|matrix| matrix.rows * matrix.rank).sum()
    }

    /// Q at the very first: the same random numbers at all ranks.
    fn random_factor(&self, seed: u64) -> Vec<f32> {
        let mut rng = Rng::new(seed, "power-sgd", 0);
        (0..self.second_len()).map(|_| rng.normal() as f32).collect()
    }
}

impl LowRank {
    /// Begins with `data`; [`first`](LowRank::first) is to be summed.
    pub fn begin(cut: &Cut, memory: &mut LowRankMemory, data: &[f32], pool: &Pool) -> LowRank {
        memory.error.resize(data.len(), 0.0);
        if memory.factor.is_empty() {
            memory.factor = cut.random_factor(cut.second_len() as u64);
        }
        let mut whole = pool.copy(data);
        vector::add(&memory.error, sole(&mut whole));
        let mut first = pool.take(cut.first_len());
        let (mut at, mut q) = (0, 0);
        for matrix in &cut.matrices {
            let (m, factor) = (&whole[matrix.range.clone()], &memory.factor[q..]);
            let out = &mut sole(&mut first)[at..at + matrix.rows * matrix.rank];
            multiply(matrix, m, factor, out);
            (at, q) = (at + out.len(), q + matrix.columns * matrix.rank);
        }
        for range in &cut.vectors {
            sole(&mut first)[at..at + range.len()].copy_from_slice(&data[range.clone()]);
            at += range.len();
        }
        LowRank { whole, first, second: None }
    }

    /// The vector of the first sum.
    pub fn first(&self) -> &[f32] {
        &self.first
    }

    /// The vector of the second sum, once the first is there.
    pub fn second(&self) -> &[f32] {
        self.second.as_deref().unwrap_or_default()
    }

    /// The first sum is there, as a mean; makes the vector of the second.
    pub fn turn(&mut self, cut: &Cut, mean: &[f32], pool: &Pool) {
        let mut first = pool.copy(mean);
        let mut second = pool.take(cut.second_len());
        let (mut p, mut q) = (0, 0);
        for matrix in &cut.matrices {
            let left = &mut sole(&mut first)[p..p + matrix.rows * matrix.rank];
            orthonormalise(left, matrix.rank);
            let right = &mut sole(&mut second)[q..q + matrix.columns * matrix.rank];
            multiply_transposed(matrix, &self.whole[matrix.range.clone()], left, right);
            (p, q) = (p + left.len(), q + right.len());
        }
        (self.first, self.second) = (first, Some(second));
    }

    /// The second sum is there, as a mean: writes the mean of the matrices and vectors over `data`
    /// and remembers what is left out.
    pub fn end(self, cut: &Cut, memory: &mut LowRankMemory, mean: &[f32], data: &mut [f32]) {
        let (mut p, mut q) = (0, 0);
        for matrix in &cut.matrices {
            let left = &self.first[p..p + matrix.rows * matrix.rank];
            let right = &mean[q..q + matrix.columns * matrix.rank];
            let (out, error) = (&mut data[matrix.range.clone()], &mut memory.error);
            outer(matrix, left, right, out);
            let whole = self.whole[matrix.range.clone()].iter().zip(&*out);
            for (error, (whole, sent)) in error[matrix.range.clone()].iter_mut().zip(whole) {
                let rest = whole - sent;
                *error = if rest.is_finite() { rest } else { 0.0 };
            }
            (p, q) = (p + left.len(), q + right.len());
        }
        for range in &cut.vectors {
            data[range.clone()].copy_from_slice(&self.first[p..p + range.len()]);
            p += range.len();
        }
        if mean.iter().all(|x| x.is_finite()) {
            memory.factor.copy_from_slice(mean);
        }
    }
}

fn sole(payload: &mut Payload) -> &mut [f32] {
    payload.try_mut().expect("just taken, so held by nobody else")
}

/// `out (rows × r) ← m (rows × columns) · q (columns × r)`.
fn multiply(matrix: &Matrix, m: &[f32], q: &[f32], out: &mut [f32]) {
    let rank = matrix.rank;
    for (row, out) in m.chunks_exact(matrix.columns).zip(out.chunks_exact_mut(rank)) {
        out.fill(0.0);
        for (value, factor) in row.iter().zip(q.chunks_exact(rank)) {
            add_scaled(*value, factor, out);
        }
    }
}

/// `out ← out + a·x`, for a handful of elements.
fn add_scaled(a: f32, x: &[f32], out: &mut [f32]) {
    out.iter_mut().zip(x).for_each(|(out, x)| *out += a * x);
}

/// `out (columns × r) ← mᵀ · p (rows × r)`.
fn multiply_transposed(matrix: &Matrix, m: &[f32], p: &[f32], out: &mut [f32]) {
    let rank = matrix.rank;
    out.fill(0.0);
    for (row, factor) in m.chunks_exact(matrix.columns).zip(p.chunks_exact(rank)) {
        for (value, out) in row.iter().zip(out.chunks_exact_mut(rank)) {
            add_scaled(*value, factor, out);
        }
    }
}

/// `out (rows × columns) ← p · qᵀ`.
fn outer(matrix: &Matrix, p: &[f32], q: &[f32], out: &mut [f32]) {
    let rank = matrix.rank;
    for (row, left) in out.chunks_exact_mut(matrix.columns).zip(p.chunks_exact(rank)) {
        for (value, right) in row.iter_mut().zip(q.chunks_exact(rank)) {
            *value = left.iter().zip(right).map(|(a, b)| a * b).sum();
        }
    }
}

/// Below this share of its length a column that lost its projections is noise, not direction.
const EPSILON: f64 = 1e-7;

/// Makes the `rank` columns of `p` (rows × rank) orthonormal, by Gram and Schmidt, twice. A column
/// that depends on the ones before it becomes 0.
fn orthonormalise(p: &mut [f32], rank: usize) {
    let dot = |p: &[f32], a: usize, b: usize| -> f64 {
        let rows = p.chunks_exact(rank);
        rows.map(|row| f64::from(row[a]) * f64::from(row[b])).sum()
    };
    for column in 0..rank {
        let length = dot(p, column, column).sqrt();
        for _ in 0..2 {
            for before in 0..column {
                let along = dot(p, before, column);
                for row in p.chunks_exact_mut(rank) {
                    row[column] = (f64::from(row[column]) - along * f64::from(row[before])) as f32;
                }
            }
        }
        let rest = dot(p, column, column).sqrt();
        let scale = if rest > EPSILON * length && rest.is_finite() { 1.0 / rest } else { 0.0 };
        p.chunks_exact_mut(rank)
            .for_each(|row| row[column] = (f64::from(row[column]) * scale) as f32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(shape: &[usize]) -> Tensor {
        Tensor { name: "t".to_string(), shape: shape.to_vec() }
    }

    /// One average over the data of all ranks, by plain sums.
    fn average(cut: &Cut, memories: &mut [LowRankMemory], data: &[Vec<f32>]) -> Vec<Vec<f32>> {
        let (pool, n) = (Pool::new(), data.len() as f32);
        let mean = |vectors: Vec<Vec<f32>>| -> Vec<f32> {
            let sum = |k| vectors.iter().map(|vector: &Vec<f32>| vector[k]).sum::<f32>() / n;
            (0..vectors[0].len()).map(sum).collect()
        };
        let each = memories.iter_mut().zip(data);
        let mut under_way: Vec<LowRank> =
            each.map(|(memory, data)| LowRank::begin(cut, memory, data, &pool)).collect();
        let first = mean(under_way.iter().map(|one| one.first().to_vec()).collect());
        under_way.iter_mut().for_each(|one| one.turn(cut, &first, &pool));
        let second = mean(under_way.iter().map(|one| one.second().to_vec()).collect());
        let end = |((one, memory), data): ((LowRank, &mut LowRankMemory), &Vec<f32>)| {
            let mut out = data.clone();
            one.end(cut, memory, &second, &mut out);
            out
        };
        under_way.into_iter().zip(memories).zip(data).map(end).collect()
    }

    fn close(a: &[f32], b: &[f32], tolerance: f32) -> bool {
        a.iter().zip(b).all(|(a, b)| (a - b).abs() <= tolerance)
    }

    #[test]
    fn a_mean_of_low_rank_is_exact_once_its_rows_are_spanned() {
        let (rows, columns) = (6, 9);
        let cut = Cut::new([tensor(&[rows, columns]), tensor(&[5])].iter(), 2);
        assert_eq!((cut.first_len(), cut.second_len()), (2 * rows + 5, 2 * columns));
        let mut rng = Rng::new(3, "low rank", 0);
        let mut normals = |len| (0..len).map(|_| rng.normal() as f32).collect::<Vec<f32>>();
        let (left, right) = (normals(2 * rows), normals(2 * columns));
        let matrix = Matrix { range: 0..0, rows, columns, rank: 2 };
        let mut mean = vec![0.0; rows * columns];
        outer(&matrix, &left, &right, &mut mean);
        mean.extend(normals(5));
        let noise = normals(mean.len());
        let data: Vec<Vec<f32>> = [1.0f32, -1.0]
            .iter()
            .map(|sign| mean.iter().zip(&noise).map(|(m, e)| m + sign * e).collect())
            .collect();
        let mut memories = vec![LowRankMemory::default(); 2];
        let out = average(&cut, &mut memories, &data);
        assert_eq!(out[0], out[1], "replicas have the same bits");
        assert!(close(&out[0], &mean, 1e-4), "a random Q spans the rows with probability one");
    }

    #[test]
    fn what_is_left_out_comes_back() {
        let cut = Cut::new([tensor(&[8, 8])].iter(), 1);
        let mut rng = Rng::new(5, "low rank", 0);
        let data: Vec<Vec<f32>> =
            (0..3).map(|_| (0..64).map(|_| rng.normal() as f32).collect()).collect();
        let mut memories = vec![LowRankMemory::default(); 3];
        let (mut sum, steps) = (vec![0.0f64; 64], 400);
        for _ in 0..steps {
            let out = average(&cut, &mut memories, &data);
            sum.iter_mut().zip(&out[0]).for_each(|(sum, x)| *sum += f64::from(*x));
        }
        for k in 0..64 {
            let mean = data.iter().map(|one| f64::from(one[k])).sum::<f64>() / 3.0;
            assert!((sum[k] / f64::from(steps) - mean).abs() < 0.05, "{k}");
        }
    }

    #[test]
    fn full_rank_leaves_matrices_as_they_are() {
        let cut = Cut::new([tensor(&[4, 4]), tensor(&[2, 3, 4])].iter(), 100);
        assert!(!cut.has_matrices() && cut.first_len() == 40, "factors would not be smaller");
    }

    #[test]
    fn dependent_columns_and_zeros_do_no_harm() {
        let mut p = [1.0, 2.0, 1.0, 2.0];
        orthonormalise(&mut p, 2);
        assert!((p[0] - 0.5f32.sqrt()).abs() < 1e-6 && p[1] == 0.0 && p[3] == 0.0, "{p:?}");
        let mut zeros = [0.0; 4];
        orthonormalise(&mut zeros, 2);
        assert_eq!(zeros, [0.0; 4]);
    }
}
