//! The verifier: every rule that the lowerings rely on.

use super::typing::{expr_type, store_types};
use super::{
    Access, Elem, For, IfResult, Mem, Param, Place, Program, Shared, Stmt, Ty, Val, order, shared_bytes, tile_typing,
    uniform,
};
use crate::error::CodegenError;

/// Most bytes of shared arrays, on any target.
pub const MAX_SHARED: u64 = 65536;

/// Longest kernel name.
pub const MAX_NAME: usize = 63;

/// A broken rule, before the kernel's name is added.
pub(super) struct Broken {
    pub rule: &'static str,
    pub found: String,
    pub cure: &'static str,
}

pub(super) type Check<T> = Result<T, Broken>;

/// A refusal.
pub(super) fn broken<T>(rule: &'static str, found: impl Into<String>, cure: &'static str) -> Check<T> {
    Err(Broken { rule, found: found.into(), cure })
}

/// Checks every rule of [`crate::kp`]: types, definition before use and once, scopes, uniform control flow, barriers,
/// accesses, sizes. The error names the rule, the value and the types found.
pub fn verify(p: &Program) -> Result<(), CodegenError> {
    let checked = header(p).and_then(|()| {
        let mut body = Body {
            p,
            differs: uniform::differs(p),
            visible: vec![false; p.types.len()],
            defined: vec![false; p.types.len()],
            scope: Vec::new(),
            divergent: None,
            finishing: false,
        };
        body.block(&p.body)?;
        order::check(p)
    });
    checked.map_err(|b| CodegenError::Verify { kernel: p.name.clone(), rule: b.rule, found: b.found, cure: b.cure })
}

fn is_vec(vec: u8) -> bool {
    matches!(vec, 1 | 2 | 4 | 8)
}

fn header(p: &Program) -> Check<()> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
    if p.name.is_empty() || p.name.len() > MAX_NAME || !p.name.chars().all(plain) {
        let found = format!("the name has {} characters", p.name.len());
        return broken("kernel-name", found, "use 1 to 63 characters of [A-Za-z0-9_]");
    }
    if p.name.starts_with(|c: char| c.is_ascii_digit()) {
        return broken("kernel-name", "the name starts with a digit", "start it with a letter");
    }
    if !(1..=16).contains(&p.waves) {
        return broken("waves", format!("{} waves", p.waves), "use 1 to 16 waves in a workgroup");
    }
    p.params.iter().enumerate().try_for_each(|(i, param)| exchanged(i, param))?;
    if let Some(i) = p.shared.iter().position(|shared| shared.len == 0) {
        return broken("shared-size", format!("shared{i} is empty"), "leave it out");
    }
    p.shared.iter().enumerate().try_for_each(|(i, shared)| placed(p, i, shared))?;
    let bytes = shared_bytes(p);
    if bytes > MAX_SHARED {
        let found = format!("{bytes} bytes of shared arrays, at most {MAX_SHARED}");
        return broken("shared-size", found, "split the work or shrink the tile");
    }
    for (i, ty) in p.types.iter().enumerate() {
        if let Ty::Lane(_, vec) = ty
            && !is_vec(*vec)
        {
            return broken("vec", format!("v{i} has type {ty}"), "use 1, 2, 4 or 8 components");
        }
    }
    Ok(())
}

/// An array in another's place has room there.
fn placed(p: &Program, i: usize, shared: &Shared) -> Check<()> {
    let Some(over) = shared.over else { return Ok(()) };
    match p.shared.iter().take(i).nth(over as usize) {
        Some(place) if place.over.is_none() && shared.bytes() <= place.bytes() => Ok(()),
        Some(place) => {
            let found = format!("shared{i} of {} bytes over shared{over} of {}", shared.bytes(), place.bytes());
            broken("shared-place", found, "take the place of an array of its own that is as large")
        }
        None => broken("shared-place", format!("shared{i} over shared{over}"), "take the place of an earlier array"),
    }
}

/// Elements that pass between workgroups are whole 32-bit words: that is what atomic accesses take.
fn exchanged(i: usize, param: &Param) -> Check<()> {
    match param {
        Param::Buffer { mem, access: Access::Counter, .. } if *mem != Mem::I32 => {
            broken("counter-type", format!("param{i} of {mem} is declared counter"), "make it a buffer of i32")
        }
        Param::Buffer { mem: mem @ (Mem::Bf16 | Mem::F16), access: Access::Exchange, .. } => {
            broken("exchange-type", format!("param{i} of {mem} is declared exchange"), "exchange f32 or i32")
        }
        _ => Ok(()),
    }
}

/// The walk through statements.
pub(super) struct Body<'p> {
    pub p: &'p Program,
    differs: Vec<bool>,
    /// Values in scope.
    visible: Vec<bool>,
    /// Values defined anywhere so far.
    defined: Vec<bool>,
    /// Values to hide at the end of the block.
    scope: Vec<Val>,
    /// The value that makes the current control flow differ between waves.
    divergent: Option<Val>,
    /// Inside the body of a grid finish.
    pub(super) finishing: bool,
}

