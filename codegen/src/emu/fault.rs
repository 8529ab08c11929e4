//! What execution can find wrong.

/// A fault of one instruction.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("unknown instruction; it is not in the emulator's table (codegen/ISA.md)")]
    UnknownInstruction,
    #[error("cannot decode: {0}")]
    Decode(String),
    #[error("modifier {0} is not modelled for this instruction")]
    Modifier(&'static str),
    #[error("operand {0} is not modelled for this instruction")]
    Operand(String),
    #[error("register {0} lies beyond those that the kernel's descriptor asks for")]
    RegisterRange(String),
    #[error("access of {bytes} bytes at {place} {why}")]
    Memory { bytes: u32, place: String, why: &'static str },
    #[error("access of {bytes} bytes at LDS byte {offset}, of {len} that the kernel has")]
    LdsBounds { bytes: u32, offset: u64, len: u32 },
    #[error("access of {bytes} bytes at scratch byte {offset}, of {len} that a lane has")]
    ScratchBounds { bytes: u32, offset: u64, len: u32 },
    #[error("misaligned access of {bytes} bytes at {place}")]
    Misaligned { bytes: u32, place: String },
    #[error("LDS race: byte {offset} is touched by waves {first} and {second} with no barrier between")]
    LdsRace { offset: u32, first: u32, second: u32 },
    #[error("wait at a barrier that this wave has not signalled")]
    WaitWithoutSignal,
    #[error("signal at a barrier that this wave has signalled already and not waited for")]
    SignalTwice,
    #[error("barrier deadlock: {0}")]
    Deadlock(String),
    #[error("branch to byte {0:#x}, where no instruction begins")]
    BranchTarget(i64),
    #[error("{0} instructions were not enough (step limit)")]
    StepLimit(u64),
    #[error("trap")]
    Trap,
}

/// A fault with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{fault}; instruction `{text}` at {pc:#x}, workgroup {group:?}, wave {wave}")]
pub struct Trap {
    pub fault: Fault,
    /// The instruction as LLVM prints it.
    pub text: String,
    /// Byte offset in the kernel.
    pub pc: u32,
    pub group: [u32; 3],
    pub wave: u32,
}
