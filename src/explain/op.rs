//! Where an op of the declared trunk went.

use serde::Serialize;
use unglue_ir::graph::{Graph, Node};
use unglue_ir::op::Op;

use super::{Build, rows_text};
use crate::cli;
use crate::error::CliError;
use crate::report::tables::{Page, by_file};
use crate::report::view::{self, Body, Kernel, Saturation};

/// One declared op.
#[derive(Debug, Serialize)]
pub struct Story {
    body: String,
    /// Number in the declared body.
    value: u64,
    op: String,
    ty: String,
    /// Where the model declares what is now this value.
    lines: Vec<String>,
    /// The rules that changed it, in order.
    rules: Vec<String>,
    became: Became,
    /// By launch list; lists that agree share one.
    lists: Vec<List>,
}

/// What the declared value is after rewriting.
#[derive(Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
enum Became {
    /// An op of the rewritten body.
    Op { value: u64, op: String },
    /// A value that needs no kernel: leaves are there, and views are taken where they are read.
    View { value: u64 },
    /// No output needs it.
    Unused,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct List {
    rows: Vec<u64>,
    kernels: Vec<Holder>,
    /// Why it has a kernel to itself.
    alone: Option<String>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct Holder {
    /// Name in the bundle, and in the body.
    kernel: String,
    in_body: String,
    /// The fusions that it took part in.
    steps: Vec<String>,
}

/// The op of a number: in one body, or in all that have it.
pub fn numbered(build: &Build, args: &cli::Explain, number: u64, body: Option<&str>) -> Result<Vec<Story>, CliError> {
    let mut stories = Vec::new();
    let mut most = 0;
    for (i, declared) in build.trunk.bodies.iter().enumerate().filter(|(_, b)| body.is_none_or(|w| w == b.name)) {
        let Some(saturation) = build.report.saturation.get(i) else { continue };
        let values: Vec<u64> = match args.rewritten {
            false => (number < declared.nodes.len() as u64).then_some(number).into_iter().collect(),
            true => (0..).zip(&saturation.became).filter(|(_, b)| **b == Some(number)).map(|(v, _)| v).collect(),
        };
        most = most.max(if args.rewritten { saturation.nodes_out } else { declared.nodes.len() as u64 });
        stories.extend(values.into_iter().filter_map(|v| story(build, args, i, declared, v)));
    }
    let there = body.map_or_else(|| "any body".into(), |b| format!("body {b}"));
    if stories.is_empty() && number < most {
        return Err(CliError::Usage {
            rule: "op",
            found: format!("%{number}, which a rule brought in: it stands for no declared value"),
            needed: "a declared op; `unglue explain` of its kernel says what it is fused with".into(),
        });
    }
    if stories.is_empty() {
        let needed = format!("a number below {most} in {there}");
        return Err(CliError::Usage { rule: "op", found: format!("%{number}"), needed });
    }
    Ok(stories)
}

/// All ops of a name.
pub fn named(build: &Build, args: &cli::Explain, name: &str) -> Result<Vec<Story>, CliError> {
    let mut stories = Vec::new();
    let wanted = |b: &Graph| args.body.as_ref().is_none_or(|w| *w == b.name);
    for (i, declared) in build.trunk.bodies.iter().enumerate().filter(|(_, b)| wanted(b)) {
        let ops = (0..).zip(&declared.nodes).filter(|(_, n)| n.op.name() == name);
        stories.extend(ops.filter_map(|(v, _)| story(build, args, i, declared, v)));
    }
    if stories.is_empty() {
        let needed = "an op of that body, or no --body".into();
        return Err(CliError::Usage { rule: "--body", found: format!("no {name} there"), needed });
    }
    Ok(stories)
}

fn story(build: &Build, args: &cli::Explain, body: usize, declared: &Graph, value: u64) -> Option<Story> {
    let Node { op, ty, .. } = declared.nodes.get(usize::try_from(value).ok()?)?;
    let saturation: &Saturation = build.report.saturation.get(body)?;
    let now = saturation.became.get(usize::try_from(value).ok()?).copied().flatten();
    let mut lists: Vec<List> = Vec::new();
    let mut found = None;
    for bucket in build.lists(args).filter(|b| b.by_body.contains_key(&declared.name)) {
        let Some(reported) = now.and_then(|now| find(bucket.bodies.get(body)?, now)) else { continue };
        let (op, list) = reported;
        found = Some(op);
        match lists.iter_mut().find(|l| l.kernels == list.kernels && l.alone == list.alone) {
            Some(same) => same.rows.push(bucket.rows_max),
            None => lists.push(List { rows: vec![bucket.rows_max], ..list }),
        }
    }
    let lines = found.map_or_else(Vec::new, |op| op.lines.clone());
    let became = match (now, found) {
        (None, _) => Became::Unused,
        (Some(value), Some(op)) => Became::Op { value, op: op.op.clone() },
        (Some(value), None) => Became::View { value },
    };
    let rules = saturation.rewritten.get(&value).cloned().unwrap_or_default();
    let (op, ty) = (text_of(op), ty.to_string());
    Some(Story { body: declared.name.clone(), value, op, ty, lines, rules, became, lists })
}

/// The op's name; leaves with their role.
fn text_of(op: &Op) -> String {
    match op {
        Op::Input { name, .. } | Op::Weight { name } | Op::State { name } => format!("{} {name}", op.name()),
        op => op.name().into(),
    }
}

/// A value of the rewritten body with its holders; none if it is no op.
fn find(body: &Body, value: u64) -> Option<(&view::Op, List)> {
    let op = body.ops.iter().find(|o| o.value == value)?;
    let holder = |name: &String| {
        let kernel = body.kernels.iter().find(|k| k.in_body == *name)?;
        Some(Holder { kernel: kernel.name.clone(), in_body: name.clone(), steps: steps(kernel, value) })
    };
    let kernels = op.kernels.iter().filter_map(holder).collect();
    Some((op, List { rows: vec![], kernels, alone: op.alone.clone() }))
}

/// The fusions that an op took part in: its group takes up others, or is taken up.
fn steps(kernel: &Kernel, value: u64) -> Vec<String> {
    let mut group = value;
    let mut found = Vec::new();
    for step in kernel.steps.iter() {
        if step.into == group || step.from == group {
            found.push(step.text.clone());
            group = step.into;
        }
    }
    found
}

fn became_text(s: &Story) -> String {
    let by = if s.rules.is_empty() { String::new() } else { format!(" by {}", s.rules.join(", ")) };
    match &s.became {
        Became::Op { value, op } if s.rules.is_empty() => {
            format!("no rule changed it; it is %{value} {op} of the rewritten body")
        }
        Became::Op { value, op } => format!("it became %{value} {op} of the rewritten body{by}"),
        Became::View { value } => {
            format!(
                "it became %{value}{by}, which needs no kernel: a leaf, a constant or a view that is taken where it is read"
            )
        }
        Became::Unused => "the rewritten body does not need it".into(),
    }
}

pub fn text(stories: &[Story], bold: bool) -> String {
    let mut page = Page::new(bold);
    for s in stories {
        page.title(format!("%{} {} of {}: {}", s.value, s.op, s.body, s.ty));
        if !s.lines.is_empty() {
            page.note(&format!("Declared in {}.", by_file(&s.lines)));
        }
        page.note(&format!("Rewriting: {}.", became_text(s)));
        for list in &s.lists {
            let rows = rows_text(&list.rows);
            for k in &list.kernels {
                let named =
                    if k.kernel == k.in_body { String::new() } else { format!(" (in the body: {})", k.in_body) };
                page.note(&format!("Steps of at most {rows}: in kernel {}{named}.", k.kernel));
                let step = |(i, text): (usize, &String)| vec![i.to_string(), text.clone()];
                if !k.steps.is_empty() {
                    page.table(&[">", "fusions that it took part in (gain)"], (1..).zip(&k.steps).map(step).collect());
                }
            }
            if let Some(why) = &list.alone {
                page.note(&format!("It stands alone: {why}."));
            }
            if list.kernels.len() > 1 {
                page.note("It is computed in each of them, which costs less than to store and read it.");
            }
        }
    }
    page.text()
}

/// One line an op.
pub fn table(name: &str, stories: &[Story], bold: bool) -> String {
    let mut page = Page::new(bold);
    page.title(format!("All {name} of the declared trunk, and where they are [counted]"));
    let mut rows = Vec::new();
    for s in stories {
        let mut places: Vec<(String, Vec<u64>)> = Vec::new();
        for list in &s.lists {
            let kernels: Vec<&str> = list.kernels.iter().map(|k| k.kernel.as_str()).collect();
            let alone = if list.alone.is_some() { " (alone)" } else { "" };
            places.push((format!("{}{alone}", kernels.join(", ")), list.rows.clone()));
        }
        if places.is_empty() {
            places.push(("no kernel: not needed, or taken where it is read".into(), vec![]));
        }
        for (place, at) in places {
            let now = match &s.became {
                Became::Op { value, .. } | Became::View { value } => format!("%{value}"),
                Became::Unused => "-".into(),
            };
            let at: Vec<String> = at.iter().map(u64::to_string).collect();
            rows.push(vec![s.body.clone(), format!("%{}", s.value), now, s.rules.join(", "), at.join(","), place]);
        }
    }
    page.table(&["=body", ">declared", ">rewritten", "rules", "rows", "kernel"], rows);
    page.note("Why one stands alone, and by which fusions it got there: `unglue explain BUNDLE BODY%NUMBER`.");
    page.text()
}
