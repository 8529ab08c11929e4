//! Cuts a set of ops out of a body as a graph of its own, which the schedule, the interpreter and the code generator
//! take as it is.

use std::collections::{BTreeMap, BTreeSet};

use unglue_ir::graph::{Graph, Node, ValueId};
use unglue_ir::op::{Domain, Op, Unary};
use unglue_ir::types::{DType, Type};

use crate::facts::{Facts, Kind};

/// A kernel graph and what its leaves and outputs are in the body.
#[derive(Clone, Debug)]
pub struct Carved {
    pub graph: Graph,
    pub reads: Vec<(String, ValueId)>,
    pub writes: Vec<(String, ValueId)>,
    /// Body value of each node of the graph.
    pub values: Vec<ValueId>,
}

impl Carved {
    /// Body values that the graph forms: all but its leaves.
    pub fn formed(&self) -> impl Iterator<Item = ValueId> + '_ {
        let formed = self.graph.nodes.iter().map(|n| !crate::schedule::is_leaf(&n.op));
        self.values.iter().zip(formed).filter(|(_, formed)| *formed).map(|(v, _)| *v)
    }
}

/// Which body outputs a kernel must store, by what they are made of.
#[derive(Debug)]
pub struct Stores {
    /// Body outputs by their storage, where that is a boundary value made by an op.
    direct: BTreeMap<ValueId, (String, ValueId)>,
    /// Body outputs that are slices or broadcasts of a computed value, by the op that makes it.
    views: BTreeMap<ValueId, Vec<(String, ValueId)>>,
}

impl Stores {
    pub fn new(facts: &Facts) -> Stores {
        let mut stores = Stores { direct: BTreeMap::new(), views: BTreeMap::new() };
        let mut seen = BTreeSet::new();
        for (name, value) in &facts.body.outputs {
            let root = facts.storage(*value);
            if facts.kind(root) == Kind::Leaf || !seen.insert(root) {
                continue;
            }
            let entry = (name.clone(), *value);
            if facts.maker(root).is_some() {
                stores.direct.insert(root, entry);
            } else if let Some(op) = facts.source(root).and_then(|b| facts.maker(b)) {
                stores.views.entry(op).or_default().push(entry);
            }
        }
        stores
    }

    /// True if some body output is made from results of `op` by views alone.
    pub fn holds(&self, facts: &Facts, op: ValueId) -> bool {
        self.views.contains_key(&op) || facts.results(op).iter().any(|b| self.direct.contains_key(b))
    }

    /// What a kernel that computes `ops` stores; `escapes(op, boundary)` tells if another kernel reads it.
    pub fn writes(
        &self,
        facts: &Facts,
        ops: &BTreeSet<ValueId>,
        escapes: impl Fn(ValueId, ValueId) -> bool,
    ) -> Vec<(String, ValueId)> {
        let mut writes = Vec::new();
        for &op in ops {
            for &b in facts.results(op) {
                if let Some(role) = facts.role(b) {
                    if self.direct.contains_key(&b) || escapes(op, b) {
                        writes.push((role.to_owned(), b));
                    }
                } else if let Some(entry) = self.direct.get(&b) {
                    writes.push(entry.clone());
                } else if escapes(op, b) {
                    writes.push((format!("v{}", b.0), b));
                }
            }
            writes.extend(self.views.get(&op).into_iter().flatten().cloned());
        }
        writes.sort_by_key(|(_, v)| *v);
        writes
    }
}

/// The graph of `ops` with the outputs `writes`.
pub fn carve(facts: &Facts, ops: &BTreeSet<ValueId>, writes: Vec<(String, ValueId)>) -> Carved {
    let body = facts.body;
    let needed = needed_nodes(facts, ops, &writes);
    let mut graph = Graph { name: body.name.clone(), ..Graph::default() };
    let mut reads = Vec::new();
    let mut renumbered: BTreeMap<ValueId, ValueId> = BTreeMap::new();
    let mut bodies: BTreeMap<u32, u32> = BTreeMap::new();
    for (&id, &inside) in &needed {
        let node = body.node(id);
        let new = if inside {
            let args = node.args.iter().map(|a| renumbered[a]).collect();
            Node { op: with_body(&node.op, body, &mut graph, &mut bodies), args, ty: node.ty.clone() }
        } else {
            let (name, op) = leaf(facts, id);
            reads.push((name, id));
            Node { op, args: vec![], ty: node.ty.clone() }
        };
        renumbered.insert(id, ValueId(graph.nodes.len() as u32));
        graph.nodes.push(new);
    }
    graph.outputs = writes.iter().map(|(name, v)| (name.clone(), renumbered[v])).collect();
    Carved { graph, reads, writes, values: needed.into_keys().collect() }
}

