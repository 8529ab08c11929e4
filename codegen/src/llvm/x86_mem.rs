//! x86-64 loads and stores.
//!
//! Elements that are masked off are never touched. AVX2 has neither scatter nor 16-bit masked access, and its gathers
//! are slow, so: partial contiguous vectors go through a masked access (4-byte elements) or a copy loop (2-byte); loads at
//! lane addresses are 32 plain loads, with the first active lane's address in the place of lanes that are masked off.

use super::finish;
use super::ir::{Lty, i32_vector};
use super::pure::{mem_name, narrow, widen};
use super::walk::{Emit, LoadAt, Result, StoreAt};
use super::x86::X86;
use super::x86_exchange;
use crate::kp::{Addr, Bound, LANES, Mem, Param, Place, Ty, Val};

/// Most bytes a vector in memory takes: 32 lanes of 8 components of 4 bytes.
const TAIL_BYTES: u32 = 1024;

/// Pointer and element type of a place.
pub(crate) fn place(e: &Emit<'_>, place: Place) -> Result<(String, Mem)> {
    match place {
        Place::Buffer(i) => match e.p.params.get(i as usize) {
            Some(Param::Buffer { mem, .. }) => Ok((format!("%p{i}"), *mem)),
            _ => Err(e.fault(format!("parameter {i} is no buffer"))),
        },
        Place::Shared(i) => match e.p.shared.get(i as usize) {
            Some(shared) => Ok((format!("%sh{i}"), shared.mem)),
            None => Err(e.fault(format!("there is no shared array {i}"))),
        },
    }
}

/// One access: the vector of 32 lanes of `vec` raw elements.
pub(crate) struct Access {
    pub ptr: String,
    pub mem: Mem,
    pub vec: u32,
}

impl Access {
    /// The whole vector's type.
    pub(crate) fn all(&self) -> Lty {
        Lty::vector(mem_name(self.mem), LANES * self.vec)
    }

    /// One lane's type.
    fn lane(&self) -> Lty {
        Lty { elem: mem_name(self.mem), lanes: if self.vec == 1 { 0 } else { self.vec } }
    }

    fn align(&self) -> u64 {
        self.mem.bytes()
    }

    /// Pointer to the element at `base`.
    pub(crate) fn at(&self, e: &mut Emit<'_>, base: Val) -> Result<String> {
        let (ty, base) = (e.ty(base)?, e.op(base)?);
        Ok(e.ir.inst(format_args!("getelementptr {}, ptr {}, {ty} {base}", mem_name(self.mem), self.ptr)))
    }

    /// `<32 x i1>` mask repeated for each component.
    pub(crate) fn spread(&self, e: &mut Emit<'_>, mask: &str) -> String {
        if self.vec == 1 {
            return mask.to_owned();
        }
        let ty = Lty::vector("i1", LANES);
        e.ir.shuffle(ty, mask, "poison", (0..LANES * self.vec).map(|i| i / self.vec))
    }

    /// Mask of the elements below `count`.
    pub(crate) fn below(&self, e: &mut Emit<'_>, count: &str) -> String {
        let ty = Lty::vector("i32", LANES * self.vec);
        let limit = e.ir.broadcast(ty, count);
        e.ir.inst(format_args!("icmp slt {ty} {}, {limit}", i32_vector(0..ty.lanes)))
    }
}

/// Scratch in the stack frame for one vector.
pub(crate) fn tail(b: &mut X86, e: &mut Emit<'_>) -> String {
    b.tail.get_or_insert_with(|| e.ir.alloca(format_args!("[{TAIL_BYTES} x i8]"), 64)).clone()
}

