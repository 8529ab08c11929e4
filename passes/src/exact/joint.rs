//! Several forms of a body in one program: candidates of all of them, over classes instead of ops.
//!
//! A candidate computes classes, stores some, reads others, and takes for granted what the classes inside it are made of:
//! its *picks*. The candidates of one form are known from the search of its cover. For each other form, which differs from
//! such a one in a few classes, only groups around the difference grow: the rest is the same kernels. One form's kernel may
//! read what another form's stores, as long as each class has one pick, in all launch lists: so a step has the same bits in
//! each of them.

use std::collections::{BTreeMap, BTreeSet};

use egg::Id;
use unglue_ir::graph::{Graph, ValueId};

use super::grow;
use super::pool::{self, Across, Candidate, Pool, soft_of};
pub use super::program::Most;
use super::program::{self, Choosable, End, Part, Solved, Terms};
use super::reach::{Bits, Reach};
use crate::analysis::Classes;
use crate::candidates::{Evaluator, Partition};
use crate::carve::Stores;
use crate::cost::CostTable;
use crate::extract::{Extracted, Pick, Picks};
use crate::facts::{Facts, Kind};
use crate::forms::{Form, taken};
use crate::saturate::Saturated;
use crate::schedule::Bucket;
use crate::search::Search;

/// Sets that are evaluated around one difference, for one launch list; around several at once, up to four times as many.
pub const MAX_AROUND: u64 = 40;

/// Covers of a form, final and on the way, from which sets grow around a difference.
const MAX_PARTITIONS: usize = 2;

/// Kernels as sets of classes.
pub type Kernels = Vec<BTreeSet<Id>>;

/// Kernels as sets of ops.
pub type Groups = Vec<BTreeSet<ValueId>>;

/// What the search of a form's cover left, in one launch list.
#[derive(Clone, Debug, Default)]
pub struct Searched {
    views: BTreeSet<ValueId>,
    /// Kernels of the cover, and of covers on the way to it.
    partitions: Vec<Groups>,
    pool: Vec<Candidate>,
}

/// Reads it from a search that ends.
pub(crate) fn searched(search: &mut Search, views: &BTreeSet<ValueId>) -> Searched {
    let reach = Reach::new(search.facts);
    let mut pool = std::mem::take(&mut search.pool).list;
    for (id, ops) in &search.partition.groups {
        let Ok(e) = search.evaluator.evaluate(&search.partition, ops, &BTreeSet::from([*id])) else { continue };
        let writes = e.carved.writes.iter().map(|(_, v)| *v).collect();
        let (ops, soft) = (reach.bits(ops), reach.bits(&soft_of(search.facts, ops, &writes)));
        if !pool.iter().any(|c| c.ops == ops && c.soft == soft) {
            let bytes = search.evaluator.activation_bytes(&e);
            pool.push(pool::candidate(&reach, ops, soft, &e, bytes));
        }
    }
    let groups = |p: &Partition| p.groups.values().cloned().collect();
    let on_the_way = search.levels().iter().map(groups).collect();
    let mut partitions = [vec![groups(&search.partition)], on_the_way].concat();
    partitions.truncate(MAX_PARTITIONS);
    Searched { views: views.clone(), partitions, pool }
}

/// A form that was searched.
#[derive(Clone, Debug)]
pub struct Known {
    pub form: Extracted,
    /// By launch list.
    pub lists: Vec<Searched>,
}

/// A form, and by launch list the kernels of it.
#[derive(Clone, Debug)]
pub struct Mixture {
    pub picks: Picks,
    pub kernels: Vec<Kernels>,
    pub ns: Vec<u64>,
}

/// What the programs chose.
#[derive(Clone, Debug, Default)]
pub struct Joint {
    /// The least ns over all launch lists first.
    pub mixtures: Vec<Mixture>,
    /// Why there is none.
    pub why: Option<String>,
    /// Classes with several picks, and these picks.
    pub classes: u64,
    pub picks: u64,
    /// Sets that were due when a count of evaluations ran out.
    pub cut: u64,
    pub candidates: u64,
    /// Sums over the launch lists, each by itself: no mixture takes less than this bound.
    pub solved: Solved,
}

/// Numbers of picks, and which of them exclude each other.
struct Table {
    numbers: BTreeMap<(Id, Pick), usize>,
    choosable: Choosable,
    several: BTreeSet<usize>,
}

