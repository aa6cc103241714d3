//! Named, seeded random streams.
//!
//! xoshiro256++ (Blackman and Vigna 2019), seeded through SplitMix64 from the run's seed, the
//! stream's name and a number (a rank, an epoch). Two streams with different names are
//! independent; the same name, number and seed give the same values on every machine.

/// A stream of random numbers.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// The stream `name`, number `index`, of a run with this `seed`.
    pub fn new(seed: u64, name: &str, index: u64) -> Rng {
        // FNV-1a over the name, so that a stream does not depend on the order of creation.
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for byte in name.bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        // All words depend on all of seed, name and index: many streams are drawn from once or
        // twice only, and must be independent from the first value on.
        let mut mixer = seed;
        for salt in [hash, index] {
            mixer = split_mix(&mut (mixer ^ salt));
        }
        Rng { state: std::array::from_fn(|_| split_mix(&mut mixer)) }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let t = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= t;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Uniform in `[0, 1)`, with 53 random bits.
    pub fn uniform(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Uniform in `0..bound`, without bias (Lemire's method with rejection). `bound > 0`.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "an empty range has no element");
        let threshold = bound.wrapping_neg() % bound;
        loop {
            let product = u128::from(self.next_u64()) * u128::from(bound);
            if product as u64 >= threshold {
                return (product >> 64) as u64;
            }
        }
    }

    /// Standard normal (Box–Muller; the second value is thrown away to keep the stream simple).
    pub fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// Gamma with this `shape` and scale 1 (Marsaglia and Tsang 2000).
    pub fn gamma(&mut self, shape: f64) -> f64 {
        if shape < 1.0 {
            let boost = (1.0 - self.uniform()).powf(1.0 / shape);
            return self.gamma(shape + 1.0) * boost;
        }
        let d = shape - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            let u = 1.0 - self.uniform();
            if v > 0.0 && u.ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return d * v;
            }
        }
    }

    /// Puts `items` in random order (Fisher–Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }

    /// The four words of the state, for saving.
    pub fn words(&mut self) -> &mut [u64; 4] {
        &mut self.state
    }
}

fn split_mix(x: &mut u64) -> u64 {
    *x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *x;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ_by_name_index_and_seed() {
        let draw = |seed, name, index| Rng::new(seed, name, index).next_u64();
        assert_eq!(draw(1, "data", 0), draw(1, "data", 0));
        assert_ne!(draw(1, "data", 0), draw(2, "data", 0));
        assert_ne!(draw(1, "data", 0), draw(1, "data", 1));
        assert_ne!(draw(1, "data", 0), draw(1, "noise", 0));
    }

    #[test]
    fn first_values_of_many_streams_are_independent() {
        for seed in [1, 7] {
            let n = 100_000;
            let first = |index| Rng::new(seed, "many", index).normal();
            let mean = (0..n).map(first).sum::<f64>() / n as f64;
            let square = (0..n).map(|index| first(index).powi(2)).sum::<f64>() / n as f64;
            assert!(mean.abs() < 0.015 && (square - 1.0).abs() < 0.02, "{mean} {square}");
        }
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let mut rng = Rng::new(3, "moments", 0);
        let n = 200_000;
        let mean = |f: &mut dyn FnMut() -> f64| (0..n).map(|_| f()).sum::<f64>() / f64::from(n);
        assert!((mean(&mut || rng.uniform()) - 0.5).abs() < 0.005);
        assert!(mean(&mut || rng.normal()).abs() < 0.01);
        assert!((mean(&mut || rng.normal().powi(2)) - 1.0).abs() < 0.02);
        assert!((mean(&mut || rng.gamma(0.3)) - 0.3).abs() < 0.01);
        assert!((mean(&mut || rng.gamma(4.0)) - 4.0).abs() < 0.03);
        assert!((mean(&mut || rng.below(7) as f64) - 3.0).abs() < 0.03);
    }
}
