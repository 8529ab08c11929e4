//! What a step of a few rows takes, by class of kernel: fused, with one op per kernel, and at the very least.
//!
//! A step runs the launch list with the fewest rows that holds it; its kernels are priced at the rows of the step, which a
//! workgroup past the end leaves at once. All times are modelled.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use unglue_ir::module::{Call, Module};
use unglue_ir::op::Op;

use crate::cost::{CostTable, kernel_cost};
use crate::kernel::{BodyCover, Kernel, KernelClass};
use crate::schedule::Bucket;
use crate::traffic;

/// Rows of the steps that are reported: one token, and checks of four and seven proposed ones.
pub const ROWS: [u32; 3] = [1, 5, 8];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Load {
    pub launches: u64,
    /// Kernels and the gaps behind them.
    pub predicted_ns: u64,
}

/// What no choice of kernels avoids: weights that the step reads and state that it reads and writes, each byte once, at
/// the achieved DRAM rate. Activations, arithmetic, latencies and launches are not in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Floor {
    pub bytes: u64,
    pub ns: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct ClassLoad {
    pub fused: Load,
    /// With one op per kernel, which then decides the class.
    pub unfused: Load,
    /// Of the fused kernels. A weight that several read counts for the first.
    pub floor: Floor,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct StepReport {
    pub rows: u32,
    pub seqs: u32,
    /// The launch list that it runs, by its rows.
    pub list_rows: u32,
    pub all: ClassLoad,
    pub by_class: BTreeMap<String, ClassLoad>,
}

/// Class of a kernel in these sums: that of its anchor, the heaviest op.
pub fn anchor(class: KernelClass) -> &'static str {
    match class {
        KernelClass::Pointwise => "pointwise",
        KernelClass::GroupedMatmul => "expert GEMM",
        KernelClass::SkinnyMatmul => "skinny GEMM",
        KernelClass::TiledMatmul => "tiled GEMM",
        KernelClass::Router => "router",
        KernelClass::HyperConnection => "hyper-connections",
        KernelClass::DeltaRule => "delta rule",
        KernelClass::Attention | KernelClass::Indexer => "attention",
        KernelClass::Reduce | KernelClass::Other => "other",
    }
}

/// The launch list of a step of `rows` rows: its number, and the step as a bucket.
pub fn list_of(buckets: &[Bucket], rows: u32) -> Option<(usize, Bucket)> {
    let (i, list) = buckets.iter().enumerate().find(|(_, b)| b.rows_max >= rows)?;
    Some((i, Bucket { rows_max: rows, seqs_max: rows.min(list.seqs_max), ..*list }))
}

/// The steps of [`ROWS`] that some list holds. `fused[i]` and `unfused[i]` cover the bodies in `buckets[i]`, which ascend;
/// `unfused[i]` may be empty where no step of these runs that list.
pub fn steps(
    module: &Module,
    buckets: &[Bucket],
    fused: &[Vec<BodyCover>],
    unfused: &[Vec<BodyCover>],
    costs: &CostTable,
) -> Vec<StepReport> {
    let step = |rows: &u32| {
        let (i, bucket) = list_of(buckets, *rows)?;
        let mut report =
            StepReport { rows: *rows, seqs: bucket.seqs_max, list_rows: buckets[i].rows_max, ..StepReport::default() };
        for (class, load) in loads(module, fused.get(i)?, &bucket, costs) {
            report.by_class.entry(class.into()).or_default().fused = load;
        }
        for (class, load) in loads(module, unfused.get(i)?, &bucket, costs) {
            report.by_class.entry(class.into()).or_default().unfused = load;
        }
        for (class, bytes) in floors(module, fused.get(i)?, &bucket) {
            let ns = bytes.div_ceil(costs.dram.value.max(1));
            report.by_class.entry(class.into()).or_default().floor = Floor { bytes, ns };
        }
        report.all = sum(report.by_class.values(), costs);
        Some(report)
    };
    ROWS.iter().filter_map(step).collect()
}

fn sum<'a>(classes: impl Iterator<Item = &'a ClassLoad>, costs: &CostTable) -> ClassLoad {
    let mut all = ClassLoad::default();
    for c in classes {
        for (to, from) in [(&mut all.fused, &c.fused), (&mut all.unfused, &c.unfused)] {
            to.launches += from.launches;
            to.predicted_ns += from.predicted_ns;
        }
        all.floor.bytes += c.floor.bytes;
    }
    all.floor.ns = all.floor.bytes.div_ceil(costs.dram.value.max(1));
    all
}

/// Launches and time of all calls, by class.
fn loads(module: &Module, covers: &[BodyCover], bucket: &Bucket, costs: &CostTable) -> BTreeMap<&'static str, Load> {
    let mut out: BTreeMap<&'static str, Load> = BTreeMap::new();
    for (body, cover) in (0u32..).zip(covers) {
        let calls = module.calls.iter().filter(|c| c.body == body).count() as u64;
        for k in cover.kernels.iter().filter(|_| calls > 0) {
            let load = out.entry(anchor(k.class)).or_default();
            load.launches += calls;
            load.predicted_ns += calls * kernel_cost(&k.graph, &k.schedule, bucket, costs).total();
        }
    }
    out
}

/// Bytes of weights and state by class. A weight counts for the first kernel that reads it, with the most that any reads.
fn floors(module: &Module, covers: &[BodyCover], bucket: &Bucket) -> BTreeMap<&'static str, u64> {
    let mut out: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut known: BTreeMap<u32, (&'static str, u64)> = BTreeMap::new();
    for call in &module.calls {
        let Some(cover) = covers.get(call.body as usize) else { continue };
        for k in &cover.kernels {
            let class = anchor(k.class);
            *out.entry(class).or_default() += traffic::traffic(&k.graph, &k.schedule, bucket).state_bytes;
            for (weight, bytes) in weights(call, cover, k, bucket) {
                let (_, most) = known.entry(weight).or_insert((class, 0));
                *most = bytes.max(*most);
            }
        }
    }
    for (class, bytes) in known.into_values() {
        *out.entry(class).or_default() += bytes;
    }
    out
}

/// The module's numbers of the weights that a kernel reads in a call, with the bytes that it reads of each.
fn weights(call: &Call, cover: &BodyCover, k: &Kernel, bucket: &Bucket) -> Vec<(u32, u64)> {
    let users = k.graph.users();
    let of = |(leaf, id): (&str, unglue_ir::graph::ValueId)| {
        let (_, value) = k.reads.iter().find(|(name, _)| name == leaf)?;
        let Op::Weight { name } = &cover.body.node(*value).op else { return None };
        let at = cover.body.weights().position(|(role, _)| role == name)?;
        Some((*call.weights.get(at)?, traffic::used_bytes(&k.graph, id, &users, bucket)))
    };
    k.graph.weights().filter_map(of).collect()
}
