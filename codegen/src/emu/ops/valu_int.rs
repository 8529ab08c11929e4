//! 32-bit and 24-bit integer arithmetic and bit operations of vectors.

use super::{vector, vector_any, vector_int};
use crate::counts::Class;
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::lanes::{self, SIGN, dst, fetch, modify, select};
use crate::emu::op::{Flow, Literal, Op, accepts};
use crate::emu::step::{Operand, Step};
use crate::emu::wave::Wave;

const fn i(x: u32) -> i32 {
    x.cast_signed()
}

const fn u(x: i32) -> u32 {
    x.cast_unsigned()
}

const fn v_mov_b32(a: u32) -> u32 {
    a
}

const fn v_not_b32(a: u32) -> u32 {
    !a
}

const fn v_bfrev_b32(a: u32) -> u32 {
    a.reverse_bits()
}

/// -1 of 0.
const fn v_clz_i32_u32(a: u32) -> u32 {
    if a == 0 { u32::MAX } else { a.leading_zeros() }
}

/// -1 of 0.
const fn v_ctz_i32_b32(a: u32) -> u32 {
    if a == 0 { u32::MAX } else { a.trailing_zeros() }
}

/// Equal bits from the top; -1 if all are equal.
const fn v_cls_i32(a: u32) -> u32 {
    v_clz_i32_u32(a ^ u(i(a) >> 31))
}

const fn v_and_b32(a: u32, b: u32) -> u32 {
    a & b
}

const fn v_or_b32(a: u32, b: u32) -> u32 {
    a | b
}

const fn v_xor_b32(a: u32, b: u32) -> u32 {
    a ^ b
}

const fn v_xnor_b32(a: u32, b: u32) -> u32 {
    !(a ^ b)
}

fn v_min_i32(a: u32, b: u32) -> u32 {
    u(i(a).min(i(b)))
}

fn v_max_i32(a: u32, b: u32) -> u32 {
    u(i(a).max(i(b)))
}

fn v_min_u32(a: u32, b: u32) -> u32 {
    a.min(b)
}

fn v_max_u32(a: u32, b: u32) -> u32 {
    a.max(b)
}

const fn v_lshlrev_b32(n: u32, a: u32) -> u32 {
    a << (n & 31)
}

const fn v_lshrrev_b32(n: u32, a: u32) -> u32 {
    a >> (n & 31)
}

const fn v_ashrrev_i32(n: u32, a: u32) -> u32 {
    u(i(a) >> (n & 31))
}

const fn v_bfm_b32(width: u32, at: u32) -> u32 {
    ((1 << (width & 31)) - 1) << (at & 31)
}

const fn v_mul_lo_u32(a: u32, b: u32) -> u32 {
    a.wrapping_mul(b)
}

const fn v_mul_hi_u32(a: u32, b: u32) -> u32 {
    ((a as u64 * b as u64) >> 32) as u32
}

const fn v_mul_hi_i32(a: u32, b: u32) -> u32 {
    ((i(a) as i64 * i(b) as i64) >> 32) as u32
}

/// Sign-extended low 24 bits.
const fn i24(a: u32) -> u32 {
    u(i(a << 8) >> 8)
}

const fn u24(a: u32) -> u32 {
    a & 0x00ff_ffff
}

const fn v_mul_i32_i24(a: u32, b: u32) -> u32 {
    i24(a).wrapping_mul(i24(b))
}

const fn v_mul_hi_i32_i24(a: u32, b: u32) -> u32 {
    v_mul_hi_i32(i24(a), i24(b))
}

const fn v_mul_u32_u24(a: u32, b: u32) -> u32 {
    u24(a).wrapping_mul(u24(b))
}

const fn v_mul_hi_u32_u24(a: u32, b: u32) -> u32 {
    v_mul_hi_u32(u24(a), u24(b))
}

const fn v_bcnt_u32_b32(a: u32, b: u32) -> u32 {
    b.wrapping_add(a.count_ones())
}

const fn v_add_nc_u32(a: u32, b: u32) -> u32 {
    a.wrapping_add(b)
}

const fn v_sub_nc_u32(a: u32, b: u32) -> u32 {
    a.wrapping_sub(b)
}

const fn v_add3_u32(a: u32, b: u32, c: u32) -> u32 {
    a.wrapping_add(b).wrapping_add(c)
}

const fn v_add_lshl_u32(a: u32, b: u32, n: u32) -> u32 {
    a.wrapping_add(b) << (n & 31)
}

