//! Comparisons: a lane mask, 0 in inactive lanes, into a scalar register, VCC or (`v_cmpx_*`) exec.

#![allow(clippy::neg_cmp_op_on_partial_ord, reason = "the negation is what these opcodes are")]

use rustc_apfloat::Float;

use crate::harness::{Def, Dst, NEG, NONE, Rule, check};
use crate::soft::{double, half, single};
use crate::values::Kind::{F16, F32, F64, I16, I32, I64};

const fn test(name: &'static str, srcs: &'static [crate::values::Kind], mods: u16, f: fn(&[u64]) -> bool) -> Def {
    Def { name, srcs, dst: Dst::Mask, mods, rule: Rule::Test(f) }
}

/// Both forms of each predicate.
macro_rules! predicates {
    ($type:literal, $srcs:expr, $mods:expr, $($name:literal => $f:expr),+ $(,)?) => {
        &[$(
            test(concat!("v_cmp_", $name, "_", $type), $srcs, $mods, $f),
            test(concat!("v_cmpx_", $name, "_", $type), $srcs, $mods, $f),
        )+]
    };
}

/// A NaN makes every comparison false, and so its negation true.
macro_rules! floats {
    ($type:literal, $kind:expr, $of:path) => {
        predicates!($type, &[$kind, $kind], NEG,
            "lt" => |x| $of(x[0]) < $of(x[1]),
            "eq" => |x| $of(x[0]) == $of(x[1]),
            "le" => |x| $of(x[0]) <= $of(x[1]),
            "gt" => |x| $of(x[0]) > $of(x[1]),
            "lg" => |x| $of(x[0]) < $of(x[1]) || $of(x[0]) > $of(x[1]),
            "ge" => |x| $of(x[0]) >= $of(x[1]),
            "o" => |x| !$of(x[0]).is_nan() && !$of(x[1]).is_nan(),
            "u" => |x| $of(x[0]).is_nan() || $of(x[1]).is_nan(),
            "nge" => |x| !($of(x[0]) >= $of(x[1])),
            "nlg" => |x| !($of(x[0]) < $of(x[1]) || $of(x[0]) > $of(x[1])),
            "ngt" => |x| !($of(x[0]) > $of(x[1])),
            "nle" => |x| !($of(x[0]) <= $of(x[1])),
            "neq" => |x| !($of(x[0]) == $of(x[1])),
            "nlt" => |x| !($of(x[0]) < $of(x[1])),
        )
    };
}

macro_rules! integers {
    ($type:literal, $kind:expr, $of:expr) => {
        predicates!($type, &[$kind, $kind], NONE,
            "lt" => |x| $of(x[0]) < $of(x[1]),
            "eq" => |x| $of(x[0]) == $of(x[1]),
            "le" => |x| $of(x[0]) <= $of(x[1]),
            "gt" => |x| $of(x[0]) > $of(x[1]),
            "ne" => |x| $of(x[0]) != $of(x[1]),
            "ge" => |x| $of(x[0]) >= $of(x[1]),
        )
    };
}

const F32S: &[Def] = floats!("f32", F32, single);
const F16S: &[Def] = floats!("f16", F16, half);
const F64S: &[Def] = floats!("f64", F64, double);
const I16S: &[Def] = integers!("i16", I16, |x: u64| x as u16 as i16);
const U16S: &[Def] = integers!("u16", I16, |x: u64| x as u16);
const I32S: &[Def] = integers!("i32", I32, |x: u64| x as u32 as i32);
const U32S: &[Def] = integers!("u32", I32, |x: u64| x as u32);
const I64S: &[Def] = integers!("i64", I64, |x: u64| x.cast_signed());
const U64S: &[Def] = integers!("u64", I64, |x: u64| x);

/// The bit of the class mask: signalling NaN, quiet NaN, then -inf, -normal, -denormal, -0, +0 and on to +inf.
fn class<F: Float>(v: F) -> u32 {
    if v.is_nan() {
        return u32::from(!v.is_signaling());
    }
    let magnitude = if v.is_infinite() {
        0
    } else if v.is_zero() {
        3
    } else if v.is_denormal() {
        2
    } else {
        1
    };
    if v.is_negative() { 2 + magnitude } else { 9 - magnitude }
}

const CLASS: &[Def] = &[
    test("v_cmp_class_f32", &[F32, I32], NEG, |x| x[1] >> class(single(x[0])) & 1 == 1),
    test("v_cmpx_class_f32", &[F32, I32], NEG, |x| x[1] >> class(single(x[0])) & 1 == 1),
    test("v_cmp_class_f16", &[F16, I16], NEG, |x| x[1] >> class(half(x[0])) & 1 == 1),
    test("v_cmpx_class_f16", &[F16, I16], NEG, |x| x[1] >> class(half(x[0])) & 1 == 1),
    test("v_cmp_class_f64", &[F64, I32], NEG, |x| x[1] >> class(double(x[0])) & 1 == 1),
    test("v_cmpx_class_f64", &[F64, I32], NEG, |x| x[1] >> class(double(x[0])) & 1 == 1),
];

pub const ALL: &[&[Def]] = &[F32S, F16S, F64S, I16S, U16S, I32S, U32S, I64S, U64S, CLASS];

#[test]
fn compare_f32() {
    check(F32S);
}

#[test]
fn compare_f16() {
    check(F16S);
}

#[test]
fn compare_f64() {
    check(F64S);
}

#[test]
fn compare_short() {
    check(I16S);
    check(U16S);
}

#[test]
fn compare_int() {
    check(I32S);
    check(U32S);
}

#[test]
fn compare_long() {
    check(I64S);
    check(U64S);
}

#[test]
fn compare_class() {
    check(CLASS);
}
