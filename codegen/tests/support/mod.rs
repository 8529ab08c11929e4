//! A small builder for hand-made programs, and a way to run them on the host.
#![allow(dead_code, unsafe_code)] // shared by several test files; runs compiled code
#![allow(clippy::unwrap_used, clippy::panic)] // a test helper

use std::collections::BTreeMap;
use std::io::Write;

use unglue_codegen::gates::{self, Resources};
use unglue_codegen::kp::*;
use unglue_codegen::{link, llvm, target};
use unglue_runtime::manifest;

pub const U: fn(Elem) -> Ty = Ty::Uniform;

/// A hand-made program as a bundle's kernel.
pub fn described(p: &Program, param: impl Fn(&Param) -> manifest::Param) -> manifest::Kernel {
    manifest::Kernel {
        name: p.name.clone(),
        waves: p.waves,
        shared_bytes: shared_bytes(p),
        params: p.params.iter().map(param).collect(),
        class: "other".into(),
        exactness: manifest::Exactness::Exact,
        schedule: String::new(),
        ops: vec![],
        ir: String::new(),
        orders: vec![],
        products: manifest::Products::Lanes,
        resources: BTreeMap::new(),
        interface: manifest::Interface::default(),
    }
}

pub fn lane(elem: Elem) -> Ty {
    Ty::Lane(elem, 1)
}

/// Builds a program statement by statement; nested bodies are built with `nest`.
pub struct B {
    pub p: Program,
    stack: Vec<Vec<Stmt>>,
}

