//! P4: the bounds hold the bits, are tight enough to refuse wrong results, and judge selections.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)] // Helpers outside of #[test] functions are tests too.

mod interp_support;

use std::collections::BTreeMap;

use interp_support::{F, Net, POOL, R, Run, everything};
use proptest::prelude::*;
use unglue_ir::graph::ValueId;
use unglue_ir::interp::bound::{BoundInputs, BoundOutputs, Bounded, BoundedTensor, Casts, accepts, eval_bounds};
use unglue_ir::interp::draw::{Rng, draw_weight};
use unglue_ir::interp::{Batch, Data, StateData, Tensor, WeightRef};
use unglue_ir::op::{Binary, GroupLimit, Op, ReduceKind, Unary};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim, Format, Packing, ScaleType, Type};

fn bounds(run: &Run, batch: &Batch, selections: &BTreeMap<ValueId, Tensor>) -> BoundOutputs {
    let inputs = run.inputs.iter().map(|(k, t)| (k.clone(), BoundedTensor::exact(t))).collect();
    let mut states = BTreeMap::new();
    for (name, id) in run.g.states() {
        let Type::State(ty) = run.g.ty(id) else { panic!("a state") };
        states.insert(name.to_string(), StateData::<Bounded>::new(ty, run.states[name].slots().len()));
    }
    let weights = &run.weights;
    let get = |name: &str| Ok(weights[name].clone());
    let casts = Casts::Declared;
    let given =
        BoundInputs { inputs: &inputs, weights: &get, states: &states, batch, selections, truncating: false, casts };
    eval_bounds(&run.g, &given).unwrap()
}

/// Node of an output.
fn node(run: &Run, name: &str) -> ValueId {
    run.g.outputs.iter().find(|o| o.0 == name).unwrap().1
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn bounds_hold_the_bits_of_every_row_op(seed in any::<u64>(), rows in 1usize..24) {
        let mut run = everything(seed, rows);
        let batch = Batch::new(&[(0, 0, rows)], POOL);
        let inputs = run.inputs.clone();
        let before = run.clone();
        let got = run.step(&inputs, &batch).unwrap();
        let chosen = BTreeMap::from([(node(&before, "ids"), got["ids"].clone())]);
        let want = bounds(&before, &batch, &chosen);
        prop_assert_eq!(&want.wrong_selections, &[]);
        for (name, t) in &got {
            prop_assert_eq!(want.tensors[name].first_wrong(t), None, "{}", name);
        }
        for (name, s) in &want.states {
            for (bounds, values) in s.slots().iter().zip(run.states[name].slots()) {
                prop_assert_eq!(bounds.len(), values.len());
                prop_assert!(bounds.iter().zip(values).all(|(b, x)| accepts(b, DType::F32, *x)), "state {}", name);
            }
        }
        // Tight: the context of a step has errors far below its values.
        let worst = want.tensors["c"].floats().iter().map(|b| b.error).fold(0.0, f64::max);
        prop_assert!(worst < 1e-4, "{}", worst);
    }

    #[test]
    fn bounds_hold_a_chain_of_everything_pointwise(seed in any::<u64>()) {
        let mut run = chain(seed);
        let batch = Batch::new(&[(0, 0, 3)], POOL);
        let inputs = run.inputs.clone();
        let want = bounds(&run, &batch, &BTreeMap::new());
        let got = run.step(&inputs, &batch).unwrap();
        for (name, t) in &got {
            prop_assert_eq!(want.tensors[name].first_wrong(t), None, "{}", name);
            // Off by 1 in 1000 is refused.
            let wrong = t.floats().iter().map(|x| x * 1.001).collect();
            let wrong = Tensor { data: Data::F32(wrong), ..t.clone() };
            prop_assert!(name == "bf16" || want.tensors[name].first_wrong(&wrong).is_some(), "{}", name);
        }
    }
}

