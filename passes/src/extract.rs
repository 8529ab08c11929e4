//! Extraction: one node per class, cheapest as a DAG (shared classes are paid once), acyclic, deterministic.
//!
//! The best known node of a class is the one with the least sum over all classes below it, by rounds until nothing
//! improves. Each change is checked against the present choices, so they never form a cycle. The result is a heuristic
//! where sharing between siblings matters, and exact on trees.

use std::collections::{BTreeMap, BTreeSet};

use egg::Id;
use unglue_ir::graph::{Graph, Node, ValueId};
use unglue_ir::infer::infer;
use unglue_ir::op::{Binary, Op, Unary};
use unglue_ir::types::{Dim, Type};

use crate::analysis::{Classes, View};
use crate::error::PassError;
use crate::language::ENode;

/// Elements of one row; symbolic axes count once.
fn row_elements(ty: &Type) -> u64 {
    let of = |shape: &[Dim]| shape.iter().fold(1u64, |a, d| a.saturating_mul(d.fixed().unwrap_or(1)));
    match ty {
        Type::Tensor(t) => of(&t.shape),
        Type::Tuple(ts) => ts.iter().map(row_elements).sum(),
        Type::State(_) => 0,
    }
}

/// Cost of one op for one row, in lane operations and a little for being there at all.
pub fn node_cost(op: &Op, args: &[&Type], ty: &Type, bodies: &[Graph]) -> u64 {
    let out = row_elements(ty);
    let largest = args.iter().map(|t| row_elements(t)).max().unwrap_or(0);
    let work = match op {
        Op::Input { .. } | Op::Weight { .. } | Op::State { .. } | Op::ConstF32(_) => return 0,
        Op::Reshape(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Project(_) => return 1,
        Op::Unary(Unary::Neg | Unary::Abs) | Op::Cast(_) | Op::Concat { .. } => out,
        Op::Unary(Unary::Rsqrt) => 16 * out,
        Op::Unary(Unary::Log1p) => 14 * out,
        Op::Unary(_) | Op::Binary(Binary::Div) => 12 * out,
        Op::Binary(_) => out,
        Op::Reduce { .. } => largest,
        Op::Repeat { body, count } => {
            bodies.get(*body as usize).map_or(0, graph_cost).saturating_mul(u64::from(*count))
        }
        // Heavy ops are never traded against glue.
        _ => largest.max(out).saturating_mul(4),
    };
    work.saturating_add(16)
}

/// Cost of all nodes of a graph.
pub fn graph_cost(g: &Graph) -> u64 {
    let cost = |n: &Node| {
        let args: Vec<&Type> = n.args.iter().map(|a| g.ty(*a)).collect();
        node_cost(&n.op, &args, &n.ty, &g.bodies)
    };
    g.nodes.iter().fold(0, |a, n| a.saturating_add(cost(n)))
}

/// The chosen node of each class of an extracted form, and its value there.
pub type Chosen = BTreeMap<Id, (ENode, ValueId)>;

/// The best known node of a class.
struct Choice {
    node: ENode,
    own: u64,
}

/// Most rounds of improvement: choices that share more in one place than in another could alternate.
const ROUNDS: usize = 20;

/// The cheapest form of `declared` in its saturated e-graph, and what was chosen; `ids` are the classes of its nodes.
///
/// # Errors
/// [`PassError::Rewrite`] if a class has no acyclic form; [`PassError::Ir`] if a node loses its type.
pub fn extract(declared: &Graph, classes: &Classes, ids: &[Id]) -> Result<(Graph, Chosen), PassError> {
    let choices = choose(classes);
    let order = emission_order(declared, classes, ids, &choices)?;
    let mut g = Graph { name: declared.name.clone(), ..Graph::default() };
    let mut bodies: BTreeMap<u32, u32> = BTreeMap::new();
    let mut chosen = Chosen::new();
    for id in order {
        let node = &choices[&id].node;
        let args: Vec<ValueId> = node.args.iter().map(|a| chosen[&classes.find(*a)].1).collect();
        let op = match node.op {
            Op::Repeat { body, count } => {
                let new = *bodies.entry(body).or_insert_with(|| {
                    g.bodies.push(declared.bodies[body as usize].clone());
                    g.bodies.len() as u32 - 1
                });
                Op::Repeat { body: new, count }
            }
            _ => node.op.clone(),
        };
        let ty = match &node.leaf {
            Some(ty) => ty.clone(),
            None => infer(&op, &args.iter().map(|a| g.ty(*a)).collect::<Vec<_>>(), &g.bodies)?,
        };
        chosen.insert(id, (node.clone(), ValueId(g.nodes.len() as u32)));
        g.nodes.push(Node { op, args, ty });
    }
    let value = |v: &ValueId| chosen[&classes.find(ids[v.index()])].1;
    g.outputs = declared.outputs.iter().map(|(n, v)| (n.clone(), value(v))).collect();
    Ok((g, chosen))
}

/// Best node per class, by rounds until nothing improves.
fn choose(classes: &Classes) -> BTreeMap<Id, Choice> {
    let view = View { classes };
    let mut sorted: Vec<(Id, Vec<&ENode>)> = classes.classes().map(|c| (c.id, c.nodes.iter().collect())).collect();
    sorted.sort_by_key(|(id, _)| *id);
    for (_, nodes) in &mut sorted {
        nodes.sort_by(|a, b| (a.op.name(), &a.args, *a).cmp(&(b.op.name(), &b.args, *b)));
    }
    let mut choices: BTreeMap<Id, Choice> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let mut changed = false;
        for (id, nodes) in &sorted {
            let mut best = choices.get(id).and_then(|c| weigh(view, *id, &c.node, &choices)).map(|(total, _)| total);
            for node in nodes {
                let Some((total, own)) = weigh(view, *id, node, &choices) else { continue };
                if best.is_none_or(|b| total < b) {
                    best = Some(total);
                    choices.insert(*id, Choice { node: (*node).clone(), own });
                    changed = true;
                }
            }
        }
        if !changed {
            break;
        }
    }
    choices
}

