//! A softmax router at real sizes against `qwen4_exp_ops`: 512 experts, 10 of a token, K = 2560.

use crate::common::{Errors, Eval, F32, Golden};
use crate::rules::generated;
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

#[test]
fn softmax_router() {
    let g = Golden::open("qwen4_exp_ops/router.safetensors");
    let graph = router(2560, 512, 10);
    let weight = WeightRef::new(DType::Bf16, &[512, 2560], generated(41, (0.05, 0.0), 512 * 2560)).unwrap();
    let batch = Batch::new(&[(0, 0, 8)], 0);
    let out = Eval::new(&graph, [("weight", weight)]).run(&graph, vec![("x", g.tensor("x"))], &batch);
    assert_eq!(out["ids"].ints(), g.ints("fp32.topk_ids"));
    let mut errors = Errors::default();
    errors.check("logits", "logits", out["logits"].floats(), &g.floats("fp32.logits"), ACCEPT);
    errors.check("weights", "weights", out["weights"].floats(), &g.floats("fp32.topk_weights"), ACCEPT);
    errors.print("softmax router");
}
