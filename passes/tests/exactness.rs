//! How exact each value and kernel of a rewritten body is.
#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::BTreeMap;

use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Domain, Op, Unary};
use unglue_ir::types::{DType, Dim, TensorType};
use unglue_passes::cost::GFX1201;
use unglue_passes::saturate::SaturationStats;
use unglue_passes::schedule::{Bucket, fit};
use unglue_passes::{CoverOptions, Exactness, Limits, Numerics, Strategy, cover, optimise};

const ROUNDING: Exactness = Exactness::Rounding;

fn input(b: &mut Builder, name: &str) -> ValueId {
    b.input(name, TensorType::plain(DType::F32, [Dim::Rows, Dim::Fixed(8)]), Domain::Normal)
}

/// Rounded to bf16 and widened again.
fn rounded(b: &mut Builder, x: ValueId) -> ValueId {
    let narrow = b.cast(x, DType::Bf16).unwrap();
    b.cast(narrow, DType::F32).unwrap()
}

/// The class of the kernel that stores each output, with one op per kernel.
fn classes(body: &Graph, numerics: Numerics) -> (BTreeMap<String, Exactness>, SaturationStats) {
    let (graph, stats) = optimise(body, numerics, &Limits::default()).unwrap();
    assert!(!stats.kept_declared, "{graph}");
    let options = CoverOptions { touched: stats.touched.clone(), ..CoverOptions::default() };
    let bucket = Bucket { rows_max: 1, seqs_max: 1, pools: 0, fit: &fit::GFX1201 };
    let covered = cover(&graph, &bucket, &GFX1201, Strategy::None, &options).unwrap();
    let stored = covered.kernels.iter().flat_map(|k| k.writes.iter().map(|(name, _)| (name.clone(), k.exactness)));
    (stored.collect(), stats)
}

/// p = x * x; q = f32(bf16 p) + x; r = p - x; s = x / 4.
fn shared() -> Graph {
    let mut b = Builder::new("g");
    let x = input(&mut b, "x");
    let p = b.binary(Binary::Mul, x, x).unwrap();
    let w = rounded(&mut b, p);
    let q = b.binary(Binary::Add, w, x).unwrap();
    let r = b.binary(Binary::Sub, p, x).unwrap();
    let four = b.constant(4.0);
    let s = b.binary(Binary::Div, x, four).unwrap();
    for (name, v) in [("p", p), ("q", q), ("r", r), ("s", s)] {
        b.output(name, v);
    }
    b.finish()
}

#[test]
fn a_shortcut_around_a_rounding_is_of_those_who_take_it() {
    let (stored, stats) = classes(&shared(), Numerics::Rounding);
    assert_eq!(stats.loose.keys().copied().collect::<Vec<_>>(), [3], "f32(bf16 p) alone: {:?}", stats.loose);
    let of = |name: &str| stored[name];
    assert_eq!((of("p"), of("q"), of("r"), of("s")), (Exactness::Exact, ROUNDING, Exactness::Exact, Exactness::Exact));
    assert_eq!(stats.exactness, ROUNDING);
}

#[test]
fn an_exact_build_touches_nothing() {
    let (stored, stats) = classes(&shared(), Numerics::Exact);
    assert!(stats.loose.is_empty() && stats.touched.is_empty() && stats.exactness == Exactness::Exact);
    assert!(stored.values().all(|c| *c == Exactness::Exact) && stats.paid.contains_key("div-power-of-two"));
}

/// neg(f32(bf16(neg y))): the exact rule about two signs meets the inner one through the rounding that was left out.
#[test]
fn an_exact_rule_behind_a_loose_one_is_not_exact() {
    let mut b = Builder::new("g");
    let y = input(&mut b, "y");
    let minus = b.unary(Unary::Neg, y).unwrap();
    let w = rounded(&mut b, minus);
    let plus = b.unary(Unary::Neg, w).unwrap();
    let z = b.binary(Binary::Mul, plus, y).unwrap();
    b.output("z", z);
    let (stored, stats) = classes(&b.finish(), Numerics::Rounding);
    assert_eq!(stats.rewritten[&plus.0], ["neg-neg"]);
    assert_eq!((stats.loose.get(&plus.0), stored["z"]), (Some(&ROUNDING), ROUNDING));
}

/// The cast moves through a view, and meets the other cast there.
#[test]
fn what_comes_in_with_a_form_counts() {
    let mut b = Builder::new("g");
    let x = input(&mut b, "x");
    let p = b.binary(Binary::Mul, x, x).unwrap();
    let narrow = b.cast(p, DType::Bf16).unwrap();
    let view = b.add(Op::Reshape(vec![Dim::Rows, Dim::Fixed(2), Dim::Fixed(4)]), &[narrow]).unwrap();
    let wide = b.cast(view, DType::F32).unwrap();
    let s = b.unary(Unary::Sigmoid, wide).unwrap();
    b.output("s", s);
    let (stored, stats) = classes(&b.finish(), Numerics::Rounding);
    assert_eq!(stats.loose.get(&wide.0), Some(&ROUNDING), "{:?}", stats.rewritten);
    assert_eq!(stored["s"], ROUNDING);
}

#[test]
fn summands_that_change_are_reassociating() {
    let mut b = Builder::new("g");
    let x = input(&mut b, "x");
    let w = b.weight("w", TensorType::plain(DType::Bf16, [Dim::Fixed(6), Dim::Fixed(8)]));
    let square = b.binary(Binary::Mul, x, x).unwrap();
    let sum = b.sum(square, 1).unwrap();
    let scaled = b.binary(Binary::Mul, x, sum).unwrap();
    let y = b.matmul(scaled, w).unwrap();
    b.output("sum", sum);
    b.output("y", y);
    let (stored, stats) = classes(&b.finish(), Numerics::Fast);
    assert_eq!(stats.loose.get(&y.0), Some(&Exactness::Reassociating));
    assert_eq!((stored["sum"], stored["y"]), (Exactness::Exact, Exactness::Reassociating));
}
