//! Candidates: op sets that can be kernels, each with what it stores and costs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use unglue_ir::graph::ValueId;

use super::reach::{Bits, Reach};
use crate::candidates::{Evaluated, Evaluator};
use crate::facts::Facts;

/// What a candidate has to do with other forms of its body.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Across {
    /// Ops whose values it stores.
    pub stores: Bits,
    /// Numbers of the body's outputs that it stores.
    pub outputs: Bits,
    /// Numbers of the picks that it takes for granted, ascending.
    pub picks: Vec<usize>,
}

/// An op set with a schedule.
///
/// A *soft* op is computed by every kernel that needs it and stored by none; any other op of a cover is *solid*: one
/// kernel computes it, and stores what others read.
#[derive(Clone, Debug, Default)]
pub struct Candidate {
    pub ops: Bits,
    pub soft: Bits,
    /// Ops outside that come directly before one inside.
    pub needs: Bits,
    /// Those of them whose values it reads.
    pub reads: Bits,
    /// What it is among several forms of a body; see [`super::joint`].
    pub across: Across,
    /// Kernel and gap.
    pub ns: u64,
    /// Bytes of activations that it reads and stores.
    pub bytes: u64,
    /// What the evaluator found; none in tests.
    pub kernel: Option<Arc<Evaluated>>,
}

impl Candidate {
    pub fn is_solid(&self, op: usize) -> bool {
        self.ops.contains(op) && !self.soft.contains(op)
    }
}

/// The candidates of a body, ascending by their ops.
#[derive(Clone, Debug, Default)]
pub struct Pool {
    pub list: Vec<Candidate>,
    /// Left out: another choice of candidates does the same for less.
    pub dominated: u64,
}

/// Op sets by their ops and soft ops: kernel, bytes of activations, and whether they must stay.
type Found = BTreeMap<(Vec<usize>, Vec<usize>), (Arc<Evaluated>, u64, bool)>;

/// All convex sets that the evaluator knows a schedule of; `kept` are never left out.
pub fn pool(reach: &Reach, evaluator: &mut Evaluator, kept: &[(Bits, Bits)]) -> Pool {
    let numbers = |bits: &Bits| bits.ones().collect::<Vec<_>>();
    let must: BTreeSet<_> = kept.iter().map(|(ops, soft)| (numbers(ops), numbers(soft))).collect();
    let mut sets: BTreeSet<(BTreeSet<ValueId>, BTreeSet<ValueId>)> = BTreeSet::new();
    for (ops, writes, _) in evaluator.legal() {
        let ops: BTreeSet<ValueId> = ops.iter().copied().collect();
        let soft = soft_of(evaluator.facts, &ops, &writes.iter().copied().collect());
        sets.insert((ops, soft));
    }
    let mut found: Found = BTreeMap::new();
    for (ops, soft) in sets {
        let bits = (reach.bits(&ops), reach.bits(&soft));
        if !reach.between(&bits.0, &bits.1).is_clear() {
            continue;
        }
        // The search asks for sets that store more than others read, too: the price is that of what they must store.
        if let Ok(e) = evaluator.evaluate_set(&ops, &soft) {
            let key = (numbers(&bits.0), numbers(&bits.1));
            let keep = must.contains(&key);
            let bytes = evaluator.activation_bytes(&e);
            found.insert(key, (e, bytes, keep));
        }
    }
    prune(reach, found)
}

/// An evaluated set among the candidates of its body.
pub fn candidate(reach: &Reach, ops: Bits, soft: Bits, e: &Arc<Evaluated>, bytes: u64) -> Candidate {
    let (needs, reads) = (reach.needs(&ops), reach.reads(&ops));
    let (across, kernel) = (Across::default(), Some(e.clone()));
    Candidate { needs, reads, soft, ops, ns: e.cost.total(), bytes, across, kernel }
}

/// Ops whose values others need and this set does not store: each of their readers computes them.
pub fn soft_of(facts: &Facts, ops: &BTreeSet<ValueId>, writes: &BTreeSet<ValueId>) -> BTreeSet<ValueId> {
    let mut soft = BTreeSet::new();
    for &op in ops.iter().rev() {
        let elsewhere = |r: &ValueId| !ops.contains(r) || soft.contains(r);
        let lost = |b: &ValueId| !writes.contains(b) && facts.readers(*b).iter().any(elsewhere);
        if facts.results(op).iter().any(lost) {
            soft.insert(op);
        }
    }
    soft
}

fn prune(reach: &Reach, found: Found) -> Pool {
    let n = reach.before.len();
    let bits = |list: &[usize]| {
        let mut b = Bits::with_capacity(n);
        b.extend(list.iter().copied());
        b
    };
    let all: Vec<(Candidate, bool)> = found
        .iter()
        .map(|((ops, soft), (e, bytes, keep))| (candidate(reach, bits(ops), bits(soft), e, *bytes), *keep))
        .collect();
    let by_ops: BTreeMap<(&Bits, &Bits), usize> =
        all.iter().enumerate().map(|(i, (c, _))| ((&c.ops, &c.soft), i)).collect();
    let mut pool = Pool::default();
    for (c, keep) in &all {
        let worse = !keep && c.ops.count_ones(..) > 1 && all.iter().any(|(part, _)| splits(&all, &by_ops, c, part));
        if worse {
            pool.dominated += 1;
        } else {
            pool.list.push(c.clone());
        }
    }
    pool
}

/// True if `part` and another candidate together are `c`, cost less, and one of them can run first.
fn splits(
    all: &[(Candidate, bool)],
    by_ops: &BTreeMap<(&Bits, &Bits), usize>,
    c: &Candidate,
    part: &Candidate,
) -> bool {
    if part.ns >= c.ns || part.ops == c.ops || !part.ops.is_subset(&c.ops) {
        return false;
    }
    let inside = |bits: &Bits, of: &Bits| {
        let mut b = bits.clone();
        b.intersect_with(of);
        b
    };
    if part.soft != inside(&c.soft, &part.ops) {
        return false;
    }
    let mut rest = c.ops.clone();
    rest.difference_with(&part.ops);
    let soft = inside(&c.soft, &rest);
    let Some(other) = by_ops.get(&(&rest, &soft)).map(|i| &all[*i].0) else { return false };
    // A soft op of one part that the other reads would not be stored.
    let reads_soft = |a: &Candidate, b: &Candidate| !a.needs.is_disjoint(&b.soft);
    let mutual = !part.needs.is_disjoint(&other.ops) && !other.needs.is_disjoint(&part.ops);
    part.ns + other.ns < c.ns && !mutual && !reads_soft(part, other) && !reads_soft(other, part)
}