/// A norm, an MLP and a softmax: matmuls in two weight formats, every unary and binary function, both reductions.
fn chain(seed: u64) -> Run {
    let mut n = Net::new(seed);
    let x = n.normal("x", DType::Bf16, &[R, F(300)], 3);
    let xf = n.op(Op::Cast(DType::F32), &[x]);
    let sq = n.op(Op::Binary(Binary::Mul), &[xf, xf]);
    let s = n.op(Op::Reduce { kind: ReduceKind::Sum, axis: 1, order: Order::Lanes }, &[sq]);
    let eps = n.b.constant(1e-5);
    let s = n.op(Op::Binary(Binary::Add), &[s, eps]);
    let rho = n.op(Op::Unary(Unary::Rsqrt), &[s]);
    let root = n.op(Op::Unary(Unary::Sqrt), &[s]);
    let u = n.op(Op::Binary(Binary::Mul), &[xf, rho]);
    let u = n.op(Op::Cast(DType::Bf16), &[u]);
    let values = n.normals(40 * 300);
    let w = n.weight("w", WeightRef::from_f32(DType::Bf16, &[40, 300], &values).unwrap());
    let z = n.op(Op::MatMul { order: Order::Lanes }, &[u, w]);
    let a = n.op(Op::Unary(Unary::Abs), &[z]);
    let l = n.op(Op::Unary(Unary::Log1p), &[a]);
    let l2 = n.op(Op::Unary(Unary::Log), &[root]);
    let l = n.op(Op::Binary(Binary::Add), &[l, l2]);
    let g = n.op(Op::Unary(Unary::Sigmoid), &[z]);
    let cap = n.b.constant(0.75);
    let g = n.op(Op::Binary(Binary::Min), &[g, cap]);
    let g = n.op(Op::Binary(Binary::Mul), &[g, l]);
    let m = n.op(Op::Reduce { kind: ReduceKind::Max, axis: 1, order: Order::Sequential }, &[g]);
    let d = n.op(Op::Binary(Binary::Sub), &[g, m]);
    let e = n.op(Op::Unary(Unary::Exp), &[d]);
    let t = n.op(Op::Reduce { kind: ReduceKind::Sum, axis: 1, order: Order::Lanes }, &[e]);
    let p = n.op(Op::Binary(Binary::Div), &[e, t]);
    let h = n.op(Op::Cast(DType::Bf16), &[p]);
    n.output("f32", p);
    n.output("bf16", h);
    n.output("rho", rho);
    n.output("z", z);
    n.finish()
}

#[test]
fn accepts_what_rounds_to_the_result() {
    let b = |value: f64, error: f64| Bounded { value, error };
    // 1 + 2^-8 is the middle between two bf16 numbers: both are right if the bound reaches across.
    let middle = 1.0 + 2f64.powi(-8);
    assert!(accepts(&b(middle, 1e-6), DType::Bf16, 1.0));
    assert!(accepts(&b(middle, 1e-6), DType::Bf16, 1.0 + 2f32.powi(-7)));
    assert!(!accepts(&b(middle - 1e-4, 1e-6), DType::Bf16, 1.0 + 2f32.powi(-7)));
    assert!(!accepts(&b(1.0, 0.0), DType::F32, 1.0 + f32::EPSILON));
    assert!(accepts(&b(1.0, 2e-7), DType::F32, 1.0 + f32::EPSILON));
    assert!(accepts(&b(f64::NAN, 0.0), DType::F32, f32::from_bits(0x7fff_ffff)));
    assert!(!accepts(&b(f64::NAN, 0.0), DType::F32, 0.0) && !accepts(&b(0.0, 1.0), DType::F32, f32::NAN));
    assert!(accepts(&b(f64::INFINITY, 0.0), DType::F32, f32::INFINITY));
    assert!(!accepts(&b(f64::INFINITY, 0.0), DType::F32, f32::MAX));
    assert!(accepts(&b(f64::NEG_INFINITY, f64::INFINITY), DType::F32, 3.0), "nothing is known");
}

/// Scores x + c, so that they carry an error of half an ulp, and their top 2.
fn scored(scores: &[f32], exact: bool) -> (Run, Batch) {
    scored_by(Op::top_k(2), scores, exact)
}

fn scored_by(op: Op, scores: &[f32], exact: bool) -> (Run, Batch) {
    let mut n = Net::new(1);
    let mut x = n.input("x", &[R, F(scores.len() as u64)], Tensor::f32(&[1, scores.len()], scores.to_vec()));
    if !exact {
        let zero = n.b.constant(0.0);
        x = n.op(Op::Binary(Binary::Add), &[x, zero]);
    }
    let y = n.op(op, &[x]);
    n.output("y", y);
    (n.finish(), Batch::new(&[(0, 0, 1)], 0))
}

