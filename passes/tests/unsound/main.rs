//! Wrong rules, each caught under its name by the check that the real rules pass, and by the finder that must catch it.
#![allow(clippy::unwrap_used, clippy::panic)]

mod arithmetic;
mod loose;
mod views;

use unglue_ir::graph::ValueId;
use unglue_ir::op::{Binary, Op, Unary};
use unglue_ir::types::{DType, Dim};
use unglue_passes::Exactness;
use unglue_passes::analysis::View;
use unglue_passes::language::ENode;
use unglue_passes::rules::soundness::{Draw, Sample, check};
use unglue_passes::rules::{Rule, Term, table};

type Find = fn(View, &ENode) -> Vec<Term>;
type Make = fn(&mut Draw) -> Option<Sample>;

/// What catches a wrong rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Finder {
    /// The interpreter: other bits.
    Bits,
    /// The two sides have different types.
    Type,
    /// The right side breaks a typing rule of this name.
    Typing(&'static str),
    /// A rule of class `rounding` gives values farther from those without roundings than the left side does.
    Farther,
    /// The bound of the rule's class.
    Bound,
}

impl Finder {
    fn says(self) -> String {
        match self {
            Finder::Bits => ": left ".into(),
            Finder::Type => "type ".into(),
            Finder::Typing(rule) => rule.into(),
            Finder::Farther => "is farther from".into(),
            Finder::Bound => " outside ".into(),
        }
    }
}

/// One mistake.
struct Wrong {
    name: &'static str,
    class: Exactness,
    find: Find,
    sample: Make,
    finder: Finder,
}

/// A wrong rule that calls itself exact.
const fn exact(name: &'static str, finder: Finder, find: Find, sample: Make) -> Wrong {
    Wrong { name, class: Exactness::Exact, find, sample, finder }
}

fn bin(op: Binary) -> Op {
    Op::Binary(op)
}

fn unary(op: Unary) -> Op {
    Op::Unary(op)
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

/// An op on the results of another: `outer(inner(x), ...)`, with inputs of their own for each operand.
fn nested(d: &mut Draw, outer: Op, inner: &[Op]) -> Option<Sample> {
    let mut args: Vec<ValueId> = Vec::new();
    for op in inner {
        let operands = if matches!(op, Op::Binary(_)) { 2 } else { 1 };
        let x: Vec<ValueId> = (0..operands).map(|_| d.activation(DType::F32)).collect();
        args.push(d.op(op.clone(), &x)?);
    }
    if matches!(outer, Op::Binary(_)) && args.len() == 1 {
        args.push(d.activation(DType::F32));
    }
    d.apply(outer, &args)
}

/// Zeros in the shape of a class.
fn zeros(v: View, like: egg::Id) -> Term {
    let zero = Term::Node(Op::ConstF32(0), vec![]);
    let one = Term::Node(Op::Reshape(vec![Dim::Fixed(1), Dim::Fixed(1)]), vec![zero]);
    Term::Node(Op::Broadcast(v.shape(like).to_vec()), vec![one])
}

fn all() -> Vec<&'static Wrong> {
    [arithmetic::WRONG, views::WRONG, loose::WRONG].into_iter().flatten().collect()
}

#[test]
fn each_wrong_rule_is_caught_by_its_finder() {
    let mut missed = Vec::new();
    for w in all() {
        let rule = Rule {
            name: w.name,
            class: w.class,
            when: None,
            reason: "wrong on purpose",
            find: w.find,
            sample: w.sample,
        };
        match check(&rule, 60) {
            Ok(fired) => missed.push(format!("{}: not caught; it fired {fired} times", w.name)),
            Err(e) if e.rule != w.name || !e.found.contains(&w.finder.says()) => {
                missed.push(format!("{}: {:?} should say so, not: {}", w.name, w.finder, e.found));
            }
            Err(e) => println!("{:<32} {}", w.name, e.found),
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn there_are_enough_and_none_is_a_real_rule() {
    let wrong = all();
    assert!(wrong.len() >= 20, "{}", wrong.len());
    for (i, w) in wrong.iter().enumerate() {
        assert!(wrong[..i].iter().all(|o| o.name != w.name) && table().iter().all(|r| r.name != w.name), "{}", w.name);
    }
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
