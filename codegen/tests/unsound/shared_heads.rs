//! Mistakes of workgroups that share a head of the delta rule.

use unglue_codegen::kp::*;
use unglue_ir::graph::Graph;

use super::mutations::{Finder, Mutation, arrivals, m};
use super::rewrite::{Change, Edit};
use super::spreads;

pub fn all() -> Vec<Mutation> {
    let head = (graph as fn() -> Graph, 1, 0);
    vec![
        m("one_share_too_few", Finder::State, head, |p| arrivals(p, -1)),
        m("columns_handed_over_behind_the_arrival", Finder::Output, head, late_columns),
        m("all_shares_take_the_first_columns", Finder::State, head, first_columns),
    ]
}

fn graph() -> Graph {
    spreads::kda(2, 64, Some(16))
}

/// Changes the block that has the grid finish as a statement of its own: `f` is given its statements and the finish's place.
fn beside_finish(p: &mut Program, f: impl Fn(&mut Vec<Stmt>, usize)) {
    Edit::of(p).first(|_, s| {
        let Stmt::If { cond, then, otherwise, results } = s else { return Change::Keep };
        let Some(at) = then.iter().position(|s| matches!(s, Stmt::GridFinish { .. })) else { return Change::Keep };
        let mut then = then.clone();
        f(&mut then, at);
        Change::With(vec![Stmt::If { cond: *cond, then, otherwise: otherwise.clone(), results: results.clone() }])
    });
}

/// What is handed over is stored once the workgroup has arrived.
fn late_columns(p: &mut Program) {
    beside_finish(p, |block, at| {
        let is_store = |s: &Stmt| matches!(s, Stmt::If { .. });
        let first = block[..at].iter().position(is_store).unwrap();
        let stores = block.remove(first);
        block.insert(at, stores);
    });
}

fn first_columns(p: &mut Program) {
    Edit::of(p).expr(|e, x| match x {
        Expr::Bin(Bin::Rem, a, b) if e.def(*a) == Some(Expr::Group(0)) && e.is_int(*b, 2) => Some(Expr::I32(0)),
        _ => None,
    });
}
