//! The geometric median.

use super::coordinates::median;
use super::distances::squared_distance;
use crate::vector;

/// Distances below this, relative to one plus the length of the point, count as this, so that no weight
/// is infinite.
const SMOOTHING: f64 = 1e-6;

/// The point with the least sum of distances to `vectors`, approximately: `iterations` smoothed
/// Weiszfeld steps (Pillutla et al. 2022).
///
/// They start from the coordinate-wise median. From the mean, as in the paper, a fixed number of steps
/// leaves a share of any outlier, and a large one has the result.
pub fn geometric_median(vectors: &[&[f32]], iterations: usize, out: &mut [f32]) {
    median(vectors, out);
    let mut point = vec![0.0f64; out.len()];
    for _ in 0..iterations {
        let distances: Vec<f64> =
            vectors.iter().map(|vector| squared_distance(vector, out).sqrt()).collect();
        let scale = 1.0 + vector::norm(out);
        let weights = distances.iter().map(|d| 1.0 / d.max(SMOOTHING * scale));
        let weights: Vec<f64> = weights.collect();
        let total: f64 = weights.iter().sum();
        if !(total > 0.0 && scale.is_finite()) {
            return;
        }
        point.fill(0.0);
        for (vector, weight) in vectors.iter().zip(&weights).filter(|(_, weight)| **weight > 0.0) {
            let share = weight / total;
            point.iter_mut().zip(*vector).for_each(|(sum, x)| *sum += share * f64::from(*x));
        }
        out.iter_mut().zip(&point).for_each(|(out, x)| *out = *x as f32);
    }
}
