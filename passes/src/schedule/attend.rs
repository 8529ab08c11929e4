//! Attend form: one workgroup a row and some of its heads, which share the loads of the selected rows.

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;

use super::{Bucket, Form, Obstacle, Products, SHARED_BUDGET, Schedule, is_leaf, strip_reshapes};

/// Waves of an attention workgroup: each has an eighth of the places for scores, and of the columns for values.
const WAVES: u32 = 8;
/// Heads that a workgroup may take, the most first. Dot products of eight pairs of head and place fill a lane's registers.
const AT_ONCE: [u64; 3] = [4, 2, 1];
/// Workgroup memory holds whole groups of places.
const PLACES: u64 = 64;
/// Bytes that sums and maxima over a workgroup take: 256 chains, and a number a wave for each head and for the row.
const SCRATCH: u64 = 4 * (256 + 8 * 5);

/// Bytes of workgroup memory: a row number for each place, and a score for each place and head.
fn shared_bytes(selected: u64, at_once: u64) -> u64 {
    let places = selected.div_ceil(PLACES).saturating_mul(PLACES);
    places.saturating_mul(4 * (1 + at_once)).saturating_add(SCRATCH)
}

/// The most heads a workgroup that leave the launch as many workgroups as its machine wants.
fn heads_at_once(selected: u64, heads: u64, bucket: &Bucket) -> u64 {
    let enough = |n: u64| u64::from(bucket.rows_max).saturating_mul(heads.div_ceil(n)) >= bucket.fit.attend_workgroups;
    let fits = |n: u64| n <= heads && shared_bytes(selected, n) <= SHARED_BUDGET;
    AT_ONCE.into_iter().find(|n| fits(*n) && enough(*n)).unwrap_or(1)
}

/// Attention takes a pointwise epilogue on its own result.
pub(super) fn schedule(g: &Graph, node: ValueId, bucket: &Bucket) -> Result<Schedule, Obstacle> {
    for id in g.ids() {
        let n = g.node(id);
        let ok = id == node || is_leaf(&n.op) || matches!(n.op, Op::Reshape(_)) || {
            matches!(n.op, Op::Cast(_) | Op::Unary(_) | Op::Binary(_))
                && g.ty(id).tensor().map(|t| &t.shape) == g.ty(node).tensor().map(|t| &t.shape)
        };
        if !ok {
            return Err(Obstacle::new("attend-epilogue", format!("%{} is not pointwise on the context", id.0)));
        }
    }
    let n = g.node(node);
    let args_ok = n.args.iter().all(|a| is_leaf(&g.node(strip_reshapes(g, *a)).op));
    let Some(t) = g.ty(node).tensor() else { return Err(Obstacle::new("attend", "no tensor")) };
    let (Some(heads), Some(width)) = (t.shape[1].fixed(), t.shape[2].fixed()) else {
        return Err(Obstacle::new("attend", "symbolic heads"));
    };
    let selected = g.ty(n.args[2]).tensor().and_then(|t| t.shape[1].fixed()).unwrap_or(u64::MAX);
    if !args_ok {
        return Err(Obstacle::new("attend-operands", "operands are computed in the same kernel"));
    }
    let bytes = shared_bytes(selected, 1);
    if bytes > SHARED_BUDGET {
        let found = format!("{selected} selected rows take {bytes} bytes of {SHARED_BUDGET}");
        return Err(Obstacle::new("attend-selected", found));
    }
    let at_once = heads_at_once(selected, heads, bucket);
    Ok(Schedule {
        form: Form::Attend { node, heads, width, at_once },
        waves: WAVES,
        staged: vec![],
        products: Products::Lanes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::fit;
    use crate::traffic::traffic;
    use unglue_ir::builder::Builder;
    use unglue_ir::op::Domain;
    use unglue_ir::order::Order;
    use unglue_ir::types::{DType, Dim, StateKind, StateType, TensorType};

    /// 64 heads and 2,051 places, as GLM-5.3-Flash has them.
    #[test]
    fn heads_share_a_workgroup_where_workgroups_are_left() {
        let at_once = |fit, rows_max, heads, selected| {
            heads_at_once(selected, heads, &Bucket { rows_max, seqs_max: 1, pools: 0, fit })
        };
        assert_eq!([1, 4, 16, 64].map(|rows| at_once(&fit::GFX1201, rows, 64, 2051)), [2, 4, 4, 4]);
        assert_eq!([1, 4, 16, 64].map(|rows| at_once(&fit::SM_90, rows, 64, 2051)), [1, 2, 4, 4]);
        assert_eq!([1, 2, 3, 6].map(|heads| at_once(&fit::GFX1201, 64, heads, 2051)), [1, 2, 2, 4]);
        // Scores of more heads do not fit.
        assert_eq!([2400, 3900, 5000].map(|n| at_once(&fit::GFX1201, 64, 64, n)), [2, 2, 1]);
    }

    /// 6 heads: three workgroups of two, or two of four.
    #[test]
    fn rows_are_read_once_a_workgroup() {
        let mut b = Builder::new("attend");
        let [rows, heads, width, selected] = [Dim::Rows, Dim::Fixed(6), Dim::Fixed(64), Dim::Fixed(40)];
        let q = b.input("q", TensorType::plain(DType::Bf16, vec![rows, heads, width]), Domain::Normal);
        let ids = b.input("ids", TensorType::plain(DType::I32, vec![rows, selected]), Domain::Selected);
        let latent = b.state("latent", StateType { kind: StateKind::Token { width: 64 }, dtype: DType::Bf16 });
        let context = b.add(Op::Attend { scale: 0, order: Order::Lanes }, &[q, latent, ids]).unwrap();
        b.output("context", context);
        let g = b.finish();
        let bucket = Bucket { rows_max: 16, seqs_max: 1, pools: 0, fit: &fit::GFX1201 };
        for (at_once, groups) in [(1, 6), (2, 3), (4, 2)] {
            let mut schedule = schedule(&g, context, &bucket).unwrap();
            if let Form::Attend { at_once: n, .. } = &mut schedule.form {
                *n = at_once;
            }
            let t = traffic(&g, &schedule, &bucket);
            assert_eq!((schedule.workgroups(&bucket), t.state_bytes), (16 * groups, 16 * 40 * 64 * 2));
            assert_eq!(t.restream_bytes, t.state_bytes * (groups - 1));
        }
    }
}
