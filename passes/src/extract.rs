//! Extraction: one node per class, cheapest as a DAG (shared classes are paid once), acyclic, deterministic.
//!
//! A class is formed by one of its nodes, or another class stands in for it. The best known pick of a class is the one with the least sum over all classes below it, by rounds until nothing
//! improves. Each change is checked against the present choices, so they never form a cycle. The result is a heuristic
//! where sharing between siblings matters, and exact on trees.

use std::collections::{BTreeMap, BTreeSet};

use egg::Id;
use unglue_ir::graph::{Graph, Node, ValueId};
use unglue_ir::infer::infer;
use unglue_ir::op::{Binary, Op, Unary};
use unglue_ir::types::{Dim, Type};

use crate::analysis::{Classes, Others, View};
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

/// Most rounds of improvement: choices that share more in one place than in another could alternate.
const ROUNDS: usize = 20;

/// What a class is in a form.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Pick {
    Node(ENode),
    /// Another class stands in for it.
    Other(Id),
}

impl Pick {
    /// Classes that it is made from.
    pub fn needs<'a>(&'a self, classes: &'a Classes) -> impl Iterator<Item = Id> + 'a {
        let (args, other) = match self {
            Pick::Node(node) => (node.args.as_slice(), None),
            Pick::Other(id) => ([].as_slice(), Some(*id)),
        };
        args.iter().copied().chain(other).map(|a| classes.find(a))
    }
}

/// All picks of each class: nodes by name and operands, then what may stand in.
pub type Options = BTreeMap<Id, Vec<Pick>>;

/// One pick a class.
pub type Picks = BTreeMap<Id, Pick>;

/// The options of a saturated e-graph.
pub fn options(classes: &Classes, others: &Others) -> Options {
    let of = |id: Id, nodes: &[ENode]| {
        let mut nodes: Vec<&ENode> = nodes.iter().collect();
        nodes.sort_by(|a, b| (a.op.name(), &a.args, *a).cmp(&(b.op.name(), &b.args, *b)));
        let others = others.get(&id).into_iter().flatten().map(|(to, _)| Pick::Other(*to));
        nodes.into_iter().cloned().map(Pick::Node).chain(others).collect()
    };
    classes.classes().map(|c| (c.id, of(c.id, &c.nodes))).collect()
}

/// A form of a body.
#[derive(Clone, Debug)]
pub struct Extracted {
    pub graph: Graph,
    /// The node of each class in the form, and its value there; that of another where one stands in.
    pub chosen: BTreeMap<Id, (ENode, ValueId)>,
    /// Classes for which another stands in, and that other.
    pub replaced: BTreeMap<Id, Id>,
    /// By value of the graph: its class.
    pub class_of: Vec<Id>,
}

/// The form that `picks` make of `declared`; `ids` are the classes of its nodes.
///
/// # Errors
/// [`PassError::Rewrite`] if a class has no acyclic form; [`PassError::Ir`] if a node loses its type.
pub fn extract(declared: &Graph, classes: &Classes, ids: &[Id], picks: &Picks) -> Result<Extracted, PassError> {
    let order = emission_order(declared, classes, ids, picks)?;
    let mut g = Graph { name: declared.name.clone(), ..Graph::default() };
    let mut bodies: BTreeMap<u32, u32> = BTreeMap::new();
    let mut chosen: BTreeMap<Id, (ENode, ValueId)> = BTreeMap::new();
    let (mut replaced, mut class_of) = (BTreeMap::new(), Vec::new());
    for id in order {
        let node = match &picks[&id] {
            Pick::Node(node) => node,
            Pick::Other(other) => {
                let other = classes.find(*other);
                replaced.insert(id, other);
                chosen.insert(id, chosen[&other].clone());
                continue;
            }
        };
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
        class_of.push(id);
        g.nodes.push(Node { op, args, ty });
    }
    let value = |v: &ValueId| chosen[&classes.find(ids[v.index()])].1;
    g.outputs = declared.outputs.iter().map(|(n, v)| (n.clone(), value(v))).collect();
    Ok(Extracted { graph: g, chosen, replaced, class_of })
}

/// What an op costs: op, types of operands and result, bodies of `repeat`.
pub type NodeCost = dyn Fn(&Op, &[&Type], &Type, &[Graph]) -> u64;

/// The best known pick of a class, and its own cost.
type Choice = (Pick, u64);

/// Best pick per class, by rounds until nothing improves.
pub fn choose(classes: &Classes, options: &Options, cost: &NodeCost) -> Picks {
    let view = View::exact(classes);
    let mut choices: BTreeMap<Id, Choice> = BTreeMap::new();
    for _ in 0..ROUNDS {
        let mut changed = false;
        for (id, picks) in options {
            // A class with one pick keeps it.
            if picks.len() == 1 && choices.contains_key(id) {
                continue;
            }
            let mut best = choices.get(id).and_then(|c| weigh(view, *id, &c.0, &choices, cost)).map(|(total, _)| total);
            for pick in picks {
                let Some((total, own)) = weigh(view, *id, pick, &choices, cost) else { continue };
                if best.is_none_or(|b| total < b) {
                    best = Some(total);
                    choices.insert(*id, (pick.clone(), own));
                    changed = true;
                }
            }
        }
        if !changed {
            break;
        }
    }
    choices.into_iter().map(|(id, (pick, _))| (id, pick)).collect()
}

/// Cost of a pick with all that the present choices put below it, and its own; none while an operand has no form, or if
/// its class lies below itself.
fn weigh(view: View, id: Id, pick: &Pick, choices: &BTreeMap<Id, Choice>, cost: &NodeCost) -> Option<(u64, u64)> {
    let own = match pick {
        Pick::Node(node) => {
            let types: Vec<&Type> = node.args.iter().map(|a| view.ty(*a)).collect::<Option<_>>()?;
            cost(&node.op, &types, view.ty(id)?, &view.classes.analysis.bodies)
        }
        Pick::Other(_) => 0,
    };
    let mut seen: BTreeSet<Id> = BTreeSet::new();
    let mut todo: Vec<Id> = pick.needs(view.classes).collect();
    let mut total = own;
    while let Some(at) = todo.pop() {
        if at == id {
            return None;
        }
        if seen.insert(at) {
            let (pick, own) = choices.get(&at)?;
            total = total.saturating_add(*own);
            todo.extend(pick.needs(view.classes));
        }
    }
    Some((total, own))
}

/// Classes in emission order: all leaves as declared, then chosen nodes, declared order first where it is open.
fn emission_order(declared: &Graph, classes: &Classes, ids: &[Id], picks: &Picks) -> Result<Vec<Id>, PassError> {
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
        let pick = picks.get(&id).ok_or_else(|| {
            PassError::rewrite("extract-cycle", &declared.name, format!("class {id} has no finite form"), "internal")
        })?;
        let args: BTreeSet<Id> = pick.needs(classes).collect();
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
