//! gfx12: LLVM's AMDGPU backend.
//!
//! Uniform values are uniform for LLVM too: whatever its analysis cannot see to be so goes through `readfirstlane`.

use super::finish::Scope;
use super::gpu::{CONSTANT, Gpu};
use super::gpu_tiles::{SUMS, Tiles, operand_ty};
use super::ir::Lty;
use super::pure::mem_name;
use super::walk::Emit;
use crate::kp::{Half, finish_slot};

/// DPP control: lane l reads lane l ^ n of its row of 16.
const ROW_XMASK: u32 = 0x160;
/// No kernel has a name with a dot.
const FINISH_SLOT: &str = "@.finish";

pub(crate) static AMDGPU: Gpu = Gpu {
    define: ["protected amdgpu_kernel", " !reqd_work_group_size !0"],
    attributes,
    // A weight row and the rows of four operands take 20 a round: four rounds, with what they are widened to, 229 VGPRs in
    // all, and six waves a SIMD instead of ten with two (LLVM 22).
    aligned_accesses: false,
    loaded_registers: 48,
    arrays: shared,
    // Workgroups are spread over the compute units of one device.
    scope: Scope { sync: "syncscope(\"agent\") ", pointer: "ptr addrspace(1)" },
    group: "llvm.amdgcn.workgroup.id.",
    thread: "llvm.amdgcn.workitem.id.x",
    shared: "@sh",
    slot: FINISH_SLOT,
    barrier,
    awaited: CONSTANT,
    prefetch: None,
    // The emulator has no time.
    clock: None,
    // Launches start when the one before them has ended.
    trigger: |_| {},
    await_earlier: |_| {},
    uniform,
    xor_lane,
    lower_lane,
    read_lane,
    ballot,
    tiles: Tiles { runs: tile_runs, sums: tile_sums, mma: tile_mma },
};

fn attributes(threads: u32) -> String {
    format!(
        "attributes #0 = {{ nounwind \"amdgpu-flat-work-group-size\"=\"{threads},{threads}\" \
         \"uniform-work-group-size\"=\"true\" }}\n\
         !0 = !{{i32 {threads}, i32 1, i32 1}}\n\
         !llvm.module.flags = !{{!1}}\n\
         !1 = !{{i32 1, !\"amdhsa_code_object_version\", i32 500}}\n"
    )
}

/// Shared arrays, one after the other.
fn shared(e: &mut Emit<'_>) {
    let p = e.p;
    for (i, shared) in p.shared.iter().enumerate().filter(|(_, s)| s.over.is_none()) {
        let ty = mem_name(shared.mem);
        // The backend takes no other initialiser here; contents are undefined at the start anyway.
        e.ir.global(format_args!("@sh{i} = internal addrspace(3) global [{} x {ty}] poison, align 16", shared.len));
    }
    if finish_slot(p) {
        e.ir.global(format_args!("{FINISH_SLOT} = internal addrspace(3) global i32 poison, align 4"));
    }
}

/// For a workgroup of one wave LLVM drops the barrier and keeps the fences.
fn barrier(e: &mut Emit<'_>) {
    e.ir.line("fence syncscope(\"workgroup\") release");
    e.ir.call_void("llvm.amdgcn.s.barrier", &[]);
    e.ir.line("fence syncscope(\"workgroup\") acquire");
}

fn uniform(e: &mut Emit<'_>, ty: &str, x: &str) -> String {
    let suffix = if ty == "float" { "f32" } else { ty };
    e.ir.call(ty, &format!("llvm.amdgcn.readfirstlane.{suffix}"), &[(ty.to_owned(), x.to_owned())])
}

