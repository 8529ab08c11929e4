//! f64 arithmetic.

use crate::counts::Class;
use crate::emu::approx::finish;
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::lanes::{dst, set_mask};
use crate::emu::op::{Flow, Literal, Op, Run, accepts};
use crate::emu::step::{Operand, Step};
use crate::emu::wave::{Lanes64, Wave};

const SIGN: u64 = 1 << 63;
const QUIET: u64 = 1 << 51;
const INFINITY: u64 = 0x7ff << 52;
/// No multiplier: the hardware ignores it where subnormals are kept, and no compiler emits it.
const MODIFIERS: u16 = accepts::NEG_ABS | accepts::CLAMP;

/// 2^n of a normal number.
const fn power(n: i32) -> f64 {
    f64::from_bits(((1023 + n) as u64) << 52)
}

/// The exponent field.
fn exponent(x: f64) -> i32 {
    (x.to_bits() >> 52 & 0x7ff) as i32
}

/// Operand `k` with its modifiers.
fn source(w: &Wave, s: &Step, k: usize) -> Lanes64 {
    modified(w.lanes64(s.args[k]), s, k)
}

fn modified(mut lanes: Lanes64, s: &Step, k: usize) -> Lanes64 {
    let clear = if s.mods.abs >> k & 1 == 1 { SIGN } else { 0 };
    let flip = if s.mods.neg >> k & 1 == 1 { SIGN } else { 0 };
    lanes.iter_mut().for_each(|x| *x = *x & !clear ^ flip);
    lanes
}

/// Clamps if asked for (NaN gives 0) and writes.
fn write(w: &mut Wave, s: &Step, mut out: Lanes64) -> Result<Flow, Fault> {
    if s.mods.clamp {
        let clamp = |v: f64| if v > 0.0 { v.min(1.0) } else { 0.0 };
        out.iter_mut().for_each(|x| *x = clamp(f64::from_bits(*x)).to_bits());
    }
    w.set_lanes64(dst(s)?, &out, w.exec());
    Ok(Flow::Next)
}

fn run<const N: usize>(w: &mut Wave, s: &Step, f: impl Fn([f64; N]) -> f64) -> Result<Flow, Fault> {
    let sources: [Lanes64; N] = std::array::from_fn(|i| source(w, s, i + 1));
    write(w, s, std::array::from_fn(|l| f(std::array::from_fn(|i| f64::from_bits(sources[i][l]))).to_bits()))
}

fn math1(w: &mut Wave, _: &mut Env<'_>, s: &Step, f: impl Fn(f64) -> f64) -> Result<Flow, Fault> {
    run(w, s, |[a]| f(a))
}

fn math2(w: &mut Wave, _: &mut Env<'_>, s: &Step, f: impl Fn(f64, f64) -> f64) -> Result<Flow, Fault> {
    run(w, s, |[a, b]| f(a, b))
}

fn math3(w: &mut Wave, _: &mut Env<'_>, s: &Step, f: impl Fn(f64, f64, f64) -> f64) -> Result<Flow, Fault> {
    run(w, s, |[a, b, c]| f(a, b, c))
}

/// An approximation: its last bit is not specified.
fn approx1(w: &mut Wave, e: &mut Env<'_>, s: &Step, f: impl Fn(f64) -> f64) -> Result<Flow, Fault> {
    run(w, s, |[a]| {
        let exact = f(a);
        if e.perturb.is_none() || exact == 0.0 || !exact.is_finite() {
            return exact;
        }
        // The mantissa alone: the f32 of a large result would be infinite, which is never flipped.
        let bits = exact.to_bits();
        let scaled = f64::from_bits(bits & !INFINITY | 1023 << 52);
        let flip = (finish(e.perturb, (bits >> 32) as u32, scaled) ^ (scaled as f32).to_bits()) & 1;
        f64::from_bits(bits ^ u64::from(flip))
    })
}

fn v_add_f64(a: f64, b: f64) -> f64 {
    a + b
}

fn v_mul_f64(a: f64, b: f64) -> f64 {
    a * b
}

fn v_fma_f64(a: f64, b: f64, c: f64) -> f64 {
    a.mul_add(b, c)
}

/// Order of values that are no NaN; -0 is below +0.
fn below(a: f64, b: f64) -> bool {
    a < b || a == b && a.is_sign_negative() && b.is_sign_positive()
}

fn quiet(x: f64) -> f64 {
    f64::from_bits(x.to_bits() | QUIET)
}

/// `_num` forms return the number if the other operand is a NaN.
fn number(a: f64, b: f64, take_first: bool) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => quiet(a),
        (false, true) => a,
        (false, false) if take_first => a,
        _ => b,
    }
}

/// The others return a NaN, a signalling one first.
fn or_nan(a: f64, b: f64, take_first: bool) -> f64 {
    let signals = |x: f64| x.is_nan() && x.to_bits() & QUIET == 0;
    if signals(a) || a.is_nan() && !signals(b) {
        quiet(a)
    } else if b.is_nan() {
        quiet(b)
    } else if take_first {
        a
    } else {
        b
    }
}

