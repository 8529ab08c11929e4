//! What atomics do to a value in memory: `(old, operand)` to the new value. LDS, global and flat memory share them.

use half::{bf16, f16};

use super::double::{v_max_num_f64, v_min_num_f64};
use super::valu_f32::{v_max_num_f32, v_min_num_f32};

/// Functions of one integer width.
macro_rules! integer {
    ($unsigned:ident: $add:ident, $sub:ident, $rsub:ident, $min_i:ident, $min_u:ident, $max_i:ident, $max_u:ident,
     $and:ident, $or:ident, $xor:ident, $swap:ident, $inc:ident, $dec:ident) => {
        pub(super) const fn $add(old: $unsigned, x: $unsigned) -> $unsigned {
            old.wrapping_add(x)
        }
        pub(super) const fn $sub(old: $unsigned, x: $unsigned) -> $unsigned {
            old.wrapping_sub(x)
        }
        pub(super) const fn $rsub(old: $unsigned, x: $unsigned) -> $unsigned {
            x.wrapping_sub(old)
        }
        pub(super) fn $min_i(old: $unsigned, x: $unsigned) -> $unsigned {
            old.cast_signed().min(x.cast_signed()).cast_unsigned()
        }
        pub(super) fn $min_u(old: $unsigned, x: $unsigned) -> $unsigned {
            old.min(x)
        }
        pub(super) fn $max_i(old: $unsigned, x: $unsigned) -> $unsigned {
            old.cast_signed().max(x.cast_signed()).cast_unsigned()
        }
        pub(super) fn $max_u(old: $unsigned, x: $unsigned) -> $unsigned {
            old.max(x)
        }
        pub(super) const fn $and(old: $unsigned, x: $unsigned) -> $unsigned {
            old & x
        }
        pub(super) const fn $or(old: $unsigned, x: $unsigned) -> $unsigned {
            old | x
        }
        pub(super) const fn $xor(old: $unsigned, x: $unsigned) -> $unsigned {
            old ^ x
        }
        pub(super) const fn $swap(_: $unsigned, x: $unsigned) -> $unsigned {
            x
        }
        /// Counts up to the operand, then begins at 0.
        pub(super) const fn $inc(old: $unsigned, x: $unsigned) -> $unsigned {
            if old >= x { 0 } else { old + 1 }
        }
        /// Counts down to 0, then begins at the operand.
        pub(super) const fn $dec(old: $unsigned, x: $unsigned) -> $unsigned {
            if old == 0 || old > x { x } else { old - 1 }
        }
    };
}

integer!(u32: add_u32, sub_u32, rsub_u32, min_i32, min_u32, max_i32, max_u32, and_b32, or_b32, xor_b32, swap_b32,
    inc_u32, dec_u32);
integer!(u64: add_u64, sub_u64, rsub_u64, min_i64, min_u64, max_i64, max_u64, and_b64, or_b64, xor_b64, swap_b64,
    inc_u64, dec_u64);

pub(super) const fn cond_sub_u32(old: u32, x: u32) -> u32 {
    if old >= x { old - x } else { old }
}
pub(super) const fn sub_clamp_u32(old: u32, x: u32) -> u32 {
    old.saturating_sub(x)
}
pub(super) fn add_f32(old: u32, x: u32) -> u32 {
    (f32::from_bits(old) + f32::from_bits(x)).to_bits()
}
pub(super) fn min_num_f32(old: u32, x: u32) -> u32 {
    v_min_num_f32(x, old)
}
pub(super) fn max_num_f32(old: u32, x: u32) -> u32 {
    v_max_num_f32(x, old)
}
pub(super) fn min_num_f64(old: u64, x: u64) -> u64 {
    v_min_num_f64(f64::from_bits(x), f64::from_bits(old)).to_bits()
}
pub(super) fn max_num_f64(old: u64, x: u64) -> u64 {
    v_max_num_f64(f64::from_bits(x), f64::from_bits(old)).to_bits()
}
/// Applies a function to both halves.
fn packed(old: u32, x: u32, f: impl Fn(u16, u16) -> u16) -> u32 {
    u32::from(f(old as u16, x as u16)) | u32::from(f((old >> 16) as u16, (x >> 16) as u16)) << 16
}
pub(super) fn pk_add_f16(old: u32, x: u32) -> u32 {
    // An f32 has more than twice the digits: the second rounding changes nothing.
    packed(old, x, |a, b| f16::from_f32(f16::from_bits(a).to_f32() + f16::from_bits(b).to_f32()).to_bits())
}
pub(super) fn pk_add_bf16(old: u32, x: u32) -> u32 {
    packed(old, x, |a, b| bf16::from_f32(bf16::from_bits(a).to_f32() + bf16::from_bits(b).to_f32()).to_bits())
}

/// Passes `(name, type, function)` of every atomic of 32 bits with one operand to a macro.
macro_rules! atomics32 {
    ($make:ident) => {
        $make![(add, u32, add_u32)(sub, u32, sub_u32)(min, i32, min_i32)(min, u32, min_u32)(max, i32, max_i32)(
            max, u32, max_u32
        )(and, b32, and_b32)(or, b32, or_b32)(xor, b32, xor_b32)(inc, u32, inc_u32)(dec, u32, dec_u32)(
            cond_sub,
            u32,
            cond_sub_u32
        )(sub_clamp, u32, sub_clamp_u32)(add, f32, add_f32)(min_num, f32, min_num_f32)(
            max_num, f32, max_num_f32
        )(pk_add, f16, pk_add_f16)(pk_add, bf16, pk_add_bf16)]
    };
}

/// As `atomics32`, of 64 bits.
macro_rules! atomics64 {
    ($make:ident) => {
        $make![(add, u64, add_u64)(sub, u64, sub_u64)(min, i64, min_i64)(min, u64, min_u64)(max, i64, max_i64)(
            max, u64, max_u64
        )(and, b64, and_b64)(or, b64, or_b64)(xor, b64, xor_b64)(inc, u64, inc_u64)(dec, u64, dec_u64)]
    };
}

pub(super) use {atomics32, atomics64};
