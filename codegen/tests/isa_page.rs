//! `codegen/ISA.md` says what the emulator's table says.

#![allow(clippy::unwrap_used, reason = "tests")]

use unglue_codegen::emu::page::page;

#[test]
fn isa_page_is_current() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/ISA.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, page()).unwrap();
    }
    let found = std::fs::read_to_string(path).unwrap();
    assert!(found == page(), "codegen/ISA.md is not what the table says; run with UPDATE=1");
}
