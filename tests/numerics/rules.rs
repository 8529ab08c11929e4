//! Every rule of the table fires and pays on a trunk: the tiny model, or the tiny model with a piece of glue between two
//! ops that the model does not have. A rule that does so nowhere is of no use.

use unglue_ir::IrError;
use unglue_ir::builder::Builder;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Binary, Op, Unary};
use unglue_ir::types::{DType, Dim};
use unglue_models::Activation;
use unglue_passes::rules::table;
use unglue_passes::saturate::SaturationStats;
use unglue_passes::{Limits, Numerics, optimise};

use super::compared;
use super::trunks::{copy, rewritten, trunk, with};

type V = Result<ValueId, IrError>;
type Glue = fn(&mut Builder, ValueId) -> V;

/// Where the glue goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Behind the first matmul.
    Behind,
    /// Before the first matmul with fewer results than operands in a row, on its input.
    Before,
}

/// Rule, place, glue; the values have an even number of elements a row.
const GLUE: &[(&str, Place, Glue)] = &[
    ("cast-same", Place::Behind, |b, x| b.add(Op::Cast(DType::F32), &[x])),
    ("cast-after-widening", Place::Behind, |b, x| {
        let narrow = b.add(Op::Cast(DType::Bf16), &[x])?;
        let wide = b.add(Op::Cast(DType::F32), &[narrow])?;
        let again = b.add(Op::Cast(DType::Bf16), &[wide])?;
        b.add(Op::Cast(DType::F32), &[again])
    }),
    ("mul-one", Place::Behind, |b, x| with(b, Binary::Mul, x, 1.0)),
    ("div-one", Place::Behind, |b, x| with(b, Binary::Div, x, 1.0)),
    ("sub-zero", Place::Behind, |b, x| with(b, Binary::Sub, x, 0.0)),
    ("mul-minus-one", Place::Behind, |b, x| {
        let minus = with(b, Binary::Mul, x, -1.0)?;
        with(b, Binary::Mul, minus, -1.0)
    }),
    ("constant-right", Place::Behind, |b, x| {
        let one = b.constant(1.0);
        b.binary(Binary::Mul, one, x)
    }),
    ("div-power-of-two", Place::Behind, |b, x| with(b, Binary::Div, x, 4.0)),
    ("one-over-sqrt", Place::Behind, |b, x| {
        let size = b.unary(Unary::Abs, x)?;
        let more = with(b, Binary::Add, size, 1.0)?;
        let root = b.unary(Unary::Sqrt, more)?;
        let one = b.constant(1.0);
        let inverse = b.binary(Binary::Div, one, root)?;
        b.binary(Binary::Mul, x, inverse)
    }),
    ("neg-neg", Place::Behind, |b, x| {
        let y = b.unary(Unary::Neg, x)?;
        b.unary(Unary::Neg, y)
    }),
    ("abs-neg", Place::Behind, |b, x| {
        let y = b.unary(Unary::Neg, x)?;
        b.unary(Unary::Abs, y)
    }),
    ("abs-abs", Place::Behind, |b, x| {
        let y = b.unary(Unary::Abs, x)?;
        b.unary(Unary::Abs, y)
    }),
    ("add-neg", Place::Behind, |b, x| {
        let s = b.unary(Unary::Sigmoid, x)?;
        let y = b.unary(Unary::Neg, s)?;
        b.binary(Binary::Add, x, y)
    }),
    ("sub-neg", Place::Behind, |b, x| {
        let s = b.unary(Unary::Sigmoid, x)?;
        let y = b.unary(Unary::Neg, s)?;
        b.binary(Binary::Sub, x, y)
    }),
    ("min-max-same", Place::Behind, |b, x| b.binary(Binary::Max, x, x)),
    ("nested-bound", Place::Behind, |b, x| {
        let y = with(b, Binary::Min, x, 0.75)?;
        with(b, Binary::Min, y, 0.5)
    }),
    ("fold-constants", Place::Behind, |b, x| {
        let (a, c) = (b.constant(0.3), b.constant(0.7));
        let product = b.binary(Binary::Mul, a, c)?;
        b.binary(Binary::Mul, x, product)
    }),
    ("view-same", Place::Behind, |b, x| {
        let shape = b.shape(x);
        b.add(Op::Reshape(shape), &[x])
    }),
    ("reshape-of-reshape", Place::Behind, |b, x| {
        let (flat, y) = (b.shape(x), in_two(b, x)?);
        b.add(Op::Reshape(flat), &[y])
    }),
    ("broadcast-of-broadcast", Place::Behind, |b, x| {
        let (flat, n) = (b.shape(x), last(b, x));
        let sum = b.sum(x, 1)?;
        let y = b.add(Op::Reshape(vec![flat[0], Dim::Fixed(1), Dim::Fixed(1)]), &[sum])?;
        let y = b.add(Op::Broadcast(vec![flat[0], Dim::Fixed(2), Dim::Fixed(1)]), &[y])?;
        let y = b.add(Op::Broadcast(vec![flat[0], Dim::Fixed(2), Dim::Fixed(n / 2)]), &[y])?;
        let y = b.add(Op::Reshape(flat), &[y])?;
        b.binary(Binary::Sub, x, y)
    }),
    ("slice-of-slice", Place::Behind, |b, x| {
        let n = last(b, x);
        let most = b.add(Op::Slice { axis: 1, start: 1, len: n - 1 }, &[x])?;
        let back = b.add(Op::Slice { axis: 1, start: n / 2 - 1, len: n / 2 }, &[most])?;
        b.add(Op::Concat { axis: 1 }, &[back, back])
    }),
    ("slice-of-concat", Place::Behind, |b, x| {
        let n = last(b, x);
        let s = b.unary(Unary::Sigmoid, x)?;
        let both = b.add(Op::Concat { axis: 1 }, &[s, x])?;
        b.add(Op::Slice { axis: 1, start: n, len: n }, &[both])
    }),
    ("concat-of-one", Place::Behind, |b, x| b.add(Op::Concat { axis: 1 }, &[x])),
    ("concat-of-slices", Place::Behind, |b, x| {
        let n = last(b, x);
        let front = b.add(Op::Slice { axis: 1, start: 0, len: n / 2 }, &[x])?;
        let back = b.add(Op::Slice { axis: 1, start: n / 2, len: n - n / 2 }, &[x])?;
        b.add(Op::Concat { axis: 1 }, &[front, back])
    }),
    ("elementwise-before-view", Place::Behind, |b, x| {
        let flat = b.shape(x);
        let sum = b.sum(x, 1)?;
        let grown = b.add(Op::Broadcast(flat), &[sum])?;
        let gate = b.unary(Unary::Sigmoid, grown)?;
        b.binary(Binary::Mul, x, gate)
    }),
    ("slice-before-elementwise", Place::Behind, |b, x| {
        let n = last(b, x);
        let s = b.unary(Unary::Sigmoid, x)?;
        let front = b.add(Op::Slice { axis: 1, start: 0, len: n / 2 }, &[s])?;
        b.add(Op::Concat { axis: 1 }, &[front, front])
    }),
    ("implicit-broadcast", Place::Behind, |b, x| {
        let flat = b.shape(x);
        let sum = b.sum(x, 1)?;
        let grown = b.add(Op::Broadcast(flat), &[sum])?;
        b.binary(Binary::Sub, x, grown)
    }),
    ("skip-rounding", Place::Behind, |b, x| {
        let narrow = b.add(Op::Cast(DType::Bf16), &[x])?;
        b.add(Op::Cast(DType::F32), &[narrow])
    }),
    // One number per row: over long rows log1p is dearer than log and the sum.
    ("log-of-one-plus", Place::Behind, |b, x| {
        let square = b.binary(Binary::Mul, x, x)?;
        let sum = b.sum(square, 1)?;
        let more = with(b, Binary::Add, sum, 1.0)?;
        let log = b.unary(Unary::Log, more)?;
        b.binary(Binary::Mul, x, log)
    }),
    // A norm without a weight.
    ("scale-after-matmul", Place::Before, |b, x| {
        let square = b.binary(Binary::Mul, x, x)?;
        let sum = b.sum(square, 1)?;
        let more = with(b, Binary::Add, sum, 1e-5)?;
        let rho = b.unary(Unary::Rsqrt, more)?;
        b.binary(Binary::Mul, x, rho)
    }),
];

