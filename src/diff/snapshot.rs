//! What a side of a comparison says: a bundle says everything, a budget file less.

use std::collections::BTreeMap;
use std::path::Path;

use unglue_runtime::Bundle;
use unglue_runtime::manifest::{self, Manifest};

use super::budget;
use crate::error::CliError;
use crate::report;
use crate::report::tables;
use crate::report::view::{Report, Saturation};

/// One side.
#[derive(Clone, Debug)]
pub struct Snapshot {
    pub path: String,
    /// sha256 of a bundle; none for a budget.
    pub sha256: Option<String>,
    pub build: Build,
    pub lists: Vec<List>,
    pub kernels: BTreeMap<String, Kernel>,
    /// By body; none for a budget.
    pub rewriting: Option<BTreeMap<String, Rewriting>>,
}

/// What was compiled, and how.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    pub model: String,
    pub layers: u64,
    pub dtype: String,
    pub numerics: String,
    pub cover: String,
    /// Cost model of the times.
    pub costs: String,
}

/// A launch list.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct List {
    pub rows: u64,
    pub seqs: u64,
    pub launches: u64,
    /// Modelled.
    pub ns: u64,
    pub dram_bytes: u64,
    /// As issued: read by every workgroup that needs them.
    pub activation_bytes: u64,
    /// Activations, each written once and read once by each launch that reads it; and the least that could be.
    pub moved_bytes: u64,
    pub least_bytes: u64,
    /// Launches that only compute element by element.
    pub pointwise: u64,
    pub arena_bytes: u64,
    /// Launches by layer kind.
    pub kinds: BTreeMap<String, u64>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// None for a budget.
    pub form: Option<Form>,
    /// By target.
    pub taken: BTreeMap<String, Taken>,
}

/// What a kernel is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Form {
    pub class: String,
    pub exactness: &'static str,
    pub ops: BTreeMap<String, u64>,
    pub schedule: String,
    /// Launches and modelled ns of one, by rows of the launch list.
    pub launches: BTreeMap<u64, u64>,
    pub ns: BTreeMap<u64, u64>,
}

/// What a kernel takes on a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Taken {
    pub vgprs: u64,
    pub sgprs: u64,
    pub lds_bytes: u64,
    pub spills: u64,
    pub occupancy: u64,
    pub code_bytes: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rewriting {
    pub e_nodes: u64,
    pub classes: u64,
    pub fired: BTreeMap<String, u64>,
    pub paid: BTreeMap<String, u64>,
}

impl Snapshot {
    /// Reads a bundle (a folder) or a budget (a file).
    pub fn read(path: &Path) -> Result<Snapshot, CliError> {
        if path.is_file() {
            return budget::read(path);
        }
        let (bundle, report) = report::open(path)?;
        Ok(of_bundle(&bundle, &report))
    }
}

fn of_bundle(bundle: &Bundle, report: &Report) -> Snapshot {
    let m = bundle.manifest();
    let lists = report.buckets.iter().map(|b| List {
        rows: b.rows_max,
        seqs: b.seqs_max,
        launches: b.total.launches,
        ns: b.total.predicted_ns,
        dram_bytes: b.total.dram_bytes,
        activation_bytes: b.total.cache_bytes,
        moved_bytes: b.activations.moved_bytes,
        least_bytes: b.activations.least_bytes,
        pointwise: b.pointwise_launches,
        arena_bytes: b.arena_bytes,
        kinds: b.by_body.iter().map(|(kind, t)| (kind.clone(), t.launches)).collect(),
    });
    let mut rewriting = BTreeMap::new();
    report.saturation.iter().for_each(|s| rewriting_of(s, "", &mut rewriting));
    Snapshot {
        path: bundle.path().display().to_string(),
        sha256: Some(bundle.sha256().into()),
        build: Build {
            model: m.model.name.clone(),
            layers: m.model.layers.len() as u64,
            dtype: m.options.dtype.name().into(),
            numerics: m.options.numerics.clone(),
            cover: m.options.cover.clone(),
            costs: report.costs.target.clone(),
        },
        lists: lists.collect(),
        kernels: m.kernels.iter().map(|k| (k.name.clone(), kernel(k, m, report))).collect(),
        rewriting: Some(rewriting),
    }
}

fn rewriting_of(s: &Saturation, before: &str, to: &mut BTreeMap<String, Rewriting>) {
    let name = format!("{before}{}", s.body);
    s.repeats.iter().for_each(|r| rewriting_of(r, &format!("{name}/"), to));
    let r = Rewriting { e_nodes: s.e_nodes, classes: s.classes, fired: s.fired.clone(), paid: s.paid.clone() };
    to.insert(name, r);
}

fn kernel(k: &manifest::Kernel, m: &Manifest, report: &Report) -> Kernel {
    let mut form = Form {
        class: k.class.clone(),
        exactness: tables::exactness(k.exactness),
        ops: BTreeMap::new(),
        schedule: k.schedule.clone(),
        launches: BTreeMap::new(),
        ns: BTreeMap::new(),
    };
    for op in &k.ops {
        *form.ops.entry(op.rsplit(' ').next().unwrap_or(op).to_owned()).or_default() += 1;
    }
    for (b, reported) in m.buckets.iter().zip(&report.buckets) {
        let is_this = |l: &&manifest::Launch| m.kernels.get(l.kernel as usize).is_some_and(|x| x.name == k.name);
        let launches = b.launches.iter().filter(is_this).count() as u64;
        if launches > 0 {
            form.launches.insert(b.rows_max, launches);
        }
        let here = reported.bodies.iter().flat_map(|x| &x.kernels).filter(|x| x.name == k.name);
        form.ns.extend(here.map(|x| x.predicted_ns).max().map(|ns| (b.rows_max, ns)));
    }
    let taken = k.resources.iter().map(|(target, r)| {
        let taken = Taken {
            vgprs: r.vgprs.into(),
            sgprs: r.sgprs.into(),
            lds_bytes: r.lds_bytes,
            spills: r.vgpr_spills.saturating_add(r.sgpr_spills).into(),
            occupancy: r.occupancy.into(),
            code_bytes: r.code_bytes,
        };
        (target.clone(), taken)
    });
    Kernel { form: Some(form), taken: taken.collect() }
}
