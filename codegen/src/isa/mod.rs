//! gfx12 instructions as data: what LLVM's disassembler prints, parsed.
//!
//! In: one printed instruction. Out: an [`Inst`] with its mnemonic freed of encoding suffixes, its operands in printed
//! order (destinations first) and its modifiers. Nothing here knows what an instruction does: that is [`crate::emu`]'s
//! table.

mod parse;

pub use parse::parse;

/// Scalar register numbers as encoded.
pub mod sreg {
    pub const VCC: u8 = 106;
    pub const TTMP0: u8 = 108;
    pub const NULL: u8 = 124;
    pub const M0: u8 = 125;
    pub const EXEC: u8 = 126;
    /// Lanes of a wave.
    pub const LANES: u32 = 32;
    /// Registers in all.
    pub const COUNT: usize = 128;
}

/// Which 16 bits of a register an operand names (`v0.l`, `v0.h`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Half {
    /// No half named.
    #[default]
    Whole,
    Low,
    High,
}

/// A value that the hardware gives by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Special {
    Scc,
    Vccz,
    Execz,
    SharedBase,
    SharedLimit,
    PrivateBase,
    PrivateLimit,
}

/// A constant as printed: what its bits are depends on the operand's type.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Constant {
    /// Decimal: an inline integer, sign-extended to the operand.
    Int(i64),
    /// `0x...`: literal bits.
    Bits(u64),
    /// An inline float.
    Float(f64),
}

/// One operand.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Arg {
    /// `count` vector registers from `first`.
    V {
        first: u16,
        count: u8,
        half: Half,
    },
    /// `count` scalar registers from `first`, numbered as encoded (`vcc_lo` 106, `exec_lo` 126, ...).
    S {
        first: u8,
        count: u8,
    },
    Const(Constant),
    Special(Special),
    /// `off`: no address register.
    Off,
}

/// A lane permutation of source 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dpp {
    QuadPerm([u8; 4]),
    RowShl(u8),
    RowShr(u8),
    RowRor(u8),
    RowMirror,
    RowHalfMirror,
    RowShare(u8),
    RowXmask(u8),
    Dpp8([u8; 8]),
}

/// `row_*`, `bank_mask` and so on, with the assembler's defaults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DppControl {
    pub kind: Dpp,
    pub row_mask: u8,
    pub bank_mask: u8,
    /// `bound_ctrl:1`: a lane without a valid source reads 0 rather than keeping its destination.
    pub bound_ctrl: bool,
    /// Inactive source lanes are valid.
    pub fetch_inactive: bool,
}

/// Multiplier of a float result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Omod {
    #[default]
    None,
    Mul2,
    Mul4,
    Div2,
}

/// Cache scope of a memory operation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Scope {
    #[default]
    Cu,
    Se,
    Dev,
    Sys,
}

/// Modifiers. Bit n of a mask belongs to source n; source 0 follows the destinations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Mods {
    /// `-x` (before it `|x|`) of operand n, counted from the first *printed* operand.
    pub neg: u8,
    /// `|x|`, counted likewise.
    pub abs: u8,
    pub neg_lo: u8,
    pub neg_hi: u8,
    pub op_sel: u8,
    /// Printed `op_sel_hi`; packed ops print it when it is not all ones.
    pub op_sel_hi: Option<u8>,
    pub clamp: bool,
    pub omod: Omod,
    pub dpp: Option<DppControl>,
    pub offset: i32,
    pub offset0: u8,
    pub offset1: u8,
    pub scope: Scope,
    /// `th:TH_ATOMIC_RETURN`: an atomic gives the old value.
    pub returns: bool,
    pub byte_sel: u8,
    /// The vector address of a buffer access is an offset.
    pub offen: bool,
    /// Text after the mnemonic of an instruction whose operands have a syntax of their own (`s_delay_alu`, ...).
    pub free: String,
}

/// A parsed instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Inst {
    /// Mnemonic without `_e32`, `_e64`, `_dpp`, `_dpp8`; `v_dual_x` is `v_x`.
    pub name: String,
    /// Operands in printed order.
    pub args: Vec<Arg>,
    pub mods: Mods,
    /// Second half of a VOPD pair.
    pub pair: Option<Box<Inst>>,
    /// Encoded bytes.
    pub size: u8,
}
