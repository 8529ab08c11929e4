//! gfx1201 code objects: what is in them, the gates, and LLVM's ways of failing.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

mod support;

use support::*;
use unglue_codegen::error::CodegenError;
use unglue_codegen::kp::*;
use unglue_codegen::llvm::disasm;
use unglue_codegen::{gates, link, llvm, target};

fn gfx() -> &'static target::Target {
    target::by_name("gfx1201").unwrap()
}

/// Instructions of a kernel, by their printed text.
fn instructions(code: &[u8], name: &str) -> Vec<String> {
    use object::{Object, ObjectSection, ObjectSymbol};
    let file = object::File::parse(code).unwrap();
    let symbol = file.symbols().find(|s| s.name() == Ok(name)).unwrap();
    let section = file.section_by_name(".text").unwrap();
    let start = (symbol.address() - section.address()) as usize;
    let text = &section.data().unwrap()[start..start + symbol.size() as usize];
    let mut all = vec![];
    disasm::each(text, gfx(), |_, text| all.push(text.to_owned())).unwrap();
    all
}

#[test]
fn vectors_of_eight_bf16_load_as_b128() {
    for counted in [false, true] {
        let (code, r) = gfx1201(&gemv(4, counted));
        let all = instructions(&code, "gemv");
        let wide = all.iter().filter(|i| i.starts_with("global_load_b128")).count();
        assert!(wide >= 2, "{all:#?}");
        assert!(!all.iter().any(|i| i.starts_with("scratch_")));
        assert_eq!((r.kernarg_bytes, r.wavefront, r.occupancy), (28, 32, 16), "{r:?}");
        if !counted {
            assert!(!all.iter().any(|i| i.starts_with("global_load_u16")), "{all:#?}");
        }
        // The butterfly: one step across rows, four inside.
        assert_eq!(all.iter().filter(|i| i.starts_with("v_permlanex16")).count(), 1);
        assert_eq!(all.iter().filter(|i| i.contains("row_xmask")).count(), 4);
    }
}

#[test]
fn barriers_are_there() {
    let mut b = B::new("fenced", 2);
    let to = b.buffer(Mem::I32, Access::Write);
    let sh = b.shared(Mem::I32, 64);
    let (w, n, zero) = (b.wave(), b.i32(32), b.i32(0));
    let base = b.bin(Bin::Mul, w, n);
    let l = b.lane_id();
    b.store(sh, Addr::Contig { base }, Bound::All, l);
    b.barrier();
    let v = b.load(sh, Addr::Contig { base: zero }, Bound::All, 1);
    b.store(to, Addr::Contig { base }, Bound::All, v);
    let (code, r) = gfx1201(&b.finish());
    let all = instructions(&code, "fenced").join("\n");
    let place = |what: &str| all.find(what).unwrap_or_else(|| panic!("no {what} in\n{all}"));
    let order = ["ds_store", "s_wait_dscnt", "s_barrier_signal", "s_barrier_wait", "global_inv", "ds_load"].map(place);
    assert!(order.is_sorted(), "{all}");
    assert_eq!(r.lds_bytes, 256);
}

#[test]
fn read_write_buffers_are_not_noalias() {
    let mut b = B::new("alias", 1);
    let _ =
        (b.buffer(Mem::F32, Access::Read), b.buffer(Mem::F32, Access::ReadWrite), b.buffer(Mem::F32, Access::Write));
    let text = llvm::ir_text(&b.finish(), gfx()).unwrap();
    assert_eq!(text.matches("noalias").count(), 1);
}

#[test]
fn too_much_lds_is_an_error_of_llvm() {
    let mut b = B::new("lds", 1);
    let to = b.buffer(Mem::F32, Access::Write);
    let sh = b.shared(Mem::F32, 17_500);
    let (zero, far) = (b.i32(0), b.scalar());
    let v = b.load(sh, Addr::Contig { base: far }, Bound::All, 1);
    b.store(sh, Addr::Contig { base: zero }, Bound::All, v);
    b.store(to, Addr::Contig { base: zero }, Bound::All, v);
    let p = b.finish();
    let error = llvm::compile_object(&p, gfx()).unwrap_err();
    assert!(matches!(error, CodegenError::Verify { rule: "shared-size", .. }), "{error}");
    let error = llvm::compile_unverified(&p, gfx()).unwrap_err();
    assert!(matches!(error, CodegenError::Llvm { .. }), "{error}");
    assert!(error.to_string().contains("`lds`") && error.to_string().contains("exceeds limit"), "{error}");
}

#[test]
fn an_abort_of_llvm_comes_back() {
    let bad = "define amdgpu_kernel void @bad(ptr addrspace(1) %p) {\n\
               %x = load float, ptr addrspace(1) %p\n\
               %y = call float @llvm.amdgcn.tanh.f32(float %x)\n\
               store float %y, ptr addrspace(1) %p\n\
               ret void\n}\n\
               declare float @llvm.amdgcn.tanh.f32(float)\n";
    for _ in 0..5 {
        let error = llvm::compile_text(bad, "bad", gfx()).unwrap_err();
        assert!(matches!(error, CodegenError::LlvmAbort { .. }), "{error}");
        assert!(error.to_string().contains("`bad`") && error.to_string().contains("Cannot select"), "{error}");
        let _ = gfx1201(&gemv(1, false));
    }
}

