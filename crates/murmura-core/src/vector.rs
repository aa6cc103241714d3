//! The hot loops, over plain slices. Every variant gives the same bits: multiply and add are
//! separate, reductions follow one fixed tree.

/// `y ← y + a·x`.
pub fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "lengths agree");
    for (y, x) in y.iter_mut().zip(x) {
        *y += a * x;
    }
}

/// `y ← y + x`.
pub fn add(x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "lengths agree");
    for (y, x) in y.iter_mut().zip(x) {
        *y += x;
    }
}

/// `y ← a·y`.
pub fn scale(a: f32, y: &mut [f32]) {
    for y in y {
        *y *= a;
    }
}

/// `out ← a·x`.
pub fn scaled(a: f32, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths agree");
    for (out, x) in out.iter_mut().zip(x) {
        *out = a * x;
    }
}

/// `y ← y + t·(x − y)`.
pub fn lerp(t: f32, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "lengths agree");
    for (y, x) in y.iter_mut().zip(x) {
        *y += t * (x - *y);
    }
}

/// `y ← y + a·(p − q)`.
pub fn add_difference(a: f32, p: &[f32], q: &[f32], y: &mut [f32]) {
    assert!(p.len() == y.len() && q.len() == y.len(), "lengths agree");
    for ((y, p), q) in y.iter_mut().zip(p).zip(q) {
        *y += a * (p - q);
    }
}

/// `y ← own·y + Σ w_k·x_k`, the terms before `place` first, then `own·y`, then the rest: one
/// pass, summed in the order of the ranks.
pub fn mix(own: f32, place: usize, y: &mut [f32], terms: &[(f32, &[f32])]) {
    for (k, y) in y.iter_mut().enumerate() {
        let mut sum = 0.0;
        let mut first = true;
        let mut take = |term: f32| {
            sum = if first { term } else { sum + term };
            first = false;
        };
        for (w, x) in &terms[..place] {
            take(w * x[k]);
        }
        take(own * *y);
        for (w, x) in &terms[place..] {
            take(w * x[k]);
        }
        *y = sum;
    }
}

/// The sum of squares, in `f64`, by a fixed block tree.
pub fn sum_of_squares(x: &[f32]) -> f64 {
    x.chunks(4096)
        .map(|block| block.iter().map(|x| f64::from(*x) * f64::from(*x)).sum::<f64>())
        .sum()
}

/// The Euclidean norm.
pub fn norm(x: &[f32]) -> f64 {
    sum_of_squares(x).sqrt()
}

/// Scales `x` down to Euclidean norm `limit` if it is longer.
pub fn clip(limit: f64, x: &mut [f32]) {
    let norm = norm(x);
    if norm > limit {
        scale((limit / norm) as f32, x);
    }
}
