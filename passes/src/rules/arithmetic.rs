//! Rules about f32 arithmetic.

use unglue_ir::op::{Binary, Op, Unary};
use unglue_ir::types::DType;

use super::soundness::Draw;
use super::{Rule, Term};
use crate::analysis::View;
use crate::kernel::Exactness;
use crate::language::ENode;

const EXACT: Exactness = Exactness::Exact;

pub(super) const RULES: &[Rule] = &[
    Rule {
        name: "mul-one",
        class: EXACT,
        when: None,
        reason: "x * 1 is x for every x, with NaN, infinities, denormals and -0",
        find: |v, n| keep_left(v, n, Binary::Mul, 1.0),
        sample: |d| with_constant(d, Binary::Mul, 1.0),
    },
    Rule {
        name: "div-one",
        class: EXACT,
        when: None,
        reason: "x / 1 is x for every x",
        find: |v, n| keep_left(v, n, Binary::Div, 1.0),
        sample: |d| with_constant(d, Binary::Div, 1.0),
    },
    Rule {
        name: "sub-zero",
        class: EXACT,
        when: None,
        reason: "x - (+0) is x for every x: -0 - (+0) is -0 (x + (+0) is not: it turns -0 into +0)",
        find: |v, n| keep_left(v, n, Binary::Sub, 0.0),
        sample: |d| with_constant(d, Binary::Sub, 0.0),
    },
    Rule {
        name: "mul-minus-one",
        class: EXACT,
        when: None,
        reason: "x * -1 flips the sign and nothing else",
        find: mul_minus_one,
        sample: |d| with_constant(d, Binary::Mul, -1.0),
    },
    Rule {
        name: "constant-right",
        class: EXACT,
        when: Some("the left operand is a constant and the right one is not"),
        reason: "IEEE add, mul, minimum and maximum commute; only a constant moves, so the rule has one direction",
        find: constant_right,
        sample: |d| {
            let op = d.pick(&[Binary::Add, Binary::Mul, Binary::Min, Binary::Max]);
            let x = d.activation(DType::F32);
            let c = d.special();
            let c = d.constant(c);
            d.apply(Op::Binary(op), &[c, x])
        },
    },
    Rule {
        name: "div-power-of-two",
        class: EXACT,
        when: Some("c and 1/c are powers of two, and c is not 1"),
        reason: "1/c is exact for a power of two in range, so both sides round the same real number, denormals included",
        find: div_power_of_two,
        sample: |d| {
            let c = d.pick(&[0.5, 4.0, -64.0, f32::from_bits(1 << 22), 1.701_411_8e38]);
            with_constant(d, Binary::Div, c)
        },
    },
    Rule {
        name: "one-over-sqrt",
        class: EXACT,
        when: None,
        reason: "rsqrt is defined as 1 / sqrt(x) with both steps rounded",
        find: one_over_sqrt,
        sample: |d| {
            let x = d.activation(DType::F32);
            let root = d.op(Op::Unary(Unary::Sqrt), &[x])?;
            let one = d.constant(1.0);
            d.apply(Op::Binary(Binary::Div), &[one, root])
        },
    },
    Rule {
        name: "neg-neg",
        class: EXACT,
        when: None,
        reason: "the sign is flipped twice",
        find: |v, n| unary_of_unary(v, n, Unary::Neg, Unary::Neg, Term::Class),
        sample: |d| nested(d, Unary::Neg, Unary::Neg),
    },
    Rule {
        name: "abs-neg",
        class: EXACT,
        when: None,
        reason: "the magnitude does not see the sign",
        find: |v, n| unary_of_unary(v, n, Unary::Abs, Unary::Neg, |x| Term::op(Op::Unary(Unary::Abs), &[x])),
        sample: |d| nested(d, Unary::Abs, Unary::Neg),
    },
    Rule {
        name: "abs-abs",
        class: EXACT,
        when: None,
        reason: "a magnitude is its own magnitude",
        find: |v, n| unary_of_unary(v, n, Unary::Abs, Unary::Abs, |x| Term::op(Op::Unary(Unary::Abs), &[x])),
        sample: |d| nested(d, Unary::Abs, Unary::Abs),
    },
    Rule {
        name: "add-neg",
        class: EXACT,
        when: None,
        reason: "IEEE subtraction is addition of the negated operand, in the sign of zero too",
        find: |v, n| with_negated_right(v, n, Binary::Add, Binary::Sub),
        sample: |d| negated_right(d, Binary::Add),
    },
    Rule {
        name: "sub-neg",
        class: EXACT,
        when: None,
        reason: "IEEE subtraction is addition of the negated operand, in the sign of zero too",
        find: |v, n| with_negated_right(v, n, Binary::Sub, Binary::Add),
        sample: |d| negated_right(d, Binary::Sub),
    },
    Rule {
        name: "min-max-same",
        class: EXACT,
        when: Some("both operands are one class"),
        reason: "minimum and maximum of a value with itself are the value, NaN included",
        find: min_max_same,
        sample: |d| {
            let op = d.pick(&[Binary::Min, Binary::Max]);
            let x = d.activation(DType::F32);
            d.apply(Op::Binary(op), &[x, x])
        },
    },
    Rule {
        name: "nested-bound",
        class: EXACT,
        when: Some("both bounds are constants"),
        reason: "minimum (maximum) is associative and propagates NaN, so two constant bounds are the tighter one",
        find: nested_bound,
        sample: |d| {
            let op = d.pick(&[Binary::Min, Binary::Max]);
            let x = d.activation(DType::F32);
            let (a, b) = (d.special(), d.special());
            let (a, b) = (d.constant(a), d.constant(b));
            let inner = d.op(Op::Binary(op), &[x, a])?;
            d.apply(Op::Binary(op), &[inner, b])
        },
    },
    Rule {
        name: "fold-constants",
        class: EXACT,
        when: Some("both operands are constants"),
        reason: "f32 add, sub, mul and div of the compiler are the IEEE ones of the targets",
        find: fold_constants,
        sample: |d| {
            let op = d.pick(&[Binary::Add, Binary::Sub, Binary::Mul, Binary::Div]);
            let (a, b) = (d.special(), d.special());
            let (a, b) = (d.constant(a), d.constant(b));
            let folded = d.op(Op::Binary(op), &[a, b])?;
            d.as_root(folded)
        },
    },
];

