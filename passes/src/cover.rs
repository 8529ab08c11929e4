//! Chooses which ops become which kernels, for one body and bucket.
//!
//! In: an extracted body, the cost table, a strategy. Out: a [`BodyCover`]: kernels in launch order that compute every op
//! of the body and store each value once. The greedy search is a heuristic, and the report says so; an exact search can
//! fill the same interface.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use unglue_ir::graph::{Graph, ValueId};

use crate::candidates::{self, Evaluator, GroupId, Move, Partition, Worth};
use crate::carve::Stores;
use crate::cost::CostTable;
use crate::error::PassError;
use crate::facts::Facts;
use crate::kernel::{BodyCover, CoverStats, Exactness, Kernel, KernelClass, Rejection, Step, Verdict};
use crate::names;
use crate::schedule::Bucket;

/// How kernels are chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Strategy {
    /// One op per kernel.
    None,
    #[default]
    Greedy,
}

impl Strategy {
    pub fn name(self) -> &'static str {
        match self {
            Strategy::None => "none",
            Strategy::Greedy => "greedy",
        }
    }
}

/// Wishes of the caller, in values of the extracted body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoverOptions {
    /// Pairs of ops that must not share a kernel.
    pub forbid: Vec<(ValueId, ValueId)>,
    /// Pairs of ops that must share a kernel, whatever it costs.
    pub force: Vec<(ValueId, ValueId)>,
    /// The weakest rewrite class in the body (from [`crate::saturate::SaturationStats::exactness`]).
    pub exactness: Exactness,
}

/// Covers a body with kernels.
///
/// # Errors
/// [`PassError::Cover`] if an op has no schedule, or a forced pair cannot be one kernel.
pub fn cover(
    body: &Graph,
    bucket: &Bucket,
    costs: &CostTable,
    strategy: Strategy,
    options: &CoverOptions,
) -> Result<BodyCover, PassError> {
    let facts = Facts::with_ops(body, &stored_views(body, bucket, costs));
    let stores = Stores::new(&facts);
    let mut search = Search {
        facts: &facts,
        evaluator: Evaluator::new(&facts, &stores, bucket, costs),
        partition: Partition::singles(&facts),
        options,
        steps: BTreeMap::new(),
        worths: BTreeMap::new(),
        fusions: 0,
        searched: strategy != Strategy::None,
    };
    let unfused = search.partition.groups.len() as u64;
    let unfused_ns = search.total_ns();
    search.force()?;
    if strategy == Strategy::Greedy {
        search.greedy();
    }
    let kernels = search.kernels()?;
    let stats = CoverStats {
        strategy: strategy.name().into(),
        unfused,
        kernels: kernels.len() as u64,
        candidates: search.evaluator.candidates(),
        obstacles: search.evaluator.obstacles.clone(),
        fusions: search.fusions,
        recomputed: facts.ops().filter(|op| search.partition.is_recomputed(*op)).count() as u64,
        predicted_ns: kernels.iter().map(|k| k.cost.total()).sum(),
        unfused_ns,
    };
    Ok(BodyCover { body: body.clone(), kernels, stats })
}

/// Slices and broadcasts that some op cannot take as they are in a kernel of its own: they get kernels too.
fn stored_views(body: &Graph, bucket: &Bucket, costs: &CostTable) -> BTreeSet<ValueId> {
    let mut stored = BTreeSet::new();
    loop {
        let facts = Facts::with_ops(body, &stored);
        let stores = Stores::new(&facts);
        let mut evaluator = Evaluator::new(&facts, &stores, bucket, costs);
        let singles = Partition::singles(&facts);
        let before = stored.len();
        for (&op, ops) in &singles.groups {
            if evaluator.evaluate(&singles, ops, &BTreeSet::from([op])).is_err() {
                stored.extend(facts.views_under(op));
            }
        }
        if stored.len() == before {
            return stored;
        }
    }
}

struct Search<'a> {
    facts: &'a Facts<'a>,
    evaluator: Evaluator<'a>,
    partition: Partition,
    options: &'a CoverOptions,
    /// Fusions that made each group.
    steps: BTreeMap<GroupId, Vec<Step>>,
    /// Worth of each move on the present groups.
    worths: BTreeMap<Move, Worth>,
    fusions: u64,
    searched: bool,
}

