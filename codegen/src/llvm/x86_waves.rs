//! Workgroups of several waves on x86-64: loop distribution.
//!
//! A block is cut at its barriers into *segments*; each runs in a loop over the waves. An `If` or `For` that holds a
//! barrier is workgroup-uniform and stays outside of the wave loops; its body is cut the same way. A value that is used
//! outside of the segment that defines it lives in a *slot*: a stack array with one element per wave. A grid finish cuts
//! like a barrier: all waves have run when the workgroup arrives.

use super::finish::{self, Arrival};
use super::walk::{Emit, Result};
use super::x86::{X86, everywhere};
use crate::kp::{Expr, For, IfResult, LANES, Stmt, Val};

/// A block, cut.
enum Region<'p> {
    Segment { number: u32, stmts: &'p [Stmt] },
    For(&'p For, Vec<Region<'p>>),
    If { cond: Val, then: Vec<Region<'p>>, otherwise: Vec<Region<'p>>, results: &'p [IfResult] },
    Finish { counter: u32, index: Val, arrivals: Val, body: Vec<Region<'p>> },
}

/// Where a value is defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Home {
    /// Nowhere yet.
    Unknown,
    /// In a segment.
    Segment(u32),
    /// Between segments: by a `For` or `If` that holds a barrier.
    Between,
    /// A value that is the same operand everywhere.
    Everywhere,
    /// The wave number.
    Wave,
}

/// Slots of a function.
pub(crate) struct Slots {
    home: Vec<Home>,
    /// Whether a value needs a slot.
    kept: Vec<bool>,
    /// The slot's pointer, once it is made.
    pointer: Vec<Option<String>>,
    /// Values from elsewhere that a segment reads, by segment number, ascending.
    reads: Vec<Vec<Val>>,
}

fn has_barrier(stmt: &Stmt) -> bool {
    match stmt {
        Stmt::Barrier | Stmt::GridFinish { .. } => true,
        Stmt::If { then, otherwise, .. } => then.iter().chain(otherwise).any(has_barrier),
        Stmt::For(f) => f.body.iter().any(has_barrier),
        Stmt::Let(..)
        | Stmt::Store { .. }
        | Stmt::TileStore { .. }
        | Stmt::Prefetch { .. }
        | Stmt::Await { .. }
        | Stmt::Spin { .. } => false,
    }
}

/// Cuts a block; `segments` counts across the function.
fn cut<'p>(stmts: &'p [Stmt], segments: &mut u32) -> Vec<Region<'p>> {
    let mut regions = Vec::new();
    for run in stmts.chunk_by(|a, b| !has_barrier(a) && !has_barrier(b)) {
        match run {
            [Stmt::Barrier] => {}
            [Stmt::For(f)] if f.body.iter().any(has_barrier) => regions.push(Region::For(f, cut(&f.body, segments))),
            [stmt @ Stmt::If { cond, then, otherwise, results }] if has_barrier(stmt) => {
                let (then, otherwise) = (cut(then, segments), cut(otherwise, segments));
                regions.push(Region::If { cond: *cond, then, otherwise, results });
            }
            [Stmt::GridFinish { counter, index, arrivals, body }] => {
                let body = cut(body, segments);
                regions.push(Region::Finish { counter: *counter, index: *index, arrivals: *arrivals, body });
            }
            stmts => {
                regions.push(Region::Segment { number: *segments, stmts });
                *segments += 1;
            }
        }
    }
    regions
}

impl Slots {
    fn home(&self, val: Val) -> Home {
        self.home.get(val.0 as usize).copied().unwrap_or(Home::Unknown)
    }

    fn define(&mut self, val: Val, home: Home) {
        if let Some(slot) = self.home.get_mut(val.0 as usize) {
            *slot = home;
        }
    }

    fn keep(&mut self, val: Val) {
        if let (Home::Segment(_) | Home::Between, Some(kept)) = (self.home(val), self.kept.get_mut(val.0 as usize)) {
            *kept = true;
        }
    }

    /// A use in segment `number`.
    fn read(&mut self, val: Val, number: u32) {
        let home = self.home(val);
        if home == Home::Segment(number) || home == Home::Everywhere {
            return;
        }
        self.keep(val);
        if let Some(reads) = self.reads.get_mut(number as usize) {
            reads.push(val);
        }
    }

