//! Bodies that look like parts of a trunk, small.
#![allow(dead_code, clippy::unwrap_used)]

use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::module::{Arg, Call, InputDecl, Module, ModuleOutput, StateDecl, WeightDecl};
use unglue_ir::op::{Binary, Domain, Op, Unary};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim, StateKind, StateType, TensorType};
use unglue_passes::schedule::{Bucket, fit};

pub const D: u64 = 64;

pub fn bucket(rows: u32) -> Bucket {
    Bucket { rows_max: rows, seqs_max: rows, pools: 32, fit: &fit::GFX1201 }
}

pub fn rows(dims: &[u64]) -> Vec<Dim> {
    std::iter::once(Dim::Rows).chain(dims.iter().map(|n| Dim::Fixed(*n))).collect()
}

pub fn plain(dtype: DType, dims: &[u64]) -> TensorType {
    TensorType::plain(dtype, dims.iter().map(|n| Dim::Fixed(*n)).collect::<Vec<_>>())
}

pub fn streams(b: &mut Builder, dims: &[u64]) -> ValueId {
    b.input("x", TensorType::plain(DType::Bf16, rows(dims)), Domain::Normal)
}

/// RMSNorm of rows of `n`, rounded to bf16.
pub fn norm(b: &mut Builder, x: ValueId, role: &str, n: u64) -> ValueId {
    let f = b.cast(x, DType::F32).unwrap();
    let sq = b.binary(Binary::Mul, f, f).unwrap();
    let sum = b.sum(sq, 1).unwrap();
    let count = b.constant(n as f32);
    let mean = b.binary(Binary::Div, sum, count).unwrap();
    let eps = b.constant(1e-5);
    let shifted = b.binary(Binary::Add, mean, eps).unwrap();
    let r = b.unary(Unary::Rsqrt, shifted).unwrap();
    let y = b.binary(Binary::Mul, f, r).unwrap();
    let w = b.weight(role, plain(DType::Bf16, &[n]));
    let w = b.cast(w, DType::F32).unwrap();
    let w = b.reshape(w, &[Dim::Fixed(1), Dim::Fixed(n)]).unwrap();
    let y = b.binary(Binary::Mul, y, w).unwrap();
    b.cast(y, DType::Bf16).unwrap()
}

pub fn linear(b: &mut Builder, x: ValueId, role: &str, n: u64, k: u64) -> ValueId {
    let w = b.weight(role, plain(DType::Bf16, &[n, k]));
    b.matmul(x, w).unwrap()
}

/// Norm, SwiGLU with a clamp, down projection.
pub fn swiglu() -> Graph {
    let (mut b, f) = (Builder::new("mlp"), 96);
    let x = streams(&mut b, &[D]);
    let h = norm(&mut b, x, "norm.weight", D);
    let g = linear(&mut b, h, "gate_proj.weight", f, D);
    let u = linear(&mut b, h, "up_proj.weight", f, D);
    let g = b.cast(g, DType::Bf16).unwrap();
    let g = b.cast(g, DType::F32).unwrap();
    let (hi, lo) = (b.constant(10.0), b.constant(-10.0));
    let g = b.binary(Binary::Min, g, hi).unwrap();
    let s = b.unary(Unary::Sigmoid, g).unwrap();
    let s = b.binary(Binary::Mul, g, s).unwrap();
    let u = b.binary(Binary::Min, u, hi).unwrap();
    let u = b.binary(Binary::Max, u, lo).unwrap();
    let a = b.binary(Binary::Mul, s, u).unwrap();
    let a = b.cast(a, DType::Bf16).unwrap();
    let y = linear(&mut b, a, "down_proj.weight", D, f);
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("y", y);
    b.finish()
}