/// As `carved`, with `more` of its graph's values stored: its workgroups exchange them, no other kernel reads them.
pub fn with_stores(facts: &Facts, ops: &BTreeSet<ValueId>, carved: Carved, more: &[ValueId]) -> Carved {
    let mut writes = carved.writes;
    let values = more.iter().filter_map(|v| carved.values.get(v.index()));
    writes.extend(values.map(|v| (format!("v{}", v.0), *v)));
    writes.sort_by_key(|(_, v)| *v);
    carve(facts, ops, writes)
}

/// Nodes of the kernel; true for those formed inside, false for leaves.
fn needed_nodes(facts: &Facts, ops: &BTreeSet<ValueId>, writes: &[(String, ValueId)]) -> BTreeMap<ValueId, bool> {
    let mut needed = BTreeMap::new();
    let mut todo: Vec<ValueId> = ops.iter().copied().chain(writes.iter().map(|(_, v)| *v)).collect();
    while let Some(id) = todo.pop() {
        let inside = match facts.kind(id) {
            Kind::Leaf => false,
            Kind::Op => ops.contains(&id),
            Kind::Free => facts.maker(id).is_none_or(|op| ops.contains(&op)),
        };
        if needed.insert(id, inside).is_none() && inside {
            todo.extend(&facts.body.node(id).args);
        }
    }
    needed
}

/// The op with its `repeat` body interned in the kernel's graph.
fn with_body(op: &Op, body: &Graph, graph: &mut Graph, known: &mut BTreeMap<u32, u32>) -> Op {
    let Op::Repeat { body: old, count } = op else { return op.clone() };
    let new = *known.entry(*old).or_insert_with(|| {
        graph.bodies.push(body.bodies[*old as usize].clone());
        graph.bodies.len() as u32 - 1
    });
    Op::Repeat { body: new, count: *count }
}

fn leaf(facts: &Facts, id: ValueId) -> (String, Op) {
    let node = facts.body.node(id);
    match &node.op {
        Op::Input { name, .. } | Op::Weight { name } => return (name.clone(), node.op.clone()),
        _ => {}
    }
    match facts.role(id) {
        Some(role) => (role.to_owned(), Op::State { name: role.to_owned() }),
        None => {
            let name = format!("v{}", id.0);
            (name.clone(), Op::Input { name, domain: domain(facts.body, id) })
        }
    }
}

/// The domain of a computed value, for tests of a kernel alone.
fn domain(body: &Graph, mut id: ValueId) -> Domain {
    loop {
        let node = body.node(id);
        match &node.op {
            Op::Input { domain, .. } => return *domain,
            Op::TopK { .. } => {
                let scored = node.args.first().and_then(|a| body.ty(*a).tensor()).and_then(|t| t.shape.last().copied());
                return scored.and_then(|d| d.fixed()).map_or(Domain::Normal, Domain::Distinct);
            }
            Op::IndexSelect { .. } => return Domain::Selected,
            // Selections are only valid in the shape that made them.
            Op::Reshape(_) | Op::Slice { .. } if body.ty(id).tensor().and_then(|t| t.dtype()) == Some(DType::I32) => {
                return Domain::Below(1);
            }
            Op::Unary(Unary::Sigmoid | Unary::Exp) => return Domain::Unit,
            Op::Cast(_) | Op::Reshape(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::GatherLast => {
                match node.args.first() {
                    Some(a) => id = *a,
                    None => return Domain::Normal,
                }
            }
            _ => return Domain::Normal,
        }
    }
}

/// The graph with leaves, outputs and the graph itself named by position: equal for kernels that do the same work on
/// different values.
pub fn anonymous(graph: &Graph) -> Graph {
    let mut g = graph.clone();
    g.name = String::new();
    let (mut inputs, mut weights, mut states) = (0, 0, 0);
    let mut roles: BTreeMap<String, String> = BTreeMap::new();
    for node in &mut g.nodes {
        match &mut node.op {
            Op::Input { name, .. } => *name = number("i", &mut inputs),
            Op::Weight { name } => *name = number("w", &mut weights),
            Op::State { name } => {
                let new = number("s", &mut states);
                roles.insert(std::mem::replace(name, new.clone()), new);
            }
            _ => {}
        }
    }
    let mut outputs = 0;
    for (name, v) in &mut g.outputs {
        let role = matches!(g.nodes[v.index()].ty, Type::State(_)).then(|| roles.get(name).cloned()).flatten();
        *name = role.unwrap_or_else(|| number("o", &mut outputs));
    }
    g
}

fn number(prefix: &str, n: &mut u32) -> String {
    *n += 1;
    format!("{prefix}{}", *n - 1)
}