/// Elements of a row.
fn last(b: &Builder, x: ValueId) -> u64 {
    b.shape(x).last().and_then(|d| d.fixed()).unwrap()
}

fn in_two(b: &mut Builder, x: ValueId) -> V {
    let (rows, n) = (b.shape(x)[0], last(b, x));
    b.add(Op::Reshape(vec![rows, Dim::Fixed(2), Dim::Fixed(n / 2)]), &[x])
}

/// The body with the glue at its place.
fn glued(g: &Graph, place: Place, glue: Glue) -> Graph {
    let width = |id: ValueId| g.ty(id).tensor().and_then(|t| t.shape.last()?.fixed()).unwrap();
    let wanted = |id: &ValueId| {
        let node = g.node(*id);
        matches!(node.op, Op::MatMul { .. }) && (place == Place::Behind || width(*id) < width(node.args[0]))
    };
    let at = g.ids().find(wanted).unwrap_or_else(|| panic!("{}: no place for {place:?}", g.name));
    rewritten(g, &mut |b, g, id, args| {
        if id != at {
            return None;
        }
        let made = match place {
            Place::Behind => {
                let y = copy(b, g, id, args);
                glue(b, y)
            }
            Place::Before => glue(b, args[0]).and_then(|x| b.add(g.node(id).op.clone(), &[&[x], &args[1..]].concat())),
        };
        Some(made.unwrap())
    })
}

fn fired(s: &SaturationStats, rule: &str) -> (u64, u64) {
    let of = |m: &std::collections::BTreeMap<String, u64>| m.get(rule).copied().unwrap_or(0);
    (of(&s.fired), of(&s.paid))
}

#[test]
fn every_rule_fires_and_pays_on_some_trunk() {
    let m = trunk(&[], Activation::F32);
    let plain = m.bodies.iter().find(|b| b.name == "dense").unwrap();
    let mut idle = Vec::new();
    for (rule, place, glue) in GLUE {
        // The strictest level that has it: looser rules would take its place.
        let class = table().iter().find(|r| r.name == *rule).unwrap_or_else(|| panic!("no rule {rule}")).class;
        let level = Numerics::ALL.into_iter().find(|n| n.allows(class)).unwrap();
        let before = fired(&optimise(plain, level, &Limits::default()).unwrap().1, rule);
        let mutated = glued(plain, *place, *glue);
        let (_, stats) = optimise(&mutated, level, &Limits::default()).unwrap();
        let after = fired(&stats, rule);
        println!("{rule:<26} fired {before:?} -> {after:?}");
        if after.0 <= before.0 || after.1 <= before.1 {
            idle.push(format!("{rule}: fired and paid {before:?}, with its glue {after:?}"));
        }
        compared(&mutated, level);
    }
    assert!(idle.is_empty(), "{}", idle.join("\n"));
    let untried: Vec<&str> =
        table().iter().map(|r| r.name).filter(|n| GLUE.iter().all(|(rule, ..)| rule != n)).collect();
    assert!(untried.is_empty(), "rules without a trunk on which they fire: {untried:?}");
}