/// Router: scores, biased choice, unbiased normalised weights.
pub fn router() -> Graph {
    let (mut b, e, k) = (Builder::new("router"), 40, 4);
    let x = streams(&mut b, &[D]);
    let logits = linear(&mut b, x, "gate.weight", e, D);
    let s = b.unary(Unary::Sigmoid, logits).unwrap();
    let bias = b.weight("bias", plain(DType::F32, &[e]));
    let bias = b.reshape(bias, &[Dim::Fixed(1), Dim::Fixed(e)]).unwrap();
    let choice = b.binary(Binary::Add, s, bias).unwrap();
    let ids = b.add(Op::top_k(k), &[choice]).unwrap();
    let picked = b.add(Op::GatherLast, &[s, ids]).unwrap();
    let sum = b.sum(picked, 1).unwrap();
    let tiny = b.constant(1e-20);
    let sum = b.binary(Binary::Add, sum, tiny).unwrap();
    let w = b.binary(Binary::Div, picked, sum).unwrap();
    let scale = b.constant(2.5);
    let w = b.binary(Binary::Mul, w, scale).unwrap();
    b.output("ids", ids);
    b.output("weights", w);
    b.finish()
}

fn sinkhorn_round(n: u64) -> Graph {
    let mut b = Builder::new("sinkhorn");
    let mut m = b.input("m", TensorType::plain(DType::F32, rows(&[n, n])), Domain::Unit);
    let eps = b.constant(1e-6);
    for axis in [2, 1] {
        let s = b.sum(m, axis).unwrap();
        let s = b.binary(Binary::Add, s, eps).unwrap();
        m = b.binary(Binary::Div, m, s).unwrap();
    }
    b.output("m", m);
    b.finish()
}

/// Hyper-connection site: projection and square sum, Sinkhorn, collapse, post, and a state that is updated.
pub fn hyper() -> Graph {
    let (mut b, n) = (Builder::new("hyper"), 4);
    let x = streams(&mut b, &[n, D]);
    let flat = b.reshape(x, &rows(&[n * D])).unwrap();
    let f = b.cast(flat, DType::F32).unwrap();
    let sq = b.binary(Binary::Mul, f, f).unwrap();
    let sum = b.sum(sq, 1).unwrap();
    let count = b.constant((n * D) as f32);
    let mean = b.binary(Binary::Div, sum, count).unwrap();
    let eps = b.constant(1e-5);
    let mean = b.binary(Binary::Add, mean, eps).unwrap();
    let rho = b.unary(Unary::Rsqrt, mean).unwrap();
    let z = linear(&mut b, flat, "hc_fn", n * (n + 1), n * D);
    let z = b.binary(Binary::Mul, z, rho).unwrap();
    let pre = b.slice(z, 1, 0, n).unwrap();
    let pre = b.unary(Unary::Sigmoid, pre).unwrap();
    let pre = b.reshape(pre, &rows(&[n, 1])).unwrap();
    let xs = b.cast(x, DType::F32).unwrap();
    let weighted = b.binary(Binary::Mul, pre, xs).unwrap();
    let u = b.sum(weighted, 1).unwrap();
    let u = b.reshape(u, &rows(&[D])).unwrap();
    let u = b.cast(u, DType::Bf16).unwrap();
    let comb = b.slice(z, 1, n, n * n).unwrap();
    let comb = b.unary(Unary::Exp, comb).unwrap();
    let comb = b.reshape(comb, &rows(&[n, n])).unwrap();
    let body = b.body(sinkhorn_round(n));
    let comb = b.add(Op::Repeat { body, count: 5 }, &[comb]).unwrap();
    let h = norm(&mut b, u, "norm.weight", D);
    let y = linear(&mut b, h, "o_proj.weight", D, D);
    let y = b.reshape(y, &rows(&[1, D])).unwrap();
    let mut out = y;
    for i in 0..n {
        let c = b.slice(comb, 1, i, 1).unwrap();
        let c = b.reshape(c, &rows(&[n, 1])).unwrap();
        let xi = b.slice(xs, 1, i, 1).unwrap();
        let part = b.binary(Binary::Mul, c, xi).unwrap();
        out = b.binary(Binary::Add, part, out).unwrap();
    }
    let out = b.cast(out, DType::Bf16).unwrap();
    b.output("streams", out);
    b.finish()
}