impl B {
    pub fn new(name: &str, waves: u32) -> Self {
        let p = Program { name: name.into(), waves, params: vec![], shared: vec![], types: vec![], body: vec![] };
        Self { p, stack: vec![vec![]] }
    }
    pub fn buffer(&mut self, mem: Mem, access: Access) -> Place {
        let n = self.p.params.len() as u32;
        self.p.params.push(Param::Buffer { name: format!("b{n}"), mem, access });
        Place::Buffer(n)
    }
    pub fn scalar(&mut self) -> Val {
        let n = self.p.params.len() as u32;
        self.p.params.push(Param::Scalar { name: format!("s{n}") });
        self.def(U(Elem::I32), Expr::Scalar(n))
    }
    pub fn shared(&mut self, mem: Mem, len: u32) -> Place {
        let n = self.p.shared.len() as u32;
        self.p.shared.push(Shared { name: format!("sh{n}"), mem, len, over: None });
        Place::Shared(n)
    }
    pub fn fresh(&mut self, ty: Ty) -> Val {
        self.p.types.push(ty);
        Val(self.p.types.len() as u32 - 1)
    }
    pub fn push(&mut self, stmt: Stmt) {
        self.stack.last_mut().unwrap().push(stmt);
    }
    pub fn def(&mut self, ty: Ty, expr: Expr) -> Val {
        let val = self.fresh(ty);
        self.push(Stmt::Let(val, expr));
        val
    }
    pub fn ty(&self, v: Val) -> Ty {
        self.p.types[v.0 as usize]
    }
    pub fn i32(&mut self, v: i32) -> Val {
        self.def(U(Elem::I32), Expr::I32(v))
    }
    pub fn f32(&mut self, v: f32) -> Val {
        self.def(U(Elem::F32), Expr::F32(v.to_bits()))
    }
    pub fn lane_id(&mut self) -> Val {
        self.def(lane(Elem::I32), Expr::Lane)
    }
    pub fn wave(&mut self) -> Val {
        self.def(U(Elem::I32), Expr::Wave)
    }
    pub fn group(&mut self) -> Val {
        self.def(U(Elem::I32), Expr::Group(0))
    }
    pub fn bin(&mut self, op: Bin, a: Val, b: Val) -> Val {
        self.def(self.ty(a), Expr::Bin(op, a, b))
    }
    pub fn un(&mut self, op: Un, a: Val) -> Val {
        self.def(self.ty(a), Expr::Un(op, a))
    }
    pub fn fma(&mut self, a: Val, b: Val, c: Val) -> Val {
        self.def(self.ty(a), Expr::Fma(a, b, c))
    }
    pub fn cmp(&mut self, op: Cmp, a: Val, b: Val) -> Val {
        let ty = with_elem(self.ty(a), Elem::Bool);
        self.def(ty, Expr::Cmp(op, a, b))
    }
    pub fn conv(&mut self, c: Conv, a: Val) -> Val {
        let to = match c {
            Conv::I32ToF32 | Conv::BitsF32 => Elem::F32,
            Conv::I32ToI64 => Elem::I64,
            _ => Elem::I32,
        };
        let ty = with_elem(self.ty(a), to);
        self.def(ty, Expr::Conv(c, a))
    }
    pub fn splat(&mut self, a: Val, vec: u8) -> Val {
        let e = self.ty(a).elem();
        self.def(Ty::Lane(e, vec), Expr::Splat(a, vec))
    }
    pub fn component(&mut self, a: Val, i: u8) -> Val {
        let e = self.ty(a).elem();
        self.def(lane(e), Expr::Component(a, i))
    }
    pub fn load(&mut self, from: Place, addr: Addr, bound: Bound, vec: u8) -> Val {
        let elem = if self.mem(from) == Mem::I32 { Elem::I32 } else { Elem::F32 };
        let ty = if let Addr::Uniform { .. } = addr { U(elem) } else { Ty::Lane(elem, vec) };
        self.def(ty, Expr::Load { from, addr, bound, vec })
    }
    pub fn store(&mut self, to: Place, addr: Addr, bound: Bound, value: Val) {
        self.push(Stmt::Store { to, addr, bound, value });
    }
    pub fn mem(&self, place: Place) -> Mem {
        match place {
            Place::Shared(i) => self.p.shared[i as usize].mem,
            Place::Buffer(i) => match &self.p.params[i as usize] {
                Param::Buffer { mem, .. } => *mem,
                Param::Scalar { .. } => panic!("not a buffer"),
            },
        }
    }
    pub fn reduce(&mut self, r: Reduce, a: Val) -> Val {
        let e = self.ty(a).elem();
        self.def(U(e), Expr::Reduce(r, a))
    }
    pub fn barrier(&mut self) {
        self.push(Stmt::Barrier);
    }
    /// Statements that `f` makes, and what it returns.
    pub fn nest<T>(&mut self, f: impl FnOnce(&mut Self) -> T) -> (Vec<Stmt>, T) {
        self.stack.push(vec![]);
        let out = f(self);
        (self.stack.pop().unwrap(), out)
    }
    /// A loop; `f` gets the index and the carried parameters and returns the next values. Gives the results.
    pub fn for_loop(
        &mut self,
        start: Val,
        end: Val,
        step: Val,
        init: &[Val],
        f: impl FnOnce(&mut Self, Val, &[Val]) -> Vec<Val>,
    ) -> Vec<Val> {
        let index = self.fresh(U(Elem::I32));
        let params: Vec<Val> = init.iter().map(|v| self.fresh(self.ty(*v))).collect();
        let (body, next) = self.nest(|b| f(b, index, &params));
        let results: Vec<Val> = init.iter().map(|v| self.fresh(self.ty(*v))).collect();
        let carried = (0..init.len())
            .map(|i| Carried { init: init[i], param: params[i], next: next[i], result: results[i] })
            .collect();
        self.push(Stmt::For(For { index, start, end, step, carried, body }));
        results
    }
    pub fn branch(
        &mut self,
        cond: Val,
        yes: impl FnOnce(&mut Self) -> Vec<Val>,
        no: impl FnOnce(&mut Self) -> Vec<Val>,
    ) -> Vec<Val> {
        let (then, a) = self.nest(yes);
        let (otherwise, b) = self.nest(no);
        let out: Vec<Val> = a.iter().map(|v| self.fresh(self.ty(*v))).collect();
        let results = (0..a.len()).map(|i| IfResult { result: out[i], then: a[i], otherwise: b[i] }).collect();
        self.push(Stmt::If { cond, then, otherwise, results });
        out
    }
    pub fn finish(mut self) -> Program {
        self.p.body = self.stack.pop().unwrap();
        self.p
    }
}

pub fn with_elem(ty: Ty, elem: Elem) -> Ty {
    match ty {
        Ty::Uniform(_) => Ty::Uniform(elem),
        Ty::Lane(_, v) => Ty::Lane(elem, v),
        Ty::Tile(_) => ty,
    }
}

/// A compiled program.
pub struct Host {
    _file: tempfile::NamedTempFile,
    lib: libloading::Library,
    name: String,
    shared: usize,
}

