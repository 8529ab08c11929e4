//! GPU loads and stores.
//!
//! Addresses are a uniform pointer plus a 32-bit byte offset per lane (one instruction, no 64-bit vector arithmetic), or
//! 64-bit where the lane index is. Masked accesses stand under a branch, so that nothing is touched for lanes that are
//! off; a count that covers the whole vector (the usual case) is one wide access.

use super::finish;
use super::gpu::Gpu;
use super::ir::Lty;
use super::pure::{mem_name, narrow, widen};
use super::walk::{Emit, LoadAt, Result, StoreAt};
use crate::kp::{Addr, Bound, LANES, Mem, Param, Place, Val};

/// One access of a lane.
struct Access {
    /// Pointer operand with its type.
    ptr: String,
    /// Pointer type.
    space: &'static str,
    mem: Mem,
    vec: u32,
    /// Elements that divide its first one's number, if that is known.
    multiple: u64,
    /// Other workgroups of the launch stored it.
    exchanged: bool,
    gpu: &'static Gpu,
}

/// Bytes: what kernels declare of their buffers.
const BASE_ALIGN: u64 = 16;
const GLOBAL: &str = "ptr addrspace(1)";
const SHARED: &str = "ptr addrspace(3)";

/// Pointer type, pointer and element type of a place.
pub(crate) fn place_pointer(e: &Emit<'_>, gpu: &Gpu, place: Place) -> Result<(&'static str, String, Mem)> {
    match place {
        Place::Buffer(i) => match e.p.params.get(i as usize) {
            Some(Param::Buffer { mem, .. }) => Ok((GLOBAL, format!("%p{i}"), *mem)),
            _ => Err(e.fault(format!("parameter {i} is no buffer"))),
        },
        Place::Shared(i) => match e.p.shared.get(i as usize) {
            Some(shared) => Ok((SHARED, format!("{}{}", gpu.shared, shared.over.unwrap_or(i)), shared.mem)),
            None => Err(e.fault(format!("there is no shared array {i}"))),
        },
    }
}

/// Pointer to the element of a place at a uniform base.
pub(crate) fn pointer(e: &mut Emit<'_>, gpu: &'static Gpu, place: Place, base: Val) -> Result<String> {
    Access::new(e, gpu, place, 1)?.uniform(e, base)
}

impl Access {
    fn new(e: &Emit<'_>, gpu: &'static Gpu, place: Place, vec: u32) -> Result<Self> {
        let (space, ptr, mem) = place_pointer(e, gpu, place)?;
        let exchanged = matches!(place, Place::Buffer(i) if finish::exchanged(e.p, i));
        Ok(Self { ptr, space, mem, vec, multiple: 1, exchanged, gpu })
    }

    /// With what is known of where it starts.
    fn at(self, e: &Emit<'_>, addr: Addr) -> Self {
        let of = |v: Val| e.multiples.get(v.0 as usize).copied().unwrap_or(1);
        let multiple = match addr {
            Addr::Uniform { base } => of(base),
            Addr::Contig { base } => of(base).min(1 << self.vec.trailing_zeros()),
            Addr::Lanes { base, index } => of(base).min(of(index)),
        };
        Self { multiple, ..self }
    }

    /// What a lane moves.
    fn ty(&self, e: &Emit<'_>) -> Lty {
        e.lane_ty(mem_name(self.mem), self.vec)
    }

    /// Alignment of what is accessed as `ty`. Buffers and arrays start on multiples of [`BASE_ALIGN`] at least.
    fn align(&self, ty: Lty) -> u64 {
        let elements = if ty.lanes > 1 { self.multiple } else { 1 };
        (self.mem.bytes() * elements).min(BASE_ALIGN)
    }

    /// Pointer to the element at a uniform base.
    fn uniform(&self, e: &mut Emit<'_>, base: Val) -> Result<String> {
        let (ty, base) = (e.ty(base)?, e.op(base)?);
        Ok(e.ir.inst(format_args!("getelementptr {}, {} {}, {ty} {base}", mem_name(self.mem), self.space, self.ptr)))
    }

