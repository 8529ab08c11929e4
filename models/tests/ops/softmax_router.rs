//! A softmax router at real sizes against `qwen4_exp_ops`: 512 experts, 10 of a token, K = 2560.

use crate::common::{Errors, Eval, F32, Golden};
use unglue_ir::graph::Graph;
use unglue_ir::interp::{Batch, WeightRef};
use unglue_ir::op::Op;
use unglue_ir::types::DType;
use unglue_models::maths::Maths;

/// What the specification accepts of operators in f32.
const ACCEPT: f64 = 2e-5;

/// Softmax over all experts, the k best, their probabilities over their sum.
fn router(width: u64, experts: u64, chosen: u64) -> Graph {
    let mut m = Maths::new("softmax_router", F32);
    let x = m.activation("x", &[width]);
    let w = m.bf16_weight("weight", &[experts, width]);
    let logits = m.matmul(x, w).unwrap();
    let p = m.softmax(logits, 1).unwrap();
    let ids = m.b.add(Op::top_k(chosen), &[p]).unwrap();
    let best = m.b.add(Op::GatherLast, &[p, ids]).unwrap();
    let sum = m.sum_last(best).unwrap();
    let weights = m.div(best, sum).unwrap();
    for (name, value) in [("logits", logits), ("ids", ids), ("weights", weights)] {
        m.b.output(name, value);
    }
    m.finish().0
}

/// The bits of a normal number's nearest bf16, ties to even: 45 bits of an f64's fraction are too many.
fn bf16(x: f64) -> u16 {
    let bits = x.to_bits();
    let even = bits >> 45 & 1;
    let rounded = f64::from_bits((bits + ((1 << 44) - 1) + even) >> 45 << 45);
    ((rounded as f32).to_bits() >> 16) as u16
}

/// A weight by its rule: bf16(a (2u - 1)) with u from splitmix64 of (seed, element).
fn generated(seed: u64, scale: f64, elements: u64) -> Vec<u8> {
    let element = |i: u64| {
        let mut v = ((seed << 32) + i).wrapping_add(0x9e37_79b9_7f4a_7c15);
        v = (v ^ (v >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        v = (v ^ (v >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let u = ((v ^ (v >> 31)) >> 40) as f64 / f64::from(1 << 24);
        bf16(scale * (2.0 * u - 1.0)).to_le_bytes()
    };
    (0..elements).flat_map(element).collect()
}

#[test]
fn softmax_router() {
    let g = Golden::open("qwen4_exp_ops/router.safetensors");
    let graph = router(2560, 512, 10);
    let weight = WeightRef::new(DType::Bf16, &[512, 2560], generated(41, 0.05, 512 * 2560)).unwrap();
    let batch = Batch::new(&[(0, 0, 8)], 0);
    let out = Eval::new(&graph, [("weight", weight)]).run(&graph, vec![("x", g.tensor("x"))], &batch);
    assert_eq!(out["ids"].ints(), g.ints("fp32.topk_ids"));
    let mut errors = Errors::default();
    errors.check("logits", "logits", out["logits"].floats(), &g.floats("fp32.logits"), ACCEPT);
    errors.check("weights", "weights", out["weights"].floats(), &g.floats("fp32.topk_weights"), ACCEPT);
    errors.print("softmax router");
}
