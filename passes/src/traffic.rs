//! What a kernel moves and computes: bytes by memory, FLOPs, lane operations, and its longest dependent chain.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;
use unglue_ir::graph::{Graph, Node, ValueId};
use unglue_ir::op::{Binary, Op, Unary};
use unglue_ir::types::{Dim, Format, StateKind, TensorType, Type};

use crate::cost::CostTable;
use crate::schedule::{
    Bucket, Finish, Form, JOINED_TREE, LaneWork, Products, SPLITS_AT_ONCE, Schedule, Tiles, block_sum, is_leaf,
    is_view, lane_work, repeated as repeated_of_head, spread_over,
};

/// Bytes that a workgroup is taken to have in flight ([`CostTable::stream`]).
const STREAM_IN_FLIGHT: u64 = 16 * 1024;

/// Lane operations that make a bf16 of an int4 level: shifts, a conversion, and half of what packs two.
const UNPACK: u64 = 4;

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
    /// Activations read by all workgroups together, and the weights of what each of them forms first.
    pub reread_bytes: u64,
    /// Those of `reread_bytes` that a workgroup needs before its weights can stream.
    pub prologue_bytes: u64,
    /// Weights and state read again: by later passes over the rows, and by workgroups that share them.
    pub restream_bytes: u64,
    pub written_bytes: u64,
    /// Multiply-adds of heavy ops, twice, and one for each element of other ops.
    pub flops: u64,
    /// FLOPs on matrix tiles, of whole tiles whatever the bucket holds.
    pub tile_flops: u64,
    /// Lane operations, with those that every workgroup repeats.
    pub lane_ops: u64,
    /// Of what workgroups exchange: bytes that the last one copies at once, and bytes that it loads where it needs them.
    /// What it is given is loaded like what it copies.
    pub copied_bytes: u64,
    pub loaded_bytes: u64,
    /// Lane operations of the last workgroup alone. Where each row or head has one, these three are of a row, or of a head.
    pub finish_ops: u64,
}