pub(crate) fn load(b: &mut X86, e: &mut Emit<'_>, val: Val, at: &LoadAt) -> Result<String> {
    let (ptr, mem) = place(e, at.from)?;
    let access = Access { ptr, mem, vec: u32::from(at.vec) };
    if let Place::Buffer(i) = at.from
        && finish::exchanged(e.p, i)
    {
        return x86_exchange::load(b, e, &access, at);
    }
    if let Addr::Uniform { base } = at.addr {
        let ptr = access.at(e, base)?;
        let ty = Lty::scalar(mem_name(mem));
        let raw = e.ir.inst(format_args!("load {ty}, ptr {ptr}, align {}", access.align()));
        return Ok(widen(e, mem, ty, &raw));
    }
    let raw = match (at.addr, at.bound) {
        (Addr::Contig { base }, Bound::All) => {
            let ptr = access.at(e, base)?;
            full(e, &access, &ptr)
        }
        (Addr::Contig { base }, Bound::Count(count)) => counted_load(b, e, &access, base, count)?,
        (Addr::Contig { base }, Bound::Mask(mask)) if mem.bytes() == 4 => {
            let (ptr, mask) = (access.at(e, base)?, e.op(mask)?);
            let mask = access.spread(e, &mask);
            masked_load(e, &access, &ptr, &mask)
        }
        (addr, bound) => lane_loads(e, &access, addr, bound)?,
    };
    let wide = widen(e, mem, access.all(), &raw);
    e.loaded(val, mem, &raw, &wide);
    Ok(wide)
}

fn full(e: &mut Emit<'_>, access: &Access, ptr: &str) -> String {
    e.ir.inst(format_args!("load {}, ptr {ptr}, align {}", access.all(), access.align()))
}

/// Elements that one masked AVX access takes.
const MASK_LANES: u32 = 8;

/// Elements `start .. start + 8` of a vector.
fn piece(e: &mut Emit<'_>, ty: Lty, v: &str, start: u32) -> String {
    e.ir.shuffle(ty, v, "poison", start..start + MASK_LANES)
}

/// Address and mask of eight elements. AVX's own operations are used, not `llvm.masked.load` and `.store`: LLVM 22.1.8
/// splits those, and turns a part whose mask is known to be all false into a full access (seen as a fault in front of a
/// guard page).
fn masked_piece(e: &mut Emit<'_>, access: &Access, ptr: &str, mask: &str, start: u32) -> (String, String) {
    let elem = access.all().elem;
    let ptr = e.ir.inst(format_args!("getelementptr {elem}, ptr {ptr}, i32 {start}"));
    let bits = piece(e, access.all().of("i1"), mask, start);
    (ptr, e.ir.inst(format_args!("sext <{MASK_LANES} x i1> {bits} to <{MASK_LANES} x i32>")))
}

fn masked_load(e: &mut Emit<'_>, access: &Access, ptr: &str, mask: &str) -> String {
    let ty = access.all();
    let name = if ty.elem == "float" { "llvm.x86.avx.maskload.ps.256" } else { "llvm.x86.avx2.maskload.d.256" };
    let (part, masks) = (Lty::vector(ty.elem, MASK_LANES), format!("<{MASK_LANES} x i32>"));
    let mut parts: Vec<String> = Vec::new();
    for start in (0..ty.lanes).step_by(MASK_LANES as usize) {
        let (ptr, mask) = masked_piece(e, access, ptr, mask, start);
        parts.push(e.ir.call(part, name, &[("ptr".to_owned(), ptr), (masks.clone(), mask)]));
    }
    join(e, ty.elem, parts, MASK_LANES)
}

/// Concatenates vectors of `lanes` elements; their number is a power of two.
fn join(e: &mut Emit<'_>, elem: &'static str, mut parts: Vec<String>, mut lanes: u32) -> String {
    while parts.len() > 1 {
        let ty = Lty::vector(elem, lanes);
        parts = parts.chunks(2).map(|pair| e.ir.shuffle(ty, &pair[0], &pair[pair.len() - 1], 0..2 * lanes)).collect();
        lanes *= 2;
    }
    parts.pop().unwrap_or_default()
}

