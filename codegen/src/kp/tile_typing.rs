//! Types of matrix tiles, and where they may come from and go.

use super::typing::{bound_type, index_type, loadable, operands};
use super::verify::{Body, Check, broken};
use super::{Elem, Expr, Half, Mem, Place, Side, TILE, Tile, TileAt, Ty, Val};

/// The type that a tile expression gives.
pub(super) fn expr_type(b: &Body<'_>, val: Val, expr: &Expr) -> Check<Ty> {
    match expr {
        Expr::TileLoad(at) => load_type(b, val, at),
        Expr::TileMma([x, y, sums]) => {
            let types = (b.used(*x)?, b.used(*y)?, b.used(*sums)?);
            match types {
                (
                    Ty::Tile(Tile::Operand(Side::A, left)),
                    Ty::Tile(Tile::Operand(Side::B, right)),
                    Ty::Tile(Tile::Sum),
                ) if left == right => Ok(Ty::Tile(Tile::Sum)),
                _ => Err(operands(b, val, expr, "give a tile A, a tile B of its element type, and a tile of sums")),
            }
        }
        Expr::TileFma { sums, scales, base, onto } => {
            let mem = loadable(b, val, *scales)?;
            if mem != Mem::F32 {
                let found = format!("{val} takes scales from {scales} of {mem}");
                return broken("tile-place", found, "widen the scales to f32");
            }
            index_type(b, &format!("{val} = {expr}"), *base, true)?;
            let sum = Ty::Tile(Tile::Sum);
            if (b.used(*sums)?, b.used(*onto)?) == (sum, sum) {
                return Ok(sum);
            }
            Err(operands(b, val, expr, "give two tiles of sums"))
        }
        _ => Ok(Ty::Tile(Tile::Sum)),
    }
}

fn load_type(b: &Body<'_>, val: Val, at: &TileAt) -> Check<Ty> {
    let mem = loadable(b, val, at.from)?;
    let Some(half) = Half::of(mem) else {
        let found = format!("{val} loads a tile from {} of {mem}", at.from);
        return broken("tile-place", found, "load tiles from places of bf16, f16 or i32");
    };
    if at.pitch == 0 {
        return broken("tile-pitch", format!("{val} loads lines at one place"), "give the elements of a line");
    }
    let what = format!("{val} = {at}");
    index_type(b, &what, at.base, true)?;
    for bound in at.lines.into_iter().chain(at.depth) {
        bound_type(b, &what, bound, Ty::Uniform(Elem::I32))?;
    }
    Ok(Ty::Tile(Tile::Operand(at.side, half)))
}

/// Checks a store of sums.
pub(super) fn store_types(b: &Body<'_>, to: Place, base: Val, pitch: u32, tile: Val) -> Check<()> {
    let (mem, _) = b.place(to)?;
    if !matches!(to, Place::Shared(_)) || mem != Mem::F32 {
        let found = format!("{tile} is stored to {to} of {mem}");
        return broken("tile-place", found, "store tiles to workgroup memory of f32");
    }
    if pitch < TILE {
        let found = format!("{tile} is stored in rows of {pitch} elements");
        return broken("tile-pitch", found, "give each row 16 elements or more");
    }
    index_type(b, &format!("tile-store {to}[{base}]"), base, true)?;
    let ty = b.used(tile)?;
    if ty == Ty::Tile(Tile::Sum) {
        return Ok(());
    }
    broken("tile-store", format!("{tile} has type {ty}, needed is a tile of sums"), "multiply first")
}
