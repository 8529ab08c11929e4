//! 16-bit integer operations and moves.

use super::vector_any;
use crate::counts::Class;
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::lanes::{Width, any, fetch_any, write_any};
use crate::emu::op::{Flow, Literal, Op, accepts};
use crate::emu::step::{Operand, Step};
use crate::emu::wave::Wave;

const INT: u16 = accepts::OP_SEL | accepts::DPP;

/// Sign-extended low 16 bits.
const fn i(x: u64) -> i64 {
    x as i16 as i64
}

const fn u(x: i64) -> u64 {
    x.cast_unsigned()
}

const fn v_mov_b16([a]: [u64; 1]) -> u64 {
    a
}

const fn v_not_b16([a]: [u64; 1]) -> u64 {
    !a
}

const fn v_and_b16([a, b]: [u64; 2]) -> u64 {
    a & b
}

const fn v_or_b16([a, b]: [u64; 2]) -> u64 {
    a | b
}

const fn v_xor_b16([a, b]: [u64; 2]) -> u64 {
    a ^ b
}

const fn v_mul_lo_u16([a, b]: [u64; 2]) -> u64 {
    a * b
}

fn v_min_u16([a, b]: [u64; 2]) -> u64 {
    a.min(b)
}

fn v_max_u16([a, b]: [u64; 2]) -> u64 {
    a.max(b)
}

fn v_min_i16([a, b]: [u64; 2]) -> u64 {
    u(i(a).min(i(b)))
}

fn v_max_i16([a, b]: [u64; 2]) -> u64 {
    u(i(a).max(i(b)))
}

const fn v_lshlrev_b16([n, a]: [u64; 2]) -> u64 {
    a << (n & 15)
}

const fn v_lshrrev_b16([n, a]: [u64; 2]) -> u64 {
    a >> (n & 15)
}

const fn v_ashrrev_i16([n, a]: [u64; 2]) -> u64 {
    u(i(a) >> (n & 15))
}

const fn v_mad_u16([a, b, c]: [u64; 3]) -> u64 {
    a * b + c
}

/// The low 16 bits do not depend on signs.
const fn v_mad_i16([a, b, c]: [u64; 3]) -> u64 {
    a * b + c
}

fn v_min3_u16([a, b, c]: [u64; 3]) -> u64 {
    a.min(b).min(c)
}

fn v_max3_u16([a, b, c]: [u64; 3]) -> u64 {
    a.max(b).max(c)
}

fn v_med3_u16([a, b, c]: [u64; 3]) -> u64 {
    a.min(b).max(a.max(b).min(c))
}

fn v_min3_i16([a, b, c]: [u64; 3]) -> u64 {
    v_min_i16([v_min_i16([a, b]), c])
}

fn v_max3_i16([a, b, c]: [u64; 3]) -> u64 {
    v_max_i16([v_max_i16([a, b]), c])
}

fn v_med3_i16([a, b, c]: [u64; 3]) -> u64 {
    v_max_i16([v_min_i16([a, b]), v_min_i16([v_max_i16([a, b]), c])])
}

const fn v_mad_u32_u16([a, b, c]: [u64; 3]) -> u64 {
    a * b + c
}

const fn v_mad_i32_i16([a, b, c]: [u64; 3]) -> u64 {
    u(i(a) * i(b)).wrapping_add(c)
}

const fn v_pack_b32_f16([a, b]: [u64; 2]) -> u64 {
    b << 16 | a
}

/// An op that saturates with `clamp`; both functions see sign-extended (`i`) or zero-extended (`u`) values.
macro_rules! saturating {
    ($($name:literal, $read:expr, $f:expr, $range:expr;)+) => {
        [$(Op {
            name: $name,
            class: Class::Valu,
            dsts: 1,
            accepts: INT | accepts::CLAMP,
            literal: Literal::B32,
            run: |w, _, s| {
                let (clamp, (least, most)) = (s.mods.clamp, $range);
                any(w, s, Width::B16, [Width::B16; 2], |[a, b]| {
                    let exact: i64 = $f($read(a), $read(b));
                    u(if clamp { exact.clamp(least, most) } else { exact })
                })
            },
        }),+]
    };
}

