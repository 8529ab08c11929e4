//! f32 rounding, exponents, division steps and approximations.
//!
//! Approximations are the exact value rounded once. `v_exp_f32` and `v_log_f32` flush denormals, results of the one
//! and operands of the other, as the compiler's code for both expects; `v_rcp_f32`, `v_rsq_f32` and `v_sqrt_f32` keep
//! them, as the launch's mode says.

use super::valu_f32::{fma_odd, v_fma_f32};
use super::{vector, vector_f32};
use crate::counts::Class;
use crate::emu::approx::finish;
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::lanes::{self, dst, f1, f2, f3, fetch, modify, pack, set_mask, whole_mask};
use crate::emu::op::{Flow, Literal, Op, accepts};
use crate::emu::step::Step;
use crate::emu::wave::{Lanes, Wave};

const fn f(x: u32) -> f32 {
    f32::from_bits(x)
}

const SIGN: u32 = lanes::SIGN;

/// To the nearest integer, ties to even; from 2^23 on, floats are integers. NaN becomes quiet.
fn v_rndne_f32(x: u32) -> u32 {
    const INTEGERS: f32 = 8_388_608.0;
    let (magnitude, sign) = (f(x & !SIGN), x & SIGN);
    if magnitude < INTEGERS { ((magnitude + INTEGERS) - INTEGERS).to_bits() | sign } else { quiet(x) }
}

const fn quiet(x: u32) -> u32 {
    if f(x).is_nan() { x | 0x0040_0000 } else { x }
}

fn v_floor_f32(x: u32) -> u32 {
    let near = v_rndne_f32(x);
    if f(near) > f(x) { (f(near) - 1.0).to_bits() } else { near }
}

fn v_ceil_f32(x: u32) -> u32 {
    v_floor_f32(x ^ SIGN) ^ SIGN
}

fn v_trunc_f32(x: u32) -> u32 {
    v_floor_f32(x & !SIGN) | x & SIGN
}

/// Below 1 also where the difference rounds to 1: the compiler takes this instruction for that minimum.
fn v_fract_f32(x: u32) -> u32 {
    const BELOW_ONE: u32 = 0x3f7f_ffff;
    let difference = f(x) - f(v_floor_f32(x));
    if difference >= 1.0 { BELOW_ONE } else { difference.to_bits() }
}

/// Exponent and significand with |significand| in [0.5, 1); none of 0, infinities, NaN.
fn frexp(x: u32) -> Option<(i32, u32)> {
    let v = f(x);
    if v == 0.0 || !v.is_finite() {
        return None;
    }
    // Every f32 is normal as an f64.
    let bits = f64::from(v).to_bits();
    let exponent = (bits >> 52 & 0x7ff) as i32 - 1022;
    Some((exponent, (f64::from_bits(bits & !(0x7ff << 52) | 1022 << 52) as f32).to_bits()))
}

fn v_frexp_exp_i32_f32(x: u32) -> u32 {
    frexp(x).map_or(0, |(exponent, _)| exponent.cast_unsigned())
}

fn v_frexp_mant_f32(x: u32) -> u32 {
    frexp(x).map_or(quiet(x), |(_, mantissa)| mantissa)
}

/// 2^e as f64, for |e| < 1023.
const fn power(e: i32) -> f64 {
    f64::from_bits(((1023 + e) as u64) << 52)
}

/// One rounding: the product is exact in f64. Exponents beyond 300 give what 300 does.
fn v_ldexp_f32(x: u32, exponent: u32) -> u32 {
    ((f64::from(f(x)) * power(exponent.cast_signed().clamp(-300, 300))) as f32).to_bits()
}

/// [`f2`] whose second source is an integer.
fn float_and_int(w: &mut Wave, s: &Step, op: fn(u32, u32) -> u32) -> Result<Flow, Fault> {
    if (s.mods.neg | s.mods.abs) >> 2 != 0 {
        return Err(Fault::Modifier("neg or abs of an integer"));
    }
    f2(w, s, op)
}

/// Biased exponent.
const fn exponent(x: u32) -> i32 {
    (x >> 23 & 0xff).cast_signed()
}

