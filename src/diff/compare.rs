//! What differs, as data. Numbers are compared where both sides have them.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::snapshot::{Form, Snapshot, Taken};

/// What a number speaks of.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case", tag = "scope")]
pub enum Scope {
    List {
        rows: u64,
        seqs: u64,
    },
    Kind {
        rows: u64,
        seqs: u64,
        kind: String,
    },
    /// All kernels on a target.
    Target {
        target: String,
    },
    Kernel {
        kernel: String,
        target: String,
    },
    KernelInList {
        kernel: String,
        rows: u64,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    Launches,
    /// Nanoseconds, modelled.
    Time,
    Dram,
    /// As issued: read by every workgroup that needs them.
    Activations,
    /// Activations, each written once and read once by each launch that reads it.
    Moved,
    /// The least that these kernels could move.
    Least,
    /// Launches that only compute element by element.
    Pointwise,
    Arena,
    Kernels,
    Vgprs,
    Sgprs,
    Lds,
    Spills,
    Occupancy,
    Code,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Number {
    #[serde(flatten)]
    pub scope: Scope,
    pub metric: Metric,
    pub a: u64,
    pub b: u64,
}

/// A property of a kernel that is no number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Property {
    pub kernel: String,
    pub property: &'static str,
    pub a: String,
    pub b: String,
}

/// Counts of a rule, or the e-graph's size of a body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Count {
    pub name: String,
    pub count: &'static str,
    pub a: u64,
    pub b: u64,
}

#[derive(Clone, Debug, Default)]
pub struct Difference {
    /// Those of lists, kinds and targets all; those of kernels too, changed or not.
    pub numbers: Vec<Number>,
    /// Rows of launch lists that one side lacks.
    pub lists_only_in_one: Vec<u64>,
    /// Targets that both sides have code for.
    pub targets: BTreeSet<String>,
    pub gained: Vec<String>,
    pub lost: Vec<String>,
    pub properties: Vec<Property>,
    pub rules: Vec<Count>,
    pub graphs: Vec<Count>,
}

impl Difference {
    pub fn of(a: &Snapshot, b: &Snapshot) -> Difference {
        let targets =
            |s: &Snapshot| -> BTreeSet<String> { s.kernels.values().flat_map(|k| k.taken.keys().cloned()).collect() };
        let mut d = Difference { targets: &targets(a) & &targets(b), ..Difference::default() };
        d.lists(a, b);
        d.code(a, b);
        for (name, ka) in &a.kernels {
            let Some(kb) = b.kernels.get(name) else {
                d.lost.push(name.clone());
                continue;
            };
            if let (Some(fa), Some(fb)) = (&ka.form, &kb.form) {
                d.form(name, fa, fb);
            }
            for (target, ta) in &ka.taken {
                let Some(tb) = kb.taken.get(target) else { continue };
                let scope = Scope::Kernel { kernel: name.clone(), target: target.clone() };
                d.taken(&scope, ta, tb);
            }
        }
        d.gained.extend(b.kernels.keys().filter(|n| !a.kernels.contains_key(*n)).cloned());
        d.rewriting(a, b);
        d
    }

    fn number(&mut self, scope: &Scope, metric: Metric, a: u64, b: u64) {
        self.numbers.push(Number { scope: scope.clone(), metric, a, b });
    }

    fn lists(&mut self, a: &Snapshot, b: &Snapshot) {
        for la in &a.lists {
            let (rows, seqs) = (la.rows, la.seqs);
            let Some(lb) = b.lists.iter().find(|l| (l.rows, l.seqs) == (rows, seqs)) else {
                self.lists_only_in_one.push(rows);
                continue;
            };
            let scope = Scope::List { rows, seqs };
            self.number(&scope, Metric::Launches, la.launches, lb.launches);
            self.number(&scope, Metric::Time, la.ns, lb.ns);
            self.number(&scope, Metric::Dram, la.dram_bytes, lb.dram_bytes);
            self.number(&scope, Metric::Activations, la.activation_bytes, lb.activation_bytes);
            self.number(&scope, Metric::Moved, la.moved_bytes, lb.moved_bytes);
            self.number(&scope, Metric::Least, la.least_bytes, lb.least_bytes);
            self.number(&scope, Metric::Pointwise, la.pointwise, lb.pointwise);
            self.number(&scope, Metric::Arena, la.arena_bytes, lb.arena_bytes);
            let kinds: BTreeSet<&String> = la.kinds.keys().chain(lb.kinds.keys()).collect();
            for kind in kinds {
                let of = |kinds: &BTreeMap<String, u64>| kinds.get(kind).copied().unwrap_or(0);
                let scope = Scope::Kind { rows, seqs, kind: kind.clone() };
                self.number(&scope, Metric::Launches, of(&la.kinds), of(&lb.kinds));
            }
        }
        let in_a = |rows: u64, seqs: u64| a.lists.iter().any(|l| (l.rows, l.seqs) == (rows, seqs));
        self.lists_only_in_one.extend(b.lists.iter().filter(|l| !in_a(l.rows, l.seqs)).map(|l| l.rows));
    }

