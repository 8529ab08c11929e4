//! Number formats below 32 bits: f16, bf16, fp8 (e4m3, no infinity), bf8 (e5m2). Values travel as f64, in which
//! products of two such numbers are exact.

use crate::emu::approx::{flips, neighbour};

/// A format of at most 16 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    F16,
    Bf16,
}

/// Bits of an f16 as f32; exact.
#[inline]
pub fn f16_to_f32(x: u32) -> f32 {
    let (sign, rest) = ((x & 0x8000) << 16, x & 0x7fff);
    // Moves the exponent from bias 15 to 127; a subnormal loses the implicit bit that it does not have.
    let shifted = rest << 13;
    let subnormal = (f32::from_bits(shifted + (113 << 23)) - f32::from_bits(113 << 23)).to_bits();
    let bits = match rest {
        0x7c00.. => shifted | 0x7f80_0000,
        0x400.. => shifted + (112 << 23),
        _ => subnormal,
    };
    f32::from_bits(sign | bits)
}

#[inline]
pub fn f16(x: u32) -> f64 {
    f64::from(f16_to_f32(x & 0xffff))
}

#[inline]
pub fn bf16(x: u32) -> f64 {
    f64::from(f32::from_bits(x << 16))
}

#[inline]
pub fn fp8(x: u32) -> f64 {
    let (exponent, mantissa) = (x >> 3 & 15, x & 7);
    let size = match (exponent, mantissa) {
        (15, 7) => f64::NAN,
        (0, m) => f64::from(m) / 512.0,
        (e, m) => f64::from(8 + m) * f64::from_bits(u64::from(1023 - 10 + e) << 52),
    };
    if x & 0x80 == 0 { size } else { -size }
}

#[inline]
pub fn bf8(x: u32) -> f64 {
    f16((x & 0xff) << 8)
}

/// Rounds once, to nearest even, to a format with that many exponent and mantissa bits; subnormals stay.
#[inline]
fn narrow(x: f64, exponent_bits: u32, mantissa_bits: u32) -> u32 {
    let bits = x.to_bits();
    let sign = ((bits >> 63) as u32) << (exponent_bits + mantissa_bits);
    let infinity = ((1u32 << exponent_bits) - 1) << mantissa_bits;
    let (exponent, fraction) = ((bits >> 52 & 0x7ff) as i32, bits & ((1 << 52) - 1));
    if exponent == 0x7ff {
        let quiet = 1 << (mantissa_bits - 1) | (fraction >> (52 - mantissa_bits)) as u32;
        return sign | infinity | if fraction == 0 { 0 } else { quiet };
    }
    let target = exponent - 1023 + (1 << (exponent_bits - 1)) - 1;
    let significand = fraction | if exponent == 0 { 0 } else { 1 << 52 };
    // A subnormal shifts further. From 63 on nothing is left, and nothing rounds up.
    let shift = (52 - mantissa_bits + (1 - target).max(0) as u32).min(63);
    let (kept, rest, half) = (significand >> shift, significand & ((1 << shift) - 1), 1u64 << (shift - 1));
    let rounded = kept as u32 + u32::from(rest > half || rest == half && kept & 1 == 1);
    // The implicit bit in `rounded` counts as one exponent step.
    let above = (target - 1).clamp(0, 1 << exponent_bits) as u32;
    sign | ((above << mantissa_bits) + rounded).min(infinity)
}

/// f16 bits, rounded once.
#[inline]
pub fn to_f16(x: f64) -> u32 {
    narrow(x, 5, 10)
}

/// bf16 bits, rounded once.
#[inline]
pub fn to_bf16(x: f64) -> u32 {
    narrow(x, 8, 7)
}

impl Format {
    /// Value of the low 16 bits.
    #[inline]
    pub fn value(self, x: u32) -> f64 {
        match self {
            Format::F16 => f16(x),
            Format::Bf16 => bf16(x),
        }
    }

    /// Bits of a value, rounded once.
    #[inline]
    pub fn bits(self, x: f64) -> u32 {
        match self {
            Format::F16 => to_f16(x),
            Format::Bf16 => to_bf16(x),
        }
    }
}