fn binary(n: &ENode, op: Binary) -> Option<(egg::Id, egg::Id)> {
    match (&n.op, n.args.as_slice()) {
        (Op::Binary(b), [x, y]) if *b == op => Some((*x, *y)),
        _ => None,
    }
}

/// `op(x, c)` is x, bit for bit; the shape must be that of x.
fn keep_left(v: View, n: &ENode, op: Binary, c: f32) -> Vec<Term> {
    match binary(n, op) {
        Some((x, y)) if v.constant(y).map(f32::to_bits) == Some(c.to_bits()) => vec![Term::Class(x)],
        _ => vec![],
    }
}

fn with_constant(d: &mut Draw, op: Binary, c: f32) -> Option<super::Sample> {
    let x = d.activation(DType::F32);
    let c = d.constant(c);
    d.apply(Op::Binary(op), &[x, c])
}

fn mul_minus_one(v: View, n: &ENode) -> Vec<Term> {
    match binary(n, Binary::Mul) {
        Some((x, y)) if v.constant(y) == Some(-1.0) => vec![Term::op(Op::Unary(Unary::Neg), &[x])],
        _ => vec![],
    }
}

fn constant_right(v: View, n: &ENode) -> Vec<Term> {
    match (&n.op, n.args.as_slice()) {
        (Op::Binary(Binary::Add | Binary::Mul | Binary::Min | Binary::Max), [c, x])
            if v.constant(*c).is_some() && v.constant(*x).is_none() =>
        {
            vec![Term::op(n.op.clone(), &[*x, *c])]
        }
        _ => vec![],
    }
}

/// 1/c, if c is a power of two (or minus one) and so is 1/c.
pub(super) fn exact_reciprocal(c: f32) -> Option<f32> {
    let r = 1.0 / c;
    let power = |x: f32| {
        let (exponent, mantissa) = (x.to_bits() >> 23 & 0xff, x.to_bits() & 0x7f_ffff);
        x.is_finite() && (exponent != 0 && mantissa == 0 || exponent == 0 && mantissa.is_power_of_two())
    };
    (power(c) && power(r)).then_some(r)
}

