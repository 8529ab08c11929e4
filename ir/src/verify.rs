//! The verifier: every structural rule of graphs and modules. Typing rules are those of [`crate::infer`].
//!
//! In: a graph or module from anywhere. Out: nothing, or the first broken rule with its place, what was found, and a
//! way out. Later stages rely on these rules and do not check them again.

mod module;
mod state;

use std::collections::{HashMap, HashSet};

use crate::error::IrError;
use crate::graph::{Graph, ValueId};
use crate::infer::{MAX_ELEMENTS, MAX_RANK, fixed_elements, infer};
use crate::op::{Domain, Op};
use crate::types::{DType, Dim, Format, StateKind, StateType, TensorType, Type};

pub use module::module;

/// Longest name of a graph or module: kernel names have at most 63 characters and add a role and a number.
pub const MAX_NAME: usize = 40;
/// Longest name of an input, weight, state or output, in bytes.
pub const MAX_ROLE: usize = 255;
/// Most nodes in one graph: ids stay far from u32 overflow.
pub const MAX_NODES: usize = 1 << 24;
/// Most nodes of a `repeat` body: inference looks through the body at each use.
pub const MAX_REPEAT_NODES: usize = 1 << 10;
/// Deepest nesting of `repeat` bodies.
pub const MAX_NESTING: usize = 4;
/// Most nodes that one graph runs with all rounds of its repeats counted: a short text must not ask for an endless run.
pub const MAX_WORK: u64 = 1 << 28;

type Checked = Result<(), IrError>;

/// Checks every rule of a graph.
///
/// # Errors
/// The first broken rule: [`IrError::Structure`], or [`IrError::Type`] from inference.
pub fn graph(g: &Graph) -> Checked {
    check_graph(g, "", 0)
}

fn check_graph(g: &Graph, around: &str, depth: usize) -> Checked {
    let c = Check { g, path: format!("{around}graph `{}`", g.name), depth };
    c.name()?;
    c.size()?;
    c.bodies()?;
    c.nodes()?;
    c.leaves()?;
    c.outputs()?;
    c.tuples()?;
    c.symbols()?;
    c.state_flow()?;
    c.body_ops()?;
    c.dead()?;
    c.work()
}

fn fault(rule: &'static str, place: impl Into<String>, found: impl Into<String>, hint: &'static str) -> IrError {
    IrError::Structure { rule, place: place.into(), found: found.into(), hint }
}

/// Graph and module names become parts of kernel names and file names.
fn check_name(place: &str, name: &str) -> Checked {
    let ok = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || c == b'_';
    if name.is_empty() || name.len() > MAX_NAME || !name.bytes().all(ok) {
        return Err(fault("name", place, format!("name {name:?}"), "use 1 to 40 of a-z, 0-9 and _"));
    }
    Ok(())
}

/// Names of one kind: none empty, none overlong, none twice.
fn check_roles<'a>(place: &str, kind: &str, names: impl Iterator<Item = &'a str>) -> Checked {
    let mut seen = HashSet::new();
    for name in names {
        if name.is_empty() || name.len() > MAX_ROLE {
            let found = format!("{kind} with a name of {} bytes", name.len());
            return Err(fault("role-name", place, found, "name it in 1 to 255 bytes"));
        }
        if !seen.insert(name) {
            return Err(fault("duplicate-name", place, format!("{kind} {name:?} twice"), "rename one"));
        }
    }
    Ok(())
}

/// Extents and format of an input or weight, which no inference has seen.
fn check_leaf_tensor(place: &str, t: &TensorType) -> Checked {
    if t.rank() > MAX_RANK {
        return Err(fault("leaf-rank", place, t.to_string(), "a tensor has at most 8 axes"));
    }
    if t.shape.contains(&Dim::Fixed(0)) {
        return Err(fault("leaf-empty", place, t.to_string(), "extents are at least 1"));
    }
    if fixed_elements(&t.shape).is_none() {
        return Err(fault("leaf-size", place, t.to_string(), "a tensor has at most 2^48 elements a row"));
    }
    Ok(())
}

