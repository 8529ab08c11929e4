//! x86-64: a lane value is a vector of 32 lanes; one call runs one workgroup.
//!
//! Entry: `extern "C" fn NAME(args: *const u64, group: *const i32, shared: *mut u8)`. `args` has an 8-byte slot for each
//! parameter (a pointer, or an i32 in the low half), `group` three workgroup numbers, `shared` 64-byte-aligned scratch of
//! [`crate::kp::shared_bytes`] bytes. Component v of lane l is vector element `l * vec + v`.

use super::finish::{HOST, Scope};
use super::ir::{Lty, i32_vector};
use super::pure::min_max;
use super::walk::{Backend, Emit, LoadAt, Result, StoreAt, elem_name};
use super::x86_tiles::TileCode;
use super::{x86_mem, x86_tiles, x86_waves};
use crate::kp::{self, Expr, For, LANES, Param, Place, Program, Reduce, Stmt, Val};

/// State of one lowering.
pub(crate) struct X86 {
    /// Operand of the wave number.
    pub wave: String,
    /// Which values are kept per wave; `None` for a single wave.
    pub slots: Option<x86_waves::Slots>,
    /// Scratch for partial vectors, made on first use.
    pub tail: Option<String>,
    pub tiles: TileCode,
}

/// The module text of a program.
pub(crate) fn lower(p: &Program) -> Result<String> {
    let mut e = Emit::new(p, LANES);
    let mut b = X86 { wave: "0".to_owned(), slots: None, tail: None, tiles: TileCode::default() };
    prologue(&mut e);
    if p.waves == 1 {
        e.stmts(&mut b, &p.body)?;
    } else {
        x86_waves::workgroup(&mut e, &mut b)?;
    }
    let header = format!(
        "define void @{}(ptr noalias nocapture readonly %args, ptr noalias nocapture readonly %group, ptr noalias %shared) #0",
        p.name
    );
    // Without "no-builtins" LLVM turns the copy loops of partial vectors into calls of memcpy.
    Ok(e.ir.finish(&header, "attributes #0 = { nounwind \"no-builtins\" }\n!0 = !{}\n"))
}

/// Loads every argument once: `%pN`, `%sN`, `%gN` (groups), `%shN` (shared arrays).
fn prologue(e: &mut Emit<'_>) {
    let p = e.p;
    for (i, param) in p.params.iter().enumerate() {
        let slot = e.ir.entry_inst(format_args!("getelementptr i64, ptr %args, i64 {i}"));
        match param {
            Param::Buffer { .. } => e.ir.entry_named(&format!("%p{i}"), format_args!("load ptr, ptr {slot}, align 8")),
            Param::Scalar { .. } => e.ir.entry_named(&format!("%s{i}"), format_args!("load i32, ptr {slot}, align 8")),
        }
    }
    for axis in 0..3 {
        let slot = e.ir.entry_inst(format_args!("getelementptr i32, ptr %group, i64 {axis}"));
        e.ir.entry_named(&format!("%g{axis}"), format_args!("load i32, ptr {slot}, align 4"));
    }
    for (i, offset) in kp::shared_offsets(p).iter().enumerate() {
        e.ir.entry_named(&format!("%sh{i}"), format_args!("getelementptr i8, ptr %shared, i64 {offset}"));
    }
}

/// Operand of an expression that has one value everywhere and needs no slot.
pub(crate) fn everywhere(expr: &Expr) -> Option<String> {
    match expr {
        Expr::Scalar(i) => Some(format!("%s{i}")),
        Expr::Group(axis) => Some(format!("%g{axis}")),
        Expr::Lane => Some(i32_vector(0..LANES)),
        _ => None,
    }
}

impl Backend for X86 {
    fn expr(&mut self, e: &mut Emit<'_>, val: Val, expr: &Expr) -> Result<String> {
        if let Some(operand) = everywhere(expr) {
            return Ok(operand);
        }
        match expr {
            Expr::Wave => Ok(self.wave.clone()),
            Expr::Splat(a, vec) => splat(e, *a, *vec),
            Expr::Component(a, i) => {
                let (ty, x, vec) = (e.ty(*a)?, e.op(*a)?, e.vec_of(*a)?);
                Ok(e.ir.shuffle(ty, &x, "poison", (0..LANES).map(|l| l * vec + u32::from(*i))))
            }
            Expr::Pack(parts) => {
                let ops = parts.iter().map(|part| e.op(*part)).collect::<Result<Vec<_>>>()?;
                let first = parts.first().ok_or_else(|| e.fault("an empty pack"))?;
                let elem = elem_name(e.elem_of(*first)?);
                Ok(interleave(e, elem, ops))
            }
            Expr::Load { from, addr, bound, vec } => {
                x86_mem::load(self, e, val, &LoadAt { from: *from, addr: *addr, bound: *bound, vec: *vec })
            }
            Expr::XorLane(a, mask) => {
                let (ty, x) = (e.ty(*a)?, e.op(*a)?);
                Ok(e.ir.shuffle(ty, &x, "poison", (0..LANES).map(|l| l ^ u32::from(*mask))))
            }
            Expr::Reduce(reduce, a) => self::reduce(e, *reduce, *a),
            Expr::ReadLane(a, index) => {
                let (ty, x, index) = (e.ty(*a)?, e.op(*a)?, e.op(*index)?);
                Ok(e.ir.inst(format_args!("extractelement {ty} {x}, i32 {index}")))
            }
            Expr::ScanAdd(a) => scan(e, *a),
            Expr::Ballot(a) => {
                let (ty, x) = (e.ty(*a)?, e.op(*a)?);
                Ok(e.ir.inst(format_args!("bitcast {ty} {x} to i32")))
            }
            Expr::TileZero => Ok("zeroinitializer".to_owned()),
            Expr::TileLoad(at) => x86_tiles::load(self, e, at),
            Expr::TileMma(parts) => x86_tiles::mma(self, e, *parts),
            Expr::TileFma { sums, scales, base, onto } => x86_tiles::fma(self, e, (*scales, *base), [*sums, *onto]),
            _ => Err(e.fault(format!("value {} has an unknown expression", val.0))),
        }
    }

