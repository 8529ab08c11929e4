//! LLVM's disassembler.
#![allow(unsafe_code)] // calls of LLVM's C interface

use std::ffi::{CStr, CString, c_char};

use inkwell::llvm_sys::disassembler::{
    LLVMCreateDisasmCPUFeatures, LLVMDisasmContextRef, LLVMDisasmDispose, LLVMDisasmInstruction,
};

use crate::target::Target;

/// Longest printed instruction that is asked for.
const TEXT_BYTES: usize = 512;
/// More bytes than any instruction has.
const PADDING: usize = 32;

/// A disassembler, freed when dropped.
struct Disasm(LLVMDisasmContextRef);

impl Drop for Disasm {
    fn drop(&mut self) {
        // SAFETY: the context was created below and is disposed of once.
        unsafe { LLVMDisasmDispose(self.0) }
    }
}

/// Calls `visit` with the offset and text of each instruction. An instruction that the disassembler cannot print is an
/// error that names its offset and bytes.
pub fn each(code: &[u8], t: &Target, mut visit: impl FnMut(usize, &str)) -> Result<(), String> {
    super::emit::initialize();
    let name = |text: &str| CString::new(text).map_err(|error| error.to_string());
    let (triple, cpu, features) = (name(t.triple)?, name(t.cpu)?, name(t.features)?);
    // SAFETY: C strings that live through the call; no callbacks.
    let context = unsafe {
        LLVMCreateDisasmCPUFeatures(
            triple.as_ptr(),
            cpu.as_ptr(),
            features.as_ptr(),
            std::ptr::null_mut(),
            0,
            None,
            None,
        )
    };
    if context.is_null() {
        return Err(format!("LLVM has no disassembler for {}", t.triple));
    }
    let disasm = Disasm(context);
    // LLVM 22.1.8 crashes on an instruction whose literal is cut off: it always finds more bytes.
    let (mut bytes, mut offset) = ([code, &[0; PADDING]].concat(), 0);
    while offset < code.len() {
        let rest = bytes.split_at_mut(offset).1;
        let mut text: [c_char; TEXT_BYTES] = [0; TEXT_BYTES];
        // SAFETY: pointers and lengths of live buffers; LLVM ends the text with a zero within its length.
        let (size, text) = unsafe {
            let size = LLVMDisasmInstruction(
                disasm.0,
                rest.as_mut_ptr(),
                rest.len() as u64,
                offset as u64,
                text.as_mut_ptr(),
                TEXT_BYTES,
            );
            (size, CStr::from_ptr(text.as_ptr()).to_string_lossy().trim().to_owned())
        };
        let left = code.len() - offset;
        if size == 0 || size > left || text.is_empty() || text.starts_with(".long") {
            let word: Vec<String> = rest.iter().take(left.min(12)).map(|byte| format!("{byte:02x}")).collect();
            return Err(format!("bytes {} at offset 0x{offset:x} are no instruction", word.join(" ")));
        }
        visit(offset, &text);
        offset += size;
    }
    Ok(())
}
