//! f16 arithmetic: exact, rounded once to nearest even, subnormals kept.

use super::formats::{Format, clamp_f16, f16, finish_half, to_f16};
use crate::counts::Class;
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::lanes::permute;
use crate::emu::op::{Flow, Literal, Op, accepts};
use crate::emu::step::{Operand, Step};
use crate::emu::wave::{Lanes, Wave};

const SIGN: u32 = 0x8000;
const INFINITY: u32 = 0x7c00;
const QUIET: u32 = 0x200;
/// No multiplier: the hardware ignores it where subnormals are kept, and no compiler emits it.
const MODIFIERS: u16 = accepts::NEG_ABS | accepts::CLAMP | accepts::OP_SEL | accepts::DPP;

/// Operand `k` in each lane: a named half, or the one that bit `select` of `op_sel` chooses, with its modifiers.
pub fn half_source(w: &Wave, s: &Step, k: usize, select: usize) -> Result<(Lanes, u32), Fault> {
    let lanes = w.lanes(s.args[k]);
    let (mut lanes, mask) = match &s.mods.dpp {
        Some(dpp) if k == 1 => permute(&lanes, dpp, w.exec()),
        _ => (lanes, w.exec()),
    };
    let high = s.mods.op_sel >> select & 1 == 1;
    // LLVM prints the selection beside a named half as well.
    match s.args[k] {
        Operand::V(_) | Operand::S(_) | Operand::Special(_) if high => lanes.iter_mut().for_each(|x| *x >>= 16),
        Operand::Imm(_) if high => return Err(Fault::Operand("upper half of a constant".into())),
        _ => lanes.iter_mut().for_each(|x| *x &= 0xffff),
    }
    let clear = if s.mods.abs >> k & 1 == 1 { SIGN } else { 0 };
    let flip = if s.mods.neg >> k & 1 == 1 { SIGN } else { 0 };
    lanes.iter_mut().for_each(|x| *x = *x & !clear ^ flip);
    Ok((lanes, mask))
}

/// Writes 16 bits of operand 0: a named half, or the one that bit `select` of `op_sel` chooses.
pub fn set_half(w: &mut Wave, s: &Step, select: usize, out: &Lanes, mask: u32) -> Result<Flow, Fault> {
    match s.args[0] {
        Operand::V(n) => w.set_half(n, s.mods.op_sel >> select & 1 == 1, out, mask),
        Operand::Half(n, high) => w.set_half(n, high, out, mask),
        other => return Err(Fault::Operand(format!("{other:?} as destination"))),
    }
    Ok(Flow::Next)
}

/// N sources and a result of f16 bits. The bit of `op_sel` after the sources' is the destination's.
fn run<const N: usize>(w: &mut Wave, s: &Step, f: impl Fn([u32; N]) -> u32) -> Result<Flow, Fault> {
    let (mut sources, mut mask) = ([[0; 32]; N], w.exec());
    for (i, source) in sources.iter_mut().enumerate() {
        let (lanes, may) = half_source(w, s, i + 1, i)?;
        *source = lanes;
        mask &= may;
    }
    let mut out: Lanes = std::array::from_fn(|l| f(std::array::from_fn(|i| sources[i][l])));
    if s.mods.clamp {
        out.iter_mut().for_each(|x| *x = clamp_f16(*x));
    }
    set_half(w, s, N, &out, mask)
}

type Result16 = Result<Flow, Fault>;

fn bits1(w: &mut Wave, _: &mut Env<'_>, s: &Step, f: impl Fn(u32) -> u32) -> Result16 {
    run(w, s, |[a]| f(a))
}

fn bits2(w: &mut Wave, _: &mut Env<'_>, s: &Step, f: impl Fn(u32, u32) -> u32) -> Result16 {
    run(w, s, |[a, b]| f(a, b))
}

fn bits3(w: &mut Wave, _: &mut Env<'_>, s: &Step, f: impl Fn(u32, u32, u32) -> u32) -> Result16 {
    run(w, s, |[a, b, c]| f(a, b, c))
}