#[test]
fn text_that_is_no_llvm_is_an_error() {
    for (text, stage) in [("define void @x( {", "parser"), ("define void @x() {\n %a = add i32 %a, 1\n ret void }", "")]
    {
        let error = llvm::compile_text(text, "x", gfx()).unwrap_err();
        assert!(matches!(&error, CodegenError::Llvm { .. }) && error.to_string().contains(stage), "{error}");
    }
}

#[test]
fn builds_are_equal_on_every_thread() {
    let build = || {
        ["x86-64", "gfx1201"].map(|name| {
            let t = target::by_name(name).unwrap();
            let object = llvm::compile_object(&gemv(4, true), t).unwrap();
            link::shared_object(&[("gemv".to_owned(), object)], t).unwrap()
        })
    };
    let first = build();
    let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(build)).collect();
    for thread in threads {
        assert!(thread.join().unwrap() == first);
    }
}

#[test]
fn host_objects_share_one_file() {
    let t = target::by_name("x86-64").unwrap();
    let mut other = gemv(1, false);
    other.name = "other".to_owned();
    let objects = [gemv(1, true), other.clone()].map(|p| (p.name.clone(), llvm::compile_object(&p, t).unwrap()));
    let so = link::shared_object(&objects, t).unwrap();
    assert!(gates::check(&so, &other, t).unwrap().code_bytes > 100);
    let error = link::shared_object(&objects, gfx()).unwrap_err();
    assert!(error.to_string().contains("one per file"), "{error}");
}

#[test]
fn undefined_symbols_do_not_link() {
    let t = target::by_name("x86-64").unwrap();
    let text = "define void @calls() {\n call void @nowhere()\n ret void\n}\ndeclare void @nowhere()\n";
    let object = llvm::compile_text(text, "calls", t).unwrap();
    let error = link::shared_object(&[("calls".to_owned(), object)], t).unwrap_err();
    assert!(error.to_string().contains("nowhere"), "{error}");
}

fn gate_of(code: &[u8], p: &Program) -> String {
    match gates::check(code, p, gfx()).unwrap_err() {
        CodegenError::Gate { gate, .. } => gate.to_owned(),
        other => panic!("{other}"),
    }
}

#[test]
fn gates_name_what_fails() {
    let p = gemv(1, false);
    let (code, _) = gfx1201(&p);
    assert_eq!(gate_of(b"no elf", &p), "format");
    let mut renamed = p.clone();
    renamed.name = "other".to_owned();
    assert_eq!(gate_of(&code, &renamed), "entry");
    let mut params = p.clone();
    params.params.swap(2, 3);
    assert_eq!(gate_of(&code, &params), "kernarg");
    params.params.pop();
    assert_eq!(gate_of(&code, &params), "kernarg");
    let host = target::by_name("x86-64").unwrap();
    let object = llvm::compile_object(&p, host).unwrap();
    assert_eq!(gate_of(&link::shared_object(&[("gemv".to_owned(), object)], host).unwrap(), &p), "target");
}

#[test]
fn spills_and_scratch_are_gates() {
    let p = gemv(1, false);
    let squeeze = |attribute: &str| {
        let text =
            llvm::ir_text(&p, gfx()).unwrap().replace("#0 = { nounwind", &format!("#0 = {{ nounwind {attribute}"));
        let object = llvm::compile_text(&text, "gemv", gfx()).unwrap();
        link::shared_object(&[("gemv".to_owned(), object)], gfx()).unwrap()
    };
    assert_eq!(gate_of(&squeeze("\"amdgpu-num-vgpr\"=\"24\""), &p), "spills");
}

#[test]
fn bytes_that_are_no_instruction_are_named() {
    let p = gemv(1, false);
    let (mut code, _) = gfx1201(&p);
    let end = code.windows(4).rposition(|w| w == [0, 0, 0xb0, 0xbf]).unwrap(); // s_endpgm
    code[end..end + 4].copy_from_slice(&[0xff, 0xff, 0xff, 0xff]);
    assert_eq!(gate_of(&code, &p), "disassembly");
}

#[test]
fn shared_vectors_are_wide() {
    for (mem, vec) in [(Mem::F32, 4), (Mem::Bf16, 8)] {
        let mut b = B::new("wide", 2);
        let (x, to) = (b.buffer(mem, Access::Read), b.buffer(mem, Access::Write));
        let sh = b.shared(mem, 64 * u32::from(vec));
        let (w, n, zero) = (b.wave(), b.i32(32 * i32::from(vec)), b.i32(0));
        let base = b.bin(Bin::Mul, w, n);
        let v = b.load(x, Addr::Contig { base }, Bound::All, vec);
        b.store(sh, Addr::Contig { base }, Bound::All, v);
        b.barrier();
        let v = b.load(sh, Addr::Contig { base: zero }, Bound::All, vec);
        b.store(to, Addr::Contig { base }, Bound::All, v);
        let (code, _) = gfx1201(&b.finish());
        let all = instructions(&code, "wide");
        for wide in ["global_load_b128", "ds_store_b128", "ds_load_b128", "global_store_b128"] {
            assert!(all.iter().any(|i| i.starts_with(wide)), "{wide}: {all:#?}");
        }
    }
}
