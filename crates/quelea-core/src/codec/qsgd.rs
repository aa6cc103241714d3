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
//! noise. With `group` set, every group of that many elements is written as a vector of its own
//! (the paper's section 4 does so with 512).
//!
//! The norm is that of the finite elements. What is not a number is sent as 0, an infinity as
//! the highest level. A vector whose norm is below `s`/`f32::MAX` is sent as 0.

use super::{
    Codec, CodecError, CodecProperties, CodecShape, Entry, VectorId, exact, leading, length,
};
use crate::meta::Meta;
use crate::options::{OptionKind, OptionSpec, Options};
use crate::random::Rng;
use crate::vector;
use crate::vector::dispatch::{Level, kernel};

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
        kind: OptionKind::Whole { default: 0, min: 0, max: u32::MAX as u64 },
        help: "elements that share one norm; 0 stands for all of the vector",
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

    fn lanes(&self, at: VectorId) -> Lanes {
        let of_rank = Rng::new(self.seed, "qsgd", at.rank.0.into()).next_u64();
        let of_step = Rng::new(of_rank, "step", at.step).next_u64();
        Lanes::new(Rng::new(of_step, "bucket", at.bucket.into()))
    }

    fn group_bytes(&self, len: usize) -> usize {
        4 + (len * self.width).div_ceil(8)
    }

    fn encode_group(&self, values: &[f32], lanes: &mut Lanes, out: &mut [u8]) {
        let norm = finite_norm(values).min(f64::from(f32::MAX));
        let factor = Some((f64::from(self.levels) / norm) as f32).filter(|x| x.is_finite());
        let shrink = if self.contract { 1.0 + self.variance(values.len()) } else { 1.0 };
        let head = if factor.is_some() { (norm / shrink) as f32 } else { 0.0 };
        let (first, rest) = out.split_at_mut(4);
        first.copy_from_slice(&head.to_le_bytes());
        let level = Level::best();
        let scale = LevelScale { factor: factor.unwrap_or(0.0), levels: self.levels as f32 };
        for (values, out) in values.chunks(BATCH).zip(rest.chunks_mut(BATCH / 8 * self.width)) {
            let mut codes = [0; BATCH];
            round(level, values, scale, lanes, &mut codes);
            pack(&codes, self.width, out);
        }
    }

    fn decode_group(&self, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        let (norm, rest) = leading(bytes);
        let unit = length(ENTRY.meta.name, "the norm", norm)? / self.levels as f32;
        let mut highest = 0;
        for (out, bytes) in out.chunks_mut(BATCH).zip(rest.chunks(BATCH / 8 * self.width)) {
            let mut codes = [0; BATCH];
            unpack(bytes, self.width, &mut codes);
            if codes[out.len()..].iter().any(|code| *code != 0) {
                return Err(CodecError::Padding { codec: ENTRY.meta.name });
            }
            highest = highest.max(widen(Level::best(), &codes, unit, out));
        }
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

/// Elements that are rounded, then packed, at once; a multiple of [`LANES`] and of 8.
const BATCH: usize = 256;

/// Random streams side by side; element `i` draws from lane `i mod LANES`.
const LANES: usize = 16;

/// xoshiro128+ (Blackman and Vigna 2018) in every lane: the upper bits of its values are good.
struct Lanes {
    state: [[u32; LANES]; 4],
}

impl Lanes {
    fn new(mut seeds: Rng) -> Lanes {
        Lanes { state: std::array::from_fn(|_| std::array::from_fn(|_| seeds.next_u64() as u32)) }
    }

    #[inline(always)]
    fn draw(&mut self) -> [u32; LANES] {
        let [a, b, c, d] = &mut self.state;
        let mut drawn = [0; LANES];
        for k in 0..LANES {
            drawn[k] = a[k].wrapping_add(d[k]);
            let shifted = b[k] << 9;
            c[k] ^= a[k];
            d[k] ^= b[k];
            b[k] ^= c[k];
            a[k] ^= d[k];
            c[k] ^= shifted;
            d[k] = d[k].rotate_left(11);
        }
        drawn
    }
}

/// How values become levels.
#[derive(Clone, Copy)]
struct LevelScale {
    /// Levels of the value 1.
    factor: f32,
    /// The highest level.
    levels: f32,
}

kernel! {
    /// Writes the codes of `values`, rounded at random.
    fn round(values: &[f32], scale: LevelScale, lanes: &mut Lanes, codes: &mut [u32; BATCH]) {
        let (chunks, tail) = values.as_chunks::<LANES>();
        let (codes, _) = codes.as_chunks_mut::<LANES>();
        for (codes, chunk) in codes.iter_mut().zip(chunks) {
            *codes = round_lanes(chunk, scale, lanes.draw());
        }
        if let Some(codes) = codes.get_mut(chunks.len()) {
            let mut last = [0.0; LANES];
            last[..tail.len()].copy_from_slice(tail);
            *codes = round_lanes(&last, scale, lanes.draw());
        }
    }
}

/// 2²³: numbers from here on are whole, and their lowest bits count. Adding it rounds, which
/// vectorises where a conversion that must saturate does not.
const WHOLE: f32 = 8_388_608.0;

#[inline(always)]
fn round_lanes(
    values: &[f32; LANES],
    LevelScale { factor, levels }: LevelScale,
    draws: [u32; LANES],
) -> [u32; LANES] {
    std::array::from_fn(|k| {
        let exact = values[k].abs() * factor;
        let exact = if exact > levels { levels } else { exact };
        // What is not a number compares as false.
        let exact = if exact >= 0.0 { exact } else { 0.0 };
        let nearest = (exact + WHOLE) - WHOLE;
        let below = if nearest > exact { nearest - 1.0 } else { nearest };
        // 24 bits, because that many fit into an `f32`.
        let uniform = (draws[k] >> 8) as i32 as f32 * (1.0 / 16_777_216.0);
        let chosen = if uniform < exact - below { below + 1.0 } else { below };
        let whole = (chosen + WHOLE).to_bits() - WHOLE.to_bits();
        whole * 2 + u32::from(values[k] < 0.0)
    })
}

kernel! {
    /// Returns the highest level that it met.
    fn widen(codes: &[u32; BATCH], unit: f32, out: &mut [f32]) -> u32 {
        let mut highest = 0;
        for (out, code) in out.iter_mut().zip(codes) {
            let value = (code >> 1) as i32 as f32 * unit;
            *out = f32::from_bits(value.to_bits() | code << 31);
            highest = highest.max(code >> 1);
        }
        highest
    }
}

/// Eight codes of `width` bits are `width` bytes.
fn pack(codes: &[u32; BATCH], width: usize, mut out: &mut [u8]) {
    for codes in codes.as_chunks::<4>().0.as_chunks::<2>().0 {
        let [low, high] = codes.map(|codes| {
            let shifted = |k: usize| u64::from(codes[k]) << (k * width);
            shifted(0) | shifted(1) | shifted(2) | shifted(3)
        });
        let word = (u128::from(low) | u128::from(high) << (4 * width)).to_le_bytes();
        // A store of fixed size is faster; what is too much is written over by the next.
        match out.first_chunk_mut() {
            Some(first) => *first = word,
            None => {
                let left = out.len().min(width);
                out[..left].copy_from_slice(&word[..left]);
            }
        }
        out = out.split_at_mut_checked(width).map_or(&mut [], |(_, rest)| rest);
    }
}

/// Codes beyond the last byte are 0.
fn unpack(mut bytes: &[u8], width: usize, codes: &mut [u32; BATCH]) {
    let mask = (1u64 << width) - 1;
    for codes in codes.as_chunks_mut::<4>().0.as_chunks_mut::<2>().0 {
        let word = bytes.first_chunk().map_or_else(|| padded(bytes), |first| *first);
        let word = u128::from_le_bytes(word);
        for (codes, half) in codes.iter_mut().zip([word, word >> (4 * width)]) {
            *codes = std::array::from_fn(|k| (half as u64 >> (k * width) & mask) as u32);
        }
        bytes = bytes.get(width..).unwrap_or(&[]);
        if bytes.is_empty() {
            break;
        }
    }
}

fn padded(bytes: &[u8]) -> [u8; 16] {
    let mut word = [0; 16];
    word[..bytes.len()].copy_from_slice(bytes);
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Value;

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