/// What a constant, resolved as [`crate::emu::op::Literal::B64`], was printed as.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Printed {
    /// An inline integer, sign-extended, or literal bits.
    Bits(u32),
    /// An inline float.
    Float(f64),
}

/// Inline floats have bits set in the upper half that no sign extension gives.
pub fn printed(constant: u64) -> Printed {
    match constant >> 32 {
        0 | 0xffff_ffff => Printed::Bits(constant as u32),
        _ => Printed::Float(f64::from_bits(constant)),
    }
}

/// A constant as a pair of 16-bit floats: an inline float is the low half, the high half is 0.
pub fn packed_constant(constant: u64, format: Format) -> u32 {
    match (printed(constant), format) {
        (Printed::Bits(bits), _) => bits,
        (Printed::Float(v), Format::F16) => to_f16(v),
        // Only 1/(2 pi) is not exact; its bf16 form is cut off.
        (Printed::Float(v), Format::Bf16) => (v as f32).to_bits() >> 16,
    }
}

/// A constant as 32 bits.
pub fn word_constant(constant: u64) -> u32 {
    match printed(constant) {
        Printed::Bits(bits) => bits,
        Printed::Float(v) => (v as f32).to_bits(),
    }
}

/// An f32 clamped to 0..=1; NaN gives 0.
pub fn clamp_f32(bits: u32) -> u32 {
    let v = f32::from_bits(bits);
    if v > 0.0 { v.min(1.0).to_bits() } else { 0 }
}

/// An f16 clamped to 0..=1; NaN gives 0.
#[inline]
pub fn clamp_f16(bits: u32) -> u32 {
    match bits & 0xffff {
        positive @ 0..=0x7c00 => positive.min(0x3c00),
        _ => 0,
    }
}

/// As [`crate::emu::approx::finish`], for a 16-bit result.
pub fn finish_half(format: Format, perturb: Option<u32>, operand: u32, exact: f64) -> u32 {
    let bits = format.bits(exact);
    match neighbour(bits, format.value(bits), exact) {
        Some(other) if bits & 0x7fff != 0 && flips(perturb, operand) => other,
        _ => bits,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_agrees_with_the_crate() {
        for x in 0..0x1_0000u32 {
            let reference = half::f16::from_bits(x as u16);
            if reference.is_nan() {
                assert!(f16(x).is_nan());
                continue;
            }
            assert_eq!(f16(x), reference.to_f64(), "{x:#x}");
            assert_eq!(to_f16(f16(x)), x);
            assert_eq!(to_bf16(bf16(x)), x & 0xffff, "{x:#x}");
        }
    }

    #[test]
    fn rounding_is_to_nearest_even_and_once() {
        let ulp = f64::from_bits((1023 - 10) << 52);
        assert_eq!(to_f16(1.0 + ulp / 2.0), 0x3c00);
        assert_eq!(to_f16(1.0 + 1.5 * ulp), 0x3c02);
        assert_eq!(to_f16(1.0 + ulp / 2.0 + 1e-15), 0x3c01);
        assert_eq!((to_f16(65519.0), to_f16(65520.0), to_f16(-1e300)), (0x7bff, 0x7c00, 0xfc00));
        let least = f64::from_bits((1023 - 24) << 52);
        assert_eq!((to_f16(least / 2.0), to_f16(least * 0.500_001), to_f16(1e-300)), (0, 1, 0));
        assert_eq!(to_f16(f64::NAN) & 0x7e00, 0x7e00);
    }

    #[test]
    fn eight_bits() {
        assert_eq!((fp8(0x7e), fp8(0x38), fp8(0x01), fp8(0xb8)), (448.0, 1.0, 1.0 / 512.0, -1.0));
        assert!(fp8(0x7f).is_nan() && fp8(0xff).is_nan());
        assert_eq!((bf8(0x3c), bf8(0x7b), bf8(0x7c)), (1.0, 57344.0, f64::INFINITY));
    }
}
