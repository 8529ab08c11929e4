//! f32 arithmetic, minima and maxima, rounding, exponents, approximations.

use rustc_apfloat::ieee::Single;
use rustc_apfloat::{Float, Round};

use crate::harness::Expect::{Any, Approx, Bits, Nan, OneOf, Sine};
use crate::harness::{Def, Dst, Expect, FLOAT, NEG, check};
use crate::soft::{fma_scaled, max_num, maximum, min_num, minimum, out, single};
use crate::values::Kind::{F32, I32, Lit, OldF32};

type Two = fn(Single, Single) -> Single;

const fn one(name: &'static str, f: fn(&[u64]) -> Expect) -> Def {
    Def::new(name, &[F32], Dst::B32, FLOAT, f)
}

const fn two(name: &'static str, f: fn(&[u64]) -> Expect) -> Def {
    Def::new(name, &[F32, F32], Dst::B32, FLOAT, f)
}

const fn three(name: &'static str, f: fn(&[u64]) -> Expect) -> Def {
    Def::new(name, &[F32, F32, F32], Dst::B32, FLOAT, f)
}

fn on2(x: &[u64], f: Two) -> Expect {
    out(f(single(x[0]), single(x[1])))
}

/// g(f(a, b), c).
fn on3(x: &[u64], f: Two, g: Two) -> Expect {
    out(g(f(single(x[0]), single(x[1])), single(x[2])))
}

fn fma(a: u64, b: u64, c: u64) -> Expect {
    let (a, b, c) = (single(a), single(b), single(c));
    let result = a.mul_add(b, c).value;
    // Two ways to say it.
    assert!(result.is_nan() || result.bitwise_eq(fma_scaled(a, b, c, 0)) || result.is_zero());
    out(result)
}

fn either_zero(x: &[u64]) -> bool {
    single(x[0]).is_zero() || single(x[1]).is_zero()
}

const ARITHMETIC: &[Def] = &[
    two("v_add_f32", |x| out((single(x[0]) + single(x[1])).value)),
    two("v_sub_f32", |x| out((single(x[0]) - single(x[1])).value)),
    two("v_subrev_f32", |x| out((single(x[1]) - single(x[0])).value)),
    two("v_mul_f32", |x| out((single(x[0]) * single(x[1])).value)),
    two("v_mul_dx9_zero_f32", |x| if either_zero(x) { Bits(0) } else { out((single(x[0]) * single(x[1])).value) }),
    three("v_fma_f32", |x| fma(x[0], x[1], x[2])),
    three("v_fma_dx9_zero_f32", |x| if either_zero(x) { out(single(x[2])) } else { fma(x[0], x[1], x[2]) }),
    Def::new("v_fmac_f32", &[F32, F32, OldF32], Dst::B32, FLOAT, |x| fma(x[0], x[1], x[2])),
    Def::new("v_fmaak_f32", &[F32, F32, Lit], Dst::B32, FLOAT, |x| fma(x[0], x[1], x[2])),
    Def::new("v_fmamk_f32", &[F32, Lit, F32], Dst::B32, FLOAT, |x| fma(x[0], x[1], x[2])),
];

/// The middle one; with a NaN, the least.
fn med3(x: &[u64]) -> Expect {
    let (a, b, c) = (single(x[0]), single(x[1]), single(x[2]));
    if a.is_nan() || b.is_nan() || c.is_nan() {
        return out(min_num(min_num(a, b), c));
    }
    let top = max_num(max_num(a, b), c);
    // Zeros of either sign are equal here, as in the text.
    out(if top == a {
        max_num(b, c)
    } else if top == b {
        max_num(a, c)
    } else {
        max_num(a, b)
    })
}

