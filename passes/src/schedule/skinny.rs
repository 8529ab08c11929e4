//! Skinny form: matmuls over few rows. Outputs are spread over the grid, each wave owns some of them for all rows.
//!
//! Contractions whose results meet in one output are *zipped*: one wave forms the same output number of each and then
//! their common epilogue. Contractions with separate outputs are *segments* that follow one another along the grid. What
//! needs whole rows of their results is left to a finish stage ([`Finish`]).

use std::collections::{BTreeMap, BTreeSet};

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::types::Dim;

use super::blocks::{self, is_blocked};
use super::finish::{self, Finish, Layout, Parts};
use super::split_k::{self, is_transposed, weight_is_int4};
use super::stage::{self, Scope, is_wide_max, is_wide_sum};
use super::{
    Bucket, Fit, Form, GridAxis, Obstacle, Products, ROWS_A_PASS, SKINNY_WAVES, Schedule, is_leaf, row, strip_reshapes,
};

/// Elements of small axes that an epilogue may unroll.
const UNROLL_MAX: u64 = 64;

/// What grid axis 1 counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum YAxis {
    None,
    Heads(u64),
    Choices(u64),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    pub anchors: Vec<ValueId>,
    /// Numbers of the graph's outputs that the epilogue forms.
    pub outputs: Vec<usize>,
    /// Output elements along the contraction's own axis.
    pub n: u64,
    /// Outputs of a wave, or of each set of `split_k` waves.
    pub outputs_per_wave: u32,
    /// Outputs whose weight rows a wave streams at the same time; divides `outputs_per_wave`.
    pub outputs_at_once: u32,
    /// Waves of a workgroup that share the sums of their outputs ([`super::Split`]): 1, or another power of two.
    pub split_k: u32,
    /// Choices that a wave forms one after the other, when the epilogue sums over them.
    pub inner_choices: Option<u64>,
    /// Numbers of the graph's outputs that are sums over blocks of the epilogue's values; a workgroup has whole blocks.
    pub block_sums: Vec<usize>,
    /// Values that these sums read from workgroup memory.
    pub tiles: Vec<ValueId>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Skinny {
    pub segments: Vec<Segment>,
    /// Outputs formed before the contractions; workgroup 0 writes them.
    pub side_outputs: Vec<usize>,
    pub y: YAxis,
    /// One row a workgroup (grouped contractions), else every workgroup takes all rows.
    pub rows_on_grid: bool,
    /// Rows whose sums a wave forms at once.
    pub row_unroll: u32,
    /// Rows whose operands are kept in workgroup memory at a time; 0 if none are.
    pub rows_kept: u64,
    /// For each value behind an anchor: what each of its axes counts.
    pub labels: BTreeMap<ValueId, Vec<Label>>,
    /// Values formed before the contractions (operands that are not given).
    pub prologue: BTreeSet<ValueId>,
    /// What the last workgroup to arrive does.
    pub finish: Option<Box<Finish>>,
}

/// What an axis of an epilogue value counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Label {
    Row,
    /// The contraction's outputs.
    Out,
    Head,
    Choice,
    /// Blocks of the contraction's outputs, summed.
    Block,
    /// A small axis that the epilogue brings in.
    Small,
    One,
}

pub fn is_contraction(op: &Op) -> bool {
    matches!(op, Op::MatMul { .. } | Op::BatchMatMul { .. } | Op::GroupedMatMul { .. })
}

pub fn ancestors(g: &Graph, roots: impl IntoIterator<Item = ValueId>) -> BTreeSet<ValueId> {
    let mut seen = BTreeSet::new();
    let mut todo: Vec<ValueId> = roots.into_iter().collect();
    while let Some(id) = todo.pop() {
        if seen.insert(id) {
            todo.extend(&g.node(id).args);
        }
    }
    seen
}

