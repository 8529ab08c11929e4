//! gfx12: one thread per lane, LLVM's AMDGPU backend.
//!
//! Entry: an `amdgpu_kernel` of `waves * 32` threads whose arguments are the program's parameters in order. Uniform
//! values are uniform for LLVM too: whatever its analysis cannot see to be so goes through `readfirstlane`.

use std::fmt::Write;

use super::amdgpu_mem;
use super::finish::{AMDGPU, Scope};
use super::ir::Lty;
use super::pure::{mem_name, min_max};
use super::walk::{Backend, Emit, LoadAt, Result, StoreAt};
use crate::kp::{Access, Expr, For, LANES, Param, Program, Reduce, Stmt, Val, finish_slot};

/// DPP control: lane l reads lane l ^ n of its row of 16.
const ROW_XMASK: u32 = 0x160;

/// Rounds of a loop that LLVM may put in one. Unrolled fully, a contraction of 4,096 keeps its whole operand in registers
/// (256 VGPRs and spills, measured with LLVM 22); four b128 loads of a weight stream in flight are enough.
const UNROLL: u32 = 4;
/// Statements of a body that is unrolled: larger ones have their own parallelism (chains, rows).
const SMALL_BODY: usize = 32;
/// Where one lane leaves a counter's old value for the other waves. No kernel has a name with a dot.
const FINISH_SLOT: &str = "@.finish";
/// Number of the first loop's metadata.
const FIRST_LOOP: u32 = 10;

#[derive(Default)]
pub(crate) struct Amdgpu {
    /// Loops so far.
    loops: u32,
}

/// The module text of a program.
pub(crate) fn lower(p: &Program) -> Result<String> {
    let mut e = Emit::new(p, 1);
    prologue(&mut e);
    e.stmts(&mut Amdgpu::default(), &p.body)?;
    let threads = p.waves * LANES;
    let header = format!(
        "define protected amdgpu_kernel void @{}({}) #0 !reqd_work_group_size !0",
        p.name,
        arguments(p).join(", ")
    );
    let mut tail = String::new();
    let _ = writeln!(
        tail,
        "attributes #0 = {{ nounwind \"amdgpu-flat-work-group-size\"=\"{threads},{threads}\" \
         \"uniform-work-group-size\"=\"true\" }}\n\
         !0 = !{{i32 {threads}, i32 1, i32 1}}\n\
         !llvm.module.flags = !{{!1}}\n\
         !1 = !{{i32 1, !\"amdhsa_code_object_version\", i32 500}}\n\
         !2 = !{{!\"llvm.loop.unroll.count\", i32 {UNROLL}}}\n\
         !3 = !{{!\"llvm.loop.unroll.disable\"}}"
    );
    Ok(e.ir.finish(&header, &tail))
}

/// Kernel arguments. Only buffers that nobody writes are `noalias readonly`: that lets LLVM use scalar loads for them.
fn arguments(p: &Program) -> Vec<String> {
    let argument = |(i, param): (usize, &Param)| match param {
        Param::Buffer { access, .. } => {
            let alias = match access {
                Access::Read => "noalias readonly ",
                Access::Write | Access::ReadWrite | Access::Exchange | Access::Counter => "",
            };
            format!("ptr addrspace(1) {alias}captures(none) align 16 %p{i}")
        }
        Param::Scalar { .. } => format!("i32 %s{i}"),
    };
    p.params.iter().enumerate().map(argument).collect()
}

/// Shared arrays, `%lane` and `%wave`.
fn prologue(e: &mut Emit<'_>) {
    let p = e.p;
    for (i, shared) in p.shared.iter().enumerate() {
        let ty = mem_name(shared.mem);
        // The backend takes no other initialiser here; contents are undefined at the start anyway.
        e.ir.global(format_args!("@sh{i} = internal addrspace(3) global [{} x {ty}] poison, align 16", shared.len));
    }
    if finish_slot(p) {
        e.ir.global(format_args!("{FINISH_SLOT} = internal addrspace(3) global i32 poison, align 4"));
    }
    let thread = e.ir.call("i32", "llvm.amdgcn.workitem.id.x", &[]);
    e.ir.named("%thread", format_args!("add i32 {thread}, 0"));
    e.ir.named("%lane", format_args!("and i32 {thread}, {}", LANES - 1));
    let wave = e.ir.inst(format_args!("lshr i32 {thread}, 5"));
    let wave = uniform(e, "i32", &wave);
    e.ir.named("%wave", format_args!("add i32 {wave}, 0"));
}

/// Tells LLVM that a value is the same in all lanes.
pub(crate) fn uniform(e: &mut Emit<'_>, ty: &str, x: &str) -> String {
    let suffix = if ty == "float" { "f32" } else { ty };
    e.ir.call(ty, &format!("llvm.amdgcn.readfirstlane.{suffix}"), &[(ty.to_owned(), x.to_owned())])
}

