//! Builder for kernel programs: computes types, and widens uniform operands where a lane value meets them.

use std::collections::HashMap;

use unglue_ir::math::Machine;

use super::{
    Access, Addr, Bin, Bound, Carried, Cmp, Conv, Elem, Expr, For, Half, IfResult, Mem, Param, Place, Program, Reduce,
    Shared, Stmt, Tile, TileAt, Ty, Un, Val,
};

/// Builds one [`Program`]. Statements go to the innermost open block; pure expressions are shared within their scope.
pub struct Builder {
    program: Program,
    blocks: Vec<Vec<Stmt>>,
    known: Vec<HashMap<Expr, Val>>,
    ints: HashMap<Val, i32>,
}

impl Builder {
    #[must_use]
    pub fn new(name: &str, waves: u32) -> Self {
        let program = Program { name: name.into(), waves, params: vec![], shared: vec![], types: vec![], body: vec![] };
        Builder { program, blocks: vec![vec![]], known: vec![HashMap::new()], ints: HashMap::new() }
    }

    #[must_use]
    pub fn finish(mut self) -> Program {
        self.program.body = self.blocks.pop().unwrap_or_default();
        self.program
    }

    #[must_use]
    pub fn waves(&self) -> u32 {
        self.program.waves
    }

    pub fn buffer(&mut self, name: &str, mem: Mem, access: Access) -> u32 {
        self.program.params.push(Param::Buffer { name: name.into(), mem, access });
        self.program.params.len() as u32 - 1
    }

    pub fn scalar(&mut self, name: &str) -> u32 {
        self.program.params.push(Param::Scalar { name: name.into() });
        self.program.params.len() as u32 - 1
    }

    pub fn shared(&mut self, name: &str, mem: Mem, len: u64) -> Place {
        self.shared_array(name, mem, len, None)
    }

    /// An array in the place of an earlier one.
    pub fn shared_over(&mut self, name: &str, mem: Mem, len: u64, over: Place) -> Place {
        let over = if let Place::Shared(i) = over { Some(i) } else { None };
        self.shared_array(name, mem, len, over)
    }

    fn shared_array(&mut self, name: &str, mem: Mem, len: u64, over: Option<u32>) -> Place {
        let len = u32::try_from(len).unwrap_or(u32::MAX);
        self.program.shared.push(Shared { name: name.into(), mem, len, over });
        Place::Shared(self.program.shared.len() as u32 - 1)
    }

    #[must_use]
    pub fn ty(&self, v: Val) -> Ty {
        self.program.types[v.0 as usize]
    }

    fn fresh(&mut self, ty: Ty) -> Val {
        self.program.types.push(ty);
        Val(self.program.types.len() as u32 - 1)
    }

    fn push(&mut self, stmt: Stmt) {
        if let Some(block) = self.blocks.last_mut() {
            block.push(stmt);
        }
    }

    fn emit(&mut self, expr: Expr, ty: Ty) -> Val {
        let pure = !matches!(expr, Expr::Load { .. } | Expr::TileLoad(_) | Expr::TileFma { .. });
        if pure && let Some(v) = self.known.iter().rev().find_map(|k| k.get(&expr)) {
            return *v;
        }
        let v = self.fresh(ty);
        if pure && let Some(scope) = self.known.last_mut() {
            scope.insert(expr.clone(), v);
        }
        self.push(Stmt::Let(v, expr));
        v
    }

    fn open(&mut self) {
        self.blocks.push(vec![]);
        self.known.push(HashMap::new());
    }

    fn close(&mut self) -> Vec<Stmt> {
        self.known.pop();
        self.blocks.pop().unwrap_or_default()
    }

    pub fn f(&mut self, x: f32) -> Val {
        self.emit(Expr::F32(x.to_bits()), Ty::Uniform(Elem::F32))
    }

    pub fn i(&mut self, x: i64) -> Val {
        let v = self.emit(Expr::I32(x as i32), Ty::Uniform(Elem::I32));
        self.ints.insert(v, x as i32);
        v
    }

    pub fn i64(&mut self, x: i64) -> Val {
        self.emit(Expr::I64(x), Ty::Uniform(Elem::I64))
    }

    pub fn bool(&mut self, x: bool) -> Val {
        self.emit(Expr::Bool(x), Ty::Uniform(Elem::Bool))
    }