pub fn schedule(g: &Graph, bucket: &Bucket) -> Result<Schedule, Obstacle> {
    row::row_symbol(g)?;
    let (anchors, prologue) = anchors(g)?;
    let (labels, tail) = labels(g, &anchors)?;
    check_nodes(g, &anchors, &labels, &prologue, &tail)?;
    let rows_on_grid = anchors.iter().any(|a| matches!(g.node(*a).op, Op::GroupedMatMul { .. }));
    let row_unroll = if rows_on_grid { 1 } else { rows_a_pass(g, &anchors, bucket) };
    let spread = Spread { row_unroll, fit: bucket.fit };
    let (mut segments, side_outputs) = segments(g, &anchors, &labels, (&prologue, &tail), &spread)?;
    let y = y_axis(g, &segments)?;
    let rows_here = if rows_on_grid { 1 } else { u64::from(bucket.rows_max) };
    let own: BTreeSet<ValueId> = labels.keys().copied().collect();
    let parts = Parts { anchors: &anchors, own: &own, prologue: &prologue, tail: &tail };
    let staged = stage_prologue(g, &parts, rows_here, bucket)?;
    let layout = Layout { segments: &segments, y, rows_on_grid };
    let finish = finish::behind_contractions(g, &parts, &layout, (&staged, rows_here), bucket)?.map(Box::new);
    let share = !staged.is_empty() || segments.iter().any(|s| !s.block_sums.is_empty());
    let waves = if share {
        bucket.fit.sharing_waves
    } else if split_k::shorten(g, &mut segments, y, (row_unroll, bucket)) {
        split_k::waves(g, &segments, finish.is_some(), row_unroll, bucket)
    } else {
        SKINNY_WAVES
    };
    let rows_kept = if staged.is_empty() && side_outputs.is_empty() { 0 } else { rows_here };
    let form = Skinny { segments, side_outputs, y, rows_on_grid, row_unroll, rows_kept, labels, prologue, finish };
    Ok(Schedule { form: Form::Skinny(form), waves, staged, products: Products::Lanes })
}

/// How outputs are dealt to waves.
struct Spread {
    /// Rows that a wave takes at the same time.
    row_unroll: u32,
    fit: &'static Fit,
}

/// Rows whose sums a wave forms in one pass over its weights.
fn rows_a_pass(g: &Graph, anchors: &[ValueId], bucket: &Bucket) -> u32 {
    let transposed = anchors.iter().any(|a| matches!(g.node(*a).op, Op::BatchMatMul { transposed: true, .. }));
    let most = if transposed { ROWS_A_PASS[0] } else { ROWS_A_PASS[1] };
    if bucket.rows_max == 1 { 1 } else { bucket.rows_max.next_power_of_two().clamp(ROWS_A_PASS[0], most) }
}

/// Outputs that a wave forms at the same time, all in each of the contractions that meet. With several rows in flight, chains
/// of several outputs spill on gfx1201 (4 rows, 2 outputs of 8,192 inputs: 10 VGPRs with LLVM 22).
fn at_once(g: &Graph, s: &Segment, spread: &Spread) -> u32 {
    if spread.row_unroll > 1 || is_transposed(g, s) || !s.anchors.iter().all(|a| is_contraction(&g.node(*a).op)) {
        return 1;
    }
    let Fit { outputs_at_once, packed_at_once, .. } = *spread.fit;
    let most = |a: &ValueId| if weight_is_int4(g, *a) { packed_at_once } else { outputs_at_once };
    s.anchors.iter().map(most).fold(s.outputs_per_wave, u32::min)
}

/// As [`super::exchanged_without_output`], of a kernel with contractions.
///
/// # Errors
/// As [`schedule`].
pub fn exchanged_without_output(g: &Graph) -> Result<Vec<ValueId>, Obstacle> {
    let (anchors, prologue) = anchors(g)?;
    let (labels, tail) = labels(g, &anchors)?;
    let own: BTreeSet<ValueId> = labels.keys().copied().collect();
    let parts = Parts { anchors: &anchors, own: &own, prologue: &prologue, tail: &tail };
    Ok(finish::exchanged_without_output(g, &parts))
}

/// Contractions and the sums beside them, ascending, and what is formed before them.
fn anchors(g: &Graph) -> Result<(Vec<ValueId>, BTreeSet<ValueId>), Obstacle> {
    let contractions: Vec<ValueId> = g.ids().filter(|id| is_contraction(&g.node(*id).op)).collect();
    let prologue = prologue(g, &contractions)?;
    let beside = |id: &ValueId| {
        is_wide_sum(&g.node(*id).op) && !prologue.contains(id) && !finish::is_behind(g, *id, &contractions)
    };
    let mut anchors: Vec<ValueId> = g.ids().filter(beside).collect();
    anchors.extend(contractions);
    anchors.sort();
    Ok((anchors, prologue))
}