/// Convolution window read and replaced, with glue around.
pub fn conv() -> Graph {
    let mut b = Builder::new("conv");
    let x = streams(&mut b, &[D]);
    let p = linear(&mut b, x, "proj.weight", D, D);
    let p = b.cast(p, DType::Bf16).unwrap();
    let w = b.weight("conv.weight", plain(DType::Bf16, &[D, 4]));
    let s = b.state("conv", StateType { kind: StateKind::Slot { shape: vec![3, D] }, dtype: DType::Bf16 });
    let a = b.add(Op::CausalConv, &[p, w, s]).unwrap();
    let g = b.unary(Unary::Sigmoid, a).unwrap();
    let c = b.binary(Binary::Mul, a, g).unwrap();
    let next = b.add(Op::ConvUpdate, &[p, s]).unwrap();
    let c = b.cast(c, DType::Bf16).unwrap();
    b.output("y", c);
    b.output("conv", next);
    b.finish()
}

/// Delta rule with its state, normed per head.
pub fn delta() -> Graph {
    let (mut b, h, k) = (Builder::new("delta"), 2, 32);
    let x = streams(&mut b, &[D]);
    let mut heads = Vec::new();
    for role in ["q", "k", "v", "g"] {
        let p = linear(&mut b, x, &format!("{role}_proj.weight"), h * k, D);
        heads.push(b.reshape(p, &rows(&[h, k])).unwrap());
    }
    // Glue on a weight alone: it has no rows.
    let a = b.weight("a_log", plain(DType::F32, &[h]));
    let a = b.unary(Unary::Exp, a).unwrap();
    let a = b.reshape(a, &[Dim::Fixed(1), Dim::Fixed(h), Dim::Fixed(1)]).unwrap();
    heads[3] = b.binary(Binary::Mul, heads[3], a).unwrap();
    heads[3] = b.unary(Unary::Sigmoid, heads[3]).unwrap();
    let beta = linear(&mut b, x, "b_proj.weight", h, D);
    let beta = b.unary(Unary::Sigmoid, beta).unwrap();
    heads.push(b.reshape(beta, &rows(&[h, 1])).unwrap());
    heads.push(b.state("s", StateType { kind: StateKind::Slot { shape: vec![h, k, k] }, dtype: DType::F32 }));
    let t = b.add(Op::DeltaRule { order: Order::of_strided(k) }, &heads).unwrap();
    let o = b.add(Op::Project(0), &[t]).unwrap();
    let s = b.add(Op::Project(1), &[t]).unwrap();
    let o = b.reshape(o, &rows(&[h * k])).unwrap();
    let o = b.cast(o, DType::Bf16).unwrap();
    b.output("y", o);
    b.output("s", s);
    b.finish()
}

/// A matmul over a broadcast that is too wide to be staged for several rows.
pub fn begin() -> Graph {
    let (mut b, n, wide) = (Builder::new("begin"), 4, 4096);
    let x = streams(&mut b, &[wide]);
    let split = b.reshape(x, &rows(&[1, wide])).unwrap();
    let copies = b.add(Op::Broadcast(rows(&[n, wide])), &[split]).unwrap();
    let flat = b.reshape(copies, &rows(&[n * wide])).unwrap();
    let z = linear(&mut b, flat, "hc_fn", 8, n * wide);
    b.output("streams", copies);
    b.output("z", z);
    b.finish()
}

/// Embedding into four streams, their projection and square sum: at 4096 wide and 4 rows greedy takes the sum away from
/// the projection first, and cannot give it back.
pub fn streams_of(wide: u64) -> Graph {
    let (mut b, n) = (Builder::new("begin"), 4);
    let ids = b.input("ids", TensorType::plain(DType::I32, rows(&[])), Domain::Below(64));
    let table = b.weight("embed_tokens", plain(DType::Bf16, &[64, wide]));
    let x = b.add(Op::EmbedRows, &[table, ids]).unwrap();
    let split = b.reshape(x, &rows(&[1, wide])).unwrap();
    let copies = b.add(Op::Broadcast(rows(&[n, wide])), &[split]).unwrap();
    let flat = b.reshape(copies, &rows(&[n * wide])).unwrap();
    let z = linear(&mut b, flat, "hc_fn", 24, n * wide);
    let f = b.cast(flat, DType::F32).unwrap();
    let sq = b.binary(Binary::Mul, f, f).unwrap();
    let sum = b.sum(sq, 1).unwrap();
    b.output("streams", copies);
    b.output("z", z);
    b.output("sq", sum);
    b.finish()
}

