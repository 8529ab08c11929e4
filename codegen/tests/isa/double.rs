//! f64 arithmetic by soft-float doubles.

use rustc_apfloat::ieee::Double;
use rustc_apfloat::{Float, Round};
use unglue_codegen::emu::wave::Wave;

use crate::rig::{EXECS, Named, Random, Report, clamped, copy, execute, extreme, gfx1201, number, wave};

pub const DEFINED: &[&str] = &[
    "v_add_f64",
    "v_mul_f64",
    "v_fma_f64",
    "v_min_num_f64",
    "v_max_num_f64",
    "v_minimum_f64",
    "v_maximum_f64",
    "v_ceil_f64",
    "v_floor_f64",
    "v_trunc_f64",
    "v_rndne_f64",
    "v_fract_f64",
    "v_frexp_mant_f64",
    "v_frexp_exp_i32_f64",
    "v_ldexp_f64",
    "v_rcp_f64",
    "v_rsq_f64",
    "v_sqrt_f64",
    "v_div_scale_f64",
    "v_div_fmas_f64",
    "v_div_fixup_f64",
];

const EVEN: Round = Round::NearestTiesToEven;

type Rule = fn(&[Double]) -> Double;

/// Name as written, number of f64 sources, rule.
const OPS: &[(&str, usize, Rule)] = &[
    ("v_add_f64_e32", 2, |x| (x[0] + x[1]).value),
    ("v_add_f64_e64", 2, |x| (x[0] + x[1]).value),
    ("v_mul_f64_e32", 2, |x| (x[0] * x[1]).value),
    ("v_mul_f64_e64", 2, |x| (x[0] * x[1]).value),
    ("v_fma_f64", 3, |x| x[0].mul_add(x[1], x[2]).value),
    ("v_min_num_f64_e64", 2, |x| number(false, x[0], x[1])),
    ("v_max_num_f64_e64", 2, |x| number(true, x[0], x[1])),
    ("v_min_num_f64_e32", 2, |x| number(false, x[0], x[1])),
    ("v_max_num_f64_e32", 2, |x| number(true, x[0], x[1])),
    ("v_minimum_f64", 2, |x| extreme(false, x[0], x[1])),
    ("v_maximum_f64", 2, |x| extreme(true, x[0], x[1])),
    ("v_ceil_f64_e32", 1, |x| x[0].round_to_integral(Round::TowardPositive).value),
    ("v_floor_f64_e32", 1, |x| x[0].round_to_integral(Round::TowardNegative).value),
    ("v_trunc_f64_e32", 1, |x| x[0].round_to_integral(Round::TowardZero).value),
    ("v_rndne_f64_e32", 1, |x| x[0].round_to_integral(EVEN).value),
    ("v_rndne_f64_e64", 1, |x| x[0].round_to_integral(EVEN).value),
    ("v_fract_f64_e32", 1, fract),
    ("v_frexp_mant_f64_e32", 1, |x| split(x[0]).0),
    ("v_div_fixup_f64", 3, fixup),
];

/// Below 1 even if the difference rounds to 1: LLVM selects the instruction for a minimum with that number.
fn fract(x: &[Double]) -> Double {
    let (f, below) =
        ((x[0] - x[0].round_to_integral(Round::TowardNegative).value).value, double(0x3fef_ffff_ffff_ffff));
    if f > below { below } else { f }
}

/// Fraction in 0.5..1 and exponent.
fn split(x: Double) -> (Double, i32) {
    if !x.is_finite() || x.is_zero() {
        return (x, 0);
    }
    let mut e = 0;
    let mantissa = x.frexp_r(&mut e, EVEN);
    (mantissa, e)
}

/// Quotient, denominator, numerator; what a quotient near the ends of the range, or one that is no number, becomes is left
/// to the sequence's test.
fn fixup(x: &[Double]) -> Double {
    let (q, d, n) = (x[0], x[1], x[2]);
    let signed = |v: Double| if d.is_negative() != n.is_negative() { -v } else { v };
    if n.is_nan() || d.is_nan() || d.is_zero() && n.is_zero() || d.is_infinite() && n.is_infinite() {
        Double::NAN
    } else if d.is_zero() || n.is_infinite() {
        signed(Double::INFINITY)
    } else if d.is_infinite() || n.is_zero() {
        signed(Double::ZERO)
    } else {
        signed(if q.is_negative() { -q } else { q })
    }
}