impl Table {
    fn new(forms: &[Form]) -> Table {
        let all: BTreeSet<(Id, Pick)> = forms.iter().flat_map(|f| taken(&f.picks, &f.extracted)).collect();
        let numbers: BTreeMap<(Id, Pick), usize> = all.into_iter().enumerate().map(|(i, p)| (p, i)).collect();
        let mut by_class: BTreeMap<Id, Vec<usize>> = BTreeMap::new();
        numbers.iter().for_each(|((id, _), n)| by_class.entry(*id).or_default().push(*n));
        let classes: Vec<Vec<usize>> = by_class.into_values().filter(|picks| picks.len() > 1).collect();
        let several = classes.iter().flatten().copied().collect();
        let loose = numbers.iter().filter(|((_, pick), _)| matches!(pick, Pick::Other(_))).map(|(_, n)| *n).collect();
        Table { numbers, choosable: Choosable { classes, loose }, several }
    }
}

/// An op with all that its kernel takes from its form: ops that are alike are the same in any kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Alike {
    picks: BTreeSet<usize>,
    reads: BTreeSet<Id>,
    readers: BTreeSet<Id>,
    outputs: BTreeSet<usize>,
}

/// A form in one launch list.
struct Profile {
    ops: BTreeMap<Id, Alike>,
    views: BTreeSet<Id>,
    partitions: Vec<Kernels>,
    /// Outputs that are leaves.
    leaves: BTreeSet<usize>,
    candidates: Vec<Candidate>,
    cut: u64,
}

/// Reads one form.
struct Reader<'a> {
    s: &'a Saturated,
    picks: &'a Picks,
    /// By value of its graph: the class.
    class_of: &'a [Id],
    table: &'a Table,
}

