//! Mistakes in kernels on matrix tiles: the bound finds them as bits find those of other kernels.

use unglue_codegen::kp::*;
use unglue_ir::graph::Graph;

use super::mutations::{Finder, Mutation, m};
use super::rewrite::{Change, Edit};
use super::tile_bodies;

const fn subject() -> (fn() -> Graph, u32, u64) {
    (|| tile_bodies::matmul(70, 96), 64, 0)
}

pub fn all() -> Vec<Mutation> {
    let output = Finder::Output;
    vec![
        m("tile_round_dropped", output, subject(), last_round_dropped),
        m("tile_depth_repeated", output, subject(), depth_repeated),
        m("tile_barrier_dropped", output, subject(), barrier_dropped),
        m("tile_half_not_changed", output, subject(), half_not_changed),
        m("tile_sums_before_all_have_read", output, subject(), sums_before_all_have_read),
        m("tile_columns_swapped", output, subject(), columns_swapped),
        m("tile_rows_of_another_wave", output, subject(), rows_of_the_first_wave),
        m("tile_rows_past_the_end", Finder::Behind, subject(), rows_past_the_end),
    ]
}

/// The first loop whose body holds a barrier: the one over rounds of inputs.
pub fn in_rounds(p: &mut Program, change: impl Fn(&mut Edit, &For) -> Option<Vec<Stmt>>) {
    Edit::of(p).first(|e, s| match s {
        Stmt::For(f) if f.body.contains(&Stmt::Barrier) => change(e, f).map_or(Change::Keep, Change::With),
        _ => Change::Keep,
    });
}

/// One round of 32 inputs less.
fn last_round_dropped(p: &mut Program) {
    in_rounds(p, |e, f| {
        let mut out = vec![];
        let end = e.int(&mut out, 32);
        out.push(Stmt::For(For { end, ..f.clone() }));
        Some(out)
    });
}

/// The second products of a round take the depth of the first.
fn depth_repeated(p: &mut Program) {
    let copy = p.clone();
    let mut original = copy.clone();
    let e = Edit::of(&mut original);
    let zero_of = |base: Val| match e.def(base) {
        Some(Expr::Bin(Bin::Add, start, depth)) if e.is_int(depth, 16) => Some(start),
        _ => None,
    };
    Edit::of(p).expr(|_, x| match x {
        Expr::TileLoad(at) if at.side == Side::A => zero_of(at.base).map(|base| Expr::TileLoad(TileAt { base, ..*at })),
        _ => None,
    });
}

fn barrier_dropped(p: &mut Program) {
    in_rounds(p, |_, f| {
        let body = f.body.iter().filter(|s| **s != Stmt::Barrier).cloned().collect();
        Some(vec![Stmt::For(For { body, ..f.clone() })])
    });
}

/// Waves store sums in the place of operands that others still read.
fn sums_before_all_have_read(p: &mut Program) {
    let (mut seen, mut last) = (0, 0);
    Edit::of(&mut p.clone()).first(|_, s| {
        match s {
            Stmt::Barrier => seen += 1,
            Stmt::Let(_, Expr::TileMma(_)) => last = seen,
            _ => (),
        }
        Change::Keep
    });
    let mut number = 0;
    Edit::of(p).first(|_, s| {
        if *s != Stmt::Barrier {
            return Change::Keep;
        }
        number += 1;
        if number == last + 1 { Change::With(vec![]) } else { Change::Keep }
    });
}

/// What is fetched for the next round goes to the half that the waves still read.
fn half_not_changed(p: &mut Program) {
    in_rounds(p, |_, f| {
        let mut body = f.body.clone();
        let swap = body.iter_mut().find_map(|s| match s {
            Stmt::Let(v, Expr::Bin(Bin::Sub, one, half)) => {
                *s = Stmt::Let(*v, Expr::Bin(Bin::And, *half, *one));
                Some(())
            }
            _ => None,
        });
        swap.map(|()| vec![Stmt::For(For { body, ..f.clone() })])
    });
}

/// A tile of sums is stored where its neighbour belongs.
fn columns_swapped(p: &mut Program) {
    let mut bases = vec![];
    let mut find = p.clone();
    Edit::of(&mut find).first(|_, s| {
        if let Stmt::TileStore { base, .. } = s {
            bases.push(*base);
        }
        Change::Keep
    });
    let [first, second, ..] = bases[..] else { return };
    Edit::of(p).first(|_, s| match s {
        Stmt::TileStore { to, base, pitch, tile } if *base == second => {
            Change::With(vec![Stmt::TileStore { to: *to, base: first, pitch: *pitch, tile: *tile }])
        }
        _ => Change::Keep,
    });
}

/// Every wave reads the sums of the first one.
fn rows_of_the_first_wave(p: &mut Program) {
    let sums = Edit::of(p).place("sums0");
    Edit::of(p).first(|e, s| match s {
        Stmt::Let(v, Expr::Load { from, addr: Addr::Contig { base }, bound, vec }) if *from == sums => {
            let Some(Expr::Bin(Bin::Add, _, line)) = e.def(*base) else { return Change::Keep };
            let addr = Addr::Contig { base: line };
            Change::With(vec![Stmt::Let(*v, Expr::Load { from: *from, addr, bound: *bound, vec: *vec })])
        }
        _ => Change::Keep,
    });
}

/// A wave forms all of its 16 rows, whatever the step has.
fn rows_past_the_end(p: &mut Program) {
    Edit::of(p).expr(|e, x| match x {
        Expr::Bin(Bin::Min, _, most) if e.is_int(*most, 16) => Some(Expr::Bin(Bin::Max, *most, *most)),
        _ => None,
    });
}
