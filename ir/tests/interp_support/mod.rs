//! What the interpreter's tests share: a small harness around one graph, and sums written from order.rs anew.
#![allow(dead_code)] // Each test file uses a part of it.

use std::collections::BTreeMap;

use unglue_ir::IrError;
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::interp::draw::Rng;
use unglue_ir::interp::{Batch, Data, StateData, Tensor, WeightRef, eval_graph};
use unglue_ir::op::{Binary, Domain, Op, ReduceKind};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim, Format, StateKind, StateType, TensorType};

pub const F: fn(u64) -> Dim = Dim::Fixed;
pub const R: Dim = Dim::Rows;
/// Tokens of a pool, and slots of every state, in [`everything`].
pub const POOL: usize = 4;
pub const SLOTS: usize = 3;

/// A graph under construction with everything that it will be given.
pub struct Net {
    pub b: Builder,
    pub inputs: BTreeMap<String, Tensor>,
    pub weights: BTreeMap<String, WeightRef<'static>>,
    pub states: BTreeMap<String, StateData>,
    pub rng: Rng,
}

impl Net {
    pub fn new(seed: u64) -> Net {
        let (inputs, weights, states) = Default::default();
        Net { b: Builder::new("net"), inputs, weights, states, rng: Rng::new(seed) }
    }

    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.rng.normal()).collect()
    }

    /// An input of normal values, rounded to `dtype`.
    pub fn normal(&mut self, name: &str, dtype: DType, dims: &[Dim], rows: usize) -> ValueId {
        let shape: Vec<usize> = dims.iter().map(|d| d.fixed().map_or(rows, |n| n as usize)).collect();
        let data = self.normals(shape.iter().product());
        self.input(name, dims, Tensor::float(dtype, &shape, data))
    }

    pub fn input(&mut self, name: &str, dims: &[Dim], t: Tensor) -> ValueId {
        let ty = TensorType { format: Format::Plain(t.dtype), shape: dims.to_vec() };
        self.inputs.insert(name.into(), t);
        self.b.input(name, ty, Domain::Normal)
    }

    pub fn weight(&mut self, name: &str, w: WeightRef<'static>) -> ValueId {
        let dims: Vec<Dim> = w.shape.iter().map(|d| Dim::Fixed(*d)).collect();
        let ty = TensorType { format: w.format, shape: dims };
        self.weights.insert(name.into(), w);
        self.b.weight(name, ty)
    }

    pub fn state(&mut self, name: &str, kind: StateKind, dtype: DType, slots: usize) -> ValueId {
        let ty = StateType { kind, dtype };
        self.states.insert(name.into(), StateData::new(&ty, slots));
        self.b.state(name, ty)
    }

    pub fn op(&mut self, op: Op, args: &[ValueId]) -> ValueId {
        self.b.add(op, args).expect("types fit")
    }

    pub fn attend(&mut self, scale: f32, args: [ValueId; 3]) -> ValueId {
        self.b.attend(scale, args).expect("types fit")
    }

    pub fn output(&mut self, name: &str, v: ValueId) {
        self.b.output(name, v);
    }

    pub fn finish(self) -> Run {
        Run { g: self.b.finish(), inputs: self.inputs, weights: self.weights, states: self.states }
    }

    /// Evaluates with one output `y`.
    pub fn eval(mut self, y: ValueId, batch: &Batch) -> Tensor {
        self.output("y", y);
        let mut run = self.finish();
        let inputs = run.inputs.clone();
        run.step(&inputs, batch).expect("evaluates").remove("y").expect("has y")
    }
}

/// A finished graph with its weights and states.
#[derive(Clone)]
pub struct Run {
    pub g: Graph,
    pub inputs: BTreeMap<String, Tensor>,
    pub weights: BTreeMap<String, WeightRef<'static>>,
    pub states: BTreeMap<String, StateData>,
}

impl Run {
    pub fn step(
        &mut self,
        inputs: &BTreeMap<String, Tensor>,
        batch: &Batch,
    ) -> Result<BTreeMap<String, Tensor>, IrError> {
        let weights = &self.weights;
        let get = |name: &str| Ok(weights[name].clone());
        eval_graph(&self.g, inputs, &get, &mut self.states, batch, &mut |_, _| {})
    }
}

/// Rows `rows` of every input whose first axis is the row axis of `total` rows.
pub fn rows_of(inputs: &BTreeMap<String, Tensor>, rows: &[usize], total: usize) -> BTreeMap<String, Tensor> {
    let pick = |t: &Tensor| {
        assert_eq!(t.shape[0], total);
        let width: usize = t.shape[1..].iter().product();
        let mut shape = t.shape.clone();
        shape[0] = rows.len();
        let at = |r: &usize| r * width..(r + 1) * width;
        let data = match &t.data {
            Data::F32(v) => Data::F32(rows.iter().flat_map(|r| v[at(r)].to_vec()).collect()),
            Data::I32(v) => Data::I32(rows.iter().flat_map(|r| v[at(r)].to_vec()).collect()),
        };
        Tensor { dtype: t.dtype, shape, data }
    };
    inputs.iter().map(|(k, t)| (k.clone(), pick(t))).collect()
}

/// Equal bits, NaN equal to NaN.
pub fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

pub fn assert_same(a: &[f32], b: &[f32], what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!(same(*x, *y), "{what}: element {i} is {x:e}, needed {y:e}");
    }
}

pub fn assert_close(a: &[f32], b: &[f64], tolerance: f64, what: &str) {
    assert_eq!(a.len(), b.len(), "{what}");
    for (i, (x, y)) in a.iter().zip(b).enumerate() {
        assert!((f64::from(*x) - y).abs() <= tolerance * (1.0 + y.abs()), "{what}: element {i} is {x:e}, needed {y:e}");
    }
}