/// Branches: a full vector (the usual case) is one plain load.
fn counted_load(b: &mut X86, e: &mut Emit<'_>, access: &Access, base: Val, count: Val) -> Result<String> {
    let (ptr, count, ty) = (access.at(e, base)?, e.op(count)?, access.all());
    let (whole, part, join) = (e.ir.label("whole"), e.ir.label("part"), e.ir.label("join"));
    let is_whole = e.ir.inst(format_args!("icmp sge i32 {count}, {}", ty.lanes));
    e.ir.cond_br(&is_whole, &whole, &part);
    e.ir.start(&whole);
    let a = full(e, access, &ptr);
    e.ir.br(&join);
    e.ir.start(&part);
    let partial = if access.align() == 4 {
        let mask = access.below(e, &count);
        masked_load(e, access, &ptr, &mask)
    } else {
        let tail = tail(b, e);
        e.ir.line(format_args!("store {ty} zeroinitializer, ptr {tail}, align 64"));
        copy_loop(e, access, &ptr, &tail, &count);
        e.ir.inst(format_args!("load {ty}, ptr {tail}, align 64"))
    };
    let part_end = e.ir.block().to_owned();
    e.ir.br(&join);
    e.ir.start(&join);
    Ok(e.ir.inst(format_args!("phi {ty} [ {a}, %{whole} ], [ {partial}, %{part_end} ]")))
}

/// Copies `count` (at most the vector's length) raw elements.
fn copy_loop(e: &mut Emit<'_>, access: &Access, from: &str, to: &str, count: &str) {
    let (elem, align) = (mem_name(access.mem), access.align());
    let l = e.ir.begin_loop(count);
    let from = e.ir.inst(format_args!("getelementptr {elem}, ptr {from}, i32 {}", l.index));
    let to = e.ir.inst(format_args!("getelementptr {elem}, ptr {to}, i32 {}", l.index));
    let raw = e.ir.inst(format_args!("load {elem}, ptr {from}, align {align}"));
    e.ir.line(format_args!("store {elem} {raw}, ptr {to}, align {align}"));
    e.ir.end_loop(&l);
}

/// `<32 x i64>` element index of each lane's first component.
pub(crate) fn lane_indices(e: &mut Emit<'_>, addr: Addr, vec: u32) -> Result<String> {
    let wide = Lty::vector("i64", LANES);
    let (base, index) = match addr {
        Addr::Lanes { base, index } => {
            let (ty, index) = (e.ty(index)?, e.op(index)?);
            let index = if ty.elem == "i64" { index } else { e.ir.inst(format_args!("sext {ty} {index} to {wide}")) };
            (base, index)
        }
        Addr::Contig { base } => {
            let narrow = i32_vector((0..LANES).map(|l| l * vec));
            (base, e.ir.inst(format_args!("sext <{LANES} x i32> {narrow} to {wide}")))
        }
        Addr::Uniform { .. } => return Err(e.fault("a uniform address in a lane access")),
    };
    let (ty, base) = (e.kp_ty(base)?, e.op(base)?);
    let base =
        if ty == Ty::Uniform(crate::kp::Elem::I64) { base } else { e.ir.inst(format_args!("sext i32 {base} to i64")) };
    let base = e.ir.broadcast(wide, &base);
    Ok(e.ir.inst(format_args!("add {wide} {index}, {base}")))
}

/// Loads at lane addresses; 0 in lanes that are masked off.
fn lane_loads(e: &mut Emit<'_>, access: &Access, addr: Addr, bound: Bound) -> Result<String> {
    let wide = Lty::vector("i64", LANES);
    let index = lane_indices(e, addr, access.vec)?;
    let mask = match bound {
        Bound::All => return Ok(each_lane(e, access, &index)),
        Bound::Mask(mask) => e.op(mask)?,
        Bound::Count(_) => return Err(e.fault("a count on a lane address")),
    };
    let (some, join, before) = (e.ir.label("some"), e.ir.label("join"), e.ir.block().to_owned());
    let bits = e.ir.inst(format_args!("bitcast <{LANES} x i1> {mask} to i{LANES}"));
    let any = e.ir.inst(format_args!("icmp ne i32 {bits}, 0"));
    e.ir.cond_br(&any, &some, &join);
    e.ir.start(&some);
    let args = [("i32".to_owned(), bits), ("i1".to_owned(), "true".to_owned())];
    let first = e.ir.call("i32", "llvm.cttz.i32", &args);
    let first = e.ir.inst(format_args!("extractelement {wide} {index}, i32 {first}"));
    let first = e.ir.broadcast(wide, &first);
    let index = e.ir.inst(format_args!("select <{LANES} x i1> {mask}, {wide} {index}, {wide} {first}"));
    let raw = each_lane(e, access, &index);
    let (ty, mask) = (access.all(), access.spread(e, &mask));
    let raw = e.ir.inst(format_args!("select {} {mask}, {ty} {raw}, {ty} zeroinitializer", ty.of("i1")));
    e.ir.br(&join);
    e.ir.start(&join);
    Ok(e.ir.inst(format_args!("phi {ty} [ {raw}, %{some} ], [ zeroinitializer, %{before} ]")))
}

