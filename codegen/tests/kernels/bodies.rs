//! Small graphs, one kernel each, in the shapes that trunks are made of.

use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Domain, Op, Unary};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim, StateKind, StateType, TensorType};

pub const R: Dim = Dim::Rows;

pub fn f(n: u64) -> Dim {
    Dim::Fixed(n)
}

pub fn input(b: &mut Builder, name: &str, d: DType, shape: &[Dim]) -> ValueId {
    b.input(name, TensorType::plain(d, shape), Domain::Normal)
}

pub fn ints(b: &mut Builder, name: &str, shape: &[Dim], domain: Domain) -> ValueId {
    b.input(name, TensorType::plain(DType::I32, shape), domain)
}

pub fn weight(b: &mut Builder, name: &str, d: DType, shape: &[u64]) -> ValueId {
    b.weight(name, TensorType::plain(d, shape.iter().map(|n| f(*n)).collect::<Vec<_>>()))
}

pub fn bin(b: &mut Builder, op: Binary, x: ValueId, y: ValueId) -> ValueId {
    b.binary(op, x, y).unwrap()
}

pub fn scaled(b: &mut Builder, op: Binary, x: ValueId, c: f32) -> ValueId {
    let c = b.constant(c);
    bin(b, op, x, c)
}

pub fn un(b: &mut Builder, u: Unary, x: ValueId) -> ValueId {
    b.unary(u, x).unwrap()
}

pub fn f32_of(b: &mut Builder, x: ValueId) -> ValueId {
    b.cast(x, DType::F32).unwrap()
}

pub fn state(b: &mut Builder, name: &str, kind: StateKind, dtype: DType) -> ValueId {
    b.state(name, StateType { kind, dtype })
}

/// x * rsqrt(mean(x^2) + eps) * w over the last axis.
pub fn rms(b: &mut Builder, x: ValueId, w: ValueId) -> ValueId {
    let shape = b.shape(x);
    let last = shape.len() as u32 - 1;
    let n = shape[last as usize].fixed().unwrap();
    let sq = bin(b, Binary::Mul, x, x);
    let sum = b.sum(sq, last).unwrap();
    let mean = scaled(b, Binary::Div, sum, n as f32);
    let eps = scaled(b, Binary::Add, mean, 1e-5);
    let inv = un(b, Unary::Rsqrt, eps);
    let y = bin(b, Binary::Mul, x, inv);
    let mut wide = vec![f(1); shape.len()];
    wide[last as usize] = f(n);
    let w = f32_of(b, w);
    let w = b.reshape(w, &wide).unwrap();
    bin(b, Binary::Mul, y, w)
}

pub fn swiglu(n: u64) -> Graph {
    let mut b = Builder::new("swiglu");
    let (g, u) = (input(&mut b, "g", DType::Bf16, &[R, f(n)]), input(&mut b, "u", DType::Bf16, &[R, f(n)]));
    let out = swiglu_of(&mut b, g, u, 2.0);
    let out = b.cast(out, DType::Bf16).unwrap();
    b.output("out", out);
    b.finish()
}

pub fn swiglu_of(b: &mut Builder, g: ValueId, u: ValueId, limit: f32) -> ValueId {
    let (g, u) = (f32_of(b, g), f32_of(b, u));
    let g = scaled(b, Binary::Min, g, limit);
    let u = scaled(b, Binary::Min, u, limit);
    let u = scaled(b, Binary::Max, u, -limit);
    let s = un(b, Unary::Sigmoid, g);
    let a = bin(b, Binary::Mul, g, s);
    bin(b, Binary::Mul, a, u)
}

pub fn rms_norm(n: u64) -> Graph {
    let mut b = Builder::new("rms_norm");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(n)]);
    let w = weight(&mut b, "w", DType::Bf16, &[n]);
    let x = f32_of(&mut b, x);
    let y = rms(&mut b, x, w);
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("out", y);
    b.finish()
}