/// The sum of order.rs over n elements; `add(chain, i)` takes element i into a chain.
pub fn naive(order: Order, n: usize, add: &dyn Fn(f32, usize) -> f32) -> f32 {
    let chain_sums = |chains: usize, range: std::ops::Range<usize>| {
        let mut sums = vec![0.0f32; chains];
        let whole = range.len().div_ceil(chains) * chains;
        for place in 0..whole {
            let c = place % chains;
            sums[c] = if place < range.len() { add(sums[c], range.start + place) } else { sums[c] + 0.0 };
        }
        sums
    };
    let halve = |sums: &[f32]| {
        let mut s = sums.to_vec();
        while s.len() > 1 {
            s = (0..s.len() / 2).map(|c| s[c] + s[c + s.len() / 2]).collect();
        }
        s[0]
    };
    match order {
        Order::Sequential => (0..n).fold(0.0, add),
        Order::Strided(c) => halve(&chain_sums(c as usize, 0..n)),
        Order::Lanes => {
            let mut s = chain_sums(256, 0..n);
            for bit in [4, 2, 1, 128, 64, 32, 16, 8] {
                s = (0..256).map(|c| s[c] + s[c ^ bit]).collect();
            }
            s[0]
        }
        // Products with scales are the test's own.
        Order::Runs => panic!("runs have scales"),
        Order::Splits => {
            let mut chains = [0.0f32; 2];
            for j in 0..n.div_ceil(128) {
                chains[j % 2] += halve(&chain_sums(8, j * 128..n.min(j * 128 + 128)));
            }
            halve(&chains)
        }
    }
}

pub fn naive_dot(order: Order, x: &[f32], w: &[f32]) -> f32 {
    naive(order, x.len(), &|acc, i| x[i].mul_add(w[i], acc))
}

/// Every op that mixes rows, wired as in the model: conv, delta rule, and indexed attention over pooled keys.
pub fn everything(seed: u64, rows: usize) -> Run {
    let mut n = Net::new(seed);
    let bf = DType::Bf16;
    let x = n.normal("x", bf, &[R, F(6)], rows);
    let taps = n.normals(6 * 4);
    let taps = n.weight("taps", WeightRef::from_f32(bf, &[6, 4], &taps).unwrap());
    let conv = n.state("conv", StateKind::Slot { shape: vec![3, 6] }, bf, SLOTS);
    let y = n.op(Op::CausalConv, &[x, taps, conv]);
    let conv = n.op(Op::ConvUpdate, &[x, conv]);
    n.output("y", y);
    n.output("conv", conv);

    let key = [R, F(2), F(20)];
    let mut args = vec![n.normal("q", DType::F32, &key, rows), n.normal("k", DType::F32, &key, rows)];
    args.push(n.normal("v", DType::F32, &[R, F(2), F(3)], rows));
    args.push(n.normal("g", DType::F32, &key, rows));
    args.push(n.normal("b", DType::F32, &[R, F(2), F(1)], rows));
    args.push(n.state("s", StateKind::Slot { shape: vec![2, 20, 3] }, DType::F32, SLOTS));
    let both = n.op(Op::DeltaRule { order: Order::Strided(2) }, &args);
    let (o, s) = (n.op(Op::Project(0), &[both]), n.op(Op::Project(1), &[both]));
    n.output("o", o);
    n.output("s", s);

    let (kappa, xi) = (n.normal("kappa", bf, &[R, F(8)], rows), n.normal("xi", bf, &[R, F(8)], rows));
    let tail = n.state("tail", StateKind::Tail { pool: POOL as u64, width: 8 }, bf, SLOTS);
    let pools = n.state("pools", StateKind::Pool { pool: POOL as u64, width: 8 }, bf, SLOTS);
    let windows = [(kappa, 0), (xi, 1)].map(|(x, part)| {
        let w = n.op(Op::PoolWindow { part }, &[x, tail]);
        n.op(Op::Cast(DType::F32), &[w])
    });
    let p = n.op(Op::Binary(Binary::Mul), &windows);
    let p = n.op(Op::Reduce { kind: ReduceKind::Sum, axis: 1, order: Order::Sequential }, &[p]);
    let p = n.op(Op::Reshape(vec![R, F(8)]), &[p]);
    let p = n.op(Op::Cast(bf), &[p]);
    let pools = n.op(Op::PoolWrite, &[p, pools]);
    let tail = n.op(Op::TailUpdate, &[kappa, xi, tail]);
    let (qi, w) = (n.normal("qi", bf, &[R, F(2), F(8)], rows), n.normal("w", DType::F32, &[R, F(2)], rows));
    let scale = Op::IndexScores { dot_scale: 0.5f32.to_bits(), head_scale: 1f32.to_bits(), order: Order::Strided(8) };
    let scores = n.op(scale, &[qi, w, pools]);
    let ids = n.op(Op::IndexSelect { budget: 2, pool: POOL as u64, tail: true }, &[scores]);
    let (l, ql) = (n.normal("l", bf, &[R, F(16)], rows), n.normal("ql", bf, &[R, F(3), F(16)], rows));
    let tokens = n.state("tokens", StateKind::Token { width: 16 }, bf, SLOTS);
    let tokens = n.op(Op::TokenWrite, &[l, tokens]);
    let c = n.attend(0.25, [ql, tokens, ids]);
    for (name, v) in [("pools", pools), ("tail", tail), ("ids", ids), ("tokens", tokens), ("c", c)] {
        n.output(name, v);
    }
    n.finish()
}
