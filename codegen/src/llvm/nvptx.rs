//! sm_90: LLVM's NVPTX backend.
//!
//! Text of the PTX assembly language, which the driver compiles when it loads a kernel. Shared arrays lie in the launch's
//! dynamic shared memory at the offsets of [`crate::kp::shared_offsets`]: static arrays may not pass 48 KiB.

use super::finish::Scope;
use super::gpu::Gpu;
use super::gpu_tiles::{SUMS, Tiles, operand_ty};
use super::ir::Lty;
use super::walk::Emit;
use crate::kp::{Access, Half, LANES, Param, SHARED_ALIGN, finish_slot, shared_bytes, shared_offsets};

const SHARED: &str = "@shared_memory";
const FINISH_SLOT: &str = "%finish";
/// Every lane of a wave takes part in what crosses lanes.
const ALL: &str = "-1";

pub(crate) static NVPTX: Gpu = Gpu {
    define: ["ptx_kernel", ""],
    attributes,
    // Four rows of `lm_head` and the operand take 20 a round: 354 us with four rounds in one, 454 with two (H200).
    loaded_registers: 128,
    // PTX ISA: an address is a multiple of the access' size. Where LLVM had to work that out itself, the down projection of int4
    // experts read its rows in 16-bit pieces: 152 us (H200).
    aligned_accesses: true,
    arrays: shared,
    // Workgroups are spread over the multiprocessors of one device.
    scope: Scope { sync: "syncscope(\"device\") ", pointer: "ptr addrspace(1)" },
    group: "llvm.nvvm.read.ptx.sreg.ctaid.",
    thread: "llvm.nvvm.read.ptx.sreg.tid.x",
    shared: "%sh",
    slot: FINISH_SLOT,
    barrier,
    // Other launches write it until the wait: it is no constant of the kernel, nor may the read-only cache have it.
    awaited: "noalias ",
    prefetch: Some(prefetch),
    clock: Some(clock),
    trigger,
    await_earlier,
    uniform,
    xor_lane,
    lower_lane,
    read_lane,
    ballot,
    tiles: Tiles { runs: tile_runs, sums: tile_sums, mma: tile_mma },
};

fn attributes(threads: u32) -> String {
    format!("attributes #0 = {{ nounwind \"nvvm.reqntid\"=\"{threads}\" }}\n")
}

/// Pointers to the shared arrays.
fn shared(e: &mut Emit<'_>) {
    let p = e.p;
    if shared_bytes(p) == 0 {
        return;
    }
    e.ir.global(format_args!("{SHARED} = external addrspace(3) global [0 x i8], align {SHARED_ALIGN}"));
    let at = |offset: u64| format!("getelementptr i8, ptr addrspace(3) {SHARED}, i32 {offset}");
    for (i, offset) in shared_offsets(p).into_iter().enumerate() {
        e.ir.named(&format!("%sh{i}"), at(offset));
    }
    if finish_slot(p) {
        e.ir.named(FINISH_SLOT, at(shared_bytes(p) - SHARED_ALIGN));
    }
}

fn barrier(e: &mut Emit<'_>) {
    e.ir.call_void("llvm.nvvm.barrier.cta.sync.aligned.all", &[arg("0")]);
}

/// To L2, without waiting for it.
fn prefetch(e: &mut Emit<'_>, pointer: &str, bytes: &str) {
    e.ir.line(format_args!(
        "call void asm sideeffect \"cp.async.bulk.prefetch.L2.global [$0], $1;\", \"l,r\"(ptr addrspace(1) {pointer}, i32 {bytes})"
    ));
}

fn clock(e: &mut Emit<'_>) -> String {
    e.ir.inst("call i64 asm sideeffect \"mov.u64 $0, %clock64;\", \"=l,~{memory}\"()")
}

/// Lets the next launch's workgroups start as soon as all of this one have come here, or have ended.
fn trigger(e: &mut Emit<'_>) {
    e.ir.line("call void asm sideeffect \"griddepcontrol.launch_dependents;\", \"~{memory}\"()");
}

/// Waits for all launches before this one.
///
/// LLVM has the wait as an intrinsic without effects on memory, which loads may pass. Here it may write: to memory in general,
/// and to the `noalias` buffers that it is given. One place is enough for it: what branches before it meets there.
fn await_earlier(e: &mut Emit<'_>) {
    let reads = |(i, param): (usize, &Param)| {
        matches!(param, Param::Buffer { access: Access::Read, .. }).then(|| format!("ptr addrspace(1) %p{i}"))
    };
    let buffers: Vec<String> = e.p.params.iter().enumerate().filter_map(reads).collect();
    let constraints = "l,".repeat(buffers.len());
    e.ir.line(format_args!(
        "call void asm sideeffect \"griddepcontrol.wait;\", \"{constraints}~{{memory}}\"({}) noduplicate",
        buffers.join(", ")
    ));
}

/// Nothing to tell: all registers are a lane's own.
fn uniform(_: &mut Emit<'_>, _: &str, x: &str) -> String {
    x.to_owned()
}

fn arg(v: impl ToString) -> (String, String) {
    ("i32".to_owned(), v.to_string())
}

