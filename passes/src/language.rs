//! The e-graph's language: IR ops over e-classes. Leaves are nodes too; outputs are held outside.

use egg::{Id, Language};
use unglue_ir::op::Op;
use unglue_ir::types::Type;

/// An op with its attributes, over classes of equal values.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ENode {
    pub op: Op,
    /// Type of a leaf, which no inference gives.
    pub leaf: Option<Type>,
    pub args: Vec<Id>,
}

impl ENode {
    pub fn new(op: Op, args: Vec<Id>) -> ENode {
        ENode { op, leaf: None, args }
    }
}

impl Language for ENode {
    type Discriminant = &'static str;

    fn discriminant(&self) -> Self::Discriminant {
        self.op.name()
    }

    fn matches(&self, other: &Self) -> bool {
        self.op == other.op && self.leaf == other.leaf && self.args.len() == other.args.len()
    }

    fn children(&self) -> &[Id] {
        &self.args
    }

    fn children_mut(&mut self) -> &mut [Id] {
        &mut self.args
    }
}
