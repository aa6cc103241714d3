//! `qsgd`: every element rounded at random to one of a few levels of the norm, without bias.
//!
//! ```text
//! Q(v)_i = ‖v‖₂·sgn(v_i)·ξ_i / s,  ξ_i = ⌊x⌋ + [u_i < x − ⌊x⌋],  x = s·|v_i| / ‖v‖₂
//!
//! 4 bytes      ‖v‖₂: f32; divided by 1 + ω where `contract` is set
//! then         codes of w = 1 + ⌈log₂(s + 1)⌉ bits, ξ_i·2 + [v_i < 0], lowest bits first;
//!              unused bits are 0
//! ```
//!
//! `E‖Q(v) − v‖² ≤ ω‖v‖²` with `ω = min(d/s², √d/s)` (Alistarh et al. 2017, Lemma 3.1), and
//! `Q/(1 + ω)` is a contraction with `δ = 1/(1 + ω)`: that is what error feedback needs.
//!
//! `ω` grows with `d`, so that one norm for millions of elements needs many levels or is mostly
//! noise: with 127 levels `ω` is 20 for a bucket of 25 MB and 0.03 for 512 elements. Every `group`
//! of elements is therefore written as a vector of its own, 512 by default as in the paper's
//! experiments; `group = 0` takes one norm for the whole vector.
//!
//! The norm is that of the finite elements. What is not a number is sent as 0, an infinity as
//! the highest level. A vector whose norm is below `s`/`f32::MAX` is sent as 0.

use super::levels::{self, LevelScale, RandomLanes};
use super::{
    Codec, CodecError, CodecProperties, CodecShape, Entry, VectorId, exact, leading, length,
};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::vector;

pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "qsgd",
        summary: "rounded at random to a few levels of the norm, without bias",
        paper: "Alistarh et al. 2017, QSGD",
        section: "Section 3.1 (stochastic quantization)",
        file: file!(),
        options: KEYS,
    },
    wire: "4 + ⌈g·w/8⌉ for each group of g elements, w = 1 + ⌈log2(levels + 1)⌉",
    shape: CodecShape::Own,
    per_element: false,
    build: |options, seed| Box::new(Qsgd::new(options, seed)),
};

const KEYS: &[OptionSpec] = &[
    OptionSpec {
        name: "levels",
        kind: OptionKind::Whole { default: 127, min: 1, max: 32_767 },
        help: "levels above 0; an element takes 1 + ceil(log2(levels + 1)) bits",
    },
    OptionSpec {
        name: "group",
        kind: OptionKind::Whole { default: 512, min: 0, max: u32::MAX as u64 },
        help: "elements that share one norm, 512 as published; 0: one norm for the whole vector",
    },
    OptionSpec {
        name: "contract",
        kind: OptionKind::Flag(false),
        help: "divide by 1 + min(d/s^2, sqrt(d)/s): biased, but fit for error feedback",
    },
];

struct Qsgd {
    levels: u32,
    /// Bits per element.
    width: usize,
    /// Elements that share one norm.
    group: usize,
    contract: bool,
    seed: u64,
}

impl Qsgd {
    fn new(options: &Options, seed: u64) -> Qsgd {
        let levels = options.whole("levels") as u32;
        let width = 1 + (levels + 1).next_power_of_two().ilog2() as usize;
        let group = Some(options.whole("group") as usize).filter(|group| *group > 0);
        let contract = options.flag("contract");
        Qsgd { levels, width, group: group.unwrap_or(usize::MAX), contract, seed }
    }

    /// The bound ω of the relative variance.
    fn variance(&self, len: usize) -> f64 {
        let (d, s) = (len.min(self.group) as f64, f64::from(self.levels));
        (d / (s * s)).min(d.sqrt() / s)
    }

    fn lanes(&self, at: VectorId) -> RandomLanes {
        RandomLanes::new(self.seed, "qsgd", at)
    }

    fn group_bytes(&self, len: usize) -> usize {
        4 + (len * self.width).div_ceil(8)
    }

    fn encode_group(&self, values: &[f32], lanes: &mut RandomLanes, out: &mut [u8]) {
        let norm = finite_norm(values).min(f64::from(f32::MAX));
        let factor = Some((f64::from(self.levels) / norm) as f32).filter(|x| x.is_finite());
        let shrink = if self.contract { 1.0 + self.variance(values.len()) } else { 1.0 };
        let head = if factor.is_some() { (norm / shrink) as f32 } else { 0.0 };
        let (first, rest) = out.split_at_mut(4);
        first.copy_from_slice(&head.to_le_bytes());
        let scale = LevelScale { factor: factor.unwrap_or(0.0), levels: self.levels as f32 };
        levels::write(values, scale, self.width, lanes, rest);
    }

