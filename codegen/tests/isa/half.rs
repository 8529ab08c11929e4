//! 16-bit arithmetic: floats by soft-float halves with one rounding, integers by wide integers. Every form: short,
//! long with modifiers, `op_sel` for upper halves, registers whose half is named.

use rustc_apfloat::ieee::Half;
use rustc_apfloat::{Float, Round};
use unglue_codegen::emu::wave::Wave;
use unglue_codegen::target::Target;

use crate::rig::{EXECS, Named, Random, Report, clamped, copy, extreme, gfx1201, number, true16, ulp16, wave};

macro_rules! defined {
    ($($table:ident: [$($name:literal, $sources:literal, $traits:expr, $rule:expr;)+])+) => {
        pub const DEFINED: &[&str] = &[$($($name,)+)+ "v_fmaak_f16", "v_fmamk_f16", "v_mov_b16", "v_pack_b32_f16",
            "v_mad_u32_u16", "v_mad_i32_i16", "v_cndmask_b16", "v_swap_b16",
            "v_s_rcp_f16", "v_s_rsq_f16", "v_s_sqrt_f16", "v_s_exp_f16", "v_s_log_f16"];
        $(const $table: &[Def] = &[$(Def { name: $name, sources: $sources, traits: $traits, rule: $rule },)+];)+
    };
}

struct Def {
    name: &'static str,
    sources: usize,
    traits: u8,
    rule: Rule,
}

/// A float op: `-x`, `|x|`, clamp to 0..=1.
const FLOAT: u8 = 1;
/// Has the long form only.
const LONG: u8 = 2;
/// The assembler takes `op_sel` without named halves.
const OP_SEL: u8 = 4;
/// The destination is the last source.
const ACC: u8 = 8;
/// Float modifiers on source 0 only, and no clamp.
const FIRST: u8 = 16;
/// `clamp` saturates integers: the rule sees it.
const SATURATES: u8 = 32;
/// The result is no float: no clamp.
const BITS: u8 = 64;

#[derive(Clone, Copy)]
enum Rule {
    /// Any NaN stands for any other.
    Float(fn(&[Half]) -> Half),
    /// Exact value, to within an ulp or this much.
    Near(fn(f64) -> f64, f64),
    /// Of 16-bit words.
    Bits(fn(&[u16]) -> u16),
    /// Of signed values; wraps, or saturates if clamped.
    Signed(fn(&[i64]) -> i64),
    Unsigned(fn(&[i64]) -> i64),
}
use Rule::{Bits, Float as Fl, Near, Signed, Unsigned};

const UP: Round = Round::TowardPositive;
const DOWN: Round = Round::TowardNegative;
const EVEN: Round = Round::NearestTiesToEven;

