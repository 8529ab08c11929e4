//! Finish stage of a skinny kernel: what needs whole rows of the contractions' results is formed by the workgroup that
//! arrives last, row by row, from what all of them stored.

use std::collections::{BTreeMap, BTreeSet};

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::types::DType;

use super::skinny::{Label, Segment, YAxis, ancestors, is_contraction};
use super::stage::{self, Scope, Staged};
use super::{Bucket, Obstacle, is_leaf, is_view, row, row_elements, strip_reshapes};

/// Refusal of a graph whose exchanged values have no buffer; [`exchanged_without_output`] names them.
pub const NEEDS_OUTPUT: &str = "finish-output";
/// Exchanged values up to this many elements a row are copied to workgroup memory first, all loads in flight at once:
/// 8 KiB and 16 registers in a workgroup of four waves.
const COPIED_ELEMENTS: u64 = 2048;

/// What the last workgroup to arrive does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Finish {
    /// Values `[rows, n]` of f32 or i32 that workgroups store for the last one, ascending; outputs of the graph.
    pub exchanged: Vec<ValueId>,
    /// Numbers of the segments that store them: their workgroups arrive.
    pub segments: Vec<usize>,
    /// Values kept while a row is finished, in order; exchanged values among them are copied.
    pub staged: Vec<Staged>,
    /// Numbers of the graph's outputs that it forms.
    pub outputs: Vec<usize>,
    /// Everything that it forms.
    pub nodes: BTreeSet<ValueId>,
}

/// What is known of a skinny kernel when its finish is planned.
#[derive(Clone, Copy)]
pub struct Parts<'a> {
    pub anchors: &'a [ValueId],
    pub labels: &'a BTreeMap<ValueId, Vec<Label>>,
    pub prologue: &'a BTreeSet<ValueId>,
    /// Values behind anchors that no epilogue forms.
    pub tail: &'a BTreeSet<ValueId>,
}

/// Plans the finish stage; none if there is nothing to finish.
///
/// # Errors
/// What the last workgroup cannot form, or cannot be handed.
pub fn plan(
    g: &Graph,
    parts: &Parts,
    (segments, y, rows_on_grid): (&[Segment], YAxis, bool),
    (kept_before, rows_before): (&[Staged], u64),
    bucket: &Bucket,
) -> Result<Option<Finish>, Obstacle> {
    if parts.tail.is_empty() {
        return Ok(None);
    }
    if rows_on_grid {
        return Err(Obstacle::new("finish-rows-on-grid", "workgroups have one row each: none of them arrives for all"));
    }
    if y != YAxis::None {
        return Err(Obstacle::new("finish-grid", "results are spread over heads or choices"));
    }
    check_ops(g, parts.tail)?;
    let exchanged = exchanged(g, parts);
    let found: BTreeSet<ValueId> = output_roots(g);
    for &v in &exchanged {
        exchangeable(g, v)?;
        if !found.contains(&v) {
            return Err(Obstacle::new(NEEDS_OUTPUT, format!("%{} is read by the finish and has no buffer", v.0)));
        }
    }
    let nodes = formed(g, parts, &exchanged)?;
    let staged = staged(g, &nodes, &exchanged, bucket)?;
    stage::check_budgets(&[(kept_before, rows_before), (&staged, 1)])?;
    let outputs = (0..g.outputs.len()).filter(|o| parts.tail.contains(&root(g, *o))).collect();
    let stores = |s: &Segment| s.outputs.iter().chain(&s.block_sums).any(|o| exchanged.contains(&root(g, *o)));
    let segments = (0..segments.len()).filter(|i| stores(&segments[*i])).collect();
    Ok(Some(Finish { exchanged: exchanged.into_iter().collect(), segments, staged, outputs, nodes }))
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
fn check_ops(g: &Graph, tail: &BTreeSet<ValueId>) -> Result<(), Obstacle> {
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

/// The value under views that an epilogue could form.
fn under_views(g: &Graph, labels: &BTreeMap<ValueId, Vec<Label>>, mut id: ValueId) -> ValueId {
    while is_view(&g.node(id).op) && g.node(id).args.first().is_some_and(|a| labels.contains_key(a)) {
        id = g.node(id).args[0];
    }
    id
}

/// Epilogue values that the tail reads. One that follows from others which are stored anyway is formed again instead.
fn exchanged(g: &Graph, parts: &Parts) -> BTreeSet<ValueId> {
    let outputs = output_roots(g);
    let read = |id: ValueId| {
        let args = g.node(id).args.iter().filter(|a| parts.labels.contains_key(a));
        args.map(|a| under_views(g, parts.labels, *a)).collect::<BTreeSet<_>>()
    };
    let mut set: BTreeSet<ValueId> = parts.tail.iter().flat_map(|id| read(*id)).collect();
    loop {
        let follows = |v: &ValueId| {
            let stored = |p: &ValueId| (outputs.contains(p) || set.contains(p)) && exchangeable(g, *p).is_ok();
            let early = |a: &ValueId| parts.prologue.contains(a);
            !outputs.contains(v)
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
fn formed(g: &Graph, parts: &Parts, exchanged: &BTreeSet<ValueId>) -> Result<BTreeSet<ValueId>, Obstacle> {
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
    bucket: &Bucket,
) -> Result<Vec<Staged>, Obstacle> {
    let mut wanted = row::wanted(g, nodes, bucket)?;
    wanted.extend(exchanged.iter().filter(|v| row_elements(g.ty(**v), bucket) <= COPIED_ELEMENTS));
    let mut all = nodes.clone();
    all.extend(exchanged.iter().filter(|v| wanted.contains(v)));
    stage::plan(g, &all, &Scope { bucket, heads: None, wanted: &wanted, stored: exchanged, rows: 1 })
}

/// True if a value is behind one of `contractions`.
pub fn is_behind(g: &Graph, id: ValueId, contractions: &[ValueId]) -> bool {
    let above = ancestors(g, g.node(id).args.iter().copied());
    contractions.iter().any(|c| above.contains(c))
}