/// Values that must exist before a contraction starts: its activation operand, unless it is given.
fn prologue(g: &Graph, contractions: &[ValueId]) -> Result<BTreeSet<ValueId>, Obstacle> {
    let mut operands = Vec::new();
    for &c in contractions {
        let args = &g.node(c).args;
        let x = strip_reshapes(g, args[0]);
        if !is_leaf(&g.node(x).op) {
            let flat = matches!(g.node(c).op, Op::MatMul { .. } | Op::GroupedMatMul { .. });
            if !flat || g.ty(args[0]).tensor().is_none_or(|t| t.rank() != 2) {
                return Err(Obstacle::new("prologue-shape", format!("%{}: only [R, K] operands are staged", c.0)));
            }
            operands.push(x);
        }
        if args[1..].iter().any(|a| !is_leaf(&g.node(strip_reshapes(g, *a)).op)) {
            return Err(Obstacle::new("contraction-operands", format!("%{}: weights and ids are given", c.0)));
        }
    }
    // Outputs that no contraction leads to are formed beside the operands, if there are any.
    if !operands.is_empty() {
        let apart = |v: &ValueId| ancestors(g, [*v]).iter().all(|id| !contractions.contains(id));
        operands.extend(
            g.outputs.iter().map(|(_, v)| strip_reshapes(g, *v)).filter(|v| g.ty(*v).tensor().is_some() && apart(v)),
        );
    }
    let all = ancestors(g, operands);
    if let Some(c) = contractions.iter().find(|c| all.contains(c)) {
        return Err(Obstacle::new("chained-contractions", format!("%{} feeds another contraction", c.0)));
    }
    Ok(all.into_iter().filter(|id| !is_leaf(&g.node(*id).op)).collect())
}

/// Labels of the values behind the anchors.
type Labels = BTreeMap<ValueId, Vec<Label>>;

/// Follows the anchors' axes through the epilogue; beside the labels, the values behind it that no epilogue forms.
fn labels(g: &Graph, anchors: &[ValueId]) -> Result<(Labels, BTreeSet<ValueId>), Obstacle> {
    let users = g.users();
    let (mut labels, mut tail) = (Labels::new(), BTreeSet::new());
    for id in g.ids() {
        let node = g.node(id);
        if anchors.contains(&id) {
            labels.insert(id, anchor_labels(g, id)?);
            continue;
        }
        // A reshape that nothing reads only renames an output.
        if matches!(node.op, Op::Reshape(_)) && users[id.index()].is_empty() || blocks::is_split(g, id, &users) {
            continue;
        }
        if let Some(l) = blocks::labels(g, id, &labels) {
            labels.insert(id, l);
            continue;
        }
        let known: Vec<(&ValueId, Vec<Label>)> =
            node.args.iter().filter_map(|a| labels.get(a).map(|l| (a, l.clone()))).collect();
        let late = node.args.iter().any(|a| tail.contains(a))
            || known.iter().any(|(_, l)| is_blocked(l))
            || !known.is_empty() && is_wide_sum(&node.op);
        match epilogue_labels(g, id, &known) {
            Some(l) if !late => {
                labels.insert(id, l);
            }
            _ if late || !known.is_empty() => {
                tail.insert(id);
            }
            _ => {}
        }
    }
    Ok((labels, tail))
}

fn anchor_labels(g: &Graph, id: ValueId) -> Result<Vec<Label>, Obstacle> {
    let rank = g.ty(id).tensor().map_or(0, |t| t.rank());
    match (&g.node(id).op, rank) {
        (Op::MatMul { .. }, 2) | (Op::Reduce { .. }, 2) => Ok(vec![Label::Row, Label::Out]),
        (Op::BatchMatMul { .. }, _) => Ok(vec![Label::Row, Label::Head, Label::Out]),
        (Op::GroupedMatMul { .. }, _) => Ok(vec![Label::Row, Label::Choice, Label::Out]),
        _ => Err(Obstacle::new("anchor-rank", format!("%{} has rank {rank}, needed 2", id.0))),
    }
}