pub(super) fn v_min_num_f64(a: f64, b: f64) -> f64 {
    number(a, b, below(a, b))
}

pub(super) fn v_max_num_f64(a: f64, b: f64) -> f64 {
    number(a, b, below(b, a))
}

fn v_minimum_f64(a: f64, b: f64) -> f64 {
    or_nan(a, b, below(a, b))
}

fn v_maximum_f64(a: f64, b: f64) -> f64 {
    or_nan(a, b, below(b, a))
}

fn v_floor_f64(a: f64) -> f64 {
    a.floor()
}

fn v_ceil_f64(a: f64) -> f64 {
    a.ceil()
}

fn v_trunc_f64(a: f64) -> f64 {
    a.trunc()
}

fn v_rndne_f64(a: f64) -> f64 {
    a.round_ties_even()
}

/// Stays below 1, where the difference of a tiny negative number and its floor rounds to 1: LLVM selects it for that.
fn v_fract_f64(a: f64) -> f64 {
    const BELOW_ONE: f64 = 1.0 - f64::EPSILON / 2.0;
    let fraction = a - a.floor();
    if fraction > BELOW_ONE { BELOW_ONE } else { fraction }
}

/// Mantissa in 0.5..1 and exponent of a finite number other than 0.
fn split(a: f64) -> Option<(f64, i32)> {
    if a == 0.0 || !a.is_finite() {
        return None;
    }
    let (a, extra) = if exponent(a) == 0 { (a * power(54), -54) } else { (a, 0) };
    Some((f64::from_bits(a.to_bits() & !INFINITY | 1022 << 52), exponent(a) - 1022 + extra))
}

fn v_frexp_mant_f64(a: f64) -> f64 {
    split(a).map_or(a, |(mantissa, _)| mantissa)
}

fn v_frexp_exp_i32_f64(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let exponent = |a| split(f64::from_bits(a)).map_or(0, |(_, e)| e.cast_unsigned());
    let out = source(w, s, 1).map(exponent);
    w.set_lanes(dst(s)?, &out, w.exec());
    Ok(Flow::Next)
}

/// a times 2^n, rounded once.
fn scaled(a: f64, n: i32) -> f64 {
    let Some((mantissa, e)) = split(a) else { return a };
    // Beyond these everything is infinite or 0. The last factor alone can round.
    let target = i64::from(e) + i64::from(n);
    match target.clamp(-1200, 1200) as i32 {
        up @ 1.. => mantissa * 2.0 * power((up - 1).min(1023)) * power((up - 1024).max(0)),
        down @ -1000..=0 => mantissa * power(down),
        down => mantissa * power(-1000) * power(down + 1000),
    }
}

/// The exponent has 32 bits: constants come as [`Literal::B64`].
fn v_ldexp_f64(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let a = match s.args[1] {
        // A literal is the upper half; inline constants are integers up to 64 or floats.
        Operand::Imm(bits @ 65..=0xffff_ffff) => modified([bits << 32; 32], s, 1),
        _ => source(w, s, 1),
    };
    let n = match s.args[2] {
        Operand::Imm(bits) if !matches!(bits >> 32, 0 | 0xffff_ffff) => {
            return Err(Fault::Operand("float constant as exponent".into()));
        }
        other => w.lanes(other),
    };
    write(w, s, std::array::from_fn(|l| scaled(f64::from_bits(a[l]), n[l].cast_signed()).to_bits()))
}

fn v_rcp_f64(a: f64) -> f64 {
    1.0 / a
}

fn v_rsq_f64(a: f64) -> f64 {
    1.0 / a.sqrt()
}

fn v_sqrt_f64(a: f64) -> f64 {
    a.sqrt()
}

/// `a`, which is the numerator or the denominator, scaled so that the steps of a division stay in range; and whether
/// [`v_div_fmas_f64`] scales back.
fn div_scale(a: f64, denominator: f64, numerator: f64) -> (f64, bool) {
    let apart = exponent(numerator) - exponent(denominator);
    if numerator == 0.0 || denominator == 0.0 {
        return (f64::NAN, false);
    }
    let (tiny_reciprocal, tiny_quotient) =
        ((1.0 / denominator).is_subnormal(), (numerator / denominator).is_subnormal());
    if apart >= 768 {
        (if a == denominator { scaled(a, 128) } else { a }, true)
    } else if denominator.is_subnormal() {
        (scaled(a, 128), false)
    } else if tiny_reciprocal && tiny_quotient {
        // The manual has +128 here, which overflows: the quotient is scaled back by the sign of its exponent.
        (if a == denominator { scaled(a, -128) } else { a }, true)
    } else if tiny_reciprocal {
        (scaled(a, -128), false)
    } else if tiny_quotient {
        (if a == numerator { scaled(a, 128) } else { a }, true)
    } else if exponent(numerator) <= 53 {
        (scaled(a, 128), false)
    } else {
        (a, false)
    }
}