    fn scan(&mut self, regions: &[Region<'_>]) {
        for region in regions {
            match region {
                Region::Segment { number, stmts } => stmts.iter().for_each(|stmt| self.scan_stmt(stmt, *number)),
                Region::For(f, body) => {
                    [f.start, f.end, f.step].into_iter().for_each(|val| self.keep(val));
                    self.define(f.index, Home::Everywhere);
                    for c in &f.carried {
                        self.keep(c.init);
                        self.define(c.param, Home::Between);
                        self.keep(c.param);
                    }
                    self.scan(body);
                    for c in &f.carried {
                        self.keep(c.next);
                        self.define(c.result, Home::Between);
                        self.keep(c.result);
                    }
                }
                Region::If { cond, then, otherwise, results } => {
                    self.keep(*cond);
                    self.scan(then);
                    self.scan(otherwise);
                    for r in *results {
                        self.keep(r.then);
                        self.keep(r.otherwise);
                        self.define(r.result, Home::Between);
                        self.keep(r.result);
                    }
                }
                Region::Finish { index, arrivals, body, .. } => {
                    self.keep(*index);
                    self.keep(*arrivals);
                    self.scan(body);
                }
            }
        }
    }

    fn scan_stmt(&mut self, stmt: &Stmt, number: u32) {
        let home = Home::Segment(number);
        match stmt {
            Stmt::Let(val, expr) => {
                expr.operands().for_each(|operand| self.read(operand, number));
                self.define(
                    *val,
                    match expr {
                        Expr::Wave => Home::Wave,
                        expr if is_everywhere(expr) => Home::Everywhere,
                        _ => home,
                    },
                );
            }
            Stmt::Store { addr, bound, value, .. } => {
                addr.operands().chain(bound.operands()).chain([*value]).for_each(|val| self.read(val, number));
            }
            Stmt::TileStore { base, tile, .. } => [*base, *tile].into_iter().for_each(|val| self.read(val, number)),
            Stmt::Spin { cycles, late } => [*cycles, *late].into_iter().for_each(|val| self.read(val, number)),
            // The first two are left out; the others are no part of a segment.
            Stmt::Prefetch { .. } | Stmt::Await { .. } | Stmt::Barrier | Stmt::GridFinish { .. } => {}
            Stmt::If { cond, then, otherwise, results } => {
                self.read(*cond, number);
                then.iter().chain(otherwise).for_each(|stmt| self.scan_stmt(stmt, number));
                for r in results {
                    self.read(r.then, number);
                    self.read(r.otherwise, number);
                    self.define(r.result, home);
                }
            }
            Stmt::For(f) => {
                [f.start, f.end, f.step].into_iter().for_each(|val| self.read(val, number));
                self.define(f.index, home);
                for c in &f.carried {
                    self.read(c.init, number);
                    self.define(c.param, home);
                }
                f.body.iter().for_each(|stmt| self.scan_stmt(stmt, number));
                for c in &f.carried {
                    self.read(c.next, number);
                    self.define(c.result, home);
                }
            }
        }
    }
}

fn is_everywhere(expr: &Expr) -> bool {
    matches!(expr, Expr::F32(_) | Expr::I32(_) | Expr::I64(_) | Expr::Bool(_)) || everywhere(expr).is_some()
}

/// Lowers the body of a workgroup of several waves.
pub(crate) fn workgroup(e: &mut Emit<'_>, b: &mut X86) -> Result<()> {
    let (p, mut segments) = (e.p, 0);
    let regions = cut(&p.body, &mut segments);
    let n = p.types.len();
    let mut slots = Slots {
        home: vec![Home::Unknown; n],
        kept: vec![false; n],
        pointer: vec![None; n],
        reads: vec![Vec::new(); segments as usize],
    };
    slots.scan(&regions);
    for reads in &mut slots.reads {
        reads.sort_unstable();
        reads.dedup();
    }
    b.slots = Some(slots);
    emit(e, b, &regions)
}

fn emit(e: &mut Emit<'_>, b: &mut X86, regions: &[Region<'_>]) -> Result<()> {
    for region in regions {
        match region {
            Region::Segment { number, stmts } => segment(e, b, *number, stmts)?,
            Region::For(f, body) => for_region(e, b, f, body)?,
            Region::If { cond, then, otherwise, results } => if_region(e, b, *cond, then, otherwise, results)?,
            Region::Finish { counter, index, arrivals, body } => {
                let (index, arrivals) = (read(e, b, *index)?, read(e, b, *arrivals)?);
                let join = finish::open(e, b, &Arrival { counter: *counter, index, arrivals });
                emit(e, b, body)?;
                finish::close(e, &join);
            }
        }
    }
    Ok(())
}

/// A barrier-free run of statements, once per wave.
fn segment(e: &mut Emit<'_>, b: &mut X86, number: u32, stmts: &[Stmt]) -> Result<()> {
    let reads = b.slots.as_ref().and_then(|s| s.reads.get(number as usize)).cloned().unwrap_or_default();
    wave_loop(e, b, |e, b| {
        for val in reads {
            let operand = read(e, b, val)?;
            e.set(val, operand)?;
        }
        e.stmts(b, stmts)
    })
}

/// Runs `body` in a loop over the waves.
fn wave_loop(e: &mut Emit<'_>, b: &mut X86, body: impl FnOnce(&mut Emit<'_>, &mut X86) -> Result<()>) -> Result<()> {
    let l = e.ir.begin_loop(&e.p.waves.to_string());
    b.wave.clone_from(&l.index);
    body(e, b)?;
    b.wave = "0".to_owned();
    e.ir.end_loop(&l);
    Ok(())
}

