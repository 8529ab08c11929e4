//! Matrix tiles on x86-64: 256 floats in row order (A and the sums by rows, B by k), multiplied by a loop of fma in
//! ascending k. The loops are functions of the module: a product written out is 256 vector operations.

use super::ir::Lty;
use super::pure::{mem_name, widen_text};
use super::walk::{Emit, Result};
use super::x86::X86;
use super::x86_mem::place;
use crate::kp::{Half, Mem, Place, Side, TILE, TileAt, Val};

/// A tile of any kind.
pub(crate) const TILE_TY: Lty = Lty::vector("float", TILE * TILE);
/// One row of it.
const ROW: Lty = Lty::vector("float", TILE);
/// The intrinsic that tile functions share.
const FMA: &str = "llvm.fma.v16f32";
/// Functions of the lowering; no kernel has a name with a dot.
const ATTRIBUTES: &str = "nounwind noinline \"no-builtins\"";

/// What the module has of tile functions, and the stack slots that they work on.
#[derive(Default)]
pub(crate) struct TileCode {
    functions: Vec<String>,
    slots: Vec<String>,
}

impl TileCode {
    /// Stack slot `i` of one tile.
    fn slot(&mut self, e: &mut Emit<'_>, i: usize) -> String {
        while self.slots.len() <= i {
            self.slots.push(e.ir.alloca(TILE_TY, 64));
        }
        self.slots.get(i).cloned().unwrap_or_default()
    }

    /// Defines a function once.
    fn function(&mut self, e: &mut Emit<'_>, name: &str, text: impl FnOnce() -> String) {
        if !self.functions.iter().any(|f| f == name) {
            e.ir.global(text());
            self.functions.push(name.to_owned());
        }
    }
}

pub(crate) fn load(b: &mut X86, e: &mut Emit<'_>, at: &TileAt) -> Result<String> {
    let (pointer, mem) = place(e, at.from)?;
    let mem = Half::of(mem).map_or(mem, Half::mem);
    let name = format!(".tile_load_{}_{}", at.side, mem_name(mem));
    b.tiles.function(e, &name, || load_text(&name, at.side, mem));
    let slot = b.tiles.slot(e, 0);
    let (base_ty, base) = (e.ty(at.base)?, e.op(at.base)?);
    let first = e.ir.inst(format_args!("getelementptr {}, ptr {pointer}, {base_ty} {base}", mem_name(mem)));
    let bound = |e: &Emit<'_>, bound: Option<Val>| bound.map_or(Ok(TILE.to_string()), |v| e.op(v));
    let (lines, depth) = (bound(e, at.lines)?, bound(e, at.depth)?);
    e.ir.line(format_args!("call void @{name}(ptr {slot}, ptr {first}, i64 {}, i32 {lines}, i32 {depth})", at.pitch));
    Ok(e.ir.inst(format_args!("load {TILE_TY}, ptr {slot}, align 64")))
}

pub(crate) fn mma(b: &mut X86, e: &mut Emit<'_>, parts: [Val; 3]) -> Result<String> {
    let name = ".tile_mma";
    b.tiles.function(e, FMA, fma_declared);
    b.tiles.function(e, name, || mma_text(name));
    let mut slots = Vec::new();
    for (i, part) in parts.into_iter().enumerate() {
        let (slot, value) = (b.tiles.slot(e, i), e.op(part)?);
        e.ir.line(format_args!("store {TILE_TY} {value}, ptr {slot}, align 64"));
        slots.push(format!("ptr {slot}"));
    }
    e.ir.line(format_args!("call void @{name}({})", slots.join(", ")));
    let sums = b.tiles.slot(e, 2);
    Ok(e.ir.inst(format_args!("load {TILE_TY}, ptr {sums}, align 64")))
}

pub(crate) fn fma(
    b: &mut X86,
    e: &mut Emit<'_>,
    (scales, base): (Place, Val),
    [sums, onto]: [Val; 2],
) -> Result<String> {
    let name = ".tile_fma";
    b.tiles.function(e, FMA, fma_declared);
    b.tiles.function(e, name, || fma_text(name));
    let (pointer, _) = place(e, scales)?;
    let (base_ty, base) = (e.ty(base)?, e.op(base)?);
    let first = e.ir.inst(format_args!("getelementptr float, ptr {pointer}, {base_ty} {base}"));
    let (sums_at, onto_at) = (b.tiles.slot(e, 0), b.tiles.slot(e, 1));
    for (part, slot) in [(sums, &sums_at), (onto, &onto_at)] {
        let value = e.op(part)?;
        e.ir.line(format_args!("store {TILE_TY} {value}, ptr {slot}, align 64"));
    }
    e.ir.line(format_args!("call void @{name}(ptr {sums_at}, ptr {first}, ptr {onto_at})"));
    Ok(e.ir.inst(format_args!("load {TILE_TY}, ptr {onto_at}, align 64")))
}