impl Backend for Amdgpu {
    fn expr(&mut self, e: &mut Emit<'_>, val: Val, expr: &Expr) -> Result<String> {
        match expr {
            Expr::Scalar(i) => Ok(format!("%s{i}")),
            Expr::Group(axis) => {
                let axis = ["x", "y", "z"].get(usize::from(*axis)).ok_or_else(|| e.fault("a fourth grid axis"))?;
                Ok(e.ir.call("i32", &format!("llvm.amdgcn.workgroup.id.{axis}"), &[]))
            }
            Expr::Wave if e.p.waves == 1 => Ok("0".to_owned()),
            Expr::Wave => Ok("%wave".to_owned()),
            Expr::Lane => Ok("%lane".to_owned()),
            Expr::Splat(a, _) => {
                let (ty, x) = (e.ty(val)?, e.op(*a)?);
                Ok(e.ir.broadcast(ty, &x))
            }
            Expr::Component(a, i) => {
                let (ty, x) = (e.ty(*a)?, e.op(*a)?);
                Ok(if ty.lanes == 0 { x } else { e.ir.inst(format_args!("extractelement {ty} {x}, i32 {i}")) })
            }
            Expr::Pack(parts) => {
                let ty = e.ty(val)?;
                let parts = parts.iter().map(|part| e.op(*part)).collect::<Result<Vec<_>>>()?;
                Ok(e.ir.build(ty, &parts))
            }
            Expr::Load { from, addr, bound, vec } => {
                amdgpu_mem::load(e, &LoadAt { from: *from, addr: *addr, bound: *bound, vec: *vec })
            }
            Expr::XorLane(a, mask) => {
                let (ty, x) = (e.ty(*a)?, e.op(*a)?);
                Ok(xor_lane(e, ty, &x, u32::from(*mask)))
            }
            Expr::Reduce(reduce, a) => self::reduce(e, *reduce, *a),
            Expr::ReadLane(a, index) => read_lane(e, *a, *index),
            Expr::ScanAdd(a) => scan(e, *a),
            Expr::Ballot(a) => {
                let x = e.op(*a)?;
                Ok(e.ir.call("i32", "llvm.amdgcn.ballot.i32", &[("i1".to_owned(), x)]))
            }
            _ => Err(e.fault(format!("value {} has an unknown expression", val.0))),
        }
    }

    fn store(&mut self, e: &mut Emit<'_>, at: &StoreAt) -> Result<()> {
        amdgpu_mem::store(e, at)
    }

    /// For a workgroup of one wave LLVM drops the barrier and keeps the fences.
    fn barrier(&mut self, e: &mut Emit<'_>) {
        e.ir.line("fence syncscope(\"workgroup\") release");
        e.ir.call_void("llvm.amdgcn.s.barrier", &[]);
        e.ir.line("fence syncscope(\"workgroup\") acquire");
    }

    fn scope(&self) -> &'static Scope {
        &AMDGPU
    }

    /// Each wave releases its own writes before the barrier. The lane that counts releases once more behind it: what other
    /// waves wrote is then part of its release too, by LLVM's memory model as well as by gfx12's waits.
    fn arrive(&mut self, e: &mut Emit<'_>, counter: &str) -> String {
        let several = e.p.waves > 1;
        AMDGPU.release(e);
        if several {
            self.barrier(e);
        }
        let (one, join, before) = (e.ir.label("one"), e.ir.label("join"), e.ir.block().to_owned());
        let first = e.ir.inst("icmp eq i32 %thread, 0");
        e.ir.cond_br(&first, &one, &join);
        e.ir.start(&one);
        if several {
            AMDGPU.release(e);
        }
        let count = AMDGPU.count(e, counter);
        if several {
            e.ir.line(format_args!("store i32 {count}, ptr addrspace(3) {FINISH_SLOT}, align 4"));
        }
        e.ir.br(&join);
        e.ir.start(&join);
        let count = if several {
            self.barrier(e);
            e.ir.inst(format_args!("load i32, ptr addrspace(3) {FINISH_SLOT}, align 4"))
        } else {
            e.ir.inst(format_args!("phi i32 [ {count}, %{one} ], [ 0, %{before} ]"))
        };
        uniform(e, "i32", &count)
    }

    /// Every wave acquires: each may run on a compute unit of its own. The barrier hands them what the lane that counted
    /// has learnt.
    fn acquire(&mut self, e: &mut Emit<'_>, counter: &str) {
        AMDGPU.acquire(e);
        if e.p.waves > 1 {
            self.barrier(e);
        }
        let (one, join) = (e.ir.label("one"), e.ir.label("join"));
        let first = e.ir.inst("icmp eq i32 %thread, 0");
        e.ir.cond_br(&first, &one, &join);
        e.ir.start(&one);
        AMDGPU.reset(e, counter);
        e.ir.br(&join);
        e.ir.start(&join);
    }

    fn loop_hint(&mut self, e: &mut Emit<'_>, f: &For) -> String {
        let id = FIRST_LOOP + self.loops;
        self.loops += 1;
        let small = f.body.len() <= SMALL_BODY && !f.body.iter().any(|s| matches!(s, Stmt::For(_)));
        let hint = if small { 2 } else { 3 };
        e.ir.global(format_args!("!{id} = distinct !{{!{id}, !{hint}}}"));
        format!(", !llvm.loop !{id}")
    }

    fn defined(&mut self, _: &mut Emit<'_>, _: Val) -> Result<()> {
        Ok(())
    }
}

