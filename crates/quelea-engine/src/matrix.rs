//! Products of matrices that lie in slices.

use gemm_common::Parallelism;
use rayon::prelude::*;

/// A view of numbers as a matrix.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row after row.
    pub(crate) fn new(values: &'a [f32], rows: usize, columns: usize) -> Matrix<'a> {
        assert!(values.len() >= rows * columns, "the matrix lies within the slice");
        Matrix { values, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// Rows and columns exchanged.
    pub(crate) fn transposed(self) -> Matrix<'a> {
        Matrix {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// A view of numbers as matrices of one shape, one after the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matrices<'a> {
    values: &'a [f32],
    count: usize,
    rows: usize,
    columns: usize,
    is_transposed: bool,
}

impl<'a> Matrices<'a> {
    /// As many matrices, each row after row, as the numbers hold.
    pub(crate) fn new(values: &'a [f32], rows: usize, columns: usize) -> Matrices<'a> {
        let len = rows * columns;
        assert!(values.len().is_multiple_of(len.max(1)), "whole matrices");
        let count = values.len() / len.max(1);
        Matrices { values, count, rows, columns, is_transposed: false }
    }

    /// Rows and columns of each exchanged.
    pub(crate) fn transposed(self) -> Matrices<'a> {
        Matrices { is_transposed: !self.is_transposed, ..self }
    }

    fn matrix(&self, index: usize) -> Matrix<'a> {
        let len = self.rows * self.columns;
        let matrix = Matrix::new(&self.values[index * len..][..len], self.rows, self.columns);
        if self.is_transposed { matrix.transposed() } else { matrix }
    }
}

/// What becomes of what `out` held.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Onto {
    /// It is overwritten.
    Nothing,
    /// The product is added to it.
    Itself,
}

/// From so many multiplications on, several threads are faster than one.
const WORTH_THREADS: usize = 192 * 192 * 192;

/// From so many multiplications of all matrices together on, several threads take a matrix each.
const BATCH_WORTH_THREADS: usize = 128 * 128 * 128;
/// Fewer matrices than this leave threads idle; if they are large, each is computed by all threads.
const FEW: usize = 4;

/// The product of each of `a` with the one of `b` at the same place, one after the other.
pub(crate) fn multiply_each(a: Matrices<'_>, b: Matrices<'_>) -> Vec<f32> {
    assert_eq!(a.count, b.count, "as many matrices on both sides");
    if a.count == 0 {
        return Vec::new();
    }
    let (first, second) = (a.matrix(0), b.matrix(0));
    let len = first.rows * second.columns;
    let operations = len * first.columns;
    let mut out = vec![0.0; a.count * len];
    let by_threads = a.count > 1
        && a.count * operations >= BATCH_WORTH_THREADS
        && (a.count >= FEW || operations < WORTH_THREADS);
    if by_threads {
        let products = out.par_chunks_exact_mut(len).enumerate();
        products.for_each(|(index, out)| {
            multiply_here(a.matrix(index), b.matrix(index), Onto::Nothing, out);
        });
    } else {
        for (index, out) in out.chunks_exact_mut(len).enumerate() {
            multiply(a.matrix(index), b.matrix(index), Onto::Nothing, out);
        }
    }
    out
}

/// `a · b` into `out`, row after row, by as many threads as pay.
pub(crate) fn multiply(a: Matrix<'_>, b: Matrix<'_>, onto: Onto, out: &mut [f32]) {
    let many = a.rows * a.columns * b.columns >= WORTH_THREADS;
    let parallelism = if many { Parallelism::Rayon(0) } else { Parallelism::None };
    multiply_by(a, b, onto, out, parallelism);
}

/// `a · b` into `out`, row after row, by this thread.
pub(crate) fn multiply_here(a: Matrix<'_>, b: Matrix<'_>, onto: Onto, out: &mut [f32]) {
    multiply_by(a, b, onto, out, Parallelism::None);
}

fn multiply_by(a: Matrix<'_>, b: Matrix<'_>, onto: Onto, out: &mut [f32], by: Parallelism) {
    assert_eq!(a.columns, b.rows, "what is summed over is of one length");
    assert!(out.len() >= a.rows * b.columns, "the product lies within the slice");
    // The kernels are fast where columns of the product are contiguous, and ours are rows: they
    // compute bᵀ · aᵀ into what they see as its transpose. A single column is both.
    let is_column = b.columns == 1;
    let (left, right) = if is_column { (a, b) } else { (b.transposed(), a.transposed()) };
    let (column_stride, row_stride) = if is_column { (1, 1) } else { (left.rows, 1) };
    // SAFETY: both matrices lie within their slices, which is what their constructor checks and
    // transposing keeps; the product lies within `out`, which is borrowed by nobody else.
    unsafe {
        gemm_f32::gemm::f32::get_gemm_fn()(
            left.rows,
            right.columns,
            left.columns,
            out.as_mut_ptr(),
            column_stride as isize,
            row_stride,
            onto == Onto::Itself,
            left.values.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.values.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            by,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_add_up() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let mut out = [10.0; 4];
        let left = Matrix::new(&a, 2, 3);
        multiply(left, left.transposed(), Onto::Itself, &mut out);
        assert_eq!(out, [24.0, 42.0, 42.0, 87.0]);
        multiply_here(left, left.transposed(), Onto::Nothing, &mut out);
        assert_eq!(out, [14.0, 32.0, 32.0, 77.0]);
    }

    /// Matrices that threads share, that all threads compute one by one, and that one thread
    /// computes, with either side transposed.
    #[test]
    fn batched_products_are_those_of_three_plain_loops() {
        let numbers = |count: usize, salt: usize| -> Vec<f32> {
            (0..count).map(|k| ((k * 7919 + salt) % 251) as f32 / 125.0 - 1.0).collect()
        };
        for (count, rows, inner, columns) in
            [(1, 1, 1, 1), (5, 3, 7, 2), (24, 65, 33, 70), (2, 200, 190, 210), (6, 128, 32, 128)]
        {
            let (a, b) = (numbers(count * rows * inner, 1), numbers(count * inner * columns, 2));
            for (turned_a, turned_b) in [(false, false), (true, false), (false, true), (true, true)]
            {
                let left = if turned_a {
                    Matrices::new(&a, inner, rows).transposed()
                } else {
                    Matrices::new(&a, rows, inner)
                };
                let right = if turned_b {
                    Matrices::new(&b, columns, inner).transposed()
                } else {
                    Matrices::new(&b, inner, columns)
                };
                let found = multiply_each(left, right);
                assert_eq!(found.len(), count * rows * columns);
                for (place, found) in found.iter().enumerate() {
                    let (matrix, row) = (place / (rows * columns), place / columns % rows);
                    let column = place % columns;
                    let (a, b) = (&a[matrix * rows * inner..], &b[matrix * inner * columns..]);
                    let term = |k: usize| {
                        let a = if turned_a { a[k * rows + row] } else { a[row * inner + k] };
                        let b =
                            if turned_b { b[column * inner + k] } else { b[k * columns + column] };
                        f64::from(a) * f64::from(b)
                    };
                    let sum: f64 = (0..inner).map(term).sum();
                    let size: f64 = (0..inner).map(|k| term(k).abs()).sum();
                    let error = (f64::from(*found) - sum).abs();
                    assert!(error <= 1e-6 * size, "{count} of {rows} × {inner} × {columns}");
                }
            }
        }
    }
}
