//! The hot loops, over plain slices: vectorised for the machine at hand, parallel where it pays.
//!
//! Every variant gives the same bits: multiply and add are separate, and reductions follow one
//! fixed tree, whatever the instructions and the number of threads.

pub(crate) mod dispatch;
#[cfg(test)]
mod tests;

use dispatch::{Level, PART_MIN, in_parts, kernel};
pub use dispatch::{set_threads, threads};

/// `y ← y + a·x`.
pub fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "lengths agree");
    let level = Level::best();
    in_parts([y], PART_MIN, |at, [y]| loops::axpy(level, a, &x[at..][..y.len()], y));
}

/// `y ← y + x`.
pub fn add(x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "lengths agree");
    let level = Level::best();
    in_parts([y], PART_MIN, |at, [y]| loops::add(level, &x[at..][..y.len()], y));
}

/// `out ← a + b`.
pub fn sum_into(a: &[f32], b: &[f32], out: &mut [f32]) {
    assert!(a.len() == out.len() && b.len() == out.len(), "lengths agree");
    let level = Level::best();
    in_parts([out], PART_MIN, |at, [out]| {
        loops::sum_into(level, &a[at..][..out.len()], &b[at..][..out.len()], out);
    });
}

/// `y ← a·y`.
pub fn scale(a: f32, y: &mut [f32]) {
    if a == 1.0 {
        return; // The mean of one worker: nothing would change.
    }
    let level = Level::best();
    in_parts([y], PART_MIN, |_, [y]| loops::scale(level, a, y));
}

/// `out ← a·x`.
pub fn scaled(a: f32, x: &[f32], out: &mut [f32]) {
    assert_eq!(x.len(), out.len(), "lengths agree");
    let level = Level::best();
    in_parts([out], PART_MIN, |at, [out]| loops::scaled(level, a, &x[at..][..out.len()], out));
}

/// `y ← y + t·(x − y)`.
pub fn lerp(t: f32, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "lengths agree");
    let level = Level::best();
    in_parts([y], PART_MIN, |at, [y]| loops::lerp(level, t, &x[at..][..y.len()], y));
}

/// `y ← y + a·(p − q)`.
pub fn add_difference(a: f32, p: &[f32], q: &[f32], y: &mut [f32]) {
    assert!(p.len() == y.len() && q.len() == y.len(), "lengths agree");
    let level = Level::best();
    in_parts([y], PART_MIN, |at, [y]| {
        loops::add_difference(level, a, &p[at..][..y.len()], &q[at..][..y.len()], y);
    });
}

/// `y ← own·y + Σ w_k·x_k`, the terms before `place` first, then `own·y`, then the rest: one
/// pass, summed in the order of the ranks.
pub fn mix(own: f32, place: usize, y: &mut [f32], terms: &[(f32, &[f32])]) {
    assert!(terms.iter().all(|(_, x)| x.len() == y.len()), "lengths agree");
    let level = Level::best();
    let (before, after) = terms.split_at(place);
    in_parts([y], PART_MIN, |at, [y]| loops::mix(level, at, y, (before, own, after)));
}

/// The inner product, in `f64`, by a fixed block tree.
pub fn dot(x: &[f32], y: &[f32]) -> f64 {
    assert_eq!(x.len(), y.len(), "lengths agree");
    let level = Level::best();
    sum_of_blocks(x.len(), |block| loops::dot_block(level, &x[block.clone()], &y[block]))
}

/// The sum of squares, in `f64`, by the same tree: the bits of `dot(x, x)`.
pub fn sum_of_squares(x: &[f32]) -> f64 {
    let level = Level::best();
    sum_of_blocks(x.len(), |block| loops::squares_block(level, &x[block]))
}

/// The Euclidean norm.
pub fn norm(x: &[f32]) -> f64 {
    sum_of_squares(x).sqrt()
}

