//! The gfx12 emulator: executes gfx1201 code objects with no card.
//!
//! In: a code object, buffers, a grid. Out: what the kernel writes, what it executed ([`crate::counts::Counts`]), or a [`Trap`] that
//! names the instruction at fault. [`EmuDevice`] is a device of the runtime. Code is decoded once with LLVM's
//! disassembler ([`step`]); what each opcode does stands in a table ([`ops`]), one small function each; a wave's
//! registers are [`wave::Wave`], memory is checked access by access ([`memory`], [`lds`]).
//!
//! Results are immediate and there are no caches: a missing wait, a hazard or a fault of memory order cannot be seen
//! here. The gates ([`crate::gates`]) look for these. `codegen/ISA.md` lists the opcodes.

pub mod approx;
pub mod device;
pub mod env;
pub mod fault;
pub mod group;
pub mod lanes;
pub mod lds;
pub mod load;
pub mod memory;
pub mod op;
pub mod ops;
pub mod page;
pub mod snippet;
pub mod step;
pub mod wave;

pub use device::{EmuDevice, EmuOptions};
pub use fault::{Fault, Trap};
pub use group::Schedule;
