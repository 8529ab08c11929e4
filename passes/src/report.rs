//! Report data: why each op is where it is, what each kernel costs, what a token launches. Every time here is modelled.

use std::collections::{BTreeMap, BTreeSet};

use schemars::JsonSchema;
use serde::Serialize;
use unglue_ir::graph::ValueId;
use unglue_ir::module::Module;

use crate::classes::ClassReport;
use crate::cost::CostTable;
use crate::facts::Facts;
use crate::figures::{self, Activations, Port, Removal, TargetTime};
use crate::kernel::{BodyCover, CoverStats, Exactness, Kernel, Rejection, Step, Verdict};
use crate::plan::Plan;
use crate::saturate::SaturationStats;
use crate::schedule::Bucket;
use crate::step_report::StepReport;
use crate::traffic::Traffic;

/// Where an op of a body ended up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct OpReport {
    pub value: u32,
    pub op: String,
    pub ty: String,
    /// Where the trunk's builder declares it.
    pub lines: Vec<String>,
    /// Kernels that compute it, by their names in the body; more than one if it is recomputed.
    pub kernels: Vec<String>,
    /// For an op with a kernel to itself: why no neighbour took it.
    pub alone: Option<String>,
}

/// One kernel of one body in one bucket.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct KernelReport {
    /// Name in the bundle.
    pub name: String,
    /// Name in the body, as ops and rejections say it.
    pub in_body: String,
    pub class: &'static str,
    pub exactness: Exactness,
    pub ops: Vec<String>,
    /// Where the trunk's builder declares them, `file:line` from the workspace on, ascending; see [`crate::lines`].
    pub lines: Vec<String>,
    pub reads: Vec<Port>,
    pub writes: Vec<Port>,
    pub traffic: Traffic,
    /// FLOPs a byte.
    pub intensity: Option<f64>,
    pub workgroups: u64,
    pub schedule: String,
    /// Tag `modelled`.
    pub predicted_ns: u64,
    pub t0_ns: u64,
    pub gap_ns: u64,
    /// Life of the longest wave, and what it costs if it is too long (part of `predicted_ns`).
    pub wave_cycles: u64,
    pub penalty_ns: u64,
    pub bound: String,
    pub by_target: BTreeMap<String, TargetTime>,
    /// It lies on the longest chain of kernels of its body that wait for each other.
    pub serial_chain: bool,
    pub removal: Removal,
    pub steps: Vec<Step>,
    pub rejected: Vec<Rejection>,
}

/// What a kernel leaves for a later one of its body.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct EdgeReport {
    /// Kernels, counted from 0 in launch order.
    pub from: u32,
    pub to: u32,
    /// Number of the value in the extracted body.
    pub value: u32,
    pub ty: String,
    /// Size of the value, whatever part of it is read; none for a state, which stays where it is.
    pub bytes: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct BodyReport {
    pub body: String,
    pub cover: CoverStats,
    pub ops: Vec<OpReport>,
    /// In launch order.
    pub kernels: Vec<KernelReport>,
    /// Between kernels, ascending.
    pub edges: Vec<EdgeReport>,
    /// Of one call.
    pub activations: Activations,
    /// Kernels without a heavy op, reduction, gather or scatter.
    pub pointwise: u64,
}

/// Sums over the launches of a step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Totals {
    pub launches: u64,
    pub predicted_ns: u64,
    pub dram_bytes: u64,
    pub cache_bytes: u64,
    pub flops: u64,
}

