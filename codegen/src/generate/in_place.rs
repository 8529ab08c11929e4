//! Kept values that take the place of another: a row that is normalised needs the room of one row, not of two.
//!
//! In: the values kept so far, and the next one. Out: the one whose place it can take. A value's last reader may overwrite
//! it if each element is formed from the same element, since then every lane writes what it alone has read.

use std::collections::HashMap;

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;

use super::Kept;
use crate::kp::Place;

/// The kept value, and its place, that `id` of `elements` elements can overwrite; the first if there are several.
pub(super) fn replaced(
    g: &Graph,
    kept: &HashMap<ValueId, Kept>,
    id: ValueId,
    elements: u64,
) -> Option<(ValueId, Place)> {
    let mut olds: Vec<(ValueId, Place)> = kept.iter().filter_map(|(old, k)| room(*old, k, elements)).collect();
    olds.sort_by_key(|(old, _)| *old);
    let users = g.users();
    olds.retain(|(old, _)| {
        let stored = g.outputs.iter().any(|(_, v)| v == old);
        let mut known = HashMap::from([(*old, Reads::SameElement)]);
        known.extend(kept.keys().filter(|v| *v != old).map(|v| (*v, Reads::Nothing)));
        !stored && reads(g, &mut known, id) == Reads::SameElement && only_leads_to(g, &users, kept, *old, id)
    });
    olds.first().copied()
}

fn room(old: ValueId, kept: &Kept, elements: u64) -> Option<(ValueId, Place)> {
    match *kept {
        Kept::Shared { place, elements: n, by_row: false } if n == elements => Some((old, place)),
        _ => None,
    }
}

/// How forming an element of a value reads another value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reads {
    Nothing,
    SameElement,
    OtherElements,
}

fn reads(g: &Graph, known: &mut HashMap<ValueId, Reads>, id: ValueId) -> Reads {
    if let Some(known) = known.get(&id) {
        return *known;
    }
    let node = g.node(id);
    let shape = |v: ValueId| g.ty(v).tensor().map(|t| t.shape.clone());
    let mut all = Reads::Nothing;
    for &arg in &node.args {
        all = match (all, reads(g, known, arg)) {
            (all, Reads::Nothing) => all,
            (Reads::OtherElements, _) | (_, Reads::OtherElements) => Reads::OtherElements,
            _ if is_elementwise(&node.op) && shape(arg) == shape(id) => Reads::SameElement,
            _ => Reads::OtherElements,
        };
    }
    known.insert(id, all);
    all
}

/// True if nothing but `id` needs `old` from now on; values that are kept are formed.
fn only_leads_to(g: &Graph, users: &[Vec<ValueId>], kept: &HashMap<ValueId, Kept>, old: ValueId, id: ValueId) -> bool {
    let mut todo = vec![old];
    while let Some(at) = todo.pop() {
        for &user in &users[at.index()] {
            if user == id || kept.contains_key(&user) {
                continue;
            }
            if !is_elementwise(&g.node(user).op) || g.outputs.iter().any(|(_, v)| *v == user) {
                return false;
            }
            todo.push(user);
        }
    }
    true
}

fn is_elementwise(op: &Op) -> bool {
    matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Cast(_))
}