pub fn layer_norm(n: u64) -> Graph {
    let mut b = Builder::new("layer_norm");
    let x = input(&mut b, "x", DType::F32, &[R, f(n)]);
    let (w, bias) = (weight(&mut b, "w", DType::Bf16, &[n]), weight(&mut b, "b", DType::Bf16, &[n]));
    let sum = b.sum(x, 1).unwrap();
    let mean = scaled(&mut b, Binary::Div, sum, n as f32);
    let centred = bin(&mut b, Binary::Sub, x, mean);
    let sq = bin(&mut b, Binary::Mul, centred, centred);
    let sum = b.sum(sq, 1).unwrap();
    let var = scaled(&mut b, Binary::Div, sum, n as f32);
    let var = scaled(&mut b, Binary::Add, var, 1e-6);
    let inv = un(&mut b, Unary::Rsqrt, var);
    let y = bin(&mut b, Binary::Mul, centred, inv);
    let (w, bias) = (f32_of(&mut b, w), f32_of(&mut b, bias));
    let (w, bias) = (b.reshape(w, &[f(1), f(n)]).unwrap(), b.reshape(bias, &[f(1), f(n)]).unwrap());
    let y = bin(&mut b, Binary::Mul, y, w);
    let y = bin(&mut b, Binary::Add, y, bias);
    b.output("out", y);
    b.finish()
}

pub fn head_norm(h: u64, k: u64) -> Graph {
    let mut b = Builder::new("head_norm");
    let x = input(&mut b, "x", DType::F32, &[R, f(h * k)]);
    let w = weight(&mut b, "w", DType::F32, &[k]);
    let x = b.reshape(x, &[R, f(h), f(k)]).unwrap();
    let y = rms(&mut b, x, w);
    let y = b.reshape(y, &[R, f(h * k)]).unwrap();
    b.output("out", y);
    b.finish()
}

pub fn sinkhorn_of(b: &mut Builder, logits: ValueId, rounds: u32) -> ValueId {
    let shape = b.shape(logits);
    let max = b.max_over(logits, 2).unwrap();
    let shifted = bin(b, Binary::Sub, logits, max);
    let e = un(b, Unary::Exp, shifted);
    let sum = b.sum(e, 2).unwrap();
    let m = bin(b, Binary::Div, e, sum);
    let m = scaled(b, Binary::Add, m, 1e-6);
    let normalise = |b: &mut Builder, m: ValueId, axis: u32| {
        let s = b.sum(m, axis).unwrap();
        let s = scaled(b, Binary::Add, s, 1e-6);
        bin(b, Binary::Div, m, s)
    };
    let m = normalise(b, m, 1);
    let mut body = Builder::new("round");
    let x = body.input("m", TensorType::plain(DType::F32, shape), Domain::Unit);
    let y = normalise(&mut body, x, 2);
    let y = normalise(&mut body, y, 1);
    body.output("m", y);
    let body = b.body(body.finish());
    b.add(Op::Repeat { body, count: rounds }, &[m]).unwrap()
}

pub fn sinkhorn(n: u64, rounds: u32) -> Graph {
    let mut b = Builder::new("sinkhorn");
    let x = input(&mut b, "x", DType::F32, &[R, f(n), f(n)]);
    let m = sinkhorn_of(&mut b, x, rounds);
    b.output("m", m);
    b.finish()
}

pub fn router(e: u64, k: u64) -> Graph {
    let mut b = Builder::new("router");
    let logits = input(&mut b, "logits", DType::F32, &[R, f(e)]);
    route(&mut b, logits, e, k);
    b.finish()
}

/// k best of the biased scores; weights from the others.
pub fn route(b: &mut Builder, logits: ValueId, e: u64, k: u64) {
    let bias = weight(b, "bias", DType::F32, &[e]);
    let s = un(b, Unary::Sigmoid, logits);
    let bias = b.reshape(bias, &[f(1), f(e)]).unwrap();
    let choice = bin(b, Binary::Add, s, bias);
    let ids = b.add(Op::top_k(k), &[choice]).unwrap();
    let w = b.add(Op::GatherLast, &[s, ids]).unwrap();
    let sum = b.sum(w, 1).unwrap();
    let sum = scaled(b, Binary::Add, sum, 1e-20);
    let w = bin(b, Binary::Div, w, sum);
    let w = scaled(b, Binary::Mul, w, 2.5);
    b.output("ids", ids);
    b.output("weights", w);
}