impl Totals {
    fn add(&mut self, k: &Kernel) {
        self.launches += 1;
        self.predicted_ns += k.cost.total();
        self.dram_bytes += k.cost.traffic.dram();
        self.cache_bytes += k.cost.traffic.cache();
        self.flops += k.cost.traffic.flops;
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct BucketReport {
    pub rows_max: u32,
    pub seqs_max: u32,
    pub pools: u64,
    pub bodies: Vec<BodyReport>,
    pub total: Totals,
    pub by_class: BTreeMap<String, Totals>,
    /// By body: a layer kind.
    pub by_body: BTreeMap<String, Totals>,
    pub activations: Activations,
    /// Launches without a heavy op, reduction, gather or scatter.
    pub pointwise_launches: u64,
    /// Launches with one op per kernel.
    pub unfused_launches: u64,
    pub unfused_ns: u64,
    pub arena_bytes: u64,
    /// Bytes of all buffers, had none shared memory with another.
    pub unshared_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct PassReport {
    pub module: String,
    /// Machine model that chose the cover; its constants name their sources.
    pub costs: CostTable,
    /// What every time here is.
    pub tag: &'static str,
    pub saturation: Vec<SaturationStats>,
    /// From strict to loose; empty until [`crate::classes::classes`] fills it.
    pub classes: Vec<ClassReport>,
    pub buckets: Vec<BucketReport>,
    /// By rows of the step; see [`crate::step_report::steps`].
    pub steps: Vec<StepReport>,
    /// Distinct kernels of the bundle.
    pub kernels: u64,
}

/// The report of a planned module; the arguments are those of [`crate::plan::plan`]. Steps and source lines are filled in
/// by [`crate::step_report::steps`] and [`crate::lines::attach`].
pub fn report(
    module: &Module,
    saturation: Vec<SaturationStats>,
    covers: &[Vec<BodyCover>],
    plan: &Plan,
    costs: &CostTable,
) -> PassReport {
    let buckets =
        (0..plan.buckets.len()).filter_map(|i| Some(bucket_report(module, covers.get(i)?, plan, i, costs))).collect();
    let kernels = plan.kernels.len() as u64;
    PassReport {
        module: module.name.clone(),
        costs: *costs,
        tag: "modelled",
        saturation,
        classes: vec![],
        buckets,
        steps: vec![],
        kernels,
    }
}

fn bucket_report(module: &Module, covers: &[BodyCover], plan: &Plan, index: usize, costs: &CostTable) -> BucketReport {
    let planned = &plan.buckets[index];
    let mut r = BucketReport {
        rows_max: planned.bucket.rows_max,
        seqs_max: planned.bucket.seqs_max,
        pools: planned.bucket.pools,
        bodies: vec![],
        total: Totals::default(),
        by_class: BTreeMap::new(),
        by_body: BTreeMap::new(),
        activations: Activations::default(),
        pointwise_launches: 0,
        unfused_launches: 0,
        unfused_ns: 0,
        arena_bytes: planned.arena_bytes,
        unshared_bytes: 0,
    };
    for (buffer, live) in plan.buffers.iter().zip(&planned.live) {
        r.unshared_bytes += if live.is_some() { crate::traffic::tensor_bytes(&buffer.ty, &planned.bucket) } else { 0 };
    }
    // Names in the bundle may differ from those in the body: kernels of several bodies can be one.
    let mut bundle_names: BTreeMap<(u32, u32), String> = BTreeMap::new();
    for launch in &planned.launches {
        let Some(call) = module.calls.get(launch.call as usize) else { continue };
        let Some(cover) = covers.get(call.body as usize) else { continue };
        let Some(kernel) = cover.kernels.get(launch.in_cover as usize) else { continue };
        let name = plan.kernels[launch.kernel as usize].kernel.name.clone();
        bundle_names.insert((call.body, launch.in_cover), name);
        r.total.add(kernel);
        r.by_class.entry(kernel.class.name().into()).or_default().add(kernel);
        r.by_body.entry(cover.body.name.clone()).or_default().add(kernel);
    }
    r.bodies =
        (0..).zip(covers).map(|(b, cover)| body_report(cover, b, &bundle_names, &planned.bucket, costs)).collect();
    for call in &module.calls {
        if let (Some(cover), Some(body)) = (covers.get(call.body as usize), r.bodies.get(call.body as usize)) {
            r.unfused_launches += cover.stats.unfused;
            r.unfused_ns += cover.stats.unfused_ns;
            r.activations.add(&body.activations);
            r.pointwise_launches += body.pointwise;
        }
    }
    r
}

fn body_report(
    cover: &BodyCover,
    number: u32,
    names: &BTreeMap<(u32, u32), String>,
    bucket: &Bucket,
    costs: &CostTable,
) -> BodyReport {
    let facts = Facts::new(&cover.body);
    let edges = edges(&facts, cover, bucket);
    let waits: Vec<(usize, usize)> = edges.iter().map(|e| (e.from as usize, e.to as usize)).collect();
    let removals = figures::removals(&facts, cover, bucket, costs);
    let extras = removals.into_iter().zip(figures::serial(cover, &waits));
    let kernels = (0..).zip(cover.kernels.iter().zip(extras));
    let kernels = kernels
        .map(|(i, (k, (removal, serial_chain)))| KernelReport {
            removal,
            serial_chain,
            ..kernel_report(&facts, k, names.get(&(number, i)), bucket)
        })
        .collect();
    BodyReport {
        body: cover.body.name.clone(),
        cover: cover.stats.clone(),
        ops: facts.ops().map(|op| op_report(cover, op)).collect(),
        kernels,
        edges,
        activations: figures::activations(&facts, cover, bucket),
        pointwise: cover.kernels.iter().filter(|k| figures::is_pointwise(&k.graph)).count() as u64,
    }
}

fn edges(facts: &Facts, cover: &BodyCover, bucket: &Bucket) -> Vec<EdgeReport> {
    let mut writers: BTreeMap<ValueId, u32> = BTreeMap::new();
    for (i, kernel) in (0..).zip(&cover.kernels) {
        for (_, v) in &kernel.writes {
            writers.entry(facts.storage(*v)).or_insert(i);
        }
    }
    let mut found = BTreeSet::new();
    for (to, kernel) in (0..).zip(&cover.kernels) {
        for (_, v) in &kernel.reads {
            let Some(&from) = writers.get(&facts.storage(*v)).filter(|from| **from != to) else { continue };
            let ty = facts.body.ty(*v);
            let bytes = ty.tensor().map(|t| crate::traffic::tensor_bytes(t, bucket));
            found.insert(EdgeReport { from, to, value: v.0, ty: ty.to_string(), bytes });
        }
    }
    found.into_iter().collect()
}

fn op_report(cover: &BodyCover, op: ValueId) -> OpReport {
    let holders: Vec<&Kernel> = cover.kernels.iter().filter(|k| k.ops.contains(&op)).collect();
    let alone = match holders.as_slice() {
        [one] if one.ops.len() == 1 => Some(why_alone(one)),
        _ => None,
    };
    let node = cover.body.node(op);
    OpReport {
        value: op.0,
        op: node.op.name().into(),
        ty: node.ty.to_string(),
        lines: vec![],
        kernels: holders.iter().map(|k| k.name.clone()).collect(),
        alone,
    }
}

/// The nearest miss first: a cost, then an obstacle.
fn why_alone(kernel: &Kernel) -> String {
    let order = |v: &Verdict| match v {
        Verdict::Cost { loss_ns } => (0, *loss_ns),
        Verdict::Forbidden => (1, 0),
        Verdict::Obstacle { .. } => (2, 0),
        Verdict::Cycle => (3, 0),
        Verdict::NotTried => (4, 0),
    };
    let Some(nearest) = kernel.rejected.iter().min_by_key(|r| order(&r.verdict)) else {
        return "no other kernel shares a value with it".into();
    };
    let with = &nearest.with;
    match &nearest.verdict {
        Verdict::Cost { loss_ns: 0 } => format!("joining {with} gains nothing"),
        Verdict::Cost { loss_ns } => format!("joining {with} would cost {loss_ns} ns (modelled)"),
        Verdict::Forbidden => format!("joining {with} is forbidden by the options"),
        Verdict::Obstacle { rule, detail } => format!("cannot join {with}: {rule}: {detail}"),
        Verdict::Cycle => format!("another kernel lies between it and {with}"),
        Verdict::NotTried => "fusion was not asked for".into(),
    }
}

fn kernel_report(facts: &Facts, k: &Kernel, name: Option<&String>, bucket: &Bucket) -> KernelReport {
    let ops =
        k.graph.nodes.iter().filter(|n| !crate::schedule::is_leaf(&n.op)).map(|n| n.op.name().to_owned()).collect();
    KernelReport {
        name: name.unwrap_or(&k.name).clone(),
        in_body: k.name.clone(),
        class: k.class.name(),
        exactness: k.exactness,
        ops,
        lines: vec![],
        reads: figures::reads(facts, k, bucket),
        writes: figures::writes(facts, k, bucket),
        traffic: k.cost.traffic,
        intensity: figures::intensity(k),
        workgroups: k.cost.workgroups,
        schedule: k.schedule.describe(),
        predicted_ns: k.cost.ns,
        t0_ns: k.cost.t0_ns,
        gap_ns: k.cost.gap_ns,
        wave_cycles: k.cost.wave_cycles,
        penalty_ns: k.cost.penalty_ns,
        bound: format!("{:?}", k.cost.bound).to_ascii_lowercase(),
        by_target: figures::by_target(k, bucket),
        serial_chain: false,
        removal: Removal::default(),
        steps: k.steps.clone(),
        rejected: k.rejected.clone(),
    }
}