/// Scales a divisor or dividend so that the steps of a division neither overflow nor lose bits; true if
/// `v_div_fmas_f32` must scale back. `x` is `den` or `num`.
fn v_div_scale_f32(x: u32, den: u32, num: u32) -> (u32, bool) {
    let (d, n) = (f(den), f(num));
    let up = v_ldexp_f32(x, 64);
    let down = v_ldexp_f32(x, (-64i32).cast_unsigned());
    let tiny_reciprocal = d.is_finite() && (1.0 / d).is_subnormal();
    let tiny_quotient = (n / d).is_subnormal();
    let (of_den, of_num) = (f(x) == d, f(x) == n);
    if n == 0.0 || d == 0.0 {
        (f32::NAN.to_bits(), false)
    } else if exponent(num) - exponent(den) >= 96 {
        (if of_den { up } else { x }, true)
    } else if d.is_subnormal() {
        (up, false)
    } else if tiny_reciprocal && tiny_quotient {
        (if of_den { down } else { x }, true)
    } else if tiny_reciprocal {
        (down, false)
    } else if tiny_quotient {
        (if of_num { up } else { x }, true)
    } else if exponent(num) <= 23 {
        (up, false)
    } else {
        (x, false)
    }
}

/// The scaled step: back by the 2^64 that `v_div_scale_f32` took, in the direction that the quotient tells; rounded
/// once.
fn div_fmas_scaled(a: u32, b: u32, c: u32) -> u32 {
    let scale = if exponent(c) > 127 { power(64) } else { power(-64) };
    ((fma_odd(f(a), f(b), f(c)) * scale) as f32).to_bits()
}

/// The quotient of `num` and `den` from its approximation.
fn v_div_fixup_f32(quotient: u32, den: u32, num: u32) -> u32 {
    let (d, n) = (f(den), f(num));
    let sign = (den ^ num) & SIGN;
    let magnitude = if n.is_nan() {
        return quiet(num);
    } else if d.is_nan() {
        return quiet(den);
    } else if d == 0.0 && n == 0.0 || d.is_infinite() && n.is_infinite() {
        return 0xffc0_0000;
    } else if d == 0.0 || n.is_infinite() {
        f32::INFINITY.to_bits()
    } else if d.is_infinite() || n == 0.0 || exponent(num) - exponent(den) < -150 {
        0
    } else if f(quotient).is_nan() && exponent(num) - exponent(den) >= 96 {
        // Even the scaled quotient overflowed, and the steps after it made NaN of infinity.
        f32::INFINITY.to_bits()
    } else {
        quotient & !SIGN
    };
    sign | magnitude
}

fn div_scale(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let ((mut x, may), mut den, mut num) = (fetch(w, s, 2), w.lanes(s.args[3]), w.lanes(s.args[4]));
    whole_mask(w, may)?;
    modify(&mut x, s, 2, SIGN);
    modify(&mut den, s, 3, SIGN);
    modify(&mut num, s, 4, SIGN);
    let results: [(u32, bool); 32] = std::array::from_fn(|l| v_div_scale_f32(x[l], den[l], num[l]));
    let exec = w.exec();
    w.set_lanes(dst(s)?, &results.map(|r| r.0), exec);
    set_mask(w, s.args[1], pack(&results.map(|r| r.1)) & exec)?;
    Ok(Flow::Next)
}

fn div_fmas(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let (vcc, exec) = (w.vcc(), w.exec());
    if vcc & exec == 0 {
        return f3(w, s, v_fma_f32);
    }
    let [a, b, c]: [Lanes; 3] = std::array::from_fn(|i| {
        let mut lanes = w.lanes(s.args[i + 1]);
        modify(&mut lanes, s, i + 1, SIGN);
        lanes
    });
    let plain = std::array::from_fn(|l| v_fma_f32(a[l], b[l], c[l]));
    let scaled = std::array::from_fn(|l| div_fmas_scaled(a[l], b[l], c[l]));
    w.set_lanes(dst(s)?, &lanes::select(vcc, &scaled, &plain), exec);
    Ok(Flow::Next)
}

