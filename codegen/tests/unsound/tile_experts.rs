//! Mistakes in kernels on matrix tiles whose weights are int4, or whose rows belong to experts.

use unglue_codegen::kp::*;
use unglue_ir::graph::Graph;

use super::mutations::{Finder, Mutation, m};
use super::packed_bodies::{self, Experts, FORMATS};
use super::rewrite::{Change, Edit};
use super::tiles::in_rounds;

const EXPERTS: Experts = Experts { e: 3, ids: 5, s: 2, k: 2, d: 256, n: 40 };

const fn int4() -> (fn() -> Graph, u32, u64) {
    (|| packed_bodies::matmul(FORMATS[0], 70, 384), 64, 0)
}

const fn experts() -> (fn() -> Graph, u32, u64) {
    (|| packed_bodies::up(FORMATS[0], &EXPERTS), 200, 0)
}

pub fn all() -> Vec<Mutation> {
    let output = Finder::Output;
    vec![
        m("tile_scales_of_the_first_group", output, int4(), group_of_the_first_scales),
        m("tile_scales_of_the_first_half", output, int4(), scales_of_the_first_half),
        m("tile_levels_without_sign", output, int4(), levels_without_sign),
        m("tile_sums_of_an_earlier_round", output, int4(), sums_of_two_rounds),
        m("tile_rows_of_the_pair_before", output, experts(), rows_of_the_pair_before),
        m("tile_counts_read_early", output, experts(), counts_read_early),
        m("tile_expert_without_a_slot", output, experts(), expert_without_a_slot),
        m("tile_results_of_one_choice", output, experts(), results_of_one_choice),
        m("tile_unknown_ids_forgotten", output, experts(), unknown_ids_forgotten),
        m("tile_stripes_exchanged", output, experts(), stripes_exchanged),
    ]
}

/// The first scales of a block serve all groups.
fn group_of_the_first_scales(p: &mut Program) {
    let scales = Edit::of(p).place("s_w");
    let original = &mut p.clone();
    let e = Edit::of(original);
    in_rounds(p, |_, f| {
        let mut body = f.body.clone();
        let load = body.iter_mut().find_map(|s| match s {
            Stmt::Let(_, Expr::Load { from, addr: Addr::Lanes { base, .. }, .. }) if *from == scales => Some(base),
            _ => None,
        })?;
        let Some(Expr::Bin(Bin::Add, block, _)) = e.def(*load) else { return None };
        *load = block;
        Some(vec![Stmt::For(For { body, ..f.clone() })])
    });
}

/// Scales come from the first half of their array, whatever the group.
fn scales_of_the_first_half(p: &mut Program) {
    Edit::of(p).expr(|e, x| match x {
        Expr::TileFma { sums, scales, base, onto } => match e.def(*base) {
            Some(Expr::Bin(Bin::Add, _, column)) => {
                Some(Expr::TileFma { sums: *sums, scales: *scales, base: column, onto: *onto })
            }
            _ => None,
        },
        _ => None,
    });
}

/// A round's sums start from those of all rounds before, which are scaled once more.
fn sums_of_two_rounds(p: &mut Program) {
    in_rounds(p, |e, f| {
        let (param, mut body) = (f.carried.first()?.param, f.body.clone());
        let zero = body.iter_mut().find_map(|s| match s {
            Stmt::Let(_, Expr::TileMma([_, _, sums])) if e.def(*sums) == Some(Expr::TileZero) => Some(sums),
            _ => None,
        })?;
        *zero = param;
        Some(vec![Stmt::For(For { body, ..f.clone() })])
    });
}

/// Nibbles are taken for signed numbers as they are.
fn levels_without_sign(p: &mut Program) {
    Edit::of(p).expr(|e, x| match x {
        Expr::Bin(Bin::Xor, words, flip) if e.is_int(*flip, 0x8888_8888_u32 as i32) => {
            Some(Expr::Bin(Bin::And, *words, *words))
        }
        _ => None,
    });
}

/// Each gathered row is that of the pair before.
fn rows_of_the_pair_before(p: &mut Program) {
    let list = Edit::of(p).place("list");
    Edit::of(p).first(|e, s| match s {
        Stmt::Let(v, Expr::Load { from, addr: Addr::Lanes { base, index }, bound, vec }) if *from == list => {
            let (mut out, ty) = (vec![], Ty::Lane(Elem::I32, 1));
            let [one, zero] = [1, 0].map(|n| {
                let n = e.int(&mut out, n);
                e.add(&mut out, ty, Expr::Splat(n, 1))
            });
            let before = e.add(&mut out, ty, Expr::Bin(Bin::Sub, *index, one));
            let index = e.add(&mut out, ty, Expr::Bin(Bin::Max, before, zero));
            let addr = Addr::Lanes { base: *base, index };
            out.push(Stmt::Let(*v, Expr::Load { from: *from, addr, bound: *bound, vec: *vec }));
            Change::With(out)
        }
        _ => Change::Keep,
    });
}

/// Waves add up the counts of others before these have counted.
fn counts_read_early(p: &mut Program) {
    Edit::of(p).first(|_, s| if *s == Stmt::Barrier { Change::Drop } else { Change::Keep });
}

/// The branch around an expert's products: it gives the tiles of all its outputs.
fn branch_of_an_expert(s: &Stmt) -> bool {
    let loops = |stmts: &[Stmt]| stmts.iter().any(|s| matches!(s, Stmt::For(_)));
    matches!(s, Stmt::If { then, results, .. } if !results.is_empty() && loops(then))
}

/// An expert without a slot gets the weights of the first one.
fn expert_without_a_slot(p: &mut Program) {
    Edit::of(p).first(|e, s| match s {
        Stmt::If { then, otherwise, results, .. } if branch_of_an_expert(s) => {
            let mut out = vec![];
            let cond = e.add(&mut out, Ty::Uniform(Elem::Bool), Expr::Bool(true));
            let (then, otherwise) = (then.clone(), otherwise.clone());
            out.push(Stmt::If { cond, then, otherwise, results: results.clone() });
            Change::With(out)
        }
        _ => Change::Keep,
    });
}

/// All of a row's results go to its first choice.
fn results_of_one_choice(p: &mut Program) {
    Edit::of(p).expr(|_, x| match x {
        Expr::Bin(Bin::Rem, pair, _) => Some(Expr::Bin(Bin::Sub, *pair, *pair)),
        _ => None,
    });
}

/// Ids that name no expert are nobody's.
fn unknown_ids_forgotten(p: &mut Program) {
    let all = Ty::Lane(Elem::I32, 8);
    // The count and the list find them apart.
    let forgotten = |e: &Edit, x: &Expr| match x {
        Expr::Select(_, ids, _) if e.ty(*ids) == all => Some(Expr::Bin(Bin::And, *ids, *ids)),
        _ => None,
    };
    Edit::of(p).expr(forgotten);
    Edit::of(p).expr(forgotten);
}

/// A wave without rows is taken for one with rows and the other way round.
fn stripes_exchanged(p: &mut Program) {
    let tiles = |stmts: &[Stmt]| stmts.iter().any(|s| matches!(s, Stmt::Let(_, Expr::TileMma(_))));
    Edit::of(p).first(|_, s| match s {
        Stmt::If { cond, then, otherwise, results } if tiles(then) => Change::With(vec![Stmt::If {
            cond: *cond,
            then: otherwise.clone(),
            otherwise: then.clone(),
            results: results
                .iter()
                .map(|r| IfResult { result: r.result, then: r.otherwise, otherwise: r.then })
                .collect(),
        }]),
        _ => Change::Keep,
    });
}
