//! Row form: one workgroup a row.

use std::collections::BTreeSet;

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::types::Dim;

use super::stage::{self, Scope};
use super::{Bucket, Form, Obstacle, Products, ROW_WAVES, Schedule, is_leaf, row_elements};

/// Most scores of a top-k with k > 1 or among groups: they are kept in workgroup memory, then in registers.
const TOP_K_SCORES: u64 = 8192;
/// Most groups of such a top-k: 8 bytes of workgroup memory each.
const TOP_K_GROUPS: u64 = 1024;
/// Scores of a row from which on the choice of the best is a stream: more waves have more of it in flight.
const LONG_ROW: u64 = 16384;
/// Waves of a workgroup that has such a row.
const LONG_ROW_WAVES: u32 = 16;

pub fn schedule(g: &Graph, bucket: &Bucket) -> Result<Schedule, Obstacle> {
    let rows = row_symbol(g)?;
    check_state_races(g)?;
    let nodes: BTreeSet<ValueId> = g.ids().collect();
    let wanted = wanted(g, &nodes, bucket)?;
    let staged =
        stage::plan(g, &nodes, &Scope { bucket, heads: None, wanted: &wanted, stored: &BTreeSet::new(), rows: 1 })?;
    let waves = if nodes.iter().any(|id| streams(g, *id, bucket)) { LONG_ROW_WAVES } else { ROW_WAVES };
    Ok(Schedule { form: Form::Row { rows }, waves, staged, products: Products::Lanes })
}

/// True for the choice of the best of a long row.
fn streams(g: &Graph, id: ValueId, bucket: &Bucket) -> bool {
    let Op::TopK { k: 1, limit: None, .. } = g.node(id).op else { return false };
    row_elements(g.ty(g.node(id).args[0]), bucket) >= LONG_ROW
}

/// The one leading symbol of all values that are formed.
pub fn row_symbol(g: &Graph) -> Result<Dim, Obstacle> {
    let mut symbol: Option<Dim> = None;
    for id in g.ids() {
        let node = g.node(id);
        if is_leaf(&node.op) {
            continue;
        }
        let Some(t) = g.ty(id).tensor() else { continue };
        let Some(first) = t.shape.first().filter(|d| d.fixed().is_none()) else { continue };
        match symbol {
            None => symbol = Some(*first),
            Some(s) if s == *first => {}
            Some(s) => return Err(Obstacle::new("one-row-axis", format!("values over {s} and over {first}"))),
        }
    }
    let writes_state = g.ids().any(|id| g.ty(id).state().is_some() && !is_leaf(&g.node(id).op));
    match symbol {
        Some(s) => Ok(s),
        None if writes_state => Ok(Dim::Rows),
        None => Err(Obstacle::new("no-rows", "no value has a row axis")),
    }
}

/// A state that other workgroups still read must not be replaced in the same launch.
pub fn check_state_races(g: &Graph) -> Result<(), Obstacle> {
    for (name, state) in g.states() {
        let reads = |op: &Op| matches!(op, Op::CausalConv | Op::PoolWindow { .. });
        let writes = |op: &Op| matches!(op, Op::ConvUpdate | Op::TailUpdate);
        let users = &g.users()[state.index()];
        if users.iter().any(|u| reads(&g.node(*u).op)) && users.iter().any(|u| writes(&g.node(*u).op)) {
            return Err(Obstacle::new("state-race", format!("`{name}` is read and replaced by different workgroups")));
        }
    }
    Ok(())
}

/// Scores of a top-k among `nodes` are formed once, for lanes that take them up in another order.
pub fn wanted(g: &Graph, nodes: &BTreeSet<ValueId>, bucket: &Bucket) -> Result<BTreeSet<ValueId>, Obstacle> {
    let mut wanted = BTreeSet::new();
    for &id in nodes {
        let Op::TopK { k, limit, part } = g.node(id).op else { continue };
        if part.is_some() {
            return Err(Obstacle::new("top-k-parts", format!("%{} has workgroups for its parts", id.0)));
        }
        let scores = g.node(id).args[0];
        if g.ty(scores).tensor().is_none_or(|t| t.rank() != 2) {
            return Err(Obstacle::new("top-k-rank", "top-k in a row kernel takes [R, E]"));
        }
        let n = row_elements(g.ty(scores), bucket);
        let many = k > 1 || limit.is_some();
        if many && n > TOP_K_SCORES {
            return Err(Obstacle::new("top-k-scores", format!("{n} scores of at most {TOP_K_SCORES}")));
        }
        if let Some(l) = limit.filter(|l| l.groups > TOP_K_GROUPS) {
            return Err(Obstacle::new("top-k-groups", format!("{} groups of at most {TOP_K_GROUPS}", l.groups)));
        }
        if many {
            wanted.insert(scores);
        }
    }
    Ok(wanted)
}