/// Labels of a value that an epilogue can form from labelled ones: pointwise on one wave's outputs.
fn epilogue_labels(g: &Graph, id: ValueId, known: &[(&ValueId, Vec<Label>)]) -> Option<Vec<Label>> {
    let node = g.node(id);
    let shape = |v: ValueId| g.ty(v).tensor().map(|t| t.shape.clone()).unwrap_or_default();
    let out = shape(id);
    let (from, first) = known.first().map(|(v, l)| (shape(**v), l))?;
    match &node.op {
        Op::Unary(_) | Op::Cast(_) => Some(first.clone()),
        Op::Binary(_) => {
            let mut merged = vec![Label::One; out.len()];
            for (i, slot) in merged.iter_mut().enumerate() {
                let here: BTreeSet<Label> = known.iter().map(|(_, l)| l[i]).filter(|l| *l != Label::One).collect();
                *slot = match here.len() {
                    0 if out[i].is_one() => Label::One,
                    0 => Label::Small,
                    1 => here.into_iter().next()?,
                    // The operands disagree about the axis.
                    _ => return None,
                };
            }
            Some(merged)
        }
        Op::Reshape(_) => {
            let core = |s: &[Dim]| s.iter().copied().filter(|d| !d.is_one()).collect::<Vec<_>>();
            if core(&from) != core(&out) {
                return None;
            }
            let mut kept = from.iter().zip(first).filter(|(d, _)| !d.is_one()).map(|(_, l)| *l);
            Some(out.iter().map(|d| if d.is_one() { Label::One } else { kept.next().unwrap_or(Label::One) }).collect())
        }
        Op::Broadcast(_) => {
            let grow = |(l, d): (&Label, &Dim)| if *l == Label::One && !d.is_one() { Label::Small } else { *l };
            Some(first.iter().zip(&out).map(grow).collect())
        }
        Op::Reduce { axis, .. } => {
            let a = *axis as usize;
            // A reduction over the outputs takes all workgroups.
            let own = matches!(first[a], Label::Small | Label::Choice | Label::One);
            own.then(|| {
                let mut l = first.clone();
                l[a] = Label::One;
                l
            })
        }
        _ => None,
    }
}

/// Ops outside prologue and epilogue cone, and values that only one row can keep.
fn check_nodes(
    g: &Graph,
    anchors: &[ValueId],
    labels: &BTreeMap<ValueId, Vec<Label>>,
    prologue: &BTreeSet<ValueId>,
    tail: &BTreeSet<ValueId>,
) -> Result<(), Obstacle> {
    for id in g.ids() {
        let node = g.node(id);
        let inside = is_leaf(&node.op) || anchors.contains(&id) || tail.contains(&id);
        if inside {
            continue;
        }
        if g.ty(id).tensor().is_none() {
            return Err(Obstacle::new("skinny-state", format!("%{} writes state", id.0)));
        }
        let collective = matches!(node.op, Op::TopK { .. } | Op::Repeat { .. }) || is_wide_max(g, id);
        if collective && !prologue.contains(&id) {
            return Err(Obstacle::new("epilogue-collective", format!("%{} needs a whole row", id.0)));
        }
        if labels.contains_key(&id) && prologue.contains(&id) {
            return Err(Obstacle::new("chained-contractions", format!("%{} is before and behind a contraction", id.0)));
        }
        let early = node.op == Op::EmbedRows && prologue.contains(&id);
        if matches!(node.op, Op::CausalConv | Op::PoolWindow { .. } | Op::EmbedRows) && !early {
            return Err(Obstacle::new("skinny-glue", format!("%{} has a kernel of its own", id.0)));
        }
    }
    for &a in anchors.iter().filter(|a| is_wide_sum(&g.node(**a).op)) {
        let above = ancestors(g, g.node(a).args.iter().copied());
        if above.iter().any(|id| is_wide_sum(&g.node(*id).op) || labels.contains_key(id)) {
            return Err(Obstacle::new("row-sum", format!("%{} depends on another sum of the kernel", a.0)));
        }
    }
    Ok(())
}