/// Two of six scores, in the better of two groups.
#[test]
fn a_selection_among_groups_is_right_if_its_groups_could_be_kept() {
    let judge = |scores: [f32; 6], exact: bool, chosen: [i32; 2]| {
        let limit = Some(GroupLimit { groups: 2, kept: 1 });
        let (run, batch) = scored_by(Op::TopK { k: 2, limit, part: None }, &scores, exact);
        let given = BTreeMap::from([(node(&run, "y"), Tensor::i32(&[1, 2], chosen.to_vec()))]);
        bounds(&run, &batch, &given).wrong_selections.is_empty()
    };
    let clear = [1.0, 3.0, 2.0, 4.0, 0.5, 0.0];
    assert!(judge(clear, true, [1, 2]) && judge(clear, false, [1, 2]), "3 + 2 is more than 4 + 0.5");
    assert!(!judge(clear, true, [3, 4]) && !judge(clear, true, [3, 1]), "the best element is in the other group");
    assert!(!judge(clear, true, [1, 0]) && !judge(clear, true, [1, 1]) && !judge(clear, true, [1, 6]));
    let near = [1.0, 3.0, 2.0, 4.0, 1.0 + f32::EPSILON / 2.0, 0.0];
    assert!(judge(near, false, [1, 2]) && judge(near, false, [3, 4]), "5 and 5 within their errors");
    let none = [f32::NAN, 0.0, f32::NAN, f32::NEG_INFINITY, f32::NAN, f32::NAN];
    assert!(judge(none, true, [1, 0]) && !judge(none, true, [1, 3]));
}

#[test]
fn a_selection_is_right_if_it_could_be() {
    let near = 1.0 + f32::EPSILON / 2.0 + 1e-9;
    let judge = |scores: &[f32], exact: bool, chosen: [i32; 2]| {
        let (run, batch) = scored(scores, exact);
        let given = BTreeMap::from([(node(&run, "y"), Tensor::i32(&[1, 2], chosen.to_vec()))]);
        let out = bounds(&run, &batch, &given);
        assert_eq!(out.tensors["y"].ints(), chosen, "the evaluation goes on with the kernel's selection");
        out.wrong_selections.is_empty()
    };
    let scores = [0.5, 2.0, 1.0, near];
    assert!(judge(&scores, true, [1, 2]) == (near == 1.0));
    assert!(judge(&scores, false, [1, 2]) && judge(&scores, false, [1, 3]));
    assert!(!judge(&scores, false, [1, 0]), "0.5 cannot beat 1");
    assert!(!judge(&scores, false, [2, 1]), "the best stands first");
    assert!(!judge(&scores, false, [1, 1]) && !judge(&scores, false, [1, 4]) && !judge(&scores, false, [1, -1]));
    assert!(judge(&[1.0, 1.0, 1.0], true, [0, 1]));
    assert!(!judge(&[1.0, 1.0, 1.0], true, [0, 2]), "exact ties take the lower index");
    assert!(judge(&[1.0, 1.0, 1.0], false, [0, 2]), "no ties within errors");
    assert!(!judge(&[f32::NAN, f32::NEG_INFINITY, 1.0, 2.0], true, [3, 0]), "NaN is below every number");
}

#[test]
fn index_lists_are_judged_by_their_pools() {
    let mut n = Net::new(2);
    let scores = [0.0, 3.0, 1.0, 2.0, f32::NEG_INFINITY];
    let x = n.input("x", &[R, Dim::Pools], Tensor::f32(&[1, 5], scores.to_vec()));
    let y = n.op(Op::IndexSelect { budget: 2, pool: 2, tail: true }, &[x]);
    n.output("y", y);
    let run = n.finish();
    let mut batch = Batch::new(&[(0, 8, 1)], 2);
    batch.pools = 5;
    let judge = |tokens: [i32; 5]| {
        let given = BTreeMap::from([(node(&run, "y"), Tensor::i32(&[1, 5], tokens.to_vec()))]);
        bounds(&run, &batch, &given).wrong_selections.is_empty()
    };
    assert!(judge([2, 3, 6, 7, 8]));
    assert!(!judge([2, 3, 4, 5, 8]), "pool 3 is better than pool 2");
    assert!(!judge([6, 7, 2, 3, 8]), "not ascending");
    assert!(!judge([2, 3, 6, 7, -1]), "no tail");
    assert!(!judge([3, 4, 6, 7, 8]), "not a pool");
    assert!(!judge([2, 3, 8, 9, 8]), "not complete");
}