fn v_rcp_f32(x: f64) -> f64 {
    1.0 / x
}

/// Differs in the exceptions that it raises.
fn v_rcp_iflag_f32(x: f64) -> f64 {
    v_rcp_f32(x)
}

fn v_rsq_f32(x: f64) -> f64 {
    1.0 / x.sqrt()
}

fn v_sqrt_f32(x: f64) -> f64 {
    x.sqrt()
}

const LEAST_NORMAL: f64 = f32::MIN_POSITIVE as f64;

fn v_exp_f32(x: f64) -> f64 {
    let power = x.exp2();
    if power < LEAST_NORMAL { 0.0 } else { power }
}

fn v_log_f32(x: f64) -> f64 {
    if x.abs() < LEAST_NORMAL { f64::NEG_INFINITY } else { x.log2() }
}

/// Sine of `turns` full turns: the quarter's polynomial is exact at the quarter.
fn v_sin_f32(turns: f64) -> f64 {
    let (quarter, rest) = quarters(turns);
    match quarter {
        0 => rest.sin(),
        1 => rest.cos(),
        2 => -rest.sin(),
        _ => -rest.cos(),
    }
}

fn v_cos_f32(turns: f64) -> f64 {
    let (quarter, rest) = quarters(turns);
    match quarter {
        0 => rest.cos(),
        1 => -rest.sin(),
        2 => -rest.cos(),
        _ => rest.sin(),
    }
}

/// The nearest quarter turn, modulo 4, and the angle from it. The rest of infinities is NaN.
fn quarters(turns: f64) -> (i64, f64) {
    let turn = turns % 1.0;
    let quarter = (turn * 4.0).round();
    ((quarter as i64).rem_euclid(4), (turn - quarter / 4.0) * std::f64::consts::TAU)
}

macro_rules! approximations {
    ($($f:ident),+ $(,)?) => {
        [$(Op {
            name: stringify!($f),
            class: Class::Transcendental,
            dsts: 1,
            accepts: accepts::FLOAT,
            literal: Literal::B32,
            run: |w, env, s| {
                let seed = env.perturb;
                f1(w, s, |x| finish(seed, x, $f(f64::from(f(x)))))
            },
        }),+]
    };
}

const UNARY: [Op; 6] =
    vector_f32!(Valu, f1, v_floor_f32, v_ceil_f32, v_trunc_f32, v_rndne_f32, v_fract_f32, v_frexp_mant_f32,);
/// An integer result: no multiplier, no clamp.
const EXPONENT: [Op; 1] = [Op {
    name: "v_frexp_exp_i32_f32",
    class: Class::Valu,
    dsts: 1,
    accepts: accepts::NEG_ABS | accepts::DPP,
    literal: Literal::B32,
    run: |w, _, s| f1(w, s, v_frexp_exp_i32_f32),
}];
const LDEXP: [Op; 1] = vector!(Valu, accepts::FLOAT, B32, float_and_int, v_ldexp_f32);
const FIXUP: [Op; 1] = vector_f32!(Valu, f3, v_div_fixup_f32);
const APPROXIMATIONS: [Op; 8] =
    approximations!(v_rcp_f32, v_rcp_iflag_f32, v_rsq_f32, v_sqrt_f32, v_exp_f32, v_log_f32, v_sin_f32, v_cos_f32,);
const DIVISION: [Op; 2] = [
    Op {
        name: "v_div_scale_f32",
        class: Class::Valu,
        dsts: 2,
        accepts: accepts::NEG_ABS,
        literal: Literal::B32,
        run: div_scale,
    },
    Op {
        name: "v_div_fmas_f32",
        class: Class::Valu,
        dsts: 1,
        accepts: accepts::NEG_ABS,
        literal: Literal::B32,
        run: div_fmas,
    },
];

pub static OPS: &[&[Op]] = &[&UNARY, &EXPONENT, &LDEXP, &FIXUP, &APPROXIMATIONS, &DIVISION];

#[cfg(test)]
mod tests {
    use super::super::valu_f32::tests::{EDGES, Random};
    use super::*;

