//! Which rules led from the declared values to the extracted form: those that *paid*.
//!
//! Saturation keeps a journal of the unions that rules made, between nodes. Nodes that became equal by congruence count as
//! one. A union paid if it lies on the shortest way from a declared value to the node that extraction chose for its class,
//! or if it made a chosen node of a class that holds no declared value. All ties go to the older union.
//!
//! From the same ways follows how exact each value is. A join has the class of its rule, or that of what stood in below its
//! node when it matched; a way leads from one class to another only where the form has the other stand in. The extracted
//! value of a declared one is as loose as the joins on its way. Where one form keeps a value and another takes a shortcut
//! around a rounding to it, the shortcut counts for those who read it: see [`Origins::touched`].

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;

use egg::{Id, Language};

use unglue_ir::graph::Graph;

use crate::analysis::{Classes, Others};
use crate::extract::Extracted;
use crate::kernel::Exactness;
use crate::language::ENode;

/// A union that a rule made, or a class that it found to stand in for another: the left one, by the right.
#[derive(Clone, Copy, Debug)]
struct Join {
    left: Id,
    right: Id,
    rule: usize,
    class: Exactness,
}

/// All joins of a saturation.
#[derive(Clone, Debug, Default)]
pub struct Journal {
    joins: Vec<Join>,
    /// By node: the union whose right side brought it in.
    makers: BTreeMap<Id, usize>,
}

/// What led where.
#[derive(Clone, Debug, Default)]
pub struct Origins {
    /// The rule of each union that paid.
    pub paid: Vec<usize>,
    /// By declared value: its value in the extracted form.
    pub became: Vec<Option<u32>>,
    /// By declared value whose form changed: the rules on the way.
    pub rewritten: BTreeMap<u32, Vec<usize>>,
    /// By value of the extracted form that stands for no declared one: the declared values that a rule made it from.
    pub made_from: BTreeMap<u32, Vec<u32>>,
    /// By declared value whose extracted form is not exact: the loosest class on the way, and of operands of a new form.
    pub loose: BTreeMap<u32, Exactness>,
    /// By extracted value: the loosest class that changed how it is computed, where that is not exact. It is not the value
    /// for a declared one that has an exact form there, it stands for an output, or it reads a value in place of a declared
    /// one that was another by that class. Where its form changed, any operand may have been the one: it counts.
    pub touched: BTreeMap<u32, Exactness>,
}

/// The oldest node of each canonical form.
pub fn node_ids(classes: &Classes) -> HashMap<ENode, Id> {
    let mut ids = HashMap::new();
    for (i, node) in classes.nodes().iter().enumerate() {
        ids.entry(canonical(classes, node)).or_insert(Id::from(i));
    }
    ids
}

fn canonical(classes: &Classes, node: &ENode) -> ENode {
    node.clone().map_children(|c| classes.find(c))
}

/// How loose a class or value is; exact if nothing is known of it.
fn of<K: Ord>(classes: &BTreeMap<K, Exactness>, key: &K) -> Exactness {
    classes.get(key).copied().unwrap_or_default()
}

/// Notes a class; exact ones need no note.
fn note(classes: &mut BTreeMap<u32, Exactness>, value: u32, class: Exactness) {
    if class > Exactness::Exact {
        let entry = classes.entry(value).or_default();
        *entry = class.max(*entry);
    }
}

impl Journal {
    /// Notes a union by `rule`, and the nodes that its right side added.
    pub fn join(&mut self, (left, right): (Id, Id), rule: usize, class: Exactness, added: Range<usize>) {
        self.makers.extend(added.map(|node| (Id::from(node), self.joins.len())));
        self.joins.push(Join { left, right, rule, class });
    }

    /// True if nothing says yet that the right class may stand in for the left one, which is another.
    pub fn stands_in_newly(&self, classes: &Classes, left: Id, right: Id) -> bool {
        let (left, right) = (classes.find(left), classes.find(right));
        let known = |j: &Join| (classes.find(j.left), classes.find(j.right)) == (left, right);
        left != right && !self.joins.iter().filter(|j| j.class > Exactness::Exact).any(known)
    }