    fn decode_group(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        let (norm, rest) = leading(bytes);
        let unit = length(ENTRY.meta.name, "the norm", norm)? / self.levels as f32;
        let highest = levels::read(ENTRY.meta.name, rest, self.width, unit, out)?;
        if highest > self.levels {
            return Err(CodecError::Number {
                codec: ENTRY.meta.name,
                what: "a level",
                given: highest.into(),
                allowed: format!("at most {}", self.levels),
            });
        }
        Ok(())
    }
}

impl Codec for Qsgd {
    fn bytes(&self, len: usize) -> usize {
        // An empty vector is one empty group.
        let whole = len.saturating_sub(1) / self.group;
        let last = len - whole * self.group.min(len);
        whole * self.group_bytes(self.group.min(len)) + self.group_bytes(last)
    }

    fn properties(&self, len: usize) -> CodecProperties {
        let variance = self.variance(len);
        let contraction =
            if self.contract { 1.0 / (1.0 + variance) } else { (1.0 - variance).max(0.0) };
        CodecProperties {
            lossless: false,
            unbiased: !self.contract,
            contraction,
            typical: contraction,
        }
    }

    fn encode(&mut self, at: VectorId, values: &[f32], out: &mut [u8]) -> usize {
        let bytes = self.bytes(values.len());
        let stride = self.group_bytes(self.group.min(values.len()));
        let mut lanes = self.lanes(at);
        let mut groups = values.chunks(self.group);
        for out in out[..bytes].chunks_mut(stride) {
            self.encode_group(groups.next().unwrap_or(&[]), &mut lanes, out);
        }
        bytes
    }

    fn decode(&mut self, _: VectorId, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        exact(ENTRY.meta.name, bytes, self.bytes(out.len()), out.len())?;
        let stride = self.group_bytes(self.group.min(out.len()));
        let mut groups = out.chunks_mut(self.group);
        for bytes in bytes.chunks(stride) {
            self.decode_group(bytes, groups.next().unwrap_or(&mut []))?;
        }
        Ok(())
    }
}

/// The norm of the finite elements.
fn finite_norm(values: &[f32]) -> f64 {
    // The squares of finite numbers cannot overflow their sum, which is an `f64`.
    let sum = vector::sum_of_squares(values);
    if sum.is_finite() {
        return sum.sqrt();
    }
    let squares = values.iter().filter(|x| x.is_finite()).map(|x| f64::from(*x) * f64::from(*x));
    squares.fold(0.0, |total, square| total + square).sqrt()
}

#[cfg(test)]
mod tests {
    use super::levels::{BATCH, pack, round, unpack, widen};
    use super::*;
    use crate::options::Value;
    use crate::vector::dispatch::Level;

    fn codec(levels: u32, contract: bool) -> Qsgd {
        let params = Options::defaults(KEYS).with("levels", Value::Number(levels.into()));
        Qsgd::new(&params.with("contract", Value::Flag(contract)), 5)
    }

    fn at(step: u64) -> VectorId {
        VectorId { step, ..VectorId::default() }
    }

    fn round_trip(codec: &mut Qsgd, at: VectorId, values: &[f32]) -> Vec<f32> {
        let (mut bytes, mut out) = (vec![0; codec.bytes(values.len())], vec![0.0; values.len()]);
        codec.encode(at, values, &mut bytes);
        codec.decode(at, &bytes, &mut out).expect("just encoded");
        out
    }

    #[test]
    fn mean_of_many_draws_is_the_vector() {
        let values: Vec<f32> = (0..40).map(|k| (k as f32 * 0.9).sin()).collect();
        let norm = vector::norm(&values);
        for levels in [1, 2, 5, 127] {
            let (mut codec, draws) = (codec(levels, false), 20_000);
            let mut sums = vec![0.0; values.len()];
            for step in 0..draws {
                let drawn = round_trip(&mut codec, at(step), &values);
                sums.iter_mut().zip(drawn).for_each(|(sum, x)| *sum += f64::from(x));
            }
            // Each draw has a deviation of at most half a level; five of the mean's are allowed.
            let allowed = 5.0 * 0.5 * norm / f64::from(levels) / (draws as f64).sqrt();
            for (sum, value) in sums.iter().zip(&values) {
                let mean = sum / draws as f64;
                assert!((mean - f64::from(*value)).abs() < allowed, "{levels}: {mean} {value}");
            }
        }
    }

