//! Wrong rules that call themselves `rounding` or `reassociating`: their values leave the bound of the class.

use unglue_ir::op::{Binary, Op, Unary};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim};
use unglue_passes::Exactness;
use unglue_passes::analysis::View;
use unglue_passes::language::ENode;
use unglue_passes::rules::Term;
use unglue_passes::rules::soundness::{Draw, Sample};

use super::{Finder, Wrong, bin, unary};

const R: Dim = Dim::Rows;
const F: fn(u64) -> Dim = Dim::Fixed;

fn constant(x: f32) -> Term {
    Term::Node(Op::ConstF32(x.to_bits()), vec![])
}

/// (x op s) w, with s one number per row.
fn matmul_of(d: &mut Draw, op: Binary) -> Option<Sample> {
    let x = d.tame(&[R, F(24)]);
    let s = d.tame(&[R, F(1)]);
    let w = d.weight(&[5, 24]);
    let y = d.op(bin(op), &[x, s])?;
    d.apply(Op::MatMul { order: Order::Lanes }, &[y, w])
}

/// Operands of the op below a matmul.
fn below<'a>(v: View<'a>, n: &ENode, op: Binary) -> impl Iterator<Item = &'a ENode> {
    let class = matches!(n.op, Op::MatMul { .. }).then(|| n.args[0]);
    class.into_iter().flat_map(move |c| v.nodes(c)).filter(move |i| i.op == bin(op))
}

const fn rounding(
    name: &'static str,
    finder: Finder,
    find: fn(View, &ENode) -> Vec<Term>,
    sample: fn(&mut Draw) -> Option<Sample>,
) -> Wrong {
    Wrong { name, class: Exactness::Rounding, find, sample, finder }
}

const fn reassociating(
    name: &'static str,
    find: fn(View, &ENode) -> Vec<Term>,
    sample: fn(&mut Draw) -> Option<Sample>,
) -> Wrong {
    Wrong { name, class: Exactness::Reassociating, find, sample, finder: Finder::Bound }
}

pub const WRONG: &[Wrong] = &[
    rounding(
        "drops-a-scale",
        Finder::Farther,
        |_, n| if n.op == bin(Binary::Mul) { vec![Term::Class(n.args[0])] } else { vec![] },
        |d| {
            let (x, c) = (d.moderate(), d.constant(1.01));
            d.apply(bin(Binary::Mul), &[x, c])
        },
    ),
    rounding(
        "adds-a-rounding",
        Finder::Farther,
        |_, n| {
            if n.op != unary(Unary::Neg) {
                return vec![];
            }
            let narrow = Term::op(Op::Cast(DType::Bf16), &n.args);
            vec![Term::Node(n.op.clone(), vec![Term::Node(Op::Cast(DType::F32), vec![narrow])])]
        },
        |d| {
            let x = d.moderate();
            d.apply(unary(Unary::Neg), &[x])
        },
    ),
    rounding(
        "rounds-to-fewer-bits",
        Finder::Farther,
        |v, n| {
            let narrow = n.args.first().into_iter().flat_map(|a| v.nodes(*a));
            let f16 = narrow.filter(|i| n.op == Op::Cast(DType::F32) && i.op == Op::Cast(DType::F16));
            let rounded = |x| Term::op(Op::Cast(DType::Bf16), &[x]);
            f16.map(|i| Term::Node(Op::Cast(DType::F32), vec![rounded(i.args[0])])).collect()
        },
        |d| {
            let x = d.tame(&[R, F(16)]);
            let y = d.op(Op::Cast(DType::F16), &[x])?;
            d.apply(Op::Cast(DType::F32), &[y])
        },
    ),
    rounding(
        "log1p-of-the-sum",
        Finder::Farther,
        |v, n| {
            let sums = n.args.first().into_iter().flat_map(|a| v.nodes(*a));
            let sums = sums.filter(|i| n.op == unary(Unary::Log) && i.op == bin(Binary::Add));
            sums.map(|_| Term::op(unary(Unary::Log1p), &n.args)).collect()
        },
        |d| {
            let (x, one) = (d.positive(), d.constant(1.0));
            let sum = d.op(bin(Binary::Add), &[x, one])?;
            d.apply(unary(Unary::Log), &[sum])
        },
    ),
    reassociating(
        "scale-lost-behind-the-matmul",
        |v, n| below(v, n, Binary::Mul).map(|i| Term::op(n.op.clone(), &[i.args[0], n.args[1]])).collect(),
        |d| matmul_of(d, Binary::Mul),
    ),
    reassociating(
        "scale-applied-twice",
        |v, n| {
            let twice = |i: &ENode| {
                let sums = Term::op(n.op.clone(), &[n.args[0], n.args[1]]);
                Term::Node(bin(Binary::Mul), vec![sums, Term::Class(i.args[1])])
            };
            below(v, n, Binary::Mul).map(twice).collect()
        },
        |d| matmul_of(d, Binary::Mul),
    ),
    reassociating(
        "shift-through-the-matmul",
        |v, n| {
            let moved = |i: &ENode| {
                let sums = Term::op(n.op.clone(), &[i.args[0], n.args[1]]);
                Term::Node(bin(Binary::Add), vec![sums, Term::Class(i.args[1])])
            };
            below(v, n, Binary::Add).map(moved).collect()
        },
        |d| matmul_of(d, Binary::Add),
    ),
    reassociating(
        "mean-over-one-less",
        |v, n| match n.op {
            Op::Binary(Binary::Div) if v.constant(n.args[1]) == Some(20.0) => {
                vec![Term::Node(n.op.clone(), vec![Term::Class(n.args[0]), constant(19.0)])]
            }
            _ => vec![],
        },
        |d| {
            let x = d.tame(&[R, F(20)]);
            let kind = unglue_ir::op::ReduceKind::Sum;
            let sum = d.op(Op::Reduce { kind, axis: 1, order: Order::Sequential }, &[x])?;
            let n = d.constant(20.0);
            d.apply(bin(Binary::Div), &[sum, n])
        },
    ),
];