fn math1(w: &mut Wave, e: &mut Env<'_>, s: &Step, f: impl Fn(f64) -> f64) -> Result16 {
    bits1(w, e, s, |a| to_f16(f(f16(a))))
}

fn math2(w: &mut Wave, e: &mut Env<'_>, s: &Step, f: impl Fn(f64, f64) -> f64) -> Result16 {
    bits2(w, e, s, |a, b| to_f16(f(f16(a), f16(b))))
}

fn math3(w: &mut Wave, e: &mut Env<'_>, s: &Step, f: impl Fn(f64, f64, f64) -> f64) -> Result16 {
    bits3(w, e, s, |a, b, c| to_f16(f(f16(a), f16(b), f16(c))))
}

/// An approximation: its last bit is not specified.
fn approx1(w: &mut Wave, e: &mut Env<'_>, s: &Step, f: impl Fn(f64) -> f64) -> Result16 {
    run(w, s, |[a]| finish_half(Format::F16, e.perturb, a, f(f16(a))))
}

fn v_add_f16(a: f64, b: f64) -> f64 {
    a + b
}

fn v_sub_f16(a: f64, b: f64) -> f64 {
    a - b
}

fn v_subrev_f16(a: f64, b: f64) -> f64 {
    b - a
}

fn v_mul_f16(a: f64, b: f64) -> f64 {
    a * b
}

/// The product is exact. Where the sum is not, the smaller term lies far below half a unit of the other, which is then
/// no tie of f16: rounding twice gives what rounding once gives.
pub fn v_fma_f16(a: f64, b: f64, c: f64) -> f64 {
    a * b + c
}

/// Operands are printed in the order of the sum.
fn v_fmamk_f16(a: f64, k: f64, c: f64) -> f64 {
    v_fma_f16(a, k, c)
}

fn v_fmaak_f16(a: f64, b: f64, k: f64) -> f64 {
    v_fma_f16(a, b, k)
}

/// The destination is the third source; bit 2 of `op_sel` is its half too.
fn v_fmac_f16(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let ((a, mask), (b, _)) = (half_source(w, s, 1, 0)?, half_source(w, s, 2, 1)?);
    let (c, _) = half_source(w, s, 0, 2)?;
    let mut out: Lanes = std::array::from_fn(|l| to_f16(v_fma_f16(f16(a[l]), f16(b[l]), f16(c[l]))));
    if s.mods.clamp {
        out.iter_mut().for_each(|x| *x = clamp_f16(*x));
    }
    set_half(w, s, 3, &out, mask)
}

fn is_nan(x: u32) -> bool {
    x & !SIGN > INFINITY
}

/// Order of f16 values that are no NaN; -0 is below +0.
fn order(x: u32) -> i32 {
    let size = (x & !SIGN) as i32;
    if x & SIGN == 0 { size } else { -1 - size }
}

/// The NaN that an operation with a NaN operand gives: a signalling one goes first.
fn propagate(a: u32, b: u32) -> u32 {
    let signals = |x| is_nan(x) && x & QUIET == 0;
    let chosen = if signals(a) || !signals(b) && is_nan(a) { a } else { b };
    chosen | QUIET
}

/// `_num` forms return the number if the other operand is a NaN.
fn number(a: u32, b: u32, take_first: bool) -> u32 {
    match (is_nan(a), is_nan(b)) {
        (true, true) => a | QUIET,
        (true, false) => b,
        (false, true) => a,
        (false, false) if take_first => a,
        (false, false) => b,
    }
}

fn or_nan(a: u32, b: u32, take_first: bool) -> u32 {
    if is_nan(a) || is_nan(b) {
        return propagate(a, b);
    }
    if take_first { a } else { b }
}

pub fn v_min_num_f16(a: u32, b: u32) -> u32 {
    number(a, b, order(a) < order(b))
}

