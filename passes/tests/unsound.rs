//! Wrong rules, each caught by name by the check that the real rules pass.
#![allow(clippy::unwrap_used, clippy::panic)]

use unglue_ir::op::{Binary, Op, Unary};
use unglue_ir::types::{DType, Dim};
use unglue_passes::Exactness;
use unglue_passes::analysis::View;
use unglue_passes::language::ENode;
use unglue_passes::rules::soundness::{Draw, Sample, check};
use unglue_passes::rules::{Rule, Term};

type Find = fn(View, &ENode) -> Vec<Term>;
type Make = fn(&mut Draw) -> Option<Sample>;

fn bin(op: Binary) -> Op {
    Op::Binary(op)
}

fn with_constant(d: &mut Draw, op: Binary, c: f32) -> Option<Sample> {
    let x = d.activation(DType::F32);
    let c = d.constant(c);
    d.apply(bin(op), &[x, c])
}

fn two(d: &mut Draw, op: Binary) -> Option<Sample> {
    let (x, y) = (d.activation(DType::F32), d.activation(DType::F32));
    d.apply(bin(op), &[x, y])
}

/// (op(inner(x, y), z)) of one binary op.
fn left_nested(d: &mut Draw, outer: Binary, inner: Binary) -> Option<Sample> {
    let (x, y, z) = (d.activation(DType::F32), d.activation(DType::F32), d.activation(DType::F32));
    let xy = d.op(bin(inner), &[x, y])?;
    d.apply(bin(outer), &[xy, z])
}

const WRONG: &[(&str, Find, Make)] = &[
    (
        "add-zero",
        |v, n| match n.op {
            Op::Binary(Binary::Add) if v.constant(n.args[1]) == Some(0.0) => vec![Term::Class(n.args[0])],
            _ => vec![],
        },
        |d| with_constant(d, Binary::Add, 0.0),
    ),
    (
        "sub-self-is-zero",
        |v, n| match n.op {
            Op::Binary(Binary::Sub) if v.same(n.args[0], n.args[1]) => {
                let zero = Term::Node(Op::ConstF32(0), vec![]);
                let one = Term::Node(Op::Reshape(vec![Dim::Fixed(1), Dim::Fixed(1)]), vec![zero]);
                vec![Term::Node(Op::Broadcast(v.shape(n.args[0]).to_vec()), vec![one])]
            }
            _ => vec![],
        },
        |d| {
            let x = d.activation(DType::F32);
            d.apply(bin(Binary::Sub), &[x, x])
        },
    ),
    (
        "max-drops-nan",
        // max(max(x, c), c) with a NaN bound left out.
        |v, n| match n.op {
            Op::Binary(Binary::Max) if v.constant(n.args[1]).is_some_and(f32::is_nan) => vec![Term::Class(n.args[0])],
            _ => vec![],
        },
        |d| with_constant(d, Binary::Max, f32::NAN),
    ),
    (
        "rounding-marked-exact",
        |v, n| match n.op {
            Op::Cast(DType::F32) => v
                .nodes(n.args[0])
                .filter(|i| matches!(i.op, Op::Cast(_)) && v.dtype(i.args[0]) == Some(DType::F32))
                .map(|i| Term::Class(i.args[0]))
                .collect(),
            _ => vec![],
        },
        |d| {
            let x = d.activation(DType::F32);
            let y = d.op(Op::Cast(DType::Bf16), &[x])?;
            d.apply(Op::Cast(DType::F32), &[y])
        },
    ),
    (
        "add-associates",
        |v, n| match n.op {
            Op::Binary(Binary::Add) => v
                .nodes(n.args[0])
                .filter(|i| i.op == bin(Binary::Add))
                .map(|i| {
                    let right = Term::op(bin(Binary::Add), &[i.args[1], n.args[1]]);
                    Term::Node(bin(Binary::Add), vec![Term::Class(i.args[0]), right])
                })
                .collect(),
            _ => vec![],
        },
        |d| left_nested(d, Binary::Add, Binary::Add),
    ),
    (
        "mul-distributes",
        |v, n| match n.op {
            Op::Binary(Binary::Mul) => v
                .nodes(n.args[0])
                .filter(|i| i.op == bin(Binary::Add))
                .map(|i| {
                    let part = |k: usize| Term::op(bin(Binary::Mul), &[i.args[k], n.args[1]]);
                    Term::Node(bin(Binary::Add), vec![part(0), part(1)])
                })
                .collect(),
            _ => vec![],
        },
        |d| left_nested(d, Binary::Mul, Binary::Add),
    ),
    (
        "div-by-three-as-mul",
        |v, n| match (n.op.clone(), v.constant(n.args.get(1).copied().unwrap_or(n.args[0]))) {
            (Op::Binary(Binary::Div), Some(c)) => {
                let r = Term::Node(Op::ConstF32((1.0 / c).to_bits()), vec![]);
                vec![Term::Node(bin(Binary::Mul), vec![Term::Class(n.args[0]), r])]
            }
            _ => vec![],
        },
        |d| with_constant(d, Binary::Div, 3.0),
    ),
    (
        "div-by-denormal-as-mul",
        // 1 / 2^-149 overflows: the reciprocal of a power of two is not always exact.
        |v, n| match (n.op.clone(), v.constant(n.args.get(1).copied().unwrap_or(n.args[0]))) {
            (Op::Binary(Binary::Div), Some(c)) => {
                let r = Term::Node(Op::ConstF32((1.0 / c).to_bits()), vec![]);
                vec![Term::Node(bin(Binary::Mul), vec![Term::Class(n.args[0]), r])]
            }
            _ => vec![],
        },
        |d| with_constant(d, Binary::Div, 1e-45),
    ),
    (
        "sqrt-of-square",
        |v, n| match n.op {
            Op::Unary(Unary::Sqrt) => v
                .nodes(n.args[0])
                .filter(|i| i.op == bin(Binary::Mul) && v.same(i.args[0], i.args[1]))
                .map(|i| Term::Class(i.args[0]))
                .collect(),
            _ => vec![],
        },
        |d| {
            let x = d.activation(DType::F32);
            let y = d.op(bin(Binary::Mul), &[x, x])?;
            d.apply(Op::Unary(Unary::Sqrt), &[y])
        },
    ),
    (
        "clamp-bounds-swapped",
        |v, n| match n.op {
            Op::Binary(Binary::Min) => v
                .nodes(n.args[0])
                .filter(|i| i.op == bin(Binary::Max))
                .map(|i| {
                    let inner = Term::op(bin(Binary::Max), &[i.args[0], n.args[1]]);
                    Term::Node(bin(Binary::Min), vec![inner, Term::Class(i.args[1])])
                })
                .collect(),
            _ => vec![],
        },
        |d| {
            let x = d.activation(DType::F32);
            let (lo, hi) = (d.constant(-1.0), d.constant(1.0));
            let y = d.op(bin(Binary::Max), &[x, lo])?;
            d.apply(bin(Binary::Min), &[y, hi])
        },
    ),
    (
        "slice-of-concat-off-by-one",
        |v, n| match n.op {
            Op::Slice { axis, start, len } => v
                .nodes(n.args[0])
                .filter(|i| i.op == Op::Concat { axis } && start >= 4)
                .map(|i| Term::op(Op::Slice { axis, start: start - 3, len }, &[i.args[1]]))
                .collect(),
            _ => vec![],
        },
        |d| {
            let a = d.tensor(DType::F32, &[Dim::Rows, Dim::Fixed(4)]);
            let b = d.tensor(DType::F32, &[Dim::Rows, Dim::Fixed(6)]);
            let c = d.op(Op::Concat { axis: 1 }, &[a, b])?;
            d.apply(Op::Slice { axis: 1, start: 5, len: 3 }, &[c])
        },
    ),
    (
        "sub-commutes",
        |_, n| match n.op {
            Op::Binary(Binary::Sub) => vec![Term::op(bin(Binary::Sub), &[n.args[1], n.args[0]])],
            _ => vec![],
        },
        |d| two(d, Binary::Sub),
    ),
];

