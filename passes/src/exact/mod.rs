//! The exact search: candidates, an integer program that chooses among them, and the greedy cover as what it must beat.
//!
//! "Exact" is with respect to the candidates: [`ExactStats::gap_ppm`] bounds what a better choice among them could save,
//! and [`ExactStats::cut`] counts the sets that were not looked at. What ties counts as in the greedy search: the program
//! must win by more than the cost model can tell, or tie with fewer launches.

mod grow;
pub(crate) mod joint;
mod pool;
mod program;
mod reach;
mod shift;

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;
use unglue_ir::graph::ValueId;

pub use grow::{ALL_PAIRS, MAX_GROWN};
pub use program::{MAX_NODES, MAX_ROUNDS};
pub use shift::MAX_SHIFTED;

use crate::candidates::{Evaluator, GroupId, Partition};
use crate::kernel::Step;
use crate::search::{Held, Search, tie_ns};
pub(crate) use pool::Pool;
use pool::soft_of;
use program::{Choosable, End, Part, Solved, Terms};
use reach::Reach;

/// What the exact search did for one body and bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ExactStats {
    /// Op sets with a schedule, among which the program chooses.
    pub candidates: u64,
    /// Sets left out since others do the same for less.
    pub dominated: u64,
    /// Sets that were due when the count of evaluations ran out: better covers may need one of them.
    pub cut: u64,
    pub variables: u64,
    pub rows: u64,
    /// Constraints that forbid cycles, and the times the solver ran to find them.
    pub cycle_cuts: u64,
    pub rounds: u64,
    /// The greedy cover.
    pub greedy_ns: u64,
    /// The cover that is taken.
    pub objective_ns: u64,
    /// No acyclic cover by the candidates costs less.
    pub bound_ns: u64,
    /// By how much the cover may be above the bound, in millionths of the cover.
    pub gap_ppm: u64,
    /// Why the greedy cover was kept, if it was: one that ties with it is not worth a change.
    pub kept_greedy: Option<String>,
}

/// Replaces the greedy cover of `search` by one that wins against it, if the program finds one. `seed`: the kernels of
/// another cover, or nothing; it is taken where it is cheaper than what was found.
pub(crate) fn improve(search: &mut Search, seed: &[BTreeSet<ValueId>]) -> ExactStats {
    let reach = Reach::new(search.facts);
    let greedy_ns = search.total_ns();
    let cut = explore(&reach, search);
    let kept: Vec<_> = search
        .held
        .iter()
        .map(|h| (reach.bits(&h.ops), reach.bits(&soft_of(search.facts, &h.ops, &h.writes))))
        .collect();
    let pool = pool::pool(&reach, &mut search.evaluator, &kept);
    let part = Part { pool, terms: terms(search, &reach) };
    let solved = program::solve(&part, &Choosable::default());
    let pool = part.pool;
    let mut why = adopt(search, &pool, &solved).err();
    if search.forbid.is_empty() && search.together.is_empty() && !seed.is_empty() && adopt_seed(search, seed) {
        why = None;
    }
    let stats = ExactStats { cut, ..stats(&pool, &solved, greedy_ns, search.total_ns(), why) };
    search.pool = pool;
    stats
}

/// Prices sets around all that the search held; the number of those that were due when the counts ran out.
fn explore(reach: &Reach, search: &mut Search) -> u64 {
    let levels = search.levels();
    let grown = grow::grow(reach, &mut search.evaluator, &levels, MAX_GROWN, &|_| true);
    grown.cut + shift::shift(reach, search, MAX_SHIFTED).cut
}

fn terms(search: &Search, reach: &Reach) -> Terms {
    let pair = |(a, b): &(BTreeSet<ValueId>, BTreeSet<ValueId>)| (reach.bits(a), reach.bits(b));
    Terms {
        ops: search.facts.ops().map(|op| op.index()).collect(),
        forbid: search.forbid.iter().map(pair).collect(),
        force: search.together.iter().map(|(a, b)| (a.index(), b.index())).collect(),
        ..Terms::default()
    }
}

fn stats(pool: &Pool, solved: &Solved, greedy_ns: u64, objective_ns: u64, kept_greedy: Option<String>) -> ExactStats {
    let bound_ns = solved.bound_ns.min(objective_ns);
    ExactStats {
        candidates: pool.list.len() as u64,
        dominated: pool.dominated,
        cut: 0,
        variables: solved.variables,
        rows: solved.rows,
        cycle_cuts: solved.cuts,
        rounds: solved.rounds,
        greedy_ns,
        objective_ns,
        bound_ns,
        gap_ppm: gap_ppm(objective_ns, bound_ns),
        kept_greedy,
    }
}

/// By how much what is taken may be above its bound, in millionths of what is taken.
pub(crate) fn gap_ppm(objective_ns: u64, bound_ns: u64) -> u64 {
    (objective_ns.saturating_sub(bound_ns) * 1_000_000).div_ceil(objective_ns.max(1))
}