pub fn v_max_num_f16(a: u32, b: u32) -> u32 {
    number(a, b, order(a) > order(b))
}

pub fn v_minimum_f16(a: u32, b: u32) -> u32 {
    or_nan(a, b, order(a) < order(b))
}

pub fn v_maximum_f16(a: u32, b: u32) -> u32 {
    or_nan(a, b, order(a) > order(b))
}

fn v_min3_num_f16(a: u32, b: u32, c: u32) -> u32 {
    v_min_num_f16(v_min_num_f16(a, b), c)
}

fn v_max3_num_f16(a: u32, b: u32, c: u32) -> u32 {
    v_max_num_f16(v_max_num_f16(a, b), c)
}

fn v_minimum3_f16(a: u32, b: u32, c: u32) -> u32 {
    v_minimum_f16(v_minimum_f16(a, b), c)
}

fn v_maximum3_f16(a: u32, b: u32, c: u32) -> u32 {
    v_maximum_f16(v_maximum_f16(a, b), c)
}

fn v_minmax_num_f16(a: u32, b: u32, c: u32) -> u32 {
    v_max_num_f16(v_min_num_f16(a, b), c)
}

fn v_maxmin_num_f16(a: u32, b: u32, c: u32) -> u32 {
    v_min_num_f16(v_max_num_f16(a, b), c)
}

fn v_minimummaximum_f16(a: u32, b: u32, c: u32) -> u32 {
    v_maximum_f16(v_minimum_f16(a, b), c)
}

fn v_maximumminimum_f16(a: u32, b: u32, c: u32) -> u32 {
    v_minimum_f16(v_maximum_f16(a, b), c)
}

/// With a NaN the least number; else the greatest of the two that are left when one greatest is taken away.
fn v_med3_num_f16(a: u32, b: u32, c: u32) -> u32 {
    if is_nan(a) || is_nan(b) || is_nan(c) {
        return v_min3_num_f16(a, b, c);
    }
    let greatest = f16(v_max3_num_f16(a, b, c));
    if greatest == f16(a) {
        v_max_num_f16(b, c)
    } else if greatest == f16(b) {
        v_max_num_f16(a, c)
    } else {
        v_max_num_f16(a, b)
    }
}

fn v_floor_f16(a: f64) -> f64 {
    a.floor()
}

fn v_ceil_f16(a: f64) -> f64 {
    a.ceil()
}

fn v_trunc_f16(a: f64) -> f64 {
    a.trunc()
}

fn v_rndne_f16(a: f64) -> f64 {
    a.round_ties_even()
}

/// Stays below 1, where the difference of a tiny negative number and its floor rounds to 1: LLVM selects it for that.
fn v_fract_f16(a: f64) -> f64 {
    const BELOW_ONE: f64 = 1.0 - 1.0 / 2048.0;
    let fraction = a - a.floor();
    if fraction > BELOW_ONE { BELOW_ONE } else { fraction }
}

/// Mantissa in 0.5..1 and exponent of a finite number other than 0.
fn split(a: f64) -> Option<(f64, i32)> {
    if a == 0.0 || !a.is_finite() {
        return None;
    }
    // Every f16 is a normal f64.
    let bits = a.to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1022;
    Some((f64::from_bits(bits & !(0x7ff << 52) | 1022 << 52), exponent))
}

fn v_frexp_mant_f16(a: f64) -> f64 {
    split(a).map_or(a, |(mantissa, _)| mantissa)
}

fn v_frexp_exp_i16_f16(a: u32) -> u32 {
    split(f16(a)).map_or(0, |(_, exponent)| exponent as u32 & 0xffff)
}

fn v_ldexp_f16(a: u32, b: u32) -> u32 {
    // 64 is beyond what any f16 needs, and exact in f64.
    let exponent = i64::from(b as u16 as i16).clamp(-64, 64);
    to_f16(f16(a) * f64::from_bits(((1023 + exponent) as u64) << 52))
}

