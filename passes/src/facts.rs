//! What the cover needs to know about a body: which nodes are kernels' ops and which are free, what each op reads, and
//! in which order versions of a state come.

use std::collections::{BTreeMap, BTreeSet};

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::types::{DType, Type};

use crate::schedule::strip_reshapes;

/// Part of a node in kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Input, weight or state.
    Leaf,
    /// Constants, views, projections, glue on weights alone, and wider copies of inputs: formed inside each kernel that uses
    /// them.
    Free,
    /// Computed by some kernel.
    Op,
}

/// A body with its derived facts.
#[derive(Debug)]
pub struct Facts<'a> {
    pub body: &'a Graph,
    kinds: Vec<Kind>,
    /// Per node that is an op: the boundary values it reads, ascending. A boundary value is a leaf, an op with one
    /// result, or a projection.
    reads: Vec<Vec<ValueId>>,
    /// Per boundary value: the ops that read it, ascending.
    readers: BTreeMap<ValueId, Vec<ValueId>>,
    /// Per op: the boundary values it makes.
    results: Vec<Vec<ValueId>>,
    /// Role of each value that is a version of a state.
    roles: BTreeMap<ValueId, String>,
    /// `(reader, writer)` of one state version: the reader must not run after the writer.
    order: Vec<(ValueId, ValueId)>,
}