const ORDER: &[Def] = &[
    two("v_min_num_f32", |x| on2(x, min_num)),
    two("v_max_num_f32", |x| on2(x, max_num)),
    two("v_minimum_f32", |x| on2(x, minimum)),
    two("v_maximum_f32", |x| on2(x, maximum)),
    three("v_min3_num_f32", |x| on3(x, min_num, min_num)),
    three("v_max3_num_f32", |x| on3(x, max_num, max_num)),
    three("v_minimum3_f32", |x| on3(x, minimum, minimum)),
    three("v_maximum3_f32", |x| on3(x, maximum, maximum)),
    three("v_minmax_num_f32", |x| on3(x, min_num, max_num)),
    three("v_maxmin_num_f32", |x| on3(x, max_num, min_num)),
    three("v_minimummaximum_f32", |x| on3(x, minimum, maximum)),
    three("v_maximumminimum_f32", |x| on3(x, maximum, minimum)),
    three("v_med3_num_f32", med3),
];

fn integral(x: &[u64], round: Round) -> Expect {
    out(single(x[0]).round_to_integral(round).value)
}

fn fract(x: &[u64]) -> Expect {
    let v = single(x[0]);
    let floor = v.round_to_integral(Round::TowardNegative).value;
    match out((v - floor).value) {
        // The difference rounds to 1 there. LLVM takes this opcode for `min(x - floor(x), the number below 1)`.
        Bits(0x3f80_0000) => OneOf(0x3f80_0000, 0x3f7f_ffff),
        other => other,
    }
}

/// Zero has exponent 0 and denormals are normalised: LLVM's `frexp` is these opcodes with nothing around them.
fn frexp(x: &[u64]) -> (Single, i32) {
    let mut exp = 0;
    let v = single(x[0]);
    if v.is_zero() {
        return (v, 0);
    }
    (v.frexp(&mut exp), exp)
}

fn frexp_exp(x: &[u64]) -> Expect {
    let v = single(x[0]);
    Bits(u64::from(if v.is_finite() { frexp(x).1.cast_unsigned() } else { 0 }))
}

fn frexp_mant(x: &[u64]) -> Expect {
    let v = single(x[0]);
    out(if v.is_finite() { frexp(x).0 } else { v })
}

const ROUNDING: &[Def] = &[
    one("v_trunc_f32", |x| integral(x, Round::TowardZero)),
    one("v_ceil_f32", |x| integral(x, Round::TowardPositive)),
    one("v_floor_f32", |x| integral(x, Round::TowardNegative)),
    one("v_rndne_f32", |x| integral(x, Round::NearestTiesToEven)),
    one("v_fract_f32", fract),
    Def::new("v_frexp_exp_i32_f32", &[F32], Dst::B32, NEG, frexp_exp),
    one("v_frexp_mant_f32", frexp_mant),
    Def::new("v_ldexp_f32", &[F32, I32], Dst::B32, FLOAT, |x| {
        out(single(x[0]).scalbn((x[1] as u32 as i32).clamp(-1000, 1000)))
    }),
];

/// An approximation of `f`, whose zeros, infinities and NaN are exact. A denormal source may count as zero and a
/// denormal result may become zero.
fn approximate(x: &[u64], f: fn(f64) -> f64) -> Expect {
    let v = f32::from_bits(x[0] as u32);
    let exact = f(f64::from(v));
    if exact.is_nan() {
        return Nan;
    }
    if v == 0.0 || !v.is_finite() {
        return Bits(u64::from((exact as f32).to_bits()));
    }
    let zero = 0f64.copysign(exact);
    if v.is_subnormal() {
        let flushed = f(0f64.copysign(f64::from(v)));
        // A negative denormal's logarithm or root: NaN was handled above, and of zero it is -inf or 0.
        return Approx(exact, flushed);
    }
    Approx(exact, if (exact as f32).is_subnormal() { zero } else { exact })
}

/// Of a negative denormal, NaN or what zero gives.
fn approximate_root(x: &[u64], f: fn(f64) -> f64) -> Expect {
    let v = f32::from_bits(x[0] as u32);
    if v.is_subnormal() && v < 0.0 { Any } else { approximate(x, f) }
}

fn rsq(v: f64) -> f64 {
    1.0 / v.sqrt()
}

fn rcp(v: f64) -> f64 {
    1.0 / v
}

/// Of turns. The text has no domain; AMD's older manuals give 256 turns.
fn wave(x: &[u64], f: fn(f64) -> f64) -> Expect {
    let v = f64::from(f32::from_bits(x[0] as u32));
    if !v.is_finite() {
        return Nan;
    }
    if v.abs() > 256.0 {
        return Any;
    }
    Sine(f(v.fract() * std::f64::consts::TAU))
}