    /// All kernels of a target: sums of code and spills, the extremes of what each takes.
    fn code(&mut self, a: &Snapshot, b: &Snapshot) {
        for target in self.targets.clone() {
            let all = |s: &Snapshot| -> Vec<Taken> {
                s.kernels.values().filter_map(|k| k.taken.get(&target).copied()).collect()
            };
            let (ta, tb) = (all(a), all(b));
            let scope = Scope::Target { target };
            self.number(&scope, Metric::Kernels, ta.len() as u64, tb.len() as u64);
            self.taken(&scope, &together(&ta), &together(&tb));
        }
    }

    fn taken(&mut self, scope: &Scope, a: &Taken, b: &Taken) {
        self.number(scope, Metric::Vgprs, a.vgprs, b.vgprs);
        self.number(scope, Metric::Sgprs, a.sgprs, b.sgprs);
        self.number(scope, Metric::Lds, a.lds_bytes, b.lds_bytes);
        self.number(scope, Metric::Spills, a.spills, b.spills);
        self.number(scope, Metric::Occupancy, a.occupancy, b.occupancy);
        self.number(scope, Metric::Code, a.code_bytes, b.code_bytes);
    }

    fn form(&mut self, name: &str, a: &Form, b: &Form) {
        let mut property = |property, a: String, b: String| {
            if a != b {
                self.properties.push(Property { kernel: name.to_owned(), property, a, b });
            }
        };
        property("class", a.class.clone(), b.class.clone());
        property("exactness", a.exactness.into(), b.exactness.into());
        property("ops", more_in(&a.ops, &b.ops), more_in(&b.ops, &a.ops));
        property("schedule", a.schedule.clone(), b.schedule.clone());
        let rows: BTreeSet<u64> = a.launches.keys().chain(b.launches.keys()).copied().collect();
        for rows in rows {
            let scope = Scope::KernelInList { kernel: name.to_owned(), rows };
            let of = |m: &BTreeMap<u64, u64>| m.get(&rows).copied().unwrap_or(0);
            self.number(&scope, Metric::Launches, of(&a.launches), of(&b.launches));
            if let (Some(ta), Some(tb)) = (a.ns.get(&rows), b.ns.get(&rows)) {
                self.number(&scope, Metric::Time, *ta, *tb);
            }
        }
    }

    fn rewriting(&mut self, a: &Snapshot, b: &Snapshot) {
        let (Some(a), Some(b)) = (&a.rewriting, &b.rewriting) else { return };
        let none = Default::default();
        for body in a.keys().chain(b.keys()).collect::<BTreeSet<_>>() {
            let (ra, rb) = (a.get(body).unwrap_or(&none), b.get(body).unwrap_or(&none));
            let pairs = [("e-nodes", ra.e_nodes, rb.e_nodes), ("classes", ra.classes, rb.classes)];
            self.graphs.extend(pairs.map(|(count, a, b)| Count { name: body.clone(), count, a, b }));
        }
        let rules = a.values().chain(b.values()).flat_map(|r| r.fired.keys()).collect::<BTreeSet<_>>();
        for rule in rules {
            let sum = |of: &BTreeMap<String, super::snapshot::Rewriting>| {
                let at = |m: &BTreeMap<String, u64>| m.get(rule).copied().unwrap_or(0);
                of.values().fold((0, 0), |(f, p), r| (f + at(&r.fired), p + at(&r.paid)))
            };
            let (in_a, in_b) = (sum(a), sum(b));
            let pairs = [("fired", in_a.0, in_b.0), ("paid", in_a.1, in_b.1)];
            self.rules.extend(pairs.map(|(count, a, b)| Count { name: rule.clone(), count, a, b }));
        }
    }
}

fn together(all: &[Taken]) -> Taken {
    let most = |of: fn(&Taken) -> u64| all.iter().map(of).max().unwrap_or(0);
    let sum = |of: fn(&Taken) -> u64| all.iter().map(of).fold(0u64, u64::saturating_add);
    Taken {
        vgprs: most(|t| t.vgprs),
        sgprs: most(|t| t.sgprs),
        lds_bytes: most(|t| t.lds_bytes),
        spills: sum(|t| t.spills),
        occupancy: all.iter().map(|t| t.occupancy).min().unwrap_or(0),
        code_bytes: sum(|t| t.code_bytes),
    }
}

/// What `a` has more of than `b`.
fn more_in(a: &BTreeMap<String, u64>, b: &BTreeMap<String, u64>) -> String {
    let more = a.iter().filter_map(|(op, n)| {
        let more = n.saturating_sub(b.get(op).copied().unwrap_or(0));
        (more > 0).then(|| (op.clone(), more))
    });
    crate::report::tables::counts(&more.collect())
}
