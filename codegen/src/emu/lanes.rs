//! How vector instructions run: fetch operands, apply a function in each lane, write the active lanes.
//!
//! An entry of the table names a function of one lane and one of these executors. Operand k of a step is `args[k]`;
//! sources follow the destinations.

use super::env::Env;
use super::fault::Fault;
use super::op::Flow;
use super::step::{Operand, Step};
use super::wave::{Lanes, Lanes64, Wave};
use crate::isa::{Dpp, DppControl};

/// Executes a step, or the two halves of a pair: both read before either writes.
#[inline]
pub fn execute(w: &mut Wave, env: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let Some(second) = &s.pair else { return (s.op.run)(w, env, s) };
    let Operand::V(first) = s.args[0] else { return Err(Fault::Operand("of a pair".into())) };
    let first = usize::from(first);
    let before = w.vgpr[first];
    (s.op.run)(w, env, s)?;
    let result = std::mem::replace(&mut w.vgpr[first], before);
    let flow = (second.op.run)(w, env, second)?;
    w.vgpr[first] = result;
    Ok(flow)
}

/// The vector register that operand 0 names.
#[inline]
pub fn dst(s: &Step) -> Result<u8, Fault> {
    match s.args[0] {
        Operand::V(n) => Ok(n),
        other => Err(Fault::Operand(format!("{other:?} as destination"))),
    }
}

/// Source `k` after the lane permutation, if it is the one that is permuted (the first source), and the lanes that
/// may be written.
#[inline]
#[must_use]
pub fn fetch(w: &Wave, s: &Step, k: usize) -> (Lanes, u32) {
    let lanes = w.lanes(s.args[k]);
    match &s.mods.dpp {
        Some(dpp) if k == usize::from(s.op.dsts) => permute(&lanes, dpp, w.exec()),
        _ => (lanes, w.exec()),
    }
}

/// Lane that lane `l` reads, within its row of 16 (DPP8: group of 8).
fn source_lane(kind: Dpp, l: usize) -> Option<usize> {
    let (row, at) = (l & !15, l & 15);
    let within = |at: Option<usize>| at.filter(|a| *a < 16).map(|a| row + a);
    match kind {
        Dpp::QuadPerm(select) => Some(l & !3 | usize::from(select[l & 3] & 3)),
        Dpp::RowShl(n) => within(at.checked_add(n.into())),
        Dpp::RowShr(n) => within(at.checked_sub(n.into())),
        Dpp::RowRor(n) => within(Some((at + 16 - usize::from(n & 15)) & 15)),
        Dpp::RowMirror => Some(row + 15 - at),
        Dpp::RowHalfMirror => Some(l ^ 7),
        Dpp::RowShare(n) => Some(row + usize::from(n & 15)),
        Dpp::RowXmask(mask) => Some(row + (at ^ usize::from(mask & 15))),
        Dpp::Dpp8(select) => Some(l & !7 | usize::from(select[l & 7] & 7)),
    }
}

/// Permutes lanes. Also gives the lanes that may be written: a lane that its row or bank mask leaves out, or that has
/// no valid source and no `bound_ctrl`, keeps its destination.
#[must_use]
pub fn permute(lanes: &Lanes, dpp: &DppControl, exec: u32) -> (Lanes, u32) {
    if let (Dpp::RowXmask(flip), u32::MAX, 0xf, 0xf) = (dpp.kind, exec, dpp.row_mask, dpp.bank_mask) {
        // The steps of reductions; each lane has a valid source.
        return (std::array::from_fn(|l| lanes[l ^ usize::from(flip & 15)]), exec);
    }
    let (mut out, mut mask) = ([0; 32], exec);
    // DPP8 has no masks; it reads 0 from an inactive lane.
    let zero = dpp.bound_ctrl || matches!(dpp.kind, Dpp::Dpp8(_));
    for (l, slot) in out.iter_mut().enumerate() {
        let selected = dpp.row_mask >> (l / 16) & 1 == 1 && dpp.bank_mask >> (l / 4 % 4) & 1 == 1;
        let source = source_lane(dpp.kind, l).filter(|from| dpp.fetch_inactive || exec >> from & 1 == 1);
        match source {
            Some(from) => *slot = lanes[from],
            None if zero => {}
            None => mask &= !(1 << l),
        }
        if !selected {
            mask &= !(1 << l);
        }
    }
    (out, mask)
}