impl Reader<'_> {
    fn class(&self, v: ValueId) -> Id {
        self.class_of[v.index()]
    }

    /// The pick of a class and of all that stand in for it.
    fn chain(&self, classes: &Classes, id: Id, found: &mut BTreeSet<usize>) {
        let mut at = classes.find(id);
        while let Some(pick) = self.picks.get(&at) {
            let Pick::Other(to) = pick else { return };
            found.extend(self.table.numbers.get(&(at, pick.clone())));
            at = classes.find(*to);
        }
    }

    /// Picks that a formed value takes.
    fn formed(&self, v: ValueId, found: &mut BTreeSet<usize>) {
        let id = self.class(v);
        let Some(pick) = self.picks.get(&id) else { return };
        found.extend(self.table.numbers.get(&(id, pick.clone())));
        if let Pick::Node(node) = pick {
            node.args.iter().for_each(|a| self.chain(&self.s.classes, *a, found));
        }
    }

    fn output(&self, k: usize, found: &mut BTreeSet<usize>) {
        if let Some((_, v)) = self.s.declared.outputs.get(k) {
            self.chain(&self.s.classes, self.s.ids[v.index()], found);
        }
    }

    fn alike(&self, facts: &Facts, op: ValueId) -> Alike {
        let mut a = Alike::default();
        let mut todo = vec![op];
        let mut seen = BTreeSet::new();
        while let Some(v) = todo.pop() {
            if !seen.insert(v) {
                continue;
            }
            self.formed(v, &mut a.picks);
            for arg in &facts.body.node(v).args {
                match facts.kind(*arg) {
                    Kind::Free if facts.maker(*arg).is_none() => todo.push(*arg),
                    _ => {
                        a.reads.insert(self.class(*arg));
                    }
                }
            }
        }
        a.readers = facts.results(op).iter().flat_map(|b| facts.readers(*b)).map(|r| self.class(*r)).collect();
        for (k, (_, v)) in facts.body.outputs.iter().enumerate() {
            let root = facts.storage(*v);
            if facts.source(root).and_then(|b| facts.maker(b)) == Some(op) {
                a.outputs.insert(k);
                self.output(k, &mut a.picks);
            }
        }
        a
    }

    fn bits(&self, of: &Bits) -> Bits {
        let mut bits = Bits::with_capacity(self.s.classes.nodes().len());
        of.ones().for_each(|op| bits.insert(usize::from(self.class(ValueId(op as u32)))));
        bits
    }

    /// A candidate of the form as one of the body.
    fn across(&self, facts: &Facts, c: &Candidate) -> Option<Candidate> {
        let carved = &c.kernel.as_ref()?.carved;
        let n = self.s.classes.nodes().len();
        let (mut stores, mut outputs) = (Bits::with_capacity(n), Bits::with_capacity(facts.body.outputs.len()));
        let written: BTreeSet<ValueId> = carved.writes.iter().map(|(_, v)| *v).collect();
        for op in c.ops.ones().map(|op| ValueId(op as u32)) {
            if facts.results(op).iter().any(|b| written.contains(b)) {
                stores.insert(usize::from(self.class(op)));
            }
        }
        let roots: BTreeSet<ValueId> = written.iter().map(|v| facts.storage(*v)).collect();
        let mut picks = BTreeSet::new();
        for (k, (_, v)) in facts.body.outputs.iter().enumerate() {
            if roots.contains(&facts.storage(*v)) {
                outputs.insert(k);
                self.output(k, &mut picks);
            }
        }
        let leaves: BTreeSet<ValueId> = carved.reads.iter().map(|(_, v)| *v).collect();
        carved.values.iter().filter(|v| !leaves.contains(v)).for_each(|v| self.formed(*v, &mut picks));
        let picks = picks.into_iter().filter(|p| self.table.several.contains(p)).collect();
        let [ops, soft, needs, reads] = [&c.ops, &c.soft, &c.needs, &c.reads].map(|b| self.bits(b));
        let across = Across { stores, outputs, picks };
        Some(Candidate { ops, soft, needs, reads, across, ns: c.ns, bytes: c.bytes, kernel: None })
    }

    fn profile(&self, facts: &Facts, views: &BTreeSet<ValueId>) -> Profile {
        let leaf = |v: &ValueId| facts.kind(facts.storage(*v)) == Kind::Leaf;
        let outputs = facts.body.outputs.iter().enumerate();
        Profile {
            ops: facts.ops().map(|op| (self.class(op), self.alike(facts, op))).collect(),
            views: views.iter().map(|v| self.class(*v)).collect(),
            partitions: vec![],
            leaves: outputs.filter(|(_, (_, v))| leaf(v)).map(|(k, _)| k).collect(),
            candidates: vec![],
            cut: 0,
        }
    }

    /// The form that was searched.
    fn known(&self, body: &Graph, searched: &Searched) -> Profile {
        let facts = Facts::with_ops(body, &searched.views);
        let of = |groups: &Groups| groups.iter().map(|ops| ops.iter().map(|op| self.class(*op)).collect()).collect();
        Profile {
            partitions: searched.partitions.iter().map(of).collect(),
            candidates: searched.pool.iter().filter_map(|c| self.across(&facts, c)).collect(),
            ..self.profile(&facts, &searched.views)
        }
    }

    /// A form by its difference to another.
    fn around(&self, body: &Graph, parent: &Profile, bucket: &Bucket, costs: &CostTable) -> Profile {
        let mut views: BTreeSet<ValueId> = body.ids().filter(|v| parent.views.contains(&self.class(*v))).collect();
        loop {
            let facts = Facts::with_ops(body, &views);
            let mut p = self.profile(&facts, &views);
            let changed = |op: &ValueId| {
                let class = self.class(*op);
                parent.ops.get(&class) != p.ops.get(&class)
            };
            let changed: BTreeSet<ValueId> = facts.ops().filter(changed).collect();
            let stores = Stores::new(&facts);
            let mut evaluator = Evaluator::new(&facts, &stores, bucket, costs);
            let before = views.len();
            for op in &changed {
                if evaluator.evaluate_set(&BTreeSet::from([*op]), &BTreeSet::new()).is_err() {
                    views.extend(facts.views_under(*op));
                }
            }
            if views.len() > before {
                continue;
            }
            let reach = Reach::new(&facts);
            let partitions: Vec<Partition> = parent.partitions.iter().map(|k| self.partition(&facts, k)).collect();
            let wanted = |ops: &BTreeSet<ValueId>| !ops.is_disjoint(&changed);
            // A difference has an op or two, and those that make and read them.
            let max = MAX_AROUND * (changed.len() as u64).div_ceil(4).clamp(1, 4);
            p.cut = grow::grow(&reach, &mut evaluator, &partitions, max, &wanted).cut;
            let pool = pool::pool(&reach, &mut evaluator, &[]);
            let near = pool.list.iter().filter(|c| changed.iter().any(|op| c.ops.contains(op.index())));
            p.candidates = near.filter_map(|c| self.across(&facts, c)).collect();
            p.partitions = parent.partitions.clone();
            return p;
        }
    }

    /// Kernels of another form in this one; ops that only this one has stand alone.
    fn partition(&self, facts: &Facts, kernels: &Kernels) -> Partition {
        let mut of_class: BTreeMap<Id, ValueId> = facts.ops().map(|op| (self.class(op), op)).collect();
        let mut p = Partition::default();
        let mut placed: BTreeSet<ValueId> = BTreeSet::new();
        for kernel in kernels {
            let ops: BTreeSet<ValueId> = kernel.iter().filter_map(|id| of_class.get(id)).copied().collect();
            let Some(id) = ops.iter().find(|op| !p.groups.contains_key(*op)).copied() else { continue };
            placed.extend(&ops);
            p.insert(id, ops);
        }
        of_class.retain(|_, op| !placed.contains(op));
        of_class.into_values().for_each(|op| p.insert(op, BTreeSet::from([op])));
        p
    }
}

