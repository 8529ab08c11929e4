//! Fusions that the caller forces or forbids.
//!
//! A forced pair is joined in the cover that the search would choose without it: what that costs, or why it cannot be, is
//! what the report said of the two kernels. Where two ops cannot be joined by their kernels, they are joined first and the
//! search starts from there.

use std::collections::BTreeSet;

use schemars::JsonSchema;
use serde::Serialize;
use unglue_ir::graph::ValueId;

use crate::candidates::{self, GroupId, Move, Partition, Worth};
use crate::cover::CoverOptions;
use crate::error::PassError;
use crate::schedule::{Bucket, Obstacle};
use crate::search::Search;

/// One side of a wish.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// An op of the extracted body.
    Op(ValueId),
    /// A kernel by its name in the body, as the cover without wishes has it. Where there is none, the wish is void.
    Kernel(String),
}

/// Two sides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    pub a: Subject,
    pub b: Subject,
}

impl Wish {
    pub fn ops(a: ValueId, b: ValueId) -> Wish {
        Wish { a: Subject::Op(a), b: Subject::Op(b) }
    }
}

/// A fusion that was forced.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Forced {
    pub a: String,
    pub b: String,
    /// Predicted ns of the body with it less those without; modelled.
    pub delta_ns: i64,
    /// What was joined.
    pub how: How,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// They shared a kernel anyway.
    Together,
    /// The two kernels that hold them.
    Kernels,
    /// The two ops, before the search.
    Ops,
}

/// What the cover did for the wishes that are not void.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(deny_unknown_fields)]
pub struct Obeyed {
    pub forced: Vec<Forced>,
    /// Both sides of each.
    pub forbidden: Vec<[String; 2]>,
}

/// A wish whose sides are known.
struct Known {
    a: (String, BTreeSet<ValueId>),
    b: (String, BTreeSet<ValueId>),
    /// Both sides are ops.
    ops: Option<(ValueId, ValueId)>,
}

/// Makes the cover of `search` obey; `again` searches from its present partition on.
///
/// # Errors
/// [`PassError::Cover`]: a side is no op of the body, or a forced pair cannot be one kernel.
pub(crate) fn obey(
    search: &mut Search,
    options: &CoverOptions,
    bucket: &Bucket,
    again: &mut dyn FnMut(&mut Search),
) -> Result<Obeyed, PassError> {
    let forbid = resolve(search, &options.forbid)?;
    let force = resolve(search, &options.force)?;
    let mut obeyed = Obeyed::default();
    if !forbid.is_empty() {
        obeyed.forbidden = forbid.iter().map(|k| [k.a.0.clone(), k.b.0.clone()]).collect();
        search.forbid = forbid.into_iter().map(|k| (k.a.1, k.b.1)).collect();
        restart(search, again);
    }
    for known in &force {
        obeyed.forced.push(join(search, known, bucket, again)?);
    }
    Ok(obeyed)
}

/// Searches anew, with what must be together joined first.
fn restart(search: &mut Search, again: &mut dyn FnMut(&mut Search)) {
    search.restart();
    for (a, b) in search.together.clone() {
        if let Ok((mv, gain)) = joinable(search, holders(search, a), holders(search, b)) {
            search.apply(mv, gain, "forced");
        }
    }
    again(search);
}

fn resolve(search: &mut Search, wishes: &[Wish]) -> Result<Vec<Known>, PassError> {
    if wishes.is_empty() {
        return Ok(vec![]);
    }
    let kernels = search.kernels(&Default::default())?;
    let side = |s: &Subject| match s {
        Subject::Op(v) if search.partition.holders(*v).next().is_some() => {
            Ok(Some((candidates::op_text(search.facts, *v), BTreeSet::from([*v]))))
        }
        Subject::Op(v) => {
            let found = format!("%{} of the rewritten body", v.0);
            let hint = "name two ops that this body computes; views are taken where they are read";
            Err(PassError::cover("wish-unknown", &search.facts.body.name, found, hint))
        }
        Subject::Kernel(name) => {
            let found = kernels.iter().find(|k| k.name == *name);
            Ok(found.map(|k| (name.clone(), k.ops.iter().copied().collect())))
        }
    };
    let mut known = Vec::new();
    for w in wishes {
        let ops = match (&w.a, &w.b) {
            (Subject::Op(a), Subject::Op(b)) => Some((*a, *b)),
            _ => None,
        };
        if let (Some(a), Some(b)) = (side(&w.a)?, side(&w.b)?) {
            known.push(Known { a, b, ops });
        }
    }
    Ok(known)
}