defined! {
UNARY: [
    "v_ceil_f16", 1, FLOAT, Fl(|x| x[0].round_to_integral(UP).value);
    "v_floor_f16", 1, FLOAT, Fl(|x| x[0].round_to_integral(DOWN).value);
    "v_trunc_f16", 1, FLOAT, Fl(|x| x[0].round_to_integral(Round::TowardZero).value);
    "v_rndne_f16", 1, FLOAT, Fl(|x| x[0].round_to_integral(EVEN).value);
    "v_fract_f16", 1, FLOAT, Fl(fract);
    "v_frexp_mant_f16", 1, FLOAT, Fl(mantissa);
    "v_frexp_exp_i16_f16", 1, FLOAT | BITS, Bits(exponent);
    "v_rcp_f16", 1, FLOAT, Near(|x| 1.0 / x, 0.0);
    "v_sqrt_f16", 1, FLOAT, Near(f64::sqrt, 0.0);
    "v_rsq_f16", 1, FLOAT, Near(|x| 1.0 / x.sqrt(), 0.0);
    "v_exp_f16", 1, FLOAT, Near(f64::exp2, 0.0);
    "v_log_f16", 1, FLOAT, Near(f64::log2, 0.0);
    "v_sin_f16", 1, FLOAT, Near(|x| (x.fract() * std::f64::consts::TAU).sin(), 1e-3);
    "v_cos_f16", 1, FLOAT, Near(|x| (x.fract() * std::f64::consts::TAU).cos(), 1e-3);
    "v_not_b16", 1, 0, Bits(|x| !x[0]);
]
BINARY: [
    "v_add_f16", 2, FLOAT, Fl(|x| (x[0] + x[1]).value);
    "v_sub_f16", 2, FLOAT, Fl(|x| (x[0] - x[1]).value);
    "v_subrev_f16", 2, FLOAT, Fl(|x| (x[1] - x[0]).value);
    "v_mul_f16", 2, FLOAT, Fl(|x| (x[0] * x[1]).value);
    "v_min_num_f16", 2, FLOAT, Fl(|x| number(false, x[0], x[1]));
    "v_max_num_f16", 2, FLOAT, Fl(|x| number(true, x[0], x[1]));
    "v_ldexp_f16", 2, FLOAT | FIRST, Fl(|x| x[0].scalbn_r(i32::from(x[1].to_bits() as u16 as i16), EVEN));
    "v_fmac_f16", 2, FLOAT | ACC, Fl(|x| x[0].mul_add(x[1], x[2]).value);
    "v_minimum_f16", 2, FLOAT | LONG | OP_SEL, Fl(|x| extreme(false, x[0], x[1]));
    "v_maximum_f16", 2, FLOAT | LONG | OP_SEL, Fl(|x| extreme(true, x[0], x[1]));
    "v_add_nc_u16", 2, LONG | OP_SEL | SATURATES, Unsigned(|x| x[0] + x[1]);
    "v_sub_nc_u16", 2, LONG | OP_SEL | SATURATES, Unsigned(|x| x[0] - x[1]);
    "v_add_nc_i16", 2, LONG | OP_SEL | SATURATES, Signed(|x| x[0] + x[1]);
    "v_sub_nc_i16", 2, LONG | OP_SEL | SATURATES, Signed(|x| x[0] - x[1]);
    "v_mul_lo_u16", 2, LONG, Unsigned(|x| x[0] * x[1]);
    "v_min_u16", 2, LONG, Unsigned(|x| x[0].min(x[1]));
    "v_max_u16", 2, LONG, Unsigned(|x| x[0].max(x[1]));
    "v_min_i16", 2, LONG, Signed(|x| x[0].min(x[1]));
    "v_max_i16", 2, LONG, Signed(|x| x[0].max(x[1]));
    "v_lshlrev_b16", 2, LONG, Unsigned(|x| x[1] << (x[0] & 15));
    "v_lshrrev_b16", 2, LONG, Unsigned(|x| x[1] >> (x[0] & 15));
    "v_ashrrev_i16", 2, LONG, Signed(|x| x[1] >> (x[0] & 15));
    "v_and_b16", 2, LONG, Bits(|x| x[0] & x[1]);
    "v_or_b16", 2, LONG, Bits(|x| x[0] | x[1]);
    "v_xor_b16", 2, LONG, Bits(|x| x[0] ^ x[1]);
]
TERNARY: [
    "v_fma_f16", 3, FLOAT | LONG | OP_SEL, Fl(|x| x[0].mul_add(x[1], x[2]).value);
    "v_min3_num_f16", 3, FLOAT | LONG | OP_SEL, Fl(|x| num3(false, x));
    "v_max3_num_f16", 3, FLOAT | LONG | OP_SEL, Fl(|x| num3(true, x));
    "v_med3_num_f16", 3, FLOAT | LONG | OP_SEL, Fl(median);
    "v_minimum3_f16", 3, FLOAT | LONG | OP_SEL, Fl(|x| extreme(false, extreme(false, x[0], x[1]), x[2]));
    "v_maximum3_f16", 3, FLOAT | LONG | OP_SEL, Fl(|x| extreme(true, extreme(true, x[0], x[1]), x[2]));
    "v_minmax_num_f16", 3, FLOAT | LONG | OP_SEL, Fl(|x| number(true, number(false, x[0], x[1]), x[2]));
    "v_maxmin_num_f16", 3, FLOAT | LONG | OP_SEL, Fl(|x| number(false, number(true, x[0], x[1]), x[2]));
    "v_minimummaximum_f16", 3, FLOAT | LONG | OP_SEL, Fl(|x| extreme(true, extreme(false, x[0], x[1]), x[2]));
    "v_maximumminimum_f16", 3, FLOAT | LONG | OP_SEL, Fl(|x| extreme(false, extreme(true, x[0], x[1]), x[2]));
    "v_div_fixup_f16", 3, FLOAT | LONG | OP_SEL, Fl(fixup);
    "v_mad_u16", 3, LONG | OP_SEL, Unsigned(|x| x[0] * x[1] + x[2]);
    "v_mad_i16", 3, LONG | OP_SEL, Signed(|x| x[0] * x[1] + x[2]);
    "v_min3_i16", 3, LONG | OP_SEL, Signed(|x| x[0].min(x[1]).min(x[2]));
    "v_min3_u16", 3, LONG | OP_SEL, Unsigned(|x| x[0].min(x[1]).min(x[2]));
    "v_max3_i16", 3, LONG | OP_SEL, Signed(|x| x[0].max(x[1]).max(x[2]));
    "v_max3_u16", 3, LONG | OP_SEL, Unsigned(|x| x[0].max(x[1]).max(x[2]));
    "v_med3_i16", 3, LONG | OP_SEL, Signed(middle);
    "v_med3_u16", 3, LONG | OP_SEL, Unsigned(middle);
]
}

