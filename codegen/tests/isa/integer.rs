//! 32-bit and 64-bit integers, bits, bytes, carries.

use crate::harness::Expect::{Bits, Wide};
use crate::harness::{Def, Dst, Expect, NEG, NONE, Rule, SATURATES, VECTOR, check};
use crate::values::Kind::{self, B64, B128, F32, I16, I32, I64, Mask, Selector};

fn u(x: u128) -> Expect {
    Bits((x & 0xffff_ffff) as u64)
}

fn i(x: i128) -> Expect {
    u(x.cast_unsigned())
}

/// Source k, unsigned and signed.
fn a(x: &[u64], k: usize) -> u128 {
    u128::from(x[k])
}

fn s(x: &[u64], k: usize) -> i128 {
    i128::from(x[k] as u32 as i32)
}

fn u24(x: &[u64], k: usize) -> u128 {
    a(x, k) & 0xff_ffff
}

fn i24(x: &[u64], k: usize) -> i128 {
    i128::from((x[k] as u32 as i32) << 8 >> 8)
}

fn byte(x: u64, n: u32) -> u64 {
    x >> (8 * n) & 0xff
}

const fn one(name: &'static str, f: fn(&[u64]) -> Expect) -> Def {
    Def::new(name, &[I32], Dst::B32, NONE, f)
}

const fn two(name: &'static str, f: fn(&[u64]) -> Expect) -> Def {
    Def::new(name, &[I32, I32], Dst::B32, NONE, f)
}

const fn saturating(name: &'static str, f: fn(&[u64]) -> Expect) -> Def {
    Def { mods: SATURATES, ..two(name, f) }
}

const fn three(name: &'static str, f: fn(&[u64]) -> Expect) -> Def {
    Def::new(name, &[I32, I32, I32], Dst::B32, NONE, f)
}

const ARITHMETIC: &[Def] = &[
    saturating("v_add_nc_u32", |x| u(a(x, 0) + a(x, 1))),
    saturating("v_sub_nc_u32", |x| i(s(x, 0) - s(x, 1))),
    saturating("v_subrev_nc_u32", |x| i(s(x, 1) - s(x, 0))),
    saturating("v_add_nc_i32", |x| i(s(x, 0) + s(x, 1))),
    saturating("v_sub_nc_i32", |x| i(s(x, 0) - s(x, 1))),
    two("v_mul_lo_u32", |x| u(a(x, 0) * a(x, 1))),
    two("v_mul_hi_u32", |x| u((a(x, 0) * a(x, 1)) >> 32)),
    two("v_mul_hi_i32", |x| i((s(x, 0) * s(x, 1)) >> 32)),
    two("v_mul_i32_i24", |x| i(i24(x, 0) * i24(x, 1))),
    two("v_mul_hi_i32_i24", |x| i((i24(x, 0) * i24(x, 1)) >> 32)),
    two("v_mul_u32_u24", |x| u(u24(x, 0) * u24(x, 1))),
    two("v_mul_hi_u32_u24", |x| u((u24(x, 0) * u24(x, 1)) >> 32)),
    Def { mods: SATURATES, ..three("v_mad_i32_i24", |x| i(i24(x, 0) * i24(x, 1) + s(x, 2))) },
    Def { mods: SATURATES, ..three("v_mad_u32_u24", |x| u(u24(x, 0) * u24(x, 1) + a(x, 2))) },
    three("v_add3_u32", |x| u(a(x, 0) + a(x, 1) + a(x, 2))),
    three("v_xad_u32", |x| u((a(x, 0) ^ a(x, 1)) + a(x, 2))),
    three("v_lshl_add_u32", |x| u((a(x, 0) << (x[1] & 31)) + a(x, 2))),
    three("v_add_lshl_u32", |x| u((a(x, 0) + a(x, 1)) << (x[2] & 31))),
];

fn middle<T: Ord + Copy>(mut v: [T; 3]) -> T {
    v.sort_unstable();
    v[1]
}

