//! Results whose last bit the hardware does not specify.

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
