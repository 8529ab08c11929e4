//! Scalar float arithmetic, and the transcendental functions of scalars.

use std::cmp::Ordering;

use half::f16;

use super::convert::v_cvt_pk_rtz_f16_f32;
use super::formats::{Format, clamp_f16, clamp_f32, finish_half, to_f16};
use super::half::{v_fma_f16, v_max_num_f16, v_maximum_f16, v_min_num_f16, v_minimum_f16};
use super::scalar_run::{accumulate, compare, keep, scalar, ternary, unary, write};
use super::valu_f32::{v_fma_f32, v_max_num_f32, v_maximum_f32, v_min_num_f32, v_minimum_f32};
use crate::counts::Class;
use crate::emu::approx::finish;
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::op::{Flow, Literal, Op, Run, accepts};
use crate::emu::step::Step;
use crate::emu::wave::Wave;

const fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

fn h(x: u32) -> f32 {
    f16::from_bits(x as u16).to_f32()
}

fn s_add_f32(a: u32, b: u32) -> u32 {
    (f(a) + f(b)).to_bits()
}
fn s_sub_f32(a: u32, b: u32) -> u32 {
    (f(a) - f(b)).to_bits()
}
fn s_mul_f32(a: u32, b: u32) -> u32 {
    (f(a) * f(b)).to_bits()
}
fn s_min_num_f32(a: u32, b: u32) -> u32 {
    v_min_num_f32(a, b)
}
fn s_max_num_f32(a: u32, b: u32) -> u32 {
    v_max_num_f32(a, b)
}
fn s_minimum_f32(a: u32, b: u32) -> u32 {
    v_minimum_f32(a, b)
}
fn s_maximum_f32(a: u32, b: u32) -> u32 {
    v_maximum_f32(a, b)
}
fn s_cvt_pk_rtz_f16_f32(a: u32, b: u32) -> u32 {
    v_cvt_pk_rtz_f16_f32(a, b)
}

const BINARY: &[Op] = &scalar!(1, B32, keep:
    s_add_f32, s_sub_f32, s_mul_f32, s_min_num_f32, s_max_num_f32, s_minimum_f32, s_maximum_f32,
    s_cvt_pk_rtz_f16_f32);

fn s_fmac_f32(a: u32, b: u32, d: u32) -> u32 {
    v_fma_f32(a, b, d)
}
/// The constant is printed last.
fn s_fmaak_f32(a: u32, b: u32, k: u32) -> u32 {
    s_fmac_f32(a, b, k)
}
/// The constant is printed before the addend.
fn s_fmamk_f32(a: u32, k: u32, b: u32) -> u32 {
    s_fmac_f32(a, k, b)
}

const FMAC: &[Op] = &scalar!(1, B32, accumulate: s_fmac_f32);
const FMA: &[Op] = &scalar!(1, B32, ternary: s_fmaak_f32, s_fmamk_f32);

fn s_ceil_f32(a: u32) -> u32 {
    f(a).ceil().to_bits()
}
fn s_floor_f32(a: u32) -> u32 {
    f(a).floor().to_bits()
}
fn s_trunc_f32(a: u32) -> u32 {
    f(a).trunc().to_bits()
}
fn s_rndne_f32(a: u32) -> u32 {
    f(a).round_ties_even().to_bits()
}
fn s_cvt_f32_i32(a: u32) -> u32 {
    (a.cast_signed() as f32).to_bits()
}
fn s_cvt_f32_u32(a: u32) -> u32 {
    (a as f32).to_bits()
}
fn s_cvt_i32_f32(a: u32) -> u32 {
    (f(a) as i32).cast_unsigned()
}
fn s_cvt_u32_f32(a: u32) -> u32 {
    f(a) as u32
}
fn s_cvt_hi_f32_f16(a: u32) -> u32 {
    h(a >> 16).to_bits()
}

const UNARY: &[Op] = &scalar!(1, B32, unary:
    s_ceil_f32, s_floor_f32, s_trunc_f32, s_rndne_f32, s_cvt_f32_i32, s_cvt_f32_u32, s_cvt_i32_f32,
    s_cvt_u32_f32, s_cvt_hi_f32_f16);

fn s_cvt_f32_f16(a: u32) -> u32 {
    h(a).to_bits()
}

