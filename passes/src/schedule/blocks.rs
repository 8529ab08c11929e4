//! Sums over blocks: 32 neighbours of a value's last axis are added, an element a lane. They take no whole row, so that
//! whoever forms a block's elements can form its sums: the epilogue of a contraction ([`Segment`]), or workgroups of
//! their own, one a block ([`Blocks`]).
//!
//! [`Segment`]: super::Segment

use std::collections::{BTreeMap, BTreeSet};

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Op, ReduceKind};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim};

use super::finish::{self, Finish, Parts};
use super::skinny::Label;
use super::stage::{is_wide_max, is_wide_sum};
use super::{
    Bucket, Form, Obstacle, Products, ROW_WAVES, SKINNY_WAVES, Schedule, is_leaf, is_view, row, strip_reshapes,
};

/// Counters of arrivals that a session has: rows that can finish apart.
pub const FINISH_COUNTERS: u32 = 16;
/// Waves of a workgroup that may have to finish a row.
pub(super) const FINISH_WAVES: u32 = ROW_WAVES;
/// Elements of a block: one for each lane of a wave.
pub const BLOCK: u64 = 32;
/// Bytes of workgroup memory for the elements that a workgroup's waves hand one another.
const TILE_BUDGET: u64 = 8 * 1024;
/// Sums of one block: more would be a contraction of their own.
const SUMS_MAX: u64 = 64;

/// `x [R, lead.., n]`, seen as `[R, lead.., n / 32, 32]`, summed over the last axis in the order `lanes`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockSum {
    /// x.
    pub of: ValueId,
    /// Extents between the rows and the blocked axis.
    pub lead: Vec<u64>,
    /// Extent of the blocked axis.
    pub n: u64,
}

impl BlockSum {
    /// Sums of one block and row.
    pub fn of_block(&self) -> u64 {
        self.lead.iter().product()
    }

    pub fn blocks(&self) -> u64 {
        self.n / BLOCK
    }
}

/// The sum over blocks that `id` is.
pub fn block_sum(g: &Graph, id: ValueId) -> Option<BlockSum> {
    let node = g.node(id);
    let Op::Reduce { kind: ReduceKind::Sum, axis, order: Order::Lanes } = node.op else { return None };
    let split = *node.args.first()?;
    let Op::Reshape(shape) = &g.node(split).op else { return None };
    let of = *g.node(split).args.first()?;
    let (&last, front) = shape.split_last()?;
    let (blocks, front) = front.split_last()?;
    let from = &g.ty(of).tensor()?.shape;
    let (n, from) = from.split_last()?;
    let core = |s: &[Dim]| s.iter().copied().filter(|d| !d.is_one()).collect::<Vec<_>>();
    let whole = axis as usize + 1 == shape.len() && last == Dim::Fixed(BLOCK);
    let splits = n.fixed()? == blocks.fixed()?.checked_mul(BLOCK)? && core(from) == core(front);
    let lead = from.get(1..)?.iter().map(|d| d.fixed()).collect::<Option<Vec<u64>>>()?;
    let rows = from.first().is_some_and(|d| d.fixed().is_none());
    (whole && splits && rows).then_some(BlockSum { of, lead, n: n.fixed()? })
}

/// True for the view that splits the last axis into blocks, if nothing but sums over blocks reads it.
pub fn is_split(g: &Graph, id: ValueId, users: &[Vec<ValueId>]) -> bool {
    let readers = &users[id.index()];
    !readers.is_empty() && readers.iter().all(|u| block_sum(g, *u).is_some())
}

/// Labels of a sum over blocks of a contraction's outputs.
pub fn labels(g: &Graph, id: ValueId, known: &BTreeMap<ValueId, Vec<Label>>) -> Option<Vec<Label>> {
    let sum = block_sum(g, id)?;
    let (last, lead) = known.get(&sum.of)?.split_last()?;
    let from = g.ty(sum.of).tensor()?.shape.iter();
    let mut kept = from.zip(lead).filter(|(d, _)| !d.is_one()).map(|(_, l)| *l);
    let shape = &g.ty(id).tensor()?.shape;
    let front = shape.len().checked_sub(2)?;
    let front = shape[..front].iter().map(|d| if d.is_one() { Some(Label::One) } else { kept.next() });
    let mut out = front.collect::<Option<Vec<Label>>>()?;
    out.extend([Label::Block, Label::One]);
    (*last == Label::Out).then_some(out)
}