/// The bits of the largest magnitude. Infinities are above all numbers, and NaN above infinities.
pub fn largest_bits(x: &[f32]) -> u32 {
    let level = Level::best();
    x.chunks(BLOCK).map(|block| loops::largest_block(level, block)).max().unwrap_or(0)
}

/// Scales `x` down to Euclidean norm `limit` if it is longer.
pub fn clip(limit: f64, x: &mut [f32]) {
    let norm = norm(x);
    if norm > limit {
        scale((limit / norm) as f32, x);
    }
}

/// How many elements make one leaf of a reduction.
const BLOCK: usize = 1 << 14;

/// Sums `of_block` over blocks of a vector of `len` elements: first within each block, then the
/// blocks in order, however many threads work.
fn sum_of_blocks(len: usize, of_block: impl Fn(std::ops::Range<usize>) -> f64 + Sync) -> f64 {
    let block = |index: usize| of_block(index * BLOCK..len.min((index + 1) * BLOCK));
    let blocks = len.div_ceil(BLOCK);
    if len < 2 * PART_MIN || threads() == 1 {
        return in_order((0..blocks).map(block));
    }
    let mut sums = vec![0.0; blocks];
    in_parts([&mut sums], PART_MIN / BLOCK, |at, [sums]| {
        for (index, sum) in (at..).zip(sums) {
            *sum = block(index);
        }
    });
    in_order(sums)
}

/// Begins with 0; `sum` would begin with −0, which an empty vector would show.
fn in_order(sums: impl IntoIterator<Item = f64>) -> f64 {
    sums.into_iter().fold(0.0, |total, sum| total + sum)
}

/// The loops themselves, each on one core.
mod loops {
    use super::kernel;

    kernel! {
        pub fn axpy(a: f32, x: &[f32], y: &mut [f32]) {
            for (y, x) in y.iter_mut().zip(x) {
                *y += a * x;
            }
        }
    }

    kernel! {
        pub fn add(x: &[f32], y: &mut [f32]) {
            for (y, x) in y.iter_mut().zip(x) {
                *y += x;
            }
        }
    }

    kernel! {
        pub fn sum_into(a: &[f32], b: &[f32], out: &mut [f32]) {
            for ((out, a), b) in out.iter_mut().zip(a).zip(b) {
                *out = a + b;
            }
        }
    }

    kernel! {
        pub fn scale(a: f32, y: &mut [f32]) {
            for y in y {
                *y *= a;
            }
        }
    }

    kernel! {
        pub fn scaled(a: f32, x: &[f32], out: &mut [f32]) {
            for (out, x) in out.iter_mut().zip(x) {
                *out = a * x;
            }
        }
    }

    kernel! {
        pub fn lerp(t: f32, x: &[f32], y: &mut [f32]) {
            for (y, x) in y.iter_mut().zip(x) {
                *y += t * (x - *y);
            }
        }
    }

    kernel! {
        pub fn add_difference(a: f32, p: &[f32], q: &[f32], y: &mut [f32]) {
            for ((y, p), q) in y.iter_mut().zip(p).zip(q) {
                *y += a * (p - q);
            }
        }
    }

