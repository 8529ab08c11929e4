//! Figures of kernels and bodies beside their cost: what crosses their boundaries, what a kernel costs by being there, and
//! which kernels wait for each other.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Serialize;
use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;

use crate::cost::{CostTable, GFX1201, SM_90, bytes_ns, kernel_cost};
use crate::facts::{Facts, Kind};
use crate::kernel::{BodyCover, Kernel};
use crate::schedule::{Bucket, is_leaf};
use crate::traffic::{tensor_bytes, used_bytes};

/// A value at the boundary of a kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Port {
    /// Leaf or output of the kernel's graph.
    pub name: String,
    /// Number in the extracted body; none for a leaf of the body.
    pub value: Option<u32>,
    pub ty: String,
    /// The part of it that is read, once, or all that is written; none for a state, which stays where it is.
    pub bytes: Option<u64>,
}

/// What the kernel read and writes.
pub fn reads(facts: &Facts, k: &Kernel, bucket: &Bucket) -> Vec<Port> {
    let users = k.graph.users();
    let port = |(name, v): &(String, ValueId)| {
        let leaf = leaf_of(&k.graph, name);
        let bytes = leaf.filter(|_| facts.body.ty(*v).tensor().is_some());
        port(facts, name, *v, bytes.map(|leaf| used_bytes(&k.graph, leaf, &users, bucket)))
    };
    k.reads.iter().map(port).collect()
}

pub fn writes(facts: &Facts, k: &Kernel, bucket: &Bucket) -> Vec<Port> {
    let bytes = |v: ValueId| facts.body.ty(v).tensor().map(|t| tensor_bytes(t, bucket));
    k.writes.iter().map(|(name, v)| port(facts, name, *v, bytes(*v))).collect()
}

fn port(facts: &Facts, name: &str, v: ValueId, bytes: Option<u64>) -> Port {
    let value = (facts.kind(v) != Kind::Leaf).then_some(v.0);
    Port { name: name.to_owned(), value, ty: facts.body.ty(v).to_string(), bytes }
}

fn leaf_of(g: &Graph, leaf: &str) -> Option<ValueId> {
    g.ids().find(|id| match &g.node(*id).op {
        Op::Input { name, .. } | Op::Weight { name } | Op::State { name } => name == leaf,
        _ => false,
    })
}

/// Bytes of activations, each call's inputs and results among them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Activations {
    /// Each tensor written once, and read once by each launch that reads it.
    pub moved_bytes: u64,
    /// The least for these kernels: each tensor that one of them leaves or takes written once and read once.
    pub least_bytes: u64,
    /// As issued: read by every workgroup that needs it.
    pub issued_bytes: u64,
}

impl Activations {
    pub fn add(&mut self, other: &Activations) {
        self.moved_bytes += other.moved_bytes;
        self.least_bytes += other.least_bytes;
        self.issued_bytes += other.issued_bytes;
    }
}

/// Activations of one call of a body.
pub fn activations(facts: &Facts, cover: &BodyCover, bucket: &Bucket) -> Activations {
    let mut out = Activations::default();
    let mut read: BTreeMap<ValueId, u64> = BTreeMap::new();
    let mut written: BTreeMap<ValueId, u64> = BTreeMap::new();
    for k in &cover.kernels {
        out.issued_bytes += k.cost.traffic.cache();
        for (value, bytes) in activations_read(facts, k, bucket) {
            out.moved_bytes += bytes;
            let most = read.entry(value).or_default();
            *most = bytes.max(*most);
        }
        for (value, bytes) in activations_written(facts, k, bucket) {
            out.moved_bytes += bytes;
            written.insert(value, bytes);
        }
    }
    out.least_bytes = read.values().sum::<u64>() + written.values().sum::<u64>();
    out
}

/// By storage: the bytes that a kernel reads of it, once.
fn activations_read(facts: &Facts, k: &Kernel, bucket: &Bucket) -> Vec<(ValueId, u64)> {
    let users = k.graph.users();
    let of = |(name, v): &(String, ValueId)| {
        let is_weight = matches!(facts.body.node(*v).op, Op::Weight { .. });
        let leaf = leaf_of(&k.graph, name).filter(|_| !is_weight && facts.body.ty(*v).tensor().is_some())?;
        Some((facts.storage(*v), used_bytes(&k.graph, leaf, &users, bucket)))
    };
    k.reads.iter().filter_map(of).collect()
}

fn activations_written(facts: &Facts, k: &Kernel, bucket: &Bucket) -> Vec<(ValueId, u64)> {
    let of = |(_, v): &(String, ValueId)| {
        let t = facts.body.ty(*v).tensor()?;
        Some((facts.storage(*v), tensor_bytes(t, bucket)))
    };
    k.writes.iter().filter_map(of).collect()
}

