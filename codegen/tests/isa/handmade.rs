//! Code objects from assembly: a kernel with the descriptor that a test wants.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

use unglue_codegen::target::Target;
use unglue_codegen::{link, llvm, target};

/// A linked code object with kernel `k`. `directives` are lines inside of `.amdhsa_kernel`; `data` is more assembly.
pub fn object(code: &str, directives: &str, data: &str) -> Vec<u8> {
    object_of(target::by_name("gfx1201").unwrap(), code, directives, data)
}

/// As [`object`], of a target with features of its own.
pub fn object_of(t: &Target, code: &str, directives: &str, data: &str) -> Vec<u8> {
    let denormals = ".amdhsa_float_denorm_mode_32";
    let keep = if directives.contains(denormals) { String::new() } else { format!("{denormals} 3\n") };
    let text = format!(
        ".text\n.globl k\n.p2align 8\n.type k,@function\nk:\n{code}\n.Lend:\n.size k, .Lend-k\n\
         .section .rodata,\"a\",@progbits\n.p2align 6\n.amdhsa_kernel k\n.amdhsa_next_free_vgpr 16\n\
         .amdhsa_next_free_sgpr 32\n{keep}{directives}\n.end_amdhsa_kernel\n{data}"
    );
    let mut module = String::new();
    for line in text.lines() {
        let escaped = line.replace('\\', "\\5C").replace('"', "\\22");
        module.push_str(&format!("module asm \"{escaped}\"\n"));
    }
    let object = llvm::compile_text(&module, "k", t).unwrap_or_else(|e| panic!("{e}\n{text}"));
    link::shared_object(&[("k".to_owned(), object)], t).unwrap()
}
