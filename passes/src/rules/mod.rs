//! Rewrite rules as data: one table. A rule finds equal forms of a node; each says why it is right, how exact it is, and
//! how to make an instance of its left side for its soundness test ([`soundness`]).
//!
//! Exact means: equal bits for every input, with NaN, infinities, -0 and denormals, NaN being equal to NaN. There is no
//! general commutativity or associativity: each rule has a direction.

mod arithmetic;
mod casts;
mod loose;
mod shapes;
pub mod soundness;

use egg::Id;
use unglue_ir::op::Op;

use crate::analysis::View;
use crate::kernel::Exactness;
use crate::language::ENode;
use soundness::{Draw, Sample};

/// A right side: new ops over classes that exist.
#[derive(Clone, Debug, PartialEq)]
pub enum Term {
    Class(Id),
    Node(Op, Vec<Term>),
}

impl Term {
    /// An op on classes.
    pub fn op(op: Op, args: &[Id]) -> Term {
        Term::Node(op, args.iter().map(|a| Term::Class(*a)).collect())
    }
}

/// A rewrite rule.
#[derive(Clone, Copy, Debug)]
pub struct Rule {
    pub name: &'static str,
    pub class: Exactness,
    /// What must hold beside the form of the left side, if anything.
    pub when: Option<&'static str>,
    /// Why it is right.
    pub reason: &'static str,
    /// Forms equal to `node`; empty where the rule does not apply.
    pub find: fn(View, &ENode) -> Vec<Term>,
    /// A random graph whose root is an instance of the left side.
    pub sample: fn(&mut Draw) -> Option<Sample>,
}

/// Every rule, in the order in which they are tried.
pub fn table() -> Vec<Rule> {
    [casts::RULES, arithmetic::RULES, shapes::RULES, loose::RULES].concat()
}