fn double(bits: u64) -> Double {
    Double::from_bits(bits.into())
}

fn get(w: &Wave, n: usize, l: usize) -> u64 {
    u64::from(w.vgpr[n][l]) | u64::from(w.vgpr[n + 1][l]) << 32
}

fn put(w: &mut Wave, n: usize, l: usize, bits: u64) {
    (w.vgpr[n][l], w.vgpr[n + 1][l]) = (bits as u32, (bits >> 32) as u32);
}

fn value(r: &mut Random) -> u64 {
    let special = [
        0,
        1 << 63,
        1,
        0x800f_ffff_ffff_ffff,
        0x0010_0000_0000_0000,
        0x7fef_ffff_ffff_ffff,
        0x7ff0_0000_0000_0000,
        0xfff0_0000_0000_0000,
        0x7ff8_0000_0000_0000,
        0x3ff0_0000_0000_0000,
        0x3fef_ffff_ffff_ffff,
        0xbfe0_0000_0000_0000,
        0x4004_0000_0000_0000,
        0x4330_0000_0000_0001,
        0xc32f_ffff_ffff_ffff,
    ];
    match r.below(4) {
        0 => r.pick(&special),
        1 => (r.within(1 << 20) as f64 / 8.0).to_bits(),
        2 => r.bits() & 0x800f_ffff_ffff_ffff | (1000 + u64::from(r.below(48))) << 52,
        _ => r.bits(),
    }
}

/// Whether a fixed-up quotient is one that the text decides by the operands alone.
fn decided(name: &str, x: &[Double]) -> bool {
    let moderate = |v: Double| !v.is_finite() || v.is_zero() || v.ilogb().abs() < 400;
    name != "v_div_fixup_f64" || moderate(x[1]) && moderate(x[2]) && !x[0].is_nan()
}

fn check(report: &mut Report, line: &str, rule: impl Fn(&[Double]) -> Double, x: &[Double], clamp: bool, got: u64) {
    let e = rule(x);
    let e = if clamp { clamped(e) } else { e };
    let g = double(got);
    let ok = e.is_nan() && g.is_nan() || e.to_bits() == g.to_bits() || clamp && e.is_zero() && g.is_zero();
    report.check(ok, line, || format!("of {x:?}: {g:?} ({got:#x}), not {e:?}"));
}

#[test]
fn arithmetic() {
    let (mut report, mut r) = (Report::default(), Random(1));
    for (name, sources, rule) in OPS {
        let (mut lines, mut forms) = (Vec::new(), Vec::new());
        for n in 0..if name.ends_with("_e32") { 1 } else { 10 } {
            let all = (1 << sources) - 1;
            let (neg, abs) = if n == 0 { (0, 0) } else { (r.word() & all, r.word() & r.word() & all) };
            let clamp = n % 4 == 3 && *name != "v_div_fixup_f64";
            let list = (0..*sources).map(|k| {
                let inner = format!("v[{}:{}]", 2 * k, 2 * k + 1);
                let inner = if abs >> k & 1 == 1 { format!("|{inner}|") } else { inner };
                if neg >> k & 1 == 1 { format!("-{inner}") } else { inner }
            });
            let list = list.collect::<Vec<_>>().join(", ");
            lines.push(format!("{name} v[8:9], {list}{}", if clamp { " clamp" } else { "" }));
            forms.push((neg, abs, clamp));
        }
        for (i, line, step) in report.built(&lines, gfx1201()) {
            for round in 0..100 {
                let exec = if round % 4 == 3 { r.pick(&EXECS) } else { u32::MAX };
                let mut w = wave(&mut r, exec);
                for n in [0, 2, 4] {
                    for l in 0..32 {
                        put(&mut w, n, l, value(&mut r));
                    }
                }
                let before = copy(&w);
                if !report.run(line, &step, &mut w) {
                    break;
                }
                let (neg, abs, clamp) = forms[i];
                for l in 0..32 {
                    let got = get(&w, 8, l);
                    if exec >> l & 1 == 0 {
                        report.check(got == get(&before, 8, l), line, || format!("inactive lane {l} was written"));
                        continue;
                    }
                    let source = |k: usize| {
                        let x = get(&before, 2 * k, l);
                        let x = if abs >> k & 1 == 1 { x & !(1 << 63) } else { x };
                        double(x ^ u64::from(neg >> k & 1) << 63)
                    };
                    let x: Vec<Double> = (0..*sources).map(source).collect();
                    if decided(name, &x) {
                        check(&mut report, line, rule, &x, clamp, got);
                    }
                }
            }
        }
    }
    report.finish();
}

