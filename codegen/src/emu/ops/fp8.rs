//! 8-bit floats: fp8 (e4m3 with NaN and no infinities) and bf8 (e5m2).

/// A format of 8 bits.
#[derive(Clone, Copy)]
struct Format {
    mantissa: u32,
    bias: i32,
    /// Magnitudes above this are no finite value.
    most: u8,
}

const FP8: Format = Format { mantissa: 3, bias: 7, most: 0x7e };
const BF8: Format = Format { mantissa: 2, bias: 15, most: 0x7b };

/// The value of finite bits.
fn decode(bits: u8, format: Format) -> f32 {
    let (magnitude, one) = (u32::from(bits & 0x7f), 1u32 << format.mantissa);
    let (biased, fraction) = ((magnitude >> format.mantissa).cast_signed(), magnitude & (one - 1));
    // Subnormals have the exponent of the first binade and no leading one.
    let (significand, exponent) = if biased == 0 { (fraction, 1) } else { (fraction | one, biased) };
    let scale = exponent - format.bias - format.mantissa.cast_signed();
    let value = significand as f32 * f32::from_bits((127 + scale).cast_unsigned() << 23);
    if bits & 0x80 != 0 { -value } else { value }
}

/// Bits of the magnitude nearest to `x`'s, ties to even; past `most` for what is too large.
fn nearest(x: f32, format: Format) -> u32 {
    let magnitude = x.to_bits() & 0x7fff_ffff;
    let exponent = (magnitude >> 23).cast_signed() - 127;
    // Bits that fall away: more of them where the result is subnormal.
    let drop = (23 - format.mantissa).cast_signed() + (1 - format.bias - exponent).max(0);
    if drop > 25 {
        return 0;
    }
    let significand = if exponent == -127 { 0 } else { magnitude & 0x007f_ffff | 0x0080_0000 };
    let (kept, rest, half) = (significand >> drop, significand & ((1 << drop) - 1), 1u32 << (drop - 1));
    let rounded = kept + u32::from(rest > half || rest == half && kept & 1 == 1);
    // A significand that has its leading one carries into the exponent's lowest bit.
    let base = (exponent + format.bias - 1).max(0).cast_unsigned();
    rounded + (base << format.mantissa)
}

/// As f32.
#[must_use]
pub fn fp8_to_f32(bits: u8) -> f32 {
    if bits & 0x7f == 0x7f { f32::NAN } else { decode(bits, FP8) }
}

/// As f32.
#[must_use]
pub fn bf8_to_f32(bits: u8) -> f32 {
    match bits & 0x7f {
        0x7c => f32::INFINITY.copysign(if bits & 0x80 != 0 { -1.0 } else { 1.0 }),
        0x7d.. => f32::NAN,
        _ => decode(bits, BF8),
    }
}

/// What is too large becomes NaN: the format has no infinity, and clamping takes a mode that launches do not set.
#[must_use]
pub fn f32_to_fp8(x: f32) -> u8 {
    let sign = (x.to_bits() >> 24) as u8 & 0x80;
    match x.is_finite() {
        true => sign | nearest(x, FP8).min(u32::from(FP8.most) + 1) as u8,
        false => sign | 0x7f,
    }
}

/// What is too large becomes infinity.
#[must_use]
pub fn f32_to_bf8(x: f32) -> u8 {
    let sign = (x.to_bits() >> 24) as u8 & 0x80;
    match (x.is_nan(), x.is_infinite()) {
        (true, _) => sign | 0x7e,
        (_, true) => sign | 0x7c,
        _ => sign | nearest(x, BF8).min(u32::from(BF8.most) + 1) as u8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against the nearest of all values, the even one of two.
    fn check(x: f32, to: fn(f32) -> u8, from: fn(u8) -> f32, most: u8, beyond: f32) {
        let got = to(x) & 0x7f;
        let value = |b: u8| if b > most { beyond } else { from(b) };
        let distance = |b: u8| (f64::from(value(b)) - f64::from(x)).abs();
        let best = (0..=most + 1).min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1))));
        assert_eq!(Some(got), best, "{x}");
    }

    #[test]
    fn nearest_value() {
        for bits in 0..=0x7e {
            assert_eq!(f32_to_fp8(fp8_to_f32(bits)), bits);
            assert_eq!(f32_to_fp8(-fp8_to_f32(bits)), bits | 0x80);
        }
        for bits in 0..=0x7c {
            assert_eq!(f32_to_bf8(bf8_to_f32(bits)), bits);
        }
        assert_eq!(
            [fp8_to_f32(0x7e), fp8_to_f32(0x01), bf8_to_f32(0x7b), bf8_to_f32(0x01)],
            [448.0, 0.001_953_125, 57344.0, 0.000_015_258_789]
        );
        let mut x = 1e-7f32;
        while x < 1e6 {
            check(x.min(480.0), f32_to_fp8, fp8_to_f32, FP8.most, 480.0);
            check(x.min(65536.0), f32_to_bf8, bf8_to_f32, BF8.most, 65536.0);
            x *= 1.0007;
        }
        assert_eq!(
            [f32_to_fp8(464.0), f32_to_fp8(464.1), f32_to_fp8(1e30), f32_to_fp8(-1e-30)],
            [0x7e, 0x7f, 0x7f, 0x80]
        );
        assert_eq!([f32_to_bf8(61440.0), f32_to_bf8(61439.0), f32_to_bf8(1e-40)], [0x7c, 0x7b, 0]);
    }
}
