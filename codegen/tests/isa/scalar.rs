//! Scalar integer ops: result, SCC and exec against definitions over wide integers.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use unglue_codegen::emu::snippet::Surroundings;
use unglue_codegen::emu::wave::Wave;

use super::stage::{Lines, POISON, Random, Report};

/// Opcodes that are defined here.
#[rustfmt::skip]
pub const DEFINED: &[&str] = &[
    "s_mov_b32", "s_mov_b64", "s_cmov_b32", "s_cmov_b64", "s_brev_b32", "s_brev_b64", "s_ctz_i32_b32",
    "s_ctz_i32_b64", "s_clz_i32_u32", "s_clz_i32_u64", "s_cls_i32", "s_cls_i32_i64", "s_sext_i32_i8",
    "s_sext_i32_i16", "s_bitset0_b32", "s_bitset0_b64", "s_bitset1_b32", "s_bitset1_b64", "s_bitreplicate_b64_b32",
    "s_abs_i32", "s_bcnt0_i32_b32", "s_bcnt0_i32_b64", "s_bcnt1_i32_b32", "s_bcnt1_i32_b64", "s_quadmask_b32",
    "s_quadmask_b64", "s_wqm_b32", "s_wqm_b64", "s_not_b32", "s_not_b64", "s_and_saveexec_b32", "s_or_saveexec_b32",
    "s_xor_saveexec_b32", "s_nand_saveexec_b32", "s_nor_saveexec_b32", "s_xnor_saveexec_b32",
    "s_and_not0_saveexec_b32", "s_or_not0_saveexec_b32", "s_and_not1_saveexec_b32", "s_or_not1_saveexec_b32",
    "s_and_not0_wrexec_b32", "s_and_not1_wrexec_b32",
    "s_add_co_u32", "s_sub_co_u32", "s_add_co_i32", "s_sub_co_i32",
    "s_add_co_ci_u32", "s_sub_co_ci_u32", "s_absdiff_i32", "s_lshl_b32", "s_lshl_b64", "s_lshr_b32", "s_lshr_b64",
    "s_ashr_i32", "s_ashr_i64", "s_lshl1_add_u32", "s_lshl2_add_u32", "s_lshl3_add_u32", "s_lshl4_add_u32",
    "s_min_i32", "s_min_u32", "s_max_i32", "s_max_u32", "s_and_b32", "s_and_b64", "s_or_b32", "s_or_b64",
    "s_xor_b32", "s_xor_b64", "s_nand_b32", "s_nand_b64", "s_nor_b32", "s_nor_b64", "s_xnor_b32", "s_xnor_b64",
    "s_and_not1_b32", "s_and_not1_b64", "s_or_not1_b32", "s_or_not1_b64", "s_bfe_u32", "s_bfe_i32", "s_bfe_u64",
    "s_bfe_i64", "s_bfm_b32", "s_bfm_b64", "s_mul_i32", "s_mul_hi_u32", "s_mul_hi_i32", "s_cselect_b32",
    "s_cselect_b64", "s_pack_ll_b32_b16", "s_pack_lh_b32_b16", "s_pack_hh_b32_b16", "s_pack_hl_b32_b16",
    "s_add_nc_u64", "s_sub_nc_u64", "s_mul_u64", "s_cmp_eq_i32", "s_cmp_lg_i32", "s_cmp_gt_i32", "s_cmp_ge_i32",
    "s_cmp_lt_i32", "s_cmp_le_i32", "s_cmp_eq_u32", "s_cmp_lg_u32", "s_cmp_gt_u32", "s_cmp_ge_u32", "s_cmp_lt_u32",
    "s_cmp_le_u32", "s_bitcmp0_b32", "s_bitcmp1_b32", "s_bitcmp0_b64", "s_bitcmp1_b64", "s_cmp_eq_u64",
    "s_cmp_lg_u64", "s_movk_i32", "s_cmovk_i32", "s_addk_co_i32", "s_mulk_i32",
];