#[test]
fn constants_and_scalars() {
    let (mut report, mut r) = (Report::default(), Random(2));
    let lines = [
        "v_add_f64_e64 v[8:9], s[4:5], v[0:1]",
        "v_add_f64_e32 v[8:9], 0.5, v[0:1]",
        "v_mul_f64_e32 v[8:9], 0x3ff80000, v[0:1]",
        "v_fma_f64 v[8:9], v[0:1], -4.0, s[4:5]",
    ];
    for (i, line, step) in report.built(&lines, gfx1201()) {
        for _ in 0..50 {
            let mut w = wave(&mut r, u32::MAX);
            for l in 0..32 {
                put(&mut w, 0, l, value(&mut r));
            }
            let s = value(&mut r);
            (w.sgpr[4], w.sgpr[5]) = (s as u32, (s >> 32) as u32);
            let before = copy(&w);
            if !report.run(line, &step, &mut w) {
                break;
            }
            for l in 0..32 {
                let x = double(get(&before, 0, l));
                let k = |v: f64| double(v.to_bits());
                let rule = |_: &[Double]| match i {
                    0 => (double(s) + x).value,
                    1 => (k(0.5) + x).value,
                    2 => (k(1.5) * x).value,
                    _ => x.mul_add(k(-4.0), double(s)).value,
                };
                check(&mut report, line, rule, &[x, double(s)], false, get(&w, 8, l));
            }
        }
    }
    report.finish();
}

#[test]
fn exponents() {
    let (mut report, mut r) = (Report::default(), Random(3));
    let lines =
        ["v_ldexp_f64 v[8:9], v[0:1], v2", "v_ldexp_f64 v[8:9], -v[0:1], -3", "v_frexp_exp_i32_f64_e32 v8, v[0:1]"];
    for (i, line, step) in report.built(&lines, gfx1201()) {
        for round in 0..300 {
            let mut w = wave(&mut r, u32::MAX);
            for l in 0..32 {
                put(&mut w, 0, l, value(&mut r));
                let any = r.word();
                w.vgpr[2][l] = match round % 3 {
                    0 => r.within(2200) as u32,
                    1 => r.within(60) as u32,
                    _ => r.pick(&[0, i32::MAX as u32, i32::MIN as u32, 1 << 20, any]),
                };
            }
            let before = copy(&w);
            if !report.run(line, &step, &mut w) {
                break;
            }
            for l in 0..32 {
                let x = double(get(&before, 0, l));
                let by = before.vgpr[2][l].cast_signed();
                match i {
                    0 => check(
                        &mut report,
                        line,
                        |x| x[0].scalbn_r(by.clamp(-5000, 5000), EVEN),
                        &[x],
                        false,
                        get(&w, 8, l),
                    ),
                    1 => check(&mut report, line, |x| (-x[0]).scalbn_r(-3, EVEN), &[x], false, get(&w, 8, l)),
                    _ => {
                        let (e, got) = (split(x).1, w.vgpr[8][l].cast_signed());
                        report.check(e == got, line, || format!("of {x:?}: {got}, not {e}"));
                    }
                }
            }
        }
    }
    report.finish();
}

/// First guesses, good to half of the bits; special values exactly.
#[test]
fn approximations() {
    let (mut report, mut r) = (Report::default(), Random(4));
    let rules: [Named<f64>; 3] =
        [("v_rcp_f64", |x| 1.0 / x), ("v_rsq_f64", |x| 1.0 / x.sqrt()), ("v_sqrt_f64", f64::sqrt)];
    for (name, f) in rules {
        for (_, line, step) in report.built(&[format!("{name}_e32 v[8:9], v[0:1]")], gfx1201()) {
            for _ in 0..200 {
                let mut w = wave(&mut r, u32::MAX);
                for l in 0..32 {
                    put(&mut w, 0, l, value(&mut r));
                }
                let before = copy(&w);
                if !report.run(line, &step, &mut w) {
                    break;
                }
                for l in 0..32 {
                    let x = f64::from_bits(get(&before, 0, l));
                    let (e, got) = (f(x), f64::from_bits(get(&w, 8, l)));
                    // Results below the normal range have no bits to be good to.
                    let tiny = e.abs() < f64::MIN_POSITIVE && got.abs() <= 2.0 * f64::MIN_POSITIVE;
                    let near = e == got || (got - e).abs() <= e.abs() * 2f64.powi(-22);
                    report.check(near || tiny || e.is_nan() && got.is_nan(), line, || {
                        format!("of {x:e}: {got:e}, not {e:e}")
                    });
                }
            }
        }
    }
    report.finish();
}