impl<'a> Facts<'a> {
    pub fn new(body: &'a Graph) -> Facts<'a> {
        Facts::with_ops(body, &BTreeSet::new())
    }

    /// As [`Facts::new`], with some views as ops of their own: their values are stored.
    pub fn with_ops(body: &'a Graph, stored_views: &BTreeSet<ValueId>) -> Facts<'a> {
        let mut facts = Facts {
            body,
            kinds: kinds(body, stored_views),
            reads: vec![Vec::new(); body.nodes.len()],
            readers: BTreeMap::new(),
            results: vec![Vec::new(); body.nodes.len()],
            roles: BTreeMap::new(),
            order: Vec::new(),
        };
        for id in body.ids() {
            if facts.kind(id) != Kind::Op {
                continue;
            }
            let mut found = BTreeSet::new();
            for arg in &body.node(id).args {
                facts.collect_boundary(*arg, &mut found);
            }
            for b in &found {
                facts.readers.entry(*b).or_default().push(id);
            }
            facts.reads[id.index()] = found.into_iter().collect();
        }
        for id in body.ids() {
            match &body.node(id).op {
                Op::Project(_) => facts.results[body.node(id).args[0].index()].push(id),
                _ if facts.kind(id) == Kind::Op && !matches!(body.ty(id), Type::Tuple(_)) => {
                    facts.results[id.index()].push(id)
                }
                _ => {}
            }
        }
        facts.find_states();
        facts
    }

    pub fn kind(&self, id: ValueId) -> Kind {
        self.kinds[id.index()]
    }

    /// All ops, ascending.
    pub fn ops(&self) -> impl Iterator<Item = ValueId> + '_ {
        self.body.ids().filter(|id| self.kind(*id) == Kind::Op)
    }

    /// Boundary values that `op` reads.
    pub fn reads(&self, op: ValueId) -> &[ValueId] {
        &self.reads[op.index()]
    }

    /// Ops that read a boundary value.
    pub fn readers(&self, boundary: ValueId) -> &[ValueId] {
        self.readers.get(&boundary).map(Vec::as_slice).unwrap_or_default()
    }

    /// The op that makes a boundary value; none for a leaf.
    pub fn maker(&self, boundary: ValueId) -> Option<ValueId> {
        match (self.kind(boundary), &self.body.node(boundary).op) {
            (Kind::Op, _) => Some(boundary),
            (Kind::Free, Op::Project(_)) => Some(self.body.node(boundary).args[0]),
            _ => None,
        }
    }

    /// Boundary values that `op` makes: itself, or its projections.
    pub fn results(&self, op: ValueId) -> &[ValueId] {
        &self.results[op.index()]
    }

    pub fn role(&self, id: ValueId) -> Option<&str> {
        self.roles.get(&id).map(String::as_str)
    }

    /// Pairs of ops on one state version: first reads it, second replaces it.
    pub fn order(&self) -> &[(ValueId, ValueId)] {
        &self.order
    }

    /// The boundary value under a chain of free nodes; none for a constant.
    pub fn source(&self, mut id: ValueId) -> Option<ValueId> {
        loop {
            let node = self.body.node(id);
            match (self.kind(id), &node.op) {
                (Kind::Leaf | Kind::Op, _) | (Kind::Free, Op::Project(_)) => return Some(id),
                _ => id = *node.args.first()?,
            }
        }
    }

    /// Values with the same storage: a value and its reshapes share one.
    pub fn storage(&self, id: ValueId) -> ValueId {
        if self.kind(id) == Kind::Op { id } else { strip_reshapes(self.body, id) }
    }

    fn collect_boundary(&self, id: ValueId, found: &mut BTreeSet<ValueId>) {
        let node = self.body.node(id);
        match (self.kind(id), &node.op) {
            (Kind::Leaf | Kind::Op, _) | (Kind::Free, Op::Project(_)) => {
                found.insert(id);
            }
            _ => node.args.iter().for_each(|a| self.collect_boundary(*a, found)),
        }
    }

    /// Slices and broadcasts between an op and the values it reads.
    pub fn views_under(&self, op: ValueId) -> BTreeSet<ValueId> {
        let mut found = BTreeSet::new();
        let mut todo: Vec<ValueId> = self.body.node(op).args.clone();
        while let Some(id) = todo.pop() {
            let node = self.body.node(id);
            if self.kind(id) == Kind::Free && !matches!(node.op, Op::Project(_)) {
                let view = matches!(node.op, Op::Slice { .. } | Op::Broadcast(_));
                if view && self.source(id).is_some_and(|b| !matches!(self.body.node(b).op, Op::Weight { .. })) {
                    found.insert(id);
                }
                todo.extend(&node.args);
            }
        }
        found
    }

    /// Follows each state from its leaf through the ops that replace it.
    fn find_states(&mut self) {
        let body = self.body;
        for id in body.ids() {
            if body.ty(id).state().is_none() {
                continue;
            }
            let node = body.node(id);
            let writer = match (&node.op, self.maker(id)) {
                (Op::State { name }, _) => {
                    self.roles.insert(id, name.clone());
                    continue;
                }
                (_, Some(op)) => op,
                _ => continue,
            };
            let old = body.node(writer).args.iter().copied().find(|a| body.ty(*a).state().is_some());
            let Some(old) = old else { continue };
            if let Some(role) = self.roles.get(&old).cloned() {
                self.roles.insert(id, role);
            }
            for &reader in self.readers.get(&old).map(Vec::as_slice).unwrap_or_default() {
                if reader != writer {
                    self.order.push((reader, writer));
                }
            }
        }
        self.order.sort_unstable();
        self.order.dedup();
    }
}

fn kinds(body: &Graph, stored_views: &BTreeSet<ValueId>) -> Vec<Kind> {
    let mut kinds = Vec::with_capacity(body.nodes.len());
    // Values that are the same in every step.
    let mut fixed: Vec<bool> = Vec::with_capacity(body.nodes.len());
    for (id, node) in body.ids().zip(&body.nodes) {
        let args_fixed = node.args.iter().all(|a| fixed[a.index()]);
        let (kind, is_fixed) = match node.op {
            Op::Weight { .. } => (Kind::Leaf, true),
            Op::Input { .. } | Op::State { .. } => (Kind::Leaf, false),
            _ if stored_views.contains(&id) => (Kind::Op, false),
            Op::ConstF32(_) => (Kind::Free, true),
            Op::Project(_) => (Kind::Free, false),
            Op::Reshape(_) | Op::Broadcast(_) | Op::Slice { .. } => (Kind::Free, args_fixed),
            // Glue on weights has no rows to launch over: each reader forms it as it loads them.
            Op::Cast(_) | Op::Unary(_) | Op::Binary(_) if args_fixed => (Kind::Free, true),
            // A wider copy of an input has no place of its own: each reader widens what it loads.
            Op::Cast(DType::F32) if widens_input(body, id) => (Kind::Free, false),
            _ => (Kind::Op, false),
        };
        kinds.push(kind);
        fixed.push(is_fixed);
    }
    // An output that is a view of a leaf, or a constant, has no producer: it becomes an op of its own.
    for (_, out) in &body.outputs {
        let root = strip_reshapes(body, *out);
        if kinds[root.index()] == Kind::Free && made_by_none(body, &kinds, root) {
            kinds[root.index()] = Kind::Op;
        }
    }
    kinds
}

/// True for a cast whose operand is a narrow input, or views of it.
fn widens_input(body: &Graph, id: ValueId) -> bool {
    let from = body.node(id).args[0];
    let narrow = body.ty(from).tensor().and_then(|t| t.dtype()).is_some_and(|d| matches!(d, DType::Bf16 | DType::F16));
    narrow && matches!(body.node(strip_reshapes(body, from)).op, Op::Input { .. })
}

/// True if no op stands under a chain of free nodes.
fn made_by_none(body: &Graph, kinds: &[Kind], mut id: ValueId) -> bool {
    loop {
        let node = body.node(id);
        match (kinds[id.index()], &node.op) {
            (Kind::Op, _) | (Kind::Free, Op::Project(_)) => return false,
            (Kind::Leaf, _) => return true,
            (Kind::Free, _) => match node.args.first() {
                Some(a) => id = *a,
                None => return true,
            },
        }
    }
}
