//! Lowering to LLVM, and LLVM itself.

mod amdgpu;
pub mod assemble;
pub mod disasm;
mod emit;
mod finish;
mod gpu;
mod gpu_mem;
mod gpu_tiles;
mod ir;
mod nvptx;
mod pure;
mod walk;
mod x86;
mod x86_exchange;
mod x86_mem;
mod x86_tiles;
mod x86_waves;

use crate::cache::Cache;
use crate::error::CodegenError;
use crate::kp::{self, Program};
use crate::target::{Lowering, Target};

/// Verifies a program and compiles it to an object file, or to assembly where the target
/// is packed so. Safe to call from several threads; the result depends on the
/// arguments alone.
pub fn compile_object(p: &Program, t: &Target) -> Result<Vec<u8>, CodegenError> {
    compile_cached(p, t, None)
}

/// As [`compile_object`], with what `cache` has of it.
pub fn compile_cached(p: &Program, t: &Target, cache: Option<&Cache>) -> Result<Vec<u8>, CodegenError> {
    kp::verify::verify(p)?;
    let text = ir_text(p, t)?;
    let make = || emit::object(&text, &p.name, t);
    cache.map_or_else(make, |cache| cache.object(&text, t, make))
}

/// LLVM's version, as its library says it.
pub(crate) fn version() -> String {
    emit::version()
}

/// LLVM's text form of a program, as the lowering writes it (before LLVM's passes).
pub fn ir_text(p: &Program, t: &Target) -> Result<String, CodegenError> {
    match t.lowering {
        Lowering::HostVector => x86::lower(p),
        Lowering::Amdgpu => gpu::lower(p, &amdgpu::AMDGPU, t),
        Lowering::Nvptx => gpu::lower(p, &nvptx::NVPTX, t),
    }
}

/// Compiles without the verifier: for tests of what happens when LLVM refuses.
#[doc(hidden)]
pub fn compile_unverified(p: &Program, t: &Target) -> Result<Vec<u8>, CodegenError> {
    emit::object(&ir_text(p, t)?, &p.name, t)
}

/// Compiles LLVM's text form: for tests of what happens when LLVM refuses.
#[doc(hidden)]
pub fn compile_text(text: &str, kernel: &str, t: &Target) -> Result<Vec<u8>, CodegenError> {
    emit::object(text, kernel, t)
}