    pub fn arg(&mut self, scalar: u32) -> Val {
        self.emit(Expr::Scalar(scalar), Ty::Uniform(Elem::I32))
    }

    pub fn group(&mut self, axis: u8) -> Val {
        self.emit(Expr::Group(axis), Ty::Uniform(Elem::I32))
    }

    pub fn wave(&mut self) -> Val {
        self.emit(Expr::Wave, Ty::Uniform(Elem::I32))
    }

    pub fn lane(&mut self) -> Val {
        self.emit(Expr::Lane, Ty::Lane(Elem::I32, 1))
    }

    /// Gives both operands one shape.
    fn match_shapes(&mut self, a: Val, b: Val) -> (Val, Val) {
        match (self.ty(a), self.ty(b)) {
            (Ty::Uniform(_), Ty::Lane(_, n)) => (self.splat(a, n), b),
            (Ty::Lane(_, n), Ty::Uniform(_)) => (a, self.splat(b, n)),
            (Ty::Lane(_, 1), Ty::Lane(_, n)) if n > 1 => (self.splat(a, n), b),
            (Ty::Lane(_, n), Ty::Lane(_, 1)) if n > 1 => (a, self.splat(b, n)),
            _ => (a, b),
        }
    }

    pub fn splat(&mut self, v: Val, vec: u8) -> Val {
        if self.ty(v) == self.ty(v).with_vec(vec) {
            return v;
        }
        let ty = self.ty(v).with_vec(vec);
        self.emit(Expr::Splat(v, vec), ty)
    }

    pub fn un(&mut self, un: Un, a: Val) -> Val {
        let ty = self.ty(a);
        self.emit(Expr::Un(un, a), ty)
    }

    pub fn bin(&mut self, bin: Bin, a: Val, b: Val) -> Val {
        let (a, b) = self.match_shapes(a, b);
        if let Some(v) = self.fold(bin, a, b) {
            return v;
        }
        let ty = self.ty(a);
        self.emit(Expr::Bin(bin, a, b), ty)
    }

    /// Folds integer constants: addresses stay readable, and trip counts known.
    fn fold(&mut self, bin: Bin, a: Val, b: Val) -> Option<Val> {
        let (x, y) = (self.known_int(a), self.known_int(b));
        if self.ty(a) != Ty::Uniform(Elem::I32) {
            return None;
        }
        match (bin, x, y) {
            (Bin::Add, Some(0), _) | (Bin::Mul, Some(1), _) => Some(b),
            (Bin::Add | Bin::Sub, _, Some(0)) | (Bin::Mul | Bin::Div, _, Some(1)) => Some(a),
            (Bin::Mul, Some(0), _) | (Bin::Mul, _, Some(0)) => Some(self.i(0)),
            (Bin::Rem, _, Some(1)) => Some(self.i(0)),
            (Bin::Add, Some(x), Some(y)) => x.checked_add(y).map(|n| self.i(i64::from(n))),
            (Bin::Sub, Some(x), Some(y)) => x.checked_sub(y).map(|n| self.i(i64::from(n))),
            (Bin::Mul, Some(x), Some(y)) => x.checked_mul(y).map(|n| self.i(i64::from(n))),
            _ => None,
        }
    }

    /// Value of a constant i32.
    #[must_use]
    pub fn known_int(&self, v: Val) -> Option<i32> {
        self.ints.get(&v).copied()
    }

    pub fn add(&mut self, a: Val, b: Val) -> Val {
        self.bin(Bin::Add, a, b)
    }

    pub fn sub(&mut self, a: Val, b: Val) -> Val {
        self.bin(Bin::Sub, a, b)
    }

    pub fn mul(&mut self, a: Val, b: Val) -> Val {
        self.bin(Bin::Mul, a, b)
    }

    pub fn div(&mut self, a: Val, b: Val) -> Val {
        self.bin(Bin::Div, a, b)
    }

    pub fn rem(&mut self, a: Val, b: Val) -> Val {
        self.bin(Bin::Rem, a, b)
    }

    pub fn and(&mut self, a: Val, b: Val) -> Val {
        self.bin(Bin::And, a, b)
    }

    pub fn fma(&mut self, a: Val, b: Val, c: Val) -> Val {
        let (a, b) = self.match_shapes(a, b);
        let (a, c) = self.match_shapes(a, c);
        let (b, c) = self.match_shapes(b, c);
        let ty = self.ty(c);
        self.emit(Expr::Fma(a, b, c), ty)
    }

