//! Decoded code: a table of steps, one per instruction.

use std::collections::HashMap;
use std::sync::LazyLock;

use super::fault::{Fault, Trap};
use super::op::{Literal, Op, accepts};
use super::ops::{self, formats::to_f16};
use crate::isa::{self, Arg, Constant, Half, Mods, Omod, Special, sreg};
use crate::llvm::disasm;
use crate::target::Target;

/// Most operands of an instruction (`image` ones aside).
pub const MAX_ARGS: usize = 6;

/// An operand that is ready to be read or written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Operand {
    #[default]
    None,
    /// Vector register, or the first of several.
    V(u8),
    /// Half of a vector register; true is the upper one.
    Half(u8, bool),
    /// Scalar register, or the first of several.
    S(u8),
    /// Constant, by [`Op::literal`].
    Imm(u64),
    Special(Special),
    Off,
}

/// One instruction, decoded.
#[derive(Debug)]
pub struct Step {
    pub op: &'static Op,
    pub args: [Operand; MAX_ARGS],
    pub mods: Mods,
    /// Second half of a VOPD pair.
    pub pair: Option<Box<Step>>,
    /// As LLVM prints it.
    pub text: String,
    /// Byte offset in the code.
    pub pc: u32,
    pub size: u8,
}

/// Decoded code of one kernel.
#[derive(Debug)]
pub struct Code {
    pub steps: Vec<Step>,
    /// Step that begins at word n (byte 4n).
    index: Vec<u32>,
}

/// No instruction begins here.
const NOWHERE: u32 = u32::MAX;

impl Code {
    /// The step that begins at byte `pc`.
    ///
    /// # Errors
    /// [`Fault::BranchTarget`].
    #[inline]
    pub fn at(&self, pc: i64) -> Result<usize, Fault> {
        let word = usize::try_from(pc >> 2).ok().filter(|_| pc & 3 == 0);
        match word.and_then(|w| self.index.get(w)) {
            Some(step) if *step != NOWHERE => Ok(*step as usize),
            _ => Err(Fault::BranchTarget(pc)),
        }
    }
}

/// Every opcode by name.
static TABLE: LazyLock<HashMap<&'static str, &'static Op>> =
    LazyLock::new(|| ops::all().map(|op| (op.name, op)).collect());

/// The opcode of a mnemonic without encoding suffixes.
#[must_use]
pub fn lookup(name: &str) -> Option<&'static Op> {
    TABLE.get(name).copied()
}

/// Decodes code. `vgprs` and `sgprs` are what the kernel's descriptor asks for.
///
/// # Errors
/// A [`Trap`] with the first instruction that is unknown or not modelled.
pub fn decode(code: &[u8], target: &Target, vgprs: u32, sgprs: u32) -> Result<Code, Trap> {
    let mut out = Code { steps: Vec::new(), index: vec![NOWHERE; code.len().div_ceil(4)] };
    let mut failed = None;
    let visited = disasm::each(code, target, |offset, text| {
        if failed.is_some() {
            return;
        }
        // The size is known when the next one begins.
        let pc = offset as u32;
        if let Some(last) = out.steps.last_mut() {
            last.size = (pc - last.pc) as u8;
        }
        match step(text, pc, vgprs, sgprs) {
            Ok(step) => {
                out.index[offset / 4] = out.steps.len() as u32;
                out.steps.push(step);
            }
            Err(fault) => failed = Some(trap(fault, text, pc)),
        }
    });
    if let Some(last) = out.steps.last_mut() {
        last.size = (code.len() as u32 - last.pc) as u8;
    }
    match (failed, visited) {
        (Some(trap), _) => Err(trap),
        (None, Err(found)) => Err(trap(Fault::Decode(found), "", 0)),
        (None, Ok(())) => Ok(out),
    }
}

fn trap(fault: Fault, text: &str, pc: u32) -> Trap {
    Trap { fault, text: text.to_owned(), pc, group: [0; 3], wave: 0 }
}

/// One instruction from its text.
///
/// # Errors
/// The fault, without its place.
pub fn step(text: &str, pc: u32, vgprs: u32, sgprs: u32) -> Result<Step, Fault> {
    let inst = isa::parse(text, 0).map_err(Fault::Decode)?;
    build(inst, text, pc, vgprs, sgprs)
}

