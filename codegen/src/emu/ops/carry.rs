//! Integer operations with a carry, and 64-bit ones.

use super::vector_any;
use crate::counts::Class;
use crate::emu::fault::Fault;
use crate::emu::lanes::{dst, fetch, pack, set_mask, whole_mask};
use crate::emu::op::{Flow, Literal, Op, Run, accepts};
use crate::emu::step::{Operand, Step};
use crate::emu::wave::{Lanes, Wave};

/// Both sources and the carry, if the op prints one.
fn with_carry(w: &mut Wave, s: &Step, f: impl Fn(u32, u32, u32) -> (u32, bool)) -> Result<Flow, Fault> {
    let ((a, may), b) = (fetch(w, s, 2), w.lanes(s.args[3]));
    whole_mask(w, may)?;
    let carries = w.scalar(s.args[4]);
    let carry: Lanes = std::array::from_fn(|l| carries >> l & 1);
    let out = std::array::from_fn(|l| f(a[l], b[l], carry[l]).0);
    let flags = std::array::from_fn(|l| f(a[l], b[l], carry[l]).1);
    let exec = w.exec();
    w.set_lanes(dst(s)?, &out, exec);
    set_mask(w, s.args[1], pack(&flags) & exec)?;
    Ok(Flow::Next)
}

const fn add(a: u32, b: u32, carry: u32) -> (u32, bool) {
    let sum = a.wrapping_add(b);
    let all = sum.wrapping_add(carry);
    (all, (sum < a) | (all < sum))
}

const fn subtract(a: u32, b: u32, borrow: u32) -> (u32, bool) {
    let difference = a.wrapping_sub(b);
    let all = difference.wrapping_sub(borrow);
    (all, (a < b) | (difference < borrow))
}

const fn subtract_reversed(a: u32, b: u32, borrow: u32) -> (u32, bool) {
    subtract(b, a, borrow)
}

/// The addend is the fourth printed operand's pair.
fn multiply_add(w: &mut Wave, s: &Step, f: impl Fn(u32, u32, u64) -> (u64, bool)) -> Result<Flow, Fault> {
    for k in [2, 3] {
        // Constants are those of the 64-bit addend.
        if let Operand::Imm(bits) = s.args[k]
            && !matches!(bits >> 32, 0 | 0xffff_ffff)
        {
            return Err(Fault::Operand(format!("{bits:#x} of 32 bits")));
        }
    }
    let (a, b, c) = (w.lanes(s.args[2]), w.lanes(s.args[3]), w.lanes64(s.args[4]));
    let results: [(u64, bool); 32] = std::array::from_fn(|l| f(a[l], b[l], c[l]));
    let exec = w.exec();
    w.set_lanes64(dst(s)?, &results.map(|r| r.0), exec);
    set_mask(w, s.args[1], pack(&results.map(|r| r.1)) & exec)?;
    Ok(Flow::Next)
}

fn unsigned(a: u32, b: u32, c: u64) -> (u64, bool) {
    (u64::from(a) * u64::from(b)).overflowing_add(c)
}

/// The flag is bit 64 of the exact sum: its sign.
fn signed(a: u32, b: u32, c: u64) -> (u64, bool) {
    let product = i64::from(a.cast_signed()) * i64::from(b.cast_signed());
    let sum = i128::from(product) + i128::from(c.cast_signed());
    (sum as u64, sum < 0)
}

const fn v_lshlrev_b64([n, a]: [u64; 2]) -> u64 {
    a << (n & 63)
}

const fn v_lshrrev_b64([n, a]: [u64; 2]) -> u64 {
    a >> (n & 63)
}

const fn v_ashrrev_i64([n, a]: [u64; 2]) -> u64 {
    (a.cast_signed() >> (n & 63)).cast_unsigned()
}

const fn carrying(name: &'static str, accepts: u16, literal: Literal, run: Run) -> Op {
    Op { name, class: Class::Valu, dsts: 2, accepts, literal, run }
}

const DPP: u16 = accepts::DPP;
const CARRY: [Op; 8] = [
    carrying("v_add_co_u32", DPP, Literal::B32, |w, _, s| with_carry(w, s, add)),
    carrying("v_sub_co_u32", DPP, Literal::B32, |w, _, s| with_carry(w, s, subtract)),
    carrying("v_subrev_co_u32", DPP, Literal::B32, |w, _, s| with_carry(w, s, subtract_reversed)),
    carrying("v_add_co_ci_u32", DPP, Literal::B32, |w, _, s| with_carry(w, s, add)),
    carrying("v_sub_co_ci_u32", DPP, Literal::B32, |w, _, s| with_carry(w, s, subtract)),
    carrying("v_subrev_co_ci_u32", DPP, Literal::B32, |w, _, s| with_carry(w, s, subtract_reversed)),
    carrying("v_mad_co_u64_u32", accepts::NONE, Literal::B64, |w, _, s| multiply_add(w, s, unsigned)),
    carrying("v_mad_co_i64_i32", accepts::NONE, Literal::I64, |w, _, s| multiply_add(w, s, signed)),
];
const SHIFTS: [Op; 2] = vector_any!(accepts::NONE, B64, B64, [B32, B64], v_lshlrev_b64, v_lshrrev_b64);
const SIGNED_SHIFT: [Op; 1] = vector_any!(accepts::NONE, I64, B64, [B32, B64], v_ashrrev_i64);

pub static OPS: &[&[Op]] = &[&CARRY, &SHIFTS, &SIGNED_SHIFT];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn carries() {
        for (a, b) in
            [(0, 0), (u32::MAX, 0), (u32::MAX, u32::MAX), (5, 7), (7, 5), (5, 5), (0, u32::MAX), (1 << 31, 1 << 31)]
        {
            for c in [0, 1] {
                let sum = u64::from(a) + u64::from(b) + u64::from(c);
                assert_eq!(add(a, b, c), (sum as u32, sum >> 32 != 0), "{a} + {b} + {c}");
                let difference = i64::from(a) - i64::from(b) - i64::from(c);
                assert_eq!(subtract(a, b, c), (difference as u32, difference < 0), "{a} - {b} - {c}");
            }
        }
        assert_eq!(signed(u32::MAX, 1, 0), (u64::MAX, true));
        assert_eq!(signed(1 << 31, 1 << 31, 1 << 62), (1 << 63, false));
        assert_eq!(unsigned(u32::MAX, u32::MAX, u64::MAX), (0xffff_fffe_0000_0000, true));
    }
}
