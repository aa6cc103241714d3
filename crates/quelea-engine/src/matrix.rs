//! Products of matrices that lie in slices.

use gemm::Parallelism;

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
    let read = onto == Onto::Itself;
    // SAFETY: both matrices lie within their slices, which is what their constructor checks and
    // transposing keeps; the product lies within `out`, which is borrowed by nobody else.
    unsafe {
        gemm::gemm(
            a.rows,
            b.columns,
            a.columns,
            out.as_mut_ptr(),
            1,
            b.columns as isize,
            read,
            a.values.as_ptr(),
            a.column_stride as isize,
            a.row_stride as isize,
            b.values.as_ptr(),
            b.column_stride as isize,
            b.row_stride as isize,
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
}
