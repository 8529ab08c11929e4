//! A difference as tables, or as JSON.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use unglue_codegen::target;

use super::compare::{Difference, Metric, Number, Scope};
use super::limits::Exceeded;
use super::snapshot::{Kernel, Snapshot};
use crate::report::tables::{Page, bytes, us};

pub fn text(a: &Snapshot, b: &Snapshot, d: &Difference, exceeded: &[Exceeded], bold: bool) -> String {
    let mut page = Page::new(bold);
    page.line(format!("A: {}", side(a)));
    page.line(format!("B: {}", side(b)));
    if a.build != b.build {
        page.note(&format!("They were built from different inputs. A: {}. B: {}.", build(a), build(b)));
    }
    lists(&mut page, d);
    kinds(&mut page, d);
    targets(&mut page, d);
    alone(&mut page, "Kernels gained", &d.gained, b);
    alone(&mut page, "Kernels lost", &d.lost, a);
    changed(&mut page, d);
    rewriting(&mut page, a, b, d);
    limits(&mut page, exceeded);
    page.text()
}

fn side(s: &Snapshot) -> String {
    match &s.sha256 {
        Some(sha256) => format!("bundle {}, sha256 {sha256}", s.path),
        None => format!("budget {}", s.path),
    }
}

fn build(s: &Snapshot) -> String {
    let b = &s.build;
    let (model, layers) = (&b.model, b.layers);
    format!(
        "{model}, {layers} layers, {}, numerics {}, cover {}, times by the cost model of {}",
        b.dtype, b.numerics, b.cover, b.costs
    )
}

/// A figure of a metric.
fn value(metric: Metric, n: u64) -> String {
    match metric {
        Metric::Time => us(n),
        Metric::Dram | Metric::Activations | Metric::Moved | Metric::Least => bytes(n),
        Metric::Arena | Metric::Lds | Metric::Code => bytes(n),
        _ => n.to_string(),
    }
}

fn name(metric: Metric) -> &'static str {
    match metric {
        Metric::Launches => "launches",
        Metric::Time => "us",
        Metric::Dram => "DRAM",
        Metric::Activations => "activations",
        Metric::Moved => "moved",
        Metric::Least => "least moved",
        Metric::Pointwise => "pointwise",
        Metric::Arena => "arena",
        Metric::Kernels => "kernels",
        Metric::Vgprs => "VGPRs",
        Metric::Sgprs => "SGPRs",
        Metric::Lds => "LDS",
        Metric::Spills => "spills",
        Metric::Occupancy => "occupancy",
        Metric::Code => "code",
    }
}

/// `+12`, `-1.5%`; counts as they are, all else in per cent.
fn change(metric: Metric, a: u64, b: u64) -> String {
    let sign = if b < a { '-' } else { '+' };
    let counted = matches!(
        metric,
        Metric::Launches
            | Metric::Pointwise
            | Metric::Kernels
            | Metric::Vgprs
            | Metric::Sgprs
            | Metric::Spills
            | Metric::Occupancy
    );
    if counted || a == 0 {
        return format!("{sign}{}", value(metric, a.abs_diff(b)));
    }
    let percent = a.abs_diff(b) as f64 * 100.0 / a as f64;
    if percent < 0.05 { format!("{sign}<0.1%") } else { format!("{sign}{percent:.1}%") }
}

/// `525`, or `525 -> 530 (+5)`; a difference that rounding hides still shows.
fn cell(n: &Number) -> String {
    if n.a == n.b {
        return value(n.metric, n.a);
    }
    format!("{} -> {} ({})", value(n.metric, n.a), value(n.metric, n.b), change(n.metric, n.a, n.b))
}

/// A row for each scope that `row` names, and a column for each metric of the first of them: heads and cells are of one
/// list of metrics, so they cannot differ.
fn by_metric(page: &mut Page, head: &str, d: &Difference, row: impl Fn(&Scope) -> Option<String>) {
    let scopes: BTreeMap<&Scope, String> = d.numbers.iter().filter_map(|n| Some((&n.scope, row(&n.scope)?))).collect();
    let Some(first) = scopes.keys().next() else { return };
    let metrics: Vec<Metric> = d.numbers.iter().filter(|n| n.scope == **first).map(|n| n.metric).collect();
    let heads: Vec<String> =
        std::iter::once(head.to_owned()).chain(metrics.iter().map(|m| format!(">{}", name(*m)))).collect();
    let rows = scopes.iter().map(|(scope, named)| {
        let figure = |metric: &Metric| {
            let found = d.numbers.iter().find(|n| n.scope == **scope && n.metric == *metric);
            found.map_or_else(|| "-".to_string(), cell)
        };
        std::iter::once(named.clone()).chain(metrics.iter().map(figure)).collect()
    });
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    page.table(&heads, rows.collect());
}

