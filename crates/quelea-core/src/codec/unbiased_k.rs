//! `unbiased-k`: a few elements chosen at random, the larger the likelier, and enlarged so that
//! the expectation is the vector.
//!
//! ```text
//! Q(v)_i = v_i / p_i with probability p_i, else 0
//! p_i = min(λ·|v_i|, 1),  λ such that Σ p_i = k = max(1, ⌈share·d⌉)
//!
//! bytes     as `sparse.rs` has them; divided by d/k where `contract` is set
//! ```
//!
//! Among all unbiased sparsifiers with `k` elements on average these probabilities have the least
//! variance, `E‖Q(v) − v‖² = Σ v_i²·(1/p_i − 1)` (Wangni et al. 2018, Proposition 1). It is
//! at most `ω‖v‖²` with `ω = d/k − 1`, and `Q/(1 + ω)` is a contraction with `δ = k/d`.
//!
//! The paper draws every element by itself, so that about `k` are sent. Codecs of this project
//! send the same number of bytes always: here one number `u` decides for all (systematic sampling,
//! Madow 1949). Element `i` is chosen if an integer lies between `u + Σ_{j<i} p_j` and
//! `u + Σ_{j≤i} p_j`. Every element keeps its probability, hence expectation and variance are the
//! same, and exactly `k` are chosen. Where fewer than `k` are not 0, or rounding leaves one out,
//! zeros fill the rest.
//!
//! What is not finite is always chosen and sent as it is, as far as there is room.

use super::share::{self, kept};
use super::{
    Codec, CodecError, CodecProperties, CodecShape, Entry, INFINITY, VectorId, exact, levels,
    magnitude, sparse,
};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};

pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "unbiased-k",
        summary: "a random share of the elements, larger ones likelier, without bias",
        paper: "Wangni et al. 2018, Gradient sparsification, arXiv:1710.09854",
        section: "Algorithms 1 to 3; a fixed number of elements by systematic sampling (Madow 1949)",
        file: file!(),
        options: KEYS,
    },
    wire: "6·k + 4·⌈d/65536⌉, k = ⌈share·d⌉",
    shape: CodecShape::Own,
    per_element: false,
    build: |options, seed| Box::new(UnbiasedK::new(options, seed)),
};

const KEYS: &[OptionSpec] = &[
    share::KEY,
    OptionSpec {
        name: "contract",
        kind: OptionKind::Flag(false),
        help: "divide by d/k: biased, but fit for error feedback",
    },
];

struct UnbiasedK {
    share: f64,
    contract: bool,
    seed: u64,
    /// What is sent, by index.
    chosen: Vec<(usize, f32)>,
}

impl UnbiasedK {
    fn new(options: &Options, seed: u64) -> UnbiasedK {
        let (share, contract) = (options.real("share"), options.flag("contract"));
        UnbiasedK { share, contract, seed, chosen: Vec::new() }
    }

    /// `k/d`, which is 1/(1 + ω).
    fn kept_share(&self, len: usize) -> f64 {
        share::contraction(self.share, len)
    }
}

impl Codec for UnbiasedK {
    fn bytes(&self, len: usize) -> usize {
        sparse::bytes(len, kept(self.share, len))
    }

    fn properties(&self, len: usize) -> CodecProperties {
        let kept_share = self.kept_share(len);
        let lossless = kept(self.share, len) == len;
        let contraction =
            if self.contract { kept_share } else { (2.0 - 1.0 / kept_share).max(0.0) };
        CodecProperties {
            lossless,
            unbiased: lossless || !self.contract,
            contraction,
            typical: contraction,
        }
    }

    fn encode(&mut self, at: VectorId, values: &[f32], out: &mut [u8]) -> usize {
        let (bytes, k) = (self.bytes(values.len()), kept(self.share, values.len()));
        let start = levels::stream(self.seed, ENTRY.meta.name, at).uniform();
        let shrink = if self.contract { self.kept_share(values.len()) } else { 1.0 };
        choose(values, k, start, &mut self.chosen);
        for (_, value) in &mut self.chosen {
            *value = (f64::from(*value) * shrink) as f32;
        }
        fill(values.len(), k, &mut self.chosen);
        sparse::write(values.len(), &self.chosen, &mut out[..bytes]);
        bytes
    }