pub fn matmul(n: u64, k: u64) -> Graph {
    let mut b = Builder::new("matmul");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(k)]);
    let (w, v) = (weight(&mut b, "w", DType::Bf16, &[n, k]), weight(&mut b, "v", DType::F32, &[n + 5, k]));
    let (y, z) = (b.matmul(x, w).unwrap(), b.matmul(x, v).unwrap());
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("y", y);
    b.output("z", z);
    b.finish()
}

/// Matmul, then hyper-connection post on its result.
pub fn matmul_post(n: u64, k: u64, d: u64) -> Graph {
    let mut b = Builder::new("matmul_post");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(k)]);
    let streams = input(&mut b, "streams", DType::Bf16, &[R, f(n), f(d)]);
    let post = input(&mut b, "post", DType::F32, &[R, f(n)]);
    let comb = input(&mut b, "comb", DType::F32, &[R, f(n), f(n)]);
    let w = weight(&mut b, "w", DType::Bf16, &[d, k]);
    let y = b.matmul(x, w).unwrap();
    let y = b.cast(y, DType::Bf16).unwrap();
    let out = post_of(&mut b, y, streams, post, comb, n, d);
    b.output("streams_out", out);
    b.finish()
}

pub fn post_of(b: &mut Builder, y: ValueId, x: ValueId, post: ValueId, comb: ValueId, n: u64, d: u64) -> ValueId {
    let y = f32_of(b, y);
    let y = b.reshape(y, &[R, f(1), f(d)]).unwrap();
    let post = b.reshape(post, &[R, f(n), f(1)]).unwrap();
    let own = bin(b, Binary::Mul, post, y);
    let comb = b.reshape(comb, &[R, f(n), f(n), f(1)]).unwrap();
    let x = f32_of(b, x);
    let x = b.reshape(x, &[R, f(n), f(1), f(d)]).unwrap();
    let mixed = bin(b, Binary::Mul, comb, x);
    let mixed = b.sum(mixed, 1).unwrap();
    let mixed = b.reshape(mixed, &[R, f(n), f(d)]).unwrap();
    let out = bin(b, Binary::Add, own, mixed);
    b.cast(out, DType::Bf16).unwrap()
}

pub fn matmul_swiglu(n: u64, k: u64) -> Graph {
    let mut b = Builder::new("matmul_swiglu");
    let x = input(&mut b, "x", DType::F32, &[R, f(k)]);
    let (g, u) = (weight(&mut b, "g", DType::Bf16, &[n, k]), weight(&mut b, "u", DType::Bf16, &[n, k]));
    let (g, u) = (b.matmul(x, g).unwrap(), b.matmul(x, u).unwrap());
    let y = swiglu_of(&mut b, g, u, 2.0);
    b.output("y", y);
    b.finish()
}

/// A site's projection and square sum.
pub fn site_sums(n: u64, d: u64) -> Graph {
    let mut b = Builder::new("site_sums");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(n), f(d)]);
    let w = weight(&mut b, "fn", DType::Bf16, &[n * (n + 2), n * d]);
    let flat = b.reshape(x, &[R, f(n * d)]).unwrap();
    let z = b.matmul(flat, w).unwrap();
    let xf = f32_of(&mut b, flat);
    let sq = bin(&mut b, Binary::Mul, xf, xf);
    let sq = b.sum(sq, 1).unwrap();
    b.output("z", z);
    b.output("sq", sq);
    b.finish()
}

pub fn norm_matmul(k: u64, n: u64) -> Graph {
    let mut b = Builder::new("norm_matmul");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(k)]);
    let w = weight(&mut b, "norm", DType::Bf16, &[k]);
    let xf = f32_of(&mut b, x);
    let y = rms(&mut b, xf, w);
    let y = b.cast(y, DType::Bf16).unwrap();
    let m = weight(&mut b, "w", DType::Bf16, &[n, k]);
    let o = b.matmul(y, m).unwrap();
    b.output("o", o);
    b.finish()
}

pub fn batch_matmul(h: u64, k: u64, n: u64, transposed: bool) -> Graph {
    let mut b = Builder::new("batch_matmul");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(h * k)]);
    let x = b.reshape(x, &[R, f(h), f(k)]).unwrap();
    let shape = if transposed { [h, k, n] } else { [h, n, k] };
    let w = weight(&mut b, "w", DType::Bf16, &shape);
    let order = if transposed { Order::of_strided(k) } else { Order::Lanes };
    let y = b.add(Op::BatchMatMul { transposed, order }, &[x, w]).unwrap();
    let y = b.cast(y, DType::Bf16).unwrap();
    let y = b.reshape(y, &[R, f(h * n)]).unwrap();
    b.output("y", y);
    b.finish()
}

