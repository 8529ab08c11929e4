//! Operations between lanes and from lanes to scalars.

use crate::counts::Class;
use crate::emu::env::Env;
use crate::emu::fault::Fault;
use crate::emu::lanes::{dst, set_mask};
use crate::emu::op::{Flow, Literal, Op, Run, accepts};
use crate::emu::step::Step;
use crate::emu::wave::{Lanes, Wave};

/// Of the first active lane; lane 0 if there is none.
fn v_readfirstlane_b32(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let lane = w.exec().trailing_zeros() as usize % 32;
    let value = w.lanes(s.args[1])[lane];
    set_mask(w, s.args[0], value)?;
    Ok(Flow::Next)
}

/// Lane number of an operand.
fn lane(w: &Wave, s: &Step, k: usize) -> usize {
    w.scalar(s.args[k]) as usize & 31
}

/// Of an inactive lane too.
fn v_readlane_b32(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let value = w.lanes(s.args[1])[lane(w, s, 2)];
    set_mask(w, s.args[0], value)?;
    Ok(Flow::Next)
}

/// To an inactive lane too.
fn v_writelane_b32(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let (value, lane) = (w.scalar(s.args[1]), lane(w, s, 2));
    w.vgpr[usize::from(dst(s)?)][lane] = value;
    Ok(Flow::Next)
}

/// Lane l reads `from(l)`. `op_sel` bits: 0, inactive lanes are valid sources; 1, an invalid source is 0 rather than
/// keeping the destination.
fn permute(w: &mut Wave, s: &Step, from: impl Fn(usize) -> usize) -> Result<Flow, Fault> {
    let (inactive, zero) = (s.mods.op_sel & 1 == 1, s.mods.op_sel & 2 == 2);
    let (lanes, exec) = (w.lanes(s.args[1]), w.exec());
    let valid = if inactive { u32::MAX } else { exec };
    let (mut out, mut mask): (Lanes, u32) = ([0; 32], exec);
    for (l, slot) in out.iter_mut().enumerate() {
        match from(l) {
            source if valid >> source & 1 == 1 => *slot = lanes[source],
            _ if zero => {}
            _ => mask &= !(1 << l),
        }
    }
    w.set_lanes(dst(s)?, &out, mask);
    Ok(Flow::Next)
}

/// Nibble l of both scalars: the lane within a row that lane l of each row reads.
fn selectors(w: &Wave, s: &Step) -> impl Fn(usize) -> usize + use<> {
    let nibbles = u64::from(w.scalar(s.args[2])) | u64::from(w.scalar(s.args[3])) << 32;
    move |l| (nibbles >> (4 * (l & 15)) & 15) as usize
}

/// Low four bits of each lane.
fn own_selectors(w: &Wave, s: &Step) -> impl Fn(usize) -> usize + use<> {
    let lanes = w.lanes(s.args[2]);
    move |l| lanes[l] as usize & 15
}

fn v_permlane16_b32(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let select = selectors(w, s);
    permute(w, s, |l| l & 16 | select(l))
}

/// Of the other row.
fn v_permlanex16_b32(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let select = selectors(w, s);
    permute(w, s, |l| !l & 16 | select(l))
}

fn v_permlane16_var_b32(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let select = own_selectors(w, s);
    permute(w, s, |l| l & 16 | select(l))
}

/// Of the other row.
fn v_permlanex16_var_b32(w: &mut Wave, _: &mut Env<'_>, s: &Step) -> Result<Flow, Fault> {
    let select = own_selectors(w, s);
    permute(w, s, |l| !l & 16 | select(l))
}

/// Does nothing in a wave of 32.
fn v_permlane64_b32(_: &mut Wave, _: &mut Env<'_>, _: &Step) -> Result<Flow, Fault> {
    Ok(Flow::Next)
}

const fn cross(name: &'static str, accepts: u16, run: Run) -> Op {
    Op { name, class: Class::CrossLane, dsts: 1, accepts, literal: Literal::B32, run }
}

const CROSS: &[Op] = &[
    cross("v_readfirstlane_b32", accepts::NONE, v_readfirstlane_b32),
    cross("v_readlane_b32", accepts::NONE, v_readlane_b32),
    cross("v_writelane_b32", accepts::NONE, v_writelane_b32),
    cross("v_permlane16_b32", accepts::OP_SEL, v_permlane16_b32),
    cross("v_permlanex16_b32", accepts::OP_SEL, v_permlanex16_b32),
    cross("v_permlane16_var_b32", accepts::OP_SEL, v_permlane16_var_b32),
    cross("v_permlanex16_var_b32", accepts::OP_SEL, v_permlanex16_var_b32),
    cross("v_permlane64_b32", accepts::NONE, v_permlane64_b32),
];

pub static OPS: &[&[Op]] = &[CROSS];
