//! Attend form: attention over selected rows. A workgroup takes some heads of a row, which share the loads of the selected
//! rows: of one split, and the last workgroup of these heads to arrive combines the splits; or, where steps have more rows
//! than there are counters for, of all splits, one after the other. Bits are the same.

use std::collections::BTreeSet;

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::order::SPLIT_ROWS;
use unglue_ir::types::Dim;

use super::finish::{Finish, NEEDS_OUTPUT};
use super::{Bucket, Form, Obstacle, Products, SHARED_BUDGET, Schedule, is_leaf, strip_reshapes};

/// Waves that share the places and columns of some heads: each has an eighth of the places for scores, and of the columns
/// for values.
pub const SET_WAVES: u32 = 8;
/// Most heads of a set of waves: dot products of eight pairs of head and place fill a lane's registers.
pub const SET_HEADS: u64 = 4;
/// Splits whose values a lane loads at the same time when they are combined, two columns each.
pub const SPLITS_AT_ONCE: u64 = 24;
/// Heads that a workgroup may take, the most first.
const AT_ONCE: [u64; 4] = [8, 4, 2, 1];
/// Counters of arrivals that a session has for attention: one for each row and group of heads.
pub const ATTEND_COUNTERS: u64 = 256;

/// Attention of a kernel: its splits, their combination, or both.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Attend {
    /// The op that forms splits; they are given otherwise.
    pub splits: Option<ValueId>,
    pub combine: Option<ValueId>,
    pub heads: u64,
    /// Columns of a head's values.
    pub width: u64,
    /// Splits of the selected places.
    pub count: u64,
    /// Heads of a workgroup.
    pub at_once: u64,
    /// What the last workgroup of a row's heads does, where workgroups have one split each.
    pub finish: Option<Box<Finish>>,
}

impl Attend {
    /// Workgroups of a row and split.
    pub fn groups(&self) -> u64 {
        self.heads.div_ceil(self.at_once)
    }

    /// Waves of a workgroup.
    pub fn waves(&self) -> u32 {
        SET_WAVES * self.at_once.div_ceil(SET_HEADS) as u32
    }

    /// True if workgroups have one split each.
    pub fn is_split(&self) -> bool {
        self.splits.is_some() && (self.combine.is_none() || self.finish.is_some())
    }

    pub(super) fn describe(&self) -> String {
        let how = match (self.splits, self.combine) {
            (None, _) => "combines",
            (_, None) => "each workgroup one of",
            _ if self.finish.is_some() => "each workgroup one, the last one of a row's heads combines",
            _ => "each workgroup all",
        };
        let Attend { heads, width, count, at_once, .. } = self;
        format!("attend, {heads} heads of width {width}, {at_once} a workgroup, {how} {count} splits")
    }
}

/// Bytes of workgroup memory: a row number for each place, a score for each place and head, and for each split and head its
/// maximum, sum and weight.
fn shared_bytes(splits: u64, at_once: u64) -> u64 {
    let places = splits.saturating_mul(SPLIT_ROWS);
    places.saturating_mul(4 * (1 + at_once)).saturating_add(splits.saturating_mul(4 * 3 * at_once))
}

/// The most heads a workgroup that leave the launch as many workgroups as its machine wants.
fn heads_at_once(heads: u64, workgroups_a_head: u64, bucket: &Bucket, fits: impl Fn(u64) -> bool) -> u64 {
    let of = |n: u64| workgroups_a_head.saturating_mul(heads.div_ceil(n));
    let enough = |n: u64| of(n).saturating_mul(u64::from(bucket.rows_max)) >= bucket.fit.attend_workgroups;
    let allowed = |n: u64| n <= heads && n <= bucket.fit.attend_heads;
    AT_ONCE.into_iter().find(|n| allowed(*n) && fits(*n) && enough(*n)).unwrap_or(1)
}

/// Splits that the last workgroup would be handed and that have no buffer yet.
pub(super) fn exchanged_without_output(g: &Graph) -> Vec<ValueId> {
    let combined = |id: &ValueId| g.ids().any(|c| combines(g, c, *id));
    let is_splits = |id: &ValueId| matches!(g.node(*id).op, Op::AttendSplits { .. });
    g.ids().filter(|id| is_splits(id) && combined(id) && !is_output(g, *id)).collect()
}

/// True if `id` combines the splits `of`.
pub(super) fn combines(g: &Graph, id: ValueId, of: ValueId) -> bool {
    let node = g.node(id);
    node.op == Op::AttendCombine && node.args.first().is_some_and(|a| strip_reshapes(g, *a) == of)
}

fn is_output(g: &Graph, id: ValueId) -> bool {
    g.outputs.iter().any(|(_, v)| strip_reshapes(g, *v) == id)
}