#[test]
fn overflow_and_domains_are_seen() {
    let mut n = Net::new(3);
    let x = n.input("x", &[R, F(4)], Tensor::f32(&[1, 4], vec![1e38, -1.0, 0.0, 1.5]));
    let ten = n.b.constant(10.0);
    let y = n.op(Op::Binary(Binary::Mul), &[x, ten]);
    let l = n.op(Op::Unary(Unary::Log), &[y]);
    let d = n.op(Op::Binary(Binary::Div), &[y, y]);
    let s = n.op(Op::Reduce { kind: ReduceKind::Sum, axis: 1, order: Order::Sequential }, &[l]);
    for (name, v) in [("y", y), ("l", l), ("d", d), ("s", s)] {
        n.output(name, v);
    }
    let mut run = n.finish();
    let batch = Batch::new(&[(0, 0, 1)], 0);
    let want = bounds(&run, &batch, &BTreeMap::new());
    let inputs = run.inputs.clone();
    for (name, got) in run.step(&inputs, &batch).unwrap() {
        assert_eq!(want.tensors[&name].first_wrong(&got), None, "{name}");
    }
    assert_eq!(want.tensors["y"].floats()[0].value, f64::INFINITY);
    assert!(want.tensors["l"].floats()[1].value.is_nan());
    assert!(!accepts(&want.tensors["s"].floats()[0], DType::F32, 0.0), "a NaN summand gives NaN");
}

#[test]
fn truncating_tiles_have_twice_the_bound() {
    let mut n = Net::new(4);
    let x = n.normal("x", DType::Bf16, &[R, F(300)], 1);
    let values = n.normals(300);
    let w = n.weight("w", WeightRef::from_f32(DType::Bf16, &[1, 300], &values).unwrap());
    let z = n.op(Op::MatMul { order: Order::Lanes }, &[x, w]);
    n.output("z", z);
    let run = n.finish();
    let batch = Batch::new(&[(0, 0, 1)], 0);
    let inputs = run.inputs.iter().map(|(k, t)| (k.clone(), BoundedTensor::exact(t))).collect();
    let (states, selections) = (BTreeMap::new(), BTreeMap::new());
    let get = |name: &str| Ok(run.weights[name].clone());
    let error = |truncating: bool| {
        let given = BoundInputs {
            inputs: &inputs,
            weights: &get,
            states: &states,
            batch: &batch,
            selections: &selections,
            truncating,
            casts: Casts::Declared,
        };
        eval_bounds(&run.g, &given).unwrap().tensors["z"].floats()[0].error
    };
    // P4: (d + 1) * 2^-24 * sum |x w| with d from the order.
    let size: f64 = run.inputs["x"]
        .floats()
        .iter()
        .zip(run.weights["w"].to_tensor().floats())
        .map(|(x, w)| f64::from((x * w).abs()))
        .sum();
    let want = (Order::Lanes.depth(300) + 1) as f64 * 2f64.powi(-24) * size;
    assert!((error(false) / want - 1.0).abs() < 1e-4 && (error(true) / want - 2.0).abs() < 1e-4);
}

