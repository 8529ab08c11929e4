//! The cost table of each target, and the kernel time model: `t = t0 + max(bytes, flops, lane ops)`.
//!
//! Every figure predicted here is *modelled*. t0 is never a label: it is a fixed start plus the longest chain of
//! dependent steps through the kernel's graph (memory round trips, cross-lane finishes, serial arithmetic).

use schemars::JsonSchema;
use serde::Serialize;
use unglue_ir::graph::Graph;

use crate::schedule::{Bucket, Form, Schedule, Section};
use crate::traffic::{self, Traffic};

/// A constant of the machine model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Constant {
    pub value: u64,
    pub unit: &'static str,
    pub source: &'static str,
}

const fn c(value: u64, unit: &'static str, source: &'static str) -> Constant {
    Constant { value, unit, source }
}

/// The machine model of one target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct CostTable {
    pub target: &'static str,
    /// Achieved DRAM read.
    pub dram: Constant,
    /// Last-level cache read: where activations live.
    pub cache: Constant,
    /// Compute units: one workgroup uses one of them.
    pub units: Constant,
    /// What one workgroup can pull from memory.
    pub stream: Constant,
    /// Matrix FLOPs that a streaming kernel reaches.
    pub tiles: Constant,
    /// f32 lane operations.
    pub lanes: Constant,
    /// Between a kernel and the next dependent one.
    pub gap: Constant,
    /// The same behind a long kernel, whose tail overlaps the dispatch.
    pub gap_hidden: Constant,
    /// A kernel longer than this hides its successor's dispatch.
    pub gap_hidden_above: Constant,
    /// Dispatch, first wave and last store.
    pub start: Constant,
    /// One dependent round trip to memory.
    pub round_trip: Constant,
    /// Filling the pipeline of a weight stream.
    pub ramp: Constant,
    /// A sum or maximum across a wave and its workgroup.
    pub finish: Constant,
    /// One dependent add, multiply or move.
    pub step: Constant,
    /// One dependent division, root or polynomial.
    pub long_step: Constant,
    /// One round of top-k.
    pub pick: Constant,
    /// One row of the delta rule.
    pub row_update: Constant,
    /// Fetching and applying scales of a packed weight.
    pub unpack: Constant,
    /// Until what a workgroup stored is in the cache that all share.
    pub release: Constant,
    /// One atomic addition on a counter, with its result.
    pub arrive: Constant,
    /// Invalidating the last workgroup's caches, and its first load of what the others stored.
    pub acquire: Constant,
    /// What the last workgroup pulls of exchanged data that it does not copy first.
    pub exchange: Constant,
}

impl CostTable {
    /// What a kernel of this time costs the next one: behind a long one the launch is hidden.
    fn gap_after(&self, ns: u64) -> u64 {
        if ns > self.gap_hidden_above.value { self.gap_hidden.value } else { self.gap.value }
    }
}

const CM: &str = "specs/costmodel.md";

/// The R9700.
pub const GFX1201: CostTable = CostTable {
    target: "gfx1201",
    dram: c(610, "B/ns", "specs/costmodel.md 3: fit on 8 GEMV micro points"),
    cache: c(1383, "B/ns", "specs/costmodel.md 1: resident read, measured by davetha"),
    units: c(64, "CU", "specs/costmodel.md 1"),
    stream: c(32, "B/ns", "assumed: 16 KB in flight in a workgroup over one round trip; not established"),
    tiles: c(91_750, "FLOP/ns", "specs/costmodel.md 1: 1024 FLOP x 64 CU x 2.8 GHz, half reached in real kernels"),
    lanes: c(20_500, "lane op/ns", "specs/costmodel.md 1: 64 CU x 64 lanes x 2 issue x 2.5 GHz"),
    gap: c(2400, "ns", "specs/costmodel.md 2: dependent tiny node in graph replay"),
    gap_hidden: c(600, "ns", "specs/costmodel.md 2: value of removing a launch from a healthy step"),
    gap_hidden_above: c(5000, "ns", "specs/costmodel.md 6, rule 1"),
    start: c(1400, "ns", "fit: elementwise t0 1.9 us of specs/costmodel.md 3 less one round trip"),
    round_trip: c(500, "ns", "specs/costmodel.md 1: DRAM latency 350-500 ns, not established"),
    ramp: c(800, "ns", "fit: bf16 GEMV t0 3.5 us of specs/costmodel.md 3 less start, round trip and finish"),
    finish: c(800, "ns", "fit: norm and reduce t0 2.5-4.5 us of specs/costmodel.md 3"),
    step: c(2, "ns", "5 cycles at 2.8 GHz"),
    long_step: c(25, "ns", "about 12 dependent steps at 2.8 GHz"),
    pick: c(700, "ns", "fit: top-8 t0 7.5 us of specs/costmodel.md 3"),
    row_update: c(1000, "ns", "fit: delta rule t0 8-10 us of specs/costmodel.md 3 less its state bytes"),
    unpack: c(2000, "ns", "fit: 4-bit GEMV t0 5.5 us of specs/costmodel.md 3"),
    release: c(300, "ns", "assumed: one trip to the L2; not established"),
    arrive: c(500, "ns", "assumed: one round trip, and a line that all workgroups want; not established"),
    acquire: c(500, "ns", "as round_trip: other workgroups' lines come from the L2 or the MALL; not established"),
    exchange: c(
        1,
        "B/ns",
        "4 waves x 32 lanes x 4 B in flight over one round trip: device-scope loads are not vectors",
    ),
};

/// The embedded default takes the cover and the schedules of gfx1201, so it is priced like it.
pub const X86_64: CostTable = CostTable { target: "x86-64", ..GFX1201 };