fn lists(page: &mut Page, d: &Difference) {
    page.title("A step, by launch list [counted launches and arena; modelled times and bytes]");
    if d.numbers.iter().any(|n| matches!(n.scope, Scope::List { .. })) {
        by_metric(page, ">rows", d, |scope| match scope {
            Scope::List { rows, .. } => Some(rows.to_string()),
            _ => None,
        });
        page.note(
            "DRAM: weights and state. activations: once for each workgroup that reads them; moved: each written once and \
             read once by each launch that reads it; least moved: each written once and read once. pointwise: launches \
             that only compute element by element. arena: memory of all activations.",
        );
    } else {
        page.line("not compared: A and B have no launch list in common");
    }
    for rows in &d.lists_only_in_one {
        page.note(&format!("The launch list for steps of at most {rows} row(s) is in one of A and B alone."));
    }
}

fn kinds(page: &mut Page, d: &Difference) {
    page.title("Launches by layer kind [counted]");
    let mut rows = Vec::new();
    for n in d.numbers.iter().filter(|n| n.a != n.b) {
        if let Scope::Kind { rows: r, kind, .. } = &n.scope {
            rows.push(vec![kind.clone(), r.to_string(), n.a.to_string(), n.b.to_string(), change(n.metric, n.a, n.b)]);
        }
    }
    table_or_none(page, &["kind", ">rows", ">A", ">B", ">change"], rows);
}

fn table_or_none(page: &mut Page, heads: &[&str], rows: Vec<Vec<String>>) {
    if rows.is_empty() { page.line("none changed") } else { page.table(heads, rows) }
}

fn targets(page: &mut Page, d: &Difference) {
    page.title("Machine code of all kernels [compiled]");
    if d.targets.is_empty() {
        page.line("not compared: A and B have no target in common");
        return;
    }
    by_metric(page, "target", d, |scope| match scope {
        Scope::Target { target } => Some(target.clone()),
        _ => None,
    });
    page.note("VGPRs, SGPRs, LDS: the most of any kernel; occupancy: the least; spills, code: the sum.");
}

/// Kernels that one side has alone.
fn alone(page: &mut Page, title: &str, names: &[String], side: &Snapshot) {
    page.title(title);
    if names.is_empty() {
        page.line("none");
        return;
    }
    let rows = names.iter().filter_map(|name| Some(kernel_row(name, side.kernels.get(name)?)));
    let heads = ["=kernel", "class", ">launches", ">us", ">VGPRs", ">code"];
    page.table(&heads, rows.collect());
    page.note(
        "launches: in the launch lists that have it; us: one launch in the first of them; VGPRs, code: on the GPU.",
    );
}

fn kernel_row(name: &str, k: &Kernel) -> Vec<String> {
    let none = || "-".to_string();
    let form = k.form.as_ref();
    let launches = form.map(|f| f.launches.values().map(u64::to_string).collect::<Vec<_>>().join("/"));
    let on_gpu = |target: &str| target::by_name(target).is_some_and(|t| t.gpu.is_some());
    let taken = k.taken.iter().find(|(target, _)| on_gpu(target)).map(|(_, t)| t);
    let number = |n: Option<u64>| n.map_or_else(none, |n| n.to_string());
    vec![
        name.to_owned(),
        form.map_or_else(none, |f| f.class.clone()),
        launches.unwrap_or_else(none),
        form.and_then(|f| f.ns.values().next()).map_or_else(none, |ns| us(*ns)),
        number(taken.map(|t| t.vgprs)),
        taken.map_or_else(none, |t| bytes(t.code_bytes)),
    ]
}