/// Groups outputs by the anchors that they meet.
fn segments(
    g: &Graph,
    anchors: &[ValueId],
    labels: &BTreeMap<ValueId, Vec<Label>>,
    (prologue, tail): (&BTreeSet<ValueId>, &BTreeSet<ValueId>),
    spread: &Spread,
) -> Result<(Vec<Segment>, Vec<usize>), Obstacle> {
    let mut group: BTreeMap<ValueId, ValueId> = anchors.iter().map(|a| (*a, *a)).collect();
    let mut of_output: Vec<Option<ValueId>> = Vec::new();
    let mut side = Vec::new();
    for (number, (name, v)) in g.outputs.iter().enumerate() {
        let v = strip_reshapes(g, *v);
        if tail.contains(&v) {
            of_output.push(None);
            continue;
        }
        let met: Vec<ValueId> = ancestors(g, [v]).into_iter().filter(|id| anchors.contains(id)).collect();
        let Some(&first) = met.first() else {
            if !prologue.contains(&v) {
                return Err(Obstacle::new("side-output", format!("`{name}` belongs to no contraction of the kernel")));
            }
            of_output.push(None);
            side.push(number);
            continue;
        };
        let to = group[&first];
        let merged: BTreeSet<ValueId> = met.iter().map(|m| group[m]).collect();
        for root in group.values_mut().filter(|r| merged.contains(r)) {
            *root = to;
        }
        of_output.push(Some(first));
    }
    let roots: BTreeSet<ValueId> = group.values().copied().collect();
    let mut list = Vec::new();
    for root in roots {
        let members: Vec<ValueId> = anchors.iter().copied().filter(|a| group[a] == root).collect();
        let outputs: Vec<usize> =
            (0..of_output.len()).filter(|i| of_output[*i].is_some_and(|a| group[&a] == root)).collect();
        list.push(segment(g, members, outputs, labels, spread)?);
    }
    Ok((list, side))
}

fn out_extent(g: &Graph, a: ValueId) -> u64 {
    g.ty(a).tensor().and_then(|t| t.shape.last().copied()).and_then(Dim::fixed).unwrap_or(0)
}

fn choices(g: &Graph, a: ValueId) -> Option<u64> {
    match g.node(a).op {
        Op::GroupedMatMul { .. } => g.ty(a).tensor().and_then(|t| t.shape[1].fixed()),
        _ => None,
    }
}

fn segment(
    g: &Graph,
    anchors: Vec<ValueId>,
    outputs: Vec<usize>,
    labels: &BTreeMap<ValueId, Vec<Label>>,
    spread: &Spread,
) -> Result<Segment, Obstacle> {
    let n = out_extent(g, anchors[0]);
    if anchors.iter().any(|a| out_extent(g, *a) != n) {
        return Err(Obstacle::new("zip-extent", "contractions that meet have different output counts"));
    }
    if anchors.len() > 1 && anchors.iter().any(|a| is_wide_sum(&g.node(*a).op)) {
        return Err(Obstacle::new("zip-sum", "a row sum meets a contraction"));
    }
    for &o in &outputs {
        let v = strip_reshapes(g, g.outputs[o].1);
        let small: u64 = labels[&v]
            .iter()
            .zip(g.ty(v).tensor().map(|t| t.shape.clone()).unwrap_or_default())
            .filter(|(l, _)| **l == Label::Small)
            .map(|(_, d)| d.fixed().unwrap_or(u64::MAX))
            .fold(1, u64::saturating_mul);
        if small > UNROLL_MAX {
            return Err(Obstacle::new("epilogue-size", format!("{small} elements for each contraction output")));
        }
    }
    let cone = ancestors(g, outputs.iter().map(|o| g.outputs[*o].1));
    let sums_choices = cone.iter().any(|id| match g.node(*id).op {
        Op::Reduce { axis, .. } => labels.get(&g.node(*id).args[0]).is_some_and(|l| l[axis as usize] == Label::Choice),
        _ => false,
    });
    let k = anchors.iter().find_map(|a| choices(g, *a));
    let mixed = k.is_some() && anchors.iter().any(|a| choices(g, *a).is_none());
    let inner_choices = if sums_choices || mixed { k } else { None };
    if inner_choices.is_some_and(|k| k > 32) {
        return Err(Obstacle::new("choices", "more than 32 choices in one wave"));
    }
    let (block_sums, outputs): (Vec<usize>, Vec<usize>) =
        outputs.into_iter().partition(|o| is_blocked(&labels[&strip_reshapes(g, g.outputs[*o].1)]));
    let (outputs_per_wave, outputs_at_once, split_k) = (0, 1, 1);
    let mut s = Segment {
        anchors,
        outputs,
        n,
        outputs_per_wave,
        outputs_at_once,
        split_k,
        inner_choices,
        block_sums,
        tiles: vec![],
    };
    s.outputs_per_wave = self::outputs_per_wave(g, &s, spread);
    if !s.block_sums.is_empty() {
        let roots = |outputs: &[usize]| outputs.iter().map(|o| strip_reshapes(g, g.outputs[*o].1)).collect::<Vec<_>>();
        let stored = roots(&s.outputs).into_iter().collect();
        let around = (s.anchors.as_slice(), &stored);
        let own = blocks::Dealt { n, outputs_per_wave: s.outputs_per_wave, waves: spread.fit.sharing_waves };
        let tiles = blocks::tiles(g, labels, around, &roots(&s.block_sums), (own, u64::from(spread.row_unroll)))?;
        (s.tiles, s.outputs_per_wave) = (tiles.values, tiles.outputs_per_wave);
    }
    s.outputs_at_once = at_once(g, &s, spread);
    Ok(s)
}