fn div_power_of_two(v: View, n: &ENode) -> Vec<Term> {
    let Some((x, y)) = binary(n, Binary::Div) else { return vec![] };
    let Some(r) = v.constant(y).and_then(exact_reciprocal).filter(|r| *r != 1.0) else { return vec![] };
    vec![Term::Node(Op::Binary(Binary::Mul), vec![Term::Class(x), Term::Node(Op::ConstF32(r.to_bits()), vec![])])]
}

fn one_over_sqrt(v: View, n: &ENode) -> Vec<Term> {
    let Some((x, y)) = binary(n, Binary::Div) else { return vec![] };
    if v.constant(x) != Some(1.0) {
        return vec![];
    }
    let roots = v.nodes(y).filter(|i| i.op == Op::Unary(Unary::Sqrt));
    roots.map(|i| Term::op(Op::Unary(Unary::Rsqrt), &[i.args[0]])).collect()
}

fn unary_of_unary(v: View, n: &ENode, outer: Unary, inner: Unary, to: fn(egg::Id) -> Term) -> Vec<Term> {
    if n.op != Op::Unary(outer) {
        return vec![];
    }
    v.nodes(n.args[0]).filter(|i| i.op == Op::Unary(inner)).map(|i| to(i.args[0])).collect()
}

fn nested(d: &mut Draw, outer: Unary, inner: Unary) -> Option<super::Sample> {
    let x = d.activation(DType::F32);
    let y = d.op(Op::Unary(inner), &[x])?;
    d.apply(Op::Unary(outer), &[y])
}

fn with_negated_right(v: View, n: &ENode, from: Binary, to: Binary) -> Vec<Term> {
    let Some((x, y)) = binary(n, from) else { return vec![] };
    let negated = v.nodes(y).filter(|i| i.op == Op::Unary(Unary::Neg));
    negated.map(|i| Term::op(Op::Binary(to), &[x, i.args[0]])).collect()
}

fn negated_right(d: &mut Draw, op: Binary) -> Option<super::Sample> {
    let x = d.activation(DType::F32);
    let y = d.activation(DType::F32);
    let y = d.op(Op::Unary(Unary::Neg), &[y])?;
    d.apply(Op::Binary(op), &[x, y])
}

fn min_max_same(v: View, n: &ENode) -> Vec<Term> {
    match binary(n, Binary::Min).or(binary(n, Binary::Max)) {
        Some((x, y)) if v.same(x, y) => vec![Term::Class(x)],
        _ => vec![],
    }
}

fn nested_bound(v: View, n: &ENode) -> Vec<Term> {
    let op = match n.op {
        Op::Binary(op @ (Binary::Min | Binary::Max)) => op,
        _ => return vec![],
    };
    let Some(b) = v.constant(n.args[1]) else { return vec![] };
    let inner = v.nodes(n.args[0]).filter_map(|i| binary(i, op));
    let bounded = inner.filter_map(|(x, c)| v.constant(c).map(|a| (x, a)));
    let tighter = |a: f32, b: f32| {
        if op == Binary::Min { unglue_ir::interp::minimum(a, b) } else { unglue_ir::interp::maximum(a, b) }
    };
    bounded
        .map(|(x, a)| {
            let c = Term::Node(Op::ConstF32(tighter(a, b).to_bits()), vec![]);
            Term::Node(Op::Binary(op), vec![Term::Class(x), c])
        })
        .collect()
}

fn fold_constants(v: View, n: &ENode) -> Vec<Term> {
    let Op::Binary(op) = n.op else { return vec![] };
    let (Some(a), Some(b)) = (v.constant(n.args[0]), v.constant(n.args[1])) else { return vec![] };
    let folded = match op {
        Binary::Add => a + b,
        Binary::Sub => a - b,
        Binary::Mul => a * b,
        Binary::Div => a / b,
        Binary::Min | Binary::Max => return vec![],
    };
    vec![Term::Node(Op::ConstF32(folded.to_bits()), vec![])]
}