fn check_input_type(place: &str, t: &TensorType, domain: Domain) -> Checked {
    check_leaf_tensor(place, t)?;
    match t.dtype() {
        Some(d) => check_domain(place, domain, d, t),
        None => Err(fault("input-format", place, t.to_string(), "only weights are packed; give a plain dtype")),
    }
}

fn check_weight_type(place: &str, t: &TensorType) -> Checked {
    check_leaf_tensor(place, t)?;
    if t.shape.iter().any(|d| d.fixed().is_none()) {
        return Err(fault("weight-symbol", place, t.to_string(), "extents of a weight are numbers"));
    }
    let ok = match t.format {
        Format::Plain(_) => true,
        // Eight values share a word along the last axis.
        Format::Int4 { group, .. } => {
            group > 0 && t.rank() >= 2 && t.shape.last().and_then(|d| d.fixed()).is_some_and(|k| k % 8 == 0)
        }
        Format::F8Block { rows, cols } => rows > 0 && cols > 0 && t.rank() >= 2,
    };
    if !ok {
        let hint = "groups and blocks are at least 1, int4 has 8 n inputs, and a packed weight has two axes or more";
        return Err(fault("weight-format", place, t.to_string(), hint));
    }
    Ok(())
}

fn check_state_type(place: &str, s: &StateType) -> Checked {
    let extents = match &s.kind {
        StateKind::Slot { shape } => shape.clone(),
        StateKind::Token { width } => vec![*width],
        StateKind::Pool { width, pool } => vec![*pool, *width],
        StateKind::Tail { pool, width } => vec![2, *pool, *width],
    };
    let size = extents.iter().try_fold(1u64, |a, n| a.checked_mul(*n));
    let ok = (1..=MAX_RANK).contains(&extents.len()) && size.is_some_and(|n| (1..=MAX_ELEMENTS).contains(&n));
    if ok {
        return Ok(());
    }
    Err(fault("state-extent", place, s.to_string(), "1 to 8 extents, each at least 1, at most 2^48 elements"))
}

fn check_domain(place: &str, domain: Domain, dtype: DType, t: &TensorType) -> Checked {
    let int = dtype == DType::I32;
    // Ids and -1 are i32.
    let counted = |n: u64| int && (1..=i32::MAX as u64).contains(&n);
    let ok = match domain {
        Domain::Normal | Domain::Unit => dtype.is_float(),
        Domain::Below(n) => counted(n),
        Domain::Distinct(n) => counted(n) && t.shape.last().and_then(|d| d.fixed()).is_some_and(|k| k <= n),
        Domain::Ascending(n) => counted(n) && t.rank() >= 1,
        Domain::Selected => int && t.rank() == 2 && t.shape[0] == Dim::Rows,
        Domain::Slots(n) => counted(n) && t.rank() == 1,
        Domain::RowIndex => int && t.rank() == 1,
    };
    if ok {
        return Ok(());
    }
    let hint = "normal and unit are for floats, the others for i32; counts are 1 to 2^31 - 1 and cover distinct rows";
    Err(fault("domain", place, format!("{domain} on {t}"), hint))
}

struct Check<'a> {
    g: &'a Graph,
    path: String,
    /// Number of graphs around this one: 0 for a body of a module.
    depth: usize,
}

