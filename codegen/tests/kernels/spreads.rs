//! Heads of the delta rule that several workgroups share.

use unglue_ir::builder::Builder;
use unglue_ir::graph::Graph;
use unglue_ir::op::{Binary, Domain, Op};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, StateKind, TensorType};

use super::bodies::{R, bin, conv_delta_norm, f, input, rms, scaled, state, weight};
use super::finishes::exchanging;

/// Convolution, gates, delta rule and gated norm, with what is exchanged among the outputs.
pub fn kda(h: u64, k: u64, rank: Option<u64>) -> Graph {
    exchanging(conv_delta_norm(h, k, rank))
}

/// Delta rule of k keys and v values, each head's result normalised and scaled by a given row. Keys are not what values are,
/// nothing is convolved, and a second output stands beside the normed one.
pub fn normed(h: u64, k: u64, v: u64) -> Graph {
    let mut b = Builder::new("normed");
    let [q, key] = ["q", "k"].map(|n| input(&mut b, n, DType::F32, &[R, f(h), f(k)]));
    let [value, scale] = ["v", "z"].map(|n| input(&mut b, n, DType::F32, &[R, f(h), f(v)]));
    let decay = b.input("decay", TensorType::plain(DType::F32, [R, f(h), f(k)]), Domain::Unit);
    let beta = b.input("beta", TensorType::plain(DType::F32, [R, f(h), f(1)]), Domain::Unit);
    let key = scaled(&mut b, Binary::Mul, key, 0.1);
    let s = state(&mut b, "recurrent", StateKind::Slot { shape: vec![h, k, v] }, DType::F32);
    let t = b.add(Op::DeltaRule { order: Order::of_strided(k) }, &[q, key, value, decay, beta, s]).unwrap();
    let (o, s) = (b.add(Op::Project(0), &[t]).unwrap(), b.add(Op::Project(1), &[t]).unwrap());
    let w = weight(&mut b, "norm", DType::Bf16, &[v]);
    let y = rms(&mut b, o, w);
    let y = bin(&mut b, Binary::Mul, y, scale);
    let half = scaled(&mut b, Binary::Mul, o, 0.5);
    b.output("y", y);
    b.output("half", half);
    b.output("recurrent", s);
    exchanging(b.finish())
}