    fn store(&mut self, e: &mut Emit<'_>, at: &StoreAt) -> Result<()> {
        x86_mem::store(self, e, at)
    }

    fn tile_store(&mut self, e: &mut Emit<'_>, (to, base, pitch): (Place, Val, u32), tile: Val) -> Result<()> {
        x86_tiles::store(e, to, base, pitch, tile)
    }

    /// Waves run one after the other between barriers; a single wave needs none.
    fn barrier(&mut self, _: &mut Emit<'_>) {}

    fn prefetch(&mut self, _: &mut Emit<'_>, _: u32, _: [Val; 2], _: u32) -> Result<()> {
        Ok(())
    }

    fn spin(&mut self, e: &mut Emit<'_>, _: Val, _: Val) -> Result<()> {
        Err(e.fault("a delay for a target without a clock"))
    }

    /// A launch is called when the one before it has returned.
    fn await_earlier(&mut self, _: &mut Emit<'_>, _: &[Stmt]) -> Result<()> {
        Ok(())
    }

    fn scope(&self) -> &'static Scope {
        &HOST
    }

    /// All waves have run up to here, in this thread.
    fn arrive(&mut self, e: &mut Emit<'_>, counter: &str) -> String {
        HOST.release(e);
        HOST.count(e, counter)
    }

    fn acquire(&mut self, e: &mut Emit<'_>, counter: &str) {
        HOST.acquire(e);
        HOST.reset(e, counter);
    }

    fn loop_hint(&mut self, _: &mut Emit<'_>, _: &For) -> String {
        String::new()
    }

    fn defined(&mut self, e: &mut Emit<'_>, val: Val) -> Result<()> {
        x86_waves::keep(self, e, val)
    }
}

fn splat(e: &mut Emit<'_>, a: Val, vec: u8) -> Result<String> {
    let (ty, x) = (e.ty(a)?, e.op(a)?);
    let vec = u32::from(vec);
    let to = Lty::vector(ty.elem, LANES * vec);
    Ok(match (ty.lanes, vec) {
        (0, _) => e.ir.broadcast(to, &x),
        (_, 1) => x,
        _ => e.ir.shuffle(ty, &x, "poison", (0..LANES * vec).map(|i| i / vec)),
    })
}

/// Interleaves vectors of 32 lanes: element i of part v goes to `i * parts + v`. The number of parts is a power of two.
fn interleave(e: &mut Emit<'_>, elem: &'static str, mut parts: Vec<String>) -> String {
    let mut lanes = LANES;
    while parts.len() > 1 {
        let ty = Lty::vector(elem, lanes);
        // Part v joins part v + n/2: the later rounds then put them in order.
        let high = parts.split_off(parts.len() / 2);
        let mask = |i: u32| i / 2 + (i % 2) * lanes;
        parts = parts.iter().zip(&high).map(|(a, b)| e.ir.shuffle(ty, a, b, (0..2 * lanes).map(mask))).collect();
        lanes *= 2;
    }
    parts.pop().unwrap_or_default()
}

/// Xor steps 16 to 1, as lane 0 sees them: each step combines the halves. Bits equal the butterfly's in every lane,
/// because the operations are commutative.
fn reduce(e: &mut Emit<'_>, reduce: Reduce, a: Val) -> Result<String> {
    let (mut ty, mut x) = (e.ty(a)?, e.op(a)?);
    while ty.lanes > 1 {
        let half = ty.lanes / 2;
        let low = e.ir.shuffle(ty, &x, "poison", 0..half);
        let high = e.ir.shuffle(ty, &x, "poison", half..ty.lanes);
        ty = Lty::vector(ty.elem, half);
        x = match reduce {
            Reduce::Add if ty.elem == "float" => e.ir.inst(format_args!("fadd {ty} {low}, {high}")),
            Reduce::Add => e.ir.inst(format_args!("add {ty} {low}, {high}")),
            Reduce::Min | Reduce::Max => min_max(e, ty, reduce == Reduce::Max, &low, &high),
        };
    }
    Ok(e.ir.inst(format_args!("extractelement {ty} {x}, i32 0")))
}

/// Exclusive sum over lower lanes.
fn scan(e: &mut Emit<'_>, a: Val) -> Result<String> {
    let (ty, mut x) = (e.ty(a)?, e.op(a)?);
    // Lane l takes lane l - step; below that, an element of the zero vector.
    let mask = |step: u32| (0..LANES).map(move |l| if l < step { LANES } else { l - step });
    for step in [1, 2, 4, 8, 16] {
        let moved = e.ir.shuffle(ty, &x, "zeroinitializer", mask(step));
        x = e.ir.inst(format_args!("add {ty} {x}, {moved}"));
    }
    Ok(e.ir.shuffle(ty, &x, "zeroinitializer", mask(1)))
}
