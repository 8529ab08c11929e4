//! States are linear: a chain of versions from the old one to the one that is returned.

use std::collections::HashSet;

use super::{Check, Checked, fault};
use crate::graph::ValueId;
use crate::op::Op;
use crate::types::Type;

impl Check<'_> {
    /// Each version has at most one writer, and the last version of a written state is returned under its role.
    ///
    /// Readers of an old version are fine: in SSA they see the value from before the step, and the planner orders them
    /// before the write in place.
    pub(super) fn state_flow(&self) -> Checked {
        // For a state, or a tuple that holds one: its leaf.
        let mut root: Vec<Option<ValueId>> = vec![None; self.g.nodes.len()];
        // For a version: the value that replaces it.
        let mut next: Vec<Option<ValueId>> = vec![None; self.g.nodes.len()];
        for id in self.g.ids() {
            let node = self.g.node(id);
            let from = match &node.op {
                Op::State { .. } => {
                    root[id.index()] = Some(id);
                    continue;
                }
                // The state is the last operand of every op that writes one.
                op if writes(op) => node.args.last(),
                Op::Project(_) if matches!(node.ty, Type::State(_)) => node.args.first(),
                _ => continue,
            };
            let Some(&from) = from else { continue };
            if let Some(other) = next[from.index()].replace(id) {
                let found = format!("{from} is written by {other} and {id}");
                return Err(fault("state-writer", self.place(id), found, "write the newer version"));
            }
            root[id.index()] = root[from.index()];
        }
        self.returned_states(&root, &next)
    }

    fn returned_states(&self, root: &[Option<ValueId>], next: &[Option<ValueId>]) -> Checked {
        let role = |leaf: ValueId| match &self.g.node(leaf).op {
            Op::State { name } => name.as_str(),
            _ => "",
        };
        let returned: HashSet<(&str, ValueId)> = self.g.outputs.iter().map(|(n, id)| (n.as_str(), *id)).collect();
        for id in self.g.ids() {
            let Some(leaf) = root[id.index()] else { continue };
            let last = next[id.index()].is_none() && id != leaf;
            if last && !returned.contains(&(role(leaf), id)) {
                let found = format!("the last version of state {:?} is not returned under this name", role(leaf));
                return Err(fault("state-output", self.place(id), found, "return it, projected from its tuple"));
            }
        }
        for (name, id) in &self.g.outputs {
            let last = root[id.index()].filter(|leaf| next[id.index()].is_none() && id != leaf);
            if matches!(self.g.ty(*id), Type::State(_)) && last.is_none_or(|leaf| role(leaf) != name) {
                let found = format!("output {name:?} is not the last version of the state of this name");
                return Err(fault(
                    "state-output",
                    self.place(*id),
                    found,
                    "return written states, each under its role",
                ));
            }
        }
        Ok(())
    }
}

fn writes(op: &Op) -> bool {
    matches!(op, Op::ConvUpdate | Op::DeltaRule { .. } | Op::TokenWrite | Op::TailUpdate | Op::PoolWrite)
}