/// Takes the chosen candidates as the partition of `search`; else says why not.
fn adopt(search: &mut Search, pool: &Pool, solved: &Solved) -> Result<(), String> {
    match solved.end {
        End::Rounds => return Err(format!("kernels still wait for each other after {MAX_ROUNDS} solutions")),
        End::Nothing => return Err("the solver found no cover within its limits".into()),
        End::Optimal | End::Nodes => {}
    }
    let mut partition = Partition::default();
    let mut steps: BTreeMap<GroupId, Vec<Step>> = BTreeMap::new();
    for c in solved.chosen.iter().map(|i| &pool.list[*i]) {
        let ops: BTreeSet<ValueId> = c.ops.ones().map(|op| ValueId(op as u32)).collect();
        let (first, grown) = history(search, &ops);
        let solid = c.ops.ones().find(|op| c.is_solid(*op)).map_or(first, |op| ValueId(op as u32));
        let id = if partition.groups.contains_key(&first) { solid } else { first };
        if partition.groups.contains_key(&id) {
            return Err("internal: a kernel of the program has no op of its own".into());
        }
        partition.insert(id, ops);
        steps.insert(id, grown);
    }
    let greedy = priced(&mut search.evaluator, &search.partition)?;
    if !wins(&priced(&mut search.evaluator, &partition)?, &greedy) {
        return Err(match solved.end {
            End::Nodes => format!("the solver stopped after {MAX_NODES} nodes with nothing better"),
            _ => "none is cheaper by more than a tie".into(),
        });
    }
    search.take(partition, steps);
    // Ties are none to the program: it takes the cheaper side of each.
    search.greedy();
    Ok(())
}

/// Takes a cover that was found elsewhere, if it is cheaper.
fn adopt_seed(search: &mut Search, seed: &[BTreeSet<ValueId>]) -> bool {
    let mut partition = Partition::default();
    let mut steps: BTreeMap<GroupId, Vec<Step>> = BTreeMap::new();
    for ops in seed {
        let held = |op: &&ValueId| !partition.groups.contains_key(*op);
        let Some(id) = ops.iter().find(held).copied() else { return false };
        let (_, grown) = history(search, ops);
        partition.insert(id, ops.clone());
        steps.insert(id, grown);
    }
    let whole = search.facts.ops().all(|op| partition.holders(op).next().is_some());
    if !whole || crate::launch_order::sort(&partition.edges(search.facts)).is_none() {
        return false;
    }
    let now = search.total_ns();
    let Ok(priced) = priced(&mut search.evaluator, &partition) else { return false };
    if priced.values().sum::<u64>() >= now {
        return false;
    }
    search.take(partition, steps);
    search.greedy();
    true
}

/// Kernels by their ops, with predicted ns.
type Priced = BTreeMap<BTreeSet<ValueId>, u64>;

fn priced(evaluator: &mut Evaluator, partition: &Partition) -> Result<Priced, String> {
    let mut all = Priced::new();
    for (id, ops) in &partition.groups {
        let e = evaluator.evaluate(partition, ops, &BTreeSet::from([*id]));
        all.insert(ops.clone(), e.map_err(|o| format!("internal: {}: {}", o.rule, o.detail))?.cost.total());
    }
    Ok(all)
}

/// Whether a cover is better than another: where the two differ, it is cheaper by more than a tie, or ties with fewer
/// launches.
fn wins(cover: &Priced, other: &Priced) -> bool {
    let alone = |of: &Priced, not: &Priced| {
        let differ = of.iter().filter(|(ops, ns)| not.get(*ops) != Some(*ns));
        differ.fold((0, 0), |(sum, n), (_, ns)| (sum + ns, n + 1))
    };
    let ((ns, launches), (other_ns, other_launches)) = (alone(cover, other), alone(other, cover));
    let tie = tie_ns(other_ns);
    ns + tie < other_ns || (ns <= other_ns + tie && launches < other_launches)
}

/// How a set grew: the largest groups of the greedy search that it holds, and how they were joined.
fn history(search: &mut Search, ops: &BTreeSet<ValueId>) -> (GroupId, Vec<Step>) {
    let mut held: Vec<Held> = search.held.iter().filter(|h| h.ops.is_subset(ops)).cloned().collect();
    held.sort_by(|a, b| b.ops.len().cmp(&a.ops.len()).then(a.id.cmp(&b.id)));
    let mut left = ops.clone();
    let mut parts: Vec<Held> = Vec::new();
    for h in held {
        if h.ops.is_subset(&left) {
            left.retain(|op| !h.ops.contains(op));
            parts.push(h);
        }
    }
    parts.sort_by_key(|h| h.id);
    let Some(first) = parts.first().map(|h| h.id) else { return (ValueId(0), vec![]) };
    let mut steps: Vec<Step> = parts.iter().flat_map(|h| h.steps.iter().cloned()).collect();
    let mut all = parts[0].ops.clone();
    for part in &parts[1..] {
        let mut union = all.clone();
        union.extend(&part.ops);
        let mut ns = |ops: &BTreeSet<ValueId>| {
            let e = search.evaluator.evaluate_set(ops, &BTreeSet::new());
            e.ok().map(|e| e.cost.total() as i64)
        };
        let gain = (|| Some(ns(&all)? + ns(&part.ops)? - ns(&union)?))();
        let why = gain.map_or("with what follows".into(), |g| format!("gain {g} ns"));
        let text = format!("{}: {} (integer program, {why})", search.ops_text(&all), search.ops_text(&part.ops));
        steps.push(Step { text, into: first.0, from: part.id.0 });
        all = union;
    }
    (first, steps)
}