/// The kernel's graph may have a pointwise epilogue on the combined values, and nothing else.
fn check_ops(g: &Graph, splits: Option<ValueId>, combine: Option<ValueId>) -> Result<(), Obstacle> {
    let shape = |id: ValueId| g.ty(id).tensor().map(|t| &t.shape);
    for id in g.ids() {
        let op = &g.node(id).op;
        let ok = [splits, combine].contains(&Some(id)) || is_leaf(op) || matches!(op, Op::Reshape(_)) || {
            let pointwise = matches!(op, Op::Cast(_) | Op::Unary(_) | Op::Binary(_));
            pointwise && combine.is_some_and(|c| shape(id) == shape(c))
        };
        if !ok {
            return Err(Obstacle::new("attend-epilogue", format!("%{} is not pointwise on the context", id.0)));
        }
    }
    let given = |a: &ValueId| is_leaf(&g.node(strip_reshapes(g, *a)).op);
    let first = splits.or(combine).map(|id| &g.node(id).args);
    if !first.is_some_and(|args| args.iter().all(given)) {
        return Err(Obstacle::new("attend-operands", "operands are computed in the same kernel"));
    }
    Ok(())
}

/// Extents of heads, splits and values, by either op.
fn sizes(g: &Graph, splits: Option<ValueId>, combine: Option<ValueId>) -> Option<[u64; 3]> {
    let of = splits.or(combine.and_then(|c| g.node(c).args.first().copied()))?;
    let t = g.ty(of).tensor()?;
    let at = |axis: usize| t.shape.get(axis).and_then(|d: &Dim| d.fixed());
    Some([at(1)?, at(2)?, at(3)?.checked_sub(2)?])
}

/// Attention takes a pointwise epilogue on its own result.
///
/// # Errors
/// Other ops, computed operands, or more selected rows than workgroup memory holds; [`NEEDS_OUTPUT`] where the splits are
/// handed over and have no buffer.
pub(super) fn schedule(
    g: &Graph,
    splits: Option<ValueId>,
    combine: Option<ValueId>,
    bucket: &Bucket,
) -> Result<Schedule, Obstacle> {
    check_ops(g, splits, combine)?;
    let Some([heads, count, width]) = sizes(g, splits, combine) else {
        return Err(Obstacle::new("attend", "symbolic heads"));
    };
    let fits = |n: u64| shared_bytes(1, n).saturating_add(count.saturating_mul(4 * 2 * n)) <= SHARED_BUDGET;
    let each = heads_at_once(heads, count, bucket, fits);
    let counters = u64::from(bucket.rows_max).saturating_mul(heads.div_ceil(each));
    let both = splits.filter(|_| combine.is_some());
    let mut form = Attend { splits, combine, heads, width, count, at_once: each, finish: None };
    if !fits(each) {
        return Err(Obstacle::new("attend-selected", format!("{count} splits of {each} heads take workgroup memory")));
    }
    match both {
        Some(s) if is_output(g, s) || count > 1 && counters <= ATTEND_COUNTERS => {
            if counters > ATTEND_COUNTERS {
                let found = format!("{counters} rows and groups of heads, each with a counter of {ATTEND_COUNTERS}");
                return Err(Obstacle::new("finish-counters", found));
            }
            form.finish = Some(Box::new(finish(g, s)?));
        }
        Some(_) => form.at_once = whole(&form, bucket)?,
        None if splits.is_none() => form.at_once = 1,
        None => {}
    }
    let waves = form.waves();
    Ok(Schedule { form: Form::Attend(form), waves, staged: vec![], products: Products::Lanes })
}

/// Heads of a workgroup that has all splits.
fn whole(form: &Attend, bucket: &Bucket) -> Result<u64, Obstacle> {
    let bytes = |n: u64| shared_bytes(form.count, n);
    if bytes(1) > SHARED_BUDGET {
        let found = format!("{} splits take {} bytes of {SHARED_BUDGET}", form.count, bytes(1));
        return Err(Obstacle::new("attend-selected", found));
    }
    Ok(heads_at_once(form.heads, 1, bucket, |n| n <= SET_HEADS && bytes(n) <= SHARED_BUDGET))
}

