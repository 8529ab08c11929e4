//! The greedy search: starts from one op per kernel, and takes the move with the largest gain until none gains. Then it
//! takes joins that the cost model cannot tell from none: of two covers that tie, the one with fewer launches wins.

use std::collections::{BTreeMap, BTreeSet};

use unglue_ir::graph::ValueId;

use crate::candidates::{self, Evaluator, GroupId, Move, Partition, Worth};
use crate::error::PassError;
use crate::exact::Pool;
use crate::facts::Facts;
use crate::kernel::{Exactness, Kernel, KernelClass, Rejection, Step, Verdict};
use crate::names;

/// Two covers tie if their times differ by no more than this, in millionths of the time. `specs/costmodel.md` 5 asks that
/// the order of two schedules be right where they differ by more than 5 %, and its constants have two or three digits. A
/// tenth of those 5 % leaves room for the few ties that follow each other in a body.
pub const TIE_PPM: u64 = 5_000;

/// What kernels of `ns` in all may lose or gain without a difference that counts.
pub fn tie_ns(ns: u64) -> u64 {
    ns.saturating_mul(TIE_PPM) / 1_000_000
}

/// A group that the search held at some time.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub id: GroupId,
    pub ops: BTreeSet<ValueId>,
    /// What it stored.
    pub writes: BTreeSet<ValueId>,
    pub steps: Vec<Step>,
}

/// A partition, and what the search knows of moves on it.
pub(crate) struct Search<'a> {
    pub facts: &'a Facts<'a>,
    pub evaluator: Evaluator<'a>,
    pub partition: Partition,
    /// Pairs of op sets that share no kernel.
    pub forbid: Vec<(BTreeSet<ValueId>, BTreeSet<ValueId>)>,
    /// Pairs of ops that share a kernel; forced before the search.
    pub together: Vec<(ValueId, ValueId)>,
    /// All groups so far.
    pub held: Vec<Held>,
    /// Partitions on the way, each with at most half the groups of the one before.
    on_the_way: Vec<Partition>,
    /// Fusions that made each group.
    steps: BTreeMap<GroupId, Vec<Step>>,
    /// Worth of each move on the present groups.
    worths: BTreeMap<Move, Worth>,
    pub fusions: u64,
    /// Among what the integer program chose, if it was asked.
    pub pool: Pool,
    searched: bool,
}