/// Cost of a node with all that the present choices put below it, and its own; none while an operand has no form, or if
/// its class lies below itself.
fn weigh(view: View, id: Id, node: &ENode, choices: &BTreeMap<Id, Choice>) -> Option<(u64, u64)> {
    let types: Vec<&Type> = node.args.iter().map(|a| view.ty(*a)).collect::<Option<_>>()?;
    let own = node_cost(&node.op, &types, view.ty(id)?, &view.classes.analysis.bodies);
    let mut seen: BTreeSet<Id> = BTreeSet::new();
    let mut todo: Vec<Id> = node.args.iter().map(|a| view.classes.find(*a)).collect();
    let mut total = own;
    while let Some(at) = todo.pop() {
        if at == id {
            return None;
        }
        if seen.insert(at) {
            let choice = choices.get(&at)?;
            total = total.saturating_add(choice.own);
            todo.extend(choice.node.args.iter().map(|a| view.classes.find(*a)));
        }
    }
    Some((total, own))
}

/// Classes in emission order: all leaves as declared, then chosen nodes, declared order first where it is open.
fn emission_order(
    declared: &Graph,
    classes: &Classes,
    ids: &[Id],
    choices: &BTreeMap<Id, Choice>,
) -> Result<Vec<Id>, PassError> {
    let mut rank: BTreeMap<Id, usize> = BTreeMap::new();
    for (i, id) in ids.iter().enumerate() {
        rank.entry(classes.find(*id)).or_insert(i);
    }
    let is_leaf = |n: &Node| matches!(n.op, Op::Input { .. } | Op::Weight { .. } | Op::State { .. });
    let leaves = declared.nodes.iter().zip(ids).filter(|(n, _)| is_leaf(n)).map(|(_, id)| classes.find(*id));
    let roots = declared.outputs.iter().map(|(_, v)| classes.find(ids[v.index()]));
    // Two outputs may be one class.
    let mut needed: BTreeSet<Id> = leaves.chain(roots).collect();
    let mut todo: Vec<Id> = needed.iter().copied().collect();
    let mut users: BTreeMap<Id, Vec<Id>> = BTreeMap::new();
    let mut waiting: BTreeMap<Id, usize> = BTreeMap::new();
    while let Some(id) = todo.pop() {
        let choice = choices.get(&id).ok_or_else(|| {
            PassError::rewrite("extract-cycle", &declared.name, format!("class {id} has no finite form"), "internal")
        })?;
        let args: BTreeSet<Id> = choice.node.args.iter().map(|a| classes.find(*a)).collect();
        waiting.insert(id, args.len());
        for arg in args {
            users.entry(arg).or_default().push(id);
            if needed.insert(arg) {
                todo.push(arg);
            }
        }
    }
    let key = |id: Id| (rank.get(&id).copied().unwrap_or(usize::MAX), id);
    let mut ready: BTreeSet<(usize, Id)> = waiting.iter().filter(|(_, n)| **n == 0).map(|(id, _)| key(*id)).collect();
    let mut order = Vec::with_capacity(waiting.len());
    while let Some((_, id)) = ready.pop_first() {
        order.push(id);
        for user in users.get(&id).into_iter().flatten() {
            if let Some(n) = waiting.get_mut(user) {
                *n -= 1;
                if *n == 0 {
                    ready.insert(key(*user));
                }
            }
        }
    }
    if order.len() != waiting.len() {
        let found = format!("{} of {} classes can be ordered", order.len(), waiting.len());
        return Err(PassError::rewrite("extract-cycle", &declared.name, found, "internal"));
    }
    Ok(order)
}
