//! What a kernel moves and computes: bytes by memory, FLOPs, lane operations, and its longest dependent chain.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;
use unglue_ir::graph::{Graph, Node, ValueId};
use unglue_ir::op::{Binary, Op, Unary};
use unglue_ir::types::{DType, Dim, Format, StateKind, TensorType, Type};

use crate::cost::CostTable;
use crate::schedule::{Bucket, Finish, Form, Schedule, is_leaf};

/// Bytes and operations of one launch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Traffic {
    /// Weights, once each.
    pub weight_bytes: u64,
    /// State read and written.
    pub state_bytes: u64,
    /// Activations read, once each.
    pub read_bytes: u64,
    /// Activations read by all workgroups together.
    pub reread_bytes: u64,
    pub written_bytes: u64,
    /// Multiply-adds of heavy ops, twice, and one for each element of other ops.
    pub flops: u64,
    /// FLOPs on matrix tiles, of 16 rows whatever the bucket.
    pub tile_flops: u64,
    /// Lane operations, with those that every workgroup repeats.
    pub lane_ops: u64,
    /// Of what workgroups exchange: bytes that the last one copies at once, and bytes that it loads where it needs them.
    pub copied_bytes: u64,
    pub loaded_bytes: u64,
    /// Lane operations of the last workgroup alone.
    pub finish_ops: u64,
}

impl Traffic {
    pub(crate) fn add(&mut self, other: &Traffic) {
        let Traffic {
            weight_bytes,
            state_bytes,
            read_bytes,
            reread_bytes,
            written_bytes,
            flops,
            tile_flops,
            lane_ops,
            copied_bytes,
            loaded_bytes,
            finish_ops,
        } = *other;
        self.weight_bytes += weight_bytes;
        self.state_bytes += state_bytes;
        self.read_bytes += read_bytes;
        self.reread_bytes += reread_bytes;
        self.written_bytes += written_bytes;
        self.flops += flops;
        self.tile_flops += tile_flops;
        self.lane_ops += lane_ops;
        self.copied_bytes += copied_bytes;
        self.loaded_bytes += loaded_bytes;
        self.finish_ops += finish_ops;
    }

    pub fn dram(&self) -> u64 {
        self.weight_bytes + self.state_bytes
    }

    pub fn cache(&self) -> u64 {
        self.reread_bytes + self.written_bytes
    }
}

/// Value of an extent in a bucket.
pub fn extent(dim: Dim, bucket: &Bucket) -> u64 {
    match dim {
        Dim::Fixed(n) => n,
        Dim::Rows | Dim::Logits => u64::from(bucket.rows_max),
        Dim::Seqs => u64::from(bucket.seqs_max),
        Dim::Pools => bucket.pools,
    }
}

/// Elements of a tensor in a bucket.
pub fn elements(shape: &[Dim], bucket: &Bucket) -> u64 {
    shape.iter().fold(1, |a, d| a.saturating_mul(extent(*d, bucket)))
}

/// Bytes of a tensor in a bucket, with the scales of packed formats.
pub fn tensor_bytes(t: &TensorType, bucket: &Bucket) -> u64 {
    let n = elements(&t.shape, bucket);
    match t.format {
        Format::Plain(d) => n.saturating_mul(d.bytes()),
        Format::Int4 { group, .. } => n / 2 + n / u64::from(group.max(1)) * 2,
        Format::F8Block { rows, cols } => n + n / (u64::from(rows) * u64::from(cols)).max(1) * 4,
    }
}

fn bytes_of(ty: &Type, bucket: &Bucket) -> u64 {
    ty.tensor().map_or(0, |t| tensor_bytes(t, bucket))
}

fn elements_of(ty: &Type, bucket: &Bucket) -> u64 {
    match ty {
        Type::Tensor(t) => elements(&t.shape, bucket),
        Type::Tuple(ts) => ts.iter().map(|t| elements_of(t, bucket)).sum(),
        Type::State(_) => 0,
    }
}