/// Below 1 even if the difference rounds to 1: LLVM selects the instruction for a minimum with that number.
fn fract(x: &[Half]) -> Half {
    let (f, below) = ((x[0] - x[0].round_to_integral(DOWN).value).value, Half::from_bits(0x3bff));
    if f > below { below } else { f }
}

fn mantissa(x: &[Half]) -> Half {
    if !x[0].is_finite() || x[0].is_zero() {
        return x[0];
    }
    let mut e = 0;
    x[0].frexp_r(&mut e, EVEN)
}

/// The power of two that goes with [`mantissa`].
fn exponent(x: &[u16]) -> u16 {
    let x = Half::from_bits(x[0].into());
    if !x.is_finite() || x.is_zero() {
        return 0;
    }
    let mut e = 0;
    let _ = x.frexp_r(&mut e, EVEN);
    e as i16 as u16
}

fn num3(max: bool, x: &[Half]) -> Half {
    number(max, number(max, x[0], x[1]), x[2])
}

fn median(x: &[Half]) -> Half {
    let top = num3(true, x);
    if x.iter().any(|v| v.is_nan()) {
        num3(false, x)
    } else if top == x[0] {
        number(true, x[1], x[2])
    } else if top == x[1] {
        number(true, x[0], x[2])
    } else {
        number(true, x[0], x[1])
    }
}

fn middle(x: &[i64]) -> i64 {
    let mut sorted = [x[0], x[1], x[2]];
    sorted.sort_unstable();
    sorted[1]
}

/// Quotient, denominator, numerator.
fn fixup(x: &[Half]) -> Half {
    let (q, d, n) = (x[0], x[1], x[2]);
    let signed = |v: Half| if d.is_negative() != n.is_negative() { -v } else { v };
    let magnitude = if q.is_negative() { -q } else { q };
    if n.is_nan() || d.is_nan() || d.is_zero() && n.is_zero() || d.is_infinite() && n.is_infinite() {
        Half::NAN
    } else if d.is_zero() || n.is_infinite() {
        signed(Half::INFINITY)
    } else if d.is_infinite() || n.is_zero() {
        signed(Half::ZERO)
    } else {
        signed(magnitude)
    }
}

pub fn to_f64(x: Half) -> f64 {
    ::half::f16::from_bits(x.to_bits() as u16).to_f64()
}

