//! Eigenvalues of symmetric matrices: Householder's reduction to three diagonals, then implicit QL
//! steps with Wilkinson's shift (Golub and Van Loan, Matrix Computations, Section 8.3).

/// A square matrix, row by row.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SquareMatrix {
    size: usize,
    values: Vec<f64>,
}

impl SquareMatrix {
    pub(super) fn zeros(size: usize) -> SquareMatrix {
        SquareMatrix { size, values: vec![0.0; size * size] }
    }

    pub(super) fn identity(size: usize) -> SquareMatrix {
        let mut identity = SquareMatrix::zeros(size);
        (0..size).for_each(|i| identity.row_mut(i)[i] = 1.0);
        identity
    }

    pub(super) fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.size..][..self.size]
    }

    pub(super) fn row_mut(&mut self, i: usize) -> &mut [f64] {
        &mut self.values[i * self.size..][..self.size]
    }

    /// Adds a number to every element.
    pub(super) fn shift(&mut self, by: f64) {
        self.values.iter_mut().for_each(|value| *value += by);
    }

    /// `AᵀA`.
    pub(super) fn gram(&self) -> SquareMatrix {
        let mut gram = SquareMatrix::zeros(self.size);
        for k in 0..self.size {
            let row = self.row(k);
            for (i, factor) in row.iter().enumerate().filter(|(_, factor)| **factor != 0.0) {
                gram.row_mut(i).iter_mut().zip(row).for_each(|(sum, value)| *sum += factor * value);
            }
        }
        gram
    }

    /// The eigenvalues of a symmetric matrix, in no order.
    pub(super) fn symmetric_eigenvalues(mut self) -> Vec<f64> {
        let (mut diagonal, mut beside) = self.tridiagonal();
        for first in 0..self.size {
            while let Some(last) = end_of_block(&diagonal, &beside, first) {
                ql_step(&mut diagonal, &mut beside, first, last);
            }
        }
        diagonal
    }

    /// The diagonal and what stands beside it of a matrix with the same eigenvalues and zeros
    /// everywhere else; the second list ends with a zero.
    fn tridiagonal(&mut self) -> (Vec<f64>, Vec<f64>) {
        let n = self.size;
        let mut beside: Vec<f64> = (0..n.saturating_sub(1)).map(|k| self.reflect(k)).collect();
        beside.push(0.0);
        ((0..n).map(|i| self.row(i)[i]).collect(), beside)
    }

    /// Reflects rows and columns from `k + 1` on so that row `k` has one element beside the
    /// diagonal, which is returned.
    fn reflect(&mut self, k: usize) -> f64 {
        let n = self.size;
        let mut v = self.row(k)[k + 1..].to_vec();
        let length = v.iter().map(|x| x * x).sum::<f64>().sqrt();
        let alpha = if v[0] > 0.0 { -length } else { length };
        v[0] -= alpha;
        let norm = v.iter().map(|x| x * x).sum::<f64>().sqrt();
        if norm == 0.0 {
            return alpha;
        }
        v.iter_mut().for_each(|x| *x /= norm);
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let mut w: Vec<f64> = (k + 1..n).map(|i| dot(&self.row(i)[k + 1..], &v)).collect();
        let share = dot(&v, &w);
        w.iter_mut().zip(&v).for_each(|(w, v)| *w -= share * v);
        for i in 0..v.len() {
            let (vi, wi) = (2.0 * v[i], 2.0 * w[i]);
            let row = &mut self.row_mut(k + 1 + i)[k + 1..];
            for (value, (v, w)) in row.iter_mut().zip(v.iter().zip(&w)) {
                *value -= vi * w + wi * v;
            }
        }
        alpha
    }
}

/// The last index of the block that begins at `first` and is not divided by a negligible element;
/// `None` if `first` stands alone.
fn end_of_block(diagonal: &[f64], beside: &[f64], first: usize) -> Option<usize> {
    let is_negligible = |i: &usize| {
        let around = diagonal[*i].abs() + diagonal[i + 1].abs();
        beside[*i].abs() <= f64::EPSILON * around
    };
    let last = (first..diagonal.len() - 1).find(is_negligible).unwrap_or(diagonal.len() - 1);
    (last > first).then_some(last)
}