    /// By class: those that may stand in for it, in the order in which they were found.
    pub fn others(&self, classes: &Classes) -> Others {
        let mut others = Others::new();
        for join in self.joins.iter().filter(|j| j.class > Exactness::Exact) {
            let (left, right) = (classes.find(join.left), classes.find(join.right));
            let of = others.entry(left).or_default();
            if left != right && of.iter().all(|(id, _)| *id != right) {
                of.push((right, join.class));
            }
        }
        others.retain(|_, of| !of.is_empty());
        others
    }

    /// `ids`: the nodes of the declared values.
    pub fn origins(&self, classes: &Classes, declared: &Graph, ids: &[Id], form: &Extracted) -> Origins {
        let map = Map::new(classes, &self.joins, &form.replaced);
        let mut found = Origins::default();
        let mut paid: BTreeSet<usize> = BTreeSet::new();
        let mut known: BTreeMap<Id, Vec<u32>> = BTreeMap::new();
        (0u32..).zip(ids).for_each(|(value, id)| known.entry(classes.find(*id)).or_default().push(value));
        // By class: how loose what stands in for it is, and what a rule brought in.
        let mut loose: BTreeMap<Id, Exactness> = BTreeMap::new();
        for (class, to) in &form.replaced {
            let way = self.joins.iter().filter(|j| (classes.find(j.left), classes.find(j.right)) == (*class, *to));
            loose.insert(*class, way.map(|j| j.class).min().unwrap_or_default());
        }
        // Operands come before their users.
        let mut order: Vec<_> = form.chosen.iter().filter(|(class, _)| !known.contains_key(class)).collect();
        order.sort_by_key(|(_, (_, now))| *now);
        for (class, (node, now)) in order {
            let Some(&first) = map.oldest.get(class) else { continue };
            let mut way = map.way(first, node);
            way.extend(self.makers.get(&first));
            let class_of_it = self.loosest(&way).max(loosest_operand(classes, node, &loose));
            if !form.replaced.contains_key(class) {
                found.made_from.insert(now.0, self.sources(&map, &known, *class));
                note(&mut found.touched, now.0, class_of_it);
            }
            let entry = loose.entry(*class).or_default();
            *entry = class_of_it.max(*entry);
            paid.extend(way);
        }
        for (value, &id) in (0u32..).zip(ids) {
            let Some((node, now)) = form.chosen.get(&classes.find(id)) else {
                found.became.push(None);
                continue;
            };
            found.became.push(Some(now.0));
            let way = map.way(id, node);
            note(&mut found.loose, value, self.loosest(&way));
            if !way.is_empty() {
                let before = loosest_declared(declared, value, &found.loose);
                note(&mut found.loose, value, loosest_operand(classes, node, &loose).max(before));
                found.rewritten.insert(value, way.iter().map(|j| self.joins[*j].rule).collect());
            }
            paid.extend(way);
        }
        found.paid = paid.into_iter().map(|j| self.joins[j].rule).collect();
        touch(&mut found, classes, declared, form);
        found
    }

    /// Declared values of the class that a rule had on its left side when it brought another class in.
    fn sources(&self, map: &Map, declared: &BTreeMap<Id, Vec<u32>>, mut class: Id) -> Vec<u32> {
        let mut seen = BTreeSet::new();
        while seen.insert(class) {
            if let Some(values) = declared.get(&class) {
                return values.clone();
            }
            let maker = map.oldest.get(&class).and_then(|first| self.makers.get(first));
            let Some(&join) = maker else { break };
            class = map.classes.find(self.joins[join].left);
        }
        vec![]
    }

    fn loosest(&self, way: &[usize]) -> Exactness {
        way.iter().map(|j| self.joins[*j].class).max().unwrap_or_default()
    }
}

/// The loosest operand of a form that is not the declared one: what stands in for one, and what came in with the form and
/// stands for no declared value.
fn loosest_operand(classes: &Classes, node: &ENode, known: &BTreeMap<Id, Exactness>) -> Exactness {
    node.args.iter().map(|a| of(known, &classes.find(*a))).max().unwrap_or_default()
}

/// The loosest of a declared value's operands and theirs: a form that a rule found through them may know them as they were.
fn loosest_declared(declared: &Graph, value: u32, loose: &BTreeMap<u32, Exactness>) -> Exactness {
    let args = |v: u32| declared.nodes[v as usize].args.iter().map(|a| a.0);
    args(value).flat_map(|a| args(a).chain([a])).map(|a| of(loose, &a)).max().unwrap_or_default()
}

