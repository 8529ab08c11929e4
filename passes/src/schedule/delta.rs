//! Delta form: one workgroup a sequence and head, or several ([`super::spread`]) where a step has one row; the rows of the
//! sequence are taken in order.

use std::collections::BTreeSet;

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim};

use super::skinny::is_contraction;
use super::spread::{self, Spread};
use super::stage::{self, Place, Scope, Staged};
use super::{Bucket, Form, Obstacle, Products, Schedule, is_leaf, strip_reshapes};

/// Key rows of the state that one lane may hold in registers: 128 spill on gfx1201 (49 of 256 VGPRs, measured with LLVM 22).
const KEYS_MAX: u64 = 64;
/// Parts into which keys may be dealt. More parts than the order has chains take each chain one after the other.
const PARTS: [u64; 5] = [1, 2, 4, 8, 16];
/// Waves of a workgroup: one for each 32 value columns, and for each part of the keys.
const WAVES_MAX: u64 = 16;

pub fn schedule(g: &Graph, node: ValueId, bucket: &Bucket) -> Result<Schedule, Obstacle> {
    let args = &g.node(node).args;
    let dims =
        |id: ValueId| g.ty(id).tensor().map(|t| t.shape.iter().map(|d| d.fixed().unwrap_or(0)).collect::<Vec<_>>());
    let (Some(q), Some(v)) = (dims(args[0]), dims(args[2])) else { return Err(Obstacle::new("delta", "no tensors")) };
    let (heads, keys, values) = (q[1], q[2], v[2]);
    check_nodes(g, node, heads)?;
    let spread = spread::plan(g, node, (heads, values), bucket)?;
    let shares = spread.as_ref().map_or(1, |s| s.shares);
    check_outputs(g, heads, spread.as_ref())?;
    let column_waves = (values / shares).div_ceil(32).next_power_of_two();
    let keys_a_lane = if shares > 1 { bucket.fit.spread_keys_a_lane } else { bucket.fit.keys_a_lane };
    let parts = parts(g, node, (keys, values), column_waves, keys_a_lane)?;
    let mut staged = staged(g, node, (heads, keys), spread.as_ref(), bucket)?;
    staged.extend(head_matmuls(g, node, (heads, shares), spread.as_ref(), &staged)?);
    staged.sort_by_key(|s| s.node);
    let finished = spread.as_ref().map_or(&[][..], |s| &s.finish.staged);
    stage::check_budgets(&[(&staged, 1), (finished, 1)])?;
    let waves = (column_waves * parts) as u32;
    let one_row = bucket.rows_max == 1;
    let form = Form::Delta { node, heads, keys, values, parts, one_row, spread: spread.map(Box::new) };
    Ok(Schedule { form, waves, staged, products: Products::Lanes })
}

/// Kept values of a head but for its contractions, whose workgroups form them whole.
fn staged(
    g: &Graph,
    node: ValueId,
    (heads, keys): (u64, u64),
    spread: Option<&Spread>,
    bucket: &Bucket,
) -> Result<Vec<Staged>, Obstacle> {
    let args = &g.node(node).args;
    let result: Vec<ValueId> = spread::result(g, node).into_iter().collect();
    let mut nodes: BTreeSet<ValueId> = g.ids().filter(|id| *id != node).collect();
    if spread.is_some() {
        // A workgroup that shares its head hands the result over: it is not in workgroup memory.
        let late = spread::tail(g, &result);
        nodes.retain(|id| !late.contains(id) && !result.contains(id));
    }
    let channels = head_channels(g, heads, keys);
    let stored: BTreeSet<ValueId> = channels.iter().map(|s| s.node).collect();
    // Lanes read a column of their own of the values, and a single element of beta: only long chains of ops are kept.
    let mut wanted = BTreeSet::from([args[0], args[1], args[3]]);
    wanted.extend([args[2]].into_iter().filter(|v| stage::inline_cost(g, *v, &stored) > stage::SHARE_COST));
    wanted.extend(result);
    let scope = Scope { bucket, heads: Some(heads), wanted: &wanted, stored: &stored, rows: 1 };
    let mut staged = stage::plan(g, &nodes, &scope)?;
    staged.extend(channels);
    Ok(staged)
}