/// One load per lane, at `<32 x i64>` element indices.
fn each_lane(e: &mut Emit<'_>, access: &Access, index: &str) -> String {
    let (lane_ty, mut parts) = (access.lane(), Vec::new());
    for lane in 0..LANES {
        let at = e.ir.inst(format_args!("extractelement <{LANES} x i64> {index}, i32 {lane}"));
        let ptr = e.ir.inst(format_args!("getelementptr {}, ptr {}, i64 {at}", lane_ty.elem, access.ptr));
        parts.push(e.ir.inst(format_args!("load {lane_ty}, ptr {ptr}, align {}", access.align())));
    }
    if access.vec == 1 { e.ir.build(access.all(), &parts) } else { concat(e, lane_ty, parts) }
}

/// Vectors end to end, by halves; their number is a power of two.
fn concat(e: &mut Emit<'_>, mut ty: Lty, mut parts: Vec<String>) -> String {
    while parts.len() > 1 {
        let mut joined = Vec::new();
        for pair in parts.chunks(2) {
            if let [a, b] = pair {
                joined.push(e.ir.shuffle(ty, a, b, 0..2 * ty.lanes));
            }
        }
        ty = Lty::vector(ty.elem, 2 * ty.lanes);
        parts = joined;
    }
    parts.pop().unwrap_or_default()
}

pub(crate) fn store(b: &mut X86, e: &mut Emit<'_>, at: &StoreAt) -> Result<()> {
    let (ptr, mem) = place(e, at.to)?;
    let (ty, value, vec) = (e.ty(at.value)?, e.op(at.value)?, e.vec_of(at.value)?);
    let access = Access { ptr, mem, vec };
    let raw = match (at.to, e.copied(at.value, mem)?) {
        (Place::Shared(_), Some(raw)) => raw,
        _ => narrow(e, mem, ty, &value),
    };
    match (at.addr, at.bound) {
        (Addr::Uniform { base }, _) => {
            let ptr = access.at(e, base)?;
            e.ir.line(format_args!("store {} {raw}, ptr {ptr}, align {}", mem_name(mem), access.align()));
        }
        (Addr::Contig { base }, Bound::All) => {
            let ptr = access.at(e, base)?;
            full_store(e, &access, &raw, &ptr);
        }
        (Addr::Contig { base }, Bound::Count(count)) => counted_store(b, e, &access, &raw, base, count)?,
        (Addr::Contig { base }, Bound::Mask(mask)) if mem.bytes() == 4 => {
            let (ptr, mask) = (access.at(e, base)?, e.op(mask)?);
            let mask = access.spread(e, &mask);
            masked_store(e, &access, &raw, &ptr, &mask);
        }
        (addr, Bound::Mask(mask)) => masked_lane_stores(b, e, &access, &raw, addr, mask)?,
        (addr, _) => lane_stores(e, &access, &raw, addr)?,
    }
    Ok(())
}

fn full_store(e: &mut Emit<'_>, access: &Access, raw: &str, ptr: &str) {
    e.ir.line(format_args!("store {} {raw}, ptr {ptr}, align {}", access.all(), access.align()));
}

fn masked_store(e: &mut Emit<'_>, access: &Access, raw: &str, ptr: &str, mask: &str) {
    let ty = access.all();
    let name = if ty.elem == "float" { "llvm.x86.avx.maskstore.ps.256" } else { "llvm.x86.avx2.maskstore.d.256" };
    let (part, masks) = (Lty::vector(ty.elem, MASK_LANES).to_string(), format!("<{MASK_LANES} x i32>"));
    for start in (0..ty.lanes).step_by(MASK_LANES as usize) {
        let (ptr, mask) = masked_piece(e, access, ptr, mask, start);
        let value = piece(e, ty, raw, start);
        e.ir.call_void(name, &[("ptr".to_owned(), ptr), (masks.clone(), mask), (part.clone(), value)]);
    }
}