fn experts(b: &mut Builder, e: u64, s: u64, k: u64) -> (ValueId, ValueId) {
    (ints(b, "ids", &[R, f(k)], Domain::Distinct(e)), ints(b, "slots", &[f(e)], Domain::Slots(s)))
}

pub fn experts_up(e: u64, s: u64, k: u64, d: u64, n: u64) -> Graph {
    let mut b = Builder::new("experts_up");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(d)]);
    let (ids, slots) = experts(&mut b, e, s, k);
    let (g, u) = (weight(&mut b, "g", DType::Bf16, &[s, n, d]), weight(&mut b, "u", DType::Bf16, &[s, n, d]));
    let op = Op::GroupedMatMul { order: Order::Lanes };
    let g = b.add(op.clone(), &[x, ids, slots, g]).unwrap();
    let u = b.add(op, &[x, ids, slots, u]).unwrap();
    let (g, u) = (b.cast(g, DType::Bf16).unwrap(), b.cast(u, DType::Bf16).unwrap());
    let y = swiglu_of(&mut b, g, u, 2.0);
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("y", y);
    b.finish()
}

/// Down projection, router weights, sum over choices, shared expert, one rounding.
pub fn experts_down(e: u64, s: u64, k: u64, n: u64, d: u64) -> Graph {
    let mut b = Builder::new("experts_down");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(k), f(n)]);
    let shared = input(&mut b, "shared", DType::Bf16, &[R, f(n)]);
    let route = input(&mut b, "route", DType::F32, &[R, f(k)]);
    let (ids, slots) = experts(&mut b, e, s, k);
    let w = weight(&mut b, "w", DType::Bf16, &[s, d, n]);
    let y = b.add(Op::GroupedMatMul { order: Order::Lanes }, &[x, ids, slots, w]).unwrap();
    let route = b.reshape(route, &[R, f(k), f(1)]).unwrap();
    let y = bin(&mut b, Binary::Mul, y, route);
    let y = b.sum(y, 1).unwrap();
    let y = b.reshape(y, &[R, f(d)]).unwrap();
    let v = weight(&mut b, "v", DType::Bf16, &[d, n]);
    let z = b.matmul(shared, v).unwrap();
    let y = bin(&mut b, Binary::Add, y, z);
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("y", y);
    b.finish()
}

pub fn conv(c: u64, w: u64) -> Graph {
    let mut b = Builder::new("conv");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(c)]);
    let taps = weight(&mut b, "taps", DType::Bf16, &[c, w]);
    let s = state(&mut b, "conv", StateKind::Slot { shape: vec![w - 1, c] }, DType::Bf16);
    let y = b.add(Op::CausalConv, &[x, taps, s]).unwrap();
    b.output("y", y);
    b.finish()
}

pub fn conv_update(c: u64, w: u64) -> Graph {
    let mut b = Builder::new("conv_update");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(c)]);
    let s = state(&mut b, "conv", StateKind::Slot { shape: vec![w - 1, c] }, DType::Bf16);
    let s = b.add(Op::ConvUpdate, &[x, s]).unwrap();
    b.output("conv", s);
    b.finish()
}

/// The delta rule over given operands: its result and the next state.
pub fn rule(b: &mut Builder, [h, k, v]: [u64; 3]) -> [ValueId; 2] {
    let [q, key] = ["q", "k"].map(|n| input(b, n, DType::F32, &[R, f(h), f(k)]));
    let value = input(b, "v", DType::F32, &[R, f(h), f(v)]);
    let decay = b.input("decay", TensorType::plain(DType::F32, [R, f(h), f(k)]), Domain::Unit);
    let beta = b.input("beta", TensorType::plain(DType::F32, [R, f(h), f(1)]), Domain::Unit);
    let key = scaled(b, Binary::Mul, key, 0.1);
    let s = state(b, "recurrent", StateKind::Slot { shape: vec![h, k, v] }, DType::F32);
    let t = b.add(Op::DeltaRule { order: Order::of_strided(k) }, &[q, key, value, decay, beta, s]).unwrap();
    [0, 1].map(|i| b.add(Op::Project(i), &[t]).unwrap())
}