/// Across the rows of 16 a `permlanex16`; inside a row DPP for floats, which folds into the next instruction. Integers
/// take `permlane16`: LLVM 22.1.8 folds DPP into a 64-bit multiply-add that does not encode.
fn xor_lane(e: &mut Emit<'_>, bits: &str, mask: u32, float: bool) -> String {
    let i32_arg = |v: String| ("i32".to_owned(), v);
    if mask < 16 && float {
        let args = [
            i32_arg("poison".to_owned()),
            i32_arg(bits.to_owned()),
            i32_arg((ROW_XMASK + mask).to_string()),
            i32_arg("15".to_owned()),
            i32_arg("15".to_owned()),
            ("i1".to_owned(), "true".to_owned()),
        ];
        return e.ir.call("i32", "llvm.amdgcn.update.dpp.i32", &args);
    }
    // Nibble l of the selector is the lane of the row that lane l reads.
    let select = |from: u32| (from..from + 8).fold(0u32, |all, l| all | (l ^ (mask & 15)) << (4 * (l - from)));
    let args = [
        i32_arg("poison".to_owned()),
        i32_arg(bits.to_owned()),
        i32_arg(select(0).to_string()),
        i32_arg(select(8).to_string()),
        ("i1".to_owned(), "false".to_owned()),
        ("i1".to_owned(), "false".to_owned()),
    ];
    let name = if mask < 16 { "llvm.amdgcn.permlane16.i32" } else { "llvm.amdgcn.permlanex16.i32" };
    e.ir.call("i32", name, &args)
}

/// Not DPP: see [`xor_lane`].
fn lower_lane(e: &mut Emit<'_>, x: &str, step: u32) -> String {
    let from = e.ir.inst(format_args!("sub i32 %lane, {step}"));
    let byte = e.ir.inst(format_args!("shl i32 {from}, 2"));
    let args = [("i32".to_owned(), byte), ("i32".to_owned(), x.to_owned())];
    e.ir.call("i32", "llvm.amdgcn.ds.bpermute", &args)
}

fn read_lane(e: &mut Emit<'_>, ty: &str, bits: &str, index: &str) -> String {
    let args = [(ty.to_owned(), bits.to_owned()), ("i32".to_owned(), index.to_owned())];
    e.ir.call(ty, &format!("llvm.amdgcn.readlane.{ty}"), &args)
}

fn ballot(e: &mut Emit<'_>, x: &str) -> String {
    e.ir.call("i32", "llvm.amdgcn.ballot.i32", &[("i1".to_owned(), x.to_owned())])
}

/// Lanes l and l + 16 share line l; the instruction's own k's lie otherwise, alike in A and B (`gpu_tiles`).
fn tile_runs(e: &mut Emit<'_>) -> Vec<[String; 2]> {
    let line = e.ir.inst("and i32 %lane, 15");
    let half = e.ir.inst("lshr i32 %lane, 4");
    let k = e.ir.inst(format_args!("shl i32 {half}, 3"));
    vec![[line, k]]
}

/// Lane l has column l % 16, and rows 8 (l / 16) to 8 (l / 16) + 7.
fn tile_sums(e: &mut Emit<'_>) -> Vec<[String; 2]> {
    let column = e.ir.inst("and i32 %lane, 15");
    let half = e.ir.inst("lshr i32 %lane, 4");
    let first = e.ir.inst(format_args!("shl i32 {half}, 3"));
    (0..8).map(|i| [e.ir.inst(format_args!("add i32 {first}, {i}")), column.clone()]).collect()
}

/// LLVM takes bf16 as i16 here.
fn tile_mma(e: &mut Emit<'_>, half: Half, [a, b, sums]: [&str; 3]) -> String {
    let ty = operand_ty(half);
    let name = match half {
        Half::Bf16 => "llvm.amdgcn.wmma.f32.16x16x16.bf16.v8f32.v8i16",
        Half::F16 => "llvm.amdgcn.wmma.f32.16x16x16.f16.v8f32.v8f16",
    };
    let arg = |ty: Lty, x: &str| (ty.to_string(), x.to_owned());
    e.ir.call(SUMS, name, &[arg(ty, a), arg(ty, b), arg(SUMS, sums)])
}