/// P4: what `rounding` rewrites may give. A bound with optional casts is half an ulp of bf16 wider, and no more.
#[test]
fn a_bound_with_optional_casts_holds_both_forms() {
    let mut n = Net::new(5);
    let (one, ulp) = (1.0f32, 2f32.powi(-7));
    let x = n.input("x", &[R, F(3)], Tensor::f32(&[1, 3], vec![one + ulp * 0.375, -2.0, f32::NAN]));
    let narrow = n.op(Op::Cast(DType::Bf16), &[x]);
    let wide = n.op(Op::Cast(DType::F32), &[narrow]);
    let two = n.b.constant(2.0);
    let y = n.op(Op::Binary(Binary::Mul), &[wide, two]);
    n.output("wide", wide);
    n.output("y", y);
    let run = n.finish();
    let inputs = run.inputs.iter().map(|(k, t)| (k.clone(), BoundedTensor::exact(t))).collect();
    let (states, selections) = (BTreeMap::new(), BTreeMap::new());
    let (get, batch) = (|name: &str| Ok(run.weights[name].clone()), Batch::new(&[(0, 0, 1)], 0));
    let of = |name: &str, casts: Casts| {
        let (selections, truncating) = (&selections, false);
        let given = BoundInputs {
            inputs: &inputs,
            weights: &get,
            states: &states,
            batch: &batch,
            selections,
            truncating,
            casts,
        };
        eval_bounds(&run.g, &given).unwrap().tensors[name].floats().to_vec()
    };
    let skipped = run.inputs["x"].floats()[0];
    let takes = |name: &str, casts: Casts, x: f32| accepts(&of(name, casts)[0], DType::F32, x);
    assert!(takes("wide", Casts::Declared, one) && !takes("wide", Casts::Declared, skipped));
    for casts in [one, skipped].map(|x| takes("wide", Casts::Optional, x) && takes("y", Casts::Optional, 2.0 * x)) {
        assert!(casts, "with the rounding and without");
    }
    // Neither on the other side of the value, nor beyond what rounding gives.
    assert!(!takes("wide", Casts::Optional, one + ulp) && !takes("wide", Casts::Optional, one - 2f32.powi(-9)));
    assert!(!takes("y", Casts::Optional, 2.0 * (one + ulp)));
    assert_eq!(of("wide", Casts::Optional)[1], Bounded { value: -2.0, error: 0.0 }, "a number of both dtypes");
    assert!(accepts(&of("wide", Casts::Optional)[2], DType::F32, f32::NAN));
}

/// Runs are within the bound of their order; a scale of the wrong group is not.
#[test]
fn int4_runs_are_bounded() {
    let format = Format::Int4 { group: 32, packing: Packing::Rows, scales: ScaleType::F16 };
    let mut n = Net::new(5);
    let x = n.normal("x", DType::Bf16, &[R, F(1184)], 3);
    let mut rng = Rng::new(5);
    let stored = draw_weight(&mut rng, format, &[6, 1184]).unwrap();
    let mut shifted = stored.clone();
    let scales = shifted.scales.to_mut();
    scales.rotate_left(2);
    let w = n.weight("w", stored);
    let z = n.op(Op::MatMul { order: Order::Runs }, &[x, w]);
    n.output("z", z);
    let mut run = n.finish();
    let batch = Batch::new(&[(0, 0, 3)], 0);
    let want = bounds(&run, &batch, &BTreeMap::new());
    let inputs = run.inputs.clone();
    let right = run.step(&inputs, &batch).unwrap();
    assert_eq!(want.tensors["z"].first_wrong(&right["z"]), None);
    run.weights.insert("w".into(), shifted);
    let wrong = run.step(&inputs, &batch).unwrap();
    assert_eq!(want.tensors["z"].first_wrong(&wrong["z"]), Some(0));
}

/// A run may overflow before its scale makes it small: then nothing is promised.
#[test]
fn int4_runs_may_overflow() {
    let format = Format::Int4 { group: 32, packing: Packing::Rows, scales: ScaleType::F16 };
    let mut n = Net::new(6);
    let x = n.input("x", &[R, F(32)], Tensor::f32(&[1, 32], vec![3e38; 32]));
    let tiny = half::f16::from_f32(1e-6).to_le_bytes();
    let w = n.weight("w", WeightRef::stored(format, &[1, 32], vec![0; 16], tiny.to_vec()).unwrap());
    let z = n.op(Op::MatMul { order: Order::Runs }, &[x, w]);
    n.output("z", z);
    let mut run = n.finish();
    let batch = Batch::new(&[(0, 0, 1)], 0);
    let want = bounds(&run, &batch, &BTreeMap::new());
    let inputs = run.inputs.clone();
    let got = run.step(&inputs, &batch).unwrap();
    assert_eq!(got["z"].floats(), [f32::NEG_INFINITY]);
    assert_eq!(want.tensors["z"].first_wrong(&got["z"]), None);
}
