//! Parts form: a workgroup finds the best of one part of a row, and the last one of each row to arrive chooses among them.

use std::collections::BTreeSet;

use unglue_ir::graph::{Graph, ValueId};
use unglue_ir::op::Op;
use unglue_ir::types::Dim;

use super::blocks::{FINISH_WAVES, check_counters};
use super::finish::{self, Finish};
use super::skinny::ancestors;
use super::stage::{is_wide_max, is_wide_sum};
use super::{Bucket, Form, Obstacle, Products, Schedule, is_leaf, is_view, row, strip_reshapes};

/// One workgroup for each part and row.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Parts {
    pub rows: Dim,
    /// The top-k by parts.
    pub node: ValueId,
    /// Number of the graph's output that it is.
    pub output: usize,
    pub parts: u64,
    /// What a row's last workgroup to arrive does.
    pub finish: Option<Box<Finish>>,
}

impl Parts {
    pub fn describe(&self) -> String {
        let finish = self.finish.as_ref().map_or(String::new(), |f| {
            format!(", the last workgroup of a row finishes {} values from {}", f.nodes.len(), f.exchanged.len())
        });
        format!("best of {} parts, a part a workgroup{finish}", self.parts)
    }
}

/// The first top-k by parts.
pub fn choice(g: &Graph) -> Option<ValueId> {
    g.ids().find(|id| matches!(g.node(*id).op, Op::TopK { part: Some(_), .. }))
}

/// Schedules a kernel around its top-k by parts.
///
/// # Errors
/// Scores that are not formed element by element, and outputs that do not follow from the choice.
pub fn schedule(g: &Graph, node: ValueId, bucket: &Bucket) -> Result<Schedule, Obstacle> {
    let rows = row::row_symbol(g)?;
    let parted = parted(g, node)?;
    let Op::TopK { part: Some(part), .. } = g.node(node).op else {
        return Err(Obstacle::new("no-parts", "no top-k is by parts"));
    };
    let shape = g.ty(g.node(node).args[0]).tensor().map(|t| t.shape.as_slice());
    let Some([_, Dim::Fixed(n)]) = shape else {
        return Err(Obstacle::new("top-k-rank", "top-k by parts takes [R, E]"));
    };
    let mut output = None;
    for (number, (name, v)) in g.outputs.iter().enumerate() {
        match strip_reshapes(g, *v) {
            v if v == node => output = output.or(Some(number)),
            v if parted.tail.contains(&v) => {}
            _ => return Err(Obstacle::new("parts-output", format!("`{name}` does not follow from the choice"))),
        }
    }
    let finish = match parted.tail.is_empty() {
        true => None,
        false => {
            check_counters(bucket)?;
            Some(Box::new(finish::plan(g, &parted.parts(&[node]), FINISH_WAVES, bucket)?))
        }
    };
    let Some(output) = output else { return Err(Obstacle::new(finish::NEEDS_OUTPUT, "the choice has no buffer")) };
    let form = Form::Parts(Parts { rows, node, output, parts: n.div_ceil(part), finish });
    Ok(Schedule { form, waves: FINISH_WAVES, staged: vec![], products: Products::Lanes })
}

/// Values that the finish stage would be handed and that have no buffer yet.
///
/// # Errors
/// As [`schedule`].
pub fn exchanged_without_output(g: &Graph, node: ValueId) -> Result<Vec<ValueId>, Obstacle> {
    Ok(finish::exchanged_without_output(g, &parted(g, node)?.parts(&[node])))
}

/// Who forms a kernel's values: each workgroup those of its part, or the last one of a row.
struct Parted {
    own: BTreeSet<ValueId>,
    tail: BTreeSet<ValueId>,
    /// Nothing: there is no contraction.
    prologue: BTreeSet<ValueId>,
}

impl Parted {
    fn parts<'a>(&'a self, anchors: &'a [ValueId]) -> finish::Parts<'a> {
        finish::Parts { anchors, own: &self.own, prologue: &self.prologue, tail: &self.tail }
    }
}

fn parted(g: &Graph, node: ValueId) -> Result<Parted, Obstacle> {
    let mut own: BTreeSet<ValueId> = ancestors(g, [node]);
    own.retain(|id| !is_leaf(&g.node(*id).op));
    own.insert(node);
    let mut tail = BTreeSet::new();
    for id in g.ids() {
        let (op, args) = (&g.node(id).op, &g.node(id).args);
        if is_leaf(op) || id == node {
            continue;
        }
        if args.iter().any(|a| *a == node || tail.contains(a)) {
            tail.insert(id);
            continue;
        }
        let glue = matches!(op, Op::Unary(_) | Op::Binary(_) | Op::Cast(_) | Op::Reduce { .. }) || is_view(op);
        let whole = is_wide_sum(op) || is_wide_max(g, id);
        if !glue || whole || g.ty(id).tensor().is_none() {
            return Err(Obstacle::new("parts-glue", format!("%{} needs more than a part", id.0)));
        }
    }
    Ok(Parted { own, tail, prologue: BTreeSet::new() })
}
