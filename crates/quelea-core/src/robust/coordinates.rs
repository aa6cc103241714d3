//! Rules that look at one coordinate at a time.

use crate::vector;

/// The mean, summed in the order of the vectors.
pub fn mean(vectors: &[&[f32]], out: &mut [f32]) {
    out.copy_from_slice(vectors[0]);
    vectors[1..].iter().for_each(|vector| vector::add(vector, out));
    vector::scale(1.0 / vectors.len() as f32, out);
}

/// The median of every coordinate; of an even number, the mean of the two in the middle.
pub fn median(vectors: &[&[f32]], out: &mut [f32]) {
    trimmed_mean(vectors, (vectors.len() - 1) / 2, out);
}

/// Per coordinate, the mean of what is left without the `f` largest and the `f` smallest values;
/// `2f` must be less than the number of vectors. Not-a-number counts as the largest or the smallest.
pub fn trimmed_mean(vectors: &[&[f32]], f: usize, out: &mut [f32]) {
    assert!(2 * f < vectors.len(), "something is left");
    if f == 0 {
        return mean(vectors, out);
    }
    let kept = f..vectors.len() - f;
    let share = 1.0 / kept.len() as f32;
    let mut column = vec![0.0; vectors.len()];
    for (k, out) in out.iter_mut().enumerate() {
        column.iter_mut().zip(vectors).for_each(|(value, vector)| *value = vector[k]);
        column.sort_unstable_by(f32::total_cmp);
        *out = share * column[kept.clone()].iter().sum::<f32>();
    }
}

/// Per coordinate, the sign that most vectors have: 1 or −1. What is not below 0 counts as positive,
/// and so does a tie.
pub fn majority_vote(vectors: &[&[f32]], out: &mut [f32]) {
    for (k, out) in out.iter_mut().enumerate() {
        let negative = vectors.iter().filter(|vector| vector[k] < 0.0).count();
        *out = if 2 * negative > vectors.len() { -1.0 } else { 1.0 };
    }
}
