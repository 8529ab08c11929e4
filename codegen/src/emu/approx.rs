//! Results whose last bit the hardware does not specify, and rounding of exact values.

use half::f16;

use super::group::mix;

/// True if the result for this operand is to be off by its last bit.
#[must_use]
pub fn flips(perturb: Option<u32>, operand: u32) -> bool {
    perturb.is_some_and(|seed| mix(u64::from(seed) << 32 | u64::from(operand)) >> 17 & 1 == 1)
}

/// f32 bits of an approximation. `operand` is the f32 that it was computed from: a NaN comes back quiet.
#[must_use]
pub fn finish(perturb: Option<u32>, operand: u32, exact: f64) -> u32 {
    if exact.is_nan() {
        return if f32::from_bits(operand).is_nan() { operand | 1 << 22 } else { 0x7fc0_0000 };
    }
    let result = exact as f32;
    let other = neighbour(result.to_bits(), f64::from(result), exact);
    match other {
        Some(other) if result != 0.0 && flips(perturb, operand) => other,
        _ => result.to_bits(),
    }
}

/// The float on the other side of the exact value: it too is less than one unit in the last place away.
#[must_use]
pub fn neighbour(bits: u32, rounded: f64, exact: f64) -> Option<u32> {
    if !rounded.is_finite() || rounded == exact {
        return None;
    }
    Some(if rounded.abs() < exact.abs() { bits + 1 } else { bits.saturating_sub(1) })
}

/// f16 bits of an approximation, likewise.
#[must_use]
pub fn finish_f16(perturb: Option<u32>, operand: u16, exact: f64) -> u16 {
    if exact.is_nan() {
        return if f16::from_bits(operand).is_nan() { operand | 1 << 9 } else { 0x7e00 };
    }
    let bits = round_f16(exact);
    match neighbour(bits.into(), f16::from_bits(bits).to_f64(), exact) {
        Some(other) if bits & 0x7fff != 0 && flips(perturb, operand.into()) => other as u16,
        _ => bits,
    }
}

/// f16 bits nearest to a value, ties to even, rounded once.
#[must_use]
pub fn round_f16(exact: f64) -> u16 {
    // An f32 that is rounded to odd keeps on which side of a tie the value lies.
    let nearest = exact as f32;
    let mut bits = nearest.to_bits();
    if f64::from(nearest).abs() > exact.abs() {
        bits -= 1;
    }
    if f64::from(f32::from_bits(bits)) != exact && !exact.is_nan() {
        bits |= 1;
    }
    f16::from_f32(f32::from_bits(bits)).to_bits()
}

/// f16 bits of a value, rounded towards zero.
#[must_use]
pub fn truncate_f16(exact: f32) -> u16 {
    let nearest = f16::from_f32(exact);
    nearest.to_bits() - u16::from(nearest.to_f32().abs() > exact.abs())
}

/// A float format in the low bits of a `u64`.
#[derive(Clone, Copy)]
pub struct Format {
    value: fn(u64) -> f64,
    /// The bit that makes a NaN quiet.
    quiet: u64,
}

pub const F16: Format = Format { value: |x| f16::from_bits(x as u16).to_f64(), quiet: 1 << 9 };
pub const F32: Format = Format { value: |x| f32::from_bits(x as u32).into(), quiet: 1 << 22 };
pub const F64: Format = Format { value: |x| f64::from_bits(x), quiet: 1 << 51 };

/// Which of two values a minimum or maximum takes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Pick {
    Min,
    Max,
}

/// The lesser or greater of two numbers: -0 is less than +0.
fn select(format: Format, pick: Pick, a: u64, b: u64) -> u64 {
    let less = |x: f64, y: f64| x < y || x == 0.0 && y == 0.0 && x.is_sign_negative() && !y.is_sign_negative();
    let (x, y) = ((format.value)(a), (format.value)(b));
    let first = if pick == Pick::Min { less(x, y) } else { less(y, x) };
    if first { a } else { b }
}

/// `minNum` and `maxNum`: a number wins over a NaN.
#[must_use]
pub fn pick_number(format: Format, pick: Pick, a: u64, b: u64) -> u64 {
    match ((format.value)(a).is_nan(), (format.value)(b).is_nan()) {
        (true, true) => a | format.quiet,
        (true, false) => b,
        (false, true) => a,
        (false, false) => select(format, pick, a, b),
    }
}

/// `minimum` and `maximum`: a NaN wins over a number, a signalling one over a quiet one.
#[must_use]
pub fn pick_nan(format: Format, pick: Pick, a: u64, b: u64) -> u64 {
    let nan = |x: u64| (format.value)(x).is_nan();
    let signals = |x: u64| nan(x) && x & format.quiet == 0;
    if signals(a) {
        a | format.quiet
    } else if signals(b) {
        b | format.quiet
    } else if nan(a) {
        a
    } else if nan(b) {
        b
    } else {
        select(format, pick, a, b)
    }
}
