//! What comes before a rule: nearest-neighbour mixing and bucketing.

use super::coordinates::mean;
use super::distances::SquaredDistances;
use crate::random::Rng;

/// Replaces every vector by the mean of the `n − f` vectors nearest to it, itself included, summed in
/// the order of the vectors.
pub fn nearest_neighbour_mixing(vectors: &[&[f32]], f: usize) -> Vec<Vec<f32>> {
    let distances = SquaredDistances::between(vectors);
    let mixed = |i: usize| {
        let mut nearest = distances.nearest(i, vectors.len() - f);
        nearest.sort_unstable();
        mean_of(vectors, &nearest)
    };
    (0..vectors.len()).map(mixed).collect()
}

/// The means of random groups of `size` vectors; the last group has what is left.
pub fn bucketing(vectors: &[&[f32]], size: usize, rng: &mut Rng) -> Vec<Vec<f32>> {
    let mut order: Vec<usize> = (0..vectors.len()).collect();
    rng.shuffle(&mut order);
    order.chunks(size).map(|group| mean_of(vectors, group)).collect()
}

/// The largest groups of `n` vectors of which there are at least so many.
pub fn group_size(n: usize, groups: usize) -> usize {
    (n / groups).max(1)
}

fn mean_of(vectors: &[&[f32]], chosen: &[usize]) -> Vec<f32> {
    let chosen: Vec<&[f32]> = chosen.iter().map(|i| vectors[*i]).collect();
    let mut out = vec![0.0; chosen[0].len()];
    mean(&chosen, &mut out);
    out
}
