//! Saturation: applies the rules to a body until nothing new appears or a count runs out. Never a time limit.
//!
//! Values of one class have equal bits: exact rules join classes. A rule that changes bits joins nothing; what it finds is
//! another class that may *stand in* for the one it matched. So a value and its rounded form stay two, readers of either
//! choose, and each rounding is kept or left out by itself. A rule that only matches through what may stand in is as loose
//! as that.

use std::collections::{BTreeMap, BTreeSet};

use egg::{EGraph, Id};
use schemars::JsonSchema;
use serde::Serialize;
use unglue_ir::graph::{Graph, Node, ValueId};
use unglue_ir::op::Op;

use crate::analysis::{Classes, Others, Types, View};
use crate::choice::ChoiceStats;
use crate::error::PassError;
use crate::extract::{self, Extracted, Options, Picks};
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
    /// Unions that each rule made, and classes that may stand in for others by it.
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
    /// How the form was chosen together with the kernels, if it was.
    pub choice: Option<ChoiceStats>,
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
    let saturated = saturate(body, rules, limits)?;
    saturated.form(&saturated.greedy())
}

/// A body with all forms that the rules found.
pub struct Saturated {
    /// The body, its bodies of `repeat` rewritten.
    pub declared: Graph,
    pub classes: Classes,
    /// By declared value: its node.
    pub ids: Vec<Id>,
    /// What each class can be.
    pub options: Options,
    journal: Journal,
    rules: Vec<Rule>,
    /// What is known before a form is chosen.
    stats: SaturationStats,
}

/// Applies rules to a body.
///
/// # Errors
/// As [`optimise`].
pub fn saturate(body: &Graph, rules: &[Rule], limits: &Limits) -> Result<Saturated, PassError> {
    let mut declared = body.clone();
    let mut stats =
        SaturationStats { body: body.name.clone(), nodes_in: body.nodes.len() as u64, ..Default::default() };
    for inner in &mut declared.bodies {
        let (better, of_inner) = optimise_with(inner, rules, limits)?;
        *inner = better;
        stats.repeats.push(of_inner);
    }
    let (mut classes, ids) = classes_of(&declared);
    let journal = run(&mut classes, rules, limits, &mut stats)?;
    stats.cost_in = extract::graph_cost(&declared);
    let options = extract::options(&classes, &journal.others(&classes));
    Ok(Saturated { declared, classes, ids, options, journal, rules: rules.to_vec(), stats })
}

impl Saturated {
    /// The cheapest form by arithmetic.
    pub fn greedy(&self) -> Picks {
        extract::choose(&self.classes, &self.options, &extract::node_cost)
    }

    /// A form as a graph with what is known of its classes; the declared form instead where that is no dearer, or where a
    /// leaf would be left out, as the statistics then say.
    ///
    /// # Errors
    /// As [`optimise`].
    pub fn form(&self, picks: &Picks) -> Result<(Graph, SaturationStats), PassError> {
        let found = self.extract(picks)?;
        let mut stats = self.stats.clone();
        stats.cost_out = extract::graph_cost(&found.graph);
        stats.kept_declared = !uses_all_leaves(&found.graph) || stats.cost_out > stats.cost_in;
        let mut result = (self.declared.clone(), stats);
        match result.1.kept_declared {
            true => result.1.became = (0..self.declared.nodes.len() as u32).map(Some).collect(),
            false => result = (found.graph.clone(), self.told(&found, result.1)),
        }
        note_repeats(&mut result.1, &self.declared);
        result.1.nodes_out = result.0.nodes.len() as u64;
        Ok(result)
    }

    /// A form that need not be cheap in arithmetic; none if it leaves out a leaf.
    ///
    /// # Errors
    /// As [`optimise`].
    pub fn whole_form(&self, picks: &Picks) -> Result<Option<(Extracted, SaturationStats)>, PassError> {
        let found = self.extract(picks)?;
        if !uses_all_leaves(&found.graph) {
            return Ok(None);
        }
        let cost_out = extract::graph_cost(&found.graph);
        let mut stats = self.told(&found, SaturationStats { cost_out, ..self.stats.clone() });
        note_repeats(&mut stats, &self.declared);
        stats.nodes_out = found.graph.nodes.len() as u64;
        Ok(Some((found, stats)))
    }

    /// # Errors
    /// As [`optimise`].
    pub fn extract(&self, picks: &Picks) -> Result<Extracted, PassError> {
        extract::extract(&self.declared, &self.classes, &self.ids, picks)
    }

