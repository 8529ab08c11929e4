//! Wrong rules about views, and about sums in another order.

use unglue_ir::op::{Binary, Op, ReduceKind, Unary};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim};
use unglue_passes::rules::Term;
use unglue_passes::rules::soundness::{Draw, Sample};

use super::{Finder, Wrong, bin, exact, unary};

const BITS: Finder = Finder::Bits;
const R: Dim = Dim::Rows;
const F: fn(u64) -> Dim = Dim::Fixed;

const fn sum(axis: u32, order: Order) -> Op {
    Op::Reduce { kind: ReduceKind::Sum, axis, order }
}

const MAX: Op = Op::Reduce { kind: ReduceKind::Max, axis: 1, order: Order::Sequential };

fn summed(d: &mut Draw, n: u64, order: Order) -> Option<Sample> {
    let x = d.tame(&[R, F(n)]);
    d.apply(sum(1, order), &[x])
}

pub const WRONG: &[Wrong] = &[
    exact(
        "slice-of-concat-off-by-one",
        BITS,
        |v, n| match n.op {
            Op::Slice { axis, start, len } => v
                .nodes(n.args[0])
                .filter(|i| i.op == Op::Concat { axis } && start >= 4)
                .map(|i| Term::op(Op::Slice { axis, start: start - 3, len }, &[i.args[1]]))
                .collect(),
            _ => vec![],
        },
        |d| {
            let a = d.tensor(DType::F32, &[R, F(4)]);
            let b = d.tensor(DType::F32, &[R, F(6)]);
            let c = d.op(Op::Concat { axis: 1 }, &[a, b])?;
            d.apply(Op::Slice { axis: 1, start: 5, len: 3 }, &[c])
        },
    ),
    exact(
        "slice-behind-the-end",
        Finder::Typing("slice-range"),
        // The start of the outer slice counts from the end of the inner one.
        |v, n| {
            let Op::Slice { axis, start, len } = n.op else { return vec![] };
            let inner = v.nodes(n.args[0]).filter_map(|i| match i.op {
                Op::Slice { axis: a, start: s, len: l } if a == axis => Some((s + l, i.args[0])),
                _ => None,
            });
            inner.map(|(s, x)| Term::op(Op::Slice { axis, start: s + start, len }, &[x])).collect()
        },
        |d| {
            let x = d.tensor(DType::F32, &[R, F(12)]);
            let y = d.op(Op::Slice { axis: 1, start: 2, len: 9 }, &[x])?;
            d.apply(Op::Slice { axis: 1, start: 3, len: 4 }, &[y])
        },
    ),
    exact(
        "slice-one-short",
        Finder::Type,
        |_, n| match n.op {
            Op::Slice { axis, start, len } => vec![Term::op(Op::Slice { axis, start, len: len - 1 }, &n.args)],
            _ => vec![],
        },
        |d| {
            let x = d.tensor(DType::F32, &[R, F(12)]);
            d.apply(Op::Slice { axis: 1, start: 2, len: 9 }, &[x])
        },
    ),
    exact(
        "slice-before-reshape",
        BITS,
        // A slice of the last axis takes some of each group, not the first groups.
        |v, n| {
            let Op::Slice { axis: 2, start, len } = n.op else { return vec![] };
            let to = |groups: Dim| Op::Reshape(vec![R, groups, F(len)]);
            let inner = v.nodes(n.args[0]).filter(|i| matches!(i.op, Op::Reshape(_)) && v.shape(i.args[0]).len() == 2);
            let groups = v.shape(n.args[0])[1];
            let taken = |x| Term::op(Op::Slice { axis: 1, start, len: len * groups.fixed().unwrap_or(1) }, &[x]);
            inner.map(|i| Term::Node(to(groups), vec![taken(i.args[0])])).collect()
        },
        |d| {
            let x = d.tensor(DType::F32, &[R, F(12)]);
            let y = d.op(Op::Reshape(vec![R, F(3), F(4)]), &[x])?;
            d.apply(Op::Slice { axis: 2, start: 1, len: 2 }, &[y])
        },
    ),
    exact(
        "reshape-in-vectors-of-four",
        Finder::Typing("reshape"),
        // The last axis in vectors of 4, whether 4 divides it or not.
        |v, n| {
            if !matches!(n.op, Op::Unary(_)) {
                return vec![];
            }
            let Some(last) = v.shape(n.args[0]).last().and_then(|d| d.fixed()) else { return vec![] };
            let vectors = Term::op(Op::Reshape(vec![R, F(last / 4), F(4)]), &n.args);
            let flat = Op::Reshape(v.shape(n.args[0]).to_vec());
            vec![Term::Node(flat, vec![Term::Node(n.op.clone(), vec![vectors])])]
        },
        |d| {
            let n = d.pick(&[8, 10]);
            let x = d.tensor(DType::F32, &[R, F(n)]);
            d.apply(unary(Unary::Neg), &[x])
        },
    ),
    exact(
        "concat-turned-round",
        BITS,
        |v, n| match n.op {
            Op::Concat { .. } if v.shape(n.args[0]) == v.shape(n.args[1]) => {
                vec![Term::op(n.op.clone(), &[n.args[1], n.args[0]])]
            }
            _ => vec![],
        },
        |d| {
            let (a, b) = (d.tensor(DType::F32, &[R, F(4)]), d.tensor(DType::F32, &[R, F(4)]));
            d.apply(Op::Concat { axis: 1 }, &[a, b])
        },
    ),
    exact(
        "concat-of-slices-with-a-gap",
        BITS,
        |v, n| {
            let (Op::Concat { axis: 1 }, Some(len)) = (&n.op, v.node_ty(n).and_then(|t| t.tensor()?.shape[1].fixed()))
            else {
                return vec![];
            };
            let first = v.nodes(n.args[0]).filter(|i| matches!(i.op, Op::Slice { axis: 1, start: 0, .. }));
            first.map(|i| Term::op(Op::Slice { axis: 1, start: 0, len }, &[i.args[0]])).collect()
        },
        |d| {
            let x = d.tensor(DType::F32, &[R, F(9)]);
            let a = d.op(Op::Slice { axis: 1, start: 0, len: 3 }, &[x])?;
            let b = d.op(Op::Slice { axis: 1, start: 4, len: 5 }, &[x])?;
            d.apply(Op::Concat { axis: 1 }, &[a, b])
        },
    ),
    exact(
        "broadcast-along-the-other-axis",
        BITS,
        |v, n| {
            let Op::Broadcast(to) = &n.op else { return vec![] };
            let turned = Op::Reshape(vec![R, v.shape(n.args[0])[2], F(1)]);
            vec![Term::Node(Op::Broadcast(to.clone()), vec![Term::op(turned, &n.args)])]
        },
        |d| {
            let x = d.tensor(DType::F32, &[R, F(1), F(6)]);
            d.apply(Op::Broadcast(vec![R, F(6), F(6)]), &[x])
        },
    ),
    exact(
        "sum-of-broadcast-as-product",
        BITS,
        |v, n| {
            if n.op != sum(1, Order::Sequential) {
                return vec![];
            }
            let grown = v.nodes(n.args[0]).filter(|i| matches!(i.op, Op::Broadcast(_)));
            let count = v.shape(n.args[0])[1].fixed().unwrap_or(1) as f32;
            let times = || Term::Node(Op::ConstF32(count.to_bits()), vec![]);
            grown.map(|i| Term::Node(bin(Binary::Mul), vec![Term::Class(i.args[0]), times()])).collect()
        },
        |d| {
            let x = d.tensor(DType::F32, &[R, F(1)]);
            let y = d.op(Op::Broadcast(vec![R, F(7)]), &[x])?;
            d.apply(sum(1, Order::Sequential), &[y])
        },
    ),
    exact(
        "sum-in-another-order",
        BITS,
        |_, n| match n.op {
            Op::Reduce { kind: ReduceKind::Sum, axis, order: Order::Lanes } => {
                vec![Term::op(sum(axis, Order::Sequential), &n.args)]
            }
            _ => vec![],
        },
        |d| summed(d, 30, Order::Lanes),
    ),
    exact(
        "sum-in-two-halves",
        BITS,
        |v, n| {
            if n.op != sum(1, Order::Sequential) {
                return vec![];
            }
            let Some(len) = v.shape(n.args[0])[1].fixed().map(|n| n / 2).filter(|n| *n > 0) else { return vec![] };
            let half = |start: u64| {
                let part = Term::op(Op::Slice { axis: 1, start, len }, &n.args);
                Term::Node(n.op.clone(), vec![part])
            };
            vec![Term::Node(bin(Binary::Add), vec![half(0), half(len)])]
        },
        |d| summed(d, 22, Order::Sequential),
    ),
    exact(
        "maximum-of-halves-drops-the-last",
        BITS,
        // An odd extent has an element beside its two halves.
        |v, n| {
            if n.op != MAX {
                return vec![];
            }
            let Some(len) = v.shape(n.args[0])[1].fixed().map(|n| n / 2).filter(|n| *n > 0) else { return vec![] };
            let half = |start: u64| {
                let part = Term::op(Op::Slice { axis: 1, start, len }, &n.args);
                Term::Node(MAX, vec![part])
            };
            vec![Term::Node(bin(Binary::Max), vec![half(0), half(len)])]
        },
        |d| {
            let x = d.tame(&[R, F(7)]);
            d.apply(MAX, &[x])
        },
    ),
    exact(
        "sum-along-the-other-axis",
        BITS,
        |_, n| match n.op {
            Op::Reduce { kind: ReduceKind::Sum, axis: 1, order } => {
                let other = Term::op(sum(2, order), &n.args);
                vec![Term::Node(Op::Reshape(vec![R, F(1), F(4)]), vec![other])]
            }
            _ => vec![],
        },
        |d| {
            let x = d.tame(&[R, F(4), F(4)]);
            d.apply(sum(1, Order::Sequential), &[x])
        },
    ),
    exact(
        "maximum-of-negatives",
        BITS,
        |v, n| {
            let negatives = v.nodes(n.args.first().copied().unwrap_or_default()).filter(|i| i.op == unary(Unary::Neg));
            let greatest = |x| Term::op(MAX, &[x]);
            negatives
                .filter(|_| n.op == MAX)
                .map(|i| Term::Node(unary(Unary::Neg), vec![greatest(i.args[0])]))
                .collect()
        },
        |d| {
            let x = d.tame(&[R, F(7)]);
            let y = d.op(unary(Unary::Neg), &[x])?;
            d.apply(MAX, &[y])
        },
    ),
    exact(
        "matmul-in-another-order",
        // The order is part of what the op promises; the typing rule knows those that kernels have.
        Finder::Typing("order-kind"),
        |_, n| match n.op {
            Op::MatMul { order: Order::Lanes } => vec![Term::op(Op::MatMul { order: Order::Sequential }, &n.args)],
            _ => vec![],
        },
        |d| {
            let x = d.tame(&[R, F(24)]);
            let w = d.weight(&[5, 24]);
            d.apply(Op::MatMul { order: Order::Lanes }, &[x, w])
        },
    ),
];
