//! Scalar arithmetic on 32 bits.

use super::scalar_run::{
    cmov, compare, constant, keep, save_exec, scalar, select, set_nonzero, set_scc, unary, unary_nonzero, update,
    write_exec,
};
use crate::emu::op::Op;

const fn s_and_b32(a: u32, b: u32) -> u32 {
    a & b
}
const fn s_or_b32(a: u32, b: u32) -> u32 {
    a | b
}
const fn s_xor_b32(a: u32, b: u32) -> u32 {
    a ^ b
}
const fn s_nand_b32(a: u32, b: u32) -> u32 {
    !(a & b)
}
const fn s_nor_b32(a: u32, b: u32) -> u32 {
    !(a | b)
}
const fn s_xnor_b32(a: u32, b: u32) -> u32 {
    !(a ^ b)
}
const fn s_and_not1_b32(a: u32, b: u32) -> u32 {
    a & !b
}
const fn s_or_not1_b32(a: u32, b: u32) -> u32 {
    a | !b
}
const fn s_lshl_b32(a: u32, b: u32) -> u32 {
    a << (b & 31)
}
const fn s_lshr_b32(a: u32, b: u32) -> u32 {
    a >> (b & 31)
}
const fn s_ashr_i32(a: u32, b: u32) -> u32 {
    (a.cast_signed() >> (b & 31)).cast_unsigned()
}
/// Low `width` bits; all of them from 32 on.
const fn low(width: u32) -> u32 {
    if width >= 32 { u32::MAX } else { (1 << width) - 1 }
}
const fn s_bfe_u32(a: u32, b: u32) -> u32 {
    a >> (b & 31) & low(b >> 16 & 0x7f)
}
const fn s_bfe_i32(a: u32, b: u32) -> u32 {
    let (shifted, width) = (a.cast_signed() >> (b & 31), b >> 16 & 0x7f);
    match width {
        0 => 0,
        1..32 => (shifted << (32 - width) >> (32 - width)).cast_unsigned(),
        _ => shifted.cast_unsigned(),
    }
}
const fn s_absdiff_i32(a: u32, b: u32) -> u32 {
    s_abs_i32(a.wrapping_sub(b))
}

const NONZERO: &[Op] = &scalar!(1, B32, set_nonzero:
    s_and_b32, s_or_b32, s_xor_b32, s_nand_b32, s_nor_b32, s_xnor_b32, s_and_not1_b32, s_or_not1_b32,
    s_lshl_b32, s_lshr_b32, s_ashr_i32, s_bfe_u32, s_bfe_i32, s_absdiff_i32);

fn s_add_co_u32(a: u32, b: u32, _: bool) -> (u32, bool) {
    a.overflowing_add(b)
}
fn s_sub_co_u32(a: u32, b: u32, _: bool) -> (u32, bool) {
    a.overflowing_sub(b)
}
fn s_add_co_i32(a: u32, b: u32, _: bool) -> (u32, bool) {
    let (sum, overflow) = a.cast_signed().overflowing_add(b.cast_signed());
    (sum.cast_unsigned(), overflow)
}
fn s_sub_co_i32(a: u32, b: u32, _: bool) -> (u32, bool) {
    let (difference, overflow) = a.cast_signed().overflowing_sub(b.cast_signed());
    (difference.cast_unsigned(), overflow)
}
fn s_add_co_ci_u32(a: u32, b: u32, scc: bool) -> (u32, bool) {
    let sum = u64::from(a) + u64::from(b) + u64::from(scc);
    (sum as u32, sum >> 32 != 0)
}
fn s_sub_co_ci_u32(a: u32, b: u32, scc: bool) -> (u32, bool) {
    let difference = a.wrapping_sub(b).wrapping_sub(u32::from(scc));
    (difference, u64::from(b) + u64::from(scc) > u64::from(a))
}
fn s_min_i32(a: u32, b: u32, _: bool) -> (u32, bool) {
    let first = a.cast_signed() < b.cast_signed();
    (if first { a } else { b }, first)
}
fn s_min_u32(a: u32, b: u32, _: bool) -> (u32, bool) {
    (a.min(b), a < b)
}
fn s_max_i32(a: u32, b: u32, _: bool) -> (u32, bool) {
    let first = a.cast_signed() >= b.cast_signed();
    (if first { a } else { b }, first)
}
fn s_max_u32(a: u32, b: u32, _: bool) -> (u32, bool) {
    (a.max(b), a >= b)
}
fn shift_add(a: u32, b: u32, shift: u32) -> (u32, bool) {
    let sum = (u64::from(a) << shift) + u64::from(b);
    (sum as u32, sum >> 32 != 0)
}
fn s_lshl1_add_u32(a: u32, b: u32, _: bool) -> (u32, bool) {
    shift_add(a, b, 1)
}
fn s_lshl2_add_u32(a: u32, b: u32, _: bool) -> (u32, bool) {
    shift_add(a, b, 2)
}
fn s_lshl3_add_u32(a: u32, b: u32, _: bool) -> (u32, bool) {
    shift_add(a, b, 3)
}
fn s_lshl4_add_u32(a: u32, b: u32, _: bool) -> (u32, bool) {
    shift_add(a, b, 4)
}

