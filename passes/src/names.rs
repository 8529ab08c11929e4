//! Kernel names: part of the interface, so they follow from the body and the roles of what a kernel does.

use std::collections::{BTreeMap, BTreeSet};

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;

/// Longest name, as the bundle format has it.
pub const MAX: usize = 63;
/// Left free for `_x12` and `_r16`.
const SUFFIX: usize = 8;

/// Gives unique names within one body.
#[derive(Debug)]
pub struct Names {
    body: String,
    used: BTreeMap<String, u32>,
}

impl Names {
    pub fn new(body: &str) -> Names {
        Names { body: clean(body), used: BTreeMap::new() }
    }

    /// `body_role_role`, cut to fit; a number follows where two kernels would have one name.
    pub fn name(&mut self, kernel: &Graph, ops: &BTreeSet<ValueId>) -> String {
        let base = cut(&format!("{}_{}", self.body, roles(kernel, ops)), MAX - SUFFIX);
        let n = self.used.entry(base.clone()).or_default();
        *n += 1;
        if *n == 1 { base } else { format!("{base}_x{n}") }
    }
}

/// Lower case letters, digits and single underscores.
pub fn clean(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars().map(|c| c.to_ascii_lowercase()) {
        match c {
            'a'..='z' | '0'..='9' => out.push(c),
            _ if out.ends_with('_') || out.is_empty() => {}
            _ => out.push('_'),
        }
    }
    out.trim_end_matches('_').to_owned()
}

/// The name of a kernel's graph: the IR allows fewer characters than a kernel's name has.
pub fn graph_name(kernel: &str) -> String {
    cut(kernel, unglue_ir::verify::MAX_NAME)
}

/// The first `max` bytes, without a trailing underscore. Names are ASCII.
pub fn cut(s: &str, max: usize) -> String {
    s.get(..max).unwrap_or(s).trim_end_matches('_').to_owned()
}

/// Roles of the heavy ops; else names of results; else the last op and its number.
fn roles(kernel: &Graph, ops: &BTreeSet<ValueId>) -> String {
    let mut parts: Vec<String> = Vec::new();
    let has = |op: &Op| kernel.nodes.iter().any(|n| n.op == *op);
    for node in &kernel.nodes {
        match &node.op {
            Op::MatMul { .. } | Op::BatchMatMul { .. } => add(&mut parts, weight_role(kernel, node.args[1])),
            Op::GroupedMatMul { .. } => add(&mut parts, weight_role(kernel, node.args[3])),
            Op::EmbedRows => add(&mut parts, weight_role(kernel, node.args[0])),
            Op::AttendSplits { .. } if has(&Op::AttendCombine) => add(&mut parts, "attend".to_owned()),
            Op::AttendCombine if parts.iter().any(|p| p == "attend") => {}
            Op::AttendSplits { .. }
            | Op::AttendCombine
            | Op::DeltaRule { .. }
            | Op::IndexScores { .. }
            | Op::IndexSelect { .. }
            | Op::TopK { .. } => {
                add(&mut parts, node.op.name().to_owned());
            }
            _ => {}
        }
    }
    if parts.is_empty() {
        for (name, _) in kernel.outputs.iter().filter(|(n, _)| !is_number(n)) {
            add(&mut parts, clean(name));
        }
    }
    if parts.is_empty() {
        let last =
            kernel.nodes.iter().rev().find(|n| !crate::schedule::is_leaf(&n.op) && !crate::schedule::is_view(&n.op));
        let op = last.map_or("view", |n| n.op.name());
        add(&mut parts, format!("{op}_v{}", ops.last().map_or(0, |v| v.0)));
    }
    parts.join("_")
}

/// True for the name that a kernel has for a value of its body without a role: v and its number.
#[must_use]
pub fn is_number(name: &str) -> bool {
    name.strip_prefix('v').is_some_and(|n| !n.is_empty() && n.chars().all(|c| c.is_ascii_digit()))
}

fn add(parts: &mut Vec<String>, part: String) {
    if !part.is_empty() && !parts.contains(&part) {
        parts.push(part);
    }
}

/// The role of a weight under casts and views; the op's name for a computed operand.
fn weight_role(kernel: &Graph, mut id: ValueId) -> String {
    loop {
        let node = kernel.node(id);
        match (&node.op, node.args.first()) {
            (Op::Weight { name }, _) => return clean(name.strip_suffix(".weight").unwrap_or(name)),
            (_, Some(a)) => id = *a,
            (op, None) => return op.name().to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cleans_names() {
        assert_eq!(clean("Layer3.q_proj..weight"), "layer3_q_proj_weight");
        assert_eq!(cut("abc_def", 4), "abc");
    }
}