const ORDER: &[Def] = &[
    two("v_min_i32", |x| i(s(x, 0).min(s(x, 1)))),
    two("v_max_i32", |x| i(s(x, 0).max(s(x, 1)))),
    two("v_min_u32", |x| u(a(x, 0).min(a(x, 1)))),
    two("v_max_u32", |x| u(a(x, 0).max(a(x, 1)))),
    three("v_min3_i32", |x| i(s(x, 0).min(s(x, 1)).min(s(x, 2)))),
    three("v_min3_u32", |x| u(a(x, 0).min(a(x, 1)).min(a(x, 2)))),
    three("v_max3_i32", |x| i(s(x, 0).max(s(x, 1)).max(s(x, 2)))),
    three("v_max3_u32", |x| u(a(x, 0).max(a(x, 1)).max(a(x, 2)))),
    three("v_med3_i32", |x| i(middle([s(x, 0), s(x, 1), s(x, 2)]))),
    three("v_med3_u32", |x| u(middle([a(x, 0), a(x, 1), a(x, 2)]))),
    three("v_maxmin_i32", |x| i(s(x, 0).max(s(x, 1)).min(s(x, 2)))),
    three("v_maxmin_u32", |x| u(a(x, 0).max(a(x, 1)).min(a(x, 2)))),
    three("v_minmax_i32", |x| i(s(x, 0).min(s(x, 1)).max(s(x, 2)))),
    three("v_minmax_u32", |x| u(a(x, 0).min(a(x, 1)).max(a(x, 2)))),
];

fn reverse(x: u64) -> u64 {
    (0..32).fold(0, |r, k| r | (x >> k & 1) << (31 - k))
}

/// Place of the first bit from the top for which `f` holds, else -1.
fn first(x: u64, f: impl Fn(u64) -> bool) -> Expect {
    i((0..32).find(|k| f(x >> (31 - k) & 1)).map_or(-1, i128::from))
}

fn field(x: &[u64]) -> u64 {
    let (shift, width) = (x[1] & 31, x[2] & 31);
    x[0] >> shift & ((1 << width) - 1)
}

fn bfe_i32(x: &[u64]) -> Expect {
    // The shift brings copies of the sign down.
    let (shift, width) = (x[1] & 31, x[2] & 31);
    if width == 0 {
        return Bits(0);
    }
    let field = (s(x, 0) >> shift) & ((1 << width) - 1);
    let negative = field >> (width - 1) & 1 == 1;
    i(if negative { field - (1 << width) } else { field })
}

fn perm(x: &[u64]) -> Expect {
    let data = x[0] << 32 | x[1];
    let sign = |n: u32| if byte(data, n) >> 7 == 1 { 0xff } else { 0 };
    Bits((0..4).fold(0, |out, k| {
        let chosen = match byte(x[2], k) {
            n @ 0..=7 => byte(data, n as u32),
            n @ 8..=11 => sign(2 * (n as u32 - 8) + 1),
            12 => 0,
            _ => 0xff,
        };
        out | chosen << (8 * k)
    }))
}