const WITH_SCC: &[Op] = &scalar!(1, B32, set_scc:
    s_add_co_u32, s_sub_co_u32, s_add_co_i32, s_sub_co_i32, s_add_co_ci_u32, s_sub_co_ci_u32,
    s_min_i32, s_min_u32, s_max_i32, s_max_u32,
    s_lshl1_add_u32, s_lshl2_add_u32, s_lshl3_add_u32, s_lshl4_add_u32);

const fn s_mul_i32(a: u32, b: u32) -> u32 {
    a.wrapping_mul(b)
}
fn s_mul_hi_u32(a: u32, b: u32) -> u32 {
    ((u64::from(a) * u64::from(b)) >> 32) as u32
}
fn s_mul_hi_i32(a: u32, b: u32) -> u32 {
    ((i64::from(a.cast_signed()) * i64::from(b.cast_signed())) >> 32) as u32
}
const fn s_bfm_b32(a: u32, b: u32) -> u32 {
    low(a & 31) << (b & 31)
}
const fn s_pack_ll_b32_b16(a: u32, b: u32) -> u32 {
    a & 0xffff | b << 16
}
const fn s_pack_lh_b32_b16(a: u32, b: u32) -> u32 {
    a & 0xffff | b & 0xffff_0000
}
const fn s_pack_hh_b32_b16(a: u32, b: u32) -> u32 {
    a >> 16 | b & 0xffff_0000
}
const fn s_pack_hl_b32_b16(a: u32, b: u32) -> u32 {
    a >> 16 | b << 16
}

const PLAIN: &[Op] = &scalar!(1, B32, keep:
    s_mul_i32, s_mul_hi_u32, s_mul_hi_i32, s_bfm_b32,
    s_pack_ll_b32_b16, s_pack_lh_b32_b16, s_pack_hh_b32_b16, s_pack_hl_b32_b16);

const fn s_mov_b32(a: u32) -> u32 {
    a
}
const fn s_brev_b32(a: u32) -> u32 {
    a.reverse_bits()
}
/// -1 if there is no set bit.
const fn s_ctz_i32_b32(a: u32) -> u32 {
    if a == 0 { u32::MAX } else { a.trailing_zeros() }
}
/// -1 if there is no set bit.
const fn s_clz_i32_u32(a: u32) -> u32 {
    if a == 0 { u32::MAX } else { a.leading_zeros() }
}
/// Bits from the top that equal the sign; -1 if all do.
const fn s_cls_i32(a: u32) -> u32 {
    s_clz_i32_u32(a ^ s_ashr_i32(a, 31))
}
const fn s_sext_i32_i8(a: u32) -> u32 {
    (a as i8 as i32).cast_unsigned()
}
const fn s_sext_i32_i16(a: u32) -> u32 {
    (a as i16 as i32).cast_unsigned()
}

const UNARY: &[Op] = &scalar!(1, B32, unary:
    s_mov_b32, s_brev_b32, s_ctz_i32_b32, s_clz_i32_u32, s_cls_i32, s_sext_i32_i8, s_sext_i32_i16);

const fn s_not_b32(a: u32) -> u32 {
    !a
}
const fn s_abs_i32(a: u32) -> u32 {
    a.cast_signed().wrapping_abs().cast_unsigned()
}
const fn s_bcnt0_i32_b32(a: u32) -> u32 {
    a.count_zeros()
}
const fn s_bcnt1_i32_b32(a: u32) -> u32 {
    a.count_ones()
}
/// The lowest bit of each group of four that has any bit set.
const fn quads(a: u32) -> u32 {
    (a | a >> 1 | a >> 2 | a >> 3) & 0x1111_1111
}
fn s_quadmask_b32(a: u32) -> u32 {
    let any = quads(a);
    (0..8).fold(0, |mask, quad| mask | (any >> (4 * quad) & 1) << quad)
}
const fn s_wqm_b32(a: u32) -> u32 {
    quads(a) * 0xf
}

const UNARY_NONZERO: &[Op] = &scalar!(1, B32, unary_nonzero:
    s_not_b32, s_abs_i32, s_bcnt0_i32_b32, s_bcnt1_i32_b32, s_quadmask_b32, s_wqm_b32);

/// `(old destination, source)`.
const fn s_bitset0_b32(d: u32, a: u32) -> u32 {
    d & !(1 << (a & 31))
}
const fn s_bitset1_b32(d: u32, a: u32) -> u32 {
    d | 1 << (a & 31)
}
const fn s_mulk_i32(d: u32, a: u32) -> u32 {
    d.wrapping_mul(s_sext_i32_i16(a))
}

const UPDATE: &[Op] = &scalar!(1, B32, update: s_bitset0_b32, s_bitset1_b32, s_mulk_i32);