/// The division that the compiler emits: correctly rounded over the whole range.
const DIVISION: [&str; 11] = [
    "v_div_scale_f64 v[10:11], null, v[2:3], v[2:3], v[0:1]",
    "v_rcp_f64_e32 v[12:13], v[10:11]",
    "v_fma_f64 v[14:15], -v[10:11], v[12:13], 1.0",
    "v_fma_f64 v[12:13], v[12:13], v[14:15], v[12:13]",
    "v_fma_f64 v[14:15], -v[10:11], v[12:13], 1.0",
    "v_fma_f64 v[12:13], v[12:13], v[14:15], v[12:13]",
    "v_div_scale_f64 v[16:17], vcc_lo, v[0:1], v[2:3], v[0:1]",
    "v_mul_f64_e32 v[18:19], v[16:17], v[12:13]",
    "v_fma_f64 v[20:21], -v[10:11], v[18:19], v[16:17]",
    "v_div_fmas_f64 v[20:21], v[20:21], v[12:13], v[18:19]",
    "v_div_fixup_f64 v[8:9], v[20:21], v[2:3], v[0:1]",
];

#[test]
fn division() {
    let (mut report, mut r) = (Report::default(), Random(5));
    let steps = report.built(&DIVISION, gfx1201());
    if steps.len() == DIVISION.len() {
        for round in 0..1500 {
            let mut w = wave(&mut r, u32::MAX);
            for l in 0..32 {
                let near = r.bits() & 0x800f_ffff_ffff_ffff | (960 + u64::from(r.below(128))) << 52;
                let n = if round % 3 == 0 { near } else { value(&mut r) };
                let d = match round % 3 {
                    0 => near ^ r.bits() >> 20,
                    1 => value(&mut r),
                    // The ends of the range, where scaling matters.
                    _ => {
                        r.bits() & 0x800f_ffff_ffff_ffff
                            | u64::from(r.pick(&[0u32, 1, 2, 30, 52, 54, 1000, 1023, 2044, 2045, 2046])) << 52
                    }
                };
                put(&mut w, 0, l, n);
                put(&mut w, 2, l, d);
            }
            let before = copy(&w);
            for (_, line, step) in &steps {
                if let Err(fault) = execute(step, &mut w) {
                    report.wrong(line, fault);
                    return report.finish();
                }
            }
            for l in 0..32 {
                let x = [double(get(&before, 0, l)), double(get(&before, 2, l))];
                let quotient = (x[0] / x[1]).value;
                let kind = match (quotient.is_infinite(), x[0].is_finite() && !x[1].is_zero()) {
                    (true, true) => "overflow",
                    _ if quotient.is_denormal() => "denormal",
                    _ => "quotient",
                };
                check(&mut report, kind, |_| quotient, &x, false, get(&w, 8, l));
            }
        }
    }
    report.finish();
}

/// `v_div_fmas` multiplies by 2^64 in lanes of VCC, down for a huge denominator: what it needs is told by the
/// sequence; here only that lanes outside of VCC are a plain multiply-add.
#[test]
fn fmas_without_scaling() {
    let (mut report, mut r) = (Report::default(), Random(6));
    for (_, line, step) in report.built(&["v_div_fmas_f64 v[8:9], v[0:1], v[2:3], v[4:5]"], gfx1201()) {
        for _ in 0..100 {
            let mut w = wave(&mut r, u32::MAX);
            w.set_vcc(0);
            for n in [0, 2, 4] {
                for l in 0..32 {
                    put(&mut w, n, l, value(&mut r));
                }
            }
            let before = copy(&w);
            report.run(line, &step, &mut w);
            for l in 0..32 {
                let x: Vec<Double> = [0, 2, 4].iter().map(|n| double(get(&before, *n, l))).collect();
                check(&mut report, line, |x| x[0].mul_add(x[1], x[2]).value, &x, false, get(&w, 8, l));
            }
        }
    }
    report.finish();
}
