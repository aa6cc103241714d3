//! `tern-grad`: every element becomes −s, 0 or s at random, with its own value as expectation.
//!
//! ```text
//! c_i = v_i, or sgn(v_i)·s where |v_i| is larger;  s = min(max |v_i|, clip·√(‖v‖²/d))
//! Q(v)_i = s·sgn(c_i)·b_i,  b_i = 1 with probability |c_i| / s, else 0
//!
//! 4 bytes      s: f32; divided by 1 + ω where `contract` is set
//! then         2 bits per element, 2·b_i + [v_i < 0], lowest bits first; unused bits are 0
//! ```
//!
//! `E Q(v) = c` and `E‖Q(v) − c‖² = s‖c‖₁ − ‖c‖²`, which is at most `ω‖c‖²` with
//! `ω = (√d − 1)/2`: the largest value of `max |v_i|·‖v‖₁/‖v‖₂²` is `(1 + √d)/2`, where all elements
//! but one are `1/(1 + √d)` of that one. Without clipping (`clip = 0`) `c = v`: unbiased, with a
//! variance that grows with the length. With it the error is at most `(1 + clip²/8)‖v‖²` at any
//! length, which is why the paper clips at 2.5 standard deviations. Deviations are about 0 here:
//! a vector of equal elements is not clipped to nothing.
//!
//! `Q/(1 + ω)` is a contraction with `δ = min(1, clip²/d)/(1 + ω)`, because `⟨c, v⟩ ≥ ‖c‖²` and a
//! vector with one element other than 0 loses most by clipping.
//!
//! The paper has one `s` per layer and the largest of all workers; here each sender has its own,
//! one per vector that is sent: a bucket, or the piece of it that a server holds. What is not a
//! number is sent as 0, an infinity as `s`.

use super::levels::{self, LevelScale, RandomLanes};
use super::{
    Codec, CodecError, CodecProperties, CodecShape, Entry, INFINITY, VectorId, exact, leading,
    length, magnitude,
};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};

pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "tern-grad",
        summary: "minus, zero or plus the largest magnitude at random; two bits per element",
        paper: "Wen et al. 2017, TernGrad, arXiv:1705.07878",
        section: "Section 3.1 (ternarizing), Section 3.3 (gradient clipping)",
        file: file!(),
        options: KEYS,
    },
    wire: "4 + ⌈d/4⌉",
    shape: CodecShape::Own,
    per_element: false,
    build: |options, seed| Box::new(TernGrad::new(options, seed)),
};

const KEYS: &[OptionSpec] = &[
    OptionSpec {
        name: "clip",
        kind: OptionKind::Real { default: 2.5, min: 0.0, max: 1e6 },
        help: "clip elements to this many standard deviations, 2.5 as published; 0: unbiased",
    },
    OptionSpec {
        name: "contract",
        kind: OptionKind::Flag(false),
        help: "divide by (1 + sqrt(d))/2: biased, but fit for error feedback",
    },
];

/// Bits per element.
const WIDTH: usize = 2;

struct TernGrad {
    /// In standard deviations about 0; nothing is clipped above infinity.
    clip: f64,
    contract: bool,
    seed: u64,
}

impl TernGrad {
    fn new(options: &Options, seed: u64) -> TernGrad {
        let clip = Some(options.real("clip")).filter(|clip| *clip > 0.0);
        TernGrad { clip: clip.unwrap_or(f64::INFINITY), contract: options.flag("contract"), seed }
    }

    /// The least share of ‖v‖² that clipping leaves.
    fn unclipped(&self, len: usize) -> f64 {
        (self.clip * self.clip / len.max(1) as f64).min(1.0)
    }

    /// The magnitude s.
    fn scale(&self, values: &[f32]) -> f64 {
        let (mut largest, mut squares) = (0, 0.0);
        for value in values {
            let bits = magnitude(*value);
            if bits < INFINITY {
                largest = largest.max(bits);
                squares += f64::from(*value) * f64::from(*value);
            }
        }
        let deviation = (squares / values.len().max(1) as f64).sqrt();
        let limit = if self.clip.is_finite() { self.clip * deviation } else { f64::INFINITY };
        f64::from(f32::from_bits(largest)).min(limit)
    }
}

/// The bound ω of the relative variance of what is not clipped.
fn variance(len: usize) -> f64 {
    ((len as f64).sqrt() - 1.0).max(0.0) / 2.0
}

impl Codec for TernGrad {
    fn bytes(&self, len: usize) -> usize {
        4 + (len * WIDTH).div_ceil(8)
    }

    fn properties(&self, len: usize) -> CodecProperties {
        let (variance, unclipped) = (variance(len), self.unclipped(len));
        let kept = if self.contract { 1.0 / (1.0 + variance) } else { (1.0 - variance).max(0.0) };
        let contraction = kept * unclipped;
        CodecProperties {
            lossless: false,
            unbiased: !self.contract && unclipped == 1.0,
            contraction,
            // Of normal elements hardly anything is clipped.
            typical: kept,
        }
    }

    fn encode(&mut self, at: VectorId, values: &[f32], out: &mut [u8]) -> usize {
        let bytes = self.bytes(values.len());
        let scale = self.scale(values);
        let factor = Some((1.0 / scale) as f32).filter(|factor| factor.is_finite());
        let shrink = if self.contract { 1.0 + variance(values.len()) } else { 1.0 };
        let head = if factor.is_some() { (scale / shrink) as f32 } else { 0.0 };
        let (first, rest) = out[..bytes].split_at_mut(4);
        first.copy_from_slice(&head.to_le_bytes());
        let rule = LevelScale { factor: factor.unwrap_or(0.0), levels: 1.0 };
        levels::write(values, rule, WIDTH, &mut RandomLanes::new(self.seed, "tern-grad", at), rest);
        bytes
    }

