//! Rules that change roundings or summands: off unless `--numerics` asks for them.

use unglue_ir::op::{Binary, Op, Unary};
use unglue_ir::types::{DType, Dim};

use super::{Rule, Term};
use crate::analysis::View;
use crate::kernel::Exactness;
use crate::language::ENode;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "skip-rounding",
        class: Exactness::Rounding,
        when: Some("the value was f32 before"),
        reason: "a value that is rounded to bf16 or f16 and widened again stays f32: one rounding less",
        find: skip_rounding,
        sample: |d| {
            let to = d.pick(&[DType::Bf16, DType::F16]);
            let x = d.moderate();
            let narrow = d.op(Op::Cast(to), &[x])?;
            d.apply(Op::Cast(DType::F32), &[narrow])
        },
    },
    Rule {
        name: "log-of-one-plus",
        class: Exactness::Rounding,
        when: Some("the right summand is the constant 1"),
        reason: "log1p(x) is log(1 + x) without the rounding of the sum",
        find: log_of_one_plus,
        sample: |d| {
            let x = d.positive();
            let one = d.constant(1.0);
            let sum = d.op(Op::Binary(Binary::Add), &[x, one])?;
            d.apply(Op::Unary(Unary::Log), &[sum])
        },
    },
    Rule {
        name: "scale-after-matmul",
        class: Exactness::Reassociating,
        when: Some("the factor is one number per row"),
        reason: "a factor that is one number per row can be applied to the sums instead of to each summand",
        find: scale_after_matmul,
        sample: |d| {
            let x = d.tame(&[Dim::Rows, Dim::Fixed(24)]);
            let s = d.tame(&[Dim::Rows, Dim::Fixed(1)]);
            let w = d.weight(&[5, 24]);
            let scaled = d.op(Op::Binary(Binary::Mul), &[x, s])?;
            d.apply(Op::MatMul { order: unglue_ir::order::Order::Lanes }, &[scaled, w])
        },
    },
];

fn skip_rounding(v: View, n: &ENode) -> Vec<Term> {
    if n.op != Op::Cast(DType::F32) {
        return vec![];
    }
    let casts = v.nodes(n.args[0]).filter(|i| matches!(i.op, Op::Cast(_)));
    casts.map(|i| i.args[0]).filter(|x| v.dtype(*x) == Some(DType::F32)).map(Term::Class).collect()
}

fn log_of_one_plus(v: View, n: &ENode) -> Vec<Term> {
    if n.op != Op::Unary(Unary::Log) {
        return vec![];
    }
    let sums = v.nodes(n.args[0]).filter(|i| i.op == Op::Binary(Binary::Add) && v.constant(i.args[1]) == Some(1.0));
    sums.map(|i| Term::op(Op::Unary(Unary::Log1p), &[i.args[0]])).collect()
}

fn scale_after_matmul(v: View, n: &ENode) -> Vec<Term> {
    if !matches!(n.op, Op::MatMul { .. }) {
        return vec![];
    }
    let mut found = Vec::new();
    for product in v.nodes(n.args[0]).filter(|i| i.op == Op::Binary(Binary::Mul)) {
        for (x, s) in [(product.args[0], product.args[1]), (product.args[1], product.args[0])] {
            let per_row = v.shape(s).len() == v.shape(x).len() && v.shape(s).last().is_some_and(|d| d.is_one());
            if per_row && !v.shape(x).last().is_some_and(|d| d.is_one()) && v.shape(x) == v.shape(n.args[0]) {
                let sums = Term::op(n.op.clone(), &[x, n.args[1]]);
                found.push(Term::Node(Op::Binary(Binary::Mul), vec![sums, Term::Class(s)]));
            }
        }
    }
    found
}
