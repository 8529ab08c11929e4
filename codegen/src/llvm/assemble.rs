//! LLVM's assembler: instructions as text to machine code, for tests and tools.

use std::fmt::Write;

use object::{Object, ObjectSection};

use super::emit;
use crate::error::CodegenError;
use crate::target::Target;

/// Assembles lines of text; the result is the code alone.
///
/// # Errors
/// What the assembler says.
pub fn assemble(text: &str, t: &Target) -> Result<Vec<u8>, CodegenError> {
    let mut module = String::new();
    for line in text.lines() {
        let escaped = line.replace('\\', "\\5C").replace('"', "\\22");
        let _ = writeln!(module, "module asm \"{escaped}\"");
    }
    let object = emit::object(&module, "assembly", t)?;
    let failed = |message: String| CodegenError::Llvm {
        kernel: "assembly".into(),
        target: t.name,
        stage: "assembler",
        message,
    };
    let file = object::File::parse(&*object).map_err(|e| failed(e.to_string()))?;
    let section = file.section_by_name(".text").ok_or_else(|| failed("no code came out".into()))?;
    section.data().map(<[u8]>::to_vec).map_err(|e| failed(e.to_string()))
}