impl Host {
    pub fn new(p: &Program) -> Self {
        gfx1201(p);
        let t = target::by_name("x86-64").unwrap();
        let object = match llvm::compile_object(p, t) {
            Ok(object) => object,
            Err(e) => panic!("{e}\n{}", llvm::ir_text(p, t).unwrap_or_default()),
        };
        let so = link::shared_object(&[(p.name.clone(), object)], t).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&so).unwrap();
        let lib = unsafe { libloading::Library::new(file.path()) }.unwrap();
        Self { _file: file, lib, name: p.name.clone(), shared: shared_bytes(p) as usize }
    }

    /// Runs workgroup numbers `0..groups` along axis 0.
    pub fn run(&self, args: &[u64], groups: i32) {
        type Entry = unsafe extern "C" fn(*const u64, *const i32, *mut u8);
        let mut scratch = vec![0xAAu8; self.shared + 64];
        let pad = scratch.as_ptr().align_offset(64);
        unsafe {
            let entry = self.lib.get::<Entry>(self.name.as_bytes()).unwrap();
            for g in 0..groups {
                entry(args.as_ptr(), [g, 7, 9].as_ptr(), scratch.as_mut_ptr().add(pad));
            }
        }
    }
}

/// Builds for gfx1201 and passes the gates; gives the code object and what it takes.
pub fn gfx1201(p: &Program) -> (Vec<u8>, Resources) {
    let t = target::by_name("gfx1201").unwrap();
    let text = || format!("{}\n{}", p.to_text(), llvm::ir_text(p, t).unwrap_or_default());
    let object = llvm::compile_object(p, t).unwrap_or_else(|e| panic!("{e}\n{}", text()));
    let code = link::shared_object(&[(p.name.clone(), object)], t).unwrap();
    let resources = gates::check(&code, p, t).unwrap_or_else(|e| panic!("{e}\n{}", text()));
    (code, resources)
}

unsafe extern "C" {
    fn mmap(addr: *mut u8, len: usize, prot: i32, flags: i32, fd: i32, offset: i64) -> *mut u8;
    fn mprotect(addr: *mut u8, len: usize, prot: i32) -> i32;
}

/// A copy of `data` whose last byte is the last before an inaccessible page, and whose first is right behind one if
/// `data` fills a page. Never unmapped.
pub fn guarded<T: Copy>(data: &[T]) -> &'static mut [T] {
    const PAGE: usize = 4096;
    let bytes = std::mem::size_of_val(data);
    let room = bytes.next_multiple_of(PAGE);
    unsafe {
        let base = mmap(std::ptr::null_mut(), room + 2 * PAGE, 3, 0x22, -1, 0);
        assert!(!base.is_null() && base as isize != -1);
        assert_eq!(mprotect(base, PAGE, 0), 0);
        assert_eq!(mprotect(base.add(PAGE + room), PAGE, 0), 0);
        let start = base.add(PAGE + room - bytes).cast::<T>();
        std::ptr::copy_nonoverlapping(data.as_ptr(), start, data.len());
        std::slice::from_raw_parts_mut(start, data.len())
    }
}

pub fn arg<T>(data: &[T]) -> u64 {
    data.as_ptr() as u64
}

pub fn out<T>(data: &mut [T]) -> u64 {
    data.as_mut_ptr() as u64
}

/// y[row] = sum_k w[row, k] x[k]: one wave per row, 8 components per lane.
pub fn gemv(waves: u32, counted: bool) -> Program {
    let mut b = B::new("gemv", waves);
    let bound = |left| if counted { Bound::Count(left) } else { Bound::All };
    let (w, x) = (b.buffer(Mem::Bf16, Access::Read), b.buffer(Mem::Bf16, Access::Read));
    let y = b.buffer(Mem::F32, Access::Write);
    let k = b.scalar();
    let (g, wave, n) = (b.group(), b.wave(), b.i32(waves as i32));
    let row = b.bin(Bin::Mul, g, n);
    let row = b.bin(Bin::Add, row, wave);
    let row_start = b.bin(Bin::Mul, row, k);
    let (zero, step, fzero) = (b.i32(0), b.i32(256), b.f32(0.0));
    let init = b.splat(fzero, 8);
    let acc = b.for_loop(zero, k, step, &[init], |b, i, acc| {
        let at = b.bin(Bin::Add, row_start, i);
        let left = b.bin(Bin::Sub, k, i);
        let a = b.load(w, Addr::Contig { base: at }, bound(left), 8);
        let v = b.load(x, Addr::Contig { base: i }, bound(left), 8);
        vec![b.fma(a, v, acc[0])]
    });
    let mut sum: Vec<Val> = (0..8).map(|i| b.component(acc[0], i)).collect();
    while sum.len() > 1 {
        sum = sum.chunks(2).map(|c| b.bin(Bin::Add, c[0], c[1])).collect();
    }
    let total = b.reduce(Reduce::Add, sum[0]);
    b.store(y, Addr::Uniform { base: row }, Bound::All, total);
    b.finish()
}