/// Mean of four streams, norm and head: fused, every workgroup of a wide head forms the norm anew.
pub fn head(wide: u64, words: u64) -> Graph {
    let mut b = Builder::new("head");
    let x = streams(&mut b, &[4, wide]);
    let f = b.cast(x, DType::F32).unwrap();
    let sum = b.sum(f, 1).unwrap();
    let quarter = b.constant(0.25);
    let mean = b.binary(Binary::Mul, sum, quarter).unwrap();
    let mean = b.reshape(mean, &rows(&[wide])).unwrap();
    let mean = b.cast(mean, DType::Bf16).unwrap();
    let h = norm(&mut b, mean, "norm.weight", wide);
    let y = linear(&mut b, h, "lm_head.weight", words, wide);
    b.output("hidden", h);
    b.output("logits", y);
    b.finish()
}

/// Two projections of a gated row, seven ops: fused, every workgroup forms the row anew.
pub fn gated(wide: u64, out: u64) -> Graph {
    let mut b = Builder::new("gated");
    let x = streams(&mut b, &[wide]);
    let f = b.cast(x, DType::F32).unwrap();
    let s = b.unary(Unary::Sigmoid, f).unwrap();
    let y = b.binary(Binary::Mul, f, s).unwrap();
    let h = b.cast(y, DType::Bf16).unwrap();
    let p = linear(&mut b, h, "p.weight", out, wide);
    let q = linear(&mut b, h, "q.weight", 2 * out, wide);
    b.output("p", p);
    b.output("q", q);
    b.finish()
}

/// Mean of `n` streams and norm, for a narrow and a wide projection: fused, each workgroup of the wide one reads all
/// streams.
pub fn siblings(n: u64) -> Graph {
    let (mut b, wide) = (Builder::new("siblings"), 4096);
    let x = streams(&mut b, &[n, wide]);
    let f = b.cast(x, DType::F32).unwrap();
    let sum = b.sum(f, 1).unwrap();
    let mean = b.reshape(sum, &rows(&[wide])).unwrap();
    let mean = b.cast(mean, DType::Bf16).unwrap();
    let h = norm(&mut b, mean, "norm.weight", wide);
    let y = linear(&mut b, h, "narrow.weight", 128, wide);
    let z = linear(&mut b, h, "wide.weight", 24_576, wide);
    b.output("narrow", y);
    b.output("wide", z);
    b.finish()
}

pub fn all() -> Vec<Graph> {
    vec![swiglu(), router(), hyper(), conv(), delta(), begin()]
}

fn weight_decls(m: &mut Module, g: &Graph, site: usize) -> Vec<u32> {
    let mut numbers = Vec::new();
    for (role, id) in g.weights() {
        numbers.push(m.weights.len() as u32);
        m.weights.push(WeightDecl {
            name: format!("{site}.{role}"),
            ty: g.ty(id).tensor().unwrap().clone(),
            sources: vec![],
        });
    }
    numbers
}

fn state_decls(m: &mut Module, g: &Graph, site: usize) -> Vec<u32> {
    let mut numbers = Vec::new();
    for (role, id) in g.states() {
        numbers.push(m.states.len() as u32);
        m.states.push(StateDecl { name: format!("layer{site}.{role}"), ty: g.ty(id).state().unwrap().clone() });
    }
    numbers
}

/// conv, mlp, conv, mlp: each call on the result of the one before; every second result is a tap.
pub fn module(layers: usize) -> Module {
    let mut m = Module { name: "toy".into(), bodies: vec![conv(), swiglu()], ..Module::default() };
    m.inputs.push(InputDecl {
        name: "x".into(),
        ty: TensorType::plain(DType::Bf16, rows(&[D])),
        domain: Domain::Normal,
    });
    for i in 0..2 * layers {
        let body = (i % 2) as u32;
        let g = m.bodies[i % 2].clone();
        let args = vec![if i == 0 { Arg::Input(0) } else { Arg::Result { call: i as u32 - 1, output: 0 } }];
        let (weights, states) = (weight_decls(&mut m, &g, i), state_decls(&mut m, &g, i));
        m.calls.push(Call { body, layer: Some(i as u32 / 2), args, weights, states });
        if i % 2 == 1 {
            m.outputs.push(ModuleOutput { name: format!("layer{}.y", i / 2), call: i as u32, output: 0 });
        }
    }
    m
}
