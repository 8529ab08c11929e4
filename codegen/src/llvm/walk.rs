//! What the lowerings share: structured control flow to blocks and phis.

use std::collections::BTreeMap;

use super::finish::{self, Arrival, Scope};
use super::ir::{Ir, Lty};
use super::{gpu_tiles, x86_tiles};
use crate::error::CodegenError;
use crate::kp::{Addr, Bound, Elem, Expr, For, IfResult, Mem, Place, Program, Stmt, Tile, Ty, Val};

pub(crate) type Result<T> = std::result::Result<T, CodegenError>;

/// A store statement.
pub(crate) struct StoreAt {
    pub to: Place,
    pub addr: Addr,
    pub bound: Bound,
    pub value: Val,
}

/// A load expression.
pub(crate) struct LoadAt {
    pub from: Place,
    pub addr: Addr,
    pub bound: Bound,
    pub vec: u8,
}

/// What differs between targets.
pub(crate) trait Backend {
    /// Lowers an expression that [`super::pure`] does not.
    fn expr(&mut self, e: &mut Emit<'_>, val: Val, expr: &Expr) -> Result<String>;
    fn store(&mut self, e: &mut Emit<'_>, at: &StoreAt) -> Result<()>;
    /// A tile of sums to shared memory: place, base, pitch, tile.
    fn tile_store(&mut self, e: &mut Emit<'_>, to: (Place, Val, u32), tile: Val) -> Result<()>;
    fn barrier(&mut self, e: &mut Emit<'_>);
    /// Asks for bytes of a buffer, from an element on, as one of so many.
    fn prefetch(&mut self, e: &mut Emit<'_>, from: u32, at: [Val; 2], share: u32) -> Result<()>;
    /// Goes on later, and arrives late at the next grid finish.
    fn spin(&mut self, e: &mut Emit<'_>, cycles: Val, late: Val) -> Result<()>;
    /// Does what can be done ahead, if it gains by that. Earlier launches of the list have ended behind this.
    fn await_earlier(&mut self, e: &mut Emit<'_>, ahead: &[Stmt]) -> Result<()>;
    /// The target's names for order between workgroups.
    fn scope(&self) -> &'static Scope;
    /// Releases what all waves wrote, adds 1 to a counter, and gives every wave its value before.
    fn arrive(&mut self, e: &mut Emit<'_>, counter: &str) -> String;
    /// In the workgroup that arrived last: acquires for all waves and sets the counter back.
    fn acquire(&mut self, e: &mut Emit<'_>, counter: &str);
    /// Called after each definition.
    fn defined(&mut self, e: &mut Emit<'_>, val: Val) -> Result<()>;
    /// Metadata of the next loop's back edge, with its comma; empty for none.
    fn loop_hint(&mut self, e: &mut Emit<'_>, f: &For) -> String;
}

/// A function being lowered: the text so far and the operand of each value.
pub(crate) struct Emit<'p> {
    pub p: &'p Program,
    pub ir: Ir,
    /// Lanes that one LLVM value holds: 32 on the host, 1 where a thread is a lane.
    pub width: u32,
    /// Powers of two that divide integers, by value; empty where nobody needs them.
    pub multiples: Vec<u64>,
    ops: Vec<Option<String>>,
    /// What loads of 16-bit floats gave before they were widened, by value.
    raws: BTreeMap<u32, Raw>,
}

/// A loaded value as it stands in memory.
struct Raw {
    mem: Mem,
    raw: String,
    /// The operand that it was widened to.
    wide: String,
}

/// LLVM's name of a register element.
pub(crate) const fn elem_name(elem: Elem) -> &'static str {
    match elem {
        Elem::F32 => "float",
        Elem::I32 => "i32",
        Elem::I64 => "i64",
        Elem::Bool => "i1",
    }
}

impl<'p> Emit<'p> {
    pub(crate) fn new(p: &'p Program, width: u32) -> Self {
        Self { p, ir: Ir::new(), width, multiples: vec![], ops: vec![None; p.types.len()], raws: BTreeMap::new() }
    }

    /// The fault of a program that does not verify.
    pub(crate) fn fault(&self, found: impl Into<String>) -> CodegenError {
        CodegenError::Lowering { kernel: self.p.name.clone(), found: found.into() }
    }

    pub(crate) fn kp_ty(&self, val: Val) -> Result<Ty> {
        self.p.types.get(val.0 as usize).copied().ok_or_else(|| self.fault(format!("value {} has no type", val.0)))
    }

    /// Components per lane; 1 for uniforms and tiles.
    pub(crate) fn vec_of(&self, val: Val) -> Result<u32> {
        Ok(match self.kp_ty(val)? {
            Ty::Uniform(_) | Ty::Tile(_) => 1,
            Ty::Lane(_, vec) => u32::from(vec),
        })
    }

    pub(crate) fn elem_of(&self, val: Val) -> Result<Elem> {
        Ok(self.kp_ty(val)?.elem())
    }

    /// The LLVM type of a lane value.
    pub(crate) fn lane_ty(&self, elem: &'static str, vec: u32) -> Lty {
        match self.width * vec {
            1 => Lty::scalar(elem),
            n => Lty::vector(elem, n),
        }
    }

    pub(crate) fn ty(&self, val: Val) -> Result<Lty> {
        Ok(match self.kp_ty(val)? {
            Ty::Uniform(elem) => Lty::scalar(elem_name(elem)),
            Ty::Lane(elem, vec) => self.lane_ty(elem_name(elem), u32::from(vec)),
            Ty::Tile(_) if self.width > 1 => x86_tiles::TILE_TY,
            Ty::Tile(Tile::Operand(_, half)) => gpu_tiles::operand_ty(half),
            Ty::Tile(Tile::Sum) => gpu_tiles::SUMS,
        })
    }

    pub(crate) fn op(&self, val: Val) -> Result<String> {
        self.ops
            .get(val.0 as usize)
            .and_then(Clone::clone)
            .ok_or_else(|| self.fault(format!("value {} is used before its definition", val.0)))
    }

    pub(crate) fn set(&mut self, val: Val, operand: String) -> Result<()> {
        let fault = self.fault(format!("value {} has no type", val.0));
        *self.ops.get_mut(val.0 as usize).ok_or(fault)? = Some(operand);
        Ok(())
    }

    /// Notes what a load of `val` gave before it was widened.
    pub(crate) fn loaded(&mut self, val: Val, mem: Mem, raw: &str, wide: &str) {
        if mem.bytes() == 2 {
            self.raws.insert(val.0, Raw { mem, raw: raw.to_owned(), wide: wide.to_owned() });
        }
    }

    /// What a store of `val` as `mem` writes, if that is what a load gave and has not gone through memory since: copies
    /// neither widen nor round.
    pub(crate) fn copied(&self, val: Val, mem: Mem) -> Result<Option<String>> {
        let operand = self.op(val)?;
        Ok(self.raws.get(&val.0).filter(|r| r.mem == mem && r.wide == operand).map(|r| r.raw.clone()))
    }

    /// Lowers statements whose values are LLVM values in one control flow.
    pub(crate) fn stmts(&mut self, b: &mut dyn Backend, stmts: &[Stmt]) -> Result<()> {
        stmts.iter().try_for_each(|stmt| self.stmt(b, stmt))
    }

    fn stmt(&mut self, b: &mut dyn Backend, stmt: &Stmt) -> Result<()> {
        match stmt {
            Stmt::Let(val, expr) => self.define(b, *val, expr),
            Stmt::Store { to, addr, bound, value } => {
                b.store(self, &StoreAt { to: *to, addr: *addr, bound: *bound, value: *value })
            }
            Stmt::TileStore { to, base, pitch, tile } => b.tile_store(self, (*to, *base, *pitch), *tile),
            Stmt::Prefetch { from, base, bytes, share } => b.prefetch(self, *from, [*base, *bytes], *share),
            Stmt::Spin { cycles, late } => b.spin(self, *cycles, *late),
            Stmt::Await { ahead } => b.await_earlier(self, ahead),
            Stmt::Barrier => {
                b.barrier(self);
                Ok(())
            }
            Stmt::If { cond, then, otherwise, results } => self.branch(b, *cond, then, otherwise, results),
            Stmt::For(f) => self.for_loop(b, f),
            Stmt::GridFinish { counter, index, arrivals, body } => {
                let at = Arrival::new(self, *counter, *index, *arrivals)?;
                let join = finish::open(self, b, &at);
                self.stmts(b, body)?;
                finish::close(self, &join);
                Ok(())
            }
        }
    }

    /// Lowers `let val = expr`.
    pub(crate) fn define(&mut self, b: &mut dyn Backend, val: Val, expr: &Expr) -> Result<()> {
        let operand = match super::pure::pure(self, val, expr)? {
            Some(operand) => operand,
            None => b.expr(self, val, expr)?,
        };
        self.set(val, operand)?;
        b.defined(self, val)
    }

    fn branch(
        &mut self,
        b: &mut dyn Backend,
        cond: Val,
        then: &[Stmt],
        otherwise: &[Stmt],
        results: &[IfResult],
    ) -> Result<()> {
        let (yes, no, join) = (self.ir.label("then"), self.ir.label("else"), self.ir.label("join"));
        let cond = self.op(cond)?;
        self.ir.cond_br(&cond, &yes, &no);
        self.ir.start(&yes);
        self.stmts(b, then)?;
        let yes = self.ir.block().to_owned();
        self.ir.br(&join);
        self.ir.start(&no);
        self.stmts(b, otherwise)?;
        let no = self.ir.block().to_owned();
        self.ir.br(&join);
        self.ir.start(&join);
        for r in results {
            let (ty, then, otherwise) = (self.ty(r.result)?, self.op(r.then)?, self.op(r.otherwise)?);
            let phi = self.ir.inst(format_args!("phi {ty} [ {then}, %{yes} ], [ {otherwise}, %{no} ]"));
            self.set(r.result, phi)?;
        }
        results.iter().try_for_each(|r| b.defined(self, r.result))
    }

    fn for_loop(&mut self, b: &mut dyn Backend, f: &For) -> Result<()> {
        let (head, body, exit) = (self.ir.label("head"), self.ir.label("body"), self.ir.label("exit"));
        let (start, end, step) = (self.op(f.start)?, self.op(f.end)?, self.op(f.step)?);
        let entry = self.ir.block().to_owned();
        self.ir.br(&head);
        self.ir.start(&head);
        let index_phi = self.ir.reserve();
        let index = format!("%i{}", f.index.0);
        self.set(f.index, index.clone())?;
        let mut phis = Vec::new();
        for c in &f.carried {
            phis.push((self.ir.reserve(), self.op(c.init)?, c));
            self.set(c.param, format!("%c{}", c.param.0))?;
        }
        let more = self.ir.inst(format_args!("icmp slt i32 {index}, {end}"));
        self.ir.cond_br(&more, &body, &exit);
        self.ir.start(&body);
        self.stmts(b, &f.body)?;
        let next = self.ir.inst(format_args!("add i32 {index}, {step}"));
        let latch = self.ir.block().to_owned();
        let hint = b.loop_hint(self, f);
        self.ir.br(&format!("{head}{hint}"));
        self.ir.fill(index_phi, format_args!("{index} = phi i32 [ {start}, %{entry} ], [ {next}, %{latch} ]"));
        for (place, init, c) in &phis {
            let (ty, next) = (self.ty(c.param)?, self.op(c.next)?);
            let phi = format!("%c{} = phi {ty} [ {init}, %{entry} ], [ {next}, %{latch} ]", c.param.0);
            self.ir.fill(*place, phi);
        }
        self.ir.start(&exit);
        for c in &f.carried {
            self.set(c.result, format!("%c{}", c.param.0))?;
            b.defined(self, c.result)?;
        }
        Ok(())
    }
}
