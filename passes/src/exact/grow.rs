//! Grows candidates from every part of a body, by the moves of the greedy search: joining a neighbour, and computing what
//! a cheap neighbour makes once more.
//!
//! Parts are ops, and groups that the greedy search held on its way: a kernel of sixty ops is few steps away from groups of
//! ten. Every part founds sets of its own, the most promising first, up to a count.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use unglue_ir::graph::ValueId;

use super::reach::{Bits, Reach};
use crate::candidates::{self, Evaluator, GroupId, Partition};

/// Sets that are evaluated for one body and bucket, beside those of the greedy search.
pub const MAX_GROWN: u64 = 1200;
/// In a partition of so few groups, those that share nothing are joined too, and sets without a schedule grow on.
pub const ALL_PAIRS: usize = 10;

/// What growing did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Grown {
    pub evaluated: u64,
    /// Sets that were due when the count ran out.
    pub cut: u64,
}

/// Grows from the groups of each partition that are `wanted`. Results are left with the evaluator.
pub fn grow(
    reach: &Reach,
    evaluator: &mut Evaluator,
    partitions: &[Partition],
    max: u64,
    wanted: &dyn Fn(&BTreeSet<ValueId>) -> bool,
) -> Grown {
    let mut grown = Grown::default();
    for (i, parts) in partitions.iter().enumerate() {
        let left = (partitions.len() - i) as u64;
        let quota = max.saturating_sub(grown.evaluated) / left.max(1);
        let mut level = Level::new(reach, evaluator, parts);
        let from: Vec<GroupId> = level.parts.iter().filter(|(_, ops)| wanted(ops)).map(|(g, _)| *g).collect();
        for (s, &seed) in from.iter().enumerate() {
            let seeds = (from.len() - s) as u64;
            let share = quota.saturating_sub(level.done.evaluated).div_ceil(seeds.max(1));
            level.from(seed, share);
        }
        grown.evaluated += level.done.evaluated;
        grown.cut += level.done.cut;
    }
    grown
}

/// Parts, and those of them that are soft.
type Set = (BTreeSet<GroupId>, BTreeSet<GroupId>);

struct Level<'l, 'e> {
    reach: &'l Reach,
    evaluator: &'l mut Evaluator<'e>,
    parts: &'l BTreeMap<GroupId, BTreeSet<ValueId>>,
    neighbours: BTreeMap<GroupId, BTreeSet<GroupId>>,
    /// Parts that may be soft.
    cheap: BTreeSet<GroupId>,
    /// Cost of parts alone, once asked for.
    ns: BTreeMap<GroupId, i64>,
    seen: BTreeSet<Set>,
    exhaustive: bool,
    done: Grown,
}

/// Cost of a part without a schedule of its own.
const DEAR: i64 = 1_000_000_000;

impl<'l, 'e> Level<'l, 'e> {
    fn new(reach: &'l Reach, evaluator: &'l mut Evaluator<'e>, partition: &'l Partition) -> Level<'l, 'e> {
        let facts = evaluator.facts;
        let exhaustive = partition.groups.len() <= ALL_PAIRS;
        let mut level = Level {
            reach,
            parts: &partition.groups,
            neighbours: BTreeMap::new(),
            cheap: BTreeSet::new(),
            ns: BTreeMap::new(),
            seen: BTreeSet::new(),
            exhaustive,
            done: Grown::default(),
            evaluator,
        };
        for &g in partition.groups.keys() {
            let near = match exhaustive {
                true => partition.groups.keys().copied().filter(|n| *n != g).collect(),
                false => candidates::neighbours(facts, partition, g),
            };
            level.neighbours.insert(g, near);
            if candidates::may_spread(facts, level.evaluator.stores, partition, g) {
                level.cheap.insert(g);
            }
        }
        level
    }

    /// Cost of a part alone; dear if it has no schedule.
    fn ns(&mut self, part: GroupId) -> i64 {
        if let Some(known) = self.ns.get(&part) {
            return *known;
        }
        let alone = self.evaluator.evaluate_set(&self.parts[&part], &BTreeSet::new());
        let ns = alone.map_or(DEAR, |e| e.cost.total() as i64);
        self.ns.insert(part, ns);
        ns
    }

    /// Sets that hold `seed`, those that save most first.
    fn from(&mut self, seed: GroupId, share: u64) {
        self.ns(seed);
        let stop = self.done.evaluated + share;
        let mut heap: BinaryHeap<(i64, Reverse<Set>)> = BinaryHeap::new();
        heap.push((0, Reverse((BTreeSet::from([seed]), BTreeSet::new()))));
        while let Some((_, Reverse(set))) = heap.pop() {
            for next in self.steps(&set) {
                if self.seen.contains(&next) {
                    continue;
                }
                if self.done.evaluated >= stop {
                    self.done.cut += 1;
                    continue;
                }
                self.seen.insert(next.clone());
                self.done.evaluated += 1;
                if let Some(saved) = self.saved(&next) {
                    heap.push((saved, Reverse(next)));
                }
            }
            if self.done.evaluated >= stop {
                self.done.cut += heap.len() as u64;
                return;
            }
        }
    }

    /// The sets that are one move away: a neighbour joined, or a cheap one that is read computed once more.
    fn steps(&self, (parts, soft): &Set) -> Vec<Set> {
        let near: BTreeSet<GroupId> =
            parts.iter().flat_map(|g| &self.neighbours[g]).copied().filter(|n| !parts.contains(n)).collect();
        let mut sets = Vec::new();
        for &n in &near {
            let joined: BTreeSet<GroupId> = parts.iter().copied().chain([n]).collect();
            if self.cheap.contains(&n) && self.is_read(n, parts) {
                sets.push((joined.clone(), soft.iter().copied().chain([n]).collect()));
            }
            sets.push((joined, soft.clone()));
        }
        sets
    }

    fn is_read(&self, part: GroupId, by: &BTreeSet<GroupId>) -> bool {
        let facts = self.evaluator.facts;
        let from = &self.parts[&part];
        let mut readers = by.iter().flat_map(|g| &self.parts[g]);
        readers.any(|r| facts.reads(*r).iter().filter_map(|b| facts.maker(*b)).any(|m| from.contains(&m)))
    }

    /// What a set saves against its parts; none if it is not convex, or has no schedule.
    fn saved(&mut self, (parts, soft): &Set) -> Option<i64> {
        let mut ops: BTreeSet<ValueId> = BTreeSet::new();
        let mut soft_ops: BTreeSet<ValueId> = BTreeSet::new();
        let mut apart = 0;
        for g in parts.difference(soft) {
            ops.extend(&self.parts[g]);
            apart += self.ns(*g);
        }
        for g in soft.iter().rev() {
            let needed = candidates::needed_of(self.evaluator.facts, &self.parts[g], &ops);
            soft_ops.extend(&needed);
            ops.extend(needed);
        }
        let bits: (Bits, Bits) = (self.reach.bits(&ops), self.reach.bits(&soft_ops));
        if !self.reach.between(&bits.0, &bits.1).is_clear() {
            return self.exhaustive.then_some(-DEAR);
        }
        match self.evaluator.evaluate_set(&ops, &soft_ops) {
            Ok(e) => Some(apart - e.cost.total() as i64),
            Err(_) => self.exhaustive.then_some(-DEAR),
        }
    }
}