pub fn traffic(g: &Graph, schedule: &Schedule, bucket: &Bucket) -> Traffic {
    let users = g.users();
    let mut t = Traffic::default();
    let rereads = schedule.rereads(bucket).max(1);
    for id in g.ids() {
        let node = g.node(id);
        match &node.op {
            Op::Weight { .. } => {
                let bytes = used_bytes(g, id, &users, bucket);
                t.weight_bytes += bytes;
                // The rows of a sequence are taken one after the other, and sequences apart.
                if matches!(schedule.form, Form::Delta { .. }) && users[id.index()].iter().any(|u| is_matmul(g, *u)) {
                    t.reread_bytes += bytes.saturating_mul(u64::from(bucket.rows_max.saturating_sub(1)));
                }
            }
            Op::Input { .. } => {
                let bytes = used_bytes(g, id, &users, bucket);
                t.read_bytes += bytes;
                t.reread_bytes += bytes.saturating_mul(rereads);
            }
            _ => t.state_bytes += state_bytes(g, node, bucket),
        }
    }
    for (_, v) in &g.outputs {
        t.written_bytes += bytes_of(g.ty(*v), bucket);
    }
    count_work(g, rereads, bucket, schedule.finish(), &mut t);
    t
}

/// Values that only the last workgroup forms.
fn late(g: &Graph, finish: &Finish) -> BTreeSet<ValueId> {
    let mut late = finish.nodes.clone();
    let others = (0..g.outputs.len()).filter(|o| !finish.outputs.contains(o));
    let mut todo: Vec<ValueId> = others.map(|o| g.outputs[o].1).collect();
    let mut seen = BTreeSet::new();
    while let Some(id) = todo.pop() {
        if seen.insert(id) {
            late.remove(&id);
            todo.extend(&g.node(id).args);
        }
    }
    late
}

/// What the last workgroup reads of the exchanged values, and computes.
fn count_finish(g: &Graph, finish: &Finish, bucket: &Bucket, t: &mut Traffic) {
    let users = g.users();
    for v in &finish.exchanged {
        let bytes = bytes_of(g.ty(*v), bucket);
        if finish.staged.iter().any(|s| s.node == *v) {
            t.copied_bytes += bytes;
        } else {
            let readers = users[v.index()].iter().filter(|u| finish.nodes.contains(u)).count() as u64;
            t.loaded_bytes += bytes.saturating_mul(readers);
        }
    }
    t.finish_ops = finish.nodes.iter().map(|id| lane_ops(g, g.node(*id), bucket)).sum();
}

fn is_matmul(g: &Graph, id: ValueId) -> bool {
    matches!(g.node(id).op, Op::MatMul { .. })
}

/// Bytes of a leaf that are read: all, or what slices and row selections take of it.
pub(crate) fn used_bytes(g: &Graph, id: ValueId, users: &[Vec<ValueId>], bucket: &Bucket) -> u64 {
    let all = bytes_of(g.ty(id), bucket);
    let part = |u: &ValueId| {
        let node = g.node(*u);
        let rows = u64::from(bucket.rows_max);
        match &node.op {
            Op::Slice { .. } => bytes_of(&node.ty, bucket),
            Op::EmbedRows if node.args[0] == id => bytes_of(&node.ty, bucket),
            Op::GatherRows if node.args[0] == id => bytes_of(&node.ty, bucket),
            Op::GroupedMatMul { .. } if node.args.get(3) == Some(&id) => {
                let shape = |v: ValueId| g.ty(v).tensor().map(|t| t.shape.clone()).unwrap_or_default();
                let slots = shape(id).first().map_or(1, |d| extent(*d, bucket)).max(1);
                let chosen = shape(node.args[1]).get(1).map_or(1, |d| extent(*d, bucket)).saturating_mul(rows);
                all / slots * chosen.min(slots)
            }
            _ => all,
        }
    };
    users[id.index()].iter().map(part).sum::<u64>().min(all)
}

/// Bytes of state that one op reads or writes.
fn state_bytes(g: &Graph, node: &Node, bucket: &Bucket) -> u64 {
    let Some(state) = node.args.iter().find_map(|a| g.ty(*a).state()) else { return 0 };
    let (rows, seqs) = (u64::from(bucket.rows_max), u64::from(bucket.seqs_max));
    let units = match (&node.op, &state.kind) {
        (Op::DeltaRule { .. }, StateKind::Slot { shape }) => 2 * seqs * shape.iter().product::<u64>(),
        (_, StateKind::Slot { shape }) => seqs * shape.iter().product::<u64>(),
        (Op::Attend { .. }, StateKind::Token { width }) => {
            let selected = node.args.get(2).map_or(1, |ids| elements_of(g.ty(*ids), bucket));
            selected.saturating_mul(*width)
        }
        (Op::IndexScores { .. }, StateKind::Pool { width, .. }) => {
            bucket.pools.saturating_mul(*width).saturating_mul(seqs)
        }
        (_, StateKind::Token { width } | StateKind::Pool { width, .. }) => rows * width,
        (Op::PoolWindow { .. }, StateKind::Tail { pool, width }) => rows * pool * width,
        (_, StateKind::Tail { width, .. }) => rows * 2 * width,
    };
    units.saturating_mul(state.dtype.bytes())
}