fn v_div_scale_f64(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    if s.mods.abs != 0 {
        return Err(Fault::Modifier("abs, which its encoding lacks"));
    }
    let sources = [source(w, s, 2), source(w, s, 3), source(w, s, 4)];
    let (mut out, mut mask) = ([0; 32], 0);
    for (l, slot) in out.iter_mut().enumerate() {
        let [a, b, c] = sources.map(|x| f64::from_bits(x[l]));
        let (result, scale_back) = div_scale(a, b, c);
        *slot = result.to_bits();
        mask |= u32::from(scale_back) << l;
    }
    let exec = w.exec();
    w.set_lanes64(dst(s)?, &out, exec);
    set_mask(w, s.args[1], mask & exec)?;
    Ok(Flow::Next)
}

/// a b + c times 2^-128, rounded once.
fn fma_down(a: f64, b: f64, c: f64) -> f64 {
    let sum = a.mul_add(b, c);
    let result = sum * power(-128);
    if result.abs() > f64::MIN_POSITIVE {
        return result;
    }
    // What `sum` lost decides where it lies halfway between two results.
    let (product, big) = (a * b, c.abs() >= (a * b).abs());
    let product_error = a.mul_add(b, -product);
    let sum_error = if big { c - sum + product } else { product - sum + c };
    let (lost, off) = (sum_error + product_error, sum - result * power(128));
    let half = off.abs() == power(-947);
    if half && lost != 0.0 && (lost > 0.0) == (off > 0.0) {
        return result + f64::from_bits(1).copysign(off);
    }
    result
}

/// a b + c; in the lanes of VCC scaled back towards where the quotient lies: a large one was made smaller, a small one
/// larger.
fn v_div_fmas_f64(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let (sources, vcc) = ([source(w, s, 1), source(w, s, 2), source(w, s, 3)], w.vcc());
    let lane = |l: usize| {
        let [a, b, c] = sources.map(|x| f64::from_bits(x[l]));
        match (vcc >> l & 1, exponent(c) > 1023) {
            (0, _) => v_fma_f64(a, b, c),
            (_, true) => v_fma_f64(a, b, c) * power(128),
            (_, false) => fma_down(a, b, c),
        }
    };
    write(w, s, std::array::from_fn(|l| lane(l).to_bits()))
}

/// Special cases of the division c / b whose quotient so far is a.
fn v_div_fixup_f64(a: f64, b: f64, c: f64) -> f64 {
    let sign = (b.to_bits() ^ c.to_bits()) & SIGN;
    let signed = |x: f64| f64::from_bits(x.to_bits() & !SIGN | sign);
    if c.is_nan() {
        quiet(c)
    } else if b.is_nan() {
        quiet(b)
    } else if b == 0.0 && c == 0.0 || b.is_infinite() && c.is_infinite() {
        f64::from_bits(SIGN | INFINITY | QUIET)
    } else if b == 0.0 || c.is_infinite() {
        signed(f64::INFINITY)
    } else if b.is_infinite() || c == 0.0 || exponent(c) - exponent(b) < -1075 {
        // Below half of the least subnormal nothing is left.
        signed(0.0)
    } else if a.is_nan() && exponent(c) - exponent(b) >= 768 {
        // The steps before overflowed even with a scaled denominator.
        signed(f64::INFINITY)
    } else {
        signed(a)
    }
}

const fn op(name: &'static str, class: Class, accepts: u16, run: Run) -> Op {
    Op { name, class, dsts: 1, accepts, literal: Literal::F64, run }
}

macro_rules! f64_ops {
    ($class:ident, $shape:ident, $($f:ident),+ $(,)?) => {
        &[$(op(stringify!($f), Class::$class, MODIFIERS, |w, e, s| $shape(w, e, s, $f))),+]
    };
}

const UNARY: &[Op] =
    f64_ops!(Valu, math1, v_floor_f64, v_ceil_f64, v_trunc_f64, v_rndne_f64, v_fract_f64, v_frexp_mant_f64);
const BINARY: &[Op] =
    f64_ops!(Valu, math2, v_add_f64, v_mul_f64, v_min_num_f64, v_max_num_f64, v_minimum_f64, v_maximum_f64);
const TERNARY: &[Op] = f64_ops!(Valu, math3, v_fma_f64, v_div_fixup_f64);
const APPROXIMATE: &[Op] = f64_ops!(Transcendental, approx1, v_rcp_f64, v_rsq_f64, v_sqrt_f64);
const OTHER: &[Op] = &[
    // An integer result: no clamp.
    op("v_frexp_exp_i32_f64", Class::Valu, accepts::NEG_ABS, v_frexp_exp_i32_f64),
    Op { literal: Literal::B64, ..op("v_ldexp_f64", Class::Valu, MODIFIERS, v_ldexp_f64) },
    Op { dsts: 2, ..op("v_div_scale_f64", Class::Valu, accepts::NEG_ABS, v_div_scale_f64) },
    op("v_div_fmas_f64", Class::Valu, MODIFIERS, v_div_fmas_f64),
];

pub static OPS: &[&[Op]] = &[UNARY, BINARY, TERNARY, APPROXIMATE, OTHER];