const fn s_cmov_b32(a: u32) -> u32 {
    a
}
const fn s_cmovk_i32(a: u32) -> u32 {
    s_sext_i32_i16(a)
}
const fn s_movk_i32(a: u32) -> u32 {
    s_sext_i32_i16(a)
}
fn s_cselect_b32(a: u32, b: u32, scc: bool) -> u32 {
    if scc { a } else { b }
}
fn s_addk_co_i32(d: u32, a: u32) -> (u32, bool) {
    s_add_co_i32(d, s_sext_i32_i16(a), false)
}

const CONDITIONAL: &[Op] = &scalar!(1, B32, cmov: s_cmov_b32, s_cmovk_i32);
const MOVK: &[Op] = &scalar!(1, B32, unary: s_movk_i32);
const SELECT: &[Op] = &scalar!(1, B32, select: s_cselect_b32);
const ADDK: &[Op] = &scalar!(1, B32, constant: s_addk_co_i32);

/// `(source, exec)`: the new exec.
const fn s_and_saveexec_b32(a: u32, exec: u32) -> u32 {
    a & exec
}
const fn s_or_saveexec_b32(a: u32, exec: u32) -> u32 {
    a | exec
}
const fn s_xor_saveexec_b32(a: u32, exec: u32) -> u32 {
    a ^ exec
}
const fn s_nand_saveexec_b32(a: u32, exec: u32) -> u32 {
    !(a & exec)
}
const fn s_nor_saveexec_b32(a: u32, exec: u32) -> u32 {
    !(a | exec)
}
const fn s_xnor_saveexec_b32(a: u32, exec: u32) -> u32 {
    !(a ^ exec)
}
const fn s_and_not0_saveexec_b32(a: u32, exec: u32) -> u32 {
    !a & exec
}
const fn s_or_not0_saveexec_b32(a: u32, exec: u32) -> u32 {
    !a | exec
}
const fn s_and_not1_saveexec_b32(a: u32, exec: u32) -> u32 {
    a & !exec
}
const fn s_or_not1_saveexec_b32(a: u32, exec: u32) -> u32 {
    a | !exec
}
const fn s_and_not0_wrexec_b32(a: u32, exec: u32) -> u32 {
    !a & exec
}
const fn s_and_not1_wrexec_b32(a: u32, exec: u32) -> u32 {
    a & !exec
}

const SAVE_EXEC: &[Op] = &scalar!(1, B32, save_exec:
    s_and_saveexec_b32, s_or_saveexec_b32, s_xor_saveexec_b32, s_nand_saveexec_b32, s_nor_saveexec_b32,
    s_xnor_saveexec_b32, s_and_not0_saveexec_b32, s_or_not0_saveexec_b32, s_and_not1_saveexec_b32,
    s_or_not1_saveexec_b32);
const WRITE_EXEC: &[Op] = &scalar!(1, B32, write_exec: s_and_not0_wrexec_b32, s_and_not1_wrexec_b32);

const fn s_cmp_eq_u32(a: u32, b: u32) -> bool {
    a == b
}
const fn s_cmp_lg_u32(a: u32, b: u32) -> bool {
    a != b
}
const fn s_cmp_gt_u32(a: u32, b: u32) -> bool {
    a > b
}
const fn s_cmp_ge_u32(a: u32, b: u32) -> bool {
    a >= b
}
const fn s_cmp_lt_u32(a: u32, b: u32) -> bool {
    a < b
}
const fn s_cmp_le_u32(a: u32, b: u32) -> bool {
    a <= b
}
const fn s_cmp_eq_i32(a: u32, b: u32) -> bool {
    a == b
}
const fn s_cmp_lg_i32(a: u32, b: u32) -> bool {
    a != b
}
const fn s_cmp_gt_i32(a: u32, b: u32) -> bool {
    a.cast_signed() > b.cast_signed()
}
const fn s_cmp_ge_i32(a: u32, b: u32) -> bool {
    a.cast_signed() >= b.cast_signed()
}
const fn s_cmp_lt_i32(a: u32, b: u32) -> bool {
    a.cast_signed() < b.cast_signed()
}
const fn s_cmp_le_i32(a: u32, b: u32) -> bool {
    a.cast_signed() <= b.cast_signed()
}
const fn s_bitcmp0_b32(a: u32, b: u32) -> bool {
    a >> (b & 31) & 1 == 0
}
const fn s_bitcmp1_b32(a: u32, b: u32) -> bool {
    a >> (b & 31) & 1 == 1
}

const COMPARE: &[Op] = &scalar!(0, B32, compare:
    s_cmp_eq_u32, s_cmp_lg_u32, s_cmp_gt_u32, s_cmp_ge_u32, s_cmp_lt_u32, s_cmp_le_u32,
    s_cmp_eq_i32, s_cmp_lg_i32, s_cmp_gt_i32, s_cmp_ge_i32, s_cmp_lt_i32, s_cmp_le_i32,
    s_bitcmp0_b32, s_bitcmp1_b32);

pub static OPS: &[&[Op]] = &[
    NONZERO,
    WITH_SCC,
    PLAIN,
    UNARY,
    UNARY_NONZERO,
    UPDATE,
    CONDITIONAL,
    MOVK,
    SELECT,
    ADDK,
    SAVE_EXEC,
    WRITE_EXEC,
    COMPARE,
];
