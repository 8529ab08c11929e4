//! Groups of ops that may become kernels: which partitions are acyclic, which unions are worth asking for, and what a
//! union gains.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use unglue_ir::graph::ValueId;
use unglue_ir::op::Op;

use crate::carve::{Carved, Stores, carve, with_stores};
use crate::cost::{CostTable, KernelCost, kernel_cost};
use crate::facts::Facts;
use crate::schedule::{Bucket, NEEDS_OUTPUT, Obstacle, Schedule, exchanged_without_output, rename_values, schedule};
use crate::traffic::{leaf_bytes, tensor_bytes};

/// A group by its number: the smallest op that founded it.
pub type GroupId = ValueId;

/// The ops of the body, dealt to groups. An op stands in several groups only if each of its readers does too.
#[derive(Clone, Debug, Default)]
pub struct Partition {
    pub groups: BTreeMap<GroupId, BTreeSet<ValueId>>,
    holders: BTreeMap<ValueId, BTreeSet<GroupId>>,
}

impl Partition {
    /// One group per op.
    pub fn singles(facts: &Facts) -> Partition {
        let mut p = Partition::default();
        for op in facts.ops() {
            p.insert(op, BTreeSet::from([op]));
        }
        p
    }

    pub fn insert(&mut self, id: GroupId, ops: BTreeSet<ValueId>) {
        for op in &ops {
            self.holders.entry(*op).or_default().insert(id);
        }
        self.groups.insert(id, ops);
    }

    pub fn remove(&mut self, id: GroupId) -> BTreeSet<ValueId> {
        let ops = self.groups.remove(&id).unwrap_or_default();
        for op in &ops {
            if let Some(set) = self.holders.get_mut(op) {
                set.remove(&id);
            }
        }
        ops
    }

    /// Groups that compute an op, ascending.
    pub fn holders(&self, op: ValueId) -> impl Iterator<Item = GroupId> + '_ {
        self.holders.get(&op).into_iter().flatten().copied()
    }

    pub fn is_recomputed(&self, op: ValueId) -> bool {
        self.holders.get(&op).is_some_and(|h| h.len() > 1)
    }

    /// Successors of each group: readers of its values, and writers of states that it reads.
    pub fn edges(&self, facts: &Facts) -> BTreeMap<GroupId, BTreeSet<GroupId>> {
        let mut edges: BTreeMap<GroupId, BTreeSet<GroupId>> =
            self.groups.keys().map(|g| (*g, BTreeSet::new())).collect();
        for (&g, ops) in &self.groups {
            for maker in ops.iter().flat_map(|op| facts.reads(*op)).filter_map(|b| facts.maker(*b)) {
                if ops.contains(&maker) {
                    continue;
                }
                for from in self.holders(maker) {
                    edges.entry(from).or_default().insert(g);
                }
            }
        }
        for &(reader, writer) in facts.order() {
            for from in self.holders(reader) {
                for to in self.holders(writer).filter(|to| *to != from) {
                    edges.entry(from).or_default().insert(to);
                }
            }
        }
        edges
    }

    /// True if `from` reaches `to` through at least one other group.
    pub fn reaches_around(edges: &BTreeMap<GroupId, BTreeSet<GroupId>>, from: GroupId, to: GroupId) -> bool {
        let next = |g: GroupId| edges.get(&g).into_iter().flatten().copied();
        let mut todo: Vec<GroupId> = next(from).filter(|g| *g != to).collect();
        let mut seen: BTreeSet<GroupId> = todo.iter().copied().collect();
        while let Some(g) = todo.pop() {
            for n in next(g) {
                if n == to {
                    return true;
                }
                if n != from && seen.insert(n) {
                    todo.push(n);
                }
            }
        }
        false
    }

    /// True if making `a` and `b` one group closes no cycle.
    pub fn may_join(edges: &BTreeMap<GroupId, BTreeSet<GroupId>>, a: GroupId, b: GroupId) -> bool {
        !Self::reaches_around(edges, a, b) && !Self::reaches_around(edges, b, a)
    }
}

/// A change of the partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Move {
    /// Two groups become one.
    Join(GroupId, GroupId),
    /// A group is computed inside each of its readers instead.
    Spread(GroupId),
}

/// What a move is worth.
#[derive(Clone, Debug, PartialEq)]
pub enum Worth {
    /// Predicted ns that it saves, and those of the groups as they are.
    Gain {
        ns: i64,
        apart_ns: i64,
    },
    Obstacle(Obstacle),
}

/// A group with its schedule and cost.
#[derive(Clone, Debug)]
pub struct Evaluated {
    pub carved: Carved,
    pub schedule: Schedule,
    pub cost: KernelCost,
}

type Key = (Vec<ValueId>, Vec<ValueId>);

