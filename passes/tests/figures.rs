//! Figures of a report: activations, what a kernel costs by being there, serial chains, source lines.
#![allow(clippy::unwrap_used, clippy::panic)]

mod common;

use common::bucket;
use unglue_ir::builder::Builder;
use unglue_ir::graph::Graph;
use unglue_ir::op::{Binary, Domain, Unary};
use unglue_ir::types::{DType, Dim, TensorType};
use unglue_passes::cost::GFX1201;
use unglue_passes::facts::Facts;
use unglue_passes::figures::{activations, is_pointwise, removals, serial};
use unglue_passes::{BodyCover, CoverOptions, Limits, Numerics, Strategy, cover, optimise};

const D: u64 = 64;
/// Bytes of a row of D elements.
const F32: u64 = 4 * D;
const BF16: u64 = 2 * D;

/// Ops of the common bodies that are more than elementwise.
const HEAVY: [&str; 9] =
    ["matmul", "sum", "reduce_max", "top_k", "gather_last", "repeat", "causal_conv", "conv_update", "delta_rule"];

/// -x, its sigmoid, their product, rounded.
fn silu() -> Graph {
    let mut b = Builder::new("silu");
    let x = b.input("x", TensorType::plain(DType::F32, [Dim::Rows, Dim::Fixed(D)]), Domain::Normal);
    let f = b.unary(Unary::Neg, x).unwrap();
    let s = b.unary(Unary::Sigmoid, f).unwrap();
    let y = b.binary(Binary::Mul, f, s).unwrap();
    let y = b.cast(y, DType::Bf16).unwrap();
    b.output("y", y);
    b.finish()
}

fn unfused() -> BodyCover {
    cover(&silu(), &bucket(1), &GFX1201, Strategy::None, &CoverOptions::default()).unwrap()
}

#[test]
fn activations_count_each_reader() {
    let cover = unfused();
    let a = activations(&Facts::new(&cover.body), &cover, &bucket(1));
    // Read: x, f twice, the sigmoid, the product. Written: f, the sigmoid, the product, y.
    assert_eq!(a.moved_bytes, F32 + 2 * F32 + F32 + F32 + 3 * F32 + BF16);
    assert_eq!(a.least_bytes, a.moved_bytes - F32);
    assert_eq!(a.issued_bytes, a.moved_bytes, "a row kernel reads nothing twice");
    assert!(cover.kernels.iter().all(|k| is_pointwise(&k.graph)));
}

#[test]
fn heavy_ops_and_reductions_are_not_pointwise() {
    for body in common::all() {
        let cover = cover(&body, &bucket(1), &GFX1201, Strategy::None, &CoverOptions::default()).unwrap();
        for k in &cover.kernels {
            let works = k.graph.nodes.iter().any(|n| HEAVY.contains(&n.op.name()));
            assert_eq!(is_pointwise(&k.graph), !works, "{}", k.name);
        }
    }
}

#[test]
fn removal_counts_what_only_passes_between_neighbours() {
    let cover = unfused();
    let saved = removals(&Facts::new(&cover.body), &cover, &bucket(1), &GFX1201);
    // The first leaves f, which two kernels read. f stays when the sigmoid goes; its own value does not. The product
    // takes the sigmoid alone, and leaves a value to the last cast, whose own result leaves the body.
    let bytes: Vec<u64> = saved.iter().map(|r| r.bytes).collect();
    assert_eq!(bytes, [3 * F32, 2 * F32, 4 * F32, 2 * F32]);
    for (r, k) in saved.iter().zip(&cover.kernels) {
        assert_eq!((r.launch_ns, r.gap_ns), (k.cost.t0_ns, k.cost.gap_ns));
        assert_eq!(r.total_ns, r.launch_ns + r.gap_ns + r.bytes_ns);
    }
}

/// Workgroups of a matmul read its operand again while its weights stream, which take longer.
#[test]
fn activations_beside_a_weight_stream_cost_no_time() {
    let (n, k) = (4096, 1024);
    let mut b = Builder::new("streamed");
    let x = b.input("x", TensorType::plain(DType::F32, [Dim::Rows, Dim::Fixed(k)]), Domain::Normal);
    let x = b.unary(Unary::Neg, x).unwrap();
    let x = b.cast(x, DType::Bf16).unwrap();
    let y = common::linear(&mut b, x, "w", n, k);
    b.output("y", y);
    let g = b.finish();
    let cover = cover(&g, &bucket(1), &GFX1201, Strategy::None, &CoverOptions::default()).unwrap();
    let saved = removals(&Facts::new(&cover.body), &cover, &bucket(1), &GFX1201);
    let last = saved[cover.kernels.len() - 2];
    assert!(last.bytes > n * k / 8, "{} bytes are read again", last.bytes);
    let around = (4 * k + 4 * k + 2 * k) / GFX1201.stream.value;
    assert_eq!(last.bytes_ns, around, "what one workgroup reads and both store");
}

#[test]
fn the_serial_chain_is_the_longest() {
    let cover = unfused();
    assert_eq!(serial(&cover, &[(0, 1), (0, 2), (1, 2), (2, 3)]), [true; 4]);
    assert_eq!(serial(&cover, &[(0, 1), (1, 3)]), [true, true, false, true]);
}

/// Lines are those of the callers, also where equal nodes are shared; a value that a rule brings in has those of the value
/// that the rule rewrote.
#[test]
fn values_have_the_lines_that_declare_them() {
    let mut b = Builder::new("g");
    let x = b.input("x", TensorType::plain(DType::F32, [Dim::Rows, Dim::Fixed(8)]), Domain::Normal);
    let four = b.constant(4.0);
    let first = line!() + 1;
    let y = b.binary(Binary::Div, x, four).unwrap();
    assert_eq!(b.binary(Binary::Div, x, four).unwrap(), y);
    b.output("y", y);
    let lines = b.lines();
    assert_eq!(lines.nodes[y.index()].to_string(), format!("passes/tests/figures.rs:{first}"));
    let (better, s) = optimise(&b.finish(), Numerics::Exact, &Limits::default()).unwrap();
    let quarter = better.ids().find(|id| better.node(*id).op.name() == "const").unwrap();
    assert_eq!(s.made_from[&quarter.0], [y.0], "{better}");
}

#[test]
fn two_outputs_may_become_one_value() {
    let mut b = Builder::new("g");
    let x = b.input("x", TensorType::plain(DType::F32, [Dim::Rows, Dim::Fixed(8)]), Domain::Normal);
    let e = b.unary(Unary::Exp, x).unwrap();
    let one = b.constant(1.0);
    let same = b.binary(Binary::Mul, e, one).unwrap();
    b.output("a", e);
    b.output("b", same);
    let (better, _) = optimise(&b.finish(), Numerics::Exact, &Limits::default()).unwrap();
    assert_eq!(better.outputs[0].1, better.outputs[1].1, "{better}");
}