/// The last workgroup of a row's heads forms everything behind the splits.
fn finish(g: &Graph, splits: ValueId) -> Result<Finish, Obstacle> {
    if !is_output(g, splits) {
        return Err(Obstacle::new(NEEDS_OUTPUT, format!("%{} is read by the finish and has no buffer", splits.0)));
    }
    let root = |o: &usize| strip_reshapes(g, g.outputs[*o].1);
    let outputs: Vec<usize> = (0..g.outputs.len()).filter(|o| root(o) != splits).collect();
    // Reshapes of what is given, or of the splits alone, are nobody's work.
    let formed = |id: &ValueId| !is_leaf(&g.node(strip_reshapes(g, *id)).op) && strip_reshapes(g, *id) != splits;
    let nodes: BTreeSet<ValueId> = g.ids().filter(formed).collect();
    Ok(Finish { exchanged: vec![splits], segments: vec![], staged: vec![], outputs, nodes })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{exchanged_without_output, fit, schedule};
    use crate::traffic::traffic;
    use unglue_ir::builder::Builder;
    use unglue_ir::op::Domain;
    use unglue_ir::types::{DType, StateKind, StateType, TensorType};

    /// Attention of `heads` over `selected` places; with `stored`, the splits are an output.
    fn attention(heads: u64, selected: u64, stored: bool) -> Graph {
        let mut b = Builder::new("attend");
        let [rows, heads, width, selected] = [Dim::Rows, Dim::Fixed(heads), Dim::Fixed(64), Dim::Fixed(selected)];
        let q = b.input("q", TensorType::plain(DType::Bf16, vec![rows, heads, width]), Domain::Normal);
        let ids = b.input("ids", TensorType::plain(DType::I32, vec![rows, selected]), Domain::Selected);
        let latent = b.state("latent", StateType { kind: StateKind::Token { width: 64 }, dtype: DType::Bf16 });
        let context = b.attend(1.0, [q, latent, ids]).unwrap();
        b.output("context", context);
        let mut g = b.finish();
        if stored {
            let splits = super::exchanged_without_output(&g);
            g.outputs.push(("splits".into(), splits[0]));
        }
        g
    }

    fn bucket(fit: &'static fit::Fit, rows_max: u32) -> Bucket {
        Bucket { rows_max, seqs_max: 1, pools: 0, fit }
    }

    fn form(g: &Graph, bucket: &Bucket) -> Attend {
        match schedule(g, bucket).unwrap().form {
            Form::Attend(form) => form,
            other => panic!("{other:?}"),
        }
    }

    /// 64 heads and 2,051 places, as GLM-5.3-Flash has them: 17 splits.
    #[test]
    fn heads_share_a_workgroup_where_workgroups_are_left() {
        let stored = attention(64, 2051, true);
        let at_once = |fit, rows| form(&stored, &bucket(fit, rows)).at_once;
        assert_eq!([1, 4, 16].map(|rows| at_once(&fit::GFX1201, rows)), [8, 8, 8]);
        assert_eq!([1, 4, 16].map(|rows| at_once(&fit::SM_90, rows)), [4, 4, 4]);
        let few = |heads| form(&attention(heads, 2051, true), &bucket(&fit::GFX1201, 16)).at_once;
        assert_eq!([1, 2, 3, 6].map(few), [1, 2, 2, 4]);
        let whole = |heads, selected| form(&attention(heads, selected, false), &bucket(&fit::GFX1201, 300)).at_once;
        assert_eq!([1, 2, 3, 6, 64].map(|heads| whole(heads, 2051)), [1, 2, 2, 4, 4]);
        // Scores of more heads do not fit.
        assert_eq!([2400, 3600, 5000].map(|n| whole(64, n)), [2, 2, 1]);
    }

    #[test]
    fn workgroups_have_a_split_each_while_there_are_counters() {
        let g = attention(64, 2051, false);
        let refused = schedule(&g, &bucket(&fit::GFX1201, 16)).unwrap_err();
        assert_eq!((refused.rule, exchanged_without_output(&g).unwrap().len()), (NEEDS_OUTPUT, 1));
        let stored = attention(64, 2051, true);
        let split = schedule(&stored, &bucket(&fit::GFX1201, 16)).unwrap();
        let finish = split.finish().unwrap();
        assert_eq!((split.waves, split.workgroups(&bucket(&fit::GFX1201, 16))), (16, 16 * 17 * 8));
        assert_eq!((finish.outputs.as_slice(), finish.nodes.len()), ([0].as_slice(), 1));
        assert_eq!(schedule(&stored, &bucket(&fit::GFX1201, 64)).unwrap_err().rule, "finish-counters");
        // Many rows, or one split: nothing is handed over.
        let whole = schedule(&g, &bucket(&fit::GFX1201, 64)).unwrap();
        assert_eq!((whole.waves, whole.workgroups(&bucket(&fit::GFX1201, 64))), (8, 64 * 16));
        assert!(schedule(&attention(64, 128, false), &bucket(&fit::GFX1201, 1)).unwrap().finish().is_none());
    }

    /// 6 heads: three workgroups of two, or two of four.
    #[test]
    fn rows_are_read_once_a_workgroup() {
        let g = attention(6, 40, false);
        let bucket = bucket(&fit::GFX1201, 16);
        for (at_once, groups) in [(1, 6), (2, 3), (4, 2)] {
            let mut schedule = schedule(&g, &bucket).unwrap();
            if let Form::Attend(form) = &mut schedule.form {
                form.at_once = at_once;
            }
            let t = traffic(&g, &schedule, &bucket);
            assert_eq!((schedule.workgroups(&bucket), t.state_bytes), (16 * groups, 16 * 40 * 64 * 2));
            assert_eq!(t.restream_bytes, t.state_bytes * (groups - 1));
        }
    }
}