/// `-x` and `|x|` of operand k on sign bit `sign`.
#[inline]
pub fn modify(lanes: &mut Lanes, s: &Step, k: usize, sign: u32) {
    if s.mods.abs >> k & 1 == 1 {
        lanes.iter_mut().for_each(|x| *x &= !sign);
    }
    if s.mods.neg >> k & 1 == 1 {
        lanes.iter_mut().for_each(|x| *x ^= sign);
    }
}

/// Clamp of an f32 result.
#[inline]
fn finish_f32(out: &mut Lanes, s: &Step) {
    if s.mods.clamp {
        out.iter_mut().for_each(|x| *x = clamp_f32(*x));
    }
}

/// To 0..=1; NaN gives 0 (DX10 clamp is on by default).
fn clamp_f32(x: u32) -> u32 {
    let v = f32::from_bits(x);
    if v > 0.0 { v.min(1.0).to_bits() } else { 0 }
}

/// One bit per lane as a mask.
#[inline]
#[must_use]
pub fn pack(flags: &[bool; 32]) -> u32 {
    let mut mask = 0;
    for (i, eight) in flags.chunks_exact(8).enumerate() {
        let bytes = u64::from_le_bytes(std::array::from_fn(|l| u8::from(eight[l])));
        // Bit 8i times bit 56 - 7i of the factor falls on bit 56 + i; no other product reaches the top byte.
        let byte = bytes.wrapping_mul(0x0102_0408_1020_4080) >> 56;
        mask |= (byte as u32) << (8 * i);
    }
    mask
}

/// Bit l in lane l.
const BIT: Lanes = {
    let mut bits = [0; 32];
    let mut l = 0;
    while l < 32 {
        bits[l] = 1 << l;
        l += 1;
    }
    bits
};

/// Lanes of `yes` where `mask` has its bit, else of `no`.
#[inline]
#[must_use]
pub fn select(mask: u32, yes: &Lanes, no: &Lanes) -> Lanes {
    std::array::from_fn(|l| if mask & BIT[l] != 0 { yes[l] } else { no[l] })
}

/// Refuses a permutation that leaves active lanes out of a result which is a mask: whether their bits are kept or
/// cleared is not stated.
#[inline]
pub fn whole_mask(w: &Wave, may: u32) -> Result<(), Fault> {
    if may == w.exec() { Ok(()) } else { Err(Fault::Operand("with a lane that dpp leaves out of a mask".into())) }
}

/// 32-bit sources and result, no float modifiers.
#[inline]
pub fn u1(w: &mut Wave, s: &Step, f: impl Fn(u32) -> u32) -> Result<Flow, Fault> {
    let (a, mask) = fetch(w, s, 1);
    let out = std::array::from_fn(|l| f(a[l]));
    w.set_lanes(dst(s)?, &out, mask);
    Ok(Flow::Next)
}

/// As [`u1`], of two sources.
#[inline]
pub fn u2(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> u32) -> Result<Flow, Fault> {
    let ((a, mask), b) = (fetch(w, s, 1), w.lanes(s.args[2]));
    let out = std::array::from_fn(|l| f(a[l], b[l]));
    w.set_lanes(dst(s)?, &out, mask);
    Ok(Flow::Next)
}

/// As [`u1`], of three sources.
#[inline]
pub fn u3(w: &mut Wave, s: &Step, f: impl Fn(u32, u32, u32) -> u32) -> Result<Flow, Fault> {
    let ((a, mask), b, c) = (fetch(w, s, 1), w.lanes(s.args[2]), w.lanes(s.args[3]));
    let out = std::array::from_fn(|l| f(a[l], b[l], c[l]));
    w.set_lanes(dst(s)?, &out, mask);
    Ok(Flow::Next)
}

/// Sign bit of an f32.
pub const SIGN: u32 = 1 << 31;

/// f32 sources (as bits) with modifiers, f32 result.
#[inline]
pub fn f1(w: &mut Wave, s: &Step, f: impl Fn(u32) -> u32) -> Result<Flow, Fault> {
    let (mut a, mask) = fetch(w, s, 1);
    modify(&mut a, s, 1, SIGN);
    let mut out = std::array::from_fn(|l| f(a[l]));
    finish_f32(&mut out, s);
    w.set_lanes(dst(s)?, &out, mask);
    Ok(Flow::Next)
}

