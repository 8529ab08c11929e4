//! Scalar float ops against arbitrary-precision floats; approximations within 1 ulp of f64.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use std::cmp::Ordering;

use rustc_apfloat::ieee::{Double, Half, Single};
use rustc_apfloat::{Float, FloatConvert, Round};
use unglue_codegen::emu::snippet::Surroundings;
use unglue_codegen::emu::wave::Wave;

use super::stage::{Lines, POISON, Random, Report};

/// Opcodes that are defined here.
#[rustfmt::skip]
pub const DEFINED: &[&str] = &[
    "s_add_f32", "s_sub_f32", "s_mul_f32", "s_min_num_f32", "s_max_num_f32", "s_minimum_f32", "s_maximum_f32",
    "s_fmac_f32", "s_fmaak_f32", "s_fmamk_f32", "s_add_f16", "s_sub_f16", "s_mul_f16", "s_min_num_f16",
    "s_max_num_f16", "s_minimum_f16", "s_maximum_f16", "s_fmac_f16", "s_cvt_pk_rtz_f16_f32", "s_ceil_f32",
    "s_floor_f32", "s_trunc_f32", "s_rndne_f32", "s_ceil_f16", "s_floor_f16", "s_trunc_f16", "s_rndne_f16",
    "s_cvt_f32_i32", "s_cvt_f32_u32", "s_cvt_i32_f32", "s_cvt_u32_f32", "s_cvt_f16_f32", "s_cvt_f32_f16",
    "s_cvt_hi_f32_f16", "s_cmp_lt_f32", "s_cmp_eq_f32", "s_cmp_le_f32", "s_cmp_gt_f32", "s_cmp_lg_f32",
    "s_cmp_ge_f32", "s_cmp_o_f32", "s_cmp_u_f32", "s_cmp_nge_f32", "s_cmp_nlg_f32", "s_cmp_ngt_f32", "s_cmp_nle_f32",
    "s_cmp_neq_f32", "s_cmp_nlt_f32", "s_cmp_lt_f16", "s_cmp_eq_f16", "s_cmp_le_f16", "s_cmp_gt_f16", "s_cmp_lg_f16",
    "s_cmp_ge_f16", "s_cmp_o_f16", "s_cmp_u_f16", "s_cmp_nge_f16", "s_cmp_nlg_f16", "s_cmp_ngt_f16", "s_cmp_nle_f16",
    "s_cmp_neq_f16", "s_cmp_nlt_f16", "v_s_exp_f32", "v_s_log_f32", "v_s_rcp_f32", "v_s_rsq_f32", "v_s_sqrt_f32",
    "v_s_exp_f16", "v_s_log_f16", "v_s_rcp_f16", "v_s_rsq_f16", "v_s_sqrt_f16",
];

const EVEN: Round = Round::NearestTiesToEven;

fn single(v: u32) -> Single {
    Single::from_bits(v.into())
}

fn half(v: u32) -> Half {
    Half::from_bits((v & 0xffff).into())
}

fn bits(v: impl Float) -> u32 {
    v.to_bits() as u32
}

fn convert<A: FloatConvert<B>, B: Float>(v: A, round: Round) -> B {
    v.convert_r(round, &mut false).value
}

fn f64_of<A: FloatConvert<Double>>(v: A) -> f64 {
    f64::from_bits(convert::<A, Double>(v, EVEN).to_bits() as u64)
}

/// IEEE 754-2019 minimumNumber and maximumNumber, with NaN results as the ISA spells them out.
fn number<F: Float>(a: F, b: F, first: Ordering) -> F {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => quiet(a),
        (true, false) => b,
        (false, true) => a,
        (false, false) => pick(a, b, first),
    }
}

/// minimum and maximum: a signalling NaN first, then any NaN.
fn with_nan<F: Float>(a: F, b: F, first: Ordering) -> F {
    let by = |f: fn(F) -> bool| [a, b].into_iter().find(|x| f(*x));
    by(|x| x.is_signaling()).or_else(|| by(|x| x.is_nan())).map_or_else(|| pick(a, b, first), quiet)
}

