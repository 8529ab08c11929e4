//! Code generation: kernel programs ([`kp`]) lowered through LLVM to one file per target.
//!
//! [`llvm::compile_object`] turns a verified program into an object file, [`link::shared_object`] objects into what a
//! device loads, and [`gates::check`] inspects the machine code that came out. [`target`] holds the facts about each
//! target in one table; no other place asks which target it is. Without the feature `llvm` there are the kernel programs, the
//! check of a kernel on a device, and the counts of the emulator.

#[cfg(feature = "llvm")]
pub mod bundle;
#[cfg(feature = "llvm")]
pub mod cache;
pub mod check;
pub mod counts;
#[cfg(feature = "llvm")]
pub mod emu;
pub mod error;
#[cfg(feature = "llvm")]
pub mod gates;
pub mod generate;
#[cfg(feature = "llvm")]
pub mod isa;
pub mod kp;
#[cfg(feature = "llvm")]
pub mod link;
#[cfg(feature = "llvm")]
pub mod llvm;
#[cfg(feature = "llvm")]
mod notes;
pub mod target;

pub use error::CodegenError;