/// As [`f1`], of two sources.
#[inline]
pub fn f2(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> u32) -> Result<Flow, Fault> {
    let ((mut a, mask), mut b) = (fetch(w, s, 1), w.lanes(s.args[2]));
    modify(&mut a, s, 1, SIGN);
    modify(&mut b, s, 2, SIGN);
    let mut out = std::array::from_fn(|l| f(a[l], b[l]));
    finish_f32(&mut out, s);
    w.set_lanes(dst(s)?, &out, mask);
    Ok(Flow::Next)
}

/// As [`f1`], of three sources.
#[inline]
pub fn f3(w: &mut Wave, s: &Step, f: impl Fn(u32, u32, u32) -> u32) -> Result<Flow, Fault> {
    let ((mut a, mask), mut b, mut c) = (fetch(w, s, 1), w.lanes(s.args[2]), w.lanes(s.args[3]));
    modify(&mut a, s, 1, SIGN);
    modify(&mut b, s, 2, SIGN);
    modify(&mut c, s, 3, SIGN);
    let mut out = std::array::from_fn(|l| f(a[l], b[l], c[l]));
    finish_f32(&mut out, s);
    w.set_lanes(dst(s)?, &out, mask);
    Ok(Flow::Next)
}

/// As [`f2`], where the destination is the third source (`v_fmac_f32`).
#[inline]
pub fn f2_acc(w: &mut Wave, s: &Step, f: impl Fn(u32, u32, u32) -> u32) -> Result<Flow, Fault> {
    let n = dst(s)?;
    let ((mut a, mask), mut b, c) = (fetch(w, s, 1), w.lanes(s.args[2]), w.lanes(s.args[0]));
    modify(&mut a, s, 1, SIGN);
    modify(&mut b, s, 2, SIGN);
    let mut out = std::array::from_fn(|l| f(a[l], b[l], c[l]));
    finish_f32(&mut out, s);
    w.set_lanes(n, &out, mask);
    Ok(Flow::Next)
}

/// Bits of an operand in [`any`] and [`compare`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// 16: a named half, or the one that `op_sel` selects, of a register; only these bits are written.
    B16,
    B32,
    B64,
}

/// How many sources are printed.
fn sources(s: &Step) -> usize {
    s.args.iter().filter(|a| **a != Operand::None).count().saturating_sub(s.op.dsts.into())
}

/// Source `k` as its 16 bits: the named half, or the one that `op_sel` selects.
fn fetch_half(w: &Wave, s: &Step, k: usize) -> (Lanes64, u32) {
    let (lanes, mask) = fetch(w, s, k);
    // A named half comes in the low bits already, with `op_sel` printed beside it.
    let selected = s.mods.op_sel >> (k - usize::from(s.op.dsts)) & 1 == 1;
    let high = selected && !matches!(s.args[k], Operand::Half(..));
    (lanes.map(|x| u64::from(if high { x >> 16 } else { x & 0xffff })), mask)
}

/// One source as 64-bit values, float modifiers on its sign bit, and the lanes that may be written.
#[must_use]
pub fn fetch_any(w: &Wave, s: &Step, k: usize, width: Width) -> (Lanes64, u32) {
    let (mut out, mask) = match width {
        Width::B64 => (w.lanes64(s.args[k]), w.exec()),
        Width::B32 => {
            let (lanes, mask) = fetch(w, s, k);
            (lanes.map(u64::from), mask)
        }
        Width::B16 => fetch_half(w, s, k),
    };
    let sign = match width {
        Width::B16 => 1u64 << 15,
        Width::B32 => 1 << 31,
        Width::B64 => 1 << 63,
    };
    if s.mods.abs >> k & 1 == 1 {
        out.iter_mut().for_each(|x| *x &= !sign);
    }
    if s.mods.neg >> k & 1 == 1 {
        out.iter_mut().for_each(|x| *x ^= sign);
    }
    (out, mask)
}

/// Refuses a float constant of 64 bits in a source of 32: its bits would be those of the other width.
fn narrow(s: &Step, k: usize, width: Width) -> Result<(), Fault> {
    match s.args[k] {
        Operand::Imm(bits) if width == Width::B32 && bits >> 32 != 0 && bits >> 32 != 0xffff_ffff => {
            Err(Fault::Operand(format!("{bits:#x} of 32 bits")))
        }
        _ => Ok(()),
    }
}