fn outputs_per_wave(g: &Graph, s: &Segment, spread: &Spread) -> u32 {
    let parallel = s.n * s.anchors.iter().filter_map(|a| heads(g, *a)).max().unwrap_or(1);
    if is_transposed(g, s) { 32 } else { (parallel / spread.fit.waves_wanted).next_power_of_two().clamp(1, 32) as u32 }
}

fn heads(g: &Graph, a: ValueId) -> Option<u64> {
    match g.node(a).op {
        Op::BatchMatMul { .. } => g.ty(a).tensor().and_then(|t| t.shape[1].fixed()),
        _ => None,
    }
}

fn y_axis(g: &Graph, segments: &[Segment]) -> Result<YAxis, Obstacle> {
    let of = |s: &Segment, a: ValueId| match (heads(g, a), choices(g, a)) {
        (Some(h), _) => YAxis::Heads(h),
        (_, Some(k)) if s.inner_choices.is_none() => YAxis::Choices(k),
        _ => YAxis::None,
    };
    let mut all = segments.iter().flat_map(|s| s.anchors.iter().map(move |a| of(s, *a)));
    let Some(first) = all.next() else { return Err(Obstacle::new("no-segment", "no contraction has an output")) };
    if all.any(|y| y != first) {
        return Err(Obstacle::new("segment-axes", "contractions over different heads or choices"));
    }
    if first != YAxis::None && segments.iter().any(|s| !s.block_sums.is_empty()) {
        return Err(Obstacle::new("block-grid", "results are spread over heads or choices"));
    }
    Ok(first)
}

