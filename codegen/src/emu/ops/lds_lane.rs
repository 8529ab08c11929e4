//! Exchanges between lanes through the LDS unit, without memory.

use super::lds::{offsets, register};
use crate::counts::Class;
use crate::emu::fault::Fault;
use crate::emu::lanes::dst;
use crate::emu::op::{Flow, Literal, Op, Run, accepts};
use crate::emu::step::{Operand, Step};
use crate::emu::wave::{Lanes, Wave};

/// Lane that a byte address names; higher bits do not count.
const fn lane(address: u32) -> usize {
    (address >> 2 & 31) as usize
}

/// Reads from the lane that the address names. `valid` are the lanes that may be read; others give 0.
fn backward(w: &mut Wave, s: &Step, valid: u32) -> Result<Flow, Fault> {
    let at = offsets(w, s, 1, s.mods.offset.cast_unsigned())?;
    let from = w.lanes(Operand::V(register(s, 2)?));
    let out = at.map(|a| if valid >> lane(a) & 1 == 1 { from[lane(a)] } else { 0 });
    w.set_lanes(dst(s)?, &out, w.exec());
    Ok(Flow::Next)
}

fn ds_bpermute_b32(w: &mut Wave, s: &Step) -> Result<Flow, Fault> {
    let exec = w.exec();
    backward(w, s, exec)
}

fn ds_bpermute_fi_b32(w: &mut Wave, s: &Step) -> Result<Flow, Fault> {
    backward(w, s, u32::MAX)
}

/// Writes to the lane that the address names: the highest lane wins, a lane that none names gets 0.
fn ds_permute_b32(w: &mut Wave, s: &Step) -> Result<Flow, Fault> {
    let at = offsets(w, s, 1, s.mods.offset.cast_unsigned())?;
    let from = w.lanes(Operand::V(register(s, 2)?));
    let mut out: Lanes = [0; 32];
    for l in (0..32).filter(|l| w.exec() >> l & 1 == 1) {
        out[lane(at[l])] = from[l];
    }
    w.set_lanes(dst(s)?, &out, w.exec());
    Ok(Flow::Next)
}

/// Lane that lane `l` reads, by the pattern in the 16 bits of the offset.
const fn swizzled(pattern: u32, l: u32) -> u32 {
    let low = pattern & 31;
    if pattern >= 0xe000 {
        // Decomposition for an FFT.
        (l.reverse_bits() >> 27) >> low.count_ones() | l & low
    } else if pattern >= 0x8000 {
        // Any permutation of four.
        l & !3 | pattern >> (2 * (l & 3)) & 3
    } else {
        (l & low | pattern >> 5 & 31) ^ pattern >> 10 & 31
    }
}

fn ds_swizzle_b32(w: &mut Wave, s: &Step) -> Result<Flow, Fault> {
    let (from, exec) = (w.lanes(Operand::V(register(s, 1)?)), w.exec());
    let pattern = s.mods.offset.cast_unsigned() & 0xffff;
    let out = std::array::from_fn(|l| {
        let source = swizzled(pattern, l as u32) & 31;
        if exec >> source & 1 == 1 { from[source as usize] } else { 0 }
    });
    w.set_lanes(dst(s)?, &out, exec);
    Ok(Flow::Next)
}

const fn lanes(name: &'static str, run: Run) -> Op {
    Op { name, class: Class::CrossLane, dsts: 1, accepts: accepts::OFFSET, literal: Literal::B32, run }
}

const LANES: &[Op] = &[
    lanes("ds_bpermute_b32", |w, _, s| ds_bpermute_b32(w, s)),
    lanes("ds_bpermute_fi_b32", |w, _, s| ds_bpermute_fi_b32(w, s)),
    lanes("ds_permute_b32", |w, _, s| ds_permute_b32(w, s)),
    lanes("ds_swizzle_b32", |w, _, s| ds_swizzle_b32(w, s)),
];

pub static OPS: &[&[Op]] = &[LANES];
