//! `unglue rules`: the table of rewrite rules; with a bundle, how often each fired and paid in that build.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::json;
use unglue_passes::rules::table;
use unglue_passes::{Exactness, Numerics};

use crate::cli;
use crate::error::CliError;
use crate::report;
use crate::report::tables::Page;
use crate::report::view::Saturation;

/// A rule of this build of unglue, or one that a bundle names.
#[derive(Debug, Serialize)]
struct Row {
    name: String,
    /// None if the bundle names a rule that this build does not have.
    class: Option<Exactness>,
    when: Option<&'static str>,
    reason: Option<&'static str>,
    /// False if the bundle's numerics leave it out.
    allowed: Option<bool>,
    fired: Option<u64>,
    paid: Option<u64>,
    /// Fired and paid by body; bodies of `repeat` under `body/repeat`.
    bodies: BTreeMap<String, Counts>,
}

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Counts {
    fired: u64,
    paid: u64,
}

pub fn run(args: &cli::Rules) -> Result<(), CliError> {
    let mut rows: Vec<Row> = table().iter().map(row).collect();
    let mut build = None;
    if let Some(path) = &args.bundle {
        let (bundle, report) = report::open(path)?;
        count(&mut rows, &report.saturation, &bundle.manifest().options.numerics);
        build = Some((bundle.path().display().to_string(), bundle.sha256().to_owned()));
    }
    let text = if args.json {
        let bundle = build.map(|(path, sha256)| json!({ "path": path, "sha256": sha256 }));
        format!("{}\n", json!({ "bundle": bundle, "rules": rows }))
    } else {
        text(&rows, build, report::bold())
    };
    report::print(&text)
}

fn row(rule: &unglue_passes::rules::Rule) -> Row {
    Row {
        name: rule.name.into(),
        class: Some(rule.class),
        when: rule.when,
        reason: Some(rule.reason),
        allowed: None,
        fired: None,
        paid: None,
        bodies: BTreeMap::new(),
    }
}

fn count(rows: &mut Vec<Row>, saturation: &[Saturation], numerics: &str) {
    let mut counts: BTreeMap<String, BTreeMap<String, Counts>> = BTreeMap::new();
    saturation.iter().for_each(|s| add(s, "", &mut counts));
    let numerics = Numerics::by_name(numerics);
    for row in rows.iter_mut() {
        let bodies = counts.remove(&row.name).unwrap_or_default();
        fill(row, bodies);
        row.allowed = numerics.zip(row.class).map(|(n, class)| n.allows(class));
    }
    for (name, bodies) in counts {
        let mut row = Row {
            name,
            class: None,
            when: None,
            reason: None,
            allowed: None,
            fired: None,
            paid: None,
            bodies: BTreeMap::new(),
        };
        fill(&mut row, bodies);
        rows.push(row);
    }
}

fn fill(row: &mut Row, bodies: BTreeMap<String, Counts>) {
    row.fired = Some(bodies.values().map(|c| c.fired).sum());
    row.paid = Some(bodies.values().map(|c| c.paid).sum());
    row.bodies = bodies;
}

fn add(s: &Saturation, before: &str, to: &mut BTreeMap<String, BTreeMap<String, Counts>>) {
    let body = format!("{before}{}", s.body);
    for (rule, fired) in &s.fired {
        let paid = s.paid.get(rule).copied().unwrap_or(0);
        to.entry(rule.clone()).or_default().insert(body.clone(), Counts { fired: *fired, paid });
    }
    s.repeats.iter().for_each(|r| add(r, &format!("{body}/"), to));
}

fn text(rows: &[Row], build: Option<(String, String)>, bold: bool) -> String {
    let mut page = Page::new(bold);
    if let Some((path, sha256)) = &build {
        page.line(format!("bundle {path}, sha256 {sha256}"));
    }
    page.title(if build.is_some() { "Rewrite rules [counted]" } else { "Rewrite rules" });
    let number = |n: Option<u64>, r: &Row| match (n, r.allowed) {
        (Some(_), Some(false)) => "off".to_string(),
        (n, _) => n.map_or_else(String::new, |n| n.to_string()),
    };
    let line = |r: &Row| {
        let class = r.class.map_or("-", Exactness::name);
        let mut row = vec![r.name.clone(), class.into()];
        if build.is_some() {
            row.extend([number(r.fired, r), number(r.paid, r)]);
        }
        row.push(match (r.when, r.reason) {
            (Some(when), Some(reason)) => format!("if {when}: {reason}"),
            (_, Some(reason)) => reason.into(),
            (_, None) => "not a rule of this build of unglue".into(),
        });
        row
    };
    let counts = if build.is_some() { &[">fired", ">paid"][..] } else { &[] };
    let heads = [&["rule", "class"], counts, &["why it is right"]].concat();
    page.table(&heads, rows.iter().map(line).collect());
    if build.is_some() {
        page.note(
            "Each distinct body counts once, however many layers call it. fired: values that the rule found equal. paid: \
             those of them on the way from a declared op to the form that was extracted. off: the bundle's numerics leave \
             the rule out.",
        );
    }
    page.text()
}
