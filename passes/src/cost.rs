//! The cost table of each target, and the kernel time model: `t = t0 + max(bytes, flops, lane ops)`, and a penalty for
//! waves that live too long.
//!
//! Every figure predicted here is *modelled*. t0 is never a label: it is a fixed start plus the longest chain of
//! dependent steps through the kernel's graph (memory round trips, cross-lane finishes, serial arithmetic). Constants
//! tagged `fitted` are the least squares over the classes of `specs/costmodel.md` 3; `tests/calibration.rs` repeats the
//! fit, and compares the model with the kernels measured in 4.1.

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
    /// What the last-level cache holds: weights that are read again come from it if they fit.
    pub cache_size: Constant,
    /// Compute units: one workgroup uses one of them.
    pub units: Constant,
    /// What one workgroup can pull from memory.
    pub stream: Constant,
    /// What one workgroup pulls of the operands that it forms before it streams weights.
    pub prologue: Constant,
    /// Matrix FLOPs that a streaming kernel reaches.
    pub tiles: Constant,
    /// f32 lane operations of generated code.
    pub lanes: Constant,
    /// Shader clock while decoding.
    pub clock: Constant,
    /// Waves at work at once in a streaming kernel; the rest of a launch waits for their places.
    pub resident: Constant,
    /// A wave that lives longer makes its kernel pay `wave_penalty`, once.
    pub wave_life: Constant,
    pub wave_penalty: Constant,
    /// Between a kernel and the next dependent one.
    pub gap: Constant,
    /// The same behind a long kernel, whose tail overlaps the dispatch.
    pub gap_hidden: Constant,
    /// What a kernel takes beyond this hides its successor's dispatch.
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
    /// Sorting rows by expert, and the ragged last tile of each.
    pub align: Constant,
}

const CM: &str = "specs/costmodel.md";

/// The R9700.
pub const GFX1201: CostTable = CostTable {
    target: "gfx1201",
    dram: c(610, "B/ns", "specs/costmodel.md 3: fit on 8 GEMV micro points"),
    cache: c(1383, "B/ns", "specs/costmodel.md 1: resident read, measured by davetha"),
    units: c(64, "CU", "specs/costmodel.md 1"),
    stream: c(32, "B/ns", "assumed: 16 KB in flight in a workgroup over one round trip; not established"),
    prologue: c(32, "B/ns", "as stream; not established"),
    tiles: c(91_750, "FLOP/ns", "specs/costmodel.md 1: 1024 FLOP x 64 CU x 2.8 GHz, half reached in real kernels"),
    lanes: c(
        13_760,
        "lane op/ns",
        "specs/costmodel.md 1: 64 CU x 64 lanes x 2.8 GHz; x 1.2: LLVM 22 pairs a fifth of the compiled lm_head's ops",
    ),
    cache_size: c(64 << 20, "B", "specs/costmodel.md 1: Infinity Cache"),
    clock: c(2800, "MHz", "specs/costmodel.md 3: decode"),
    resident: c(1024, "waves", "specs/costmodel.md 6, rule 1: 8 waves a SIMD, 2 SIMDs of 64 CU"),
    wave_life: c(37_000, "cycles", "specs/costmodel.md 2: dispatch-gap study"),
    wave_penalty: c(62_000, "cycles", "specs/costmodel.md 2: dispatch-gap study"),
    gap: c(2400, "ns", "specs/costmodel.md 2: dependent tiny node in graph replay"),
    gap_hidden: c(600, "ns", "specs/costmodel.md 2: value of removing a launch from a healthy step"),
    gap_hidden_above: c(5000, "ns", "specs/costmodel.md 6, rule 1"),
    start: c(1390, "ns", "fitted: elementwise t0 of specs/costmodel.md 3, with norms"),
    round_trip: c(500, "ns", "specs/costmodel.md 1: DRAM latency 350-500 ns, not established"),
    ramp: c(490, "ns", "fitted: bf16 GEMV t0 of specs/costmodel.md 3"),
    finish: c(1120, "ns", "fitted: both ends of the norm and reduce t0 of specs/costmodel.md 3"),
    step: c(2, "ns", "5 cycles at 2.8 GHz"),
    long_step: c(25, "ns", "about 12 dependent steps at 2.8 GHz"),
    pick: c(790, "ns", "fitted: both ends of the top-k t0 of specs/costmodel.md 3"),
    row_update: c(2230, "ns", "fitted: GDN state update of specs/costmodel.md 3, 352 us / 36, less its state bytes"),
    unpack: c(2000, "ns", "fitted: 4-bit dense GEMV t0 of specs/costmodel.md 3"),
    release: c(300, "ns", "assumed: one trip to the L2; not established"),
    arrive: c(500, "ns", "assumed: one round trip, and a line that all workgroups want; not established"),
    acquire: c(500, "ns", "as round_trip: other workgroups' lines come from the L2 or the MALL; not established"),
    exchange: c(
        1,
        "B/ns",
        "4 waves x 32 lanes x 4 B in flight over one round trip: device-scope loads are not vectors",
    ),
    align: c(9500, "ns", "fitted: grouped MoE GEMM (r4d) t0 of specs/costmodel.md 3"),
};