/// Nodes whose results a contraction reads: every workgroup of a skinny kernel forms them anew.
fn repeated(g: &Graph) -> BTreeSet<ValueId> {
    let mut set = BTreeSet::new();
    for id in g.ids().collect::<Vec<_>>().into_iter().rev() {
        let node = g.node(id);
        let heavy = matches!(node.op, Op::MatMul { .. } | Op::BatchMatMul { .. } | Op::GroupedMatMul { .. });
        if heavy || set.contains(&id) {
            set.extend(node.args.iter().copied());
        }
    }
    set
}

fn count_work(g: &Graph, rereads: u64, bucket: &Bucket, finish: Option<&Finish>, t: &mut Traffic) {
    let repeated = repeated(g);
    let late = finish.map_or_else(BTreeSet::new, |f| late(g, f));
    if let Some(finish) = finish {
        count_finish(g, finish, bucket, t);
        t.flops += t.finish_ops;
    }
    for id in g.ids().filter(|id| !late.contains(id)) {
        let node = g.node(id);
        let (flops, tile) = heavy_flops(g, node, bucket);
        t.flops += flops;
        if tile {
            // Tiles have 16 rows whatever the bucket holds.
            t.tile_flops += flops / u64::from(bucket.rows_max.clamp(1, 16)) * 16;
        } else {
            t.lane_ops += flops / 2;
        }
        let own = lane_ops(g, node, bucket);
        t.flops += own;
        t.lane_ops += if repeated.contains(&id) { own.saturating_mul(rereads) } else { own };
    }
}

/// FLOPs of a heavy op, and whether they run on matrix tiles.
fn heavy_flops(g: &Graph, node: &Node, bucket: &Bucket) -> (u64, bool) {
    let out = elements_of(&node.ty, bucket);
    let last = |i: usize| node.args.get(i).and_then(|a| g.ty(*a).tensor()).and_then(|t| t.shape.last().copied());
    let k = last(0).map_or(1, |d| extent(d, bucket));
    let f32_weight =
        |i: usize| node.args.get(i).and_then(|a| g.ty(*a).tensor()).and_then(|t| t.dtype()) == Some(DType::F32);
    match &node.op {
        Op::MatMul { .. } | Op::BatchMatMul { .. } => (2 * out * k, !f32_weight(1)),
        Op::GroupedMatMul { .. } => (2 * out * k, !f32_weight(3)),
        Op::DeltaRule { .. } => (7 * out * k, false),
        Op::Attend { .. } => (4 * out * last(2).map_or(1, |d| extent(d, bucket)), false),
        Op::IndexScores { .. } => {
            let q = node.args.first().map_or(1, |a| elements_of(g.ty(*a), bucket));
            (2 * q * bucket.pools, false)
        }
        _ => (0, false),
    }
}

/// Lane operations of glue.
fn lane_ops(g: &Graph, node: &Node, bucket: &Bucket) -> u64 {
    let out = elements_of(&node.ty, bucket);
    let input = node.args.first().map_or(0, |a| elements_of(g.ty(*a), bucket));
    match &node.op {
        op if is_leaf(op) => 0,
        Op::Unary(Unary::Neg | Unary::Abs) => out,
        Op::Unary(_) | Op::Binary(Binary::Div) => 12 * out,
        Op::Binary(_) | Op::Cast(_) | Op::Concat { .. } => out,
        Op::Reduce { .. } => input,
        Op::Repeat { body, count } => {
            let inner = &g.bodies[*body as usize];
            let round: u64 = inner.nodes.iter().map(|n| lane_ops(inner, n, bucket)).sum();
            round.saturating_mul(u64::from(*count))
        }
        Op::TopK { k } => input.saturating_mul(*k),
        Op::CausalConv => out * 4,
        Op::IndexSelect { .. } => input.saturating_mul(40),
        Op::GatherLast | Op::EmbedRows | Op::GatherRows | Op::PoolWindow { .. } => out,
        Op::TokenWrite | Op::PoolWrite | Op::TailUpdate | Op::ConvUpdate => input,
        _ => 0,
    }
}

