//! `sign`: the mean magnitude and one bit per element.
//!
//! ```text
//! C(v)_i = (‖v‖₁ / d)·sgn(v_i),  sgn(0) = +1
//!
//! bytes 0..4   ‖v‖₁ / d: f32
//! then         bit i mod 8 of byte i / 8 is set where v_i < 0; unused bits are 0
//! ```
//!
//! What is not finite counts as 0 in the mean, so that it spoils no other element.

use super::{Codec, CodecError, CodecProperties, CodecShape, Entry, INFINITY, VectorId};
use super::{exact, leading, length, magnitude};
use crate::meta::Meta;
use crate::vector::dispatch::{Level, kernel};

pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "sign",
        summary: "the mean magnitude and one bit per element",
        paper: "Karimireddy et al. 2019, Error feedback fixes SignSGD",
        section: "the scaled sign of the algorithm named EF-signSGD",
        file: file!(),
        options: &[],
    },
    wire: "4 + ⌈d/8⌉",
    shape: CodecShape::Own,
    per_element: false,
    build: |_, _| Box::new(Sign),
};

struct Sign;

impl Codec for Sign {
    fn bytes(&self, len: usize) -> usize {
        4 + len.div_ceil(8)
    }

    fn properties(&self, len: usize) -> CodecProperties {
        // ‖v‖₁²/(d·‖v‖₂²), which is smallest where one element is all there is.
        // For normal elements it is 2/π.
        let (contraction, typical) = (1.0 / len.max(1) as f64, std::f64::consts::FRAC_2_PI);
        CodecProperties { lossless: false, unbiased: false, contraction, typical }
    }

    fn encode(&mut self, _: VectorId, values: &[f32], out: &mut [u8]) -> usize {
        let level = Level::best();
        let mean = sum_of_magnitudes(level, values) / values.len().max(1) as f64;
        let (head, bits) = out[..self.bytes(values.len())].split_at_mut(4);
        head.copy_from_slice(&(mean as f32).to_le_bytes());
        collect(level, values, bits);
        self.bytes(values.len())
    }

    fn decode(&mut self, _: VectorId, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        exact(ENTRY.meta.name, bytes, self.bytes(out.len()), out.len())?;
        let (mean, bits) = leading(bytes);
        let mean = length(ENTRY.meta.name, "the mean magnitude", mean)?;
        let used = out.len() % 8;
        if used > 0 && bits.last().is_some_and(|last| last >> used != 0) {
            return Err(CodecError::Padding { codec: ENTRY.meta.name });
        }
        spread(Level::best(), bits, mean, out);
        Ok(())
    }
}

/// Element `k` is summed by accumulator `k mod 16`, whatever the vector width.
const ACCUMULATORS: usize = 16;

kernel! {
    fn sum_of_magnitudes(values: &[f32]) -> f64 {
        let (chunks, tail) = values.as_chunks::<ACCUMULATORS>();
        let mut sums = [0.0; ACCUMULATORS];
        for chunk in chunks {
            for (sum, value) in sums.iter_mut().zip(chunk) {
                *sum += finite_magnitude(*value);
            }
        }
        for (sum, value) in sums.iter_mut().zip(tail) {
            *sum += finite_magnitude(*value);
        }
        sums.iter().fold(0.0, |total, sum| total + sum)
    }
}

#[inline(always)]
fn finite_magnitude(value: f32) -> f64 {
    let bits = magnitude(value);
    f64::from(f32::from_bits(if bits < INFINITY { bits } else { 0 }))
}

kernel! {
    fn collect(values: &[f32], out: &mut [u8]) {
        let (chunks, tail) = values.as_chunks::<32>();
        let (words, rest) = out.split_at_mut(chunks.len() * 4);
        for (out, chunk) in words.as_chunks_mut().0.iter_mut().zip(chunks) {
            *out = signs(chunk).to_le_bytes();
        }
        let mut last = [0.0; 32];
        last[..tail.len()].copy_from_slice(tail);
        rest.copy_from_slice(&signs(&last).to_le_bytes()[..rest.len()]);
    }
}

#[inline(always)]
fn signs(values: &[f32; 32]) -> u32 {
    let bit = |(k, value): (usize, &f32)| u32::from(*value < 0.0) << k;
    values.iter().enumerate().map(bit).fold(0, |word, bit| word | bit)
}

kernel! {
    fn spread(bits: &[u8], mean: f32, out: &mut [f32]) {
        let (chunks, tail) = out.as_chunks_mut::<8>();
        for (out, byte) in chunks.iter_mut().zip(bits) {
            *out = with_signs(*byte, mean);
        }
        if let Some(byte) = bits.get(chunks.len()) {
            tail.copy_from_slice(&with_signs(*byte, mean)[..tail.len()]);
        }
    }
}

#[inline(always)]
fn with_signs(byte: u8, mean: f32) -> [f32; 8] {
    std::array::from_fn(|k| f32::from_bits(mean.to_bits() | (u32::from(byte) >> k & 1) << 31))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_counts_as_positive() {
        let values = [0.0, -0.0, -3.0, 1.0];
        let (mut bytes, mut out) = ([0; 5], [0.0; 4]);
        assert_eq!(Sign.encode(VectorId::default(), &values, &mut bytes), 5);
        assert_eq!(bytes, [0, 0, 0x80, 0x3f, 0b100]);
        Sign.decode(VectorId::default(), &bytes, &mut out).expect("just encoded");
        assert_eq!(out, [1.0, 1.0, -1.0, 1.0]);
    }

    #[test]
    fn every_level_gives_the_same_bits() {
        let values: Vec<f32> = (0..1001).map(|k| (k as f32 * 1.7).sin()).collect();
        let results = Level::all().into_iter().map(|level| {
            let (mut bits, mut out) = (vec![0; 126], vec![0.0; 1001]);
            collect(level, &values, &mut bits);
            spread(level, &bits, 0.3, &mut out);
            (sum_of_magnitudes(level, &values).to_bits(), bits, out)
        });
        let results: Vec<_> = results.collect();
        assert!(results.iter().all(|result| *result == results[0]));
    }
}