pub fn delta(h: u64, k: u64, v: u64) -> Graph {
    let mut b = Builder::new("delta");
    let [o, s] = rule(&mut b, [h, k, v]);
    b.output("o", o);
    b.output("recurrent", s);
    b.finish()
}

fn l2(b: &mut Builder, x: ValueId) -> ValueId {
    let sq = bin(b, Binary::Mul, x, x);
    let s = b.sum(sq, 2).unwrap();
    let s = scaled(b, Binary::Add, s, 1e-6);
    let s = un(b, Unary::Sqrt, s);
    bin(b, Binary::Div, x, s)
}

/// Convolution, gates, delta rule and gated norm of a linear-attention block. The two gates are given, or are products
/// of two factors of that rank, whose second is formed here.
pub fn conv_delta_norm(h: u64, k: u64, rank: Option<u64>) -> Graph {
    let mut b = Builder::new("kda");
    let hk = h * k;
    let x = input(&mut b, "qkv", DType::Bf16, &[R, f(3 * hk)]);
    let gate_of = |b: &mut Builder, name: &str| match rank {
        None => input(b, name, DType::Bf16, &[R, f(hk)]),
        Some(rank) => {
            let low = input(b, name, DType::Bf16, &[R, f(rank)]);
            let w = weight(b, &format!("{name}_w"), DType::Bf16, &[hk, rank]);
            let y = b.matmul(low, w).unwrap();
            b.cast(y, DType::Bf16).unwrap()
        }
    };
    let gate = gate_of(&mut b, "f");
    let beta = input(&mut b, "b", DType::Bf16, &[R, f(h)]);
    let out_gate = gate_of(&mut b, "z");
    let taps = weight(&mut b, "taps", DType::Bf16, &[3 * hk, 4]);
    let window = state(&mut b, "conv", StateKind::Slot { shape: vec![3, 3 * hk] }, DType::Bf16);
    let c = b.add(Op::CausalConv, &[x, taps, window]).unwrap();
    let s = un(&mut b, Unary::Sigmoid, c);
    let c = bin(&mut b, Binary::Mul, c, s);
    let c = b.cast(c, DType::Bf16).unwrap();
    let c = f32_of(&mut b, c);
    let part = |b: &mut Builder, i: u64| {
        let v = b.slice(c, 1, i * hk, hk).unwrap();
        b.reshape(v, &[R, f(h), f(k)]).unwrap()
    };
    let (q, key, v) = (part(&mut b, 0), part(&mut b, 1), part(&mut b, 2));
    let q = l2(&mut b, q);
    let q = scaled(&mut b, Binary::Mul, q, (k as f32).powf(-0.5));
    let key = l2(&mut b, key);
    let gate = f32_of(&mut b, gate);
    let dt = weight(&mut b, "dt", DType::F32, &[hk]);
    let dt = b.reshape(dt, &[f(1), f(hk)]).unwrap();
    let gate = bin(&mut b, Binary::Add, gate, dt);
    let gate = b.reshape(gate, &[R, f(h), f(k)]).unwrap();
    let a = weight(&mut b, "a_log", DType::F32, &[h]);
    let a = un(&mut b, Unary::Exp, a);
    let a = b.reshape(a, &[f(1), f(h), f(1)]).unwrap();
    let gate = bin(&mut b, Binary::Mul, gate, a);
    let gate = un(&mut b, Unary::Sigmoid, gate);
    let gate = scaled(&mut b, Binary::Mul, gate, -5.0);
    let decay = un(&mut b, Unary::Exp, gate);
    let beta = f32_of(&mut b, beta);
    let beta = un(&mut b, Unary::Sigmoid, beta);
    let beta = b.reshape(beta, &[R, f(h), f(1)]).unwrap();
    let s = state(&mut b, "recurrent", StateKind::Slot { shape: vec![h, k, k] }, DType::F32);
    let t = b.add(Op::DeltaRule { order: Order::of_strided(k) }, &[q, key, v, decay, beta, s]).unwrap();
    let (o, s) = (b.add(Op::Project(0), &[t]).unwrap(), b.add(Op::Project(1), &[t]).unwrap());
    let o = b.cast(o, DType::Bf16).unwrap();
    let o = f32_of(&mut b, o);
    let w = weight(&mut b, "o_norm", DType::Bf16, &[k]);
    let o = rms(&mut b, o, w);
    let z = f32_of(&mut b, out_gate);
    let z = un(&mut b, Unary::Sigmoid, z);
    let z = b.reshape(z, &[R, f(h), f(k)]).unwrap();
    let o = bin(&mut b, Binary::Mul, o, z);
    let o = b.cast(o, DType::Bf16).unwrap();
    let o = b.reshape(o, &[R, f(hk)]).unwrap();
    let window = b.add(Op::ConvUpdate, &[x, window]).unwrap();
    b.output("o", o);
    b.output("recurrent", s);
    b.output("conv", window);
    b.finish()
}