fn changed(page: &mut Page, d: &Difference) {
    page.title("Kernels changed [modelled us; compiled registers, memory and code]");
    let mut rows: Vec<Vec<String>> = Vec::new();
    for p in &d.properties {
        let what = if p.property == "ops" { "ops not in the other".into() } else { p.property.to_string() };
        rows.push(vec![p.kernel.clone(), what, p.a.clone(), p.b.clone(), String::new()]);
    }
    for n in d.numbers.iter().filter(|n| n.a != n.b) {
        let (kernel, at) = match &n.scope {
            Scope::Kernel { kernel, target } => (kernel, target.clone()),
            Scope::KernelInList { kernel, rows } => (kernel, format!("{rows} row(s)")),
            _ => continue,
        };
        let what = format!("{}, {at}", name(n.metric));
        let (a, b) = (value(n.metric, n.a), value(n.metric, n.b));
        rows.push(vec![kernel.clone(), what, a, b, change(n.metric, n.a, n.b)]);
    }
    // By kernel; the order of figures within one stays.
    rows.sort_by(|x, y| x.first().cmp(&y.first()));
    for i in (1..rows.len()).rev() {
        if rows[i].first() == rows[i - 1].first()
            && let Some(kernel) = rows[i].first_mut()
        {
            kernel.clear();
        }
    }
    table_or_none(page, &["=kernel", "figure", "A", "B", ">change"], rows);
}

fn rewriting(page: &mut Page, a: &Snapshot, b: &Snapshot, d: &Difference) {
    page.title("Rewriting [counted]");
    if a.rewriting.is_none() || b.rewriting.is_none() {
        page.line("not compared: budgets do not hold it");
        return;
    }
    let rows = d.rules.iter().map(|c| ("rule", c)).chain(d.graphs.iter().map(|c| ("body", c)));
    let row = |(what, c): (&str, &super::compare::Count)| {
        let change = change(Metric::Launches, c.a, c.b);
        vec![format!("{what} {}", c.name), c.count.to_string(), c.a.to_string(), c.b.to_string(), change]
    };
    let rows = rows.filter(|(_, c)| c.a != c.b).map(row).collect();
    table_or_none(page, &["of", "count", ">A", ">B", ">change"], rows);
}

fn limits(page: &mut Page, exceeded: &[Exceeded]) {
    if exceeded.is_empty() {
        return;
    }
    page.title("Above the limits");
    for e in exceeded {
        page.note(&exceeded_text(e));
    }
}

/// `launches of 1 row(s): 525 in A, 530 in B (+5), --max-launches 0`.
pub fn exceeded_text(e: &Exceeded) -> String {
    let n = &e.number;
    let at = match &n.scope {
        Scope::List { rows, .. } => format!("steps of {rows} row(s)"),
        Scope::Kind { rows, kind, .. } => format!("{kind} in steps of {rows} row(s)"),
        Scope::Target { target } => format!("all kernels on {target}"),
        Scope::Kernel { kernel, target } => format!("{kernel} on {target}"),
        Scope::KernelInList { kernel, rows } => format!("{kernel} in steps of {rows} row(s)"),
    };
    let (a, b) = (value(n.metric, n.a), value(n.metric, n.b));
    format!("{} of {at}: {a} in A, {b} in B ({}); {} {}", name(n.metric), change(n.metric, n.a, n.b), e.option, e.limit)
}

pub fn json(a: &Snapshot, b: &Snapshot, d: &Difference, exceeded: &[Exceeded]) -> Value {
    let side = |s: &Snapshot| {
        let kind = if s.sha256.is_some() { "bundle" } else { "budget" };
        json!({ "path": s.path, "kind": kind, "sha256": s.sha256, "build": s.build })
    };
    let of_kernel = |n: &&Number| matches!(n.scope, Scope::Kernel { .. } | Scope::KernelInList { .. });
    let numbers: Vec<&Number> = d.numbers.iter().filter(|n| !of_kernel(n)).collect();
    let changed: Vec<&Number> = d.numbers.iter().filter(|n| of_kernel(n) && n.a != n.b).collect();
    json!({
        "a": side(a),
        "b": side(b),
        "numbers": numbers,
        "lists_only_in_one": d.lists_only_in_one,
        "targets": d.targets,
        "kernels": { "gained": d.gained, "lost": d.lost, "numbers": changed, "properties": d.properties },
        "rules": d.rules.iter().filter(|c| c.a != c.b).collect::<Vec<_>>(),
        "graphs": d.graphs.iter().filter(|c| c.a != c.b).collect::<Vec<_>>(),
        "exceeded": exceeded,
    })
}
