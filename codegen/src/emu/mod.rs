//! The gfx12 emulator: executes gfx1201 code objects with no card.
//!
//! In: a code object, buffers, a grid. Out: what the kernel writes, what it executed ([`Counts`]), or a [`Trap`] that
//! names the instruction at fault. [`EmuDevice`] is a device of the runtime. Code is decoded once with LLVM's
//! disassembler ([`step`]); what each opcode does stands in a table ([`ops`]), one small function each; a wave's
//! registers are [`wave::Wave`], memory is checked access by access ([`memory`], [`lds`]).
//!
//! Results are immediate and there are no caches: a missing wait, a hazard or a fault of memory order cannot be seen
//! here. The gates ([`crate::gates`]) look for these. `codegen/ISA.md` lists the opcodes.

#[cfg(feature = "llvm")]
pub mod approx;
pub mod count;
#[cfg(feature = "llvm")]
pub mod device;
#[cfg(feature = "llvm")]
pub mod env;
#[cfg(feature = "llvm")]
pub mod fault;
#[cfg(feature = "llvm")]
pub mod group;
#[cfg(feature = "llvm")]
pub mod lanes;
#[cfg(feature = "llvm")]
pub mod lds;
#[cfg(feature = "llvm")]
pub mod load;
#[cfg(feature = "llvm")]
pub mod memory;
#[cfg(feature = "llvm")]
pub mod op;
#[cfg(feature = "llvm")]
pub mod ops;
#[cfg(feature = "llvm")]
pub mod page;
#[cfg(feature = "llvm")]
pub mod snippet;
#[cfg(feature = "llvm")]
pub mod step;
#[cfg(feature = "llvm")]
pub mod wave;

pub use count::{Class, CountReport, Counts, Traffic};
#[cfg(feature = "llvm")]
pub use device::{EmuDevice, EmuOptions};
#[cfg(feature = "llvm")]
pub use fault::{Fault, Trap};
#[cfg(feature = "llvm")]
pub use group::Schedule;