/// Writes results of a width to operand 0.
pub fn write_any(w: &mut Wave, s: &Step, width: Width, out: &Lanes64, mask: u32) -> Result<(), Fault> {
    match (s.args[0], width) {
        (Operand::V(n), Width::B32) => w.set_lanes(n, &out.map(|x| x as u32), mask),
        (Operand::V(n), Width::B64) => w.set_lanes64(n, out, mask),
        // The bit of op_sel after the sources' is the destination's.
        (Operand::V(n), Width::B16) => {
            let high = s.mods.op_sel >> sources(s) & 1 == 1;
            w.set_half(n, high, &out.map(|x| x as u32), mask);
        }
        (Operand::Half(n, high), Width::B16) => w.set_half(n, high, &out.map(|x| x as u32), mask),
        (other, _) => return Err(Fault::Operand(format!("{other:?} as destination"))),
    }
    Ok(())
}

/// N sources of any width, result of any width; float modifiers by the source's width, no multiplier, no clamp.
pub fn any<const N: usize>(
    w: &mut Wave,
    s: &Step,
    result: Width,
    sources: [Width; N],
    f: impl Fn([u64; N]) -> u64,
) -> Result<Flow, Fault> {
    for (i, width) in sources.iter().enumerate() {
        narrow(s, i + 1, *width)?;
    }
    let mut mask = w.exec();
    let fetched: [Lanes64; N] = std::array::from_fn(|i| {
        let (lanes, may) = fetch_any(w, s, i + 1, sources[i]);
        mask &= may;
        lanes
    });
    let out = std::array::from_fn(|l| f(std::array::from_fn(|i| fetched[i][l])));
    write_any(w, s, result, &out, mask)?;
    Ok(Flow::Next)
}

/// Writes the result of a comparison, 0 in inactive lanes, to the scalar destination, if there is one, else to exec.
#[inline]
fn compared(w: &mut Wave, s: &Step, flags: &[bool; 32]) -> Result<Flow, Fault> {
    let mask = pack(flags) & w.exec();
    if s.op.dsts == 0 {
        w.set_exec(mask);
    } else {
        set_mask(w, s.args[0], mask)?;
    }
    Ok(Flow::Next)
}

/// A comparison of two sources of any width.
pub fn compare(w: &mut Wave, s: &Step, widths: [Width; 2], f: impl Fn(u64, u64) -> bool) -> Result<Flow, Fault> {
    let first = usize::from(s.op.dsts);
    narrow(s, first + 1, widths[1])?;
    let ((a, may), (b, _)) = (fetch_any(w, s, first, widths[0]), fetch_any(w, s, first + 1, widths[1]));
    whole_mask(w, may)?;
    compared(w, s, &std::array::from_fn(|l| f(a[l], b[l])))
}

/// As [`compare`], for the common case of two 32-bit sources.
#[inline]
pub fn compare32(w: &mut Wave, s: &Step, f: impl Fn(u32, u32) -> bool) -> Result<Flow, Fault> {
    let first = usize::from(s.op.dsts);
    let ((mut a, may), mut b) = (fetch(w, s, first), w.lanes(s.args[first + 1]));
    whole_mask(w, may)?;
    modify(&mut a, s, first, SIGN);
    modify(&mut b, s, first + 1, SIGN);
    compared(w, s, &std::array::from_fn(|l| f(a[l], b[l])))
}

/// Writes a lane mask to a scalar destination.
pub fn set_mask(w: &mut Wave, operand: Operand, mask: u32) -> Result<(), Fault> {
    match operand {
        Operand::S(n) => {
            w.set_s(n, mask);
            Ok(())
        }
        other => Err(Fault::Operand(format!("{other:?} as mask"))),
    }
}

/// Writes a pair of scalar registers that operand 0 names.
pub fn set_scalar64(w: &mut Wave, s: &Step, value: u64) -> Result<(), Fault> {
    match s.args[0] {
        Operand::S(n) => {
            w.set_s64(n, value);
            Ok(())
        }
        other => Err(Fault::Operand(format!("{other:?} as destination"))),
    }
}
