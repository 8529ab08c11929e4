//! What is known of each class: its type, and its value if it is a constant.

use std::collections::BTreeMap;

use egg::{Analysis, DidMerge, EGraph, Id};
use unglue_ir::graph::Graph;
use unglue_ir::infer::infer;
use unglue_ir::op::Op;
use unglue_ir::types::{DType, Dim, Type};

use crate::kernel::Exactness;
use crate::language::ENode;

/// An e-graph over IR ops.
pub type Classes = EGraph<ENode, Types>;

/// The analysis; holds what inference needs, and the first contradiction.
#[derive(Clone, Debug, Default)]
pub struct Types {
    /// Bodies of `repeat`.
    pub bodies: Vec<Graph>,
    /// A node without a type, or two types or constants in one class: a rule is wrong.
    pub fault: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Known {
    /// None only after a fault.
    pub ty: Option<Type>,
    /// Bits of an f32 scalar constant.
    pub constant: Option<u32>,
}

impl Analysis<ENode> for Types {
    type Data = Known;

    fn make(egraph: &mut Classes, node: &ENode, _id: Id) -> Known {
        let constant = match node.op {
            Op::ConstF32(bits) => Some(bits),
            _ => None,
        };
        if let Some(ty) = &node.leaf {
            return Known { ty: Some(ty.clone()), constant };
        }
        let types: Option<Vec<&Type>> = node.args.iter().map(|a| egraph[*a].data.ty.as_ref()).collect();
        let ty = types.map(|types| infer(&node.op, &types, &egraph.analysis.bodies));
        match ty {
            Some(Ok(ty)) => Known { ty: Some(ty), constant },
            other => {
                let why =
                    other.and_then(Result::err).map_or_else(|| "an operand has no type".into(), |e| e.to_string());
                egraph.analysis.fault.get_or_insert(why);
                Known { ty: None, constant }
            }
        }
    }

    fn merge(&mut self, a: &mut Known, b: Known) -> DidMerge {
        if a.ty != b.ty {
            let text = |t: &Option<Type>| t.as_ref().map_or_else(|| "?".into(), Type::to_string);
            self.fault.get_or_insert(format!("{} joined with {}", text(&a.ty), text(&b.ty)));
        }
        if let (Some(x), Some(y)) = (a.constant, b.constant)
            && x != y
            && !(f32::from_bits(x).is_nan() && f32::from_bits(y).is_nan())
        {
            self.fault.get_or_insert(format!("constants {} and {}", f32::from_bits(x), f32::from_bits(y)));
        }
        let before = a.constant;
        a.constant = a.constant.or(b.constant);
        DidMerge(a.constant != before, a.constant != b.constant)
    }
}

/// By class: classes that may stand in for it, each by a rewrite that is not exact. See [`crate::saturate`].
pub type Others = BTreeMap<Id, Vec<(Id, Exactness)>>;

/// Read access for rules.
#[derive(Clone, Copy)]
pub struct View<'a> {
    pub classes: &'a Classes,
    /// Classes whose nodes count as nodes of another; none where only equal bits count.
    pub others: Option<&'a Others>,
}

impl<'a> View<'a> {
    /// One that takes values for equal only if their bits are.
    pub fn exact(classes: &'a Classes) -> View<'a> {
        View { classes, others: None }
    }

    /// Nodes of a class, and of those that may stand in for it.
    pub fn nodes(self, id: Id) -> impl Iterator<Item = &'a ENode> {
        self.reach(id).into_iter().flat_map(move |c| self.classes[c].nodes.iter())
    }

    /// A class and all that may stand in for it.
    pub fn reach(self, id: Id) -> Vec<Id> {
        let mut found = vec![self.classes.find(id)];
        let mut at = 0;
        while at < found.len() {
            let next = self.others.and_then(|o| o.get(&found[at])).into_iter().flatten();
            for (to, _) in next {
                if !found.contains(to) {
                    found.push(*to);
                }
            }
            at += 1;
        }
        found
    }

    pub fn ty(self, id: Id) -> Option<&'a Type> {
        self.classes[id].data.ty.as_ref()
    }

    /// Shape of a tensor; empty for anything else (and for scalars).
    pub fn shape(self, id: Id) -> &'a [Dim] {
        self.ty(id).and_then(Type::tensor).map(|t| t.shape.as_slice()).unwrap_or_default()
    }

    pub fn dtype(self, id: Id) -> Option<DType> {
        self.ty(id).and_then(Type::tensor).and_then(|t| t.dtype())
    }

    pub fn constant(self, id: Id) -> Option<f32> {
        self.classes[id].data.constant.map(f32::from_bits)
    }

    /// Type that `op` has on these operands.
    pub fn infer(self, op: &Op, args: &[Id]) -> Option<Type> {
        let types: Option<Vec<&Type>> = args.iter().map(|a| self.ty(*a)).collect();
        infer(op, &types?, &self.classes.analysis.bodies).ok()
    }

    /// Type of a node.
    pub fn node_ty(self, node: &ENode) -> Option<Type> {
        node.leaf.clone().or_else(|| self.infer(&node.op, &node.args))
    }

    pub fn same(self, a: Id, b: Id) -> bool {
        self.classes.find(a) == self.classes.find(b)
    }
}