/// The value of lane ^ mask. Across the rows of 16 a `permlanex16`; inside a row DPP for floats, which folds into the
/// next instruction. Integers take `permlane16`: LLVM 22.1.8 folds DPP into a 64-bit multiply-add that does not encode.
fn xor_lane(e: &mut Emit<'_>, ty: Lty, x: &str, mask: u32) -> String {
    let bits = to_bits(e, ty, x);
    let i32_arg = |v: String| ("i32".to_owned(), v);
    let moved = if mask < 16 && ty.elem == "float" {
        let args = [
            i32_arg("poison".to_owned()),
            i32_arg(bits),
            i32_arg((ROW_XMASK + mask).to_string()),
            i32_arg("15".to_owned()),
            i32_arg("15".to_owned()),
            ("i1".to_owned(), "true".to_owned()),
        ];
        e.ir.call("i32", "llvm.amdgcn.update.dpp.i32", &args)
    } else {
        // Nibble l of the selector is the lane of the row that lane l reads.
        let select = |from: u32| (from..from + 8).fold(0u32, |all, l| all | (l ^ (mask & 15)) << (4 * (l - from)));
        let args = [
            i32_arg("poison".to_owned()),
            i32_arg(bits),
            i32_arg(select(0).to_string()),
            i32_arg(select(8).to_string()),
            ("i1".to_owned(), "false".to_owned()),
            ("i1".to_owned(), "false".to_owned()),
        ];
        let name = if mask < 16 { "llvm.amdgcn.permlane16.i32" } else { "llvm.amdgcn.permlanex16.i32" };
        e.ir.call("i32", name, &args)
    };
    from_bits(e, ty, &moved)
}

fn to_bits(e: &mut Emit<'_>, ty: Lty, x: &str) -> String {
    match ty.elem {
        "float" => e.ir.inst(format_args!("bitcast float {x} to i32")),
        "i1" => e.ir.inst(format_args!("zext i1 {x} to i32")),
        _ => x.to_owned(),
    }
}

fn from_bits(e: &mut Emit<'_>, ty: Lty, bits: &str) -> String {
    match ty.elem {
        "float" => e.ir.inst(format_args!("bitcast i32 {bits} to float")),
        "i1" => e.ir.inst(format_args!("trunc i32 {bits} to i1")),
        _ => bits.to_owned(),
    }
}

/// The butterfly itself; all lanes get the result.
fn reduce(e: &mut Emit<'_>, reduce: Reduce, a: Val) -> Result<String> {
    let (ty, mut x) = (e.ty(a)?, e.op(a)?);
    for step in [16, 8, 4, 2, 1] {
        let other = xor_lane(e, ty, &x, step);
        x = match reduce {
            Reduce::Add if ty.elem == "float" => e.ir.inst(format_args!("fadd float {x}, {other}")),
            Reduce::Add => e.ir.inst(format_args!("add {ty} {x}, {other}")),
            Reduce::Min | Reduce::Max => min_max(e, ty, reduce == Reduce::Max, &x, &other),
        };
    }
    Ok(uniform(e, ty.elem, &x))
}

fn read_lane(e: &mut Emit<'_>, a: Val, index: Val) -> Result<String> {
    let (ty, x, index) = (e.ty(a)?, e.op(a)?, e.op(index)?);
    let bits = to_bits(e, ty, &x);
    let bits_ty = if ty.elem == "i64" { "i64" } else { "i32" };
    let args = [(bits_ty.to_owned(), bits), ("i32".to_owned(), index)];
    let read = e.ir.call(bits_ty, &format!("llvm.amdgcn.readlane.{bits_ty}"), &args);
    Ok(from_bits(e, ty, &read))
}

/// Inclusive sum in five steps, less the lane's own value. Not DPP: see [`xor_lane`].
fn scan(e: &mut Emit<'_>, a: Val) -> Result<String> {
    let own = e.op(a)?;
    let mut x = own.clone();
    for step in [1, 2, 4, 8, 16] {
        let from = e.ir.inst(format_args!("sub i32 %lane, {step}"));
        let byte = e.ir.inst(format_args!("shl i32 {from}, 2"));
        let args = [("i32".to_owned(), byte), ("i32".to_owned(), x.clone())];
        let moved = e.ir.call("i32", "llvm.amdgcn.ds.bpermute", &args);
        let has = e.ir.inst(format_args!("icmp uge i32 %lane, {step}"));
        let term = e.ir.inst(format_args!("select i1 {has}, i32 {moved}, i32 0"));
        x = e.ir.inst(format_args!("add i32 {x}, {term}"));
    }
    Ok(e.ir.inst(format_args!("sub i32 {x}, {own}")))
}