/// Evaluates op sets; results are kept, since the search asks for the same sets again and again.
#[derive(Debug)]
pub struct Evaluator<'a> {
    pub facts: &'a Facts<'a>,
    pub stores: &'a Stores,
    bucket: Bucket,
    table: &'a CostTable,
    known: BTreeMap<Key, Result<Arc<Evaluated>, Obstacle>>,
    /// Refusals by rule.
    pub obstacles: BTreeMap<String, u64>,
}

impl<'a> Evaluator<'a> {
    pub fn new(facts: &'a Facts<'a>, stores: &'a Stores, bucket: &Bucket, table: &'a CostTable) -> Self {
        Evaluator { facts, stores, bucket: *bucket, table, known: BTreeMap::new(), obstacles: BTreeMap::new() }
    }

    /// One that knows nothing yet.
    pub fn fresh(&self) -> Evaluator<'a> {
        Evaluator::new(self.facts, self.stores, &self.bucket, self.table)
    }

    /// Sets whose schedule was asked for.
    pub fn candidates(&self) -> u64 {
        self.known.len() as u64
    }

    /// All sets with a schedule so far: ops, stored values, and ns with the gap.
    pub fn legal(&self) -> impl Iterator<Item = (&[ValueId], &[ValueId], u64)> {
        let known = self.known.iter().filter_map(|(key, e)| Some((key, e.as_ref().ok()?)));
        known.map(|((ops, writes), e)| (ops.as_slice(), writes.as_slice(), e.cost.total()))
    }

    /// Schedule and cost of `ops` as one kernel, while the groups `gone` no longer exist.
    pub fn evaluate(
        &mut self,
        p: &Partition,
        ops: &BTreeSet<ValueId>,
        gone: &BTreeSet<GroupId>,
    ) -> Result<Arc<Evaluated>, Obstacle> {
        let facts = self.facts;
        let escapes = |op: ValueId, b: ValueId| {
            // A reader that is inside may be in another group as well, which then needs the stored value.
            let elsewhere = |g: GroupId| !gone.contains(&g) && !p.groups[&g].contains(&op);
            facts.readers(b).iter().any(|r| p.holders(*r).any(elsewhere))
        };
        let writes = self.stores.writes(facts, ops, escapes);
        self.weigh(ops, writes)
    }

    /// Schedule and cost of `ops` as one kernel in a cover where every other kernel that needs a `soft` op computes it, and
    /// no other kernel computes any op of the rest.
    pub fn evaluate_set(
        &mut self,
        ops: &BTreeSet<ValueId>,
        soft: &BTreeSet<ValueId>,
    ) -> Result<Arc<Evaluated>, Obstacle> {
        let facts = self.facts;
        let elsewhere = |r: &ValueId| !ops.contains(r) || soft.contains(r);
        let escapes = |op: ValueId, b: ValueId| !soft.contains(&op) && facts.readers(b).iter().any(elsewhere);
        let writes = self.stores.writes(facts, ops, escapes);
        self.weigh(ops, writes)
    }

    /// Bytes of activations that a kernel reads and stores, each once.
    pub fn activation_bytes(&self, kernel: &Evaluated) -> u64 {
        let g = &kernel.carved.graph;
        let stored = g.outputs.iter().filter_map(|(_, v)| g.ty(*v).tensor());
        leaf_bytes(g, &self.bucket).1 + stored.map(|t| tensor_bytes(t, &self.bucket)).sum::<u64>()
    }

    fn weigh(&mut self, ops: &BTreeSet<ValueId>, writes: Vec<(String, ValueId)>) -> Result<Arc<Evaluated>, Obstacle> {
        let key: Key = (ops.iter().copied().collect(), writes.iter().map(|(_, v)| *v).collect());
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let result = self.scheduled(ops, writes).map(|(carved, schedule)| {
            let cost = kernel_cost(&carved.graph, &schedule, &self.bucket, self.table);
            Arc::new(Evaluated { carved, schedule, cost })
        });
        if let Err(o) = &result {
            *self.obstacles.entry(o.rule.to_owned()).or_default() += 1;
        }
        self.known.insert(key, result.clone());
        result
    }

    /// A kernel's graph with its schedule; what its workgroups exchange is stored as well.
    fn scheduled(
        &self,
        ops: &BTreeSet<ValueId>,
        writes: Vec<(String, ValueId)>,
    ) -> Result<(Carved, Schedule), Obstacle> {
        let mut carved = carve(self.facts, ops, writes);
        let mut found = schedule(&carved.graph, &self.bucket);
        if matches!(&found, Err(o) if o.rule == NEEDS_OUTPUT) {
            match exchanged_without_output(&carved.graph) {
                Ok(more) => {
                    carved = with_stores(self.facts, ops, carved, &more);
                    found = schedule(&carved.graph, &self.bucket);
                }
                Err(o) => found = Err(o),
            }
        }
        match found {
            Ok(schedule) => Ok((carved, schedule)),
            Err(o) => Err(Obstacle { detail: in_body(self.facts, &o.detail, &carved.values), ..o }),
        }
    }

    fn cost_of(&mut self, p: &Partition, g: GroupId) -> Result<i64, Obstacle> {
        let ops = p.groups.get(&g).cloned().unwrap_or_default();
        Ok(self.evaluate(p, &ops, &BTreeSet::from([g]))?.cost.total() as i64)
    }

    /// What a move gains; groups without a schedule of their own count as very dear.
    pub fn worth(&mut self, p: &Partition, mv: Move) -> Worth {
        match self.before_and_after(p, mv) {
            Ok((apart_ns, ns)) => Worth::Gain { ns: apart_ns - ns, apart_ns },
            Err(o) => Worth::Obstacle(o),
        }
    }

    /// Predicted ns of the groups that a move changes, as they are and behind it.
    fn before_and_after(&mut self, p: &Partition, mv: Move) -> Result<(i64, i64), Obstacle> {
        match mv {
            Move::Join(a, b) => {
                let union: BTreeSet<ValueId> = p.groups[&a].union(&p.groups[&b]).copied().collect();
                let joined = self.evaluate(p, &union, &BTreeSet::from([a, b]))?.cost.total() as i64;
                Ok((self.dear(p, a) + self.dear(p, b), joined))
            }
            Move::Spread(g) => {
                let ops = p.groups[&g].clone();
                let (mut apart, mut spread) = (self.dear(p, g), 0);
                for reader in readers_of_group(self.facts, p, g) {
                    let mut union = p.groups[&reader].clone();
                    union.extend(needed_of(self.facts, &ops, &union));
                    spread += self.evaluate(p, &union, &BTreeSet::from([g, reader]))?.cost.total() as i64;
                    apart += self.dear(p, reader);
                }
                Ok((apart, spread))
            }
        }
    }

    fn dear(&mut self, p: &Partition, g: GroupId) -> i64 {
        self.cost_of(p, g).unwrap_or(1_000_000_000)
    }
}