impl Search<'_> {
    /// Sum over the present groups; those without a schedule count nothing.
    fn total_ns(&mut self) -> u64 {
        let groups: Vec<_> = self.partition.groups.iter().map(|(g, ops)| (*g, ops.clone())).collect();
        let mut sum = 0;
        for (g, ops) in groups {
            let e = self.evaluator.evaluate(&self.partition, &ops, &BTreeSet::from([g]));
            sum += e.map_or(0, |e| e.cost.total());
        }
        sum
    }

    fn force(&mut self) -> Result<(), PassError> {
        for &(a, b) in &self.options.force {
            let holder = |v: ValueId| self.partition.holders(v).next();
            let (Some(ga), Some(gb)) = (holder(a), holder(b)) else {
                let found = format!("%{} and %{}", a.0, b.0);
                return Err(PassError::cover(
                    "force-unknown",
                    &self.facts.body.name,
                    found,
                    "name two ops of the body",
                ));
            };
            if ga == gb {
                continue;
            }
            let place =
                || format!("{} with {}", candidates::op_text(self.facts, a), candidates::op_text(self.facts, b));
            if !Partition::may_join(&self.partition.edges(self.facts), ga, gb) {
                return Err(PassError::cover(
                    "force-cycle",
                    place(),
                    "a third kernel lies between",
                    "force it as well",
                ));
            }
            match self.evaluator.worth(&self.partition, Move::Join(ga, gb)) {
                Worth::Gain(gain) => self.apply(Move::Join(ga, gb), gain, "forced"),
                Worth::Obstacle(o) => {
                    let found = format!("{}: {}", o.rule, o.detail);
                    return Err(PassError::cover("force-obstacle", place(), found, "these ops cannot share a kernel"));
                }
            }
        }
        Ok(())
    }

    /// Takes the move with the largest gain until none gains; then tries groups that share no value, and starts over if
    /// that helped.
    fn greedy(&mut self) {
        for g in self.partition.groups.keys().copied().collect::<Vec<_>>() {
            self.weigh_around(g);
        }
        loop {
            while let Some((mv, gain)) = self.best() {
                self.apply(mv, gain, "gain");
            }
            if !self.weigh_strangers() {
                return;
            }
        }
    }

    /// Weighs all moves of one group with its neighbours.
    fn weigh_around(&mut self, g: GroupId) {
        let neighbours = candidates::neighbours(self.facts, &self.partition, g);
        for &n in &neighbours {
            self.weigh(Move::Join(g.min(n), g.max(n)));
        }
        for s in neighbours.into_iter().chain([g]) {
            if candidates::may_spread(self.facts, self.evaluator.stores, &self.partition, s) {
                self.worths.remove(&Move::Spread(s));
                self.weigh(Move::Spread(s));
            }
        }
    }

    fn weigh(&mut self, mv: Move) {
        if !self.worths.contains_key(&mv) {
            let worth = self.evaluator.worth(&self.partition, mv);
            self.worths.insert(mv, worth);
        }
    }

    /// Weighs pairs that share nothing; true if one of them gains and closes no cycle.
    fn weigh_strangers(&mut self) -> bool {
        let groups: Vec<GroupId> = self.partition.groups.keys().copied().collect();
        for (i, &a) in groups.iter().enumerate() {
            for &b in &groups[i + 1..] {
                self.weigh(Move::Join(a, b));
            }
        }
        self.best().is_some()
    }

    /// The legal move with the largest gain; of equals the first.
    fn best(&self) -> Option<(Move, i64)> {
        let mut gains: Vec<(i64, Move)> = self
            .worths
            .iter()
            .filter_map(|(mv, w)| match w {
                Worth::Gain(g) if *g > 0 => Some((*g, *mv)),
                _ => None,
            })
            .collect();
        gains.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let edges = self.partition.edges(self.facts);
        gains.into_iter().find(|(_, mv)| self.is_legal(*mv, &edges)).map(|(g, mv)| (mv, g))
    }

    fn is_legal(&self, mv: Move, edges: &BTreeMap<GroupId, BTreeSet<GroupId>>) -> bool {
        match mv {
            Move::Join(a, b) => Partition::may_join(edges, a, b) && !self.is_forbidden(a, b),
            Move::Spread(g) => {
                let readers = candidates::readers_of_group(self.facts, &self.partition, g);
                !readers.is_empty() && readers.iter().all(|r| !self.is_forbidden(g, *r))
            }
        }
    }

    fn is_forbidden(&self, a: GroupId, b: GroupId) -> bool {
        let holds = |v: &ValueId| self.partition.groups[&a].contains(v) || self.partition.groups[&b].contains(v);
        self.options.forbid.iter().any(|(x, y)| holds(x) && holds(y))
    }

    fn apply(&mut self, mv: Move, gain: i64, why: &str) {
        self.fusions += 1;
        let touched: BTreeSet<GroupId> = match mv {
            Move::Join(a, b) => {
                let text = format!("{}: {} ({why} {gain} ns)", self.group_text(a), self.group_text(b));
                let mut ops = self.partition.remove(a);
                ops.extend(self.partition.remove(b));
                let mut steps = self.steps.remove(&a).unwrap_or_default();
                steps.extend(self.steps.remove(&b).unwrap_or_default());
                steps.push(Step { text, into: a.0, from: b.0 });
                self.partition.insert(a, ops);
                self.steps.insert(a, steps);
                BTreeSet::from([a, b])
            }
            Move::Spread(g) => {
                let readers = candidates::readers_of_group(self.facts, &self.partition, g);
                let text = format!("recomputed {} ({why} {gain} ns)", self.group_text(g));
                let ops = self.partition.remove(g);
                let grown = self.steps.remove(&g).unwrap_or_default();
                for &r in &readers {
                    let mut joined = self.partition.remove(r);
                    let needed = candidates::needed_of(self.facts, &ops, &joined);
                    joined.extend(needed);
                    self.partition.insert(r, joined);
                    let steps = self.steps.entry(r).or_default();
                    steps.extend(grown.iter().cloned());
                    steps.push(Step { text: text.clone(), into: r.0, from: g.0 });
                }
                readers.into_iter().chain([g]).collect()
            }
        };
        self.worths.retain(|mv, _| match mv {
            Move::Join(a, b) => !touched.contains(a) && !touched.contains(b),
            Move::Spread(g) => !touched.contains(g),
        });
        for g in touched {
            if self.searched && self.partition.groups.contains_key(&g) {
                self.weigh_around(g);
            }
        }
    }

    fn group_text(&self, g: GroupId) -> String {
        let ops = &self.partition.groups[&g];
        let first: Vec<String> = ops.iter().take(4).map(|op| candidates::op_text(self.facts, *op)).collect();
        let more = if ops.len() > 4 { format!(" and {} more", ops.len() - 4) } else { String::new() };
        format!("{}{more}", first.join(" "))
    }

    /// The groups as kernels, in launch order.
    fn kernels(&mut self) -> Result<Vec<Kernel>, PassError> {
        let edges = self.partition.edges(self.facts);
        let order = crate::launch_order::sort(&edges).ok_or_else(|| {
            PassError::cover("cover-cycle", &self.facts.body.name, "kernels depend on each other", "internal")
        })?;
        let mut names = names::Names::new(&self.facts.body.name);
        let mut kernels = Vec::with_capacity(order.len());
        let mut named: BTreeMap<GroupId, String> = BTreeMap::new();
        for &g in &order {
            let ops = self.partition.groups[&g].clone();
            let found = self.evaluator.evaluate(&self.partition, &ops, &BTreeSet::from([g])).map_err(|o| {
                let place = format!("{}: {}", self.facts.body.name, self.group_text(g));
                PassError::cover(
                    "no-schedule",
                    place,
                    format!("{}: {}", o.rule, o.detail),
                    "no kernel form takes this op",
                )
            })?;
            let mut graph = found.carved.graph.clone();
            let name = names.name(&graph, &ops);
            graph.name = names::graph_name(&name);
            named.insert(g, name.clone());
            kernels.push(Kernel {
                name,
                class: KernelClass::of(&graph),
                graph,
                schedule: found.schedule.clone(),
                reads: found.carved.reads.clone(),
                writes: found.carved.writes.clone(),
                exactness: self.options.exactness,
                cost: found.cost,
                recomputed: ops.iter().copied().filter(|op| self.partition.is_recomputed(*op)).collect(),
                ops: ops.into_iter().collect(),
                steps: self.steps.get(&g).cloned().unwrap_or_default(),
                rejected: vec![],
            });
        }
        for (kernel, g) in kernels.iter_mut().zip(&order) {
            kernel.rejected = self.rejections(*g, &named, &edges);
        }
        Ok(kernels)
    }

    fn rejections(
        &self,
        g: GroupId,
        named: &BTreeMap<GroupId, String>,
        edges: &BTreeMap<GroupId, BTreeSet<GroupId>>,
    ) -> Vec<Rejection> {
        let neighbours = candidates::neighbours(self.facts, &self.partition, g);
        let verdict = |n: GroupId| match self.worths.get(&Move::Join(g.min(n), g.max(n))) {
            _ if !self.searched => Verdict::NotTried,
            _ if self.is_forbidden(g, n) => Verdict::Forbidden,
            Some(Worth::Obstacle(o)) => Verdict::Obstacle { rule: o.rule.into(), detail: o.detail.clone() },
            _ if !Partition::may_join(edges, g, n) => Verdict::Cycle,
            Some(Worth::Gain(gain)) => Verdict::Cost { loss_ns: gain.min(&0).unsigned_abs() },
            None => Verdict::NotTried,
        };
        neighbours.into_iter().map(|n| Rejection { with: named[&n].clone(), verdict: verdict(n) }).collect()
    }
}
