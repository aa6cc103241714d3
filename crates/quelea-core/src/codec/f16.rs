//! `f16`: IEEE half precision under one power-of-two scale, rounded to nearest even.
//!
//! ```text
//! bytes 0..4       scale: f32, a power of two
//! bytes 4..4+2·d   v_i / scale as IEEE binary16
//! ```
//!
//! The scale puts the largest finite magnitude into [2¹⁴, 2¹⁵), so that nothing overflows and as
//! much as possible stays a normal number: 11 bits of precision down to 2⁻²⁸ of the largest.
//! Only what would round to 2¹²⁸ becomes infinite.

use super::{
    Codec, CodecError, CodecProperties, CodecShape, Entry, INFINITY, VectorId, exact, leading,
    magnitude,
};
use crate::meta::Meta;
use crate::vector::dispatch::{Level, kernel};

pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "f16",
        summary: "rounded to 11 bits of precision under one scale: 2 bytes each",
        paper: "Micikevicius et al. 2018, Mixed precision training",
        section: "the format itself (IEEE 754 binary16), rounded to nearest even",
        file: file!(),
        options: &[],
    },
    wire: "4 + 2·d",
    shape: CodecShape::Rounding,
    per_element: false,
    build: |_, _| Box::new(F16),
};

struct F16;

impl Codec for F16 {
    fn bytes(&self, len: usize) -> usize {
        4 + len * 2
    }

    fn properties(&self, _: usize) -> CodecProperties {
        // 2⁻²² for normal numbers; the steps below them are 2⁻³⁹ of the largest, which adds far
        // less than as much again for any vector that fits into memory.
        let contraction = 1.0 - 2f64.powi(-21);
        CodecProperties { lossless: false, unbiased: false, contraction, typical: contraction }
    }

    fn encode(&mut self, _: VectorId, values: &[f32], out: &mut [u8]) -> usize {
        let level = Level::best();
        let exponent = scale_exponent(largest(level, values));
        let (scale, rest) = out[..self.bytes(values.len())].split_at_mut(4);
        scale.copy_from_slice(&power_of_two(exponent).to_le_bytes());
        round_all(level, values, power_of_two(-exponent), rest.as_chunks_mut().0);
        self.bytes(values.len())
    }

    fn decode(&mut self, _: VectorId, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        exact(ENTRY.meta.name, bytes, self.bytes(out.len()), out.len())?;
        let (scale, rest) = leading(bytes);
        // A power of two has no fraction, and only normal ones are written.
        if scale.to_bits() & !INFINITY != 0 || !scale.is_normal() {
            return Err(CodecError::Number {
                codec: ENTRY.meta.name,
                what: "the scale",
                given: scale.into(),
                allowed: "a power of two".to_string(),
            });
        }
        widen_all(Level::best(), rest.as_chunks().0, scale, out);
        Ok(())
    }
}

/// The exponent of the scale, such that it and its inverse are normal numbers. It is that of the
/// largest magnitude *after* rounding to 11 bits, so that what was decoded has the same scale.
fn scale_exponent(largest: u32) -> i32 {
    let rounded = (largest + (1 << 12)).min(INFINITY - 1);
    ((rounded >> 23) as i32 - 127 - 14).clamp(-126, 113)
}

fn power_of_two(exponent: i32) -> f32 {
    f32::from_bits(((exponent + 127) as u32) << 23)
}

kernel! {
    /// The largest finite magnitude.
    fn largest(values: &[f32]) -> u32 {
        let mut largest = 0;
        for value in values {
            let bits = magnitude(*value);
            largest = largest.max(if bits < INFINITY { bits } else { 0 });
        }
        largest
    }
}

kernel! {
    fn round_all(values: &[f32], factor: f32, out: &mut [[u8; 2]]) {
        for (out, value) in out.iter_mut().zip(values) {
            *out = round(value * factor).to_le_bytes();
        }
    }
}

kernel! {
    fn widen_all(bytes: &[[u8; 2]], scale: f32, out: &mut [f32]) {
        for (out, bytes) in out.iter_mut().zip(bytes) {
            *out = widen(u16::from_le_bytes(*bytes)) * scale;
        }
    }
}