    fn decode(&mut self, _: VectorId, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        exact(ENTRY.meta.name, bytes, self.bytes(out.len()), out.len())?;
        sparse::read(ENTRY.meta.name, bytes, out)
    }
}

/// Writes at most `k` elements and what is sent of each, by index.
fn choose(values: &[f32], k: usize, start: f64, chosen: &mut Vec<(usize, f32)>) {
    chosen.clear();
    let slope = slope(values, k);
    let longest = (1.0 / slope).min(f64::from(f32::MAX)) as f32;
    let mut sum = start;
    for (index, value) in values.iter().enumerate() {
        if chosen.len() == k {
            break;
        }
        if is_certain(*value, slope) {
            chosen.push((index, *value));
            continue;
        }
        let before = sum.floor();
        sum += slope * f64::from(value.abs());
        if sum.floor() > before {
            chosen.push((index, longest.copysign(*value)));
        }
    }
}

/// Whether an element is chosen with probability 1.
fn is_certain(value: f32, slope: f64) -> bool {
    value != 0.0 && (magnitude(value) >= INFINITY || slope * f64::from(value.abs()) >= 1.0)
}

/// The largest λ with `Σ min(λ·|v_i|, 1) ≤ k`, up to rounding.
///
/// Every pass takes the elements that are certain now out of the sum, which makes others
/// certain; a few passes are enough for gradients. Where [`PASSES`] are not, λ is too small: the
/// expectation is the same, and fewer than `k` are chosen.
fn slope(values: &[f32], k: usize) -> f64 {
    if k >= values.len() {
        return f64::INFINITY;
    }
    let (mut slope, mut certain) = (0.0, usize::MAX);
    for _ in 0..PASSES {
        let (mut count, mut rest) = (0, 0.0);
        for value in values {
            if is_certain(*value, slope) {
                count += 1;
            } else {
                rest += f64::from(value.abs());
            }
        }
        if count == certain || count >= k {
            break;
        }
        (certain, slope) = (count, (k - count) as f64 / rest);
    }
    slope
}

/// See [`slope`].
const PASSES: usize = 64;