    /// The compiler's sequence for `n / d`.
    fn divide(n: u32, d: u32, rcp: impl Fn(u32) -> u32) -> u32 {
        let (den, _) = v_div_scale_f32(d, d, n);
        let (num, flag) = v_div_scale_f32(n, d, n);
        let minus = den ^ SIGN;
        let mut inverse = rcp(den);
        inverse = v_fma_f32(v_fma_f32(minus, inverse, 1f32.to_bits()), inverse, inverse);
        let mut quotient = (f(num) * f(inverse)).to_bits();
        quotient = v_fma_f32(v_fma_f32(minus, quotient, num), inverse, quotient);
        let rest = v_fma_f32(minus, quotient, num);
        let last = if flag { div_fmas_scaled } else { v_fma_f32 };
        v_div_fixup_f32(last(rest, inverse, quotient), d, n)
    }

    fn check(n: u32, d: u32) {
        let want = (f(n) / f(d)).to_bits();
        // Newton's step cannot mend a reciprocal that is off by one bit where all bits of the divisor are set.
        let seeds = if d & 0x007f_ffff == 0x007f_ffff { 1 } else { 2 };
        for seed in [None, Some(3)].into_iter().take(seeds) {
            let got = divide(n, d, |x| finish(seed, x, v_rcp_f32(f64::from(f(x)))));
            assert!(got == want || f(got).is_nan() && f(want).is_nan(), "{n:#x} / {d:#x} = {got:#x}, not {want:#x}");
        }
    }

    #[test]
    fn quotients() {
        for (n, d) in EDGES.iter().flat_map(|n| EDGES.iter().map(move |d| (*n, *d))) {
            check(n, d);
            check(n | SIGN, d);
        }
        let mut r = Random(2);
        (0..500_000).for_each(|_| check(r.float(), r.float()));
        (0..500_000).for_each(|_| check(r.next(), r.next()));
    }

    #[test]
    fn rounding() {
        let mut r = Random(3);
        for _ in 0..500_000 {
            let x = r.float();
            let same = |got: u32, want: f32| got == want.to_bits() || f(got).is_nan() && want.is_nan();
            assert!(same(v_rndne_f32(x), f(x).round_ties_even()), "{x:#x}");
            assert!(same(v_floor_f32(x), f(x).floor()), "{x:#x}");
            assert!(same(v_ceil_f32(x), f(x).ceil()), "{x:#x}");
            assert!(same(v_trunc_f32(x), f(x).trunc()), "{x:#x}");
            let rebuilt = v_ldexp_f32(v_frexp_mant_f32(x), v_frexp_exp_i32_f32(x));
            assert!(same(rebuilt, f(x)), "{x:#x}");
        }
        assert_eq!(v_fract_f32((-1e-10f32).to_bits()), 0x3f7f_ffff);
        assert_eq!(v_ldexp_f32(1, 200), (f32::MIN_POSITIVE * 2f32.powi(100) * 2f32.powi(77)).to_bits());
        assert_eq!(v_ldexp_f32(0x7f7f_ffff, (-1000i32).cast_unsigned()), 0);
        assert_eq!(v_ldexp_f32(1f32.to_bits(), 1 << 31), 0);
    }

    #[test]
    fn approximations() {
        assert_eq!([v_sin_f32(0.25), v_sin_f32(-0.25), v_cos_f32(0.5), v_cos_f32(100.25)], [1.0, -1.0, -1.0, 0.0]);
        assert!((v_sin_f32(0.1) - (0.1 * std::f64::consts::TAU).sin()).abs() < 1e-15);
        assert!((v_cos_f32(-7.7) - (-7.7 * std::f64::consts::TAU).cos()).abs() < 1e-13);
        assert_eq!([v_exp_f32(-127.0), v_exp_f32(-126.0)], [0.0, LEAST_NORMAL]);
        assert_eq!(v_log_f32(1e-40), f64::NEG_INFINITY);
        assert!(v_log_f32(-1.0).is_nan() && v_sin_f32(f64::INFINITY).is_nan());
    }
}