/// The embedded default takes the cover and the schedules of gfx1201, so it is priced like it.
pub const X86_64: CostTable = CostTable { target: "x86-64", ..GFX1201 };

/// H200.
pub const SM_90: CostTable = CostTable {
    target: "sm_90",
    dram: c(4000, "B/ns", "data sheet 4.8 TB/s, 0.83 reached; not measured here"),
    cache: c(6500, "B/ns", "L2 read of H100 in public microbenchmarks; not measured here"),
    units: c(132, "SM", "data sheet"),
    prologue: c(
        4,
        "B/ns",
        "benches/RESULTS.md: 53 KB formed first by each of 193 to 293 workgroups add 9 to 15 us to four skinny matmuls",
    ),
    tiles: c(400_000, "FLOP/ns", "data sheet 989 TFLOP/s dense bf16, 0.4 reached; not measured here"),
    lanes: c(33_500, "lane op/ns", "data sheet 67 TFLOP/s f32, 2 FLOP an op"),
    cache_size: c(50 << 20, "B", "data sheet: L2"),
    clock: c(1980, "MHz", "data sheet: boost"),
    resident: c(4224, "waves", "assumed: 8 warps in each of 4 partitions of 132 SM"),
    wave_penalty: c(0, "cycles", "none known"),
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
    /// How long a wave lives: its chain, and its bytes at its share of the bandwidth. The last workgroup lives on through
    /// the finish stage: the penalty was measured on launches full of long waves, so that its few waves do not count.
    pub wave_cycles: u64,
    /// Part of `ns`: what waves that live too long cost.
    pub penalty_ns: u64,
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
    // Sections may read the same leaf.
    (traffic.weight_bytes, traffic.read_bytes) = traffic::leaf_bytes(graph, bucket);
    let t0_ns = alone.iter().map(|c| c.t0_ns).max().unwrap_or(0);
    let at = |amount: u64, rate: Constant| amount.div_ceil(rate.value.max(1));
    let memory = at(traffic.dram(), table.dram) + at(traffic.cache(), table.cache);
    let work = memory.max(at(traffic.lane_ops, table.lanes)).max(at(traffic.tile_flops, table.tiles));
    let slowest = alone.iter().max_by_key(|c| c.ns).copied();
    let ns = slowest.map_or(0, |c| c.ns).max(t0_ns + work);
    KernelCost {
        ns,
        gap_ns: gap_ns(ns, table),
        t0_ns,
        traffic,
        workgroups: sections.iter().map(Section::workgroups).sum(),
        wave_cycles: alone.iter().map(|c| c.wave_cycles).max().unwrap_or(0),
        penalty_ns: alone.iter().map(|c| c.penalty_ns).max().unwrap_or(0),
        bound: slowest.map_or(Bound::Latency, |c| c.bound),
    }
}

fn one_cost(graph: &Graph, schedule: &Schedule, bucket: &Bucket, table: &CostTable) -> KernelCost {
    let workgroups = schedule.workgroups(bucket).max(1);
    let traffic = traffic::traffic(graph, schedule, bucket);
    let chain = traffic::chain(graph, schedule, bucket, table);
    let t0_ns = table.start.value + chain.ns + traffic::align(graph, schedule, table);
    let places = places(schedule.waves, workgroups, table);
    let memory = memory_time(&traffic, workgroups, places, table);
    // A few workgroups cannot use the whole machine: each has its unit's lanes.
    let busy = workgroups.min(table.units.value).max(1);
    let share = |amount: u64, rate: u64| amount.saturating_mul(table.units.value).div_ceil(rate.max(1) * busy);
    let lanes = share(traffic.lane_ops, table.lanes.value);
    let tiles = share(traffic.tile_flops, table.tiles.value);
    let shared = memory.ns.max(lanes).max(tiles);
    let work = shared + finish_ns(&traffic, table);
    // Workgroups that wait for a place shorten the lives of those that work.
    let wave_ns = chain.wave_ns + shared.saturating_mul(places) / workgroups;
    let wave_cycles = wave_ns.saturating_mul(table.clock.value) / 1000;
    let too_long = wave_cycles > table.wave_life.value;
    let penalty_ns = if too_long { table.wave_penalty.value * 1000 / table.clock.value.max(1) } else { 0 };
    let ns = t0_ns + work + penalty_ns;
    let bound = match work {
        w if w < t0_ns => Bound::Latency,
        _ if shared == tiles => Bound::Tiles,
        _ if shared == lanes => Bound::Lanes,
        _ => memory.bound,
    };
    KernelCost { ns, gap_ns: gap_ns(ns, table), t0_ns, traffic, workgroups, wave_cycles, penalty_ns, bound }
}

