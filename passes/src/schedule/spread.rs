//! A head of the delta rule spread over several workgroups. The value columns of its state do not depend on one another, so
//! that each workgroup takes as many of them. What needs a head's whole result is formed by the last of them to arrive.

use std::collections::BTreeSet;

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::types::DType;

use super::finish::{self, Finish, Parts};
use super::skinny::ancestors;
use super::stage::{self, Place, Scope, Staged};
use super::{Bucket, Obstacle, is_leaf, strip_reshapes};

/// Counters of arrivals that a session has for heads: one each.
pub const HEAD_COUNTERS: u64 = 256;
/// Fewest value columns of a workgroup: one a lane of a wave.
const COLUMNS_MIN: u64 = 32;

/// How workgroups share a head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Spread {
    /// Workgroups of a head.
    pub shares: u64,
    /// What the last of them does. Exchanged values are `[rows, heads, values]`, or the same without an axis of heads.
    pub finish: Finish,
}

/// Who forms a kernel's values: each workgroup those of its columns, or the last one of a head.
struct Parted {
    /// The rule's result.
    anchors: Vec<ValueId>,
    own: BTreeSet<ValueId>,
    tail: BTreeSet<ValueId>,
    /// Nothing: no contraction has operands that are formed first.
    prologue: BTreeSet<ValueId>,
}

impl Parted {
    fn new(g: &Graph, node: ValueId) -> Parted {
        let anchors: Vec<ValueId> = result(g, node).into_iter().collect();
        let tail = tail(g, &anchors);
        let own = |id: &ValueId| *id != node && !tail.contains(id) && !is_leaf(&g.node(*id).op);
        Parted { own: g.ids().filter(own).collect(), anchors, tail, prologue: BTreeSet::new() }
    }

    fn parts(&self) -> Parts<'_> {
        Parts { anchors: &self.anchors, own: &self.own, prologue: &self.prologue, tail: &self.tail }
    }
}

/// The rule's result.
pub fn result(g: &Graph, node: ValueId) -> Option<ValueId> {
    g.ids().find(|id| g.node(*id).op == Op::Project(0) && g.node(*id).args[0] == node)
}

/// What follows from the rule's result, but for a reshape that only renames an output.
pub fn tail(g: &Graph, result: &[ValueId]) -> BTreeSet<ValueId> {
    let users = g.users();
    let mut tail = BTreeSet::new();
    for id in g.ids() {
        let renames = matches!(g.node(id).op, Op::Reshape(_)) && users[id.index()].is_empty();
        if !renames && g.node(id).args.iter().any(|a| result.contains(a) || tail.contains(a)) {
            tail.insert(id);
        }
    }
    tail
}

/// Workgroups of a head: as many as the machine wants, as long as each has whole waves of columns.
fn shares((heads, values): (u64, u64), bucket: &Bucket) -> u64 {
    let fits = |shares: u64| {
        let own = values / shares;
        values.is_multiple_of(shares) && own.is_multiple_of(COLUMNS_MIN) && (own / COLUMNS_MIN).is_power_of_two()
    };
    let mut shares = 1;
    while heads * shares < bucket.fit.delta_workgroups && fits(2 * shares) {
        shares *= 2;
    }
    shares
}

/// Plans how a head is spread; none where one workgroup is to have it, or the last one to arrive could not finish it.
///
/// # Errors
/// [`super::NEEDS_OUTPUT`] for exchanged values without a buffer.
pub fn plan(
    g: &Graph,
    node: ValueId,
    (heads, values): (u64, u64),
    bucket: &Bucket,
) -> Result<Option<Spread>, Obstacle> {
    let shares = shares((heads, values), bucket);
    // Of several rows each would arrive, and wait for the finish of the one before.
    if bucket.rows_max > 1 || shares == 1 || heads > HEAD_COUNTERS {
        return Ok(None);
    }
    let parted = Parted::new(g, node);
    let Some(finish) = finished(g, &parted, (heads, values), bucket) else { return Ok(None) };
    finish.exchanged.iter().try_for_each(|v| finish::check_stored(g, *v))?;
    Ok(Some(Spread { shares, finish }))
}