/// Candidates of all forms in one launch list.
fn part(profiles: Vec<Profile>) -> (Part, u64) {
    let mut terms = Terms::default();
    let mut classes: BTreeMap<Id, usize> = BTreeMap::new();
    profiles.iter().flat_map(|p| p.ops.keys()).for_each(|id| *classes.entry(*id).or_default() += 1);
    for (&id, &forms) in &classes {
        let list = if forms == profiles.len() { &mut terms.ops } else { &mut terms.optional };
        list.push(usize::from(id));
        let readers: BTreeSet<&BTreeSet<Id>> = profiles.iter().filter_map(|p| Some(&p.ops.get(&id)?.readers)).collect();
        if forms < profiles.len() || readers.len() > 1 {
            terms.stored.grow_and_insert(usize::from(id));
        }
    }
    let first = &profiles[0];
    let outputs = profiles.iter().flat_map(|p| p.ops.values()).flat_map(|a| &a.outputs);
    let outputs: BTreeSet<usize> = outputs.copied().filter(|k| !first.leaves.contains(k)).collect();
    terms.outputs = outputs.into_iter().collect();
    let cut = profiles.iter().map(|p| p.cut).sum();
    let mut merged: BTreeMap<_, Candidate> = BTreeMap::new();
    for c in profiles.into_iter().flat_map(|p| p.candidates) {
        let bits = [&c.ops, &c.soft, &c.needs, &c.reads].map(|b| b.ones().collect::<Vec<_>>());
        let key = (bits, c.across.clone());
        let entry = merged.entry(key).or_insert_with(|| c.clone());
        entry.ns = entry.ns.min(c.ns);
    }
    (Part { pool: Pool { list: merged.into_values().collect(), dominated: 0 }, terms }, cut)
}

/// Chooses picks, and kernels for all `buckets`, in none of which they may be more than `most`. `known` is the
/// first form, and `ids` the classes of its values.
pub fn choose(
    s: &Saturated,
    forms: &[Form],
    (known, ids): (&Known, &[Id]),
    (buckets, costs): (&[Bucket], &CostTable),
    most: &[Most],
) -> Joint {
    let table = Table::new(forms);
    let (classes, picks) = (table.choosable.classes.len() as u64, table.several.len() as u64);
    let mut joint = Joint { classes, picks, ..Joint::default() };
    if forms.len() == 1 {
        joint.why = Some("there is one form".into());
        return joint;
    }
    let mut parts = Vec::new();
    for ((bucket, searched), most) in buckets.iter().zip(&known.lists).zip(most) {
        let mut profiles: Vec<Profile> = Vec::new();
        for form in forms {
            let reader = Reader { s, picks: &form.picks, class_of: &form.extracted.class_of, table: &table };
            let found = match profiles.get(form.parent) {
                Some(parent) => reader.around(&form.extracted.graph, parent, bucket, costs),
                None => Reader { class_of: ids, ..reader }.known(&known.form.graph, searched),
            };
            profiles.push(found);
        }
        // A form in which a result is a leaf has no kernel that stores it.
        let leaves = profiles[0].leaves.clone();
        profiles.retain(|p| p.leaves == leaves);
        let (mut part, cut) = part(profiles);
        part.terms.most = Some(*most);
        joint.cut += cut;
        joint.candidates += part.pool.list.len() as u64;
        parts.push(part);
    }
    mix(forms, &table, &parts, &mut joint);
    joint
}