/// One implicit QL step on the block from `first` to `last`.
fn ql_step(diagonal: &mut [f64], beside: &mut [f64], first: usize, last: usize) {
    let slope = (diagonal[first + 1] - diagonal[first]) / (2.0 * beside[first]);
    let root = slope.hypot(1.0).copysign(slope);
    let mut g = diagonal[last] - diagonal[first] + beside[first] / (slope + root);
    let (mut sine, mut cosine, mut shift) = (1.0, 1.0, 0.0);
    for i in (first..last).rev() {
        let (f, b) = (sine * beside[i], cosine * beside[i]);
        let length = f.hypot(g);
        beside[i + 1] = length;
        if length == 0.0 {
            diagonal[i + 1] -= shift;
            beside[last] = 0.0;
            return;
        }
        (sine, cosine) = (f / length, g / length);
        g = diagonal[i + 1] - shift;
        let turned = (diagonal[i] - g) * sine + 2.0 * cosine * b;
        shift = sine * turned;
        diagonal[i + 1] = g + shift;
        g = cosine * turned - b;
    }
    diagonal[first] -= shift;
    beside[first] = g;
    beside[last] = 0.0;
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::Rng;

    fn of(size: usize, value: impl Fn(usize, usize) -> f64) -> SquareMatrix {
        let mut matrix = SquareMatrix::zeros(size);
        for i in 0..size {
            (0..size).for_each(|j| matrix.row_mut(i)[j] = value(i, j));
        }
        matrix
    }

    fn sorted(matrix: SquareMatrix) -> Vec<f64> {
        let mut values = matrix.symmetric_eigenvalues();
        values.sort_by(f64::total_cmp);
        values
    }

    /// The path graph's Laplacian has the eigenvalues 2 − 2·cos(kπ/n).
    #[test]
    fn eigenvalues_of_a_path_are_the_known_ones() {
        for n in [1, 2, 3, 10, 57] {
            let path = of(n, |i, j| match i.abs_diff(j) {
                0 if n == 1 => 0.0,
                0 if i == 0 || i == n - 1 => 1.0,
                0 => 2.0,
                1 => -1.0,
                _ => 0.0,
            });
            for (k, found) in sorted(path).into_iter().enumerate() {
                let angle = std::f64::consts::PI * k as f64 / n as f64;
                assert!((found - (2.0 - 2.0 * angle.cos())).abs() < 1e-12, "{n} {k}: {found}");
            }
        }
    }

    /// `Q·D·Qᵀ` with a reflection Q has the eigenvalues D, also where some are equal.
    #[test]
    fn eigenvalues_of_a_turned_diagonal_are_the_diagonal() {
        let n = 40;
        let mut rng = Rng::new(3, "test", 0);
        let mut axis: Vec<f64> = (0..n).map(|_| rng.normal()).collect();
        let norm = axis.iter().map(|x| x * x).sum::<f64>().sqrt();
        axis.iter_mut().for_each(|x| *x /= norm);
        let given: Vec<f64> = (0..n).map(|k| (k / 4) as f64 - 5.0).collect();
        let q = |i: usize, j: usize| f64::from(u8::from(i == j)) - 2.0 * axis[i] * axis[j];
        let matrix = of(n, |i, j| (0..n).map(|k| q(i, k) * given[k] * q(j, k)).sum());
        for (found, given) in sorted(matrix).into_iter().zip(given) {
            assert!((found - given).abs() < 1e-11, "{found} {given}");
        }
    }

    #[test]
    fn a_gram_matrix_has_the_products_of_columns() {
        let matrix = of(3, |i, j| (i * 3 + j) as f64);
        let expected = of(3, |i, j| (0..3).map(|k| ((k * 3 + i) * (k * 3 + j)) as f64).sum());
        assert_eq!(matrix.gram(), expected);
    }
}
