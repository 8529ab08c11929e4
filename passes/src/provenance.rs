//! Which rules led from the declared values to the extracted form: those that *paid*.
//!
//! Saturation keeps a journal of the unions that rules made, between nodes. Nodes that became equal by congruence count as
//! one. A union paid if it lies on the shortest way from a declared value to the node that extraction chose for its class,
//! or if it made a chosen node of a class that holds no declared value. All ties go to the older union.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::ops::Range;

use egg::{Id, Language};

use crate::analysis::Classes;
use crate::extract::Chosen;
use crate::language::ENode;

/// A union that a rule made.
#[derive(Clone, Copy, Debug)]
struct Join {
    left: Id,
    right: Id,
    rule: usize,
}

/// All unions of a saturation.
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

impl Journal {
    /// Notes a union by `rule`, and the nodes that its right side added.
    pub fn join(&mut self, left: Id, right: Id, rule: usize, added: Range<usize>) {
        self.makers.extend(added.map(|node| (Id::from(node), self.joins.len())));
        self.joins.push(Join { left, right, rule });
    }

    /// `declared`: the nodes of the declared values.
    pub fn origins(&self, classes: &Classes, declared: &[Id], chosen: &Chosen) -> Origins {
        let map = Map::new(classes, &self.joins);
        let mut found = Origins::default();
        let mut paid: BTreeSet<usize> = BTreeSet::new();
        let mut known: BTreeMap<Id, Vec<u32>> = BTreeMap::new();
        for (value, &id) in (0u32..).zip(declared) {
            let class = classes.find(id);
            known.entry(class).or_default().push(value);
            let Some((node, now)) = chosen.get(&class) else {
                found.became.push(None);
                continue;
            };
            found.became.push(Some(now.0));
            let way = map.way(id, node);
            if !way.is_empty() {
                found.rewritten.insert(value, way.iter().map(|j| self.joins[*j].rule).collect());
            }
            paid.extend(way);
        }
        for (class, (node, now)) in chosen.iter().filter(|(class, _)| !known.contains_key(class)) {
            let Some(&first) = map.oldest.get(class) else { continue };
            found.made_from.insert(now.0, self.sources(&map, &known, *class));
            paid.extend(self.makers.get(&first));
            paid.extend(map.way(first, node));
        }
        found.paid = paid.into_iter().map(|j| self.joins[j].rule).collect();
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
    fn new(classes: &'a Classes, all: &[Join]) -> Map<'a> {
        let mut oldest = BTreeMap::new();
        for id in (0..classes.nodes().len()).map(Id::from) {
            oldest.entry(classes.find(id)).or_insert(id);
        }
        let mut map = Map { classes, nodes: node_ids(classes), joins: BTreeMap::new(), oldest };
        for (number, join) in all.iter().enumerate() {
            let (left, right) = (map.one(join.left), map.one(join.right));
            map.joins.entry(left).or_default().push((number, right));
            map.joins.entry(right).or_default().push((number, left));
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
