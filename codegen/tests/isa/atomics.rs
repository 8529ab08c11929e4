//! Global and flat atomics: the new value in memory, the old one in the register, lanes one after the other.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use half::{bf16, f16};
use unglue_codegen::counts::{Class, Traffic};
use unglue_codegen::emu::snippet::Surroundings;

use super::global::{Form, masks};
use super::stage::{Random, Report, contents, exec, only, random_wave, region, registers, words};

/// Opcodes that are defined here.
#[rustfmt::skip]
pub const DEFINED: &[&str] = &[
    "global_atomic_swap_b32", "global_atomic_cmpswap_b32", "global_atomic_add_u32", "global_atomic_sub_u32",
    "global_atomic_sub_clamp_u32", "global_atomic_min_i32", "global_atomic_min_u32", "global_atomic_max_i32",
    "global_atomic_max_u32", "global_atomic_and_b32", "global_atomic_or_b32", "global_atomic_xor_b32",
    "global_atomic_inc_u32", "global_atomic_dec_u32", "global_atomic_cond_sub_u32", "global_atomic_swap_b64",
    "global_atomic_cmpswap_b64", "global_atomic_add_u64", "global_atomic_sub_u64", "global_atomic_min_i64",
    "global_atomic_min_u64", "global_atomic_max_i64", "global_atomic_max_u64", "global_atomic_and_b64",
    "global_atomic_or_b64", "global_atomic_xor_b64", "global_atomic_inc_u64", "global_atomic_dec_u64",
    "global_atomic_min_num_f32", "global_atomic_max_num_f32", "global_atomic_add_f32", "global_atomic_pk_add_f16",
    "global_atomic_pk_add_bf16", "flat_atomic_swap_b32", "flat_atomic_cmpswap_b32", "flat_atomic_add_u32",
    "flat_atomic_sub_u32", "flat_atomic_sub_clamp_u32", "flat_atomic_min_i32", "flat_atomic_min_u32",
    "flat_atomic_max_i32", "flat_atomic_max_u32", "flat_atomic_and_b32", "flat_atomic_or_b32", "flat_atomic_xor_b32",
    "flat_atomic_inc_u32", "flat_atomic_dec_u32", "flat_atomic_cond_sub_u32", "flat_atomic_swap_b64",
    "flat_atomic_cmpswap_b64", "flat_atomic_add_u64", "flat_atomic_sub_u64", "flat_atomic_min_i64",
    "flat_atomic_min_u64", "flat_atomic_max_i64", "flat_atomic_max_u64", "flat_atomic_and_b64", "flat_atomic_or_b64",
    "flat_atomic_xor_b64", "flat_atomic_inc_u64", "flat_atomic_dec_u64", "flat_atomic_min_num_f32",
    "flat_atomic_max_num_f32", "flat_atomic_add_f32", "flat_atomic_pk_add_f16", "flat_atomic_pk_add_bf16",
];

const M32: i128 = 1 << 32;
const M64: i128 = 1 << 64;

const fn s32(v: i128) -> i128 {
    if v >= M32 / 2 { v - M32 } else { v }
}

const fn s64(v: i128) -> i128 {
    if v >= M64 / 2 { v - M64 } else { v }
}

