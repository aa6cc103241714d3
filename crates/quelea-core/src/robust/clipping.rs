//! Centered clipping.

use super::distances::squared_distance;

/// `v ← v + Σ_i clip(x_i − v, radius) / n`, `iterations` times from `v = center`, into `out`.
///
/// A vector moves the result by at most `iterations·radius/n`, whatever it is; one that is not finite
/// does not move it.
pub fn centered_clipping(
    vectors: &[&[f32]],
    center: &[f32],
    radius: f64,
    iterations: usize,
    out: &mut [f32],
) {
    out.copy_from_slice(center);
    let mut moved = vec![0.0f64; out.len()];
    for _ in 0..iterations {
        moved.fill(0.0);
        for vector in vectors {
            let distance = squared_distance(vector, out).sqrt();
            if distance.is_infinite() {
                continue;
            }
            let share = (radius / distance).min(1.0) / vectors.len() as f64;
            let terms = moved.iter_mut().zip(vector.iter().zip(&*out));
            terms.for_each(|(sum, (x, v))| *sum += share * (f64::from(*x) - f64::from(*v)));
        }
        let steps = out.iter_mut().zip(&moved);
        steps.for_each(|(out, step)| *out = (f64::from(*out) + step) as f32);
    }
}