impl Rule {
    /// Whether `got` is right for these sources.
    fn accepts(self, x: &[u16], clamp: bool, got: u16) -> bool {
        let halves: Vec<Half> = x.iter().map(|v| Half::from_bits((*v).into())).collect();
        let g = Half::from_bits(got.into());
        match self {
            Rule::Float(f) => {
                let mut e = f(&halves);
                if clamp {
                    e = clamped(e);
                }
                e.is_nan() && g.is_nan() || e.to_bits() == g.to_bits() || clamp && e.is_zero() && g.is_zero()
            }
            Near(f, slack) => {
                let mut e = f(to_f64(halves[0]));
                if clamp {
                    e = if e > 0.0 { e.min(1.0) } else { 0.0 };
                }
                let near = (to_f64(g) - e).abs() <= (1.01 * ulp16(e)).max(slack);
                e.is_nan() && g.is_nan()
                    || to_f64(g) == e
                    || near && g.is_finite()
                    || e.abs() > 65472.0 && g.is_infinite() && g.is_negative() == (e < 0.0)
            }
            Bits(f) => got == f(x),
            Signed(f) => {
                let e = f(&x.iter().map(|v| i64::from(*v as i16)).collect::<Vec<_>>());
                got == (if clamp { e.clamp(-32768, 32767) } else { e }) as u16
            }
            Unsigned(f) => {
                let e = f(&x.iter().map(|v| i64::from(*v)).collect::<Vec<_>>());
                got == (if clamp { e.clamp(0, 65535) } else { e }) as u16
            }
        }
    }
}

/// One way to write an op: which halves, which modifiers.
#[derive(Clone, Default)]
struct Form {
    text: String,
    neg: u8,
    abs: u8,
    clamp: bool,
    /// Sources that are upper halves; bit 3 is the destination.
    high: u8,
    /// Source that is a scalar register, s5; 9 is none.
    scalar: usize,
}

const SPECIAL: [u16; 22] = [
    0, 0x8000, 1, 0x8001, 0x3ff, 0x83ff, 0x400, 0x8400, 0x7bff, 0xfbff, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 0x3c00, 0xbc00,
    0x3bff, 0x3c01, 0x3800, 0xb800, 0x4100, 0xffff,
];

fn forms(def: &Def, named: bool, r: &mut Random) -> Vec<Form> {
    let has = |bit| def.traits & bit != 0;
    let mut out = Vec::new();
    for short in [true, false] {
        if short && has(LONG) {
            continue;
        }
        for n in 0..if short { 4 } else { 12 } {
            let mut f = Form { scalar: 9, ..Form::default() };
            if named || !short && has(OP_SEL) {
                f.high = (r.word() & 15) as u8;
            }
            if !short && n > 1 {
                if has(FLOAT) {
                    let all = if has(FIRST) { 1 } else { (1 << def.sources) - 1 };
                    (f.neg, f.abs) = ((r.word() & all) as u8, (r.word() & r.word() & all) as u8);
                    f.clamp = n % 3 == 0 && !has(FIRST) && !has(BITS);
                }
                f.clamp |= has(SATURATES) && n % 2 == 0;
                f.scalar = if n > 8 && def.sources > 1 { r.below(def.sources as u32) as usize } else { 9 };
            }
            // The scalar's half is chosen by `op_sel`, which is not printed with it here.
            if f.scalar < 4 && named {
                f.high &= !(1 << f.scalar);
            }
            f.text = text(def, &f, short, named);
            out.push(f);
        }
    }
    out
}

fn text(def: &Def, f: &Form, short: bool, named: bool) -> String {
    let high = |bit: usize| f.high >> bit & 1 == 1;
    let register = |n: usize, bit: usize| match named {
        true => format!("v{n}.{}", if high(bit) { 'h' } else { 'l' }),
        false => format!("v{n}"),
    };
    let suffix = match (def.traits & LONG != 0, short) {
        (true, _) => "",
        (false, true) => "_e32",
        (false, false) => "_e64",
    };
    let mut out = format!("{}{suffix} {}", def.name, register(9, 3));
    for k in 0..def.sources {
        let inner = if k == f.scalar { "s5".to_owned() } else { register(k, k) };
        let inner = if f.abs >> k & 1 == 1 { format!("|{inner}|") } else { inner };
        out += &format!(", {}{inner}", if f.neg >> k & 1 == 1 { "-" } else { "" });
    }
    if !named && f.high != 0 {
        let bits: Vec<String> = (0..def.sources).chain([3]).map(|k| u8::from(high(k)).to_string()).collect();
        out += &format!(" op_sel:[{}]", bits.join(","));
    }
    if f.clamp { out + " clamp" } else { out }
}