fn holders(search: &Search, op: ValueId) -> Vec<GroupId> {
    search.partition.holders(op).collect()
}

/// The groups of a side: the one that it names; else those that hold an op of it.
fn groups(search: &Search, ops: &BTreeSet<ValueId>) -> Vec<GroupId> {
    let named = search.partition.groups.iter().find(|(_, group)| *group == ops);
    named.map_or_else(|| ops.first().map(|op| holders(search, *op)).unwrap_or_default(), |(g, _)| vec![*g])
}

/// Why two groups cannot be one.
enum No {
    Together,
    Cycle,
    Forbidden,
    Obstacle(Obstacle),
}

/// The first pair of groups that can be one, and what that gains.
fn joinable(search: &mut Search, a: Vec<GroupId>, b: Vec<GroupId>) -> Result<(Move, i64), No> {
    if a.iter().any(|g| b.contains(g)) {
        return Err(No::Together);
    }
    let edges = search.partition.edges(search.facts);
    let mut why = None;
    for (&a, &b) in a.iter().flat_map(|x| b.iter().map(move |y| (x, y))) {
        let mv = Move::Join(a.min(b), a.max(b));
        let no = if search.is_forbidden(a, b) {
            No::Forbidden
        } else {
            match search.evaluator.worth(&search.partition, mv) {
                Worth::Gain { ns, .. } if Partition::may_join(&edges, a, b) => return Ok((mv, ns)),
                Worth::Gain { .. } => No::Cycle,
                Worth::Obstacle(o) => No::Obstacle(o),
            }
        };
        why = why.or(Some(no));
    }
    Err(why.unwrap_or(No::Together))
}

fn join(
    search: &mut Search,
    known: &Known,
    bucket: &Bucket,
    again: &mut dyn FnMut(&mut Search),
) -> Result<Forced, PassError> {
    let before = search.total_ns() as i64;
    let forced = |delta_ns, how| Forced { a: known.a.0.clone(), b: known.b.0.clone(), delta_ns, how };
    let (a, b) = (groups(search, &known.a.1), groups(search, &known.b.1));
    let no = match joinable(search, a, b) {
        Err(No::Together) => return Ok(forced(0, How::Together)),
        Ok((mv, gain)) => {
            search.apply(mv, gain, "forced");
            return Ok(forced(search.total_ns() as i64 - before, How::Kernels));
        }
        Err(no) => no,
    };
    let Some((a, b)) = known.ops else { return Err(impossible(search, known, bucket, no)) };
    let mut singles = Search::new(search.facts, search.evaluator.fresh(), false);
    singles.forbid = search.forbid.clone();
    if let Err(no) = joinable(&mut singles, vec![a], vec![b]) {
        return Err(impossible(search, known, bucket, no));
    }
    search.together.push((a, b));
    restart(search, again);
    Ok(forced(search.total_ns() as i64 - before, How::Ops))
}

fn impossible(search: &Search, known: &Known, bucket: &Bucket, no: No) -> PassError {
    let place = format!(
        "{} with {} in {}, steps of at most {} row(s)",
        known.a.0, known.b.0, search.facts.body.name, bucket.rows_max
    );
    match no {
        No::Obstacle(o) => {
            let found = format!("{}: {}", o.rule, o.detail);
            let hint = "these cannot share a kernel; leave the wish out, or name other rows for it (A,B@1)";
            PassError::cover("force-obstacle", place, found, hint)
        }
        No::Cycle => PassError::cover("force-cycle", place, "another kernel lies between", "force that one as well"),
        No::Forbidden => PassError::cover("force-forbidden", place, "forbidden", "drop one of the two wishes"),
        No::Together => PassError::cover("force-together", place, "one kernel", "internal"),
    }
}
