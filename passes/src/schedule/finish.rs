//! Finish stage: what needs whole rows of what workgroups form by parts is formed by the one that arrives last, from what
//! all of them stored. Workgroups of a skinny kernel have all rows, and the last one finishes one row after the other;
//! those of a kernel over blocks have a row each, and the last one of each row finishes it; those that share a head of the
//! delta rule ([`super::Spread`]) finish that head.

use std::collections::BTreeSet;

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::types::DType;

use super::skinny::{Segment, YAxis, ancestors, is_contraction};
use super::stage::{self, Scope, Staged};
use super::{Bucket, Obstacle, SKINNY_WAVES, is_leaf, is_view, row, row_elements, strip_reshapes};

/// Refusal of a graph whose exchanged values have no buffer; [`exchanged_without_output`] names them.
pub const NEEDS_OUTPUT: &str = "finish-output";
/// Exchanged values up to this many elements a row and wave are copied to workgroup memory first, all loads in flight at
/// once: 2 KiB and 16 registers for each wave.
const COPIED_A_WAVE: u64 = 512;

/// What the last workgroup to arrive does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Finish {
    /// Values `[rows, n]` of f32 or i32 that workgroups store for the last one, ascending; outputs of the graph. Of the delta
    /// rule also `[rows, heads, n]`.
    pub exchanged: Vec<ValueId>,
    /// Numbers of the skinny segments that store them: their workgroups arrive. Over blocks, all workgroups of a row do, and
    /// all of a head of the delta rule.
    pub segments: Vec<usize>,
    /// Values kept while a row is finished, in order; exchanged values among them are copied.
    pub staged: Vec<Staged>,
    /// Numbers of the graph's outputs that it forms.
    pub outputs: Vec<usize>,
    /// Everything that it forms.
    pub nodes: BTreeSet<ValueId>,
}

/// What is known of a kernel when its finish is planned.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub anchors: &'a [ValueId],
    /// Values that a workgroup forms for its own part of a row: those behind anchors, or those of its block.
    pub own: &'a BTreeSet<ValueId>,
    pub prologue: &'a BTreeSet<ValueId>,
    /// Values behind those that take whole rows.
    pub tail: &'a BTreeSet<ValueId>,
}

/// How a skinny kernel's workgroups lie in the grid.
#[derive(Clone, Copy)]
pub struct Layout<'a> {
    pub segments: &'a [Segment],
    pub y: YAxis,
    pub rows_on_grid: bool,
}

impl Layout<'_> {
    fn check(&self) -> Result<(), Obstacle> {
        if self.rows_on_grid {
            return Err(Obstacle::new(
                "finish-rows-on-grid",
                "workgroups have one row each: none of them arrives for all",
            ));
        }
        if self.y != YAxis::None {
            return Err(Obstacle::new("finish-grid", "results are spread over heads or choices"));
        }
        Ok(())
    }
}

/// Plans the finish stage of a skinny kernel; none if there is nothing to finish.
///
/// # Errors
/// What the last workgroup cannot form, or cannot be handed.
pub fn behind_contractions(
    g: &Graph,
    parts: &Parts,
    layout: &Layout,
    (kept_before, rows_before): (&[Staged], u64),
    bucket: &Bucket,
) -> Result<Option<Finish>, Obstacle> {
    if parts.tail.is_empty() {
        return Ok(None);
    }
    layout.check()?;
    let mut finish = plan(g, parts, SKINNY_WAVES, bucket)?;
    stage::check_budgets(&[(kept_before, rows_before), (&finish.staged, 1)])?;
    let stores = |s: &Segment| s.outputs.iter().chain(&s.block_sums).any(|o| finish.exchanged.contains(&root(g, *o)));
    finish.segments = (0..layout.segments.len()).filter(|i| stores(&layout.segments[*i])).collect();
    Ok(Some(finish))
}

/// Plans the finish stage of workgroups of `waves` waves.
///
/// # Errors
/// What the last workgroup cannot form, or cannot be handed.
pub fn plan(g: &Graph, parts: &Parts, waves: u32, bucket: &Bucket) -> Result<Finish, Obstacle> {
    check_ops(g, parts.tail)?;
    let exchanged = exchanged(g, parts);
    for &v in &exchanged {
        exchangeable(g, v)?;
        check_stored(g, v)?;
    }
    let nodes = formed(g, parts, &exchanged)?;
    let staged = staged(g, &nodes, &exchanged, COPIED_A_WAVE * u64::from(waves), bucket)?;
    let outputs = outputs_of(g, parts.tail);
    Ok(Finish { exchanged: exchanged.into_iter().collect(), segments: vec![], staged, outputs, nodes })
}

/// An exchanged value has a buffer.
pub(super) fn check_stored(g: &Graph, v: ValueId) -> Result<(), Obstacle> {
    match output_roots(g).contains(&v) {
        true => Ok(()),
        false => Err(Obstacle::new(NEEDS_OUTPUT, format!("%{} is read by the finish and has no buffer", v.0))),
    }
}

/// Numbers of the outputs that the last workgroup forms.
pub(super) fn outputs_of(g: &Graph, tail: &BTreeSet<ValueId>) -> Vec<usize> {
    (0..g.outputs.len()).filter(|o| tail.contains(&root(g, *o))).collect()
}

/// Values that a finish would be handed and that are no outputs of the graph yet.
pub fn exchanged_without_output(g: &Graph, parts: &Parts) -> Vec<ValueId> {
    let found = output_roots(g);
    exchanged(g, parts).into_iter().filter(|v| !found.contains(v)).collect()
}

fn root(g: &Graph, output: usize) -> ValueId {
    strip_reshapes(g, g.outputs[output].1)
}

