//! GPUs: one thread per lane. What the two GPU lowerings share, and what each of them names differently.
//!
//! Entry: a kernel of `waves * 32` threads whose arguments are the program's parameters in order.

use super::finish::Scope;
use super::gpu_mem;
use super::gpu_tiles::{self, Tiles};
use super::ir::Lty;
use super::pure::min_max;
use super::walk::{Backend, Emit, LoadAt, Result, StoreAt};
use crate::kp::{Access, Expr, For, LANES, Param, Place, Program, Reduce, Stmt, Tile, Ty, Val, awaits, multiples};
use crate::target::{Target, Trigger};

/// Rounds of a loop that LLVM may put in one, the most first. Unrolled fully, a contraction of 4,096 keeps its whole operand
/// in registers (256 VGPRs and spills, measured with LLVM 22); four b128 loads of a weight stream in flight are enough.
const ROUNDS: [u32; 3] = [4, 2, 1];
/// Statements of a body that is unrolled: larger ones have their own parallelism (chains, rows).
const SMALL_BODY: usize = 32;
/// What a prefetch takes starts at a multiple of so many bytes, and is a multiple of it.
const PREFETCH_UNIT: u32 = 16;
/// Numbers of the metadata for loops of each of [`ROUNDS`], and of the first loop's own.
const FIRST_HINT: u32 = 2;
const FIRST_LOOP: u32 = 10;

