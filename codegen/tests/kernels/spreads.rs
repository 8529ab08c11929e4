//! Heads of the delta rule that several workgroups share.

use unglue_ir::builder::Builder;
use unglue_ir::graph::Graph;
use unglue_ir::op::Binary;
use unglue_ir::types::DType;

use super::bodies::{R, bin, conv_delta_norm, f, input, rms, rule, scaled, weight};
use super::finishes::exchanging;

/// Convolution, gates, delta rule and gated norm, with what is exchanged among the outputs.
pub fn kda(h: u64, k: u64, rank: Option<u64>) -> Graph {
    exchanging(conv_delta_norm(h, k, rank))
}

/// Delta rule of k keys and v values, each head's result normalised and scaled by a given row. Keys are not what values are,
/// nothing is convolved, and a second output stands beside the normed one.
pub fn normed(h: u64, k: u64, v: u64) -> Graph {
    let mut b = Builder::new("normed");
    let [o, s] = rule(&mut b, [h, k, v]);
    let scale = input(&mut b, "z", DType::F32, &[R, f(h), f(v)]);
    let w = weight(&mut b, "norm", DType::Bf16, &[v]);
    let y = rms(&mut b, o, w);
    let y = bin(&mut b, Binary::Mul, y, scale);
    let half = scaled(&mut b, Binary::Mul, o, 0.5);
    b.output("y", y);
    b.output("half", half);
    b.output("recurrent", s);
    exchanging(b.finish())
}
