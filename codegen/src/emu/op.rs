//! The shape of the instruction table: one [`Op`] per opcode.

use super::env::Env;
use super::fault::Fault;
use super::step::Step;
use super::wave::Wave;
use crate::counts::Class;

/// Executes one instruction.
pub type Run = fn(&mut Wave, &mut Env<'_>, &Step) -> Result<Flow, Fault>;

/// What follows an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    Next,
    /// To the step of that index.
    Jump(usize),
    /// Not possible yet: this instruction again, after other waves have run.
    Blocked,
    /// The wave ends.
    End,
}

/// How constants among the sources become bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Literal {
    /// 32 bits; floats as f32.
    B32,
    /// 16 bits; floats as f16.
    F16,
    /// 16 bits; floats as bf16.
    Bf16,
    /// 64 bits; integers sign-extended, literals zero-extended, floats as f64.
    B64,
    /// As `B64` with literals sign-extended from 32 bits.
    I64,
    /// As `B64` with literals as the upper half.
    F64,
    /// The first source as `F64`, the others as `B32`.
    F64ThenB32,
}

/// Modifiers that an op honours: an instruction that has any other is refused.
pub mod accepts {
    pub const NONE: u16 = 0;
    /// `-x`, `|x|`.
    pub const NEG_ABS: u16 = 1;
    pub const CLAMP: u16 = 1 << 1;
    pub const OP_SEL: u16 = 1 << 3;
    /// `op_sel_hi`, `neg_lo`, `neg_hi` of packed ops, and `op_sel`.
    pub const PACKED: u16 = 1 << 4;
    pub const DPP: u16 = 1 << 5;
    /// `offset:`, `th:`, `scope:`.
    pub const OFFSET: u16 = 1 << 6;
    /// `offset0:`, `offset1:`.
    pub const OFFSET01: u16 = 1 << 7;
    pub const BYTE_SEL: u16 = 1 << 8;
    pub const OFFEN: u16 = 1 << 9;
    /// What float VALU ops of one result take.
    pub const FLOAT: u16 = NEG_ABS | CLAMP | DPP;
}

/// One opcode.
pub struct Op {
    /// Mnemonic without encoding suffixes.
    pub name: &'static str,
    pub class: Class,
    /// How many of the printed operands are destinations; they come first.
    pub dsts: u8,
    /// Modifiers that it honours, of [`accepts`].
    pub accepts: u16,
    pub literal: Literal,
    pub run: Run,
}

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