    /// Pointer to a lane's first component.
    fn lane(&self, e: &mut Emit<'_>, addr: Addr) -> Result<String> {
        let elem = mem_name(self.mem);
        let (base, ty, index) = match addr {
            Addr::Uniform { base } => return self.uniform(e, base),
            Addr::Contig { base } => {
                (base, Lty::scalar("i32"), e.ir.inst(format_args!("mul nuw nsw i32 %lane, {}", self.vec)))
            }
            Addr::Lanes { base, index } => (base, e.ty(index)?, e.op(index)?),
        };
        let base = self.uniform(e, base)?;
        if self.space == SHARED || ty.elem == "i64" {
            return Ok(e.ir.inst(format_args!("getelementptr {elem}, {} {base}, {ty} {index}", self.space)));
        }
        // A lane index of 32 bits is not negative and its byte offset fits in 32 bits (kp::Addr::Lanes).
        let bytes = e.ir.inst(format_args!("shl nuw i32 {index}, {}", self.mem.bytes().trailing_zeros()));
        let wide = e.ir.inst(format_args!("zext i32 {bytes} to i64"));
        Ok(e.ir.inst(format_args!("getelementptr i8, {} {base}, i64 {wide}", self.space)))
    }

    fn component(&self, e: &mut Emit<'_>, ptr: &str, i: u32) -> String {
        e.ir.inst(format_args!("getelementptr {}, {} {ptr}, i32 {i}", mem_name(self.mem), self.space))
    }

    fn load(&self, e: &mut Emit<'_>, ty: Lty, ptr: &str) -> String {
        if self.exchanged {
            return self.load_exchanged(e, ty, ptr);
        }
        e.ir.inst(format_args!("load {ty}, {} {ptr}, align {}", self.space, self.align(ty)))
    }

    /// LLVM has no atomic load of a vector: one load per component.
    fn load_exchanged(&self, e: &mut Emit<'_>, ty: Lty, ptr: &str) -> String {
        if ty.lanes == 0 {
            return self.gpu.scope.load(e, ty.elem, ptr);
        }
        let mut parts = Vec::new();
        for i in 0..ty.lanes {
            let at = self.component(e, ptr, i);
            parts.push(self.gpu.scope.load(e, ty.elem, &at));
        }
        e.ir.build(ty, &parts)
    }

    fn store(&self, e: &mut Emit<'_>, ty: Lty, raw: &str, ptr: &str) {
        e.ir.line(format_args!("store {ty} {raw}, {} {ptr}, align {}", self.space, self.align(ty)));
    }

    /// Whether component i of the lane is below `count`.
    fn below(&self, e: &mut Emit<'_>, count: &str, i: u32) -> String {
        let first = e.ir.inst(format_args!("mul nuw nsw i32 %lane, {}", self.vec));
        let element = e.ir.inst(format_args!("add nuw nsw i32 {first}, {i}"));
        e.ir.inst(format_args!("icmp slt i32 {element}, {count}"))
    }
}

pub(crate) fn load(e: &mut Emit<'_>, gpu: &'static Gpu, val: Val, at: &LoadAt) -> Result<String> {
    let uniform = matches!(at.addr, Addr::Uniform { .. });
    let access = Access::new(e, gpu, at.from, if uniform { 1 } else { u32::from(at.vec) })?.at(e, at.addr);
    let (ptr, ty) = (access.lane(e, at.addr)?, access.ty(e));
    let raw = match at.bound {
        // An atomic load fills a vector register, whatever its address.
        Bound::All if uniform && access.exchanged => {
            let raw = access.load(e, ty, &ptr);
            (gpu.uniform)(e, ty.elem, &raw)
        }
        Bound::All => access.load(e, ty, &ptr),
        Bound::Mask(mask) => {
            let mask = e.op(mask)?;
            load_if(e, &access, ty, &ptr, &mask)
        }
        Bound::Count(count) => {
            let count = e.op(count)?;
            load_below(e, &access, &ptr, &count)
        }
    };
    let wide = widen(e, access.mem, ty, &raw);
    e.loaded(val, access.mem, &raw, &wide);
    Ok(wide)
}

/// 0 in lanes whose `mask` is off.
fn load_if(e: &mut Emit<'_>, access: &Access, ty: Lty, ptr: &str, mask: &str) -> String {
    let (on, join) = (e.ir.label("on"), e.ir.label("join"));
    let before = e.ir.block().to_owned();
    e.ir.cond_br(mask, &on, &join);
    e.ir.start(&on);
    let raw = access.load(e, ty, ptr);
    e.ir.br(&join);
    e.ir.start(&join);
    e.ir.inst(format_args!("phi {ty} [ {raw}, %{on} ], [ zeroinitializer, %{before} ]"))
}

