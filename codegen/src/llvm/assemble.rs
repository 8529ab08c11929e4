//! LLVM's assembler: instructions as text to machine code, for tests and tools.

use std::fmt::Write;

use object::{Object, ObjectSection, ObjectSymbol};

use super::emit;
use crate::error::CodegenError;
use crate::target::Target;

/// Ends the text: LLVM pads what follows.
const END: &str = "unglue_end_of_text";

/// Assembles lines of text; the result is the code alone.
///
/// # Errors
/// What the assembler says.
pub fn assemble(text: &str, t: &Target) -> Result<Vec<u8>, CodegenError> {
    let mut module = String::new();
    for line in text.lines().chain([format!("{END}:").as_str()]) {
        let escaped = line.replace('\\', "\\5C").replace('"', "\\22");
        let _ = writeln!(module, "module asm \"{escaped}\"");
    }
    let object = emit::object(&module, "assembly", t)?;
    let failed =
        |message: String| CodegenError::Llvm { kernel: "assembly".into(), target: t.name, stage: "assembler", message };
    let file = object::File::parse(&*object).map_err(|e| failed(e.to_string()))?;
    let section = file.section_by_name(".text").ok_or_else(|| failed("no code came out".into()))?;
    let end = file.symbols().find(|s| s.name() == Ok(END)).map(|s| s.address());
    let end = end.and_then(|end| usize::try_from(end).ok()).ok_or_else(|| failed("no end symbol came out".into()))?;
    let data = section.data().map_err(|e| failed(e.to_string()))?;
    data.get(..end).map(<[u8]>::to_vec).ok_or_else(|| failed(format!("{} bytes of {end} came out", data.len())))
}
