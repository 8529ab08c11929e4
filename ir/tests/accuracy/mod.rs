//! Worst errors of the f32 functions against f64, over a stride of all bit patterns.

use rayon::prelude::*;
use unglue_ir::interp::{maximum, unary};
use unglue_ir::math::{self, Scalar};
use unglue_ir::op::Unary;

/// A function under test, its f64 meaning and its promise.
pub struct Function {
    pub name: &'static str,
    pub got: fn(f32) -> f32,
    /// The same over many numbers at once.
    pub all: fn(&mut [f32]),
    pub exact: fn(f64) -> f64,
    /// Allowed error in ulps.
    pub limit: f64,
    /// Allowed error in denormal steps, instead (silu near the smallest numbers).
    pub steps: f64,
}

fn sigmoid64(x: f64) -> f64 {
    let t = (-x.abs()).exp();
    (if x >= 0.0 { 1.0 } else { t }) / (1.0 + t)
}

fn softplus(x: f32) -> f32 {
    let t = math::exp(&mut Scalar, -x.abs());
    maximum(x, 0.0) + math::log1p(&mut Scalar, t)
}

fn all_silu(x: &mut [f32]) {
    let mut s = x.to_vec();
    unary(Unary::Sigmoid, &mut s);
    x.iter_mut().zip(s).for_each(|(x, s)| *x *= s);
}

fn all_softplus(x: &mut [f32]) {
    let mut t: Vec<f32> = x.iter().map(|x| -x.abs()).collect();
    unary(Unary::Exp, &mut t);
    unary(Unary::Log1p, &mut t);
    x.iter_mut().zip(t).for_each(|(x, t)| *x = maximum(*x, 0.0) + t);
}

pub const FUNCTIONS: &[Function] = &[
    Function {
        name: "exp",
        got: |x| math::exp(&mut Scalar, x),
        all: |x| unary(Unary::Exp, x),
        exact: f64::exp,
        limit: 1.0,
        steps: 0.0,
    },
    Function {
        name: "log",
        got: |x| math::log(&mut Scalar, x),
        all: |x| unary(Unary::Log, x),
        exact: f64::ln,
        limit: 1.0,
        steps: 0.0,
    },
    Function {
        name: "log1p",
        got: |x| math::log1p(&mut Scalar, x),
        all: |x| unary(Unary::Log1p, x),
        exact: f64::ln_1p,
        limit: 1.0,
        steps: 0.0,
    },
    Function {
        name: "sigmoid",
        got: |x| math::sigmoid(&mut Scalar, x),
        all: |x| unary(Unary::Sigmoid, x),
        exact: sigmoid64,
        limit: 3.0,
        steps: 0.0,
    },
    Function {
        name: "silu",
        got: |x| x * math::sigmoid(&mut Scalar, x),
        all: all_silu,
        // -inf times 0 is NaN by IEEE: silu is a product, not a limit.
        exact: |x| if x == f64::NEG_INFINITY { f64::NAN } else { x * sigmoid64(x) },
        limit: 4.0,
        steps: 64.0,
    },
    Function {
        name: "softplus",
        got: softplus,
        all: all_softplus,
        exact: |x| if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() },
        limit: 3.0,
        steps: 0.0,
    },
    // Two correctly rounded steps: half an ulp, and the root's half an ulp seen through 1/s.
    Function {
        name: "rsqrt",
        got: |x| math::rsqrt(&mut Scalar, x),
        all: |x| unary(Unary::Rsqrt, x),
        exact: |x| 1.0 / x.sqrt(),
        limit: 1.5,
        steps: 0.0,
    },
];

/// Worst error found, and where.
#[derive(Clone, Copy, Debug, Default)]
pub struct Worst {
    pub ulps: f64,
    pub at: f32,
}

impl std::fmt::Display for Worst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.4} ulp at {:e} ({:#010x})", self.ulps, self.at, self.at.to_bits())
    }
}

/// Spacing of f32 numbers in the binade of `x`; denormals share one.
pub fn ulp(x: f64) -> f64 {
    let e = ((x.abs().to_bits() >> 52) as i32 - 1023).clamp(-126, 127);
    2f64.powi(e - 23)
}

/// Error of a result, in ulps; infinite if it is of another kind (NaN, sign of zero).
pub fn error(f: &Function, x: f32, got: f32) -> f64 {
    let want = (f.exact)(f64::from(x));
    if want.is_nan() || got.is_nan() {
        return if want.is_nan() && got.is_nan() { 0.0 } else { f64::INFINITY };
    }
    let rounded = want as f32;
    if rounded.to_bits() == got.to_bits() {
        return if rounded.is_infinite() { 0.0 } else { (f64::from(got) - want).abs() / ulp(want) };
    }
    if rounded.is_infinite() || got.is_infinite() {
        // One side overflowed: the finite one must be next to the limit.
        let limit = 2f64.powi(128);
        let (a, b) = (f64::from(got).clamp(-limit, limit), want.clamp(-limit, limit));
        return (a - b).abs() / ulp(f64::from(f32::MAX));
    }
    if got == 0.0 && rounded == 0.0 {
        return if got.is_sign_negative() == rounded.is_sign_negative() { 0.0 } else { f64::INFINITY };
    }
    let distance = (f64::from(got) - want).abs();
    if distance <= f.steps * f64::from(f32::from_bits(1)) { 0.0 } else { distance / ulp(want) }
}

/// Worst error over bit patterns 0, stride, 2 stride, ...
pub fn sweep(f: &Function, stride: u64) -> Worst {
    const BLOCK: u64 = 1 << 14;
    let count = (1u64 << 32).div_ceil(stride);
    let worst = |a: Worst, b: Worst| if b.ulps > a.ulps { b } else { a };
    let block = |i: u64| {
        let range = i * BLOCK..count.min((i + 1) * BLOCK);
        let inputs: Vec<f32> = range.map(|j| f32::from_bits((j * stride) as u32)).collect();
        let mut got = inputs.clone();
        (f.all)(&mut got);
        let errors = inputs.iter().zip(got).map(|(x, y)| Worst { ulps: error(f, *x, y), at: *x });
        errors.fold(Worst::default(), worst)
    };
    (0..count.div_ceil(BLOCK)).into_par_iter().map(block).reduce(Worst::default, worst)
}
