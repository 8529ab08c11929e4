//! Saturation: applies the rules to a body until nothing new appears or a count runs out. Never a time limit.

use std::collections::{BTreeMap, BTreeSet};

use egg::{EGraph, Id};
use schemars::JsonSchema;
use serde::Serialize;
use unglue_ir::graph::{Graph, Node, ValueId};
use unglue_ir::op::Op;

use crate::analysis::{Classes, Types, View};
use crate::error::PassError;
use crate::extract;
use crate::kernel::{Exactness, Numerics};
use crate::language::ENode;
use crate::provenance::{Journal, node_ids};
use crate::rules::{Rule, Term, table};

/// When to stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub iterations: u64,
    pub nodes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { iterations: 30, nodes: 100_000 }
    }
}

/// Why saturation ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Stop {
    #[default]
    Saturated,
    Iterations,
    Nodes,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct SaturationStats {
    pub body: String,
    pub nodes_in: u64,
    pub e_nodes: u64,
    pub classes: u64,
    pub iterations: u64,
    pub stop: Stop,
    /// Unions that each rule made.
    pub fired: BTreeMap<String, u64>,
    /// Those of them on the way from a declared value to its extracted form; see [`crate::provenance`].
    pub paid: BTreeMap<String, u64>,
    /// By number of the declared value: its number in the extracted form, or none if nothing there needs it.
    pub became: Vec<Option<u32>>,
    /// Values of the extracted form that stand for no declared one, and the declared values that a rule made them from.
    pub made_from: BTreeMap<u32, Vec<u32>>,
    /// Declared values whose form changed, and the rules that changed it, in order.
    pub rewritten: BTreeMap<u32, Vec<String>>,
    /// By declared value: the class of the rewrite that gave its extracted form, where that is not exact.
    pub loose: BTreeMap<u32, Exactness>,
    /// By extracted value: the weakest class of a rewrite that changed how it is computed, where that is not exact.
    pub touched: BTreeMap<u32, Exactness>,
    /// The weakest class in `touched`, and of bodies of `repeat`.
    pub exactness: Exactness,
    pub nodes_out: u64,
    pub cost_in: u64,
    pub cost_out: u64,
    /// The rewritten form would not have used every leaf of the body, whose calls list them: the declared form stays.
    pub kept_declared: bool,
    /// Bodies of `repeat`, each with an e-graph of its own.
    pub repeats: Vec<SaturationStats>,
}

/// Rewrites a body to its cheapest known form. Leaves, outputs and their order stay.
///
/// # Errors
/// [`PassError::Rewrite`] if a rule joined values that cannot be equal, [`PassError::Ir`] if the result breaks a rule of
/// the IR.
pub fn optimise(body: &Graph, numerics: Numerics, limits: &Limits) -> Result<(Graph, SaturationStats), PassError> {
    let rules: Vec<Rule> = table().into_iter().filter(|r| numerics.allows(r.class)).collect();
    optimise_with(body, &rules, limits)
}

/// [`optimise`] with chosen rules.
///
/// # Errors
/// As [`optimise`].
pub fn optimise_with(body: &Graph, rules: &[Rule], limits: &Limits) -> Result<(Graph, SaturationStats), PassError> {
    let mut declared = body.clone();
    let mut repeats = Vec::new();
    for inner in &mut declared.bodies {
        let (better, stats) = optimise_with(inner, rules, limits)?;
        *inner = better;
        repeats.push(stats);
    }
    let (mut classes, ids) = classes_of(&declared);
    let mut stats =
        SaturationStats { body: body.name.clone(), nodes_in: body.nodes.len() as u64, ..Default::default() };
    let journal = saturate(&mut classes, rules, limits, &mut stats)?;
    let (found, chosen) = extract::extract(&declared, &classes, &ids)?;
    stats.cost_in = extract::graph_cost(&declared);
    stats.cost_out = extract::graph_cost(&found);
    stats.repeats = repeats;
    stats.kept_declared = !uses_all_leaves(&found) || stats.cost_out > stats.cost_in;
    let result = if stats.kept_declared {
        stats.became = (0..declared.nodes.len() as u32).map(Some).collect();
        declared
    } else {
        let origins = journal.origins(&classes, &declared, &ids, &chosen);
        let name = |rule: usize| rules[rule].name.to_owned();
        origins.paid.into_iter().for_each(|rule| *stats.paid.entry(name(rule)).or_default() += 1);
        (stats.became, stats.loose, stats.touched) = (origins.became, origins.loose, origins.touched);
        stats.made_from = origins.made_from;
        stats.rewritten = origins.rewritten.into_iter().map(|(v, r)| (v, r.into_iter().map(name).collect())).collect();
        found
    };
    note_repeats(&mut stats, body);
    stats.nodes_out = result.nodes.len() as u64;
    Ok((result, stats))
}

