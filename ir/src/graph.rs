//! Graphs: typed ops in SSA form over an arena. A value is the node that makes it.

use crate::op::Op;
use crate::types::Type;

/// A value, by the number of its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub u32);

impl ValueId {
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Node {
    pub op: Op,
    pub args: Vec<ValueId>,
    pub ty: Type,
}

/// One body: operands precede their users.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Graph {
    /// `[a-z0-9_]+`: part of kernel names.
    pub name: String,
    pub nodes: Vec<Node>,
    /// Named results; states are results as well, under the state's role.
    pub outputs: Vec<(String, ValueId)>,
    /// Bodies of `repeat`, interned.
    pub bodies: Vec<Graph>,
}

impl Graph {
    pub fn node(&self, id: ValueId) -> &Node {
        &self.nodes[id.index()]
    }

    pub fn ty(&self, id: ValueId) -> &Type {
        &self.node(id).ty
    }

    pub fn ids(&self) -> impl Iterator<Item = ValueId> + use<> {
        (0..self.nodes.len() as u32).map(ValueId)
    }

    /// Inputs in the order of their nodes.
    pub fn inputs(&self) -> impl Iterator<Item = (&str, ValueId)> {
        self.ids().filter_map(|id| match &self.node(id).op {
            Op::Input { name, .. } => Some((name.as_str(), id)),
            _ => None,
        })
    }

    /// Parameters in the order of their nodes.
    pub fn weights(&self) -> impl Iterator<Item = (&str, ValueId)> {
        self.ids().filter_map(|id| match &self.node(id).op {
            Op::Weight { name } => Some((name.as_str(), id)),
            _ => None,
        })
    }

    /// Old state versions in the order of their nodes.
    pub fn states(&self) -> impl Iterator<Item = (&str, ValueId)> {
        self.ids().filter_map(|id| match &self.node(id).op {
            Op::State { name } => Some((name.as_str(), id)),
            _ => None,
        })
    }

    /// For each node, the nodes that use it, ascending and without repetition.
    pub fn users(&self) -> Vec<Vec<ValueId>> {
        let mut users = vec![Vec::new(); self.nodes.len()];
        for id in self.ids() {
            for arg in &self.node(id).args {
                let list: &mut Vec<ValueId> = &mut users[arg.index()];
                if list.last() != Some(&id) {
                    list.push(id);
                }
            }
        }
        users
    }
}