/// Length in ns of the longest chain of dependent steps; a finish stage takes its rows one after the other.
pub fn chain(g: &Graph, schedule: &Schedule, bucket: &Bucket, table: &CostTable) -> u64 {
    let finish = schedule.finish();
    let late = finish.map_or_else(BTreeSet::new, |f| late(g, f));
    let mut ready: Vec<u64> = Vec::with_capacity(g.nodes.len());
    for id in g.ids() {
        let node = g.node(id);
        let from = node.args.iter().map(|a| ready[a.index()]).max().unwrap_or(0);
        ready.push(if late.contains(&id) { 0 } else { from + latency(g, node, bucket, table) });
    }
    let before = ready.iter().copied().max().unwrap_or(0);
    let Some(finish) = finish else { return before };
    let handed = finish.exchanged.iter().map(|v| ready[v.index()]).max().unwrap_or(0);
    let handover = table.release.value + table.arrive.value + table.acquire.value;
    let rows = u64::from(bucket.rows_max);
    before.max(handed + handover + finish_chain(g, finish, bucket, table).saturating_mul(rows))
}

/// The chain of one finished row; the load of what was exchanged is part of the acquire.
fn finish_chain(g: &Graph, finish: &Finish, bucket: &Bucket, table: &CostTable) -> u64 {
    let mut ready = vec![0u64; g.nodes.len()];
    for id in g.ids() {
        let node = g.node(id);
        let leaf = is_leaf(&node.op);
        if leaf || finish.nodes.contains(&id) {
            let from = node.args.iter().map(|a| ready[a.index()]).max().unwrap_or(0);
            ready[id.index()] = from + latency(g, node, bucket, table);
        }
    }
    finish.nodes.iter().map(|id| ready[id.index()]).max().unwrap_or(0)
}

fn latency(g: &Graph, node: &Node, bucket: &Bucket, t: &CostTable) -> u64 {
    let arg = |i: usize| node.args.get(i).map(|a| g.ty(*a));
    let packed = |i: usize| arg(i).and_then(Type::tensor).is_some_and(|t| t.dtype().is_none());
    let unpack = |i: usize| if packed(i) { t.unpack.value } else { 0 };
    let rows = u64::from(bucket.rows_max.div_ceil(bucket.seqs_max.max(1)));
    match &node.op {
        Op::ConstF32(_) => 0,
        op if is_leaf(op) => t.round_trip.value,
        Op::Unary(Unary::Neg | Unary::Abs) => t.step.value,
        Op::Unary(_) | Op::Binary(Binary::Div) => t.long_step.value,
        Op::Binary(_) | Op::Cast(_) => t.step.value,
        Op::Reduce { axis, .. } => {
            let n = arg(0)
                .and_then(Type::tensor)
                .and_then(|x| x.shape.get(*axis as usize))
                .map_or(1, |d| extent(*d, bucket));
            if n <= 32 { n * t.step.value } else { t.finish.value }
        }
        Op::Repeat { body, count } => {
            repeat_chain(&g.bodies[*body as usize], bucket, t).saturating_mul(u64::from(*count))
        }
        Op::MatMul { .. } | Op::BatchMatMul { .. } => t.ramp.value + t.finish.value + unpack(1),
        Op::GroupedMatMul { .. } => t.ramp.value + t.finish.value + 2 * t.round_trip.value + unpack(3),
        Op::TopK { k: 1 } => t.finish.value,
        Op::TopK { k } => k * t.pick.value,
        Op::GatherLast => t.finish.value / 8,
        Op::EmbedRows | Op::GatherRows | Op::PoolWindow { .. } | Op::CausalConv => t.round_trip.value,
        Op::DeltaRule { .. } => t.round_trip.value + rows * t.row_update.value,
        Op::IndexScores { .. } => t.round_trip.value + t.ramp.value,
        Op::IndexSelect { .. } => 8 * t.finish.value,
        Op::Attend { .. } => 2 * t.round_trip.value + 3 * t.finish.value,
        _ => 0,
    }
}

/// The chain of one round: its leaves are in registers.
fn repeat_chain(g: &Graph, bucket: &Bucket, t: &CostTable) -> u64 {
    let mut ready: Vec<u64> = Vec::with_capacity(g.nodes.len());
    for node in &g.nodes {
        let from = node.args.iter().map(|a| ready[a.index()]).max().unwrap_or(0);
        let own = if is_leaf(&node.op) { 0 } else { latency(g, node, bucket, t) };
        ready.push(from + own);
    }
    ready.into_iter().max().unwrap_or(0)
}