/// For magnitudes that are below 2¹⁶ or not finite.
#[inline(always)]
fn round(value: f32) -> u16 {
    let bits = magnitude(value);
    let normal = ((bits + 0xfff + (bits >> 13 & 1)) >> 13).wrapping_sub(112 << 10);
    // The last place of ½ is the step of the subnormal numbers, so that the addition rounds.
    let subnormal = (f32::from_bits(bits) + 0.5).to_bits().wrapping_sub(0.5f32.to_bits());
    let finite = if bits < SMALLEST_NORMAL { subnormal } else { normal };
    let special = if bits > INFINITY { 0x7e00 } else { 0x7c00 };
    let rounded = if bits < INFINITY { finite } else { special };
    (rounded | value.to_bits() >> 16 & 0x8000) as u16
}

#[inline(always)]
fn widen(half: u16) -> f32 {
    let bits = u32::from(half & 0x7fff);
    let normal = (bits << 13) + (112 << 23);
    let subnormal = (bits as i32 as f32 * SUBNORMAL_STEP).to_bits();
    let finite = if bits < 0x400 { subnormal } else { normal };
    let rounded = if bits < 0x7c00 { finite } else { bits << 13 | INFINITY };
    f32::from_bits(rounded | u32::from(half & 0x8000) << 16)
}

/// The magnitude of 2⁻¹⁴.
const SMALLEST_NORMAL: u32 = (127 - 14) << 23;

/// 2⁻²⁴.
const SUBNORMAL_STEP: f32 = 1.0 / 16_777_216.0;

#[cfg(test)]
mod tests {
    use super::*;

    /// What IEEE 754 says that the bits of a magnitude mean.
    fn meaning(bits: u16) -> f64 {
        let (exponent, fraction) = (i32::from(bits >> 10), f64::from(bits & 0x3ff));
        match exponent {
            0 => fraction * 2f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
        }
    }

    #[test]
    fn every_half_means_what_it_should() {
        for bits in 0..0x8000 {
            let wanted = meaning(bits);
            for (half, sign) in [(bits, 1.0), (bits | 0x8000, -1.0)] {
                let found = f64::from(widen(half));
                assert!(found == sign * wanted || found.is_nan() && wanted.is_nan(), "{half:x}");
            }
        }
    }

    #[test]
    fn nearest_is_chosen_and_of_two_the_even_one() {
        for high in 0..=u16::MAX {
            for low in [0, 1, 0xfff, 0x1000, 0x1001, 0x2fff, 0x3000, 0x8000, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                // The scale leaves nothing finite beyond.
                if value.is_finite() && value.abs() > 32_768.0 {
                    continue;
                }
                let rounded = round(value) & 0x7fff;
                assert_eq!(value.is_sign_negative(), round(value) & 0x8000 != 0);
                if !value.is_finite() {
                    let found = widen(rounded);
                    assert!(found == value.abs() || found.is_nan() && value.is_nan());
                    continue;
                }
                let off = |bits| (meaning(bits) - f64::from(value.abs())).abs();
                for other in [rounded.saturating_sub(1), rounded + 1] {
                    let tie = off(rounded) == off(other) && rounded.is_multiple_of(2);
                    assert!(off(rounded) < off(other) || tie, "{value:e}");
                }
            }
        }
    }

    #[test]
    fn neither_large_nor_small_vectors_lose_precision() {
        let values: Vec<f32> = (1..100).map(|k| (k as f32 * 0.7).sin()).collect();
        for exponent in [-112, -60, 0, 60, 126] {
            let scaled: Vec<f32> = values.iter().map(|v| v * power_of_two(exponent)).collect();
            let (mut bytes, mut out) = (vec![0; 4 + 2 * scaled.len()], vec![0.0; scaled.len()]);
            F16.encode(VectorId::default(), &scaled, &mut bytes);
            F16.decode(VectorId::default(), &bytes, &mut out).expect("just encoded");
            for (v, out) in scaled.iter().zip(&out) {
                assert!((v - out).abs() <= v.abs() * 2f32.powi(-11), "{v:e} {out:e}");
            }
        }
    }

    #[test]
    fn every_level_gives_the_same_bits() {
        let values: Vec<f32> = (0..1000).map(|k| f32::from_bits(k * 4_294_967)).collect();
        let results = Level::all().into_iter().map(|level| {
            let mut out = vec![[0; 2]; values.len()];
            round_all(level, &values, power_of_two(-100), &mut out);
            (largest(level, &values), out)
        });
        let results: Vec<_> = results.collect();
        assert!(results.iter().all(|result| *result == results[0]));
    }
}