/// H200.
pub const SM_90: CostTable = CostTable {
    target: "sm_90",
    dram: c(4000, "B/ns", "data sheet 4.8 TB/s, 0.83 reached; not measured here"),
    cache: c(6500, "B/ns", "L2 read of H100 in public microbenchmarks; not measured here"),
    units: c(132, "SM", "data sheet"),
    tiles: c(400_000, "FLOP/ns", "data sheet 989 TFLOP/s dense bf16, 0.4 reached; not measured here"),
    lanes: c(33_500, "lane op/ns", "data sheet 67 TFLOP/s f32, 2 FLOP an op"),
    gap: c(1300, "ns", "graph replay of dependent nodes in public reports; not measured here"),
    gap_hidden: c(500, "ns", "as gap"),
    start: c(1200, "ns", "assumed like gfx1201 at a higher clock"),
    round_trip: c(600, "ns", "H100 DRAM latency in public microbenchmarks"),
    ..GFX1201
};

impl CostTable {
    /// The table of a target by name.
    pub fn of(target: &str) -> Option<&'static CostTable> {
        [&GFX1201, &X86_64, &SM_90].into_iter().find(|t| t.target == target)
    }

    /// Where the method is described.
    pub fn model(&self) -> &'static str {
        CM
    }
}

/// What limits a kernel beyond its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    #[default]
    Latency,
    Dram,
    Cache,
    Lanes,
    Tiles,
}

/// Predicted cost of one launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct KernelCost {
    /// The kernel itself.
    pub ns: u64,
    /// Until the next dependent kernel starts.
    pub gap_ns: u64,
    pub t0_ns: u64,
    pub traffic: Traffic,
    pub workgroups: u64,
    pub bound: Bound,
}

impl KernelCost {
    /// What the kernel adds to a chain of launches.
    pub fn total(&self) -> u64 {
        self.ns + self.gap_ns
    }
}

/// Predicted time of a kernel in a bucket.
pub fn kernel_cost(graph: &Graph, schedule: &Schedule, bucket: &Bucket, table: &CostTable) -> KernelCost {
    match &schedule.form {
        Form::Beside(sections) => beside_cost(graph, sections, bucket, table),
        _ => one_cost(graph, schedule, bucket, table),
    }
}

/// Sections run at once: the launch takes as long as the slowest of them alone, and not less than all their work takes
/// on the whole machine.
fn beside_cost(graph: &Graph, sections: &[Section], bucket: &Bucket, table: &CostTable) -> KernelCost {
    let alone: Vec<KernelCost> =
        sections.iter().map(|s| one_cost(&s.graph(graph), &s.schedule, bucket, table)).collect();
    let mut traffic = Traffic::default();
    alone.iter().for_each(|c| traffic.add(&c.traffic));
    let t0_ns = alone.iter().map(|c| c.t0_ns).max().unwrap_or(0);
    let at = |amount: u64, rate: Constant| amount.div_ceil(rate.value.max(1));
    let memory = at(traffic.dram(), table.dram) + at(traffic.cache(), table.cache);
    let work = memory.max(at(traffic.lane_ops, table.lanes)).max(at(traffic.tile_flops, table.tiles));
    let slowest = alone.iter().max_by_key(|c| c.ns).copied();
    let ns = slowest.map_or(0, |c| c.ns).max(t0_ns + work);
    KernelCost {
        ns,
        gap_ns: table.gap_after(ns),
        t0_ns,
        traffic,
        workgroups: sections.iter().map(Section::workgroups).sum(),
        bound: slowest.map_or(Bound::Latency, |c| c.bound),
    }
}

fn one_cost(graph: &Graph, schedule: &Schedule, bucket: &Bucket, table: &CostTable) -> KernelCost {
    let workgroups = schedule.workgroups(bucket).max(1);
    let traffic = traffic::traffic(graph, schedule, bucket);
    let t0_ns = table.start.value + traffic::chain(graph, schedule, bucket, table);
    // A few workgroups cannot use the whole machine: each is limited by its bytes in flight and its unit's lanes.
    let stream =
        |bytes: u64, rate: u64| bytes.div_ceil(rate.max(1)).max(bytes.div_ceil(table.stream.value * workgroups));
    let busy = workgroups.min(table.units.value).max(1);
    let share = |amount: u64, rate: u64| (amount * table.units.value).div_ceil(rate.max(1) * busy);
    let dram = stream(traffic.dram(), table.dram.value);
    let cache = stream(traffic.cache(), table.cache.value);
    let lanes = share(traffic.lane_ops, table.lanes.value);
    let tiles = share(traffic.tile_flops, table.tiles.value);
    let work = (dram + cache).max(lanes).max(tiles) + finish_ns(&traffic, table);
    let ns = t0_ns + work;
    let bound = match work {
        w if w < t0_ns => Bound::Latency,
        _ if tiles >= lanes.max(dram + cache) => Bound::Tiles,
        _ if lanes >= dram + cache => Bound::Lanes,
        _ if dram >= cache => Bound::Dram,
        _ => Bound::Cache,
    };
    KernelCost { ns, gap_ns: table.gap_after(ns), t0_ns, traffic, workgroups, bound }
}

/// What the last workgroup alone takes for its bytes and operations, while the others have nothing left to do.
fn finish_ns(traffic: &Traffic, table: &CostTable) -> u64 {
    let copied = traffic.copied_bytes.div_ceil(table.stream.value.max(1));
    let loaded = traffic.loaded_bytes.div_ceil(table.exchange.value.max(1));
    let lanes = (traffic.finish_ops * table.units.value).div_ceil(table.lanes.value.max(1));
    (copied + loaded).max(lanes)
}