/// The source words that a lane's op sees.
fn sources(def: &Def, f: &Form, w: &Wave, l: usize) -> Vec<u16> {
    let half = |word: u32, high: bool| (if high { word >> 16 } else { word }) as u16;
    let mut out: Vec<u16> = (0..def.sources)
        .map(|k| {
            let word = if k == f.scalar { w.sgpr[5] } else { w.vgpr[k][l] };
            let mut x = half(word, f.high >> k & 1 == 1);
            if f.abs >> k & 1 == 1 {
                x &= 0x7fff;
            }
            if f.neg >> k & 1 == 1 {
                x ^= 0x8000;
            }
            x
        })
        .collect();
    if def.traits & ACC != 0 {
        out.push(half(w.vgpr[9][l], f.high >> 3 & 1 == 1));
    }
    out
}

/// Fills sources with special values and random ones.
fn fill(r: &mut Random, w: &mut Wave) {
    let value = |r: &mut Random| match r.below(3) {
        0 => r.pick(&SPECIAL),
        1 => (r.word() & 0x8fff | 0x3000) as u16,
        _ => r.word() as u16,
    };
    for n in [0, 1, 2, 9] {
        w.vgpr[n] = std::array::from_fn(|_| u32::from(value(r)) | u32::from(value(r)) << 16);
    }
    w.sgpr[5] = u32::from(value(r)) | u32::from(value(r)) << 16;
}

fn judge(report: &mut Report, def: &Def, f: &Form, line: &str, before: &Wave, w: &Wave) {
    let high = f.high >> 3 & 1 == 1;
    for l in 0..32 {
        let (old, new) = (before.vgpr[9][l], w.vgpr[9][l]);
        if before.exec() >> l & 1 == 0 {
            report.check(old == new, line, || format!("inactive lane {l} was written"));
            continue;
        }
        let x = sources(def, f, before, l);
        let (got, kept) =
            if high { (new >> 16, new as u16 == old as u16) } else { (new & 0xffff, new >> 16 == old >> 16) };
        report.check(kept, line, || format!("other half of lane {l}: {old:#x} became {new:#x}"));
        let limited = def.name.contains("sin") || def.name.contains("cos");
        if !limited || to_f64(Half::from_bits(x[0].into())).abs() <= 256.0 {
            report.check(def.rule.accepts(&x, f.clamp, got as u16), line, || format!("of {x:x?}: {got:#x}"));
        }
    }
}

fn try_table(table: &[Def], named: bool, rounds: usize, seed: u64) {
    let t: &Target = if named { true16() } else { gfx1201() };
    let (mut report, mut r) = (Report::default(), Random(seed));
    for def in table {
        let forms = forms(def, named, &mut r);
        let lines: Vec<&str> = forms.iter().map(|f| f.text.as_str()).collect();
        for (i, line, step) in report.built(&lines, t) {
            for round in 0..rounds {
                let exec = if round % 4 == 3 { r.pick(&EXECS) } else { u32::MAX };
                let mut w = wave(&mut r, exec);
                fill(&mut r, &mut w);
                let before = copy(&w);
                if report.run(line, &step, &mut w) {
                    judge(&mut report, def, &forms[i], line, &before, &w);
                }
            }
        }
    }
    report.finish();
}

#[test]
fn unary() {
    try_table(UNARY, false, 40, 1);
}

#[test]
fn unary_named() {
    try_table(UNARY, true, 40, 2);
}

