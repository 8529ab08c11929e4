//! Kernels whose last workgroup finishes whole rows.

use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Op};
use unglue_ir::types::{DType, Dim};
use unglue_passes::schedule::exchanged_without_output;

use super::bodies::{R, bin, f, f32_of, input, rms, route, swiglu_of, weight};

/// The graph with what its workgroups exchange among its outputs, as the passes store it.
pub fn exchanging(mut g: Graph) -> Graph {
    let more = exchanged_without_output(&g).unwrap_or_default();
    g.outputs.extend(more.into_iter().map(|v| (format!("v{}", v.0), v)));
    g
}

/// Gate matmul, then the choice among its outputs.
pub fn gate_router(d: u64, e: u64, k: u64) -> Graph {
    let mut b = Builder::new("gate_router");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(d)]);
    let w = weight(&mut b, "gate", DType::Bf16, &[e, d]);
    let logits = b.matmul(x, w).unwrap();
    route(&mut b, logits, e, k);
    exchanging(b.finish())
}

/// The same on a normalised row, which a shared expert's matmuls read too: their workgroups do not arrive.
pub fn router_beside_experts(d: u64, e: u64, k: u64) -> Graph {
    let mut b = Builder::new("router_beside_experts");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(d)]);
    let norm = weight(&mut b, "norm", DType::Bf16, &[d]);
    let x = f32_of(&mut b, x);
    let x = rms(&mut b, x, norm);
    let x = b.cast(x, DType::Bf16).unwrap();
    let linear = |b: &mut Builder, name: &str, n: u64| {
        let w = weight(b, name, DType::Bf16, &[n, d]);
        b.matmul(x, w).unwrap()
    };
    let (g, u) = (linear(&mut b, "shared_gate", 70), linear(&mut b, "shared_up", 70));
    let h = swiglu_of(&mut b, g, u, 2.0);
    b.output("h", h);
    let logits = linear(&mut b, "gate", e);
    route(&mut b, logits, e, k);
    exchanging(b.finish())
}

/// Final projection of the wanted rows, and their best token.
pub fn head_best(d: u64, v: u64) -> Graph {
    let mut b = Builder::new("head_best");
    let x = input(&mut b, "x", DType::Bf16, &[Dim::Logits, f(d)]);
    let w = weight(&mut b, "w", DType::Bf16, &[v, d]);
    let logits = b.matmul(x, w).unwrap();
    let best = b.add(Op::top_k(1), &[logits]).unwrap();
    let best = b.reshape(best, &[Dim::Logits]).unwrap();
    b.output("logits", logits);
    b.output("argmax", best);
    exchanging(b.finish())
}

/// The best token alone.
pub fn argmax(n: u64) -> Graph {
    let mut b = Builder::new("argmax");
    let x = input(&mut b, "logits", DType::F32, &[Dim::Logits, f(n)]);
    let ids = b.add(Op::top_k(1), &[x]).unwrap();
    b.output("argmax", ids);
    b.finish()
}

/// A norm over all outputs of two matmuls that meet, and their largest output.
pub fn matmul_norm(d: u64, n: u64) -> Graph {
    let mut b = Builder::new("matmul_norm");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(d)]);
    let linear = |b: &mut Builder, name: &str| -> ValueId {
        let w = weight(b, name, DType::F32, &[n, d]);
        b.matmul(x, w).unwrap()
    };
    let (p, q) = (linear(&mut b, "p"), linear(&mut b, "q"));
    let y = bin(&mut b, Binary::Mul, p, q);
    let max = b.max_over(y, 1).unwrap();
    let w = weight(&mut b, "norm", DType::Bf16, &[n]);
    let y = rms(&mut b, y, w);
    let y = bin(&mut b, Binary::Add, y, max);
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("y", y);
    b.output("max", max);
    exchanging(b.finish())
}

/// The last half of a matmul's outputs beside the first: a concatenation that no epilogue forms, wider than what is
/// copied.
pub fn rotated(d: u64, n: u64) -> Graph {
    let mut b = Builder::new("rotated");
    let x = input(&mut b, "x", DType::Bf16, &[R, f(d)]);
    let w = weight(&mut b, "w", DType::Bf16, &[n, d]);
    let y = b.matmul(x, w).unwrap();
    let (low, high) = (b.slice(y, 1, 0, n / 2).unwrap(), b.slice(y, 1, n / 2, n - n / 2).unwrap());
    let z = b.add(Op::Concat { axis: 1 }, &[high, low]).unwrap();
    b.output("y", y);
    b.output("z", z);
    exchanging(b.finish())
}
