//! What a kernel is, how it grew, and what it was not fused with.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;
use unglue_runtime::manifest::Resources;

use super::{Build, rows_text};
use crate::cli;
use crate::error::CliError;
use crate::report::tables::{Page, by_file, bytes, counts, exactness, us};
use crate::report::view::{Bucket, Kernel, Port, Rejection, Removal, Step, TargetTime, Traffic, Verdict};

#[derive(Debug, Serialize)]
pub struct Story {
    kernel: String,
    class: String,
    exactness: &'static str,
    ops: BTreeMap<String, u64>,
    orders: Vec<String>,
    /// Where the model declares its ops.
    lines: Vec<String>,
    resources: BTreeMap<String, Resources>,
    /// Where it stands, by launch list and body.
    places: Vec<Place>,
    /// How it came about; places that agree share one.
    growths: Vec<Growth>,
    #[serde(skip)]
    tag: String,
}

#[derive(Debug, Serialize)]
struct Place {
    rows: u64,
    body: String,
    /// Its name there, which rejections use.
    in_body: String,
    /// In a step.
    launches: u64,
    workgroups: u64,
    traffic: Traffic,
    predicted_ns: u64,
    t0_ns: u64,
    gap_ns: u64,
    bound: String,
    intensity: Option<f64>,
    by_target: BTreeMap<String, TargetTime>,
    serial_chain: bool,
    removal: Removal,
}

#[derive(Debug, Serialize)]
struct Growth {
    body: String,
    rows: Vec<u64>,
    schedule: String,
    reads: Vec<Port>,
    writes: Vec<Port>,
    steps: Vec<Step>,
    rejected: Vec<Rejection>,
}

/// The story of a kernel by its name in the bundle, or else in a body.
pub fn story(build: &Build, args: &cli::Explain, name: &str) -> Result<Story, CliError> {
    let m = build.bundle.manifest();
    let of_bundle = m.kernels.iter().any(|k| k.name == name);
    let is_it = |k: &Kernel| if of_bundle { k.name == name } else { k.in_body == name };
    let mut places = Vec::new();
    let mut growths: Vec<Growth> = Vec::new();
    let mut entry = None;
    let mut lines: BTreeSet<String> = BTreeSet::new();
    for bucket in build.lists(args) {
        let wanted = |b: &str| args.body.as_deref().is_none_or(|w| w == b) && bucket.by_body.contains_key(b);
        for body in bucket.bodies.iter().filter(|b| wanted(&b.body)) {
            let launches = bucket.by_body.get(&body.body).map_or(0, |t| t.launches);
            let launches = launches.checked_div(body.kernels.len() as u64).unwrap_or(0);
            for k in body.kernels.iter().filter(|k| is_it(k)) {
                entry = entry.or_else(|| m.kernels.iter().find(|e| e.name == k.name));
                lines.extend(k.lines.iter().cloned());
                places.push(place(bucket, &body.body, k, launches));
                grow(&mut growths, bucket.rows_max, &body.body, k);
            }
        }
    }
    let entry = entry.ok_or_else(|| CliError::Usage {
        rule: "kernel",
        found: format!("{name}, which is not launched there"),
        needed: "another --rows or --body".into(),
    })?;
    let mut ops: BTreeMap<String, u64> = BTreeMap::new();
    for op in &entry.ops {
        *ops.entry(op.rsplit(' ').next().unwrap_or(op).to_owned()).or_default() += 1;
    }
    Ok(Story {
        kernel: entry.name.clone(),
        class: entry.class.clone(),
        exactness: exactness(entry.exactness),
        ops,
        orders: entry.orders.clone(),
        lines: lines.into_iter().collect(),
        resources: entry.resources.clone(),
        places,
        growths,
        tag: build.report.tag.clone(),
    })
}

fn place(bucket: &Bucket, body: &str, k: &Kernel, launches: u64) -> Place {
    Place {
        rows: bucket.rows_max,
        body: body.into(),
        in_body: k.in_body.clone(),
        launches,
        workgroups: k.workgroups,
        traffic: k.traffic,
        predicted_ns: k.predicted_ns,
        t0_ns: k.t0_ns,
        gap_ns: k.gap_ns,
        bound: k.bound.clone(),
        intensity: k.intensity,
        by_target: k.by_target.clone(),
        serial_chain: k.serial_chain,
        removal: k.removal,
    }
}

fn grow(growths: &mut Vec<Growth>, rows: u64, body: &str, k: &Kernel) {
    let same =
        |g: &&mut Growth| g.body == body && g.schedule == k.schedule && g.steps == k.steps && g.rejected == k.rejected;
    if let Some(known) = growths.iter_mut().find(same) {
        known.rows.push(rows);
        return;
    }
    growths.push(Growth {
        body: body.into(),
        rows: vec![rows],
        schedule: k.schedule.clone(),
        reads: k.reads.clone(),
        writes: k.writes.clone(),
        steps: k.steps.clone(),
        rejected: k.rejected.clone(),
    });
}