impl Body<'_> {
    /// The type of a value that is in scope.
    pub(super) fn used(&self, val: Val) -> Check<Ty> {
        let i = val.0 as usize;
        match (self.p.types.get(i), self.visible.get(i)) {
            (Some(ty), Some(true)) => Ok(*ty),
            (None, _) => broken("type-table", format!("{val} has no type"), "give each value a type"),
            (Some(ty), _) if self.defined.get(i) == Some(&true) => {
                let found = format!("{val} ({ty}) is used outside of the block that defines it");
                broken("scope", found, "carry it out as a result of the `if` or `for`")
            }
            (Some(ty), _) => {
                let found = format!("{val} ({ty}) is used before its definition");
                broken("definition-before-use", found, "define it earlier in this block or around it")
            }
        }
    }

    fn define(&mut self, val: Val) -> Check<Ty> {
        let i = val.0 as usize;
        let Some(ty) = self.p.types.get(i).copied() else {
            return broken("type-table", format!("{val} has no type"), "give each value a type");
        };
        if self.defined.get(i) == Some(&true) {
            return broken("single-definition", format!("{val} ({ty}) is defined twice"), "use a fresh value");
        }
        for table in [&mut self.defined, &mut self.visible] {
            if let Some(slot) = table.get_mut(i) {
                *slot = true;
            }
        }
        self.scope.push(val);
        Ok(ty)
    }

    fn define_as(&mut self, val: Val, needed: Ty, what: &str) -> Check<()> {
        let ty = self.define(val)?;
        if ty == needed {
            return Ok(());
        }
        let found = format!("{val} has type {ty}, {what} gives {needed}");
        broken("result-type", found, "give the value that type")
    }

    fn need(&self, val: Val, needed: Ty, rule: &'static str, what: &str) -> Check<()> {
        let ty = self.used(val)?;
        if ty == needed {
            return Ok(());
        }
        let found = format!("{what} {val} has type {ty}, needed is {needed}");
        broken(rule, found, "convert it, or reduce it to a uniform value")
    }

    /// Runs `f` in a block of its own.
    fn scoped(&mut self, f: impl FnOnce(&mut Self) -> Check<()>) -> Check<()> {
        let mark = self.scope.len();
        f(self)?;
        for val in self.scope.split_off(mark) {
            if let Some(slot) = self.visible.get_mut(val.0 as usize) {
                *slot = false;
            }
        }
        Ok(())
    }

    /// Runs `f` under control flow that depends on `vals`.
    fn under(&mut self, vals: &[Val], f: impl FnOnce(&mut Self) -> Check<()>) -> Check<()> {
        let before = self.divergent;
        let differs = |val: &&Val| self.differs.get(val.0 as usize) == Some(&true);
        self.divergent = before.or(vals.iter().find(differs).copied());
        f(self)?;
        self.divergent = before;
        Ok(())
    }

    fn block(&mut self, stmts: &[Stmt]) -> Check<()> {
        stmts.iter().try_for_each(|stmt| self.stmt(stmt))
    }

    fn stmt(&mut self, stmt: &Stmt) -> Check<()> {
        match stmt {
            Stmt::Let(val, expr) => {
                let ty = expr_type(self, *val, expr)?;
                self.define_as(*val, ty, &format!("`{expr}`"))
            }
            Stmt::Store { to, addr, bound, value } => store_types(self, *to, *addr, *bound, *value),
            Stmt::TileStore { to, base, pitch, tile } => tile_typing::store_types(self, *to, *base, *pitch, *tile),
            Stmt::Prefetch { from, base, bytes, share } => self.prefetch(*from, [*base, *bytes], *share),
            Stmt::Spin { cycles, late } => [cycles, late]
                .into_iter()
                .try_for_each(|val| self.need(*val, Ty::Uniform(Elem::I32), "spin-type", "number of cycles")),
            // Its place and what is in it are rules of their own.
            Stmt::Await { ahead } => self.scoped(|s| s.block(ahead)),
            Stmt::Barrier => match self.divergent {
                Some(val) if self.p.waves > 1 => {
                    let found = format!("a barrier under control flow of {val}, which may differ between waves");
                    broken("barrier-uniform", found, "move the barrier out, or share the value through memory first")
                }
                _ => Ok(()),
            },
            Stmt::If { cond, then, otherwise, results } => self.branch(*cond, then, otherwise, results),
            Stmt::For(f) => self.for_loop(f),
            Stmt::GridFinish { counter, index, arrivals, body } => {
                self.grid_finish(*counter, [*index, *arrivals], body)
            }
        }
    }

    fn prefetch(&self, from: u32, [base, bytes]: [Val; 2], share: u32) -> Check<()> {
        match self.place(Place::Buffer(from))? {
            (_, Access::Constant) if share > 0 => {}
            (_, access) => {
                let found = format!("a prefetch of param{from}, declared {access}, one of {share}");
                return broken("prefetch", found, "ask for constants, as one of some");
            }
        }
        if self.used(base)? != Ty::Uniform(Elem::I64) {
            self.need(base, Ty::Uniform(Elem::I32), "prefetch-type", "base")?;
        }
        self.need(bytes, Ty::Uniform(Elem::I32), "prefetch-type", "number of bytes")
    }

    fn grid_finish(&mut self, counter: u32, vals: [Val; 2], body: &[Stmt]) -> Check<()> {
        if self.finishing {
            let found = format!("a grid finish on param{counter} in the body of another");
            return broken("finish-nested", found, "put it after the other one, or in a kernel of its own");
        }
        match self.place(Place::Buffer(counter))? {
            (_, Access::Counter) => {}
            (_, access) => {
                let found = format!("a grid finish on param{counter}, which is declared {access}");
                return broken("finish-counter", found, "name a buffer that is declared counter");
            }
        }
        for (val, what) in vals.into_iter().zip(["counter index", "number of arrivals"]) {
            self.need(val, Ty::Uniform(Elem::I32), "finish-type", what)?;
        }
        let differs = |val: &Val| self.differs.get(val.0 as usize) == Some(&true);
        if let Some(val) = self.divergent.or_else(|| vals.into_iter().find(differs))
            && self.p.waves > 1
        {
            let found = format!("a grid finish that depends on {val}, which may differ between waves");
            return broken("finish-uniform", found, "move it out, or share the value through memory first");
        }
        self.finishing = true;
        self.scoped(|s| s.block(body))?;
        self.finishing = false;
        Ok(())
    }

    fn branch(&mut self, cond: Val, then: &[Stmt], otherwise: &[Stmt], results: &[IfResult]) -> Check<()> {
        self.need(cond, Ty::Uniform(Elem::Bool), "uniform-control", "condition")?;
        self.under(&[cond], |s| {
            for (stmts, is_then) in [(then, true), (otherwise, false)] {
                s.scoped(|s| {
                    s.block(stmts)?;
                    results.iter().try_for_each(|r| {
                        let (val, needed) = (if is_then { r.then } else { r.otherwise }, s.declared(r.result)?);
                        s.need(val, needed, "if-result-type", "the branch's value")
                    })
                })?;
            }
            Ok(())
        })?;
        results.iter().try_for_each(|r| self.define(r.result).map(|_| ()))
    }

    fn declared(&self, val: Val) -> Check<Ty> {
        match self.p.types.get(val.0 as usize) {
            Some(ty) => Ok(*ty),
            None => broken("type-table", format!("{val} has no type"), "give each value a type"),
        }
    }

    fn for_loop(&mut self, f: &For) -> Check<()> {
        let i32_ty = Ty::Uniform(Elem::I32);
        for (val, what) in [(f.start, "loop start"), (f.end, "loop end"), (f.step, "loop step")] {
            self.need(val, i32_ty, "uniform-control", what)?;
        }
        for c in &f.carried {
            let needed = self.declared(c.param)?;
            self.need(c.init, needed, "carried-type", "first carried value")?;
        }
        self.under(&[f.start, f.end, f.step], |s| {
            s.scoped(|s| {
                s.define_as(f.index, i32_ty, "a loop index")?;
                f.carried.iter().try_for_each(|c| s.define(c.param).map(|_| ()))?;
                s.block(&f.body)?;
                f.carried.iter().try_for_each(|c| {
                    let needed = s.declared(c.param)?;
                    s.need(c.next, needed, "carried-type", "next carried value")
                })
            })
        })?;
        for c in &f.carried {
            let needed = self.declared(c.param)?;
            self.define_as(c.result, needed, "the carried value")?;
        }
        Ok(())
    }

    /// Element type in memory and declared access of a place.
    pub(super) fn place(&self, place: Place) -> Check<(Mem, Access)> {
        match place {
            Place::Buffer(i) => match self.p.params.get(i as usize) {
                Some(Param::Buffer { mem, access, .. }) => Ok((*mem, *access)),
                Some(Param::Scalar { name }) => {
                    broken("place", format!("param{i} ({name}) is a scalar"), "access a buffer parameter")
                }
                None => {
                    let found = format!("param{i} of {}", self.p.params.len());
                    broken("place", found, "access a parameter that exists")
                }
            },
            Place::Shared(i) => match self.p.shared.get(i as usize) {
                Some(shared) => Ok((shared.mem, Access::ReadWrite)),
                None => {
                    let found = format!("shared{i} of {}", self.p.shared.len());
                    broken("place", found, "access a shared array that exists")
                }
            },
        }
    }
}