#[test]
fn binary() {
    try_table(BINARY, false, 100, 3);
}

#[test]
fn binary_named() {
    try_table(BINARY, true, 100, 4);
}

#[test]
fn ternary() {
    try_table(TERNARY, false, 100, 5);
}

#[test]
fn ternary_named() {
    try_table(TERNARY, true, 100, 6);
}

/// Every half there is.
#[test]
fn unary_exhaustive() {
    let (mut report, mut r) = (Report::default(), Random(7));
    for def in UNARY {
        let form =
            Form { text: text(def, &Form { scalar: 9, ..Form::default() }, true, false), scalar: 9, ..Form::default() };
        for (_, line, step) in report.built(&[&form.text], gfx1201()) {
            for block in 0..2048 {
                let mut w = wave(&mut r, u32::MAX);
                w.vgpr[0] = std::array::from_fn(|l| (32 * block + l as u32) | 0xabcd_0000);
                let before = copy(&w);
                if report.run(line, &step, &mut w) {
                    judge(&mut report, def, &form, line, &before, &w);
                }
            }
        }
    }
    report.finish();
}

/// Ops whose operands differ in width, and constants.
#[test]
fn other_shapes() {
    let lines = [
        "v_fmaak_f16 v9, v0, v1, 0x3c12",
        "v_fmamk_f16 v9, v0, 0x3c12, v1",
        "v_add_f16_e32 v9, 0x3c12, v1",
        "v_add_f16_e32 v9, 0.5, v1",
        "v_add_f16_e64 v9, v1, -4.0",
        "v_add_f16_e32 v9, 7, v1",
        "v_add_nc_u16 v9, v1, -3",
        "v_mad_u32_u16 v9, v0, v1, v2",
        "v_mad_i32_i16 v9, v0, v1, v2 op_sel:[1,0,0,0]",
        "v_pack_b32_f16 v9, v0, v1",
        "v_pack_b32_f16 v9, -v0, |v1| op_sel:[1,0,0]",
        "v_cndmask_b16 v9, v0, v1, s3",
        "v_ldexp_f16_e64 v9, v1, -3",
        "v_add_f16_dpp v9, v0, v1 row_mirror",
    ];
    check_shapes(&lines, gfx1201());
    let lines = [
        "v_fmaak_f16 v9.l, v0.l, v1.l, 0x3c12",
        "v_fmamk_f16 v9.l, v0.l, 0x3c12, v1.l",
        "v_add_f16_e32 v9.l, 0x3c12, v1.l",
        "v_add_f16_e32 v9.l, 0.5, v1.l",
        "v_add_f16_e64 v9.l, v1.l, -4.0",
        "v_add_f16_e32 v9.l, 7, v1.l",
        "v_add_nc_u16 v9.l, v1.l, -3",
        "v_mad_u32_u16 v9, v0.l, v1.l, v2",
        "v_mad_i32_i16 v9, v0.h, v1.l, v2",
        "v_pack_b32_f16 v9, v0.l, v1.l",
        "v_pack_b32_f16 v9, -v0.h, |v1.l|",
        "v_cndmask_b16 v9.l, v0.l, v1.l, s3",
        "v_ldexp_f16_e64 v9.l, v1.l, -3",
        "v_add_f16_dpp v9.l, v0.l, v1.l row_mirror",
        "v_mov_b16_e32 v9.l, v0.h",
        "v_mov_b16_e32 v9.h, v0.l",
        "v_swap_b16 v9.h, v0.l",
    ];
    check_shapes(&lines, true16());
}