/// What an op sees: sources as unsigned values of their width, the destination before, SCC, exec.
#[derive(Clone, Copy, Debug)]
struct In {
    a: i128,
    b: i128,
    d: i128,
    scc: i128,
    exec: i128,
}

/// What it leaves: None keeps. Values are taken modulo the width.
#[derive(Clone, Copy, Debug, Default)]
struct Out {
    d: Option<i128>,
    scc: Option<bool>,
    exec: Option<i128>,
}

/// Name, bits of the destination (0: none), bits of the sources (b: 0 for one source), definition.
type Def = (&'static str, u32, u32, u32, fn(In) -> Out);

const fn d(value: i128) -> Out {
    Out { d: Some(value), scc: None, exec: None }
}

const fn dc(value: i128, scc: bool) -> Out {
    Out { d: Some(value), scc: Some(scc), exec: None }
}

const fn c(scc: bool) -> Out {
    Out { d: None, scc: Some(scc), exec: None }
}

const M32: i128 = 1 << 32;
const M64: i128 = 1 << 64;

/// SCC is whether the result, of 32 or 64 bits, is not 0.
const fn nz32(value: i128) -> Out {
    dc(value, value.rem_euclid(M32) != 0)
}

const fn nz64(value: i128) -> Out {
    dc(value, value.rem_euclid(M64) != 0)
}

/// Two's complement.
const fn s32(v: i128) -> i128 {
    if v >= M32 / 2 { v - M32 } else { v }
}

const fn s64(v: i128) -> i128 {
    if v >= M64 / 2 { v - M64 } else { v }
}

/// A signed sum or difference that does not fit.
const fn over(v: i128) -> bool {
    v < -M32 / 2 || v >= M32 / 2
}

const fn bit(v: i128, n: i128) -> i128 {
    v >> n & 1
}

fn ones(v: i128, bits: i128) -> i128 {
    (0..bits).map(|n| bit(v, n)).sum()
}

/// Position of the first bit, in that order, that differs from `from`; -1 if none does.
fn find(v: i128, order: impl Iterator<Item = i128>, from: i128) -> i128 {
    order.enumerate().find(|(_, n)| bit(v, *n) != from).map_or(-1, |(i, _)| i as i128)
}

fn quads(v: i128, bits: i128) -> i128 {
    (0..bits / 4).map(|q| i128::from(v >> (4 * q) & 15 != 0) << q).sum()
}

fn wqm(v: i128, bits: i128) -> i128 {
    (0..bits).map(|n| i128::from(v >> (n / 4 * 4) & 15 != 0) << n).sum()
}

/// A bit field: what lies beyond the value is its extension.
const fn field(v: i128, b: i128, offset_mask: i128) -> i128 {
    let width = b >> 16 & 127;
    // 100 bits are more than any source has.
    let width = if width > 100 { 100 } else { width };
    v >> (b & offset_mask) & ((1 << width) - 1)
}

const fn signed_field(v: i128, b: i128, offset_mask: i128) -> i128 {
    let (width, x) = (b >> 16 & 127, field(v, b, offset_mask));
    if width > 0 && width <= 100 && x >> (width - 1) & 1 == 1 { x - (1 << width) } else { x }
}

const fn exec(old: i128, new: i128) -> Out {
    Out { d: Some(old), scc: Some(new.rem_euclid(M32) != 0), exec: Some(new) }
}

const fn wrexec(new: i128) -> Out {
    Out { d: Some(new), scc: Some(new.rem_euclid(M32) != 0), exec: Some(new) }
}

const ONE_SOURCE: &[Def] = &[
    ("s_mov_b32", 32, 32, 0, |i| d(i.a)),
    ("s_mov_b64", 64, 64, 0, |i| d(i.a)),
    ("s_cmov_b32", 32, 32, 0, |i| d(if i.scc == 1 { i.a } else { i.d })),
    ("s_cmov_b64", 64, 64, 0, |i| d(if i.scc == 1 { i.a } else { i.d })),
    ("s_brev_b32", 32, 32, 0, |i| d((0..32).map(|n| bit(i.a, n) << (31 - n)).sum())),
    ("s_brev_b64", 64, 64, 0, |i| d((0..64).map(|n| bit(i.a, n) << (63 - n)).sum())),
    ("s_ctz_i32_b32", 32, 32, 0, |i| d(find(i.a, 0..32, 0))),
    ("s_ctz_i32_b64", 32, 64, 0, |i| d(find(i.a, 0..64, 0))),
    ("s_clz_i32_u32", 32, 32, 0, |i| d(find(i.a, (0..32).rev(), 0))),
    ("s_clz_i32_u64", 32, 64, 0, |i| d(find(i.a, (0..64).rev(), 0))),
    ("s_cls_i32", 32, 32, 0, |i| d(find(i.a, (0..32).rev(), bit(i.a, 31)))),
    ("s_cls_i32_i64", 32, 64, 0, |i| d(find(i.a, (0..64).rev(), bit(i.a, 63)))),
    ("s_sext_i32_i8", 32, 32, 0, |i| d((i.a & 255) - (i.a & 128) * 2)),
    ("s_sext_i32_i16", 32, 32, 0, |i| d((i.a & 0xffff) - (i.a & 0x8000) * 2)),
    ("s_bitset0_b32", 32, 32, 0, |i| d(i.d & !(1 << (i.a & 31)))),
    ("s_bitset0_b64", 64, 32, 0, |i| d(i.d & !(1 << (i.a & 63)))),
    ("s_bitset1_b32", 32, 32, 0, |i| d(i.d | 1 << (i.a & 31))),
    ("s_bitset1_b64", 64, 32, 0, |i| d(i.d | 1 << (i.a & 63))),
    ("s_bitreplicate_b64_b32", 64, 32, 0, |i| d((0..32).map(|n| (bit(i.a, n) * 3) << (2 * n)).sum())),
    ("s_abs_i32", 32, 32, 0, |i| nz32(s32(i.a).abs())),
    ("s_bcnt0_i32_b32", 32, 32, 0, |i| nz32(32 - ones(i.a, 32))),
    ("s_bcnt0_i32_b64", 32, 64, 0, |i| nz32(64 - ones(i.a, 64))),
    ("s_bcnt1_i32_b32", 32, 32, 0, |i| nz32(ones(i.a, 32))),
    ("s_bcnt1_i32_b64", 32, 64, 0, |i| nz32(ones(i.a, 64))),
    ("s_quadmask_b32", 32, 32, 0, |i| nz32(quads(i.a, 32))),
    ("s_quadmask_b64", 64, 64, 0, |i| nz64(quads(i.a, 64))),
    ("s_wqm_b32", 32, 32, 0, |i| nz32(wqm(i.a, 32))),
    ("s_wqm_b64", 64, 64, 0, |i| nz64(wqm(i.a, 64))),
    ("s_not_b32", 32, 32, 0, |i| nz32(-1 - i.a)),
    ("s_not_b64", 64, 64, 0, |i| nz64(-1 - i.a)),
    ("s_and_saveexec_b32", 32, 32, 0, |i| exec(i.exec, i.a & i.exec)),
    ("s_or_saveexec_b32", 32, 32, 0, |i| exec(i.exec, i.a | i.exec)),
    ("s_xor_saveexec_b32", 32, 32, 0, |i| exec(i.exec, i.a ^ i.exec)),
    ("s_nand_saveexec_b32", 32, 32, 0, |i| exec(i.exec, -1 - (i.a & i.exec))),
    ("s_nor_saveexec_b32", 32, 32, 0, |i| exec(i.exec, -1 - (i.a | i.exec))),
    ("s_xnor_saveexec_b32", 32, 32, 0, |i| exec(i.exec, -1 - (i.a ^ i.exec))),
    ("s_and_not0_saveexec_b32", 32, 32, 0, |i| exec(i.exec, (-1 - i.a) & i.exec)),
    ("s_or_not0_saveexec_b32", 32, 32, 0, |i| exec(i.exec, (-1 - i.a) | i.exec)),
    ("s_and_not1_saveexec_b32", 32, 32, 0, |i| exec(i.exec, i.a & (-1 - i.exec))),
    ("s_or_not1_saveexec_b32", 32, 32, 0, |i| exec(i.exec, i.a | (-1 - i.exec))),
    ("s_and_not0_wrexec_b32", 32, 32, 0, |i| wrexec((-1 - i.a) & i.exec)),
    ("s_and_not1_wrexec_b32", 32, 32, 0, |i| wrexec(i.a & (-1 - i.exec))),
];

const TWO_SOURCES: &[Def] = &[
    ("s_add_co_u32", 32, 32, 32, |i| dc(i.a + i.b, i.a + i.b >= M32)),
    ("s_sub_co_u32", 32, 32, 32, |i| dc(i.a - i.b, i.a < i.b)),
    ("s_add_co_i32", 32, 32, 32, |i| dc(i.a + i.b, over(s32(i.a) + s32(i.b)))),
    ("s_sub_co_i32", 32, 32, 32, |i| dc(i.a - i.b, over(s32(i.a) - s32(i.b)))),
    ("s_add_co_ci_u32", 32, 32, 32, |i| dc(i.a + i.b + i.scc, i.a + i.b + i.scc >= M32)),
    ("s_sub_co_ci_u32", 32, 32, 32, |i| dc(i.a - i.b - i.scc, i.a - i.b - i.scc < 0)),
    // The difference wraps before its sign is looked at.
    ("s_absdiff_i32", 32, 32, 32, |i| nz32(s32((i.a - i.b).rem_euclid(M32)).abs())),
    ("s_lshl_b32", 32, 32, 32, |i| nz32(i.a << (i.b & 31))),
    ("s_lshl_b64", 64, 64, 32, |i| nz64(((i.a << (i.b & 31)) % M64) << (i.b & 32))),
    ("s_lshr_b32", 32, 32, 32, |i| nz32(i.a >> (i.b & 31))),
    ("s_lshr_b64", 64, 64, 32, |i| nz64(i.a >> (i.b & 63))),
    ("s_ashr_i32", 32, 32, 32, |i| nz32(s32(i.a) >> (i.b & 31))),
    ("s_ashr_i64", 64, 64, 32, |i| nz64(s64(i.a) >> (i.b & 63))),
    ("s_lshl1_add_u32", 32, 32, 32, |i| dc(i.a * 2 + i.b, i.a * 2 + i.b >= M32)),
    ("s_lshl2_add_u32", 32, 32, 32, |i| dc(i.a * 4 + i.b, i.a * 4 + i.b >= M32)),
    ("s_lshl3_add_u32", 32, 32, 32, |i| dc(i.a * 8 + i.b, i.a * 8 + i.b >= M32)),
    ("s_lshl4_add_u32", 32, 32, 32, |i| dc(i.a * 16 + i.b, i.a * 16 + i.b >= M32)),
    // SCC says whether the first source was taken.
    ("s_min_i32", 32, 32, 32, |i| dc(s32(i.a).min(s32(i.b)), s32(i.a) < s32(i.b))),
    ("s_min_u32", 32, 32, 32, |i| dc(i.a.min(i.b), i.a < i.b)),
    ("s_max_i32", 32, 32, 32, |i| dc(s32(i.a).max(s32(i.b)), s32(i.a) >= s32(i.b))),
    ("s_max_u32", 32, 32, 32, |i| dc(i.a.max(i.b), i.a >= i.b)),
    ("s_and_b32", 32, 32, 32, |i| nz32(i.a & i.b)),
    ("s_and_b64", 64, 64, 64, |i| nz64(i.a & i.b)),
    ("s_or_b32", 32, 32, 32, |i| nz32(i.a | i.b)),
    ("s_or_b64", 64, 64, 64, |i| nz64(i.a | i.b)),
    ("s_xor_b32", 32, 32, 32, |i| nz32(i.a ^ i.b)),
    ("s_xor_b64", 64, 64, 64, |i| nz64(i.a ^ i.b)),
    ("s_nand_b32", 32, 32, 32, |i| nz32(-1 - (i.a & i.b))),
    ("s_nand_b64", 64, 64, 64, |i| nz64(-1 - (i.a & i.b))),
    ("s_nor_b32", 32, 32, 32, |i| nz32(-1 - (i.a | i.b))),
    ("s_nor_b64", 64, 64, 64, |i| nz64(-1 - (i.a | i.b))),
    ("s_xnor_b32", 32, 32, 32, |i| nz32(-1 - (i.a ^ i.b))),
    ("s_xnor_b64", 64, 64, 64, |i| nz64(-1 - (i.a ^ i.b))),
    ("s_and_not1_b32", 32, 32, 32, |i| nz32(i.a & (-1 - i.b))),
    ("s_and_not1_b64", 64, 64, 64, |i| nz64(i.a & (-1 - i.b))),
    ("s_or_not1_b32", 32, 32, 32, |i| nz32(i.a | (-1 - i.b))),
    ("s_or_not1_b64", 64, 64, 64, |i| nz64(i.a | (-1 - i.b))),
    ("s_bfe_u32", 32, 32, 32, |i| nz32(field(i.a, i.b, 31))),
    ("s_bfe_i32", 32, 32, 32, |i| nz32(signed_field(s32(i.a), i.b, 31))),
    ("s_bfe_u64", 64, 64, 32, |i| nz64(field(i.a, i.b, 63))),
    ("s_bfe_i64", 64, 64, 32, |i| nz64(signed_field(s64(i.a), i.b, 63))),
    ("s_bfm_b32", 32, 32, 32, |i| d(((1 << (i.a & 31)) - 1) << (i.b & 31))),
    ("s_bfm_b64", 64, 32, 32, |i| d(((((1 << (i.a & 63)) - 1) << (i.b & 31)) % M64) << (i.b & 32))),
    ("s_mul_i32", 32, 32, 32, |i| d(i.a * i.b)),
    ("s_mul_hi_u32", 32, 32, 32, |i| d(i.a * i.b / M32)),
    ("s_mul_hi_i32", 32, 32, 32, |i| d((s32(i.a) * s32(i.b)).div_euclid(M32))),
    ("s_cselect_b32", 32, 32, 32, |i| d(if i.scc == 1 { i.a } else { i.b })),
    ("s_cselect_b64", 64, 64, 64, |i| d(if i.scc == 1 { i.a } else { i.b })),
    ("s_pack_ll_b32_b16", 32, 32, 32, |i| d((i.b & 0xffff) * 65536 + (i.a & 0xffff))),
    ("s_pack_lh_b32_b16", 32, 32, 32, |i| d((i.b >> 16) * 65536 + (i.a & 0xffff))),
    ("s_pack_hh_b32_b16", 32, 32, 32, |i| d((i.b >> 16) * 65536 + (i.a >> 16))),
    ("s_pack_hl_b32_b16", 32, 32, 32, |i| d((i.b & 0xffff) * 65536 + (i.a >> 16))),
    ("s_add_nc_u64", 64, 64, 64, |i| d(i.a + i.b)),
    ("s_sub_nc_u64", 64, 64, 64, |i| d(i.a - i.b)),
    // The low half of the product of values modulo 2^64.
    ("s_mul_u64", 64, 64, 64, |i| {
        d(i.a % M32 * (i.b % M32) + (i.a / M32 * (i.b % M32) % M32 + i.a % M32 * (i.b / M32) % M32) * M32)
    }),
];

const COMPARISONS: &[Def] = &[
    ("s_cmp_eq_i32", 0, 32, 32, |i| c(i.a == i.b)),
    ("s_cmp_lg_i32", 0, 32, 32, |i| c(i.a != i.b)),
    ("s_cmp_gt_i32", 0, 32, 32, |i| c(s32(i.a) > s32(i.b))),
    ("s_cmp_ge_i32", 0, 32, 32, |i| c(s32(i.a) >= s32(i.b))),
    ("s_cmp_lt_i32", 0, 32, 32, |i| c(s32(i.a) < s32(i.b))),
    ("s_cmp_le_i32", 0, 32, 32, |i| c(s32(i.a) <= s32(i.b))),
    ("s_cmp_eq_u32", 0, 32, 32, |i| c(i.a == i.b)),
    ("s_cmp_lg_u32", 0, 32, 32, |i| c(i.a != i.b)),
    ("s_cmp_gt_u32", 0, 32, 32, |i| c(i.a > i.b)),
    ("s_cmp_ge_u32", 0, 32, 32, |i| c(i.a >= i.b)),
    ("s_cmp_lt_u32", 0, 32, 32, |i| c(i.a < i.b)),
    ("s_cmp_le_u32", 0, 32, 32, |i| c(i.a <= i.b)),
    ("s_bitcmp0_b32", 0, 32, 32, |i| c(bit(i.a, i.b & 31) == 0)),
    ("s_bitcmp1_b32", 0, 32, 32, |i| c(bit(i.a, i.b & 31) == 1)),
    ("s_bitcmp0_b64", 0, 64, 32, |i| c(bit(i.a, i.b & 63) == 0)),
    ("s_bitcmp1_b64", 0, 64, 32, |i| c(bit(i.a, i.b & 63) == 1)),
    ("s_cmp_eq_u64", 0, 64, 64, |i| c(i.a == i.b)),
    ("s_cmp_lg_u64", 0, 64, 64, |i| c(i.a != i.b)),
];

const EDGES: [u64; 34] = [
    0,
    1,
    2,
    3,
    4,
    7,
    15,
    16,
    31,
    32,
    33,
    63,
    64,
    0x7f,
    0x80,
    0xff,
    0x100,
    0x7fff,
    0x8000,
    0xffff,
    0x1_0000,
    0x0020_0000,
    0x0040_0008,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_fffe,
    0xffff_ffff,
    0x1_0000_0000,
    0x5555_5555_5555_5555,
    0xaaaa_aaaa_aaaa_aaaa,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    0xffff_ffff_0000_0000,
    u64::MAX,
];

/// Edge values paired with each other, and random values whose second is often small.
fn pairs() -> Vec<(u64, u64)> {
    let mut r = Random(1);
    let mut all: Vec<_> = EDGES.iter().flat_map(|a| EDGES.iter().map(|b| (*a, *b))).collect();
    for n in 0..600 {
        let b = match n % 3 {
            0 => r.u64(),
            1 => u64::from(r.below(128)),
            _ => u64::from(r.below(64)) | u64::from(r.below(128)) << 16,
        };
        all.push((r.u64(), b));
    }
    all
}

fn low(v: u64, bits: u32) -> i128 {
    if bits == 64 { i128::from(v) } else { i128::from(v as u32) }
}

fn operand(first: u32, bits: u32) -> String {
    if bits == 64 { format!("s[{first}:{}]", first + 1) } else { format!("s{first}") }
}

fn line(def: &Def) -> String {
    let (name, dst, a, b, _) = def;
    let all = [(2, *dst), (4, *a), (6, *b)];
    let operands: Vec<String> = all.iter().filter(|(_, bits)| *bits > 0).map(|(n, bits)| operand(*n, *bits)).collect();
    format!("{name} {}", operands.join(", "))
}

/// Expected state after an op, from the state before.
fn expected(before: &Wave, def: &Def, out: Out) -> (Vec<u32>, bool) {
    let mut s = before.sgpr.to_vec();
    if let Some(value) = out.exec {
        s[126] = value.rem_euclid(M32) as u32;
    }
    if let Some(value) = out.d {
        s[2] = value.rem_euclid(M32) as u32;
        if def.1 == 64 {
            s[3] = (value.rem_euclid(M64) / M32) as u32;
        }
    }
    (s, out.scc.unwrap_or(before.scc))
}

fn check(defs: &[Def]) {
    let (lines, mut report, mut around) =
        (Lines::new(defs.iter().map(line)), Report::default(), Surroundings::default());
    let (mut r, pairs) = (Random(2), pairs());
    for (n, def) in defs.iter().enumerate() {
        for (a, b) in &pairs {
            let mut w = Wave::new(POISON);
            (w.scc, w.sgpr[0]) = (r.u32() & 1 == 1, r.u32());
            w.set_exec(if r.below(4) == 0 { 0 } else { r.u32() });
            let old = r.u64();
            w.set_s64(2, old);
            w.set_s64(4, *a);
            w.set_s64(6, *b);
            let given = In {
                a: low(*a, def.2),
                b: low(*b, def.3.max(32)),
                d: low(old, def.1.max(32)),
                scc: i128::from(w.scc),
                exec: i128::from(w.exec()),
            };
            let want = expected(&w, def, def.4(given));
            let got = lines.run(n, &mut w, &mut around);
            if got.is_err() || (w.sgpr.to_vec(), w.scc) != want {
                report.add(def.0, || {
                    format!(
                        "{got:?} {given:x?}: d {:x} scc {} exec {:x}, expected {:x?} {}",
                        w.s64(2),
                        w.scc,
                        w.exec(),
                        &[want.0[2], want.0[3], want.0[126]],
                        want.1
                    )
                });
                break;
            }
        }
    }
}

#[test]
fn one_source() {
    check(ONE_SOURCE);
}

#[test]
fn two_sources() {
    check(TWO_SOURCES);
}

#[test]
fn comparisons() {
    check(COMPARISONS);
}

#[test]
fn every_definition_is_named() {
    for def in ONE_SOURCE.iter().chain(TWO_SOURCES).chain(COMPARISONS) {
        assert!(DEFINED.contains(&def.0), "{}", def.0);
    }
}

#[test]
fn immediates() {
    for (k, value) in [(0i64, 0i64), (5, 5), (0x7fff, 0x7fff), (0x8000, -0x8000), (0xffff, -1)] {
        for old in [0u32, 1, 7, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0x1234_5678] {
            for scc in [false, true] {
                let run = |name: &str| {
                    let mut w = Wave::new(POISON);
                    (w.sgpr[2], w.scc) = (old, scc);
                    exec_ok(&format!("{name} s2, 0x{k:x}"), &mut w);
                    (i64::from(w.sgpr[2].cast_signed()), w.scc)
                };
                let signed = i64::from(old.cast_signed());
                let wrapped = |v: i64| i64::from(v as i32);
                assert_eq!(run("s_movk_i32"), (value, scc));
                assert_eq!(run("s_cmovk_i32"), (if scc { value } else { signed }, scc));
                let sum = signed + value;
                assert_eq!(run("s_addk_co_i32"), (wrapped(sum), sum != wrapped(sum)), "{signed} + {value}");
                assert_eq!(run("s_mulk_i32"), (wrapped(signed * value), scc));
            }
        }
    }
}

fn exec_ok(text: &str, w: &mut Wave) {
    exec_text(text, w).unwrap_or_else(|e| panic!("{text}: {e}"));
}

fn exec_text(text: &str, w: &mut Wave) -> Result<(), String> {
    super::stage::exec(text, w, &mut Surroundings::default()).map(|_| ()).map_err(|e| e.to_string())
}

/// Constants as the operand's type has them, and registers that are not plain.
#[test]
fn operands() {
    let cases: &[(&str, u64)] = &[
        ("s_mov_b32 s2, -16", 0xffff_fff0),
        ("s_mov_b32 s2, 64", 64),
        ("s_mov_b32 s2, 1.0", 0x3f80_0000),
        ("s_mov_b32 s2, -0.5", 0xbf00_0000),
        ("s_mov_b32 s2, 0.15915494", 0x3e22_f983),
        ("s_mov_b32 s2, 0xdeadbeef", 0xdead_beef),
        ("s_mov_b64 s[2:3], -1", u64::MAX),
        ("s_mov_b64 s[2:3], 2.0", 0x4000_0000_0000_0000),
        ("s_mov_b64 s[2:3], 0x80000001", 0x8000_0001),
        ("s_and_b64 s[2:3], s[10:11], 0xdeadbeef", 0xdead_beef),
        ("s_add_nc_u64 s[2:3], s[12:13], 0xdeadbeef", 0xdead_beef),
        ("s_add_nc_u64 s[2:3], s[12:13], -3", -3i64 as u64),
        ("s_lshl_b64 s[2:3], 0x80000000, 1", 0x1_0000_0000),
        ("s_mov_b32 s2, vcc_lo", 0x0101_0101),
        ("s_mov_b32 s2, exec_lo", 0x0202_0202),
        ("s_mov_b32 s2, m0", 0x0303_0303),
        ("s_mov_b32 s2, null", 0),
        ("s_mov_b64 s[2:3], null", 0),
        ("s_mov_b32 s2, ttmp9", 0x0404_0404),
        ("s_add_co_u32 s2, src_scc, 1", 2),
    ];
    let setup = || {
        let mut w = Wave::new(0);
        (w.scc, w.sgpr[117], w.sgpr[125]) = (true, 0x0404_0404, 0x0303_0303);
        w.set_vcc(0x0101_0101);
        w.set_exec(0x0202_0202);
        w.set_s64(10, u64::MAX);
        w
    };
    let mut report = Report::default();
    for (text, want) in cases {
        let mut w = setup();
        let got = exec_text(text, &mut w);
        if got.is_err() || w.s64(2) != *want {
            report.add(text, || format!("{got:?} {:x}, expected {want:x}", w.s64(2)));
        }
    }
    let mut w = setup();
    exec_ok(
        "s_mov_b32 exec_lo, 5\ns_mov_b32 vcc_lo, 6\ns_mov_b32 m0, 7\ns_mov_b32 null, 8\ns_mov_b32 s9, null",
        &mut w,
    );
    assert_eq!((w.exec(), w.vcc(), w.s(125), w.s(9)), (5, 6, 7, 0));
}

/// The destination may be a source.
#[test]
fn overlaps() {
    let mut w = Wave::new(0);
    w.set_s64(2, 0x1_0000_0003);
    exec_ok("s_lshl_b64 s[2:3], s[2:3], s2\ns_mul_hi_u32 s3, s3, s2", &mut w);
    assert_eq!((w.sgpr[2], w.sgpr[3]), (24, 0));
    let mut w = Wave::new(0);
    w.set_exec(0xff);
    w.sgpr[2] = 0xf;
    exec_ok("s_and_saveexec_b32 s2, s2", &mut w);
    assert_eq!((w.exec(), w.sgpr[2]), (0xf, 0xff));
    let mut w = Wave::new(0);
    w.set_exec(0xf0);
    exec_ok("s_xor_b32 exec_lo, exec_lo, -1", &mut w);
    assert_eq!(w.exec(), 0xffff_ff0f);
}