const BITS: &[Def] = &[
    one("v_mov_b32", |x| Bits(x[0])),
    one("v_not_b32", |x| u(!a(x, 0))),
    one("v_bfrev_b32", |x| Bits(reverse(x[0]))),
    one("v_clz_i32_u32", |x| first(x[0], |bit| bit == 1)),
    one("v_ctz_i32_b32", |x| first(reverse(x[0]), |bit| bit == 1)),
    one("v_cls_i32", |x| first(x[0], |bit| bit != x[0] >> 31)),
    two("v_and_b32", |x| Bits(x[0] & x[1])),
    two("v_or_b32", |x| Bits(x[0] | x[1])),
    two("v_xor_b32", |x| Bits(x[0] ^ x[1])),
    two("v_xnor_b32", |x| u(!(a(x, 0) ^ a(x, 1)))),
    two("v_lshlrev_b32", |x| u(a(x, 1) << (x[0] & 31))),
    two("v_lshrrev_b32", |x| Bits(x[1] >> (x[0] & 31))),
    two("v_ashrrev_i32", |x| i(s(x, 1) >> (x[0] & 31))),
    two("v_bfm_b32", |x| u(((1 << (x[0] & 31)) - 1) << (x[1] & 31))),
    two("v_bcnt_u32_b32", |x| u(u128::from(x[0].count_ones()) + a(x, 1))),
    three("v_bfe_u32", |x| Bits(field(x))),
    three("v_bfe_i32", bfe_i32),
    three("v_bfi_b32", |x| u(a(x, 0) & a(x, 1) | !a(x, 0) & a(x, 2))),
    Def::new("v_alignbit_b32", &[I32, I32, I16], Dst::B32, NONE, |x| u((a(x, 0) << 32 | a(x, 1)) >> (x[2] & 31))),
    Def::new("v_alignbyte_b32", &[I32, I32, I16], Dst::B32, NONE, |x| u((a(x, 0) << 32 | a(x, 1)) >> (8 * (x[2] & 3)))),
    three("v_xor3_b32", |x| Bits(x[0] ^ x[1] ^ x[2])),
    three("v_or3_b32", |x| Bits(x[0] | x[1] | x[2])),
    three("v_and_or_b32", |x| Bits(x[0] & x[1] | x[2])),
    three("v_lshl_or_b32", |x| u(a(x, 0) << (x[1] & 31) | a(x, 2))),
    Def::new("v_perm_b32", &[I32, I32, Selector], Dst::B32, NONE, perm),
    Def::new("v_cndmask_b32", &[F32, F32, Mask], Dst::B32, NEG, |x| Bits(x[x[2] as usize])),
    Def {
        rule: Rule::Numbered(|x| u(u128::from((x[0] & ((1 << x[2]) - 1)).count_ones()) + a(x, 1))),
        ..two("v_mbcnt_lo_u32_b32", |_| Bits(0))
    },
    // Lanes 32 and up: a wave of 32 has none below it.
    two("v_mbcnt_hi_u32_b32", |x| Bits(x[1])),
];

fn shift64(x: &[u64]) -> u32 {
    (x[0] & 63) as u32
}

const fn wide(name: &'static str, kind: &'static [Kind; 2], f: fn(&[u64]) -> Expect) -> Def {
    Def::new(name, kind, Dst::B64, NONE, f)
}

const fn carry(name: &'static str, srcs: &'static [Kind], f: fn(&[u64]) -> (Expect, bool)) -> Def {
    Def { name, srcs, dst: Dst::B32, mods: NONE, rule: Rule::Carry(f) }
}

fn add_carry(x: u64, y: u64, carry: u64) -> (Expect, bool) {
    (Bits((x + y + carry) & 0xffff_ffff), x + y + carry > 0xffff_ffff)
}

fn sub_borrow(x: u64, y: u64, borrow: u64) -> (Expect, bool) {
    (i(i128::from(x) - i128::from(y) - i128::from(borrow)), y + borrow > x)
}

const WIDE: &[Def] = &[
    wide("v_lshlrev_b64", &[I32, B64], |x| Bits(x[1] << shift64(x))),
    wide("v_lshrrev_b64", &[I32, B64], |x| Bits(x[1] >> shift64(x))),
    wide("v_ashrrev_i64", &[I32, I64], |x| Bits((x[1].cast_signed() >> shift64(x)).cast_unsigned())),
    carry("v_add_co_u32", &[I32, I32], |x| add_carry(x[0], x[1], 0)),
    carry("v_sub_co_u32", &[I32, I32], |x| sub_borrow(x[0], x[1], 0)),
    carry("v_subrev_co_u32", &[I32, I32], |x| sub_borrow(x[1], x[0], 0)),
    carry("v_add_co_ci_u32", &[I32, I32, Mask], |x| add_carry(x[0], x[1], x[2])),
    carry("v_sub_co_ci_u32", &[I32, I32, Mask], |x| sub_borrow(x[0], x[1], x[2])),
    carry("v_subrev_co_ci_u32", &[I32, I32, Mask], |x| sub_borrow(x[1], x[0], x[2])),
    Def {
        name: "v_mad_co_u64_u32",
        srcs: &[I32, I32, B64],
        dst: Dst::B64,
        mods: NONE,
        rule: Rule::Carry(|x| {
            let sum = a(x, 0) * a(x, 1) + a(x, 2);
            (Bits(sum as u64), sum >> 64 & 1 == 1)
        }),
    },
    Def {
        name: "v_mad_co_i64_i32",
        srcs: &[I32, I32, I64],
        dst: Dst::B64,
        mods: NONE,
        // The carry is bit 64 of the sum of sign-extended values.
        rule: Rule::Carry(|x| {
            let sum = s(x, 0) * s(x, 1) + i128::from(x[2].cast_signed());
            (Bits(sum as u64), sum >> 64 & 1 == 1)
        }),
    },
];

