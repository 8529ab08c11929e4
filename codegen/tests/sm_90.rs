//! PTX: what is in it, and the gates on it.
#![allow(clippy::unwrap_used, clippy::panic)] // helpers outside of test functions

#[path = "kernels/bodies.rs"]
#[allow(dead_code, reason = "bodies of other kernels")]
mod bodies;
#[path = "kernels/packed_bodies.rs"]
#[allow(dead_code, reason = "bodies of other kernels")]
mod packed_bodies;
mod support;

use support::*;
use unglue_codegen::error::CodegenError;
use unglue_codegen::generate::generate;
use unglue_codegen::kp::*;
use unglue_codegen::target::{Target, Trigger};
use unglue_codegen::{gates, llvm, target};
use unglue_ir::graph::Graph;
use unglue_passes::schedule::{Bucket, fit, schedule};

/// The target with a start and a prefetch of its own: the table has what was measured to be best.
fn sm_90(trigger: Trigger, prefetch_bytes: u32) -> Target {
    Target { trigger: Some(trigger), prefetch_bytes, ..*target::by_name("sm_90").unwrap() }
}

fn ptx(p: &Program) -> String {
    ptx_for(p, target::by_name("sm_90").unwrap())
}

fn ptx_for(p: &Program, t: &Target) -> String {
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

/// Where a choice's row starts follows from its number, from the lane and from a loop: LLVM does not see that it is aligned.
#[test]
fn rows_of_choices_load_16_bytes() {
    let c = packed_bodies::Experts { e: 18, ids: 18, s: 5, k: 8, d: 384, n: 2048 };
    let (text, _) = generated(&packed_bodies::down(packed_bodies::FORMATS[0], &c));
    let (wide, narrow) = (text.matches("ld.global.v4.b32").count(), text.matches("ld.global.b16").count());
    assert!(wide >= 4 * 8, "{wide} loads of 16 bytes:\n{text}");
    assert!(narrow < 8, "{narrow} loads of 2 bytes:\n{text}");
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

/// The product of constant weights and what an earlier launch wrote.
fn awaiting(waves: u32) -> Program {
    let mut p = gemv(waves, false);
    let Param::Buffer { access, .. } = &mut p.params[0] else { panic!("{:?}", p.params) };
    *access = Access::Constant;
    p.body.insert(0, Stmt::Await { ahead: vec![] });
    p
}

/// Text with the wait before the first line that starts so.
fn wait_before(text: &str, start: &str) -> String {
    let without = text.replace("griddepcontrol.wait;", "");
    let line = without.lines().find(|line| line.trim_start().starts_with(start)).unwrap();
    without.replacen(line, &format!("\tgriddepcontrol.wait;\n{line}"), 1)
}

#[test]
fn kernels_wait_before_they_read_what_others_write() {
    let p = awaiting(4);
    let text = ptx(&p);
    for once in ["griddepcontrol.wait;", "griddepcontrol.launch_dependents;"] {
        assert_eq!(text.matches(once).count(), 1, "{once}\n{text}");
    }
    let after = |start: Trigger| {
        let text = ptx_for(&p, &sm_90(start, 0));
        text.find("launch_dependents;").unwrap() > text.find("st.global").unwrap()
    };
    assert_eq!([Trigger::Start, Trigger::End].map(after), [false, true]);
    // The read-only cache has the weights; without the await, both.
    let past_it = |text: &str| text.contains("ld.global.v4.b32");
    assert!(past_it(&text) && text.contains("ld.global.nc."), "{text}");
    let text = ptx(&gemv(4, false));
    assert!(!past_it(&text) && !text.contains("griddepcontrol"), "{text}");
}

/// A value of the weights is loaded before the wait, and stays there.
#[test]
fn weights_may_come_before_the_wait() {
    let mut b = B::new("early", 1);
    let (w, x) = (b.buffer(Mem::F32, Access::Constant), b.buffer(Mem::F32, Access::Read));
    let (y, zero) = (b.buffer(Mem::F32, Access::Write), b.i32(0));
    let weight = b.load(w, Addr::Contig { base: zero }, Bound::All, 1);
    b.push(Stmt::Await { ahead: vec![] });
    let v = b.load(x, Addr::Contig { base: zero }, Bound::All, 1);
    let sum = b.bin(Bin::Add, weight, v);
    b.store(y, Addr::Contig { base: zero }, Bound::All, sum);
    let p = b.finish();
    let text = ptx(&p);
    let at = |what: &str| text.find(what).unwrap_or_else(|| panic!("{what}\n{text}"));
    assert!(at("griddepcontrol.wait;") < at("ld.global.b32"), "{text}");
    assert_eq!(refused(&wait_before(&text, "st.global"), &p), "await");
}

/// Every way past the wait is found: no wait, or another; an end, a load, a store, an atomic or a branch in front of it.
#[test]
fn gates_find_ways_past_the_wait() {
    let p = awaiting(4);
    let text = ptx(&p);
    let wait = "griddepcontrol.wait;";
    let before = |what: &str| text.replacen(wait, &format!("{what}\n\t{wait}"), 1);
    let load = text.lines().find(|line| line.contains("ld.global.v4.b32")).unwrap();
    let cases = [
        ("await", text.replace(wait, "")),
        ("await", text.replacen(wait, "@%p1 griddepcontrol.wait;", 1)),
        ("await", before(wait)),
        ("await", before("ret;")),
        ("await", before("@%p1 ret;")),
        ("await", before(load.trim())),
        ("await", before("st.global.b32 [%rd1], %r1;")),
        ("await", before("atom.global.add.u32 %r1, [%rd1], 1;")),
        ("await", before("red.global.add.u32 [%rd1], 1;")),
        ("await", before("ld.b32 %r1, [%rd99];")),
        ("await", text.replacen(wait, &format!("@%p1 bra $past;\n\t{wait}\n$past:"), 1)),
        ("await", before("bra.uni $nowhere;")),
        ("await", wait_before(&text, "st.global")),
        ("await", wait_before(&text, "ret;")),
        ("await-cached", text.replacen("ld.global.v4.b32", "ld.global.nc.v4.b32", 1)),
    ];
    for (gate, changed) in cases {
        assert_ne!(changed, text, "{gate}: nothing was changed");
        assert_eq!(refused(&changed, &p), gate, "{changed}");
    }
    // Both ways of a branch come by it; a store to shared memory harms nobody.
    for harmless in [
        text.replacen(wait, &format!("@%p1 bra $next;\n\tmov.u32 %r1, 0;\n$next:\n\t{wait}"), 1),
        before("st.shared.b32 [%r1], %r1;"),
    ] {
        gates::check(harmless.as_bytes(), &p, target::by_name("sm_90").unwrap()).unwrap();
    }
}

/// The text of a generated kernel, and the prefetches in its program.
fn generated(graph: &Graph) -> (String, usize) {
    let bucket = Bucket { rows_max: 1, seqs_max: 1, pools: 0, fit: &fit::GFX1201 };
    let s = schedule(graph, &bucket).unwrap();
    let p = generate("kernel", graph, &s, bucket.pools).unwrap().program;
    let prefetches = p.to_text().matches("  prefetch param").count();
    for other in ["x86-64", "gfx1201"] {
        let text = llvm::ir_text(&p, target::by_name(other).unwrap()).unwrap();
        assert!(!text.contains("asm"), "{text}");
    }
    (ptx_for(&p, &sm_90(Trigger::End, 4096)), prefetches)
}

/// Weight rows that follow from the wave's number are asked for before the wait; experts' do not.
#[test]
fn weights_are_asked_for_before_the_wait() {
    let ask = "cp.async.bulk.prefetch.L2.global";
    for (graph, weights) in [(bodies::matmul(33, 512), 2), (bodies::batch_matmul(4, 512, 40, false), 1)] {
        let (text, prefetches) = generated(&graph);
        assert_eq!((prefetches, text.matches(ask).count()), (weights, weights), "{text}");
        let at = |what: &str| text.find(what).unwrap();
        assert!(at(ask) < at("griddepcontrol.wait;") && at("griddepcontrol.wait;") < at("ld.global"), "{text}");
    }
    for graph in [bodies::experts_up(8, 6, 2, 640, 64), bodies::batch_matmul(4, 512, 40, true)] {
        let (text, prefetches) = generated(&graph);
        assert_eq!((prefetches, text.contains(ask), text.contains("griddepcontrol.wait;")), (0, false, true), "{text}");
    }
}

/// A branch in front of the wait and one behind it that ask the same stay two: there is one wait.
#[test]
fn branches_meet_at_the_wait() {
    let mut b = B::new("meets", 1);
    let (w, y) = (b.buffer(Mem::F32, Access::Constant), b.buffer(Mem::F32, Access::Write));
    let (Place::Buffer(from), bytes, base, value) = (w, b.scalar(), b.i32(0), b.f32(1.0)) else { panic!() };
    let has = b.cmp(Cmp::Gt, bytes, base);
    let (ahead, ()) = b.nest(|b| {
        b.branch(
            has,
            |b| {
                b.push(Stmt::Prefetch { from, base, bytes, share: 1 });
                vec![]
            },
            |_| vec![],
        );
    });
    b.push(Stmt::Await { ahead });
    b.branch(
        has,
        |b| {
            b.store(y, Addr::Uniform { base }, Bound::All, value);
            vec![]
        },
        |_| vec![],
    );
    let text = ptx_for(&b.finish(), &sm_90(Trigger::Start, 4096));
    assert_eq!(text.matches("griddepcontrol.wait;").count(), 1, "{text}");
}

/// A workgroup's waves share what the target takes; a share below 16 bytes is none.
#[test]
fn prefetches_are_bounded() {
    let most = 4096;
    for (share, bound) in [(1, most), (3, most / 3 / 16 * 16), (most, 0)] {
        let mut b = B::new("asks", 1);
        let (Place::Buffer(w), zero) = (b.buffer(Mem::F32, Access::Constant), b.i32(0)) else { panic!() };
        let bytes = b.scalar();
        b.push(Stmt::Await { ahead: vec![Stmt::Prefetch { from: w, base: zero, bytes, share }] });
        let p = b.finish();
        let text = ptx_for(&p, &sm_90(Trigger::End, most));
        let bounded = text.lines().any(|line| line.contains("min.s32") && line.ends_with(&format!(", {bound};")));
        assert_eq!((text.contains("prefetch"), bound > 0), (bound > 0, bounded), "{text}");
    }
}