fn check_shapes(lines: &[&str], t: &Target) {
    let (mut report, mut r) = (Report::default(), Random(8));
    for (i, line, step) in report.built(lines, t) {
        for round in 0..200 {
            let mut w = wave(&mut r, EXECS[round % 2 * 4]);
            fill(&mut r, &mut w);
            let before = copy(&w);
            if !report.run(line, &step, &mut w) {
                break;
            }
            for l in (0..32).filter(|l| before.exec() >> l & 1 == 1) {
                let (word, low) = (|n: usize| before.vgpr[n][l], |n: usize| before.vgpr[n][l] as u16);
                let h = |x: u16| Half::from_bits(x.into());
                let k = h(0x3c12);
                let mixed = |x: Half| (word(9) & 0xffff_0000 | x.to_bits() as u32, x.is_nan());
                let bits = |x: u16| (word(9) & 0xffff_0000 | u32::from(x), false);
                let (expected, nan) = match i {
                    0 => mixed(h(low(0)).mul_add(h(low(1)), k).value),
                    1 => mixed(h(low(0)).mul_add(k, h(low(1))).value),
                    2 => mixed((k + h(low(1))).value),
                    3 => mixed((h(0x3800) + h(low(1))).value),
                    4 => mixed((h(low(1)) + h(0xc400)).value),
                    5 => mixed((h(7) + h(low(1))).value),
                    6 => bits(low(1).wrapping_sub(3)),
                    7 => ((u32::from(low(0)) * u32::from(low(1))).wrapping_add(word(2)), false),
                    8 => {
                        let product = ((word(0) >> 16) as i16 as i32) * i32::from(low(1) as i16);
                        (product.cast_unsigned().wrapping_add(word(2)), false)
                    }
                    9 => (u32::from(low(0)) | u32::from(low(1)) << 16, false),
                    10 => ((word(0) >> 16 ^ 0x8000) | u32::from(low(1) & 0x7fff) << 16, false),
                    11 => bits(if before.sgpr[3] >> l & 1 == 1 { low(1) } else { low(0) }),
                    12 => mixed(h(low(1)).scalbn_r(-3, EVEN)),
                    13 => {
                        let from = l / 16 * 16 + 15 - l % 16;
                        if before.exec() >> from & 1 == 0 {
                            (word(9), false)
                        } else {
                            mixed((h(before.vgpr[0][from] as u16) + h(low(1))).value)
                        }
                    }
                    14 => bits((word(0) >> 16) as u16),
                    _ => (word(9) & 0xffff | u32::from(low(0)) << 16, false),
                };
                let got = w.vgpr[9][l];
                let ok = got == expected || nan && h(got as u16).is_nan() && got >> 16 == expected >> 16;
                report.check(ok, line, || format!("lane {l}: {got:#010x}, not {expected:#010x}"));
                let other = if i == 16 { word(0) & 0xffff_0000 | word(9) >> 16 } else { word(0) };
                report.check(w.vgpr[0][l] == other, line, || format!("v0 lane {l}: {:#x}", w.vgpr[0][l]));
            }
        }
    }
    report.finish();
}

/// Approximations of a scalar. The text says nothing about the upper half of the result.
#[test]
fn scalars() {
    let (mut report, mut r) = (Report::default(), Random(9));
    let rules: [Named<f64>; 5] = [
        ("rcp", |x| 1.0 / x),
        ("rsq", |x| 1.0 / x.sqrt()),
        ("sqrt", f64::sqrt),
        ("exp", f64::exp2),
        ("log", f64::log2),
    ];
    let lines: Vec<String> =
        rules.iter().flat_map(|(n, _)| ["s3", "-|s3|", "s3 clamp"].map(|s| format!("v_s_{n}_f16 s5, {s}"))).collect();
    for (i, line, step) in report.built(&lines, gfx1201()) {
        for round in 0..400usize {
            let mut w = wave(&mut r, EXECS[round % 8]);
            if round < SPECIAL.len() {
                w.sgpr[3] = u32::from(SPECIAL[round]) | 0x1234_0000;
            }
            let x = w.sgpr[3] as u16 | if i % 3 == 1 { 0x8000 } else { 0 };
            if !report.run(line, &step, &mut w) {
                break;
            }
            let got = w.sgpr[5];
            let ok = Near(rules[i / 3].1, 0.0).accepts(&[x], i % 3 == 2, got as u16);
            report.check(ok, line, || format!("of {x:#x}: {got:#x}"));
        }
    }
    report.finish();
}
