//! Exact float arithmetic for definitions: an independent soft float.

use rustc_apfloat::ieee::{Double, Half, Quad, Single};
use rustc_apfloat::{Float, FloatConvert, Round, Status};

use crate::harness::Expect;

pub fn single(bits: u64) -> Single {
    Single::from_bits(u128::from(bits))
}

pub fn half(bits: u64) -> Half {
    Half::from_bits(u128::from(bits))
}

pub fn double(bits: u64) -> Double {
    Double::from_bits(u128::from(bits))
}

/// A result as expectation.
pub fn out<F: Float>(v: F) -> Expect {
    if v.is_nan() { Expect::Nan } else { Expect::Bits(v.to_bits() as u64) }
}

/// Conversion with one rounding.
pub fn convert<A: FloatConvert<B>, B: Float>(v: A, round: Round) -> B {
    v.convert_r(round, &mut false).value
}

/// a * b + c, times 2^scale, rounded once: exact in 113 bits with a sticky last bit, then rounded.
pub fn fma_scaled(a: Single, b: Single, c: Single, scale: i32) -> Single {
    let quad = |v: Single| -> Quad { convert(v, Round::NearestTiesToEven) };
    let sum = quad(a).mul_add_r(quad(b), quad(c), Round::TowardZero);
    let sticky = sum.status.contains(Status::INEXACT);
    let bits = sum.value.to_bits() | u128::from(sticky);
    let exact = Quad::from_bits(bits).scalbn(scale);
    convert(exact, Round::NearestTiesToEven)
}

/// `_num` minimum: the number if one is NaN; -0 lies below +0.
pub fn min_num<F: Float>(a: F, b: F) -> F {
    if a.is_nan() {
        return b;
    }
    if b.is_nan() {
        return a;
    }
    if a < b || a.is_neg_zero() && b.is_pos_zero() { a } else { b }
}

pub fn max_num<F: Float>(a: F, b: F) -> F {
    if a.is_nan() {
        return b;
    }
    if b.is_nan() {
        return a;
    }
    if a > b || a.is_pos_zero() && b.is_neg_zero() { a } else { b }
}

/// NaN if one is.
pub fn minimum<F: Float>(a: F, b: F) -> F {
    if a.is_nan() || b.is_nan() { F::NAN } else { min_num(a, b) }
}

pub fn maximum<F: Float>(a: F, b: F) -> F {
    if a.is_nan() || b.is_nan() { F::NAN } else { max_num(a, b) }
}

/// Truncated and saturated to `low..=high`; NaN gives 0.
pub fn to_int<F: Float>(v: F, round: Round, low: i128, high: i128) -> i128 {
    if v.is_nan() {
        return 0;
    }
    let mut exact = false;
    v.to_i128_r(100, round, &mut exact).value.clamp(low, high)
}