const FROM_F16: &[Op] = &scalar!(1, F16, unary: s_cvt_f32_f16);

/// Writes the low half of operand 0: the definitions give no value to the upper one.
fn write_half(w: &mut Wave, s: &Step, value: u16) -> Result<Flow, Fault> {
    let old = w.scalar(s.args[0]);
    write(w, s, old & 0xffff_0000 | u32::from(value))
}

fn half_unary(w: &mut Wave, s: &Step, f: impl Fn(f32) -> f32) -> Result<Flow, Fault> {
    let value = f16::from_f32(f(h(w.scalar(s.args[1]))));
    write_half(w, s, value.to_bits())
}

/// An f32 has more than twice the digits of an f16: rounding a sum or product twice is as rounding it once.
fn half_binary(w: &mut Wave, s: &Step, f: impl Fn(f32, f32) -> f32) -> Result<Flow, Fault> {
    let value = f16::from_f32(f(h(w.scalar(s.args[1])), h(w.scalar(s.args[2]))));
    write_half(w, s, value.to_bits())
}

fn half_choose(w: &mut Wave, s: &Step, choose: fn(u32, u32) -> u32) -> Result<Flow, Fault> {
    let chosen = choose(w.scalar(s.args[1]) & 0xffff, w.scalar(s.args[2]) & 0xffff);
    write_half(w, s, chosen as u16)
}

fn s_cvt_f16_f32(w: &mut Wave, s: &Step) -> Result<Flow, Fault> {
    let value = f16::from_f32(f(w.scalar(s.args[1])));
    write_half(w, s, value.to_bits())
}

fn s_fmac_f16(w: &mut Wave, s: &Step) -> Result<Flow, Fault> {
    let [a, b, d] = [1, 2, 0].map(|k: usize| f64::from(h(w.scalar(s.args[k]))));
    write_half(w, s, to_f16(v_fma_f16(a, b, d)) as u16)
}

const fn salu(name: &'static str, literal: Literal, run: Run) -> Op {
    Op { name, class: Class::Salu, dsts: 1, accepts: accepts::NONE, literal, run }
}

const HALF: &[Op] = &[
    salu("s_cvt_f16_f32", Literal::B32, |w, _, s| s_cvt_f16_f32(w, s)),
    salu("s_ceil_f16", Literal::F16, |w, _, s| half_unary(w, s, f32::ceil)),
    salu("s_floor_f16", Literal::F16, |w, _, s| half_unary(w, s, f32::floor)),
    salu("s_trunc_f16", Literal::F16, |w, _, s| half_unary(w, s, f32::trunc)),
    salu("s_rndne_f16", Literal::F16, |w, _, s| half_unary(w, s, f32::round_ties_even)),
    salu("s_add_f16", Literal::F16, |w, _, s| half_binary(w, s, |a, b| a + b)),
    salu("s_sub_f16", Literal::F16, |w, _, s| half_binary(w, s, |a, b| a - b)),
    salu("s_mul_f16", Literal::F16, |w, _, s| half_binary(w, s, |a, b| a * b)),
    salu("s_fmac_f16", Literal::F16, |w, _, s| s_fmac_f16(w, s)),
    salu("s_min_num_f16", Literal::F16, |w, _, s| half_choose(w, s, v_min_num_f16)),
    salu("s_max_num_f16", Literal::F16, |w, _, s| half_choose(w, s, v_max_num_f16)),
    salu("s_minimum_f16", Literal::F16, |w, _, s| half_choose(w, s, v_minimum_f16)),
    salu("s_maximum_f16", Literal::F16, |w, _, s| half_choose(w, s, v_maximum_f16)),
];