const SIGNED: (i64, i64) = (i16::MIN as i64, i16::MAX as i64);
const UNSIGNED: (i64, i64) = (0, u16::MAX as i64);

const SATURATING: [Op; 4] = saturating!(
    "v_add_nc_u16", u64::cast_signed, |a: i64, b: i64| a + b, UNSIGNED;
    "v_sub_nc_u16", u64::cast_signed, |a: i64, b: i64| a - b, UNSIGNED;
    "v_add_nc_i16", i, |a: i64, b: i64| a + b, SIGNED;
    "v_sub_nc_i16", i, |a: i64, b: i64| a - b, SIGNED;
);

/// The second source where the condition holds.
fn v_cndmask_b16(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    // Which bit would be the destination's: no assembler prints it for the unnamed form.
    if s.mods.op_sel != 0 && s.args[..3].iter().any(|a| matches!(a, Operand::V(_))) {
        return Err(Fault::Modifier("op_sel"));
    }
    let ((no, may), (yes, _)) = (fetch_any(w, s, 1, Width::B16), fetch_any(w, s, 2, Width::B16));
    let condition = w.scalar(s.args[3]);
    let out = std::array::from_fn(|l| if condition >> l & 1 == 1 { yes[l] } else { no[l] });
    write_any(w, s, Width::B16, &out, may)?;
    Ok(Flow::Next)
}

fn v_swap_b16(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let (Operand::Half(first, upper), Operand::Half(second, other)) = (s.args[0], s.args[1]) else {
        return Err(Fault::Operand(format!("{:?}, {:?}", s.args[0], s.args[1])));
    };
    let (a, b, exec) = (w.lanes(s.args[0]), w.lanes(s.args[1]), w.exec());
    w.set_half(first, upper, &b, exec);
    w.set_half(second, other, &a, exec);
    Ok(Flow::Next)
}

const UNARY: [Op; 2] = vector_any!(INT, B32, B16, [B16], v_mov_b16, v_not_b16);
const BINARY: [Op; 11] = vector_any!(
    INT,
    B32,
    B16,
    [B16, B16],
    v_and_b16,
    v_or_b16,
    v_xor_b16,
    v_mul_lo_u16,
    v_min_u16,
    v_max_u16,
    v_min_i16,
    v_max_i16,
    v_lshlrev_b16,
    v_lshrrev_b16,
    v_ashrrev_i16,
);
const TERNARY: [Op; 8] = vector_any!(
    INT,
    B32,
    B16,
    [B16, B16, B16],
    v_mad_u16,
    v_mad_i16,
    v_min3_u16,
    v_max3_u16,
    v_med3_u16,
    v_min3_i16,
    v_max3_i16,
    v_med3_i16,
);
const WIDENING: [Op; 2] = vector_any!(INT, B32, B32, [B16, B16, B32], v_mad_u32_u16, v_mad_i32_i16);
const PACK: [Op; 1] = vector_any!(INT | accepts::NEG_ABS, F16, B32, [B16, B16], v_pack_b32_f16);

const SPECIAL: [Op; 2] = [
    Op {
        name: "v_cndmask_b16",
        class: Class::Valu,
        dsts: 1,
        accepts: INT | accepts::NEG_ABS,
        literal: Literal::F16,
        run: v_cndmask_b16,
    },
    Op {
        name: "v_swap_b16",
        class: Class::Valu,
        dsts: 2,
        accepts: accepts::NONE,
        literal: Literal::B32,
        run: v_swap_b16,
    },
];

pub static OPS: &[&[Op]] = &[&UNARY, &BINARY, &TERNARY, &SATURATING, &WIDENING, &PACK, &SPECIAL];