fn output_roots(g: &Graph) -> BTreeSet<ValueId> {
    (0..g.outputs.len()).map(|o| root(g, o)).collect()
}

/// Ops that a row workgroup forms, but no state: other workgroups may still read it.
pub(super) fn check_ops(g: &Graph, tail: &BTreeSet<ValueId>) -> Result<(), Obstacle> {
    for &id in tail {
        let node = g.node(id);
        if is_contraction(&node.op) {
            return Err(Obstacle::new("chained-contractions", format!("%{} is behind another contraction", id.0)));
        }
        if g.ty(id).tensor().is_none() {
            return Err(Obstacle::new("skinny-state", format!("%{} writes state", id.0)));
        }
        let pointwise = matches!(node.op, Op::Cast(_) | Op::Unary(_) | Op::Binary(_) | Op::Concat { .. });
        let whole = matches!(node.op, Op::Reduce { .. } | Op::TopK { .. } | Op::GatherLast | Op::Repeat { .. });
        if !pointwise && !whole && !is_view(&node.op) {
            return Err(Obstacle::new("finish-glue", format!("%{} has a kernel of its own", id.0)));
        }
    }
    Ok(())
}

/// Whether workgroups can hand a value over: whole 32-bit elements, a row after the other.
fn exchangeable(g: &Graph, v: ValueId) -> Result<(), Obstacle> {
    let refuse = |found: String| Obstacle::new("finish-exchange", format!("%{} {found}", v.0));
    let Some(t) = g.ty(v).tensor() else { return Err(refuse("is no tensor".into())) };
    if !matches!(t.dtype(), Some(DType::F32 | DType::I32)) {
        return Err(refuse(format!("is {t}; workgroups hand over f32 or i32")));
    }
    let fixed: Vec<bool> = t.shape.iter().map(|d| d.fixed().is_some()).collect();
    // Sums over blocks have axes of their own behind the rows; one workgroup or another stores each of them.
    let blocks = super::block_sum(g, v).is_some() && fixed.iter().skip(1).all(|f| *f);
    if fixed != [false, true] && !blocks {
        return Err(refuse(format!("is {t}, needed rows of one axis")));
    }
    Ok(())
}

/// The value under views that a workgroup could form of its own part.
fn under_views(g: &Graph, own: &BTreeSet<ValueId>, mut id: ValueId) -> ValueId {
    while is_view(&g.node(id).op) && g.node(id).args.first().is_some_and(|a| own.contains(a)) {
        id = g.node(id).args[0];
    }
    id
}

/// The value under a chain of views.
fn strip_views(g: &Graph, mut id: ValueId) -> ValueId {
    while let (true, Some(of)) = (is_view(&g.node(id).op), g.node(id).args.first()) {
        id = *of;
    }
    id
}

/// Values of the workgroups' own parts that the tail reads. One that follows from others which are stored anyway, or from
/// what is given, is formed again instead.
pub(super) fn exchanged(g: &Graph, parts: &Parts) -> BTreeSet<ValueId> {
    let outputs = output_roots(g);
    let read = |id: ValueId| {
        let args = g.node(id).args.iter().filter(|a| parts.own.contains(a));
        args.map(|a| under_views(g, parts.own, *a)).collect::<BTreeSet<_>>()
    };
    let mut set: BTreeSet<ValueId> = parts.tail.iter().flat_map(|id| read(*id)).collect();
    loop {
        let follows = |v: &ValueId| {
            let stored = |p: &ValueId| (outputs.contains(p) || set.contains(p)) && exchangeable(g, *p).is_ok();
            let early = |a: &ValueId| parts.prologue.contains(a);
            let given = |p: &ValueId| is_leaf(&g.node(strip_views(g, *p)).op);
            (!outputs.contains(v) || g.node(*v).args.iter().all(given))
                && !parts.anchors.contains(v)
                && super::block_sum(g, *v).is_none()
                && !g.node(*v).args.iter().any(early)
                && read(*v).iter().all(stored)
        };
        let Some(v) = set.iter().rev().copied().find(follows) else { return set };
        set.remove(&v);
        set.extend(read(v));
    }
}

/// The tail and what it reads, down to leaves and exchanged values.
pub(super) fn formed(g: &Graph, parts: &Parts, exchanged: &BTreeSet<ValueId>) -> Result<BTreeSet<ValueId>, Obstacle> {
    let mut nodes = BTreeSet::new();
    let mut todo: Vec<ValueId> = parts.tail.iter().copied().collect();
    while let Some(id) = todo.pop() {
        if is_leaf(&g.node(id).op) || exchanged.contains(&id) || !nodes.insert(id) {
            continue;
        }
        if parts.prologue.contains(&id) {
            let found = format!("%{} is formed before the contractions and read behind them", id.0);
            return Err(Obstacle::new("finish-operands", found));
        }
        todo.extend(&g.node(id).args);
    }
    Ok(nodes)
}

fn staged(
    g: &Graph,
    nodes: &BTreeSet<ValueId>,
    exchanged: &BTreeSet<ValueId>,
    copied: u64,
    bucket: &Bucket,
) -> Result<Vec<Staged>, Obstacle> {
    let mut wanted = row::wanted(g, nodes, bucket)?;
    wanted.extend(exchanged.iter().filter(|v| row_elements(g.ty(**v), bucket) <= copied));
    let mut all = nodes.clone();
    all.extend(exchanged.iter().filter(|v| wanted.contains(v)));
    stage::plan(g, &all, &Scope { bucket, heads: None, wanted: &wanted, stored: exchanged, rows: 1 })
}

/// True if a value is behind one of `contractions`.
pub fn is_behind(g: &Graph, id: ValueId, contractions: &[ValueId]) -> bool {
    let above = ancestors(g, g.node(id).args.iter().copied());
    contractions.iter().any(|c| above.contains(c))
}