/// Sum of the differences of four bytes; with `masked`, of those that `y` does not have as 0.
fn sad(x: u64, y: u64, masked: bool) -> u64 {
    (0..4).filter(|k| !masked || byte(y, *k) != 0).map(|k| byte(x, k).abs_diff(byte(y, k))).sum()
}

fn sad_u16(x: &[u64]) -> Expect {
    let half = |v: u64, k: u32| v >> (16 * k) & 0xffff;
    let sum: u64 = (0..2).map(|k| half(x[0], k).abs_diff(half(x[1], k))).sum();
    u(u128::from(sum) + a(x, 2))
}

fn lerp(x: &[u64]) -> Expect {
    Bits((0..4).fold(0, |out, k| {
        let sum = byte(x[0], k) + byte(x[1], k) + (byte(x[2], k) & 1);
        out | (sum >> 1 & 0xff) << (8 * k)
    }))
}

/// Four sums at distances of a byte, each of 16 bits.
fn quad(x: &[u64], masked: bool) -> Expect {
    Bits((0..4).fold(0, |out, k| {
        let sum = sad(x[0] >> (8 * k) & 0xffff_ffff, x[1], masked) + (x[2] >> (16 * k) & 0xffff);
        out | (sum & 0xffff) << (16 * k)
    }))
}

fn mqsad_u32(x: &[u64]) -> Expect {
    let sum = |k: u32, old: u64| (sad(x[0] >> (8 * k) & 0xffff_ffff, x[1], true) + (old & 0xffff_ffff)) & 0xffff_ffff;
    Wide(sum(0, x[2]) | sum(1, x[2] >> 32) << 32, sum(2, x[3]) | sum(3, x[3] >> 32) << 32)
}

const BYTES: &[Def] = &[
    three("v_sad_u8", |x| u(u128::from(sad(x[0], x[1], false)) + a(x, 2))),
    three("v_sad_hi_u8", |x| u((u128::from(sad(x[0], x[1], false)) << 16) + a(x, 2))),
    three("v_sad_u16", sad_u16),
    three("v_sad_u32", |x| u(u128::from(x[0].abs_diff(x[1])) + a(x, 2))),
    three("v_msad_u8", |x| u(u128::from(sad(x[0], x[1], true)) + a(x, 2))),
    three("v_lerp_u8", lerp),
    Def::new("v_qsad_pk_u16_u8", &[B64, I32, B64], Dst::B64, VECTOR, |x| quad(x, false)),
    Def::new("v_mqsad_pk_u16_u8", &[B64, I32, B64], Dst::B64, VECTOR, |x| quad(x, true)),
    Def::new("v_mqsad_u32_u8", &[B64, I32, B128], Dst::B128, VECTOR, mqsad_u32),
];

pub const ALL: &[&[Def]] = &[ARITHMETIC, ORDER, BITS, WIDE];
/// Opcodes of video; an emulator of compute kernels may leave them out.
pub const OPTIONAL: &[&[Def]] = &[BYTES];

#[test]
fn int_arithmetic() {
    check(ARITHMETIC);
}

#[test]
fn int_order() {
    check(ORDER);
}

#[test]
fn int_bits() {
    check(BITS);
}

#[test]
fn int_wide_and_carries() {
    check(WIDE);
}

#[test]
fn int_bytes() {
    check(&crate::known(BYTES));
}