pub(crate) fn store(e: &mut Emit<'_>, to: Place, base: Val, pitch: u32, tile: Val) -> Result<()> {
    let (pointer, _) = place(e, to)?;
    let (base_ty, base, tile) = (e.ty(base)?, e.op(base)?, e.op(tile)?);
    let first = e.ir.inst(format_args!("getelementptr float, ptr {pointer}, {base_ty} {base}"));
    for row in 0..TILE {
        let ptr = e.ir.inst(format_args!("getelementptr float, ptr {first}, i32 {}", row * pitch));
        let values = e.ir.shuffle(TILE_TY, &tile, "poison", row * TILE..(row + 1) * TILE);
        e.ir.line(format_args!("store {ROW} {values}, ptr {ptr}, align 4"));
    }
    Ok(())
}

/// Element k of line l from `from + l * pitch + k`; 0 and not accessed beyond `lines` and `depth`.
fn load_text(name: &str, side: Side, mem: Mem) -> String {
    let elem = mem_name(mem);
    let widened = widen_text(mem, "%raw", "%x");
    let [outer, inner] = match side {
        Side::A => ["%l", "%k"],
        Side::B => ["%k", "%l"],
    };
    format!(
        "define internal void @{name}(ptr %to, ptr %from, i64 %pitch, i32 %lines, i32 %depth) {ATTRIBUTES} {{
entry:
  br label %line
line:
  %l = phi i32 [ 0, %entry ], [ %l1, %next ]
  %has = icmp slt i32 %l, %lines
  %wide = zext i32 %l to i64
  %start = mul i64 %wide, %pitch
  %row = getelementptr {elem}, ptr %from, i64 %start
  br label %element
element:
  %k = phi i32 [ 0, %line ], [ %k1, %join ]
  %deep = icmp slt i32 %k, %depth
  %here = and i1 %has, %deep
  br i1 %here, label %on, label %join
on:
  %p = getelementptr {elem}, ptr %row, i32 %k
  %raw = load {elem}, ptr %p, align 2
{widened}
  br label %join
join:
  %v = phi float [ %x, %on ], [ 0.0, %element ]
  %first = mul i32 {outer}, {TILE}
  %i = add i32 %first, {inner}
  %q = getelementptr float, ptr %to, i32 %i
  store float %v, ptr %q, align 4
  %k1 = add i32 %k, 1
  %more = icmp slt i32 %k1, {TILE}
  br i1 %more, label %element, label %next
next:
  %l1 = add i32 %l, 1
  %again = icmp slt i32 %l1, {TILE}
  br i1 %again, label %line, label %done
done:
  ret void
}}"
    )
}

fn fma_declared() -> String {
    format!("declare {ROW} @{FMA}({ROW}, {ROW}, {ROW})")
}

/// Adds the products of `a` and `b` to the sums, a row at a time.
fn mma_text(name: &str) -> String {
    format!(
        "define internal void @{name}(ptr noalias %a, ptr noalias %b, ptr noalias %sums) {ATTRIBUTES} {{
entry:
  br label %row
row:
  %r = phi i32 [ 0, %entry ], [ %r1, %done ]
  %first = mul i32 %r, {TILE}
  %pa = getelementptr float, ptr %a, i32 %first
  %ps = getelementptr float, ptr %sums, i32 %first
  %old = load {ROW}, ptr %ps, align 64
  br label %depth
depth:
  %k = phi i32 [ 0, %row ], [ %k1, %depth ]
  %sum = phi {ROW} [ %old, %row ], [ %new, %depth ]
  %pk = getelementptr float, ptr %pa, i32 %k
  %x = load float, ptr %pk, align 4
  %one = insertelement {ROW} poison, float %x, i32 0
  %all = shufflevector {ROW} %one, {ROW} poison, <{TILE} x i32> zeroinitializer
  %kb = mul i32 %k, {TILE}
  %pb = getelementptr float, ptr %b, i32 %kb
  %y = load {ROW}, ptr %pb, align 64
  %new = call {ROW} @{FMA}({ROW} %all, {ROW} %y, {ROW} %sum)
  %k1 = add i32 %k, 1
  %more = icmp slt i32 %k1, {TILE}
  br i1 %more, label %depth, label %done
done:
  store {ROW} %new, ptr %ps, align 64
  %r1 = add i32 %r, 1
  %again = icmp slt i32 %r1, {TILE}
  br i1 %again, label %row, label %end
end:
  ret void
}}"
    )
}

/// Adds the sums times the scales of their columns to `onto`.
fn fma_text(name: &str) -> String {
    format!(
        "define internal void @{name}(ptr noalias %sums, ptr noalias %scales, ptr noalias %onto) {ATTRIBUTES} {{
entry:
  %s = load {ROW}, ptr %scales, align 4
  br label %row
row:
  %r = phi i32 [ 0, %entry ], [ %r1, %row ]
  %first = mul i32 %r, {TILE}
  %px = getelementptr float, ptr %sums, i32 %first
  %py = getelementptr float, ptr %onto, i32 %first
  %x = load {ROW}, ptr %px, align 64
  %y = load {ROW}, ptr %py, align 64
  %z = call {ROW} @{FMA}({ROW} %x, {ROW} %s, {ROW} %y)
  store {ROW} %z, ptr %py, align 64
  %r1 = add i32 %r, 1
  %again = icmp slt i32 %r1, {TILE}
  br i1 %again, label %row, label %end
end:
  ret void
}}"
    )
}