/// True for values of a segment whose elements are sums over blocks.
pub fn is_blocked(labels: &[Label]) -> bool {
    labels.contains(&Label::Block)
}

/// What a segment needs so that its workgroups can form sums over blocks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tiles {
    /// Values that go through workgroup memory: the sums read the elements of all waves.
    pub values: Vec<ValueId>,
    /// Outputs of a wave that give a workgroup whole blocks.
    pub outputs_per_wave: u32,
}

/// How a segment's n outputs are dealt to a workgroup's waves.
#[derive(Clone, Copy)]
pub struct Dealt {
    pub n: u64,
    pub outputs_per_wave: u32,
    pub waves: u32,
}

/// Plans the sums over blocks `roots` behind `anchors`; `stored` are the values that the epilogue stores anyway,
/// `rows` those that a wave takes at once.
///
/// # Errors
/// Sums that one workgroup does not have all elements of, or that take too much of its memory.
pub fn tiles(
    g: &Graph,
    labels: &BTreeMap<ValueId, Vec<Label>>,
    (anchors, stored): (&[ValueId], &BTreeSet<ValueId>),
    roots: &[ValueId],
    (Dealt { n, outputs_per_wave, waves }, rows): (Dealt, u64),
) -> Result<Tiles, Obstacle> {
    let waves = u64::from(waves);
    let mut per_wave = u64::from(outputs_per_wave).max(BLOCK / waves);
    while !n.is_multiple_of(per_wave * waves) && per_wave > BLOCK / waves {
        per_wave /= 2;
    }
    let (mut values, mut todo, mut seen) = (BTreeSet::new(), Vec::new(), BTreeSet::new());
    for &root in roots {
        let sum = block_sum(g, root).ok_or_else(|| Obstacle::new("block-output", format!("%{}", root.0)))?;
        if sum.n != n || sum.of_block() > SUMS_MAX {
            let found = format!("%{}: {} sums a block, {n} outputs of {}", root.0, sum.of_block(), sum.n);
            return Err(Obstacle::new("block-size", found));
        }
        todo.push(sum.of);
    }
    while let Some(id) = todo.pop() {
        if !labels.contains_key(&id) || !seen.insert(id) {
            continue;
        }
        if anchors.contains(&id) || stored.contains(&id) {
            values.insert(id);
        } else {
            todo.extend(&g.node(id).args);
        }
    }
    let mut bytes = 0u64;
    for &v in &values {
        let own = |l: &Label| matches!(l, Label::Row | Label::Out | Label::Small | Label::One);
        if labels[&v].last() != Some(&Label::Out) || !labels[&v].iter().all(own) {
            return Err(Obstacle::new("block-tile", format!("%{} is spread over heads or choices", v.0)));
        }
        let t = g.ty(v).tensor();
        let each = t.and_then(|t| t.dtype()).map_or(4, DType::bytes);
        let small = t.map_or(1, |t| t.shape.iter().rev().skip(1).filter_map(|d| d.fixed()).product::<u64>());
        bytes = bytes.saturating_add(small.saturating_mul(per_wave * waves * each * rows));
    }
    if bytes > TILE_BUDGET {
        return Err(Obstacle::new("block-tile", format!("blocks take {bytes} bytes of {TILE_BUDGET}")));
    }
    Ok(Tiles { values: values.into_iter().collect(), outputs_per_wave: per_wave as u32 })
}

/// Blocks form: one workgroup a block and row. It forms the block's elements of all outputs, and its sums.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Blocks {
    pub rows: Dim,
    /// Blocks of the last axis.
    pub blocks: u64,
    /// Numbers of the graph's outputs that are sums over blocks.
    pub sums: Vec<usize>,
    /// Numbers of the other outputs, which have the blocked axis last.
    pub columns: Vec<usize>,
    /// What a row's last workgroup to arrive does.
    pub finish: Option<Box<Finish>>,
}

impl Blocks {
    pub fn describe(&self) -> String {
        let finish = self.finish.as_ref().map_or(String::new(), |f| {
            format!(", the last workgroup of a row finishes {} values from {}", f.nodes.len(), f.exchanged.len())
        });
        format!("{} sums over {} blocks, a block a workgroup{finish}", self.sums.len(), self.blocks)
    }
}

