//! sm_90: LLVM's NVPTX backend.
//!
//! Text of the PTX assembly language, which the driver compiles when it loads a kernel. Shared arrays lie in the launch's
//! dynamic shared memory at the offsets of [`crate::kp::shared_offsets`]: static arrays may not pass 48 KiB.

use super::finish::Scope;
use super::gpu::Gpu;
use super::walk::Emit;
use crate::kp::{LANES, SHARED_ALIGN, finish_slot, shared_bytes, shared_offsets};

const SHARED: &str = "@shared_memory";
const FINISH_SLOT: &str = "%finish";
/// Every lane of a wave takes part in what crosses lanes.
const ALL: &str = "-1";

pub(crate) static NVPTX: Gpu = Gpu {
    define: ["ptx_kernel", ""],
    attributes,
    arrays: shared,
    // Workgroups are spread over the multiprocessors of one device.
    scope: Scope { sync: "syncscope(\"device\") ", pointer: "ptr addrspace(1)" },
    group: "llvm.nvvm.read.ptx.sreg.ctaid.",
    thread: "llvm.nvvm.read.ptx.sreg.tid.x",
    shared: "%sh",
    slot: FINISH_SLOT,
    barrier,
    uniform,
    xor_lane,
    lower_lane,
    read_lane,
    ballot,
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
