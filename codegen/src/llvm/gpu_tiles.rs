//! Matrix tiles on GPUs: each lane holds eight elements of an operand, and eight sums.
//!
//! The sum over k has no order of its own, so that the k's may be dealt to lanes in any way that is the same for A and B:
//! a lane takes those that lie side by side in memory. Both sides are dealt alike, since both are lines of 16.

use super::gpu::Gpu;
use super::gpu_mem::place_pointer;
use super::ir::Lty;
use super::pure::mem_name;
use super::walk::{Emit, Result};
use crate::kp::{Half, Place, TILE, TileAt, Val};

/// Elements of an operand, and sums, that a lane holds.
const EACH: u32 = 8;
/// A lane's sums.
pub(super) const SUMS: Lty = Lty::vector("float", EACH);

/// How a GPU deals tiles to lanes. Operands of instructions are i32.
pub(crate) struct Tiles {
    /// Line and first k of each run of a lane's operand elements; as many elements a run as make eight.
    pub runs: fn(&mut Emit<'_>) -> Vec<[String; 2]>,
    /// Row and column of each of a lane's sums.
    pub sums: fn(&mut Emit<'_>) -> Vec<[String; 2]>,
    /// A, B and the sums so far.
    pub mma: fn(&mut Emit<'_>, Half, [&str; 3]) -> String,
}

/// A lane's part of an operand.
pub(crate) const fn operand_ty(half: Half) -> Lty {
    match half {
        Half::Bf16 => Lty::vector("i16", EACH),
        Half::F16 => Lty::vector("half", EACH),
    }
}

pub(crate) fn zero() -> String {
    "zeroinitializer".to_owned()
}

/// Lines and elements that do not exist are 0 and not accessed.
pub(crate) fn load(e: &mut Emit<'_>, gpu: &Gpu, at: &TileAt) -> Result<String> {
    let (space, pointer, mem) = place_pointer(e, gpu, at.from)?;
    let elem = mem_name(Half::of(mem).map_or(mem, Half::mem));
    let (base_ty, base) = (e.ty(at.base)?, e.op(at.base)?);
    let first = e.ir.inst(format_args!("getelementptr {elem}, {space} {pointer}, {base_ty} {base}"));
    let runs = (gpu.tiles.runs)(e);
    let len = EACH / u32::try_from(runs.len()).unwrap_or(EACH).max(1);
    let ty = Lty::vector(elem, len);
    let mut parts = Vec::new();
    for [line, k] in &runs {
        let offset = e.ir.inst(format_args!("mul nsw i32 {line}, {}", at.pitch));
        let offset = e.ir.inst(format_args!("add nsw i32 {offset}, {k}"));
        let run =
            Run { ptr: e.ir.inst(format_args!("getelementptr {elem}, {space} {first}, i32 {offset}")), space, ty };
        parts.push(bounded(e, at, &run, line, k)?);
    }
    // Runs end to end; there are one or two.
    Ok(match parts.as_slice() {
        [one, two] => e.ir.shuffle(ty, one, two, 0..EACH),
        _ => parts.swap_remove(0),
    })
}

/// Elements of a lane that lie side by side.
struct Run {
    ptr: String,
    space: &'static str,
    ty: Lty,
}

fn bounded(e: &mut Emit<'_>, at: &TileAt, run: &Run, line: &str, k: &str) -> Result<String> {
    let exists = match at.lines {
        None => None,
        Some(lines) => {
            let lines = e.op(lines)?;
            Some(e.ir.inst(format_args!("icmp slt i32 {line}, {lines}")))
        }
    };
    let Some(depth) = at.depth else {
        return Ok(match exists {
            None => whole(e, run),
            Some(exists) => load_if(e, run.ty, &exists, |e| whole(e, run)),
        });
    };
    let depth = e.op(depth)?;
    let left = e.ir.inst(format_args!("sub i32 {depth}, {k}"));
    let left = match exists {
        None => left,
        Some(exists) => e.ir.inst(format_args!("select i1 {exists}, i32 {left}, i32 0")),
    };
    let all = e.ir.inst(format_args!("icmp sge i32 {left}, {}", run.ty.lanes));
    let (full, part, join) = (e.ir.label("full"), e.ir.label("part"), e.ir.label("join"));
    e.ir.cond_br(&all, &full, &part);
    e.ir.start(&full);
    let every = whole(e, run);
    e.ir.br(&join);
    e.ir.start(&part);
    let mut elements = Vec::new();
    for i in 0..run.ty.lanes {
        let here = e.ir.inst(format_args!("icmp sgt i32 {left}, {i}"));
        let ptr = e.ir.inst(format_args!("getelementptr {}, {} {}, i32 {i}", run.ty.elem, run.space, run.ptr));
        let (ty, space) = (Lty::scalar(run.ty.elem), run.space);
        elements.push(load_if(e, ty, &here, |e| e.ir.inst(format_args!("load {ty}, {space} {ptr}, align 2"))));
    }
    let some = e.ir.build(run.ty, &elements);
    let part = e.ir.block().to_owned();
    e.ir.br(&join);
    e.ir.start(&join);
    Ok(e.ir.inst(format_args!("phi {} [ {every}, %{full} ], [ {some}, %{part} ]", run.ty)))
}

fn whole(e: &mut Emit<'_>, run: &Run) -> String {
    e.ir.inst(format_args!("load {}, {} {}, align 2", run.ty, run.space, run.ptr))
}

/// 0 in lanes whose `mask` is off.
fn load_if(e: &mut Emit<'_>, ty: Lty, mask: &str, load: impl FnOnce(&mut Emit<'_>) -> String) -> String {
    let (on, join, before) = (e.ir.label("on"), e.ir.label("join"), e.ir.block().to_owned());
    e.ir.cond_br(mask, &on, &join);
    e.ir.start(&on);
    let raw = load(e);
    e.ir.br(&join);
    e.ir.start(&join);
    let zero = if ty.lanes == 0 { if ty.elem == "half" { "0.0" } else { "0" } } else { "zeroinitializer" };
    e.ir.inst(format_args!("phi {ty} [ {raw}, %{on} ], [ {zero}, %{before} ]"))
}

pub(crate) fn store(e: &mut Emit<'_>, gpu: &Gpu, to: Place, base: Val, pitch: u32, tile: Val) -> Result<()> {
    let (space, pointer, _) = place_pointer(e, gpu, to)?;
    let elem = "float";
    let (base_ty, base, tile) = (e.ty(base)?, e.op(base)?, e.op(tile)?);
    let first = e.ir.inst(format_args!("getelementptr {elem}, {space} {pointer}, {base_ty} {base}"));
    for (i, [row, column]) in (gpu.tiles.sums)(e).iter().enumerate() {
        let offset = e.ir.inst(format_args!("mul nsw i32 {row}, {pitch}"));
        let offset = e.ir.inst(format_args!("add nsw i32 {offset}, {column}"));
        let ptr = e.ir.inst(format_args!("getelementptr {elem}, {space} {first}, i32 {offset}"));
        let sum = e.ir.inst(format_args!("extractelement {SUMS} {tile}, i32 {i}"));
        e.ir.line(format_args!("store {elem} {sum}, {space} {ptr}, align 4"));
    }
    Ok(())
}

/// A lane loads the scale of each column that it has.
pub(crate) fn fma(e: &mut Emit<'_>, gpu: &Gpu, (scales, base): (Place, Val), [sums, onto]: [Val; 2]) -> Result<String> {
    let (space, pointer, _) = place_pointer(e, gpu, scales)?;
    let (base_ty, base, sums, onto) = (e.ty(base)?, e.op(base)?, e.op(sums)?, e.op(onto)?);
    let first = e.ir.inst(format_args!("getelementptr float, {space} {pointer}, {base_ty} {base}"));
    let (mut parts, mut known): (Vec<String>, Option<(String, String)>) = (Vec::new(), None);
    for [_, column] in (gpu.tiles.sums)(e) {
        let scale = match known {
            Some((at, scale)) if at == column => scale,
            _ => {
                let ptr = e.ir.inst(format_args!("getelementptr float, {space} {first}, i32 {column}"));
                e.ir.inst(format_args!("load float, {space} {ptr}, align 4"))
            }
        };
        parts.push(scale.clone());
        known = Some((column, scale));
    }
    let scales = e.ir.build(SUMS, &parts);
    let args = [&sums, &scales, &onto].map(|x| (SUMS.to_string(), x.clone()));
    Ok(e.ir.call(SUMS, &format!("llvm.fma.{}", SUMS.suffix()), &args))
}

const _: () = assert!(EACH * crate::kp::LANES == TILE * TILE, "a wave holds a tile");