fn quiet<F: Float>(v: F) -> F {
    let mantissa = F::PRECISION as u32 - 1;
    F::from_bits(v.to_bits() | 1 << (mantissa - 1))
}

/// -0 is below +0.
fn pick<F: Float>(a: F, b: F, first: Ordering) -> F {
    let order = a.partial_cmp(&b).unwrap();
    let order = if order == Ordering::Equal { b.is_negative().cmp(&a.is_negative()) } else { order };
    if order == first { a } else { b }
}

/// Bits of a result; what of it the ISA leaves open.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// All bits are fixed.
    Exact,
    /// f32; any NaN will do.
    F32,
    /// f16 in the low half; any NaN will do, and the high half is not told.
    F16,
    /// As `F16` with fixed NaN.
    ExactF16,
    /// Two f16.
    Pair,
}

fn same(kind: Kind, got: u32, want: u32) -> bool {
    let same_half = |a: u32, b: u32| a == b || half(a).is_nan() && half(b).is_nan();
    match kind {
        Kind::Exact => got == want,
        Kind::F32 => got == want || single(got).is_nan() && single(want).is_nan(),
        Kind::ExactF16 => got & 0xffff == want & 0xffff,
        Kind::F16 => same_half(got & 0xffff, want & 0xffff),
        Kind::Pair => same_half(got & 0xffff, want & 0xffff) && same_half(got >> 16, want >> 16),
    }
}

const K: u32 = 0x40490fdb;

/// Name, operands, kind, definition on sources a, b and the destination before.
type Def = (&'static str, &'static str, Kind, fn(u32, u32, u32) -> u32);

const TWO: &str = "s2, s4, s6";
const ONE: &str = "s2, s4";

fn fma<F: Float>(a: F, b: F, c: F) -> u32 {
    bits(a.mul_add_r(b, c, EVEN).value)
}

const ARITHMETIC: &[Def] = &[
    ("s_add_f32", TWO, Kind::F32, |a, b, _| bits(single(a).add_r(single(b), EVEN).value)),
    ("s_sub_f32", TWO, Kind::F32, |a, b, _| bits(single(a).sub_r(single(b), EVEN).value)),
    ("s_mul_f32", TWO, Kind::F32, |a, b, _| bits(single(a).mul_r(single(b), EVEN).value)),
    ("s_fmac_f32", TWO, Kind::F32, |a, b, d| fma(single(a), single(b), single(d))),
    ("s_fmaak_f32", "s2, s4, s6, 0x40490fdb", Kind::F32, |a, b, _| fma(single(a), single(b), single(K))),
    ("s_fmamk_f32", "s2, s4, 0x40490fdb, s6", Kind::F32, |a, b, _| fma(single(a), single(K), single(b))),
    ("s_min_num_f32", TWO, Kind::Exact, |a, b, _| bits(number(single(a), single(b), Ordering::Less))),
    ("s_max_num_f32", TWO, Kind::Exact, |a, b, _| bits(number(single(a), single(b), Ordering::Greater))),
    ("s_minimum_f32", TWO, Kind::Exact, |a, b, _| bits(with_nan(single(a), single(b), Ordering::Less))),
    ("s_maximum_f32", TWO, Kind::Exact, |a, b, _| bits(with_nan(single(a), single(b), Ordering::Greater))),
    ("s_add_f16", TWO, Kind::F16, |a, b, _| bits(half(a).add_r(half(b), EVEN).value)),
    ("s_sub_f16", TWO, Kind::F16, |a, b, _| bits(half(a).sub_r(half(b), EVEN).value)),
    ("s_mul_f16", TWO, Kind::F16, |a, b, _| bits(half(a).mul_r(half(b), EVEN).value)),
    ("s_fmac_f16", TWO, Kind::F16, |a, b, d| fma(half(a), half(b), half(d))),
    ("s_min_num_f16", TWO, Kind::ExactF16, |a, b, _| bits(number(half(a), half(b), Ordering::Less))),
    ("s_max_num_f16", TWO, Kind::ExactF16, |a, b, _| bits(number(half(a), half(b), Ordering::Greater))),
    ("s_minimum_f16", TWO, Kind::ExactF16, |a, b, _| bits(with_nan(half(a), half(b), Ordering::Less))),
    ("s_maximum_f16", TWO, Kind::ExactF16, |a, b, _| bits(with_nan(half(a), half(b), Ordering::Greater))),
    ("s_cvt_pk_rtz_f16_f32", TWO, Kind::Pair, |a, b, _| {
        let toward_zero = |v: u32| bits(convert::<Single, Half>(single(v), Round::TowardZero));
        toward_zero(b) << 16 | toward_zero(a)
    }),
];