impl Traffic {
    pub(crate) fn add(&mut self, other: &Traffic) {
        let Traffic {
            weight_bytes,
            state_bytes,
            read_bytes,
            reread_bytes,
            prologue_bytes,
            restream_bytes,
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
        self.prologue_bytes += prologue_bytes;
        self.restream_bytes += restream_bytes;
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
    let repeated = repeated(g, schedule);
    for id in g.ids() {
        let node = g.node(id);
        match &node.op {
            Op::Weight { .. } => {
                let bytes = used_bytes(g, id, &users, bucket);
                t.weight_bytes += bytes;
                if schedule.shares() > 1 && repeated.contains(&id) {
                    t.restream_bytes += bytes.saturating_mul(rereads - 1);
                }
                if users[id.index()].iter().any(|u| share_weight(&g.node(*u).op, schedule)) {
                    t.restream_bytes += bytes.saturating_mul(weight_passes(schedule, bucket) - 1);
                }
                if users[id.index()].iter().any(|u| in_prologue(schedule, *u)) {
                    t.reread_bytes += bytes.saturating_mul(rereads);
                    t.prologue_bytes += bytes.saturating_mul(rereads);
                }
            }
            Op::Input { .. } => {
                let bytes = used_bytes(g, id, &users, bucket);
                t.read_bytes += bytes;
                let readers = match &schedule.form {
                    _ if read_by_parts(g, schedule, id, &users) => 1,
                    Form::Tiles(t) => t.readers(g, id),
                    // What is needed of a workgroup's own columns alone is read once.
                    Form::Delta { .. } if !repeated.contains(&id) => 1,
                    _ => rereads / parts_read(g, schedule, id, &users, bucket),
                };
                t.reread_bytes += bytes.saturating_mul(readers);
                if users[id.index()].iter().any(|u| in_prologue(schedule, *u)) {
                    t.prologue_bytes += bytes.saturating_mul(rereads);
                }
            }
            _ => {
                let bytes = state_bytes(g, node, bucket);
                t.state_bytes += bytes;
                // The heads of a row attend to the same latent rows; those of one workgroup share the loads.
                if let (Form::Attend(_), Op::AttendSplits { .. }) = (&schedule.form, &node.op) {
                    t.restream_bytes += bytes.saturating_mul(rereads - 1);
                }
                // Each workgroup of a head convolves all of its channels.
                if schedule.shares() > 1 && node.op == Op::CausalConv {
                    t.restream_bytes += bytes.saturating_mul(rereads - 1);
                }
            }
        }
    }
    for (_, v) in &g.outputs {
        t.written_bytes += bytes_of(g.ty(*v), bucket);
    }
    count_work(g, schedule, bucket, &mut t);
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

/// What a last workgroup reads, and computes, of as many rows as it finishes: one of `finishers` that share them.
fn count_finish(g: &Graph, finish: &Finish, finishers: u64, bucket: &Bucket, t: &mut Traffic) {
    let users = g.users();
    let given = |id: &ValueId| matches!(g.node(*id).op, Op::Input { .. } | Op::Weight { .. });
    let own_users: Vec<Vec<ValueId>> =
        users.iter().map(|of| of.iter().copied().filter(|u| finish.nodes.contains(u)).collect()).collect();
    let read = |id: &ValueId| !own_users[id.index()].is_empty();
    t.copied_bytes = g.ids().filter(|id| given(id) && read(id)).map(|id| used_bytes(g, id, &own_users, bucket)).sum();
    for v in &finish.exchanged {
        let bytes = bytes_of(g.ty(*v), bucket);
        if finish.staged.iter().any(|s| s.node == *v) {
            t.copied_bytes += bytes;
        } else {
            t.loaded_bytes += bytes.saturating_mul(own_users[v.index()].len() as u64);
        }
    }
    t.finish_ops = finish.nodes.iter().map(|id| lane_ops(g, g.node(*id), bucket)).sum();
    [&mut t.copied_bytes, &mut t.loaded_bytes, &mut t.finish_ops].into_iter().for_each(|n| *n = n.div_ceil(finishers));
}

/// Readers whose rows share a weight: contractions, those of an expert on tiles only, and all that have workgroups for each
/// row, but those that pick rows of it.
fn share_weight(op: &Op, schedule: &Schedule) -> bool {
    match op {
        _ if matches!(schedule.form, Form::Row { .. } | Form::Blocks(_) | Form::Parts(_)) => {
            !matches!(op, Op::EmbedRows | Op::GatherRows)
        }
        Op::MatMul { .. } | Op::BatchMatMul { .. } => true,
        Op::GroupedMatMul { .. } => matches!(schedule.form, Form::Tiles(_)),
        _ => false,
    }
}

/// How often weights are read; in delta form the rows of a sequence are taken one after the other, in row form and over
/// blocks each row has workgroups of its own.
fn weight_passes(schedule: &Schedule, bucket: &Bucket) -> u64 {
    match schedule.form {
        Form::Delta { .. } | Form::Row { .. } | Form::Blocks(_) | Form::Parts(_) => u64::from(bucket.rows_max).max(1),
        _ => schedule.passes(bucket),
    }
}

/// True for an operand that no workgroup but the last reads, and for one of the epilogue that has the contraction's
/// outputs as an axis: a workgroup reads the elements of its own outputs.
fn read_by_parts(g: &Graph, schedule: &Schedule, id: ValueId, users: &[Vec<ValueId>]) -> bool {
    let Some(s) = schedule.skinny() else { return false };
    if s.finish.as_ref().is_some_and(|f| users[id.index()].iter().all(|u| f.nodes.contains(u))) {
        return true;
    }
    let before = |u: &ValueId| s.prologue.contains(u) || lane_work(g, *u).is_some();
    let is_output = |d: &Dim| d.fixed().is_some_and(|n| n > 1 && s.segments.iter().any(|x| x.n == n));
    let mut todo = vec![id];
    while let Some(at) = todo.pop() {
        if users[at.index()].iter().any(before) {
            return false;
        }
        todo.extend(users[at.index()].iter().copied().filter(|u| is_view(&g.node(*u).op)));
    }
    g.ty(id).tensor().is_some_and(|t| t.shape.iter().any(is_output))
}

/// Parts of a given operand of which a workgroup reads one: those of its head or choice, if nothing else reads it.
fn parts_read(g: &Graph, schedule: &Schedule, id: ValueId, users: &[Vec<ValueId>], bucket: &Bucket) -> u64 {
    let Form::Skinny(s) = &schedule.form else { return 1 };
    let (mut todo, mut parts) = (vec![id], 1);
    while let Some(at) = todo.pop() {
        for u in &users[at.index()] {
            let node = g.node(*u);
            if is_view(&node.op) {
                todo.push(*u);
                continue;
            }
            let operand = lane_work(g, *u).is_some() && node.args[0] == at;
            match spread_over(g, s.y, at, bucket) {
                Some(n) if operand => parts = n,
                _ => return 1,
            }
        }
    }
    parts
}

fn in_prologue(schedule: &Schedule, id: ValueId) -> bool {
    matches!(&schedule.form, Form::Skinny(s) if s.prologue.contains(&id))
}

/// Bytes of weights and of activations that a kernel reads, each leaf once.
pub(crate) fn leaf_bytes(g: &Graph, bucket: &Bucket) -> (u64, u64) {
    let users = g.users();
    let of = |leaf: fn(&Op) -> bool| -> u64 {
        g.ids().filter(|id| leaf(&g.node(*id).op)).map(|id| used_bytes(g, id, &users, bucket)).sum()
    };
    (of(|op| matches!(op, Op::Weight { .. })), of(|op| matches!(op, Op::Input { .. })))
}

/// Bytes of a leaf that are read: all, or what slices and row selections take of it.
pub(crate) fn used_bytes(g: &Graph, id: ValueId, users: &[Vec<ValueId>], bucket: &Bucket) -> u64 {
    let all = bytes_of(g.ty(id), bucket);
    let part = |u: &ValueId| {
        let node = g.node(*u);
        let rows = u64::from(bucket.rows_max);
        match &node.op {
            Op::Slice { .. } => bytes_of(&node.ty, bucket),
            Op::EmbedRows | Op::GatherLast if node.args[0] == id => bytes_of(&node.ty, bucket),
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
        (Op::AttendSplits { .. }, StateKind::Token { width }) => {
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

/// What several workgroups form anew: nodes whose results a contraction reads, by every workgroup of a skinny kernel; what all
/// columns of a head need, by the workgroups that share the head.
fn repeated(g: &Graph, schedule: &Schedule) -> BTreeSet<ValueId> {
    if let Form::Delta { node, heads, .. } = schedule.form {
        return repeated_of_head(g, node, heads, &schedule.staged);
    }
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

fn count_work(g: &Graph, schedule: &Schedule, bucket: &Bucket, t: &mut Traffic) {
    let rereads = schedule.rereads(bucket).max(1);
    let finish = schedule.finish();
    let repeated = repeated(g, schedule);
    let anew = |id: ValueId| if repeated.contains(&id) { rereads } else { 1 };
    let late = finish.map_or_else(BTreeSet::new, |f| late(g, f));
    if let Some(finish) = finish {
        let rows = schedule.rows_to_finish(bucket);
        let finished = Bucket { rows_max: rows as u32, ..*bucket };
        let finishers = schedule.finishers();
        count_finish(g, finish, finishers, &finished, t);
        t.flops += t.finish_ops.saturating_mul(finishers * u64::from(bucket.rows_max)) / rows.max(1);
        if let Form::Attend(a) = &schedule.form {
            // All loads of two columns a lane are in flight before the first is used: more at once than what a workgroup is
            // taken to pull counts as fewer bytes.
            let bytes = (t.copied_bytes + t.loaded_bytes).saturating_mul(STREAM_IN_FLIGHT);
            let in_flight = u64::from(a.waves()) * 32 * 4 * 2 * a.count.min(SPLITS_AT_ONCE);
            (t.copied_bytes, t.loaded_bytes) = (bytes / in_flight.max(STREAM_IN_FLIGHT), 0);
        }
    }
    for id in g.ids().filter(|id| !late.contains(id)) {
        let node = g.node(id);
        let flops = heavy_flops(g, node, bucket);
        t.flops += flops;
        match (lane_work(g, id), schedule.products) {
            (Some(_), Products::Tiles { rows }) => {
                let [taken, multiplied] = match &schedule.form {
                    Form::Tiles(t) => t.multiplied(bucket),
                    _ => [bucket.rows_max, bucket.rows_max.next_multiple_of(rows.max(1))].map(u64::from),
                };
                t.tile_flops += flops / taken.max(1) * multiplied;
                t.lane_ops += unpack_ops(g, node, schedule, bucket);
            }
            (Some(work), Products::Lanes) => {
                let ops = contraction_ops(g, id, &work, schedule, bucket);
                t.lane_ops += ops.saturating_mul(if schedule.shares() > 1 { anew(id) } else { 1 });
            }
            (None, _) => t.lane_ops += flops / 2,
        }
        let own = lane_ops(g, node, bucket);
        t.flops += own;
        t.lane_ops += own.saturating_mul(anew(id));
    }
}

/// Lane operations around tiles of int4 weights: each pass over the rows unpacks the levels, and each round's sums are
/// scaled.
fn unpack_ops(g: &Graph, node: &Node, schedule: &Schedule, bucket: &Bucket) -> u64 {
    let Form::Tiles(Tiles { group: Some(_), step, .. }) = &schedule.form else { return 0 };
    let users = g.users();
    // Two levels a byte, scales beside them.
    let weight = node.args.last().map_or(0, |w| used_bytes(g, *w, &users, bucket)).saturating_mul(2);
    let sums = elements_of(&node.ty, bucket).saturating_mul(contracted(g, node, bucket)) / u64::from((*step).max(1));
    weight.saturating_mul(schedule.passes(bucket)).saturating_mul(UNPACK).saturating_add(sums)
}

/// Lane operations of a contraction. Rows beyond the last of a pass are computed and not stored.
fn contraction_ops(g: &Graph, id: ValueId, work: &LaneWork, schedule: &Schedule, bucket: &Bucket) -> u64 {
    let node = g.node(id);
    let taken = u64::from(bucket.rows_max.max(1));
    let (rows, passes) = match &schedule.form {
        Form::Skinny(s) if !s.rows_on_grid => {
            (taken.next_multiple_of(u64::from(s.row_unroll.max(1))), schedule.passes(bucket))
        }
        _ => (taken, taken),
    };
    let outputs = elements_of(&node.ty, bucket) / taken;
    let weights = outputs.saturating_mul(contracted(g, node, bucket));
    let segment = schedule.skinny().and_then(|s| s.segments.iter().find(|x| x.anchors.contains(&id)));
    let trees = match segment.map_or(1, |s| s.split_k) {
        1 => work.per_output,
        waves => work.per_output * u64::from(waves) + JOINED_TREE,
    };
    let each = weights.saturating_mul(work.per_row).saturating_add(outputs.saturating_mul(trees));
    rows.saturating_mul(each).saturating_add(passes.saturating_mul(weights).saturating_mul(work.per_pass))
}

/// Extent of the first operand's last axis.
fn contracted(g: &Graph, node: &Node, bucket: &Bucket) -> u64 {
    last_axis(g, node, 0, bucket)
}

fn last_axis(g: &Graph, node: &Node, arg: usize, bucket: &Bucket) -> u64 {
    let shape = node.args.get(arg).and_then(|a| g.ty(*a).tensor()).map(|t| &t.shape);
    shape.and_then(|s| s.last()).map_or(1, |d| extent(*d, bucket))
}

fn heavy_flops(g: &Graph, node: &Node, bucket: &Bucket) -> u64 {
    let out = elements_of(&node.ty, bucket);
    let k = contracted(g, node, bucket);
    match &node.op {
        Op::MatMul { .. } | Op::BatchMatMul { .. } | Op::GroupedMatMul { .. } => 2 * out * k,
        Op::DeltaRule { .. } => 7 * out * k,
        Op::AttendSplits { .. } => {
            let q = node.args.first().map_or(1, |a| elements_of(g.ty(*a), bucket));
            4 * q * last_axis(g, node, 2, bucket)
        }
        Op::IndexScores { .. } => {
            let q = node.args.first().map_or(1, |a| elements_of(g.ty(*a), bucket));
            2 * q * bucket.pools
        }
        _ => 0,
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
        Op::AttendCombine => input + 12 * out,
        Op::TopK { k, limit, .. } => input.saturating_mul(*k + if limit.is_some() { 3 } else { 0 }),
        Op::CausalConv => out * 4,
        Op::IndexSelect { .. } => input.saturating_mul(40),
        Op::GatherLast | Op::EmbedRows | Op::GatherRows | Op::PoolWindow { .. } => out,
        Op::TokenWrite | Op::PoolWrite | Op::TailUpdate | Op::ConvUpdate => input,
        _ => 0,
    }
}

/// Time in ns that no single wave lives through: tiles over chosen experts list the rows of their expert first.
pub fn align(g: &Graph, schedule: &Schedule, table: &CostTable) -> u64 {
    let tiles = matches!(schedule.products, Products::Tiles { .. });
    let grouped = || g.nodes.iter().any(|n| matches!(n.op, Op::GroupedMatMul { .. }));
    if tiles && grouped() { table.align.value } else { 0 }
}

/// The longest chain of dependent steps of a launch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chain {
    /// All of it, in ns; a finish stage takes its rows one after the other.
    pub ns: u64,
    /// What every workgroup lives through: without the finish stage, which one of them has.
    pub wave_ns: u64,
}

pub fn chain(g: &Graph, schedule: &Schedule, bucket: &Bucket, table: &CostTable) -> Chain {
    let finish = schedule.finish();
    let late = finish.map_or_else(BTreeSet::new, |f| late(g, f));
    let mut ready: Vec<u64> = Vec::with_capacity(g.nodes.len());
    for id in g.ids() {
        let node = g.node(id);
        let from = node.args.iter().map(|a| ready[a.index()]).max().unwrap_or(0);
        let own = match block_sum(g, id) {
            Some(_) => block_chain(schedule, bucket, table),
            None => latency(g, node, bucket, table),
        };
        ready.push(if late.contains(&id) { 0 } else { from + own });
    }
    let wave_ns = ready.iter().copied().max().unwrap_or(0);
    let Some(finish) = finish else { return Chain { ns: wave_ns, wave_ns } };
    let handed = finish.exchanged.iter().map(|v| ready[v.index()]).max().unwrap_or(0);
    let handover = table.release.value + table.arrive.value + table.acquire.value;
    // The acquire has the first row's loads.
    let rows = schedule.rows_to_finish(bucket);
    let loads = table.round_trip.value.saturating_mul(rows.saturating_sub(1));
    let finished = handed + handover + loads + finish_chain(g, finish, bucket, table).saturating_mul(rows);
    Chain { ns: wave_ns.max(finished), wave_ns }
}

/// Sums over blocks: behind a contraction, the waves hand one another the elements, and load what belongs to them, for
/// the rows of one pass after the other.
fn block_chain(schedule: &Schedule, bucket: &Bucket, table: &CostTable) -> u64 {
    match &schedule.form {
        Form::Skinny(_) => (table.round_trip.value + table.finish.value).saturating_mul(schedule.passes(bucket)),
        _ => table.finish.value,
    }
}

/// The chain of one finished row behind its loads: what is given does not wait for what is exchanged.
fn finish_chain(g: &Graph, finish: &Finish, bucket: &Bucket, table: &CostTable) -> u64 {
    let mut ready = vec![0u64; g.nodes.len()];
    for id in &finish.nodes {
        let node = g.node(*id);
        let from = node.args.iter().map(|a| ready[a.index()]).max().unwrap_or(0);
        ready[id.index()] = from + latency(g, node, bucket, table);
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
        Op::TopK { k: 1, limit: None, .. } => t.finish.value,
        // Groups are scored, then ordered.
        Op::TopK { k, limit, .. } => k * t.pick.value + if limit.is_some() { 3 * t.finish.value } else { 0 },
        Op::GatherLast => t.finish.value / 8,
        Op::EmbedRows | Op::GatherRows | Op::PoolWindow { .. } | Op::CausalConv => t.round_trip.value,
        Op::DeltaRule { .. } => t.round_trip.value + rows * t.row_update.value,
        Op::IndexScores { .. } => t.round_trip.value + t.ramp.value,
        Op::IndexSelect { .. } => 8 * t.finish.value,
        // Row numbers, then rows; scores, then their maximum. Nothing waits for the sum.
        Op::AttendSplits { .. } => 2 * t.round_trip.value + 2 * t.finish.value,
        Op::AttendCombine => {
            let splits = arg(0).and_then(Type::tensor).and_then(|x| x.shape.get(2)).map_or(1, |d| extent(*d, bucket));
            3 * t.long_step.value + splits * t.step.value
        }
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
