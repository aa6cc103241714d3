//! The two half precision formats as numbers: widened to `f32`, rounded to nearest even.

/// IEEE binary16.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
pub(super) struct F16(u16);

/// The upper half of an `f32`.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(transparent)]
pub(super) struct Bf16(u16);

// SAFETY: transparent over u16, for which every bit pattern is valid.
unsafe impl bytemuck::Zeroable for F16 {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for F16 {}
// SAFETY: as above.
unsafe impl bytemuck::Zeroable for Bf16 {}
// SAFETY: as above.
unsafe impl bytemuck::Pod for Bf16 {}

/// 2¹¹²: moves the exponent of a binary16 number to where `f32` has it.
const F16_TO_F32: f32 = f32::from_bits((127 + 112) << 23);

impl Bf16 {
    #[inline(always)]
    pub(super) fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.0) << 16)
    }

    #[inline(always)]
    pub(super) fn round(value: f32) -> Bf16 {
        let bits = value.to_bits();
        let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        // Rounding could carry out of what is not a number.
        Bf16(if value.is_nan() { bits >> 16 | 0x40 } else { nearest } as u16)
    }
}

impl F16 {
    #[inline(always)]
    pub(super) fn widen(self) -> f32 {
        let magnitude = u32::from(self.0 & 0x7fff);
        // Multiplying also normalizes what is subnormal in 16 bits.
        let finite = f32::from_bits(magnitude << 13) * F16_TO_F32;
        let special = f32::from_bits(magnitude << 13 | 0x7f80_0000);
        let value = if magnitude >= 0x7c00 { special } else { finite };
        f32::from_bits(value.to_bits() | u32::from(self.0 & 0x8000) << 16)
    }

    #[inline(always)]
    pub(super) fn round(value: f32) -> F16 {
        let sign = (value.to_bits() >> 16 & 0x8000) as u16;
        let magnitude = value.abs();
        let bits = magnitude.to_bits();
        let rounded = if magnitude.is_nan() {
            0x7e00
        } else if magnitude >= 65520.0 {
            0x7c00
        } else if magnitude < f32::from_bits((127 - 14) << 23) {
            // Subnormal: units of 2⁻²⁴; adding 2²³ makes the processor round to whole ones.
            let units = magnitude * f32::from_bits((127 + 24) << 23) + 8_388_608.0;
            (units.to_bits() & 0xffff) as u16
        } else {
            let nearest = bits + 0xfff + (bits >> 13 & 1);
            ((nearest >> 13) - (112 << 10)) as u16
        };
        F16(sign | rounded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The value of a binary16 number by its definition.
    fn defined(bits: u16) -> f64 {
        let sign = if bits & 0x8000 == 0 { 1.0 } else { -1.0 };
        let (exponent, fraction) = (i32::from(bits >> 10 & 31), f64::from(bits & 1023));
        sign * match exponent {
            0 => fraction * 2f64.powi(-24),
            31 if fraction == 0.0 => f64::INFINITY,
            31 => f64::NAN,
            _ => (1024.0 + fraction) * 2f64.powi(exponent - 25),
        }
    }

    #[test]
    fn every_binary16_number_widens_to_its_value_and_rounds_back() {
        for bits in 0..=u16::MAX {
            let wide = F16(bits).widen();
            if defined(bits).is_nan() {
                assert!(wide.is_nan() && F16::round(wide).widen().is_nan());
                continue;
            }
            assert_eq!(f64::from(wide), defined(bits), "{bits:#x}");
            assert_eq!(F16::round(wide).0, bits);
        }
    }

    #[test]
    fn nearest_is_chosen_between_neighbours_and_of_two_the_even_one() {
        for bits in 0..0x7bffu16 {
            let (low, high) = (F16(bits).widen(), F16(bits + 1).widen());
            let middle = (low + high) / 2.0;
            let even = if bits.is_multiple_of(2) { bits } else { bits + 1 };
            assert_eq!(F16::round(middle).0, even);
            assert_eq!(F16::round(f32::from_bits(middle.to_bits() - 1)).0, bits);
            assert_eq!(F16::round(f32::from_bits(middle.to_bits() + 1)).0, bits + 1);
        }
        assert_eq!(F16::round(65519.0).0, 0x7bff);
        assert_eq!(F16::round(65520.0).0, 0x7c00);
    }

    #[test]
    fn bf16_rounds_to_nearest_even() {
        for (value, expected) in [(1.0, 1.0), (1.003_906_2, 1.0), (1.011_718_8, 1.015_625)] {
            assert_eq!(Bf16::round(value).widen(), expected);
        }
        assert!(Bf16::round(f32::NAN).widen().is_nan());
    }
}