    /// The loosest rewrite that was found.
    pub fn loosest(&self) -> Exactness {
        let repeats = self.stats.repeats.iter().flat_map(|r| &r.fired).chain(&self.stats.fired);
        let class = |(name, _): (&String, &u64)| self.rules.iter().find(|r| r.name == *name).map(|r| r.class);
        repeats.filter_map(class).max().unwrap_or_default()
    }

    fn told(&self, found: &Extracted, mut stats: SaturationStats) -> SaturationStats {
        let origins = self.journal.origins(&self.classes, &self.declared, &self.ids, found);
        let name = |rule: usize| self.rules[rule].name.to_owned();
        origins.paid.into_iter().for_each(|rule| *stats.paid.entry(name(rule)).or_default() += 1);
        (stats.became, stats.loose, stats.touched) = (origins.became, origins.loose, origins.touched);
        stats.made_from = origins.made_from;
        stats.rewritten = origins.rewritten.into_iter().map(|(v, r)| (v, r.into_iter().map(name).collect())).collect();
        stats
    }
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

fn run(
    classes: &mut Classes,
    rules: &[Rule],
    limits: &Limits,
    stats: &mut SaturationStats,
) -> Result<Journal, PassError> {
    let mut journal = Journal::default();
    stats.stop = Stop::Iterations;
    let size = |classes: &Classes, journal: &Journal| {
        let others: usize = journal.others(classes).values().map(Vec::len).sum();
        (classes.total_number_of_nodes(), classes.number_of_classes(), others)
    };
    for _ in 0..limits.iterations {
        stats.iterations += 1;
        let others = journal.others(classes);
        let matches = search(classes, rules, &others);
        let before = size(classes, &journal);
        for Match { rule, left, term, class } in matches {
            let from = classes.nodes().len();
            let right = add(classes, &term);
            let new = match class {
                Exactness::Exact => classes.union(left, right),
                _ => journal.stands_in_newly(classes, left, right),
            };
            if new {
                journal.join((left, right), rule, class, from..classes.nodes().len());
                *stats.fired.entry(rules[rule].name.to_owned()).or_default() += 1;
            }
            if let Some(fault) = &classes.analysis.fault {
                let hint = "the rule is wrong: its two sides have different types or constants";
                return Err(PassError::rewrite("rule-type", rules[rule].name, fault.clone(), hint));
            }
            if class > Exactness::Exact && classes[left].data.ty != classes[right].data.ty {
                let hint = "the rule is wrong: its two sides have different types";
                return Err(PassError::rewrite("rule-type", rules[rule].name, "two types", hint));
            }
        }
        classes.rebuild();
        if size(classes, &journal) == before {
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
    /// That of the rule, or of what stood in below the node when it matched.
    class: Exactness,
}

/// All matches of all rules, in the order of classes, rules and nodes.
fn search(classes: &Classes, rules: &[Rule], others: &Others) -> Vec<Match> {
    let (exact, wide) = (View::exact(classes), View { classes, others: Some(others) });
    let numbers = node_ids(classes);
    let ids: BTreeSet<Id> = classes.classes().map(|c| c.id).collect();
    let mut found = Vec::new();
    for id in ids {
        let mut nodes: Vec<&ENode> = classes[id].nodes.iter().collect();
        nodes.sort();
        let below: Vec<Exactness> = nodes.iter().map(|n| below(wide, n)).collect();
        for (rule, r) in rules.iter().enumerate() {
            for (node, below) in nodes.iter().zip(&below) {
                let left = numbers.get(*node).copied().unwrap_or(id);
                let plain = (r.find)(exact, node);
                let more = if *below > Exactness::Exact { (r.find)(wide, node) } else { vec![] };
                let more: Vec<Term> = more.into_iter().filter(|t| !plain.contains(t)).collect();
                found.extend(plain.into_iter().map(|term| Match { rule, left, term, class: r.class }));
                let class = r.class.max(*below);
                found.extend(more.into_iter().map(|term| Match { rule, left, term, class }));
            }
        }
    }
    found
}

/// The loosest of what may stand in for operands of a node and for theirs: no rule looks further.
fn below(view: View, node: &ENode) -> Exactness {
    let Some(others) = view.others.filter(|o| !o.is_empty()) else { return Exactness::Exact };
    let of =
        |id: Id| view.reach(id).into_iter().filter_map(|c| others.get(&c)).flatten().map(|(_, class)| *class).max();
    let operands = |id: &Id| view.nodes(*id).flat_map(|n| n.args.iter().copied()).filter_map(of).max();
    node.args.iter().flat_map(|a| [of(*a), operands(a)]).flatten().max().unwrap_or_default()
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
pub(crate) fn uses_all_leaves(g: &Graph) -> bool {
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