/// Parts into which the keys are dealt, as many of the order's chains each.
fn parts(
    g: &Graph,
    node: ValueId,
    (keys, values): (u64, u64),
    column_waves: u64,
    wanted: u64,
) -> Result<u64, Obstacle> {
    let Op::DeltaRule { order: Order::Strided(chains) } = g.node(node).op else {
        return Err(Obstacle::new("delta-order", "the rule's sums are not strided"));
    };
    let chains = u64::from(chains);
    let dealt = |parts: u64| parts == 1 || keys.is_multiple_of(chains.max(parts));
    let fits = |parts: u64, each: u64| keys <= parts * each && column_waves * parts <= WAVES_MAX && dealt(parts);
    let found = [wanted, KEYS_MAX].into_iter().find_map(|each| PARTS.into_iter().find(|parts| fits(*parts, each)));
    found.ok_or_else(|| {
        let why = format!(
            "state {keys}x{values} in {chains} chains; a lane holds {KEYS_MAX} keys of a column, and {WAVES_MAX} waves share \
             a head"
        );
        Obstacle::new("delta-size", why)
    })
}

/// Contractions of given rows: a workgroup forms the outputs of its head, which follow one another, and keeps them. Those of
/// which it needs its own columns alone are dealt to the head's `shares` workgroups.
fn head_matmuls(
    g: &Graph,
    node: ValueId,
    (heads, shares): (u64, u64),
    spread: Option<&Spread>,
    kept: &[Staged],
) -> Result<Vec<Staged>, Obstacle> {
    let refuse = |id: ValueId, why: &str| Err(Obstacle::new("delta-matmul", format!("%{} {why}", id.0)));
    let users = g.users();
    let mut out = Vec::new();
    for id in g.ids().filter(|id| is_contraction(&g.node(*id).op)) {
        let n = g.node(id);
        let Op::MatMul { order: Order::Lanes } = n.op else { return refuse(id, "is no matmul in the lanes order") };
        let given = |i: usize| matches!(g.node(strip_reshapes(g, n.args[i])).op, Op::Input { .. } | Op::Weight { .. });
        if !given(0) || !given(1) {
            return refuse(id, "has an operand that is formed in the same kernel");
        }
        let outputs = g.ty(id).tensor().filter(|t| t.rank() == 2 && t.dtype() == Some(DType::F32));
        let Some(outputs) = outputs.and_then(|t| t.shape[1].fixed()).filter(|n| n.is_multiple_of(heads)) else {
            return refuse(id, "does not give the same f32 outputs to each head");
        };
        check_head_users(g, &users, id, outputs, heads)?;
        let dealt = spread.is_some_and(|s| spread::by_columns(g, id, node, &s.finish, kept));
        let elements = outputs / heads / if dealt { shares } else { 1 };
        out.push(Staged { node: id, place: Place::Shared { bytes: 4 }, elements });
    }
    Ok(out)
}

/// What follows from a convolution up to where all uses take segments of H * K channels apart: a workgroup forms the
/// channels of its head, those of all segments at once.
fn head_channels(g: &Graph, heads: u64, keys: u64) -> Vec<Staged> {
    let segment = heads * keys;
    let users = g.users();
    let mut behind: BTreeSet<ValueId> = g.ids().filter(|id| g.node(*id).op == Op::CausalConv).collect();
    let mut out = Vec::new();
    for id in g.ids() {
        let pointwise = matches!(g.node(id).op, Op::Unary(_) | Op::Binary(_) | Op::Cast(_));
        if pointwise && g.node(id).args.iter().any(|a| behind.contains(a)) {
            behind.insert(id);
        }
        let apart = |u: &ValueId| match g.node(*u).op {
            Op::Slice { axis: 1, start, len } => start.is_multiple_of(segment) && len == segment,
            _ => false,
        };
        let flat = g.ty(id).tensor().filter(|t| t.rank() == 2).and_then(|t| t.shape[1].fixed());
        let users = &users[id.index()];
        let Some(n) = flat.filter(|n| behind.contains(&id) && n.is_multiple_of(segment)) else { continue };
        if !users.is_empty() && users.iter().all(apart) {
            out.push(Staged { node: id, place: Place::Shared { bytes: 4 }, elements: n / heads });
        }
    }
    out
}