fn finished(g: &Graph, parted: &Parted, (heads, values): (u64, u64), bucket: &Bucket) -> Option<Finish> {
    let parts = parted.parts();
    finish::check_ops(g, &parted.tail).ok().filter(|()| !parted.tail.is_empty())?;
    let exchanged = finish::exchanged(g, &parts);
    let of_columns = |v: &ValueId| {
        let t = g.ty(*v).tensor().filter(|t| t.dtype() == Some(DType::F32));
        let shape = t.map(|t| t.shape.iter().skip(1).map(|d| d.fixed()).collect::<Vec<_>>());
        let whole = |s: Vec<Option<u64>>| s == [Some(heads), Some(values)] || s == [Some(heads * values)];
        // Channels of a convolution are kept by segments, and a contraction's outputs by heads.
        let apart = matches!(g.node(*v).op, Op::Unary(_) | Op::Binary(_) | Op::Cast(_) | Op::Project(0));
        shape.is_some_and(whole) && apart
    };
    let stored = |(_, v): &(String, ValueId)| {
        let v = strip_reshapes(g, *v);
        g.ty(v).state().is_some() || parted.tail.contains(&v) || exchanged.contains(&v)
    };
    if !exchanged.iter().all(of_columns) || !g.outputs.iter().all(stored) {
        return None;
    }
    let nodes = finish::formed(g, &parts, &exchanged).ok()?;
    let staged = staged(g, &nodes, &exchanged, (heads, values), bucket).ok()?;
    let outputs = finish::outputs_of(g, &parted.tail);
    Some(Finish { exchanged: exchanged.into_iter().collect(), segments: vec![], staged, outputs, nodes })
}

/// What is kept while a head is finished: a copy of what was exchanged of it, and as in other scopes.
fn staged(
    g: &Graph,
    nodes: &BTreeSet<ValueId>,
    exchanged: &BTreeSet<ValueId>,
    (heads, values): (u64, u64),
    bucket: &Bucket,
) -> Result<Vec<Staged>, Obstacle> {
    let none = BTreeSet::new();
    let scope = Scope { bucket, heads: Some(heads), wanted: &none, stored: exchanged, rows: 1 };
    let mut staged = stage::plan(g, nodes, &scope)?;
    let copy = |v: &ValueId| Staged { node: *v, place: Place::Shared { bytes: 4 }, elements: values };
    staged.extend(exchanged.iter().map(copy));
    staged.sort_by_key(|s| s.node);
    stage::check_budget(&staged, 1)?;
    Ok(staged)
}

/// Values that the finish of a head would be handed and that have no buffer yet.
pub fn exchanged_without_output(g: &Graph, node: ValueId) -> Vec<ValueId> {
    finish::exchanged_without_output(g, &Parted::new(g, node).parts())
}

/// True for a contraction of which a workgroup needs the outputs of its own columns alone: they only meet, element by
/// element, in the rule's values and in what is exchanged. `kept` are the values that each workgroup forms for the whole head.
pub fn by_columns(g: &Graph, id: ValueId, node: ValueId, finish: &Finish, kept: &[Staged]) -> bool {
    let (users, tail) = (g.users(), Parted::new(g, node).tail);
    let size = |v: ValueId| g.ty(v).tensor().map(|t| t.shape.iter().skip(1).filter_map(|d| d.fixed()).product::<u64>());
    let pointwise = |u: ValueId| {
        let elementwise = matches!(g.node(u).op, Op::Unary(_) | Op::Binary(_) | Op::Cast(_) | Op::Reshape(_));
        elementwise && size(u) == size(id) && !kept.iter().any(|s| s.node == u)
    };
    // Values, and whether the last workgroup has them from what was exchanged.
    let mut todo = vec![(id, false)];
    while let Some((at, handed)) = todo.pop() {
        for &u in &users[at.index()] {
            let value_alone = || g.node(u).args.iter().enumerate().all(|(i, a)| *a != at || i == 2);
            if tail.contains(&u) && handed || u == node && value_alone() {
                continue;
            }
            if tail.contains(&u) || u == node || !pointwise(u) {
                return false;
            }
            let view = matches!(g.node(u).op, Op::Reshape(_));
            todo.push((u, finish.exchanged.contains(&u) || handed && view));
        }
    }
    true
}

/// What every workgroup of a head forms anew: all that the rule needs of all keys, and what is kept for the whole head.
pub fn repeated(g: &Graph, node: ValueId, heads: u64, staged: &[Staged]) -> BTreeSet<ValueId> {
    let args = &g.node(node).args;
    let whole = |s: &&Staged| {
        let all = g.ty(s.node).tensor().filter(|t| t.rank() == 2).and_then(|t| t.shape[1].fixed());
        !matches!(g.node(s.node).op, Op::MatMul { .. }) || all == Some(s.elements * heads)
    };
    let kept = staged.iter().filter(whole).map(|s| s.node);
    ancestors(g, [args[0], args[1], args[3], args[4]].into_iter().chain(kept))
}