/// Pointer to the current wave's element of a value's slot.
fn slot(e: &mut Emit<'_>, b: &mut X86, val: Val) -> Result<String> {
    let (ty, waves) = (e.ty(val)?, e.p.waves);
    let fault = e.fault(format!("value {} has no slot", val.0));
    let pointer = b.slots.as_mut().and_then(|s| s.pointer.get_mut(val.0 as usize)).ok_or(fault)?;
    let pointer = pointer.get_or_insert_with(|| e.ir.alloca(format_args!("[{waves} x {ty}]"), 64)).clone();
    Ok(e.ir.inst(format_args!("getelementptr {ty}, ptr {pointer}, i32 {}", b.wave)))
}

/// A value of the current wave, from outside of its segment.
fn read(e: &mut Emit<'_>, b: &mut X86, val: Val) -> Result<String> {
    match b.slots.as_ref().map(|s| s.home(val)) {
        Some(Home::Wave) => Ok(b.wave.clone()),
        Some(Home::Everywhere) => e.op(val),
        _ => {
            let (ty, pointer) = (e.ty(val)?, slot(e, b, val)?);
            Ok(e.ir.inst(format_args!("load {ty}, ptr {pointer}")))
        }
    }
}

fn write(e: &mut Emit<'_>, b: &mut X86, val: Val, operand: &str) -> Result<()> {
    let (ty, pointer) = (e.ty(val)?, slot(e, b, val)?);
    e.ir.line(format_args!("store {ty} {operand}, ptr {pointer}"));
    Ok(())
}

/// Stores a value that was just defined, if it needs a slot.
pub(crate) fn keep(b: &mut X86, e: &mut Emit<'_>, val: Val) -> Result<()> {
    let kept = b.slots.as_ref().is_some_and(|s| s.kept.get(val.0 as usize) == Some(&true));
    if kept {
        let operand = e.op(val)?;
        write(e, b, val, &operand)?;
    }
    Ok(())
}

/// Copies values to slots, per wave; all are read before any is written.
fn copy(e: &mut Emit<'_>, b: &mut X86, pairs: &[(Val, Val)]) -> Result<()> {
    if pairs.is_empty() {
        return Ok(());
    }
    wave_loop(e, b, |e, b| {
        let values = pairs.iter().map(|(from, _)| read(e, b, *from)).collect::<Result<Vec<_>>>()?;
        pairs.iter().zip(&values).try_for_each(|((_, to), value)| write(e, b, *to, value))
    })
}

fn for_region(e: &mut Emit<'_>, b: &mut X86, f: &For, body: &[Region<'_>]) -> Result<()> {
    let (start, end, step) = (read(e, b, f.start)?, read(e, b, f.end)?, read(e, b, f.step)?);
    copy(e, b, &f.carried.iter().map(|c| (c.init, c.param)).collect::<Vec<_>>())?;
    let (head, inside, exit) = (e.ir.label("head"), e.ir.label("body"), e.ir.label("exit"));
    let entry = e.ir.block().to_owned();
    e.ir.br(&head);
    e.ir.start(&head);
    let phi = e.ir.reserve();
    let index = format!("%i{}", f.index.0);
    e.set(f.index, index.clone())?;
    let more = e.ir.inst(format_args!("icmp slt i32 {index}, {end}"));
    e.ir.cond_br(&more, &inside, &exit);
    e.ir.start(&inside);
    emit(e, b, body)?;
    copy(e, b, &f.carried.iter().map(|c| (c.next, c.param)).collect::<Vec<_>>())?;
    let next = e.ir.inst(format_args!("add i32 {index}, {step}"));
    let latch = e.ir.block().to_owned();
    e.ir.br(&head);
    e.ir.fill(phi, format_args!("{index} = phi i32 [ {start}, %{entry} ], [ {next}, %{latch} ]"));
    e.ir.start(&exit);
    copy(e, b, &f.carried.iter().map(|c| (c.param, c.result)).collect::<Vec<_>>())
}

fn if_region(
    e: &mut Emit<'_>,
    b: &mut X86,
    cond: Val,
    then: &[Region<'_>],
    otherwise: &[Region<'_>],
    results: &[IfResult],
) -> Result<()> {
    let cond = read(e, b, cond)?;
    let (yes, no, join) = (e.ir.label("then"), e.ir.label("else"), e.ir.label("join"));
    e.ir.cond_br(&cond, &yes, &no);
    e.ir.start(&yes);
    emit(e, b, then)?;
    copy(e, b, &results.iter().map(|r| (r.then, r.result)).collect::<Vec<_>>())?;
    e.ir.br(&join);
    e.ir.start(&no);
    emit(e, b, otherwise)?;
    copy(e, b, &results.iter().map(|r| (r.otherwise, r.result)).collect::<Vec<_>>())?;
    e.ir.br(&join);
    e.ir.start(&join);
    Ok(())
}

const _: () = assert!(LANES == 32, "masks and ballots are 32 bits");
