//! PTX: what is in it, and the gates on it.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

mod support;

use support::*;
use unglue_codegen::error::CodegenError;
use unglue_codegen::kp::*;
use unglue_codegen::{gates, llvm, target};

fn ptx(p: &Program) -> String {
    let t = target::by_name("sm_90").unwrap();
    let code = llvm::compile_object(p, t).unwrap_or_else(|e| panic!("{e}\n{}", llvm::ir_text(p, t).unwrap()));
    gates::check(&code, p, t).unwrap_or_else(|e| panic!("{e}\n{}", String::from_utf8_lossy(&code)));
    String::from_utf8(code).unwrap()
}

/// The gate that refuses a text.
fn refused(text: &str, p: &Program) -> &'static str {
    match gates::check(text.as_bytes(), p, target::by_name("sm_90").unwrap()) {
        Err(CodegenError::Gate { gate, .. }) => gate,
        other => panic!("{other:?}\n{text}"),
    }
}

/// A row of k elements a wave, with k known: rows start at multiples of 16 bytes.
fn rows(k: i32) -> Program {
    let mut b = B::new("rows", 4);
    let (w, y) = (b.buffer(Mem::Bf16, Access::Read), b.buffer(Mem::F32, Access::Write));
    let (g, wave, n, k) = (b.group(), b.wave(), b.i32(4), b.i32(k));
    let row = b.bin(Bin::Mul, g, n);
    let row = b.bin(Bin::Add, row, wave);
    let start = b.bin(Bin::Mul, row, k);
    let (zero, fzero) = (b.i32(0), b.f32(0.0));
    let init = b.splat(fzero, 8);
    let step = b.i32(256);
    let acc = b.for_loop(zero, k, step, &[init], |b, i, acc| {
        let at = b.bin(Bin::Add, start, i);
        let a = b.load(w, Addr::Contig { base: at }, Bound::All, 8);
        vec![b.fma(a, a, acc[0])]
    });
    let first = b.component(acc[0], 0);
    let total = b.reduce(Reduce::Add, first);
    b.store(y, Addr::Uniform { base: row }, Bound::All, total);
    b.finish()
}

/// The backend splits an access whose alignment it cannot see: LLVM must find that of a row from the row's length.
#[test]
fn vectors_of_eight_bf16_load_16_bytes() {
    let text = ptx(&rows(4096));
    assert!(text.contains("ld.global.nc.v4.b32"), "{text}");
    assert!(!text.contains("ld.global.nc.b16"), "{text}");
    assert!(text.contains(".reqntid 128"), "{text}");
    // Rows that are no multiple of 16 bytes long are not 16 bytes apart.
    assert!(!ptx(&rows(4097)).contains("v4.b32"));
}

#[test]
fn lanes_exchange_by_shuffles_of_the_whole_wave() {
    let text = ptx(&gemv(2, true));
    assert_eq!(text.matches("shfl.sync.bfly.b32").count(), 5, "{text}");
}

/// Every way in which the text could break what numerics P1 or a launch needs is found by the gate of that name.
#[test]
fn gates_find_what_was_changed() {
    let p = gemv(4, false);
    let text = ptx(&p);
    let cases = [
        ("target", text.replace(".target sm_90", ".target sm_80")),
        ("entry", text.replace(".entry gemv(", ".entry gemm(")),
        ("rounding", text.replacen("add.rn.f32", "add.f32", 1)),
        ("rounding", text.replacen("add.rn.f32", "add.rn.ftz.f32", 1)),
        ("rounding", text.replacen("fma.rn.f32", "fma.rz.f32", 1)),
        ("rounding", text.replacen("add.rn.f32", "div.approx.f32", 1)),
        ("scratch", text.replacen(".reg .b32", ".local .align 4 .b8 __local_depot0[16];\n\t.reg .b32", 1)),
        ("call", text.replacen("\tret;", "\tcall.uni expf, (%r1);\n\tret;", 1)),
    ];
    for (gate, changed) in cases {
        assert_ne!(changed, text, "{gate}: nothing was changed");
        assert_eq!(refused(&changed, &p), gate);
    }
    let not_text = gates::check(&[0xff, 0xfe], &p, target::by_name("sm_90").unwrap());
    assert!(matches!(not_text, Err(CodegenError::Gate { gate: "format", .. })), "{not_text:?}");
}