/// Every use takes the outputs apart into heads, after pointwise ops at most.
fn check_head_users(g: &Graph, users: &[Vec<ValueId>], id: ValueId, n: u64, heads: u64) -> Result<(), Obstacle> {
    let flat = |id: ValueId| g.ty(id).tensor().is_some_and(|t| t.rank() == 2 && t.shape[1] == Dim::Fixed(n));
    let mut todo = vec![id];
    while let Some(at) = todo.pop() {
        for &u in &users[at.index()] {
            let of_heads = [Dim::Fixed(heads), Dim::Fixed(n / heads)];
            match &g.node(u).op {
                Op::Reshape(_) if g.ty(u).tensor().is_some_and(|t| t.rank() == 3 && t.shape[1..] == of_heads) => {}
                Op::Unary(_) | Op::Binary(_) | Op::Cast(_) if flat(u) => todo.push(u),
                _ => return Err(Obstacle::new("delta-matmul", format!("%{} mixes outputs of several heads", u.0))),
            }
        }
    }
    match g.outputs.iter().find(|(_, v)| strip_reshapes(g, *v) == id) {
        Some((name, _)) => Err(Obstacle::new("delta-matmul", format!("output `{name}` is a whole contraction"))),
        None => Ok(()),
    }
}

/// Values of a head are formed by its own workgroups: reductions have the head axis.
fn check_nodes(g: &Graph, delta: ValueId, heads: u64) -> Result<(), Obstacle> {
    let of_head = |id: ValueId| g.ty(id).tensor().is_some_and(|t| t.rank() == 3 && t.shape[1] == Dim::Fixed(heads));
    for id in g.ids() {
        let n = g.node(id);
        match &n.op {
            op if is_leaf(op) => {}
            Op::Reduce { .. } if !of_head(id) => {
                return Err(Obstacle::new("delta-head", format!("%{} reduces over heads", id.0)));
            }
            Op::TopK { .. } | Op::TokenWrite | Op::PoolWrite | Op::TailUpdate | Op::PoolWindow { .. } => {
                return Err(Obstacle::new("delta-glue", format!("%{} has no head axis", id.0)));
            }
            Op::GatherLast | Op::EmbedRows | Op::GatherRows | Op::Repeat { .. } => {
                return Err(Obstacle::new("delta-glue", format!("%{} has no head axis", id.0)));
            }
            Op::ConvUpdate => check_channels(g, delta, n.args[1])?,
            _ => {}
        }
    }
    Ok(())
}

/// Outputs have the head axis. What workgroups exchange may have heads one after the other.
fn check_outputs(g: &Graph, heads: u64, spread: Option<&Spread>) -> Result<(), Obstacle> {
    for (name, v) in &g.outputs {
        let root = strip_reshapes(g, *v);
        let of_head = g.ty(root).tensor().is_none_or(|t| t.rank() == 3 && t.shape[1] == Dim::Fixed(heads));
        if !of_head && !spread.is_some_and(|s| s.finish.exchanged.contains(&root)) {
            return Err(Obstacle::new("delta-head", format!("output `{name}` has no head axis")));
        }
    }
    Ok(())
}

/// The convolution state is replaced in place, so each channel must belong to one workgroup: every use of the
/// convolution takes segments of H * K channels apart into heads.
fn check_channels(g: &Graph, delta: ValueId, state: ValueId) -> Result<(), Obstacle> {
    let q = g.ty(g.node(delta).args[0]).tensor().map(|t| t.shape.clone()).unwrap_or_default();
    let segment = q[1].fixed().unwrap_or(1) * q[2].fixed().unwrap_or(1);
    let users = g.users();
    let conv = users[state.index()].iter().copied().find(|u| g.node(*u).op == Op::CausalConv);
    let Some(conv) = conv else {
        return Err(Obstacle::new("conv-update", "the update stands without its convolution"));
    };
    let mut todo = vec![conv];
    while let Some(id) = todo.pop() {
        for &u in &users[id.index()] {
            match g.node(u).op {
                Op::Slice { axis: 1, start, len } if start.is_multiple_of(segment) && len == segment => {}
                Op::Unary(_) | Op::Binary(_) | Op::Cast(_) => todo.push(u),
                _ => return Err(Obstacle::new("conv-channels", format!("%{} mixes channels of several heads", u.0))),
            }
        }
    }
    let channels = g.ty(conv).tensor().and_then(|t| t.shape[1].fixed()).unwrap_or(0);
    if !channels.is_multiple_of(segment) {
        return Err(Obstacle::new("conv-channels", format!("{channels} channels, segments of {segment}")));
    }
    Ok(())
}