/// What would be saved at most if the kernel's work were done by its neighbours (specs/costmodel.md 6, rule 1): its
/// start and dependent steps, the gap behind it, and the values that only pass between it and them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Removal {
    pub launch_ns: u64,
    pub gap_ns: u64,
    /// Activations that would be neither stored nor read: those that it leaves for kernels of its body, and those that
    /// it alone takes from them, as issued.
    pub bytes: u64,
    /// What their kernels would take less: nothing where other bytes take longer meanwhile.
    pub bytes_ns: u64,
    pub total_ns: u64,
}

/// By kernel, in the order of the cover.
pub fn removals(facts: &Facts, cover: &BodyCover, bucket: &Bucket, costs: &CostTable) -> Vec<Removal> {
    let mut stored: BTreeMap<ValueId, (usize, u64)> = BTreeMap::new();
    let mut taken: BTreeMap<ValueId, Vec<(usize, u64)>> = BTreeMap::new();
    for (i, k) in cover.kernels.iter().enumerate() {
        stored.extend(activations_written(facts, k, bucket).into_iter().map(|(v, bytes)| (v, (i, bytes))));
        let again = k.schedule.rereads(bucket).max(1);
        for (v, bytes) in activations_read(facts, k, bucket) {
            taken.entry(v).or_default().push((i, bytes.saturating_mul(again)));
        }
    }
    let results: Vec<ValueId> = facts.body.outputs.iter().map(|(_, v)| facts.storage(*v)).collect();
    let of = |(i, k): (usize, &Kernel)| {
        // By kernel: bytes that it would not read, and not store.
        let mut gone: BTreeMap<usize, (u64, u64)> = BTreeMap::new();
        for (v, (maker, size)) in &stored {
            let Some(readers) = taken.get(v).filter(|_| !results.contains(v)) else { continue };
            if *maker == i || readers.iter().all(|(r, _)| *r == i) {
                gone.entry(*maker).or_default().1 += size;
                readers.iter().for_each(|(r, read)| gone.entry(*r).or_default().0 += read);
            }
        }
        let bytes = gone.values().map(|(read, written)| read + written).sum();
        let saved = |(j, of): (&usize, &(u64, u64))| {
            let k = &cover.kernels[*j];
            bytes_ns(&k.cost, k.schedule.waves, *of, costs)
        };
        let bytes_ns = gone.iter().map(saved).sum();
        let (launch_ns, gap_ns) = (k.cost.t0_ns, k.cost.gap_ns);
        Removal { launch_ns, gap_ns, bytes, bytes_ns, total_ns: launch_ns + gap_ns + bytes_ns }
    };
    cover.kernels.iter().enumerate().map(of).collect()
}

/// Whether each kernel lies on the chain of kernels that takes longest by itself: those that wait for values or states
/// of each other. `edges`: pairs of kernels, the first before the second.
pub fn serial(cover: &BodyCover, edges: &[(usize, usize)]) -> Vec<bool> {
    let own: Vec<u64> = cover.kernels.iter().map(|k| k.cost.total()).collect();
    let mut until = own.clone();
    for to in 0..own.len() {
        let before = edges.iter().filter(|e| e.1 == to).map(|e| until[e.0]).max().unwrap_or(0);
        until[to] += before;
    }
    let mut from = own.clone();
    for at in (0..own.len()).rev() {
        let after = edges.iter().filter(|e| e.0 == at).map(|e| from[e.1]).max().unwrap_or(0);
        from[at] += after;
    }
    let longest = until.iter().copied().max().unwrap_or(0);
    own.iter().zip(until.iter().zip(&from)).map(|(own, (a, b))| a + b - own == longest).collect()
}

/// Predicted time of one launch with another target's cost table, and the same schedule.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct TargetTime {
    pub predicted_ns: u64,
    pub gap_ns: u64,
}

/// By target that has a machine model of its own.
pub fn by_target(k: &Kernel, bucket: &Bucket) -> BTreeMap<String, TargetTime> {
    let of = |table: &&CostTable| {
        let cost = kernel_cost(&k.graph, &k.schedule, bucket, table);
        (table.target.to_owned(), TargetTime { predicted_ns: cost.ns, gap_ns: cost.gap_ns })
    };
    [&GFX1201, &SM_90].iter().map(of).collect()
}

/// FLOPs a byte of weights, state and activations as issued; none if it moves nothing.
pub fn intensity(k: &Kernel) -> Option<f64> {
    let moved = k.cost.traffic.dram() + k.cost.traffic.cache();
    // Two digits are all that a model of bytes is good for.
    (moved > 0).then(|| (k.cost.traffic.flops as f64 / moved as f64 * 100.0).round() / 100.0)
}

/// True if a launch only computes element by element, or copies: no heavy op, reduction, gather or scatter.
pub fn is_pointwise(g: &Graph) -> bool {
    let glue = |op: &Op| match op {
        Op::Unary(_) | Op::Binary(_) | Op::Cast(_) | Op::Concat { .. } => true,
        Op::Reshape(_) | Op::Broadcast(_) | Op::Slice { .. } | Op::Project(_) => true,
        op => is_leaf(op),
    };
    g.nodes.iter().all(|n| glue(&n.op))
}
