//! Which values of a scope are kept (in registers or workgroup memory) instead of being formed anew at each use.

use std::collections::BTreeSet;

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::{Op, ReduceKind};
use unglue_ir::order::Order;
use unglue_ir::types::{DType, Dim};

use super::{Bucket, Obstacle, SHARED_BUDGET, is_leaf, is_view, row_elements};

/// Most elements that a repeat carries: one a lane of the smallest workgroup that takes one.
pub const REPEAT_ELEMENTS: u64 = 64;
/// Small values up to this size are formed once, before the loops that use them.
const HOIST_ELEMENTS: u64 = 32;
/// Values below this size are not worth workgroup memory.
const SHARE_ELEMENTS: u64 = 64;
/// Inline cost (loads and ops, transcendentals count 8) above which a value with several uses is kept.
pub const SHARE_COST: u64 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Place {
    /// One uniform register: single elements only.
    Registers,
    /// Workgroup memory, `bytes` an element.
    Shared { bytes: u8 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Staged {
    pub node: ValueId,
    pub place: Place,
    /// Elements kept for one row (and head, in delta form).
    pub elements: u64,
}

/// What differs between scopes.
pub struct Scope<'a> {
    pub bucket: &'a Bucket,
    /// Extent of a head axis (axis 1) that the scope fixes.
    pub heads: Option<u64>,
    /// Values that must be kept in workgroup memory.
    pub wanted: &'a BTreeSet<ValueId>,
    /// Values that stand in a buffer: an element costs a load.
    pub stored: &'a BTreeSet<ValueId>,
    /// Rows kept at a time.
    pub rows: u64,
}

/// True for a sum that needs the whole workgroup or a whole wave.
pub fn is_wide_sum(op: &Op) -> bool {
    matches!(op, Op::Reduce { kind: ReduceKind::Sum, order: Order::Lanes, .. })
}

/// True for a maximum over more elements than registers take.
pub fn is_wide_max(g: &Graph, id: ValueId) -> bool {
    let node = g.node(id);
    let Op::Reduce { kind: ReduceKind::Max, axis, .. } = node.op else { return false };
    let n = g.ty(node.args[0]).tensor().and_then(|t| t.shape[axis as usize].fixed());
    n.is_none_or(|n| n > 32)
}

fn scope_elements(g: &Graph, id: ValueId, scope: &Scope) -> u64 {
    let all = row_elements(g.ty(id), scope.bucket);
    match (scope.heads, g.ty(id).tensor()) {
        (Some(h), Some(t)) if t.rank() == 3 && t.shape[1] == Dim::Fixed(h) => all / h,
        _ => all,
    }
}

/// In a head scope, values without a head axis are formed inline: a whole row is not one head's business.
fn of_scope(g: &Graph, id: ValueId, scope: &Scope) -> bool {
    let Some(h) = scope.heads else { return true };
    g.ty(id).tensor().is_some_and(|t| t.rank() == 3 && t.shape[1] == Dim::Fixed(h))
}

fn shared_place(g: &Graph, id: ValueId) -> Place {
    let narrow = g.ty(id).tensor().and_then(|t| t.dtype()).is_some_and(|d| matches!(d, DType::Bf16 | DType::F16));
    Place::Shared { bytes: if narrow { 2 } else { 4 } }
}

/// Chooses the kept values among `nodes` (ascending).
pub fn plan(g: &Graph, nodes: &BTreeSet<ValueId>, scope: &Scope) -> Result<Vec<Staged>, Obstacle> {
    let users = g.users();
    let outputs: BTreeSet<ValueId> = g.outputs.iter().map(|(_, v)| *v).collect();
    let mut staged = Vec::new();
    let mut kept: BTreeSet<ValueId> = scope.stored.clone();
    let mut bytes = 0u64;
    for &id in nodes {
        let node = g.node(id);
        // A head's part of a value that is computed for whole rows has no other node than the view of it.
        let part = scope.heads.is_some() && is_view(&node.op) && of_scope(g, id, scope);
        let passing = is_view(&node.op) && !scope.wanted.contains(&id) && !part;
        // A given operand that every lane reads element by element is copied: as scalars it would fill the SGPRs.
        let given = is_leaf(&node.op) && !(scope.heads.is_some() && scope.wanted.contains(&id));
        if given || passing || g.ty(id).tensor().is_none() {
            continue;
        }
        let elements = scope_elements(g, id, scope);
        if !of_scope(g, id, scope) {
            continue;
        }
        let must = must_keep(g, id, elements, scope)?;
        let place = match must {
            Some(place) => place,
            None if !part && hoists(g, id, elements, &users, &outputs, scope) => {
                if elements == 1 {
                    Place::Registers
                } else {
                    shared_place(g, id)
                }
            }
            None => {
                let uses = real_uses(g, id, &users, outputs.contains(&id));
                let cost = inline_cost(g, id, &kept);
                let place = shared_place(g, id);
                let Place::Shared { bytes: b } = place else { continue };
                let fits = bytes + elements.saturating_mul(u64::from(b) * scope.rows) <= SHARED_BUDGET;
                let big_symbol = g.ty(id).tensor().is_some_and(|t| t.shape.contains(&Dim::Pools));
                let integer = g.ty(id).tensor().and_then(|t| t.dtype()) == Some(DType::I32);
                let small = elements < SHARE_ELEMENTS && !part;
                if uses < 2 || small || cost <= SHARE_COST || !fits || big_symbol || integer {
                    continue;
                }
                place
            }
        };
        if let Place::Shared { bytes: b } = place {
            bytes = bytes.saturating_add(elements.saturating_mul(u64::from(b) * scope.rows));
        }
        kept.insert(id);
        staged.push(Staged { node: id, place, elements });
    }
    check_budget(&staged, scope.rows)?;
    Ok(staged)
}

/// Kept values of `rows` rows fit workgroup memory.
pub fn check_budget(staged: &[Staged], rows: u64) -> Result<(), Obstacle> {
    check_budgets(&[(staged, rows)])
}

/// Kept values of all stages, of as many rows each, fit workgroup memory together.
pub fn check_budgets(stages: &[(&[Staged], u64)]) -> Result<(), Obstacle> {
    let all = stages.iter().flat_map(|(staged, rows)| staged.iter().map(move |s| (s, *rows)));
    let bytes = all.fold(0u64, |sum, (s, rows)| match s.place {
        Place::Shared { bytes } => sum.saturating_add(s.elements.saturating_mul(u64::from(bytes) * rows)),
        Place::Registers => sum,
    });
    if bytes > SHARED_BUDGET {
        return Err(Obstacle::new("shared-memory", format!("staged values take {bytes} bytes of {SHARED_BUDGET}")));
    }
    Ok(())
}

/// Values that cannot be formed inline.
fn must_keep(g: &Graph, id: ValueId, elements: u64, scope: &Scope) -> Result<Option<Place>, Obstacle> {
    let node = g.node(id);
    if scope.wanted.contains(&id) {
        return Ok(Some(shared_place(g, id)));
    }
    if is_wide_sum(&node.op) || is_wide_max(g, id) {
        return Ok(Some(if elements == 1 { Place::Registers } else { Place::Shared { bytes: 4 } }));
    }
    match node.op {
        Op::Repeat { .. } if elements <= REPEAT_ELEMENTS => Ok(Some(Place::Shared { bytes: 4 })),
        Op::Repeat { .. } => {
            Err(Obstacle::new("repeat-size", format!("%{} carries {elements} elements of at most 64", id.0)))
        }
        Op::TopK { .. } => Ok(Some(Place::Shared { bytes: 4 })),
        _ => Ok(None),
    }
}

/// A small value that feeds a larger one is formed once, an element a lane.
fn hoists(
    g: &Graph,
    id: ValueId,
    elements: u64,
    users: &[Vec<ValueId>],
    outputs: &BTreeSet<ValueId>,
    scope: &Scope,
) -> bool {
    let has_rows = g.ty(id).tensor().is_some_and(|t| t.shape.first().is_some_and(|d| d.fixed().is_none()));
    let float = g.ty(id).tensor().and_then(|t| t.dtype()).is_some_and(|d| d.is_float());
    if elements > HOIST_ELEMENTS
        || !has_rows
        || !float
        || matches!(g.node(id).op, Op::GatherLast) && scope.heads.is_some()
    {
        return false;
    }
    let larger = |u: &ValueId| row_elements(g.ty(*u), scope.bucket) > row_elements(g.ty(id), scope.bucket);
    outputs.contains(&id) || users[id.index()].iter().any(larger) || users[id.index()].len() > 1
}

/// Uses by ops that read elements, looking through views and widening casts, which cost no more than a load.
fn real_uses(g: &Graph, id: ValueId, users: &[Vec<ValueId>], is_output: bool) -> usize {
    let mut n = usize::from(is_output);
    for &u in &users[id.index()] {
        n += match &g.node(u).op {
            op if is_view(op) || *op == Op::Cast(DType::F32) => real_uses(g, u, users, false),
            _ => 1,
        };
    }
    n
}

/// Loads and ops of forming one element inline.
pub fn inline_cost(g: &Graph, id: ValueId, kept: &BTreeSet<ValueId>) -> u64 {
    let node = g.node(id);
    if kept.contains(&id) || is_leaf(&node.op) {
        return 1;
    }
    let own = match &node.op {
        op if is_view(op) => 0,
        Op::Unary(_) => 8,
        // A few taps, each behind a branch.
        Op::CausalConv | Op::PoolWindow { .. } => 8,
        Op::Reduce { axis, .. } => {
            let n = g.ty(node.args[0]).tensor().and_then(|t| t.shape[*axis as usize].fixed()).unwrap_or(1);
            return inline_cost(g, node.args[0], kept).saturating_mul(n.min(64));
        }
        _ => 1,
    };
    node.args.iter().fold(own, |a, arg| a.saturating_add(inline_cost(g, *arg, kept)).min(1 << 32))
}