    pub fn cmp(&mut self, cmp: Cmp, a: Val, b: Val) -> Val {
        let (a, b) = self.match_shapes(a, b);
        let ty = self.ty(a).with(Elem::Bool);
        self.emit(Expr::Cmp(cmp, a, b), ty)
    }

    pub fn select(&mut self, c: Val, a: Val, b: Val) -> Val {
        let (a, b) = self.match_shapes(a, b);
        let (a, b, c) = match (self.ty(c), self.ty(a)) {
            (Ty::Lane(_, n), Ty::Uniform(_)) => (self.splat(a, n), self.splat(b, n), c),
            (Ty::Lane(_, 1), Ty::Lane(_, n)) if n > 1 => (a, b, self.splat(c, n)),
            _ => (a, b, c),
        };
        let ty = self.ty(a);
        self.emit(Expr::Select(c, a, b), ty)
    }

    pub fn conv(&mut self, conv: Conv, a: Val) -> Val {
        let to = match conv {
            Conv::I32ToF32 | Conv::BitsF32 => Elem::F32,
            Conv::F32ToI32 | Conv::I64ToI32 | Conv::BoolToI32 | Conv::F32Bits => Elem::I32,
            Conv::I32ToI64 => Elem::I64,
        };
        let ty = self.ty(a).with(to);
        self.emit(Expr::Conv(conv, a), ty)
    }

    /// To i64; nothing if it is one.
    pub fn wide(&mut self, a: Val) -> Val {
        if self.ty(a).elem() == Elem::I64 { a } else { self.conv(Conv::I32ToI64, a) }
    }

    /// One-component lane values (2, 4 or 8) as the components of one.
    pub fn pack(&mut self, parts: Vec<Val>) -> Val {
        let elem = parts.first().map_or(Elem::I32, |v| self.ty(*v).elem());
        let ty = Ty::Lane(elem, parts.len() as u8);
        self.emit(Expr::Pack(parts), ty)
    }

    pub fn component(&mut self, v: Val, i: u8) -> Val {
        let ty = Ty::Lane(self.ty(v).elem(), 1);
        self.emit(Expr::Component(v, i), ty)
    }

    /// Element type of a place.
    fn mem(&self, place: Place) -> Mem {
        match place {
            Place::Buffer(i) => match &self.program.params[i as usize] {
                Param::Buffer { mem, .. } => *mem,
                Param::Scalar { .. } => Mem::I32,
            },
            Place::Shared(i) => self.program.shared[i as usize].mem,
        }
    }

    pub fn load(&mut self, from: Place, addr: Addr, bound: Bound, vec: u8) -> Val {
        let elem = self.mem(from).elem();
        let ty = match addr {
            Addr::Uniform { .. } => Ty::Uniform(elem),
            _ => Ty::Lane(elem, vec),
        };
        self.emit(Expr::Load { from, addr, bound, vec }, ty)
    }

    pub fn load_uniform(&mut self, from: Place, base: Val) -> Val {
        self.load(from, Addr::Uniform { base }, Bound::All, 1)
    }

    pub fn store(&mut self, to: Place, addr: Addr, bound: Bound, value: Val) {
        let value = match (addr, self.ty(value)) {
            (Addr::Uniform { .. }, _) | (_, Ty::Lane(..)) => value,
            _ => self.splat(value, 1),
        };
        self.push(Stmt::Store { to, addr, bound, value });
    }

    pub fn tile_zero(&mut self) -> Val {
        self.emit(Expr::TileZero, Ty::Tile(Tile::Sum))
    }

    /// `onto` plus sums times the scales of their columns, from `base` on.
    pub fn tile_fma(&mut self, sums: Val, scales: Place, base: Val, onto: Val) -> Val {
        self.emit(Expr::TileFma { sums, scales, base, onto }, Ty::Tile(Tile::Sum))
    }

    /// An operand tile of bf16 unless its place holds f16.
    pub fn tile_load(&mut self, at: TileAt) -> Val {
        let half = Half::of(self.mem(at.from)).unwrap_or(Half::Bf16);
        self.emit(Expr::TileLoad(at), Ty::Tile(Tile::Operand(at.side, half)))
    }