    #[test]
    fn variance_is_within_the_lemma() {
        let values: Vec<f32> = (0..400).map(|k| (k as f32 * 0.9).sin()).collect();
        for levels in [1, 4, 20, 127] {
            let (mut codec, draws) = (codec(levels, false), 200);
            let mut loss = |step| {
                let drawn = round_trip(&mut codec, at(step), &values);
                let errors: Vec<f32> = drawn.iter().zip(&values).map(|(x, v)| x - v).collect();
                vector::sum_of_squares(&errors) / vector::sum_of_squares(&values)
            };
            let mean = (0..draws).map(&mut loss).sum::<f64>() / draws as f64;
            let bound = codec.variance(values.len());
            assert!(mean <= bound && mean > 0.1 * bound, "{levels}: {mean} {bound}");
        }
    }

    /// ω = √d/s of one norm is 2.5 for 100,000 elements and 127 levels; for groups of 512 it is
    /// 512/127² = 0.032, whatever the length.
    #[test]
    fn a_long_vector_loses_by_default_no_more_than_its_groups_of_512_do() {
        let values: Vec<f32> = (0..100_000).map(|k| (k as f32 * 0.9).sin()).collect();
        let mut codec = codec(127, false);
        let drawn = round_trip(&mut codec, at(1), &values);
        let errors: Vec<f32> = drawn.iter().zip(&values).map(|(x, v)| x - v).collect();
        let lost = vector::sum_of_squares(&errors) / vector::sum_of_squares(&values);
        assert!(lost < 512.0 / (127.0 * 127.0), "{lost}");
        assert_eq!(codec.bytes(values.len()), 196 * 4 + 100_000, "196 norms, a byte per element");
    }

    #[test]
    fn ranks_steps_and_buckets_round_differently() {
        let values: Vec<f32> = (0..64).map(|k| (k as f32 * 0.9).sin()).collect();
        let mut codec = codec(3, false);
        let mut drawn = |rank, step, bucket| {
            round_trip(
                &mut codec,
                VectorId { rank: crate::message::Rank(rank), step, bucket },
                &values,
            )
        };
        let first = drawn(0, 0, 0);
        assert_eq!(first, drawn(0, 0, 0));
        assert!([drawn(1, 0, 0), drawn(0, 1, 0), drawn(0, 0, 1)].iter().all(|x| *x != first));
    }

    #[test]
    fn codes_of_every_width_come_back() {
        for width in 2..=16 {
            let codes = std::array::from_fn(|k| (k as u32 * 40_503) & ((1 << width) - 1));
            for len in [0, 1, 7, 8, 9, 100, BATCH] {
                let mut wanted = codes;
                wanted[len..].fill(0);
                let mut bytes = vec![0; (len * width).div_ceil(8)];
                pack(&wanted, width, &mut bytes);
                let mut back = [0; BATCH];
                unpack(&bytes, width, &mut back);
                assert_eq!(back, wanted, "{width} bits, {len} codes");
            }
        }
    }

    #[test]
    fn width_is_a_sign_and_the_bits_of_the_highest_level() {
        let widths = [1, 2, 3, 4, 7, 8, 127, 128, 32_767].map(|levels| codec(levels, false).width);
        assert_eq!(widths, [2, 3, 3, 4, 4, 5, 8, 9, 16]);
    }

    #[test]
    fn level_above_the_highest_is_refused() {
        let mut codec = codec(5, false);
        let bytes = [0, 0, 0x80, 0x3f, 0b1100];
        let error = codec.decode(at(0), &bytes, &mut [0.0]).expect_err("level 6 of 5");
        assert_eq!(error.to_string(), "qsgd: a level is 6, must be at most 5");
    }

    #[test]
    fn every_level_of_instructions_gives_the_same_bits() {
        let values: Vec<f32> = (0..250).map(|k| (k as f32 * 1.7).sin()).collect();
        let results = Level::all().into_iter().map(|level| {
            let (mut lanes, mut codes, mut out) =
                (codec(9, false).lanes(at(1)), [0; BATCH], [0.0; 250]);
            let scale = LevelScale { factor: 3.3, levels: 9.0 };
            round(level, &values, scale, &mut lanes, &mut codes);
            (widen(level, &codes, 0.1, &mut out), codes, out)
        });
        let results: Vec<_> = results.collect();
        assert!(results.iter().all(|result| *result == results[0]));
    }
}
