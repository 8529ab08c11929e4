//! The report as text, at most [`WIDTH`] columns wide.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use comfy_table::presets::NOTHING;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Table, TableComponent};
use unglue_runtime::Bundle;
use unglue_runtime::manifest::{Exactness, Manifest, Resources};

use super::classes;
use super::executed;
use super::measured::{self, Measured};
use super::steps;
use super::view::{Body, Bucket, Kernel, Report, Saturation, Totals};
use super::warnings;
use crate::emulated::Emulated;

const WIDTH: u16 = 120;
/// The target whose machine code has registers to speak of.
const GPU: &str = "gfx1201";

/// A page under construction.
pub(crate) struct Page {
    text: String,
    bold: bool,
}

impl Page {
    /// `bold` sets headings off by terminal codes.
    pub(crate) fn new(bold: bool) -> Page {
        Page { text: String::new(), bold }
    }

    pub(crate) fn text(self) -> String {
        self.text
    }

    pub(crate) fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref().trim_end());
        self.text.push('\n');
    }

    pub(crate) fn title(&mut self, title: impl AsRef<str>) {
        let (on, off) = if self.bold { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        let _ = write!(self.text, "\n{on}{}{off}\n", title.as_ref());
    }

    /// A paragraph, wrapped.
    pub(crate) fn note(&mut self, text: &str) {
        let mut line = String::new();
        for word in text.split_whitespace() {
            if !line.is_empty() && line.len() + 1 + word.len() > usize::from(WIDTH) {
                self.line(&line);
                line.clear();
            }
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
        self.line(line);
    }

    /// Columns whose heads start with `>` are aligned to the right; those with `=` are not broken.
    pub(crate) fn table(&mut self, heads: &[&str], rows: Vec<Vec<String>>) {
        let mut table = Table::new();
        table.load_preset(NOTHING).set_style(TableComponent::HeaderLines, '-');
        table.set_content_arrangement(ContentArrangement::Dynamic).set_width(WIDTH);
        table.set_header(heads.iter().map(|h| h.trim_start_matches(['>', '='])));
        for (column, head) in table.column_iter_mut().zip(heads) {
            column.set_padding((0, 2));
            if head.starts_with('>') {
                column.set_cell_alignment(CellAlignment::Right);
            }
            if head.starts_with('=') {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
        }
        table.add_rows(rows);
        for line in table.lines() {
            self.line(line);
        }
    }
}

/// The whole report. `bold` sets headings off by terminal codes.
pub fn text(
    bundle: &Bundle,
    report: &Report,
    emulated: Option<&Emulated>,
    measured: Option<&Measured>,
    bold: bool,
) -> String {
    let mut page = Page::new(bold);
    let m = bundle.manifest();
    page.line(format!("bundle {}, sha256 {}", bundle.path().display(), bundle.sha256()));
    head(&mut page, bundle, report);
    lists(&mut page, m, report);
    sums(&mut page, "Launches and time by class", report, |b| &b.by_class);
    sums(&mut page, "Launches and time by layer kind", report, |b| &b.by_body);
    steps::by_class(&mut page, report);
    steps::activations(&mut page, report);
    saturation(&mut page, report);
    classes::section(&mut page, report, &m.options.numerics);
    cover(&mut page, m, report);
    for bucket in &report.buckets {
        kernels(&mut page, m, report, bucket);
    }
    warnings::page(&mut page, m, report);
    executed::executed(&mut page, m, emulated);
    if let Some(measured) = measured {
        measured::section(&mut page, measured, &report.tag);
    }
    page.text()
}

fn head(page: &mut Page, bundle: &Bundle, report: &Report) {
    let m = bundle.manifest();
    let (model, o) = (&m.model, &m.options);
    page.note(&format!(
        "{}: {} layers ({}), hidden width {}, {} residual streams, vocabulary {}",
        model.name,
        model.layers.len(),
        ranges(&model.layers),
        model.hidden_size,
        model.streams,
        model.vocab_size
    ));
    let aux = if o.aux.is_empty() { "no layer captured".into() } else { format!("layers {} captured", ranges(&o.aux)) };
    page.note(&format!(
        "options: activations {}, token state {}, numerics {}, cover {}, {} rank(s), {aux}; steps of at most {} rows of \
         {} sequences, contexts of at most {} tokens, blocks of {} tokens",
        o.dtype, o.kv_dtype, o.numerics, o.cover, o.tp, o.max_rows, o.max_seqs, o.max_ctx, o.kv_block
    ));
    let targets: Vec<&str> = bundle.targets().into_iter().collect();
    page.note(&format!(
        "code for {}; {} distinct kernels, {} weights, {} states",
        targets.join(", "),
        m.kernels.len(),
        m.weights.len(),
        m.states.len()
    ));
    let loosest = m.kernels.iter().map(|k| k.exactness).max().unwrap_or(Exactness::Exact);
    page.note(&format!("loosest rewrite class in any kernel: {}", exactness(loosest)));
    page.line("");
    page.note(&format!(
        "Where figures are from: [counted] in the launch lists of this bundle; [{}] by the cost model of {}, with full \
         buckets and full contexts, never measured; [compiled] read from the finished machine code.",
        report.tag, report.costs.target
    ));
}

pub(crate) fn exactness(e: Exactness) -> &'static str {
    match e {
        Exactness::Exact => "exact",
        Exactness::Rounding => "rounding",
        Exactness::Reassociating => "reassociating",
        Exactness::Fast => "fast",
    }
}

fn lists(page: &mut Page, m: &Manifest, report: &Report) {
    let tag = &report.tag;
    page.title(format!("A step, by launch list [counted launches and arena; {tag} times and bytes]"));
    let rows = report.buckets.iter().zip(&m.buckets).map(|(b, launches)| {
        let inner = launches.launches.iter().filter(|l| l.layer.is_some()).count();
        vec![
            b.rows_max.to_string(),
            b.seqs_max.to_string(),
            b.total.launches.to_string(),
            b.unfused_launches.to_string(),
            per_layer(inner, m.model.layers.len()),
            us(b.total.predicted_ns),
            us(b.unfused_ns),
            bytes(b.total.dram_bytes),
            bytes(b.total.cache_bytes),
            bytes(b.arena_bytes),
            bytes(b.unshared_bytes),
        ]
    });
    let heads = [
        ">rows",
        ">seqs",
        ">launches",
        ">unfused",
        ">per layer",
        ">us",
        ">unfused us",
        ">DRAM",
        ">cache",
        ">arena",
        ">unshared",
    ];
    let rows = rows.collect();
    page.table(&heads, rows);
    page.note(
        "rows, seqs: the largest step of the list. unfused: with one op per kernel. per layer: average launches of a \
         layer, without those before the first and after the last. us: kernels and the gaps between them. DRAM: weights \
         and state. cache: activations, once for each workgroup that reads them. arena: memory of all activations; \
         unshared: had no two shared memory.",
    );
}

fn per_layer(launches: usize, layers: usize) -> String {
    if layers == 0 { "-".into() } else { format!("{:.1}", launches as f64 / layers as f64) }
}

/// One row a key, and columns for each launch list.
fn sums(page: &mut Page, title: &str, report: &Report, of: impl Fn(&Bucket) -> &BTreeMap<String, Totals>) {
    page.title(format!("{title} [counted launches; {} times]", report.tag));
    let named: BTreeSet<&String> = report.buckets.iter().flat_map(|b| of(b).keys()).collect();
    let bodies: Vec<&String> = report.buckets.first().into_iter().flat_map(|b| &b.bodies).map(|b| &b.body).collect();
    let kinds = named.iter().all(|k| bodies.contains(k));
    // Layer kinds in the order of the trunk.
    let keys: Vec<&String> =
        if kinds { bodies.into_iter().filter(|b| named.contains(b)).collect() } else { named.into_iter().collect() };
    let mut heads = vec![String::new()];
    if kinds {
        heads.extend([">calls".into(), ">launches a call".into(), ">unfused".into()]);
    }
    for b in &report.buckets {
        let s = if b.rows_max == 1 { "" } else { "s" };
        heads.extend([format!(">{} row{s}", b.rows_max), ">us".into(), ">%".into()]);
    }
    let mut rows = Vec::new();
    for key in keys {
        let mut row = vec![key.clone()];
        if kinds {
            row.extend(per_call(report, key));
        }
        for b in &report.buckets {
            let t = of(b).get(key).copied().unwrap_or_default();
            let share = t.predicted_ns as f64 * 100.0 / b.total.predicted_ns.max(1) as f64;
            row.extend([t.launches.to_string(), us(t.predicted_ns), format!("{share:.0}")]);
        }
        rows.push(row);
    }
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    page.table(&heads, rows);
}

/// Calls of a body in a step, and kernels of one call, fused and unfused. Kernels: of each launch list if they differ.
fn per_call(report: &Report, body: &str) -> [String; 3] {
    let of = |b: &Bucket| -> Option<(u64, u64, u64)> {
        let found = b.bodies.iter().find(|x| x.body == body)?;
        let kernels = found.kernels.len() as u64;
        let launches = b.by_body.get(body).map_or(0, |t| t.launches);
        Some((launches.checked_div(kernels).unwrap_or(0), kernels, found.cover.unfused))
    };
    let all: Vec<_> = report.buckets.iter().filter_map(of).collect();
    let list = |get: fn(&(u64, u64, u64)) -> u64| {
        let values: Vec<String> = all.iter().map(|x| get(x).to_string()).collect();
        if values.windows(2).all(|w| w[0] == w[1]) {
            values.first().cloned().unwrap_or_default()
        } else {
            values.join("/")
        }
    };
    [list(|x| x.0), list(|x| x.1), list(|x| x.2)]
}

fn saturation(page: &mut Page, report: &Report) {
    page.title("Rewriting: one e-graph a body [counted; cost and saved in the extractor's units]");
    let mut rows = Vec::new();
    for s in &report.saturation {
        saturation_row(s, "", &mut rows);
    }
    page.table(
        &["body", ">nodes", ">e-nodes", ">classes", ">rounds", "stopped", "class", ">cost", ">saved", "rules fired"],
        rows,
    );
    if report.saturation.iter().any(|s| s.kept_declared) {
        page.note("*: the declared form was kept, since the rewritten one was no cheaper or left a leaf unused.");
    }
}

fn saturation_row(s: &Saturation, indent: &str, rows: &mut Vec<Vec<String>>) {
    let change = |a: u64, b: u64| if a == b { a.to_string() } else { format!("{a}->{b}") };
    rows.push(vec![
        format!("{indent}{}{}", s.body, if s.kept_declared { "*" } else { "" }),
        change(s.nodes_in, s.nodes_out),
        s.e_nodes.to_string(),
        s.classes.to_string(),
        s.iterations.to_string(),
        s.stop.clone(),
        s.exactness.clone(),
        s.cost_in.to_string(),
        s.cost_in.saturating_sub(s.cost_out).to_string(),
        counts(&s.fired),
    ]);
    for repeat in &s.repeats {
        saturation_row(repeat, &format!("{indent}  "), rows);
    }
}

fn cover(page: &mut Page, m: &Manifest, report: &Report) {
    let strategy = &m.options.cover;
    page.title(format!("Fusion: cover \"{strategy}\" [counted]"));
    match strategy.as_str() {
        "greedy" => page.note(
            "Greedy: of all moves the one that saves the most predicted time is taken, until none saves any; then fewer \
             launches win ties. This is a heuristic: a better cover may exist, and nothing here bounds how much better.",
        ),
        "exact" => page.note(
            "Exact: an integer program chooses kernels among candidates; a greedy cover that ties is kept. No choice among \
             these candidates costs less than the bound; sets that were cut were no candidates.",
        ),
        "none" => page.note("None: one op per kernel, the unfused baseline. No fusion was tried."),
        _ => {}
    }
    if let Some(smallest) = report.buckets.first() {
        page.note(&format!(
            "Search for steps of at most {} row(s); --json has the other launch lists.",
            smallest.rows_max
        ));
        let launched = smallest.bodies.iter().filter(|x| smallest.by_body.contains_key(&x.body));
        let row = |body: &Body| {
            vec![
                body.body.clone(),
                body.cover.unfused.to_string(),
                body.kernels.len().to_string(),
                body.cover.fusions.to_string(),
                body.cover.recomputed.to_string(),
                body.cover.candidates.to_string(),
                counts(&body.cover.obstacles),
            ]
        };
        let heads =
            ["body", ">unfused", ">kernels", ">fusions", ">recomputed", ">candidates", "candidates refused, by rule"];
        page.table(&heads, launched.map(row).collect());
    }
    exact(page, report);
    wishes(page, report);
    alone(page, report);
}

/// The integer programs, of every launch list.
fn exact(page: &mut Page, report: &Report) {
    let mut rows = Vec::new();
    for (b, body) in launched(report) {
        let Some(e) = &body.cover.exact else { continue };
        rows.push(vec![
            body.body.clone(),
            b.rows_max.to_string(),
            e.candidates.to_string(),
            e.dominated.to_string(),
            e.cut.to_string(),
            e.variables.to_string(),
            format!("{}/{}", e.cycle_cuts, e.rounds),
            us(e.greedy_ns),
            us(e.objective_ns),
            us(e.bound_ns),
            format!("{:.2}%", e.gap_ppm as f64 / 10_000.0),
            e.kept_greedy.clone().unwrap_or_else(|| "better".into()),
        ]);
    }
    if rows.is_empty() {
        return;
    }
    page.title(format!("Integer program, by body and launch list [counted; {}]", report.tag));
    let heads = [
        "=body", ">rows", ">cands", ">domin.", ">cut", ">vars", ">cycles", ">greedy", ">us", ">bound", ">gap",
        "outcome",
    ];
    page.table(&heads, rows);
    page.note("cycles: constraints against cyclic covers, and times the solver ran. An outcome but \"better\": why greedy was kept.");
}

/// What was forced and forbidden.
fn wishes(page: &mut Page, report: &Report) {
    let mut rows = Vec::new();
    for (b, body) in launched(report) {
        let w = &body.cover.wishes;
        let mut row = |a: &String, with: &String, what: String| {
            rows.push(vec![body.body.clone(), b.rows_max.to_string(), a.clone(), with.clone(), what]);
        };
        w.forced.iter().for_each(|f| row(&f.a, &f.b, format!("forced, {:+} ns", f.delta_ns)));
        w.forbidden.iter().for_each(|[a, with]| row(a, with, "forbidden".into()));
    }
    if !rows.is_empty() {
        page.title(format!("Fusions that the command line asked for [{}]", report.tag));
        page.table(&["=body", ">rows", "of", "with", "what"], rows);
    }
}

/// Bodies that are launched, with their launch list.
fn launched(report: &Report) -> impl Iterator<Item = (&Bucket, &Body)> {
    let bodies = |b: &'_ Bucket, x: &Body| b.by_body.contains_key(&x.body);
    report.buckets.iter().flat_map(move |b| b.bodies.iter().filter(move |x| bodies(b, x)).map(move |x| (b, x)))
}

/// Ops that have a kernel to themselves; launch lists that agree share a row.
fn alone(page: &mut Page, report: &Report) {
    page.title(format!("Ops that stand alone, and why [{}]", report.tag));
    let mut found: BTreeMap<(usize, u64), BTreeMap<String, Vec<u64>>> = BTreeMap::new();
    let mut named: BTreeMap<(usize, u64), (&str, &str)> = BTreeMap::new();
    for b in &report.buckets {
        for (i, body) in b.bodies.iter().enumerate().filter(|(_, x)| b.by_body.contains_key(&x.body)) {
            for op in &body.ops {
                let Some(why) = &op.alone else { continue };
                named.insert((i, op.value), (&body.body, &op.op));
                found.entry((i, op.value)).or_default().entry(why.clone()).or_default().push(b.rows_max);
            }
        }
    }
    if found.is_empty() {
        page.line("none");
        return;
    }
    let mut rows = Vec::new();
    for (key, reasons) in found {
        let (body, op) = named.get(&key).copied().unwrap_or_default();
        for (why, buckets) in reasons {
            let buckets: Vec<String> = buckets.iter().map(u64::to_string).collect();
            rows.push(vec![body.to_string(), format!("%{} {op}", key.1), buckets.join(","), why]);
        }
    }
    page.table(&["body", "op", "rows", "why"], rows);
    page.note(
        "Reasons name kernels as the body does: kernels that do the same work in several bodies are one kernel of the \
         bundle, under the name of the first. Numbers of ops inside a reason count in the rewritten body.",
    );
}

fn kernels(page: &mut Page, m: &Manifest, report: &Report, bucket: &Bucket) {
    let tag = &report.tag;
    let gpu = m.kernels.iter().any(|k| k.resources.contains_key(GPU));
    let compiled = if gpu { format!("; {GPU} compiled") } else { String::new() };
    page.title(format!("Kernels in launch order, steps of at most {} row(s) [{tag}{compiled}]", bucket.rows_max));
    page.note(
        "wgs: workgroups. dram: bytes of weights and state. in, out: bytes of activations, each once. us: the kernel; gap: \
         until the next one starts. saves: at most, if its neighbours did its work; *: the kernel lies on the longest chain \
         of kernels of its body that wait for each other.",
    );
    for body in bucket.bodies.iter().filter(|b| bucket.by_body.contains_key(&b.body)) {
        page.line("");
        body_kernels(page, m, body, gpu);
    }
}

fn body_kernels(page: &mut Page, m: &Manifest, body: &Body, gpu: bool) {
    let sum = |of: fn(&Kernel) -> u64| body.kernels.iter().fold(0u64, |a, k| a.saturating_add(of(k)));
    let mut rows: Vec<Vec<String>> = (1..).zip(&body.kernels).map(|(i, k)| cost_row(i, k)).collect();
    rows.push(vec![
        String::new(),
        String::new(),
        String::new(),
        bytes(sum(dram)),
        bytes(sum(|k| k.traffic.read_bytes)),
        bytes(sum(|k| k.traffic.written_bytes)),
        us(sum(|k| k.predicted_ns)),
        us(sum(|k| k.gap_ns)),
        String::new(),
        String::new(),
    ]);
    page.table(&[">", &body.body, ">wgs", ">dram", ">in", ">out", ">us", ">gap", ">saves", "bound"], rows);
    let mut heads = vec![">", "class"];
    if gpu {
        heads.extend([">VGPRs", ">SGPRs", ">LDS", ">spills", ">occupancy", ">code"]);
    }
    heads.push("ops");
    let rows = (1..).zip(&body.kernels).map(|(i, k)| compiled_row(i, k, m, gpu)).collect();
    page.table(&heads, rows);
}

fn dram(k: &Kernel) -> u64 {
    k.traffic.weight_bytes.saturating_add(k.traffic.state_bytes)
}

fn cost_row(i: usize, k: &Kernel) -> Vec<String> {
    vec![
        i.to_string(),
        k.name.clone(),
        k.workgroups.to_string(),
        bytes(dram(k)),
        bytes(k.traffic.read_bytes),
        bytes(k.traffic.written_bytes),
        us(k.predicted_ns),
        us(k.gap_ns),
        format!("{}{}", us(k.removal.total_ns), if k.serial_chain { "*" } else { " " }),
        k.bound.clone(),
    ]
}

fn compiled_row(i: usize, k: &Kernel, m: &Manifest, gpu: bool) -> Vec<String> {
    let mut row = vec![i.to_string(), k.class.clone()];
    let entry = m.kernels.iter().find(|e| e.name == k.name);
    if gpu {
        let none = || vec!["-".to_string(); 6];
        row.extend(entry.and_then(|e| e.resources.get(GPU)).map_or_else(none, resources));
    }
    let ops: Vec<&str> = entry.into_iter().flat_map(|e| &e.ops).map(|op| op.rsplit(' ').next().unwrap_or(op)).collect();
    let mut by_name: BTreeMap<String, u64> = BTreeMap::new();
    for op in &ops {
        *by_name.entry((*op).to_string()).or_default() += 1;
    }
    row.push(format!("{}: {}", ops.len(), counts(&by_name)));
    row
}

fn resources(r: &Resources) -> Vec<String> {
    vec![
        r.vgprs.to_string(),
        r.sgprs.to_string(),
        bytes(r.lds_bytes),
        r.vgpr_spills.saturating_add(r.sgpr_spills).to_string(),
        r.occupancy.to_string(),
        bytes(r.code_bytes),
    ]
}

/// `mul×3, sum`.
pub(crate) fn counts(of: &BTreeMap<String, u64>) -> String {
    let text = |(name, n): (&String, &u64)| if *n == 1 { name.clone() } else { format!("{name}×{n}") };
    if of.is_empty() { "none".into() } else { of.iter().map(text).collect::<Vec<_>>().join(", ") }
}

/// Source lines, `file:line` each and ascending, with every file once: `models/src/maths.rs:3,7; ...`.
pub(crate) fn by_file(lines: &[String]) -> String {
    let mut files: Vec<(&str, BTreeSet<u64>)> = Vec::new();
    for line in lines {
        let (file, number) = line.rsplit_once(':').unwrap_or((line, ""));
        let number = number.parse().unwrap_or(0);
        match files.last_mut().filter(|(last, _)| *last == file) {
            Some((_, numbers)) => drop(numbers.insert(number)),
            None => files.push((file, BTreeSet::from([number]))),
        }
    }
    let text = |(file, numbers): &(&str, BTreeSet<u64>)| {
        format!("{file}:{}", numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(","))
    };
    files.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// Nanoseconds as microseconds.
pub(crate) fn us(ns: u64) -> String {
    format!("{:.1}", ns as f64 / 1000.0)
}

/// Three digits or so, in powers of 1024.
pub(crate) fn bytes(n: u64) -> String {
    let mut value = n as f64;
    for unit in ["B", "K", "M", "G"] {
        if value < 1000.0 {
            return if unit == "B" || value >= 100.0 {
                format!("{value:.0}{unit}")
            } else {
                format!("{value:.1}{unit}")
            };
        }
        value /= 1024.0;
    }
    format!("{value:.1}T")
}

/// `0-3,7`.
fn ranges(ascending: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for &n in ascending {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(n) => *last = n,
            _ => runs.push((n, n)),
        }
    }
    let text = |(a, b): &(u32, u32)| if a == b { a.to_string() } else { format!("{a}-{b}") };
    runs.iter().map(text).collect::<Vec<_>>().join(",")
}