    pub fn tile_mma(&mut self, a: Val, b: Val, sums: Val) -> Val {
        self.emit(Expr::TileMma([a, b, sums]), Ty::Tile(Tile::Sum))
    }

    pub fn tile_store(&mut self, to: Place, base: Val, pitch: u32, tile: Val) {
        self.push(Stmt::TileStore { to, base, pitch, tile });
    }

    /// Adds what can be done until earlier launches have ended to the await, where there is one. It shares no value with the
    /// rest.
    pub fn ahead<E>(&mut self, f: impl FnOnce(&mut Self) -> Result<(), E>) -> Result<(), E> {
        let known = std::mem::replace(&mut self.known, vec![HashMap::new()]);
        self.blocks.push(vec![]);
        let done = f(self);
        let stmts = self.blocks.pop().unwrap_or_default();
        self.known = known;
        let awaits = self.blocks.first_mut().into_iter().flatten().find_map(|stmt| match stmt {
            Stmt::Await { ahead } => Some(ahead),
            _ => None,
        });
        if let Some(ahead) = awaits {
            ahead.extend(stmts);
        }
        done
    }

    /// Asks for bytes of a constant buffer from an element on, as one of `share` of the workgroup.
    pub fn prefetch(&mut self, from: u32, base: Val, bytes: Val, share: u32) {
        self.push(Stmt::Prefetch { from, base, bytes, share });
    }

    /// Earlier launches have ended behind this.
    pub fn await_earlier(&mut self) {
        self.push(Stmt::Await { ahead: vec![] });
    }

    pub fn barrier(&mut self) {
        self.push(Stmt::Barrier);
    }

    /// The last of `arrivals` workgroups to arrive at element `index` of the counters runs `body`; nothing comes out.
    pub fn grid_finish<E>(
        &mut self,
        (counter, index, arrivals): (u32, Val, Val),
        body: impl FnOnce(&mut Self) -> Result<(), E>,
    ) -> Result<(), E> {
        self.open();
        let done = body(self);
        let body = self.close();
        self.push(Stmt::GridFinish { counter, index, arrivals, body });
        done
    }

    pub fn xor_lane(&mut self, v: Val, mask: u8) -> Val {
        let v = self.splat(v, 1);
        let ty = self.ty(v);
        self.emit(Expr::XorLane(v, mask), ty)
    }

    pub fn reduce(&mut self, r: Reduce, v: Val) -> Val {
        let v = self.splat(v, 1);
        let ty = Ty::Uniform(self.ty(v).elem());
        self.emit(Expr::Reduce(r, v), ty)
    }

    pub fn read_lane(&mut self, v: Val, index: Val) -> Val {
        let ty = Ty::Uniform(self.ty(v).elem());
        self.emit(Expr::ReadLane(v, index), ty)
    }

    pub fn scan_add(&mut self, v: Val) -> Val {
        let ty = self.ty(v);
        self.emit(Expr::ScanAdd(v), ty)
    }

    pub fn ballot(&mut self, v: Val) -> Val {
        self.emit(Expr::Ballot(v), Ty::Uniform(Elem::I32))
    }

    /// `if cond { then }`; nothing comes out.
    pub fn when<E>(&mut self, cond: Val, then: impl FnOnce(&mut Self) -> Result<(), E>) -> Result<(), E> {
        self.open();
        let done = then(self);
        let then = self.close();
        self.push(Stmt::If { cond, then, otherwise: vec![], results: vec![] });
        done
    }

    /// `if cond { a } else { b }` as values; both give as many, of the same types.
    pub fn choose<E>(
        &mut self,
        cond: Val,
        a: impl FnOnce(&mut Self) -> Result<Vec<Val>, E>,
        b: impl FnOnce(&mut Self) -> Result<Vec<Val>, E>,
    ) -> Result<Vec<Val>, E> {
        self.open();
        let then_values = a(self);
        let then = self.close();
        self.open();
        let other_values = b(self);
        let otherwise = self.close();
        let pairs = then_values?.into_iter().zip(other_values?);
        let results: Vec<IfResult> =
            pairs.map(|(x, y)| IfResult { result: self.fresh(self.ty(x)), then: x, otherwise: y }).collect();
        let values = results.iter().map(|r| r.result).collect();
        self.push(Stmt::If { cond, then, otherwise, results });
        Ok(values)
    }

