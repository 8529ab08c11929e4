//! x86-64 loads of what other workgroups stored: one atomic load per element.

use super::finish::HOST;
use super::ir::Lty;
use super::walk::{Emit, LoadAt, Result};
use super::x86::X86;
use super::x86_mem::{Access, lane_indices, tail};
use crate::kp::{Addr, Bound, LANES};

/// A loop over the elements: those that the bound leaves out are 0 and not accessed. Elements are 4 bytes wide, so that
/// registers hold what memory does.
pub(crate) fn load(b: &mut X86, e: &mut Emit<'_>, access: &Access, at: &LoadAt) -> Result<String> {
    let all = access.all();
    if let Addr::Uniform { base } = at.addr {
        let ptr = access.at(e, base)?;
        return Ok(HOST.load(e, all.elem, &ptr));
    }
    let index = lane_indices(e, at.addr, access.vec)?;
    let (values, indices) = (tail(b, e), e.ir.alloca(format_args!("<{LANES} x i64>"), 64));
    e.ir.line(format_args!("store {all} zeroinitializer, ptr {values}, align 64"));
    e.ir.line(format_args!("store <{LANES} x i64> {index}, ptr {indices}, align 64"));
    let mask = element_mask(e, access, at.bound)?;
    let l = e.ir.begin_loop(&all.lanes.to_string());
    let (set, next) = (e.ir.label("set"), e.ir.label("next"));
    match mask {
        None => e.ir.br(&set),
        Some(mask) => {
            let slot = e.ir.inst(format_args!("getelementptr i8, ptr {mask}, i32 {}", l.index));
            let byte = e.ir.inst(format_args!("load i8, ptr {slot}"));
            let bit = e.ir.inst(format_args!("trunc i8 {byte} to i1"));
            e.ir.cond_br(&bit, &set, &next);
        }
    }
    e.ir.start(&set);
    let lane = e.ir.inst(format_args!("udiv i32 {}, {}", l.index, access.vec));
    let component = e.ir.inst(format_args!("urem i32 {}, {}", l.index, access.vec));
    let slot = e.ir.inst(format_args!("getelementptr i64, ptr {indices}, i32 {lane}"));
    let first = e.ir.inst(format_args!("load i64, ptr {slot}, align 8"));
    let from = e.ir.inst(format_args!("getelementptr {}, ptr {}, i64 {first}", all.elem, access.ptr));
    let from = e.ir.inst(format_args!("getelementptr {}, ptr {from}, i32 {component}", all.elem));
    let raw = HOST.load(e, all.elem, &from);
    let to = e.ir.inst(format_args!("getelementptr {}, ptr {values}, i32 {}", all.elem, l.index));
    e.ir.line(format_args!("store {} {raw}, ptr {to}, align 4", all.elem));
    e.ir.br(&next);
    e.ir.start(&next);
    e.ir.end_loop(&l);
    Ok(e.ir.inst(format_args!("load {all}, ptr {values}, align 64")))
}

/// Bytes in the stack frame whose lowest bits say which elements exist; `None` if all do.
fn element_mask(e: &mut Emit<'_>, access: &Access, bound: Bound) -> Result<Option<String>> {
    let mask = match bound {
        Bound::All => return Ok(None),
        Bound::Mask(mask) => {
            let mask = e.op(mask)?;
            access.spread(e, &mask)
        }
        Bound::Count(count) => {
            let count = e.op(count)?;
            access.below(e, &count)
        }
    };
    let (bits, bytes) = (access.all().of("i1"), Lty::vector("i8", access.all().lanes));
    let wide = e.ir.inst(format_args!("zext {bits} {mask} to {bytes}"));
    let slot = e.ir.alloca(bytes, 64);
    e.ir.line(format_args!("store {bytes} {wide}, ptr {slot}, align 64"));
    Ok(Some(slot))
}
