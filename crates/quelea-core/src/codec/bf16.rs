//! `bf16`: the upper half of every `f32`, rounded to nearest even: 2 bytes each.
//!
//! The range is that of `f32`, the precision 8 bits. As in IEEE 754, what is nearer to 2¹²⁸ than
//! to the largest finite number becomes infinite.

use super::{
    Codec, CodecError, CodecProperties, CodecShape, Entry, INFINITY, VectorId, exact, magnitude,
};
use crate::meta::Meta;
use crate::vector::dispatch::{Level, kernel};

pub const ENTRY: Entry = Entry {
    meta: Meta {
        name: "bf16",
        summary: "rounded to 8 bits of precision with the range of f32: 2 bytes each",
        paper: "Kalamkar et al. 2019, A study of bfloat16 for deep learning training",
        section: "the format itself, rounded to nearest even",
        file: file!(),
        options: &[],
    },
    wire: "2·d",
    shape: CodecShape::Rounding,
    per_element: true,
    build: |_, _| Box::new(Bf16),
};

struct Bf16;

impl Codec for Bf16 {
    fn bytes(&self, len: usize) -> usize {
        len * 2
    }

    fn properties(&self, _: usize) -> CodecProperties {
        // Half a unit in the last of 8 places is 2⁻⁸ of the value at most.
        let contraction = 1.0 - 2f64.powi(-16);
        CodecProperties { lossless: false, unbiased: false, contraction, typical: contraction }
    }

    fn encode(&mut self, _: VectorId, values: &[f32], out: &mut [u8]) -> usize {
        let out = &mut out[..values.len() * 2];
        round_all(Level::best(), values, out.as_chunks_mut().0);
        out.len()
    }

    fn decode(&mut self, _: VectorId, bytes: &[u8], out: &mut [f32]) -> Result<(), CodecError> {
        exact(ENTRY.meta.name, bytes, self.bytes(out.len()), out.len())?;
        widen_all(Level::best(), bytes.as_chunks().0, out);
        Ok(())
    }
}

kernel! {
    fn round_all(values: &[f32], out: &mut [[u8; 2]]) {
        for (out, value) in out.iter_mut().zip(values) {
            *out = round(*value).to_le_bytes();
        }
    }
}

kernel! {
    fn widen_all(bytes: &[[u8; 2]], out: &mut [f32]) {
        for (out, bytes) in out.iter_mut().zip(bytes) {
            *out = f32::from_bits(u32::from(u16::from_le_bytes(*bytes)) << 16);
        }
    }
}

#[inline(always)]
fn round(value: f32) -> u16 {
    let bits = value.to_bits();
    let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    // Rounding could carry out of what is not a number; it is kept, and made quiet.
    let quiet = bits >> 16 | 0x40;
    (if magnitude(value) > INFINITY { quiet } else { nearest }) as u16
}

#[cfg(test)]
mod tests {
    use super::*;

    fn widen(bits: u16) -> f64 {
        f64::from(f32::from_bits(u32::from(bits) << 16))
    }

    #[test]
    fn nearest_is_chosen_and_of_two_the_even_one() {
        // Every upper half, with lower halves on both sides of a tie.
        for high in 0..=u16::MAX {
            for low in [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff] {
                let value = f32::from_bits(u32::from(high) << 16 | low);
                let rounded = round(value);
                if !value.is_finite() || widen(rounded).is_infinite() {
                    assert_eq!(value.is_nan(), widen(rounded).is_nan(), "{value:e}");
                    assert!(value.is_nan() || value.abs() >= f32::from_bits(0x7f7f_8000));
                    continue;
                }
                let off = |bits| (widen(bits) - f64::from(value)).abs();
                for other in [rounded.wrapping_sub(1), rounded.wrapping_add(1)] {
                    let tie = off(rounded) == off(other) && rounded.is_multiple_of(2);
                    let farther = off(other).total_cmp(&off(rounded)).is_gt();
                    assert!(farther || tie, "{value:e}");
                }
            }
        }
    }

    #[test]
    fn every_level_gives_the_same_bits() {
        let values: Vec<f32> = (0..1000).map(|k| f32::from_bits(k * 4_294_967)).collect();
        let results = Level::all().into_iter().map(|level| {
            let mut out = vec![[0; 2]; values.len()];
            round_all(level, &values, &mut out);
            out
        });
        let results: Vec<_> = results.collect();
        assert!(results.iter().all(|result| *result == results[0]));
    }
}