pub fn text(s: &Story, bold: bool) -> String {
    let mut page = Page::new(bold);
    page.line(format!("kernel {}: {}, {}", s.kernel, s.class, s.exactness));
    let total: u64 = s.ops.values().sum();
    page.note(&format!("{total} ops: {}", counts(&s.ops)));
    if !s.orders.is_empty() {
        page.note(&format!("orders of summation: {}", s.orders.join("; ")));
    }
    if !s.lines.is_empty() {
        page.note(&format!("declared in {}", by_file(&s.lines)));
    }
    places(&mut page, s);
    worth(&mut page, s);
    resources(&mut page, s);
    for growth in &s.growths {
        grown(&mut page, growth, &s.tag);
    }
    page.text()
}

fn places(page: &mut Page, s: &Story) {
    page.title(format!("Where it runs, and what one launch costs [counted launches; {}]", s.tag));
    let row = |p: &Place| {
        let t = &p.traffic;
        vec![
            p.rows.to_string(),
            p.body.clone(),
            p.launches.to_string(),
            p.workgroups.to_string(),
            bytes(t.weight_bytes),
            bytes(t.state_bytes),
            bytes(t.read_bytes),
            bytes(t.reread_bytes),
            bytes(t.written_bytes),
            us(p.predicted_ns),
            us(p.t0_ns),
            us(p.gap_ns),
            p.bound.clone(),
        ]
    };
    let heads = [
        ">rows",
        "body",
        ">launches",
        ">wgs",
        ">weights",
        ">state",
        ">in",
        ">in, all",
        ">out",
        ">us",
        ">floor",
        ">gap",
        "bound",
    ];
    page.table(&heads, s.places.iter().map(row).collect());
    page.note(
        "launches: in a step. in, out: bytes of activations, each once; in, all: read by all workgroups together. floor: \
         the part of us that is there however little the kernel does; gap: until the next one starts.",
    );
}

fn worth(page: &mut Page, s: &Story) {
    page.title(format!("What it costs by being a kernel of its own [{}]", s.tag));
    let targets: BTreeSet<&String> = s.places.iter().flat_map(|p| p.by_target.keys()).collect();
    let row = |p: &Place| {
        let r = &p.removal;
        let mut row = vec![
            p.rows.to_string(),
            p.body.clone(),
            p.intensity.map_or_else(|| "-".into(), |i| format!("{i:.2}")),
            if p.serial_chain { "yes" } else { "no" }.into(),
            us(r.launch_ns),
            us(r.gap_ns),
            bytes(r.bytes),
            us(r.bytes_ns),
            us(r.total_ns),
        ];
        row.extend(targets.iter().map(|t| p.by_target.get(*t).map_or_else(|| "-".into(), |x| us(x.predicted_ns))));
        row
    };
    let mut heads: Vec<String> =
        [">rows", "body", ">FLOP/B", "chain", ">floor", ">gap", ">bytes", ">us of them", ">saves"]
            .map(Into::into)
            .into();
    heads.extend(targets.iter().map(|t| format!(">us, {t}")));
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    page.table(&heads, s.places.iter().map(row).collect());
    page.note(
        "chain: it lies on the longest chain of kernels of its body that wait for each other. saves: at most, if neighbours \
         did its work: floor, gap, and the activations that only pass between it and them.",
    );
}

fn resources(page: &mut Page, s: &Story) {
    page.title("Machine code [compiled]");
    let row = |(target, r): (&String, &Resources)| {
        vec![
            target.clone(),
            r.vgprs.to_string(),
            r.sgprs.to_string(),
            bytes(r.lds_bytes),
            r.vgpr_spills.saturating_add(r.sgpr_spills).to_string(),
            r.occupancy.to_string(),
            bytes(r.code_bytes),
        ]
    };
    let heads = ["target", ">VGPRs", ">SGPRs", ">LDS", ">spills", ">occupancy", ">code"];
    page.table(&heads, s.resources.iter().map(row).collect());
}

fn grown(page: &mut Page, g: &Growth, tag: &str) {
    page.title(format!("In {}, steps of at most {} [{tag}]", g.body, rows_text(&g.rows)));
    page.note(&format!("schedule: {}", g.schedule));
    for (what, ports) in [("reads", &g.reads), ("writes", &g.writes)] {
        page.note(&format!("{what} {}", ports.iter().map(Port::text).collect::<Vec<_>>().join("; ")));
    }
    page.line("");
    if g.steps.is_empty() {
        page.line("It is one op; nothing was fused.");
    } else {
        page.line("How it grew, by fusion:");
        let step = |(i, s): (usize, &Step)| vec![i.to_string(), s.text.clone()];
        page.table(&[">", "what joined what (gain)"], (1..).zip(&g.steps).map(step).collect());
    }
    page.line("");
    if g.rejected.is_empty() {
        page.line("No other kernel shares a value with it.");
        return;
    }
    page.line("Not fused with:");
    let row = |r: &Rejection| vec![r.with.clone(), verdict(&r.verdict)];
    page.table(&["kernel", "why"], g.rejected.iter().map(row).collect());
}

fn verdict(v: &Verdict) -> String {
    match v {
        Verdict::NotTried => "fusion was not asked for".into(),
        Verdict::Obstacle { rule, detail } => format!("cannot be one kernel: {rule}: {detail}"),
        Verdict::Cost { loss_ns: 0 } => "gains nothing".into(),
        Verdict::Cost { loss_ns } => format!("would cost {} us", us(*loss_ns)),
        Verdict::Cycle => "another kernel lies between".into(),
        Verdict::Forbidden => "the options forbid it".into(),
    }
}
