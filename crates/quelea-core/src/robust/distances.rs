//! Rules that compare every vector with every other.

use super::coordinates::mean;

/// Squared Euclidean distances between vectors. One to or from a vector that is not finite is infinite.
#[derive(Clone, Debug, PartialEq)]
pub struct SquaredDistances {
    count: usize,
    /// Row by row.
    values: Vec<f64>,
}

impl SquaredDistances {
    /// Between all pairs.
    pub fn between(vectors: &[&[f32]]) -> SquaredDistances {
        let count = vectors.len();
        let mut values = vec![0.0; count * count];
        for i in 0..count {
            for j in 0..i {
                let distance = squared_distance(vectors[i], vectors[j]);
                values[i * count + j] = distance;
                values[j * count + i] = distance;
            }
        }
        SquaredDistances { count, values }
    }

    /// From vector `i` to all, itself included.
    pub fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.count..][..self.count]
    }

    /// The `k` vectors nearest to vector `i`, itself first among equals, in the order of distance; of
    /// two that are equally far, the one that comes first.
    pub fn nearest(&self, i: usize, k: usize) -> Vec<usize> {
        let row = self.row(i);
        let mut order: Vec<usize> = (0..self.count).collect();
        order.sort_by(|a, b| row[*a].total_cmp(&row[*b]).then((*a != i).cmp(&(*b != i))));
        order.truncate(k);
        order
    }

    /// The sum of the squared distances from vector `i` to the `k` others nearest to it.
    fn score(&self, i: usize, k: usize) -> f64 {
        self.nearest(i, k + 1).into_iter().filter(|j| *j != i).map(|j| self.row(i)[j]).sum()
    }

    /// All vectors by their scores with `f` that may be anything; the first among equals comes first.
    fn by_score(&self, f: usize) -> Vec<usize> {
        let neighbours = self.count.saturating_sub(f + 2).max(1);
        let scores: Vec<f64> = (0..self.count).map(|i| self.score(i, neighbours)).collect();
        let mut order: Vec<usize> = (0..self.count).collect();
        order.sort_by(|a, b| scores[*a].total_cmp(&scores[*b]));
        order
    }
}

/// `|a − b|²` in `f64`, summed in order.
pub(super) fn squared_distance(a: &[f32], b: &[f32]) -> f64 {
    let terms = a.iter().zip(b).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2));
    let sum: f64 = terms.sum();
    if sum.is_nan() { f64::INFINITY } else { sum }
}

/// Krum: the vector whose `n − f − 2` nearest others are nearest, in the sum of squared distances.
pub fn krum(vectors: &[&[f32]], f: usize, out: &mut [f32]) {
    let best = SquaredDistances::between(vectors).by_score(f)[0];
    out.copy_from_slice(vectors[best]);
}

/// Multi-Krum: the mean of the `n − f` vectors that Krum likes best, summed in their order.
pub fn multi_krum(vectors: &[&[f32]], f: usize, out: &mut [f32]) {
    let mut chosen = SquaredDistances::between(vectors).by_score(f);
    chosen.truncate(vectors.len() - f);
    chosen.sort_unstable();
    let chosen: Vec<&[f32]> = chosen.into_iter().map(|i| vectors[i]).collect();
    mean(&chosen, out);
}