fn integral<F: Float>(v: F, round: Round) -> u32 {
    bits(v.round_to_integral(round).value)
}

/// Toward zero, to the nearest value that fits; 0 of a NaN.
fn saturate(v: f64, least: f64, most: f64) -> u32 {
    if v.is_nan() { 0 } else { v.trunc().max(least).min(most) as i64 as u32 }
}

const CONVERSIONS: &[Def] = &[
    ("s_ceil_f32", ONE, Kind::F32, |a, _, _| integral(single(a), Round::TowardPositive)),
    ("s_floor_f32", ONE, Kind::F32, |a, _, _| integral(single(a), Round::TowardNegative)),
    ("s_trunc_f32", ONE, Kind::F32, |a, _, _| integral(single(a), Round::TowardZero)),
    ("s_rndne_f32", ONE, Kind::F32, |a, _, _| integral(single(a), EVEN)),
    ("s_ceil_f16", ONE, Kind::F16, |a, _, _| integral(half(a), Round::TowardPositive)),
    ("s_floor_f16", ONE, Kind::F16, |a, _, _| integral(half(a), Round::TowardNegative)),
    ("s_trunc_f16", ONE, Kind::F16, |a, _, _| integral(half(a), Round::TowardZero)),
    ("s_rndne_f16", ONE, Kind::F16, |a, _, _| integral(half(a), EVEN)),
    ("s_cvt_f32_i32", ONE, Kind::Exact, |a, _, _| bits(Single::from_i128_r(a.cast_signed().into(), EVEN).value)),
    ("s_cvt_f32_u32", ONE, Kind::Exact, |a, _, _| bits(Single::from_i128_r(a.into(), EVEN).value)),
    ("s_cvt_i32_f32", ONE, Kind::Exact, |a, _, _| saturate(f64_of(single(a)), -2_147_483_648.0, 2_147_483_647.0)),
    ("s_cvt_u32_f32", ONE, Kind::Exact, |a, _, _| saturate(f64_of(single(a)), 0.0, 4_294_967_295.0)),
    ("s_cvt_f16_f32", ONE, Kind::F16, |a, _, _| bits(convert::<Single, Half>(single(a), EVEN))),
    ("s_cvt_f32_f16", ONE, Kind::F32, |a, _, _| bits(convert::<Half, Single>(half(a), EVEN))),
    ("s_cvt_hi_f32_f16", ONE, Kind::F32, |a, _, _| bits(convert::<Half, Single>(half(a >> 16), EVEN))),
];

const F32_EDGES: [u32; 38] = [
    0,
    0x8000_0000,
    1,
    0x8000_0001,
    0x007f_ffff,
    0x0080_0000,
    0x3f80_0000,
    0xbf80_0000,
    0x3f00_0000,
    0xbf00_0000,
    0x3fc0_0000,
    0x4020_0000,
    0xc020_0000,
    0xbfc0_0000,
    0x7f7f_ffff,
    0xff7f_ffff,
    0x7f80_0000,
    0xff80_0000,
    0x7fc0_0000,
    0xffc0_0001,
    0x7f80_0001,
    0xff80_1234,
    0x4b00_0001,
    0x4b7f_ffff,
    0x4f00_0000,
    0xcf00_0000,
    0xcf00_0001,
    0x4f7f_ffff,
    0x4f80_0000,
    0x4eff_ffff,
    0x3380_0000,
    0x3880_0000,
    0x3300_0001,
    0x477f_e000,
    0x477f_efff,
    0x477f_f000,
    0x3eff_ffff,
    0x7fff_ffff,
];

