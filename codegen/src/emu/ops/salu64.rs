//! Scalar arithmetic on 64 bits.

use super::scalar_run::{cmov, compare, keep, scalar, select, set_nonzero, unary, unary_nonzero, update};
use crate::emu::op::Op;

const fn s_and_b64(a: u64, b: u64) -> u64 {
    a & b
}
const fn s_or_b64(a: u64, b: u64) -> u64 {
    a | b
}
const fn s_xor_b64(a: u64, b: u64) -> u64 {
    a ^ b
}
const fn s_nand_b64(a: u64, b: u64) -> u64 {
    !(a & b)
}
const fn s_nor_b64(a: u64, b: u64) -> u64 {
    !(a | b)
}
const fn s_xnor_b64(a: u64, b: u64) -> u64 {
    !(a ^ b)
}
const fn s_and_not1_b64(a: u64, b: u64) -> u64 {
    a & !b
}
const fn s_or_not1_b64(a: u64, b: u64) -> u64 {
    a | !b
}
const fn s_lshl_b64(a: u64, b: u32) -> u64 {
    a << (b & 63)
}
const fn s_lshr_b64(a: u64, b: u32) -> u64 {
    a >> (b & 63)
}
/// Low `width` bits; all of them from 64 on.
const fn low(width: u32) -> u64 {
    if width >= 64 { u64::MAX } else { (1 << width) - 1 }
}
const fn s_bfe_u64(a: u64, b: u32) -> u64 {
    a >> (b & 63) & low(b >> 16 & 0x7f)
}

const NONZERO: &[Op] = &scalar!(1, B64, set_nonzero:
    s_and_b64, s_or_b64, s_xor_b64, s_nand_b64, s_nor_b64, s_xnor_b64, s_and_not1_b64, s_or_not1_b64,
    s_lshl_b64, s_lshr_b64, s_bfe_u64);

const fn s_ashr_i64(a: u64, b: u32) -> u64 {
    (a.cast_signed() >> (b & 63)).cast_unsigned()
}
const fn s_bfe_i64(a: u64, b: u32) -> u64 {
    let (shifted, width) = (a.cast_signed() >> (b & 63), b >> 16 & 0x7f);
    match width {
        0 => 0,
        1..64 => (shifted << (64 - width) >> (64 - width)).cast_unsigned(),
        _ => shifted.cast_unsigned(),
    }
}

const SIGNED_NONZERO: &[Op] = &scalar!(1, I64, set_nonzero: s_ashr_i64, s_bfe_i64);

const fn s_add_nc_u64(a: u64, b: u64) -> u64 {
    a.wrapping_add(b)
}
const fn s_sub_nc_u64(a: u64, b: u64) -> u64 {
    a.wrapping_sub(b)
}
const fn s_mul_u64(a: u64, b: u64) -> u64 {
    a.wrapping_mul(b)
}

const PLAIN: &[Op] = &scalar!(1, B64, keep: s_add_nc_u64, s_sub_nc_u64, s_mul_u64);

const fn s_bfm_b64(a: u32, b: u32) -> u64 {
    low(a & 63) << (b & 63)
}

const MASK: &[Op] = &scalar!(1, B32, keep: s_bfm_b64);

const fn s_mov_b64(a: u64) -> u64 {
    a
}
const fn s_brev_b64(a: u64) -> u64 {
    a.reverse_bits()
}
/// -1 if there is no set bit.
const fn s_ctz_i32_b64(a: u64) -> u32 {
    if a == 0 { u32::MAX } else { a.trailing_zeros() }
}
/// -1 if there is no set bit.
const fn s_clz_i32_u64(a: u64) -> u32 {
    if a == 0 { u32::MAX } else { a.leading_zeros() }
}
/// Bits from the top that equal the sign; -1 if all do.
const fn s_cls_i32_i64(a: u64) -> u32 {
    s_clz_i32_u64(a ^ s_ashr_i64(a, 63))
}
/// Each bit twice.
fn s_bitreplicate_b64_b32(a: u32) -> u64 {
    (0..32).fold(0, |out, bit| out | (u64::from(a >> bit & 1) * 3) << (2 * bit))
}

const UNARY: &[Op] = &scalar!(1, B64, unary: s_mov_b64, s_brev_b64, s_ctz_i32_b64, s_clz_i32_u64);
const SIGNED_UNARY: &[Op] = &scalar!(1, I64, unary: s_cls_i32_i64);
const REPLICATE: &[Op] = &scalar!(1, B32, unary: s_bitreplicate_b64_b32);

const fn s_not_b64(a: u64) -> u64 {
    !a
}
const fn s_bcnt0_i32_b64(a: u64) -> u32 {
    a.count_zeros()
}
const fn s_bcnt1_i32_b64(a: u64) -> u32 {
    a.count_ones()
}
/// The lowest bit of each group of four that has any bit set.
const fn quads(a: u64) -> u64 {
    (a | a >> 1 | a >> 2 | a >> 3) & 0x1111_1111_1111_1111
}
fn s_quadmask_b64(a: u64) -> u64 {
    let any = quads(a);
    (0..16).fold(0, |mask, quad| mask | (any >> (4 * quad) & 1) << quad)
}
const fn s_wqm_b64(a: u64) -> u64 {
    quads(a) * 0xf
}

const UNARY_NONZERO: &[Op] = &scalar!(1, B64, unary_nonzero:
    s_not_b64, s_bcnt0_i32_b64, s_bcnt1_i32_b64, s_quadmask_b64, s_wqm_b64);

const fn s_bitset0_b64(d: u64, a: u32) -> u64 {
    d & !(1 << (a & 63))
}
const fn s_bitset1_b64(d: u64, a: u32) -> u64 {
    d | 1 << (a & 63)
}

const UPDATE: &[Op] = &scalar!(1, B32, update: s_bitset0_b64, s_bitset1_b64);

const fn s_cmov_b64(a: u64) -> u64 {
    a
}
fn s_cselect_b64(a: u64, b: u64, scc: bool) -> u64 {
    if scc { a } else { b }
}

const CONDITIONAL: &[Op] = &scalar!(1, B64, cmov: s_cmov_b64);
const SELECT: &[Op] = &scalar!(1, B64, select: s_cselect_b64);

const fn s_cmp_eq_u64(a: u64, b: u64) -> bool {
    a == b
}
const fn s_cmp_lg_u64(a: u64, b: u64) -> bool {
    a != b
}
const fn s_bitcmp0_b64(a: u64, b: u32) -> bool {
    a >> (b & 63) & 1 == 0
}
const fn s_bitcmp1_b64(a: u64, b: u32) -> bool {
    a >> (b & 63) & 1 == 1
}

const COMPARE: &[Op] = &scalar!(0, B64, compare: s_cmp_eq_u64, s_cmp_lg_u64, s_bitcmp0_b64, s_bitcmp1_b64);

pub static OPS: &[&[Op]] = &[
    NONZERO,
    SIGNED_NONZERO,
    PLAIN,
    MASK,
    UNARY,
    SIGNED_UNARY,
    REPLICATE,
    UNARY_NONZERO,
    UPDATE,
    CONDITIONAL,
    SELECT,
    COMPARE,
];
