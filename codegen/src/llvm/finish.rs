//! Memory order between workgroups: the arrival of [`crate::kp::Stmt::GridFinish`] and loads of what was exchanged.
//!
//! Fences stand by themselves around a monotonic `atomicrmw`: not every backend keeps the order of an `atomicrmw acq_rel`
//! (NVPTX drops it). Exchanged data is stored plainly, before the release, and loaded atomically, after the acquire: gfx12
//! would read a uniform address through the scalar cache otherwise, which no invalidate of the acquire covers.

use super::walk::{Backend, Emit, Result};
use crate::kp::{Access, Param, Program, Val};

/// How a target names the scope that all workgroups of a launch share.
#[derive(Debug)]
pub(crate) struct Scope {
    /// `syncscope(...)` with a space behind it; empty where LLVM's own default is meant.
    pub sync: &'static str,
    /// Pointer type of a buffer.
    pub pointer: &'static str,
}

/// Workgroups are calls on the threads of one process.
pub(crate) static HOST: Scope = Scope { sync: "", pointer: "ptr" };

impl Scope {
    /// Everything that the thread knows of is there for whoever acquires later.
    pub(crate) fn release(&self, e: &mut Emit<'_>) {
        e.ir.line(format_args!("fence {}release", self.sync));
    }

    /// What others released before is there for the thread.
    pub(crate) fn acquire(&self, e: &mut Emit<'_>) {
        e.ir.line(format_args!("fence {}acquire", self.sync));
    }

    /// Adds 1 to a counter; gives the value before.
    pub(crate) fn count(&self, e: &mut Emit<'_>, counter: &str) -> String {
        e.ir.inst(format_args!("atomicrmw add {} {counter}, i32 1 {}monotonic, align 4", self.pointer, self.sync))
    }

    /// Sets a counter back, for the next launch.
    pub(crate) fn reset(&self, e: &mut Emit<'_>, counter: &str) {
        e.ir.line(format_args!("store atomic i32 0, {} {counter} {}monotonic, align 4", self.pointer, self.sync));
    }

    /// Loads one element of an exchange buffer.
    pub(crate) fn load(&self, e: &mut Emit<'_>, elem: &'static str, ptr: &str) -> String {
        e.ir.inst(format_args!("load atomic {elem}, {} {ptr} {}monotonic, align 4", self.pointer, self.sync))
    }
}

/// Whether parameter `i` is a buffer whose loads go through [`Scope::load`].
pub(crate) fn exchanged(p: &Program, i: u32) -> bool {
    matches!(p.params.get(i as usize), Some(Param::Buffer { access: Access::Exchange, .. }))
}

/// Where a workgroup arrives: counter buffer, and the operands of its element and of the number of arrivals.
pub(crate) struct Arrival {
    pub counter: u32,
    pub index: String,
    pub arrivals: String,
}

impl Arrival {
    pub(crate) fn new(e: &Emit<'_>, counter: u32, index: Val, arrivals: Val) -> Result<Self> {
        Ok(Self { counter, index: e.op(index)?, arrivals: e.op(arrivals)? })
    }
}

/// Arrives, and starts the block of the workgroup that is the last to do so; gives the label of what follows, for
/// [`close`].
pub(crate) fn open(e: &mut Emit<'_>, b: &mut dyn Backend, at: &Arrival) -> String {
    let pointer = b.scope().pointer;
    let counter = e.ir.inst(format_args!("getelementptr i32, {pointer} %p{}, i32 {}", at.counter, at.index));
    let before = b.arrive(e, &counter);
    let others = e.ir.inst(format_args!("sub i32 {}, 1", at.arrivals));
    let is_last = e.ir.inst(format_args!("icmp eq i32 {before}, {others}"));
    let (last, join) = (e.ir.label("last"), e.ir.label("join"));
    e.ir.cond_br(&is_last, &last, &join);
    e.ir.start(&last);
    b.acquire(e, &counter);
    join
}

/// Ends the last workgroup's block.
pub(crate) fn close(e: &mut Emit<'_>, join: &str) {
    e.ir.br(join);
    e.ir.start(join);
}
