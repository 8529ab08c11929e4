//! What a program may access before it has waited for earlier launches ([`Stmt::Await`]).

use super::verify::{Check, broken};
use super::{Access, Expr, Param, Place, Program, Stmt};

const CURE: &str = "move it behind the await";

/// Whether a program waits for earlier launches.
#[must_use]
pub fn awaits(p: &Program) -> bool {
    p.body.iter().any(is_await)
}

fn is_await(stmt: &Stmt) -> bool {
    matches!(stmt, Stmt::Await { .. })
}

/// One await at most, outside of all blocks, and before it accesses of constants alone.
pub(super) fn check(p: &Program) -> Check<()> {
    let (own, inside) = (p.body.iter().filter(|stmt| is_await(stmt)).count(), nested(&p.body));
    if own + inside == 0 {
        return Ok(());
    }
    if own > 1 || inside > 0 {
        let found = format!("{} await(s), {own} of them outside of all blocks", own + inside);
        return broken("await-once", found, "wait once, outside of all blocks: every workgroup must come by");
    }
    for stmt in &p.body {
        if let Stmt::Await { ahead } = stmt {
            return ahead.iter().try_for_each(|stmt| left_out(stmt).and_then(|()| early(p, stmt)));
        }
        early(p, stmt)?;
    }
    Ok(())
}

/// Awaits inside of blocks.
fn nested(stmts: &[Stmt]) -> usize {
    let inside = |block: &[Stmt]| block.iter().filter(|stmt| is_await(stmt)).count() + nested(block);
    stmts.iter().flat_map(blocks).map(inside).sum()
}

/// The blocks of a statement, in order.
pub(super) fn blocks(stmt: &Stmt) -> Vec<&[Stmt]> {
    match stmt {
        Stmt::If { then, otherwise, .. } => vec![then, otherwise],
        Stmt::For(f) => vec![&f.body],
        Stmt::GridFinish { body, .. } | Stmt::Await { ahead: body } => vec![body],
        Stmt::Let(..)
        | Stmt::Store { .. }
        | Stmt::TileStore { .. }
        | Stmt::Prefetch { .. }
        | Stmt::Spin { .. }
        | Stmt::Barrier => vec![],
    }
}

/// A statement that some targets leave out.
fn left_out(stmt: &Stmt) -> Check<()> {
    match stmt {
        Stmt::Let(..) | Stmt::Prefetch { .. } | Stmt::If { .. } | Stmt::For(_) => {
            blocks(stmt).into_iter().flatten().try_for_each(left_out)
        }
        _ => {
            broken("await-ahead", "more than prefetches in an await", "move it out: some targets leave that block out")
        }
    }
}

/// A statement in front of the await.
fn early(p: &Program, stmt: &Stmt) -> Check<()> {
    let reads = match stmt {
        Stmt::Let(_, Expr::Load { from, .. }) => Some(*from),
        Stmt::Let(_, Expr::TileLoad(at)) => Some(at.from),
        Stmt::Let(_, Expr::TileFma { scales, .. }) => Some(*scales),
        _ => None,
    };
    if let Some(Place::Buffer(i)) = reads
        && let Some(Param::Buffer { access, name, .. }) = p.params.get(i as usize)
        && *access != Access::Constant
    {
        return broken("await-load", format!("param{i} ({name}), declared {access}, is loaded before the await"), CURE);
    }
    match stmt {
        Stmt::Store { to: Place::Buffer(i), .. } => {
            broken("await-store", format!("a store to param{i} before the await"), CURE)
        }
        Stmt::GridFinish { counter, .. } => {
            broken("await-store", format!("an arrival at param{counter} before the await"), CURE)
        }
        other => blocks(other).into_iter().flatten().try_for_each(|stmt| early(p, stmt)),
    }
}