fn v_rcp_f16(a: f64) -> f64 {
    1.0 / a
}

fn v_rsq_f16(a: f64) -> f64 {
    1.0 / a.sqrt()
}

fn v_sqrt_f16(a: f64) -> f64 {
    a.sqrt()
}

fn v_exp_f16(a: f64) -> f64 {
    a.exp2()
}

fn v_log_f16(a: f64) -> f64 {
    a.log2()
}

/// Of turns. Whole turns are taken off before, which is exact.
fn v_sin_f16(a: f64) -> f64 {
    if a.fract() == 0.0 { 0.0f64.copysign(a) } else { (a.fract() * std::f64::consts::TAU).sin() }
}

fn v_cos_f16(a: f64) -> f64 {
    match a.fract().abs() {
        0.25 | 0.75 => 0.0,
        turn => (turn * std::f64::consts::TAU).cos(),
    }
}

/// Special cases of the division c / b whose quotient so far is a.
fn v_div_fixup_f16(a: u32, b: u32, c: u32) -> u32 {
    let sign = (b ^ c) & SIGN;
    let (denominator, numerator) = (b & !SIGN, c & !SIGN);
    if is_nan(c) {
        return c | QUIET;
    }
    if is_nan(b) {
        return b | QUIET;
    }
    match (denominator, numerator) {
        (0, 0) | (INFINITY, INFINITY) => 0xfe00,
        (0, _) | (_, INFINITY) => sign | INFINITY,
        (INFINITY, _) | (_, 0) => sign,
        _ => sign | a & !SIGN,
    }
}

macro_rules! f16_ops {
    ($class:ident, $shape:ident, $($f:ident),+ $(,)?) => {
        &[$(Op {
            name: stringify!($f),
            class: Class::$class,
            dsts: 1,
            accepts: MODIFIERS,
            literal: Literal::F16,
            run: |w, e, s| $shape(w, e, s, $f),
        }),+]
    };
}

const UNARY: &[Op] =
    f16_ops!(Valu, math1, v_floor_f16, v_ceil_f16, v_trunc_f16, v_rndne_f16, v_fract_f16, v_frexp_mant_f16);
const BINARY: &[Op] = f16_ops!(Valu, math2, v_add_f16, v_sub_f16, v_subrev_f16, v_mul_f16);
const TERNARY: &[Op] = f16_ops!(Valu, math3, v_fma_f16, v_fmamk_f16, v_fmaak_f16);
const APPROXIMATE: &[Op] =
    f16_ops!(Transcendental, approx1, v_rcp_f16, v_rsq_f16, v_sqrt_f16, v_exp_f16, v_log_f16, v_sin_f16, v_cos_f16);
const CHOOSE_2: &[Op] = f16_ops!(Valu, bits2, v_min_num_f16, v_max_num_f16, v_minimum_f16, v_maximum_f16, v_ldexp_f16);
const CHOOSE_3: &[Op] = f16_ops!(
    Valu,
    bits3,
    v_min3_num_f16,
    v_max3_num_f16,
    v_med3_num_f16,
    v_minimum3_f16,
    v_maximum3_f16,
    v_minmax_num_f16,
    v_maxmin_num_f16,
    v_minimummaximum_f16,
    v_maximumminimum_f16,
    v_div_fixup_f16,
);

const fn other(name: &'static str, accepts: u16, run: crate::emu::op::Run) -> Op {
    Op { name, class: Class::Valu, dsts: 1, accepts, literal: Literal::F16, run }
}

const OTHER: &[Op] = &[
    other("v_fmac_f16", MODIFIERS, v_fmac_f16),
    // An integer result: no clamp.
    other("v_frexp_exp_i16_f16", MODIFIERS & !accepts::CLAMP, |w, e, s| bits1(w, e, s, v_frexp_exp_i16_f16)),
];

pub static OPS: &[&[Op]] = &[UNARY, BINARY, TERNARY, APPROXIMATE, CHOOSE_2, CHOOSE_3, OTHER];