const fn v_lshl_add_u32(a: u32, n: u32, c: u32) -> u32 {
    (a << (n & 31)).wrapping_add(c)
}

const fn v_lshl_or_b32(a: u32, n: u32, c: u32) -> u32 {
    a << (n & 31) | c
}

const fn v_and_or_b32(a: u32, b: u32, c: u32) -> u32 {
    a & b | c
}

const fn v_or3_b32(a: u32, b: u32, c: u32) -> u32 {
    a | b | c
}

const fn v_xor3_b32(a: u32, b: u32, c: u32) -> u32 {
    a ^ b ^ c
}

const fn v_xad_u32(a: u32, b: u32, c: u32) -> u32 {
    (a ^ b).wrapping_add(c)
}

fn v_min3_i32(a: u32, b: u32, c: u32) -> u32 {
    v_min_i32(v_min_i32(a, b), c)
}

fn v_min3_u32(a: u32, b: u32, c: u32) -> u32 {
    a.min(b).min(c)
}

fn v_max3_i32(a: u32, b: u32, c: u32) -> u32 {
    v_max_i32(v_max_i32(a, b), c)
}

fn v_max3_u32(a: u32, b: u32, c: u32) -> u32 {
    a.max(b).max(c)
}

fn v_med3_i32(a: u32, b: u32, c: u32) -> u32 {
    v_max_i32(v_min_i32(a, b), v_min_i32(v_max_i32(a, b), c))
}

fn v_med3_u32(a: u32, b: u32, c: u32) -> u32 {
    a.min(b).max(a.max(b).min(c))
}

fn v_minmax_i32(a: u32, b: u32, c: u32) -> u32 {
    v_max_i32(v_min_i32(a, b), c)
}

fn v_minmax_u32(a: u32, b: u32, c: u32) -> u32 {
    a.min(b).max(c)
}

fn v_maxmin_i32(a: u32, b: u32, c: u32) -> u32 {
    v_min_i32(v_max_i32(a, b), c)
}

fn v_maxmin_u32(a: u32, b: u32, c: u32) -> u32 {
    a.max(b).min(c)
}

const fn v_bfe_u32(a: u32, at: u32, width: u32) -> u32 {
    a >> (at & 31) & ((1 << (width & 31)) - 1)
}

const fn v_bfe_i32(a: u32, at: u32, width: u32) -> u32 {
    // The sign bit of the field; none in a field of no bits.
    let sign = (1 << (width & 31)) >> 1;
    let field = u(i(a) >> (at & 31)) & ((1 << (width & 31)) - 1);
    (field ^ sign).wrapping_sub(sign)
}

const fn v_bfi_b32(mask: u32, a: u32, b: u32) -> u32 {
    mask & a | !mask & b
}

const fn v_mad_u32_u24(a: u32, b: u32, c: u32) -> u32 {
    v_mul_u32_u24(a, b).wrapping_add(c)
}

const fn v_mad_i32_i24(a: u32, b: u32, c: u32) -> u32 {
    v_mul_i32_i24(a, b).wrapping_add(c)
}

/// Selector bytes 0..=7 pick a byte of `high:low`, 8..=11 spread the sign of a 16-bit part, 12 is 0, more is 0xff.
fn v_perm_b32(high: u32, low: u32, selectors: u32) -> u32 {
    let data = u64::from(high) << 32 | u64::from(low);
    let sign = |bit: u32| if data >> bit & 1 == 1 { 0xff } else { 0 };
    u32::from_le_bytes(selectors.to_le_bytes().map(|selector| match selector {
        0..=7 => (data >> (8 * selector)) as u8,
        8..=11 => sign(16 * u32::from(selector - 8) + 15),
        12 => 0,
        _ => 0xff,
    }))
}

/// Sum over the bytes for which `counts` holds of the reference byte of |a - b|.
fn byte_differences(a: u32, b: u32, counts: impl Fn(u8) -> bool) -> u32 {
    let pairs = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
    pairs.filter(|(_, y)| counts(*y)).map(|(x, y)| u32::from(x.abs_diff(y))).sum()
}

fn v_sad_u8(a: u32, b: u32, c: u32) -> u32 {
    c.wrapping_add(byte_differences(a, b, |_| true))
}

fn v_sad_hi_u8(a: u32, b: u32, c: u32) -> u32 {
    c.wrapping_add(v_sad_u8(a, b, 0) << 16)
}