    /// Terms of a weighted sum: those before my own, my own weight, those after.
    type Terms<'a> = (&'a [(f32, &'a [f32])], f32, &'a [(f32, &'a [f32])]);

    /// Sums that are kept in registers during a pass over the terms.
    const LANES: usize = 32;

    kernel! {
        /// `y` is the part of the vector that starts at `offset`; the terms are whole.
        pub fn mix(offset: usize, y: &mut [f32], terms: Terms<'_>) {
            let whole = y.len() - y.len() % LANES;
            let (body, tail) = y.split_at_mut(whole);
            for (index, y) in body.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                mix_lanes(offset + index * LANES, y, terms);
            }
            for (index, y) in tail.iter_mut().enumerate() {
                mix_lanes(offset + whole + index, std::array::from_mut(y), terms);
            }
        }
    }

    #[inline(always)]
    fn mix_lanes<const N: usize>(at: usize, y: &mut [f32; N], (before, own, after): Terms<'_>) {
        // Minus zero is the one number that changes no bit of what is added to it.
        let mut sums = [-0.0; N];
        for (weight, x) in before {
            add_term(&mut sums, *weight, lanes(x, at));
        }
        add_term(&mut sums, own, y);
        for (weight, x) in after {
            add_term(&mut sums, *weight, lanes(x, at));
        }
        *y = sums;
    }

    #[inline(always)]
    fn lanes<const N: usize>(x: &[f32], at: usize) -> &[f32; N] {
        x[at..].first_chunk().expect("terms are as long as the vector")
    }

    #[inline(always)]
    fn add_term<const N: usize>(sums: &mut [f32; N], weight: f32, x: &[f32; N]) {
        for (sum, x) in sums.iter_mut().zip(x) {
            *sum += weight * x;
        }
    }

    /// Element `k` of a block is summed by accumulator `k mod 16`, whatever the vector width.
    const ACCUMULATORS: usize = 16;

    kernel! {
        pub fn dot_block(x: &[f32], y: &[f32]) -> f64 {
            let (x, x_tail) = x.as_chunks::<ACCUMULATORS>();
            let (y, y_tail) = y.as_chunks::<ACCUMULATORS>();
            let mut sums = [0.0; ACCUMULATORS];
            for (x, y) in x.iter().zip(y) {
                add_products(&mut sums, x, y);
            }
            add_products(&mut sums, &padded(x_tail), &padded(y_tail));
            halve(&sums)
        }
    }

    kernel! {
        /// Faster than a product with itself, because the conversion is what takes time.
        pub fn squares_block(x: &[f32]) -> f64 {
            let (x, tail) = x.as_chunks::<ACCUMULATORS>();
            let mut sums = [0.0; ACCUMULATORS];
            for x in x {
                add_products(&mut sums, x, x);
            }
            let tail = padded(tail);
            add_products(&mut sums, &tail, &tail);
            halve(&sums)
        }
    }

    kernel! {
        /// Magnitudes have no sign bit, so that signed and unsigned comparison agree.
        pub fn largest_block(x: &[f32]) -> u32 {
            let (x, tail) = x.as_chunks::<ACCUMULATORS>();
            let mut largest = [0; ACCUMULATORS];
            for x in x {
                raise(&mut largest, x);
            }
            raise(&mut largest, &padded(tail));
            largest.into_iter().max().unwrap_or(0) as u32
        }
    }

    #[inline(always)]
    fn raise(largest: &mut [i32; ACCUMULATORS], x: &Lanes) {
        for (largest, x) in largest.iter_mut().zip(x) {
            *largest = (*largest).max(x.abs().to_bits() as i32);
        }
    }

    type Sums = [f64; ACCUMULATORS];
    type Lanes = [f32; ACCUMULATORS];

    #[inline(always)]
    fn add_products(sums: &mut Sums, x: &Lanes, y: &Lanes) {
        for ((sum, x), y) in sums.iter_mut().zip(x).zip(y) {
            *sum += f64::from(*x) * f64::from(*y);
        }
    }

    /// Zeros change no bit of a sum that began with zero.
    fn padded(tail: &[f32]) -> Lanes {
        let mut lanes = [0.0; ACCUMULATORS];
        lanes[..tail.len()].copy_from_slice(tail);
        lanes
    }

    /// Adds the upper half to the lower until one is left. Inlined, its shape would spoil the
    /// vectors of the loop before it.
    #[inline(never)]
    pub fn halve(sums: &Sums) -> f64 {
        let (mut sums, mut half) = (*sums, ACCUMULATORS / 2);
        while half > 0 {
            for index in 0..half {
                sums[index] += sums[index + half];
            }
            half /= 2;
        }
        sums[0]
    }
}