/// Schedules a kernel whose only wide sums are over blocks, or behind those.
///
/// # Errors
/// Ops that need more than a block, and outputs without the blocked axis.
pub fn schedule(g: &Graph, bucket: &Bucket) -> Result<Schedule, Obstacle> {
    let rows = row::row_symbol(g)?;
    let sums: Vec<(ValueId, BlockSum)> = g.ids().filter_map(|id| Some((id, block_sum(g, id)?))).collect();
    let Some(n) = sums.first().map(|(_, s)| s.n) else {
        return Err(Obstacle::new("no-blocks", "no sum is over blocks"));
    };
    if let Some((id, s)) = sums.iter().find(|(_, s)| s.n != n || s.of_block() > SUMS_MAX) {
        let found = format!("%{}: {} sums a block, {n} elements of {}", id.0, s.of_block(), s.n);
        return Err(Obstacle::new("block-size", found));
    }
    let parted = parted(g)?;
    let (mut of_sums, mut columns) = (vec![], vec![]);
    for (number, (name, v)) in g.outputs.iter().enumerate() {
        let v = strip_reshapes(g, *v);
        let last = g.ty(v).tensor().and_then(|t| t.shape.last().copied());
        match last {
            _ if parted.tail.contains(&v) => {}
            _ if block_sum(g, v).is_some() => of_sums.push(number),
            Some(Dim::Fixed(last)) if last == n && !is_leaf(&g.node(v).op) => columns.push(number),
            _ => return Err(Obstacle::new("block-output", format!("`{name}` does not have the blocked axis last"))),
        }
    }
    let finish = if parted.tail.is_empty() { None } else { Some(Box::new(finish(g, &parted, bucket)?)) };
    let waves = if finish.is_some() { FINISH_WAVES } else { SKINNY_WAVES };
    let form = Form::Blocks(Blocks { rows, blocks: n / BLOCK, sums: of_sums, columns, finish });
    Ok(Schedule { form, waves, staged: vec![], products: Products::Lanes })
}

fn finish(g: &Graph, parted: &Parted, bucket: &Bucket) -> Result<Finish, Obstacle> {
    check_counters(bucket)?;
    finish::plan(g, &parted.parts(), FINISH_WAVES, bucket)
}

/// Each row that finishes apart has a counter.
pub(super) fn check_counters(bucket: &Bucket) -> Result<(), Obstacle> {
    if bucket.rows_max > FINISH_COUNTERS {
        let found = format!("{} rows finish apart, each with a counter of {FINISH_COUNTERS}", bucket.rows_max);
        return Err(Obstacle::new("finish-counters", found));
    }
    Ok(())
}

/// Values that the finish stage of a kernel over blocks would be handed and that have no buffer yet.
///
/// # Errors
/// As [`schedule`].
pub fn exchanged_without_output(g: &Graph) -> Result<Vec<ValueId>, Obstacle> {
    Ok(finish::exchanged_without_output(g, &parted(g)?.parts()))
}

/// Who forms a kernel's values: each workgroup those of its block, or the last one of a row.
struct Parted {
    own: BTreeSet<ValueId>,
    tail: BTreeSet<ValueId>,
    /// Nothing: no contraction has operands that are formed first.
    prologue: BTreeSet<ValueId>,
}

impl Parted {
    fn parts(&self) -> Parts<'_> {
        Parts { anchors: &[], own: &self.own, prologue: &self.prologue, tail: &self.tail }
    }
}

/// Blocks keep nothing: each op is formed where a block needs it. What is behind their sums is left to the last workgroup.
fn parted(g: &Graph) -> Result<Parted, Obstacle> {
    let users = g.users();
    let mut parted = Parted { own: BTreeSet::new(), tail: BTreeSet::new(), prologue: BTreeSet::new() };
    for id in g.ids() {
        let node = g.node(id);
        let op = &node.op;
        if is_leaf(op) {
            continue;
        }
        // A reshape that nothing reads only renames an output.
        let renames = matches!(op, Op::Reshape(_)) && users[id.index()].is_empty();
        let behind = |a: &ValueId| parted.tail.contains(a) || block_sum(g, *a).is_some();
        if !renames && node.args.iter().any(behind) {
            parted.tail.insert(id);
            continue;
        }
        let whole = (is_wide_sum(op) && block_sum(g, id).is_none()) || is_wide_max(g, id);
        let glue = matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Cast(_) | Op::Reduce { .. } | Op::EmbedRows);
        if whole || !(glue || is_view(op)) || g.ty(id).tensor().is_none() {
            return Err(Obstacle::new("block-glue", format!("%{} needs more than a block", id.0)));
        }
        parted.own.insert(id);
    }
    Ok(parted)
}