fn load_below(e: &mut Emit<'_>, access: &Access, ptr: &str, count: &str) -> String {
    let ty = access.ty(e);
    if access.vec == 1 {
        let mask = access.below(e, count, 0);
        return load_if(e, access, ty, ptr, &mask);
    }
    let (whole, part, join) = branch_whole(e, access, count);
    e.ir.start(&whole);
    let all = access.load(e, ty, ptr);
    e.ir.br(&join);
    e.ir.start(&part);
    let mut parts = Vec::new();
    for i in 0..access.vec {
        let (mask, at) = (access.below(e, count, i), access.component(e, ptr, i));
        parts.push(load_if(e, access, Lty::scalar(ty.elem), &at, &mask));
    }
    let some = e.ir.build(ty, &parts);
    let part = e.ir.block().to_owned();
    e.ir.br(&join);
    e.ir.start(&join);
    e.ir.inst(format_args!("phi {ty} [ {all}, %{whole} ], [ {some}, %{part} ]"))
}

/// Branches on whether `count` covers every element of the wave; labels: whole, part, join.
fn branch_whole(e: &mut Emit<'_>, access: &Access, count: &str) -> (String, String, String) {
    let labels = (e.ir.label("whole"), e.ir.label("part"), e.ir.label("join"));
    let covers = e.ir.inst(format_args!("icmp sge i32 {count}, {}", LANES * access.vec));
    e.ir.cond_br(&covers, &labels.0, &labels.1);
    labels
}

pub(crate) fn store(e: &mut Emit<'_>, gpu: &'static Gpu, at: &StoreAt) -> Result<()> {
    let access = Access::new(e, gpu, at.to, e.vec_of(at.value)?)?.at(e, at.addr);
    let (value_ty, value) = (e.ty(at.value)?, e.op(at.value)?);
    let raw = match (at.to, e.copied(at.value, access.mem)?) {
        (Place::Shared(_), Some(raw)) => raw,
        _ => narrow(e, access.mem, value_ty, &value),
    };
    let (ptr, ty) = (access.lane(e, at.addr)?, access.ty(e));
    match (at.addr, at.bound) {
        (Addr::Uniform { .. }, _) => {
            let first = e.ir.inst("icmp eq i32 %lane, 0");
            store_if(e, &access, ty, &raw, &ptr, &first);
        }
        (_, Bound::All) => access.store(e, ty, &raw, &ptr),
        (_, Bound::Mask(mask)) => {
            let mask = e.op(mask)?;
            store_if(e, &access, ty, &raw, &ptr, &mask);
        }
        (_, Bound::Count(count)) => {
            let count = e.op(count)?;
            store_below(e, &access, &raw, &ptr, &count);
        }
    }
    Ok(())
}

fn store_if(e: &mut Emit<'_>, access: &Access, ty: Lty, raw: &str, ptr: &str, mask: &str) {
    let (on, join) = (e.ir.label("on"), e.ir.label("join"));
    e.ir.cond_br(mask, &on, &join);
    e.ir.start(&on);
    access.store(e, ty, raw, ptr);
    e.ir.br(&join);
    e.ir.start(&join);
}

fn store_below(e: &mut Emit<'_>, access: &Access, raw: &str, ptr: &str, count: &str) {
    let ty = access.ty(e);
    if access.vec == 1 {
        let mask = access.below(e, count, 0);
        return store_if(e, access, ty, raw, ptr, &mask);
    }
    let (whole, part, join) = branch_whole(e, access, count);
    e.ir.start(&whole);
    access.store(e, ty, raw, ptr);
    e.ir.br(&join);
    e.ir.start(&part);
    for i in 0..access.vec {
        let (mask, at) = (access.below(e, count, i), access.component(e, ptr, i));
        let one = e.ir.inst(format_args!("extractelement {ty} {raw}, i32 {i}"));
        store_if(e, access, Lty::scalar(ty.elem), &one, &at, &mask);
    }
    e.ir.br(&join);
    e.ir.start(&join);
}
