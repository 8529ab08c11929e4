//! Candidates that are one part away from the greedy cover: the search joins a part where that gains most at the time, and
//! never takes it out again. Here what comes before an op of a kernel, and what comes behind it, is tried in every other
//! kernel instead, and so is what that leaves.

use std::collections::BTreeSet;

use unglue_ir::graph::ValueId;

use super::grow::Grown;
use super::pool::soft_of;
use super::reach::{Bits, Reach};
use crate::candidates::Evaluator;
use crate::search::Search;

/// Sets that are evaluated so for one body and bucket.
pub const MAX_SHIFTED: u64 = 2000;

/// A kernel of the greedy cover.
struct Group {
    ops: BTreeSet<ValueId>,
    soft: BTreeSet<ValueId>,
    ns: u64,
}

/// Evaluates kernels of the present cover without one of their parts, and with one of another's.
pub fn shift(reach: &Reach, search: &mut Search, max: u64) -> Grown {
    let groups = groups(search);
    let mut pricing = Pricing { reach, evaluator: &mut search.evaluator, max, done: Grown::default() };
    for (i, from) in groups.iter().enumerate() {
        let others: Vec<&Group> = groups.iter().enumerate().filter(|(j, _)| *j != i).map(|(_, g)| g).collect();
        for part in parts(reach, &from.ops) {
            if !part.is_disjoint(&from.soft) {
                continue;
            }
            let rest = &from.ops - &part;
            if pricing.price(&rest, &from.soft).is_none() {
                continue;
            }
            let mut with = |ops: &BTreeSet<ValueId>| {
                let price = |to: &&Group| pricing.price(&(&to.ops | ops), &to.soft).map(|ns| ns.saturating_sub(to.ns));
                others.iter().filter_map(price).min()
            };
            // Where the part costs less than the kernel that it leaves, it pays if the rest goes as well.
            if with(&part).is_some_and(|more| more < from.ns) {
                with(&rest);
            }
        }
    }
    pricing.done
}

/// What comes before each op of a kernel, and what comes behind it, with the op itself.
fn parts(reach: &Reach, ops: &BTreeSet<ValueId>) -> BTreeSet<BTreeSet<ValueId>> {
    let inside = reach.bits(ops);
    let part = |cone: &Bits, op: &ValueId| {
        let within = cone.intersection(&inside).map(|o| ValueId(o as u32));
        within.chain([*op]).collect::<BTreeSet<_>>()
    };
    let both = |op: &ValueId| [part(reach.above(*op), op), part(reach.below(*op), op)];
    ops.iter().flat_map(both).filter(|p| p.len() < ops.len()).collect()
}

fn groups(search: &mut Search) -> Vec<Group> {
    let mut groups = Vec::new();
    for (&g, ops) in &search.partition.groups {
        let Ok(e) = search.evaluator.evaluate(&search.partition, ops, &BTreeSet::from([g])) else { continue };
        let writes = e.carved.writes.iter().map(|(_, v)| *v).collect();
        groups.push(Group { ops: ops.clone(), soft: soft_of(search.facts, ops, &writes), ns: e.cost.total() });
    }
    groups
}

struct Pricing<'p, 'e> {
    reach: &'p Reach,
    evaluator: &'p mut Evaluator<'e>,
    max: u64,
    done: Grown,
}

impl Pricing<'_, '_> {
    /// Predicted ns of a set; none if it is not convex, without a schedule, or if the count has run out.
    fn price(&mut self, ops: &BTreeSet<ValueId>, soft: &BTreeSet<ValueId>) -> Option<u64> {
        let between = self.reach.between(&self.reach.bits(ops), &self.reach.bits(soft));
        if !between.is_clear() {
            return None;
        }
        if self.done.evaluated >= self.max {
            self.done.cut += 1;
            return None;
        }
        self.done.evaluated += 1;
        self.evaluator.evaluate_set(ops, soft).ok().map(|e| e.cost.total())
    }
}