/// Adds zeros at the first places that were not chosen, until there are `k`.
fn fill(len: usize, k: usize, chosen: &mut Vec<(usize, f32)>) {
    if chosen.len() == k {
        return;
    }
    let mut taken = chosen.iter().map(|(index, _)| *index).peekable();
    let free = (0..len).filter(|index| taken.next_if_eq(index).is_none());
    let zeros: Vec<(usize, f32)> = free.take(k - chosen.len()).map(|index| (index, 0.0)).collect();
    chosen.extend(zeros);
    chosen.sort_unstable_by_key(|(index, _)| *index);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Value;
    use crate::random::Rng;
    use crate::vector;

    fn codec(share: f64, contract: bool) -> UnbiasedK {
        let options = Options::defaults(KEYS).with("share", Value::Number(share));
        UnbiasedK::new(&options.with("contract", Value::Flag(contract)), 5)
    }

    fn round_trip(codec: &mut UnbiasedK, step: u64, values: &[f32]) -> Vec<f32> {
        let at = VectorId { step, ..VectorId::default() };
        let (mut bytes, mut out) = (vec![0; codec.bytes(values.len())], vec![0.0; values.len()]);
        codec.encode(at, values, &mut bytes);
        codec.decode(at, &bytes, &mut out).expect("just encoded");
        out
    }

    /// The probabilities by sorting: Algorithm 2 of the paper, with Σ p_i = k.
    fn sorted_probabilities(values: &[f32], k: usize) -> Vec<f64> {
        let size = |index: &usize| f64::from(values[*index].abs());
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|a, b| size(b).total_cmp(&size(a)));
        let certain = (0..=k).find(|count| {
            let rest: f64 = order[*count..].iter().map(size).sum();
            let next = order.get(*count).map_or(0.0, size);
            (k - count) as f64 * next <= rest
        });
        let certain = certain.expect("with k certain ones nothing is left to divide");
        let rest: f64 = order[certain..].iter().map(size).sum();
        let mut probabilities = vec![1.0; values.len()];
        for index in &order[certain..] {
            probabilities[*index] = (k - certain) as f64 * size(index) / rest;
        }
        probabilities
    }

    fn spread(len: usize) -> Vec<f32> {
        let mut rng = Rng::new(3, "spread", len as u64);
        (0..len).map(|_| (rng.normal() * (rng.normal() * 1.5).exp()) as f32).collect()
    }

    #[test]
    fn probabilities_are_those_of_the_sorted_algorithm() {
        for (len, k) in [(10, 1), (10, 4), (10, 9), (300, 30), (300, 200), (2000, 20)] {
            let values = spread(len);
            let slope = slope(&values, k);
            let probability = |x: &f32| (slope * f64::from(x.abs())).min(1.0);
            for (value, expected) in values.iter().zip(sorted_probabilities(&values, k)) {
                let found = probability(value);
                assert!((found - expected).abs() < 1e-9, "{len}, {k}: {found} {expected}");
            }
        }
    }

    #[test]
    fn mean_and_variance_are_those_of_independent_draws() {
        let (values, k, draws) = (spread(40), 8, 40_000);
        let mut codec = codec(0.2, false);
        let (mut sums, mut loss) = (vec![0.0; 40], 0.0);
        for step in 0..draws {
            let drawn = round_trip(&mut codec, step, &values);
            assert_eq!(drawn.iter().filter(|x| **x != 0.0).count(), k, "always as many");
            sums.iter_mut().zip(&drawn).for_each(|(sum, x)| *sum += f64::from(*x));
            let errors: Vec<f32> = drawn.iter().zip(&values).map(|(x, v)| x - v).collect();
            loss += vector::sum_of_squares(&errors);
        }
        let probabilities = sorted_probabilities(&values, k);
        let mut variance = 0.0;
        for ((sum, value), p) in sums.iter().zip(&values).zip(&probabilities) {
            let value = f64::from(*value);
            let own = value * value * (1.0 / p - 1.0);
            let (mean, allowed) = (sum / draws as f64, 5.0 * (own / draws as f64).sqrt() + 1e-6);
            assert!((mean - value).abs() < allowed, "{mean} {value}");
            variance += own;
        }
        let loss = loss / draws as f64;
        assert!((loss / variance - 1.0).abs() < 0.02, "{loss} instead of {variance}");
        assert!(variance <= (40.0 / 8.0 - 1.0) * vector::sum_of_squares(&values));
    }

    #[test]
    fn the_bound_of_the_variance_is_met_by_equal_elements_and_so_is_the_contraction() {
        let (values, draws) = (vec![0.5; 50], 400);
        for (contract, expected) in [(false, 4.0), (true, 1.0 - 0.2)] {
            let mut codec = codec(0.2, contract);
            let mut draw = |step| {
                let drawn = round_trip(&mut codec, step, &values);
                let errors: Vec<f32> = drawn.iter().zip(&values).map(|(x, v)| x - v).collect();
                vector::sum_of_squares(&errors) / vector::sum_of_squares(&values)
            };
            let loss = (0..draws).map(&mut draw).sum::<f64>() / draws as f64;
            assert!((loss - expected).abs() < 1e-5, "{loss} instead of {expected}");
        }
    }

    #[test]
    fn few_elements_that_are_not_zero_travel_as_they_are() {
        let mut values = vec![0.0; 100];
        (values[10], values[99]) = (1e-30, -7.0);
        assert_eq!(round_trip(&mut codec(0.05, false), 3, &values), values);
    }

    #[test]
    fn magnitudes_far_apart_end_the_search_and_stay_unbiased_in_sum() {
        let values: Vec<f32> = (0..240).map(|k| 2f32.powi(100 - k)).collect();
        let slope = slope(&values, 200);
        let expected = values.iter().map(|x| (slope * f64::from(*x)).min(1.0)).sum::<f64>();
        assert!(expected <= 200.0 + 1e-9 && expected > 100.0, "{expected}");
        let drawn = round_trip(&mut codec(200.0 / 240.0, false), 1, &values);
        assert_eq!(drawn[..50], values[..50], "the largest are certain");
    }
}