impl<'a> Search<'a> {
    /// One op per kernel; moves are weighed only if `searched`.
    pub fn new(facts: &'a Facts<'a>, evaluator: Evaluator<'a>, searched: bool) -> Search<'a> {
        let mut search = Search {
            facts,
            evaluator,
            partition: Partition::singles(facts),
            forbid: vec![],
            together: vec![],
            held: vec![],
            on_the_way: vec![],
            steps: BTreeMap::new(),
            worths: BTreeMap::new(),
            fusions: 0,
            pool: Pool::default(),
            searched,
        };
        search.restart();
        search
    }

    /// Back to one op per kernel. What was evaluated stays known.
    pub fn restart(&mut self) {
        self.partition = Partition::singles(self.facts);
        self.on_the_way = vec![self.partition.clone()];
        (self.held, self.fusions) = (vec![], 0);
        self.steps.clear();
        self.worths.clear();
        let all: BTreeSet<GroupId> = self.partition.groups.keys().copied().collect();
        self.remember(&all);
    }

    /// Notes the present form of groups.
    fn remember(&mut self, groups: &BTreeSet<GroupId>) {
        for &id in groups {
            let Some(ops) = self.partition.groups.get(&id).cloned() else { continue };
            let Ok(e) = self.evaluator.evaluate(&self.partition, &ops, &BTreeSet::from([id])) else { continue };
            let writes = e.carved.writes.iter().map(|(_, v)| *v).collect();
            let steps = self.steps.get(&id).cloned().unwrap_or_default();
            self.held.push(Held { id, ops, writes, steps });
        }
        let now = self.partition.groups.len();
        if self.on_the_way.last().is_none_or(|p| p.groups.len() >= 2 * now) {
            self.on_the_way.push(self.partition.clone());
        }
    }

    /// The present partition and those on the way to it, coarse ones first.
    pub fn levels(&self) -> Vec<Partition> {
        let mut levels = self.on_the_way.clone();
        if levels.last().is_some_and(|p| p.groups.len() > self.partition.groups.len()) {
            levels.push(self.partition.clone());
        }
        levels.reverse();
        levels
    }

    /// Takes a partition that was found elsewhere.
    pub fn take(&mut self, partition: Partition, steps: BTreeMap<GroupId, Vec<Step>>) {
        (self.partition, self.steps) = (partition, steps);
        self.fusions = self.steps.values().map(|s| s.len() as u64).sum();
        self.worths.clear();
        for g in self.partition.groups.keys().copied().collect::<Vec<_>>() {
            self.weigh_around(g);
        }
    }

    /// Sum over the present groups; those without a schedule count nothing.
    pub fn total_ns(&mut self) -> u64 {
        let groups: Vec<_> = self.partition.groups.iter().map(|(g, ops)| (*g, ops.clone())).collect();
        let mut sum = 0;
        for (g, ops) in groups {
            let e = self.evaluator.evaluate(&self.partition, &ops, &BTreeSet::from([g]));
            sum += e.map_or(0, |e| e.cost.total());
        }
        sum
    }

    /// Takes the move with the largest gain until none gains; then tries groups that share no value; then takes the join
    /// that loses least of those that tie. Starts over after each that helped: every move takes a group away.
    pub fn greedy(&mut self) {
        for g in self.partition.groups.keys().copied().collect::<Vec<_>>() {
            self.weigh_around(g);
        }
        loop {
            while let Some((mv, gain)) = self.best(gains) {
                self.apply(mv, gain, "gain");
            }
            self.weigh_strangers();
            if self.best(gains).is_some() {
                continue;
            }
            let Some((mv, gain)) = self.best(ties) else { return };
            self.apply(mv, gain, "tie,");
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

    /// Weighs pairs that share nothing.
    fn weigh_strangers(&mut self) {
        let groups: Vec<GroupId> = self.partition.groups.keys().copied().collect();
        for (i, &a) in groups.iter().enumerate() {
            for &b in &groups[i + 1..] {
                self.weigh(Move::Join(a, b));
            }
        }
    }

    /// The legal move with the largest gain of those that are `wanted`; of equals the first.
    fn best(&self, wanted: fn(Move, &Worth) -> Option<i64>) -> Option<(Move, i64)> {
        let mut found: Vec<(i64, Move)> =
            self.worths.iter().filter_map(|(mv, w)| Some((wanted(*mv, w)?, *mv))).collect();
        if found.is_empty() {
            return None;
        }
        found.sort_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        let edges = self.partition.edges(self.facts);
        found.into_iter().find(|(_, mv)| self.is_legal(*mv, &edges)).map(|(g, mv)| (mv, g))
    }

    fn is_legal(&self, mv: Move, edges: &BTreeMap<GroupId, BTreeSet<GroupId>>) -> bool {
        match mv {
            Move::Join(a, b) => Partition::may_join(edges, a, b) && !self.is_forbidden(a, b),
            Move::Spread(g) => {
                let readers = candidates::readers_of_group(self.facts, &self.partition, g);
                !readers.is_empty() && !self.is_forced(g) && readers.iter().all(|r| !self.is_forbidden(g, *r))
            }
        }
    }

    /// True if the union of two groups breaks a wish.
    pub fn is_forbidden(&self, a: GroupId, b: GroupId) -> bool {
        let holds = |v: &ValueId| self.partition.groups[&a].contains(v) || self.partition.groups[&b].contains(v);
        self.forbid.iter().any(|(x, y)| x.iter().any(holds) && y.iter().any(holds))
    }

    fn is_forced(&self, g: GroupId) -> bool {
        let ops = &self.partition.groups[&g];
        self.together.iter().any(|(a, b)| ops.contains(a) && ops.contains(b))
    }

    pub fn apply(&mut self, mv: Move, gain: i64, why: &str) {
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
        self.remember(&touched);
        for g in touched {
            if self.searched && self.partition.groups.contains_key(&g) {
                self.weigh_around(g);
            }
        }
    }

    pub fn group_text(&self, g: GroupId) -> String {
        self.ops_text(&self.partition.groups[&g])
    }

    /// The first ops of a set.
    pub fn ops_text(&self, ops: &BTreeSet<ValueId>) -> String {
        let first: Vec<String> = ops.iter().take(4).map(|op| candidates::op_text(self.facts, *op)).collect();
        let more = if ops.len() > 4 { format!(" and {} more", ops.len() - 4) } else { String::new() };
        format!("{}{more}", first.join(" "))
    }

    /// The groups as kernels, in launch order; each is as exact as the loosest value that it forms, by `touched`.
    pub fn kernels(&mut self, touched: &BTreeMap<u32, Exactness>) -> Result<Vec<Kernel>, PassError> {
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
                class: KernelClass::of(&graph, found.schedule.products),
                graph,
                schedule: found.schedule.clone(),
                reads: found.carved.reads.clone(),
                writes: found.carved.writes.clone(),
                exactness: found.carved.formed().filter_map(|v| touched.get(&v.0)).copied().max().unwrap_or_default(),
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
            Some(Worth::Gain { ns, .. }) => Verdict::Cost { loss_ns: ns.min(&0).unsigned_abs() },
            None => Verdict::NotTried,
        };
        neighbours.into_iter().map(|n| Rejection { with: named[&n].clone(), verdict: verdict(n) }).collect()
    }
}

fn gains(_: Move, worth: &Worth) -> Option<i64> {
    match worth {
        Worth::Gain { ns, .. } if *ns > 0 => Some(*ns),
        _ => None,
    }
}

/// Joins whose loss is none that counts.
fn ties(mv: Move, worth: &Worth) -> Option<i64> {
    match (mv, worth) {
        (Move::Join(..), Worth::Gain { ns, apart_ns }) if -ns <= tie_ns(apart_ns.unsigned_abs()) as i64 => Some(*ns),
        _ => None,
    }
}