#[test]
fn each_wrong_rule_is_caught_by_name() {
    for &(name, find, sample) in WRONG {
        let rule = Rule { name, class: Exactness::Exact, when: None, reason: "wrong on purpose", find, sample };
        match check(&rule, 60) {
            Ok(fired) => panic!("{name} was not caught; it fired {fired} times"),
            Err(e) => assert_eq!(e.rule, name),
        }
    }
}

#[test]
fn a_loose_rule_beyond_its_bound_is_caught() {
    // Two roundings dropped where only one cast stands: the value differs by far more than half a bf16 step.
    let rule = Rule {
        name: "drops-a-scale",
        class: Exactness::Rounding,
        when: None,
        reason: "wrong on purpose",
        find: |_, n| match n.op {
            Op::Binary(Binary::Mul) => vec![Term::Class(n.args[0])],
            _ => vec![],
        },
        sample: |d| {
            let x = d.moderate();
            let c = d.constant(1.01);
            d.apply(bin(Binary::Mul), &[x, c])
        },
    };
    assert_eq!(check(&rule, 60).unwrap_err().rule, "drops-a-scale");
}

/// The check cannot be passed by a rule that brings no instance of its left side: no graph is an error, and a graph that
/// the rule does not match counts as never fired, which `tests/rules.rs` refuses.
#[test]
fn a_rule_without_an_instance_is_caught() {
    let find: Find = |_, _| vec![];
    let rule = |sample: Make| Rule {
        name: "untested",
        class: Exactness::Exact,
        when: None,
        reason: "wrong on purpose",
        find,
        sample,
    };
    assert_eq!(check(&rule(|_| None), 60).unwrap_err().rule, "untested");
    assert_eq!(check(&rule(|d| two(d, Binary::Add)), 60), Ok(0));
}