/// Until the next dependent kernel starts. What a kernel takes beyond [`CostTable::gap_hidden_above`] hides as much of the
/// gap: a step there would make a longer kernel cheaper than a shorter one.
fn gap_ns(ns: u64, table: &CostTable) -> u64 {
    let hides = ns.saturating_sub(table.gap_hidden_above.value);
    table.gap.value.saturating_sub(hides).max(table.gap_hidden.value)
}

/// What a launch would take less if it neither read nor stored that much of its activations, as issued. Nothing, where
/// they come while weights stream.
pub fn bytes_ns(cost: &KernelCost, waves: u32, (read, written): (u64, u64), table: &CostTable) -> u64 {
    let workgroups = cost.workgroups.max(1);
    let places = places(waves, workgroups, table);
    let ns = |t: &Traffic| memory_time(t, workgroups, places, table).ns;
    let t = &cost.traffic;
    let less = Traffic {
        reread_bytes: t.reread_bytes.saturating_sub(read),
        prologue_bytes: t.prologue_bytes.saturating_sub(read),
        written_bytes: t.written_bytes.saturating_sub(written),
        ..*t
    };
    ns(t).saturating_sub(ns(&less)).min(cost.ns)
}

/// Workgroups of so many waves that are at work at the same time.
fn places(waves: u32, workgroups: u64, table: &CostTable) -> u64 {
    (table.resident.value / u64::from(waves.max(1))).clamp(1, workgroups)
}

struct MemoryTime {
    ns: u64,
    bound: Bound,
}

/// Time of a kernel's bytes. What a workgroup forms first is read first. Then weights and state come from DRAM, and
/// through the cache like all else; results are written last. Each is limited by the workgroups' bytes in flight too.
/// What is read again is in the cache if what the workgroups at work read in between fits.
fn memory_time(t: &Traffic, workgroups: u64, places: u64, table: &CostTable) -> MemoryTime {
    let limited = |bytes: u64, rate: u64, each: Constant| {
        bytes.div_ceil(rate.max(1)).max(bytes.div_ceil(each.value.max(1) * workgroups))
    };
    let stream = |bytes: u64, rate: u64| limited(bytes, rate, table.stream);
    let fits = t.dram().saturating_mul(places) / workgroups <= table.cache_size.value;
    let (from_dram, from_cache) = if fits { (t.dram(), t.restream_bytes) } else { (t.dram() + t.restream_bytes, 0) };
    let streamed = t.reread_bytes.saturating_sub(t.prologue_bytes);
    let dram = stream(from_dram, table.dram.value);
    let through = stream(from_dram + from_cache + streamed, table.cache.value);
    let first = limited(t.prologue_bytes, table.cache.value, table.prologue);
    let around = first + stream(t.written_bytes, table.cache.value);
    let slower = |bytes: u64| bytes.saturating_mul(table.dram.value) / table.cache.value.max(1);
    let in_cache = t.prologue_bytes + t.written_bytes + streamed + from_cache;
    let bound = if from_dram >= slower(in_cache) { Bound::Dram } else { Bound::Cache };
    MemoryTime { ns: around + dram.max(through), bound }
}

/// What the last workgroup alone takes for its bytes and operations, while the others have nothing left to do.
fn finish_ns(traffic: &Traffic, table: &CostTable) -> u64 {
    let copied = traffic.copied_bytes.div_ceil(table.stream.value.max(1));
    let loaded = traffic.loaded_bytes.div_ceil(table.exchange.value.max(1));
    let lanes = (traffic.finish_ops * table.units.value).div_ceil(table.lanes.value.max(1));
    (copied + loaded).max(lanes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_kernel_never_ends_sooner() {
        let end = |ns: u64| ns + gap_ns(ns, &GFX1201);
        assert!((0..20_000).all(|ns| end(ns) <= end(ns + 1)));
        assert_eq!([0, 5000, 6000, 6800, 100_000].map(|ns| gap_ns(ns, &GFX1201)), [2400, 2400, 1400, 600, 600]);
    }
}