fn build(inst: isa::Inst, text: &str, pc: u32, vgprs: u32, sgprs: u32) -> Result<Step, Fault> {
    let op = lookup(&inst.name).ok_or(Fault::UnknownInstruction)?;
    modifiers(op, &inst.mods)?;
    if inst.args.len() > MAX_ARGS {
        return Err(Fault::Operand(format!("number {}", inst.args.len())));
    }
    let mut args = [Operand::None; MAX_ARGS];
    for (i, (slot, arg)) in args.iter_mut().zip(&inst.args).enumerate() {
        let literal = match op.literal {
            Literal::F64ThenB32 if i == usize::from(op.dsts) => Literal::F64,
            Literal::F64ThenB32 => Literal::B32,
            other => other,
        };
        *slot = operand(*arg, literal, vgprs, sgprs)?;
    }
    let pair = match inst.pair {
        Some(second) => Some(Box::new(build(*second, text, pc, vgprs, sgprs)?)),
        None => None,
    };
    Ok(Step { op, args, mods: inst.mods, pair, text: text.to_owned(), pc, size: inst.size })
}

/// Refuses a modifier that the op does not honour.
fn modifiers(op: &Op, mods: &Mods) -> Result<(), Fault> {
    let found = [
        (mods.neg | mods.abs != 0, accepts::NEG_ABS, "neg or abs"),
        (mods.clamp, accepts::CLAMP, "clamp"),
        // The hardware ignores a multiplier while denormals are kept, which they are: no compiler emits it.
        (mods.omod != Omod::None, accepts::NONE, "omod"),
        (mods.op_sel != 0, accepts::OP_SEL | accepts::PACKED, "op_sel"),
        (mods.op_sel_hi.is_some() || mods.neg_lo | mods.neg_hi != 0, accepts::PACKED, "op_sel_hi, neg_lo or neg_hi"),
        (mods.dpp.is_some(), accepts::DPP, "dpp"),
        (mods.offset != 0, accepts::OFFSET, "offset"),
        (mods.offset0 | mods.offset1 != 0, accepts::OFFSET01, "offset0 or offset1"),
        (mods.byte_sel != 0, accepts::BYTE_SEL, "byte_sel"),
        (mods.offen, accepts::OFFEN, "offen"),
    ];
    match found.iter().find(|(has, flag, _)| *has && op.accepts & flag == 0) {
        Some((_, _, name)) => Err(Fault::Modifier(name)),
        None => Ok(()),
    }
}

fn operand(arg: Arg, literal: Literal, vgprs: u32, sgprs: u32) -> Result<Operand, Fault> {
    match arg {
        Arg::V { first, count, half } => {
            let first = u8::try_from(first).ok().filter(|f| u32::from(*f) + u32::from(count) <= vgprs.min(256));
            let first = first.ok_or_else(|| Fault::RegisterRange(format!("{arg:?} of {vgprs} VGPRs")))?;
            Ok(if half == Half::Whole { Operand::V(first) } else { Operand::Half(first, half == Half::High) })
        }
        Arg::S { first, count } => {
            if first < sreg::VCC && u32::from(first) + u32::from(count) > sgprs {
                return Err(Fault::RegisterRange(format!("{arg:?} of {sgprs} SGPRs")));
            }
            Ok(Operand::S(first))
        }
        Arg::Const(constant) => Ok(Operand::Imm(bits(constant, literal))),
        Arg::Special(special) => Ok(Operand::Special(special)),
        Arg::Off => Ok(Operand::Off),
    }
}

/// Bits of a constant in an operand of that kind.
fn bits(constant: Constant, literal: Literal) -> u64 {
    // 1/(2 pi) is printed with the operand's digits.
    let float = |v: f64| match literal {
        Literal::B32 | Literal::F64ThenB32 => u64::from((v as f32).to_bits()),
        Literal::F16 => to_f16(v).into(),
        // 1/(2 pi) is cut off, the others are exact.
        Literal::Bf16 => u64::from((v as f32).to_bits() >> 16),
        Literal::B64 | Literal::I64 | Literal::F64 => v.to_bits(),
    };
    match (constant, literal) {
        (Constant::Float(v), _) => float(v),
        (Constant::Int(v), Literal::B32 | Literal::F64ThenB32) => u64::from(v as u32),
        (Constant::Int(v), Literal::F16 | Literal::Bf16) => u64::from(v as u16),
        (Constant::Int(v), _) => v.cast_unsigned(),
        (Constant::Bits(v), Literal::F64) if v >> 32 == 0 => v << 32,
        (Constant::Bits(v), Literal::I64) if v >> 32 == 0 => i64::from(v as u32 as i32).cast_unsigned(),
        (Constant::Bits(v), _) => v,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_opcode_stands_once_in_the_table() {
        let mut names: Vec<&str> = ops::all().map(|op| op.name).collect();
        names.sort_unstable();
        let twice: Vec<&[&str]> = names.windows(2).filter(|w| w[0] == w[1]).collect();
        assert!(twice.is_empty(), "{twice:?}");
    }
}