/// Keeps the operands in workgroup memory. Values that an epilogue needs from the prologue survive only for one row.
fn stage_prologue(g: &Graph, parts: &Parts, rows: u64, bucket: &Bucket) -> Result<Vec<stage::Staged>, Obstacle> {
    let Parts { anchors, own, prologue, tail } = *parts;
    // Glue that only the finish reads is formed there.
    let early = ancestors(g, g.ids().filter(|id| own.contains(id) || prologue.contains(id)));
    let apart = |id: &ValueId| !own.contains(id) && !tail.contains(id) && !is_leaf(&g.node(*id).op);
    let side: BTreeSet<ValueId> = g.ids().filter(|id| apart(id) && early.contains(id)).collect();
    if side.is_empty() {
        return Ok(vec![]);
    }
    let wanted: BTreeSet<ValueId> = anchors
        .iter()
        .filter(|a| is_contraction(&g.node(**a).op))
        .map(|a| strip_reshapes(g, g.node(*a).args[0]))
        .filter(|x| prologue.contains(x))
        .collect();
    let mut staged =
        stage::plan(g, &side, &Scope { bucket, heads: None, wanted: &wanted, stored: &BTreeSet::new(), rows })?;
    if rows > 1 {
        // With several rows only what the prologue forms is kept; other glue is formed where the epilogue needs it.
        staged.retain(|s| prologue.contains(&s.node));
        let kept: BTreeSet<ValueId> = staged.iter().map(|s| s.node).collect();
        let one_row = |id: &ValueId| {
            is_wide_sum(&g.node(*id).op)
                || is_wide_max(g, *id)
                || matches!(g.node(*id).op, Op::TopK { .. } | Op::Repeat { .. })
        };
        if let Some(id) = kept.iter().find(|id| one_row(id) && needed_behind(g, **id, own, &kept)) {
            return Err(Obstacle::new("rows-kept", format!("%{} is kept for one row at a time", id.0)));
        }
    }
    Ok(staged)
}

/// True if an epilogue value reads `id` directly or through inline values.
fn needed_behind(g: &Graph, id: ValueId, own: &BTreeSet<ValueId>, kept: &BTreeSet<ValueId>) -> bool {
    g.users()[id.index()].iter().any(|u| {
        own.contains(u) && !is_contraction(&g.node(*u).op) || (!kept.contains(u) && needed_behind(g, *u, own, kept))
    })
}

impl Skinny {
    pub fn describe(&self) -> String {
        let parts: Vec<String> = self
            .segments
            .iter()
            .map(|s| {
                let inner = s.inner_choices.map(|k| format!(" x{k} choices")).unwrap_or_default();
                let blocks = match s.block_sums.len() {
                    0 => String::new(),
                    n => format!(", {n} sums over blocks"),
                };
                let (zipped, per, at_once) = (s.anchors.len(), s.outputs_per_wave, s.outputs_at_once);
                let split = if s.split_k > 1 { format!(", each over {} waves", s.split_k) } else { String::new() };
                format!("{zipped} zipped, {} outputs, {per} a wave, {at_once} at once{split}{inner}{blocks}", s.n)
            })
            .collect();
        let rows = if self.rows_on_grid { "one row a workgroup" } else { "all rows a workgroup" };
        let y = match self.y {
            YAxis::None => String::new(),
            YAxis::Heads(h) => format!(", {h} heads"),
            YAxis::Choices(k) => format!(", {k} choices"),
        };
        let kept = if self.rows_kept > 0 { format!(", {} rows kept", self.rows_kept) } else { String::new() };
        let finish = self.finish.as_ref().map_or(String::new(), |f| {
            format!(", the last workgroup finishes {} values from {}", f.nodes.len(), f.exchanged.len())
        });
        format!("skinny matmul [{}]{y}, {rows}, {} at once{kept}{finish}", parts.join("; "), self.row_unroll)
    }

    /// True if the waves of a workgroup were chosen for the operand that they share, and may be others.
    pub fn shares_only_operands(&self, schedule: &Schedule) -> bool {
        let dealt = schedule.waves > SKINNY_WAVES || self.segments.iter().any(|s| s.split_k > 1);
        dealt && schedule.staged.is_empty() && self.segments.iter().all(|s| s.block_sums.is_empty())
    }

    /// Workgroups that a segment takes along grid axis 0.
    pub fn blocks(segment: &Segment, waves: u32) -> u64 {
        let sets = u64::from(waves / segment.split_k.max(1)).max(1);
        segment.n.div_ceil(sets * u64::from(segment.outputs_per_wave))
    }

    pub fn grid(&self, waves: u32) -> [GridAxis; 3] {
        let count = |n: u64| GridAxis { symbol: None, mul: n, div: 1 };
        let x = self.segments.iter().map(|s| Self::blocks(s, waves)).sum();
        let y = match self.y {
            YAxis::None => 1,
            YAxis::Heads(n) | YAxis::Choices(n) => n,
        };
        let z = if self.rows_on_grid { GridAxis { symbol: Some(Dim::Rows), mul: 1, div: 1 } } else { count(1) };
        [count(x), count(y), z]
    }
}