fn v_msad_u8(a: u32, b: u32, c: u32) -> u32 {
    c.wrapping_add(byte_differences(a, b, |y| y != 0))
}

const fn v_sad_u16(a: u32, b: u32, c: u32) -> u32 {
    let (low, high) = ((a & 0xffff).abs_diff(b & 0xffff), (a >> 16).abs_diff(b >> 16));
    c.wrapping_add(low).wrapping_add(high)
}

const fn v_sad_u32(a: u32, b: u32, c: u32) -> u32 {
    c.wrapping_add(a.abs_diff(b))
}

/// Mean of each byte pair, rounded up where bit 0 of c's byte is set.
fn v_lerp_u8(a: u32, b: u32, c: u32) -> u32 {
    let byte = |x: u32, n: u32| x >> (8 * n) & 0xff;
    (0..4).map(|n| ((byte(a, n) + byte(b, n) + (byte(c, n) & 1)) >> 1) << (8 * n)).sum()
}

fn v_alignbit_b32([high, low, n]: [u64; 3]) -> u64 {
    (high << 32 | low) >> (n & 31) & 0xffff_ffff
}

fn v_alignbyte_b32([high, low, n]: [u64; 3]) -> u64 {
    (high << 32 | low) >> (8 * (n & 3)) & 0xffff_ffff
}

/// An op that saturates with `clamp`.
macro_rules! saturating {
    ($($name:literal, $plain:expr, $clamped:expr;)+) => {
        [$(Op {
            name: $name,
            class: Class::Valu,
            dsts: 1,
            accepts: accepts::DPP | accepts::CLAMP,
            literal: Literal::B32,
            run: |w, _, s| if s.mods.clamp { lanes::u2(w, s, $clamped) } else { lanes::u2(w, s, $plain) },
        }),+]
    };
}

/// The second source where the condition holds.
fn v_cndmask_b32(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let ((mut no, may), mut yes) = (fetch(w, s, 1), w.lanes(s.args[2]));
    modify(&mut no, s, 1, SIGN);
    modify(&mut yes, s, 2, SIGN);
    let condition = w.scalar(s.args[3]);
    w.set_lanes(dst(s)?, &select(condition, &yes, &no), may);
    Ok(Flow::Next)
}

fn v_swap_b32(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let (Operand::V(first), Operand::V(second)) = (s.args[0], s.args[1]) else {
        return Err(Fault::Operand(format!("{:?}, {:?}", s.args[0], s.args[1])));
    };
    let (a, b, exec) = (w.lanes(s.args[0]), w.lanes(s.args[1]), w.exec());
    w.set_lanes(first, &b, exec);
    w.set_lanes(second, &a, exec);
    Ok(Flow::Next)
}

/// Bits of the mask in lanes below the own one. All lanes of a wave of 32 are in the low word.
fn v_mbcnt_lo_u32_b32(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let ((mask, may), base) = (fetch(w, s, 1), w.lanes(s.args[2]));
    let out = std::array::from_fn(|l| base[l].wrapping_add((mask[l] & ((1 << l) - 1)).count_ones()));
    w.set_lanes(dst(s)?, &out, may);
    Ok(Flow::Next)
}

/// See [`v_mbcnt_lo_u32_b32`].
const fn v_mbcnt_hi_u32_b32(_: u32, base: u32) -> u32 {
    base
}

const UNARY: [Op; 6] =
    vector_int!(Valu, u1, v_mov_b32, v_not_b32, v_bfrev_b32, v_clz_i32_u32, v_ctz_i32_b32, v_cls_i32);