    fn decode(&mut self, _: VectorId, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        exact(ENTRY.meta.name, bytes, self.bytes(out.len()), out.len())?;
        let (scale, rest) = leading(bytes);
        let scale = length(ENTRY.meta.name, "the magnitude", scale)?;
        // Two bits hold no level above 1.
        levels::read(ENTRY.meta.name, rest, WIDTH, scale, out).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Value;
    use crate::vector;

    fn codec(clip: f64, contract: bool) -> TernGrad {
        let options = Options::defaults(KEYS).with("clip", Value::Number(clip));
        TernGrad::new(&options.with("contract", Value::Flag(contract)), 5)
    }

    fn round_trip(codec: &mut TernGrad, step: u64, values: &[f32]) -> Vec<f32> {
        let at = VectorId { step, ..VectorId::default() };
        let (mut bytes, mut out) = (vec![0; codec.bytes(values.len())], vec![0.0; values.len()]);
        codec.encode(at, values, &mut bytes);
        codec.decode(at, &bytes, &mut out).expect("just encoded");
        out
    }

    /// The mean of every element, and the mean of ‖Q − v‖²/‖v‖², over many draws.
    fn moments(codec: &mut TernGrad, values: &[f32], draws: u64) -> (Vec<f64>, f64) {
        let (mut sums, mut loss) = (vec![0.0; values.len()], 0.0);
        for step in 0..draws {
            let drawn = round_trip(codec, step, values);
            sums.iter_mut().zip(&drawn).for_each(|(sum, x)| *sum += f64::from(*x));
            let errors: Vec<f32> = drawn.iter().zip(values).map(|(x, v)| x - v).collect();
            loss += vector::sum_of_squares(&errors) / vector::sum_of_squares(values);
        }
        (sums.iter().map(|sum| sum / draws as f64).collect(), loss / draws as f64)
    }

    fn waves(len: usize) -> Vec<f32> {
        (0..len).map(|k| (k as f32 * 0.9).sin()).collect()
    }

    #[test]
    fn without_clipping_mean_and_variance_are_those_of_the_formulas() {
        let (values, draws) = (waves(40), 20_000);
        let (means, loss) = moments(&mut codec(0.0, false), &values, draws);
        let largest = values.iter().map(|x| f64::from(x.abs())).fold(0.0, f64::max);
        // A draw deviates by at most half of s; five deviations of the mean are allowed.
        let allowed = 5.0 * 0.5 * largest / (draws as f64).sqrt();
        for (mean, value) in means.iter().zip(&values) {
            assert!((mean - f64::from(*value)).abs() < allowed, "{mean} {value}");
        }
        let l1: f64 = values.iter().map(|x| f64::from(x.abs())).sum();
        let expected = largest * l1 / vector::sum_of_squares(&values) - 1.0;
        assert!((loss / expected - 1.0).abs() < 0.02, "{loss} instead of {expected}");
        assert!(codec(0.0, false).properties(40).unbiased);
    }

    #[test]
    fn the_bound_of_the_variance_is_met_by_one_element_among_equal_smaller_ones() {
        for len in [2, 9, 100] {
            let mut values = vec![1.0 / (1.0 + (len as f32).sqrt()); len];
            values[0] = 1.0;
            let l1: f64 = values.iter().map(|x| f64::from(*x)).sum();
            let exact = l1 / vector::sum_of_squares(&values) - 1.0;
            assert!((exact - variance(len)).abs() < 1e-6, "{len}: {exact}");
            let (_, loss) = moments(&mut codec(0.0, false), &values, 20_000);
            assert!((loss - exact).abs() < 0.03 * (1.0 + exact), "{len}: {loss} {exact}");
        }
    }

    #[test]
    fn clipped_elements_become_the_limit_and_the_error_is_bounded_at_any_length() {
        let mut values = vec![0.01; 10_000];
        values[7] = -100.0;
        let mut clipping = codec(2.5, false);
        let deviation = (vector::sum_of_squares(&values) / 1e4).sqrt();
        let drawn = round_trip(&mut clipping, 0, &values);
        assert!((f64::from(drawn[7]) + 2.5 * deviation).abs() < 1e-5, "{}", drawn[7]);
        assert!(!clipping.properties(10_000).unbiased);
        for values in [values, waves(10_000)] {
            let (_, loss) = moments(&mut clipping, &values, 20);
            assert!(loss <= 1.0 + 2.5 * 2.5 / 8.0, "{loss}");
        }
    }

    #[test]
    fn a_contraction_shortens_even_what_clipping_hurts_most() {
        for len in [1, 5, 50] {
            let (mut clipped, mut one) = (codec(2.5, true), vec![0.0; len]);
            one[len / 2] = 3.0;
            for values in [one, waves(len).iter().map(|x| x + 0.1).collect()] {
                let (_, loss) = moments(&mut clipped, &values, 4000);
                let bound = 1.0 - clipped.properties(len).contraction;
                assert!(loss <= bound + 0.01, "{len}: {loss} {bound}");
            }
        }
    }
}