    /// `for i in (start..end).step_by(step)` with carried values; returns their last versions.
    pub fn for_loop<E>(
        &mut self,
        (start, end, step): (Val, Val, i64),
        init: &[Val],
        body: impl FnOnce(&mut Self, Val, &[Val]) -> Result<Vec<Val>, E>,
    ) -> Result<Vec<Val>, E> {
        let step = self.i(step);
        let index = self.fresh(Ty::Uniform(Elem::I32));
        let params: Vec<Val> = init.iter().map(|v| self.fresh(self.ty(*v))).collect();
        self.open();
        let next = body(self, index, &params);
        let stmts = self.close();
        let next = next?;
        let carried: Vec<Carried> = init
            .iter()
            .zip(&params)
            .zip(&next)
            .map(|((&init, &param), &next)| Carried { init, param, next, result: self.fresh(self.ty(init)) })
            .collect();
        let results = carried.iter().map(|c| c.result).collect();
        self.push(Stmt::For(For { index, start, end, step, carried, body: stmts }));
        Ok(results)
    }
}

impl Ty {
    /// The same element with `vec` components a lane.
    #[must_use]
    pub fn with_vec(self, vec: u8) -> Ty {
        Ty::Lane(self.elem(), vec)
    }
}

/// The shared polynomials of numerics P1, emitted as code.
impl Machine for Builder {
    type F = Val;
    type I = Val;
    type B = Val;

    fn f32(&mut self, x: f32) -> Val {
        self.f(x)
    }
    fn i32(&mut self, x: i32) -> Val {
        self.i(i64::from(x))
    }
    fn add(&mut self, a: Val, b: Val) -> Val {
        self.bin(Bin::Add, a, b)
    }
    fn sub(&mut self, a: Val, b: Val) -> Val {
        self.bin(Bin::Sub, a, b)
    }
    fn mul(&mut self, a: Val, b: Val) -> Val {
        self.bin(Bin::Mul, a, b)
    }
    fn div(&mut self, a: Val, b: Val) -> Val {
        self.bin(Bin::Div, a, b)
    }
    fn fma(&mut self, a: Val, b: Val, c: Val) -> Val {
        Builder::fma(self, a, b, c)
    }
    fn abs(&mut self, a: Val) -> Val {
        self.un(Un::Abs, a)
    }
    fn neg(&mut self, a: Val) -> Val {
        self.un(Un::Neg, a)
    }
    fn sqrt(&mut self, a: Val) -> Val {
        self.un(Un::Sqrt, a)
    }
    fn rint(&mut self, a: Val) -> Val {
        self.un(Un::Rint, a)
    }
    fn to_i32(&mut self, a: Val) -> Val {
        self.conv(Conv::F32ToI32, a)
    }
    fn to_f32(&mut self, a: Val) -> Val {
        self.conv(Conv::I32ToF32, a)
    }
    fn bits(&mut self, a: Val) -> Val {
        self.conv(Conv::F32Bits, a)
    }
    fn from_bits(&mut self, a: Val) -> Val {
        self.conv(Conv::BitsF32, a)
    }
    fn iadd(&mut self, a: Val, b: Val) -> Val {
        self.bin(Bin::Add, a, b)
    }
    fn isub(&mut self, a: Val, b: Val) -> Val {
        self.bin(Bin::Sub, a, b)
    }
    fn iand(&mut self, a: Val, b: Val) -> Val {
        self.bin(Bin::And, a, b)
    }
    fn shl(&mut self, a: Val, n: u32) -> Val {
        let n = self.i(i64::from(n));
        self.bin(Bin::Shl, a, n)
    }
    fn shr(&mut self, a: Val, n: u32) -> Val {
        let n = self.i(i64::from(n));
        self.bin(Bin::Ashr, a, n)
    }
    fn lt(&mut self, a: Val, b: Val) -> Val {
        self.cmp(Cmp::Lt, a, b)
    }
    fn ge(&mut self, a: Val, b: Val) -> Val {
        self.cmp(Cmp::Ge, a, b)
    }
    fn is_nan(&mut self, a: Val) -> Val {
        self.cmp(Cmp::Ne, a, a)
    }
    fn select(&mut self, c: Val, a: Val, b: Val) -> Val {
        Builder::select(self, c, a, b)
    }
}