/// A detail whose `%numbers` count in a carved graph, with the ops of the body.
fn in_body(facts: &Facts, detail: &str, values: &[ValueId]) -> String {
    rename_values(detail, |n| values.get(n).map(|v| op_text(facts, *v)))
}

/// Groups that read values of `g`, ascending.
pub fn readers_of_group(facts: &Facts, p: &Partition, g: GroupId) -> BTreeSet<GroupId> {
    let ops = &p.groups[&g];
    let results = ops.iter().flat_map(|op| facts.results(*op));
    let readers = results.flat_map(|b| facts.readers(*b)).filter(|r| !ops.contains(r));
    readers.flat_map(|r| p.holders(*r)).filter(|h| *h != g).collect()
}

/// Ops of `from` that `reader` needs, through other ops of `from` too.
pub fn needed_of(facts: &Facts, from: &BTreeSet<ValueId>, reader: &BTreeSet<ValueId>) -> BTreeSet<ValueId> {
    let makers =
        |op: &ValueId| facts.reads(*op).iter().filter_map(|b| facts.maker(*b)).filter(|m| from.contains(m)).collect();
    let mut todo: Vec<ValueId> = reader.iter().flat_map(|op| -> Vec<ValueId> { makers(op) }).collect();
    let mut needed = BTreeSet::new();
    while let Some(op) = todo.pop() {
        if needed.insert(op) {
            todo.extend(makers(&op));
        }
    }
    needed
}

/// True if a group may be computed several times: elementwise glue without state, whose values are no results.
pub fn may_spread(facts: &Facts, stores: &Stores, p: &Partition, g: GroupId) -> bool {
    p.groups[&g].iter().all(|op| {
        let node = facts.body.node(*op);
        let cheap = matches!(node.op, Op::Cast(_) | Op::Unary(_) | Op::Binary(_));
        cheap && !stores.holds(facts, *op)
    }) && ops_are_few(p, g)
}

/// A chain longer than this is a kernel's worth of work.
fn ops_are_few(p: &Partition, g: GroupId) -> bool {
    p.groups[&g].len() <= 12
}

/// Groups that share a value with `g`: those it reads from, those that read from it, and those that read an activation
/// that it reads too.
pub fn neighbours(facts: &Facts, p: &Partition, g: GroupId) -> BTreeSet<GroupId> {
    let mut found = BTreeSet::new();
    for b in p.groups[&g].iter().flat_map(|op| facts.reads(*op)) {
        if matches!(facts.body.node(*b).op, Op::Weight { .. }) {
            continue;
        }
        if let Some(maker) = facts.maker(*b) {
            found.extend(p.holders(maker));
        }
        found.extend(facts.readers(*b).iter().flat_map(|r| p.holders(*r)));
    }
    found.extend(readers_of_group(facts, p, g));
    found.remove(&g);
    found
}

/// Short text of an op for steps and messages.
pub fn op_text(facts: &Facts, id: ValueId) -> String {
    let node = facts.body.node(id);
    format!("{}%{}", node.op.name(), id.0)
}
