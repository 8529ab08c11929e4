//! Code generation: kernel programs ([`kp`]) lowered through LLVM to one file per target.
//!
//! [`llvm::compile_object`] turns a verified program into an object file, [`link::shared_object`] objects into what a
//! device loads, and [`gates::check`] inspects the machine code that came out. [`target`] holds the facts about each
//! target in one table; no other place asks which target it is.

pub mod bundle;
pub mod check;
pub mod emu;
pub mod error;
pub mod gates;
pub mod generate;
pub mod isa;
pub mod kp;
pub mod link;
pub mod llvm;
mod notes;
pub mod target;

pub use error::CodegenError;