fn counted_store(b: &mut X86, e: &mut Emit<'_>, access: &Access, raw: &str, base: Val, count: Val) -> Result<()> {
    let (ptr, count, ty) = (access.at(e, base)?, e.op(count)?, access.all());
    let (whole, part, join) = (e.ir.label("whole"), e.ir.label("part"), e.ir.label("join"));
    let is_whole = e.ir.inst(format_args!("icmp sge i32 {count}, {}", ty.lanes));
    e.ir.cond_br(&is_whole, &whole, &part);
    e.ir.start(&whole);
    full_store(e, access, raw, &ptr);
    e.ir.br(&join);
    e.ir.start(&part);
    if access.align() == 4 {
        let mask = access.below(e, &count);
        masked_store(e, access, raw, &ptr, &mask);
    } else {
        let tail = tail(b, e);
        e.ir.line(format_args!("store {ty} {raw}, ptr {tail}, align 64"));
        copy_loop(e, access, &tail, &ptr, &count);
    }
    e.ir.br(&join);
    e.ir.start(&join);
    Ok(())
}

/// One store per lane, in lane order.
fn lane_stores(e: &mut Emit<'_>, access: &Access, raw: &str, addr: Addr) -> Result<()> {
    let index = lane_indices(e, addr, access.vec)?;
    let (all, lane_ty) = (access.all(), access.lane());
    for lane in 0..LANES {
        let at = e.ir.inst(format_args!("extractelement <{LANES} x i64> {index}, i32 {lane}"));
        let ptr = e.ir.inst(format_args!("getelementptr {}, ptr {}, i64 {at}", lane_ty.elem, access.ptr));
        let part = if access.vec == 1 {
            e.ir.inst(format_args!("extractelement {all} {raw}, i32 {lane}"))
        } else {
            e.ir.shuffle(all, raw, "poison", lane * access.vec..(lane + 1) * access.vec)
        };
        e.ir.line(format_args!("store {lane_ty} {part}, ptr {ptr}, align {}", access.align()));
    }
    Ok(())
}

/// A loop over the lanes whose mask is set.
fn masked_lane_stores(b: &mut X86, e: &mut Emit<'_>, access: &Access, raw: &str, addr: Addr, mask: Val) -> Result<()> {
    let (index, mask) = (lane_indices(e, addr, access.vec)?, e.op(mask)?);
    let (values, indices) = (tail(b, e), e.ir.alloca(format_args!("<{LANES} x i64>"), 64));
    let (elem, lane_ty, align) = (mem_name(access.mem), access.lane(), access.align());
    e.ir.line(format_args!("store {} {raw}, ptr {values}, align 64", access.all()));
    e.ir.line(format_args!("store <{LANES} x i64> {index}, ptr {indices}, align 64"));
    let bits = e.ir.inst(format_args!("bitcast <{LANES} x i1> {mask} to i{LANES}"));
    let l = e.ir.begin_loop(&LANES.to_string());
    let (set, next) = (e.ir.label("set"), e.ir.label("next"));
    let shifted = e.ir.inst(format_args!("lshr i32 {bits}, {}", l.index));
    let bit = e.ir.inst(format_args!("trunc i32 {shifted} to i1"));
    e.ir.cond_br(&bit, &set, &next);
    e.ir.start(&set);
    let from = e.ir.inst(format_args!("getelementptr [{} x {elem}], ptr {values}, i32 {}", access.vec, l.index));
    let part = e.ir.inst(format_args!("load {lane_ty}, ptr {from}, align {align}"));
    let slot = e.ir.inst(format_args!("getelementptr i64, ptr {indices}, i32 {}", l.index));
    let at = e.ir.inst(format_args!("load i64, ptr {slot}, align 8"));
    let to = e.ir.inst(format_args!("getelementptr {elem}, ptr {}, i64 {at}", access.ptr));
    e.ir.line(format_args!("store {lane_ty} {part}, ptr {to}, align {align}"));
    e.ir.br(&next);
    e.ir.start(&next);
    e.ir.end_loop(&l);
    Ok(())
}