/// Name without prefix, bytes, whether data is followed by a value to compare with, new value of (old, data, compare).
pub type Atomic = (&'static str, u32, bool, fn(i128, i128, i128) -> i128);

fn inc(old: i128, data: i128) -> i128 {
    if old >= data { 0 } else { old + 1 }
}

fn dec(old: i128, data: i128) -> i128 {
    if old == 0 || old > data { data } else { old - 1 }
}

pub const INTEGER: [Atomic; 28] = [
    ("swap_b32", 4, false, |_, d, _| d),
    ("cmpswap_b32", 4, true, |o, d, c| if o == c { d } else { o }),
    ("add_u32", 4, false, |o, d, _| o + d),
    ("sub_u32", 4, false, |o, d, _| o - d),
    ("sub_clamp_u32", 4, false, |o, d, _| (o - d).max(0)),
    ("cond_sub_u32", 4, false, |o, d, _| if o >= d { o - d } else { o }),
    ("min_i32", 4, false, |o, d, _| s32(o).min(s32(d))),
    ("min_u32", 4, false, |o, d, _| o.min(d)),
    ("max_i32", 4, false, |o, d, _| s32(o).max(s32(d))),
    ("max_u32", 4, false, |o, d, _| o.max(d)),
    ("and_b32", 4, false, |o, d, _| o & d),
    ("or_b32", 4, false, |o, d, _| o | d),
    ("xor_b32", 4, false, |o, d, _| o ^ d),
    ("inc_u32", 4, false, |o, d, _| inc(o, d)),
    ("dec_u32", 4, false, |o, d, _| dec(o, d)),
    ("swap_b64", 8, false, |_, d, _| d),
    ("cmpswap_b64", 8, true, |o, d, c| if o == c { d } else { o }),
    ("add_u64", 8, false, |o, d, _| o + d),
    ("sub_u64", 8, false, |o, d, _| o - d),
    ("min_i64", 8, false, |o, d, _| s64(o).min(s64(d))),
    ("min_u64", 8, false, |o, d, _| o.min(d)),
    ("max_i64", 8, false, |o, d, _| s64(o).max(s64(d))),
    ("max_u64", 8, false, |o, d, _| o.max(d)),
    ("and_b64", 8, false, |o, d, _| o & d),
    ("or_b64", 8, false, |o, d, _| o | d),
    ("xor_b64", 8, false, |o, d, _| o ^ d),
    ("inc_u64", 8, false, |o, d, _| inc(o, d)),
    ("dec_u64", 8, false, |o, d, _| dec(o, d)),
];

/// The exact sum, rounded once.
fn add_f32(old: u32, data: u32) -> u32 {
    use rustc_apfloat::{Float, Round, ieee::Single};
    let (a, b) = (Single::from_bits(old.into()), Single::from_bits(data.into()));
    a.add_r(b, Round::NearestTiesToEven).value.to_bits() as u32
}

/// f64 holds the sum of two f16 or bf16 of like size exactly, or so much of it that rounding again changes nothing.
fn add_pair(old: u32, data: u32, add: fn(u16, u16) -> u16) -> u32 {
    let low = u32::from(add(old as u16, data as u16));
    u32::from(add((old >> 16) as u16, (data >> 16) as u16)) << 16 | low
}

fn add_f16(a: u16, b: u16) -> u16 {
    f16::from_f64(f16::from_bits(a).to_f64() + f16::from_bits(b).to_f64()).to_bits()
}

fn add_bf16(a: u16, b: u16) -> u16 {
    bf16::from_f64(bf16::from_bits(a).to_f64() + bf16::from_bits(b).to_f64()).to_bits()
}

/// The number, if one is a NaN; -0 is below +0.
fn number(old: u32, data: u32, least: bool) -> u32 {
    let value = |v: u32| f64::from(f32::from_bits(v));
    let (o, d) = (value(old), value(data));
    if o.is_nan() && d.is_nan() {
        return data | 0x40_0000;
    }
    if o.is_nan() || d.is_nan() {
        return if o.is_nan() { data } else { old };
    }
    let data_first = if o == d { (data >> 31 == 1) == least } else { (d < o) == least };
    if data_first { data } else { old }
}

pub const FLOAT: [Atomic; 5] = [
    ("min_num_f32", 4, false, |o, d, _| number(o as u32, d as u32, true).into()),
    ("max_num_f32", 4, false, |o, d, _| number(o as u32, d as u32, false).into()),
    ("add_f32", 4, false, |o, d, _| add_f32(o as u32, d as u32).into()),
    ("pk_add_f16", 4, false, |o, d, _| add_pair(o as u32, d as u32, add_f16).into()),
    ("pk_add_bf16", 4, false, |o, d, _| add_pair(o as u32, d as u32, add_bf16).into()),
];

/// Operands that meet each other often.
pub fn value(r: &mut Random, name: &str) -> u64 {
    if name.starts_with("pk") {
        // Finite halves of like exponents.
        return u64::from(r.u32() & 0x83ff_83ff | (0x3c00_3c00 + (r.u32() & 0x0400_0400)));
    }
    if name.ends_with("f32") {
        let edges =
            [0, 0x8000_0000, 0x3f80_0000, 0x7f80_0000, 0x0080_0000, 0x7f7f_ffff, r.u32() & 0x80ff_ffff | 0x3f00_0000];
        let nan = [0x7fc0_0000, 0x7fc0_1234];
        let of = if name.starts_with("add") { r.below(7) } else { r.below(9) } as usize;
        return u64::from(if of < 7 { edges[of] } else { nan[of - 7] });
    }
    match r.below(8) {
        0 => 0,
        1 => 1,
        2 => u64::MAX,
        3 => 0x8000_0000,
        4 => 0x7fff_ffff_ffff_ffff,
        5 => 0x8000_0000_8000_0000,
        6 => u64::from(r.below(4)),
        _ => r.u64(),
    }
}

const FORMS: [Form; 5] = [Form::Vector(0), Form::Vector(-8), Form::Scalar(0), Form::Scalar(64), Form::Flat(8)];
/// Few places, so that lanes meet.
const SLOTS: u32 = 12;

fn wrap(v: i128, bytes: u32) -> u64 {
    v.rem_euclid(if bytes == 4 { M32 } else { M64 }) as u64
}

fn check(list: &[Atomic], seed: u64) {
    let (mut r, mut report) = (Random(seed), Report::default());
    for (name, bytes, compares, f) in list {
        for form in FORMS {
            for returns in [false, true] {
                let (address, rest) = form.operands();
                let data = registers(8, if *compares { 2 * bytes } else { *bytes });
                let (dst, th) = if returns {
                    (format!("{}, ", registers(20, *bytes)), " th:TH_ATOMIC_RETURN")
                } else {
                    (String::new(), "")
                };
                let text = format!("{}_atomic_{name} {dst}{address}, {data}{rest}{th}", form.prefix());
                assert!(DEFINED.contains(&text.split(' ').next().unwrap()));
                for mask in masks(&mut r) {
                    let found = once(&text, form, (*bytes, *f), returns, mask, name, &mut r);
                    if let Some(found) = found {
                        report.add(&text, || format!("exec {mask:x}: {found}"));
                    }
                }
            }
        }
    }
}

/// Executes one atomic on random values; says what differs.
fn once(
    text: &str,
    form: Form,
    (bytes, f): (u32, fn(i128, i128, i128) -> i128),
    returns: bool,
    mask: u32,
    name: &str,
    r: &mut Random,
) -> Option<String> {
    let size = bytes as usize;
    let mut slots: Vec<u64> = (0..SLOTS).map(|_| wrap(value(r, name).into(), bytes)).collect();
    let image = |slots: &[u64]| slots.iter().flat_map(|s| s.to_le_bytes()[..size].to_vec()).collect::<Vec<u8>>();
    let memory = words(&image(&slots));
    let mut around = Surroundings::default();
    let base = around.space.add(region("data", &memory, (SLOTS * bytes).into()));
    let mut w = random_wave(r);
    w.set_exec(mask);
    let at: [u32; 32] = std::array::from_fn(|_| r.below(SLOTS) * bytes);
    form.point(&mut w, base, &at, r);
    let pair = if bytes == 8 { 2 } else { 1 };
    for l in 0..32 {
        let compare = if r.below(2) == 0 { slots[at[l] as usize / size] } else { value(r, name) };
        for (first, v) in [(8, value(r, name)), (8 + pair, compare)] {
            w.vgpr[first][l] = v as u32;
            if bytes == 8 {
                w.vgpr[first + 1][l] = (v >> 32) as u32;
            }
        }
    }
    let read = |w: &unglue_codegen::emu::wave::Wave, first: usize, l: usize| {
        let high = if bytes == 8 { u64::from(w.vgpr[first + 1][l]) << 32 } else { 0 };
        i128::from(u64::from(w.vgpr[first][l]) | high)
    };
    let mut want = w.vgpr.to_vec();
    for l in (0..32).filter(|l| mask >> l & 1 == 1) {
        let slot = &mut slots[at[l] as usize / size];
        if returns {
            want[20][l] = *slot as u32;
            if bytes == 8 {
                want[21][l] = (*slot >> 32) as u32;
            }
        }
        *slot = wrap(f(i128::from(*slot), read(&w, 8, l), read(&w, 8 + pair, l)), bytes);
    }
    let got = exec(text, &mut w, &mut around);
    let counted =
        got.map(|c| (only(&c, Traffic::GlobalAtomic, 8 * bytes), c.instructions[Class::GlobalAtomic as usize]));
    let (kept, left) = (w.vgpr.to_vec() == want, contents(&memory, SLOTS as usize * size));
    let lanes = u64::from(mask.count_ones());
    let right = counted == Ok((Ok(lanes * u64::from(bytes)), 1)) && kept && left == image(&slots);
    (!right)
        .then(|| format!("{counted:?}, registers as expected: {kept}, memory {left:x?}, expected {:x?}", image(&slots)))
}

#[test]
fn integer() {
    check(&INTEGER, 40);
}

#[test]
fn float() {
    check(&FLOAT, 41);
}