/// Asks a program for each launch list by itself; then what one of them picked is fixed in the others, one after the other.
fn mix(forms: &[Form], table: &Table, parts: &[Part], joint: &mut Joint) {
    let alone: Vec<Solved> = parts.iter().map(|part| program::solve(part, &table.choosable)).collect();
    for s in &alone {
        let all = &mut joint.solved;
        all.bound_ns += s.bound_ns;
        (all.variables, all.rows) = (all.variables + s.variables, all.rows + s.rows);
        (all.cuts, all.rounds) = (all.cuts + s.cuts, all.rounds + s.rounds);
        if let Some(why) = none(s.end) {
            joint.why = Some(why.into());
            return;
        }
    }
    let mut tried: BTreeSet<BTreeSet<usize>> = BTreeSet::new();
    for first in 0..parts.len() {
        let mut fixed = picked(&parts[first], &alone[first]);
        if !tried.insert(fixed.clone()) {
            continue;
        }
        let mut kernels = vec![taken_of(&parts[first], &alone[first])];
        for part in parts.iter().enumerate().filter(|(other, _)| *other != first).map(|(_, part)| part) {
            let part = agreeing(part, table, &fixed);
            let solved = program::solve(&part, &table.choosable);
            fixed.extend(picked(&part, &solved));
            kernels.push(taken_of(&part, &solved));
        }
        // A list without a cover has no kernels.
        if kernels.iter().all(|k| !k.is_empty()) {
            let first_list = kernels.remove(0);
            kernels.insert(first, first_list);
            joint.mixtures.push(read(forms, table, &kernels));
        }
    }
    joint.mixtures.sort_by_key(|m| m.ns.iter().sum::<u64>());
    if joint.mixtures.is_empty() {
        joint.why = Some("what one launch list would pick takes longer in another".into());
    }
}

/// Why a program gave no cover, if it did not.
fn none(end: End) -> Option<&'static str> {
    match end {
        End::Rounds => Some("kernels of several forms still wait for each other"),
        End::Nothing => Some("the solver found no cover by several forms within its limits"),
        End::Optimal | End::Nodes => None,
    }
}

fn taken_of(part: &Part, solved: &Solved) -> Vec<Candidate> {
    solved.chosen.iter().map(|i| part.pool.list[*i].clone()).collect()
}

/// Picks that the chosen kernels take for granted.
fn picked(part: &Part, solved: &Solved) -> BTreeSet<usize> {
    solved.chosen.iter().flat_map(|i| part.pool.list[*i].across.picks.iter().copied()).collect()
}

/// The candidates that take no other pick for granted where a class has a fixed one.
fn agreeing(part: &Part, table: &Table, fixed: &BTreeSet<usize>) -> Part {
    let has_fixed = |class: &&Vec<usize>| class.iter().any(|p| fixed.contains(p));
    let others = table.choosable.classes.iter().filter(has_fixed).flatten().filter(|p| !fixed.contains(p));
    let others: BTreeSet<usize> = others.copied().collect();
    let agrees = |c: &&Candidate| c.across.picks.iter().all(|p| !others.contains(p));
    let list = part.pool.list.iter().filter(agrees).cloned().collect();
    Part { pool: Pool { list, dominated: 0 }, terms: part.terms.clone() }
}

/// Picks and kernels of a solution.
fn read(forms: &[Form], table: &Table, lists: &[Vec<Candidate>]) -> Mixture {
    let mut picks = forms[0].picks.clone();
    let known = table.numbers.iter().map(|((id, pick), n)| (n, (id, pick)));
    let by_number: BTreeMap<&usize, (&Id, &Pick)> = known.collect();
    for (n, (id, pick)) in &by_number {
        if !table.several.contains(*n) {
            picks.insert(**id, (*pick).clone());
        }
    }
    for (id, pick) in lists.iter().flatten().flat_map(|c| &c.across.picks).filter_map(|n| by_number.get(n)) {
        picks.insert(**id, (*pick).clone());
    }
    let classes = |c: &Candidate| c.ops.ones().map(Id::from).collect();
    let kernels = lists.iter().map(|list| list.iter().map(classes).collect()).collect();
    Mixture { picks, kernels, ns: lists.iter().map(|list| list.iter().map(|c| c.ns).sum()).collect() }
}

/// Kernels in the values of a form; those of ops that it does not need are left out.
pub fn in_form(class_of: &[Id], body: &Graph, kernels: &Kernels, views: &Facts) -> Groups {
    let of_class: BTreeMap<Id, ValueId> =
        body.ids().filter(|v| views.kind(*v) == Kind::Op).map(|v| (class_of[v.index()], v)).collect();
    let ops = |kernel: &BTreeSet<Id>| kernel.iter().filter_map(|id| of_class.get(id)).copied().collect();
    kernels.iter().map(ops).filter(|ops: &BTreeSet<ValueId>| !ops.is_empty()).collect()
}