const APPROXIMATE: &[Def] = &[
    one("v_exp_f32", |x| approximate(x, f64::exp2)),
    one("v_log_f32", |x| approximate_root(x, f64::log2)),
    one("v_rcp_f32", |x| approximate(x, rcp)),
    one("v_rcp_iflag_f32", |x| approximate(x, rcp)),
    one("v_rsq_f32", |x| approximate_root(x, rsq)),
    one("v_sqrt_f32", |x| approximate_root(x, f64::sqrt)),
    one("v_sin_f32", |x| wave(x, f64::sin)),
    one("v_cos_f32", |x| wave(x, f64::cos)),
];

const fn scalar(name: &'static str, f: fn(&[u64]) -> Expect) -> Def {
    Def::new(name, &[F32], Dst::Scalar, FLOAT, f)
}

const SCALAR: &[Def] = &[
    scalar("v_s_exp_f32", |x| approximate(x, f64::exp2)),
    scalar("v_s_log_f32", |x| approximate_root(x, f64::log2)),
    scalar("v_s_rcp_f32", |x| approximate(x, rcp)),
    scalar("v_s_rsq_f32", |x| approximate_root(x, rsq)),
    scalar("v_s_sqrt_f32", |x| approximate_root(x, f64::sqrt)),
];

fn mullit(x: &[u64]) -> Expect {
    let (a, b, c) = (single(x[0]), single(x[1]), single(x[2]));
    let least = -Single::largest();
    if b.is_nan() || c.is_nan() || b == least || b.is_neg_infinity() || c <= Single::ZERO {
        out(least)
    } else {
        out((a * b).value)
    }
}

/// Which of x, y, z has the greatest magnitude: z before y before x.
fn axis(x: &[u64]) -> usize {
    let [a, b, c] = [0, 1, 2].map(|i| single(x[i]).abs());
    if c >= a && c >= b {
        2
    } else if b >= a {
        1
    } else {
        0
    }
}

fn below_zero(x: u64) -> bool {
    single(x) < Single::ZERO
}

const fn cube(name: &'static str, f: fn(&[u64]) -> Expect) -> Def {
    Def::new(name, &[F32, F32, F32], Dst::B32, NEG, f)
}

const CUBE: &[Def] = &[
    cube("v_cubeid_f32", |x| {
        let at = axis(x);
        let face = 2 * at + usize::from(below_zero(x[at]));
        Bits(u64::from((face as f32).to_bits()))
    }),
    cube("v_cubesc_f32", |x| {
        let (a, c) = (single(x[0]), single(x[2]));
        out(match (axis(x), below_zero(x[0]), below_zero(x[2])) {
            (2, _, true) => -a,
            (2, _, false) | (1, ..) => a,
            (_, true, _) => c,
            _ => -c,
        })
    }),
    cube("v_cubetc_f32", |x| {
        let (b, c) = (single(x[1]), single(x[2]));
        out(match (axis(x), below_zero(x[1])) {
            (1, true) => -c,
            (1, false) => c,
            _ => -b,
        })
    }),
    cube("v_cubema_f32", |x| out(single(x[axis(x)]).scalbn(1))),
    cube("v_mullit_f32", mullit),
];

/// Opcodes of images; an emulator of compute kernels may leave them out.
pub const OPTIONAL: &[&[Def]] = &[CUBE];
pub const ALL: &[&[Def]] = &[ARITHMETIC, ORDER, ROUNDING, APPROXIMATE, SCALAR];

#[test]
fn f32_arithmetic() {
    check(ARITHMETIC);
}

#[test]
fn f32_order() {
    check(ORDER);
}

#[test]
fn f32_rounding() {
    check(ROUNDING);
}

#[test]
fn f32_approximations() {
    check(APPROXIMATE);
}

#[test]
fn f32_scalar_approximations() {
    check(SCALAR);
}

#[test]
fn f32_cube() {
    check(&crate::known(CUBE));
}