impl Check<'_> {
    fn place(&self, id: ValueId) -> String {
        format!("{}, {id} = {}", self.path, self.g.node(id).op.name())
    }

    fn name(&self) -> Checked {
        check_name(&self.path, &self.g.name)
    }

    fn size(&self) -> Checked {
        let most = if self.depth > 0 { MAX_REPEAT_NODES } else { MAX_NODES };
        if self.g.nodes.len() > most {
            let found = format!("{} nodes, at most {most}", self.g.nodes.len());
            return Err(fault("graph-size", &self.path, found, "split the graph"));
        }
        Ok(())
    }

    fn bodies(&self) -> Checked {
        if self.depth == MAX_NESTING && !self.g.bodies.is_empty() {
            let found = format!("bodies {} deep", self.depth + 1);
            return Err(fault("nesting", &self.path, found, "nest repeats at most 4 deep"));
        }
        check_roles(&self.path, "body", self.g.bodies.iter().map(|b| b.name.as_str()))?;
        let around = format!("{}, ", self.path);
        self.g.bodies.iter().try_for_each(|b| check_graph(b, &around, self.depth + 1))
    }

    /// Operands exist and precede; types are the inferred ones.
    fn nodes(&self) -> Checked {
        for id in self.g.ids() {
            let node = self.g.node(id);
            if let Some(bad) = node.args.iter().find(|a| **a >= id) {
                return Err(fault("operand-order", self.place(id), format!("operand {bad}"), "operands precede users"));
            }
            let kind = match (&node.op, &node.ty) {
                (Op::Input { .. } | Op::Weight { .. }, Type::Tensor(_)) | (Op::State { .. }, Type::State(_)) => {
                    if node.args.is_empty() { Ok(()) } else { Err("operands") }
                }
                (Op::Input { .. } | Op::Weight { .. } | Op::State { .. }, _) => Err("type"),
                _ => {
                    self.inferred(id)?;
                    Ok(())
                }
            };
            if let Err(what) = kind {
                let found = format!("a leaf with {what}: {} operands, {}", node.args.len(), node.ty);
                return Err(fault("leaf", self.place(id), found, "inputs and weights are tensors, states are states"));
            }
        }
        Ok(())
    }

    fn inferred(&self, id: ValueId) -> Checked {
        let node = self.g.node(id);
        let types: Vec<&Type> = node.args.iter().map(|a| self.g.ty(*a)).collect();
        let ty = infer(&node.op, &types, &self.g.bodies).map_err(|e| match e {
            IrError::Type { rule, args, found, hint, .. } => {
                IrError::Type { rule, op: self.place(id).replace('`', ""), args, found, hint }
            }
            e => e,
        })?;
        if ty != node.ty {
            let found = format!("{}, inferred {ty}", node.ty);
            return Err(fault("node-type", self.place(id), found, "rebuild the node with Builder::add"));
        }
        Ok(())
    }

    fn leaves(&self) -> Checked {
        check_roles(&self.path, "input", self.g.inputs().map(|(n, _)| n))?;
        check_roles(&self.path, "weight", self.g.weights().map(|(n, _)| n))?;
        check_roles(&self.path, "state", self.g.states().map(|(n, _)| n))?;
        for id in self.g.ids() {
            match (&self.g.node(id).op, self.g.ty(id)) {
                (Op::Input { domain, .. }, Type::Tensor(t)) => check_input_type(&self.place(id), t, *domain)?,
                (Op::Weight { .. }, Type::Tensor(t)) => check_weight_type(&self.place(id), t)?,
                (Op::State { .. }, Type::State(s)) => check_state_type(&self.place(id), s)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn outputs(&self) -> Checked {
        if self.g.outputs.is_empty() {
            return Err(fault("no-output", &self.path, "no outputs", "return at least one value"));
        }
        check_roles(&self.path, "output", self.g.outputs.iter().map(|(n, _)| n.as_str()))?;
        for (name, id) in &self.g.outputs {
            if id.index() >= self.g.nodes.len() {
                let found = format!("output {name:?} is {id} of {} nodes", self.g.nodes.len());
                return Err(fault("output-range", &self.path, found, "return a value of the graph"));
            }
            if matches!(self.g.ty(*id), Type::Tuple(_)) {
                let found = format!("output {name:?} is {}", self.g.ty(*id));
                return Err(fault("output-tuple", self.place(*id), found, "project its components"));
            }
        }
        Ok(())
    }

    /// Each component of a tuple has one name, so that a state has one current version.
    fn tuples(&self) -> Checked {
        let mut seen = HashSet::new();
        for id in self.g.ids() {
            if let (Op::Project(i), [of]) = (&self.g.node(id).op, self.g.node(id).args.as_slice())
                && !seen.insert((*of, *i))
            {
                let found = format!("component {i} of {of} again");
                return Err(fault("project-once", self.place(id), found, "use the first projection"));
            }
        }
        Ok(())
    }

    /// Symbols stand in front, and the pools of a row last: a value is rows of fixed size, or scores over pools.
    fn symbols(&self) -> Checked {
        let bad = |t: &TensorType| {
            t.shape.iter().enumerate().any(|(i, d)| match d {
                Dim::Fixed(_) => false,
                Dim::Rows | Dim::Seqs | Dim::Logits => i > 0,
                Dim::Pools => i == 0 || i + 1 != t.rank(),
            })
        };
        for id in self.g.ids() {
            let parts = match self.g.ty(id) {
                Type::Tuple(parts) => parts.as_slice(),
                ty => std::slice::from_ref(ty),
            };
            if parts.iter().filter_map(Type::tensor).any(bad) {
                let hint = "R, B and L are first axes, P is the last of two or more";
                return Err(fault("symbol-place", self.place(id), self.g.ty(id).to_string(), hint));
            }
        }
        Ok(())
    }

    /// A repeat runs inside one kernel, on values that a wave holds.
    fn body_ops(&self) -> Checked {
        for id in self.g.ids() {
            let op = &self.g.node(id).op;
            if let Op::Repeat { count: 0, .. } = op {
                return Err(fault(
                    "repeat-count",
                    self.place(id),
                    "0 rounds",
                    "repeat at least once, or drop the node",
                ));
            }
            let small = matches!(
                op,
                Op::Input { .. }
                    | Op::ConstF32(_)
                    | Op::Unary(_)
                    | Op::Binary(_)
                    | Op::Cast(_)
                    | Op::Reshape(_)
                    | Op::Broadcast(_)
                    | Op::Slice { .. }
                    | Op::Concat { .. }
                    | Op::Reduce { .. }
                    | Op::Repeat { .. }
            );
            if self.depth > 0 && !small {
                let hint =
                    "bodies of repeat hold pointwise ops, shape ops and reductions; pass other values as operands";
                return Err(fault("repeat-op", self.place(id), format!("{} in a body", op.name()), hint));
            }
        }
        Ok(())
    }

    /// Every value and body reaches an output: what is computed for nothing was meant for something.
    fn dead(&self) -> Checked {
        let mut live = vec![false; self.g.nodes.len()];
        let mut used = vec![false; self.g.bodies.len()];
        for (_, id) in &self.g.outputs {
            live[id.index()] = true;
        }
        for i in (0..self.g.nodes.len()).rev() {
            if live[i] {
                self.g.nodes[i].args.iter().for_each(|a| live[a.index()] = true);
            }
            if let Op::Repeat { body, .. } = self.g.nodes[i].op {
                used[body as usize] = true;
            }
        }
        if let Some(id) = self.g.ids().find(|id| !live[id.index()]) {
            let found = format!("no output needs {}", self.g.ty(id));
            return Err(fault("dead-value", self.place(id), found, "return it or remove it"));
        }
        match self.g.bodies.iter().zip(used).find(|(_, used)| !used) {
            Some((body, _)) => {
                let found = format!("no repeat uses `{}`", body.name);
                Err(fault("dead-body", &self.path, found, "remove the body"))
            }
            None => Ok(()),
        }
    }

    fn work(&self) -> Checked {
        if self.depth > 0 {
            return Ok(());
        }
        let work = work(self.g);
        if work > MAX_WORK {
            let found = format!("{work} nodes with all rounds counted");
            return Err(fault("repeat-work", &self.path, found, "stay within 2^28"));
        }
        Ok(())
    }
}

/// Nodes that run, rounds of repeats counted.
fn work(g: &Graph) -> u64 {
    let bodies: HashMap<u32, u64> = (0..).zip(g.bodies.iter().map(work)).collect();
    g.nodes.iter().fold(0u64, |sum, node| {
        sum.saturating_add(match node.op {
            Op::Repeat { body, count } => bodies.get(&body).map_or(1, |w| w.saturating_mul(u64::from(count))),
            _ => 1,
        })
    })
}