const F16_EDGES: [u32; 24] = [
    0, 0x8000, 1, 0x8001, 0x3ff, 0x400, 0x3c00, 0xbc00, 0x3800, 0xb800, 0x3e00, 0x4100, 0xc100, 0x7bff, 0xfbff, 0x7c00,
    0xfc00, 0x7e00, 0xfe01, 0x7c01, 0x6400, 0x67ff, 0x3555, 0x37ff,
];

/// Values that matter for f32, f16 or integers, and random ones; f16 values come with a random high half.
fn values(r: &mut Random, half: bool) -> Vec<u32> {
    let mut all = F32_EDGES.to_vec();
    all.extend([0x7fff_ffff, 0xffff_ffff, 0x0100_0001, 0x0180_0003, 0xff00_0001, 3]);
    if half {
        all.extend(F16_EDGES.iter().map(|v| v | r.u32() << 16));
        all.extend(F16_EDGES.iter().map(|v| v << 16 | r.u32() & 0xffff));
    }
    all.extend((0..40).map(|_| r.u32()));
    // Exponents near 1, so that sums and products round.
    all.extend((0..40).map(|_| r.u32() & 0x80ff_ffff | 0x3f00_0000));
    all
}

fn is_half(name: &str) -> bool {
    name.contains("f16")
}

fn check(defs: &[Def]) {
    let lines = Lines::new(defs.iter().map(|def| format!("{} {}", def.0, def.1)));
    let (mut report, mut around, mut r) = (Report::default(), Surroundings::default(), Random(3));
    for (n, (name, _, kind, f)) in defs.iter().enumerate() {
        let all = values(&mut r, is_half(name));
        for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b))) {
            let mut w = Wave::new(POISON);
            let d = all[r.below(all.len() as u32) as usize];
            (w.sgpr[2], w.sgpr[4], w.sgpr[6], w.scc) = (d, a, b, r.u32() & 1 == 1);
            let (want, scc) = (f(a, b, d), w.scc);
            let got = lines.run(n, &mut w, &mut around);
            if got.is_err() || !same(*kind, w.sgpr[2], want) || w.scc != scc {
                report.add(name, || format!("{got:?} a {a:x} b {b:x} d {d:x}: {:x}, expected {want:x}", w.sgpr[2]));
                break;
            }
        }
    }
}

#[test]
fn arithmetic() {
    check(ARITHMETIC);
}

#[test]
fn conversions() {
    check(CONVERSIONS);
}

/// Holds for an order, None where one is a NaN.
type Relation = (&'static str, fn(Option<Ordering>) -> bool);

const RELATIONS: &[Relation] = &[
    ("lt", |o| o == Some(Ordering::Less)),
    ("eq", |o| o == Some(Ordering::Equal)),
    ("le", |o| matches!(o, Some(Ordering::Less | Ordering::Equal))),
    ("gt", |o| o == Some(Ordering::Greater)),
    ("lg", |o| matches!(o, Some(Ordering::Less | Ordering::Greater))),
    ("ge", |o| matches!(o, Some(Ordering::Greater | Ordering::Equal))),
    ("o", |o| o.is_some()),
    ("u", |o| o.is_none()),
    ("nge", |o| matches!(o, None | Some(Ordering::Less))),
    ("nlg", |o| matches!(o, None | Some(Ordering::Equal))),
    ("ngt", |o| matches!(o, None | Some(Ordering::Less | Ordering::Equal))),
    ("nle", |o| matches!(o, None | Some(Ordering::Greater))),
    ("neq", |o| o != Some(Ordering::Equal)),
    ("nlt", |o| matches!(o, None | Some(Ordering::Greater | Ordering::Equal))),
];

#[test]
fn comparisons() {
    let (mut report, mut around, mut r) = (Report::default(), Surroundings::default(), Random(4));
    for ty in ["f32", "f16"] {
        let lines = Lines::new(RELATIONS.iter().map(|(name, _)| format!("s_cmp_{name}_{ty} s4, s6")));
        let all = values(&mut r, ty == "f16");
        for (n, (relation, holds)) in RELATIONS.iter().enumerate() {
            let name = format!("s_cmp_{relation}_{ty}");
            assert!(DEFINED.contains(&name.as_str()));
            for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (*a, *b))) {
                let mut w = Wave::new(POISON);
                (w.sgpr[4], w.sgpr[6], w.scc) = (a, b, r.u32() & 1 == 1);
                let value = |v: u32| if ty == "f16" { f64_of(half(v)) } else { f64_of(single(v)) };
                let want = holds(value(a).partial_cmp(&value(b)));
                let got = lines.run(n, &mut w, &mut around);
                if got.is_err() || w.scc != want {
                    report.add(&name, || format!("{got:?} a {a:x} b {b:x}: {}, expected {want}", w.scc));
                    break;
                }
            }
        }
    }
}