/// A `repeat` is as loose as what it repeats.
fn note_repeats(stats: &mut SaturationStats, declared: &Graph) {
    for (value, node) in (0u32..).zip(&declared.nodes) {
        let Op::Repeat { body, .. } = node.op else { continue };
        let class = stats.repeats.get(body as usize).map(|r| r.exactness).unwrap_or_default();
        if class > Exactness::Exact {
            let raise = |map: &mut BTreeMap<u32, Exactness>, key: u32| {
                let entry = map.entry(key).or_default();
                *entry = class.max(*entry);
            };
            raise(&mut stats.loose, value);
            if let Some(now) = stats.became[value as usize] {
                raise(&mut stats.touched, now);
            }
        }
    }
    stats.exactness = stats.touched.values().copied().max().unwrap_or_default();
}

/// The e-graph of a graph, and the class of each node.
pub fn classes_of(g: &Graph) -> (Classes, Vec<Id>) {
    let mut classes = EGraph::new(Types { bodies: g.bodies.clone(), fault: None });
    let mut ids = Vec::with_capacity(g.nodes.len());
    for Node { op, args, ty } in &g.nodes {
        let leaf = matches!(op, Op::Input { .. } | Op::Weight { .. } | Op::State { .. });
        let args = args.iter().map(|a: &ValueId| ids[a.index()]).collect();
        ids.push(classes.add(ENode { op: op.clone(), leaf: leaf.then(|| ty.clone()), args }));
    }
    classes.rebuild();
    (classes, ids)
}

fn saturate(
    classes: &mut Classes,
    rules: &[Rule],
    limits: &Limits,
    stats: &mut SaturationStats,
) -> Result<Journal, PassError> {
    let mut journal = Journal::default();
    stats.stop = Stop::Iterations;
    for _ in 0..limits.iterations {
        stats.iterations += 1;
        let matches = search(classes, rules, &journal.looseness(classes));
        let before = (classes.total_number_of_nodes(), classes.number_of_classes());
        for Match { rule, left, term, class } in matches {
            let from = classes.nodes().len();
            let right = add(classes, &term);
            if classes.union(left, right) {
                journal.join((left, right), rule, class, from..classes.nodes().len());
                *stats.fired.entry(rules[rule].name.to_owned()).or_default() += 1;
            }
            if let Some(fault) = &classes.analysis.fault {
                let hint = "the rule is wrong: its two sides have different types or constants";
                return Err(PassError::rewrite("rule-type", rules[rule].name, fault.clone(), hint));
            }
        }
        classes.rebuild();
        if (classes.total_number_of_nodes(), classes.number_of_classes()) == before {
            stats.stop = Stop::Saturated;
            break;
        }
        if classes.total_number_of_nodes() as u64 > limits.nodes {
            stats.stop = Stop::Nodes;
            break;
        }
    }
    stats.e_nodes = classes.total_number_of_nodes() as u64;
    stats.classes = classes.number_of_classes() as u64;
    Ok(journal)
}

/// A place where a rule applies.
struct Match {
    rule: usize,
    /// The node.
    left: Id,
    /// The right side.
    term: Term,
    /// That of the rule, or of what it saw below the node.
    class: Exactness,
}

/// All matches of all rules, in the order of classes, rules and nodes.
fn search(classes: &Classes, rules: &[Rule], loose: &BTreeMap<Id, Exactness>) -> Vec<Match> {
    let view = View { classes };
    let numbers = node_ids(classes);
    let ids: BTreeSet<Id> = classes.classes().map(|c| c.id).collect();
    let mut found = Vec::new();
    for id in ids {
        let mut nodes: Vec<&ENode> = classes[id].nodes.iter().collect();
        nodes.sort();
        for (r, rule) in rules.iter().enumerate() {
            let of = |n: &&ENode| {
                let left = numbers.get(*n).copied().unwrap_or(id);
                let class = rule.class.max(below(classes, n, loose));
                (rule.find)(view, n)
                    .into_iter()
                    .map(move |term| Match { rule: r, left, term, class })
                    .collect::<Vec<_>>()
            };
            found.extend(nodes.iter().flat_map(of));
        }
    }
    found
}

/// The loosest union among the operands of a node and theirs: no rule looks further.
fn below(classes: &Classes, node: &ENode, loose: &BTreeMap<Id, Exactness>) -> Exactness {
    if loose.is_empty() {
        return Exactness::Exact;
    }
    let of = |id: &Id| loose.get(&classes.find(*id)).copied();
    let operands = |id: &Id| classes[classes.find(*id)].nodes.iter().flat_map(|n| &n.args).filter_map(of).max();
    node.args.iter().flat_map(|a| [of(a), operands(a)]).flatten().max().unwrap_or_default()
}

/// The node of a term's root: a new one, or the one that is there.
fn add(classes: &mut Classes, term: &Term) -> Id {
    match term {
        Term::Class(id) => *id,
        Term::Node(op, args) => {
            let mut class = |a: &Term| {
                let id = add(classes, a);
                classes.find(id)
            };
            let args = args.iter().map(&mut class).collect();
            classes.add_uncanonical(ENode::new(op.clone(), args))
        }
    }
}

/// True if some output needs each leaf.
fn uses_all_leaves(g: &Graph) -> bool {
    let mut live = vec![false; g.nodes.len()];
    for (_, v) in &g.outputs {
        live[v.index()] = true;
    }
    for i in (0..g.nodes.len()).rev() {
        if live[i] {
            g.nodes[i].args.iter().for_each(|a| live[a.index()] = true);
        }
    }
    live.into_iter().all(|l| l)
}