/// How a GPU names things.
pub(crate) struct Gpu {
    /// Linkage and calling convention of a kernel, and what its definition has behind attribute group 0.
    pub define: [&'static str; 2],
    /// Attribute group 0 and its metadata for a kernel of so many threads; numbers from 2 on are taken.
    pub attributes: fn(u32) -> String,
    /// Whether an access of several elements must be aligned to all of them, and falls apart into elements unless LLVM knows it.
    pub aligned_accesses: bool,
    /// 32-bit registers of what the rounds of a loop that are in one load from memory.
    pub loaded_registers: u64,
    /// Shared arrays, and the slot where a counter's old value is left.
    pub arrays: fn(&mut Emit<'_>),
    pub scope: Scope,
    /// Intrinsic of the workgroup's number along an axis, up to the axis' letter.
    pub group: &'static str,
    /// Intrinsic of the thread's number in its workgroup.
    pub thread: &'static str,
    /// Name of shared array i up to its number, a pointer to address space 3.
    pub shared: &'static str,
    /// Where one lane leaves a counter's old value for the other waves.
    pub slot: &'static str,
    /// All waves of the workgroup wait, and see what the others wrote before.
    pub barrier: fn(&mut Emit<'_>),
    /// Attributes of a buffer that the launch does not write, in a program that waits for earlier launches.
    pub awaited: &'static str,
    /// Asks for so many bytes (a multiple of 16) from a pointer on; nothing if the target gains nothing by it.
    pub prefetch: Option<fn(&mut Emit<'_>, &str, &str)>,
    /// The clock, an i64; nothing moves past it.
    pub clock: Option<fn(&mut Emit<'_>) -> String>,
    /// Lets the next launch start, as far as this workgroup goes.
    pub trigger: fn(&mut Emit<'_>),
    /// Waits until earlier launches have ended.
    pub await_earlier: fn(&mut Emit<'_>),
    /// Tells LLVM that a value of this type is the same in all lanes.
    pub uniform: fn(&mut Emit<'_>, &str, &str) -> String,
    /// 32 bits of lane ^ mask; the last argument is true for floats.
    pub xor_lane: fn(&mut Emit<'_>, &str, u32, bool) -> String,
    /// 32 bits of the lane that is so many lower; anything where there is none.
    pub lower_lane: fn(&mut Emit<'_>, &str, u32) -> String,
    /// A value of type i32 or i64 of one lane, for all.
    pub read_lane: fn(&mut Emit<'_>, &str, &str, &str) -> String,
    /// Bit l is set if lane l's i1 is.
    pub ballot: fn(&mut Emit<'_>, &str) -> String,
    pub tiles: Tiles,
}

/// The backend of a GPU.
struct Threads {
    gpu: &'static Gpu,
    /// Bytes that a workgroup asks for at most.
    prefetch_bytes: u32,
    trigger: Option<Trigger>,
    /// Cycles by which the next arrival is late.
    late: Option<String>,
    /// Loops so far.
    loops: u32,
}

/// The module text of a program.
pub(crate) fn lower(p: &Program, gpu: &'static Gpu, t: &Target) -> Result<String> {
    let mut e = Emit::new(p, 1);
    if gpu.aligned_accesses {
        e.multiples = multiples(p);
    }
    (gpu.arrays)(&mut e);
    numbers(&mut e, gpu);
    e.stmts(&mut Threads { gpu, prefetch_bytes: t.prefetch_bytes, trigger: t.trigger, late: None, loops: 0 }, &p.body)?;
    let [before, behind] = gpu.define;
    if t.trigger == Some(Trigger::End) && awaits(p) {
        (gpu.trigger)(&mut e);
    }
    let header = format!("define {before} void @{}({}) #0{behind}", p.name, arguments(p, gpu).join(", "));
    let tail = (gpu.attributes)(p.waves * LANES) + &hints();
    Ok(e.ir.finish(&header, &tail))
}

fn hints() -> String {
    let hint = |(number, rounds): (u32, u32)| match rounds {
        1 => format!("!{number} = !{{!\"llvm.loop.unroll.disable\"}}\n"),
        n => format!("!{number} = !{{!\"llvm.loop.unroll.count\", i32 {n}}}\n"),
    };
    (FIRST_HINT..).zip(ROUNDS).map(hint).collect()
}

/// Index in [`ROUNDS`] for a loop.
fn rounds(e: &Emit<'_>, gpu: &Gpu, f: &For) -> usize {
    let small = f.body.len() <= SMALL_BODY && !f.body.iter().any(|s| matches!(s, Stmt::For(_)));
    let registers = |s: &Stmt| match s {
        Stmt::Let(_, Expr::Load { from: Place::Buffer(at), vec, .. }) => match e.p.params.get(*at as usize) {
            Some(Param::Buffer { mem, .. }) => (u64::from(*vec) * mem.bytes()).div_ceil(4),
            _ => 0,
        },
        _ => 0,
    };
    let loaded: u64 = f.body.iter().map(registers).sum();
    let fits = |rounds: &u32| u64::from(*rounds) * loaded <= gpu.loaded_registers;
    let last = ROUNDS.len() - 1;
    if small { ROUNDS.iter().position(fits).unwrap_or(last) } else { last }
}

/// Attributes of a buffer that nobody writes: they let LLVM use scalar loads or the read-only cache for it.
pub(crate) const CONSTANT: &str = "noalias readonly ";

/// Kernel arguments.
fn arguments(p: &Program, gpu: &Gpu) -> Vec<String> {
    let read = if awaits(p) { gpu.awaited } else { CONSTANT };
    let argument = |(i, param): (usize, &Param)| match param {
        Param::Buffer { access, .. } => {
            let alias = match access {
                Access::Constant => CONSTANT,
                Access::Read => read,
                Access::Write | Access::ReadWrite | Access::Exchange | Access::Counter => "",
            };
            format!("ptr addrspace(1) {alias}captures(none) align 16 %p{i}")
        }
        Param::Scalar { .. } => format!("i32 %s{i}"),
    };
    p.params.iter().enumerate().map(argument).collect()
}

/// `%thread`, `%lane` and `%wave`.
fn numbers(e: &mut Emit<'_>, gpu: &Gpu) {
    let thread = e.ir.call("i32", gpu.thread, &[]);
    e.ir.named("%thread", format_args!("add i32 {thread}, 0"));
    e.ir.named("%lane", format_args!("and i32 {thread}, {}", LANES - 1));
    let wave = e.ir.inst(format_args!("lshr i32 {thread}, 5"));
    let wave = (gpu.uniform)(e, "i32", &wave);
    e.ir.named("%wave", format_args!("add i32 {wave}, 0"));
}

impl Backend for Threads {
    fn expr(&mut self, e: &mut Emit<'_>, val: Val, expr: &Expr) -> Result<String> {
        match expr {
            Expr::Scalar(i) => Ok(format!("%s{i}")),
            Expr::Group(axis) => {
                let axis = ["x", "y", "z"].get(usize::from(*axis)).ok_or_else(|| e.fault("a fourth grid axis"))?;
                Ok(e.ir.call("i32", &format!("{}{axis}", self.gpu.group), &[]))
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
                gpu_mem::load(e, self.gpu, val, &LoadAt { from: *from, addr: *addr, bound: *bound, vec: *vec })
            }
            Expr::XorLane(a, mask) => {
                let (ty, x) = (e.ty(*a)?, e.op(*a)?);
                Ok(xor_lane(e, self.gpu, ty, &x, u32::from(*mask)))
            }
            Expr::Reduce(reduce, a) => self::reduce(e, self.gpu, *reduce, *a),
            Expr::ReadLane(a, index) => read_lane(e, self.gpu, *a, *index),
            Expr::ScanAdd(a) => scan(e, self.gpu, *a),
            Expr::Ballot(a) => {
                let x = e.op(*a)?;
                Ok((self.gpu.ballot)(e, &x))
            }
            Expr::TileZero => Ok(gpu_tiles::zero()),
            Expr::TileLoad(at) => gpu_tiles::load(e, self.gpu, at),
            Expr::TileMma([x, y, sums]) => {
                let Ty::Tile(Tile::Operand(_, half)) = e.kp_ty(*x)? else {
                    return Err(e.fault(format!("value {} multiplies no tiles", val.0)));
                };
                let parts = (e.op(*x)?, e.op(*y)?, e.op(*sums)?);
                Ok((self.gpu.tiles.mma)(e, half, [&parts.0, &parts.1, &parts.2]))
            }
            Expr::TileFma { sums, scales, base, onto } => gpu_tiles::fma(e, self.gpu, (*scales, *base), [*sums, *onto]),
            _ => Err(e.fault(format!("value {} has an unknown expression", val.0))),
        }
    }

    fn store(&mut self, e: &mut Emit<'_>, at: &StoreAt) -> Result<()> {
        gpu_mem::store(e, self.gpu, at)
    }

    fn tile_store(&mut self, e: &mut Emit<'_>, (to, base, pitch): (Place, Val, u32), tile: Val) -> Result<()> {
        gpu_tiles::store(e, self.gpu, to, base, pitch, tile)
    }

    fn barrier(&mut self, e: &mut Emit<'_>) {
        (self.gpu.barrier)(e);
    }

    /// One lane asks for the whole wave.
    fn prefetch(&mut self, e: &mut Emit<'_>, from: u32, [base, bytes]: [Val; 2], share: u32) -> Result<()> {
        let most = self.prefetch_bytes / share / PREFETCH_UNIT * PREFETCH_UNIT;
        let Some(prefetch) = self.gpu.prefetch.filter(|_| most > 0) else { return Ok(()) };
        let (pointer, bytes) = (gpu_mem::pointer(e, self.gpu, Place::Buffer(from), base)?, e.op(bytes)?);
        let bytes =
            e.ir.call("i32", "llvm.smin.i32", &[("i32".to_owned(), bytes), ("i32".to_owned(), most.to_string())]);
        let (one, join) = (e.ir.label("one"), e.ir.label("join"));
        let first = e.ir.inst("icmp eq i32 %lane, 0");
        e.ir.cond_br(&first, &one, &join);
        e.ir.start(&one);
        prefetch(e, &pointer, &bytes);
        e.ir.br(&join);
        e.ir.start(&join);
        Ok(())
    }

    fn spin(&mut self, e: &mut Emit<'_>, cycles: Val, late: Val) -> Result<()> {
        if self.gpu.clock.is_none() {
            return Err(e.fault("a delay for a target without a clock"));
        }
        self.late = Some(e.op(late)?);
        let cycles = e.op(cycles)?;
        wait_for(e, self.gpu, &cycles);
        Ok(())
    }

    fn await_earlier(&mut self, e: &mut Emit<'_>, ahead: &[Stmt]) -> Result<()> {
        if self.prefetch_bytes > 0 {
            e.stmts(self, ahead)?;
        }
        if self.trigger == Some(Trigger::Start) {
            (self.gpu.trigger)(e);
        }
        (self.gpu.await_earlier)(e);
        Ok(())
    }

    fn scope(&self) -> &'static Scope {
        &self.gpu.scope
    }

    /// Each wave releases its own writes before the barrier. The lane that counts releases once more behind it: what other
    /// waves wrote is then part of its release too, by LLVM's memory model as well as by gfx12's waits.
    fn arrive(&mut self, e: &mut Emit<'_>, counter: &str) -> String {
        let (several, slot) = (e.p.waves > 1, self.gpu.slot);
        self.gpu.scope.release(e);
        if several {
            self.barrier(e);
        }
        let (one, join, before) = (e.ir.label("one"), e.ir.label("join"), e.ir.block().to_owned());
        let first = e.ir.inst("icmp eq i32 %thread, 0");
        e.ir.cond_br(&first, &one, &join);
        e.ir.start(&one);
        if several {
            self.gpu.scope.release(e);
        }
        if let Some(late) = self.late.take() {
            wait_for(e, self.gpu, &late);
        }
        let counting = e.ir.block().to_owned();
        let count = self.gpu.scope.count(e, counter);
        if several {
            e.ir.line(format_args!("store i32 {count}, ptr addrspace(3) {slot}, align 4"));
        }
        e.ir.br(&join);
        e.ir.start(&join);
        let count = if several {
            self.barrier(e);
            e.ir.inst(format_args!("load i32, ptr addrspace(3) {slot}, align 4"))
        } else {
            e.ir.inst(format_args!("phi i32 [ {count}, %{counting} ], [ 0, %{before} ]"))
        };
        (self.gpu.uniform)(e, "i32", &count)
    }

    /// Every wave acquires: each may run on a compute unit of its own. The barrier hands them what the lane that counted
    /// has learnt.
    fn acquire(&mut self, e: &mut Emit<'_>, counter: &str) {
        self.gpu.scope.acquire(e);
        if e.p.waves > 1 {
            self.barrier(e);
        }
        let (one, join) = (e.ir.label("one"), e.ir.label("join"));
        let first = e.ir.inst("icmp eq i32 %thread, 0");
        e.ir.cond_br(&first, &one, &join);
        e.ir.start(&one);
        self.gpu.scope.reset(e, counter);
        e.ir.br(&join);
        e.ir.start(&join);
    }

    fn loop_hint(&mut self, e: &mut Emit<'_>, f: &For) -> String {
        let id = FIRST_LOOP + self.loops;
        self.loops += 1;
        let hint = FIRST_HINT + rounds(e, self.gpu, f) as u32;
        e.ir.global(format_args!("!{id} = distinct !{{!{id}, !{hint}}}"));
        format!(", !llvm.loop !{id}")
    }

    fn defined(&mut self, _: &mut Emit<'_>, _: Val) -> Result<()> {
        Ok(())
    }
}

/// Waits for so many cycles of the clock, if there is one.
fn wait_for(e: &mut Emit<'_>, gpu: &Gpu, cycles: &str) {
    let Some(clock) = gpu.clock else { return };
    let cycles = e.ir.inst(format_args!("zext i32 {cycles} to i64"));
    let start = clock(e);
    let (again, done) = (e.ir.label("spin"), e.ir.label("spun"));
    e.ir.br(&again);
    e.ir.start(&again);
    let now = clock(e);
    let passed = e.ir.inst(format_args!("sub i64 {now}, {start}"));
    let early = e.ir.inst(format_args!("icmp ult i64 {passed}, {cycles}"));
    e.ir.cond_br(&early, &again, &done);
    e.ir.start(&done);
}

/// The value of lane ^ mask.
fn xor_lane(e: &mut Emit<'_>, gpu: &Gpu, ty: Lty, x: &str, mask: u32) -> String {
    let bits = to_bits(e, ty, x);
    let moved = (gpu.xor_lane)(e, &bits, mask, ty.elem == "float");
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
fn reduce(e: &mut Emit<'_>, gpu: &Gpu, reduce: Reduce, a: Val) -> Result<String> {
    let (ty, mut x) = (e.ty(a)?, e.op(a)?);
    for step in [16, 8, 4, 2, 1] {
        let other = xor_lane(e, gpu, ty, &x, step);
        x = match reduce {
            Reduce::Add if ty.elem == "float" => e.ir.inst(format_args!("fadd float {x}, {other}")),
            Reduce::Add => e.ir.inst(format_args!("add {ty} {x}, {other}")),
            Reduce::Min | Reduce::Max => min_max(e, ty, reduce == Reduce::Max, &x, &other),
        };
    }
    Ok((gpu.uniform)(e, ty.elem, &x))
}

fn read_lane(e: &mut Emit<'_>, gpu: &Gpu, a: Val, index: Val) -> Result<String> {
    let (ty, x, index) = (e.ty(a)?, e.op(a)?, e.op(index)?);
    let bits = to_bits(e, ty, &x);
    let bits_ty = if ty.elem == "i64" { "i64" } else { "i32" };
    let read = (gpu.read_lane)(e, bits_ty, &bits, &index);
    Ok(from_bits(e, ty, &read))
}

/// Inclusive sum in five steps, less the lane's own value.
fn scan(e: &mut Emit<'_>, gpu: &Gpu, a: Val) -> Result<String> {
    let own = e.op(a)?;
    let mut x = own.clone();
    for step in [1, 2, 4, 8, 16] {
        let moved = (gpu.lower_lane)(e, &x, step);
        let has = e.ir.inst(format_args!("icmp uge i32 %lane, {step}"));
        let term = e.ir.inst(format_args!("select i1 {has}, i32 {moved}, i32 0"));
        x = e.ir.inst(format_args!("add i32 {x}, {term}"));
    }
    Ok(e.ir.inst(format_args!("sub i32 {x}, {own}")))
}