pub fn token_write(d: u64) -> Graph {
    let mut b = Builder::new("token_write");
    let x = input(&mut b, "x", DType::F32, &[R, f(d)]);
    let w = weight(&mut b, "w", DType::Bf16, &[d]);
    let y = rms(&mut b, x, w);
    let y = b.cast(y, DType::Bf16).unwrap();
    let s = state(&mut b, "latent", StateKind::Token { width: d }, DType::Bf16);
    let s = b.add(Op::TokenWrite, &[y, s]).unwrap();
    b.output("y", y);
    b.output("latent", s);
    b.finish()
}

/// Softmax-pooled keys from the tail and this step's rows.
pub fn pool_keys(d: u64, pool: u64) -> Graph {
    let mut b = Builder::new("pool_keys");
    let (k, g) = (input(&mut b, "k", DType::Bf16, &[R, f(d)]), input(&mut b, "g", DType::Bf16, &[R, f(d)]));
    let tail = state(&mut b, "tail", StateKind::Tail { pool, width: d }, DType::Bf16);
    let pools = state(&mut b, "pool_keys", StateKind::Pool { width: d, pool }, DType::Bf16);
    let ape = weight(&mut b, "ape", DType::Bf16, &[pool, d]);
    let kw = b.add(Op::PoolWindow { part: 0 }, &[k, tail]).unwrap();
    let gw = b.add(Op::PoolWindow { part: 1 }, &[g, tail]).unwrap();
    let (kw, gw) = (f32_of(&mut b, kw), f32_of(&mut b, gw));
    let ape = f32_of(&mut b, ape);
    let ape = b.reshape(ape, &[f(1), f(pool), f(d)]).unwrap();
    let a = bin(&mut b, Binary::Add, gw, ape);
    let max = b.max_over(a, 1).unwrap();
    let a = bin(&mut b, Binary::Sub, a, max);
    let e = un(&mut b, Unary::Exp, a);
    let sum = b.sum(e, 1).unwrap();
    let p = bin(&mut b, Binary::Div, e, sum);
    let v = bin(&mut b, Binary::Mul, p, kw);
    let v = b.sum(v, 1).unwrap();
    let v = b.reshape(v, &[R, f(d)]).unwrap();
    let v = b.cast(v, DType::Bf16).unwrap();
    let pools = b.add(Op::PoolWrite, &[v, pools]).unwrap();
    b.output("pool_keys", pools);
    b.finish()
}

pub fn tail_update(d: u64, pool: u64) -> Graph {
    let mut b = Builder::new("tail_update");
    let (k, g) = (input(&mut b, "k", DType::Bf16, &[R, f(d)]), input(&mut b, "g", DType::Bf16, &[R, f(d)]));
    let tail = state(&mut b, "tail", StateKind::Tail { pool, width: d }, DType::Bf16);
    let tail = b.add(Op::TailUpdate, &[k, g, tail]).unwrap();
    b.output("tail", tail);
    b.finish()
}

pub fn scores(h: u64, d: u64, pool: u64) -> Graph {
    let mut b = Builder::new("scores");
    let q = input(&mut b, "q", DType::Bf16, &[R, f(h), f(d)]);
    let w = input(&mut b, "w", DType::Bf16, &[R, f(h)]);
    let pools = state(&mut b, "pool_keys", StateKind::Pool { width: d, pool }, DType::Bf16);
    let op = Op::IndexScores { dot_scale: 0.25f32.to_bits(), head_scale: 0.5f32.to_bits(), order: Order::Strided(8) };
    let s = b.add(op, &[q, w, pools]).unwrap();
    b.output("scores", s);
    b.finish()
}