/// Fills in what stands in [`Origins::touched`] for declared values and operands.
fn touch(found: &mut Origins, classes: &Classes, declared: &Graph, form: &Extracted) {
    if found.loose.is_empty() && found.touched.is_empty() {
        return;
    }
    let mut exact: BTreeSet<u32> = BTreeSet::new();
    // By extracted value: the loosest way to it.
    let mut arrived: BTreeMap<u32, Exactness> = BTreeMap::new();
    for (value, now) in (0u32..).zip(&found.became).filter_map(|(v, now)| Some((v, (*now)?))) {
        match of(&found.loose, &value) {
            Exactness::Exact => {
                exact.insert(now);
            }
            class => note(&mut arrived, now, class),
        }
    }
    let touched = &mut found.touched;
    arrived.iter().filter(|(now, _)| !exact.contains(now)).for_each(|(now, class)| note(touched, *now, *class));
    for (_, v) in &declared.outputs {
        if let Some(now) = found.became[v.index()] {
            note(touched, now, of(&found.loose, &v.0));
        }
    }
    let mut kept: BTreeSet<u32> = BTreeSet::new();
    for (value, now) in (0u32..).zip(&found.became).filter_map(|(v, now)| Some((v, (*now)?))) {
        if !found.rewritten.contains_key(&value) {
            kept.insert(now);
            let args = &declared.nodes[value as usize].args;
            args.iter().for_each(|a| note(touched, now, of(&found.loose, &a.0)));
        }
    }
    for (node, now) in form.chosen.values().filter(|(_, now)| !kept.contains(&now.0)) {
        let args = node.args.iter().filter_map(|a| form.chosen.get(&classes.find(*a)));
        args.for_each(|(_, arg)| note(touched, now.0, of(&arrived, &arg.0)));
    }
}

/// Nodes, and the unions between them.
struct Map<'a> {
    classes: &'a Classes,
    nodes: HashMap<ENode, Id>,
    /// Unions at each node, by number, and the node on the other side.
    joins: BTreeMap<Id, Vec<(usize, Id)>>,
    /// The oldest node of each class.
    oldest: BTreeMap<Id, Id>,
}

impl<'a> Map<'a> {
    /// `replaced`: classes for which another stands in.
    fn new(classes: &'a Classes, all: &[Join], replaced: &BTreeMap<Id, Id>) -> Map<'a> {
        let mut oldest = BTreeMap::new();
        for id in (0..classes.nodes().len()).map(Id::from) {
            oldest.entry(classes.find(id)).or_insert(id);
        }
        let mut map = Map { classes, nodes: node_ids(classes), joins: BTreeMap::new(), oldest };
        for (number, join) in all.iter().enumerate() {
            let sides = (classes.find(join.left), classes.find(join.right));
            let (left, right) = (map.one(join.left), map.one(join.right));
            let exact = join.class == Exactness::Exact;
            if exact || replaced.get(&sides.0) == Some(&sides.1) {
                map.joins.entry(left).or_default().push((number, right));
            }
            if exact {
                map.joins.entry(right).or_default().push((number, left));
            }
        }
        map
    }

    /// The one of all congruent nodes that stands for them.
    fn one(&self, id: Id) -> Id {
        let node = canonical(self.classes, self.classes.id_to_node(id));
        self.nodes.get(&node).copied().unwrap_or(id)
    }

    /// Unions on the shortest way from one node to another of its class.
    fn way(&self, from: Id, to: &ENode) -> Vec<usize> {
        let start = self.one(from);
        let Some(&goal) = self.nodes.get(&canonical(self.classes, to)) else { return vec![] };
        let mut before: BTreeMap<Id, (usize, Id)> = BTreeMap::new();
        let mut todo = VecDeque::from([start]);
        while let Some(at) = todo.pop_front() {
            if at == goal {
                break;
            }
            for &(join, next) in self.joins.get(&at).into_iter().flatten() {
                if next != start && !before.contains_key(&next) {
                    before.insert(next, (join, at));
                    todo.push_back(next);
                }
            }
        }
        let mut way = Vec::new();
        let mut at = goal;
        while let Some(&(join, previous)) = before.get(&at).filter(|_| at != start) {
            way.push(join);
            at = previous;
        }
        way.reverse();
        way
    }
}