const BINARY: [Op; 21] = vector_int!(
    Valu,
    u2,
    v_and_b32,
    v_or_b32,
    v_xor_b32,
    v_xnor_b32,
    v_min_i32,
    v_max_i32,
    v_min_u32,
    v_max_u32,
    v_lshlrev_b32,
    v_lshrrev_b32,
    v_ashrrev_i32,
    v_bfm_b32,
    v_mul_lo_u32,
    v_mul_hi_u32,
    v_mul_hi_i32,
    v_mul_i32_i24,
    v_mul_hi_i32_i24,
    v_mul_u32_u24,
    v_mul_hi_u32_u24,
    v_bcnt_u32_b32,
    v_mbcnt_hi_u32_b32,
);
const TERNARY: [Op; 29] = vector_int!(
    Valu,
    u3,
    v_add3_u32,
    v_add_lshl_u32,
    v_lshl_add_u32,
    v_lshl_or_b32,
    v_and_or_b32,
    v_or3_b32,
    v_xor3_b32,
    v_xad_u32,
    v_min3_i32,
    v_min3_u32,
    v_max3_i32,
    v_max3_u32,
    v_med3_i32,
    v_med3_u32,
    v_minmax_i32,
    v_minmax_u32,
    v_maxmin_i32,
    v_maxmin_u32,
    v_bfe_u32,
    v_bfe_i32,
    v_bfi_b32,
    v_mad_u32_u24,
    v_mad_i32_i24,
    v_perm_b32,
    v_sad_u8,
    v_sad_hi_u8,
    v_msad_u8,
    v_sad_u16,
    v_sad_u32,
);
const LERP: [Op; 1] = vector!(Valu, accepts::DPP, B32, lanes::u3, v_lerp_u8);
/// The amount is a 16-bit operand.
const ALIGN: [Op; 2] =
    vector_any!(accepts::DPP | accepts::OP_SEL, B32, B32, [B32, B32, B16], v_alignbit_b32, v_alignbyte_b32);
const SATURATING: [Op; 5] = saturating!(
    "v_add_nc_u32", v_add_nc_u32, u32::saturating_add;
    "v_sub_nc_u32", v_sub_nc_u32, u32::saturating_sub;
    "v_subrev_nc_u32", |a, b| v_sub_nc_u32(b, a), |a, b| b.saturating_sub(a);
    "v_add_nc_i32", v_add_nc_u32, |a, b| u(i(a).saturating_add(i(b)));
    "v_sub_nc_i32", v_sub_nc_u32, |a, b| u(i(a).saturating_sub(i(b)));
);

const fn special(name: &'static str, accepts: u16, run: crate::emu::op::Run) -> Op {
    Op { name, class: Class::Valu, dsts: 1, accepts, literal: Literal::B32, run }
}

const SPECIAL: [Op; 4] = [
    special("v_cndmask_b32", accepts::NEG_ABS | accepts::DPP, v_cndmask_b32),
    Op { dsts: 2, ..special("v_swap_b32", accepts::NONE, v_swap_b32) },
    special("v_mbcnt_lo_u32_b32", accepts::DPP, v_mbcnt_lo_u32_b32),
    Op { dsts: 0, ..special("v_nop", accepts::NONE, |_, _, _| Ok(Flow::Next)) },
];

pub static OPS: &[&[Op]] = &[&UNARY, &BINARY, &TERNARY, &LERP, &ALIGN, &SATURATING, &SPECIAL];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields() {
        assert_eq!(v_bfe_i32(0x0000_0f80, 7, 5), u32::MAX);
        assert_eq!(v_bfe_i32(0x0000_0780, 7, 5), 15);
        assert_eq!([v_bfe_i32(u32::MAX, 3, 0), v_bfe_u32(u32::MAX, 3, 0)], [0; 2]);
        assert_eq!(v_bfe_u32(0x1234_5678, 8, 16), 0x3456);
        assert_eq!(v_bfm_b32(4, 8), 0xf00);
        assert_eq!([v_cls_i32(0), v_cls_i32(u32::MAX), v_cls_i32(1), v_cls_i32(1 << 31)], [u32::MAX, u32::MAX, 31, 1]);
    }

    #[test]
    fn bytes() {
        assert_eq!(v_perm_b32(0x8877_6655, 0x4433_2211, 0x0c07_0400), 0x0088_5511);
        assert_eq!(v_perm_b32(0x8000_0000, 0x0000_8000, 0x0b0a_0908), 0xff00_00ff);
        assert_eq!(v_sad_u8(0x0a00_0005, 0x0001_0007, 100), 113);
        assert_eq!(v_msad_u8(0x0a00_0005, 0x0001_0007, 100), 103);
        assert_eq!(v_lerp_u8(0xff00_0001, 0xff00_0102, 0x0100_0100), 0xff00_0101);
    }

    #[test]
    fn products() {
        assert_eq!(v_mul_i32_i24(0x00ff_ffff, 5), u(-5));
        assert_eq!(v_mul_hi_i32_i24(0x0080_0000, 0x0080_0000), 1 << 14);
        assert_eq!(v_mul_hi_u32_u24(0xff80_0000, 0x0080_0000), 1 << 14);
        assert_eq!(v_med3_i32(u(-3), 7, 2), 2);
        assert_eq!(v_med3_u32(u(-3), 7, 2), 7);
    }
}