pub fn select(budget: u64, pool: u64) -> Graph {
    let mut b = Builder::new("select");
    let s = input(&mut b, "scores", DType::F32, &[R, Dim::Pools]);
    let ids = b.add(Op::IndexSelect { budget, pool, tail: true }, &[s]).unwrap();
    b.output("ids", ids);
    b.finish()
}

pub fn attend(h: u64, r: u64, n: u64) -> Graph {
    let mut b = Builder::new("attend");
    let q = input(&mut b, "q", DType::Bf16, &[R, f(h), f(r)]);
    let ids = ints(&mut b, "ids", &[R, f(n)], Domain::Selected);
    let latent = state(&mut b, "latent", StateKind::Token { width: r }, DType::Bf16);
    let c = b.attend(0.125, [q, latent, ids]).unwrap();
    let c = b.cast(c, DType::Bf16).unwrap();
    b.output("context", c);
    b.finish()
}

/// A graph whose attention hands its splits over.
pub fn storing_splits(mut g: Graph) -> Graph {
    let splits = g.ids().find(|id| matches!(g.node(*id).op, Op::AttendSplits { .. })).unwrap();
    g.outputs.push(("splits".into(), splits));
    g
}

/// `h` heads, `r` columns, `n` places: the splits alone.
pub fn attend_splits(h: u64, r: u64, n: u64) -> Graph {
    let mut g = storing_splits(attend(h, r, n));
    g.outputs.remove(0);
    let kept = g.outputs[0].1.index() + 1;
    g.nodes.truncate(kept);
    g
}

/// The combination of `n` given splits.
pub fn attend_combine(h: u64, r: u64, n: u64) -> Graph {
    let mut b = Builder::new("attend_combine");
    let splits = input(&mut b, "splits", DType::F32, &[R, f(h), f(n), f(r + 2)]);
    let c = b.add(Op::AttendCombine, &[splits]).unwrap();
    b.output("context", c);
    b.finish()
}

pub fn embed(v: u64, d: u64, n: u64) -> Graph {
    let mut b = Builder::new("embed");
    let ids = ints(&mut b, "tokens", &[R], Domain::Below(v + 2));
    let table = weight(&mut b, "table", DType::Bf16, &[v, d]);
    let e = b.add(Op::EmbedRows, &[table, ids]).unwrap();
    let e = b.reshape(e, &[R, f(1), f(d)]).unwrap();
    let x = b.add(Op::Broadcast(vec![R, f(n), f(d)]), &[e]).unwrap();
    let flat = b.reshape(x, &[R, f(n * d)]).unwrap();
    let flat = f32_of(&mut b, flat);
    let sq = bin(&mut b, Binary::Mul, flat, flat);
    let sq = b.sum(sq, 1).unwrap();
    b.output("x", x);
    b.output("sq", sq);
    b.finish()
}

pub fn final_mean(n: u64, d: u64) -> Graph {
    let mut b = Builder::new("final_mean");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(n), f(d)]);
    let rows = ints(&mut b, "rows", &[Dim::Logits], Domain::RowIndex);
    let x = b.add(Op::GatherRows, &[x, rows]).unwrap();
    let x = f32_of(&mut b, x);
    let s = b.sum(x, 1).unwrap();
    let m = scaled(&mut b, Binary::Div, s, n as f32);
    let m = b.cast(m, DType::Bf16).unwrap();
    let m = f32_of(&mut b, m);
    let m = b.reshape(m, &[Dim::Logits, f(d)]).unwrap();
    let w = weight(&mut b, "norm", DType::Bf16, &[d]);
    let y = rms(&mut b, m, w);
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("hidden", y);
    b.finish()
}

/// Final projection of the wanted rows.
pub fn head(d: u64, v: u64) -> Graph {
    let mut b = Builder::new("head");
    let x = input(&mut b, "x", DType::Bf16, &[Dim::Logits, f(d)]);
    let w = weight(&mut b, "w", DType::Bf16, &[v, d]);
    let y = b.matmul(x, w).unwrap();
    b.output("logits", y);
    b.finish()
}