fn xor_lane(e: &mut Emit<'_>, bits: &str, mask: u32, _: bool) -> String {
    e.ir.call("i32", "llvm.nvvm.shfl.sync.bfly.i32", &[arg(ALL), arg(bits), arg(mask), arg(LANES - 1)])
}

fn lower_lane(e: &mut Emit<'_>, x: &str, step: u32) -> String {
    e.ir.call("i32", "llvm.nvvm.shfl.sync.up.i32", &[arg(ALL), arg(x), arg(step), arg(0)])
}

/// 64 bits go in two halves.
fn read_lane(e: &mut Emit<'_>, ty: &str, bits: &str, index: &str) -> String {
    let half = |e: &mut Emit<'_>, x: &str| {
        e.ir.call("i32", "llvm.nvvm.shfl.sync.idx.i32", &[arg(ALL), arg(x), arg(index), arg(LANES - 1)])
    };
    if ty == "i32" {
        return half(e, bits);
    }
    let low = e.ir.inst(format_args!("trunc i64 {bits} to i32"));
    let top = e.ir.inst(format_args!("lshr i64 {bits}, 32"));
    let high = e.ir.inst(format_args!("trunc i64 {top} to i32"));
    let (low, high) = (half(e, &low), half(e, &high));
    let (low, high) =
        (e.ir.inst(format_args!("zext i32 {low} to i64")), e.ir.inst(format_args!("zext i32 {high} to i64")));
    let high = e.ir.inst(format_args!("shl i64 {high}, 32"));
    e.ir.inst(format_args!("or i64 {low}, {high}"))
}

fn ballot(e: &mut Emit<'_>, x: &str) -> String {
    e.ir.call("i32", "llvm.nvvm.vote.ballot.sync", &[arg(ALL), ("i1".to_owned(), x.to_owned())])
}

/// Lanes 4 g to 4 g + 3 share lines g and g + 8; the instruction's own k's lie otherwise, alike in A and B (`gpu_tiles`).
fn tile_runs(e: &mut Emit<'_>) -> Vec<[String; 2]> {
    let line = e.ir.inst("lshr i32 %lane, 2");
    let low = e.ir.inst("and i32 %lane, 3");
    let k = e.ir.inst(format_args!("shl i32 {low}, 2"));
    let second = e.ir.inst(format_args!("add i32 {line}, 8"));
    vec![[line, k.clone()], [second, k]]
}

/// Two results of 16 rows and 8 columns: lane 4 g + t has rows g and g + 8, columns 2 t and 2 t + 1 of each.
fn tile_sums(e: &mut Emit<'_>) -> Vec<[String; 2]> {
    let row = e.ir.inst("lshr i32 %lane, 2");
    let second = e.ir.inst(format_args!("add i32 {row}, 8"));
    let low = e.ir.inst("and i32 %lane, 3");
    let column = e.ir.inst(format_args!("shl i32 {low}, 1"));
    let at = |i: u32| (if i & 2 == 0 { row.clone() } else { second.clone() }, 8 * (i / 4) + i % 2);
    let places: Vec<(String, u32)> = (0..8).map(at).collect();
    places.into_iter().map(|(row, step)| [row, e.ir.inst(format_args!("add i32 {column}, {step}"))]).collect()
}

/// Two products of 16 rows, 8 columns and 16 k's. Registers of A: rows g and g + 8 at the first pair of k's, then at the
/// second; of B: its two pairs of k's.
fn tile_mma(e: &mut Emit<'_>, half: Half, [a, b, sums]: [&str; 3]) -> String {
    let (name, register) = match half {
        Half::Bf16 => ("llvm.nvvm.mma.m16n8k16.row.col.bf16", Lty::scalar("i32")),
        Half::F16 => ("llvm.nvvm.mma.m16n8k16.row.col.f32.f32", Lty::vector("half", 2)),
    };
    let mut registers = |x: &str| -> Vec<(String, String)> {
        let ty = operand_ty(half);
        let pair = |e: &mut Emit<'_>, i: u32| {
            let pair = e.ir.shuffle(ty, x, "poison", 2 * i..2 * i + 2);
            let value = match half {
                Half::Bf16 => e.ir.inst(format_args!("bitcast <2 x i16> {pair} to i32")),
                Half::F16 => pair,
            };
            (register.to_string(), value)
        };
        (0..4).map(|i| pair(e, i)).collect()
    };
    let (a, b) = (registers(a), registers(b));
    let result = "{ float, float, float, float }";
    let mut parts = Vec::new();
    for n in 0..2 {
        let mut args = vec![a[0].clone(), a[2].clone(), a[1].clone(), a[3].clone()];
        args.extend([b[2 * n].clone(), b[2 * n + 1].clone()]);
        for i in 0..4 {
            let sum = e.ir.inst(format_args!("extractelement {SUMS} {sums}, i32 {}", 4 * n + i));
            args.push(("float".to_owned(), sum));
        }
        let four = e.ir.call(result, name, &args);
        parts.extend((0..4).map(|i| e.ir.inst(format_args!("extractvalue {result} {four}, {i}"))));
    }
    e.ir.build(SUMS, &parts)
}