/// An operation and its exact result.
type Exact = (&'static str, fn(f64) -> f64);

const APPROXIMATE: &[Exact] =
    &[("exp", f64::exp2), ("log", f64::log2), ("rcp", |x| 1.0 / x), ("rsq", |x| 1.0 / x.sqrt()), ("sqrt", f64::sqrt)];

/// Whether a result is within 1 ulp of the exact one. Denormal results may be flushed or not: they are not looked at.
fn close<F: Float>(got: F, exact: f64) -> bool
where
    Double: FloatConvert<F>,
{
    let want: F = convert(Double::from_bits(exact.to_bits().into()), EVEN);
    if want.is_nan() || !want.is_finite() || want.is_zero() {
        return want.is_nan() && got.is_nan() || got.bitwise_eq(want);
    }
    want.is_denormal() || got.to_bits().abs_diff(want.to_bits()) <= 1
}

#[test]
fn approximations() {
    let (mut report, mut around, mut r) = (Report::default(), Surroundings::default(), Random(5));
    for ty in ["f32", "f16"] {
        let lines = Lines::new(APPROXIMATE.iter().map(|(name, _)| format!("v_s_{name}_{ty} s2, s4")));
        let mut all = values(&mut r, ty == "f16");
        all.extend((0..500).map(|_| r.u32() & 0x83ff_ffff | 0x4000_0000));
        for (n, (op, f)) in APPROXIMATE.iter().enumerate() {
            let name = format!("v_s_{op}_{ty}");
            assert!(DEFINED.contains(&name.as_str()));
            for a in &all {
                let denormal = if ty == "f16" { half(*a).is_denormal() } else { single(*a).is_denormal() };
                if denormal {
                    continue;
                }
                let mut w = Wave::new(POISON);
                w.sgpr[4] = *a;
                w.set_exec(r.u32());
                let got = lines.run(n, &mut w, &mut around);
                let out = w.sgpr[2];
                let good = if ty == "f16" {
                    close(half(out), f(f64_of(half(*a))))
                } else {
                    close(single(out), f(f64_of(single(*a))))
                };
                if got.is_err() || !good {
                    report.add(&name, || format!("{got:?} a {a:x}: {out:x}, exact {:e}", f(f64_of(single(*a)))));
                    break;
                }
            }
        }
    }
}

/// Sign modifiers of the approximations, which are vector encodings.
#[test]
fn approximation_modifiers() {
    let lines = Lines::new(["v_s_rcp_f32 s2, -s4", "v_s_sqrt_f32 s2, |s4|", "v_s_rcp_f32 s2, -|s4|"]);
    for (n, (a, want)) in [(2.0f32, -0.5f32), (-4.0, 2.0), (-4.0, -0.25)].into_iter().enumerate() {
        let mut w = Wave::new(POISON);
        w.sgpr[4] = a.to_bits();
        lines.run(n, &mut w, &mut Surroundings::default()).unwrap();
        assert_eq!(f32::from_bits(w.sgpr[2]), want);
    }
}

#[test]
fn every_definition_is_named() {
    for def in ARITHMETIC.iter().chain(CONVERSIONS) {
        assert!(DEFINED.contains(&def.0), "{}", def.0);
    }
}