/// The float comparisons of a format. Those with `n` hold when the one that they deny does not: a NaN matters.
macro_rules! comparisons {
    ($format:ident, $literal:ident, $value:ident; $($name:ident: |$a:ident, $b:ident| $holds:expr;)+) => {
        &[$(Op {
            dsts: 0,
            ..salu(concat!("s_cmp_", stringify!($name), "_", stringify!($format)), Literal::$literal, |w, _, s| {
                compare(w, s, |$a: u32, $b: u32| {
                    let ($a, $b) = ($value($a), $value($b));
                    $holds
                })
            })
        }),+]
    };
    ($format:ident, $literal:ident, $value:ident) => {
        comparisons![$format, $literal, $value;
            lt: |a, b| a < b;
            eq: |a, b| a == b;
            le: |a, b| a <= b;
            gt: |a, b| a > b;
            lg: |a, b| matches!(a.partial_cmp(&b), Some(Ordering::Less | Ordering::Greater));
            ge: |a, b| a >= b;
            o: |a, b| !a.is_nan() && !b.is_nan();
            u: |a, b| a.is_nan() || b.is_nan();
            nge: |a, b| !matches!(a.partial_cmp(&b), Some(Ordering::Greater | Ordering::Equal));
            nlg: |a, b| !matches!(a.partial_cmp(&b), Some(Ordering::Less | Ordering::Greater));
            ngt: |a, b| a.partial_cmp(&b) != Some(Ordering::Greater);
            nle: |a, b| !matches!(a.partial_cmp(&b), Some(Ordering::Less | Ordering::Equal));
            neq: |a, b| a != b;
            nlt: |a, b| a.partial_cmp(&b) != Some(Ordering::Less);
        ]
    };
}

const COMPARE_F32: &[Op] = comparisons!(f32, B32, f);
const COMPARE_F16: &[Op] = comparisons!(f16, F16, h);

/// Source 1 with its float modifiers.
fn source(w: &Wave, s: &Step, sign: u32) -> u32 {
    let mut x = w.scalar(s.args[1]);
    if s.mods.abs >> 1 & 1 == 1 {
        x &= !sign;
    }
    if s.mods.neg >> 1 & 1 == 1 {
        x ^= sign;
    }
    x
}

fn transcendental_f32(w: &mut Wave, env: &Env<'_>, s: &Step, exact: fn(f64) -> f64) -> Result<Flow, Fault> {
    let x = source(w, s, 1 << 31);
    let value = finish(env.perturb, x, exact(f(x).into()));
    write(w, s, if s.mods.clamp { clamp_f32(value) } else { value })
}

fn transcendental_f16(w: &mut Wave, env: &Env<'_>, s: &Step, exact: fn(f64) -> f64) -> Result<Flow, Fault> {
    let x = source(w, s, 1 << 15) as u16;
    let value = finish_half(Format::F16, env.perturb, x.into(), exact(f16::from_bits(x).to_f64()));
    write_half(w, s, if s.mods.clamp { clamp_f16(value) } else { value } as u16)
}

const fn transcendental(name: &'static str, literal: Literal, run: Run) -> Op {
    let accepts = accepts::NEG_ABS | accepts::CLAMP;
    Op { class: Class::Transcendental, accepts, ..salu(name, literal, run) }
}

fn rcp(x: f64) -> f64 {
    1.0 / x
}
fn rsq(x: f64) -> f64 {
    1.0 / x.sqrt()
}

const TRANSCENDENTAL: &[Op] = &[
    transcendental("v_s_exp_f32", Literal::B32, |w, e, s| transcendental_f32(w, e, s, f64::exp2)),
    transcendental("v_s_log_f32", Literal::B32, |w, e, s| transcendental_f32(w, e, s, f64::log2)),
    transcendental("v_s_rcp_f32", Literal::B32, |w, e, s| transcendental_f32(w, e, s, rcp)),
    transcendental("v_s_rsq_f32", Literal::B32, |w, e, s| transcendental_f32(w, e, s, rsq)),
    transcendental("v_s_sqrt_f32", Literal::B32, |w, e, s| transcendental_f32(w, e, s, f64::sqrt)),
    transcendental("v_s_exp_f16", Literal::F16, |w, e, s| transcendental_f16(w, e, s, f64::exp2)),
    transcendental("v_s_log_f16", Literal::F16, |w, e, s| transcendental_f16(w, e, s, f64::log2)),
    transcendental("v_s_rcp_f16", Literal::F16, |w, e, s| transcendental_f16(w, e, s, rcp)),
    transcendental("v_s_rsq_f16", Literal::F16, |w, e, s| transcendental_f16(w, e, s, rsq)),
    transcendental("v_s_sqrt_f16", Literal::F16, |w, e, s| transcendental_f16(w, e, s, f64::sqrt)),
];

pub static OPS: &[&[Op]] = &[BINARY, FMAC, FMA, UNARY, FROM_F16, HALF, COMPARE_F32, COMPARE_F16, TRANSCENDENTAL];
